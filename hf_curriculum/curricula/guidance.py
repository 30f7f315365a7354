"""From synthetic to real images, by level of guidance."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.config import at_least
from hf_curriculum.planning.curriculum import (
    Budget,
    Curriculum,
    Log,
    Observed,
    Signal,
    is_greater_better,
    metric_value,
    num_steps,
)
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage

Slice = tuple[int, int]


@dataclass(frozen=True)
class _Levels:
    """Half-open stretches of an order by level: of each level asked for, and of the real images, not hard and all."""

    synthetic: dict[float, Slice]
    real: Slice
    not_hard: Slice


class _ByLevel(Curriculum):
    """What both curricula share: the order by level, the hard ones last within each, and E epochs."""

    needs_easy: ClassVar[bool] = False

    epochs: int
    curriculum_epochs: int
    levels: tuple[float, ...] | None
    real: float

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        at_least(name, curriculum_epochs=(self.curriculum_epochs, 1), epochs=(self.epochs, 1))
        if self.curriculum_epochs > self.epochs:
            raise ValueError(
                f"{name}(curriculum_epochs={self.curriculum_epochs}, epochs={self.epochs}) is not possible: the "
                "curriculum is a part of the run."
            )

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """E."""
        return self.epochs

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """By level, low first, and the hard ones last within each."""
        levels = ranking.scores[ranking.order].copy()
        levels[ranking.num_scored :] = np.inf  # no level, not even minus infinity
        hard = self._hard(ranking, ranking.order)
        order = ranking.order[np.lexsort((hard, levels))]
        return replace(ranking, order=order)

    def _hard(self, ranking: Ranking, rows: np.ndarray) -> np.ndarray:
        """Whether each of the rows is hard; none is where the rule reads no such column."""
        column = getattr(self, "hard_column", None)
        return np.zeros(len(rows), dtype=bool) if column is None else ranking.columns[column][rows] > 0

    def _find_levels(self, ranking: Ranking, levels: tuple[float, ...] | None) -> _Levels:
        """Where `levels` (None: all there are, ascending) are in the arranged order."""
        values = ranking.scores[ranking.order[: ranking.num_scored]]
        found = np.unique(values)

        def span(level: float) -> Slice:
            wanted = np.float32(level)
            start, stop = np.searchsorted(values, [wanted, np.nextafter(wanted, np.float32(np.inf))])
            if start == stop:
                column = f"`{ranking.name}`" if ranking.name else "the level"
                raise ValueError(
                    f"{type(self).__name__} needs examples of level {level:g}, and {column} holds "
                    f"{[round(float(value), 6) for value in found[:12]]}: that part of the schedule would have "
                    "nothing to show. Give the levels that the data has, and `real=` as the data writes the level of "
                    "real images."
                )
            return int(start), int(stop)

        # Seven digits are what float32 holds: 0.1 and not 0.10000000149.
        asked = [float(f"{value:.7g}") for value in found] if levels is None else list(levels)
        start, stop = span(self.real)
        num_hard = int(self._hard(ranking, ranking.order[start:stop]).sum())
        return _Levels({level: span(level) for level in asked}, (start, stop), (start, stop - num_hard))


@dataclass(frozen=True)
class GuidanceSchedule(_ByLevel):
    """Shows images made by diffusion from the least guided level to the real ones, always together with all real ones.

    The score column holds each row's guidance level λ, `real` for a real image. In epoch e of the first
    `curriculum_epochs` the pool is the synthetic images of level G(e), and all real images, hard or not; in the epochs
    after them it is the real images alone. Where a level is `real` itself, no image is in the pool twice.

    Args:
        epochs: E, passes over the pool in all.
        curriculum_epochs: E_CL of them with a level.
        levels: the levels in the order they are shown; None: all that the data has, low first.
        schedule: G, one level for each of the `curriculum_epochs`; None divides them evenly among the levels.
        real: the level that stands for a real image.
        easy: not used: the order is by level.
        unscored: rows without a level are left out unless it is `"error"`.
        partial_batches: see `Curriculum`.

    Raises:
        ValueError: the epochs do not fit each other, or a level has no examples.

    Source: Liang et al. 2024 (DisCL), algorithm 2. Four levels, 60 of 65 epochs: 15 each, then 5 on real images. Their
        released code runs 14, 15, 15 and 21 epochs instead: `schedule=` can say so.

    Example:
        >>> GuidanceSchedule(epochs=65, curriculum_epochs=60).to_dict()
        {'type': 'guidance_schedule', 'epochs': 65, 'curriculum_epochs': 60}
    """

    type: ClassVar[str] = "guidance_schedule"

    epochs: int = 10
    curriculum_epochs: int = 8
    levels: tuple[float, ...] | None = None
    schedule: tuple[float, ...] | None = None
    real: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule is not None and self.levels is not None:
            raise ValueError("GuidanceSchedule got levels and schedule; the schedule says the levels. Drop one.")
        if self.schedule is not None and len(self.schedule) != self.curriculum_epochs:
            raise ValueError(
                f"GuidanceSchedule(schedule=...) has {len(self.schedule)} levels for {self.curriculum_epochs} "
                "curriculum_epochs; it says the level of each one."
            )
        if self.levels is not None and not 1 <= len(set(self.levels)) == len(self.levels) <= self.curriculum_epochs:
            raise ValueError(
                f"GuidanceSchedule(levels={self.levels}) is not possible: {self.curriculum_epochs} epochs need at "
                "least one level, no level twice, and no more levels than epochs."
            )

    def epoch_levels(self, found: list[float]) -> tuple[float, ...]:
        """G: the level of each curriculum epoch, when the data has the levels `found`."""
        if self.schedule is not None:
            return self.schedule
        levels = list(self.levels or found)
        if len(levels) > self.curriculum_epochs:
            raise ValueError(
                f"The data has {len(levels)} levels of guidance and GuidanceSchedule only {self.curriculum_epochs} "
                "curriculum_epochs: some would never be shown. Give it more epochs, or name the levels."
            )
        return tuple(levels[epoch * len(levels) // self.curriculum_epochs] for epoch in range(self.curriculum_epochs))

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage per level, and one for the epochs on real images."""
        asked = self.levels if self.schedule is None else tuple(dict.fromkeys(self.schedule))
        levels = self._find_levels(ranking, asked)
        stages: list[Stage] = []
        multiple = self.batch_multiple(budget)
        for level, epochs in itertools.groupby(self.epoch_levels(list(levels.synthetic))):
            pool = _union(levels.synthetic[level], levels.real)
            rule = "real" if level == self.real else f"guidance {level:g} and real"
            draws = len(list(epochs)) * _size(pool)
            stages.append(Stage(len(stages), f"level {level:g}", rule, pool, draws, multiple))
        rest = self.epochs - self.curriculum_epochs
        if rest:
            draws = rest * _size((levels.real,))
            stages.append(Stage(len(stages), "real images", "real", (levels.real,), draws, multiple))
        return tuple(stages)


@dataclass(frozen=True)
class AdaptiveGuidance(_ByLevel):
    """Trains on some real images, then on the level of guidance whose metric they improved most, epoch by epoch.

    The score column holds each row's guidance level λ, `real` for a real image. Each of the first
    `curriculum_epochs` has two rounds: one over `probe_examples` random real images, before and after which the model
    is evaluated on every level; and one over the synthetic images of the level whose metric rose most, with the real
    images that are not hard. The first of equal levels is taken, and a level is taken too where all fell. The
    remaining epochs are over all real images. Both rounds train the model for good.

    Args:
        epochs: E.
        curriculum_epochs: E_CL of them with a level.
        probe_examples: |D|, real images of the first round of an epoch.
        hard_column: says of each row whether its image is hard (a number or bool, 0 = not).
        levels: Λ; None: all levels that the data has, low first.
        metric: the metric of one level, a format of `level`; `evaluate()` on `eval_dataset={"level_0.1": …}` returns
            `eval_level_0.1_probability` if `compute_metrics` returns `probability`.
        greater_is_better: whether it should rise; None: a loss should fall, anything else rise.
        real: the level that stands for a real image.
        easy: not used.
        unscored: rows without a level are left out unless it is `"error"`.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: the epochs do not fit each other, or a level has no examples.

    Source: Liang et al. 2024 (DisCL), algorithm 3. Its "D_nl" is read as the images that are not hard; unlike in
        algorithm 2 the hard real images are not shown with a level. Rounds are rounded up to optimizer steps.

    Example:
        >>> AdaptiveGuidance(epochs=20, curriculum_epochs=15, probe_examples=5000).to_dict()
        {'type': 'adaptive_guidance', 'epochs': 20, 'curriculum_epochs': 15, 'probe_examples': 5000}
    """

    type: ClassVar[str] = "adaptive_guidance"
    signal: ClassVar[Signal] = "metrics"
    has_passes: ClassVar[bool] = False

    epochs: int = 10
    curriculum_epochs: int = 8
    probe_examples: int = 1000
    hard_column: str = "hard"
    levels: tuple[float, ...] | None = None
    metric: str = "level_{level:g}_probability"
    greater_is_better: bool | None = None
    real: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("AdaptiveGuidance", probe_examples=(self.probe_examples, 1))
        if "{level" not in self.metric:
            raise ValueError(
                f"AdaptiveGuidance(metric={self.metric!r}) names one metric for all levels; it needs a place for the "
                "level, such as 'level_{level:g}_probability'."
            )

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Which images are hard."""
        return {self.hard_column: "numbers"}

    def declared_steps(self, ranking: Ranking, budget: Budget) -> int:
        """The steps of a run that shows the largest level in every epoch."""
        levels, batch = self._find_levels(ranking, self.levels), budget.global_batch_size
        largest = max(_size(self._pool(levels, level)) for level in levels.synthetic)
        each = num_steps(self.probe_examples, batch) + num_steps(largest, batch)
        return self.curriculum_epochs * each + self._rest(levels, batch)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """Two stages per epoch that has begun, and one for the epochs on all real images."""
        batch, levels = budget.global_batch_size, self._find_levels(ranking, self.levels)
        rounds = []
        for number, entry in enumerate(log):
            epoch = number // 2 + 1
            if entry["decision"] == "measured":
                steps = num_steps(self.probe_examples, batch)
                rounds.append((f"epoch {epoch}, probe", "real", (levels.real,), steps, True))
                continue
            level, pool = entry["level"], self._pool(levels, entry["level"])
            rule = "real" if level == self.real else f"guidance {level:g} and real, not hard"
            steps, more = num_steps(_size(pool), batch), epoch < self.curriculum_epochs
            rounds.append((f"epoch {epoch}, level {level:g}", rule, pool, steps, more))
        rest = self._rest(levels, batch)
        if rest and len(log) == 2 * self.curriculum_epochs:
            rounds.append(("real images", "real", (levels.real,), rest, False))
        return tuple(
            Stage(number, name, rule, pool, steps * batch, decides=decides)
            for number, (name, rule, pool, steps, decides) in enumerate(rounds)
        )

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """Records the metric of every level; after the round on real images also the level where it rose most."""
        levels = {f"{level:g}": level for level in self._find_levels(ranking, self.levels).synthetic}
        values = {
            name: metric_value(observed.metrics, self.metric.format(level=level), "AdaptiveGuidance")
            for name, level in levels.items()
        }
        if len(log) % 2 == 0:
            return {"decision": "measured", "values": values}
        sign = 1 if is_greater_better(self.metric, self.greater_is_better) else -1
        progress = {level: sign * (value - log[-1]["values"][level]) for level, value in values.items()}
        finite = {level: rise for level, rise in progress.items() if np.isfinite(rise)}
        if not finite:
            raise ValueError(
                f"{self.metric!r} is not a number on any level after step {observed.step}: no level to take."
            )
        return {
            "decision": "level",
            "level": levels[max(finite, key=finite.get)],
            "progress": progress,
            "values": values,
        }

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """What each epoch may be."""
        levels = self._find_levels(ranking, self.levels)
        sizes = ", ".join(f"{level:g}: {_size(self._pool(levels, level)):,}" for level in levels.synthetic)
        return (
            f"{self.curriculum_epochs} epochs of {self.probe_examples:,} random real images and one level each "
            f"(examples by level {sizes})",
        )

    def _pool(self, levels: _Levels, level: float) -> tuple[Slice, ...]:
        return _union(levels.synthetic[level], levels.not_hard) if level != self.real else (levels.real,)

    def _rest(self, levels: _Levels, batch: int) -> int:
        """Steps of the epochs on all real images."""
        epochs = self.epochs - self.curriculum_epochs
        return num_steps(epochs * _size((levels.real,)), batch) if epochs else 0


def _union(*slices: Slice) -> tuple[Slice, ...]:
    """The slices that are not empty, each once, ascending."""
    return tuple(sorted({part for part in slices if part[0] < part[1]}))


def _size(pool: tuple[Slice, ...]) -> int:
    return sum(stop - start for start, stop in pool)
