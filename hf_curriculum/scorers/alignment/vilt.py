"""How well image and caption match, by the matching logit of a ViLT."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import ViltConfig, ViltModel
from transformers.models.vilt.modeling_vilt import ViltPreTrainedModel

from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.models.on_host import to_device
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Aggregate, ImageScorer
from hf_curriculum.scorers.pretrained import PairScorer, Precision, load_model, load_pretrained
from hf_curriculum.scorers.text.language_model import padded

if TYPE_CHECKING:
    from PIL import Image

Head = Literal["retrieval", "matching", "match_row"]
_MAX_TOKENS = 40


class _Loaded(NamedTuple):
    """A ViLT on its device, what prepares its inputs, and the most tokens it reads."""

    model: Any
    tokenizer: Any
    image_processor: Any
    limit: int
    prefix: str = ""


class ViLTSimilarity(ImageScorer, PairScorer):
    """Image–text matching logit of a ViLT, and its sigmoid.

    Sort by the logit: the sigmoid has the same order, but saturates, and in float32 many examples tie at 1. It is not
    a calibrated probability.

    Images are resized as ViLT's processor does (shorter edge 384, longer at most 639, multiples of 32), and batched by
    their size, so that no score depends on padding. All patches are used, none is sampled. Each image of a batch is
    opened once, for all rows that share its `image_id`.

    Args:
        model: a folder or a repository of the Hub. For "retrieval" a ViLT that was fine-tuned for it, such as
            "dandelin/vilt-b32-finetuned-coco" or "dandelin/vilt-b32-finetuned-flickr30k"; for the other heads a
            pretrained one. Nothing is downloaded unless it is named here.
        head: "retrieval" is the one logit of a fine-tuned ViLT. Without fine-tuning, "matching" is the log-odds of the
            two-way matching head, logit(match) − logit(no match), so the sigmoid is its softmax. "match_row" is
            logit(match) alone, from which fine-tuning starts the retrieval head.
        matching_weights: a file with `itm_score.fc.weight` and `itm_score.fc.bias`, for "matching" and "match_row",
            from the original checkpoint: the usual conversions of the pretrained ViLT dropped them.
        batch_size: pairs that run through the model at once.
        dtype: "float32", "float16" or "bfloat16".
        revision: of a repository.
        image_column: where the images are, one or a list of them in a row.
        caption_column: where the captions or conversations are. Truncated to 40 tokens, counted in `num_truncated` and
            reported.
        name: the column of logits.
        probability: the column of sigmoids; None to leave it out.
        easy: a high logit is easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.
        aggregate: of a row with a list of images, the "mean", "max" or "min" of their scores.

    Shapes:
        float32 (rows,) each. NaN for a caption that is missing, empty or blank, and for an image that cannot be
        decoded or is so thin that a side has no pixel after resizing. Also for a list with such an image or with none.

    Raises:
        FileNotFoundError: there is no such model, or no file `matching_weights`.
        ValueError: unknown `head` or `easy`, a `batch_size` below 1, `matching_weights` for the retrieval head or
            without the head in them, a checkpoint that lacks the requested head.
        TypeError: a cell that is neither a text nor a conversation.

    Source: Zhang et al. 2022 (Simi-CL), §3.1, equation 3, and §4.1 (fine-tuned on COCO or Flickr30k); Kim et al. 2021
    (ViLT), §3.2. Which head the ViLT "without fine-tuning" of their Table 1 had is not stated.

    Example:
        >>> scorer = ViLTSimilarity("dandelin/vilt-b32-finetuned-coco")           # doctest: +SKIP
        >>> add_scores(data, scorer)["vilt_similarity"][:]                        # doctest: +SKIP
    """

    easy = "high"

    def __init__(
        self,
        model: str,
        head: Head = "retrieval",
        *,
        matching_weights: str | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        revision: str | None = None,
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        name: str = "vilt_similarity",
        probability: str | None = "vilt_probability",
        easy: Literal["low", "high"] = "high",
        part: Part = "assistant",
        turns: Turns = "all",
        aggregate: Aggregate = "mean",
    ) -> None:
        validate_choice("head", head, ("retrieval", "matching", "match_row"))
        super().__init__(model, revision, batch_size, image_column, caption_column, name, easy, part, turns, dtype)
        self._set_aggregate(aggregate)
        if matching_weights is not None and head == "retrieval":
            raise ValueError(f'`matching_weights={matching_weights!r}` has no effect with `head="retrieval"`.')
        self.head = head
        self.matching_weights: str | None = None if matching_weights is None else str(matching_weights)
        self.probability = probability

    @property
    def outputs(self) -> dict[str, str]:
        names = [self.name] if self.probability is None else [self.name, self.probability]
        return dict.fromkeys(names, self.easy)

    def load(self, device: torch.device) -> _Loaded:
        from transformers import AutoImageProcessor, AutoTokenizer, ViltForImageAndTextRetrieval

        tokenizer = load_pretrained(AutoTokenizer, self.model, self.revision)
        image_processor = load_pretrained(AutoImageProcessor, self.model, self.revision, backend=self.backend)
        if self.head == "retrieval":
            model = load_model(ViltForImageAndTextRetrieval, self.model, self.revision, dtype=self.dtype)
        else:
            model = self._load_matching()
        model.config.max_image_length = -1  # of a positive number of patches, a random sample would be used
        limit = min(_MAX_TOKENS, model.config.max_position_embeddings)
        return _Loaded(model.to(device), tokenizer, image_processor, limit)

    def _load_matching(self) -> Any:
        if self.matching_weights is not None:
            head = read_matching_head(self.matching_weights)
            model = load_model(ViltForMatching, self.model, self.revision, HEAD, self.dtype)
            model.load_state_dict(head, strict=False)
            return model
        try:
            return load_model(ViltForMatching, self.model, self.revision, dtype=self.dtype)
        except ValueError as error:
            raise ValueError(
                f"{error} The usual conversions of ViLT dropped the matching head `itm_score`: give the original "
                'checkpoint as `matching_weights=`, or name a fine-tuned ViLT and use `head="retrieval"`.'
            ) from error

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> dict[str, np.ndarray]:
        logits = self.pair_scores(batch, rank)
        scores = {self.name: logits}
        if self.probability is not None:
            with np.errstate(invalid="ignore"):  # NaN stays NaN
                scores[self.probability] = np.exp(-np.logaddexp(0, -logits))
        return scores

    def pixels(self, image: Image.Image, loaded: _Loaded) -> torch.Tensor:
        from transformers.models.vilt.image_processing_pil_vilt import (
            MAX_LONGER_EDGE,
            MAX_SHORTER_EDGE,
            get_resize_output_image_size,
        )

        processor = loaded.image_processor
        shorter = processor.size["shortest_edge"]
        size = get_resize_output_image_size(
            np.broadcast_to(np.uint8(0), (image.height, image.width, 3)),
            shorter=shorter,
            longer=int(MAX_LONGER_EDGE / MAX_SHORTER_EDGE * shorter),
            size_divisor=processor.size_divisor,
            input_data_format="channels_last",
        )
        if 0 in size:
            raise UnreadableImageError(
                f"an image of {image.width} x {image.height} pixels is too long and thin: resized for ViLT, its "
                f"shorter edge has less than {processor.size_divisor} pixels."
            )
        return processor(images=[image], return_tensors="pt")["pixel_values"][0]

    def run(self, loaded: _Loaded, tokens: list[list[int]], images: list[torch.Tensor]) -> torch.Tensor:
        ids, mask = padded(tokens)
        pixels = torch.stack(images).to(loaded.model.dtype)  # (pairs, 3, height, width)
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "pixel_values": pixels,
            "pixel_mask": torch.ones(len(images), *pixels.shape[2:], dtype=torch.long),
        }
        inputs = {name: to_device(values, loaded.model.device) for name, values in inputs.items()}
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):  # ViLT shuffles its patches
            torch.default_generator.manual_seed(0)
            out = loaded.model(**inputs)
        if self.head == "retrieval":
            logits = out.logits[:, 0]
        else:
            logits = out[:, 1] - out[:, 0] if self.head == "matching" else out[:, 1]
        return logits.float()


HEAD = ("itm_score.fc.weight", "itm_score.fc.bias")
"""The head's weights, under the names of the original code; row 0 means "does not match", row 1 "matches"."""


class ViltForMatching(ViltPreTrainedModel):
    """ViLT and the head `itm_score` of the original checkpoint: logits (batch, 2) of no match and match."""

    def __init__(self, config: ViltConfig) -> None:
        super().__init__(config)
        self.vilt: ViltModel = ViltModel(config)
        self.itm_score: nn.Module = nn.Module()
        self.itm_score.fc = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.itm_score.fc(self.vilt(**inputs).pooler_output)  # (batch, 2)


def read_matching_head(file: str) -> dict[str, torch.Tensor]:
    """The matching head's weights from a .safetensors file or one of `torch.save`, alone or among others."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{file} does not exist. It should hold ViLT's matching head, {' and '.join(HEAD)}.")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        weights = load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ValueError(
                f"{path} cannot be read as weights alone ({' '.join(str(error).split())[:200]}). Other objects could "
                f"run code. Save the two tensors {' and '.join(HEAD)} to a file of their own."
            ) from error
        weights = content.get("state_dict", content)
    missing = [name for name in HEAD if name not in weights]
    if missing:
        raise ValueError(
            f"{file} has no {missing[0]!r} among its {len(weights)} weights: it lacks ViLT's matching head. Give the "
            "original pretrained weights."
        )
    return {name: weights[name].float() for name in HEAD}
