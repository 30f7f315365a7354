"""UpDown (BUTD): one LSTM looks at regions, a second one writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hf_curriculum.tasks.captioning.models.base import register
from hf_curriculum.tasks.captioning.models.config import UpDownConfig
from hf_curriculum.tasks.captioning.models.convert import ConversionPlan
from hf_curriculum.tasks.captioning.models.recurrent import (
    Parts,
    RecurrentCaptionerForCausalLM,
    RecurrentCaptionerModel,
    lstm_cell,
    lstm_layers,
    masked_mean,
    reference_lstm,
    reference_names,
    reference_sizes,
)
from hf_curriculum.tasks.captioning.models.regions import EncodedImages


class UpDownModel(RecurrentCaptionerModel):
    """UpDown without its output layer.

    Example:
        >>> model = UpDownModel(UpDownConfig(vocab_size=50, hidden_size=8, attention_size=4, region_feature_size=6))
        >>> model(torch.ones(2, 7, dtype=torch.long), region_features=torch.ones(2, 3, 6)).last_hidden_state.shape
        torch.Size([2, 7, 8])
    """

    config_class: type[UpDownConfig] = UpDownConfig
    supports_gradient_checkpointing: bool = False
    state_size: int = 4  # hidden state and cell of both LSTMs

    def __init__(self, config: UpDownConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.image_embedding: nn.Linear = nn.Linear(config.region_feature_size, width)
        self.image_dropout: nn.Dropout = nn.Dropout(config.feature_dropout)
        self.attention_lstm: nn.ModuleDict = lstm_layers(width, "words", "image", "language")
        self.key: nn.Linear = nn.Linear(width, config.attention_size)
        self.query: nn.Linear = nn.Linear(width, config.attention_size)
        self.score: nn.Linear = nn.Linear(config.attention_size, 1)
        self.language_lstm: nn.ModuleDict = lstm_layers(width, "attended", "attention")
        self.post_init()

    def encode(self, embedded: torch.Tensor, mask: torch.Tensor | None, features: torch.Tensor) -> EncodedImages:
        mean = masked_mean(features, mask).to(self.image_embedding.weight.dtype)
        return EncodedImages(embedded, mask, self.image_dropout(self.image_embedding(mean).relu()))

    def read_images(self, images: EncodedImages) -> Parts:
        """Values (images, regions, width), keys (images, regions, attention width), the mean's gates, any mask."""
        parts = (images.features, self.key(images.features), self.attention_lstm["image"](images.pooled))
        return parts if images.mask is None else (*parts, images.mask)

    def step(self, gates: torch.Tensor, image: Parts, state: Parts) -> tuple[torch.Tensor, Parts]:
        values, keys, image_gates, *mask = image
        attention_hidden, attention_cell, language_hidden, language_cell = state
        first, second = self.attention_lstm, self.language_lstm
        gates = gates + image_gates + first["language"](language_hidden) + first["hidden"](attention_hidden)
        attention_hidden, attention_cell = lstm_cell(gates, attention_cell)
        scores = self.score((keys + self.query(attention_hidden)[:, None]).tanh())[..., 0]  # (texts, regions)
        if mask:
            scores = scores.masked_fill(~mask[0], -torch.inf)
        weights = scores.softmax(-1)
        attended = torch.bmm(weights[:, None].to(values.dtype), values)[:, 0]
        gates = second["attended"](attended) + second["attention"](attention_hidden)
        gates = gates + second["hidden"](language_hidden)
        language_hidden, language_cell = lstm_cell(gates, language_cell)
        return self.output_dropout(language_hidden), (attention_hidden, attention_cell, language_hidden, language_cell)


class UpDownForCausalLM(RecurrentCaptionerForCausalLM):
    """UpDown, the captioner of BUTD: writes or scores captions of images from their regions.

    An LSTM reads the word, the mean region and the second LSTM's last output; its state attends to the regions. The
    second LSTM reads the result and scores words. Regions are embedded, and turned into keys of the attention, once
    per image. As in the reference, attention is a softmax over the regions that are no padding.

    Args:
        config: what to build; see `UpDownConfig`.

    Source: Anderson et al. 2018 (*Bottom-Up and Top-Down Attention*), section 3.2, equations 1 to 7.

    Example:
        >>> config = UpDownConfig(vocab_size=50, hidden_size=8, attention_size=4, region_feature_size=6)
        >>> model = UpDownForCausalLM(config)
        >>> model(torch.ones(2, 7, dtype=torch.long), region_features=torch.ones(2, 3, 6)).logits.shape
        torch.Size([2, 7, 50])
    """

    config_class: type[UpDownConfig] = UpDownConfig
    supports_gradient_checkpointing: bool = False
    model_class: type[UpDownModel] = UpDownModel


def reference_plan(weights: dict[str, torch.Tensor], **options: Any) -> ConversionPlan:
    """The conversion of the reference's `updown`, for `convert_reference`."""
    config = UpDownConfig(**reference_sizes(weights), attention_size=weights["ctx2att.weight"].shape[0], **options)
    names = reference_names(
        ("model.image_embedding", "fc_embed.0"),
        ("model.key", "ctx2att"),
        ("model.query", "core.attention.h2att"),
        ("model.score", "core.attention.alpha_net"),
    )
    names |= reference_lstm(weights, "model.attention_lstm", "core.att_lstm", ("language", "image", "words"))
    names |= reference_lstm(weights, "model.language_lstm", "core.lang_lstm", ("attended", "attention"))
    names["model.attention_lstm.words.bias"] = ("core.att_lstm.bias_ih",)
    names["model.language_lstm.attended.bias"] = ("core.lang_lstm.bias_ih",)
    return ConversionPlan(UpDownForCausalLM, config, names)


register(UpDownConfig, UpDownModel, UpDownForCausalLM)
