"""From rows to a batch of images and their classes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from hf_curriculum.columns import IMAGE, IMAGE_ID, LABEL, require_columns
from hf_curriculum.data.image_inputs import PixelInputs
from hf_curriculum.shapes import validate_arguments


class LabelCollator:
    """Makes batches of images and classes for an image classifier.

    Args:
        image_processor: any transformers image processor with a fixed size, see `PixelInputs`.
        augment: called with the RGB image before the processor, in training alone; returns an image or an array
            (`Augment`). The trainer seeds what it draws by (seed, position in the run): the same draw is the same crop
            on any worker, in any batch and after a resume.
        evaluation_crop: in evaluation the processor sees the middle square, whose side is this fraction of the shorter
            edge; None: the whole image. 224 / 256 is ImageNet's "resize to 256, crop the middle 224".
        image_column: the column of images, in any form `to_rgb` reads.
        label_column: the column of class numbers.

    Shapes: `pixel_values` (B, 3, H, W) float32, `labels` (B,) int64.

    Raises:
        ValueError: a column is missing, a row has no class, images of a batch differ in size, or `evaluation_crop` is
            not within 0…1.
        UnreadableImageError: an image cannot be decoded (a ValueError too).

    Example:
        >>> from hf_curriculum.data.processors import make_image_processor
        >>> batch = LabelCollator(make_image_processor(32))([{"image": Image.new("L", (80, 60)), "label": 3}])
        >>> batch["pixel_values"].shape, batch["labels"]
        (torch.Size([1, 3, 32, 32]), tensor([3]))
    """

    @validate_arguments
    def __init__(
        self,
        image_processor: Any,
        *,
        augment: Callable[[Image.Image], Any] | None = None,
        evaluation_crop: float | None = None,
        image_column: str = IMAGE,
        label_column: str = LABEL,
    ) -> None:
        if evaluation_crop is not None and not 0 < evaluation_crop <= 1:
            raise ValueError(
                f"`evaluation_crop={evaluation_crop}` was given. It is the share of the shorter edge that is kept, in "
                "0…1, such as 224 / 256."
            )
        self.image_inputs: PixelInputs = PixelInputs(image_processor, augment, image_column)
        self.evaluation_crop = evaluation_crop
        self.label_column = label_column

    @property
    def image_processor(self) -> Any:
        """The image processor to save with a model."""
        return self.image_inputs.image_processor

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        return (*self.image_inputs.columns, self.label_column)

    @property
    def is_random(self) -> bool:
        """Whether preparing an example draws random numbers: it has an `augment`."""
        return self.image_inputs.is_random

    def without_augmentation(self) -> LabelCollator:
        """The same collator for evaluation: whole images, or their middle."""
        plain = copy.copy(self)
        plain.image_inputs = self.image_inputs.without_augmentation()
        if self.evaluation_crop is not None:
            plain.image_inputs.augment = CentreCrop(self.evaluation_crop)
        return plain

    @validate_arguments
    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> dict[str, Any]:
        """One example's image, processed, and its class: all that depends on no other example."""
        require_columns(
            example,
            self.columns,
            reader="The collator reads them.",
            remedy="Name yours with `LabelCollator(image_column=, label_column=)`, or load with `load_labelled`.",
        )
        label = example[self.label_column]
        if isinstance(label, bool) or not isinstance(label, int) or label < 0:
            of = f" of the image {example[IMAGE_ID]!r}" if IMAGE_ID in example else ""
            raise ValueError(
                f"`{self.label_column}`{of} is {label!r}, and a class number from 0 is needed: there would be nothing "
                "to learn. Drop such rows, or load with `load_labelled`, which numbers the classes."
            )
        return {"image": self.image_inputs.read(example), "label": label}

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of prepared examples."""
        pixels = self.image_inputs.stack([item["image"] for item in prepared])
        return pixels | {"labels": torch.tensor([item["label"] for item in prepared], dtype=torch.int64)}


class CentreCrop:
    """The middle square of an image, with a share of its shorter edge."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, image: Image.Image) -> Image.Image:
        side = max(1, round(self.share * min(image.size)))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image.crop((left, top, left + side, top + side))
