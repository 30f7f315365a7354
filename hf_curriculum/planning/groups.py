"""Groups of examples, such as the nodes of an ontology: which rows belong to which, in one array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.planning.rows import bisect, chunks_of, is_file_order, row_type
from hf_curriculum.provenance import numeric_column, read_column, score_values


@dataclass(frozen=True, eq=False)
class Groups:
    """The rows of each group; a row may be in several groups, or in none.

    Args:
        names: of the groups, sorted; None: not read, and the groups are in the order of their first rows.
        starts: where each group's rows begin in `members`, and the end of the last; int64, shape (len(self) + 1,).
        members: row numbers, ascending within a group, int32 (int64 above 2^31 rows), shape (memberships,).
    """

    names: tuple[str, ...] | None
    starts: np.ndarray
    members: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Rows per group, int64."""
        return np.diff(self.starts)

    @cached_property
    def memberships(self) -> np.ndarray:
        """How many groups each row is in, up to the last row that is in any; as `add_up` has it."""
        return self._sums(np.ones(len(self), dtype=np.int64))

    def add_up(self, each: np.ndarray) -> np.ndarray:
        """The sum of a number of each group over the groups of each row; of the smallest unsigned type that does."""
        kept = self.__dict__.setdefault("_added", [np.zeros(0), np.zeros(0, np.uint8)])  # rounds ask for the same
        if not np.array_equal(each, kept[0]):
            kept[:] = each.copy(), self._sums(each)
        return kept[1]

    def _sums(self, each: np.ndarray) -> np.ndarray:
        size, total = int(self.members.max(initial=-1)) + 1, int(each @ self.sizes)
        for kind in (np.uint8, np.uint16, np.uint32):
            if each.max(initial=0) > np.iinfo(kind).max:
                continue
            found = np.zeros(size, dtype=kind)
            for start, stop in chunks_of(len(self.members)):
                first, end = np.searchsorted(self.starts, start, "right") - 1, np.searchsorted(self.starts, stop)
                inside = np.diff(np.clip(self.starts[first : end + 1], start, stop))
                np.add.at(found, self.members[start:stop], np.repeat(each[first:end].astype(kind), inside))
            if found.sum(dtype=np.int64) == total:  # else a sum was too large for the type, and lost some of it
                break
        return found

    def sizes_below(self, row: int) -> np.ndarray:
        """Rows per group below a row number, int64."""
        last = max(len(self.members) - 1, 0)
        return (
            bisect(lambda at: self.members[np.minimum(at, last)] < row, self.starts[:-1], self.starts[1:])
            - self.starts[:-1]
        )

    def rows(self, group: int) -> np.ndarray:
        """Row numbers of one group, a view."""
        return self.members[self.starts[group] : self.starts[group + 1]]

    def in_order(self, order: np.ndarray, num_rows: int) -> Groups:
        """The same groups with positions in an order in place of row numbers; rows that are not in it are left out.

        Args:
            order: row numbers.
            num_rows: rows of the data set.
        """
        if is_file_order(order, num_rows):
            return self
        kind = row_type(num_rows)
        positions = np.full(num_rows, -1, dtype=kind)
        positions[order] = np.arange(len(order), dtype=kind)
        group = np.repeat(np.arange(len(self), dtype=np.int64), self.sizes)
        there = positions[self.members]
        return _grouped(self.names, group[there >= 0], there[there >= 0], len(self), num_rows)

    def keep(self, wanted: np.ndarray) -> Groups:
        """The groups with these numbers, in this order."""
        sizes = self.sizes[wanted]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        kept = np.arange(starts[-1]) + np.repeat(self.starts[wanted] - starts[:-1], sizes)
        names = None if self.names is None else tuple(self.names[group] for group in wanted.tolist())
        return Groups(names, starts, self.members[kept])


def read_groups(dataset: Any, column: str, *, named: bool = True) -> Groups:
    """The groups named in a column of strings or numbers, or of lists of them.

    A row's null or empty list puts it in no group; a name that is repeated in a row's list counts once.

    Args:
        dataset: a `datasets.Dataset`, shuffled or filtered as it may be.
        column: the column.
        named: whether to keep the names, which take much memory where there is a group for every few rows.

    Raises:
        ValueError: the column is missing, holds something else, or names no group at all.

    Example:
        >>> from datasets import Dataset
        >>> groups = read_groups(Dataset.from_dict({"nodes": [["dog"], ["dog", "ball"], []]}), "nodes")
        >>> groups.names, groups.sizes.tolist(), groups.rows(1).tolist()
        (('ball', 'dog'), [1, 2], [0, 1])
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    require_columns(
        dataset.column_names, [column], reader="Batches from one group", remedy="need the groups of each row: add it."
    )
    table = dataset.with_format("arrow").select_columns([column])[:]
    values = table.column(column).combine_chunks()
    rows = np.arange(len(values), dtype=np.int64)
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        rows = pc.list_parent_indices(values).to_numpy().astype(np.int64)
        values = values.flatten()
    if not (
        pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_integer(values.type)
    ):
        raise ValueError(
            f"`{column}` holds {values.type}; groups are names or whole numbers, or lists of them. Batches are drawn "
            "from groups, so each row has to say which it belongs to."
        )
    coded = values.dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    there = np.isfinite(codes) if codes.dtype.kind == "f" else np.ones(len(codes), bool)
    codes, rows = codes[there].astype(np.int64), rows[there]
    if not len(codes):
        raise ValueError(f"`{column}` names no group in any of the {len(dataset):,} rows: no batch could be drawn.")
    names = None
    if named:
        labels = [str(value) for value in coded.dictionary.to_pylist()]
        order = sorted(range(len(labels)), key=labels.__getitem__)
        codes, names = np.argsort(order)[codes], tuple(labels[item] for item in order)
    return _grouped(names, codes, rows, len(coded.dictionary), len(dataset))


def _grouped(
    names: tuple[str, ...] | None, codes: np.ndarray, rows: np.ndarray, num_groups: int, num_rows: int
) -> Groups:
    """Groups of (code, row) memberships, those that are repeated once."""
    bits = num_rows.bit_length()
    if bits + num_groups.bit_length() > 63:
        raise ValueError(
            f"{num_groups:,} groups of {num_rows:,} rows were found, and a group and a row are to fit into 63 bits: "
            "some would be taken for others. Divide the data, and train on one part after the other."
        )
    # One integer per membership: sorting them sorts by group, then by row, and makes repetitions neighbours.
    keys = codes << bits
    keys |= rows
    keys.sort()
    fresh = np.append([True], keys[1:] != keys[:-1])
    keys = keys if fresh.all() else keys[fresh]
    starts = np.searchsorted(keys, np.arange(num_groups + 1, dtype=np.int64) << bits)
    keys &= (1 << bits) - 1
    return Groups(names, starts, keys.astype(row_type(num_rows), copy=False))


Kind = Literal["numbers", "score", "groups", "ids"]
"""What a rule reads of a column: one number per row; a score, one end of which is easy; the groups with their names;
or the groups without."""


def read_columns(dataset: Any, wanted: Mapping[str, Kind]) -> dict[str, np.ndarray | Groups]:
    """The columns that a curriculum needs beside the score.

    Args:
        dataset: a `datasets.Dataset`.
        wanted: column → its kind.

    Returns:
        Column → float32 of shape (len(dataset),), null as NaN; a score as it is stored; or `Groups`.

    Raises:
        ValueError: a column is missing or holds something else.
    """
    if wanted and not hasattr(dataset, "column_names"):
        raise ValueError(
            f"The training data is {kind_of(dataset)} without named columns, and the curriculum needs "
            f"{', '.join(f'`{name}`' for name in wanted)}. Pass a `datasets.Dataset`."
        )
    features = getattr(dataset, "features", None) or {}
    read: dict[str, np.ndarray | Groups] = {}
    for name, kind in wanted.items():
        if name == IMAGE_ID and isinstance(dataset, Dataset):
            validate_image_ids(dataset)
        if kind in ("groups", "ids"):
            read[name] = read_groups(dataset, name, named=kind == "groups")
        elif kind == "score":
            read[name] = numeric_column(dataset, name)
        elif getattr(features.get(name), "dtype", None) == "bool":
            read[name] = read_column(dataset, name).cast("float32").to_numpy(zero_copy_only=False)
        else:
            read[name] = score_values(dataset, name)
    return read
