"""Row numbers: their type, and the data set's own order without an array of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_MOST_INT32 = 1 << 31
_CHUNK = 1 << 18
"""Rows that are looked at together, so that no array of all of them is made on the way."""


def row_type(num_rows: int) -> np.dtype:
    """The type of row numbers: int32 up to 2^31 rows, int64 above."""
    return np.dtype(np.int32 if num_rows <= _MOST_INT32 else np.int64)


def chunks_of(count: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of some hundred thousand numbers after the other, up to `count`."""
    for start in range(0, count, _CHUNK):
        yield start, min(start + _CHUNK, count)


def bisect(below: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The first number of each range `[low, high)` that is not below something, else its end; int64.

    Args:
        below: whether numbers, one of each range, are; in a range those that are come first. A number may be its
            range's end, and what is said of it does not count.
        low: the ranges' starts.
        high: their ends.
    """
    while (low < high).any():  # a binary search in each range at once
        middle = (low + high) // 2
        left = (low < high) & below(middle)
        low, high = np.where(left, middle + 1, low), np.where(left, high, middle)
    return low


class FileOrder:
    """The data set's own order, as `np.arange(num_rows)` has it, without the memory.

    Args:
        num_rows: rows of the data set.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.dtype: np.dtype = row_type(num_rows)

    @property
    def shape(self) -> tuple[int]:
        return (self.num_rows,)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, positions: Any) -> Any:
        if isinstance(positions, slice):
            start, stop, step = positions.indices(self.num_rows)
            return FileOrder(stop) if (start, step) == (0, 1) else np.arange(start, stop, step, dtype=self.dtype)
        if isinstance(positions, np.ndarray) and positions.dtype.kind == "b":
            return np.flatnonzero(positions).astype(self.dtype)
        return np.asarray(positions)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.arange(self.num_rows, dtype=dtype or self.dtype)

    def tolist(self) -> list[int]:
        """Row numbers."""
        return list(range(self.num_rows))


def is_file_order(order: np.ndarray | FileOrder, num_rows: int) -> bool:
    """Whether an order has all rows, one after the other."""
    return len(order) == num_rows and (
        isinstance(order, FileOrder)
        or all(np.array_equal(order[start:stop], np.arange(start, stop)) for start, stop in chunks_of(num_rows))
    )
