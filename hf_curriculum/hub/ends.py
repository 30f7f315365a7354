"""The examples at both ends of a score."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.provenance import read_column


def rank_for_show(scores: np.ndarray, easy: str) -> np.ndarray:
    """Scored rows, easiest first; hash order among equals, so that a gallery does not show neighbours of a file."""
    scored = np.flatnonzero(np.isfinite(scores))
    scored = scored[np.argsort((scored * 2654435761) % 2**32, kind="stable")]
    return scored[np.argsort(scores[scored] if easy == "low" else -scores[scored], kind="stable")]


def of_different_images(dataset: Dataset, ranked: np.ndarray, count: int) -> np.ndarray:
    """The first `count` of the ranked rows that show different images, where rows say which they show."""
    if IMAGE_ID not in dataset.column_names:
        return ranked[:count]
    ids = read_column(dataset, IMAGE_ID)
    chosen: dict[str, int] = {}
    for row in ranked.tolist():
        chosen.setdefault(ids[row].as_py(), row)
        if len(chosen) == count:
            break
    return np.array(list(chosen.values()), dtype=np.int64)
