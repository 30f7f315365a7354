"""The parts of Flamingo between its vision tower and its decoder."""

from __future__ import annotations

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_curriculum.models.flamingo_config import CaptionFlamingoConfig
from hf_curriculum.models.git_attention import eager_attention
from hf_curriculum.models.packed_text import PackedText


class CaptionFlamingoAttention(nn.Module):
    """Multi-head attention of one sequence to another, without biases; 2,359,296 parameters at width 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.cross_attention_head_dim
        width, inner = config.text_config.hidden_size, config.cross_attention_heads * self.head_dim
        self.q_proj = nn.Linear(width, inner, bias=False)
        self.k_proj = nn.Linear(width, inner, bias=False)
        self.v_proj = nn.Linear(width, inner, bias=False)
        self.out_proj = nn.Linear(inner, width, bias=False)

    def keys_values(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is asked, from (batch, keys, width); each of shape (batch, heads, keys, head width)."""
        return self._heads(self.k_proj(states)), self._heads(self.v_proj(states))

    def forward(
        self,
        states: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        visible: torch.Tensor | None = None,
        packed: PackedText | None = None,
    ) -> torch.Tensor:
        """Mixes values.

        Args:
            states: who asks, shape (batch or 1, queries, width).
            key, value: of `keys_values`.
            visible: bool, shape (batch, 1, queries, keys), True where seen; `None` where everything is. No row may be
                empty.
            packed: how the queries of `states` stand in its rows, where these are not one per batch entry.

        Returns:
            The shape of `states`, with as many rows as `key` if it had one for all.
        """
        query = self.q_proj(states) if packed is None else packed.apart(self.q_proj(states))
        query = self._heads(query).expand(len(key), -1, -1, -1)
        if self.config._attn_implementation == "eager":
            mixed, _ = eager_attention(self, query, key, value, visible, scaling=self.head_dim**-0.5)
        else:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible).transpose(1, 2)
        mixed = mixed.flatten(2)
        return self.out_proj(mixed if packed is None else packed.together(mixed))

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class CaptionFlamingoFeedForward(nn.Module):
    """Layer norm, then wide and back without biases; 4,720,128 parameters at width 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, config.feed_forward_multiple * width, bias=False)
        self.back = nn.Linear(config.feed_forward_multiple * width, width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.back(nn.functional.gelu(self.wide(self.norm(states))))


class CaptionFlamingoPerceiverLayer(GradientCheckpointingLayer):
    """Latents read a picture and themselves; 7,082,496 parameters at width 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.image_norm = nn.LayerNorm(width)
        self.latent_norm = nn.LayerNorm(width)
        self.attention = CaptionFlamingoAttention(config)
        self.feed_forward = CaptionFlamingoFeedForward(config)

    def forward(self, latents: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Latents, (images, latents, width), from themselves and `image`, (images, image tokens, width).

        The first layer's are the same for all pictures, (1, latents, width), and what they ask is computed once.
        """
        asking = self.latent_norm(latents)
        of_image = self.attention.keys_values(self.image_norm(image))
        of_latents = self.attention.keys_values(asking)
        key, value = (
            torch.cat([seen, own.expand(len(image), -1, -1, -1)], dim=2)  # (images, heads, keys, head width)
            for seen, own in zip(of_image, of_latents, strict=True)
        )
        latents = latents + self.attention(asking, key, value)
        return latents + self.feed_forward(latents)


class CaptionFlamingoPerceiver(nn.Module):
    """The resampler: a fixed number of vectors for each picture; 14,808,576 parameters from 768 to 768.

    Source: Alayrac et al. 2022 (Flamingo), section 2.1 and appendix A.1.1.
    """

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.projection = nn.Linear(config.vision_config.hidden_size, width, bias=False)
        self.image_positions = nn.Parameter(torch.empty(config.max_images, 1, width))
        self.latents = nn.Parameter(torch.empty(config.perceiver_latents, width))
        self.layers = nn.ModuleList([CaptionFlamingoPerceiverLayer(config) for _ in range(config.perceiver_depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Latents of a text's pictures.

        Args:
            features: of the vision tower, shape (batch, images, image tokens, vision width).

        Returns:
            Shape (batch, images · latents, width), picture after picture.
        """
        rows, images = features.shape[:2]
        states = self.projection(features) + self.image_positions[:images]  # (batch, images, image tokens, width)
        states = states.flatten(0, 1)
        latents = self.latents[None]  # (1, latents, width) until the first layer has seen a picture
        for layer in self.layers:
            latents = layer(latents, states)
        return self.norm(latents).unflatten(0, (rows, images)).flatten(1, 2)


class CaptionFlamingoGatedLayer(GradientCheckpointingLayer):
    """Text reads pictures through gates that start shut; 7,080,962 parameters at width 768.

    The states pass through unchanged, bit for bit, as long as both gates are 0.

    Source: Alayrac et al. 2022 (Flamingo), section 2.2 and figure 4.
    """

    def __init__(self, config: CaptionFlamingoConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.norm = nn.LayerNorm(config.text_config.hidden_size)
        self.attention = CaptionFlamingoAttention(config)
        self.attention_gate = nn.Parameter(torch.empty(1))
        self.feed_forward = CaptionFlamingoFeedForward(config)
        self.feed_forward_gate = nn.Parameter(torch.empty(1))

    def forward(
        self,
        hidden_states: torch.Tensor,
        images: torch.Tensor | None,
        visible: torch.Tensor | None,
        no_image: torch.Tensor,
        past_key_values: EncoderDecoderCache | None = None,
        packed: PackedText | None = None,
    ) -> torch.Tensor:
        """Shape (batch, text, width) to the same.

        Args:
            hidden_states: of the text, (batch, text, width).
            images: of the resampler, (batch, images · latents, width); `None` where they are cached.
            visible: what each token sees of them, bool, (batch, 1, text, images · latents); `None` for one picture.
            no_image: bool, (batch, text, 1), True for tokens before any picture: these are told nothing.
            past_key_values: where keys and values of the pictures are kept.
            packed: how texts share rows, `hidden_states` and `no_image` being (rows, length, ...) then.
        """
        key, value = self._keys_values(images, past_key_values)
        told = self.attention(self.norm(hidden_states), key, value, visible, packed).masked_fill(no_image, 0)
        hidden_states = hidden_states + self.attention_gate.tanh() * told
        return hidden_states + self.feed_forward_gate.tanh() * self.feed_forward(hidden_states)

    def _keys_values(
        self, images: torch.Tensor | None, past_key_values: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if images is None:
            cached = past_key_values.cross_attention_cache.layers[self.layer_idx]
            return cached.keys, cached.values
        key, value = self.attention.keys_values(images)
        if past_key_values is not None:
            past_key_values.cross_attention_cache.update(key, value, self.layer_idx)
        return key, value
