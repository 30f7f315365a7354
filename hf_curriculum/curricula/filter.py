"""Filtering as a curriculum: another curriculum over the easiest share of the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hf_curriculum.planning.buckets import keep_easiest
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, Observed, Signal, curriculum_from
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Filter(Curriculum):
    """Never shows the hardest examples: `then` runs over the easiest ⌊n·keep⌋ scored ones.

    Args:
        keep: the share to keep, more than 0 and at most 1.
        then: the curriculum over what is kept; `easy` and `unscored` are arguments of the filter.
        easy: see `Curriculum`.
        unscored: see `Curriculum`; an unscored row is never kept, so only `"error"` makes a difference.
        partial_batches: taken from `then`.

    Raises:
        ValueError: `keep` is out of range, or `then` is no curriculum or has `easy`, `unscored` or `batches`.

    Source: Nebbia & Kovashka 2024 (WSOD) §3.4: keep 0.5 or 0.75, alone or before four phases.

    Example:
        >>> from hf_curriculum import Phases
        >>> Filter(0.5, Phases(4, 1)).to_dict()
        {'type': 'filter', 'then': {'type': 'phases'}}
    """

    type: ClassVar[str] = "filter"

    keep: float = 0.5
    then: Curriculum = field(default_factory=lambda: curriculum_from("iid"))

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"Filter(keep={self.keep}) is not possible; keep is more than 0 and at most 1.")
        object.__setattr__(self, "then", curriculum_from(self.then))
        object.__setattr__(self, "partial_batches", self.then.partial_batches)
        super().__post_init__()
        if self.then.easy is not None or self.then.unscored != "last":
            raise ValueError(
                "Filter(then=...) holds a curriculum with `easy` or `unscored` of its own: one order serves both. "
                "Give them to Filter."
            )
        if self.then.batches is not None:
            raise ValueError("Filter(then=...) holds a curriculum with `batches` of its own. Give them to Filter.")

    @property
    def signal(self) -> Signal | None:
        """That of `then`."""
        return self.then.signal

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Those of `then`."""
        return self.then.reads

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """What is kept, arranged by `then`."""
        return self.then.arrange(keep_easiest(ranking, self.keep), losses)

    def declared_steps(self, ranking: Ranking, budget: Budget) -> int | None:
        """That of `then`."""
        return self.then.declared_steps(ranking, budget)

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """What `then` decides."""
        return self.then.decide(ranking, budget, log, observed)

    def describe_decision(self, entry: Mapping[str, Any]) -> str:
        """As `then` says it."""
        return self.then.describe_decision(entry)

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """That of `then`."""
        return self.then.pending_decisions(ranking, budget)

    def scenarios(self) -> Mapping[str, Callable[[int], Mapping[str, float]]]:
        """Those of `then`."""
        return self.then.scenarios()

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Those of `then`."""
        return self.then.notes(ranking, budget)

    def most_decisions(self, ranking: Ranking, budget: Budget) -> int | None:
        """Those of `then`."""
        return self.then.most_decisions(ranking, budget)

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The epochs of `then`, over what is kept."""
        return self.then.fitted_epochs(budget, ranking)

    def _with_length(self, steps: int | None, epochs: float | None) -> Self:
        return replace(self, then=self.then.fit_to(steps=steps, epochs=epochs), fit_steps=None, fit_epochs=None)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """The stages of `then` over what is kept."""
        kept = f" of the easiest {100 * self.keep:.4g} %"
        stages = self.then.fitted_stages(ranking, budget, log)
        return tuple(replace(stage, rule=stage.rule + kept) for stage in stages)

    def to_dict(self) -> dict[str, Any]:
        """As `Curriculum.to_dict`, without what is taken from `then`."""
        return {name: value for name, value in super().to_dict().items() if name != "partial_batches"}
