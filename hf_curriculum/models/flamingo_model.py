"""Flamingo without an output layer: a frozen vision tower, a resampler, and a decoder with gated blocks between."""

from __future__ import annotations

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel, initialization
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.opt.modeling_opt import OPTDecoder

from hf_curriculum.models.flamingo_config import CaptionFlamingoConfig
from hf_curriculum.models.flamingo_inputs import (
    as_images,
    cached_latents,
    check_image_numbers,
    check_text,
    count_images,
    visible_latents,
)
from hf_curriculum.models.flamingo_layers import CaptionFlamingoGatedLayer, CaptionFlamingoPerceiver
from hf_curriculum.models.git_layers import build_vision_tower
from hf_curriculum.models.git_shared import share_images
from hf_curriculum.models.packed_text import PackedText, pack


class CaptionFlamingoPreTrainedModel(PreTrainedModel):
    """What both Flamingo classes tell `transformers` about themselves."""

    config_class = CaptionFlamingoConfig
    base_model_prefix = "flamingo"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules = [  # noqa: RUF012
        "OPTDecoderLayer",
        "CaptionFlamingoGatedLayer",
        "CaptionFlamingoPerceiver",
    ]
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
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


class CaptionFlamingoModel(CaptionFlamingoPreTrainedModel):
    """Vision tower, resampler, decoder and gated blocks, without an output layer: hidden states of the text.

    Example:
        >>> from hf_curriculum.models.flamingo_build import small_flamingo_config
        >>> model = CaptionFlamingoModel(small_flamingo_config(50))
        >>> model(torch.ones(2, 7, dtype=torch.long)).last_hidden_state.shape
        torch.Size([2, 7, 96])
    """

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__(config)
        self.vision_tower = build_vision_tower(config)
        self.perceiver = CaptionFlamingoPerceiver(config)
        self.decoder = OPTDecoder(config.text_config)
        blocks = -(-config.text_config.num_hidden_layers // config.cross_attention_every)
        self.gated_layers = nn.ModuleList([CaptionFlamingoGatedLayer(config, index) for index in range(blocks)])
        self.post_init()
        self.vision_tower.requires_grad_(False).eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.embed_tokens = value

    def train(self, mode: bool = True) -> CaptionFlamingoModel:
        """Training mode for all but the vision tower, which stays frozen and as it is evaluated."""
        super().train(mode)
        # Frozen here as well, because loading a checkpoint makes new parameters, and then calls `eval()`.
        self.vision_tower.requires_grad_(False).eval()
        return self

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
        rows = as_images(pixel_values, 3, "pixel_values", len(pixel_values), self.config.max_images)
        # Only towers that can stretch their positions have the argument.
        options = {"interpolate_pos_encoding": True} if interpolate_pos_encoding else {}
        states = self.vision_tower(pixel_values=rows.flatten(0, 1), **options).last_hidden_state
        return states if pixel_values.ndim == 4 else states.unflatten(0, rows.shape[:2])

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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        output_hidden_states: bool | None = None,
        needed: torch.Tensor | None = None,
    ) -> BaseModelOutputWithPast:
        """As `CaptionFlamingoForCausalLM.forward`; `last_hidden_state` has the shape (batch, text, width).

        Of tokens that are not `needed`, bool (batch, text), it means nothing, and nothing may be computed for them.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Flamingo reads one text: pass `input_ids` or `inputs_embeds`, and not both.")
        if pixel_values is not None and image_features is not None:
            raise ValueError(
                "Both `pixel_values` and `image_features` were given. The features replace the picture: pass one."
            )
        words = self.decoder.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length = words.shape[:2]
        if pixel_values is not None:
            image_features = self.encode_images(pixel_values, interpolate_pos_encoding)
        past_length = check_text(
            batch,
            length,
            attention_mask,
            position_ids,
            past_key_values,
            image_features is not None,
            self.config.text_config.max_position_embeddings,
        )
        share_images(image_index, image_features, batch, continues=False)  # for its errors alone
        images = None if image_features is None else self._resample(image_features, image_index, batch)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if past_key_values is not None and images is not None:
            past_key_values = EncoderDecoderCache(_of_text(past_key_values), DynamicCache())
        seen = cached_latents(past_key_values) if images is None else images.shape[1]
        if seen:
            image_numbers = self._image_numbers(image_numbers, input_ids, seen, past_length)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if position_ids is None:
            position_ids = self._positions(attention_mask, past_length, length, words.device)
        packed = None if needed is None or past_key_values is not None or output_hidden_states else pack(needed)
        return self._decode(
            words,
            attention_mask,
            position_ids,
            images,
            image_numbers,
            seen,
            past_key_values,
            output_hidden_states,
            packed,
        )

    def _resample(self, features: torch.Tensor, image_index: torch.Tensor | None, batch: int) -> torch.Tensor:
        """Latents of each text's pictures, (batch, images · latents, width); shared pictures are resampled once."""
        rows = batch if image_index is None else len(features)
        features = as_images(features, 2, "image_features", rows, self.config.max_images)
        latents = self.perceiver(features.to(self.perceiver.projection.weight.dtype))
        return latents if image_index is None else latents[image_index]

    def _image_numbers(
        self, given: torch.Tensor | None, input_ids: torch.Tensor | None, seen: int, past_length: int
    ) -> torch.Tensor:
        """Which picture each new token sees, given or counted."""
        if given is None:
            if input_ids is None or past_length:
                raise ValueError(
                    "Which picture each token sees is counted from the `<image>` tokens of the whole text, but the "
                    "text was given as embeddings or is partly in the cache. Pass `image_numbers`, as `count_images` "
                    "makes them from all tokens, for the new tokens."
                )
            given = count_images(input_ids, self.config.image_token_id)
        if not past_length:
            check_image_numbers(given, seen // self.config.perceiver_latents, self.config)
        return given

    def _positions(
        self, attention_mask: torch.Tensor | None, past_length: int, length: int, device: torch.device
    ) -> torch.Tensor:
        """OPT's positions: tokens are counted, padding stands at -1 (the embedding adds 2)."""
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
        past_key_values: Cache | None,
        output_hidden_states: bool,
        packed: PackedText | None,
    ) -> BaseModelOutputWithPast:
        """OPT's decoder with the gated blocks between its layers; without a picture the blocks are left out."""
        decoder, text_cache = self.decoder, _of_text(past_key_values)
        visible, no_image = None, None
        if seen:
            latents = self.config.perceiver_latents
            visible = visible_latents(image_numbers, seen // latents, latents)
            no_image = (image_numbers == 0)[..., None]  # (batch, text, 1)
        if packed is None:
            mask = create_causal_mask(
                config=self.config.text_config,
                inputs_embeds=words,
                attention_mask=attention_mask,
                past_key_values=text_cache,
            )
        else:
            words, position_ids = packed.together(words), packed.together(position_ids.expand(words.shape[:2]))
            no_image = packed.together(no_image) if seen else None
            mask = packed.added_mask(words.dtype)
        if decoder.project_in is not None:
            words = decoder.project_in(words)
        # With `position_ids` OPT's embedding looks at no mask.
        hidden_states = words + decoder.embed_positions(None, position_ids=position_ids)  # (batch, text, width)
        states = [hidden_states]
        for index, layer in enumerate(decoder.layers):
            block, rest = divmod(index, self.config.cross_attention_every)
            if seen and rest == 0:
                hidden_states = self.gated_layers[block](
                    hidden_states, images, visible, no_image, past_key_values=past_key_values, packed=packed
                )
            hidden_states = layer(
                hidden_states, attention_mask=mask, past_key_values=text_cache, position_ids=position_ids
            )
            states.append(hidden_states)
        if decoder.final_layer_norm is not None:
            hidden_states = decoder.final_layer_norm(hidden_states)
        if decoder.project_out is not None:
            hidden_states = decoder.project_out(hidden_states)
        if packed is not None:
            hidden_states = packed.apart(hidden_states)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_states,
            past_key_values=past_key_values,
            hidden_states=(*states[:-1], hidden_states) if output_hidden_states else None,
        )


def _of_text(past_key_values: Cache | None) -> Cache | None:
    """The part of a cache that the decoder's own layers use."""
    if isinstance(past_key_values, EncoderDecoderCache):
        return past_key_values.self_attention_cache
    return past_key_values
