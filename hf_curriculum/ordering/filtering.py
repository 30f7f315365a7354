"""Keeping the easiest share of a data set, and saying why each other row is left out."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import numpy as np
from datasets import Dataset

from hf_curriculum.ordering.ranking import Easy, Ranking, rank_scores, read_scores, resolve_easy

logger = logging.getLogger(__name__)

KEEP, REASON = "keep", "keep_reason"
"""The columns `mark_easiest` writes: whether a row is kept (bool), and why or why not (string)."""


def keep_easiest(ranking: Ranking, share: float) -> Ranking:
    """The first ⌊n·share⌋ examples of an order; n counts scored examples, so an unscored one is never kept.

    Args:
        ranking: the order.
        share: the part to keep, more than 0 and at most 1.

    Raises:
        ValueError: the share is out of range, nothing has a score, or nothing would be left.

    Source: Nebbia & Kovashka 2024 (WSOD) §3.4, with shares of 0.5 and 0.75.

    Example:
        >>> keep_easiest(rank_scores(np.array([3.0, 1.0, 2.0, 4.0])), 0.5).order.tolist()
        [1, 2]
    """
    if not 0 < share <= 1:
        raise ValueError(f"The easiest share {share!r} was asked for; the share is more than 0 and at most 1.")
    if ranking.scores is None:
        raise ValueError("Keeping the easiest examples needs a score, and the order was made without one.")
    kept = int(np.floor(ranking.num_scored * share + 1e-9))
    if kept < 1:
        raise ValueError(
            f"The easiest {100 * share:g} % of {ranking.num_scored} scored examples is less than one: nothing would "
            "be left to train on. Keep a larger share."
        )
    return replace(ranking, order=ranking.order[:kept], num_scored=kept)


def mark_easiest(dataset: Dataset, column: str, share: float, *, easy: Easy | None = None) -> Dataset:
    """Adds `keep` and `keep_reason` to a scored data set, and logs how many rows there are of each reason.

    Args:
        dataset: with the score column.
        column: the score.
        share: the part of the scored rows to keep, see `keep_easiest`.
        easy: which end is easy, in place of what the score's provenance says.

    Returns:
        The data set with `keep` (bool) and `keep_reason` (string: "kept", "harder" or "no score") in each row;
        `dataset.filter(lambda keep: keep, input_columns="keep")` leaves the others out.

    Raises:
        ValueError: the column is missing or orders nothing, the share is out of range, or the columns exist already.

    Example:
        >>> marked = mark_easiest(Dataset.from_dict({"s": [1.0, 2.0]}), "s", 0.5, easy="low")
        >>> marked["keep_reason"][:]
        ['kept', 'harder']
    """
    taken = [name for name in (KEEP, REASON) if name in dataset.column_names]
    if taken:
        raise ValueError(f"The data has {taken} already, from an earlier filter. Remove or rename them first.")
    scores = read_scores(dataset, column)
    ranking = rank_scores(scores, resolve_easy(dataset, column, easy), name=column)
    keep = np.zeros(len(scores), dtype=bool)
    keep[keep_easiest(ranking, share).order] = True
    reasons = np.where(keep, "kept", np.where(np.isfinite(scores), "harder", "no score")).tolist()
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(Counter(reasons).items()))
    logger.info(f"The easiest {100 * share:g} % by `{column}`: {counts}.")
    return dataset.add_column(KEEP, keep).add_column(REASON, reasons)
