"""The captioner loss of a caption given its image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import at_least, digest
from hf_curriculum.data.regions.base import RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.fingerprint import read_trained_on
from hf_curriculum.provenance import ScoreProvenance, validate_choice
from hf_curriculum.scorers.pretrained import PairScorer, load_model, load_pretrained
from hf_curriculum.scorers.text.language_model import padded, reduced_losses

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from hf_curriculum.data.image_inputs import PixelInputs, RegionInputs
    from hf_curriculum.scorers.visual.images import ImageOpener


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
    """Captioner loss, −Σ log p(y_t | y_<t, image), of a caption in nats.

    The captioner is trained on the data beforehand, without a curriculum; a caption of high loss is hard. A caption's
    tokens are those of the model's tokenizer, its special ones included: the first (such as `[CLS]`, or
    BLIP's `[DEC]`) starts the caption and is not scored, the end of the caption is. Encoder-decoders start from their
    `decoder_start_token_id` and every token is scored. Flamingo's captions begin with `<image>`, which is not scored
    but counts in `max_length`. That is the loss the models are trained on, padding masked, without label smoothing.

    Args:
        model: a folder or a repository of the Hub with a captioner that reads an image and a caption: this library's
            own, or `transformers`' GIT, BLIP and `VisionEncoderDecoderModel`. Not other models that read an image as
            placeholder tokens of a prompt.
        processor: where the tokenizer and the image processor are, if not with the model.
        reduction: "sum" (as in the paper: long captions are hard), or "mean" over the scored tokens.
        max_length: captions are truncated to so many tokens, special ones included, counted in `num_truncated` and
            reported. Give what the model was trained with; at most what it has positions for.
        batch_size: pairs that run through the model at once.
        revision: of a repository.
        image_column: where the images are.
        caption_column: where the captions are.
        regions: for a captioner on stored regions, the file or folder of them (see `open_regions`), or one opened;
            they are found by `image_id`, and no image is read.
        region_options: of `RegionInputs`, such as `{"box_values": True}`; by default those of training, where the
            model's image processor has them.
        name: the column to write.
        easy: a small loss is easy by default.

    Shapes:
        float32 (rows,), in nats (per token with "mean"); NaN for a caption that is missing, empty or blank or has no
        token to score, an image that cannot be decoded, and one that `regions` does not have or has no region of.

    Raises:
        FileNotFoundError: there are no such model, processor or regions.
        ValueError: unknown `reduction` or `easy`, `max_length` below 2, `batch_size` below 1, a checkpoint that lacks
            weights, a model of another kind, regions for a model that reads images or none for one that reads regions,
            an encoder-decoder without start token, a Flamingo whose tokenizer lacks its `<image>`.
        TypeError: a caption that is not a string.

    Source: Zhang et al. 2022 (Simi-CL), §3.3, equation 5 (Bootstrap-CL).

    Example:
        >>> scorer = ModelLoss("output/vanilla-git")               # doctest: +SKIP
        >>> add_scores(data, scorer)["model_loss"][:]              # doctest: +SKIP
    """

    regions: RegionSource | None = None
    region_options: dict[str, Any] | None = None

    def __init__(
        self,
        model: str,
        processor: str | None = None,
        reduction: Literal["sum", "mean"] = "sum",
        *,
        max_length: int = 50,
        batch_size: int = 32,
        revision: str | None = None,
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        regions: str | Path | RegionSource | None = None,
        region_options: dict[str, Any] | None = None,
        name: str = "model_loss",
        easy: Literal["low", "high"] = "low",
    ) -> None:
        validate_choice("reduction", reduction, ("sum", "mean"))
        at_least(type(self).__name__, max_length=(max_length, 2))
        super().__init__(model, revision, batch_size, image_column, caption_column, name, easy)
        self.reduction = reduction
        self.processor: str | None = None if processor is None else str(processor)
        self.max_length = max_length
        if regions is not None:
            self.regions = open_regions(regions) if isinstance(regions, (str, Path)) else regions
            self.region_options = region_options
            # A store that was written again is another one under the same path.
            self.regions_digest: str = digest(json.dumps(self.regions.arguments(), sort_keys=True, default=str))
            self.columns = (IMAGE_ID, caption_column)
            self.decode_false = ()

    def arguments(self) -> dict[str, Any]:
        unused = ("regions", "region_options") if self.regions is None else ()
        return {name: value for name, value in super().arguments().items() if name not in unused}

    def load(self, device: torch.device) -> LoadedCaptioner:
        from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer, VisionEncoderDecoderModel

        from hf_curriculum.models.captioner import image_text

        where, revision = (self.model, self.revision) if self.processor is None else (self.processor, None)
        tokenizer = load_pretrained(AutoTokenizer, where, revision)
        kind = load_pretrained(AutoConfig, self.model, self.revision).model_type
        cls = VisionEncoderDecoderModel if kind == "vision-encoder-decoder" else AutoModelForImageTextToText
        model = load_model(cls, self.model, self.revision).to(device)
        self._validate_kind(model)
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
                "prompt. Use a captioner: GIT, Flamingo, BLIP or a `VisionEncoderDecoderModel`."
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
        return self.pair_scores(batch, rank)

    def read(self, stored: Any, loaded: LoadedCaptioner, opener: ImageOpener) -> dict[str, torch.Tensor] | None:
        from hf_curriculum.data.image_inputs import MissingFeaturesError

        if self.regions is None:
            return super().read(stored, loaded, opener)
        try:
            return loaded.inputs.read({IMAGE_ID: stored})
        except MissingFeaturesError as error:
            opener.failed.append(str(error))
            return None

    def pixels(self, image: Image.Image, loaded: LoadedCaptioner) -> dict[str, torch.Tensor]:
        return loaded.inputs.read({self.image_column: image})

    def shape_of(self, image: dict[str, torch.Tensor]) -> tuple[Any, ...]:
        from hf_curriculum.data.image_inputs import size_of

        return size_of(image)

    def run(
        self, loaded: LoadedCaptioner, tokens: list[list[int]], images: list[dict[str, torch.Tensor]]
    ) -> np.ndarray:
        """Losses of pairs, float64 (pairs,); an image of several pairs is the same object, and encoded once."""
        import torch

        from hf_curriculum.data.image_inputs import images_for

        model, distinct = loaded.model, {id(image): image for image in images}
        index = {key: number for number, key in enumerate(distinct)}
        ids, mask = (values.to(model.device) for values in padded(tokens))  # (pairs, tokens)
        which = torch.tensor([index[id(image)] for image in images], device=model.device)  # (pairs,)
        seen = images_for(loaded.inputs.stack(list(distinct.values())), next(model.parameters()))
        with torch.inference_mode():
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
