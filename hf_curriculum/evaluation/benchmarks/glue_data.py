"""(Super)GLUE as the challenge words it: which fields make a text or a pair, and how each task is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class GlueTask(NamedTuple):
    """How one task is worded and judged.

    Args:
        first: the first text, with the fields in braces.
        second: the second text, or None.
        measure: `"accuracy"`, `"f1"` (of label 1) or `"mcc"`.
        trained_on: the task whose training file is used.
    """

    first: str
    second: str | None
    measure: str = "accuracy"
    trained_on: str | None = None

    def texts(self, row: Mapping[str, Any]) -> tuple[str, str | None]:
        """The text or pair of a row."""
        return self.first.format_map(row), None if self.second is None else self.second.format_map(row)

    @property
    def fields(self) -> tuple[str, ...]:
        """What a row must have."""
        from string import Formatter

        words = self.first + (self.second or "")
        return (*dict.fromkeys(name for _, name, _, _ in Formatter().parse(words) if name), "label")


GLUE: dict[str, GlueTask] = {
    "boolq": GlueTask("{question}", "{passage}"),
    "cola": GlueTask("{sentence}", None, "mcc"),
    "mnli": GlueTask("{premise}", "{hypothesis}"),
    "mnli-mm": GlueTask("{premise}", "{hypothesis}", trained_on="mnli"),
    "mrpc": GlueTask("{sentence1}", "{sentence2}", "f1"),
    "multirc": GlueTask("Question: {question} Answer: {answer}", "{paragraph}"),
    "qnli": GlueTask("{question}", "{sentence}"),
    "qqp": GlueTask("{question1}", "{question2}", "f1"),
    "rte": GlueTask("{sentence1}", "{sentence2}"),
    "sst2": GlueTask("{sentence}", None),
    "wsc": GlueTask('Does "{span2_text}" refer to "{span1_text}" in this passage?', "{text}"),
}
"""The challenge's eleven tasks, in the order of the paper's Table 9."""


def classification_scores(predicted: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Accuracy, and for two labels F1 of label 1 and Matthews' correlation.

    Both are 0 where a denominator is: a constant answer has no correlation with anything.

    Args:
        predicted: labels from 0.
        labels: the right ones.

    Raises:
        ValueError: not equally many, or none.

    Example:
        >>> classification_scores([1, 1, 0], [1, 0, 0])["mcc"]
        0.5
    """
    guess, truth = np.asarray(predicted), np.asarray(labels)
    if guess.shape != truth.shape or not len(truth):
        raise ValueError(
            f"There are {len(guess)} predictions for {len(truth)} labels. They are compared one by one; give equally "
            "many, at least 1."
        )
    scores = {"accuracy": float((guess == truth).mean())}
    if max(guess.max(), truth.max()) <= 1:
        both, guessed, true, n = float((guess & truth).sum()), float(guess.sum()), float(truth.sum()), len(truth)
        scores["f1"] = 2 * both / (guessed + true) if guessed + true else 0.0
        spread = guessed * (n - guessed) * true * (n - true)
        scores["mcc"] = (n * both - guessed * true) / spread**0.5 if spread else 0.0
    return scores
