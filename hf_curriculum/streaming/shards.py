"""Shards as files: Parquet, and WebDataset archives with an image, a text and a JSON file for each example."""

from __future__ import annotations

import io
import json
import math
import os
import tarfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, Features, Image, LargeList, List, Value
from datasets.features.features import require_storage_embed
from datasets.table import embed_table_storage
from xxhash import xxh3_128_hexdigest

from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.config import parse_json
from hf_curriculum.data.readers.archives import archive_members
from hf_curriculum.data.readers.outside_files import files_in, holds_files, validate_files
from hf_curriculum.files import DamagedFileError, reading, validate_digest
from hf_curriculum.scored_shards import KEY, SHARD
from hf_curriculum.streaming.index import REMEDY, Shard

TEXT, JSON = "txt", "json"
_JPEG, _PNG = "jpg", "png"
_PLAIN = ("bool", "int", "uint", "float", "string", "large_string")


def validate_features(features: Features) -> None:
    """Raises for columns that the image, the text and the JSON file of an example cannot hold."""
    for name, feature in features.items():
        if name == IMAGE:
            fits = isinstance(feature, Image)
        elif name == CAPTION:
            fits = isinstance(feature, Value) and feature.dtype in ("string", "large_string")
        else:
            fits = _fits_json(feature)
        if not fits:
            raise ValueError(
                f"`{name}` is {feature}, which a WebDataset shard cannot hold: each example is an image (`{IMAGE}`), "
                f"a text (`{CAPTION}`) and JSON. Remove the column, or write format='parquet'."
            )


def _fits_json(feature: Any) -> bool:
    if isinstance(feature, Value):
        return feature.dtype.startswith(_PLAIN)
    if isinstance(feature, (List, LargeList)):
        return _fits_json(feature.feature)
    if isinstance(feature, dict):
        return all(map(_fits_json, feature.values()))
    return isinstance(feature, ClassLabel)


def write_tar(tables: Iterable[pa.Table], file: Path, prefix: str) -> None:
    """Writes tables, with images as bytes, into one archive; `prefix` begins the examples' keys.

    All images have the ending of the first (`jpg`, else `png`), because an archive whose examples have different
    endings cannot be loaded as one table; the content stays as it is. A NaN is `null` in JSON.
    """
    number, ending = 0, None
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        for table in tables:
            for row in table.to_pylist():
                key = f"{prefix}-{number:06d}"
                if IMAGE in row:
                    content = (row.pop(IMAGE) or {}).get("bytes")
                    _validate_content(content, IMAGE, key, row)
                    ending = ending or (_JPEG if content.startswith(b"\xff\xd8") else _PNG)
                    _add(archive, f"{key}.{ending}", content)
                if CAPTION in row:
                    _validate_content(row[CAPTION], CAPTION, key, row)
                    _add(archive, f"{key}.{TEXT}", row.pop(CAPTION).encode())
                _add(archive, f"{key}.{JSON}", json.dumps(_finite(row), ensure_ascii=False).encode())
                number += 1


def _validate_content(value: object, column: str, key: str, row: dict[str, Any]) -> None:
    if value is None:
        named = [f"{name} {row[name]!r:.80}" for name in (SHARD, KEY, "__key__") if row.get(name) is not None]
        source = f" ({', '.join(named)})" if named else ""
        raise ValueError(
            f"`{column}` of the example {key}{source} is null. In a WebDataset shard every example has the same "
            "files. Write format='parquet', or leave such rows out: unscored='drop' does so with those that have no "
            "score, and `dataset.filter` with any rows of a data set."
        )


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list) else value


class TarShard:
    """An open archive, of which some columns are read."""

    def __init__(self, file: Path, features: Features) -> None:
        with reading(file, REMEDY):
            self._layout = _layout(file, _stamp(file))
        self._content = file.open("rb")
        self._columns = list(features)
        self._in_json = {name for name in features if not holds_files(features[name])}
        self._floats = {
            name
            for name, feature in features.items()
            if isinstance(feature, Value) and feature.dtype.startswith("float")
        }
        self.num_rows: int = len(self._layout)

    def read(self, start: int, stop: int) -> list[list[Any]]:
        """Rows `[start, stop)` as Python values, a list per column; a float that is null becomes NaN."""
        out: list[list] = [[] for _ in self._columns]
        for number in range(start, stop):
            row = self._row(self._layout[number])
            for values, name in zip(out, self._columns, strict=True):
                value = row.get(name)
                values.append(math.nan if value is None and name in self._floats else value)
        return out

    def _row(self, members: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, offset, size in members:
            ending = name.rpartition(".")[2]
            if ending not in (TEXT, JSON) and IMAGE not in self._columns:
                continue
            self._content.seek(offset)
            content = self._content.read(size)
            with reading(f"{name} of {self._content.name}", REMEDY):
                if ending == JSON:
                    found = parse_json(content)
                    row.update({column: value for column, value in found.items() if column in self._in_json})
                elif ending == TEXT:
                    row[CAPTION] = content.decode()
                else:
                    row[IMAGE] = {"bytes": content, "path": name}
        return row

    def close(self) -> None:
        """Closes it."""
        self._content.close()


@lru_cache(maxsize=64)
def _layout(file: Path, stamp: tuple[int, ...]) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    """(name, first byte, size) of each example's files."""
    rows: dict[str, list[tuple[str, int, int]]] = {}
    for name, offset, size in archive_members(file):
        rows.setdefault(name.partition(".")[0], []).append((name, offset, size))
    return tuple(map(tuple, rows.values()))


CHUNK, CHUNK_OF_FILES = 1 << 12, 1 << 8
"""Rows that are read at a time; fewer where files are embedded, which may be large."""


def embedded_tables(dataset: Dataset, rows: range) -> Iterator[pa.Table]:
    """Some rows, a bounded number at a time, images embedded."""
    arrow, schema = dataset.with_format("arrow"), dataset.features.arrow_schema
    has_files = any(map(require_storage_embed, dataset.features.values()))
    step = CHUNK_OF_FILES if has_files else CHUNK
    for first in range(0, len(rows), step):
        table = arrow[rows[first : first + step]].replace_schema_metadata(schema.metadata)
        yield embed_table_storage(table) if has_files else table


_GROUP_BYTES = 1 << 20
_TAIL = 8  # bytes at the end of a Parquet file: the length of its footer, and four letters


def write_parquet(
    tables: Iterable[pa.Table],
    file: Path,
    schema: pa.Schema,
    group_bytes: int = _GROUP_BYTES,
    *,
    name: str | None = None,
) -> None:
    """Writes tables of one schema into one file, with row groups of about `group_bytes`; its footer holds `name`.

    Pages begin where the content says so, as in `Dataset.push_to_hub`, and have an index. A storage that keeps equal
    pieces of files once, as the Hub's, then takes only what changed; the larger the row groups, the less that is.
    """
    options = datasets.config.DEFAULT_CDC_OPTIONS
    parquet = {"use_content_defined_chunking": options, "write_page_index": True, "write_page_checksum": True}
    with _Sink(file) as sink, pq.ParquetWriter(sink, schema, **parquet) as writer:
        for table in merged_tables(tables, group_bytes):
            groups = max(1, round(table.nbytes / group_bytes))
            writer.write_table(table, row_group_size=max(1, -(-table.num_rows // groups)))
            sink.check()
        names = {} if name is None else {"name": name}
        writer.add_key_value_metadata({"content_defined_chunking": json.dumps(options), **names})


def footer_digest(file: Path) -> str:
    """XXH3 (128 bits) of a Parquet file's footer: where everything is, the schema, statistics, and the file's name."""
    with file.open("rb") as stream:
        stream.seek(-_TAIL, os.SEEK_END)
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(-_TAIL - length, os.SEEK_END)
        return xxh3_128_hexdigest(stream.read())


def validate_shard(file: Path, shard: Shard, *, complete: bool) -> None:
    """Compares a shard with the index, once in a process unless it was written since.

    Args:
        file: where it is.
        shard: what the index says of it.
        complete: whether all of its content is compared; otherwise its size and its footer.

    Raises:
        DamagedFileError: it holds something else.
        FileNotFoundError: it does not exist.
    """
    with reading(file, REMEDY):
        _validate(file, _stamp(file), shard.digest if complete else shard.footer, complete)


@cache
def _validate(file: Path, stamp: tuple[int, ...], recorded: str, complete: bool) -> None:
    if complete:
        validate_digest(file, recorded, REMEDY)
    elif footer_digest(file) != recorded:
        raise DamagedFileError(
            f"{file} ends with another footer than was written: it was damaged or replaced. {REMEDY}"
        )


def _stamp(file: Path) -> tuple[int, ...]:
    """Changes when a file is written again, or another one takes its name."""
    facts = file.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


class _Sink:
    """A file that a writer of Parquet writes to: where a page cannot be written, Arrow 26 would end the process."""

    closed = False

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb")
        self._error: OSError | None = None

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()
        self.check()

    def write(self, content: Any) -> int:
        if self._error is None:
            try:
                self._file.write(content)
            except OSError as error:
                self._error = error
        return memoryview(content).nbytes

    def flush(self) -> None:
        pass

    def check(self) -> None:
        """Raises the error of the first write that failed."""
        if self._error is not None:
            raise self._error


def merged_tables(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The tables, small ones put together until they have so many bytes."""
    parts: list[pa.Table] = []
    for table in tables:
        parts.append(table)
        if sum(part.nbytes for part in parts) >= size:
            yield pa.concat_tables(parts)
            parts = []
    if parts:
        yield pa.concat_tables(parts)


class ParquetShard:
    """An open file, of which some columns are read. It holds one row group at a time."""

    def __init__(self, file: Path, features: Features) -> None:
        with reading(file, REMEDY):
            self._file = pq.ParquetFile(file.absolute(), page_checksum_verification=True)
        self._path, self._features = file, features
        self._columns = list(features)
        groups = self._file.metadata
        self._starts = [0]
        for number in range(groups.num_row_groups):
            self._starts.append(self._starts[-1] + groups.row_group(number).num_rows)
        self._group, self._arrays = None, []
        self.num_rows: int = self._starts[-1]

    def read(self, start: int, stop: int) -> list[list[Any]]:
        """Rows `[start, stop)` as Python values, a list per column."""
        out: list[list] = [[] for _ in self._columns]
        while start < stop:
            group = bisect_right(self._starts, start) - 1
            self._load(group)
            first = self._starts[group]
            end = min(stop, self._starts[group + 1])
            for values, array in zip(out, self._arrays, strict=True):
                values.extend(array.slice(start - first, end - start).to_pylist())
            start = end
        return out

    def _load(self, group: int) -> None:
        if group == self._group:
            return
        self._arrays = []  # the last group goes before the next one comes
        with reading(self._path, REMEDY):
            table = self._file.read_row_group(group, columns=self._columns, use_threads=False)
        validate_files(files_in(table, self._features), [self._path.parent], self._path)
        self._arrays = [table.column(name).combine_chunks() for name in self._columns]
        self._group = group

    def close(self) -> None:
        """Closes it."""
        self._arrays = []
        self._file.close()
