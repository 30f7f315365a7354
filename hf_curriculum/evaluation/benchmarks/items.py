"""One item of a choice benchmark: a context, its possible continuations, perhaps a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Item:
    """A context with choices to continue it, one of which is right.

    Args:
        choices: two or more texts, none blank.
        context: what stands before each choice; may be empty.
        image: the picture, in any form `to_rgb` reads, or a function that returns it; None for text alone.
        answer: index of the right choice.

    Raises:
        ValueError: fewer than two choices, a blank one, an answer that is none of them.

    Example:
        >>> Item(("a red ball", "a red balls")).answer
        0
    """

    choices: tuple[str, ...]
    context: str = ""
    image: Any = None
    answer: int = 0

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(
                f"An item has the choices {list(self.choices)}. A choice benchmark compares at least two. Leave the "
                "item out, or check the file."
            )
        blank = [index for index, choice in enumerate(self.choices) if not choice.strip()]
        if blank:
            raise ValueError(
                f"Choice {blank[0]} of {list(self.choices)} is empty, so it has no probability to compare. Check the "
                "file the item came from."
            )
        if not 0 <= self.answer < len(self.choices):
            raise ValueError(
                f"answer={self.answer} is none of the {len(self.choices)} choices. Give the index of the right one."
            )

    def key(self) -> list[Any]:
        """What tells this item from others: its texts, and the picture's file where it has one."""
        return [self.context, *self.choices, picture_key(self.image)]


def picture_key(image: Any) -> str | None:
    """The last part of a picture's path and the file's size, None where it has no path."""
    if not isinstance(image, (str, PathLike)):
        return None
    name = fspath(image).replace("\\", "/").rpartition("/")[2]
    return f"{name}, {os.stat(image).st_size} bytes"


def chosen(scores: Sequence[float]) -> int:
    """Index of the highest score; of equal ones the first.

    Args:
        scores: of the choices of one item.

    Raises:
        ValueError: a score is NaN, so nothing is highest.

    Example:
        >>> chosen([-3.0, -2.0, -2.0])
        1
    """
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError(
            f"The scores of an item are {list(scores)}: NaN cannot be compared. The model's numbers overflow; load it "
            "in float32, or look for a training run that diverged."
        )
    return int(values.argmax())


def accuracy(scores: Sequence[Sequence[float]], answers: Sequence[int]) -> float:
    """Share of items whose highest-scored choice is the right one.

    Args:
        scores: a list per item.
        answers: index of the right choice per item.

    Raises:
        ValueError: no items, or not one answer per item.

    Example:
        >>> accuracy([[-1.0, -2.0], [-2.0, -1.0]], [0, 0])
        0.5
    """
    if not len(scores) or len(scores) != len(answers):
        raise ValueError(
            f"There are scores of {len(scores)} items and {len(answers)} answers. Accuracy is their share of "
            "agreement, so both need the same number, at least 1."
        )
    return float(np.mean([chosen(row) == answer for row, answer in zip(scores, answers, strict=True)]))
