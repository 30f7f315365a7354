"""From rows to a batch: images decoded, augmented and normalised, captions tokenised and padded."""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.caption_encoder import CaptionEncoder
from hf_curriculum.data.identity import validate_same_image
from hf_curriculum.data.image_inputs import FeatureInputs, ImageInputs, PixelInputs, RegionInputs
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

IGNORED = -100
"""The label that transformers' losses leave out."""
_MULTIPLE = 8


class CaptionCollator:
    """Makes batches of images and captions for a captioner.

    Args:
        tokenizer: a transformers tokenizer with a padding token. Captions get an end, and a beginning, where it writes
            none (GPT-2's, Llama's): its `sep_token` or `eos_token`, its `cls_token` or `bos_token`.
        image_processor: see `PixelInputs`; None for stored features or regions, or for text alone (a text stage).
        max_length: captions are truncated to this number of tokens, special ones included. That is counted
            (`num_truncated`).
        image_column: the column of images, in any form `to_rgb` reads.
        caption_column: the column of captions.
        augment: called with the RGB image before the processor; returns an image or an array (`Augment`,
            torchvision transforms). It may draw from the global generators of `random`, numpy and torch:
            `IndexedCollator` seeds them for each example.
        pad_to_multiple_of: a batch's length in tokens becomes a multiple of this, up to `max_length`, so that a
            compiled step meets few lengths. By default 8 with a GPU, else 1.
        ignore_padding: labels of padding are -100. False trains on padding too, as the BabyLM authors' code does, and
            pads to the longest caption alone.
        learn_truncated_ends: whether the end of a truncated caption has a label, as in papers' released code: a model
            learns to stop there, within a sentence. By default it has none.
        prefix: text before each caption that is not trained on, but counts in `max_length`: `"<image> "` for Flamingo.
        vision_features: instead of images, features of a frozen vision tower, by `image_id` (`cache_vision_features`);
            `image_processor` is then None.
        regions: instead of images, stored regions, by `image_id`: what `open_regions` returns, or a `RegionInputs` for
            box values and other options; `image_processor` is then None.
        share_images: rows of a batch with the same `image_id` share one image, which is processed once. A model that
            takes an `image_index` (GIT) also encodes it once. Use it with `ByImage` batches. `augment` changes the
            shared image by the draw of its first row. Not for `torch.nn.DataParallel`, which splits batches by rows:
            start several GPUs with `torchrun` or `accelerate launch`.
        encoder_decoder: for a model that makes its decoder's inputs from the labels (VisionEncoderDecoderModel): no
            `input_ids` and no `attention_mask`, which it would take for the image encoder's.

    Shapes: `pixel_values` (B, 3, H, W) float32, and `input_ids`, `attention_mask`, `labels` (B, T) int64, with T the
        longest caption of the batch, in tokens, rounded up to `pad_to_multiple_of`. With `vision_features`,
        `image_features` (B, image tokens, vision width) as stored replace `pixel_values`. With `regions`,
        `region_features` (B, R, dims) float32 do, zeros where an image has fewer, and `region_mask` (B, R) int64, 1
        for a region. With `share_images`, one of them per image, in the order of first rows, and `image_index` (B,)
        int64, the image of each row.

    Raises:
        ValueError: the tokenizer cannot pad, has no end or beginning, or lacks the prefix; `max_length` leaves nothing
            of a caption; `pad_to_multiple_of` is not positive or would be trained on. Or a caption is empty, images or
            features of a batch differ in size, or more than one of images, features and regions is given. Or an image
            has no features or region, or `share_images` finds no images or no ids.
        UnreadableImageError: an image cannot be decoded (a ValueError too).

    Example:
        >>> from hf_curriculum.data.processors import make_image_processor
        >>> from hf_curriculum.data.tokenizer import train_wordpiece
        >>> tokenizer = train_wordpiece(["a dog runs"] * 2, 50)
        >>> collator = CaptionCollator(tokenizer, make_image_processor(64), max_length=20)
        >>> batch = collator([{"image": Image.new("L", (80, 60)), "caption": "A dog."}])
        >>> batch["pixel_values"].shape
        torch.Size([1, 3, 64, 64])
    """

    @validate_arguments
    def __init__(
        self,
        tokenizer: Any,
        image_processor: Any | None = None,
        *,
        max_length: int = 50,
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        augment: Callable[[Image.Image], Any] | None = None,
        pad_to_multiple_of: int | None = None,
        ignore_padding: bool = True,
        prefix: str = "",
        vision_features: Mapping[str, np.ndarray] | None = None,
        share_images: bool = False,
        encoder_decoder: bool = False,
        regions: Mapping[str, Regions] | RegionInputs | None = None,
        learn_truncated_ends: bool = False,
    ) -> None:
        _validate_tokenizer(tokenizer)
        self.image_inputs: ImageInputs | None = _image_inputs(
            image_processor, vision_features, regions, augment, image_column
        )
        if share_images and self.image_inputs is None:
            raise ValueError(
                "`share_images=True` was given with neither an `image_processor` nor `vision_features` nor `regions`: "
                "in batches of text alone there is nothing to share. Pass one of them, or leave `share_images` out."
            )
        self.encoder: CaptionEncoder = CaptionEncoder(tokenizer, begins=not encoder_decoder, prefix=prefix)
        least = max(2, len(self.encoder([""])[0][0]) + 1)
        if max_length < least:
            raise ValueError(
                f"`max_length={max_length}` was given, which counts special tokens and the prefix: with this "
                f"tokenizer ({type(tokenizer).__name__}) and `prefix={prefix!r}` no token of a caption would be left "
                f"to train on. Pass {least} or more."
            )
        if pad_to_multiple_of is None:
            pad_to_multiple_of = _MULTIPLE if ignore_padding and torch.cuda.is_available() else 1
        if pad_to_multiple_of < 1 or (pad_to_multiple_of > 1 and not ignore_padding):
            raise ValueError(
                f"`pad_to_multiple_of={pad_to_multiple_of}` was given with `ignore_padding={ignore_padding}`. It is a "
                "number of tokens, 1 or more; where padding is trained on, more of it would be another loss, so leave "
                "it out there."
            )
        self.pad_to_multiple_of = pad_to_multiple_of
        self.share_images = share_images
        self.encoder_decoder = encoder_decoder
        self.tokenizer = tokenizer
        self.prefix = prefix
        self.max_length = max_length
        self.ignore_padding = ignore_padding
        self.learn_truncated_ends = learn_truncated_ends
        self.caption_column = caption_column
        self.num_unknown: int = 0
        self.num_truncated: int = 0
        self._prefix_span = _prefix_positions(self.encoder, prefix) if prefix else range(0)

    @property
    def image_processor(self) -> Any | None:
        """The processor to save with a model: as given, or the detector's of `regions`; None for text alone."""
        return None if self.image_inputs is None else self.image_inputs.image_processor

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        images = () if self.image_inputs is None else self.image_inputs.columns
        return tuple(dict.fromkeys((*((IMAGE_ID,) if self.share_images else ()), *images, self.caption_column)))

    @property
    def is_random(self) -> bool:
        """Whether preparing an example draws random numbers: it has an `augment`."""
        return self.image_inputs is not None and self.image_inputs.is_random

    def without_augmentation(self) -> CaptionCollator:
        """The same collator for evaluation: images as they are."""
        plain = copy.copy(self)
        plain.image_inputs = None if self.image_inputs is None else self.image_inputs.without_augmentation()
        return plain

    @validate_arguments
    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> dict[str, Any]:
        """One example's caption, and its image processed: all that depends on no other example."""
        require_columns(
            example,
            self.columns,
            reader="The collator reads them.",
            remedy="Name yours with `CaptionCollator(image_column=, caption_column=)`, or load with `load_captioned`.",
        )
        prepared: dict[str, Any] = {"caption": self._caption(example)}
        if self.share_images:
            # Which rows come first is known in `collate` alone; what draws random numbers is done here.
            image_id = prepared["image_id"] = example[IMAGE_ID]
            if image_id is None or image_id == "":
                raise ValueError(
                    f"`{IMAGE_ID}` is {image_id!r}, and with `share_images=True` rows with the same id share one "
                    "image: different images would be taken for one. Give every row the id of its image."
                )
            prepared["row"] = self.image_inputs.draw(example)
            prepared["stored"] = example.get(getattr(self.image_inputs, "image_column", None))
        elif self.image_inputs is not None:
            prepared["image"] = example if self.image_inputs.by_batch else self.image_inputs.read(example)
        return prepared

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of prepared examples."""
        if not prepared:
            raise ValueError("The batch has no examples, so there is nothing to learn from. Leave empty batches out.")
        ids, truncated = self.encoder([item["caption"] for item in prepared], self.max_length)
        batch = self._padded(ids)
        batch["labels"] = batch["input_ids"].clone()
        # Positions are counted from the first token, wherever the padding is.
        positions = batch["attention_mask"].cumsum(-1) - 1
        if any(truncated):
            self._count_truncated(truncated, prepared)
            if not self.learn_truncated_ends:
                ends = [len(row) - was * len(self.encoder.after) for row, was in zip(ids, truncated, strict=True)]
                batch["labels"][batch["attention_mask"].bool() & (positions >= torch.tensor(ends)[:, None])] = IGNORED
        if self.ignore_padding:
            batch["labels"][batch["attention_mask"] == 0] = IGNORED
            # After padding on the left the first token would be predicted from padding; otherwise it never is.
            batch["labels"][:, 1:][positions[:, 1:] == 0] = IGNORED
        if self._prefix_span:
            batch["labels"][(positions >= self._prefix_span.start) & (positions < self._prefix_span.stop)] = IGNORED
        if self.tokenizer.unk_token_id is not None:
            self._count_unknown(batch["labels"], [item["caption"] for item in prepared])
        if self.encoder_decoder:
            batch = {"labels": batch["labels"]}
        if self.share_images:
            # After the text: `Trainer` takes the length of a batch from what comes first.
            return batch | self._shared(prepared)
        if self.image_inputs is not None:
            join = self.image_inputs.batch if self.image_inputs.by_batch else self.image_inputs.stack
            batch = join([item["image"] for item in prepared]) | batch
        return batch

    def _padded(self, ids: list[list[int]]) -> dict[str, torch.Tensor]:
        """Text (B, T) with a multiple of `pad_to_multiple_of` columns, or `max_length`."""
        width = max(map(len, ids))
        width += min(-width % self.pad_to_multiple_of, max(0, self.max_length - width))
        left, pad = self.tokenizer.padding_side == "left", self.tokenizer.pad_token_id
        tokens = torch.full((len(ids), width), pad)
        mask = torch.zeros_like(tokens)
        for row, own in enumerate(ids):
            part = slice(width - len(own), width) if left else slice(len(own))
            tokens[row, part], mask[row, part] = torch.tensor(own), 1
        return {"input_ids": tokens, "attention_mask": mask}

    def _shared(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The inputs of each distinct image, and `image_index`, which of them each row has."""
        places: dict[str, int] = {}
        index = [places.setdefault(item["image_id"], len(places)) for item in prepared]
        firsts = [prepared[index.index(place)]["row"] for place in range(len(places))]
        for image_id, place in places.items():
            validate_same_image(
                image_id, [item["stored"] for item, own in zip(prepared, index, strict=True) if own == place]
            )
        drawn = self.image_inputs.without_augmentation()
        return drawn.batch(firsts) | {"image_index": torch.tensor(index)}

    def _count_truncated(self, truncated: list[bool], prepared: list[dict[str, Any]]) -> None:
        """Counts captions that are longer than `max_length`, and warns of the first."""
        if not self.num_truncated:
            logger.warning(
                "A caption has more than max_length=%d tokens, and is truncated: %r. Such captions are counted in "
                "each process (`num_truncated`). %s",
                self.max_length,
                prepared[truncated.index(True)]["caption"][:200],
                "With learn_truncated_ends=True a model learns to stop there."
                if self.learn_truncated_ends
                else "Their end has no label, because a model would learn to stop there.",
            )
        self.num_truncated += sum(truncated)

    def _count_unknown(self, labels: torch.Tensor, captions: list[str]) -> None:
        """Counts captions none of whose labels (B, T) is a known word, and warns of the first."""
        special = torch.tensor([IGNORED, *self.tokenizer.all_special_ids])
        unknown = (labels == self.tokenizer.unk_token_id).any(1) & torch.isin(labels, special).all(1)
        if not self.num_unknown and unknown.any():
            logger.warning(
                "The tokenizer (%s) knows no word of the caption %r: a model learns nothing from it but its length. "
                "Such captions are trained on all the same, and counted in each process (`num_unknown`).",
                type(self.tokenizer).__name__,
                captions[int(unknown.long().argmax())],
            )
        self.num_unknown += int(unknown.sum())

    def _caption(self, example: dict[str, Any]) -> str:
        caption = example[self.caption_column]
        if isinstance(caption, str) and caption.strip():
            return caption
        of = f" of the example with `{IMAGE_ID}` {example[IMAGE_ID]!r}" if IMAGE_ID in example else ""
        raise ValueError(
            f"`{self.caption_column}`{of} is {caption!r}, and a caption must be a text that is not empty: there would "
            "be nothing to learn from but the special tokens. Remove such rows with "
            "`hf_curriculum.data.captions.drop_empty_captions(dataset)`, which counts them, or expand lists with "
            "`expand_captions(dataset)`."
        )


def _validate_tokenizer(tokenizer: Any) -> None:
    """Raises where something is no tokenizer, or one that cannot pad."""
    if not hasattr(tokenizer, "pad_token_id"):
        raise TypeError(
            f"`CaptionCollator` was given {kind_of(tokenizer)} as `tokenizer`, and a tokenizer is needed. The "
            "order of the arguments is `CaptionCollator(tokenizer, image_processor)`."
        )
    if tokenizer.pad_token_id is None:
        has_end = getattr(tokenizer, "eos_token", None) is not None
        remedy = (
            "Set one, for example `tokenizer.pad_token = tokenizer.eos_token`: padding is given by the attention "
            "mask, so end tokens keep their labels."
            if has_end
            else 'Add one, `tokenizer.add_special_tokens({"pad_token": "[PAD]"})`, before the model is made.'
        )
        raise ValueError(
            f"The tokenizer ({type(tokenizer).__name__}) has no padding token, so captions of unequal length make "
            f"no batch. {remedy}"
        )


def _image_inputs(
    image_processor: Any | None,
    vision_features: Mapping[str, np.ndarray] | None,
    regions: Mapping[str, Regions] | RegionInputs | None,
    augment: Callable[[Image.Image], Any] | None,
    image_column: str,
) -> ImageInputs | None:
    """What a model sees of an image, of a collator's arguments; None for text alone."""
    given = {"vision_features": vision_features, "regions": regions}
    given |= {"image_processor": image_processor, "augment": augment}
    names = [f"`{name}`" for name, value in given.items() if value is not None]
    if len(names) > 1 and not (vision_features is None and regions is None):
        raise ValueError(
            f"{names[0]} were given together with {' and '.join(names[1:])}. A model sees one of images, stored "
            "features and regions, and images are not read where what a model sees of them is stored. Pass None for "
            "the others."
        )
    if vision_features is not None:
        return FeatureInputs(vision_features)
    if regions is not None:
        return regions if isinstance(regions, RegionInputs) else RegionInputs(regions)
    return None if image_processor is None else PixelInputs(image_processor, augment, image_column)


def _prefix_positions(encoder: CaptionEncoder, prefix: str) -> range:
    """Positions of the prefix's tokens in a caption, special tokens before them counted."""
    # Many tokenizers make a space part of the word after it: one at the prefix's end belongs to the caption.
    text, tokenizer = prefix.rstrip(), encoder.tokenizer
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not tokens or tokenizer.unk_token_id in tokens:
        raise ValueError(
            f"The tokenizer ({type(tokenizer).__name__}) makes {tokenizer.convert_ids_to_tokens(tokens)} of `prefix="
            f"{prefix!r}`, so the prefix would say nothing. Add its words first, `<image>` with "
            "`hf_curriculum.models.flamingo.build.add_image_token(tokenizer)`."
        )
    return range(len(encoder.before), len(encoder.before) + len(tokens))


class Augment:
    """A random crop, and a mirror image and other colours if asked for, drawn from Python's `random`.

    `Augment(crop=(0.08, 1), square=True, flip=True, jitter=0.4)` is the training transform of ImageNet's recipes:
    torchvision's `RandomResizedCrop`, `RandomHorizontalFlip` and `ColorJitter(0.4, 0.4, 0.4)`; the image processor
    resizes the crop.

    Args:
        crop: share of the image's area kept, drawn evenly from this range.
        ratio: width over height of the crop relative to the image's, drawn evenly on a log scale from this range.
        flip: mirror half of the images. Off, because captions say left and right.
        jitter: brightness, contrast and saturation are each multiplied by a number from 1 − jitter to 1 + jitter, in
            a random order; 0 leaves the colours.
        square: `ratio` is that of the crop itself, whatever the image's: what is resized to a square is not
            stretched by more. A crop that does not fit is drawn again, at most ten times.

    Raises:
        ValueError: `crop` is not a range within 0…1, `ratio` not a range above 0, or `jitter` not within 0…1.

    Source: Szegedy et al. 2015 (the crop); released code of DisCL (crop, flip, jitter 0.4).

    Example:
        >>> Augment(crop=(0.5, 0.5), ratio=(1, 1))(Image.new("RGB", (200, 100))).size
        (141, 71)
        >>> Augment(crop=(0.5, 0.5), ratio=(1, 1), square=True)(Image.new("RGB", (200, 100))).size
        (100, 100)
    """

    def __init__(
        self,
        crop: tuple[float, float] = (0.8, 1.0),
        ratio: tuple[float, float] = (0.75, 4 / 3),
        flip: bool = False,
        jitter: float = 0.0,
        square: bool = False,
    ) -> None:
        if not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(f"`crop={crop}` was given. It is the smallest and largest share of the area, in 0…1.")
        if not 0 < ratio[0] <= ratio[1]:
            raise ValueError(f"`ratio={ratio}` was given. It is the smallest and largest change of width over height.")
        if not 0 <= jitter <= 1:
            raise ValueError(f"`jitter={jitter}` was given. It is the largest change of the colours, in 0…1.")
        self.crop = crop
        self.ratio = ratio
        self.flip = flip
        self.jitter = jitter
        self.square = square

    def __call__(self, image: Image.Image) -> Image.Image:
        width, height = self._size(image)
        left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
        cropped = image.crop((left, top, left + width, top + height))
        if self.flip and random.random() < 0.5:
            cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.jitter:
            for change in random.sample((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), 3):
                cropped = change(cropped).enhance(random.uniform(1 - self.jitter, 1 + self.jitter))
        return cropped

    def _size(self, image: Image.Image) -> tuple[int, int]:
        """Width and height of the crop, within the image."""
        for _ in range(_TRIES if self.square else 1):
            area = random.uniform(*self.crop)
            stretch = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            base = (math.sqrt(image.width * image.height),) * 2 if self.square else (image.width, image.height)
            width, height = (round(base[0] * math.sqrt(area * stretch)), round(base[1] * math.sqrt(area / stretch)))
            if width <= image.width and height <= image.height:
                break
        # What does not fit is cut off.
        return min(image.width, max(1, width)), min(image.height, max(1, height))

    def __repr__(self) -> str:
        more = f", jitter={self.jitter}" * bool(self.jitter) + ", square=True" * self.square
        return f"Augment(crop={self.crop}, ratio={self.ratio}, flip={self.flip}{more})"


_TRIES = 10
