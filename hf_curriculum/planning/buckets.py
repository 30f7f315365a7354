"""Buckets: consecutive parts of an order, of equal size or divided by value."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from datasets import Dataset

from hf_curriculum.planning.ranking import Easy, Ranking, rank_scores, read_scores, resolve_easy, validate_spread
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)


Cut = Literal["rank", "value"]
_TOLD = 3
"""Buckets that a note names."""


@dataclass(frozen=True)
class Buckets:
    """Where an order is divided into buckets.

    Args:
        ends: where each bucket ends (exclusive) in the order, ascending; the last one is the number of examples.
        thresholds: the score at each inner end in its natural unit, one fewer than `ends`; for `cut="rank"` the score
            of the hardest example of the bucket.
        cut: by rank or by value.
    """

    ends: tuple[int, ...]
    thresholds: tuple[float, ...]
    cut: Cut

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples per bucket; 0 where one value spans more than a bucket."""
        return tuple(stop - start for start, stop in self.slices())

    def slices(self) -> tuple[tuple[int, int], ...]:
        """Each bucket as a half-open stretch `(start, stop)` of the order."""
        return tuple(zip((0, *self.ends[:-1]), self.ends, strict=True))


def cut_buckets(
    ranking: Ranking, num_buckets: int, cut: Cut = "rank", *, thresholds: Sequence[float] | None = None
) -> Buckets:
    """Divides an order into buckets, easiest first.

    - `"rank"`: bucket k ends at ⌊n·k/L⌋: equal sizes, ties may be separated.
    - `"value"`: the thresholds are the quantiles k/L of the scored rows (linear between neighbours), and an example
      belongs to a bucket if its score is at most the threshold (at least, where high is easy): ties stay together,
      sizes differ and may be 0. Unscored rows are in the last bucket.

    Args:
        ranking: the order.
        num_buckets: L ≥ 1.
        cut: by rank or by value.
        thresholds: the inner thresholds by value, easiest first, in place of quantiles (BabyLM: 2, 3, 5).

    Raises:
        ValueError: an option is unknown, there are fewer examples than buckets by rank, no scores or equal ones, or
            `thresholds` does not fit.

    Source: rank: Zhang et al. 2022 (Simi-CL) §3.2, Nebbia & Kovashka 2024 §3.4; value: Saha et al. 2024 (BabyLM) §3.3.

    Example:
        >>> import numpy as np
        >>> from hf_curriculum.planning.ranking import rank_scores
        >>> cut_buckets(rank_scores(np.array([1, 1, 2, 3, 5, 8])), 3, "value").ends
        (2, 4, 6)
    """
    if num_buckets < 1:
        raise ValueError(f"{num_buckets} buckets were asked for; at least one is needed.")
    if cut not in ("rank", "value"):
        raise ValueError(f"cut={cut!r} was given; buckets can be cut by 'rank' or by 'value'.")
    if num_buckets == 1 and thresholds is None:
        return Buckets((len(ranking),), (), cut)
    validate_spread(ranking, f"{num_buckets} buckets")
    if thresholds is not None:
        given = _checked(thresholds, num_buckets, cut, ranking)
        # 0.3 as float32 is more than 0.3 as Python has it, and a score of 0.3 belongs below a threshold of 0.3.
        ends = [_count_upto(ranking, float(ranking.scores.dtype.type(value))) for value in given]
        return Buckets((*ends, len(ranking)), tuple(given), "value")
    if cut == "value":
        quantiles = tuple(_quantile(ranking, k, num_buckets) for k in range(1, num_buckets))
        return Buckets((*(_count_upto(ranking, value) for value in quantiles), len(ranking)), quantiles, cut)
    validate_rows(ranking, num_buckets, cut)
    size = len(ranking)
    ends = tuple(size * k // num_buckets for k in range(1, num_buckets + 1))
    return Buckets(ends, tuple(ranking.score_at(end - 1) for end in ends[:-1]), cut)


def validate_rows(ranking: Ranking, num_buckets: int, cut: Cut) -> None:
    """Raises a `ValueError` where there are fewer examples than buckets."""
    if len(ranking) < num_buckets:
        validate_spread(ranking, f"{num_buckets:,} buckets")
        raise ValueError(
            f"{len(ranking):,} examples cannot fill {num_buckets:,} buckets by {cut}: some phase would have no rows. "
            f"Use at most {len(ranking):,}, or more data."
        )


def uneven_buckets(buckets: Buckets, ranking: Ranking) -> str | None:
    """What to know of buckets that ties make unlike what was asked for: empty, or cut among them; None: nothing."""
    name, many = f"`{ranking.score_column or 'the score'}`", len(buckets.ends)
    empty = [str(number) for number, size in enumerate(buckets.sizes, start=1) if size == 0]
    if empty:
        return (
            f"Bucket {', '.join(empty)} of {many} by value holds no example, because one value of {name} spans more "
            "than a bucket: that phase adds nothing new. Fewer phases, other thresholds, or cut='rank' would."
        )
    if buckets.cut == "value" or ranking.scores is None:
        return None

    found = []
    for number, end in enumerate(buckets.ends[:-1], start=1):
        if end < ranking.num_scored and (value := ranking.score_at(end)) == ranking.score_at(end - 1):
            first, stop = (_count_upto(ranking, value, inclusive=inclusive) for inclusive in (False, True))
            found.append(
                f"bucket {number} of {many} ends after {end - first:,} of {stop - first:,} examples whose {name} is "
                f"{value:g}"
            )
    if not found:
        return None
    more = f", and {len(found) - _TOLD} more likewise" if len(found) > _TOLD else ""
    return (
        f"Equal scores are cut by the order of the file: {'; '.join(found[:_TOLD])}{more}. Use cut='value', which "
        "keeps them together, or a score with more distinct values."
    )


def validate_thresholds(thresholds: Sequence[float] | None, num_buckets: int, cut: Cut) -> None:
    """Checks that inner thresholds, if any, fit the number of buckets and the cut."""
    if thresholds is None:
        return
    if cut != "value":
        raise ValueError("`thresholds` are scores, so they need cut='value'; cut='rank' was given.")
    if len(thresholds) != num_buckets - 1:
        raise ValueError(
            f"{len(thresholds)} thresholds were given for {num_buckets} buckets; {num_buckets - 1} inner thresholds "
            "are needed."
        )


def _checked(thresholds: Sequence[float], num_buckets: int, cut: Cut, ranking: Ranking) -> list[float]:
    validate_thresholds(thresholds, num_buckets, cut)
    signed = [value if ranking.easy == "low" else -value for value in thresholds]
    if signed != sorted(signed):
        raise ValueError(
            f"thresholds={list(thresholds)} do not run from easy to hard, with easy={ranking.easy!r}. Reverse them."
        )
    return list(thresholds)


def _quantile(ranking: Ranking, k: int, num_buckets: int) -> float:
    """The k/L quantile of the scored rows counted from the easy end, linear between neighbours (NumPy's default)."""
    position, part = divmod((ranking.num_scored - 1) * k, num_buckets)
    below = ranking.score_at(position)
    return below + (ranking.score_at(position + 1) - below) * (part / num_buckets) if part else below


def _count_upto(ranking: Ranking, threshold: float, *, inclusive: bool = True) -> int:
    """How many scored examples are as easy as the threshold or easier, or easier alone, by binary search."""
    low, high = 0, ranking.num_scored
    while low < high:
        middle = (low + high) // 2
        score = ranking.score_at(middle)
        easier = score < threshold if ranking.easy == "low" else score > threshold
        low, high = (middle + 1, high) if easier or (inclusive and score == threshold) else (low, middle)
    return low


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


@validate_arguments
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
    ranking = rank_scores(scores, resolve_easy(dataset, column, easy), score_column=column)
    keep = np.zeros(len(scores), dtype=bool)
    keep[keep_easiest(ranking, share).order] = True
    reasons = np.where(keep, "kept", np.where(np.isfinite(scores), "harder", "no score")).tolist()
    counts = ", ".join(f"{count:,} {reason}" for reason, count in sorted(Counter(reasons).items()))
    logger.info(f"The easiest {100 * share:g} % by `{column}`: {counts}.")
    return dataset.add_column(KEEP, keep).add_column(REASON, reasons)
