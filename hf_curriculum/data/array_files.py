"""Arrays in .npy files that grow while they are written, and are compared with what was written when they are read."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_hexdigest

from hf_curriculum.files import (
    DamagedFileError,
    append_digest,
    explained,
    growing_file,
    new_file,
    reading,
    special_file,
)

_BLOCK = 1 << 20


class ArrayWriter:
    """An .npy file to which rows are added. `flush` leaves a complete one, from whose `facts` another writer goes on.

    It is written by plain writes, which fail with an error where a disk is full: in a memory map a page that has no
    room ends the process.

    Args:
        path: the file.
        dtype: of its numbers.
        columns: the shape of a row.
        facts: of what is there already; what follows is cut off. Left out: nothing counts.
        remedy: what to do where something else is there than `facts` say.

    Raises:
        DamagedFileError: something else is there.
        ValueError: a link, FIFO or device of that name.
    """

    def __init__(
        self,
        path: Path,
        dtype: str,
        columns: Sequence[int] = (),
        facts: Mapping[str, Any] | None = None,
        remedy: str = "",
    ) -> None:
        self.path, self.dtype, self.columns = path, np.dtype(dtype), tuple(map(int, columns))
        self.rows: int = 0 if facts is None else facts["shape"][0]
        self._row_bytes = self.dtype.itemsize * math.prod(self.columns)
        self._state, self._start = xxh3_128(), len(self._header())
        with explained(path):
            self._file: BinaryIO = growing_file(path)
            if facts is not None:
                self._file.seek(self._start)
                left = self.rows * self._row_bytes
                while left and (block := self._file.read(min(left, _BLOCK))):
                    self._state.update(block)
                    left -= len(block)
                if self._state.hexdigest() != facts["digest"]:
                    raise other_content(path, remedy)
            self._file.truncate(self._end())
            self._file.seek(self._end())

    def _header(self) -> bytes:
        # numpy leaves room in the header for the number of rows to grow: it stays as long as it is.
        content = BytesIO()
        np.lib.format.write_array_header_1_0(
            content, {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.columns)}
        )
        return content.getvalue()

    def _end(self) -> int:
        return self._start + self.rows * self._row_bytes

    def append(self, values: np.ndarray) -> None:
        """Adds rows."""
        content = np.ascontiguousarray(values, self.dtype).data
        with explained(self.path):
            self._file.write(content)
        self._state.update(content)
        self.rows += len(values)

    def skip(self, rows: int) -> None:
        """Adds rows of zeros, which take no room on disk."""
        left = rows * self._row_bytes
        while left:
            size = min(left, _BLOCK)
            self._state.update(bytes(size))
            left -= size
        self.rows += rows
        with explained(self.path):
            self._file.seek(self._end())

    def read(self) -> np.ndarray:
        """All rows."""
        with explained(self.path):  # a seek writes what was appended
            self._file.seek(self._start)
            array = np.frombuffer(self._file.read(self.rows * self._row_bytes), self.dtype)
        return array.reshape(self.rows, *self.columns)

    def flush(self) -> None:
        """Writes all that was added to disk."""
        with explained(self.path):
            self._file.seek(0)
            self._file.write(self._header())
            self._file.truncate(self._end())
            self._file.seek(self._end())
            self._file.flush()
            os.fsync(self._file.fileno())

    @property
    def facts(self) -> dict[str, Any]:
        """What tells the array from another: `dtype`, `shape`, `digest`."""
        return {
            "dtype": self.dtype.str,
            "shape": [self.rows, *self.columns],
            "digest": self._state.hexdigest(),
        }

    def close(self) -> None:
        """Ends writing."""
        with explained(self.path):
            self._file.close()


class ArrayFile:
    """An .npy file that `ArrayWriter` wrote.

    Args:
        path: the file.
        facts: of the writer.
        remedy: what to do where something else is there.

    Attributes:
        array: the whole, memory-mapped; compare it first, by `validate`.

    Raises:
        DamagedFileError: it is missing, or no array of this type and shape.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], remedy: str) -> None:
        self.path, self._facts, self._remedy = path, facts, remedy
        if special_file(path):
            raise ValueError(f"{path} is a {special_file(path)}, not a file. {remedy}")
        if not path.exists():
            raise DamagedFileError(
                f"{path} does not exist, and what lies beside it was written with it: they are read together. {remedy}"
            )
        with reading(path, remedy):
            self.array: np.ndarray = np.load(path, mmap_mode="r")
        held = self.array.dtype.str, list(self.array.shape), self.array.flags.c_contiguous
        if held != (facts["dtype"], facts["shape"], True):
            raise DamagedFileError(
                f"{path} has the shape {self.array.shape} of {self.array.dtype}, and {tuple(facts['shape'])} of "
                f"{np.dtype(facts['dtype'])} was written. It was damaged, or belongs to other files. {remedy}"
            )
        self._offset: int = getattr(self.array, "offset", 0)
        self._file: BinaryIO | None = None

    def validate(self) -> np.ndarray:
        """The array, compared with what was written."""
        if xxh3_128_hexdigest(self.array) != self._facts["digest"]:
            raise other_content(self.path, self._remedy)
        return self.array

    def read_rows(self, start: int, target: np.ndarray) -> int:
        """Reads rows from `start` on into a contiguous array, and gives their `row_digest`, to be compared.

        A read, unlike a map, fetches many pages at once, and does not end the process where a file became shorter.
        """
        if self._file is None:
            self._file = open(self.path, "rb")  # noqa: SIM115
        at = self._offset + start * math.prod(target.shape[1:]) * target.itemsize
        if os.preadv(self._file.fileno(), [target], at) != target.nbytes:
            raise DamagedFileError(f"{self.path} has become shorter since it was opened. {self._remedy}")
        return row_digest(target)


def row_digest(rows: np.ndarray) -> int:
    """XXH3 (64 bits) of rows that are read together."""
    return xxh3_64_intdigest(np.ascontiguousarray(rows))


def other_content(path: Path, remedy: str, where: str = "") -> DamagedFileError:
    """The error for a file that was damaged or replaced."""
    return DamagedFileError(
        f"{path} holds something else than was written{where}: it was damaged, or belongs to other files. {remedy}"
    )


def save_cached(path: Path, array: np.ndarray) -> None:
    """Writes an array that `is_intact` compares before `np.load` reads it."""
    with new_file(path) as temporary:
        np.save(temporary, array)
        append_digest(temporary)
