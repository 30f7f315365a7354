"""AdamW for weights in half precision, which it keeps in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MasterAdamW(torch.optim.AdamW):
    """AdamW of float32 copies of a model's weights in bfloat16 or float16: after each step the weights are the copies.

    In bfloat16 a weight of 0.02 cannot change by less than 0.0001, so `torch.optim.AdamW` at a learning rate of 1e-5
    trains almost nothing; with copies it trains as in float32. A forward and backward pass in bfloat16 has no casts,
    which under `bf16=True` are a third of all operations. It costs 2 + 2 bytes per weight for weight and gradient and
    12 here, as many as under `bf16=True`, and norms and residual sums are rounded to bfloat16.

    Args:
        params: weights, or groups of them, as of `torch.optim.AdamW`.
        *args, **kwargs: of `torch.optim.AdamW`.

    Raises:
        ValueError: a saved state is of other weights, or without copies.

    Example:
        >>> model = model.to(torch.bfloat16)                                               # doctest: +SKIP
        >>> made = MasterAdamW, {"lr": 1e-5, "fused": True}                                # doctest: +SKIP
        >>> CurriculumTrainer(model, args, optimizer_cls_and_kwargs=made, ...)             # doctest: +SKIP
    """

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **kwargs)
        self._weights: list[torch.Tensor] = [weight for group in self.param_groups for weight in group["params"]]
        for group in self.param_groups:
            group["params"] = [nn.Parameter(weight.detach().float().clone()) for weight in group["params"]]
        self._masters: list[torch.Tensor] = [master for group in self.param_groups for master in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the copies by the weights' gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [pair for pair in zip(self._weights, self._masters, strict=True) if pair[0].grad is not None]
        weights, masters = [weight for weight, _ in moved], [master for _, master in moved]
        for master in masters:
            master.grad = torch.empty_like(master)
        if moved:  # a few kernels for all weights, where a copy of each is a kernel
            torch._foreach_copy_([master.grad for master in masters], [weight.grad for weight in weights])
        super().step()
        if moved:
            torch._foreach_copy_(weights, masters)
        for master in masters:
            master.grad = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the weights, as of any optimizer."""
        for weight in self._weights:
            if weight.grad is not None and not set_to_none:
                weight.grad.zero_()
            else:
                weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """As of `torch.optim.AdamW`, and the copies, without which a resumed run would go on from rounded weights."""
        return {**super().state_dict(), "master_weights": [master.detach() for master in self._masters]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict` was asked for."""
        saved = state_dict.get("master_weights")
        if saved is None or [part.shape for part in saved] != [master.shape for master in self._masters]:
            found = "no copies" if saved is None else f"copies of {len(saved)} weights of other shapes"
            raise ValueError(
                f"The saved state has {found} for {len(self._masters)} weights: it was written by another optimizer, "
                "or for another model. Resume with the optimizer and the model that the run began with."
            )
        super().load_state_dict({name: part for name, part in state_dict.items() if name != "master_weights"})
        for master, part in zip(self._masters, saved, strict=True):
            master.copy_(part)
