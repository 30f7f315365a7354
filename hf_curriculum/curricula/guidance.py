"""From synthetic to real images, level by level, on a schedule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, Observed, Signal
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.signals import (
    at_least,
    is_greater_better,
    metric_value,
    validate_partial_batches,
    whole_steps,
)
from hf_curriculum.planning.stage import Stage

Pools = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GuidanceSchedule(Curriculum):
    """Shows images made by diffusion from the least guided level to the real ones, always beside all real images.

    The score column holds each row's guidance level λ, `real` for a real image. In epoch e of the first
    `curriculum_epochs` the pool is the synthetic images of level G(e), and all real images, hard or not; in the epochs
    after them it is the real images alone. Where a level is `real` itself, no image is there twice.

    Args:
        epochs: E, passes over the pool in all.
        curriculum_epochs: E_CL of them with a level.
        levels: the levels in the order they are shown; None: all that the data has, low first.
        schedule: G, one level for each of the `curriculum_epochs`; None divides them evenly among the levels.
        real: the level that stands for a real image.
        easy: not used: the schedule says the order.
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
        at_least("GuidanceSchedule", curriculum_epochs=(self.curriculum_epochs, 1), epochs=(self.epochs, 1))
        for name in ("levels", "schedule"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.curriculum_epochs > self.epochs:
            raise ValueError(
                f"GuidanceSchedule(curriculum_epochs={self.curriculum_epochs}, epochs={self.epochs}) is not possible: "
                "the curriculum is a part of the run."
            )
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

    @property
    def needs_easy(self) -> bool:
        """No: the levels say themselves what they are."""
        return False

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """By level, low first."""
        return arrange_levels(ranking, None)

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """E."""
        return self.epochs

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
        levels = find_levels(ranking, asked, self.real, None, "GuidanceSchedule")
        stages: list[Stage] = []
        multiple = self.batch_multiple(budget)
        for level, epochs in itertools.groupby(self.epoch_levels(list(levels.synthetic))):
            pool = union(levels.synthetic[level], levels.real)
            size = sum(stop - start for start, stop in pool)
            rule = "real" if level == self.real else f"guidance {level:g} and real"
            draws = len(list(epochs)) * size
            stages.append(Stage(len(stages), f"level {level:g}", rule, pool, draws, multiple))
        rest = self.epochs - self.curriculum_epochs
        if rest:
            draws = rest * (levels.real[1] - levels.real[0])
            stages.append(Stage(len(stages), "real images", "real", (levels.real,), draws, multiple))
        return tuple(stages)


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


@dataclass(frozen=True)
class AdaptiveGuidance(Curriculum):
    """Tries real images, sees on which level of guidance the model got better most, and shows that level.

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
        algorithm 2 the hard real images are not beside a level. Rounds are rounded up to whole optimizer steps.

    Example:
        >>> AdaptiveGuidance(epochs=20, curriculum_epochs=15, probe_examples=5000).to_dict()
        {'type': 'adaptive_guidance', 'epochs': 20, 'curriculum_epochs': 15, 'probe_examples': 5000}
    """

    type: ClassVar[str] = "adaptive_guidance"

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
        at_least(
            "AdaptiveGuidance",
            curriculum_epochs=(self.curriculum_epochs, 1),
            epochs=(self.epochs, 1),
            probe_examples=(self.probe_examples, 1),
        )
        if self.curriculum_epochs > self.epochs:
            raise ValueError(
                f"AdaptiveGuidance(curriculum_epochs={self.curriculum_epochs}, epochs={self.epochs}) is not possible: "
                "the curriculum is a part of the run."
            )
        if self.levels is not None:
            object.__setattr__(self, "levels", tuple(self.levels))
        if "{level" not in self.metric:
            raise ValueError(
                f"AdaptiveGuidance(metric={self.metric!r}) names one metric for all levels; it needs a place for the "
                "level, such as 'level_{level:g}_probability'."
            )
        validate_partial_batches("AdaptiveGuidance", self.partial_batches)

    @property
    def signal(self) -> Signal:
        """Metrics of `evaluate()`, one per level."""
        return "metrics"

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Which images are hard."""
        return {self.hard_column: "numbers"}

    @property
    def needs_easy(self) -> bool:
        """No: the levels say themselves what they are."""
        return False

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """By level, low first, the hard ones last within each."""
        return arrange_levels(ranking, self.hard_column)

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """E."""
        return self.epochs

    def declared_steps(self, ranking: Ranking, budget: Budget) -> int:
        """The steps of a run that shows the largest level in every epoch."""
        levels, batch = self._levels(ranking), budget.global_batch_size
        largest = max(_size(self._pool(levels, level)) for level in levels.synthetic)
        each = whole_steps(self.probe_examples, batch) + whole_steps(largest, batch)
        return self.curriculum_epochs * each + self._rest(levels, batch)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """Two stages per epoch that has begun, and one for the epochs on all real images."""
        batch = budget.global_batch_size
        return tuple(
            Stage(number, name, rule, pool, steps * batch, decides=decides)
            for number, (name, rule, pool, steps, decides) in enumerate(
                self._rounds(self._levels(ranking), batch, log)
            )
        )

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """Notes how the model does on every level; after real images also takes the level where it rose most."""
        levels = {f"{level:g}": level for level in self._levels(ranking).synthetic}
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
        levels = self._levels(ranking)
        sizes = ", ".join(f"{level:g}: {_size(self._pool(levels, level)):,}" for level in levels.synthetic)
        return (
            f"{self.curriculum_epochs} epochs of {self.probe_examples:,} random real images and one level each "
            f"(examples by level {sizes})",
        )

    def _levels(self, ranking: Ranking) -> Levels:
        return find_levels(ranking, self.levels, self.real, self.hard_column, "AdaptiveGuidance")

    def _pool(self, levels: Levels, level: float) -> Pools:
        return union(levels.synthetic[level], levels.not_hard) if level != self.real else union(levels.real)

    def _rest(self, levels: Levels, batch: int) -> int:
        epochs = self.epochs - self.curriculum_epochs
        return whole_steps(epochs * (levels.real[1] - levels.real[0]), batch) if epochs else 0

    def _rounds(self, levels: Levels, batch: int, log: Log) -> Iterator[tuple[str, str, Pools, int, bool]]:
        """(name, rule, pool, steps, whether a decision follows) of each settled round."""
        rest = self._rest(levels, batch)
        probe = whole_steps(self.probe_examples, batch)
        for number, entry in enumerate(log):
            epoch = number // 2 + 1
            if entry["decision"] == "measured":
                yield f"epoch {epoch}, probe", "real", (levels.real,), probe, True
                continue
            level = entry["level"]
            pool, steps = self._pool(levels, level), whole_steps(_size(self._pool(levels, level)), batch)
            rule = "real" if level == self.real else f"guidance {level:g} and real, not hard"
            yield f"epoch {epoch}, level {level:g}", rule, pool, steps, epoch < self.curriculum_epochs
        if rest and len(log) == 2 * self.curriculum_epochs:
            yield "real images", "real", (levels.real,), rest, False


def _size(pool: Pools) -> int:
    return sum(stop - start for start, stop in pool)
