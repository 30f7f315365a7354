"""Flamingo: a decoder that was made for text reads pictures through gated cross-attention."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_curriculum.models.flamingo_config import CaptionFlamingoConfig
from hf_curriculum.models.flamingo_inputs import cached_latents, count_images
from hf_curriculum.models.flamingo_model import CaptionFlamingoModel, CaptionFlamingoPreTrainedModel
from hf_curriculum.models.git_inputs import check_room, chosen, pad_left, prompt_mask
from hf_curriculum.models.git_shared import share_images
from hf_curriculum.models.packed_text import needed_tokens
from hf_curriculum.models.token_loss import needs_no_logits, token_loss


class CaptionFlamingoForCausalLM(CaptionFlamingoPreTrainedModel, GenerationMixin):
    """Flamingo with an output layer: writes captions, scores them, or is a plain language model without an image.

    The token `<image>` stands for a picture in the text: tokens from it on read the picture's latents, those before
    the first one read nothing, and after a second one only the second picture is read. The vision tower is frozen and
    always in evaluation mode. Gates start at 0, where the model is its own language model, bit for bit.

    Args:
        config: what to build; see `CaptionFlamingoConfig`.

    Source: Alayrac et al. 2022 (Flamingo), section 2; Saha et al. 2024 (BabyLM), sections 3.1 and 3.2.

    Example:
        >>> from hf_curriculum.models.flamingo_build import small_flamingo_config
        >>> model = CaptionFlamingoForCausalLM(small_flamingo_config(50, image_token_id=49))
        >>> ids = torch.tensor([[2, 49, 7, 8, 3]])
        >>> model(ids, pixel_values=torch.rand(1, 3, 64, 64)).logits.shape
        torch.Size([1, 5, 50])
    """

    _tied_weights_keys = {"lm_head.weight": "flamingo.decoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: CaptionFlamingoConfig) -> None:
        super().__init__(config)
        text = config.text_config
        self.flamingo = CaptionFlamingoModel(config)
        self.lm_head = nn.Linear(text.word_embed_proj_dim, text.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def encode_images(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool = False) -> torch.Tensor:
        """As `CaptionFlamingoModel.encode_images`: what `image_features` takes in place of pictures."""
        return self.flamingo.encode_images(pixel_values, interpolate_pos_encoding)

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
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        interpolate_pos_encoding: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """Scores the next token after every text token.

        Args:
            input_ids: text with an `<image>` for each picture, shape (batch, text).
            attention_mask: 1 for tokens, 0 for padding on either side, cached text included; `None` where nothing is
                padded. Shape (batch, text).
            position_ids: the tokens' positions in the text, (batch or 1, text). By default padding is not counted.
            pixel_values: one picture per text, (batch, channels, height, width), or several, (batch, images,
                channels, height, width), those that a text lacks being zeros; `None` for text alone.
            image_features: instead of pictures, their `encode_images`, (batch, [images,] image tokens, vision width),
                in any floating type.
            image_index: where texts share pictures, the picture, or row of pictures, of each, (batch,) int64; there
                may then be fewer pictures than texts, and each is encoded and resampled once.
            image_numbers: which picture each new token sees, 0 for none, (batch, text); counted from `input_ids` by
                default, needed with `inputs_embeds` and with a cache.
            inputs_embeds: instead of `input_ids`, embedded words, (batch, text, width).
            labels: usually `input_ids`, with -100 where nothing is to be predicted; position i is scored on the label
                of i + 1. Shape (batch, text). With labels nothing is cached.
            past_key_values: keys and values of the pictures and of the text before `input_ids`. Go on with the cache
                that was returned: pictures make another one of it.
            use_cache: return keys and values; outside of training the configuration's `use_cache` by default.
            interpolate_pos_encoding: let the vision tower stretch its positions to another image size.
            logits_to_keep: score the last n tokens only, or those at these indices; 0 is all.
            output_hidden_states: return the decoder's input and each layer's output, (batch, text, width).
            output_attentions: not offered, so `True` is an error.
            return_dict: `False` returns a tuple.
            kwargs: for the loss, such as `num_items_in_batch`: the loss is then the sum divided by it.

        Returns:
            `loss`, the mean over labels that are not -100, and `logits`, shape (batch, text, vocabulary). In training
            with labels `logits` is `None`: the loss is computed from those of labelled tokens alone, a part at a time.

        Raises:
            ValueError: inputs that exclude each other, lengths that do not fit, pictures and `<image>` tokens that do
                not belong together, attention weights asked for, `labels` with `logits_to_keep`.
        """
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError(
                "output_attentions=True, but Flamingo's layers return no attention weights. Register a forward hook "
                "on the module you look into, with `attn_implementation='eager'`."
            )
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError(
                "`labels` need the logits of all text, but `logits_to_keep` drops some. Pass one of both."
            )
        only_loss = needs_no_logits(self, labels, kwargs)
        outputs = self.flamingo(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            pixel_values=pixel_values,
            image_features=image_features,
            image_index=image_index,
            image_numbers=image_numbers,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache if labels is None else False,
            interpolate_pos_encoding=interpolate_pos_encoding,
            output_hidden_states=output_hidden_states,
            needed=needed_tokens(labels, attention_mask) if only_loss and past_key_values is None else None,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = None, None
        if only_loss:
            loss = token_loss(self.lm_head, outputs.last_hidden_state, labels, **kwargs)
        else:
            logits = self.lm_head(outputs.last_hidden_state[:, keep])  # (batch, text, vocabulary)
        if labels is not None and not only_loss:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        result = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
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
        """As in `GenerationMixin`; pictures go in with the first tokens and stay out once they are cached."""
        check_room(input_ids, kwargs.get("attention_mask"), self.config.text_config.max_position_embeddings)
        inputs = super().prepare_inputs_for_generation(
            input_ids, past_key_values=past_key_values, inputs_embeds=inputs_embeds, **kwargs
        )
        if past_key_values is None or past_key_values.get_seq_length() == 0:
            inputs["image_features"] = image_features
        if image_features is not None or cached_latents(past_key_values):
            numbers = count_images(input_ids, self.config.image_token_id)
            inputs["image_numbers"] = numbers[:, -inputs["input_ids"].shape[1] :]
        return inputs

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        pixel_values: torch.Tensor | None = None,
        image_index: torch.Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in `GenerationMixin`, with each picture seen by the vision tower once for all beams and steps.

        Without `input_ids` every text starts from `[CLS] <image>`, or from `[CLS]` (`generation_config.bos_token_id`)
        if there is no picture. Prompts padded on the right are moved to the left first. `<image>` is never written.

        Args:
            inputs: prompts with their `<image>` tokens, or `input_ids=`, shape (batch, text).
            generation_config: of `GenerationMixin.generate`, as are `args`.
            pixel_values: as in `forward`; `image_features` may be given instead.
            image_index: the picture of each prompt, as in `forward`.
            interpolate_pos_encoding: let the vision tower stretch its positions to another image size.
            kwargs: of `GenerationMixin.generate`, such as `max_new_tokens`, `num_beams`, `attention_mask`.

        Returns:
            Prompts and continuations, shape (batch, text), or a dict of `GenerationMixin` if asked for.

        Raises:
            ValueError: several pictures per text without prompts, prompts as embeddings, and as in `forward`.
        """
        if pixel_values is not None:
            kwargs["image_features"] = self.encode_images(pixel_values, interpolate_pos_encoding)
        if image_index is not None:
            features = kwargs.get("image_features")
            share_images(image_index, features, len(image_index), continues=False)
            kwargs["image_features"] = features[image_index]
        prompts = kwargs.pop("input_ids", None) if inputs is None else inputs
        if prompts is None and kwargs.get("image_features") is not None:
            prompts = self._bare_prompts(kwargs["image_features"], kwargs.get("inputs_embeds"))
            kwargs["attention_mask"] = torch.ones_like(prompts)
        mask = kwargs.get("attention_mask")
        if prompts is not None and mask is None:
            mask = prompt_mask(prompts, kwargs, generation_config, self.generation_config)
        if prompts is not None and mask is not None:
            prompts, kwargs["attention_mask"] = pad_left(prompts, mask)
        silent = chosen("suppress_tokens", kwargs, generation_config, self.generation_config) or []
        silent = sorted({*silent, self.config.image_token_id})
        if generation_config is None:
            kwargs["suppress_tokens"] = silent
        else:
            kwargs.pop("suppress_tokens", None)
            generation_config = copy.deepcopy(generation_config)
            generation_config.suppress_tokens = silent
        return super().generate(prompts, generation_config, *args, **kwargs)

    def _bare_prompts(self, image_features: torch.Tensor, embedded: torch.Tensor | None) -> torch.Tensor:
        """`[CLS] <image>` for each picture, or `<image>` where texts have no first token."""
        if embedded is not None:
            raise ValueError(
                "Prompts were given as `inputs_embeds`, in which `<image>` tokens cannot be told from others, so it "
                "is not known which text reads the pictures. Pass `input_ids`."
            )
        if image_features.ndim == 4 and image_features.shape[1] > 1:
            raise ValueError(
                f"There are {image_features.shape[1]} pictures per text and no prompts: where the pictures stand in "
                "the text is not known. Pass `input_ids` with an `<image>` for each."
            )
        start = self.generation_config.bos_token_id
        prompt = [] if start is None else [start]
        prompt.append(self.config.image_token_id)
        return torch.tensor([prompt], device=image_features.device).repeat(len(image_features), 1)
