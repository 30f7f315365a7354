"""Losses of classifiers on long tails, as `Trainer(compute_loss_func=)` takes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger: logging.Logger = logging.getLogger(__name__)

Counts = Sequence[int] | np.ndarray


class ClassificationLoss:
    """The mean of a loss over the images of a step: the base of those below, and called as `Trainer` calls one.

    A subclass defines `each(logits, labels)`.

    Args:
        counts: real images of each class (`class_counts(train)`); None for a loss that does not know them.

    Shapes: logits (B, C), labels (B,) int64 → a scalar.
    """

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts: torch.Tensor | None = None if counts is None else _counts(type(self).__name__, counts)

    def each(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each image: float32 logits (B, C) and labels (B,) → (B,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `each`.")

    def __call__(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: int | torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = outputs["logits"] if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs[0])
        self._validate(logits, labels)
        losses = self.each(logits.float(), labels)
        # Of a step of several batches `Trainer` says how many images it has.
        return losses.mean() if num_items_in_batch is None else losses.sum() / num_items_in_batch

    def _validate(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        name, classes = type(self).__name__, logits.shape[-1]
        if self.counts is not None and classes != len(self.counts):
            raise ValueError(
                f"{name} was given the counts of {len(self.counts):,} classes, and the model has {classes:,} outputs: "
                "priors would belong to other classes. Build the model with `num_labels=len(class_names(train))`."
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"{name} was given labels from {low} to {high}, and the model has {classes:,} classes: they could not "
                f"be learnt. Build the model with `num_labels={high + 1}` or more, or correct the labels."
            )

    def _own(self, values: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return values.to(device=logits.device, dtype=logits.dtype)

    def __repr__(self) -> str:
        options = [f"{key}={value!r}" for key, value in vars(self).items() if isinstance(value, (int, float, str))]
        return f"{type(self).__name__}({', '.join(options)})"


class CrossEntropy(ClassificationLoss):
    """Plain cross-entropy, with optional label smoothing.

    Args:
        label_smoothing: the share of the target spread evenly over all classes, in [0, 1).

    Raises:
        ValueError: `label_smoothing` is out of range.

    Example:
        >>> round(CrossEntropy()((torch.tensor([[2.0, 1.0, 0.0]]),), torch.tensor([0])).item(), 6)
        0.407606
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"CrossEntropy(label_smoothing={label_smoothing}) is not possible; it is in [0, 1).")
        self.label_smoothing = label_smoothing

    def each(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)


class LogitAdjustment(ClassificationLoss):
    """Cross-entropy of adjusted logits z + τ log π, with π the class's share of the images.

    The model then learns logits free of the classes' sizes, and is used as it is. To adjust a model trained by plain
    cross-entropy instead, pass `adjust` as `Trainer(preprocess_logits_for_metrics=)`, or give `long_tail_metrics` the
    same: z − τ log π.

    Args:
        counts: real images of each class.
        tau: τ; 1 is consistent for the balanced error.

    Raises:
        ValueError: a class has no image (log 0), or τ is not positive.

    Source: Menon et al. 2021, *Long-tail learning via logit adjustment*, equations 9 (after) and 10 (in training).

    Example:
        >>> loss = LogitAdjustment([100, 10, 1])
        >>> round(loss((torch.tensor([[2.0, 1.0, 0.0]]),), torch.tensor([2])).item(), 6)
        6.642602
        >>> loss.adjust(torch.tensor([[2.0, 1.0, 0.0]]), None).argmax().item()
        2
    """

    def __init__(self, counts: Counts, tau: float = 1.0) -> None:
        super().__init__(counts)
        if not tau > 0:
            raise ValueError(f"{type(self).__name__}(tau={tau}) is not possible; tau is a number more than 0.")
        self.tau = tau

    @property
    def log_prior(self) -> torch.Tensor:
        """τ · log of each class's share, float64 (C,)."""
        return self.tau * (self.counts / self.counts.sum()).log()

    def each(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits + self._own(self.log_prior, logits), labels, reduction="none")

    def adjust(self, logits: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (B, C) of a model trained without adjustment → z − τ log π."""
        logits = logits[0] if isinstance(logits, tuple) else logits
        return logits - self._own(self.log_prior, logits)


class BalancedSoftmax(LogitAdjustment):
    """Cross-entropy of logits plus log n, n the class's number of images: `LogitAdjustment` with τ = 1.

    Args:
        counts: real images of each class.

    Raises:
        ValueError: a class has no image (log 0).

    Source: Ren et al. 2020, *Balanced Meta-Softmax for Long-Tailed Visual Recognition*, equation 3; DisCL's "BS".

    Example:
        >>> round(BalancedSoftmax([100, 10, 1])((torch.tensor([[2.0, 1.0, 0.0]]),), torch.tensor([0])).item(), 6)
        0.037432
    """

    def __init__(self, counts: Counts) -> None:
        super().__init__(counts, tau=1.0)


class ClassBalanced(ClassificationLoss):
    """Cross-entropy weighted by the inverse effective number of images of a class; the C weights sum to C.

    Args:
        counts: real images of each class.
        beta: β; the effective number of n images is (1 − β^n) / (1 − β).

    Raises:
        ValueError: a class has no image, or β is not in [0, 1).

    Source: Cui et al. 2019, *Class-Balanced Loss Based on Effective Number of Samples*, equation 11.

    Example:
        >>> ClassBalanced([100, 10, 1]).weights
        tensor([0.0272, 0.2704, 2.7025], dtype=torch.float64)
    """

    def __init__(self, counts: Counts, beta: float = 0.9999) -> None:
        super().__init__(counts)
        self.beta = _beta(type(self).__name__, beta)

    @property
    def weights(self) -> torch.Tensor:
        """Of each class, float64 (C,)."""
        return effective_weights(self.counts, self.beta)

    def each(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, weight=self._own(self.weights, logits), reduction="none")


class Focal(ClassificationLoss):
    """Cross-entropy times (1 − p)^γ, p the probability of the true class, so that easy images count less.

    Args:
        gamma: γ; 0 is plain cross-entropy.

    Raises:
        ValueError: γ is negative.

    Source: Lin et al. 2017, *Focal Loss for Dense Object Detection*, equation 4.

    Example:
        >>> round(Focal()((torch.tensor([[2.0, 1.0, 0.0]]),), torch.tensor([2])).item(), 4)
        1.9936
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        if not gamma >= 0:
            raise ValueError(f"Focal(gamma={gamma}) is not possible; gamma is a number from 0.")
        self.gamma = gamma

    def each(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none")
        # With γ below 1 the slope of 0^γ is infinite: an image that is surely right would make all weights NaN.
        missing = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)  # 1 − p, (B,)
        return missing**self.gamma * losses


class LDAM(ClassificationLoss, TrainerCallback):
    """Cross-entropy with a margin that is larger for smaller classes, and deferred re-weighting.

    The true class's logit is lowered by a margin in proportion to n^(−1/4), then all are multiplied by `scale`. From
    `reweight_from` on the classes have the weights of `ClassBalanced`, and the loss is the weighted mean Σwl / Σw of a
    batch. The weights are a function of the optimizer step alone, so a resumed run has the same as an uninterrupted
    one.

    With `reweight_from` it must also be a callback: `Trainer(compute_loss_func=loss, callbacks=[loss])`.

    Args:
        counts: real images of each class.
        margin: the largest margin, of the smallest class.
        scale: the factor of the logits.
        reweight_from: below 1 a fraction of the run's steps (0.8: the last fifth), from 1 on an optimizer step; None:
            never.
        beta: β of the weights.

    Raises:
        ValueError: a class has no image, or an argument is out of range.
        RuntimeError: `reweight_from` was given, and the loss is no callback of the trainer.

    Source: Cao et al. 2019, *Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss*, equation 13 and
        algorithm 1 (re-weighted from epoch 160 of 200). Their last layer has unit weights and features; here this is
        up to the model.

    Example:
        >>> loss = LDAM([100, 10, 1], reweight_from=0.8)
        >>> loss.margins
        tensor([0.1581, 0.2812, 0.5000], dtype=torch.float64)
        >>> loss.weights_at(79, 100), loss.weights_at(80, 100) is None
        (None, False)
    """

    def __init__(
        self,
        counts: Counts,
        margin: float = 0.5,
        scale: float = 30.0,
        reweight_from: float | None = None,
        beta: float = 0.9999,
    ) -> None:
        super().__init__(counts)
        if not (margin >= 0 and scale > 0):
            raise ValueError(f"LDAM(margin={margin}, scale={scale}) is not possible; neither is negative, or scale 0.")
        if reweight_from is not None and not reweight_from >= 0:
            raise ValueError(
                f"LDAM(reweight_from={reweight_from}) is not possible; it is a share of the run below 1, or a step."
            )
        self.margin = margin
        self.scale = scale
        self.reweight_from = reweight_from
        self.beta = _beta("LDAM", beta)
        self._at: tuple[int, int] | None = None

    @property
    def margins(self) -> torch.Tensor:
        """Of each class, float64 (C,)."""
        margins = self.counts**-0.25
        return margins * (self.margin / margins.max())

    def weights_at(self, step: int, max_steps: int) -> torch.Tensor | None:
        """The classes' weights in optimizer step `step` (from 0) of so many, float64 (C,); None: all 1."""
        if self.reweight_from is None:
            return None
        first = self.reweight_from * max_steps if self.reweight_from < 1 else self.reweight_from
        return effective_weights(self.counts, self.beta) if step >= first - 1e-9 else None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notes the step."""
        self._at = state.global_step, state.max_steps

    def each(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.reweight_from is not None and self._at is None and torch.is_grad_enabled():
            raise RuntimeError(
                f"LDAM(reweight_from={self.reweight_from}) does not know at which step the run is, so its classes "
                "would never be re-weighted. Pass it as a callback too: Trainer(compute_loss_func=loss, "
                "callbacks=[loss])."
            )
        weights = None if self._at is None else self.weights_at(*self._at)
        own = self._own(self.margins, logits)[labels][:, None]
        lowered = logits.scatter_add(1, labels[:, None], -own)
        losses = F.cross_entropy(self.scale * lowered, labels, reduction="none")
        if weights is None:
            return losses
        of_images = self._own(weights, logits)[labels]
        return losses * of_images / of_images.mean()


LOSSES: dict[str, type[ClassificationLoss]] = {
    "cross_entropy": CrossEntropy,
    "balanced_softmax": BalancedSoftmax,
    "class_balanced": ClassBalanced,
    "focal": Focal,
    "ldam": LDAM,
    "logit_adjustment": LogitAdjustment,
}
"""Every loss by its name in a preset."""


def effective_weights(counts: torch.Tensor, beta: float) -> torch.Tensor:
    """(1 − β) / (1 − β^n) of each class, scaled to sum to the number of classes; float64 (C,)."""
    weights = (1 - beta) / (1 - beta**counts)
    return weights * (len(counts) / weights.sum())


def _counts(owner: str, counts: Counts) -> torch.Tensor:
    """The counts, float64 (C,), all of them positive."""
    values = np.asarray(counts)
    if values.ndim != 1 or len(values) < 2 or values.dtype.kind not in "iu":
        raise ValueError(
            f"{owner} was given {str(counts)[:80]}; counts are whole numbers, one for each of at least two classes: "
            "class_counts(train)."
        )
    empty = np.flatnonzero(values < 1)
    if len(empty):
        raise ValueError(
            f"{owner} was given {len(empty):,} of {len(values):,} classes without a real image (the first is number "
            f"{empty[0]}): the log of their prior is not a number, and so would be the loss. Add images, or leave the "
            "classes out."
        )
    return torch.from_numpy(values.astype(np.float64))


def _beta(owner: str, beta: float) -> float:
    if not 0 <= beta < 1:
        raise ValueError(f"{owner}(beta={beta}) is not possible; beta is in [0, 1), such as 0.9999.")
    return beta
