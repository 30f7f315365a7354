"""Parquet files that hold a digest of themselves, so that damage of anything in them is noticed, footer included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_128

from hf_curriculum.files import DamagedFileError, new_file, reading

_KEY, _MARK = b"hf_curriculum_seal", b"hf_curriculum_xxh3:"
_DIGITS = 32
_BLOCK = 1 << 20


@contextmanager
def sealed_parquet(target: Path, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """A writer of a Parquet file, which takes the place of `target` when it is written and sealed."""
    with new_file(target) as path:
        with pq.ParquetWriter(path.absolute(), schema, compression="zstd", **options) as writer:
            yield writer
            writer.add_key_value_metadata({_KEY: _MARK + b"0" * _DIGITS})
        place, _, digest = _seal(path)
        with path.open("rb+") as stream:
            stream.seek(place)
            stream.write(digest)


def validate_sealed_parquet(file: Path, remedy: str) -> None:
    """Raises a `DamagedFileError` where a file of `sealed_parquet` was damaged or changed since."""
    with reading(file, remedy):
        _, recorded, digest = _seal(file)
    if recorded != digest:
        raise DamagedFileError(f"{file} was damaged, or changed after it was written. {remedy}")


def read_sealed_parquet(file: Path, remedy: str) -> pa.Table:
    """What `sealed_parquet` wrote, compared."""
    validate_sealed_parquet(file, remedy)
    with reading(file, remedy):
        return pq.read_table(file.absolute())


def is_sealed_parquet(file: Path) -> bool:
    """Whether a file has a seal, or what damage has left of it."""
    with reading(file, "Remove it, or copy it again."), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _BLOCK))
        tail = stream.read()
    return _MARK in tail or _KEY in tail


def _seal(file: Path) -> tuple[int, bytes, bytes]:
    """Where the digest stands in a file, the recorded one, and that of all the rest."""
    with file.open("rb") as stream:
        end = stream.seek(-8, 2)  # the length of the footer, and a mark
        start = stream.seek(end - int.from_bytes(stream.read(4), "little"))
        mark = stream.read().rfind(_MARK)
        if mark < 0:
            raise ValueError("it has no digest of itself, as files that are written here have")
        place = start + mark + len(_MARK)
        state = xxh3_128()
        stream.seek(0)
        for begin in range(0, place, _BLOCK):
            state.update(stream.read(min(_BLOCK, place - begin)))
        recorded = stream.read(_DIGITS)
        state.update(stream.read())
    return place, recorded, state.hexdigest().encode()
