"""Ids for pictures whose source has none, from the pictures themselves."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from datasets import Dataset, Features, Image, Value, concatenate_datasets
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE, IMAGE_ID

logger = logging.getLogger(__name__)


def undecoded(dataset: Dataset, column: str = IMAGE) -> Iterator[dict[str, Any] | None]:
    """The pictures of a data set row by row as `{"bytes": ..., "path": ...}`, undecoded."""
    pictures = dataset.select_columns([column]).with_format(None).cast_column(column, Image(decode=False))
    for batch in pictures.iter(100):
        yield from batch[column]


def picture_key(picture: dict[str, Any] | None) -> str:
    """What tells pictures apart without opening files: the digest of the bytes, or the path."""
    if picture is None or (picture["bytes"] is None and picture["path"] is None):
        return ""
    return picture["path"] if picture["bytes"] is None else _digest(picture["bytes"])


def derive_image_ids(dataset: Dataset, column: str = IMAGE) -> Dataset:
    """The data set with a column `image_id`: the same for rows with the same picture, on any machine, in any order.

    The id is a digest of the picture's file, so one picture under two names has one id. Remote and missing files,
    which are not read, get the digest of their address.

    Args:
        dataset: a data set with a column of pictures (`datasets.Image`).
        column: its name.
    """
    known: dict[str, str] = {}  # each file is read once, however many captions it has
    ids = []
    for picture in tqdm(undecoded(dataset, column), total=len(dataset), desc="Deriving image ids", delay=2):
        key = picture_key(picture)
        if key not in known:
            known[key] = _id(picture, key)
        ids.append(known[key])
    logger.info("`%s` was derived: %d pictures in %d rows.", IMAGE_ID, len(known), len(dataset))
    added = Dataset.from_dict({IMAGE_ID: ids}, features=Features({IMAGE_ID: Value("string")}))
    return concatenate_datasets([dataset, added], axis=1)


def _id(picture: dict[str, Any] | None, key: str) -> str:
    if picture is None or picture["bytes"] is not None:
        return key
    if not os.path.isfile(key):
        return _digest(key.encode())
    with open(key, "rb") as file:
        return _digest(file.read())


def _digest(content: bytes) -> str:
    """32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
