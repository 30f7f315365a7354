"""A text tower that learns to meet frozen vectors of images."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling


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
