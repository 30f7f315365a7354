"""How badly a trained captioner predicts a caption of its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.base import Scorer, readable_captions
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained, report_truncated
from hf_curriculum.scorers.text.language_model import padded, reduced_losses
from hf_curriculum.scorers.visual.images import ImageOpener, batches_of_one_size, distinct_images

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from PIL import Image


_OURS = ("curriculum_git", "curriculum_flamingo")


class _Loaded(NamedTuple):
    """A captioner on its device, what prepares its inputs, the most tokens it reads, what stands before captions."""

    model: Any
    tokenizer: Any
    pixels: Callable[[Image.Image], torch.Tensor]
    limit: int
    prefix: str


class ModelLoss(Scorer):
    """−Σ log p(y_t | y_<t, picture) of a caption under a captioner, in nats.

    The captioner is trained on the data beforehand, without a curriculum; what it still predicts badly is hard. A
    caption's tokens are those of the model's tokenizer, its special ones included: the first (such as `[CLS]`, or
    BLIP's `[DEC]`) starts the caption and is not scored, the end of the caption is. Encoder-decoders start from their
    `decoder_start_token_id` and every token is scored. Flamingo's captions begin with `<image>`, which is not scored
    but counts in `max_length`. That is the loss the models are trained on, padding masked, without label smoothing.

    Args:
        model: a folder or a repository of the Hub with a captioner that reads a picture and a caption: this library's
            GIT and Flamingo, or `transformers`' GIT, BLIP and `VisionEncoderDecoderModel`. Not other models that read
            a picture as placeholder tokens of a prompt.
        processor: where the tokenizer and the image processor are, if not with the model.
        reduction: "sum" (as in the paper: long captions are hard), or "mean" over the scored tokens.
        max_length: captions are cut to so many tokens, special ones included, which is counted in `num_truncated` and
            reported. Give what the model was trained with; at most what it has positions for.
        batch_size: pairs that run through the model at once.
        revision: of a repository.
        image_column: where the pictures are.
        caption_column: where the captions are.
        name: the column to write.
        easy: a small loss is easy by default.

    Shapes:
        float32 (rows,), in nats (per token with "mean"); NaN for a caption that is missing, empty or blank or has no
        token to score, and a picture that cannot be decoded.

    Raises:
        FileNotFoundError: there is no such model or processor.
        ValueError: unknown `reduction` or `easy`, `max_length` below 2, `batch_size` below 1, a checkpoint that lacks
            weights, a model of another kind, an encoder-decoder without start token, a Flamingo whose tokenizer lacks
            its `<image>`.
        TypeError: a caption that is not a string.

    Source: Zhang et al. 2022 (Simi-CL), §3.3, equation 5 (Bootstrap-CL).

    Example:
        >>> scorer = ModelLoss("output/vanilla-git")               # doctest: +SKIP
        >>> add_scores(data, scorer)["model_loss"][:]              # doctest: +SKIP
    """

    group_by = IMAGE_ID
    packages = ("torch", "transformers", "tokenizers", "pillow")
    backend = "pil"

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
        name: str = "model_loss",
        easy: Literal["low", "high"] = "low",
    ) -> None:
        check_choice("reduction", reduction, ("sum", "mean"))
        check_choice("easy", easy, ("low", "high"))
        if max_length < 2 or batch_size < 1:
            raise ValueError(
                f"`max_length={max_length}` and `batch_size={batch_size}` were given. A caption has at least 2 tokens "
                "(one is scored after the other), and a batch at least 1 pair."
            )
        self.model, self.reduction = str(model), reduction
        self.processor = None if processor is None else str(processor)
        self.max_length, self.batch_size = max_length, batch_size
        self.revision = folder_digest(self.model) if revision is None else revision
        self.image_column, self.caption_column = image_column, caption_column
        self.name, self.easy = name, easy
        self.columns = (image_column, caption_column)
        self.undecoded = (image_column,)

    @property
    def num_truncated(self) -> int:
        """Captions that were cut so far, in this process."""
        return getattr(self, "_num_cut", 0)

    def load(self, device: torch.device) -> _Loaded:
        from transformers import (
            AutoConfig,
            AutoImageProcessor,
            AutoModelForImageTextToText,
            AutoTokenizer,
            VisionEncoderDecoderModel,
        )

        from hf_curriculum.data.processors import PixelTable, is_plain, process_image
        from hf_curriculum.models.captioner import image_text

        where, revision = (self.model, self.revision) if self.processor is None else (self.processor, None)
        tokenizer = load_pretrained(AutoTokenizer, where, revision)
        processor = load_pretrained(AutoImageProcessor, where, revision, backend=self.backend)
        kind = load_pretrained(AutoConfig, self.model, self.revision).model_type
        cls = VisionEncoderDecoderModel if kind == "vision-encoder-decoder" else AutoModelForImageTextToText
        model = load_model(cls, self.model, self.revision).to(device)
        self._check_kind(model)
        text = model.config.get_text_config(decoder=True)
        positions = getattr(text, "max_position_embeddings", None) or self.max_length
        table = PixelTable(processor) if is_plain(processor) else None
        pixels = table or (lambda image: process_image(processor, image)["pixel_values"])
        before = image_text(model, tokenizer)
        return _Loaded(model, tokenizer, pixels, min(self.max_length, positions), before and f"{before} ")

    def _check_kind(self, model: Any) -> None:
        kind, config = type(model).__name__, model.config
        placeholder = next((name for name in ("image_token_id", "image_token_index") if hasattr(config, name)), None)
        if placeholder is not None and config.model_type not in _OURS:
            raise ValueError(
                f"{self.model!r} is a {kind}, which reads a picture as placeholder tokens (`{placeholder}`) within a "
                "prompt; what a caption's loss is depends on that prompt. Use a captioner: GIT, Flamingo, BLIP or a "
                "`VisionEncoderDecoderModel`."
            )
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            raise ValueError(
                f"{self.model!r} is a {kind} whose configuration has no `decoder_start_token_id`: nobody knows what "
                "stands before a caption. Set it as in training (`model.config.decoder_start_token_id = ...`) and "
                "save the model again."
            )

    def score(self, batch: dict[str, list], rank: int | None) -> np.ndarray:
        captions, mask = readable_captions(batch[self.caption_column], self.caption_column)
        losses = np.full(len(mask), np.nan)
        if not captions:
            return losses
        loaded, opened = self.loaded(rank), ImageOpener()
        tokens = dict(zip(np.flatnonzero(mask).tolist(), self._tokens(captions, loaded), strict=True))
        pictures = (
            (loaded.pixels(image), rows)
            for picture, rows in distinct_images(batch, self.image_column, mask)
            if (image := opened(picture)) is not None
        )
        for pairs in batches_of_one_size(pictures, self.batch_size):
            rows = [row for row, _ in pairs]
            losses[rows] = self._losses(loaded.model, [tokens[row] for row in rows], [pixels for _, pixels in pairs])
        opened.report(self)
        return losses

    def _tokens(self, captions: list[str], loaded: _Loaded) -> list[list[int]]:
        captions = [loaded.prefix + caption for caption in captions]
        whole = loaded.tokenizer(captions, verbose=False)["input_ids"]
        report_truncated(self, sum(len(ids) > loaded.limit for ids in whole), len(whole), loaded.limit)
        return loaded.tokenizer(captions, truncation=True, max_length=loaded.limit)["input_ids"]

    def _losses(self, model: Any, tokens: list[list[int]], pictures: list[torch.Tensor]) -> np.ndarray:
        """Losses of pairs whose pictures have one shape; equal pictures are the same object, and encoded once.

        Shapes:
            pictures (3, height, width) each → float64 (pairs,).
        """
        import torch

        place = {id(picture): index for index, picture in enumerate({id(p): p for p in pictures}.values())}
        ids, mask = (values.to(model.device) for values in padded(tokens))  # (pairs, tokens)
        which = torch.tensor([place[id(picture)] for picture in pictures], device=model.device)  # (pairs,)
        pixels = torch.stack(list({id(picture): picture for picture in pictures}.values())).to(model.device)
        with torch.inference_mode():
            if model.config.is_encoder_decoder:
                start = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
                encoded = model.get_encoder()(pixel_values=pixels)
                encoded.last_hidden_state = encoded.last_hidden_state[which]
                logits = model(
                    encoder_outputs=encoded,
                    decoder_input_ids=torch.cat([start, ids[:, :-1]], dim=1),
                    decoder_attention_mask=mask,
                ).logits  # (pairs, tokens, vocabulary)
                return reduced_losses(logits, ids, mask, self.reduction)
            logits = _prefix_logits(model, ids, mask, pixels, which)
            if model.config.model_type == "curriculum_flamingo":
                is_picture = ids == model.config.image_token_id
                mask = mask * ((is_picture.cumsum(1) > 0) & ~is_picture)  # what is given is not scored
        return reduced_losses(logits[:, :-1], ids[:, 1:], mask[:, 1:], self.reduction)


def _prefix_logits(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, pixels: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    """Logits of a captioner that reads the picture before the caption, or beside it.

    Args:
        model: a captioner.
        ids: tokens, (pairs, tokens).
        mask: 1 for tokens, 0 for padding, (pairs, tokens).
        pixels: the distinct pictures, (pictures, 3, height, width).
        which: the picture of each pair, (pairs,).

    Shapes:
        returns (pairs, tokens, vocabulary); position t predicts token t + 1.
    """
    if model.config.model_type in _OURS:
        picture = {"image_features": model.base_model.encode_images(pixels)[which]}
    else:
        picture = {"pixel_values": pixels[which]}
    if model.config.model_type == "blip":
        ids = ids.clone()
        ids[:, 0] = model.config.text_config.bos_token_id  # its captions start with [DEC], which no tokenizer writes
    logits = model(input_ids=ids, attention_mask=mask, **picture).logits
    return logits[:, -ids.shape[1] :]  # stock GIT has logits for the picture's tokens, too
