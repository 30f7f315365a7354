"""Joint batches of captioned images and of texts."""

from __future__ import annotations

import random
from typing import Any

import torch
from datasets import Dataset

BESIDE = "text_"
"""Prefix of the names of a text batch's inputs."""


class JointText:
    """Joint batches: those of a collator of captioned images, each with a batch of text.

    Every example brings one text along, drawn at random with replacement. `IndexedCollator` seeds each example by its
    draw, so which text comes with it does not depend on workers, processes or resuming.

    Args:
        collator: of captioned images, such as `CaptionCollator`.
        text: rows of text or of blocks.
        text_collator: what makes a batch of them, such as `CaptionCollator(tokenizer, None)` or `BlockCollator()`.

    Shapes: those of both collators; the names of the text's begin with `text_`.

    Raises:
        ValueError: there is no text.

    Source: the BabyLM challenge's baseline, which trains on captions and text in one run.

    Example:
        >>> collator = JointText(CaptionCollator(tokenizer, processor), lines, CaptionCollator(tokenizer, None))
        ... # doctest: +SKIP
    """

    is_random = True

    def __init__(self, collator: Any, text: Dataset, text_collator: Any) -> None:
        if not len(text):
            raise ValueError("There is no text to join to the captions. Leave it out, or give some.")
        self.collator = collator
        self.text = text
        self.text_collator = text_collator

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the captioned images that are read."""
        return self.collator.columns

    def without_augmentation(self) -> Any:
        """The collator for evaluation: captioned images alone."""
        return self.collator.without_augmentation()

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> dict[str, Any]:
        """One example, and the text that comes with it."""
        # Bits as they come from the generator: how `random` makes other numbers of them may change.
        row = random.getrandbits(64) * len(self.text) >> 64
        return {"text": self.text_collator.prepare(self.text[row]), "example": self.collator.prepare(example)}

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of prepared examples."""
        batch = self.collator.collate([item["example"] for item in prepared])
        text = self.text_collator.collate([item["text"] for item in prepared])
        return {**batch, **{BESIDE + name: values for name, values in text.items()}}
