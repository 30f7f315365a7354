"""How (Super)GLUE is fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GlueSettings:
    """The defaults of the BabyLM 2024 evaluation pipeline.

    Args:
        learning_rate: at the start; it falls to 0 on a line, without warm-up.
        batch_size: texts per step.
        num_epochs: at most.
        patience: epochs without an improvement of more than `threshold` after which training stops.
        threshold: the improvement that counts.
        seed: of the head's weights, the order and dropout.
        max_length: tokens of a text or pair, special ones included.
        pooling: what the head of a model of this library reads: the hidden state of the "last" token, as the heads of
            `transformers` on causal models do, or the "mean" of all.

    Raises:
        ValueError: `pooling` is neither; a count below 1.

    Source: BabyLM 2024 evaluation pipeline; Saha et al. 2024 (BabyLM), section 4.2, has batch 128 and 50 tokens.

    Example:
        >>> GlueSettings(batch_size=128, max_length=50).learning_rate
        5e-05
    """

    learning_rate: float = 5e-5
    batch_size: int = 64
    num_epochs: int = 10
    patience: int = 3
    threshold: float = 0.001
    seed: int = 12
    max_length: int = 128
    pooling: Literal["last", "mean"] = "last"

    def __post_init__(self) -> None:
        if self.pooling not in ("last", "mean"):
            raise ValueError(f"pooling={self.pooling!r} is not known. The head reads the 'last' token, or the 'mean'.")
        for name in ("batch_size", "num_epochs", "patience", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} was given. Fine-tuning needs 1 or more.")
