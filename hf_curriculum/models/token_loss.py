"""The loss of the tokens that have a label: no logits of any other, and never those of all tokens at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FullyShardedDataParallel

IGNORED = -100
"""The label of tokens that are not predicted."""
_TOKENS = 1024
"""Tokens whose logits are there at once: fewer would sum the output layer's gradient more often."""


def needs_no_logits(model: nn.Module, labels: torch.Tensor | None, options: Collection[str]) -> bool:
    """Whether `token_loss` stands for the loss function of `model`: in training, with labels.

    Args:
        model: for its mode.
        labels: of the batch, if it has any.
        options: names of further arguments for the loss function; `token_loss` knows one of them.
    """
    # A compiled step is one graph with fixed shapes, so the number of labels cannot decide on its sizes.
    plain = labels is None or torch.compiler.is_compiling() or not set(options) <= {"num_items_in_batch"}
    return model.training and not plain and not _is_sharded(model.get_output_embeddings())


def _is_sharded(output: nn.Module) -> bool:
    """Whether something around the layer (FSDP, ZeRO-3) fetches its weights as it runs, and takes them away again."""
    return any(layer._forward_pre_hooks or isinstance(layer, FullyShardedDataParallel) for layer in output.modules())


def _weights(output: nn.Module) -> list[torch.Tensor]:
    """What is trained of the layer; FSDP puts plain tensors in place of parameters, or beside them."""
    beside = (value for layer in output.modules() for value in vars(layer).values() if isinstance(value, torch.Tensor))
    found = {id(weight): weight for weight in (*output.parameters(), *beside) if weight.requires_grad}
    return list(found.values())


def token_loss(
    output: nn.Module,
    states: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The cross-entropy of the next token, equal to that of all logits but for rounding, as are its gradients.

    Tokens without a label never reach the output layer. The others pass it 1,024 at a time, and their gradient is
    computed at once, so that their logits can be dropped: nothing is computed twice.

    Args:
        output: the output layer, (tokens, width) to (tokens, vocabulary); any module.
        states: hidden states, (batch, text, width).
        labels: int64, (batch, text), -100 where nothing is to be predicted; position i is scored on the label of
            i + 1.
        num_items_in_batch: what the sum is divided by, instead of the number of labels.

    Returns:
        The loss, float32, a scalar; NaN where there is no label and nothing else to divide by.

    Example:
        >>> token_loss(nn.Linear(4, 9), torch.zeros(1, 3, 4), torch.full((1, 3), -100))
        tensor(nan, grad_fn=<AddBackward0>)
    """
    labels = labels.to(states.device)[:, 1:]
    labelled = labels != IGNORED
    states, labels = states[:, :-1][labelled], labels[labelled]  # (tokens, width) and (tokens,)
    divisor = max(len(labels), 1) if num_items_in_batch is None else num_items_in_batch
    loss = _TokenLoss.apply(states, labels, output, divisor, *_weights(output))
    return loss if len(labels) or num_items_in_batch is not None else loss + torch.nan


class _TokenLoss(torch.autograd.Function):
    """Loss and gradients in one pass over parts of the tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        labels: torch.Tensor,
        output: nn.Module,
        divisor: torch.Tensor | int,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        total = torch.zeros((), device=states.device)
        wanted = [ctx.needs_input_grad[0], *ctx.needs_input_grad[4:]]
        of_states, sums = [], []
        for start in range(0, max(len(states), 1), _TOKENS):  # once without any token: its gradients are 0, not None
            part = states[start : start + _TOKENS].detach().requires_grad_(wanted[0])
            targets = labels[start : start + _TOKENS, None]
            with torch.enable_grad():
                logits = output(part)  # (tokens, vocabulary)
            scores = logits.detach().log_softmax(-1, dtype=torch.float32)
            total -= scores.gather(1, targets).sum()
            asked = [value for value, needed in zip((part, *weights), wanted, strict=True) if needed]
            if not asked:
                continue
            slope = scores.exp_().scatter_add_(1, targets, scores.new_full((), -1).expand_as(targets))
            found = list(torch.autograd.grad(logits, asked, slope.to(logits.dtype)))
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
        is_one = slope.device.type == "cpu" and slope.item() == 1
        values = iter(
            value * (slope / ctx.divisor) if value.dtype != torch.float32 else value if is_one else value * slope
            for value in ctx.saved_tensors
        )
        return tuple(next(values) if needed else None for needed in ctx.needs_input_grad)
