"""A Transformer from regions to words: regions attend to each other, words to those before them and to the regions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_curriculum.models.base import CACHE_NAME, takes_cache
from hf_curriculum.models.git.layers import eager_attention
from hf_curriculum.models.on_host import known, known_or_read, to_device
from hf_curriculum.models.packed_loss import PackedText
from hf_curriculum.tasks.captioning.models.base import (
    RegionCaptionerForCausalLM,
    RegionCaptionerModel,
    RegionCaptionerPreTrainedModel,
    layer_norm,
    register,
)
from hf_curriculum.tasks.captioning.models.config import RegionTransformerConfig
from hf_curriculum.tasks.captioning.models.regions import EncodedImages


class ImageTextCache(DynamicCache):
    """Keys and values of text, and of images, which are kept once per image however many beams read it.

    Args:
        images: the images and the texts that read them.
        image_keys: keys and values of the images' regions, a pair (images, heads, regions, head width) per layer.
    """

    def __init__(self, images: EncodedImages, image_keys: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.images = images
        self.image_keys = image_keys

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Other texts in place of each, by their indices, (texts,)."""
        super().reorder_cache(beam_idx)
        self.images = self.images[beam_idx]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each text so many times in a row."""
        super().batch_repeat_interleave(repeats)
        self.images = self.images.repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """These texts alone."""
        super().batch_select_indices(indices)
        self.images: EncodedImages = self.images[indices]


def pack_rows(row: np.ndarray, rows: int, owner: np.ndarray, device: torch.device) -> PackedText:
    """Tokens side by side in rows, in their order."""
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=rows)
    length = counts.max()
    first = counts.cumsum() - counts
    places = row[order] * length + np.arange(len(row)) - first[row[order]]
    source, owners = np.zeros((rows, length), np.int64), np.full((rows, length), -1)
    source.ravel()[places], owners.ravel()[places] = order, owner[order]
    target = np.empty_like(row)
    target[order] = places
    return PackedText(*(to_device(part, device) for part in (source, target[None], owners)))


class _Attention(nn.Module):
    """Scaled dot-product attention by the implementation that the configuration names."""

    def __init__(self, config: RegionTransformerConfig, is_causal: bool) -> None:
        super().__init__()
        self.config = config
        self.is_causal = is_causal
        self.head_dim: int = config.hidden_size // config.num_attention_heads
        self.out: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)

    def heads(self, states: torch.Tensor) -> torch.Tensor:
        """(rows, length, width) as (rows, heads, length, head width)."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """(rows, heads, length, head width) each to (rows, queries, width)."""
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        mixed, _ = attend(
            self,
            query,
            key,
            value,
            mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.head_dim**-0.5,
            is_causal=self.is_causal,
        )
        return mixed.flatten(2)


class SelfAttention(_Attention):
    """Attention of regions, or of a text's tokens, to each other."""

    def __init__(self, config: RegionTransformerConfig, is_causal: bool, layer_idx: int = 0) -> None:
        super().__init__(config, is_causal)
        self.layer_idx = layer_idx
        self.qkv: nn.Linear = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.qkv.matrices = 3

    def forward(
        self, states: torch.Tensor, mask: torch.Tensor | None, packed: PackedText | None, cache: Cache | None = None
    ) -> torch.Tensor:
        """(rows, length, width) to the same; packed states are (1, tokens, width), and `mask` that of their rows."""
        mixed = self.qkv(states)
        if packed is not None:
            mixed = packed.pack(mixed)
        query, key, value = (self.heads(part) for part in mixed.chunk(3, dim=-1))
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        mixed = self.attend(query, key, value, mask)
        return self.out(mixed if packed is None else packed.unpack(mixed))


class ImageAttention(_Attention):
    """Attention of text to the regions of its image."""

    def __init__(self, config: RegionTransformerConfig) -> None:
        super().__init__(config, is_causal=False)
        self.query: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.key_value: nn.Linear = nn.Linear(config.hidden_size, 2 * config.hidden_size)
        self.key_value.matrices = 2

    def keys(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of regions, (images, heads, regions, head width) each."""
        key, value = self.key_value(features).chunk(2, dim=-1)
        return self.heads(key), self.heads(value)

    def forward(
        self,
        states: torch.Tensor,
        keys: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        packed: PackedText | None,
    ) -> torch.Tensor:
        """(texts, text, width) to the same; `packed` puts all that reads an image into its row."""
        query = self.query(states)
        query = self.heads(query if packed is None else packed.pack(query))
        mixed = self.attend(query, *keys, mask)
        return self.out(mixed if packed is None else packed.unpack(mixed).view(states.shape))


class FeedForward(nn.Module):
    """Linear, ReLU, dropout, linear."""

    def __init__(self, config: RegionTransformerConfig) -> None:
        super().__init__()
        self.wide: nn.Linear = nn.Linear(config.hidden_size, config.intermediate_size)
        self.narrow: nn.Linear = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout: nn.Dropout = nn.Dropout(config.activation_dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.dropout(self.wide(states).relu()))


class RegionEncoderLayer(GradientCheckpointingLayer):
    """One pre-norm layer of regions; 3,152,384 parameters at width 512."""

    def __init__(self, config: RegionTransformerConfig) -> None:
        super().__init__()
        self.attention: SelfAttention = SelfAttention(config, is_causal=False)
        self.feed_forward: FeedForward = FeedForward(config)
        self.norms: nn.ModuleList = nn.ModuleList(
            [layer_norm(config.norm, config.hidden_size, config.layer_norm_eps) for _ in range(2)]
        )
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None, packed: PackedText | None) -> torch.Tensor:
        """(images, regions, width), packed (1, regions of all images, width), to the same."""
        states = states + self.dropout(self.attention(self.norms[0](states), mask, packed))
        return states + self.dropout(self.feed_forward(self.norms[1](states)))


class WordDecoderLayer(GradientCheckpointingLayer):
    """One pre-norm layer of words, which read the regions too; 4,204,032 parameters at width 512."""

    def __init__(self, config: RegionTransformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention: SelfAttention = SelfAttention(config, is_causal=True, layer_idx=layer_idx)
        self.image_attention: ImageAttention = ImageAttention(config)
        self.feed_forward: FeedForward = FeedForward(config)
        self.norms: nn.ModuleList = nn.ModuleList(
            [layer_norm(config.norm, config.hidden_size, config.layer_norm_eps) for _ in range(3)]
        )
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    @takes_cache
    def forward(
        self,
        states: torch.Tensor,
        text_mask: torch.Tensor | None,
        packed_text: PackedText | None,
        image_keys: tuple[torch.Tensor, torch.Tensor],
        image_mask: torch.Tensor | None,
        packed_images: PackedText | None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """(texts, text, width), packed (1, tokens, width), to the same."""
        attended = self.attention(self.norms[0](states), text_mask, packed_text, cache)
        states = states + self.dropout(attended)
        seen = self.image_attention(self.norms[1](states), image_keys, image_mask, packed_images)
        states = states + self.dropout(seen)
        return states + self.dropout(self.feed_forward(self.norms[2](states)))


class RegionTransformerPreTrainedModel(RegionCaptionerPreTrainedModel):
    """Class attributes of both classes, and new weights as the reference code draws them."""

    config_class = RegionTransformerConfig
    _no_split_modules = ["RegionEncoderLayer", "WordDecoderLayer"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier-uniform matrices, each of several in one on its own; the region embedding as `torch` draws it."""
        super()._init_weights(module)
        # Parts of what was loaded would not be known as such.
        if not isinstance(module, (nn.Linear, nn.Embedding)) or getattr(module.weight, "_is_hf_initialized", False):
            return
        if module is not self.base_model.region_embedding.linear:
            for matrix in module.weight.chunk(getattr(module, "matrices", 1)):
                nn.init.xavier_uniform_(matrix)


class RegionTransformerModel(RegionTransformerPreTrainedModel, RegionCaptionerModel):
    """Region embedding, encoder and decoder, without an output layer: hidden states of the text.

    Example:
        >>> config = RegionTransformerConfig(50, 32, 1, 1, 2, 64, region_feature_size=6)
        >>> ids, regions = torch.ones(2, 7, dtype=torch.long), torch.rand(2, 3, 6)
        >>> RegionTransformerModel(config)(ids, region_features=regions).last_hidden_state.shape
        torch.Size([2, 7, 32])
    """

    def __init__(self, config: RegionTransformerConfig) -> None:
        super().__init__(config)
        self.encoder: nn.ModuleList = nn.ModuleList(
            [RegionEncoderLayer(config) for _ in range(config.num_encoder_layers)]
        )
        self.encoder_norm: nn.Module = layer_norm(config.norm, config.hidden_size, config.layer_norm_eps)
        self.decoder: nn.ModuleList = nn.ModuleList(
            [WordDecoderLayer(config, index) for index in range(config.num_decoder_layers)]
        )
        self.decoder_norm: nn.Module = layer_norm(config.norm, config.hidden_size, config.layer_norm_eps)
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)
        self.post_init()

    def encode(self, embedded: torch.Tensor, mask: torch.Tensor | None, features: torch.Tensor) -> EncodedImages:
        """Regions that have seen each other; where some are padded, only the others are computed."""
        packed, visible, states = None, None, embedded
        read = known(mask)
        if read is not None:
            row = read.nonzero()[0]  # (valid regions,)
            packed = pack_rows(row, len(read), row, mask.device)
            states = embedded.flatten(0, 1)[to_device(np.flatnonzero(read), mask.device)][None]
            mask = packed.owner >= 0
        if mask is not None:
            visible = mask[:, None, None]  # (images, 1, 1, regions)
        for layer in self.encoder:
            states = layer(states, visible, packed)
        states = self.encoder_norm(states)
        return EncodedImages(states if packed is None else packed.pack(states), mask)

    def decode(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        images: EncodedImages | None,
        cache: Cache | None,
        use_cache: bool,
        relevant: np.ndarray | None,
        **options: Any,
    ) -> tuple[torch.Tensor, Cache | None]:
        """See `RegionCaptionerModel.decode`; packed, only relevant tokens are computed, a row being an image's."""
        past = 0 if images is not None else cache.get_seq_length()
        length = input_ids.shape[1]
        self._validate_length(past + length)
        cache, image_keys = self._image_keys(images, cache, use_cache)
        images = cache.images if images is None else images
        positions = _positions(attention_mask, past, length, input_ids.device)
        if images.index is not None and torch.compiler.is_compiling():  # one graph of fixed shapes: no rows to pack
            image_keys = [(key[images.index], value[images.index]) for key, value in image_keys]
            images = images.per_text()
        table = sinusoids(past + length, self.config.hidden_size, input_ids.device)
        if relevant is not None and not relevant.any():
            relevant = None
        packed_text, packed_images, text_mask = self._layout(input_ids, attention_mask, images, past, relevant)
        shape = input_ids.shape
        if relevant is not None:
            places = to_device(np.flatnonzero(relevant), input_ids.device)  # (tokens,)
            positions = positions.expand(shape).flatten()[places][None]
            input_ids = input_ids.flatten()[places][None]  # (1, tokens)
        words = self.word_embedding(input_ids)
        states = self.dropout(words * math.sqrt(self.config.hidden_size) + table[positions].to(words.dtype))
        image_mask = None if images.mask is None else images.mask[:, None, None]  # (images, 1, 1, regions)
        for layer, keys in zip(self.decoder, image_keys, strict=True):
            states = layer(states, text_mask, packed_text, keys, image_mask, packed_images, **{CACHE_NAME: cache})
        states = self.decoder_norm(states)
        if relevant is not None:
            states = states.new_zeros(shape.numel(), states.shape[-1]).index_copy(0, places, states[0])
            states = states.unflatten(0, shape)
        return states, cache

    def _validate_length(self, length: int) -> None:
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"The text has {length} tokens, but the model has {self.config.max_position_embeddings} positions. "
                "Truncate it, or build the model with a larger `max_position_embeddings`."
            )

    def _image_keys(
        self, images: EncodedImages | None, cache: Cache | None, use_cache: bool
    ) -> tuple[ImageTextCache | None, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The cache, and keys and values of the images for each layer, computed once per image."""
        if images is None:
            if not isinstance(cache, ImageTextCache):
                raise ValueError(
                    f"The cache is a {type(cache).__name__}, which has keys of text and none of its images. "
                    "Continue with the cache that the model returned."
                )
            return cache, cache.image_keys
        image_keys = [layer.image_attention.keys(images.features) for layer in self.decoder]
        return ImageTextCache(images, image_keys) if use_cache else None, image_keys

    def _layout(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        images: EncodedImages,
        past: int,
        relevant: np.ndarray | None,
    ) -> tuple[PackedText | None, PackedText | None, torch.Tensor | None]:
        """How tokens are put in rows for attention to text and to images, and the mask of the text."""
        length, index = input_ids.shape[1], images.index
        attention = self.config._attn_implementation
        if relevant is not None:
            owner = relevant.nonzero()[0]  # (relevant tokens,)
            row = owner if index is None else known_or_read(index)[owner]
            packed = pack_rows(row, len(images.features), owner, input_ids.device)
            dtype = self.word_embedding.weight.dtype
            return packed, packed, packed.visible() if attention == "eager" else packed.added_mask(dtype)
        mask = _text_mask(attention_mask, past, length, input_ids.device, attention)
        if index is None:
            return None, None, mask
        row = np.repeat(known_or_read(index), length)
        return None, pack_rows(row, len(images.features), row, input_ids.device), mask


def sinusoids(length: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Sines and cosines of positions 0 to `length` - 1, in turns, float32 (length, width)."""
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angles = torch.arange(length, device=device)[:, None] * rate  # (length, half the width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def _left_padding(attention_mask: torch.Tensor) -> torch.Tensor:
    """Tokens of padding before each text, (texts, 1)."""
    return ((attention_mask != 0).cumsum(1) == 0).sum(1, keepdim=True)


def _positions(attention_mask: torch.Tensor | None, past: int, length: int, device: torch.device) -> torch.Tensor:
    """Positions of the new tokens, counted from the first that is no padding; (texts or 1, length)."""
    columns = torch.arange(past, past + length, device=device)[None]
    return columns if attention_mask is None else (columns - _left_padding(attention_mask)).clamp(min=0)


def _text_mask(
    attention_mask: torch.Tensor | None, past: int, length: int, device: torch.device, implementation: str
) -> torch.Tensor | None:
    """True where a new token sees one of the text so far, bool (texts or 1, 1, length, past + length)."""
    if attention_mask is None and (length == 1 or (past == 0 and implementation == "sdpa")):
        return None
    keys = torch.arange(past + length, device=device)
    queries = keys[past:, None]
    visible = (keys <= queries)[None, None]
    if attention_mask is None:
        return visible
    before = (keys < _left_padding(attention_mask))[:, None, None]  # (texts, 1, 1, past + length)
    return visible & ((attention_mask != 0)[:, None, None] | (before & (keys == queries)))


class RegionTransformerForCausalLM(RegionTransformerPreTrainedModel, RegionCaptionerForCausalLM):
    """A Transformer that writes or scores captions of images from their regions.

    Regions pass a linear layer and an encoder. Words, with sines as positions, pass a decoder that reads both.

    Args:
        config: what to build; see `RegionTransformerConfig`.

    Source: Vaswani et al. 2017; Zhang et al. 2022 (Simi-CL), section 4.1, "Transformer" in Table 1.

    Example:
        >>> config = RegionTransformerConfig(50, 32, 1, 1, 2, 64, region_feature_size=6)
        >>> model = RegionTransformerForCausalLM(config)
        >>> ids, regions = torch.randint(0, 49, (2, 7)), torch.rand(2, 3, 6)
        >>> model(ids, region_features=regions).logits.shape
        torch.Size([2, 7, 50])
    """

    model_class = RegionTransformerModel


register(RegionTransformerConfig, RegionTransformerModel, RegionTransformerForCausalLM)
