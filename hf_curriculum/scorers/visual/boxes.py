"""Number and area of the annotated objects of an image."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from hf_curriculum.columns import IMAGE
from hf_curriculum.data.images import image_size
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Scorer

logger: logging.Logger = logging.getLogger(__name__)


class GroundTruthBoxes(Scorer):
    """The number of annotated objects of an image, and their mean or total area.

    Args:
        column: where the objects are: per row a list of mappings with a box each (the embedded scenes, COCO), or a
            mapping of lists (a sequence of structures in `datasets`).
        field: the entry of an object that is its box: "box" in the embedded scenes, "bbox" in COCO's files.
        layout: "xyxy" is left, top, right, bottom, as in the embedded scenes; "xywh" is left, top, width, height, as
            in COCO's files.
        aggregate: "mean" area of the objects of an image, or their "sum" (overlaps count twice).
        unit: areas as "share" of the image, or in "pixels".
        size_columns: columns with the image's width and height in pixels, for shares. By default they are read from
            the header of the image file.
        image_column: where the images are.
        name: the column of the number.
        area_name: the column of the area.
        easy: the easy end of both columns; by the paper's rule higher is easier. A curriculum may override either.

    Shapes:
        float32 (rows,) each: a count, and a share or square pixels. An image without objects has 0 and NaN, a row
        without annotations (None) NaN and NaN. If the image is missing or its header unreadable, a count and NaN.

    Raises:
        ValueError: an unknown option, an object without `field`, or boxes that are not in `layout`.
        TypeError: objects that are neither a list nor a mapping.

    Source: Nebbia & Kovashka 2024 (WSOD), Table 4, the rows with ground-truth information: number and size of objects.

    Example:
        >>> objects = [[{"box": [0, 0, 50, 20]}, {"box": [0, 0, 10, 10]}], []]
        >>> scores = GroundTruthBoxes(size_columns=("width", "height"))(
        ...     {"objects": objects, "width": [100, 100], "height": [100, 100]})
        >>> scores["box_count"].tolist(), scores["box_area"].round(4).tolist()
        ([2.0, 0.0], [0.054999999701976776, nan])
    """

    easy = "high"

    def __init__(
        self,
        column: str = "objects",
        *,
        field: str = "box",
        layout: Literal["xyxy", "xywh"] = "xyxy",
        aggregate: Literal["mean", "sum"] = "mean",
        unit: Literal["share", "pixels"] = "share",
        size_columns: tuple[str, str] | None = None,
        image_column: str = IMAGE,
        name: str = "box_count",
        area_name: str = "box_area",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        validate_choice("layout", layout, ("xyxy", "xywh"))
        validate_choice("aggregate", aggregate, ("mean", "sum"))
        validate_choice("unit", unit, ("share", "pixels"))
        self.column = column
        self.field = field
        self.layout = layout
        self.aggregate = aggregate
        self.unit = unit
        self.size_columns: tuple[str, ...] | None = None if size_columns is None else tuple(size_columns)
        self.image_column = image_column
        self.area_name = area_name
        self._set_columns((column,), name, easy)
        if unit == "share" and self.size_columns is not None:
            self.columns += self.size_columns
        elif unit == "share":
            self.columns += (image_column,)
            self.decode_false = (image_column,)

    @property
    def outputs(self) -> dict[str, str]:
        return {self.name: self.easy, self.area_name: self.easy}

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> dict[str, np.ndarray]:
        rows = batch[self.column]
        counts, areas, outside = np.full(len(rows), np.nan), np.full(len(rows), np.nan), 0
        for row, objects in enumerate(rows):
            boxes = self._boxes(row, objects)
            if boxes is None:
                continue
            counts[row] = len(boxes)
            if len(boxes):
                width, height = self._size(batch, row) if self.unit == "share" else (1.0, 1.0)
                areas[row] = self._area(row, boxes) / (width * height)
                if self.unit == "share":
                    outside += self._is_outside(boxes, width, height)
        if outside:
            logger.warning(
                "`%s`: boxes of %d images lie outside of them, or within one pixel: they are of images of another "
                "size, turned by EXIF, not in the layout %r, or shares of the sides. Their areas say nothing.",
                self.column,
                outside,
                self.layout,
            )
        return {self.name: counts, self.area_name: areas}

    def _boxes(self, row: int, objects: Any) -> np.ndarray | None:
        """Boxes, float64 (objects, 4), in `layout`; None without annotations."""
        where = f"`{self.column}` in row {row} of the batch"
        if objects is None:
            return None
        if isinstance(objects, Mapping):
            found = [objects] if self.field not in objects else []
            boxes = objects.get(self.field, [])
        elif isinstance(objects, (list, tuple)):
            found = [item for item in objects if not isinstance(item, Mapping) or self.field not in item]
            boxes = [] if found else [item[self.field] for item in objects]
        else:
            raise TypeError(f"{where} is a {type(objects).__name__}, not a list of objects or a mapping of lists.")
        if found:
            names = list(found[0]) if isinstance(found[0], Mapping) else found[0]
            raise ValueError(
                f"{where} has an object without `{self.field}`, only {names}. Pass `field=`; of COCO "
                '`field="bbox", layout="xywh"`.'
            )
        try:
            return np.asarray(boxes, dtype=np.float64).reshape(-1, 4) if len(boxes) else np.zeros((0, 4))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} has boxes that are not four numbers each ({error}): {boxes!r:.80}.") from error

    def _area(self, row: int, boxes: np.ndarray) -> float:
        sides = boxes[:, 2:] - boxes[:, :2] if self.layout == "xyxy" else boxes[:, 2:]
        if (sides < 0).any() or np.isnan(sides).any():
            wrong = boxes[int(np.flatnonzero(~(sides >= 0).all(axis=1))[0])].tolist()
            raise ValueError(
                f"The box {wrong} in `{self.column}`, row {row} of the batch, has no area, so it is not "
                f"{self.layout!r}. Pass the other `layout`."
            )
        areas = sides[:, 0] * sides[:, 1]
        return float(areas.mean() if self.aggregate == "mean" else areas.sum())

    def _is_outside(self, boxes: np.ndarray, width: float, height: float) -> bool:
        """Whether a box, of (objects, 4), is not in the image, but for a pixel, or all are within its first one."""
        ends = boxes[:, 2:] if self.layout == "xyxy" else boxes[:, :2] + boxes[:, 2:]
        beyond = (boxes[:, :2] < -1).any() or (ends > np.array([width, height]) + 1).any()
        return bool(beyond or (ends.max() <= 1 and min(width, height) > 2))

    def _size(self, batch: dict[str, list[Any]], row: int) -> tuple[float, float]:
        """Width and height of an image; NaN if unknown."""
        if self.size_columns is None:
            width, height = image_size(batch[self.image_column][row])
        else:
            width, height = (batch[column][row] for column in self.size_columns)
        return (float(width), float(height)) if width and height else (float("nan"), float("nan"))
