"""How well a caption matches its picture, by a ViLT that reads both at once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import ViltConfig, ViltModel
from transformers.models.vilt.modeling_vilt import ViltPreTrainedModel

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.base import Scorer, readable_captions
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained, report_truncated
from hf_curriculum.scorers.text.language_model import padded
from hf_curriculum.scorers.visual.images import ImageOpener, batches_of_one_size, distinct_images

if TYPE_CHECKING:
    import torch
    from PIL import Image


Head = Literal["retrieval", "matching", "match_row"]
_MAX_TOKENS = 40


class _Loaded(NamedTuple):
    """A ViLT on its device, what prepares its inputs, and the most tokens it reads."""

    model: Any
    tokenizer: Any
    image_processor: Any
    limit: int


class ViLTSimilarity(Scorer):
    """The logit by which a ViLT says that caption and picture belong together, and its sigmoid.

    Sort by the logit: the sigmoid has the same order, but saturates, so that in float32 many examples tie at 1. It is
    no calibrated probability.

    Pictures are resized as ViLT's processor does (shorter edge 384, longer at most 639, multiples of 32) and run with
    pictures of the same resized size, so that no score depends on padding, and none of it is computed. All patches are
    used, none drawn at random. Each picture of a batch is opened once, for all rows that share its `image_id`.

    Args:
        model: a folder or a repository of the Hub. For "retrieval" a ViLT that was fine-tuned for it, such as
            "dandelin/vilt-b32-finetuned-coco" or "dandelin/vilt-b32-finetuned-flickr30k"; for the other heads a
            pretrained one. Nothing is downloaded unless it is named here.
        head: "retrieval" is the one logit of a fine-tuned ViLT. Without fine-tuning: "matching" is the log-odds of the
            two-way matching head, logit(match) − logit(no match), so that the sigmoid is its softmax; "match_row" is
            logit(match) alone, which is what the retrieval head starts from when it is fine-tuned.
        matching_weights: a file with `itm_score.fc.weight` and `itm_score.fc.bias`, for "matching" and "match_row",
            because the usual conversions of the pretrained ViLT dropped them: the original checkpoint has them.
        batch_size: pairs that run through the model at once.
        revision: of a repository.
        image_column: where the pictures are.
        caption_column: where the captions are. Truncated to 40 tokens, counted in `num_truncated` and reported.
        name: the column of logits.
        probability: the column of sigmoids; None to leave it out.
        easy: a high logit is easy by default.

    Shapes:
        float32 (rows,) each; NaN for a caption that is missing, empty or blank, a picture that cannot be decoded, and
        one so long and thin that nothing is left of it after resizing.

    Raises:
        FileNotFoundError: there is no such model, or no file `matching_weights`.
        ValueError: unknown `head` or `easy`, a `batch_size` below 1, `matching_weights` for the retrieval head or
            without the head in them, a checkpoint that lacks the head that was asked for.
        TypeError: a caption that is not a string.

    Source: Zhang et al. 2022 (Simi-CL), §3.1, equation 3, and §4.1 (fine-tuned on COCO or Flickr30k); Kim et al. 2021
    (ViLT), §3.2. Which head the ViLT "without fine-tuning" of their Table 1 had is not stated.

    Example:
        >>> scorer = ViLTSimilarity("dandelin/vilt-b32-finetuned-coco")           # doctest: +SKIP
        >>> add_scores(data, scorer)["vilt_similarity"][:]                        # doctest: +SKIP
    """

    easy = "high"
    group_by = IMAGE_ID
    packages = ("torch", "transformers", "tokenizers", "pillow")
    backend = "pil"

    def __init__(
        self,
        model: str,
        head: Head = "retrieval",
        *,
        matching_weights: str | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        name: str = "vilt_similarity",
        probability: str | None = "vilt_probability",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        check_choice("head", head, ("retrieval", "matching", "match_row"))
        check_choice("easy", easy, ("low", "high"))
        if batch_size < 1:
            raise ValueError(f"`batch_size` is {batch_size}. It is a number of pairs, at least 1.")
        if matching_weights is not None and head == "retrieval":
            raise ValueError(
                f"`matching_weights={matching_weights!r}` was given, but the retrieval head does not use the matching "
                'head\'s weights. Leave it out, or pass `head="matching"`.'
            )
        self.model, self.head, self.batch_size = str(model), head, batch_size
        self.matching_weights = None if matching_weights is None else str(matching_weights)
        self.revision = folder_digest(self.model) if revision is None else revision
        self.image_column, self.caption_column = image_column, caption_column
        self.name, self.probability, self.easy = name, probability, easy
        self.columns = (image_column, caption_column)
        self.undecoded = (image_column,)

    @property
    def outputs(self) -> dict[str, str]:
        names = [self.name] if self.probability is None else [self.name, self.probability]
        return dict.fromkeys(names, self.easy)

    @property
    def num_truncated(self) -> int:
        """Captions that were cut so far, in this process."""
        return getattr(self, "_num_cut", 0)

    def load(self, device: torch.device) -> _Loaded:
        from transformers import AutoImageProcessor, AutoTokenizer, ViltForImageAndTextRetrieval

        tokenizer = load_pretrained(AutoTokenizer, self.model, self.revision)
        image_processor = load_pretrained(AutoImageProcessor, self.model, self.revision, backend=self.backend)
        if self.head == "retrieval":
            model = load_model(ViltForImageAndTextRetrieval, self.model, self.revision)
        else:
            model = self._load_matching()
        model.config.max_image_length = -1  # a positive number would have patches drawn at random
        return _Loaded(
            model.to(device), tokenizer, image_processor, min(_MAX_TOKENS, model.config.max_position_embeddings)
        )

    def _load_matching(self) -> Any:

        if self.matching_weights is not None:
            head = read_matching_head(self.matching_weights)
            model = load_model(ViltForMatching, self.model, self.revision, allowed=HEAD)
            model.load_state_dict(head, strict=False)
            return model
        try:
            return load_model(ViltForMatching, self.model, self.revision)
        except ValueError as error:
            raise ValueError(
                f"{error} The usual conversions of ViLT dropped the matching head `itm_score`: give the original "
                'checkpoint as `matching_weights=`, or name a fine-tuned ViLT and use `head="retrieval"`.'
            ) from error

    def score(self, batch: dict[str, list], rank: int | None) -> dict[str, np.ndarray]:
        captions, mask = readable_captions(batch[self.caption_column], self.caption_column)
        logits = np.full(len(mask), np.nan)
        if captions:
            self._score(batch, mask, logits, self.loaded(rank))
        scores = {self.name: logits}
        if self.probability is not None:
            with np.errstate(invalid="ignore"):  # NaN stays NaN
                scores[self.probability] = np.exp(-np.logaddexp(0, -logits))
        return scores

    def _score(self, batch: dict[str, list], mask: np.ndarray, logits: np.ndarray, loaded: _Loaded) -> None:
        """Fills in the logits of the rows that can be scored."""
        rows = np.flatnonzero(mask).tolist()
        tokens = dict(zip(rows, self._tokens([batch[self.caption_column][row] for row in rows], loaded), strict=True))
        opened = ImageOpener()
        pictures = (
            (pixels, its_rows)
            for picture, its_rows in distinct_images(batch, self.image_column, mask)
            if (pixels := self._pixels(opened(picture), loaded, opened)) is not None
        )
        for pairs in batches_of_one_size(pictures, self.batch_size):
            self._run(pairs, tokens, logits, loaded)
        opened.report(self)

    def _tokens(self, captions: list[str], loaded: _Loaded) -> list[list[int]]:
        whole = loaded.tokenizer(captions, verbose=False)["input_ids"]
        report_truncated(self, sum(len(ids) > loaded.limit for ids in whole), len(whole), loaded.limit)
        return loaded.tokenizer(captions, truncation=True, max_length=loaded.limit)["input_ids"]

    def _pixels(self, image: Image.Image | None, loaded: _Loaded, opened: ImageOpener) -> torch.Tensor | None:
        """The picture as the model reads it, (3, height, width), or None if that cannot be."""
        from transformers.models.vilt.image_processing_pil_vilt import (
            MAX_LONGER_EDGE,
            MAX_SHORTER_EDGE,
            get_resize_output_image_size,
        )

        if image is None:
            return None
        processor = loaded.image_processor
        shorter = processor.size["shortest_edge"]
        height, width = get_resize_output_image_size(
            np.broadcast_to(np.uint8(0), (image.height, image.width, 3)),
            shorter=shorter,
            longer=int(MAX_LONGER_EDGE / MAX_SHORTER_EDGE * shorter),
            size_divisor=processor.size_divisor,
            input_data_format="channels_last",
        )
        if height == 0 or width == 0:
            opened.failed.append(
                f"a picture of {image.width} x {image.height} pixels is too long and thin: resized for ViLT, its "
                f"shorter edge has less than {processor.size_divisor} pixels."
            )
            return None
        return processor(images=[image], return_tensors="pt")["pixel_values"][0]

    def _run(
        self,
        pairs: list[tuple[int, torch.Tensor]],
        tokens: dict[int, list[int]],
        logits: np.ndarray,
        loaded: _Loaded,
    ) -> None:
        """Scores pairs of (row, picture) whose pictures have one size."""
        import torch

        rows = [row for row, _ in pairs]
        ids, mask = padded([tokens[row] for row in rows])
        pixels = torch.stack([picture for _, picture in pairs])  # (pairs, 3, height, width)
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "pixel_values": pixels,
            "pixel_mask": torch.ones(len(rows), *pixels.shape[2:], dtype=torch.long),
        }
        inputs = {name: values.to(loaded.model.device) for name, values in inputs.items()}
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):  # ViLT shuffles its patches
            torch.default_generator.manual_seed(0)
            out = loaded.model(**inputs)
        if self.head == "retrieval":
            found = out.logits[:, 0]
        else:
            found = out[:, 1] - out[:, 0] if self.head == "matching" else out[:, 1]
        logits[rows] = found.float().cpu().numpy()  # (pairs,)


HEAD = ("itm_score.fc.weight", "itm_score.fc.bias")
"""The head's weights, under the names of the original code; row 0 means "does not match", row 1 "matches"."""


class ViltForMatching(ViltPreTrainedModel):
    """ViLT and `itm_score`, under the names of the original checkpoint.

    Shapes:
        `forward` returns logits (batch, 2): no match, match.

    Source: Kim et al. 2021 (ViLT), §3.2: a single linear layer over the pooled output.
    """

    def __init__(self, config: ViltConfig) -> None:
        super().__init__(config)
        self.vilt = ViltModel(config)
        self.itm_score = nn.Module()
        self.itm_score.fc = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.itm_score.fc(self.vilt(**inputs).pooler_output)  # (batch, 2)


def read_matching_head(file: str) -> dict[str, torch.Tensor]:
    """The matching head's weights from a file, alone or among others.

    Args:
        file: `.safetensors`, or a file of `torch.save`, such as the `.ckpt` of the original code.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, or has no such weights.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"{file} does not exist. It should hold ViLT's matching head, {' and '.join(HEAD)}.")
    weights = _read(path)
    missing = [name for name in HEAD if name not in weights]
    if missing:
        raise ValueError(
            f"{file} has no {missing[0]!r} among its {len(weights)} weights, so it does not hold ViLT's matching "
            "head. Give the original pretrained weights, whose names it keeps."
        )
    return {name: weights[name].float() for name in HEAD}


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be read as weights alone ({' '.join(str(error).split())[:200]}). Files that hold other "
            f"objects could run code. Save the two tensors {' and '.join(HEAD)} to a file of their own."
        ) from error
    return content.get("state_dict", content)
