"""A text tower that learns to meet frozen vectors of images: small, and quick to train many times."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutputWithPooling

from hf_curriculum.tasks.alignment.collator import ContrastiveCollator
from hf_curriculum.tasks.alignment.trainer import ContrastiveTrainer
from hf_curriculum.training.prediction import evaluation_model

AT_ONCE = 250
"""Captions that are encoded together."""


class TextTower(nn.Module):
    """The mean of a caption's word vectors, projected, against images whose vectors are given and stay as they are.

    `ContrastiveTrainer` trains any model with these three: `get_text_features`, `get_image_features`, `logit_scale`.

    Args:
        vocab_size: of the tokenizer.
        width: of the images' vectors.
        hidden_size: of a word's.
        dropout: of words' vectors.
    """

    def __init__(self, vocab_size: int, width: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(hidden_size, width)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def get_text_features(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> BaseModelOutputWithPooling:
        """Texts' vectors, (texts, width)."""
        words, mask = self.words(input_ids), attention_mask[..., None].to(self.projection.weight.dtype)
        mean = (words * mask).sum(1) / mask.sum(1)
        return BaseModelOutputWithPooling(pooler_output=self.projection(self.dropout(self.norm(mean))))

    def get_image_features(self, image_features: torch.Tensor) -> BaseModelOutputWithPooling:
        """The images' vectors, (images, width)."""
        return BaseModelOutputWithPooling(pooler_output=image_features[:, 0])

    def forward(self, **inputs: torch.Tensor) -> None:
        """Never called: the trainer calls the two encoders."""
        raise NotImplementedError("TextTower is trained by ContrastiveTrainer, which calls its encoders.")


class RememberedTokens(ContrastiveCollator):
    """Encodes each caption once: thousands of runs read the same few thousand captions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known: dict[str, torch.Tensor] = {}

    def _tokens(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        captions = [item["caption"] for item in prepared]
        for caption, item in zip(captions, prepared, strict=True):
            if caption not in self._known:
                self._known[caption] = super()._tokens([item])["input_ids"][0]
        padding = self.tokenizer.pad_token_id
        ids = pad_sequence([self._known[caption] for caption in captions], batch_first=True, padding_value=padding)
        return {"input_ids": ids, "attention_mask": (ids != padding).long()}


@torch.no_grad()
def encoded(trainer: ContrastiveTrainer, rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The unit vectors of each row's caption and image, float32 (rows, width) each."""
    texts, images, collator = [], [], trainer.data_collator
    with evaluation_model(trainer):
        for start in range(0, len(rows), AT_ONCE):
            batch = collator([rows[row] for row in range(start, min(start + AT_ONCE, len(rows)))])
            texts.append(trainer.encoders.encode_text(batch))
            images.append(trainer.encoders.encode_images(batch))
    return torch.cat(texts).numpy(), torch.cat(images).numpy()


def cosines(trainer: ContrastiveTrainer, rows: Dataset) -> np.ndarray:
    """The cosine of each row's caption with its image, (rows,)."""
    texts, images = encoded(trainer, rows)
    return (texts * images).sum(1).astype(np.float64)
