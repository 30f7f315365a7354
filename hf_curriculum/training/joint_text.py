"""Training on captioned pictures and text at once: two losses in every step."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hf_curriculum.data.joint_text import BESIDE
from hf_curriculum.training.trainer import CurriculumTrainer


class JointTextTrainer(CurriculumTrainer):
    """A `CurriculumTrainer` whose loss is the captions' plus a share of that of the text beside them.

    The curriculum decides on the captioned pictures; `JointText` puts a text beside each. Logged as `loss` is the
    sum, and as `text_loss` the mean loss of the text alone. `evaluate()` looks at captioned pictures alone.

    Args:
        *args: of `CurriculumTrainer`.
        text_weight: what the text's loss counts, beside 1 for the captions'.
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
                f"text_weight={text_weight} was given: the text would be read and count nothing. Give a number above "
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
        """The loss of the captions, and in training that of the text beside them."""
        text = {name.removeprefix(BESIDE): inputs[name] for name in inputs if name.startswith(BESIDE)}
        own = {name: value for name, value in inputs.items() if not name.startswith(BESIDE)}
        if not model.training:
            return super().compute_loss(model, own, return_outputs, num_items_in_batch)
        if not text:
            raise ValueError(
                f"The batch has {sorted(inputs)} and no text beside the captions. Use a `JointText` as the "
                "`data_collator`, or CurriculumTrainer."
            )
        loss = super().compute_loss(model, own, num_items_in_batch=num_items_in_batch)
        # DDP looks for weights without a gradient in each of its passes, and counts those of two passes twice. Within
        # one pass and the model itself, each weight's gradients are added up before DDP sees them.
        itself = model.module if isinstance(model, DistributedDataParallel) else model
        text_loss = super().compute_loss(itself, text)
        self._text_losses.append(text_loss.detach())
        if self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and num_items_in_batch is not None):
            # `Trainer` takes the captions' loss for that of all accumulated batches, so it does not divide.
            text_loss = text_loss / self.current_gradient_accumulation_steps
        return loss + self.text_weight * text_loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As `CurriculumTrainer.log`, with the text's own mean loss since the last time."""
        if "loss" in logs and self._text_losses:
            own = torch.stack(self._text_losses).mean()
            logs = {**logs, "text_loss": self.accelerator.reduce(own, reduction="mean").item()}
            self._text_losses = []
        super().log(logs, *args, **kwargs)
