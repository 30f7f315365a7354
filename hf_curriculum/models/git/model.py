"""GIT: any vision transformer, and a causal text decoder that reads its hidden states as a prefix."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_curriculum.models.git.config import CaptionGitConfig
from hf_curriculum.models.git.inputs import (
    SharedImages,
    check_alternatives,
    check_inputs,
    check_room,
    pad_left,
    prompt_mask,
    share_images,
    text_positions,
)
from hf_curriculum.models.git.layers import (
    CaptionGitEmbeddings,
    CaptionGitEncoder,
    CaptionGitProjection,
    build_vision_tower,
    text_attention_mask,
)
from hf_curriculum.models.packed_loss import needed_tokens, needs_no_logits, pack, token_loss


class CaptionGitPreTrainedModel(PreTrainedModel):
    """What both GIT classes tell `transformers` about themselves."""

    config_class = CaptionGitConfig
    base_model_prefix = "git"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules = ["CaptionGitEmbeddings", "CaptionGitLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True


class CaptionGitModel(CaptionGitPreTrainedModel):
    """Vision tower, projection and decoder, without an output layer: hidden states of the text.

    Example:
        >>> config = CaptionGitConfig(vocab_size=50, hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
        >>> CaptionGitModel(config)(torch.ones(2, 7, dtype=torch.long)).last_hidden_state.shape
        torch.Size([2, 7, 32])
    """

    def __init__(self, config: CaptionGitConfig) -> None:
        super().__init__(config)
        self.embeddings = CaptionGitEmbeddings(config)
        self.image_encoder = build_vision_tower(config)
        self.encoder = CaptionGitEncoder(config)
        self.visual_projection = CaptionGitProjection(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value

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
                f"pixel_values has the shape {tuple(pixel_values.shape)}. GIT takes one picture per caption: (batch, "
                "channels, height, width). Videos are not supported; stack single pictures."
            )
        # Only towers that can stretch their positions have the argument.
        options = {"interpolate_pos_encoding": True} if interpolate_pos_encoding else {}
        return self.image_encoder(pixel_values=pixel_values, **options).last_hidden_state

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        image_index: torch.Tensor | None = None,
        needed: torch.Tensor | None = None,
    ) -> BaseModelOutputWithPast:
        """As `CaptionGitForCausalLM.forward`; `last_hidden_state` has the text alone, (batch, text, width).

        Of tokens that are not `needed`, bool (batch, text), it means nothing, and nothing may be computed for them.
        """
        check_alternatives(input_ids, inputs_embeds, pixel_values, image_features)
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = (
            self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        )
        if output_attentions and self.config._attn_implementation != "eager":
            raise ValueError(
                f"output_attentions=True, but attention runs as {self.config._attn_implementation!r}, which never "
                "forms the weights. Load the model with `attn_implementation='eager'`."
            )
        words = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if pixel_values is not None:
            image_features = self.encode_images(pixel_values, interpolate_pos_encoding)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and image_index is None
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        shared = share_images(image_index, image_features, len(words), continues=past_key_values is not None)
        own_images = image_features if shared is None else None
        past_length = check_inputs(
            words, own_images, attention_mask, position_ids, past_key_values, self.config.max_position_embeddings
        )
        if position_ids is None:
            position_ids = text_positions(attention_mask, words.shape[1], words.device)
        image_length = 0 if image_features is None else image_features.shape[1]
        # Behind an image the text is a small part of the rows; flash kernels have no mask for several texts in a row.
        packs = needed is not None and image_features is None and not (output_hidden_states or output_attentions)
        attention = self.config._attn_implementation
        packed = pack(needed) if packs and attention in ("sdpa", "eager") else None
        if packed is not None:
            position_ids = packed.together(position_ids.expand(words.shape[:2]))
            words = packed.together(words)
            text_mask = packed.visible() if attention == "eager" else packed.added_mask(words.dtype)
        else:
            text_mask = text_attention_mask(
                attention_mask,
                query_length=words.shape[1],
                key_length=past_length + image_length + words.shape[1],
                device=words.device,
                implementation=attention,
            )
        hidden_states = self.embeddings(words, position_ids)  # (batch, text, width)
        if shared is not None:
            image_length = shared.image_rows
            hidden_states = shared.join(self.visual_projection(image_features), hidden_states)
        elif image_features is not None:
            hidden_states = torch.cat([self.visual_projection(image_features), hidden_states], dim=1)
        outputs = self._decode(
            hidden_states, image_length, text_mask, past_key_values, shared, output_hidden_states, output_attentions
        )
        if packed is not None:
            outputs.last_hidden_state = packed.apart(outputs.last_hidden_state)
        return outputs

    def _decode(
        self,
        hidden_states: torch.Tensor,
        image_length: int,
        text_mask: torch.Tensor | None,
        past_key_values: Cache | None,
        shared: SharedImages | None,
        output_hidden_states: bool | None,
        output_attentions: bool | None,
    ) -> BaseModelOutputWithPast:
        """Runs the layers; the last one skips the image rows unless somebody asked to see them."""
        states, attentions = [hidden_states], []
        last = len(self.encoder.layer) - 1
        for index, layer in enumerate(self.encoder.layer):
            text_only = index == last and not output_hidden_states
            hidden_states, weights = layer(
                hidden_states, image_length, text_mask, text_only, past_key_values=past_key_values, shared=shared
            )
            states.append(hidden_states)
            attentions.append(weights)
        text = hidden_states[:, image_length:] if output_hidden_states else hidden_states
        if shared is not None:
            text = shared.text_of(text)
            states = [shared.repeated(part) for part in states] if output_hidden_states else states
        return BaseModelOutputWithPast(
            last_hidden_state=text,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )


class CaptionGitForCausalLM(CaptionGitPreTrainedModel, GenerationMixin):
    """GIT with an output layer: writes captions, scores them, or is a plain language model without an image.

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
        self.git = CaptionGitModel(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=config.output_bias)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.output = new_embeddings

    def freeze_vision_tower(self) -> None:
        """Takes the vision tower out of training (the projection behind it stays in), as the challenge's baseline."""
        self.git.image_encoder.requires_grad_(False)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        output_hidden_states: bool | None = None,
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
            pixel_values: one picture per text, shape (batch, channels, height, width); `None` for text alone.
            image_features: instead of a picture, its `encode_images`, (batch, image tokens, vision width).
            inputs_embeds: instead of `input_ids`, embedded words, (batch, text, width).
            labels: usually `input_ids`, with -100 where nothing is to be predicted; position i is scored on the label
                of i + 1. Shape (batch, text). With labels nothing is cached.
            past_key_values: keys and values of the image and the text before `input_ids`.
            use_cache: return keys and values; outside of training the configuration's `use_cache` by default.
            interpolate_pos_encoding: let the vision tower stretch its positions to another image size.
            logits_to_keep: score the last n tokens only, or those at these indices; 0 is all.
            output_hidden_states: return the input and each layer's output, (batch, image + text, width).
            output_attentions: return what text attends to, a layer's weights being (batch, heads, text, image + text);
                needs eager attention.
            return_dict: `False` returns a tuple.
            image_index: where texts share pictures, the picture of each, (batch,) int64; there may then be fewer
                pictures than texts. Each is encoded, and passes the decoder, once for all its texts, with the loss and
                gradients (without dropout) of one picture per text. Nothing is cached.
            kwargs: for the loss, such as `num_items_in_batch`: the loss is then the sum divided by it.

        Returns:
            `loss`, the mean over labels that are not -100, and `logits`, shape (batch, text, vocabulary). In training
            with labels `logits` is `None`: the loss is computed from those of labelled tokens alone, a part at a time.

        Raises:
            ValueError: inputs that exclude each other, lengths that do not fit, a cache continued without positions,
                weights asked of an attention that does not form them, `labels` with `logits_to_keep`, an `image_index`
                that fits neither texts nor pictures.
        """
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError(
                "`labels` need the logits of all text, but `logits_to_keep` drops some. Pass one of both."
            )
        only_loss = needs_no_logits(self, labels, kwargs)
        outputs = self.git(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            pixel_values=pixel_values,
            image_features=image_features,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache if labels is None else False,
            interpolate_pos_encoding=interpolate_pos_encoding,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            image_index=image_index,
            needed=needed_tokens(labels, attention_mask) if only_loss and past_key_values is None else None,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = None, None
        if only_loss:
            loss = token_loss(self.output, outputs.last_hidden_state, labels, **kwargs)
        else:
            logits = self.output(outputs.last_hidden_state[:, keep])  # (batch, text, vocabulary)
        if labels is not None and not only_loss:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        result = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return result.to_tuple() if return_dict is False else result

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        past_key_values: Cache | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in `GenerationMixin`; the image goes in with the first tokens and stays out once it is cached."""
        check_room(input_ids, kwargs.get("attention_mask"), self.config.max_position_embeddings)
        inputs = super().prepare_inputs_for_generation(
            input_ids, past_key_values=past_key_values, inputs_embeds=inputs_embeds, **kwargs
        )
        if past_key_values is None or past_key_values.get_seq_length() == 0:
            inputs["image_features"] = image_features
        return inputs

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        pixel_values: torch.Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        image_index: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in `GenerationMixin`, with each picture encoded once for all beams and steps.

        Without `input_ids` every text starts from `[CLS]` (`generation_config.bos_token_id`). Prompts padded on the
        right are moved to the left first, padding before text, so that what is written continues the prompt.

        Args:
            inputs: prompts, or `input_ids=`, shape (batch, text).
            generation_config: of `GenerationMixin.generate`, as are `args`.
            pixel_values: one picture per prompt, shape (batch, channels, height, width).
            interpolate_pos_encoding: let the vision tower stretch its positions to another image size.
            image_index: the picture of each prompt, as in `forward`: each picture is encoded once.
            kwargs: of `GenerationMixin.generate`, such as `max_new_tokens`, `num_beams`, `attention_mask`.

        Returns:
            Prompts and continuations, shape (batch, text), or a dict of `GenerationMixin` if asked for.
        """
        if pixel_values is not None:
            kwargs["image_features"] = self.git.encode_images(pixel_values, interpolate_pos_encoding)
        if image_index is not None:
            features = kwargs.get("image_features")
            share_images(image_index, features, len(image_index), continues=False)
            kwargs["image_features"] = features[image_index]
        prompts = kwargs.pop("input_ids", None) if inputs is None else inputs
        mask = kwargs.get("attention_mask")
        if prompts is not None and mask is None:
            mask = prompt_mask(prompts, kwargs, generation_config, self.generation_config)
        if prompts is not None and mask is not None:
            prompts, kwargs["attention_mask"] = pad_left(prompts, mask)
        return super().generate(prompts, generation_config, *args, **kwargs)


AutoModel.register(CaptionGitConfig, CaptionGitModel, exist_ok=True)
AutoModelForCausalLM.register(CaptionGitConfig, CaptionGitForCausalLM, exist_ok=True)
AutoModelForImageTextToText.register(CaptionGitConfig, CaptionGitForCausalLM, exist_ok=True)
# `register` leaves the names alone, by which `Trainer` decides whether smoothed labels are those of the next token.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[CaptionGitConfig.model_type] = CaptionGitForCausalLM.__name__
