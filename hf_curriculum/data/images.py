"""Any image a data set may hold, as eight-bit RGB."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import datasets
import numpy as np
import PIL
from PIL import Image, ImageChops, ImageFile, ImageOps, PngImagePlugin, features
from PIL.ExifTags import Base

from hf_curriculum.config import brief
from hf_curriculum.files import special_file

# What Pillow raises for a damaged file, besides its own OSErrors (found by flipping bytes of real files).
DECODING_ERRORS: tuple[type[BaseException], ...] = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
# Modes whose numbers are wider than a byte: `convert("RGB")` would clip them at 255, that is, to white.
WIDE_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
ALPHA_MODES = ("LA", "PA", "RGBA", "RGBa")
WHITE = (255, 255, 255, 255)


MAX_PIXELS = 100_000_000
"""Pixels of the largest image that is decoded: 300 MB as RGB. A few kilobytes may claim any number."""


def decoding_settings() -> str:
    """What decides, besides a file, whether it can be decoded: Pillow, its libraries and plugins, and its limits."""
    libraries = {name: features.version(name) for name in ("jpg", "jpg_2000", "zlib", "libtiff", "webp", "avif")}
    # Pillow loads its formats late, and finds an image faster where those that nobody needs are not loaded.
    plugins = sorted(name for name, (reader, _) in Image.OPEN.items() if not reader.__module__.startswith("PIL."))
    limits = (
        Image.MAX_IMAGE_PIXELS,
        ImageFile.LOAD_TRUNCATED_IMAGES,
        PngImagePlugin.MAX_TEXT_CHUNK,
        PngImagePlugin.MAX_TEXT_MEMORY,
    )
    return repr((PIL.__version__, libraries, plugins, limits))


class UnreadableImageError(ValueError):
    """An image that cannot be decoded. The message names it and says why."""


def to_rgb(
    image: Any, *, name: str | None = None, max_pixels: int = MAX_PIXELS, draft: int | None = None
) -> Image.Image:
    """The image as an upright eight-bit RGB image; a JPEG decoded at a scale that leaves sides of `draft` or more."""
    name = brief(name or _name(image), 300)
    try:
        opened = _open(image, name, max_pixels, draft)
        tags = opened.tag_v2 if opened.format == "TIFF" else {}
        return _flatten(_upright(opened), name, tags)
    except UnreadableImageError:
        raise
    except FileNotFoundError as error:
        raise UnreadableImageError(f"{name}: there is no such file.") from error
    except DECODING_ERRORS as error:
        raise UnreadableImageError(f"{name} cannot be decoded ({type(error).__name__}: {error}).") from error


def _name(image: Any) -> str:
    if isinstance(image, (str, PathLike)):
        return fspath(image)
    if isinstance(image, dict):
        return image.get("path") or "an image given as bytes"
    if isinstance(image, Image.Image):
        return getattr(image, "filename", "") or "an image without a file name"  # set on images opened from a path
    return f"an image given as {type(image).__name__}"


def _open(image: Any, name: str, max_pixels: int, draft: int | None) -> Image.Image:
    """A loaded PIL image."""
    if isinstance(image, Image.Image):
        return _load(image, name, max_pixels)
    if isinstance(image, dict) and (image.get("bytes") is not None or image.get("path") is not None):
        image = image["path"] if image.get("bytes") is None else image["bytes"]
    if isinstance(image, (bytes, bytearray, memoryview)):
        image = io.BytesIO(image)
    if isinstance(image, (str, PathLike)) and "://" in fspath(image):
        return datasets.Image().decode_example({"path": fspath(image), "bytes": None})
    if isinstance(image, (str, PathLike, io.BytesIO)):
        with open_header(image) as opened:
            return _load(opened, name, max_pixels, draft)
    if isinstance(image, np.ndarray) or hasattr(image, "__array__"):
        return _from_array(np.asarray(image), name)
    raise UnreadableImageError(
        f"{name} is no image: a PIL image, a path, bytes, a dict with `bytes` or `path`, or an array is needed, and "
        f"{brief(repr(image))} was found. Leave such rows out, as `load_captioned` does."
    )


def open_header(file: str | PathLike[str] | io.BytesIO) -> Image.Image:
    """An image of which only the header is read; what is no regular file is not opened."""
    if not isinstance(file, io.BytesIO):
        kind = special_file(file)
        if kind is not None:
            raise UnreadableImageError(f"{fspath(file)} is a {kind}, not a file with an image: it is not opened.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `max_pixels` decides
        return Image.open(file)


def image_size(image: Any) -> tuple[int, int] | tuple[None, None]:
    """Width and height of an image as `to_rgb` has it, from the header where it is a file; None if unreadable."""
    size, orientation = image_frame(image)
    return (None, None) if size is None else upright_size(size, orientation)


def image_frame(image: Any) -> tuple[tuple[int, int] | None, int]:
    """Width and height as they are stored, and EXIF's orientation, 1 to 8; None and 1 if unreadable."""
    source = image
    if isinstance(image, dict):
        source = image.get("path") if image.get("bytes") is None else image["bytes"]
    try:
        if isinstance(source, (bytes, bytearray)):
            source = io.BytesIO(source)
        elif not isinstance(source, str) or "://" in source:
            return to_rgb(image).size, 1
        with open_header(source) as opened:
            known = opened.format != "PNG" or "exif" in opened.info  # Pillow decodes a PNG to look for more
            orientation = opened.getexif().get(Base.Orientation, 1) if known else 1
            size = opened.size
            if opened.format == "TIFF":  # some versions of Pillow have turned its size already
                size = opened.tag_v2[Base.ImageWidth], opened.tag_v2[Base.ImageLength]
            return size, orientation if orientation in range(1, 9) else 1
    except (UnreadableImageError, *DECODING_ERRORS):
        return None, 1


def upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Width and height of an image that is stored in an orientation, upright."""
    return size[::-1] if orientation in _SIDEWAYS else size


_SIDEWAYS = (5, 6, 7, 8)  # orientations in EXIF that exchange width and height


def _load(image: Image.Image, name: str, max_pixels: int, draft: int | None = None) -> Image.Image:
    """Decodes an image that is open, if its header allows."""
    if getattr(image, "tile", None):  # not decoded yet
        pixels = image.width * image.height
        if pixels > max_pixels:
            raise UnreadableImageError(
                f"{name} has {image.width:,} × {image.height:,} = {pixels:,} pixels, more than the limit of "
                f"{max_pixels:,}, and is not decoded: a small file may fill the memory. Scale it down, or pass a "
                "larger `max_pixels`."
            )
        if image.format == "EPS":
            raise UnreadableImageError(f"{name} is PostScript, a program, which is not run. Convert it.")
        if draft is not None:
            image.draft(None, (draft, draft))
    image.load()
    return image


def _upright(image: Image.Image) -> Image.Image:
    if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        info = image.info  # holds the EXIF block
        image = ImageChops.invert(image)  # Pillow inverts every CMYK JPEG, Adobe's or not
        image.info = dict(info)
    if image.getexif().get(Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def _flatten(image: Image.Image, name: str, tags: Mapping[int, Any]) -> Image.Image:
    if image.mode in WIDE_MODES:
        values = np.asarray(image)
        if image.mode == "I" and image.format in ("PNG", "PPM"):  # they have no 32 bits: Pillow opens 16-bit files so
            values = values.astype(np.uint16)
        top = 1.0 if image.mode == "F" else 255.0  # one for all pictures: each one's own would exchange light and dark
        grey = _to_bytes(_tiff_values(values, tags) if tags else values, name, (top,))
        key = image.info.get("transparency")
        if isinstance(key, int):
            grey = np.where(values == key, np.uint8(255), grey)
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, WHITE), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _tiff_values(values: np.ndarray, tags: Mapping[int, Any]) -> np.ndarray:
    """Numbers wider than a byte as a TIFF means them: Pillow reads their bits alone."""
    if values.dtype.kind == "i" and tags.get(Base.SampleFormat, (1,))[0] == 1:
        values = values.view(np.uint32)
    if values.dtype.kind != "u":
        return values
    bits = tags.get(Base.BitsPerSample, (16,))[0]
    top = (1 << bits) - 1
    if tags.get(Base.PhotometricInterpretation) == 0:  # 0 is white
        values = top - values
    return values if bits >= 16 else np.round(values * (65535 / top)).astype(np.uint16)


def _from_array(values: np.ndarray, name: str) -> Image.Image:
    shape = values.shape
    if values.ndim == 3 and shape[-1] not in (1, 2, 3, 4) and shape[0] in (1, 3, 4):
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[:, :, 0]
    if 0 in shape or not (values.ndim == 2 or (values.ndim == 3 and values.shape[-1] in (2, 3, 4))):
        raise UnreadableImageError(
            f"{name} has the shape {shape}. An image is (height, width), (height, width, channels) or (channels, "
            "height, width) with 1 to 4 channels."
        )
    ranges = (1.0, 255.0) if values.dtype.kind == "f" else (255.0,)
    return Image.fromarray(np.ascontiguousarray(_to_bytes(values, name, ranges)))


def _to_bytes(values: np.ndarray, name: str, ranges: tuple[float, ...]) -> np.ndarray:
    """`values` scaled to 0…255, as uint8, from the first of the ranges 0…top that holds them; of uint16 all."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind not in "uif" or not np.isfinite(values).all():
        raise UnreadableImageError(f"{name} holds {values.dtype} values that are not all finite numbers.")
    low, high = float(values.min()), float(values.max())
    if values.dtype.itemsize == 2 and values.dtype.kind == "u":
        ranges = (65535.0,)
    top = next((top for top in ranges if low >= 0 and high <= top), None)
    if top is None:
        raise UnreadableImageError(
            f"{name} holds {values.dtype} values from {low:g} to {high:g}, and no scale is known for them: which is "
            "white? If it was normalised already, leave that to the image processor; otherwise convert it to 8 or 16 "
            "bits without sign, or to floats in 0…1."
        )
    return np.round(values.astype(np.float64) * 255.0 / top).astype(np.uint8)
