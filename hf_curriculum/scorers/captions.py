"""What every scorer of texts does first: tell captions from what cannot be scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def readable_captions(captions: Sequence[object], column: str) -> tuple[list[str], np.ndarray]:
    """The captions of a batch that hold text, and which rows they are.

    Args:
        captions: one entry per row; None, empty and blank ones cannot be scored.
        column: the column's name, for the error.

    Shapes:
        returns the readable captions, and a bool mask (rows,) of the rows they came from.

    Raises:
        TypeError: an entry that is neither a string nor None.

    Example:
        >>> readable_captions(["a dog", None, " "], "caption")
        (['a dog'], array([ True, False, False]))
    """
    for row, caption in enumerate(captions):
        if caption is not None and not isinstance(caption, str):
            raise TypeError(
                f"`{column}` in row {row} of the batch is a {type(caption).__name__}: {str(caption)[:60]!r}. "
                "A caption is one string, and one row is one image with one caption. Give each caption of a "
                "list a row of its own."
            )
    mask = np.fromiter((bool(caption and not caption.isspace()) for caption in captions), bool, len(captions))
    return [caption for caption, kept in zip(captions, mask.tolist(), strict=True) if kept], mask


def spread(values: Sequence[float], mask: np.ndarray) -> np.ndarray:
    """Puts the scores of the readable captions back into their rows.

    Shapes:
        values (readable,), mask bool (rows,) → float32 (rows,), NaN where the mask is False.
    """
    scores = np.full(len(mask), np.nan, np.float32)
    scores[mask] = values
    return scores
