"""Any image a data set may hold, as eight-bit RGB."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import multiprocessing
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL
from datasets import Dataset
from PIL import Image, ImageChops, ImageOps
from PIL.ExifTags import Base
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE
from hf_curriculum.config import write_atomically
from hf_curriculum.data.captions import image_key, stored_images

logger: logging.Logger = logging.getLogger(__name__)


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


class UnreadableImageError(ValueError):
    """An image that cannot be decoded. The message names it and says why."""


def to_rgb(image: Any, *, name: str | None = None) -> Image.Image:
    """The image as an upright eight-bit RGB image.

    - Orientation in EXIF is applied.
    - Transparency (RGBA, LA, palette or colour-key) is composited on white, as on the page the image came from.
    - 16-bit and 32-bit greys are scaled by the range of their type: 0…65535 to 0…255. 32-bit integers within 0…255
      count as bytes and within 0…65535 as 16-bit; wider ones, and floats outside 0…1 and 0…255, are stretched over
      their own range if they come from a file.
    - CMYK: JPEGs with Adobe's marker hold inverted inks, those without it hold plain ones.
    - Of an animation, the first frame.

    Args:
        image: a PIL image, a path, the bytes of a file, the dict `{"bytes": …, "path": …}` of a
            `datasets.Image` column, or an array or tensor (H, W), (H, W, 1 | 2 | 3 | 4) or (1 | 3 | 4, H, W): unsigned
            bytes, 16-bit integers, booleans, or floats in 0…1 or 0…255. An RGB image comes back as it is, not copied.
        name: what to call the image in errors, where it has no path of its own.

    Raises:
        UnreadableImageError: the file is missing, truncated, damaged or no image; the array's shape or range has no
            reading as an image; there is no image at all (`None`).

    Example:
        >>> to_rgb(Image.new("LA", (2, 2), (0, 0))).getpixel((0, 0))
        (255, 255, 255)
    """
    name = name or _name(image)
    try:
        return _flatten(_upright(_open(image, name)), name)
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


def _open(image: Any, name: str) -> Image.Image:
    """A loaded PIL image."""
    if isinstance(image, Image.Image):
        image.load()
        return image
    if isinstance(image, dict) and (image.get("bytes") is not None or image.get("path") is not None):
        image = image["path"] if image.get("bytes") is None else image["bytes"]
    if isinstance(image, (bytes, bytearray, memoryview)):
        return _load(io.BytesIO(image))
    if isinstance(image, (str, PathLike)):
        path = fspath(image)
        return datasets.Image().decode_example({"path": path, "bytes": None}) if "://" in path else _load(path)
    if isinstance(image, np.ndarray) or hasattr(image, "__array__"):
        return _from_array(np.asarray(image), name)
    raise UnreadableImageError(
        f"{name} is no image: a PIL image, a path, bytes, a dict with `bytes` or `path`, or an array is needed, and "
        f"{image!r:.80} was found. Leave such rows out, as `load_captioned` does."
    )


def _load(file: str | io.BytesIO) -> Image.Image:
    with Image.open(file) as image:
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


def _flatten(image: Image.Image, name: str) -> Image.Image:
    if image.mode in WIDE_MODES:
        values = np.asarray(image)
        if image.mode == "I" and image.format == "PNG":  # PNG has no 32 bits: older Pillow opens 16-bit files so
            values = values.astype(np.uint16)
        return Image.fromarray(_to_bytes(values, name, stretch=True)).convert("RGB")
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, WHITE), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


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
    return Image.fromarray(np.ascontiguousarray(_to_bytes(values, name, stretch=False)))


def _to_bytes(values: np.ndarray, name: str, *, stretch: bool) -> np.ndarray:
    """`values` scaled to 0…255, as uint8. `stretch`: values of no known scale are spread over it."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind not in "uif" or not np.isfinite(values).all():
        raise UnreadableImageError(f"{name} holds {values.dtype} values that are not all finite numbers.")
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "f":
        known_ranges = (1.0, 255.0)
    elif values.dtype.itemsize == 2 and values.dtype.kind == "u":
        known_ranges = (65535.0,)
    else:
        known_ranges = (255.0, 65535.0)
    top = next((top for top in known_ranges if low >= 0 and high <= top), None)
    if top is None and not stretch:
        raise UnreadableImageError(
            f"{name} holds {values.dtype} values from {low:g} to {high:g}, and no scale is known for them. If it was "
            "normalised already, leave that to the image processor; otherwise give bytes, or floats in 0…1."
        )
    if top is None:
        values, top = values.astype(np.float64) - low, (high - low) or 1.0
    return np.round(values.astype(np.float64) * 255.0 / top).astype(np.uint8)


LOG_NAME = "unreadable_images.txt"


def drop_unreadable_images(
    splits: Mapping[str, Dataset],
    *,
    column: str = IMAGE,
    log_path: str | Path | None = None,
    num_proc: int | None = None,
) -> dict[str, Dataset]:
    """The splits without the rows whose image cannot be decoded.

    Every distinct image is decoded once. The results are cached, by path, size and modification time (or by content),
    so that another run or process only looks files up.
    """
    kept, unreadable = {}, {}
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "hf_curriculum"
    for split, dataset in splits.items():
        keys = [image_key(image) for image in stored_images(dataset, column)]
        stamps = {key: _stamp(key) for key in dict.fromkeys(keys)}
        cached = cache / _digest(stamps) / "unreadable.json"
        if cached.is_file():
            reasons = json.loads(cached.read_text(encoding="utf-8"))
        else:
            reasons = _decode_all(dataset, column, len(stamps), num_proc)
            write_atomically(cached, json.dumps(reasons))
        readable = np.array([key not in reasons for key in keys], dtype=bool)
        if reasons and not readable.any():
            reason = next(iter(reasons.values()))
            raise ValueError(
                f"None of the {len(reasons)} images of the split {split!r} can be read. The first: {reason} Nothing "
                "would be left to train on: look at the folder given as `images=`, or at the download."
            )
        kept[split] = dataset if readable.all() else dataset.select(np.flatnonzero(readable))
        unreadable |= reasons
        folder = cached.parent
    if unreadable:
        _report(unreadable, splits, kept, Path(log_path) if log_path else folder / LOG_NAME)
    return kept


def _stamp(key: str) -> str:
    """Size and modification time of an image's file; keys that are digests of bytes have none."""
    if not os.path.exists(key):
        return ""
    status = os.stat(key)
    return f"{status.st_size} {status.st_mtime_ns}"


def _digest(stamps: dict[str, str]) -> str:
    digest = hashlib.blake2b(PIL.__version__.encode(), digest_size=12)  # another Pillow may read other formats
    for key, stamp in stamps.items():
        digest.update(f"{key}\0{stamp}\n".encode())
    return digest.hexdigest()


def _decode_all(dataset: Dataset, column: str, total: int, num_proc: int | None) -> dict[str, str]:
    """Decodes each distinct image; key -> reason for those that fail."""
    with multiprocessing.Pool(num_proc) if (num_proc or 1) > 1 else nullcontext() as pool:
        distinct = _distinct(dataset, column)
        checked = map(_check, distinct) if pool is None else pool.imap(_check, distinct, chunksize=16)
        return {
            key: reason
            for key, reason in tqdm(checked, "Checking images", total, delay=2, disable=None)
            if reason is not None
        }


def _distinct(dataset: Dataset, column: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    seen = set()
    for image in stored_images(dataset, column):
        key = image_key(image)
        if key not in seen:
            seen.add(key)
            yield key, image


def _check(item: tuple[str, dict[str, Any] | None]) -> tuple[str, str | None]:
    key, image = item
    try:
        to_rgb(image, name=(image or {}).get("path") or f"the image {key or 'of a row'}")
    except UnreadableImageError as error:
        return key, str(error)
    return key, None


def _report(
    unreadable: dict[str, str], before: Mapping[str, Dataset], after: Mapping[str, Dataset], log: Path
) -> None:
    write_atomically(log, "".join(f"{reason}\n" for reason in unreadable.values()))
    rows = sum(map(len, before.values())) - sum(map(len, after.values()))
    logger.warning(
        "%d images cannot be read; their %d rows are left out. The first: %s All are named in %s",
        len(unreadable),
        rows,
        " ".join(list(unreadable.values())[:3]),
        log,
    )
