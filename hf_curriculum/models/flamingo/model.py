"""Flamingo: a decoder that was made for text reads images through gated cross-attention."""

from __future__ import annotations

import copy
import math
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
    GenerationConfig,
    GitProcessor,
    PreTrainedModel,
    initialization,
)
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.opt.modeling_opt import OPTDecoder

from hf_curriculum.models.base import (
    CACHE_NAME,
    CaptionGenerationMixin,
    FrozenTowerMixin,
    as_asked,
    generation_setting,
    hidden_state_indices,
    restarting_texts,
    share_images,
    takes_cache,
    validate_alternatives,
)
from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.flamingo.layers import (
    CaptionFlamingoGatedLayer,
    CaptionFlamingoPerceiver,
    cached_latents,
    count_images,
    validate_image_numbers,
    validate_text,
    visible_latents,
    with_image_dimension,
)
from hf_curriculum.models.git.layers import build_vision_tower
from hf_curriculum.models.on_host import known, known_or_read
from hf_curriculum.models.operations import of_images, of_layer
from hf_curriculum.models.packed_loss import PackedText, added_mask, pack


class CaptionFlamingoPreTrainedModel(PreTrainedModel):
    """Class attributes and initialisation of both Flamingo classes."""

    config_class: type[CaptionFlamingoConfig] = CaptionFlamingoConfig
    base_model_prefix = "flamingo"
    input_modalities: tuple[str, ...] = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules = [  # noqa: RUF012
        "OPTDecoderLayer",
        "CaptionFlamingoGatedLayer",
        "CaptionFlamingoPerceiver",
    ]
    _skip_keys_device_placement = [CACHE_NAME]  # noqa: RUF012
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, CaptionFlamingoGatedLayer):
            initialization.zeros_(module.attention_gate)
            initialization.zeros_(module.feed_forward_gate)
        elif isinstance(module, CaptionFlamingoPerceiver):
            initialization.normal_(module.latents)
            initialization.normal_(module.image_positions)


class CaptionFlamingoModel(FrozenTowerMixin, CaptionFlamingoPreTrainedModel):
    """Vision tower, resampler, decoder and gated blocks, without an output layer: hidden states of the text.

    Example:
        >>> from hf_curriculum.models.flamingo.build import small_flamingo_config
        >>> model = CaptionFlamingoModel(small_flamingo_config(50))
        >>> model(torch.ones(2, 7, dtype=torch.long)).last_hidden_state.shape
        torch.Size([2, 7, 96])
    """

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__(config)
        self.vision_tower: Any = build_vision_tower(config)
        self.perceiver: CaptionFlamingoPerceiver = CaptionFlamingoPerceiver(config)
        self.decoder: OPTDecoder = OPTDecoder(config.text_config)
        blocks = -(-config.text_config.num_hidden_layers // config.cross_attention_every)
        self.gated_layers: nn.ModuleList = nn.ModuleList(
            [CaptionFlamingoGatedLayer(config, index) for index in range(blocks)]
        )
        self._has_looked = False
        self.post_init()
        self.vision_tower.requires_grad_(False).eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.embed_tokens = value

    def train(self, mode: bool = True) -> CaptionFlamingoModel:
        """Training mode for all but the vision tower, which stays frozen and as it is evaluated."""
        # Frozen here as well, because loading a checkpoint makes new parameters, and then calls `eval()`.
        self.vision_tower.requires_grad_(False)
        return super().train(mode)

    @torch.no_grad()
    def encode_images(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool = False) -> torch.Tensor:
        """Hidden states of the frozen vision tower: the same in every epoch, so they can be kept.

        Args:
            pixel_values: shape (texts, channels, height, width), or (texts, images, channels, height, width).
            interpolate_pos_encoding: let the tower stretch its positions to another image size.

        Returns:
            Shape (texts, image tokens, vision width), or (texts, images, image tokens, vision width): what `forward`
            takes as `image_features`.

        Raises:
            ValueError: `pixel_values` has neither four nor five dimensions.
        """
        rows = with_image_dimension(pixel_values, 3, "pixel_values", len(pixel_values), self.config.max_images)
        # Only towers that can stretch their positions have the argument.
        options = {"interpolate_pos_encoding": True} if interpolate_pos_encoding else {}
        states = self.vision_tower(pixel_values=rows.flatten(0, 1), **options).last_hidden_state
        return states if pixel_values.ndim == 4 else states.unflatten(0, rows.shape[:2])

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        image_index: torch.Tensor | None = None,
        image_numbers: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        output_hidden_states: bool | int | Sequence[int] | None = None,
        return_dict: bool | None = None,
        relevant: np.ndarray | None = None,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """As `CaptionFlamingoForCausalLM.forward`; `last_hidden_state` has the shape (batch, text, width).

        Tokens that are not `relevant`, bool (batch, text), may be left out, and their hidden states are undefined.
        """
        validate_alternatives(input_ids, inputs_embeds, pixel_values, image_features)
        layers = len(self.decoder.layers)
        wanted_states = hidden_state_indices(output_hidden_states, self.config.output_hidden_states, layers)
        words = self.decoder.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length = words.shape[:2]
        if pixel_values is not None:
            image_features = self.encode_images(pixel_values, interpolate_pos_encoding)
        has_images, max_positions = image_features is not None, self.config.text_config.max_position_embeddings
        past_length = validate_text(batch, length, attention_mask, position_ids, cache, has_images, max_positions)
        share_images(image_index, image_features, batch, continues=False)  # for its errors alone
        images = None if image_features is None else self._resample(image_features, image_index, batch)
        attention = self.config._attn_implementation
        owner = restarting_texts(position_ids, attention_mask, cache, use_cache, attention)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and owner is None
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if cache is not None and images is not None:
            cache = EncoderDecoderCache(_of_text(cache), DynamicCache())
        seen = cached_latents(cache) if images is None else images.shape[1]
        if seen:
            image_numbers = self._image_numbers(image_numbers, input_ids, seen, past_length)
        if position_ids is None:
            position_ids = self._positions(attention_mask, past_length, length, words.device)
        packs = relevant is not None and cache is None and owner is None and not wanted_states
        packed = pack(relevant) if packs else None
        packed = None if packed is None else packed.to(words.device)
        outputs = self._decode(
            words,
            attention_mask,
            position_ids,
            images,
            image_numbers,
            seen,
            cache,
            wanted_states,
            packed,
            owner is not None,
        )
        return as_asked(outputs, return_dict, self.config.return_dict)

    def _resample(self, features: torch.Tensor, image_index: torch.Tensor | None, batch: int) -> torch.Tensor:
        """Latents of each text's images, (batch, images · latents, width); shared images are resampled once."""
        rows = batch if image_index is None else len(features)
        features = with_image_dimension(features, 2, "image_features", rows, self.config.max_images)
        latents = self.perceiver(features.to(self.perceiver.projection.weight.dtype))
        return latents if image_index is None else latents[image_index]

    def _image_numbers(
        self, given: torch.Tensor | None, input_ids: torch.Tensor | None, seen: int, past_length: int
    ) -> torch.Tensor:
        """Which image each new token sees, given or counted."""
        counted = None
        if given is None:
            counted = input_ids
            if input_ids is None or past_length:
                raise ValueError(
                    "Which image each token sees is counted from the `<image>` tokens of the whole text, but the "
                    "text was given as embeddings or is partly in the cache. Pass `image_numbers`, as `count_images` "
                    "makes them from all tokens, for the new tokens."
                )
            given = count_images(input_ids, self.config.image_token_id)
        if not past_length:
            self._validate_image_numbers(given, counted, seen // self.config.perceiver_latents)
        return given

    def _validate_image_numbers(self, numbers: torch.Tensor, ids: torch.Tensor | None, images: int) -> None:
        """Checks every batch whose values are known on the host, of others the first, which takes a wait."""
        found = known(numbers) if ids is None else known(ids)
        if found is not None and ids is not None:
            found = (found == self.config.image_token_id).cumsum(1)
        if found is None and not (self._has_looked or torch.compiler.is_compiling() or numbers.is_meta):
            found = known_or_read(numbers)
        if found is not None:
            self._has_looked = True
            validate_image_numbers(found, images, self.config)

    def _positions(
        self, attention_mask: torch.Tensor | None, past_length: int, length: int, device: torch.device
    ) -> torch.Tensor:
        """OPT's positions: tokens are counted, padding is at -1 (the embedding adds 2)."""
        if attention_mask is None:
            return torch.arange(past_length, past_length + length, device=device)[None]
        mask = attention_mask.long()
        return (mask.cumsum(-1) * mask - 1)[:, past_length:]

    def _decode(
        self,
        words: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        images: torch.Tensor | None,
        image_numbers: torch.Tensor | None,
        seen: int,
        cache: Cache | None,
        wanted_states: Collection[int],
        packed: PackedText | None,
        restarts: bool,
    ) -> BaseModelOutputWithPast:
        """OPT's decoder with the gated blocks between its layers; without an image the blocks are left out."""
        decoder, text_cache = self.decoder, _of_text(cache)
        visible, no_image = None, None
        if seen:
            latents = self.config.perceiver_latents
            visible = visible_latents(image_numbers, seen // latents, latents)
            no_image = (image_numbers == 0)[..., None]  # (batch, text, 1)
        if packed is None:
            mask = self._text_mask(words, attention_mask, position_ids if restarts else None, text_cache)
        else:
            words, position_ids = packed.pack(words), packed.pack(position_ids.expand(words.shape[:2]))
            no_image = packed.pack(no_image) if seen else None
            mask = packed.added_mask(words.dtype)
        if decoder.project_in is not None:
            words = decoder.project_in(words)
        # With `position_ids` OPT's embedding looks at no mask.
        hidden_states = words + decoder.embed_positions(None, position_ids=position_ids)  # (batch, text, width)
        states = [hidden_states if 0 in wanted_states else None]
        for index, layer in enumerate(decoder.layers):
            block, rest = divmod(index, self.config.cross_attention_every)
            if seen and rest == 0:
                hidden_states = self.gated_layers[block](
                    hidden_states, images, visible, no_image, packed=packed, **{CACHE_NAME: cache}
                )
            hidden_states = layer(
                hidden_states, attention_mask=mask, position_ids=position_ids, **{CACHE_NAME: text_cache}
            )
            states.append(hidden_states if index + 1 in wanted_states else None)
        if decoder.final_layer_norm is not None:
            hidden_states = decoder.final_layer_norm(hidden_states)
        if decoder.project_out is not None:
            hidden_states = decoder.project_out(hidden_states)
        if packed is not None:
            hidden_states = packed.unpack(hidden_states)
        if len(decoder.layers) in wanted_states:
            states[-1] = hidden_states  # normalised
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_states,
            hidden_states=tuple(states) if wanted_states else None,
            **{CACHE_NAME: cache},
        )

    def _text_mask(
        self,
        words: torch.Tensor,
        attention_mask: torch.Tensor | None,
        restarting: torch.Tensor | None,
        cache: Cache | None,
    ) -> torch.Tensor | None:
        """The mask of the decoder's own layers, as `transformers` makes it, which would wait to see what is padded."""
        read = known(attention_mask)
        if attention_mask is None or (read is not None and read.all()):
            return create_causal_mask(
                config=self.config.text_config,
                inputs_embeds=words,
                attention_mask=None,
                position_ids=restarting,
                **{CACHE_NAME: cache},
            )
        keys = torch.arange(attention_mask.shape[1], device=words.device)
        visible = (keys <= keys[-words.shape[1] :, None]) & (attention_mask != 0)[:, None, None]
        return added_mask(visible, words.dtype) if self.config._attn_implementation == "eager" else visible


def _of_text(cache: Cache | None) -> Cache | None:
    """The part of a cache that the decoder's own layers use."""
    if isinstance(cache, EncoderDecoderCache):
        return cache.self_attention_cache
    return cache


class CaptionFlamingoForCausalLM(CaptionFlamingoPreTrainedModel, CaptionGenerationMixin):
    """Flamingo with an output layer: writes or scores captions, and is a plain language model without an image.

    The token `<image>` stands for an image in the text. Tokens from it on read the image's latents; those before the
    first one read nothing. After a second one only the second image is read. The vision tower is frozen and always in
    evaluation mode. Gates start at 0, where the model is its own language model, bit for bit.

    Args:
        config: what to build; see `CaptionFlamingoConfig`.

    Source: Alayrac et al. 2022 (Flamingo), section 2; Saha et al. 2024 (BabyLM), sections 3.1 and 3.2.

    Example:
        >>> from hf_curriculum.models.flamingo.build import small_flamingo_config
        >>> model = CaptionFlamingoForCausalLM(small_flamingo_config(50, image_token_id=49))
        >>> ids = torch.tensor([[2, 49, 7, 8, 3]])
        >>> model(ids, pixel_values=torch.rand(1, 3, 64, 64)).logits.shape
        torch.Size([1, 5, 50])
    """

    _tied_weights_keys = {"lm_head.weight": "flamingo.decoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__(config)
        text = config.text_config
        self.flamingo: CaptionFlamingoModel = CaptionFlamingoModel(config)
        self.lm_head = nn.Linear(text.word_embed_proj_dim, text.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head: Any = new_embeddings

    def floating_point_ops(self, input_dict: Mapping[str, Any], exclude_embeddings: bool = True) -> int:
        """Multiplications and additions of a forward and backward pass over a batch, attention included.

        The backward pass counts as two forward passes; the frozen tower has none. Padding is counted.
        """
        config, text, (texts, length) = self.config, self.config.text_config, input_dict["input_ids"].shape
        dimensions, seen, tower = of_images(config.vision_config, input_dict)
        images, latents, width = math.prod(dimensions), config.perceiver_latents, text.hidden_size
        inner = config.cross_attention_heads * config.cross_attention_head_dim
        two, feed_forward = 4 * width * inner, 4 * width * config.feed_forward_multiple * width  # two projections
        keys = latents * (dimensions[1] if len(dimensions) > 1 else 1)
        gated = length * (two + 4 * keys * inner + feed_forward) + keys * two if images else 0
        of_text = length * (text.num_hidden_layers * of_layer(width, text.ffn_dim, length))
        of_text += 2 * length * text.word_embed_proj_dim * text.vocab_size + len(self.flamingo.gated_layers) * gated
        resampled = (seen + latents) * two + latents * (two + 4 * (seen + latents) * inner + feed_forward)
        of_image = 2 * seen * config.vision_config.hidden_size * width + config.perceiver_depth * resampled
        return images * tower + 3 * (images * of_image + texts * of_text)

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        image_index: torch.Tensor | None = None,
        image_numbers: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        output_hidden_states: bool | int | Sequence[int] | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """Scores the next token after every text token.

        Args:
            input_ids: text with an `<image>` for each image, shape (batch, text).
            attention_mask: 1 for tokens, 0 for padding on either side, cached text included; `None` where nothing is
                padded. Shape (batch, text).
            position_ids: the tokens' positions in the text, (batch or 1, text). By default padding is not counted.
            pixel_values: one image per text, (batch, channels, height, width), or several, (batch, images, channels,
                height, width), zeros for missing ones; `None` for text alone.
            image_features: instead of images, their `encode_images`, (batch, [images,] image tokens, vision width),
                in any floating type.
            image_index: where texts share images, the image, or row of images, of each, (batch,) int64; there may
                then be fewer images than texts, and each is encoded and resampled once.
            image_numbers: which image each new token attends to, 0 for none, (batch, text); counted from `input_ids`
                by default, needed with `inputs_embeds` and with a cache.
            cache: keys and values of the images and of the text before `input_ids` (`past_key_values` before
                `transformers` 5.24). Continue with the cache that was returned: images make another one of it.
            output_attentions: not offered, so `True` is an error.
            inputs_embeds, labels, use_cache, interpolate_pos_encoding: as in `CaptionGitForCausalLM.forward`.
            logits_to_keep, output_hidden_states, return_dict, kwargs: as there.

        Returns:
            As `CaptionGitForCausalLM.forward`.

        Raises:
            ValueError: inputs that exclude each other, lengths that do not fit, images and `<image>` tokens that do
                not belong together, attention weights asked for, `labels` with `logits_to_keep`.
        """
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError(
                "output_attentions=True, but Flamingo's layers return no attention weights. Register a forward hook "
                "on the module you look into, with `attn_implementation='eager'`."
            )
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
            image_index=image_index,
            image_numbers=image_numbers,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            interpolate_pos_encoding=interpolate_pos_encoding,
            output_hidden_states=output_hidden_states,
        )

    @takes_cache
    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in `CaptionGenerationMixin`, with the image that each token attends to."""
        inputs = super().prepare_inputs_for_generation(input_ids, cache, image_features, inputs_embeds, **kwargs)
        if image_features is not None or cached_latents(cache):
            words = inputs.get("inputs_embeds")
            if words is not None and words.shape[1] != input_ids.shape[1]:
                raise ValueError(
                    f"There are {input_ids.shape[1]} ids beside `inputs_embeds` of {words.shape[1]}. "
                    "Which token reads an image is counted from the `<image>` tokens of the ids: pass an id for each."
                )
            numbers = count_images(input_ids, self.config.image_token_id)
            inputs["image_numbers"] = numbers[:, -(inputs["input_ids"] if words is None else words).shape[1] :]
        return inputs

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As in `CaptionGenerationMixin`; `<image>` is never written.

        Args:
            inputs: prompts with their `<image>` tokens, or `input_ids=`, shape (batch, text).
            generation_config: of `GenerationMixin.generate`, as are `args`.
            kwargs: of `CaptionGenerationMixin.generate` and `GenerationMixin.generate`.

        Returns:
            Prompts and continuations, shape (batch, text), or a dict of `GenerationMixin` if asked for.

        Raises:
            ValueError: several images per text without prompts, prompts as embeddings, and as in `forward`.
        """
        suppressed = generation_setting("suppress_tokens", kwargs, generation_config, self.generation_config) or []
        suppressed = sorted({*suppressed, self.config.image_token_id})
        if generation_config is None:
            kwargs["suppress_tokens"] = suppressed
        else:
            kwargs.pop("suppress_tokens", None)
            generation_config = copy.deepcopy(generation_config)
            generation_config.suppress_tokens = suppressed
        return super().generate(inputs, generation_config, *args, **kwargs)

    def _default_prompts(self, image_features: torch.Tensor, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """`[CLS] <image>` for each image, or `<image>` where texts have no first token."""
        if inputs_embeds is not None:
            raise ValueError(
                "Prompts were given as `inputs_embeds`, in which `<image>` tokens are not recognised, so it "
                "is not known which text reads the images. Pass `input_ids`."
            )
        if image_features.ndim == 4 and image_features.shape[1] > 1:
            raise ValueError(
                f"There are {image_features.shape[1]} images per text and no prompts: where the images are in "
                "the text is not known. Pass `input_ids` with an `<image>` for each."
            )
        start = self.generation_config.bos_token_id
        prompt = [] if start is None else [start]
        prompt.append(self.config.image_token_id)
        return torch.tensor([prompt], device=image_features.device).repeat(len(image_features), 1)


AutoModel.register(CaptionFlamingoConfig, CaptionFlamingoModel, exist_ok=True)
AutoModelForCausalLM.register(CaptionFlamingoConfig, CaptionFlamingoForCausalLM, exist_ok=True)
AutoModelForImageTextToText.register(CaptionFlamingoConfig, CaptionFlamingoForCausalLM, exist_ok=True)
AutoProcessor.register(CaptionFlamingoConfig, GitProcessor, exist_ok=True)
# `register` leaves the names alone, by which `Trainer` decides whether smoothed labels are those of the next token.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CaptionFlamingoConfig.model_type] = CaptionFlamingoForCausalLM.__name__
