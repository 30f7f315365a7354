"""The level of guidance that helped most, chosen epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.ordering import Ranking
from hf_curriculum.ordering.groups import Kind
from hf_curriculum.pacing.curriculum import Budget, Curriculum, Log, Observed, Signal
from hf_curriculum.pacing.levels import Levels, arrange_levels, find_levels, union
from hf_curriculum.pacing.signals import at_least, is_greater_better, metric_value, refuse_partial_batches, whole_steps
from hf_curriculum.pacing.stages import Stage

Pools = tuple[tuple[int, int], ...]


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
        refuse_partial_batches("AdaptiveGuidance", self.partial_batches)

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

    def outlook(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
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
