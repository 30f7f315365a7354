"""From rows to a batch: pictures decoded, augmented and normalised, captions tokenised and padded."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.pixels import PixelTable, is_plain, process_image

IGNORED = -100
"""The label that transformers' losses leave out."""


class CaptionCollator:
    """Batches of pictures and captions for a captioner.

    Args:
        tokenizer: a transformers tokenizer with a padding token.
        image_processor: any transformers image processor whose output has a fixed size, or None for batches of text
            alone (a text stage). One that only resizes and normalises with Pillow (`make_image_processor`) is replaced
            by a table of its own numbers, which is twice as fast.
        max_length: captions are cut to so many tokens, special ones included.
        image_column: the column of pictures, in any form `to_rgb` reads.
        caption_column: the column of captions.
        augment: called with the RGB picture before the processor; returns a picture or an array (`Augment`,
            torchvision transforms). It may draw from the global generators of `random`, numpy and torch:
            `DrawnCollator` seeds them for each example.
        ignore_padding: padding's labels are -100. False trains on padding tokens too, as released by the BabyLM
            authors.

    Shapes: `pixel_values` (B, 3, H, W) float32, and `input_ids`, `attention_mask`, `labels` (B, T) int64, with T the
        longest caption of the batch, in tokens.

    Raises:
        ValueError: the tokenizer cannot pad, a caption is empty, or the processor's pictures differ in size.
        UnreadableImageError: a picture cannot be decoded (a ValueError too).

    Example:
        >>> from hf_curriculum.data.pixels import make_image_processor
        >>> from hf_curriculum.data.tokenizer import train_wordpiece
        >>> tokenizer = train_wordpiece(["a dog runs"] * 2, 50)
        >>> collator = CaptionCollator(tokenizer, make_image_processor(64), max_length=20)
        >>> batch = collator([{"image": Image.new("L", (80, 60)), "caption": "A dog."}])
        >>> batch["pixel_values"].shape
        torch.Size([1, 3, 64, 64])
    """

    def __init__(
        self,
        tokenizer: Any,
        image_processor: Any | None,
        *,
        max_length: int = 50,
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        augment: Callable[[Image.Image], Any] | None = None,
        ignore_padding: bool = True,
    ) -> None:
        if tokenizer.pad_token_id is None:
            raise ValueError(
                f"The tokenizer ({type(tokenizer).__name__}) has no padding token, so captions of unequal length make "
                "no batch. Set one, for example `tokenizer.pad_token = tokenizer.eos_token`: padding is told by the "
                "attention mask, so end tokens keep their labels."
            )
        self.tokenizer, self.image_processor = tokenizer, image_processor
        self.max_length, self.ignore_padding, self.augment = max_length, ignore_padding, augment
        self.image_column, self.caption_column = image_column, caption_column
        self._table = PixelTable(image_processor) if is_plain(image_processor) else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        return (self.caption_column,) if self.image_processor is None else (self.image_column, self.caption_column)

    @property
    def is_random(self) -> bool:
        """Whether preparing an example draws random numbers: it has an `augment`."""
        return self.augment is not None

    def without_augmentation(self) -> CaptionCollator:
        """The same collator for evaluation: pictures as they are."""
        plain = copy.copy(self)
        plain.augment = None
        return plain

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> dict[str, Any]:
        """One example's caption, and its picture processed: all that depends on no other example."""
        require_columns(
            example,
            self.columns,
            reader="The collator reads them.",
            remedy="Name yours with `CaptionCollator(image_column=, caption_column=)`, or load with `load_captioned`.",
        )
        prepared: dict[str, Any] = {"caption": self._caption(example)}
        if self.image_processor is None:
            return prepared
        image = self._image(example)
        prepared["image"] = (
            {"pixel_values": self._table(image)} if self._table else process_image(self.image_processor, image)
        )
        return prepared

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of what `prepare` returned."""
        tokens = self.tokenizer(
            [item["caption"] for item in prepared],
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=True,
            return_token_type_ids=False,
            return_tensors="pt",
        )
        batch = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        batch["labels"] = batch["input_ids"].clone()
        if self.ignore_padding:
            batch["labels"][batch["attention_mask"] == 0] = IGNORED
        if self.image_processor is not None:
            batch = self._stack([item["image"] for item in prepared]) | batch
        return batch

    def _caption(self, example: dict[str, Any]) -> str:
        caption = example[self.caption_column]
        if isinstance(caption, str) and caption.strip():
            return caption
        of = f" of the example with `{IMAGE_ID}` {example[IMAGE_ID]!r}" if IMAGE_ID in example else ""
        raise ValueError(
            f"`{self.caption_column}`{of} is {caption!r}, and a caption must be a text that is not empty: there would "
            "be nothing to learn from but the special tokens. Remove such rows with `drop_empty_captions(dataset)`, "
            "which counts them, or expand lists with `expand_captions(dataset)`."
        )

    def _image(self, example: dict[str, Any]) -> Image.Image:
        name = f"The picture `{example[IMAGE_ID]}`" if IMAGE_ID in example else None
        try:
            image = to_rgb(example[self.image_column])
        except UnreadableImageError as error:
            if name is None:
                raise
            raise UnreadableImageError(f"{name}: {error}") from error
        return image if self.augment is None else to_rgb(self.augment(image), name="What `augment` returned")

    def _stack(self, outputs: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        sizes = sorted({tuple(item["pixel_values"].shape) for item in outputs})
        if len(sizes) > 1:
            raise ValueError(
                f"The image processor ({type(self.image_processor).__name__}) returned pictures of the sizes {sizes}, "
                "which make no batch. Give it a fixed height and width, as `make_image_processor(224)` does."
            )
        return {name: torch.stack([item[name] for item in outputs]) for name in outputs[0]}


class Augment:
    """A random crop, and a mirror image if asked for, drawn from Python's `random`.

    Args:
        crop: share of the picture's area kept, drawn evenly from this range.
        ratio: width over height of the crop relative to the picture's, drawn evenly on a log scale from this range.
        flip: mirror half of the pictures. Off, because captions say left and right.

    Raises:
        ValueError: `crop` is not a range within 0…1, or `ratio` not a range of positive numbers.

    Example:
        >>> Augment(crop=(0.5, 0.5), ratio=(1, 1))(Image.new("RGB", (200, 100))).size
        (141, 71)
    """

    def __init__(
        self, crop: tuple[float, float] = (0.8, 1.0), ratio: tuple[float, float] = (0.75, 4 / 3), flip: bool = False
    ) -> None:
        if not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(f"`crop={crop}` was given. It is the smallest and largest share of the area, in 0…1.")
        if not 0 < ratio[0] <= ratio[1]:
            raise ValueError(f"`ratio={ratio}` was given. It is the smallest and largest change of width over height.")
        self.crop, self.ratio, self.flip = crop, ratio, flip

    def __call__(self, image: Image.Image) -> Image.Image:
        area = random.uniform(*self.crop)
        stretch = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
        width = min(image.width, max(1, round(image.width * math.sqrt(area * stretch))))
        height = min(image.height, max(1, round(image.height * math.sqrt(area / stretch))))
        left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
        cropped = image.crop((left, top, left + width, top + height))
        if self.flip and random.random() < 0.5:
            cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return cropped

    def __repr__(self) -> str:
        return f"Augment(crop={self.crop}, ratio={self.ratio}, flip={self.flip})"
