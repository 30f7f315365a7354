"""AoANet: attention whose result passes a gate, in a refiner of regions and in an LSTM decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_curriculum.models.git.layers import eager_attention
from hf_curriculum.tasks.captioning.models.base import layer_norm, register
from hf_curriculum.tasks.captioning.models.config import AoANetConfig
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


class AoAAttention(nn.Module):
    """Multi-head attention without projections: (rows, queries, width) to (rows, queries, width)."""

    def __init__(self, config: AoANetConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim: int = config.hidden_size // config.num_attention_heads

    def heads(self, states: torch.Tensor) -> torch.Tensor:
        """(rows, length, width) as (rows, heads, length, head width)."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attends; all of the shape of `heads`, the mask bool (rows, 1, 1, keys), True where visible."""
        implementation = self.config._attn_implementation
        attend = eager_attention if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]
        attended, _ = attend(
            self,
            query,
            key,
            value,
            mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.head_dim**-0.5,
            is_causal=False,
        )
        return attended.flatten(2)


class AoAGate(nn.Module):
    """Attention on attention: what was attended to and its query, (…, width) each, through a gated linear unit."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        self.linear: nn.Linear = nn.Linear(2 * width, 2 * width)

    def forward(self, attended: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        return nn.functional.glu(self.linear(self.dropout(torch.cat([attended, query], dim=-1))), dim=-1)


class AoARefinerLayer(GradientCheckpointingLayer):
    """Self-attention of regions behind a layer norm, its gate and the residual; no feed-forward part."""

    def __init__(self, config: AoANetConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm: nn.Module = layer_norm(config.norm, width, config.layer_norm_eps)
        self.qkv: nn.Linear = nn.Linear(width, 3 * width)
        self.attention: AoAAttention = AoAAttention(config)
        self.gate: AoAGate = AoAGate(width, config.aoa_dropout)
        self.dropout: nn.Dropout = nn.Dropout(config.refiner_dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(images, regions, width) to the same; the mask as in `AoAAttention`."""
        normed = self.norm(states)
        query, key, value = (self.attention.heads(part) for part in self.qkv(normed).chunk(3, dim=-1))
        return states + self.dropout(self.gate(self.attention(query, key, value, mask), normed))


class AoANetModel(RecurrentCaptionerModel):
    """AoANet without its output layer.

    Example:
        >>> config = AoANetConfig(vocab_size=50, hidden_size=8, num_attention_heads=2, region_feature_size=6)
        >>> model = AoANetModel(config)
        >>> model(torch.ones(2, 7, dtype=torch.long), region_features=torch.ones(2, 3, 6)).last_hidden_state.shape
        torch.Size([2, 7, 8])
    """

    config_class: type[AoANetConfig] = AoANetConfig
    state_size: int = 3  # hidden state, cell and context

    def __init__(self, config: AoANetConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.refiner: nn.ModuleList = nn.ModuleList(
            [AoARefinerLayer(config) for _ in range(config.num_refiner_layers)]
        )
        self.refiner_norm: nn.Module = layer_norm(config.norm, width, config.layer_norm_eps)
        self.value_key: nn.Linear = nn.Linear(width, 2 * width)
        self.attention_lstm: nn.ModuleDict = lstm_layers(width, "words", "context")
        self.context_dropout: nn.Dropout = nn.Dropout(config.context_dropout)
        self.query_norm: nn.Module = layer_norm(config.norm, width, config.layer_norm_eps)
        self.query: nn.Linear = nn.Linear(width, width)
        self.attention: AoAAttention = AoAAttention(config)
        self.gate: AoAGate = AoAGate(width, 0.0)
        self.post_init()

    def encode(self, embedded: torch.Tensor, mask: torch.Tensor | None, features: torch.Tensor) -> EncodedImages:
        visible = None if mask is None else mask[:, None, None]
        for layer in self.refiner:
            embedded = layer(embedded, visible)
        refined = self.refiner_norm(embedded)
        return EncodedImages(refined, mask, masked_mean(refined, mask).to(refined.dtype))

    def read_images(self, images: EncodedImages) -> Parts:
        """Keys and values (images, heads, regions, head width), the mean's gates, any mask."""
        value, key = (self.attention.heads(part) for part in self.value_key(images.features).chunk(2, dim=-1))
        # The LSTM reads the sum of the mean and the context: one layer, applied to each.
        parts = (key, value, self.attention_lstm["context"](images.pooled))
        return parts if images.mask is None else (*parts, images.mask[:, None, None])

    def step(self, gates: torch.Tensor, image: Parts, state: Parts) -> tuple[torch.Tensor, Parts]:
        key, value, image_gates, *mask = image
        hidden, cell, context = state
        lstm = self.attention_lstm
        gates = gates + image_gates + lstm["context"](self.context_dropout(context)) + lstm["hidden"](hidden)
        hidden, cell = lstm_cell(gates, cell)
        query = self.attention.heads(self.query(self.query_norm(hidden))[:, None])  # (texts, heads, 1, head width)
        attended = self.attention(query, key, value, mask[0] if mask else None)[:, 0]
        context = self.gate(attended, hidden)
        return self.output_dropout(context), (hidden, cell, context)


class AoANetForCausalLM(RecurrentCaptionerForCausalLM):
    """AoANet: writes or scores captions of images from their regions.

    Regions refine each other in layers of gated self-attention. An LSTM reads the word, the mean region and the last
    output, and attends to the regions through another gate. Regions are refined, and turned into keys and values, once
    per image.

    Args:
        config: what to build; see `AoANetConfig`.

    Source: Huang et al. 2019 (*Attention on Attention for Image Captioning*), section 3, equations 3 to 12. Details,
    such as dot attention without an output layer in the decoder, follow the reference code.

    Example:
        >>> config = AoANetConfig(vocab_size=50, hidden_size=8, num_attention_heads=2, region_feature_size=6)
        >>> model = AoANetForCausalLM(config)
        >>> model(torch.ones(2, 7, dtype=torch.long), region_features=torch.ones(2, 3, 6)).logits.shape
        torch.Size([2, 7, 50])
    """

    config_class: type[AoANetConfig] = AoANetConfig
    model_class: type[AoANetModel] = AoANetModel


def reference_plan(weights: dict[str, torch.Tensor], num_attention_heads: int = 8, **options: Any) -> ConversionPlan:
    """The conversion of the reference's `aoa`, for `convert_reference`."""
    layers = 1 + max((int(name.split(".")[2]) for name in weights if name.startswith("refiner.layers.")), default=-1)
    config = AoANetConfig(
        **reference_sizes(weights), num_attention_heads=num_attention_heads, num_refiner_layers=layers, **options
    )
    names = reference_names(
        ("model.value_key", "ctx2att"),
        ("model.query", "core.attention.linears.0"),
        ("model.gate.linear", "core.att2ctx.0"),
    )
    names |= reference_lstm(weights, "model.attention_lstm", "core.att_lstm", ("words", "context"))
    names["model.attention_lstm.words.bias"] = ("core.att_lstm.bias_ih",)
    for kind, norm in (("weight", "a_2"), ("bias", "b_2")):
        names[f"model.query_norm.{kind}"] = (f"core.attention.norm.{norm}",)
        names[f"model.refiner_norm.{kind}"] = (f"refiner.norm.{norm}",)
        for number in range(layers):
            ours, theirs = f"model.refiner.{number}", f"refiner.layers.{number}"
            names[f"{ours}.qkv.{kind}"] = tuple(f"{theirs}.self_attn.linears.{index}.{kind}" for index in range(3))
            names[f"{ours}.gate.linear.{kind}"] = (f"{theirs}.self_attn.aoa_layer.0.{kind}",)
            names[f"{ours}.norm.{kind}"] = (f"{theirs}.sublayer.0.norm.{norm}",)
    return ConversionPlan(AoANetForCausalLM, config, names)


register(AoANetConfig, AoANetModel, AoANetForCausalLM)
