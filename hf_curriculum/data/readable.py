"""Pictures that cannot be decoded: found, counted, named in a log, and left out."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL
from datasets import Dataset
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE
from hf_curriculum.data.image_ids import picture_key, undecoded
from hf_curriculum.data.images import UnreadableImageError, to_rgb

logger = logging.getLogger(__name__)

LOG_NAME = "unreadable_images.txt"


def drop_unreadable_images(
    splits: Mapping[str, Dataset],
    *,
    column: str = IMAGE,
    log_path: str | Path | None = None,
    num_proc: int | None = None,
) -> dict[str, Dataset]:
    """The data sets without the rows whose picture cannot be decoded; nothing is put in their place.

    Every distinct picture is decoded once, whatever its captions. The verdicts are kept in the cache of `datasets`, by
    path, size and time of change (or by content), so that a second run, or a second process, only looks files up.

    Args:
        splits: name -> data set with a column of pictures.
        column: its name.
        log_path: where the names of the unreadable pictures are written, one a line with the reason; by default
            `unreadable_images.txt` in a folder of its own in the cache of `datasets`, named in the warning.
        num_proc: processes to decode with; None for this one.

    Raises:
        ValueError: no picture of a split can be read.
    """
    kept, unreadable = {}, {}
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "hf_curriculum"
    for split, dataset in splits.items():
        keys = [picture_key(picture) for picture in undecoded(dataset, column)]
        stamps = {key: _stamp(key) for key in dict.fromkeys(keys)}
        verdicts_path = cache / _digest(stamps) / "unreadable.json"
        reasons = _read(verdicts_path)
        if reasons is None:
            reasons = _decode_all(dataset, column, len(stamps), num_proc)
            _write(verdicts_path, json.dumps(reasons))
        readable = np.array([key not in reasons for key in keys], dtype=bool)
        if reasons and not readable.any():
            reason = next(iter(reasons.values()))
            raise ValueError(
                f"None of the {len(reasons)} pictures of the split {split!r} can be read. The first: {reason} Nothing "
                "would be left to train on: look at the folder given as `images=`, or at the download."
            )
        kept[split] = dataset if readable.all() else dataset.select(np.flatnonzero(readable))
        unreadable |= reasons
        folder = verdicts_path.parent
    if unreadable:
        _report(unreadable, splits, kept, Path(log_path) if log_path else folder / LOG_NAME)
    return kept


def _stamp(key: str) -> str:
    """What changes when a picture's file does; keys that are digests of bytes never do."""
    if not os.path.exists(key):
        return ""
    status = os.stat(key)
    return f"{status.st_size} {status.st_mtime_ns}"


def _digest(stamps: dict[str, str]) -> str:
    digest = hashlib.blake2b(PIL.__version__.encode(), digest_size=12)  # another Pillow may read other formats
    for key, stamp in stamps.items():
        digest.update(f"{key}\0{stamp}\n".encode())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, str] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, also when several processes write the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _decode_all(dataset: Dataset, column: str, total: int, num_proc: int | None) -> dict[str, str]:
    """Decodes each distinct picture; key -> reason for those that fail."""
    with _mapper(num_proc) as decode, tqdm(total=total, desc="Checking pictures", delay=2) as progress:
        reasons = {}
        for key, reason in decode(_distinct(dataset, column)):
            if reason is not None:
                reasons[key] = reason
            progress.update()
    return reasons


def _distinct(dataset: Dataset, column: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    seen = set()
    for picture in undecoded(dataset, column):
        key = picture_key(picture)
        if key not in seen:
            seen.add(key)
            yield key, picture


@contextmanager
def _mapper(num_proc: int | None) -> Iterator[Any]:
    if num_proc is None or num_proc <= 1:
        yield lambda pictures: map(_check, pictures)
        return
    with multiprocessing.Pool(num_proc) as pool:
        yield lambda pictures: pool.imap(_check, pictures, chunksize=16)


def _check(item: tuple[str, dict[str, Any] | None]) -> tuple[str, str | None]:
    key, picture = item
    try:
        to_rgb(picture, name=(picture or {}).get("path") or f"the picture {key or 'of a row'}")
    except UnreadableImageError as error:
        return key, str(error)
    return key, None


def _report(
    unreadable: dict[str, str], before: Mapping[str, Dataset], after: Mapping[str, Dataset], log: Path
) -> None:
    _write(log, "".join(f"{reason}\n" for reason in unreadable.values()))
    rows = sum(map(len, before.values())) - sum(map(len, after.values()))
    logger.warning(
        "%d pictures cannot be read; their %d rows are left out. The first: %s All are named in %s",
        len(unreadable),
        rows,
        " ".join(list(unreadable.values())[:3]),
        log,
    )
