"""Joint training on captioned images and text: two losses in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hf_curriculum.data.text_blocks import BESIDE
from hf_curriculum.training.trainer import CurriculumTrainer


class JointTextTrainer(CurriculumTrainer):
    """A `CurriculumTrainer` with an auxiliary text loss: the captions' loss plus `text_weight` times the text's.

    The curriculum draws captioned images, and `JointText` adds a text to each. Logged are the sum as `loss` and the
    mean text loss as `text_loss`. `evaluate()` computes the loss of captioned images only.

    Args:
        *args: of `CurriculumTrainer`.
        text_weight: weight of the text loss; the captions' is 1.
        **kwargs: of `CurriculumTrainer`; `data_collator` is a `JointText`.

    Raises:
        ValueError: the weight is not positive, or a batch comes without text.

    Source: the BabyLM challenge's baselines, 1 and 0.25.

    Example:
        >>> trainer = JointTextTrainer(model, args, text_weight=0.25, data_collator=JointText(...), ...)
        ... # doctest: +SKIP
    """

    def __init__(self, *args: Any, text_weight: float, **kwargs: Any) -> None:
        if not text_weight > 0:
            raise ValueError(
                f"text_weight={text_weight} was given: the text would be read and not trained on. Give a number above "
                "0, or train on captions with CurriculumTrainer."
            )
        self.text_weight = text_weight
        self._text_losses: list[torch.Tensor] = []
        super().__init__(*args, **kwargs)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The loss of the captions, in training with the auxiliary text loss."""
        text = {name.removeprefix(BESIDE): inputs[name] for name in inputs if name.startswith(BESIDE)}
        own = {name: value for name, value in inputs.items() if not name.startswith(BESIDE)}
        if not model.training:
            return super().compute_loss(model, own, return_outputs, num_items_in_batch)
        if not text:
            raise ValueError(
                f"The batch has {sorted(inputs)} and no auxiliary text. Use a `JointText` as the "
                "`data_collator`, or CurriculumTrainer."
            )
        loss = super().compute_loss(model, own, num_items_in_batch=num_items_in_batch)
        # DDP would reduce the gradients of two passes twice: the second pass goes through the module it wraps.
        itself = model.module if isinstance(model, DistributedDataParallel) else model
        text_loss = super().compute_loss(itself, text)
        self._text_losses.append(text_loss.detach())
        if self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and num_items_in_batch is not None):
            # `Trainer` does not divide the loss by the accumulated batches then.
            text_loss = text_loss / self.current_gradient_accumulation_steps
        return loss + self.text_weight * text_loss

    def example_losses(self, model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        """One loss per example of the captions, shape (B,), whatever text stands beside them."""
        own = {name: value for name, value in inputs.items() if not name.startswith(BESIDE)}
        return super().example_losses(model, own)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """`CurriculumTrainer.log`, with the mean text loss since the last time."""
        if "loss" in logs and self._text_losses:
            own = torch.stack(self._text_losses).mean()
            logs = {**logs, "text_loss": self.accelerator.reduce(own, reduction="mean").item()}
            self._text_losses = []
        super().log(logs, *args, **kwargs)
