"""Region proposals: boxes that may hold an object, by selective search or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset
from PIL import Image

from hf_curriculum.columns import require_columns
from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.readers.coco import OBJECTS
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.store import id_key
from hf_curriculum.provenance import validate_choice
from hf_curriculum.rng import mix64, permute
from hf_curriculum.shapes import validate_arguments

_BEYOND = 1.0  # pixels by which a box may lie beyond its image: files round, and some count the last pixel in
_ASPECT = 0.02  # by which sizes of one image, scaled and rounded, may differ in their ratio


class SelectiveSearch:
    """Finds region proposals of an image by selective search.

    The boxes of an image are a set: OpenCV returns them in a random order, and here they are sorted. Of more than
    `max_proposals` a random choice is kept, which depends on the image's id and `seed` alone.

    Args:
        mode: "fast" or "quality" (three times the boxes, five times the time; Cap2Det's).
        max_proposals: boxes of an image at most; None keeps all.
        min_size: shortest side of a box, in pixels of the image as it is searched; 0 takes every box.
        max_side: an image with a longer side is scaled down to it before the search; None searches any image as it is,
            which takes minutes for many megapixels.
        max_aspect: images more elongated than this are stretched to it before the search; 2.2 is Cap2Det's.
        seed: another seed is another choice.

    Shapes:
        a call gives float32 (boxes, 4): left, top, right, bottom in pixels of the image that was given.

    Raises:
        ValueError: an option out of range.
        ImportError: OpenCV with its contributed modules is missing, when it is called.
        UnreadableImageError: the image cannot be decoded, when it is called (a ValueError too).

    Source: Uijlings et al. 2013; 20 pixels, 500 proposals, the squeeze and "quality" by Ye et al. 2019 (Cap2Det),
    released code. `max_side` is ours.

    Example:
        >>> SelectiveSearch()(Image.new("RGB", (40, 30)))  # of one colour: all of it
        array([[ 0.,  0., 40., 30.]], dtype=float32)
    """

    packages: tuple[str, ...] = ("opencv-contrib-python-headless", "pillow")

    @validate_arguments
    def __init__(
        self,
        mode: Literal["fast", "quality"] = "fast",
        max_proposals: int | None = 500,
        *,
        min_size: int = 20,
        max_side: int | None = 1000,
        max_aspect: float | None = None,
        seed: int = 0,
    ) -> None:
        validate_search(mode, max_proposals, min_size, max_side, max_aspect)
        self.mode: Literal["fast", "quality"] = mode
        self.max_proposals = max_proposals
        self.min_size = min_size
        self.max_side = max_side
        self.max_aspect = max_aspect
        self.seed = seed

    @classmethod
    def as_cap2det(cls, *, max_proposals: int | None = 500, seed: int = 0) -> SelectiveSearch:
        """As the released code of Cap2Det has it: "quality", images squeezed to 2.2, boxes of 20 pixels, any size."""
        return cls("quality", max_proposals, min_size=20, max_side=None, max_aspect=2.2, seed=seed)

    def __call__(self, image: Any, image_id: str = "") -> np.ndarray:
        image = to_rgb(image)
        boxes, size = selective_search(image, self.mode, self.max_side, self.max_aspect)
        boxes = boxes[short_sides(boxes) >= self.min_size]
        boxes = boxes[chosen_boxes(len(boxes), self.max_proposals, image_id, self.seed)]
        return boxes * np.float32([image.width / size[0], image.height / size[1]] * 2)

    def arguments(self) -> dict[str, Any]:
        """The options as JSON can hold them, for the provenance."""
        return dict(vars(self))

    def __repr__(self) -> str:
        return f"SelectiveSearch({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class StoredProposals:
    """Reads region proposals of images from a file, in pixels of the stored image.

    Boxes that were made for the image at another size are scaled, where the file knows that size. Edges up to a pixel
    beyond the image are clipped, boxes without area left out.

    Args:
        source: a file of regions, or its path; see `open_regions`.
        max_proposals: boxes of an image at most. The highest objectness is kept or, if the file has none, a random
            choice that depends on the image's id and `seed` alone. None keeps all.
        min_size: shortest side of a box in pixels.
        seed: another seed is another choice.

    Shapes:
        `boxes_of(image_id, width, height)` gives float32 (boxes, 4): left, top, right, bottom, and float32 (boxes,) of
        their objectness, or None where the file has none.

    Raises:
        ValueError: an option out of range; boxes that end before they begin, or of another image, when they are read.
        FileNotFoundError: there is no such file.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "proposals.npz")
        >>> np.savez(path, **{"9": [[0, 0, 50, 20]], "9/size": [100, 100]})
        >>> StoredProposals(path).boxes_of("9", 200, 200)[0]
        array([[  0.,   0., 100.,  40.]], dtype=float32)
    """

    @validate_arguments
    def __init__(
        self, source: RegionSource | str | Path, max_proposals: int | None = None, *, min_size: int = 0, seed: int = 0
    ) -> None:
        validate_search("fast", max_proposals, min_size, None, None)
        self.source: RegionSource = open_regions(source) if isinstance(source, (str, Path)) else source
        self.max_proposals = max_proposals
        self.min_size = min_size
        self.seed = seed

    @property
    def packages(self) -> tuple[str, ...]:
        return self.source.packages

    def boxes_of(self, image_id: str, width: int, height: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The proposals of an image of that size, and their objectness."""
        regions = self.source[image_id]
        boxes, scores = fitted_boxes(regions, width, height, repr(self.source)), regions.confidence
        large = short_sides(boxes) >= max(self.min_size, 1e-3)
        boxes, scores = boxes[large], None if scores is None else scores[large]
        if scores is not None and self.max_proposals is not None and len(boxes) > self.max_proposals:
            kept = np.sort(np.argsort(-scores, kind="stable")[: self.max_proposals])
        else:
            kept = chosen_boxes(len(boxes), self.max_proposals, image_id, self.seed)
        return boxes[kept], None if scores is None else scores[kept].astype(np.float32)

    def arguments(self) -> dict[str, Any]:
        """The options and the file as JSON can hold them, for the provenance."""
        return {**vars(self), "source": self.source.arguments()}

    def __repr__(self) -> str:
        return f"StoredProposals({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def fitted_boxes(regions: Regions, width: int, height: int, where: str) -> np.ndarray:
    """The boxes of a file in pixels of an image of that size, clipped to it: float32 (boxes, 4)."""
    known = regions.width, regions.height
    boxes = regions.pixel_boxes(width, height)
    if not regions.normalised and all(known) and known != (width, height):
        ratio = (known[0] / known[1]) / (width / height)
        if abs(ratio - 1) > _ASPECT + 1 / min(width, height):
            raise ValueError(
                f"The boxes of image {regions.image_id!r} in {where} are of an image of {known[0]:g} × {known[1]:g} "
                f"pixels, and the image has {width} × {height}: it is not the same one, or it was cropped. Take the "
                "images that the proposals were made of, or make proposals of these."
            )
        boxes = boxes * np.float32([width / known[0], height / known[1]] * 2)
    if not len(boxes):
        return boxes
    if (boxes[:, 2:] < boxes[:, :2]).any():
        row = int(np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(axis=1))[0])
        raise ValueError(
            f"Box {row} of image {regions.image_id!r} in {where}, {boxes[row].tolist()}, ends before it begins: it is "
            "not left, top, right, bottom. Where the last two are width and height, open the file with "
            'order="xywh".'
        )
    beyond = np.maximum(boxes[:, 2:] - np.float32([width, height]), -boxes[:, :2]).max()
    if beyond > _BEYOND:
        right, bottom = boxes[:, 2:].max(axis=0)
        raise ValueError(
            f"The boxes of image {regions.image_id!r} in {where} reach to {right:g}, {bottom:g} (and from "
            f"{boxes[:, 0].min():g}, {boxes[:, 1].min():g}), and the image has {width} × {height} pixels. They are of "
            'an image of another size, or were read in another order than they have (order="yxyx" or "xywh"). Give '
            "the images that the proposals were made of, or the order."
        )
    return np.clip(boxes, 0, np.float32([width, height, width, height]))


def chosen_boxes(count: int, most: int | None, image_id: str, seed: int) -> np.ndarray:
    """Which of `count` boxes are kept: at most so many, chosen by image and seed; int64 (kept,), in order."""
    if most is None or count <= most:
        return np.arange(count)
    return np.sort(permute(np.arange(most), count, mix64(seed, int(id_key(image_id)))))


@validate_arguments
def proposal_recall(
    dataset: Dataset, *, iou: float = 0.5, objects: str = OBJECTS, column: str = "proposals"
) -> tuple[float, int]:
    """The share of annotated objects that some proposal of their image covers, and the number of objects.

    Args:
        dataset: with proposals and objects in pixels; rows where either is null do not count, nor do COCO's crowds.
        iou: intersection over union from which on a proposal covers an object.
        objects: the column of objects: per row a list of `{"box": [left, top, right, bottom], ...}`.
        column: the column of proposals.

    Returns:
        recall in [0, 1], NaN without objects, and the number of objects.

    Raises:
        ValueError: a column is missing.

    Example:
        >>> rows = {"proposals": [[[0.0, 0, 10, 10]]], "objects": [[{"box": [0, 0, 10, 8]}, {"box": [5, 5, 9, 9]}]]}
        >>> proposal_recall(Dataset.from_dict(rows))
        (0.5, 2)
    """
    require_columns(
        dataset.column_names,
        [column, objects],
        reader="Proposals are compared with annotated objects.",
        remedy="Run `add_proposals`, and load objects with `load_captioned(..., objects=FILE)` or `load_objects`.",
    )
    covered = total = 0
    for row in dataset.with_format(None).select_columns([column, objects]):
        if row[column] is None or row[objects] is None:
            continue
        boxes = np.asarray(row[column], np.float32).reshape(-1, 1, 4)  # (proposals, 1, 4)
        true = [item["box"] for item in row[objects] if not item.get("iscrowd")]
        edges = np.asarray(true, np.float32).reshape(1, -1, 4)  # (1, objects, 4)
        sides = np.minimum(boxes[..., 2:], edges[..., 2:]) - np.maximum(boxes[..., :2], edges[..., :2])
        common = np.clip(sides, 0, None).prod(-1)  # (proposals, objects)
        union = sum((part[..., 2:] - part[..., :2]).prod(-1) for part in (boxes, edges)) - common
        covered += int((common >= iou * union).any(axis=0).sum())
        total += len(true)
    return covered / total if total else float("nan"), total


def validate_search(
    mode: str, max_proposals: int | None, min_size: int, max_side: int | None, max_aspect: float | None
) -> None:
    """Raises a `ValueError` for an option out of range."""
    validate_choice("mode", mode, ("fast", "quality"))
    for option, value, least in (
        ("min_size", min_size, 0),
        ("max_proposals", max_proposals, 1),
        ("max_side", max_side, 1),
        ("max_aspect", max_aspect, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"`{option}` is {value}. It is at least {least}.")


def short_sides(boxes: np.ndarray) -> np.ndarray:
    """The shorter side of each box: (boxes, 4) → (boxes,)."""
    return np.min(boxes[:, 2:] - boxes[:, :2], axis=1)


def import_opencv() -> Any:
    """OpenCV with its contributed modules, on one thread; or an `ImportError` that says how to install it."""
    remedy = (
        "Run `pip install 'hf-curriculum[detection]'`; another OpenCV wheel (opencv-python, opencv-python-headless) "
        "hides the contributed modules and must be uninstalled first."
    )
    try:
        import cv2
    except ImportError as error:
        raise ImportError(f"Selective search needs OpenCV, which is not installed. {remedy}") from error
    try:
        import cv2.ximgproc.segmentation
    except ImportError as error:
        raise ImportError(
            f"Selective search is in OpenCV's contributed modules, and OpenCV {cv2.__version__} is installed without "
            f"them. {remedy}"
        ) from error
    cv2.setNumThreads(1)  # processes run in parallel
    return cv2


def searched_size(size: tuple[int, int], max_side: int | None, max_aspect: float | None) -> tuple[int, int]:
    """Width and height at which an image is searched; see `max_side` and `max_aspect` of `SelectiveSearch`."""
    width, height = size
    scale = 1.0 if max_side is None else min(1.0, max_side / max(size))
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    if max_aspect is not None and width >= max_aspect * height:
        height = int(width / max_aspect)
    elif max_aspect is not None and height >= max_aspect * width:
        width = int(height / max_aspect)
    return width, height


def selective_search(
    image: Image.Image,
    mode: Literal["fast", "quality"] = "fast",
    max_side: int | None = None,
    max_aspect: float | None = None,
) -> tuple[np.ndarray, tuple[int, int]]:
    """Proposals by OpenCV on BGR channels: sorted boxes, float32 (boxes, 4), and the size."""
    cv2 = import_opencv()
    size = searched_size(image.size, max_side, max_aspect)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    search = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    search.setBaseImage(np.ascontiguousarray(np.asarray(image)[:, :, ::-1]))
    if mode == "fast":
        search.switchToSelectiveSearchFast()
    else:
        search.switchToSelectiveSearchQuality()
    found = np.asarray(search.process(), dtype=np.float32).reshape(-1, 4)  # left, top, width, height
    boxes = np.unique(np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1), axis=0)
    return boxes, size
