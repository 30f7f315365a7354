"""Levels of image guidance in an order: which ranks are of which level, and which are real images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hf_curriculum.ordering import Ranking


@dataclass(frozen=True)
class Levels:
    """Where each level of guidance stands in an order by level.

    Args:
        synthetic: level → (first, behind the last) rank, of the levels asked for, in the order asked for.
        real: (first, behind the last) rank of the real images.
        hard: (first, behind the last) rank of the hard ones among them, which come last.
    """

    synthetic: dict[float, tuple[int, int]]
    real: tuple[int, int]
    hard: tuple[int, int]

    @property
    def not_hard(self) -> tuple[int, int]:
        """(first, behind the last) rank of the real images that are not hard."""
        return self.real[0], self.hard[0]


def arrange_levels(ranking: Ranking, hard_column: str | None) -> Ranking:
    """By level, the hard ones last within each level.

    Args:
        ranking: by level, low first.
        hard_column: says of each row whether it is hard (0 or 1), or None.

    Returns:
        The order. In it, the hard column is the ranks where hard examples begin and those behind their last, in turn:
        a few numbers in place of one per row.
    """
    levels = ranking.scores[ranking.order].copy()
    levels[ranking.num_scored :] = np.inf  # no level, not even minus infinity
    if hard_column is None and (levels[:-1] <= levels[1:]).all():
        return ranking
    if hard_column is None:
        return replace(ranking, order=ranking.order[np.argsort(levels, kind="stable")])
    hard = ranking.columns[hard_column][ranking.order] > 0
    places = np.lexsort((hard, levels))
    ends = np.flatnonzero(np.diff(hard[places], prepend=False, append=False))
    return replace(ranking, order=ranking.order[places], columns={**ranking.columns, hard_column: ends})


def find_levels(
    ranking: Ranking, levels: tuple[float, ...] | None, real: float, hard_column: str | None, rule: str
) -> Levels:
    """Finds the levels in an order by `arrange_levels`.

    Args:
        ranking: the order.
        levels: the levels to find; None: all there are, ascending.
        real: the level of real images.
        hard_column: as in `arrange_levels`.
        rule: the curriculum, for messages.

    Raises:
        ValueError: a level has no examples.
    """
    values = ranking.scores[ranking.order[: ranking.num_scored]]
    found = np.unique(values)

    def span(level: float) -> tuple[int, int]:
        wanted = np.float32(level)
        ends = np.searchsorted(values, [wanted, np.nextafter(wanted, np.float32(np.inf))])
        if ends[0] == ends[1]:
            column = f"`{ranking.name}`" if ranking.name else "the level"
            raise ValueError(
                f"{rule} needs examples of level {level:g}, and {column} holds "
                f"{[round(float(value), 6) for value in found[:12]]}: that part of the schedule would have nothing to "
                "show. Give the levels that the data has, and `real=` as the data writes the level of real images."
            )
        return int(ends[0]), int(ends[1])

    # Seven digits are what float32 holds: 0.1 and not 0.10000000149.
    asked = [float(f"{value:.7g}") for value in found] if levels is None else list(levels)
    whole = span(real)
    first_hard = whole[1]
    if hard_column is not None:
        # They come last, so of all the hard ranks that are real ones only the number matters.
        ends = np.clip(ranking.columns[hard_column], *whole)
        first_hard = whole[1] - int((ends[1::2] - ends[::2]).sum())
    return Levels({level: span(level) for level in asked}, whole, (first_hard, whole[1]))


def union(*slices: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Slices of an order as a set: none twice, none empty, ascending."""
    return tuple(sorted({part for part in slices if part[0] < part[1]}))
