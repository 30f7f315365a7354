"""The images of a batch, each opened once for all its captions, and those that cannot be opened counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.images import UnreadableImageError, to_rgb

if TYPE_CHECKING:
    from hf_curriculum.scorers.base import Scorer

logger: logging.Logger = logging.getLogger(__name__)


def distinct_images(batch: dict[str, list[Any]], column: str, mask: np.ndarray) -> list[tuple[Any, list[int]]]:
    """Each image of a batch with its rows, of those in a bool mask (rows,), in order of first appearance."""
    ids = batch.get(IMAGE_ID) or [None] * len(mask)
    rows: dict[Any, list[int]] = {}
    for row in np.flatnonzero(mask).tolist():
        missing = ids[row] is None or ids[row] == "" or ids[row] != ids[row]
        rows.setdefault(("row", row) if missing else ids[row], []).append(row)
    return [(batch[column][first], [first, *others]) for first, *others in rows.values()]


class ImageOpener:
    """Opens images as RGB, and keeps the reasons of those that it could not open."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, stored: Any) -> Image.Image | None:
        if isinstance(stored, str) and stored.startswith(("http://", "https://")):
            raise ValueError(
                f"The column of images holds addresses ({stored!r:.80}), not images, and scorers download nothing. "
                "Load the data with `load_captioned(source, download=True)` (hf-curriculum score: --download)."
            )
        try:
            return to_rgb(stored)
        except UnreadableImageError as error:
            self.failed.append(str(error))
            return None

    def report(self, scorer: Scorer) -> None:
        """Logs how many images of the batch could not be used, and why the first one."""
        if self.failed:
            number, first = len(self.failed), self.failed[0]
            logger.warning("`%s`: %d images cannot be scored (NaN). The first: %s", scorer.name, number, first)


def batches_of_one_size(
    images: Iterable[tuple[Any, list[int]]], size: int, shape_of: Callable[[Any], Any] = lambda image: image.shape
) -> Iterator[list[tuple[int, Any]]]:
    """Up to `size` pairs of a row and its image (3, height, width), all of one shape, so that none must be padded."""
    waiting: dict[tuple[int, ...], list[tuple[int, Any]]] = {}
    for image, rows in images:
        shape = tuple(shape_of(image))
        for row in rows:
            same = waiting.setdefault(shape, [])
            same.append((row, image))
            if len(same) == size:
                yield waiting.pop(shape)
    yield from waiting.values()
