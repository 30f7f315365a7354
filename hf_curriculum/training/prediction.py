"""Text generated during evaluation, so that caption metrics can be computed while training."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from transformers.integrations import is_deepspeed_zero3_enabled

if TYPE_CHECKING:
    from transformers import Trainer


_ANSWER = ("labels", "input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds")
"""Inputs that hold the text to be predicted: a captioner that is given them would copy its answer."""


def generate_predictions(trainer: Trainer, inputs: Mapping[str, Any], prompt: Mapping[str, Any]) -> torch.Tensor:
    """Token ids generated for one evaluation batch.

    The model sees the batch without its captions: pixel values and whatever else is not text. A collator for a task
    with prompts adds `prompt_input_ids` and `prompt_attention_mask`, which are handed over without their prefix.

    Args:
        trainer: whose model and arguments are used.
        inputs: one batch, on the model's device.
        prompt: its entries that begin with `prompt_`.

    Returns:
        int64, shape (B, T): T differs between batches, the trainer pads with −100.

    Raises:
        ValueError: the batch is text alone, without prompts.
    """
    given = {name: value for name, value in inputs.items() if name not in _ANSWER}
    given.update({name.removeprefix("prompt_"): value for name, value in prompt.items()})
    if not given:
        raise ValueError(
            f"The batch has {sorted(inputs)} alone, which is the answer: with predict_with_generate the model would "
            "be given nothing, and write one text for the whole batch. Give pictures, or prompts as "
            "`prompt_input_ids` and `prompt_attention_mask`, or leave predict_with_generate out."
        )
    limits = {"max_length": trainer.args.generation_max_length, "num_beams": trainer.args.generation_num_beams}
    wanted = {name: value for name, value in limits.items() if value is not None}
    with torch.no_grad(), _gathered_parameters(trainer):
        return trainer.model.generate(**given, **wanted, synced_gpus=_synced(trainer))


def _synced(trainer: Trainer) -> bool:
    """Whether all processes must run as many decoding steps as the slowest."""
    return is_deepspeed_zero3_enabled() or trainer.is_fsdp_enabled


def _gathered_parameters(trainer: Trainer) -> contextlib.AbstractContextManager:
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(trainer.model, FullyShardedDataParallel):
        return FullyShardedDataParallel.summon_full_params(trainer.model)
    return contextlib.nullcontext()


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
