"""Buckets: consecutive parts of an order, cut by rank or by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hf_curriculum.ordering.ranking import Ranking, require_spread

Cut = Literal["rank", "value"]


@dataclass(frozen=True)
class Buckets:
    """Where an order is cut.

    Args:
        ends: the rank behind each bucket's last example, ascending, the last one being the number of ranked examples.
        thresholds: the score at each inner cut in its natural unit, one fewer than `ends`; for `cut="rank"` the score
            of the hardest example before the cut.
        cut: how the cuts were made.
    """

    ends: tuple[int, ...]
    thresholds: tuple[float, ...]
    cut: Cut

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples per bucket; 0 where one value spans more than a bucket."""
        starts = (0, *self.ends[:-1])
        return tuple(end - start for start, end in zip(starts, self.ends, strict=True))

    def slices(self) -> tuple[tuple[int, int], ...]:
        """(first rank, rank behind the last) of each bucket."""
        return tuple(zip((0, *self.ends[:-1]), self.ends, strict=True))


def cut_buckets(
    ranking: Ranking, num_buckets: int, cut: Cut = "rank", *, thresholds: Sequence[float] | None = None
) -> Buckets:
    """Cuts an order into buckets, easiest first.

    - `"rank"`: bucket k ends at ⌊n·k/L⌋: equal sizes, ties may be torn apart.
    - `"value"`: the cuts are the quantiles k/L of the scored rows (linear between neighbours), and an example belongs
      to a bucket if its score is at most the cut (at least, where high is easy): ties stay together, sizes differ and
      may be 0. Unscored rows stand in the last bucket.

    Args:
        ranking: the order.
        num_buckets: L ≥ 1.
        cut: by rank or by value.
        thresholds: the inner cuts by value, easiest first, in place of quantiles (BabyLM: 2, 3, 5).

    Raises:
        ValueError: an option is unknown, there are fewer examples than buckets by rank, no scores or equal ones, or
            `thresholds` does not fit.

    Source: rank: Zhang et al. 2022 (Simi-CL) §3.2, Nebbia & Kovashka 2024 §3.4; value: Saha et al. 2024 (BabyLM) §3.3.

    Example:
        >>> import numpy as np
        >>> from hf_curriculum.ordering import rank_scores
        >>> cut_buckets(rank_scores(np.array([1, 1, 2, 3, 5, 8])), 3, "value").ends
        (3, 4, 6)
    """
    if num_buckets < 1:
        raise ValueError(f"{num_buckets} buckets were asked for; at least one is needed.")
    if cut not in ("rank", "value"):
        raise ValueError(f"cut={cut!r} was given; buckets can be cut by 'rank' or by 'value'.")
    if num_buckets == 1 and thresholds is None:
        return Buckets((len(ranking),), (), cut)
    require_spread(ranking, f"{num_buckets} buckets")
    if thresholds is not None:
        given = _checked(thresholds, num_buckets, cut, ranking)
        # 0.3 as float32 is more than 0.3 as Python has it, and a score of 0.3 belongs below a cut at 0.3.
        ends = _cut_at(ranking, [float(ranking.scores.dtype.type(value)) for value in given], "value").ends
        return Buckets(ends, tuple(given), "value")
    if cut == "value":
        return _cut_at(ranking, [_quantile(ranking, k, num_buckets) for k in range(1, num_buckets)], cut)
    size = len(ranking)
    if size < num_buckets:
        raise ValueError(
            f"{size} examples cannot fill {num_buckets} buckets by rank: some phase would have no rows. "
            f"Use at most {size}, or more data."
        )
    ends = tuple(size * k // num_buckets for k in range(1, num_buckets + 1))
    return Buckets(ends, tuple(ranking.score_at(end - 1) for end in ends[:-1]), cut)


def _checked(thresholds: Sequence[float], num_buckets: int, cut: Cut, ranking: Ranking) -> list[float]:
    if cut != "value":
        raise ValueError("`thresholds` are scores, so they need cut='value'; cut='rank' was given.")
    if len(thresholds) != num_buckets - 1:
        raise ValueError(
            f"{len(thresholds)} thresholds were given for {num_buckets} buckets; {num_buckets - 1} inner cuts are "
            "needed."
        )
    signed = [value if ranking.easy == "low" else -value for value in thresholds]
    if signed != sorted(signed):
        raise ValueError(
            f"thresholds={list(thresholds)} do not run from easy to hard, with easy={ranking.easy!r}. Reverse them."
        )
    return list(thresholds)


def _quantile(ranking: Ranking, k: int, num_buckets: int) -> float:
    """The k/L quantile of the scored rows counted from the easy end, linear between neighbours (NumPy's default)."""
    whole, part = divmod((ranking.num_scored - 1) * k, num_buckets)
    below = ranking.score_at(whole)
    if part == 0:
        return below
    return below + (ranking.score_at(whole + 1) - below) * (part / num_buckets)


def _cut_at(ranking: Ranking, thresholds: list[float], cut: Cut) -> Buckets:
    ends = [_rank_behind(ranking, value) for value in thresholds]
    return Buckets((*ends, len(ranking)), tuple(thresholds), cut)


def _rank_behind(ranking: Ranking, threshold: float) -> int:
    """How many scored examples are as easy as the threshold or easier: a binary search that sorts nothing."""
    low, high = 0, ranking.num_scored
    while low < high:
        middle = (low + high) // 2
        score = ranking.score_at(middle)
        easier = score <= threshold if ranking.easy == "low" else score >= threshold
        low, high = (middle + 1, high) if easier else (low, middle)
    return low
