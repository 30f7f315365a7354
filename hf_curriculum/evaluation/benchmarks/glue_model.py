"""A classifier on a language model: its own class where `transformers` has one, a plain head on ours."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING


class TextClassifier(nn.Module):
    """A linear layer on a text model's last hidden state: of the last token, or the mean of all tokens.

    Args:
        base: returns a `last_hidden_state` (texts, tokens, width) for `input_ids` and `attention_mask`.
        width: of its hidden states.
        num_labels: classes.
        pooling: `"last"` token that is no padding, or `"mean"` of those.

    Example:
        >>> TextClassifier(model.base_model, 768, 2)  # doctest: +SKIP
    """

    def __init__(
        self, base: nn.Module, width: int, num_labels: int, pooling: Literal["last", "mean"] = "last"
    ) -> None:
        super().__init__()
        self.base, self.pooling = base, pooling
        self.head = nn.Linear(width, num_labels, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)  # what heads of `transformers` start from

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Scores of the classes, (texts, num_labels), and with labels their mean cross-entropy."""
        hidden = self.base(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        mask = attention_mask[:, :, None].to(hidden.dtype)  # (texts, tokens, 1)
        if self.pooling == "mean":
            pooled = (hidden * mask).sum(1) / mask.sum(1)
        else:
            last = attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(1)  # (texts,)
            pooled = hidden[torch.arange(len(hidden), device=hidden.device), last]
        logits = self.head(pooled)
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def make_classifier(
    model: PreTrainedModel, num_labels: int, *, pooling: Literal["last", "mean"], pad_token_id: int
) -> nn.Module:
    """A classifier that starts from a copy of the model's weights.

    Models that `AutoModelForSequenceClassification` knows get that class, whose head decides what it reads; all
    others, this library's among them, a `TextClassifier`.

    Args:
        model: a language model; it is not changed.
        num_labels: classes.
        pooling: of `TextClassifier`.
        pad_token_id: the tokenizer's, for classes that look for the last token by it.

    Raises:
        ValueError: the class of `transformers` has weights the model lacks, other than a head's or a pooler's.

    Example:
        >>> make_classifier(model, 2, pooling="last", pad_token_id=0)  # doctest: +SKIP
    """
    if type(model.config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        base = copy.deepcopy(model.base_model)
        width = base.get_input_embeddings().weight.shape[1]
        return TextClassifier(base, _width(model, width), num_labels, pooling).to(model.device, model.dtype)
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id = num_labels, pad_token_id
    classifier = AutoModelForSequenceClassification.from_config(config)
    report: Any = classifier.base_model.load_state_dict(model.base_model.state_dict(), strict=False)
    missing = [name for name in report.missing_keys if "pooler" not in name]
    if missing:
        raise ValueError(
            f"A {type(classifier).__name__} has {len(missing)} weights that the {type(model).__name__} lacks, such as "
            f"{missing[0]!r}: they would start from random numbers. Fine-tune another architecture, or leave `glue` "
            "out with `tasks=`."
        )
    return classifier.to(model.device, model.dtype)


def _width(model: PreTrainedModel, embedded: int) -> int:
    """Width of the last hidden states, which may differ from that of embeddings."""
    return getattr(model.config.get_text_config(), "hidden_size", embedded)
