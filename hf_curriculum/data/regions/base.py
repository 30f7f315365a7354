"""Regions of an image that were found beforehand, and the files that hold them for many images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.config import digest
from hf_curriculum.files import special_file

_SIX_BOX_VALUES = 2054
"""Oscar's features: 2,048 and left, top, right, bottom, width and height as shares of the image's sides."""


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of one image by a detector or a proposal method; parts that a file does not have are None.

    Args:
        image_id: of the image.
        boxes: left, top, right, bottom; the right and lower edges are exclusive, so that right - left is the width.
        normalised: whether `boxes` are shares of the image's sides instead of pixels.
        width, height: of the image, in pixels.
        features: of each region.
        class_scores: probabilities of the classes, with a column for "no object" where the detector has one.
        confidence: the detector's confidence in each region, in [0, 1].
        classes: the name of each region's likeliest class.

    Shapes:
        boxes float32 (regions, 4), features float32 (regions, dims), class_scores float32 (regions, classes),
        confidence float32 (regions,).

    Raises:
        ValueError: the parts differ in their numbers of regions, or boxes have no four edges.

    Example:
        >>> found = Regions("9", boxes=np.float32([[0, 0, 50, 20]]), width=100, height=100)
        >>> len(found), found.area_shares()
        (1, array([0.1], dtype=float32))
    """

    image_id: str
    boxes: np.ndarray | None = None
    normalised: bool = False
    width: float | None = None
    height: float | None = None
    features: np.ndarray | None = None
    class_scores: np.ndarray | None = None
    confidence: np.ndarray | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        counts = {name: len(part) for name, part in self._parts().items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"The regions of image {self.image_id!r} do not fit together: {counts}. Each part has one row per "
                "region. The file is damaged, or its columns were named wrongly."
            )
        if self.boxes is not None and (self.boxes.ndim != 2 or self.boxes.shape[1] != 4):
            raise ValueError(
                f"The boxes of image {self.image_id!r} have the shape {self.boxes.shape}. Four edges per region are "
                "needed: (regions, 4)."
            )

    def _parts(self) -> dict[str, Any]:
        names = ("boxes", "features", "class_scores", "confidence", "classes")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def __len__(self) -> int:
        return len(next(iter(self._parts().values()), ()))

    def pixel_boxes(self, width: float | None = None, height: float | None = None) -> np.ndarray:
        """The boxes in pixels, float32 (regions, 4); `width` and `height` of the image where the file has none."""
        boxes = self._boxes()
        return boxes * self._scale(width, height) if self.normalised else boxes

    def area_shares(self, width: float | None = None, height: float | None = None) -> np.ndarray:
        """The share of the image that each box covers, float32 (regions,); arguments as of `pixel_boxes`."""
        boxes = self._boxes()
        if not self.normalised:
            boxes = boxes / self._scale(width, height)
        sides = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None)  # (regions, 2)
        return sides[:, 0] * sides[:, 1]

    def _boxes(self) -> np.ndarray:
        if self.boxes is None:
            raise ValueError(
                f"The regions of image {self.image_id!r} have no boxes, only {list(self._parts())}. Take a file that "
                "holds boxes."
            )
        return self.boxes

    def _scale(self, width: float | None, height: float | None) -> np.ndarray:
        width = self.width if width is None else width
        height = self.height if height is None else height
        if not width or not height:
            kind = "shares of the image" if self.normalised else "pixels"
            raise ValueError(
                f"The boxes of image {self.image_id!r} are {kind} and the image's width and height are not in the "
                "file, so one cannot be turned into the other. Pass `width` and `height`."
            )
        return np.float32([width, height, width, height])


def validate_regular(path: str | Path) -> None:
    """Raises a `ValueError` for a FIFO, socket or device, which would be waited for."""
    kind = special_file(path)
    if kind not in (None, "folder"):
        raise ValueError(f"{path} is a {kind}, not a file with regions: it is not opened. Remove it, or name another.")


def stamp_of(*paths: str | Path) -> tuple[int, str]:
    """Bytes of files and of all files in folders, and a digest of their names, sizes and times of change."""
    total, lines = 0, []
    for path in map(str, paths):
        inside = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        for file in sorted(inside) if os.path.isdir(path) else [path]:
            status = os.stat(file) if os.path.exists(file) else os.lstat(file)  # a link to nothing
            total += status.st_size
            lines.append(f"{os.path.relpath(file, path)!a} {status.st_size} {status.st_mtime_ns}\n")
    return total, digest(*lines)


class RegionSource(Mapping[str, Regions]):
    """A file or folder with the regions of many images: image id -> `Regions`, read on access.

    A subclass defines `_find`, the location of each image's regions, and `_read`, which reads one. Names that begin
    with an underscore are not pickled: every worker opens the files itself.

    Args:
        path: the file or folder.

    Attributes:
        packages: distributions whose versions decide what is read.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a FIFO, socket or device.
    """

    packages: tuple[str, ...] = ()
    # a mapping compares what it holds, which here would read two whole files

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __init__(self, path: str | Path) -> None:
        self.path: str = str(path)
        if not Path(path).exists():
            raise FileNotFoundError(
                f"There are no regions at {self.path!r}: no such file or folder. Give the path of a file that "
                "`open_regions` knows."
            )
        validate_regular(path)
        self.stamp: tuple[int, str] = stamp_of(path)  # a file that changed is another cache key

    def _find(self) -> dict[str, Any]:
        """Image id -> location of its regions, in the order of the file."""
        raise NotImplementedError(f"{type(self).__name__} does not define `_find`.")

    def _read(self, image_id: str, where: Any) -> Regions:
        raise NotImplementedError(f"{type(self).__name__} does not define `_read`.")

    @property
    def _places(self) -> dict[str, Any]:
        if "_found" not in self.__dict__:
            self._found = self._find()
        return self._found

    def __getitem__(self, image_id: str) -> Regions:
        return self._read(str(image_id), self._places[str(image_id)])

    def __contains__(self, image_id: object) -> bool:
        return str(image_id) in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def scan(self, start: int = 0) -> Iterator[tuple[int, Regions]]:
        """All images in the order of the file from a position on, each with the position after it.

        A position is the number of images before it; tables, which are read line by line without being indexed, count
        bytes.
        """
        for position, image_id in enumerate(self, 1):
            if position > start:
                yield position, self[image_id]

    def arguments(self) -> dict[str, Any]:
        """The file as the provenance of a score records it, without its folder."""
        state = self.__getstate__()
        del state["stamp"]
        return {"type": type(self).__name__, **state, "path": Path(self.path).name, "bytes": self.stamp[0]}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in sorted(vars(self).items()) if not name.startswith("_")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


def boxes_in_features(features: Any) -> Any:
    """The boxes that Oscar's 2,054 features end in, as shares of the sides; None for other features."""
    return features[:, 2048:2052] if features.shape[1] == _SIX_BOX_VALUES else None
