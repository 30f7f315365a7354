"""Any image a data set may hold, as eight-bit RGB."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import os
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from PIL import Image, ImageChops, ImageOps
from PIL.ExifTags import Base
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE
from hf_curriculum.config import digest, read_json, special_file, write_atomically
from hf_curriculum.data.captions import (
    ArrowRows,
    cache_file,
    file_digests,
    image_key,
    stored_files,
    stored_images,
    stored_keys,
)
from hf_curriculum.data.readers.outside_files import named_files

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


MAX_PIXELS = 100_000_000
"""Pixels of the largest image that is decoded: 300 MB as RGB. A few kilobytes may claim any number."""


class UnreadableImageError(ValueError):
    """An image that cannot be decoded. The message names it and says why."""


def to_rgb(image: Any, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image as an upright eight-bit RGB image."""
    name = name or _name(image)
    try:
        return _flatten(_upright(_open(image, name, max_pixels)), name)
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


def _open(image: Any, name: str, max_pixels: int) -> Image.Image:
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
            return _load(opened, name, max_pixels)
    if isinstance(image, np.ndarray) or hasattr(image, "__array__"):
        return _from_array(np.asarray(image), name)
    raise UnreadableImageError(
        f"{name} is no image: a PIL image, a path, bytes, a dict with `bytes` or `path`, or an array is needed, and "
        f"{image!r:.80} was found. Leave such rows out, as `load_captioned` does."
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
    source = image
    if isinstance(image, dict):
        source = image.get("path") if image.get("bytes") is None else image["bytes"]
    try:
        if isinstance(source, (bytes, bytearray)):
            source = io.BytesIO(source)
        elif not isinstance(source, str) or "://" in source:
            return to_rgb(image).size
        with open_header(source) as opened:
            known = opened.format != "PNG" or "exif" in opened.info  # Pillow decodes a PNG to look for more
            turned = known and opened.getexif().get(Base.Orientation, 1) in _SIDEWAYS
            size = opened.size
            if opened.format == "TIFF":  # some versions of Pillow have turned its size already
                size = opened.tag_v2[Base.ImageWidth], opened.tag_v2[Base.ImageLength]
            return size[::-1] if turned else size
    except (UnreadableImageError, *DECODING_ERRORS):
        return None, None


_SIDEWAYS = (5, 6, 7, 8)  # orientations in EXIF that exchange width and height


def _load(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
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
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Dataset]:
    """The splits without the rows whose image cannot be decoded."""
    kept, unreadable = {}, {}
    for split, dataset in splits.items():
        kept[split] = dataset
        files = stored_files(dataset, column)
        if files is None:
            keys = [image_key(image) for image in stored_images(dataset, column)]
            parts: Iterable[pa.Array] = [pa.array(keys)]
            stamps = {key: _stamp(key) for key in dict.fromkeys(keys)}
            known = cache_file(_digest(stamps, max_pixels), _VERDICTS)
            reasons = _verdicts(known, _distinct(keys, stored_images(dataset, column)), num_proc, max_pixels)
        else:
            reasons, known = {}, None
            for file in files:
                known = cache_file(file.key("readable", file.start, file.rows, PIL.__version__, max_pixels), _VERDICTS)
                reasons |= _verdicts(known, _distinct_in(file), num_proc, max_pixels)
            parts = stored_keys(dataset, column) if reasons else []
        if not reasons:
            continue
        bad = pa.array(list(reasons))
        readable = np.concatenate([~pc.is_in(part, bad).to_numpy(zero_copy_only=False) for part in parts])
        if not readable.any():
            raise ValueError(
                f"None of the {len(reasons)} images of the split {split!r} can be read. The first: "
                f"{next(iter(reasons.values()))} Nothing would be left to train on: look at the folder given as "
                "`images=`, or at the download."
            )
        kept[split] = dataset.select(np.flatnonzero(readable))
        unreadable |= reasons
        log_path = log_path or known.with_name(LOG_NAME)
    if unreadable:
        _report(unreadable, splits, kept, Path(log_path))
    return kept


_VERDICTS = "unreadable.json"
_FEW = 256  # fewer images are decoded sooner than processes start
_Distinct = Iterator[tuple[str, dict[str, Any] | None]]
"""Each distinct image once, by its key."""


def _stamp(key: str) -> str:
    """Size and modification time of an image's file; keys that are digests of bytes have none."""
    try:
        status = os.stat(key)
    except (OSError, ValueError):
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _digest(stamps: dict[str, str], max_pixels: int) -> str:
    # another Pillow may read other formats
    lines = (f"{key}\0{stamp}\n" for key, stamp in stamps.items())
    return digest(f"{PIL.__version__} {max_pixels}\n", *lines, size=12)


def _verdicts(known: Path, distinct: _Distinct, num_proc: int | None, max_pixels: int) -> dict[str, str]:
    """Key → reason of the images that cannot be decoded, from a file where they were decoded before."""
    if known.is_file():
        return read_json(known, "Delete it: the images are then checked again.")
    check = partial(_check, max_pixels=max_pixels)
    few = list(islice(distinct, _FEW))
    several = (num_proc or 1) > 1 and len(few) == _FEW
    with multiprocessing.Pool(num_proc) if several else nullcontext() as pool:
        images = chain(few, distinct)
        checked = map(check, images) if pool is None else pool.imap(check, images, chunksize=16)
        found = tqdm(checked, "Checking images", delay=2, disable=None)
        reasons = {key: reason for key, reason in found if reason is not None}
    write_atomically(known, json.dumps(reasons))
    return reasons


def _distinct(keys: Sequence[str], images: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for key, image in zip(keys, images, strict=True):
        if key not in seen:
            seen.add(key)
            yield key, image


def _distinct_in(file: ArrowRows) -> _Distinct:
    digests = file_digests(file)
    is_first = np.zeros(file.rows, bool)
    is_first[np.unique(digests.view("V16"), return_index=True)[1]] = True
    for row, (image, name) in enumerate(file.images()):
        if is_first[row]:
            key = "" if image is None else digests[row].tobytes().hex()
            yield key, {"bytes": None if image is None else bytes(image), "path": None if image is None else name}


def _check(item: tuple[str, dict[str, Any] | None], max_pixels: int) -> tuple[str, str | None]:
    key, image = item
    try:
        to_rgb(image, name=(image or {}).get("path") or f"the image {key or 'of a row'}", max_pixels=max_pixels)
    except UnreadableImageError as error:
        return key, str(error)
    return key, None


def refuse_special_files(dataset: Dataset, column: str = IMAGE) -> None:
    """Raises a `ValueError` if an image is a FIFO, socket or device, which decoding might wait for without end."""
    for path in dict.fromkeys(named_files(dataset, [column])):
        kind = special_file(path)
        if kind not in (None, "folder"):
            raise ValueError(
                f"{path} is a {kind}, not a file with an image. Opening it might wait without end. Remove it, or let "
                "`check_images=True` leave out what cannot be read."
            )


def _report(
    unreadable: dict[str, str], before: Mapping[str, Dataset], after: Mapping[str, Dataset], log: Path
) -> None:
    write_atomically(log, "".join(f"{reason}\n" for reason in unreadable.values()))
    rows = sum(map(len, before.values())) - sum(map(len, after.values()))
    logger.warning(
        "%d image%s cannot be read, which leaves out %d row%s. The first: %s All are named in %s",
        len(unreadable),
        "s" * (len(unreadable) != 1),
        rows,
        "s" * (rows != 1),
        " ".join(list(unreadable.values())[:3]),
        log,
    )
