"""Weighted draws: every example at any time, some more often than others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, check_length, epochs_of, num_draws
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.signals import validate_partial_batches
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import hash64, hash_below, mix64

_OCTAVES = 60
"""Weights below 2^-60 of the largest are drawn less than once in 10^18 draws and share one class."""
_CUTS = np.array([round(2 ** (20 - part / 8)) for part in range(8)]) / 2**20
"""Where an octave of weights is cut into classes, as numbers that are the same on every machine."""
_TABLE = 12
"""Bits of the table that says which class a random number stands for."""


@dataclass(frozen=True)
class Weighted(Curriculum):
    """Draws every example with a probability in proportion to a weight, with replacement, over any number of examples.

    Without a temperature the score itself is the weight. With temperature T the weight falls with the distance from
    the easiest score by exp(−|score − easiest| / T): a small T keeps to the easy end, a large one is nearly even.
    Unscored examples have weight 0.

    Args:
        temperature: T, in the score's unit; None: the score is the weight.
        epochs: the run's length in passes over the data set; without it and `examples` the training arguments say.
        examples: examples to draw, in place of `epochs`.
        easy: see `Curriculum`; without a temperature it only says in which order reports show the examples.
        unscored: `"error"` refuses unscored examples; otherwise they are never drawn.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: the temperature is not positive, or (in a plan) a weight is negative or all are 0.

    Example:
        >>> Weighted(temperature=0.1, epochs=3).to_dict()
        {'type': 'weighted', 'temperature': 0.1, 'epochs': 3}
    """

    type: ClassVar[str] = "weighted"

    temperature: float | None = None
    epochs: float | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(
                f"Weighted(temperature={self.temperature}) is not possible; a temperature is a number more than 0."
            )
        validate_partial_batches("Weighted", self.partial_batches)
        check_length(self)

    @property
    def needs_easy(self) -> bool:
        """Whether the weight falls from the easy end on."""
        return self.temperature is not None

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The run's length in passes over the data set."""
        return epochs_of(self, budget, len(ranking))

    def weights(self, scores: np.ndarray, easiest: float) -> np.ndarray:
        """The weight of each score, float64, same shape.

        Args:
            scores: any shape.
            easiest: the easiest score of the data set.
        """
        if self.temperature is None:
            return scores.astype(np.float64)
        return np.exp(-np.abs(scores.astype(np.float64) - easiest) / self.temperature)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage."""
        size = ranking.num_scored
        ends = [ranking.score_at(0), ranking.score_at(size - 1)]
        if self.temperature is None and min(ends) < 0:
            raise ValueError(
                f"Weighted takes `{ranking.name or 'the score'}` as a weight, and it goes down to {min(ends):g}: a "
                "probability cannot be negative. Give a temperature, or another score."
            )
        if self.temperature is None and max(ends) == 0:
            raise ValueError(
                f"All {size:,} weights are 0: nothing could be drawn. Give a temperature or another score."
            )
        rule = "in proportion to the score" if self.temperature is None else f"temperature {self.temperature:g}"
        draws = num_draws(self, budget, len(ranking))
        return (WeightedStage(0, "weighted", rule, ((0, size),), draws, rule_of=self, ranking=ranking),)


@dataclass(frozen=True, eq=False)
class WeightedStage(Stage):
    """Independent weighted draws, a pure function of (key, position), at a cost independent of the data's size.

    Ranks are ordered by score, hence by weight. Cut eight times while the weight halves, they make a few hundred
    classes of ranks whose weights differ by less than a tenth. A draw takes a class in proportion to its size times
    its largest weight, then one of its ranks, and keeps it with the probability weight / largest weight: hardly any
    draw needs a second try, and few have to look at the weight.

    Args:
        rule_of: the rule.
        ranking: the order.
    """

    rule_of: Weighted | None = None
    ranking: Ranking | None = None
    _bounds: np.ndarray = field(init=False, repr=False)
    _largest: np.ndarray = field(init=False, repr=False)
    _upto: np.ndarray = field(init=False, repr=False)
    _sizes: np.ndarray = field(init=False, repr=False)
    _certain: np.ndarray = field(init=False, repr=False)
    _classes: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cut()

    def _weight_at(self, ranks: np.ndarray) -> np.ndarray:
        scores = self.ranking.scores[self.ranking.order[ranks]]
        return self.rule_of.weights(scores, self.ranking.score_at(0))

    def _cut(self) -> None:
        """Finds the classes by binary search; weights rise or fall with the rank."""
        ends = self._weight_at(np.array([0, self.pool_size - 1]))
        sign = 1.0 if ends[0] <= ends[1] else -1.0
        cuts = np.outer(2.0 ** -np.arange(_OCTAVES), _CUTS).ravel()[1:]
        limits = np.sort(ends.max() * cuts * sign)
        low, high = np.zeros(len(limits), np.int64), np.full(len(limits), self.pool_size, np.int64)
        while (low < high).any():
            middle = (low + high) // 2
            weights = sign * self._weight_at(np.minimum(middle, self.pool_size - 1))
            below = (weights < limits) & (low < high)
            low, high = np.where(below, middle + 1, low), np.where(below | (low >= high), high, middle)
        bounds = np.unique(np.concatenate([[0], low, [self.pool_size]]))
        edges = self._weight_at(np.stack([bounds[:-1], bounds[1:] - 1]))
        largest = edges.max(axis=0)
        # Shares of 2^63: whole numbers, so that no rounding depends on the machine. The last one takes what is left.
        mass = np.diff(bounds) * largest
        shares = [int(share * (1 << 63)) for share in np.cumsum(mass / mass.sum())[:-1]]
        upto = np.array([*shares, 1 << 63], dtype=np.uint64)
        # Most numbers of 63 bits have the class of every number with the same first bits: a table knows it.
        firsts = np.arange((1 << _TABLE) + 1, dtype=np.uint64) << np.uint64(63 - _TABLE)
        ends = np.searchsorted(upto, np.stack([firsts[:-1], firsts[1:] - np.uint64(1)]), side="right")
        for name, value in (
            ("_bounds", bounds),
            ("_sizes", np.diff(bounds)),
            ("_largest", largest),
            ("_certain", _of_32_bits(edges.min(axis=0) / np.maximum(largest, 1e-300)).astype(np.uint64)),
            ("_upto", upto),
            ("_classes", np.where(ends[0] == ends[1], ends[0], -1)),
        ):
            object.__setattr__(self, name, value)

    def ranks(self, start: int, stop: int, key: int) -> np.ndarray:
        """Ranks drawn at positions `[start, stop)` of this stage, int64, shape (stop − start,)."""
        samples = np.arange(start, stop)
        drawn = np.empty(len(samples), dtype=np.int64)
        waiting, attempt = np.arange(len(samples)), 0
        while len(waiting):
            chosen = hash64(samples[waiting], mix64(key, self.number, attempt))
            drawn[waiting], kept = self._try(chosen)
            waiting, attempt = waiting[np.flatnonzero(~kept)], attempt + 1
        return self._within(drawn)

    def _try(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One try for each of these 64 random bits: a rank, and whether it is kept."""
        part = self._classes[chosen >> np.uint64(64 - _TABLE)]
        unsure = np.flatnonzero(part < 0)
        part[unsure] = np.searchsorted(self._upto, chosen[unsure] >> np.uint64(1), side="right")
        more = hash64(chosen, self.number)
        ranks = hash_below(more, self._sizes[part]) + self._bounds[part]
        more &= np.uint64(0xFFFFFFFF)
        # What the class's smallest weight would keep is kept whatever the weight is: that spares most looks at it.
        kept = more < self._certain[part]
        unsure = np.flatnonzero(~kept)
        shares = self._weight_at(ranks[unsure]) / self._largest[part[unsure]]
        kept[unsure] = more[unsure] < _of_32_bits(shares)
        return ranks, kept


def _of_32_bits(shares: np.ndarray) -> np.ndarray:
    """Shares of 1 as whole shares of 2^32, float64."""
    return np.rint(shares * (1 << 32))
