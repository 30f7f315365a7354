"""Tensors of all processes as one, with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def num_processes() -> int:
    """Processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(values: torch.Tensor) -> torch.Tensor:
    """The rows of all processes, those of the first before those of the second; the values themselves on one process.

    Gradients flow back to the process that a row came from, summed over all processes. Where each computes the same
    loss of what was gathered, `DistributedDataParallel`'s mean of the gradients is then that of the whole batch.
    """
    return values if num_processes() == 1 else _Gather.apply(values)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        counts = [torch.empty(1, dtype=torch.int64, device=values.device) for _ in range(num_processes())]
        dist.all_gather(counts, torch.tensor([len(values)], device=values.device))
        ctx.counts = [int(count) for count in counts]
        padded = values.new_zeros(max(ctx.counts), *values.shape[1:])
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in ctx.counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, ctx.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.split(ctx.counts)[dist.get_rank()]
