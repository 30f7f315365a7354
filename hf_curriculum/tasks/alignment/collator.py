"""From rows to a contrastive batch: captions as tokens, the noun's among them, images, and keys of both."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.data.image_inputs import ImageInputs, PixelInputs
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.processor import encode_nouns, validate_offsets

NOUN_START, NOUN_END = "noun_start", "noun_end"
"""Columns that say where a row's noun begins and has ended in its caption, in characters."""
_NO_LIMIT = 1 << 20
"""A tokenizer without a limit names a far greater one."""


class ContrastiveCollator:
    """Makes batches of images and captions for an aligner, a CLIP, a SigLIP or a model of `open_clip`.

    Args:
        tokenizer: a tokenizer of `transformers`, or a processor that has one (`AlignerProcessor`, `CLIPProcessor`); or
            a tokenizer of `open_clip`. Only a fast tokenizer finds a noun's sub-words.
        inputs: the model's image inputs: `RegionInputs`, `FeatureInputs` or `PixelInputs`.
        max_length: captions are truncated to this number of tokens, special ones included; None: the tokenizer's
            maximum.
        nouns: whether the model reads each row's noun, of `noun_start` and `noun_end`; None: unless it sees pixels.
        pad_to_max_length: pads every batch to `max_length` instead of to its longest caption, as in the training of
            SigLIP, which reads the last token.
        caption_column: the column of captions.

    Shapes: `input_ids` int64 (B, T) and the tokenizer's other outputs. With nouns `noun_mask` int64 (B, T), 1 on the
        noun's sub-words. `pixel_values` (B, 3, H, W), `image_features` (B, tokens, width) or `region_features` (B, R,
        dims) with `region_mask` (B, R). `image_keys`, `text_keys` int64 (B,), equal where `image_id` or captions are.

    Raises:
        TypeError: nouns are read, and the tokenizer cannot find a noun's sub-words.
        ValueError: there is no length to pad to, a column is missing, a caption is empty, a noun is truncated or not
            in its caption, or an image is unreadable.

    Example:
        >>> import numpy as np
        >>> from hf_curriculum.data.image_inputs import RegionInputs
        >>> from hf_curriculum.data.regions.base import Regions
        >>> from hf_curriculum.data.tokenizer import train_wordpiece
        >>> store = {"9": Regions("9", features=np.ones((4, 3), np.float32))}
        >>> collator = ContrastiveCollator(train_wordpiece(["a dog runs"] * 2, 50), RegionInputs(store))
        >>> batch = collator([{"image_id": "9", "caption": "a dog runs", "noun_start": 2, "noun_end": 5}])
        >>> batch["noun_mask"].tolist(), batch["region_features"].shape
        ([[0, 0, 1, 0, 0]], torch.Size([1, 4, 3]))
    """

    @validate_arguments
    def __init__(
        self,
        tokenizer: Any,
        inputs: ImageInputs,
        *,
        max_length: int | None = None,
        nouns: bool | None = None,
        pad_to_max_length: bool = False,
        caption_column: str = CAPTION,
    ) -> None:
        self.tokenizer: Any = tokenizer.tokenizer if isinstance(tokenizer, ProcessorMixin) else tokenizer
        self.image_inputs: ImageInputs = inputs
        self.max_length = max_length
        self.nouns: bool = not isinstance(inputs, PixelInputs) if nouns is None else nouns
        self.pad_to_max_length = pad_to_max_length
        self.caption_column = caption_column
        # A tokenizer of `open_clip` pads and truncates to a length of its own.
        self._plain: bool = isinstance(self.tokenizer, PreTrainedTokenizerBase)
        self._validate()

    def _validate(self) -> None:
        name = type(self.tokenizer).__name__
        if self.nouns:
            validate_offsets(self.tokenizer)
        if self._plain and self.tokenizer.pad_token_id is None:
            raise ValueError(
                f"The tokenizer ({name}) has no padding token, so captions of unequal length make no batch. Set one, "
                "for example `tokenizer.pad_token = tokenizer.eos_token`."
            )
        if not self._plain and (self.max_length is not None or self.pad_to_max_length):
            raise ValueError(
                f"`max_length={self.max_length}`, `pad_to_max_length={self.pad_to_max_length}` were given with a "
                f"{name}, which pads and truncates to a length of its own: they would do nothing. Leave them out."
            )
        if self.max_length is not None and self.max_length < 3:
            raise ValueError(
                f"`max_length={self.max_length}` was given, which counts special tokens: nothing of a caption would "
                "be left. Pass 3 or more."
            )
        if self.pad_to_max_length and self.max_length is None and self.tokenizer.model_max_length > _NO_LIMIT:
            raise ValueError(
                f"`pad_to_max_length=True` was given without `max_length`, and the tokenizer ({name}) has no limit of "
                "its own. Pass the length the model was trained with: `max_length=64` for a SigLIP."
            )

    @property
    def image_processor(self) -> Any | None:
        """The image processor to save with a model."""
        return self.image_inputs.image_processor

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        nouns = (NOUN_START, NOUN_END) if self.nouns else ()
        return tuple(dict.fromkeys((IMAGE_ID, *self.image_inputs.columns, self.caption_column, *nouns)))

    @property
    def is_random(self) -> bool:
        """Whether preparing an example draws random numbers: images are augmented."""
        return self.image_inputs.is_random

    def without_augmentation(self) -> ContrastiveCollator:
        """The same collator for evaluation: images as they are."""
        plain = copy.copy(self)
        plain.image_inputs = self.image_inputs.without_augmentation()
        return plain

    @validate_arguments
    def __call__(self, examples: list[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """One example's caption, checked, and its image: all that depends on no other example."""
        require_columns(
            example,
            self.columns,
            reader="The collator reads them.",
            remedy=f"Rows with `{NOUN_START}` and `{NOUN_END}` come of an ontology's `triplets`; pass `nouns=False` "
            "for a model that reads no noun, and `caption_column=` for captions of another name.",
        )
        caption, image_id = example[self.caption_column], example[IMAGE_ID]
        if not isinstance(caption, str) or not caption.strip() or image_id in (None, ""):
            raise ValueError(
                f"`{self.caption_column}` is {caption!r} and `{IMAGE_ID}` {image_id!r}. Each row needs a caption, and "
                "the id of its image, which identifies right pairs. Remove the row."
            )
        prepared: dict[str, Any] = {"caption": caption, "image_id": str(image_id)}
        if self.nouns:
            start, end = prepared["span"] = example[NOUN_START], example[NOUN_END]
            if None in (start, end) or not 0 <= start < end <= len(caption):
                raise ValueError(
                    f"`{NOUN_START}`={start} and `{NOUN_END}`={end} are no part of the caption {caption!r}, of "
                    f"{len(caption)} characters: the model would read no noun. Make the columns again from these "
                    "captions, or remove rows without a noun."
                )
        by_batch = self.image_inputs.by_batch
        return {**prepared, "image": example if by_batch else self.image_inputs.read(example)}

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of prepared examples."""
        join = self.image_inputs.batch if self.image_inputs.by_batch else self.image_inputs.stack
        # Text first: `Trainer` takes the length of a batch from what comes first.
        batch = self._text(prepared) | join([item["image"] for item in prepared])
        for name, part in (("image_keys", "image_id"), ("text_keys", "caption")):
            batch[name] = torch.tensor([key_of(item[part]) for item in prepared], dtype=torch.int64)
        return batch

    def keeps_noun(self, example: Mapping[str, Any]) -> bool:
        """Whether truncation keeps a token of the row's noun: `dataset.filter(collator.keeps_noun)`."""
        item = {"caption": example[self.caption_column], "span": (example[NOUN_START], example[NOUN_END])}
        return bool(self._tokens([item])["noun_mask"].any())

    def _text(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tokens of the captions, with those of the nouns."""
        if not self._plain:
            return {"input_ids": self.tokenizer([item["caption"] for item in prepared])}
        tokens = self._tokens(prepared)
        cut = [] if not self.nouns else (tokens["noun_mask"] == 0).all(1).nonzero()[:, 0].tolist()
        if cut:
            item = prepared[cut[0]]
            raise ValueError(
                f"The noun {item['caption'][slice(*item['span'])]!r} of the image {item['image_id']!r} stands beyond "
                f"the {tokens['input_ids'].shape[1]} tokens that are kept of its caption, {item['caption']!r}: the "
                "model would read no noun. Raise `max_length`, or leave such rows out: "
                "`dataset.filter(collator.keeps_noun)`."
            )
        return tokens

    def _tokens(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        captions = [item["caption"] for item in prepared]
        options = {"padding": "max_length" if self.pad_to_max_length else True, "max_length": self.max_length}
        if self.nouns:
            return encode_nouns(self.tokenizer, captions, [item["span"] for item in prepared], **options)
        tokens = self.tokenizer(captions, truncation=True, return_tensors="pt", split_special_tokens=True, **options)
        return {name: values for name, values in tokens.items() if name != "token_type_ids"}


def key_of(name: str) -> int:
    """64 bits of a name, the same on any machine; int64."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
