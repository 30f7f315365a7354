"""The parts of Flamingo between its vision tower and its decoder."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_curriculum.models.base import takes_cache
from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.git.layers import eager_attention
from hf_curriculum.models.packed_loss import PackedText


class CaptionFlamingoAttention(nn.Module):
    """Multi-head attention of one sequence to another, without biases; 2,359,296 parameters at width 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim: int = config.cross_attention_head_dim
        width, inner = config.text_config.hidden_size, config.cross_attention_heads * self.head_dim
        self.q_proj: nn.Linear = nn.Linear(width, inner, bias=False)
        self.k_proj: nn.Linear = nn.Linear(width, inner, bias=False)
        self.v_proj: nn.Linear = nn.Linear(width, inner, bias=False)
        self.out_proj: nn.Linear = nn.Linear(inner, width, bias=False)

    def keys_values(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of (batch, keys, width); each of shape (batch, heads, keys, head width)."""
        return self._heads(self.k_proj(states)), self._heads(self.v_proj(states))

    def forward(
        self,
        states: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        visible: torch.Tensor | None = None,
        packed: PackedText | None = None,
    ) -> torch.Tensor:
        """Attention of `states` to `key` and `value`."""
        query = self.q_proj(states) if packed is None else packed.unpack(self.q_proj(states))
        query = self._heads(query).expand(len(key), -1, -1, -1)
        if self.config._attn_implementation == "eager":
            mixed, _ = eager_attention(self, query, key, value, visible, scaling=self.head_dim**-0.5)
        else:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible).transpose(1, 2)
        mixed = mixed.flatten(2)
        return self.out_proj(mixed if packed is None else packed.pack(mixed))

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class CaptionFlamingoFeedForward(nn.Module):
    """Layer norm, then wide and back without biases; 4,720,128 parameters at width 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.norm: nn.LayerNorm = nn.LayerNorm(width)
        self.wide: nn.Linear = nn.Linear(width, config.feed_forward_multiple * width, bias=False)
        self.back: nn.Linear = nn.Linear(config.feed_forward_multiple * width, width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.back(nn.functional.gelu(self.wide(self.norm(states))))


class CaptionFlamingoPerceiverLayer(GradientCheckpointingLayer):
    """Latents attend to an image and to themselves; 7,082,496 parameters at width 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.image_norm: nn.LayerNorm = nn.LayerNorm(width)
        self.latent_norm: nn.LayerNorm = nn.LayerNorm(width)
        self.attention: CaptionFlamingoAttention = CaptionFlamingoAttention(config)
        self.feed_forward: CaptionFlamingoFeedForward = CaptionFlamingoFeedForward(config)

    def forward(self, latents: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Updates latents, (images or 1, latents, width), by `image`, (images, image tokens, width)."""
        normed = self.latent_norm(latents)
        of_image = self.attention.keys_values(self.image_norm(image))
        of_latents = self.attention.keys_values(normed)
        key, value = (
            torch.cat([seen, own.expand(len(image), -1, -1, -1)], dim=2)  # (images, heads, keys, head width)
            for seen, own in zip(of_image, of_latents, strict=True)
        )
        latents = latents + self.attention(normed, key, value)
        return latents + self.feed_forward(latents)


class CaptionFlamingoPerceiver(nn.Module):
    """The resampler: a fixed number of vectors for each image; 14,808,576 parameters from 768 to 768."""

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__()
        width = config.text_config.hidden_size
        self.projection: nn.Linear = nn.Linear(config.vision_config.hidden_size, width, bias=False)
        self.image_positions: nn.Parameter = nn.Parameter(torch.empty(config.max_images, 1, width))
        self.latents: nn.Parameter = nn.Parameter(torch.empty(config.perceiver_latents, width))
        self.layers: nn.ModuleList = nn.ModuleList(
            [CaptionFlamingoPerceiverLayer(config) for _ in range(config.perceiver_depth)]
        )
        self.norm: nn.LayerNorm = nn.LayerNorm(width)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """From (batch, images, image tokens, vision width) to latents (batch, images · latents, width)."""
        rows, images = features.shape[:2]
        states = self.projection(features) + self.image_positions[:images]  # (batch, images, image tokens, width)
        states = states.flatten(0, 1)
        latents = self.latents[None]  # (1, latents, width) until the first layer has seen an image
        for layer in self.layers:
            latents = layer(latents, states)
        return self.norm(latents).unflatten(0, (rows, images)).flatten(1, 2)


class CaptionFlamingoGatedLayer(GradientCheckpointingLayer):
    """Gated cross-attention from text to images; 7,080,962 parameters at width 768.

    With both gates at 0, as at the start, hidden states pass unchanged, bit for bit.
    """

    def __init__(self, config: CaptionFlamingoConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.norm: nn.LayerNorm = nn.LayerNorm(config.text_config.hidden_size)
        self.attention: CaptionFlamingoAttention = CaptionFlamingoAttention(config)
        self.attention_gate: nn.Parameter = nn.Parameter(torch.empty(1))
        self.feed_forward: CaptionFlamingoFeedForward = CaptionFlamingoFeedForward(config)
        self.feed_forward_gate: nn.Parameter = nn.Parameter(torch.empty(1))

    @takes_cache
    def forward(
        self,
        hidden_states: torch.Tensor,
        images: torch.Tensor | None,
        visible: torch.Tensor | None,
        no_image: torch.Tensor,
        cache: EncoderDecoderCache | None = None,
        packed: PackedText | None = None,
    ) -> torch.Tensor:
        """Shape (batch, text, width) to the same."""
        key, value = self._keys_values(images, cache)
        read = self.attention(self.norm(hidden_states), key, value, visible, packed).masked_fill(no_image, 0)
        hidden_states = hidden_states + self.attention_gate.tanh() * read
        return hidden_states + self.feed_forward_gate.tanh() * self.feed_forward(hidden_states)

    def _keys_values(
        self, images: torch.Tensor | None, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if images is None:
            cached = cache.cross_attention_cache.layers[self.layer_idx]
            return cached.keys, cached.values
        key, value = self.attention.keys_values(images)
        if cache is not None:
            cache.cross_attention_cache.update(key, value, self.layer_idx)
        return key, value


def count_images(input_ids: torch.Tensor, image_token_id: int) -> torch.Tensor:
    """The image each token attends to, the number of `<image>` tokens up to it: int64, (batch, text), 0 for none."""
    return (input_ids == image_token_id).long().cumsum(-1)


def visible_latents(image_numbers: torch.Tensor, images: int, latents: int) -> torch.Tensor | None:
    """The latents each token attends to, those of its image: bool, (batch, 1, text, images · latents)."""
    if images == 1:
        return None
    numbers = torch.arange(1, images + 1, device=image_numbers.device)
    seen = (image_numbers[..., None] == numbers) | (image_numbers == 0)[..., None]  # (batch, text, images)
    return seen.repeat_interleave(latents, dim=-1)[:, None]


def with_image_dimension(values: torch.Tensor, dims: int, name: str, batch: int, max_images: int) -> torch.Tensor:
    """`values` with a dimension of images, (batch, images, ...); `dims` is the number of dimensions of one image."""
    if values.ndim not in (dims + 1, dims + 2):
        raise ValueError(
            f"{name} has the shape {tuple(values.shape)}. Flamingo takes one image per text, which makes {dims + 1} "
            f"dimensions, or several, (batch, images, ...), which makes {dims + 2}."
        )
    values = values[:, None] if values.ndim == dims + 1 else values
    if values.shape[0] != batch:
        raise ValueError(
            f"There are images for {values.shape[0]} texts, but {batch} texts. Repeat the images, or their "
            "`encode_images`, with `repeat_interleave`, or say with `image_index` who reads which."
        )
    if not 1 <= values.shape[1] <= max_images:
        raise ValueError(
            f"There are {values.shape[1]} images per text, but the model has embeddings for {max_images}. Give "
            "fewer, or build it with a larger `max_images`."
        )
    return values


def validate_image_numbers(image_numbers: np.ndarray, images: int, config: CaptionFlamingoConfig) -> None:
    """Raises where the `<image>` tokens of a text and its images differ in number."""
    highest = image_numbers.max(-1)
    fewest, most = highest.min(), highest.max()
    if fewest == 0:
        row = highest.argmin()
        raise ValueError(
            f"Text {row} of the batch has an image but no `<image>` token (id {config.image_token_id}): no token "
            "would see the image. Put it before the caption, as `CaptionCollator(prefix='<image> ')` does with a "
            "tokenizer that knows the token (`add_image_token`)."
        )
    if most > images:
        raise ValueError(
            f"Text {highest.argmax()} of the batch has {most} `<image>` tokens (id {config.image_token_id}) "
            f"but {images} image(s) were given. Each token stands for one image, in their order."
        )


def validate_text(
    batch: int,
    length: int,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None,
    new_images: bool,
    max_positions: int,
) -> int:
    """The number of cached tokens; raises where the lengths of text, mask and cache do not fit together."""
    if cache is not None and cache.is_compileable:
        raise ValueError(
            f"The cache is a {type(cache).__name__} of fixed length, which cannot hold images. Use the default cache."
        )
    past_length = 0 if cache is None else cache.get_seq_length()
    if position_ids is None and past_length + length > max_positions:
        raise ValueError(
            f"The text has {past_length + length} tokens, but the model has {max_positions} positions. Truncate it, "
            "or build the model with a larger `max_position_embeddings`."
        )
    if new_images and past_length:
        raise ValueError(
            f"An image was given with a cache of {past_length} tokens. The cache holds the images of a text, all "
            "of them: give them with the first call."
        )
    if attention_mask is not None and tuple(attention_mask.shape) != (batch, past_length + length):
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} for {batch} texts of {length} new tokens "
            f"after {past_length} cached ones. Pass ({batch}, {past_length + length})."
        )
    return past_length


def cached_latents(cache: Cache | None) -> int:
    """The number of cached latents."""
    if not isinstance(cache, EncoderDecoderCache):
        return 0
    return cache.cross_attention_cache.get_seq_length()
