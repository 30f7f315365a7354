"""Rows of a data set, some of them several times, with columns of their own: nothing that was there is copied."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features
from datasets.features.features import FeatureType
from datasets.fingerprint import Hasher
from datasets.table import InMemoryTable, Table, TableBlock

logger: logging.Logger = logging.getLogger(__name__)

_FEW = 4096  # rows up to which single ones are looked up, which copies less than a take over all chunks
_BLOCK = 1 << 20


class RepeatedRows(TableBlock):
    """A table that has rows of another one by number, as often as they are named, and columns of its own.

    Only the numbers and the own columns take memory. Rows are put together when they are read; what asks for whole
    columns at once gets copies.

    Args:
        base: the table that the rows are of.
        rows: row numbers, shape (rows,).
        own: further columns, with a row for each of `rows`.
        schema: order and metadata of the columns; by default those of `base` come first.
    """

    def __init__(self, base: Table, rows: np.ndarray, own: pa.Table, schema: pa.Schema | None = None) -> None:
        self.base = base
        self.rows = rows
        self.own = own
        self._schema = pa.schema([*base.schema, *own.schema], base.schema.metadata) if schema is None else schema

    def __reduce__(self) -> tuple[Any, ...]:
        return RepeatedRows, (self.base, self.rows, self.own, self._schema)

    def __deepcopy__(self, memo: dict[int, Any]) -> RepeatedRows:
        return RepeatedRows(self.base, self.rows, self.own, self._schema)

    @property
    def table(self) -> pa.Table:
        """All of it, copied."""
        return self.fast_slice()

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def column_names(self) -> list[str]:
        return self._schema.names

    @property
    def num_columns(self) -> int:
        return len(self._schema)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.num_columns

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers and of the own columns."""
        return self.rows.nbytes + self.own.nbytes

    def __len__(self) -> int:
        return self.num_rows

    def stored(self, name: str) -> tuple[pa.ChunkedArray, np.ndarray | None]:
        """A column as it is stored, and which of its values the rows have; None: each in turn."""
        if name in self.own.column_names:
            return self.own.column(name), None
        return self.base.column(name), self.rows

    def column(self, i: int | str) -> pa.ChunkedArray:
        values, rows = self.stored(self._schema.names[i] if isinstance(i, int) else i)
        if rows is None:
            return values
        # In blocks: one array of text holds 2 GB at most.
        parts = [values.take(pa.array(rows[start : start + _BLOCK])) for start in range(0, len(rows), _BLOCK)]
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], values.type)

    def __getitem__(self, i: int | str) -> pa.ChunkedArray:
        return self.column(i)

    def fast_gather(self, indices: Sequence[int] | np.ndarray) -> pa.Table:
        at = np.asarray(indices, np.int64)
        if len(at) > _FEW:
            part = RepeatedRows(self.base, self.rows[at], self.own.take(pa.array(at)), self._schema)
            return pa.table([part.column(name) for name in self._schema.names], schema=self._schema)
        columns = dict(zip(self.own.column_names, self.own.take(pa.array(at)).columns, strict=True))
        if self.base.num_columns:
            found = self.base.fast_gather(self.rows[at]) if len(at) else self.base.fast_slice(0, 0)
            columns.update(zip(found.column_names, found.columns, strict=True))
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)

    def fast_slice(self, offset: int = 0, length: int | None = None) -> pa.Table:
        stop = self.num_rows if length is None else min(offset + length, self.num_rows)
        return self.fast_gather(np.arange(offset, max(offset, stop)))

    def slice(self, offset: int = 0, length: int | None = None) -> RepeatedRows:
        part = slice(offset, None if length is None else offset + length)
        return RepeatedRows(self.base, self.rows[part], self.own.slice(offset, length), self._schema)

    def select(self, columns: Sequence[str | int]) -> RepeatedRows:
        names = [self._schema.names[name] if isinstance(name, int) else name for name in columns]
        own = self.own.select([name for name in names if name in self.own.column_names])
        base = self.base.select([name for name in names if name in self.base.column_names])
        schema = pa.schema([self._schema.field(name) for name in names], self._schema.metadata)
        return RepeatedRows(base, self.rows, own, schema)

    def drop(self, columns: str | Sequence[str]) -> RepeatedRows:
        dropped = [columns] if isinstance(columns, str) else columns
        return self.select([name for name in self._schema.names if name not in dropped])

    def rename_columns(self, names: Sequence[str]) -> RepeatedRows:
        new = dict(zip(self._schema.names, names, strict=True))
        base = self.base.rename_columns([new[name] for name in self.base.column_names])
        own = self.own.rename_columns([new[name] for name in self.own.column_names])
        schema = pa.schema([field.with_name(new[field.name]) for field in self._schema], self._schema.metadata)
        return RepeatedRows(base, self.rows, own, schema)

    def replace_schema_metadata(self, metadata: Mapping[Any, Any] | None = None) -> RepeatedRows:
        return RepeatedRows(self.base, self.rows, self.own, self._schema.with_metadata(metadata))

    def cast(self, target_schema: pa.Schema, *args: Any, **kwargs: Any) -> RepeatedRows:
        parts = [pa.schema([target_schema.field(name) for name in t.column_names]) for t in (self.base, self.own)]
        own = InMemoryTable(self.own).cast(parts[1], *args, **kwargs).table
        return RepeatedRows(self.base.cast(parts[0], *args, **kwargs), self.rows, own, target_schema)

    def with_columns(self, columns: pa.Table) -> RepeatedRows:
        """The same rows with further columns, one row for each."""
        own = self.own
        for name, values in zip(columns.column_names, columns.columns, strict=True):
            own = own.append_column(columns.schema.field(name), values)
        schema = pa.schema([*self._schema, *columns.schema], self._schema.metadata)
        return RepeatedRows(self.base, self.rows, own, schema)

    def flatten(self, *args: Any, **kwargs: Any) -> InMemoryTable:
        return InMemoryTable(self.table.flatten(*args, **kwargs))

    def filter(self, *args: Any, **kwargs: Any) -> InMemoryTable:
        return InMemoryTable(self.table.filter(*args, **kwargs))

    def combine_chunks(self, *args: Any, **kwargs: Any) -> InMemoryTable:
        return InMemoryTable(self.table.combine_chunks(*args, **kwargs))


def repeat_rows(
    dataset: Dataset, rows: np.ndarray, columns: Mapping[str, pa.Array], features: Mapping[str, FeatureType]
) -> Dataset:
    """Rows of a data set by number, as often as they are named, with columns of their own.

    What the data set holds (pictures, captions, scores) is referred to, not copied.
    """
    taken = [name for name in columns if name in dataset.column_names]
    wrong = {name: len(values) for name, values in columns.items() if len(values) != len(rows)}
    if taken or wrong:
        why = f"already has {taken}" if taken else f"would get {len(rows):,} rows, and columns with {wrong}"
        raise ValueError(f"The data {why}. Each new column has a value per row and a name of its own: rename it.")
    shown = table_rows(dataset)
    rows = rows if shown is None else shown[rows]
    base = dataset.data
    if isinstance(base, RepeatedRows):
        raise ValueError(
            "These rows are views of other rows already: repeating them again would lose track of their own columns. "
            "Repeat the rows of the data set that they were made from."
        )
    rows = rows.astype(np.int32 if base.num_rows < 1 << 31 else np.int64)
    new = Features({name: features[name] for name in columns})
    own = pa.table(dict(columns), schema=new.arrow_schema)
    info = dataset.info.copy()
    info.features = Features({**dataset.features, **new})
    made = RepeatedRows(base, rows, own.replace_schema_metadata(None))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, own.schema) as stream:
        stream.write_table(own)
    key = Hasher.hash([dataset._fingerprint, "repeated", rows.tobytes(), sink.getvalue().to_pybytes()])
    return Dataset(made.replace_schema_metadata(None), info=info, split=dataset.split, fingerprint=key)


def warn_of_transform(datasets: Iterable[Any]) -> None:
    """A warning where a data set has a transform, by which its rows look other than what is read here: the stored."""
    if any(getattr(dataset, "_format_type", None) == "custom" for dataset in datasets):
        logger.warning(
            "The data has a transform (`with_transform`, `set_transform`), which is not applied here: texts, images "
            "and ids are read as they are stored, and not as `data[0]` shows them. Where it changes them, apply it "
            "first: data.with_format(None).map(..., batched=True)."
        )


def stored_column(
    dataset: Dataset, name: str, indices: np.ndarray | None
) -> tuple[pa.ChunkedArray, np.ndarray | None]:
    """A column as its table stores it, and which of the values the data set's rows have; None: each in turn."""
    if not isinstance(dataset.data, RepeatedRows):
        return dataset.data.column(name), indices
    values, rows = dataset.data.stored(name)
    if rows is None or indices is None:
        return values, indices if rows is None else rows
    return values, rows[indices]


def base_rows(dataset: Dataset) -> np.ndarray:
    """The rows of the underlying table that a data set shows, in its order: equal numbers are the same row."""
    rows = dataset.data.rows if isinstance(dataset.data, RepeatedRows) else np.arange(dataset.data.num_rows)
    rows = rows.astype(np.int64, copy=False)
    shown = table_rows(dataset)
    return rows if shown is None else rows[shown]


def table_rows(dataset: Dataset) -> np.ndarray | None:
    """The rows of its table that a data set shows, int64 (rows,): `datasets` stores uint64, and takes int alone."""
    return None if dataset._indices is None else dataset._indices.column(0).to_numpy().astype(np.int64, copy=False)
