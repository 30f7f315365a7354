"""Buckets of a few captions, on a disk and behind an address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from small_buckets import written


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three buckets of 20 captions, in a folder."""
    return written(tmp_path_factory.mktemp("buckets") / "out")


@pytest.fixture
def memory(buckets: Path) -> Iterator[str]:
    """The address of a copy of them in the file system of `fsspec` in memory."""
    files = fsspec.filesystem("memory")
    files.put(str(buckets), "/edges/buckets", recursive=True)
    yield "memory://edges/buckets"
    files.rm("/edges", recursive=True)
