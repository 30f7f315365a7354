"""From an RGB image to the numbers a vision tower reads, without torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, ProcessorMixin, ViTImageProcessorPil
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, PILImageResampling
from transformers.utils import IMAGE_PROCESSOR_NAME, PROCESSOR_NAME, cached_file

# The steps of `PilBackend` that a table of pixel values replaces. A processor with its own version of any is called.
_STEPS = (
    "preprocess",
    "_preprocess",
    "process_image",
    "resize",
    "rescale",
    "normalize",
    "_preprocess_image_like_inputs",
)


def make_image_processor(
    size: int | tuple[int, int] = 224,
    mean: Sequence[float] = tuple(IMAGENET_DEFAULT_MEAN),
    std: Sequence[float] = tuple(IMAGENET_DEFAULT_STD),
    *,
    resample: str = "bicubic",
) -> ViTImageProcessorPil:
    """An image processor that resizes to a fixed size and normalises, on Pillow and numpy alone.

    It saves with the model (`save_pretrained`) and loads with
    `AutoImageProcessor.from_pretrained(folder, backend="pil")`; without `backend` a machine that has torchvision gets
    torchvision's resizing, whose numbers differ slightly.

    Args:
        size: height and width in pixels, or one number for both.
        mean: of red, green and blue in 0…1, subtracted. The default is ImageNet's, which DINO's towers were trained
            with.
        std: of red, green and blue in 0…1, divided by.
        resample: a filter of Pillow by name: "nearest", "box", "bilinear", "hamming", "bicubic" or "lanczos".

    Raises:
        ValueError: `resample` is none of these, or `size` is not positive.

    Example:
        >>> make_image_processor(64)(Image.new("RGB", (10, 20)), return_tensors="pt")["pixel_values"].shape
        torch.Size([1, 3, 64, 64])
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"`size={size}` was given. Height and width in pixels must be at least 1.")
    filters = [member.name.lower() for member in PILImageResampling]
    if resample not in filters:
        raise ValueError(f"`resample={resample!r}` was given. Pillow's filters are {filters}.")
    return ViTImageProcessorPil(
        size={"height": height, "width": width},
        image_mean=list(mean),
        image_std=list(std),
        resample=PILImageResampling[resample.upper()],
    )


class PixelTable:
    """A plain resize-and-normalise processor as a table, equal bit for bit in half the time.

    Such a processor maps each of a channel's 256 values to one number. A call takes an RGB image of any size and
    returns (3, H, W) float32.
    """

    def __init__(self, processor: PilBackend) -> None:
        self.height: int = processor.size.height
        self.width: int = processor.size.width
        self.resample: int = PILImageResampling.BILINEAR if processor.resample is None else processor.resample
        ramp = Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2))  # (1, 256, 3)
        values = processor(ramp, do_resize=False, return_tensors="np")["pixel_values"]  # (1, 3, 1, 256)
        self.table: np.ndarray = np.ascontiguousarray(values[0, :, 0], dtype=np.float32)  # (3, 256)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        resized = np.asarray(image.resize((self.width, self.height), self.resample))  # (H, W, 3)
        pixels = np.empty((3, self.height, self.width), dtype=np.float32)
        for channel, values in enumerate(self.table):
            np.take(values, resized[:, :, channel], out=pixels[channel], mode="clip")  # "clip" spares a copy of `out`
        return torch.from_numpy(pixels)


def is_plain(processor: Any) -> bool:
    """Whether the processor resizes to a fixed height and width, rescales, normalises and does nothing else."""
    return (
        isinstance(processor, PilBackend)
        and all(getattr(type(processor), step) is getattr(PilBackend, step) for step in _STEPS)
        and bool(processor.do_resize and processor.size.height and processor.size.width)
        and not (processor.do_center_crop or processor.do_pad)
    )


def process_image(processor: Any, image: Image.Image) -> dict[str, torch.Tensor]:
    """The outputs of any image processor for one RGB image, without the batch dimension."""
    return {name: values[0] for name, values in processor(images=[image], return_tensors="pt").items()}


class CaptionProcessor(ProcessorMixin):
    """The tokenizer of a captioner on regions, and its image processor where there is one.

    A captioner that is trained on stored regions needs no image processor; with the detector that made them
    (`RegionProcessor`) it captions new images. Each part is saved as its own class saves it.

    Args:
        image_processor: any image processor, or None.
        tokenizer: of the captions.

    Raises:
        ValueError: images are given and there is no image processor.

    Example:
        >>> from hf_curriculum.data.tokenizer import train_wordpiece
        >>> processor = CaptionProcessor(None, train_wordpiece(["a dog runs"] * 2, 50))
        >>> processor.image_processor is None
        True
    """

    def __init__(self, image_processor: Any | None, tokenizer: Any) -> None:
        super().__init__(image_processor, tokenizer)

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """As `ProcessorMixin`, which does not know that an image processor may be None."""
        if argument_name == "image_processor" and argument is None:
            return None
        return super().check_argument_for_proper_class(argument_name, argument)

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> Any:
        """As `ProcessorMixin`: what both parts return."""
        if images is not None and self.image_processor is None:
            raise ValueError(
                "Images were given, and the processor has a tokenizer alone: its captioner was trained on stored "
                "regions. Read those (`RegionInputs`), or give the processor the detector that made them: "
                "`CaptionProcessor(region_processor, tokenizer)`."
            )
        return super().__call__(images=images, text=text, **kwargs)

    def save_pretrained(self, save_directory: str | PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Saves both parts into a folder, and pushes them if asked to, with the arguments of `push_to_hub`."""
        for part in (self.image_processor, self.tokenizer):
            if part is not None:
                part.save_pretrained(save_directory)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any) -> CaptionProcessor:
        """The parts that a folder or a repository has."""
        name = pretrained_model_name_or_path
        quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
        hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "subfolder") if key in kwargs}
        files = [cached_file(name, file, **hub, **quiet) for file in (IMAGE_PROCESSOR_NAME, PROCESSOR_NAME)]
        images = AutoImageProcessor.from_pretrained(name, **{"backend": "pil", **kwargs}) if any(files) else None
        return cls(images, AutoTokenizer.from_pretrained(name, **kwargs))
