"""The loss of the tokens that have a label: no logits of any other, and never those of all tokens at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FullyShardedDataParallel

from hf_curriculum.models.on_host import known, to_device

IGNORED = -100
"""The label of tokens that are not predicted."""
_TOKENS = 1024
"""Tokens whose logits are computed at once: fewer would sum the output layer's gradient more often."""


def needs_no_logits(model: nn.Module, labels: torch.Tensor | None, options: Collection[str]) -> bool:
    """Whether `token_loss` computes what the loss function of `model` would, given the names of its `options`."""
    # A compiled step is one graph with fixed shapes, so the number of labels cannot decide on its sizes.
    plain = labels is None or torch.compiler.is_compiling() or not set(options) <= {"num_items_in_batch"}
    plain = plain or getattr(model, "keeps_logits", False)
    return model.training and not plain and not _is_sharded(model.get_output_embeddings())


def _is_sharded(output: nn.Module) -> bool:
    """Whether FSDP or ZeRO-3 gathers the layer's weights for its forward pass alone."""
    return any(layer._forward_pre_hooks or isinstance(layer, FullyShardedDataParallel) for layer in output.modules())


def _weights(output: nn.Module) -> list[torch.Tensor]:
    """The layer's trainable tensors; FSDP puts plain tensors in place of parameters, or adds them."""
    others = (value for layer in output.modules() for value in vars(layer).values() if isinstance(value, torch.Tensor))
    found = {id(weight): weight for weight in (*output.parameters(), *others) if weight.requires_grad}
    return list(found.values())


class ExampleTerms:
    """The terms of a batch's loss, example by example: `token_loss` weighs and notes them.

    Args:
        weights: of each example, float32, shape (batch,); None: all are 1.

    Attributes:
        sums: of each example's tokens, without its weight, float32, shape (batch,); None until they are computed.
        counts: labelled tokens of each example, int64, shape (batch,); likewise.
    """

    def __init__(self, weights: torch.Tensor | None) -> None:
        self.weights = weights
        self.sums: torch.Tensor | None = None
        self.counts: torch.Tensor | None = None


def token_loss(
    output: nn.Module,
    states: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    examples: ExampleTerms | None = None,
) -> torch.Tensor:
    """The cross-entropy of the next token, equal to that of all logits but for rounding, as are its gradients."""
    texts, length = labels.shape
    targets = nn.functional.pad(labels.to(states.device)[:, 1:], (0, 1), value=IGNORED).flatten()
    labelled = targets != IGNORED
    states = states.flatten(0, 1)  # (texts · text, width)
    weights = None if examples is None or examples.weights is None else examples.weights.to(states.device)
    if weights is not None:
        weights = weights[:, None].expand(-1, length).reshape(-1)
    read = known(labels)
    if read is None:
        # The device alone knows which tokens have a label: all are computed, which takes less time than to wait.
        places, count = None, labelled.sum()
        weights = labelled.float() if weights is None else weights * labelled
        targets, divisor = targets.clamp(min=0), count.clamp(min=1)
    else:
        found = np.flatnonzero(np.pad(read[:, 1:] != IGNORED, ((0, 0), (0, 1))))
        places, count, divisor = to_device(found, states.device), len(found), max(len(found), 1)
        states, targets = states[places], targets[places]  # (tokens, width) and (tokens,)
        weights = None if weights is None else weights[places]
    divisor = divisor if num_items_in_batch is None else num_items_in_batch
    noted: list[torch.Tensor] = []
    loss = _TokenLoss.apply(states, targets, output, divisor, weights, noted, *_weights(output))
    if examples is not None:
        each = torch.cat(noted)
        each = each * labelled if places is None else each.new_zeros(len(labelled)).index_put((places,), each)
        examples.sums, examples.counts = each.view(texts, -1).sum(1), labelled.view(texts, -1).sum(1)
    if num_items_in_batch is not None or (read is not None and count):
        return loss
    return loss + torch.nan if read is not None else torch.where(count > 0, loss, torch.nan)


class _TokenLoss(torch.autograd.Function):
    """Loss and gradients in one pass over parts of the tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        labels: torch.Tensor,
        output: nn.Module,
        divisor: torch.Tensor | int,
        of_tokens: torch.Tensor | None,
        noted: list[torch.Tensor],
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        total = torch.zeros((), device=states.device)
        wanted = [ctx.needs_input_grad[0], *ctx.needs_input_grad[6:]]
        of_states, sums = [], []
        for start in range(0, max(len(states), 1), _TOKENS):  # once without any token: its gradients are 0, not None
            part = states[start : start + _TOKENS].detach().requires_grad_(wanted[0])
            targets = labels[start : start + _TOKENS, None]
            with torch.enable_grad():
                logits = output(part)  # (tokens, vocabulary)
            scores = logits.detach().log_softmax(-1, dtype=torch.float32)
            terms = scores.gather(1, targets)
            noted.append(-terms[:, 0])
            share = None if of_tokens is None else of_tokens[start : start + _TOKENS, None]
            total -= (terms if share is None else terms * share).sum()
            inputs = [value for value, needed in zip((part, *weights), wanted, strict=True) if needed]
            if not inputs:
                continue
            slope = scores.exp_().scatter_add_(1, targets, scores.new_full((), -1).expand_as(targets))
            slope = slope if share is None else slope.mul_(share)
            found = list(torch.autograd.grad(logits, inputs, slope.to(logits.dtype)))
            if wanted[0]:
                of_states.append(found.pop(0))
            sums = [one.add_(more) for one, more in zip(sums, found, strict=True)] if sums else found
        slopes = [torch.cat(of_states), *sums] if of_states else sums
        # In half precision a loss scaler's factor comes first: divided before it, small numbers would be lost.
        ctx.divisor = divisor
        ctx.save_for_backward(*(one.div_(divisor) if one.dtype == torch.float32 else one for one in slopes))
        return total / divisor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Most often it is 1, but looking at it would wait for a device.
        is_one = slope.device.type == "cpu" and slope.numpy() == 1
        values = iter(
            value * (slope / ctx.divisor) if value.dtype != torch.float32 else value if is_one else value * slope
            for value in ctx.saved_tensors
        )
        return tuple(next(values) if needed else None for needed in ctx.needs_input_grad)


_ROW = 128
"""Tokens of a row, about: shorter rows fit worse, in longer ones attention costs more."""
_WORTHWHILE = 0.95


class PackedText(NamedTuple):
    """Positions of a batch's tokens in rows of several texts each.

    Args:
        source: for each position in the rows the index of its token in (texts · text), int64, (rows, length); 0 where
            the row is padded.
        target: for each token the index of its position in (rows · length), int64, (texts, text); 0 for tokens that
            are left out.
        owner: for each position the text it belongs to, int64, (rows, length); -1 where the row is padded.
    """

    source: torch.Tensor
    target: torch.Tensor
    owner: torch.Tensor

    def to(self, device: torch.device) -> PackedText:
        """The same on a device."""
        return PackedText(*(to_device(part.numpy(), device) for part in self))

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """(texts, text, ...) as (rows, length, ...)."""
        # Indexing, not `index_select`: its gradient is summed in a fixed order on GPUs too.
        return states.flatten(0, 1)[self.source]

    def unpack(self, states: torch.Tensor) -> torch.Tensor:
        """(rows, length, ...) as (texts, text, ...); undefined at tokens that were left out."""
        return states.flatten(0, 1)[self.target]

    def visible(self) -> torch.Tensor:
        """The attention mask, causal within each text: bool, (rows, 1, length, length). No row of it is empty."""
        same = self.owner[:, :, None] == self.owner[:, None, :]
        return same.tril()[:, None]

    def added_mask(self, dtype: torch.dtype) -> torch.Tensor:
        """`visible` as a mask added to attention scores, in `dtype`: made once for all layers."""
        return added_mask(self.visible(), dtype)


def added_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A bool mask as one that is added to scores; a GPU's kernels would copy it where rows are not a multiple of 8."""
    *rows, keys = visible.shape
    mask = torch.zeros(*rows, -(-keys // 8) * 8, dtype=dtype, device=visible.device)[..., :keys]
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


def compute_dtype(states: torch.Tensor) -> torch.dtype:
    """The type that attention runs in: autocast's, where it is on."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def relevant_tokens(labels: np.ndarray, attention_mask: np.ndarray | None) -> np.ndarray | None:
    """Which tokens a causal loss depends on, bool (batch, text); `None` where a label follows padding (then all)."""
    predicts = np.pad(labels[:, 1:] != IGNORED, ((0, 0), (0, 1)))
    relevant = predicts[:, ::-1].cumsum(1)[:, ::-1] > 0
    if attention_mask is None:
        return relevant
    real = attention_mask != 0
    return None if (predicts & ~real).any() else relevant & real


def pack(relevant: np.ndarray) -> PackedText | None:
    """Packs tokens, bool (texts, text), the longest text first into the emptiest row; `None` if that saves little."""
    relevant = np.asarray(relevant)
    flat, lengths = np.flatnonzero(relevant), relevant.sum(1).tolist()
    if not len(flat):
        return None
    rows: list[list[int]] = [[] for _ in range(max(1, round(len(flat) / _ROW)))]
    filled = [0] * len(rows)
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        row = filled.index(min(filled))
        rows[row].append(text)
        filled[row] += lengths[text]
    if len(rows) * max(filled) > _WORTHWHILE * relevant.size:
        return None
    tokens = np.split(flat, np.cumsum(lengths)[:-1])
    source = np.zeros((len(rows), max(filled)), np.int64)
    owner = np.full_like(source, -1)
    for row, (texts, end) in enumerate(zip(rows, filled, strict=True)):
        source[row, :end] = np.concatenate([tokens[text] for text in texts])
        owner[row, :end] = np.repeat(texts, [lengths[text] for text in texts])
    target = np.zeros(relevant.size, np.int64)
    is_used = (owner >= 0).ravel()
    target[source.ravel()[is_used]] = np.flatnonzero(is_used)
    return PackedText(*(torch.from_numpy(part) for part in (source, target.reshape(relevant.shape), owner)))
