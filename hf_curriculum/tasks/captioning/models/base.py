"""What captioners on regions share: layers, losses, generation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.models.base import (
    CACHE_NAME,
    CaptionGenerationMixin,
    as_asked,
    generation_setting,
    share_images,
    takes_cache,
)
from hf_curriculum.models.on_host import known
from hf_curriculum.tasks.captioning.models.config import RegionCaptionerConfig
from hf_curriculum.tasks.captioning.models.regions import EncodedImages, GridEncoder, RegionEmbedding, validate_images


class ReferenceLayerNorm(nn.Module):
    """The layer norm of the reference code: by the unbiased standard deviation, epsilon added to it."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.ones(width))
        self.bias: nn.Parameter = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def reset_parameters(self) -> None:
        """One and zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.to(torch.promote_types(states.dtype, torch.float32))
        deviation, mean = torch.std_mean(wide, -1, keepdim=True)
        return ((wide - mean) / (deviation + self.eps)).to(states.dtype) * self.weight + self.bias


def layer_norm(kind: str, width: int, eps: float = 1e-6) -> nn.Module:
    """The layer norm that a configuration's `norm` names, one of `NORMS`."""
    return ReferenceLayerNorm(width, eps) if kind == "reference" else nn.LayerNorm(width, eps)


_STEPS, _BEAMS = 20, 5
"""Of `generate` by default, as in the reference code."""


class RegionCaptionerPreTrainedModel(PreTrainedModel):
    """Class attributes of the captioners on regions, and new weights as `torch` draws them."""

    config_class: type[RegionCaptionerConfig] = RegionCaptionerConfig
    base_model_prefix = "model"
    input_modalities: tuple[str, ...] = ("image", "text")
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = [CACHE_NAME, "image_features"]  # noqa: RUF012
    _supports_sdpa = True

    def card_facts(self) -> dict[str, Any] | None:
        """What a model's card says of how images are read; None where regions are stored."""
        vision = self.config.vision_config
        if vision is None:
            return None
        return {"reads": "pixel_values", "vision_model": vision.model_type, "trained": self.config.train_vision}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As `torch` does; `transformers` keeps what was loaded as it is."""
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """The models make caches of their own, which hold the images too."""
        return False


class RegionCaptionerModel(RegionCaptionerPreTrainedModel):
    """A captioner without its output layer.

    A subclass has `encode` and `decode`, makes its layers behind `super().__init__(config)`, and then calls
    `post_init()`.
    """

    def __init__(self, config: RegionCaptionerConfig) -> None:
        super().__init__(config)
        self.vision: GridEncoder | None = None if config.vision_config is None else GridEncoder(config)
        self.region_embedding: RegionEmbedding = RegionEmbedding(config)
        self.word_embedding: nn.Embedding = nn.Embedding(config.vocab_size, config.hidden_size)

    def get_input_embeddings(self) -> nn.Module:
        return self.word_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.word_embedding: Any = value

    def encode(self, embedded: torch.Tensor, mask: torch.Tensor | None, features: torch.Tensor) -> EncodedImages:
        """What the decoder reads of images."""
        raise NotImplementedError(f"{type(self).__name__} has no `encode`. A captioner defines it.")

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
        """Hidden states of the text, (texts, text, width), and the cache."""
        raise NotImplementedError(f"{type(self).__name__} has no `decode`. A captioner defines it.")

    def encode_images(
        self,
        pixel_values: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
    ) -> EncodedImages:
        """What the decoder reads of images, each encoded once however many texts read it."""
        mask = validate_images(self.config, region_features, region_mask, pixel_values)
        features = self.vision(pixel_values) if region_features is None else region_features
        return self.encode(self.region_embedding(features, mask), mask, features)

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: EncodedImages | None = None,
        image_index: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        relevant: np.ndarray | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """As the captioner's `forward`; `last_hidden_state` has the shape (texts, text, width)."""
        if input_ids is None:
            raise ValueError("No text was given: the model scores the next token of a text. Pass `input_ids`.")
        past_length = 0 if cache is None else cache.get_seq_length()
        _validate_text(input_ids, attention_mask, past_length, self.config.vocab_size)
        images = None
        if past_length == 0:
            if image_features is None:
                image_features = self.encode_images(pixel_values, region_features, region_mask)
            elif not (region_features is None and pixel_values is None):
                raise ValueError(
                    "Both images and `image_features` were given. The latter is what `encode_images` returned for "
                    "images and replaces them: pass one."
                )
            images = _images_of_texts(image_features, image_index, len(input_ids))
        elif not (image_features is None and region_features is None and pixel_values is None):
            raise ValueError(
                f"An image was given with a cache of {past_length} tokens. The cache has the image: give it with the "
                "first call alone."
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        states, cache = self.decode(input_ids, attention_mask, images, cache, use_cache, relevant, **options)
        outputs = BaseModelOutputWithPast(last_hidden_state=states, **{CACHE_NAME: cache})
        return as_asked(outputs, return_dict, self.config.return_dict)


def _validate_text(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, past_length: int, vocab_size: int
) -> None:
    """Raises where a mask does not fit the text, or ids are those of another vocabulary."""
    texts, length = input_ids.shape
    if attention_mask is not None and attention_mask.shape != (texts, past_length + length):
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)} for {texts} texts of {length} new tokens "
            f"after {past_length} cached ones. It covers the text so far: pass ({texts}, {past_length + length})."
        )
    validate_ids("input_ids", input_ids, vocab_size)


def validate_ids(name: str, ids: torch.Tensor, vocab_size: int) -> None:
    """Raises where an id is no output of the model."""
    read = known(ids)  # where it is not, indexing has a check of its own
    highest = 0 if read is None or not read.size else read.max()
    if highest >= vocab_size:
        raise ValueError(
            f"{name} has the id {highest}, but the captioner has {vocab_size} words, numbered from 0. The tokenizer "
            "has another vocabulary than the model. Use the tokenizer it was trained with, or build it with "
            "`vocab_size=len(tokenizer)`."
        )


def _images_of_texts(images: EncodedImages, image_index: torch.Tensor | None, texts: int) -> EncodedImages:
    """The images with an index of texts, checked."""
    share_images(image_index, images, texts, continues=False)  # for its errors alone
    images = images if image_index is None else images[image_index]
    if len(images) != texts:
        raise ValueError(
            f"There are {len(images)} images for {texts} texts. Every text reads one image: pass `image_index`, which "
            "names the image of each text."
        )
    return images


class RegionCaptionerForCausalLM(RegionCaptionerPreTrainedModel, CaptionGenerationMixin):
    """A captioner: writes captions of images, or scores them.

    A subclass sets `model_class`, the captioner without its output layer.
    """

    model_class: type[RegionCaptionerModel] = RegionCaptionerModel
    _tied_weights_keys = {"lm_head.weight": "model.word_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: RegionCaptionerConfig) -> None:
        super().__init__(config)
        self.model: Any = self.model_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
        unknown = config.unk_token_id
        self.generation_config: Any = GenerationConfig(
            num_beams=_BEAMS,
            length_penalty=0.0,
            max_new_tokens=_STEPS,
            suppress_tokens=None if unknown is None else [unknown],
            pad_token_id=config.pad_token_id,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
        )

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head: Any = new_embeddings

    def encode_images(
        self,
        pixel_values: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
    ) -> EncodedImages:
        """What the decoder reads of images; see `RegionCaptionerModel.encode_images`."""
        return self.base_model.encode_images(pixel_values, region_features, region_mask)

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_features: EncodedImages | None = None,
        image_index: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """Scores the next token after every token of the text."""
        return self._score(
            labels,
            logits_to_keep,
            return_dict,
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            region_features=region_features,
            region_mask=region_mask,
            pixel_values=pixel_values,
            image_features=image_features,
            image_index=image_index,
            cache=cache,
            use_cache=use_cache,
        )

    def _score(
        self,
        labels: torch.Tensor | None,
        logits_to_keep: int | torch.Tensor,
        return_dict: bool | None,
        loss_options: dict[str, Any],
        **inputs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """`_language_model` without arguments that would go unread."""
        # PEFT and `transformers` pass switches that are off.
        loss_options = {
            name: value for name, value in loss_options.items() if value is not None and value is not False
        }
        unread = sorted(set(loss_options) - {"num_items_in_batch"})
        if unread:
            raise ValueError(
                f"{type(self).__name__} was called with {unread}, which it does not read: what they ask for would "
                "silently not happen. Leave them out. Boxes are read as part of the features (`box_values` of "
                "`RegionInputs`); attention weights come from a forward hook, with `attn_implementation='eager'`."
            )
        if labels is not None:
            validate_ids("labels", labels, self.config.vocab_size)
        return self._language_model(labels, logits_to_keep, return_dict, loss_options, **inputs)

    @takes_cache
    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        image_features: EncodedImages | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in `CaptionGenerationMixin`; beams and samples read the image of their text, which is not copied."""
        if image_features is not None and len(image_features):
            image_features = image_features.repeat_interleave(len(input_ids) // len(image_features))
        return super().prepare_inputs_for_generation(input_ids, cache, image_features, inputs_embeds, **kwargs)

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        region_features: torch.Tensor | None = None,
        region_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in `CaptionGenerationMixin`: by default five beams, twenty steps, the sum of log-probabilities."""
        if kwargs.get("image_features") is None:
            kwargs["image_features"] = self.encode_images(pixel_values, region_features, region_mask)
        prompts = kwargs.get("input_ids") if inputs is None else inputs
        images = kwargs["image_features"] if kwargs.get("image_index") is None else kwargs["image_index"]
        if prompts is not None and len(prompts) != len(images):
            raise ValueError(
                f"There are {len(prompts)} prompts for {len(images)} images. Which image each continues is not known: "
                "pass `image_index`, which names the image of each prompt."
            )
        # Else the steps of the default configuration come before a `max_length`, as training arguments give it.
        if generation_setting("max_new_tokens", kwargs, generation_config) is None:
            longest = generation_setting("max_length", kwargs, generation_config)
            if kwargs.get("max_length") is not None:
                kwargs["max_new_tokens"] = None
            elif longest is not None:
                generation_config = copy.deepcopy(generation_config)
                generation_config.max_new_tokens = longest - (1 if prompts is None else prompts.shape[1])
                generation_config.max_length = None
        return super().generate(inputs, generation_config, *args, **kwargs)

    def _default_prompts(self, image_features: EncodedImages, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """The first token alone, (texts, 1)."""
        start = self.generation_config.bos_token_id
        return torch.full((len(image_features), 1), start, dtype=torch.int64, device=image_features.features.device)


def register(
    config: type[RegionCaptionerConfig], model: type[PreTrainedModel], captioner: type[PreTrainedModel]
) -> None:
    """Makes a captioner known to the Auto classes."""
    AutoModel.register(config, model, exist_ok=True)
    AutoModelForCausalLM.register(config, captioner, exist_ok=True)
    AutoModelForImageTextToText.register(config, captioner, exist_ok=True)
    AutoProcessor.register(config, CaptionProcessor, exist_ok=True)
    # `register` leaves the names alone, by which `Trainer` decides whether smoothed labels are of the next token.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = captioner.__name__
