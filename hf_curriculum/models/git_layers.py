"""The parts of GIT, under the names of stock GIT's weights."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel, GitVisionModel, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_curriculum.models.git_attention import CaptionGitSelfAttention
from hf_curriculum.models.git_config import CaptionGitConfig
from hf_curriculum.models.git_shared import SharedImages


class CaptionGitEmbeddings(nn.Module):
    """Word plus position, normalised; image tokens do not pass here."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, words: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Embeds `words`, embedded words of shape (batch, text, width), at `position_ids`, (batch or 1, text)."""
        return self.dropout(self.LayerNorm(words + self.position_embeddings(position_ids)))


class CaptionGitResidual(nn.Module):
    """Linear, dropout, then the layer norm of the sum with what came before (post-norm)."""

    def __init__(self, config: CaptionGitConfig, input_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(states)) + residual)


class CaptionGitAttention(nn.Module):
    """Self-attention and its residual, under the names of stock GIT's weights."""

    def __init__(self, config: CaptionGitConfig, layer_idx: int) -> None:
        super().__init__()
        self.self = CaptionGitSelfAttention(config, layer_idx)
        self.output = CaptionGitResidual(config, config.hidden_size)


class CaptionGitIntermediate(nn.Module):
    """The wide half of the feed-forward part."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(states))


class CaptionGitLayer(GradientCheckpointingLayer):
    """One post-norm decoder layer; 7,087,872 parameters at BERT-base width."""

    def __init__(self, config: CaptionGitConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention = CaptionGitAttention(config, layer_idx)
        self.intermediate = CaptionGitIntermediate(config)
        self.output = CaptionGitResidual(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        image_length: int,
        text_mask: torch.Tensor | None,
        text_only: bool,
        past_key_values: Cache | None = None,
        shared: SharedImages | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Shape (batch, image_length + text, width) to the same or, with `text_only`, to (batch, text, width).

        `text_only` changes no result: it leaves out the image rows, which nothing reads after the last layer. Where
        images are `shared`, the batch is one: the rows of all images, `image_length` in number, then of all texts.
        """
        rows = hidden_states[:, image_length:] if text_only else hidden_states
        mixed, weights = self.attention.self(rows, hidden_states, image_length, text_mask, past_key_values, shared)
        attended = self.attention.output(mixed, rows)
        return self.output(self.intermediate(attended), attended), weights


class CaptionGitEncoder(nn.Module):
    """The stack of decoder layers (stock GIT calls it the encoder)."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([CaptionGitLayer(config, index) for index in range(config.num_hidden_layers)])


class CaptionGitProjection(nn.Module):
    """From the vision tower's width to the decoder's, normalised; 592,128 parameters from 768 to 768."""

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__()
        vision = config.vision_config
        # Stock GIT takes the vision tower's epsilon here; towers without one get the decoder's.
        eps = getattr(vision, "layer_norm_eps", config.layer_norm_eps)
        self.visual_projection = nn.Sequential(
            nn.Linear(vision.hidden_size, config.hidden_size), nn.LayerNorm(config.hidden_size, eps=eps)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.visual_projection(states)


def build_vision_tower(config: CaptionGitConfig) -> PreTrainedModel:
    """A new vision tower; the pooler goes where the configuration does not want it."""
    vision = config.vision_config
    # GIT's own tower has, in some releases, no entry in the Auto classes.
    tower = GitVisionModel(vision) if vision.model_type == "git_vision_model" else AutoModel.from_config(vision)
    if not config.vision_pooler and getattr(tower, "pooler", None) is not None:
        tower.pooler = None
    return tower
