"""Attention of the GIT decoder: image tokens see the image, text tokens see the image and the text before them."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel, GitVisionModel, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_curriculum.models.base import SharedImages, takes_cache
from hf_curriculum.models.git.config import CaptionGitConfig


def text_attention_mask(
    attention_mask: torch.Tensor | None,
    query_length: int,
    key_length: int,
    device: torch.device,
    implementation: str = "sdpa",
    owner: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """The attention mask of the text, made once per forward for every layer."""
    if attention_mask is not None:
        before = attention_mask.new_ones((attention_mask.shape[0], key_length - attention_mask.shape[1]))
        valid = torch.cat([before, attention_mask], dim=1)  # (batch, key_length)
        if "flash" in implementation:
            return valid
    elif owner is None and (
        "flash" in implementation or query_length == 1 or (query_length == key_length and implementation == "sdpa")
    ):
        return None
    keys = torch.arange(key_length, device=device)
    queries = keys[key_length - query_length :, None]
    causal = keys <= queries  # (query_length, key_length)
    if owner is not None:
        image = owner.new_ones((len(owner), query_length, key_length - query_length), dtype=torch.bool)
        return (causal & torch.cat([image, owner[:, :, None] == owner[:, None]], dim=2))[:, None]
    if attention_mask is None:
        return causal[None, None]
    return (causal & (valid.bool()[:, None, :] | (keys == queries)))[:, None]


def image_and_text_mask(of_text: torch.Tensor, image_length: int) -> torch.Tensor:
    """The mask of image and text in one call, of that of the text, bool (batch or 1, 1, text, image + text)."""
    mask = nn.functional.pad(of_text, (0, 0, image_length, 0), value=False)
    mask[..., :image_length, :image_length] = True
    return mask


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float = 1.0,
    **kwargs: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention written out: the values, (batch, queries, heads, head width), and the weights."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


class CaptionGitSelfAttention(nn.Module):
    """Self-attention of image and text: in one call with the mask of both, or in two.

    In two the image's queries need no mask, and text keys, which they never see, are not computed.
    """

    def __init__(self, config: CaptionGitConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim: int = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout: float = config.attention_probs_dropout_prob
        self.is_causal = True
        self.query: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.key: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.value: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        query_states: torch.Tensor,
        hidden_states: torch.Tensor,
        image_length: int,
        text_mask: torch.Tensor | None,
        cache: Cache | None = None,
        shared: SharedImages | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of `query_states` to `hidden_states`."""
        query, key, value = self.query(query_states), self.key(hidden_states), self.value(hidden_states)
        if shared is not None:
            return self._shared(query, key, value, text_mask, shared)
        query, key, value = (self._heads(states) for states in (query, key, value))  # (batch, heads, rows, head width)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        text_length = hidden_states.shape[1] - image_length
        image_queries = query.shape[2] - text_length
        if text_mask is not None and text_mask.ndim == 4 and text_mask.shape[2] > text_length:
            mask = text_mask[:, :, -query.shape[2] :]
            return self._attend(query, key, value, mask, is_causal=False)
        text, weights = self._attend(query[:, :, image_queries:], key, value, text_mask, is_causal=True)
        if image_queries == 0:
            return text, weights
        seen = slice(0, image_length)
        image, _ = self._attend(query[:, :, seen], key[:, :, seen], value[:, :, seen], None, is_causal=False)
        return torch.cat([image, text], dim=1), weights

    def _shared(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        text_mask: torch.Tensor | None,
        shared: SharedImages,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `forward` without a cache, on rows (1, rows, width): images among themselves, texts one by one."""
        image_queries = query.shape[1] - (key.shape[1] - shared.image_rows)
        text, weights = self._attend(
            self._heads(shared.text_of(query[:, image_queries:])),
            self._heads(shared.repeated(key)),
            self._heads(shared.repeated(value)),
            text_mask,
            is_causal=True,
        )
        if image_queries == 0:
            return text.flatten(0, 1)[None], weights
        of_images = (self._heads(shared.split(states)[0]) for states in (query, key, value))
        image, _ = self._attend(*of_images, None, is_causal=False)
        return shared.join(image, text), weights

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        implementation = self.config._attn_implementation
        attend = eager_attention if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]
        mixed, weights = attend(
            self,
            query,
            key,
            value,
            mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            is_causal=is_causal,
        )
        return mixed.flatten(2), weights


class CaptionGitEmbeddings(nn.Module):
    """Word plus position, normalised; image tokens do not pass here."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        self.word_embeddings: nn.Embedding = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.position_embeddings: nn.Embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm: nn.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout: nn.Dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Embeds `words`, embedded words of shape (batch, text, width), at `position_ids`, (batch or 1, text)."""
        return self.dropout(self.LayerNorm(words + self.position_embeddings(position_ids)))


class CaptionGitResidual(nn.Module):
    """Linear, dropout, then the layer norm of the sum with what came before (post-norm)."""

    def __init__(self, config: CaptionGitConfig, input_size: int) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm: nn.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout: nn.Dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(states)) + residual)


class CaptionGitAttention(nn.Module):
    """Self-attention and its residual, under the names of stock GIT's weights."""

    def __init__(self, config: CaptionGitConfig, layer_idx: int) -> None:
        super().__init__()
        self.self: CaptionGitSelfAttention = CaptionGitSelfAttention(config, layer_idx)
        self.output: CaptionGitResidual = CaptionGitResidual(config, config.hidden_size)


class CaptionGitIntermediate(nn.Module):
    """The wide half of the feed-forward part."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(states))


class CaptionGitLayer(GradientCheckpointingLayer):
    """One post-norm decoder layer; 7,087,872 parameters at BERT-base width."""

    def __init__(self, config: CaptionGitConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention: CaptionGitAttention = CaptionGitAttention(config, layer_idx)
        self.intermediate: CaptionGitIntermediate = CaptionGitIntermediate(config)
        self.output: CaptionGitResidual = CaptionGitResidual(config, config.intermediate_size)

    @takes_cache
    def forward(
        self,
        hidden_states: torch.Tensor,
        image_length: int,
        text_mask: torch.Tensor | None,
        text_only: bool,
        cache: Cache | None = None,
        shared: SharedImages | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Shape (batch, image_length + text, width) to the same or, with `text_only`, to (batch, text, width)."""
        rows = hidden_states[:, image_length:] if text_only else hidden_states
        mixed, weights = self.attention.self(rows, hidden_states, image_length, text_mask, cache, shared)
        attended = self.attention.output(mixed, rows)
        return self.output(self.intermediate(attended), attended), weights


class CaptionGitEncoder(nn.Module):
    """The stack of decoder layers (stock GIT calls it the encoder)."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        self.layer: nn.ModuleList = nn.ModuleList(
            [CaptionGitLayer(config, index) for index in range(config.num_hidden_layers)]
        )


class CaptionGitProjection(nn.Module):
    """From the vision tower's width to the decoder's, normalised; 592,128 parameters from 768 to 768."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        vision = config.vision_config
        # Stock GIT takes the vision tower's epsilon here; towers without one get the decoder's.
        eps = getattr(vision, "layer_norm_eps", config.layer_norm_eps)
        self.visual_projection: nn.Sequential = nn.Sequential(
            nn.Linear(vision.hidden_size, config.hidden_size), nn.LayerNorm(config.hidden_size, eps=eps)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.visual_projection(states)


def build_vision_tower(config: CaptionGitConfig) -> PreTrainedModel:
    """A new vision tower, without its pooler unless the configuration wants it."""
    vision = config.vision_config
    # GIT's own tower has, in some releases, no entry in the Auto classes.
    tower = GitVisionModel(vision) if vision.model_type == "git_vision_model" else AutoModel.from_config(vision)
    if not config.vision_pooler and getattr(tower, "pooler", None) is not None:
        tower.pooler = None
    return tower
