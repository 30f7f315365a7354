"""GIT: any vision transformer, and a causal text decoder that reads its hidden states as a prefix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    DynamicCache,
    GitProcessor,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_curriculum.models.base import (
    CACHE_NAME,
    CaptionGenerationMixin,
    FrozenTowerMixin,
    SharedImages,
    as_asked,
    hidden_state_indices,
    restarting_texts,
    share_images,
    takes_cache,
    validate_alternatives,
)
from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.models.git.layers import (
    CaptionGitEmbeddings,
    CaptionGitEncoder,
    CaptionGitProjection,
    build_vision_tower,
    image_and_text_mask,
    text_attention_mask,
)
from hf_curriculum.models.operations import of_images, of_layer
from hf_curriculum.models.packed_loss import added_mask, compute_dtype, pack


class CaptionGitPreTrainedModel(PreTrainedModel):
    """Class attributes of both GIT classes."""

    config_class: type[CaptionGitConfig] = CaptionGitConfig
    base_model_prefix = "git"
    input_modalities: tuple[str, ...] = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules = ["CaptionGitEmbeddings", "CaptionGitLayer"]  # noqa: RUF012
    _skip_keys_device_placement = [CACHE_NAME]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True


class CaptionGitModel(FrozenTowerMixin, CaptionGitPreTrainedModel):
    """Vision tower, projection and decoder, without an output layer: hidden states of the text.

    Example:
        >>> config = CaptionGitConfig(vocab_size=50, hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
        >>> CaptionGitModel(config)(torch.ones(2, 7, dtype=torch.long)).last_hidden_state.shape
        torch.Size([2, 7, 32])
    """

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__(config)
        self.embeddings: CaptionGitEmbeddings = CaptionGitEmbeddings(config)
        self.image_encoder: Any = build_vision_tower(config)
        self.encoder: CaptionGitEncoder = CaptionGitEncoder(config)
        self.visual_projection: CaptionGitProjection = CaptionGitProjection(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value

    @property
    def vision_tower(self) -> Any:
        """The vision tower, by the name under which `get_encoder(modality="image")` looks for it."""
        return self.image_encoder

    def encode_images(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool = False) -> torch.Tensor:
        """Hidden states of the vision tower, its class token included.

        Args:
            pixel_values: shape (images, channels, height, width).
            interpolate_pos_encoding: let the tower stretch its positions to another image size.

        Returns:
            Shape (images, image tokens, vision width): what `forward` takes as `image_features`.

        Raises:
            ValueError: `pixel_values` has not four dimensions.
        """
        if pixel_values.ndim != 4:
            raise ValueError(
                f"pixel_values has the shape {tuple(pixel_values.shape)}. GIT takes one image per caption: (batch, "
                "channels, height, width). Videos are not supported; stack single images."
            )
        # Only towers that can stretch their positions have the argument.
        options = {"interpolate_pos_encoding": True} if interpolate_pos_encoding else {}
        return self.image_encoder(pixel_values=pixel_values, **options).last_hidden_state

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        output_hidden_states: bool | int | Sequence[int] | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        image_index: torch.Tensor | None = None,
        relevant: np.ndarray | None = None,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """As `CaptionGitForCausalLM.forward`; `last_hidden_state` has the text alone, (batch, text, width).

        Tokens that are not `relevant`, bool (batch, text), may be left out, and their hidden states are undefined.
        """
        validate_alternatives(input_ids, inputs_embeds, pixel_values, image_features)
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        layers = len(self.encoder.layer)
        wanted_states = hidden_state_indices(output_hidden_states, config.output_hidden_states, layers)
        attention = config._attn_implementation
        if output_attentions and attention != "eager":
            raise ValueError(
                f"output_attentions=True, but attention runs as {attention!r}, which never "
                "forms the weights. Load the model with `attn_implementation='eager'`."
            )
        words = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if pixel_values is not None:
            image_features = self.encode_images(pixel_values, interpolate_pos_encoding)
        owner = restarting_texts(position_ids, attention_mask, cache, use_cache, attention)
        if use_cache is None:
            use_cache = config.use_cache and not self.training and image_index is None and owner is None
        if use_cache and cache is None:
            cache = DynamicCache(config=config)
        shared = share_images(image_index, image_features, len(words), continues=cache is not None)
        own_images = image_features if shared is None else None
        _validate_inputs(words, own_images, attention_mask, position_ids, cache, config.max_position_embeddings)
        if position_ids is None:
            position_ids = _text_positions(attention_mask, words.shape[1], words.device)
        packs = image_features is None and owner is None and not (wanted_states or output_attentions)
        if not packs or attention not in ("sdpa", "eager"):
            relevant = None  # after an image text is few of the rows; flash kernels have no mask for packed texts
        # Stored features are float16.
        image = None if image_features is None else self.visual_projection(image_features.to(words.dtype))
        outputs = self._decode(
            words,
            position_ids,
            image,
            attention_mask,
            cache,
            shared,
            wanted_states,
            output_attentions,
            relevant,
            owner,
        )
        return as_asked(outputs, return_dict, config.return_dict)

    def _decode(
        self,
        words: torch.Tensor,
        position_ids: torch.Tensor,
        image: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        cache: Cache | None,
        shared: SharedImages | None,
        wanted_states: Collection[int],
        output_attentions: bool | None,
        relevant: np.ndarray | None,
        owner: torch.Tensor | None,
    ) -> BaseModelOutputWithPast:
        """Runs the layers on image and text; the last one skips the image rows unless its states are wanted."""
        attention = self.config._attn_implementation
        image_length = 0 if image is None else image.shape[1]
        packed = None if relevant is None else pack(relevant)
        if packed is not None:
            packed = packed.to(words.device)
            position_ids = packed.pack(position_ids.expand(words.shape[:2]))
            words = packed.pack(words)
            text_mask = packed.visible() if attention == "eager" else packed.added_mask(compute_dtype(words))
        else:
            length = words.shape[1]
            key_length = _cached_length(cache) + image_length + length
            text_mask = text_attention_mask(attention_mask, length, key_length, words.device, attention, owner)
            if attention == "sdpa" and text_mask is not None:  # as it is added to scores: once, not in every layer
                joint = image is not None and shared is None
                text_mask = image_and_text_mask(text_mask, image_length) if joint else text_mask
                text_mask = added_mask(text_mask, compute_dtype(words))
        hidden_states = self.embeddings(words, position_ids)  # (batch, text, width)
        if shared is not None:
            image_length = shared.image_rows
            hidden_states = shared.join(image, hidden_states)
        elif image is not None:
            hidden_states = torch.cat([image, hidden_states], dim=1)
        states, attentions, text_only = [hidden_states], [], False
        last = len(self.encoder.layer)
        for number, layer in enumerate(self.encoder.layer, start=1):
            text_only = number == last and last not in wanted_states
            hidden_states, weights = layer(
                hidden_states, image_length, text_mask, text_only, shared=shared, **{CACHE_NAME: cache}
            )
            states.append(hidden_states if number in wanted_states else None)
            attentions.append(weights)
        states[0] = states[0] if 0 in wanted_states else None
        text = hidden_states if text_only else hidden_states[:, image_length:]
        if shared is not None:
            text = shared.text_of(text)
            states = [None if part is None else shared.repeated(part) for part in states]
        return BaseModelOutputWithPast(
            last_hidden_state=text if packed is None else packed.unpack(text),
            hidden_states=tuple(states) if wanted_states else None,
            attentions=tuple(attentions) if output_attentions else None,
            **{CACHE_NAME: cache},
        )


def _text_positions(attention_mask: torch.Tensor | None, length: int, device: torch.device) -> torch.Tensor:
    """Positions of the last `length` tokens, counting no padding; shape (batch or 1, length)."""
    if attention_mask is None:
        return torch.arange(length, device=device)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]


def _cached_length(cache: Cache | None) -> int:
    """The number of cached tokens, those of the image included."""
    return 0 if cache is None else cache.get_seq_length()


def _validate_inputs(
    words: torch.Tensor,
    image_features: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None,
    max_positions: int,
) -> None:
    """Raises where shapes of text, images, mask and cache do not fit together."""
    batch, length = words.shape[:2]
    if cache is not None and cache.is_compileable:
        raise ValueError(
            f"The cache is a {type(cache).__name__} of fixed length. GIT's image tokens take positions in "
            "it that `generate` does not count. Use the default cache."
        )
    past_length = _cached_length(cache)
    if length > max_positions:
        raise ValueError(
            f"The text has {length} tokens, but the model has {max_positions} positions. Truncate it, or build the "
            "model with a larger `max_position_embeddings`."
        )
    if image_features is not None and image_features.shape[0] != batch:
        raise ValueError(
            f"There are {image_features.shape[0]} images for {batch} texts. Every text reads one image: repeat the "
            "images, or their `encode_images`, with `repeat_interleave`, or pass `image_index`."
        )
    if image_features is not None and past_length:
        raise ValueError(
            f"An image was given with a cache of {past_length} tokens. Image tokens come before all text: give the "
            "image with the first call alone."
        )
    if past_length and attention_mask is None and position_ids is None:
        raise ValueError(
            f"The cache holds {past_length} tokens, and how many of them are text is not known. Pass `position_ids`, "
            "or the `attention_mask` of all text so far."
        )
    if attention_mask is not None:
        rows, width = attention_mask.shape if attention_mask.ndim == 2 else (0, 0)
        if rows != batch or not length <= width <= length + past_length:
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)} for {batch} texts of {length} new "
                f"tokens after {past_length} cached ones. It covers the text alone, image tokens are always visible: "
                f"pass (batch, text) with {length} to {length + past_length} columns."
            )


class CaptionGitForCausalLM(CaptionGitPreTrainedModel, CaptionGenerationMixin):
    """GIT with an output layer: writes or scores captions, and is a plain language model without an image.

    Image tokens see each other and no text; a text token sees the whole image and the text up to itself. Weights carry
    the names of stock `GitForCausalLM`, and with its vision tower they load both ways (`git_from_stock`,
    `git_to_stock`).

    Args:
        config: what to build; see `CaptionGitConfig`.

    Source: Wang et al. 2022 (GIT), section 3.2; Saha et al. 2024 (BabyLM), sections 3.1 and 3.2.

    Example:
        >>> from hf_curriculum.models.git.build import small_git_config
        >>> model = CaptionGitForCausalLM(small_git_config(vocab_size=50))
        >>> ids = torch.randint(5, 50, (2, 7))
        >>> model(ids, pixel_values=torch.rand(2, 3, 64, 64)).logits.shape
        torch.Size([2, 7, 50])
    """

    _tied_weights_keys = {"output.weight": "git.embeddings.word_embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__(config)
        self.git: CaptionGitModel = CaptionGitModel(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=config.output_bias)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.output: Any = new_embeddings

    def floating_point_ops(self, input_dict: Mapping[str, Any], exclude_embeddings: bool = True) -> int:
        """Multiplications and additions of a forward and backward pass over a batch, attention included.

        The backward pass counts as two forward passes, and a frozen tower has none. In the last decoder layer image
        tokens give keys and values alone; padding is counted.
        """
        config, (texts, length) = self.config, input_dict["input_ids"].shape
        (images, *_), seen, tower = of_images(config.vision_config, input_dict)
        width, depth, inner = config.hidden_size, config.num_hidden_layers, config.intermediate_size
        of_text = length * (depth * of_layer(width, inner, seen + length) + 2 * width * config.vocab_size)
        of_image = seen * ((depth - 1) * of_layer(width, inner, seen) + 4 * width**2)
        of_image += 2 * seen * config.vision_config.hidden_size * width
        passes = 3 if next(self.git.image_encoder.parameters()).requires_grad else 1
        return passes * images * tower + 3 * (images * of_image + texts * of_text)

    def freeze_vision_tower(self) -> None:
        """Takes the vision tower out of training (the projection after it stays in), as the challenge's baseline."""
        self.git.image_encoder.requires_grad_(False).eval()

    def _leaves_tokens_out(self, inputs: Mapping[str, Any]) -> bool:
        return inputs["pixel_values"] is None and inputs["image_features"] is None  # after an image text is few rows

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        output_hidden_states: bool | int | Sequence[int] | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        image_index: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """Scores the next token after every text token; image positions are never scored.

        Args:
            input_ids: text, shape (batch, text).
            attention_mask: 1 for tokens, 0 for padding on either side, over the text alone (cached text included);
                `None` where nothing is padded. Shape (batch, text).
            position_ids: the tokens' positions in the text, (batch or 1, text). By default padding is not counted.
                Where they restart in a row (without a mask and a cache), it holds several texts: none reads another,
                all read the row's image.
            pixel_values: one image per text, shape (batch, channels, height, width); `None` for text alone.
            image_features: instead of an image, its `encode_images`, (batch, image tokens, vision width).
            inputs_embeds: instead of `input_ids`, embedded words, (batch, text, width).
            labels: usually `input_ids`, with -100 where nothing is to be predicted; position i is scored on the label
                of i + 1. Shape (batch, text). With labels nothing is cached.
            cache: keys and values of the image and the text before `input_ids`. Before `transformers` 5.24 its name is
                `past_key_values`, here and in what is returned; 5.24 takes that name with a warning.
            use_cache: return keys and values; outside of training the configuration's `use_cache` by default.
            interpolate_pos_encoding: let the vision tower stretch its positions to another image size.
            logits_to_keep: score the last n tokens only, or those at these indices; 0 is all.
            output_hidden_states: return the input and each layer's output, (batch, image + text, width); with indices,
                `[0, 2]`, those alone, and `None` in place of the others.
            output_attentions: return what text attends to, a layer's weights being (batch, heads, text, image + text);
                needs eager attention.
            return_dict: `False` returns a tuple; the configuration's `return_dict` by default.
            image_index: where texts share images, the image of each, (batch,) int64; there may then be fewer
                images than texts. Each is encoded, and passes the decoder, once for all its texts, with the loss and
                gradients (without dropout) of one image per text. Nothing is cached.
            kwargs: for the loss, such as `num_items_in_batch`: the loss is then the sum divided by it.

        Returns:
            `loss`, the mean over labels that are not -100, and `logits`, shape (batch, text, vocabulary). In training
            with labels `logits` is `None`: the loss is computed from those of labelled tokens alone, a part at a time.

        Raises:
            ValueError: inputs exclude each other, lengths do not fit, a cache is continued without positions, or
                `labels` come with `logits_to_keep`. Or the attention does not form the weights asked for,
                `image_index` does not fit, or positions restart where texts cannot be kept apart.
        """
        return self._language_model(
            labels,
            logits_to_keep,
            return_dict,
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            pixel_values=pixel_values,
            image_features=image_features,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            interpolate_pos_encoding=interpolate_pos_encoding,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            image_index=image_index,
        )


AutoModel.register(CaptionGitConfig, CaptionGitModel, exist_ok=True)
AutoModelForCausalLM.register(CaptionGitConfig, CaptionGitForCausalLM, exist_ok=True)
AutoModelForImageTextToText.register(CaptionGitConfig, CaptionGitForCausalLM, exist_ok=True)
AutoProcessor.register(CaptionGitConfig, GitProcessor, exist_ok=True)
# `register` leaves the names alone, by which `Trainer` decides whether smoothed labels are those of the next token.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CaptionGitConfig.model_type] = CaptionGitForCausalLM.__name__
