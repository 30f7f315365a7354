"""From images and their proposals to what a detector reads, and from its scores to boxes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, PILImageResampling

from hf_curriculum.data.images import to_rgb
from hf_curriculum.data.proposals import SelectiveSearch, fitted_boxes
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.detection.config import WsddnConfig
from hf_curriculum.tasks.detection.regions import keep_best

SHORTEST = 32
"""Pixels of a resized picture's shorter side at least: a backbone's strides leave nothing of less."""
_EDGES = ("longest_edge", "shortest_edge")
_LONGEST = 1333 / 800
"""DETR's longest edge, as a multiple of the shortest."""


class View(NamedTuple):
    """An image as a detector reads it, once.

    Args:
        picture: resized and normalised, float32 (3, height, width).
        boxes: its proposals in pixels of the picture, float32 (proposals, 4).
    """

    picture: torch.Tensor
    boxes: torch.Tensor


class WsddnImageProcessor(BaseImageProcessor):
    """Resizes and normalises images together with their proposals, which it searches for if none are given.

    It is saved with a detector, so that the detector reads any image. Images keep their aspect ratio and are not
    padded.

    Args:
        class_names: of the detector, in the order of its outputs; a `DetectionCollator` needs them.
        size: `{"longest_edge": pixels}` of a resized image, or `{"shortest_edge": pixels}` with a bound on the longest
            edge, by default 1,333/800 of it; no side is made shorter than 32.
        test_sizes: further lengths of that edge, with the bound in proportion: the scores of an image are averaged
            over all of them. By default an image is read once.
        test_flip: average over mirrored images, too.
        image_mean: of red, green and blue in 0…1, subtracted; ImageNet's by default.
        image_std: of red, green and blue in 0…1, divided by.
        resample: a filter of Pillow by its number; 2 is bilinear.
        mode: of the selective search, "fast" or "quality".
        max_proposals: of an image at most.
        min_size: shortest side of a proposal, in pixels of the image.
        nms_iou: of two boxes of one class that overlap by more, the one with the higher score stays.

    Shapes: a call gives `proposals` float32 (N, P, 4), left, top, right, bottom in pixels of the N resized images,
        zeros for padding. Also `proposal_counts` int64 (N,) and `pixel_values`, a list of N float32 (3, H, W). With
        several views `view_index` int64 (N,), the image of each; with objectness scores `objectness` float32 (N, P).

    Raises:
        ValueError: an option out of range; proposals that are not one list per image, or lie beyond their image.
        ImportError: OpenCV or torchvision is missing, when proposals are searched, or boxes suppressed.
        UnreadableImageError: an image cannot be decoded (a ValueError too).

    Source: Bilen & Vedaldi 2016, section 4: the longer side 480, 576, 688, 864 or 1,200, and mirrored images, averaged
        in tests. Selective search by Nebbia & Kovashka 2024 (WSOD), §4.1; 500 proposals of 20 pixels by Cap2Det.

    Example:
        >>> processor = WsddnImageProcessor(["dog", "cat"], size={"longest_edge": 64})
        >>> inputs = processor(Image.new("RGB", (40, 20)), proposals=[[[0, 0, 20, 10]]])
        >>> inputs["pixel_values"][0].shape, inputs["proposals"].tolist()
        (torch.Size([3, 32, 64]), [[[0.0, 0.0, 32.0, 16.0]]])
    """

    model_input_names: list[str] = ["pixel_values", "proposals", "proposal_counts"]  # noqa: RUF012
    saved_alone = True
    """It is saved with a model that has no text."""

    @validate_arguments
    def __init__(
        self,
        class_names: Sequence[str] | None = None,
        size: Mapping[str, int] | None = None,
        *,
        test_sizes: Sequence[int] = (),
        test_flip: bool = False,
        image_mean: Sequence[float] = tuple(IMAGENET_DEFAULT_MEAN),
        image_std: Sequence[float] = tuple(IMAGENET_DEFAULT_STD),
        resample: int = PILImageResampling.BILINEAR,
        mode: Literal["fast", "quality"] = "fast",
        max_proposals: int | None = 500,
        min_size: int = 20,
        nms_iou: float = 0.4,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if unknown := sorted(set(kwargs) - {"image_processor_type", "processor_class"}):
            raise TypeError(f"WsddnImageProcessor has no option {', '.join(map(repr, unknown))}; it would not count.")
        self.class_names: list[str] | None = None if class_names is None else list(class_names)
        if self.class_names is not None and len(set(self.class_names)) != len(self.class_names):
            twice = next(name for name in self.class_names if self.class_names.count(name) > 1)
            raise ValueError(f"`class_names` has {twice!r} twice. Each class needs a name of its own: rename one.")
        self.size: dict[str, int] = {"longest_edge": 480} if size is None else {**size}
        if not self.size or set(self.size) - {*_EDGES}:
            raise ValueError(
                f"`size={size}` was given. Give one of {_EDGES} in pixels, such as {{'longest_edge': 480}}."
            )
        # Without a bound, a banner of 2 × 1,000 pixels would be read as 480 × 240,000.
        self.size.setdefault("longest_edge", round(self.edge * _LONGEST))
        if self.size["longest_edge"] < self.edge:
            raise ValueError(
                f"`size={size}` was given, with a longest edge that is less than the shortest. Swap them."
            )
        self.test_sizes: list[int] = [int(length) for length in test_sizes]
        for length in (*self.size.values(), *self.test_sizes):
            if length < SHORTEST:
                raise ValueError(f"An edge of {length} pixels was asked for. It is at least {SHORTEST}.")
        if not 0 < nms_iou <= 1:
            raise ValueError(
                f"`nms_iou={nms_iou}` was given. It is an intersection over union, above 0 and at most 1."
            )
        SelectiveSearch(mode, max_proposals, min_size=min_size)  # options out of range are refused now
        self.test_flip = test_flip
        self.image_mean: list[float] = [float(value) for value in image_mean]
        self.image_std: list[float] = [float(value) for value in image_std]
        self.resample: int = int(resample)
        self.mode: Literal["fast", "quality"] = mode
        self.max_proposals = max_proposals
        self.min_size = min_size
        self.nms_iou = nms_iou

    @property
    def edge(self) -> int:
        """Pixels of the edge that `size` names: of the shortest one, if it has both."""
        return self.size["shortest_edge" if "shortest_edge" in self.size else "longest_edge"]

    @property
    def test_edges(self) -> list[int]:
        """Lengths of that edge at which an image is read in tests."""
        return list(dict.fromkeys((self.edge, *self.test_sizes)))

    def propose(self, image: Any) -> np.ndarray:
        """Proposals of an image by selective search: float32 (proposals, 4), in its pixels."""
        return SelectiveSearch(self.mode, self.max_proposals, min_size=self.min_size)(image)

    def view(self, image: Image.Image, boxes: np.ndarray, edge: int, flipped: bool) -> View:
        """An RGB image with its proposals, resized to `edge`, and mirrored if asked for.

        Args:
            image: the image.
            boxes: left, top, right, bottom in its pixels, float32 (proposals, 4).
            edge: length of the edge that `size` names.
            flipped: whether to mirror left and right.
        """
        longest = edge * self.size["longest_edge"] / self.edge
        scale = longest / max(image.size)
        if "shortest_edge" in self.size:
            scale = min(scale, edge / min(image.size))
        width, height = (max(SHORTEST, round(side * scale)) for side in image.size)
        resized = image.resize((width, height), self.resample)
        scaled = boxes * np.float32([width / image.width, height / image.height] * 2)
        if flipped:
            resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            scaled = np.stack([width - scaled[:, 2], scaled[:, 1], width - scaled[:, 0], scaled[:, 3]], axis=1)
        return View(self._normalise(np.asarray(resized)), torch.from_numpy(scaled.astype(np.float32)))

    def _normalise(self, pixels: np.ndarray) -> torch.Tensor:
        """Bytes (height, width, 3) to float32 (3, height, width), by a table of the 256 values."""
        levels = np.arange(256, dtype=np.float64) / 255
        found = np.empty((3, *pixels.shape[:2]), dtype=np.float32)
        for channel, (mean, std) in enumerate(zip(self.image_mean, self.image_std, strict=True)):
            table = ((levels - mean) / std).astype(np.float32)
            np.take(table, pixels[:, :, channel], out=found[channel], mode="clip")  # "clip" spares a copy of `out`
        return torch.from_numpy(found)

    def test_views(self, image: Image.Image, boxes: np.ndarray) -> list[View]:
        """All views of an image in tests."""
        flips = (False, True) if self.test_flip else (False,)
        return [self.view(image, boxes, edge, flipped) for edge in self.test_edges for flipped in flips]

    def preprocess(
        self,
        images: Any,
        proposals: Sequence[Any] | None = None,
        objectness: Sequence[Any] | None = None,
        return_tensors: Any = "pt",
        **kwargs: Any,
    ) -> BatchFeature:
        """The detector's inputs for one image or a list of them; calling the processor does the same.

        Args:
            images: in any form `to_rgb` reads.
            proposals: of each image its boxes, left, top, right, bottom in its pixels; searched where None.
            objectness: of each image the scores of its boxes.
            return_tensors: "pt".
            kwargs: none.
        """
        images = images if isinstance(images, (list, tuple)) else [images]
        if return_tensors not in (None, "pt"):
            raise ValueError(f"`return_tensors={return_tensors!r}` was given. Inputs come as torch tensors: 'pt'.")
        if kwargs:
            raise TypeError(f"WsddnImageProcessor takes no {', '.join(map(repr, kwargs))} when called.")
        for name, given in (("proposals", proposals), ("objectness", objectness)):
            if given is not None and len(given) != len(images):
                raise ValueError(f"`{name}` has {len(given)} entries for {len(images)} images. Give one per image.")
        views = []
        for number, image in enumerate(images):
            rgb = to_rgb(image)
            boxes = (
                self.propose(rgb) if proposals is None else validate_boxes(proposals[number], rgb.size, str(number))
            )
            if objectness is not None and len(objectness[number]) != len(boxes):
                raise ValueError(
                    f"`objectness` of image {number} has {len(objectness[number])} scores for {len(boxes)} proposals. "
                    "Each proposal has its own: give both from the same source."
                )
            views.append(self.test_views(rgb, boxes))
        return BatchFeature(stack_views(views, objectness))

    def post_process_object_detection(
        self, outputs: Any, threshold: float = 0.05, target_sizes: Any = None, max_detections: int = 100
    ) -> list[dict[str, torch.Tensor]]:
        """Boxes of each image, the highest score first, after suppression within each class.

        Args:
            outputs: of `WsddnForObjectDetection`.
            threshold: of scores.
            target_sizes: heights and widths of the images in pixels, (images, 2); without them boxes are shares of
                the sides.
            max_detections: of an image.

        Returns:
            For each image `scores` (detections,), `labels` int64 (detections,) and `boxes` (detections, 4): left, top,
            right, bottom.

        Raises:
            ValueError: not one size per image.
        """
        if target_sizes is not None and len(target_sizes) != len(outputs["scores"]):
            raise ValueError(
                f"`target_sizes` has {len(target_sizes)} entries for {len(outputs['scores'])} images. Give the height "
                "and width of each."
            )
        found = []
        for row, (scores, boxes) in enumerate(zip(outputs["scores"], outputs["pred_boxes"], strict=True)):
            if target_sizes is not None:
                height, width = (float(side) for side in target_sizes[row])
                boxes = boxes * boxes.new_tensor([width, height, width, height])
            parts = keep_best(scores.float(), boxes.float(), self.nms_iou, max_detections, threshold)
            found.append(dict(zip(("scores", "labels", "boxes"), parts, strict=True)))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The options."""
        names = ("class_names", "size", "test_sizes", "test_flip", "image_mean", "image_std", "resample", "mode")
        names += ("max_proposals", "min_size", "nms_iou")
        values = {name: copy.deepcopy(getattr(self, name)) for name in names}
        return {**values, "image_processor_type": type(self).__name__}


def validate_boxes(boxes: Any, size: tuple[int, int], image_id: str) -> np.ndarray:
    """Boxes of an image as float32 (boxes, 4), clipped to its edges."""
    if boxes is None:
        raise ValueError(
            f"`proposals` of image {image_id!r} is None: whether it has none, or none were looked for, is not known. "
            "Add them (`add_proposals`); an image without any has an empty list."
        )
    try:
        if isinstance(boxes, list) and set(map(len, boxes)) == {4}:  # as rows have them: twice as fast as `asarray`
            found = np.fromiter(chain.from_iterable(boxes), np.float32, 4 * len(boxes)).reshape(-1, 4)
        else:
            found = np.asarray(boxes, dtype=np.float32).reshape(-1, 4) if len(boxes) else np.zeros((0, 4), np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The proposals of image {image_id!r} are not four numbers each: {boxes!r:.80}. Give a list of [left, "
            "top, right, bottom], in pixels."
        ) from error
    if not np.isfinite(found).all():
        raise ValueError(
            f"Proposals of image {image_id!r} are not finite: {found[~np.isfinite(found).all(1)][0].tolist()}. There "
            "is no such region: make the column anew."
        )
    width, height = size
    return fitted_boxes(Regions(image_id, boxes=found, width=width, height=height), width, height, "the data")


def stack_views(
    views: Sequence[Sequence[View]], objectness: Sequence[Any] | None = None
) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """The inputs of a detector: of each image its views."""
    flat = [view for of_image in views for view in of_image]
    counts = torch.tensor([len(view.boxes) for view in flat])  # (N,)
    proposals = torch.zeros(len(flat), max(1, int(counts.max())), 4)
    for row, view in enumerate(flat):
        proposals[row, : len(view.boxes)] = view.boxes
    batch: dict[str, Any] = {"proposals": proposals, "proposal_counts": counts}
    if objectness is not None:
        batch["objectness"] = torch.zeros(proposals.shape[:2])
        repeated = [scores for scores, of_image in zip(objectness, views, strict=True) for _ in of_image]
        for row, scores in enumerate(repeated):
            batch["objectness"][row, : counts[row]] = torch.as_tensor(np.asarray(scores, dtype=np.float32))
    if len(flat) > len(views):
        batch["view_index"] = torch.tensor([number for number, of_image in enumerate(views) for _ in of_image])
    return {**batch, "pixel_values": [view.picture for view in flat]}


AutoImageProcessor.register(
    WsddnConfig,
    image_processor_classes={"pil": WsddnImageProcessor, "torchvision": WsddnImageProcessor},
    exist_ok=True,
)
