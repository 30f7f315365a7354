"""Number and area of the region proposals of an image."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.images import image_size
from hf_curriculum.data.proposals import selective_search, short_sides, validate_search
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.scorers.base import Aggregate, ImageScorer
from hf_curriculum.scorers.visual.images import open_image, read_images

logger: logging.Logger = logging.getLogger(__name__)

_NOTHING = (np.nan, np.nan)
_ENOUGH = 8  # images of a batch that tell whether the limit is too low


class RegionProposals(ImageScorer):
    """The number of region proposals of an image, and their mean area relative to the image.

    Proposals are computed by selective search (`mode`), or read from a file (`source`) or from the column of
    `add_proposals` (`boxes`). Selective search returns its boxes in a random order, so the area is the mean over all
    of them, and only the count is limited to `max_proposals`. Of a file the first `max_proposals` count for both.

    Args:
        mode: of selective search, "fast" or "quality" (three times the boxes and the time; Cap2Det's).
        min_size: shortest side of a box, in pixels of the image as it was searched, or of the image in `source`, whose
            size must then be known; 0 takes every box.
        max_proposals: the largest count; None for no limit, which photographs need. They have more than 500 boxes of
            20 pixels (24 of them 659 to 1,977), so the default gives all the same count. A warning says when most of a
            batch reaches the limit.
        source: a file of proposals (see `open_regions`), or one opened.
        boxes: the column of proposals in pixels, as `add_proposals` writes it: "proposals".
        max_side: an image with a longer side is scaled down to it before the search; None searches any image as it is,
            which takes minutes for many megapixels.
        max_aspect: images more elongated than this are stretched to it before the search; 2.2 is Cap2Det's.
        column: where the images are, one or a list of them in a row.
        id_column: where the ids of images in `source` are.
        size_columns: columns with the image's width and height in pixels, for a `source` without them; for `boxes`
            they save reading the images' headers.
        name: the column of the number.
        area_name: the column of the mean area.
        easy: the easy end of both columns; by the paper's rule higher is easier. A curriculum may override either.
        aggregate: of a row with a list of images, the "mean", "max" or "min" of their scores.

    Shapes:
        float32 (rows,) each: a count, and a share in [0, 1]. An image without proposals has 0 and NaN; an image that
        is missing or undecodable, or an id that `source` lacks, NaN and NaN. A list of images has NaN if it is empty
        or one of its images has NaN.

    Raises:
        ValueError: an option out of range, or boxes in pixels of an image of unknown size.
        FileNotFoundError: no such `source`.
        ImportError: OpenCV with its contributed modules (for selective search), h5py or SciPy is missing.

    Source: Nebbia & Kovashka 2024 (WSOD), §3, scores 3 and 4: average size and number of proposals. 20 pixels, 500
    proposals and the squeeze by Ye et al. 2019 (Cap2Det), released code. `max_side` is ours.

    Example:
        >>> from PIL import Image
        >>> scores = RegionProposals()({"image": [Image.new("RGB", (40, 40)), None]})  # one box: all of it
        >>> scores["region_count"].tolist(), scores["region_area"].tolist()
        ([1.0, nan], [1.0, nan])
    """

    packages = ("opencv-contrib-python-headless", "pillow")
    easy = "high"

    def __init__(
        self,
        mode: Literal["fast", "quality"] = "fast",
        min_size: int = 20,
        max_proposals: int | None = 500,
        source: str | Path | RegionSource | None = None,
        *,
        boxes: str | None = None,
        max_side: int | None = 1000,
        max_aspect: float | None = None,
        column: str = IMAGE,
        id_column: str = IMAGE_ID,
        size_columns: tuple[str, str] | None = None,
        name: str = "region_count",
        area_name: str = "region_area",
        easy: Literal["low", "high"] = "high",
        aggregate: Aggregate = "mean",
    ) -> None:
        validate_search(mode, max_proposals, min_size, max_side, max_aspect)
        if boxes is not None and source is not None:
            raise ValueError(f"Of `boxes={boxes!r}` and `source={str(source)!r}`, proposals come from one of them.")
        self.mode = mode
        self.min_size = min_size
        self.max_proposals = max_proposals
        self.max_side = max_side
        self.max_aspect = max_aspect
        self.column = column
        self.id_column = id_column
        self.size_columns: tuple[str, ...] | None = None if size_columns is None else tuple(size_columns)
        self.area_name = area_name
        self.source: RegionSource | None = open_regions(source) if isinstance(source, (str, Path)) else source
        self.boxes = boxes
        sizes = self.size_columns or ()
        if self.source is not None:
            self._set_columns((id_column, *sizes), name, easy)
            self.packages: tuple[str, ...] = self.source.packages
        elif boxes is not None:
            self._set_columns((boxes, *(sizes or (column,))), name, easy, decode_false=() if sizes else (column,))
            self.packages = ()
        else:
            self._set_columns((column,), name, easy, decode_false=(column,))
            self.group_by: str = IMAGE_ID
            self.backend: str = "opencv"
        self._set_aggregate(aggregate)

    @property
    def outputs(self) -> dict[str, str]:
        return {self.name: self.easy, self.area_name: self.easy}

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> dict[str, np.ndarray]:
        find = self._of_column if self.boxes else self._search if self.source is None else self._of_source
        found = find(batch)  # (rows, 2)
        return {self.name: found[:, 0], self.area_name: found[:, 1]}

    def _search(self, batch: dict[str, list[Any]]) -> np.ndarray:
        found = np.full((len(batch[self.column]), 2), np.nan)
        every = np.ones(len(found), bool)
        for values, rows in read_images(self, batch, self.column, every, self._searched):
            found[rows] = values
        counts = found[np.isfinite(found[:, 0]), 0]
        if self.max_proposals and len(counts) >= _ENOUGH and not vars(self).get("_warned"):
            self._warned = bool((counts == self.max_proposals).mean() > 0.5)
            if self._warned:
                logger.warning(
                    "%d of %d images have `max_proposals=%d` proposals or more: their `%s` is one number, which "
                    "orders nothing. Pass `max_proposals=None` to count all, or a larger `min_size`.",
                    (counts == self.max_proposals).sum(),
                    len(counts),
                    self.max_proposals,
                    self.name,
                )
        return found

    def _searched(self, stored: Any) -> tuple[float, float]:
        """The number of proposals of an image, and the mean share that one covers."""
        boxes, size = selective_search(open_image(stored), self.mode, self.max_side, self.max_aspect)
        boxes = boxes[short_sides(boxes) >= self.min_size]
        shares = np.prod((boxes[:, 2:] - boxes[:, :2]) / np.float32(size), axis=1)
        return min(len(boxes), self.max_proposals or len(boxes)), _mean(shares)

    def _of_source(self, batch: dict[str, list[Any]]) -> np.ndarray:
        ids = batch[self.id_column]
        sizes = [(None, None)] * len(ids)
        if self.size_columns is not None:
            sizes = list(zip(*(batch[column] for column in self.size_columns), strict=True))
        known: dict[Any, tuple[float, float]] = {}
        for key in zip(ids, sizes, strict=True):
            if key not in known:
                there = key[0] is not None and key[0] in self.source
                known[key] = self._measure(self.source[key[0]], *key[1]) if there else _NOTHING
        return np.array([known[key] for key in zip(ids, sizes, strict=True)], dtype=np.float64).reshape(-1, 2)

    def _of_column(self, batch: dict[str, list[Any]]) -> np.ndarray:
        found = np.full((len(batch[self.boxes]), 2), np.nan)
        for row, boxes in enumerate(batch[self.boxes]):
            if boxes is not None:
                if self.size_columns is None:
                    size = image_size(batch[self.column][row])
                else:
                    size = tuple(batch[column][row] for column in self.size_columns)
                edges = np.asarray(boxes, np.float32).reshape(-1, 4)
                found[row] = self._measure(Regions(f"in row {row} of `{self.boxes}`", edges), *size)
        return found

    def _measure(self, regions: Regions, width: float | None, height: float | None) -> tuple[float, float]:
        if len(regions) == 0:
            return 0.0, np.nan
        shares = regions.area_shares(width, height)
        if self.min_size:
            shares = shares[short_sides(regions.pixel_boxes(width, height)) >= self.min_size]
        shares = shares[: self.max_proposals]
        return float(len(shares)), _mean(shares)


def _mean(shares: np.ndarray) -> float:
    return float(np.mean(shares, dtype=np.float64)) if len(shares) else float("nan")
