"""Weighted draws: every example at any time, some more often than others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import bisect
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import bits_beside, hash64, hash_below, mix64

_ALONE, _FINE = 1 << 18, 1 << 14
"""Positions looked at one by one where it is said how often examples are drawn: of so many all, else at either end."""
_OCTAVES = 60
"""Weights below 2^-60 of the largest are drawn less than once in 10^18 draws and share one class."""
_LIMITS = np.array([round(2 ** (20 - part / 8)) for part in range(8)]) / 2**20
"""The limits of classes within an octave of weights, as numbers that are the same on every machine."""


@dataclass(frozen=True)
class Weighted(SizedCurriculum):
    """Draws examples with replacement, each with a probability proportional to its weight.

    Without a temperature the score itself is the weight. With temperature T the weight is exp(−|score − easiest| / T):
    a small T keeps to the easy end, a large one is nearly even. Unscored examples have weight 0.

    With a soft cap every draw of an example takes `cap` off its log-weight, so that a few heavy examples do not fill
    the run. Draws stay independent, with that process's expected counts in the limit of small steps. After a time t,
    which fits all counts to the draws, an example of weight w has ln(1 + w·t) / cap draws.

    Args:
        temperature: T, in the score's unit; None: the score is the weight.
        epochs: the run's length in passes over the data set; without it and `examples` the training arguments say.
        examples: examples to draw, in place of `epochs`.
        easy: see `Curriculum`; without a temperature it only says in which order reports show the examples.
        unscored: `"error"` refuses unscored examples; otherwise they are never drawn.
        partial_batches: only `"stream"` is possible.
        cap: the amount by which a draw lowers the log-weight; the paper's is 0.15.

    Raises:
        ValueError: temperature or cap is not positive, or (in a plan) a weight is negative or all are 0.

    Source: Shechter & Carmon 2025 (FLYT), Soft Cap Sampling, which draws batches, each without replacement.

    Example:
        >>> Weighted(temperature=0.1, epochs=3).to_dict()
        {'type': 'weighted', 'temperature': 0.1, 'epochs': 3}
    """

    type: ClassVar[str] = "weighted"
    has_passes: ClassVar[bool] = False

    temperature: float | None = None
    epochs: float | None = None
    examples: int | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("temperature", self.temperature), ("cap", self.cap)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Weighted({name}={value}) is not possible; a {name} is a number more than 0.")

    @property
    def needs_easy(self) -> bool:
        """Whether the weight falls from the easy end on."""
        return self.temperature is not None

    def weights(self, scores: np.ndarray, easiest: float) -> np.ndarray:
        """The weight of each score before any cap, float64, same shape.

        Args:
            scores: any shape.
            easiest: the easiest score of the data set.
        """
        scores = scores.astype(np.float64)
        return scores if self.temperature is None else np.exp(-np.abs(scores - easiest) / self.temperature)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage."""
        size = ranking.num_scored
        ends = [ranking.score_at(0), ranking.score_at(size - 1)]
        if self.temperature is None and min(ends) < 0:
            raise ValueError(
                f"Weighted takes `{ranking.score_column or 'the score'}` as a weight, and it goes down to "
                f"{min(ends):g}: a probability cannot be negative. Give a temperature, or another score."
            )
        if self.temperature is None and max(ends) == 0:
            raise ValueError(
                f"All {size:,} weights are 0: nothing could be drawn. Give a temperature or another score."
            )
        rule = "in proportion to the score" if self.temperature is None else f"temperature {self.temperature:g}"
        rule += "" if self.cap is None else f", soft cap {self.cap:g}"
        draws = self.num_draws(budget, len(ranking))
        return (WeightedStage(0, "weighted", rule, ((0, size),), draws, rule_of=self, ranking=ranking),)


@dataclass(frozen=True, eq=False)
class WeightedStage(Stage):
    """Independent weighted draws, a pure function of (key, sample position), at a cost independent of the data's size.

    The order is by score, hence by weight. Divided eight times while the weight halves, it makes a few hundred classes
    whose weights differ by less than a tenth. A draw takes a class in proportion to its size times its largest weight,
    then one of its examples, and keeps it with the probability weight / largest weight: few draws need a second try.

    Args:
        rule_of: the rule.
        ranking: the order.
        capped_draws: the draws that a soft cap counts on, where `max_steps` ends the run before them.
    """

    in_passes: ClassVar[bool] = False

    rule_of: Weighted | None = None
    ranking: Ranking | None = None
    capped_draws: int | None = None

    def cut(self, samples: int) -> Stage:
        """The beginning of the stage, with the probabilities of all of it."""
        return replace(super().cut(samples), capped_draws=self.capped_draws or self.num_draws)

    def change_points(self) -> np.ndarray:
        """Each position, as every weight is another; of more than 2^18 those at the ends, and fewer further in."""
        return self._marks + self.slices[0][0]

    @cached_property
    def _marks(self) -> np.ndarray:
        """The starts of stretches of the order and the end of the last; int64.

        One is at most 2^-14 as long as what lies between it and the nearer end, where weights change fastest.
        """
        size, half = self.pool_size, self.pool_size // 2
        if size <= _ALONE:
            return np.arange(size + 1)
        further = _FINE * np.exp(np.arange(math.log(half / _FINE) * _FINE) / _FINE)
        marks = np.concatenate([np.arange(_FINE), further.astype(np.int64), [half]])
        return np.unique(np.concatenate([marks, size - marks]))

    @cached_property
    def _shares_at_marks(self) -> np.ndarray:
        """The probability that a draw takes one position of each stretch: by the weight in its middle."""
        weights = self._weights((self._marks[:-1] + self._marks[1:]) // 2)
        return weights / (weights * np.diff(self._marks)).sum()

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """As `Stage.expected_draws`: draws · weight / all weights."""
        return self.num_draws * self._shares(positions)

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """As `Stage.missed`: (1 − part · weight / all weights)^draws."""
        with np.errstate(divide="ignore"):
            return np.exp(self.num_draws * np.log1p(-part * self._shares(positions)))

    def _shares(self, positions: np.ndarray) -> np.ndarray:
        """The probability that a draw takes each position."""
        shares, held = np.zeros(len(positions)), self._holds(positions)
        stretches = np.searchsorted(self._marks, positions[held] - self.slices[0][0], side="right") - 1
        shares[held] = self._shares_at_marks[stretches]
        return shares

    def _weights(self, positions: np.ndarray, capped: bool = True) -> np.ndarray:
        """By position in the order, float64, rising or falling; shape of `positions`."""
        scores = self.ranking.scores[self.ranking.order[positions]]
        weights = self.rule_of.weights(scores, self.ranking.score_at(0))
        return weights if self.rule_of.cap is None or not capped else _log1p(weights, self._log_time)

    @cached_property
    def _log_time(self) -> float:
        """ln t by which the counts ln(1 + w·t) / cap add up to the draws, to 1/256: alike on every machine."""
        sizes, total = np.diff(self._marks), self.rule_of.cap * (self.capped_draws or self.num_draws)
        weights = self._weights((self._marks[:-1] + self._marks[1:]) // 2, capped=False)
        # All ln(1 + w·t) together are at most their number times the largest w·t, and at least the largest ln(w·t).
        ends = np.rint(256 * (np.array([[math.log(total / self.pool_size)], [total]]) - math.log(weights.max())))
        low, high = ends.astype(np.int64)
        return bisect(lambda at: _log1p(weights, at / 256) @ sizes < total, low, high)[0] / 256

    @cached_property
    def _classes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(starts, largest weight, upper end of the share in units of 2^-63) of each class; an end follows starts."""
        size, ends = self.pool_size, self._weights(np.array([0, self.pool_size - 1]))
        sign = 1.0 if ends[0] <= ends[1] else -1.0
        limits = ends.max() * np.outer(2.0 ** -np.arange(_OCTAVES), _LIMITS).ravel()[1:]
        inner = bisect(
            lambda at: sign * self._weights(np.minimum(at, size - 1)) < sign * limits,
            np.zeros(len(limits), dtype=np.int64),
            np.full(len(limits), size),
        )
        starts = np.unique(np.concatenate([[0], inner, [size]]))
        largest = np.maximum(self._weights(starts[:-1]), self._weights(starts[1:] - 1))
        # Shares of 2^63: integers, so that no rounding depends on the machine. The last class has what is left.
        mass = np.diff(starts) * largest
        shares = [int(share * (1 << 63)) for share in np.cumsum(mass / mass.sum())[:-1]]
        return starts, largest, np.array([*shares, 1 << 63], dtype=np.uint64)

    @cached_property
    def _first_classes(self) -> np.ndarray:
        """The class of the least number with each of the 4,096 possible upper 12 bits: most numbers' class already."""
        return np.searchsorted(self._classes[2], np.arange(1 << 12, dtype=np.uint64) << np.uint64(51), side="right")

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order drawn at the sample positions `[start, stop)`; int64, shape (stop − start,)."""
        starts, largest, shares = self._classes
        sizes = np.diff(starts)
        samples = np.arange(start, stop)
        drawn = np.empty(len(samples), dtype=np.int64)
        waiting, attempt = np.arange(len(samples)), 0
        while len(waiting):
            chosen = hash64(samples[waiting], mix64(key, self.number, attempt))
            share, number = chosen >> np.uint64(1), self._first_classes[chosen >> np.uint64(52)]
            later = np.flatnonzero(share >= shares[number])
            number[later] = np.searchsorted(shares, share[later], side="right")
            more = hash64(chosen, self.number)
            bounds = sizes[number]
            drawn[waiting] = hash_below(more, bounds) + starts[number]
            limit = np.rint(self._weights(drawn[waiting]) / largest[number] * (1 << 32))
            waiting, attempt = waiting[~(bits_beside(more, bounds) < limit)], attempt + 1
        return self._within(drawn)


def _log1p(weights: np.ndarray, log_time: float) -> np.ndarray:
    """ln(1 + weight·time)."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(0.0, np.log(weights) + log_time)
