"""Lengths of curricula that have none of their own: from the rule's fields, else from the training arguments."""

from __future__ import annotations

import math
from typing import Protocol

from hf_curriculum.pacing.curriculum import Budget

DEFAULT_EPOCHS = 3.0
"""What `transformers.TrainingArguments` trains for when nobody says."""


class HasLength(Protocol):
    """A curriculum with the fields `epochs` and `examples`, either or none of which is given."""

    epochs: float | None
    examples: int | None


def check_length(rule: HasLength) -> None:
    """Refuses two lengths, and lengths that are not positive.

    Raises:
        ValueError: as said.
    """
    name = type(rule).__name__
    if rule.epochs is not None and rule.examples is not None:
        raise ValueError(
            f"{name} got epochs={rule.epochs} and examples={rule.examples}; a run has one length. Drop one."
        )
    for field in ("epochs", "examples"):
        value = getattr(rule, field)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(
                f"{name}({field}={value}) would train on nothing, or for ever; {field} is a number more than 0."
            )


def num_draws(rule: HasLength, budget: Budget, num_examples: int) -> int:
    """Examples to draw: the rule's own length, or `max_steps`, or `num_train_epochs`, or three epochs."""
    if rule.examples is not None:
        return rule.examples
    if rule.epochs is None and budget.steps is not None:
        return budget.steps * budget.global_batch_size
    return max(int((rule.epochs or budget.epochs or DEFAULT_EPOCHS) * num_examples + 0.5), 1)


def epochs_of(rule: HasLength, budget: Budget, num_examples: int) -> float:
    """The same length in passes over the data set, exactly as it was given where it was given so."""
    if rule.epochs is not None:
        return rule.epochs
    if rule.examples is None and budget.steps is None and budget.epochs is not None:
        return budget.epochs
    return num_draws(rule, budget, num_examples) / num_examples
