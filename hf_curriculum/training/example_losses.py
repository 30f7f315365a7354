"""One loss per example of a batch, from what a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_IGNORED = -100


def example_losses(model: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The cross-entropy of each example: of its class, or the mean over its tokens.

    Args:
        model: takes `inputs` and returns `logits`: (B, C) with `labels` (B,), or (B, T, V) with `labels` (B, S), where
            the last S of T positions are the text's and position t predicts token t + 1. T may be S − 1, where the
            model leaves out the last position.
        inputs: one batch, with `labels`; −100 marks tokens that do not count.

    Returns:
        float32, shape (B,); NaN where no token counts.

    Raises:
        ValueError: there are no labels, or the logits have another shape.
    """
    labels = inputs.get("labels")
    if labels is None:
        raise ValueError(
            f"The batch has {sorted(inputs)} and no `labels`, so no loss of one example can be computed. Have the "
            "collator return labels, or override `CurriculumTrainer.example_losses`."
        )
    outputs = model(**inputs)
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    if logits.ndim == 2 and labels.ndim == 1:
        return functional.cross_entropy(logits.float(), labels, reduction="none")
    if logits.ndim == 3 and labels.ndim == 2 and logits.shape[1] >= labels.shape[1] - 1:
        targets = labels[:, 1:]
        kept = logits[:, -labels.shape[1] :] if logits.shape[1] >= labels.shape[1] else logits
        kept = kept[:, : targets.shape[1]].float()
        each = functional.cross_entropy(kept.transpose(1, 2), targets, ignore_index=_IGNORED, reduction="none")
        # Zero tokens give 0/0: an example that no token of counts has no loss.
        return each.sum(1) / (targets != _IGNORED).sum(1)
    raise ValueError(
        f"The model returned logits of shape {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}; losses "
        "per example are known for (B, C) with (B,), and for (B, T, V) with (B, S), S ≤ T + 1. Override "
        "`CurriculumTrainer.example_losses`."
    )
