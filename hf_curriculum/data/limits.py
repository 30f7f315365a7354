"""What data that others wrote may unfold to: a small file must not fill the memory or the disk of whoever opens it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

MOST_COLUMNS = 25_000
"""Columns of a table, and fields of its rows: `datasets` copies all of them at each step."""
MOST_TEXT = 4 << 30
"""Bytes of a text file that is read as a whole, into objects that take several times as much."""
MOST_UNPACKED, MOST_RATIO = 64 << 20, 100
"""A packed file may unfold to the first, in bytes, or to this many times its own size if that is more."""
_MOST_COUNTED = 64 << 20  # bytes of a file whose repeated values are counted, for which they are read
_WIDTHS = {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Physical type of Parquet → bytes of a value in memory, of texts those of its place."""


def validate_unpacked(path: str | Path, packed: int, unpacked: float) -> None:
    """Raises a `ValueError` for a file of `packed` bytes that unfolds to too many."""
    if unpacked > max(MOST_UNPACKED, MOST_RATIO * packed):
        raise ValueError(
            f"{packed:,} bytes of {path} unfold to {unpacked:,.0f} or more, over {MOST_RATIO} times as many: no "
            "usual data does, and it could fill the memory. If you trust it, unpack it, or write it again, in row "
            "groups of fewer rows and without compression."
        )


def validate_columns(count: int, source: object) -> None:
    """Raises a `ValueError` for a table of too many columns."""
    if count > MOST_COLUMNS:
        raise ValueError(
            f"{source} has {count:,} columns, and at most {MOST_COLUMNS:,} are read, because each takes time at every "
            "step. Leave out those that are not needed, or store numbers that belong together as a list in one column."
        )


class BoundedGzip(gzip.GzipFile):
    """A gzipped file, opened for reading, that ends in a `ValueError` where it unfolds to too much."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._path = path

    def read1(self, size: int = -1) -> bytes:
        """As of any file."""
        content = super().read1(size)
        if (unpacked := self.tell()) > MOST_UNPACKED:  # of what was read so far, to end early
            validate_unpacked(self._path, self.fileobj.tell(), unpacked)
        return content

    def read(self, size: int | None = -1) -> bytes:
        """As of any file; all of it is read a piece at a time."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read1(1 << 20), b""))
        return super().read(size)


def validate_tables(files: Iterable[Path]) -> None:
    """Raises a `ValueError` for files of Parquet or Arrow with too many columns, or that unfold to too much.

    A file that cannot be read at all is left to its reader.
    """
    for file in files:
        size = file.stat().st_size
        try:
            if file.suffix == ".parquet":
                metadata = pq.read_metadata(file.absolute())
                validate_columns(metadata.num_columns, file)
                validate_unpacked(file, size, sum(_unpacked_groups(file, metadata, size)))
            else:
                validate_unpacked(file, size, sum(_unpacked_batches(file)))
        except (pa.ArrowException, OSError, struct.error):
            continue


def _unpacked_groups(file: Path, metadata: pq.FileMetaData, size: int) -> Iterator[float]:
    """Bytes of each row group of Parquet in memory, at least; those of values that repeat are counted."""
    for number in range(metadata.num_row_groups):
        group, repeated = metadata.row_group(number), []
        for place in range(group.num_columns):
            column = group.column(place)
            places = column.num_values * _WIDTHS.get(column.physical_type, 4)
            yield max(column.total_uncompressed_size, places)
            if column.has_dictionary_page and column.num_values * column.total_uncompressed_size > MOST_UNPACKED:
                repeated.append(column.path_in_schema)
        if repeated and size <= _MOST_COUNTED:
            yield from _repeated(file, number, repeated)


def _repeated(file: Path, group: int, columns: list[str]) -> Iterator[float]:
    """Bytes of the texts of a row group when each value that stands in a dictionary is written out."""
    with pq.ParquetFile(file.absolute(), read_dictionary=columns) as opened:
        table = opened.read_row_group(group, columns=columns)
    left: list[Any] = [chunk for column in table.columns for chunk in column.chunks]
    while left:
        array = left.pop()
        if pa.types.is_struct(array.type):
            left += array.flatten()
        elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            left.append(array.flatten())
        elif pa.types.is_dictionary(array.type) and not pa.types.is_primitive(array.type.value_type):
            lengths = pc.binary_length(array.dictionary)
            yield float(pc.sum(lengths.take(array.indices)).as_py() or 0)


def _unpacked_batches(file: Path) -> Iterator[int]:
    """Bytes that the compressed buffers of an Arrow file say they unfold to, as its messages have them."""
    with pa.memory_map(str(file.absolute())) as source:
        if source.read(6) == b"ARROW1":
            source.seek(8)
        else:
            source.seek(0)
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.body is not None:
                yield from _unpacked_buffers(message.metadata.to_pybytes(), message.body, message.type)


def _unpacked_buffers(header: bytes, body: pa.Buffer, kind: str) -> Iterator[int]:
    """Bytes of the buffers of a message, which stand in the first eight of each that is compressed."""

    def field(table: int, number: int) -> int | None:
        """Where a field of a table of FlatBuffers stands."""
        places = table - struct.unpack_from("<i", header, table)[0]
        at = 4 + 2 * number
        length = struct.unpack_from("<H", header, places)[0]
        offset = struct.unpack_from("<H", header, places + at)[0] if at < length else 0
        return table + offset if offset else None

    def follow(place: int) -> int:
        return place + struct.unpack_from("<I", header, place)[0]

    batch = field(follow(0), 2)
    if batch is not None and kind == "dictionary":
        batch = field(follow(batch), 1)
    if batch is None:
        return
    buffers, compression = field(follow(batch), 2), field(follow(batch), 3)
    if buffers is None or compression is None:
        return
    first = follow(buffers)
    for number in range(struct.unpack_from("<I", header, first)[0]):
        start, length = struct.unpack_from("<qq", header, first + 4 + 16 * number)
        if length >= 8:
            yield max(0, struct.unpack("<q", body.slice(start, 8).to_pybytes())[0])
