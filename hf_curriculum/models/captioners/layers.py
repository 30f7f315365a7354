"""Layers that captioners on regions share."""

from __future__ import annotations

import torch
from torch import nn


class ReferenceLayerNorm(nn.Module):
    """The layer norm of the reference code: by the unbiased standard deviation, epsilon added to it."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.ones(width))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def reset_parameters(self) -> None:
        """One and zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.to(torch.promote_types(states.dtype, torch.float32))
        deviation, mean = torch.std_mean(wide, -1, keepdim=True)
        return ((wide - mean) / (deviation + self.eps)).to(states.dtype) * self.weight + self.bias


def layer_norm(kind: str, width: int, eps: float = 1e-6) -> nn.Module:
    """The layer norm that a configuration's `norm` names, one of `NORMS`."""
    return ReferenceLayerNorm(width, eps) if kind == "reference" else nn.LayerNorm(width, eps)
