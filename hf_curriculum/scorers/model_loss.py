"""The loss of a caption given its image, or of the responses of a conversation given all that stands before them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, IMAGES, MESSAGES
from hf_curriculum.config import at_least, digest
from hf_curriculum.data.conversations import Turns
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.regions.base import RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.fingerprint import read_trained_on
from hf_curriculum.provenance import ScoreProvenance, validate_choice
from hf_curriculum.scorers.chat_inputs import ChatModel, ChatParts, reads_chats
from hf_curriculum.scorers.chat_losses import ChatPasses
from hf_curriculum.scorers.pretrained import PairScorer, Precision, load_model, load_pretrained
from hf_curriculum.scorers.text.language_model import padded, reduced_losses

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from hf_curriculum.data.image_inputs import PixelInputs, RegionInputs


_OF_CHATS = ("prompt_column", "prompt", "turns")
"""Arguments that only a chat model takes."""


class LoadedCaptioner(NamedTuple):
    """A captioner on its device, what it sees of an image, the most tokens it reads, the prefix of captions.

    `others` are images that captions are also scored with, as `inputs` reads them (`Grounding`).
    """

    model: Any
    tokenizer: Any
    inputs: PixelInputs | RegionInputs
    limit: int
    prefix: str
    others: Sequence[dict[str, torch.Tensor]] = ()


class ModelLoss(PairScorer):
    """A model's loss, −Σ log p in nats, of a caption given its image, or of the responses of a conversation.

    The model was trained beforehand, without a curriculum; an example of high loss is hard. A response is read after
    all messages before it.

    **A captioner** (this library's own, `transformers`' GIT, BLIP and `VisionEncoderDecoderModel`) reads captions. The
    model's tokenizer makes a caption's tokens, special ones included; an end and a beginning are added where it writes
    none, as `CaptionCollator` adds them. The first (such as `[CLS]`, or BLIP's `[DEC]`)
    starts the caption and is not scored; the end token is. Encoder-decoders start from their `decoder_start_token_id`
    and every token is scored. Flamingo's captions begin with `<image>`, which is not scored but counts in
    `max_length`. It is the models' training loss, with padding masked and without label smoothing.

    **A chat model** reads conversations: any `AutoModelForImageTextToText` that reads images as placeholder tokens
    (LLaVA, SmolVLM, Qwen2-VL, PaliGemma, BLIP-2), and any causal language model, which reads the words alone. The
    conversation is written by the model's chat template. A response's tokens are all that the template writes after
    the generation prompt: the words, the end of the turn and the rest, as in TRL's completion mask. Without a template
    the response follows one user message after a space, with no end of text. In PaliGemma it is the `suffix`, whose
    end is scored. Images that no message shows come before the first user's words.

    Args:
        model: a folder or a repository of the Hub with such a model.
        processor: where to find the tokenizer and the image processor, if not with the model.
        reduction: "sum" (as in the paper: long captions are hard), or "mean" over the scored tokens.
        max_length: the most tokens, special ones and image tokens included, at most the model's positions. By default
            50 for a captioner and all positions for a chat model. Longer captions are truncated, counted in
            `num_truncated` and reported. A longer conversation has no score, because a part of it is another
            conversation.
        batch_size: captions or conversations that run through the model at once.
        dtype: "float32", "float16" or "bfloat16"; of log-probabilities the sums are float64.
        revision: of a repository.
        image_column: where the images are: "images", lists, for a chat model, which also takes a column of single
            images; "image" for a captioner.
        caption_column: "messages" for a chat model, which also takes texts, each the response to a message with the
            image; "caption" for a captioner.
        prompt_column: where the prompts are, messages or texts, if `caption_column` has their completions
            (`prompt_column="prompt", caption_column="completion"`).
        prompt: what the user asks about the image, if `caption_column` has texts.
        turns: which messages of the assistant are scored: "all", the "first" or the "last".
        regions: for a captioner on stored regions, the file or folder of them (see `open_regions`), or one opened;
            they are found by `image_id`, and no image is read.
        region_options: of `RegionInputs`, such as `{"box_values": True}`; by default those of training, where the
            model's image processor has them.
        name: the column to write.
        easy: a small loss is easy by default.

    Shapes:
        float32 (rows,), in nats (per token with "mean"). NaN for a caption or response that is missing, empty or blank
        or has no token to score, and for an image that cannot be decoded or is without `regions`. NaN for a
        conversation that is too long, has an unknown role, shows more or fewer images than its row, or that the
        template or processor cannot read. A model without a template also gives NaN for several turns. These are
        counted, and the log has the first reason.

    Raises:
        FileNotFoundError: there are no such model, processor or regions.
        ValueError: unknown `reduction`, `turns` or `easy`, `max_length` below 2, `batch_size` below 1, a checkpoint
            that lacks weights, or a model of another kind. Regions for a model that reads images or none for one that
            reads regions, an encoder-decoder without start token, a Flamingo whose tokenizer lacks `<image>`. `prompt`
            with `prompt_column`, either of them for a captioner, a chat model that is an encoder-decoder or has a slow
            tokenizer.
        TypeError: a caption that is not a string; a conversation that is no list of messages.

    Source: Zhang et al. 2022 (Simi-CL), §3.3, equation 5 (Bootstrap-CL).

    Example:
        >>> scorer = ModelLoss("output/vanilla-git")               # doctest: +SKIP
        >>> add_scores(data, scorer)["model_loss"][:]              # doctest: +SKIP
        >>> scorer = ModelLoss("HuggingFaceTB/SmolVLM-256M-Instruct", reduction="mean")  # doctest: +SKIP
        >>> add_scores(chats, scorer)["model_loss"][:]             # doctest: +SKIP
    """

    regions: RegionSource | None = None
    region_options: dict[str, Any] | None = None
    sees_images: bool
    template_digest: str | None
    _not_found = False
    _differentiable = False  # whether losses keep their history, for gradients

    def __init__(
        self,
        model: str,
        processor: str | None = None,
        reduction: Literal["sum", "mean"] = "sum",
        *,
        max_length: int | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        revision: str | None = None,
        image_column: str | None = None,
        caption_column: str | None = None,
        prompt_column: str | None = None,
        prompt: str | None = None,
        turns: Turns = "all",
        regions: str | Path | RegionSource | None = None,
        region_options: dict[str, Any] | None = None,
        name: str = "model_loss",
        easy: Literal["low", "high"] = "low",
    ) -> None:
        validate_choice("reduction", reduction, ("sum", "mean"))
        validate_choice("turns", turns, ("all", "first", "last"))
        at_least(type(self).__name__, max_length=(2 if max_length is None else max_length, 2))
        if prompt is not None and prompt_column is not None:
            raise ValueError("`prompt` and `prompt_column` were both given, and a response has one prompt. Leave one.")
        model = str(model)
        images, captions = (image_column or IMAGE), (caption_column or CAPTION)
        config = _config(model, revision) if regions is None else None
        self.reads_chats = config is not None and reads_chats(config)
        if self.reads_chats:
            images, captions = (image_column or IMAGES), (caption_column or MESSAGES)
        super().__init__(model, revision, batch_size, images, captions, name, easy, dtype=dtype)
        self.reduction = reduction
        self.processor: str | None = None if processor is None else str(processor)
        self.prompt_column, self.prompt, self.turns = prompt_column, prompt, turns
        self.max_length = max_length if max_length is not None or self.reads_chats else 50
        self.sees_images, self.template_digest = True, None
        self._not_found = regions is None and config is None
        if self.reads_chats:
            self._set_chat_columns(config)
        if regions is not None:
            self.regions = open_regions(regions) if isinstance(regions, (str, Path)) else regions
            self.region_options = region_options
            # A store that was written again is another one under the same path.
            self.regions_digest: str = digest(json.dumps(self.regions.arguments(), sort_keys=True, default=str))
            self.columns = (IMAGE_ID, captions)
            self.decode_false = ()

    def _set_chat_columns(self, config: Any) -> None:
        where, revision = (self.model, self.revision) if self.processor is None else (self.processor, None)
        parts = ChatParts.load(config, where, revision)
        self.sees_images, self.template_digest = parts.processor is not None, parts.template_digest
        images = (self.image_column,) if self.sees_images else ()
        prompts = () if self.prompt_column is None else (self.prompt_column,)
        self.columns, self.decode_false, self.group_by = (*images, self.caption_column, *prompts), images, None

    def validate_columns(self) -> None:
        """As in `Scorer`; a `FileNotFoundError` for a model that is not there, whose columns are not known."""
        super().validate_columns()
        if self._not_found:
            from transformers import AutoConfig

            load_pretrained(AutoConfig, self.model, self.revision)

    def arguments(self) -> dict[str, Any]:
        unused = ("regions", "region_options") if self.regions is None else ()
        unused += () if self.reads_chats else _OF_CHATS
        found = {name: value for name, value in super().arguments().items() if name not in unused}
        return {**found, "part": "assistant", "template": self.template_digest} if self.reads_chats else found

    def load(self, device: torch.device) -> Any:
        """A `ChatModel`, or a `LoadedCaptioner`."""
        if self.reads_chats:
            return ChatModel.load(self.model, self.revision, self.processor, self.max_length, device, self.dtype)
        return self._load_captioner(device)

    def _load_captioner(self, device: torch.device) -> LoadedCaptioner:
        from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer, VisionEncoderDecoderModel

        from hf_curriculum.models.base import validate_vocabulary
        from hf_curriculum.models.captioner import image_text

        where, revision = (self.model, self.revision) if self.processor is None else (self.processor, None)
        tokenizer = load_pretrained(AutoTokenizer, where, revision)
        kind = load_pretrained(AutoConfig, self.model, self.revision).model_type
        cls = VisionEncoderDecoderModel if kind == "vision-encoder-decoder" else AutoModelForImageTextToText
        model = load_model(cls, self.model, self.revision, dtype=self.dtype).to(device)
        self._validate_kind(model)
        validate_vocabulary(model, tokenizer, f"The tokenizer of {where!r}")
        text = model.config.get_text_config(decoder=True)
        positions = getattr(text, "max_position_embeddings", None) or self.max_length
        before, inputs = image_text(model, tokenizer), self._inputs(model, where, revision)
        return LoadedCaptioner(model, tokenizer, inputs, min(self.max_length, positions), before and f"{before} ")

    def _inputs(self, model: Any, where: str, revision: str | None) -> PixelInputs | RegionInputs:
        """What the model sees of an image."""
        from transformers import AutoImageProcessor

        from hf_curriculum.data.image_inputs import PixelInputs, RegionInputs
        from hf_curriculum.data.processors import CaptionProcessor
        from hf_curriculum.models.captioner import reads

        on_regions = reads(model, "region_features")
        if self.regions is not None and not on_regions:
            raise ValueError(
                f"`regions` were given, but {self.model!r} is a {type(model).__name__}, which reads images. Leave "
                "them out, or name a captioner on regions."
            )
        if on_regions:
            images = load_pretrained(CaptionProcessor, where, revision).image_processor
        else:
            images = load_pretrained(AutoImageProcessor, where, revision, backend=self.backend)
        if self.regions is not None:
            return RegionInputs.for_model(self.regions, images, **(self.region_options or {}))
        if images is None:
            raise ValueError(
                f"{self.model!r} is a {type(model).__name__} without an image processor: it was trained on stored "
                "regions. Name the file or folder that holds them: `ModelLoss(..., regions=...)`."
            )
        return PixelInputs(images, image_column=self.image_column)

    def _validate_kind(self, model: Any) -> None:
        from hf_curriculum.models.base import image_placeholder

        kind, config = type(model).__name__, model.config
        placeholder = image_placeholder(config)
        if placeholder is not None:
            raise ValueError(
                f"{self.model!r} is a {kind}, which reads an image as placeholder tokens (`{placeholder}`) of a "
                "prompt, not regions. Leave `regions` out."
            )
        given = [name for name in _OF_CHATS if getattr(self, name) not in (None, "all")]
        if given:
            raise ValueError(
                f"`{given[0]}` was given, but {self.model!r} is a {kind}, which reads captions, not conversations. "
                "Leave it out, or name a chat model."
            )
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            raise ValueError(
                f"{self.model!r} is a {kind} whose configuration has no `decoder_start_token_id`. Set it as in "
                "training (`model.config.decoder_start_token_id = ...`) and save the model again."
            )

    def describe(self, column: str | None = None) -> ScoreProvenance:
        """The provenance of the column, with what the model was trained on where its folder says so."""
        return replace(super().describe(column), trained_on=read_trained_on(self.model))

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        if not self.reads_chats:
            return self.pair_scores(batch, rank)
        passes = ChatPasses(self, batch, rank)
        scores = self.chat_scores(passes)
        passes.report()
        return scores

    def pass_key(self) -> tuple[Any, ...]:
        """What two scorers have in common whose forward passes are the same."""
        names = ("model", "revision", "processor", "template_digest", "max_length", "columns", *_OF_CHATS)
        return tuple(getattr(self, name) for name in names)

    def chat_scores(self, passes: ChatPasses) -> np.ndarray:
        """Scores of a batch of conversations, float64 (rows,)."""
        return passes.own().reduced(self.reduction)

    def read(self, stored: Any, loaded: LoadedCaptioner) -> dict[str, torch.Tensor]:
        from hf_curriculum.data.image_inputs import MissingFeaturesError

        if self.regions is None:
            return super().read(stored, loaded)
        try:
            return loaded.inputs.read({IMAGE_ID: stored})
        except MissingFeaturesError as error:
            raise UnreadableImageError(str(error)) from error

    def pixels(self, image: Image.Image, loaded: LoadedCaptioner) -> dict[str, torch.Tensor]:
        return loaded.inputs.read({self.image_column: image})

    def shape_of(self, image: dict[str, torch.Tensor]) -> tuple[Any, ...]:
        from hf_curriculum.data.image_inputs import size_of

        return size_of(image)

    def run(
        self, loaded: LoadedCaptioner, tokens: list[list[int]], images: list[dict[str, torch.Tensor]]
    ) -> torch.Tensor:
        """Losses of pairs, float64 (pairs,); an image of several pairs is the same object, and encoded once."""
        import torch

        from hf_curriculum.data.image_inputs import images_for
        from hf_curriculum.models.on_host import to_device

        model, distinct = loaded.model, {id(image): image for image in images}
        index = {key: number for number, key in enumerate(distinct)}
        ids, mask = (to_device(values, model.device) for values in padded(tokens))  # (pairs, tokens)
        which = to_device(torch.tensor([index[id(image)] for image in images]), model.device)  # (pairs,)
        seen = images_for(loaded.inputs.stack(list(distinct.values())), next(model.parameters()))
        with torch.inference_mode(not self._differentiable):
            if model.config.is_encoder_decoder:
                start = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
                encoded = model.get_encoder()(**seen)
                encoded.last_hidden_state = encoded.last_hidden_state[which]
                logits = model(
                    encoder_outputs=encoded,
                    decoder_input_ids=torch.cat([start, ids[:, :-1]], dim=1),
                    decoder_attention_mask=mask,
                ).logits  # (pairs, tokens, vocabulary)
                return reduced_losses(logits, ids, mask, self.reduction)
            logits = _prefix_logits(model, ids, mask, seen, which)
            if model.config.model_type == "curriculum_flamingo":
                is_image = ids == model.config.image_token_id
                mask = mask * ((is_image.cumsum(1) > 0) & ~is_image)  # the prefix is not scored
        return reduced_losses(logits[:, :-1], ids[:, 1:], mask[:, 1:], self.reduction)


def _config(model: str, revision: str | None) -> Any | None:
    """The configuration of a model; None where there is no such model, which is said when its columns are needed."""
    from transformers import AutoConfig

    try:
        return load_pretrained(AutoConfig, model, revision)
    except FileNotFoundError:
        return None


def _prefix_logits(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, images: dict[str, torch.Tensor], which: torch.Tensor
) -> torch.Tensor:
    """Logits (pairs, tokens, vocabulary) of a decoder-only captioner; `which` (pairs,) numbers the images."""
    from hf_curriculum.models.captioner import images_of_texts

    if model.config.model_type == "blip":
        ids = ids.clone()
        ids[:, 0] = model.config.text_config.bos_token_id  # its captions start with [DEC], which no tokenizer writes
    logits = model(input_ids=ids, attention_mask=mask, **images_of_texts(model, images, which)).logits
    return logits[:, -ids.shape[1] :]  # stock GIT has logits for the image's tokens, too
