"""Memory-mapped files that do not fill the memory of the process that reads them."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_MAPS = Path("/proc/self/maps")


def release_pages(files: Iterable[str | Path]) -> int:
    """Takes the pages of memory-mapped files out of this process's memory; a later look reads them anew.

    A mapped file costs what has been looked at, and a pass over a corpus looks at all of it. Only mappings of these
    files that cannot be written are touched, so nothing is lost, and the kernel's own cache keeps the pages as long as
    there is room. On systems without `/proc` and `madvise` nothing happens: the kernel decides there.

    Args:
        files: mapped files.

    Returns:
        Bytes of the mappings that were let go, whether they had been looked at or not.
    """
    if not (sys.platform == "linux" and _MAPS.is_file()):
        return 0
    wanted = {os.path.realpath(file) for file in files}
    library = ctypes.CDLL(None, use_errno=True)
    released = 0
    for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        span, access, _, _, _, *name = line.split(maxsplit=5)
        if not name or name[0] not in wanted or "w" in access:
            continue
        start, stop = (int(end, 16) for end in span.split("-"))
        if library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED) == 0:
            released += stop - start
    return released


class Releasing:
    """A transform of a data set that changes nothing and lets mapped files go after so many rows.

    `dataset.with_transform(Releasing(files))` makes any way of reading it, in any worker process, cost little memory.
    A random row brings up to 64 KB around it into memory, so the most that accumulates is 64 KB times `every`.

    Args:
        files: the data set's Arrow files.
        every: rows between two releases.

    Example:
        >>> Releasing(["corpus.arrow"])({"caption": ["a line"]})
        {'caption': ['a line']}
    """

    is_random = False
    """Rows come out the same every time."""

    def __init__(self, files: Iterable[str | Path], every: int = 256) -> None:
        self.files, self.every = tuple(str(file) for file in files), every
        self._rows = 0

    def __call__(self, batch: dict[str, list]) -> dict[str, list]:
        self._rows += len(next(iter(batch.values()), ()))
        if self._rows >= self.every:
            self._rows = 0
            release_pages(self.files)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "every": self.every}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)
