"""From synthetic to real images, level by level, on a schedule."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hf_curriculum.ordering import Ranking
from hf_curriculum.pacing.curriculum import Budget, Curriculum, Log
from hf_curriculum.pacing.levels import arrange_levels, find_levels, union
from hf_curriculum.pacing.signals import at_least
from hf_curriculum.pacing.stages import Stage


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
