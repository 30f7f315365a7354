"""Arrow files that are made once, in the cache of `datasets`, and read without filling the memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import datasets
import pyarrow as pa
from datasets import Dataset

from hf_curriculum.data.text_pages import Releasing, release_pages


def cached_arrow(
    facts: Iterable[object], batches: Callable[[], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> Dataset:
    """The data set of these batches, memory-mapped; it is made unless it is there already.

    Args:
        facts: what its content follows from; other facts make another file.
        batches: makes the content, a batch of rows at a time.
        schema: of the batches.

    Returns:
        A data set whose reading costs a few tens of megabytes, however large it is (see `Releasing`).
    """
    digest = hashlib.blake2b(repr(list(facts)).encode(), digest_size=12).hexdigest()
    file = Path(datasets.config.HF_DATASETS_CACHE) / "hf_curriculum" / "text" / f"{digest}.arrow"
    if not file.is_file():
        _write(file, batches(), schema)
    dataset = Dataset.from_file(str(file)).with_transform(Releasing([file]))
    release_pages([file])  # opening it looked at the beginning of every batch
    return dataset


def _write(file: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Whole or not at all, also when several processes write the same file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
