"""The control: every example at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage


@dataclass(frozen=True)
class IID(SizedCurriculum):
    """Independent and identically distributed training: shuffled passes over all examples.

    Its length is that of `num_train_epochs` or `max_steps` where it is not given here.

    Args:
        epochs: passes over the data set.
        examples: examples to draw, in place of `epochs`: a control at equal cost.
        easy: see `Curriculum`.
        unscored: see `Curriculum`.
        partial_batches: see `Curriculum`.

    Raises:
        ValueError: both lengths are given, or one is not positive.

    Example:
        >>> IID(epochs=8).to_dict()
        {'type': 'iid', 'epochs': 8}
    """

    type: ClassVar[str] = "iid"
    needs_scores: ClassVar[bool] = False

    epochs: float | None = None
    examples: int | None = None

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage."""
        size = len(ranking)
        draws = self.num_draws(budget, size)
        return (Stage(0, "i.i.d.", "all", ((0, size),), draws, self.batch_multiple(budget)),)
