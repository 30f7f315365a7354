"""Parquet shards: written in small row groups, so that a stretch of rows is read without its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_GROUP_BYTES = 1 << 20


def write_parquet(tables: Iterable[pa.Table], file: Path, schema: pa.Schema) -> None:
    """Writes tables one after the other into one file, in row groups of about a megabyte.

    Args:
        tables: of this schema; each is let go before the next is asked for.
        file: where to write.
        schema: with the features in its metadata; also what a file without rows holds.
    """
    with pq.ParquetWriter(file, schema) as writer:
        for table in tables:
            rows = max(1, min(table.num_rows, table.num_rows * _GROUP_BYTES // max(1, table.nbytes)))
            writer.write_table(table, row_group_size=rows)


class ParquetShard:
    """An open shard. It holds one row group at a time.

    Args:
        file: the shard.
        columns: which to read, in this order.
    """

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self._file = pq.ParquetFile(file)
        self._columns = list(columns)
        groups = self._file.metadata
        self._starts = [0]
        for number in range(groups.num_row_groups):
            self._starts.append(self._starts[-1] + groups.row_group(number).num_rows)
        self._group, self._arrays = -1, []
        self.groups_read = 0

    @property
    def num_rows(self) -> int:
        """Examples in the file."""
        return self._starts[-1]

    def read(self, start: int, stop: int) -> list[list]:
        """Rows `start … stop − 1` as Python values, a list per column."""
        out: list[list] = [[] for _ in self._columns]
        group = max(self._group, 0)
        while start < stop:
            while not self._starts[group] <= start < self._starts[group + 1]:
                group = group + 1 if start >= self._starts[group] else 0
            self._load(group)
            first = self._starts[group]
            behind = min(stop, self._starts[group + 1])
            for values, array in zip(out, self._arrays, strict=True):
                values.extend(array.slice(start - first, behind - start).to_pylist())
            start = behind
        return out

    def _load(self, group: int) -> None:
        if group == self._group:
            return
        self._arrays = []  # the last group goes before the next one comes
        table = self._file.read_row_group(group, columns=self._columns, use_threads=False)
        self._arrays = [table.column(name).combine_chunks() for name in self._columns]
        self._group = group
        self.groups_read += 1

    def close(self) -> None:
        """Closes the file."""
        self._arrays = []
        self._file.close()
