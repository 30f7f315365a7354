"""Texts of unequal length side by side in few rows: nothing is computed for padding, nor for what nobody reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from hf_curriculum.models.token_loss import IGNORED

_ROW = 128
"""Tokens of a row, about: shorter ones fit worse, in longer ones attention costs more."""
_WORTH = 0.95


class PackedText(NamedTuple):
    """Where the tokens of a batch stand in rows of several texts each.

    Args:
        source: for each place in the rows the token that stands there, numbered through (texts · text), int64,
            (rows, length); 0 for places that are left over.
        target: for each token its place, numbered through (rows · length), int64, (texts, text); 0 for tokens that are
            left out.
        owner: for each place the text it belongs to, int64, (rows, length); -1 for places that are left over.
    """

    source: torch.Tensor
    target: torch.Tensor
    owner: torch.Tensor

    def together(self, states: torch.Tensor) -> torch.Tensor:
        """(texts, text, ...) as (rows, length, ...)."""
        # Indexing, not `index_select`: its gradient is summed in a fixed order on GPUs too.
        return states.flatten(0, 1)[self.source]

    def apart(self, states: torch.Tensor) -> torch.Tensor:
        """(rows, length, ...) as (texts, text, ...); what stands at tokens that were left out means nothing."""
        return states.flatten(0, 1)[self.target]

    def visible(self) -> torch.Tensor:
        """What a token sees, its own text up to itself: bool, (rows, 1, length, length). No row of it is empty."""
        same = self.owner[:, :, None] == self.owner[:, None, :]
        return same.tril()[:, None]

    def added_mask(self, dtype: torch.dtype) -> torch.Tensor:
        """`visible` as what is added to scores, in `dtype`: made once, where every layer would make it of its own."""
        visible = self.visible()
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)


def needed_tokens(labels: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Which tokens a causal loss depends on: those up to the last one with something to predict, without padding.

    Args:
        labels: int64, (batch, text), -100 where nothing is to be predicted; position i predicts the label of i + 1.
        attention_mask: 0 for padding, (batch, text).

    Returns:
        bool, (batch, text); `None` where padding itself is to predict something, so that all of it counts.
    """
    predicts = nn.functional.pad(labels[:, 1:] != IGNORED, (0, 1))
    needed = predicts.flip(1).cumsum(1).flip(1) > 0
    if attention_mask is None:
        return needed
    real = attention_mask != 0
    return None if (predicts & ~real).any() else needed & real


def pack(needed: torch.Tensor) -> PackedText | None:
    """Puts texts behind each other, the longest first and each into the emptiest row.

    Args:
        needed: bool, (texts, text), False for tokens to leave out.

    Returns:
        The rows; `None` where they would save next to nothing.
    """
    flat = needed.flatten().nonzero()[:, 0].cpu()
    lengths = needed.sum(1).tolist()
    if not len(flat):
        return None
    rows: list[list[int]] = [[] for _ in range(max(1, round(len(flat) / _ROW)))]
    filled = [0] * len(rows)
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        row = filled.index(min(filled))
        rows[row].append(text)
        filled[row] += lengths[text]
    if len(rows) * max(filled) > _WORTH * needed.numel():
        return None
    tokens = flat.split(lengths)
    source = torch.zeros(len(rows), max(filled), dtype=torch.int64)
    owner = torch.full_like(source, -1)
    for row, (texts, end) in enumerate(zip(rows, filled, strict=True)):
        source[row, :end] = torch.cat([tokens[text] for text in texts])
        owner[row, :end] = torch.tensor(texts).repeat_interleave(torch.tensor([lengths[text] for text in texts]))
    target = torch.zeros(needed.numel(), dtype=torch.int64)
    there = (owner >= 0).flatten()
    target[source.flatten()[there]] = there.nonzero()[:, 0]
    places = (source, target.view(needed.shape), owner)
    return PackedText(*(part.to(needed.device) for part in places))
