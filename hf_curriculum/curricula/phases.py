"""Phases: the pool grows by one bucket at fixed times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, Literal

from hf_curriculum.planning.buckets import (
    Buckets,
    Cut,
    cut_buckets,
    uneven_buckets,
    validate_rows,
    validate_thresholds,
)
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage


@dataclass(frozen=True)
class Phases(Curriculum):
    """Trains on the easiest bucket first and adds one bucket per phase.

    Phase k draws from buckets 1 … k (`pools="cumulative"`, BabyLM, WSOD) or from bucket k alone (`"exclusive"`).

    Args:
        num_phases: number of buckets and of phases.
        epochs_per_phase: passes over the phase's pool, one number for all phases or one per phase; fractions are fine.
        cut: buckets of equal size by `"rank"`, or by `"value"` with ties kept together.
        pools: `"cumulative"`: phase k draws from buckets 1 … k; `"exclusive"`: from bucket k alone.
        thresholds: the inner thresholds as scores, easiest first, in place of quantiles; only with `cut="value"`.
        steps_per_phase: optimizer steps per phase, in place of `epochs_per_phase`.
        easy: see `Curriculum`.
        unscored: see `Curriculum`.
        partial_batches: see `Curriculum`.

    Raises:
        TypeError: a number is not one, or not a whole one.
        ValueError: an argument is out of range, or a phase's pool would be empty.

    Source: Saha et al. 2024 (BabyLM) §3.3: 4 phases of 2 epochs by value, cumulative. Nebbia & Kovashka 2024 §3.4:
        4 phases of 1 epoch by rank, cumulative. Ayyubi et al. 2023: exclusive.

    Example:
        >>> Phases(num_phases=4, epochs_per_phase=2, cut="value").to_dict()
        {'type': 'phases', 'epochs_per_phase': 2, 'cut': 'value'}
    """

    type: ClassVar[str] = "phases"

    num_phases: int = 4
    epochs_per_phase: float | tuple[float, ...] = 1
    cut: Cut = "rank"
    pools: Literal["cumulative", "exclusive"] = "cumulative"
    thresholds: tuple[float, ...] | None = None
    steps_per_phase: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice("cut", ("rank", "value"))
        self._choice("pools", ("cumulative", "exclusive"))
        if self.num_phases < 1:
            raise ValueError(
                f"Phases(num_phases={self.num_phases}) is not possible; a curriculum has at least 1 phase."
            )
        for name in ("epochs_per_phase", "steps_per_phase"):
            if (given := getattr(self, name)) is None:
                continue
            values = given if isinstance(given, tuple) else (given,)  # not one for each of 10^9 phases
            if values is given and len(values) != self.num_phases:
                raise ValueError(f"{name}={values} has {len(values)} numbers for {self.num_phases} phases.")
            if not all(0 < value < math.inf for value in values):
                raise ValueError(f"{name}={values} has a phase of no length; each needs a number more than 0.")
        if self.steps_per_phase is not None and not all(isinstance(steps, Integral) for steps in self.steps_per_phase):
            raise TypeError(f"Phases(steps_per_phase={self.steps_per_phase}) is not possible; steps are whole numbers")
        validate_thresholds(self.thresholds, self.num_phases, self.cut)
        if self.steps_per_phase is not None and self.epochs_per_phase != 1:
            raise ValueError("Both epochs_per_phase and steps_per_phase were given; a phase has one length. Drop one.")

    def _epochs(self) -> tuple[float, ...]:
        if isinstance(self.epochs_per_phase, tuple):
            return self.epochs_per_phase
        return (self.epochs_per_phase,) * self.num_phases

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The sum of the phases' epochs; of steps, their number in epochs of all examples."""
        if self.steps_per_phase is not None:
            return sum(self.steps_per_phase) * budget.global_batch_size / len(ranking)
        return sum(self._epochs())

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage per phase."""
        validate_rows(ranking, self.num_phases, self.cut)
        buckets = cut_buckets(ranking, self.num_phases, self.cut, thresholds=self.thresholds)
        stages, multiple, epochs = [], self.batch_multiple(budget), self._epochs()
        for number, (start, stop) in enumerate(buckets.slices()):
            first = 0 if self.pools == "cumulative" else start
            if self.steps_per_phase is not None:
                draws = self.steps_per_phase[number] * budget.global_batch_size
            else:
                draws = max(int(epochs[number] * (stop - first) + 0.5), 1)
            rule = self._rule(buckets, number, ranking)
            stages.append(Stage(number, f"phase {number + 1}", rule, ((first, stop),), draws, multiple))
        return tuple(stages)

    def _rule(self, buckets: Buckets, number: int, ranking: Ranking) -> str:
        """Which examples phase `number` may draw, in words."""
        name, upto = ranking.score_column or "score", "≤" if ranking.easy == "low" else "≥"
        last = number == self.num_phases - 1
        if self.cut == "value":
            after = f"{name} {upto} {_digits(buckets.thresholds[number])}" if not last else "all"
            if self.pools == "cumulative" or number == 0:
                return after
            beyond = "not " + f"{name} {upto} {_digits(buckets.thresholds[number - 1])}"
            return beyond if last else f"{after}, {beyond}"
        share = [f"{100 * k / self.num_phases:.4g} %" for k in range(self.num_phases + 1)]
        if self.pools == "cumulative" or number == 0:
            return "all" if last else f"easiest {share[number + 1]}"
        return f"easiest {share[number]} to {share[number + 1]}"

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Whether ties make buckets empty, or divide them by the order of the file."""
        buckets = cut_buckets(ranking, self.num_phases, self.cut, thresholds=self.thresholds)
        note = uneven_buckets(buckets, ranking)
        return (note,) if note else ()


def _digits(threshold: float) -> str:
    """Four digits, or all before the decimal point: 33554457 and 33554482 are two thresholds."""
    return f"{threshold:.4g}" if abs(threshold) < 1e4 else f"{threshold:.12g}"
