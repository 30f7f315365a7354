"""From an RGB image to the numbers a vision tower reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, ProcessorMixin, ViTImageProcessor, ViTImageProcessorPil
from transformers.image_processing_backends import PilBackend, TorchvisionBackend
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, PILImageResampling
from transformers.utils import IMAGE_PROCESSOR_NAME, PROCESSOR_NAME, cached_file, is_torchvision_available

from hf_curriculum.files import staged_folder
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

# The steps of a backend that a table of pixel values replaces. A processor with its own version of any is called.
_STEPS = (
    "preprocess",
    "_preprocess",
    "process_image",
    "resize",
    "rescale",
    "normalize",
    "rescale_and_normalize",
    "_preprocess_image_like_inputs",
)


@validate_arguments
def make_image_processor(
    size: int | tuple[int, int] = 224,
    mean: Sequence[float] = tuple(IMAGENET_DEFAULT_MEAN),
    std: Sequence[float] = tuple(IMAGENET_DEFAULT_STD),
    *,
    resample: str = "bicubic",
    backend: str = "pil",
    draft: bool = False,
) -> ViTImageProcessorPil | ViTImageProcessor:
    """Makes an image processor that resizes to a fixed size and normalises, by default with Pillow and numpy alone.

    It saves with the model (`save_pretrained`) and loads with
    `AutoImageProcessor.from_pretrained(folder, backend="pil")`; without `backend` a machine that has torchvision gets
    torchvision's resizing, whose numbers differ slightly.

    Args:
        size: height and width in pixels, or one number for both.
        mean: of red, green and blue in 0…1, subtracted. The default is ImageNet's, as for DINO's towers.
        std: of red, green and blue in 0…1, divided by.
        resample: a filter of Pillow by name: "nearest", "box", "bilinear", "hamming", "bicubic" or "lanczos".
        backend: "torchvision" resizes by torch's own filters, "bilinear" and "bicubic": an image then takes about half
            the time. Pillow, "pil", decodes files for both, so both read and refuse the same files. Of 951 photographs
            resized to 64 and 224 pixels at most 0.8 % of the values 0…255 differ, and 0.002 % by more than 1. The
            largest difference is 2 with "bilinear" and 8 with "bicubic", whose overshoots are clipped elsewhere.
        draft: collators and `PixelInputs` decode a JPEG at the smallest of 1, 1/2, 1/4 and 1/8 of its size that covers
            `size`. It is faster and changes the pixels: of those photographs at 64 pixels by 2.5 of 255 in the mean
            and up to 124. Rows must hold files (`datasets.Image(decode=False)`); augmented images are decoded whole.

    Raises:
        ImportError: torchvision is not installed, and its backend was asked for.
        ValueError: `resample` or `backend` is none of these, or `size` is not positive.

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
    _validate_backend(backend, resample)
    made_by, kept = (ViTImageProcessorPil, {}) if backend == "pil" else (ViTImageProcessor, {"image_backend": backend})
    return made_by(
        size={"height": height, "width": width},
        image_mean=list(mean),
        image_std=list(std),
        resample=PILImageResampling[resample.upper()],
        **kept,
        **({"draft": True} if draft else {}),
    )


def _validate_backend(backend: str, resample: str) -> None:
    if backend not in ("pil", "torchvision"):
        raise ValueError(f"`backend={backend!r}` was given. The backends are 'pil' and 'torchvision'.")
    if backend == "torchvision" and resample not in _TORCH_FILTERS:
        raise ValueError(
            f"`resample={resample!r}` was given with `backend='torchvision'`, which resizes bytes by "
            f"{_TORCH_FILTERS} alone. Take one of these, or leave `backend` out."
        )
    if backend == "torchvision" and not is_torchvision_available():
        raise ImportError(
            "`backend='torchvision'` was given, and torchvision is not installed. Install it, `pip install "
            "torchvision`, or leave `backend` out: Pillow reads the same images, more slowly."
        )


_TORCH_FILTERS = ["bilinear", "bicubic"]


def load_image_processor(name: str | PathLike[str], **options: Any) -> Any:
    """The image processor of a folder or the Hub: of Pillow, unless it was made for torchvision, which is here."""
    loaded = AutoImageProcessor.from_pretrained(name, **{"backend": "pil", **options})
    wanted = getattr(loaded, "image_backend", None)
    if wanted is None or "backend" in options:
        return loaded
    if not is_torchvision_available():
        logger.warning("%s was trained on images that %s resized, and it is not installed: Pillow does.", name, wanted)
        return loaded
    return AutoImageProcessor.from_pretrained(name, backend=wanted, **options)


class PixelTable:
    """A plain resize-and-normalise processor as a table, equal bit for bit in half the time.

    Such a processor maps each of a channel's 256 values to one number. A call takes an RGB image of any size and
    returns (3, H, W) float32; `resize` returns its bytes, uint8, of which `look_up` makes the numbers on any device.
    """

    def __init__(self, processor: PilBackend | TorchvisionBackend) -> None:
        self.height: int = processor.size.height
        self.width: int = processor.size.width
        self.resample: int = PILImageResampling.BILINEAR if processor.resample is None else processor.resample
        self.by_torch: bool = isinstance(processor, TorchvisionBackend)
        ramp = Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2))  # (1, 256, 3)
        values = processor(ramp, do_resize=False, return_tensors="np")["pixel_values"]  # (1, 3, 1, 256)
        self.table: np.ndarray = np.ascontiguousarray(values[0, :, 0], dtype=np.float32)  # (3, 256)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        resized = self._resized(image)
        pixels = np.empty((3, self.height, self.width), dtype=np.float32)
        for channel, values in enumerate(self.table):
            np.take(values, resized[channel], out=pixels[channel], mode="clip")  # "clip" spares a copy of `out`
        return torch.from_numpy(pixels)

    def resize(self, image: Image.Image) -> torch.Tensor:
        """The image's bytes at the processor's size, (3, H, W) uint8."""
        return torch.from_numpy(np.array(self._resized(image), order="C"))

    def _resized(self, image: Image.Image) -> np.ndarray:
        if not self.by_torch:
            return np.asarray(image.resize((self.width, self.height), self.resample)).transpose(2, 0, 1)
        mode = PILImageResampling(self.resample).name.lower()
        size = (self.height, self.width)
        return torch.nn.functional.interpolate(_bytes_of(image), size=size, mode=mode, antialias=True)[0, :3].numpy()


def look_up(table: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """The numbers of a `PixelTable.table`, (3, 256) float32, for bytes (..., 3, H, W) uint8 on the same device."""
    index = pixels.int() + 256 * torch.arange(3, dtype=torch.int32, device=pixels.device)[:, None, None]
    return table.flatten().index_select(0, index.flatten()).view(pixels.shape)


def _bytes_of(image: Image.Image) -> torch.Tensor:
    """An RGB image as (1, channels, H, W) uint8; without a copy there are four channels, the last without meaning."""
    try:
        pixels = torch.from_dlpack(pa.array(image).flatten())
    except (TypeError, ValueError):  # Pillow before 11.3, and images that it keeps in several blocks of memory
        pixels = torch.from_numpy(np.array(image))
    return pixels.view(1, image.height, image.width, -1).permute(0, 3, 1, 2)


def is_plain(processor: Any) -> bool:
    """Whether the processor resizes to a fixed height and width, rescales, normalises and does nothing else."""
    backend = next((one for one in (PilBackend, TorchvisionBackend) if isinstance(processor, one)), None)
    filters = (None, PILImageResampling.BILINEAR, PILImageResampling.BICUBIC)
    return (
        backend is not None
        and all(getattr(type(processor), step, None) is getattr(backend, step, None) for step in _STEPS)
        and bool(processor.do_resize and processor.size.height and processor.size.width)
        and not (processor.do_center_crop or processor.do_pad)
        and (backend is PilBackend or processor.resample in filters)
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
        with staged_folder(save_directory) as staging:
            for part in (self.image_processor, self.tokenizer):
                if part is not None:
                    part.save_pretrained(staging)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any) -> CaptionProcessor:
        """The parts that a folder or a repository has."""
        name = pretrained_model_name_or_path
        quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
        hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "subfolder") if key in kwargs}
        files = [cached_file(name, file, **hub, **quiet) for file in (IMAGE_PROCESSOR_NAME, PROCESSOR_NAME)]
        images = load_image_processor(name, **kwargs) if any(files) else None
        return cls(images, AutoTokenizer.from_pretrained(name, **kwargs))
