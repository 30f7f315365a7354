"""Shared by the captioners: loss, generation and input checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import ModelOutput
from transformers.utils.deprecation import deprecate_kwarg

from hf_curriculum.models.on_host import known, known_or_read, note
from hf_curriculum.models.packed_loss import ExampleTerms, needs_no_logits, relevant_tokens, token_loss

logger: logging.Logger = logging.getLogger(__name__)

CACHE_NAME = "cache" if hasattr(BaseModelOutputWithPast, "cache") else "past_key_values"
"""What the installed `transformers` calls a cache in arguments and outputs: `past_key_values` before 5.24."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_cache(function: _Function) -> _Function:
    """Lets a function with an argument `cache` take it as `past_key_values` too, and shows it as `CACHE_NAME`."""
    # `deprecate_kwarg` says nothing where the version that ends the name is behind.
    end = "5.40.0" if CACHE_NAME == "cache" else "5.0.0"
    renamed: Any = deprecate_kwarg("past_key_values", end, new_name="cache")(function)
    shown = signature(function)
    arguments = [
        value.replace(name=CACHE_NAME) if name == "cache" else value for name, value in shown.parameters.items()
    ]
    renamed.__signature__ = shown.replace(parameters=arguments)  # `generate` refuses arguments that are not in it
    return renamed


class FrozenTowerMixin:
    """A model whose `vision_tower`, where all of it is frozen, stays as it is evaluated while the rest trains."""

    vision_tower: Any

    def train(self, mode: bool = True) -> Any:
        """Training mode for all but a frozen vision tower."""
        super().train(mode)  # type: ignore[misc]
        if not any(weight.requires_grad for weight in self.vision_tower.parameters()):
            self.vision_tower.eval()
        return self


class CaptionGenerationMixin(GenerationMixin):
    """The text half of a captioner: next-token loss, and generation that encodes each image once.

    Attributes:
        keeps_logits: whether `logits` are returned with labels in training too, for losses of single examples.
        example_terms: where they are not, weighs the loss and notes its terms.
    """

    keeps_logits = False
    example_terms: ExampleTerms | None = None

    def encode_images(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool = False) -> torch.Tensor:
        """Hidden states of the vision tower: what `forward` and `generate` take as `image_features`."""
        return self.base_model.encode_images(pixel_values, interpolate_pos_encoding)

    def _language_model(
        self,
        labels: torch.Tensor | None,
        logits_to_keep: int | torch.Tensor,
        return_dict: bool | None,
        loss_options: dict[str, Any],
        **inputs: Any,
    ) -> CausalLMOutputWithPast | tuple[torch.Tensor, ...]:
        """Runs the model without its output layer, then the output layer and the loss."""
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError(
                "`labels` need the logits of all text, but `logits_to_keep` drops some. Pass one of both."
            )
        output_layer = self.get_output_embeddings()
        only_loss = needs_no_logits(self, labels, loss_options)
        if labels is not None:
            inputs["use_cache"] = False
        if only_loss and inputs["cache"] is None and self._leaves_tokens_out(inputs):
            mask = inputs["attention_mask"]
            mask = None if mask is None else known_or_read(mask)
            inputs["relevant"] = relevant_tokens(known_or_read(labels), mask)
        outputs: BaseModelOutputWithPast = self.base_model(**inputs, return_dict=True)
        logits, loss = None, None
        if only_loss:
            terms = self.example_terms
            loss = token_loss(output_layer, outputs.last_hidden_state, labels, **loss_options, examples=terms)
        else:
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = output_layer(outputs.last_hidden_state[:, keep])  # (batch, text, vocabulary)
            if labels is not None:
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **loss_options)
        result = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
        )
        return as_asked(result, return_dict, self.config.return_dict)

    def _leaves_tokens_out(self, inputs: Mapping[str, Any]) -> bool:
        """Whether tokens that the loss does not depend on save time where they are left out."""
        return True

    @takes_cache
    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        cache: Cache | None = None,
        image_features: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in `GenerationMixin`; images go in with the first tokens and stay out once they are cached."""
        max_positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        if max_positions is not None:  # recurrent models have no end
            validate_generated_length(input_ids, kwargs.get("attention_mask"), max_positions)
        inputs = super().prepare_inputs_for_generation(
            input_ids, inputs_embeds=inputs_embeds, **{CACHE_NAME: cache}, **kwargs
        )
        if cache is None or cache.get_seq_length() == 0:
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
        """As in `GenerationMixin`, with each image encoded once for all beams and steps."""
        if pixel_values is not None:
            kwargs["image_features"] = self.encode_images(pixel_values, interpolate_pos_encoding)
        if image_index is not None:
            features = kwargs.get("image_features")
            share_images(image_index, features, len(image_index), continues=False)
            kwargs["image_features"] = features[image_index]
        prompts = kwargs.pop("input_ids", None) if inputs is None else inputs
        if prompts is None and kwargs.get("image_features") is not None:
            prompts = self._default_prompts(kwargs["image_features"], kwargs.get("inputs_embeds"))
            if prompts is not None:
                kwargs["attention_mask"] = torch.ones_like(prompts)
        words = kwargs.get("inputs_embeds")
        if kwargs.get("attention_mask") is None and prompts is not None and _same_length(prompts, words):
            kwargs["attention_mask"] = prompt_mask(prompts, kwargs, generation_config, self.generation_config)
        mask = kwargs.get("attention_mask")
        if mask is not None:
            order = torch.argsort((mask != 0).long(), dim=1, stable=True)  # padding first, (batch, text)
            for name in ("attention_mask", "inputs_embeds", "position_ids"):
                kwargs |= {name: reordered(kwargs[name], order)} if kwargs.get(name) is not None else {}
            prompts = reordered(prompts, order) if prompts is not None and _same_length(prompts, mask) else prompts
        return super().generate(prompts, generation_config, *args, **kwargs)

    def _default_prompts(
        self, image_features: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The prompts of texts with images, (batch, text); `None` for the first token alone."""
        return None


def generation_setting(name: str, *sources: Any) -> Any:
    """A setting of generation: that of the first of `sources`, dicts or configurations, that has it."""
    values = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for source in sources)
    return next((value for value in values if value is not None), None)


def validate_vocabulary(model: nn.Module, tokenizer: Any, name: str = "The collator's tokenizer") -> None:
    """Raises a `ValueError` where a tokenizer has ids that are not in the table of a model's words."""
    try:
        words = model.get_input_embeddings() if isinstance(model, PreTrainedModel) else None
    except NotImplementedError:  # a CLIP's, for example
        return
    if not isinstance(words, nn.Embedding):
        return
    size = words.num_embeddings + getattr(words, "num_additional_embeddings", 0)
    last = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if last[1] >= size:
        raise ValueError(
            f"{name} ({type(tokenizer).__name__}) has {len(tokenizer):,} entries, up to {last[0]!r} with the id "
            f"{last[1]:,}, and the {type(model).__name__} {size:,}: a text with such an entry would end in an "
            "IndexError. Give the tokenizer of this model, or call `model.resize_token_embeddings(len(tokenizer))`."
        )


def generation_ends(model: nn.Module) -> set[int]:
    """The ids at which a model's `generate` stops; none where it says none."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) == "blip":  # its `generate` stops there, whatever its settings say
        ends = config.text_config.sep_token_id
    else:
        ends = generation_setting("eos_token_id", getattr(model, "generation_config", None))
    return set(ends if isinstance(ends, list) else () if ends is None else (ends,))


def warn_of_other_end(model: nn.Module, encoder: Any) -> None:
    """Warns where captions as `encoder` writes them end otherwise than generation does: none would stop."""
    if not hasattr(model, "generation_config") or encoder.end in (ends := generation_ends(model)):
        return
    token = encoder.tokenizer.convert_ids_to_tokens(encoder.end)
    logger.warning(
        "Captions end with %r (id %d), and the %s stops at %s: what it writes goes on until max_new_tokens. Set "
        "`model.generation_config.eos_token_id = %d`, or use the tokenizer that the model was made with.",
        token,
        encoder.end,
        type(model).__name__,
        f"the ids {sorted(ends)}" if ends else "no token",
        encoder.end,
    )


def prompt_mask(prompts: torch.Tensor, *sources: Any) -> torch.Tensor | None:
    """`GenerationMixin`'s default: 0 for padding tokens, (batch, text); `None` where padding also ends texts."""
    pad, end = generation_setting("pad_token_id", *sources), generation_setting("eos_token_id", *sources)
    is_distinct = pad is not None and pad not in (end if isinstance(end, list) else [end])
    return (prompts != pad).long() if is_distinct else None


def _same_length(prompts: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether tensors (batch, text, ...) have as many tokens; embeddings may be longer than the ids beside them."""
    return other is None or prompts.shape[1] == other.shape[1]


def reordered(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Each row's tokens in another order: (batch or 1, text, ...) by indices (batch, text)."""
    rows = torch.arange(len(order), device=values.device)[:, None]
    return values.expand(len(order), *values.shape[1:])[rows, order]


def validate_generated_length(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, max_positions: int
) -> None:
    """Raises where a text that is being generated, (batch, text), has outgrown the positions; padding takes none."""
    longest = input_ids.shape[1] if attention_mask is None else attention_mask.shape[1]
    if longest > max_positions and attention_mask is not None:
        longest = int((attention_mask != 0).sum(1).max())  # reads values, so it waits for the device
    if longest > max_positions:
        raise ValueError(
            f"A text has grown to {longest} tokens in generation, but the model has {max_positions} positions. Ask "
            "for fewer tokens (`max_new_tokens`, or `generation_max_length` of the training arguments), shorten the "
            "prompt, or build the model with a larger `max_position_embeddings`."
        )


def as_asked(outputs: ModelOutput, return_dict: bool | None, default: bool) -> Any:
    """The outputs, or their tuple where neither the call nor the configuration wants a dict."""
    return outputs if (default if return_dict is None else return_dict) else outputs.to_tuple()


def hidden_state_indices(asked: bool | int | Sequence[int] | None, default: bool, layers: int) -> frozenset[int]:
    """Which hidden states are returned, of that of the input and those of so many layers, numbered from 0."""
    asked = default if asked is None else asked
    if isinstance(asked, bool):
        return frozenset(range(layers + 1) if asked else ())
    indices = [asked] if isinstance(asked, int) else list(asked)
    if not all(-layers - 1 <= index <= layers for index in indices):
        raise ValueError(
            f"output_hidden_states={asked}: the model has {layers + 1} hidden states, numbered 0 to {layers} (0 is "
            "the input). What is not there would come back as nothing. Ask for some of these, or True for all."
        )
    return frozenset(index % (layers + 1) for index in indices)


def restarting_texts(
    position_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    cache: Cache | None,
    use_cache: bool | None,
    implementation: str,
) -> torch.Tensor | None:
    """Which text of its row each token belongs to, where several are put in a row and their positions restart."""
    if position_ids is None or attention_mask is not None or cache is not None:
        return None
    owner = nn.functional.pad((position_ids.diff(dim=-1) != 1).long().cumsum(-1), (1, 0))
    # In a compiled step the values cannot decide: the mask is then made in any case.
    if not torch.compiler.is_compiling() and not owner.any():
        return None
    if use_cache or "flash" in implementation:
        what = "`use_cache=True`" if use_cache else f"the attention {implementation!r}"
        do = "`use_cache=False`" if use_cache else "`attn_implementation='sdpa'`"
        raise ValueError(
            f"`position_ids` restart within a row, so it holds several texts, but {what} lets each read those before "
            f"it. Load the model or call it with {do}, or give each text a row of its own."
        )
    return owner


def validate_alternatives(
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
    image_features: torch.Tensor | None,
) -> None:
    """Raises where text or images were given in two forms, or no text at all."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("The model reads one text: pass `input_ids` or `inputs_embeds`, and not both.")
    if pixel_values is not None and image_features is not None:
        raise ValueError(
            "Both `pixel_values` and `image_features` were given. The features replace the image: pass one."
        )


class SharedImages(NamedTuple):
    """Which image each text reads, where a batch has fewer images than texts.

    The tokens of all images, then those of all texts, are the rows of one flat sequence, so that linear layers and
    norms compute each image once. In attention each text attends to its image and itself.

    Args:
        index: the image of each text, (texts,) int64.
        images: the number of images.
        image_tokens: rows that an image takes.
    """

    index: torch.Tensor
    images: int
    image_tokens: int

    @property
    def image_rows(self) -> int:
        """Rows of all images."""
        return self.images * self.image_tokens

    def join(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """(images, image tokens, width) and (texts, text, width) as (1, image rows + text rows, width)."""
        return torch.cat([image.flatten(0, 1), text.flatten(0, 1)])[None]

    def text_of(self, states: torch.Tensor) -> torch.Tensor:
        """The last rows of (1, rows, width), those of the texts alone, as (texts, text, width)."""
        return states[0].unflatten(0, (len(self.index), -1))

    def split(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inverse of `join`, from (1, rows, width)."""
        image = states[0, : self.image_rows].unflatten(0, (self.images, -1))
        return image, self.text_of(states[:, self.image_rows :])

    def repeated(self, states: torch.Tensor) -> torch.Tensor:
        """Each text after a copy of its image: (1, rows, width) as (texts, image tokens + text, width)."""
        image, text = self.split(states)
        # Indexing, not `index_select`: its gradient is summed in a fixed order on GPUs too.
        return torch.cat([image[self.index], text], dim=1)


def share_images(
    image_index: torch.Tensor | None, image_features: torch.Tensor | None, texts: int, continues: bool
) -> SharedImages | None:
    """The batch's `SharedImages`, checked; `None` without `image_index`. `continues`: a cache is given or wanted."""
    if image_index is None:
        return None
    if image_features is None:
        raise ValueError(
            "`image_index` was given, but no image: it says which of the images each text reads. Pass "
            "`pixel_values` or `image_features` too, or neither for text alone."
        )
    if image_index.shape != (texts,) or image_index.dtype != torch.int64:
        raise ValueError(
            f"image_index has the shape {tuple(image_index.shape)} and the type {image_index.dtype} for {texts} "
            f"texts. It names one image per text: pass int64 of the shape ({texts},)."
        )
    images = len(image_features)
    index = known(image_index)  # where it is not, indexing has a check of its own
    if index is not None:
        lowest, highest = index.min(), index.max()
        if lowest < 0 or highest >= images:
            raise ValueError(
                f"image_index names the images {lowest} to {highest}, but there are {images} of them, numbered "
                "from 0. A text would read no image, or another one's."
            )
    if continues:
        raise ValueError(
            "`image_index` was given together with a cache, which keeps the image of every text apart. Pass "
            "`use_cache=False`; `generate` takes `image_index` and repeats the images itself."
        )
    return SharedImages(image_index, images, image_features.shape[1])


def image_placeholder(config: Any) -> str | None:
    """The field of a configuration that names the token an image is read as within a prompt; None for captioners."""
    if getattr(config, "model_type", None) in ("curriculum_git", "curriculum_flamingo"):
        return None  # these make the token themselves
    return next((name for name in ("image_token_id", "image_token_index") if hasattr(config, name)), None)


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, and back to each module's own: a frozen tower inside a training model stays as it was."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in training:
            module.training = mode


def validate_regions(
    feature_size: int, region_features: torch.Tensor, region_mask: torch.Tensor | None
) -> torch.Tensor | None:
    """What of the regions is no padding, bool (images, regions), `None` where all is."""
    if region_features.ndim != 3 or region_features.shape[2] != feature_size:
        raise ValueError(
            f"region_features has the shape {tuple(region_features.shape)}, but the model reads features of width "
            f"{feature_size}: (images, regions, {feature_size}). They come from another "
            "detector or another choice of box values than it was trained on. Use the store it was trained with, or "
            "build it with `region_feature_size`."
        )
    if region_mask is None:
        return None
    if region_mask.shape != region_features.shape[:2]:
        raise ValueError(
            f"region_mask has the shape {tuple(region_mask.shape)} for region_features of "
            f"{tuple(region_features.shape)}. It says which regions are padding: pass (images, regions)."
        )
    read, mask = known(region_mask), region_mask != 0
    if read is None:
        return mask
    is_region = read != 0
    if not (has_region := is_region.any(1)).all():
        rows = np.flatnonzero(~has_region).tolist()
        raise ValueError(
            f"{len(rows)} of {len(has_region)} images have no region (rows {rows[:5]} of the batch): there is nothing "
            "to see, and attention to nothing is undefined. Leave them out, or extract features with a lower "
            "threshold."
        )
    return None if is_region.all() else note(mask, is_region)
