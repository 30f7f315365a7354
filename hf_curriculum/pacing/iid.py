"""The control: every example at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hf_curriculum.ordering import Ranking
from hf_curriculum.pacing.curriculum import Budget, Curriculum
from hf_curriculum.pacing.stages import Stage

DEFAULT_EPOCHS = 3.0
"""What `transformers.TrainingArguments` trains for when nobody says."""


@dataclass(frozen=True)
class IID(Curriculum):
    """Independent and identically distributed training: shuffled passes over all examples.

    The one curriculum that takes its length from `num_train_epochs` or `max_steps` where it is not given here.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.examples is not None:
            raise ValueError(
                f"IID got epochs={self.epochs} and examples={self.examples}; a run has one length. Drop one."
            )
        for name in ("epochs", "examples"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"IID({name}={value}) would train on nothing; {name} is more than 0.")

    def _draws(self, budget: Budget, num_examples: int) -> int:
        if self.examples is not None:
            return self.examples
        if self.epochs is not None:
            return max(int(self.epochs * num_examples + 0.5), 1)
        if budget.steps is not None:
            return budget.steps * budget.global_batch_size
        return max(int((budget.epochs or DEFAULT_EPOCHS) * num_examples + 0.5), 1)

    def nominal_epochs(self, budget: Budget, num_examples: int) -> float:
        """Passes over the data set."""
        if self.epochs is not None:
            return self.epochs
        if self.examples is None and budget.steps is None and budget.epochs is not None:
            return budget.epochs
        return self._draws(budget, num_examples) / num_examples

    def stages(self, ranking: Ranking, budget: Budget) -> tuple[Stage, ...]:
        """One stage."""
        size = len(ranking)
        return (Stage(0, "i.i.d.", "all", ((0, size),), self._draws(budget, size), self._multiple(budget)),)
