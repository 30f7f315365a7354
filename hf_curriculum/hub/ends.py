"""The examples at both ends of a score, and their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from datasets import Dataset
from datasets import Image as ImageFeature
from PIL import Image

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.image_ids import undecoded
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.provenance import read_column


def rank_for_show(scores: np.ndarray, easy: str) -> np.ndarray:
    """Scored rows, easiest first; hash order among equals, so that a gallery does not show neighbours of a file."""
    scored = np.flatnonzero(np.isfinite(scores))
    scored = scored[np.argsort((scored * 2654435761) % 2**32, kind="stable")]
    return scored[np.argsort(scores[scored] if easy == "low" else -scores[scored], kind="stable")]


def of_different_images(dataset: Dataset, ranked: np.ndarray, count: int) -> np.ndarray:
    """The first `count` of the ranked rows that show different images, where rows say which they show."""
    if IMAGE_ID not in dataset.column_names or count < 1:
        return ranked[: max(count, 0)]
    ids = read_column(dataset, IMAGE_ID)
    chosen: dict[str, int] = {}
    for row in ranked.tolist():
        chosen.setdefault(ids[row].as_py(), row)
        if len(chosen) == count:
            break
    return np.array(list(chosen.values()), dtype=np.int64)


def pictures_of(dataset: Dataset, rows: Sequence[int]) -> Iterator[Image.Image | None]:
    """The pictures of these rows, upright and RGB; None for one that is missing or cannot be decoded."""
    chosen = dataset.select(rows)
    is_file = isinstance(dataset.features[IMAGE], ImageFeature)
    for held in undecoded(chosen) if is_file else chosen.with_format(None)[IMAGE]:
        try:
            yield to_rgb(held)
        except UnreadableImageError:
            yield None
