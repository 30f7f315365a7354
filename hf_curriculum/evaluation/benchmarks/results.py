"""What a benchmark returns, and averages as the paper takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskResult:
    """Scores of one benchmark.

    Args:
        task: its name, a key of `BENCHMARKS`.
        subtasks: subtask → measure → value, shares from 0 to 1 (correlations from -1 to 1).
        averages: measure → unweighted mean over subtasks; see `unweighted_means`.
        predictions: subtask → what the challenge wants to be sent.
        counts: subtask → items.
        notes: what a reader of the numbers must know.
    """

    task: str
    subtasks: dict[str, dict[str, float]]
    averages: dict[str, float]
    predictions: dict[str, dict[str, Any]]
    counts: dict[str, int]
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; without the predictions, which have a file of their own."""
        return {
            "subtasks": self.subtasks,
            "averages": self.averages,
            "counts": self.counts,
            "notes": list(self.notes),
        }


def unweighted_means(subtasks: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of every measure over the subtasks that have it, however many items each has.

    Args:
        subtasks: subtask → measure → value.

    Source: Saha et al. 2024 (BabyLM), Tables 4 and 9 to 14: each average is the plain mean of its rows.

    Example:
        >>> unweighted_means({"a": {"accuracy": 0.5}, "b": {"accuracy": 1.0}})
        {'accuracy': 0.75}
    """
    measures = dict.fromkeys(measure for values in subtasks.values() for measure in values)
    means = {}
    for measure in measures:
        values = [values[measure] for values in subtasks.values() if measure in values]
        means[measure] = math.fsum(values) / len(values)
    return means


def choice_predictions(subtask: str, texts: list[str]) -> dict[str, Any]:
    """A subtask's entry in the challenge's file: every item's chosen text, in the order of the items.

    Args:
        subtask: its name.
        texts: the choices that were predicted.

    Source: BabyLM 2024 evaluation pipeline; its texts begin with the blank that stands before a choice.

    Example:
        >>> choice_predictions("hypernym", ["a dog"])
        {'predictions': [{'id': 'hypernym_0', 'pred': ' a dog'}]}
    """
    return {"predictions": [{"id": f"{subtask}_{at}", "pred": f" {text}"} for at, text in enumerate(texts)]}
