"""One score per image: the scores of its captions, aggregated and written back to each of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.provenance import check_choice


def aggregate_per_image(scores: np.ndarray, images: np.ndarray, how: Literal["max", "min", "mean"]) -> np.ndarray:
    """Gives every row the aggregate of its image.

    Rows that could not be scored do not count; an image without any scored row stays NaN.

    Args:
        scores: float32 (rows,), NaN where unscored.
        images: integers (rows,) from `group_codes`, equal for rows of one image.
        how: "max" is BabyLM's.

    Shapes:
        returns float32 (rows,).

    Raises:
        ValueError: unknown `how`.

    Source: Saha et al. 2024 (BabyLM), §3.3: an image with several captions has the difficulty of the hardest.

    Example:
        >>> aggregate_per_image(np.float32([2, 3, np.nan, np.nan]), np.array([0, 0, 0, 1]), "max")
        array([ 3.,  3.,  3., nan], dtype=float32)
    """
    check_choice("per_image", how, ("max", "min", "mean"))
    scored = ~np.isnan(scores)
    count = int(images.max(initial=-1)) + 1
    per_image = np.bincount(images[scored], minlength=count)  # (images,)
    if how == "mean":
        total = np.bincount(images[scored], weights=scores[scored], minlength=count)
        aggregate = (total / np.maximum(per_image, 1)).astype(np.float32)
    else:
        extreme = np.maximum if how == "max" else np.minimum
        aggregate = np.full(count, -np.inf if how == "max" else np.inf, np.float32)
        extreme.at(aggregate, images[scored], scores[scored])
    aggregate[per_image == 0] = np.nan
    return aggregate[images]


def group_codes(values: pa.Array, column: str = IMAGE_ID) -> np.ndarray:
    """Numbers the distinct values of a column in order of first appearance.

    Args:
        values: the column, (rows,).
        column: its name, for the error.

    Shapes:
        returns int64 (rows,), equal where the values are equal.

    Raises:
        ValueError: a value is missing.
    """
    if values.null_count:
        first = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(
            f"`{column}` is missing in {values.null_count} of {len(values)} rows, first in row {first}. Rows are "
            "grouped by it, and rows without one would all count as the same image. Fill or filter them first."
        )
    return values.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
