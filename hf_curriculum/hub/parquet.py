"""The splits of a data set as Parquet files that stand on their own: pictures inside, features with provenance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from datasets import Dataset
from datasets.features.features import require_storage_embed
from datasets.table import embed_table_storage

from hf_curriculum.ordering.bucketed.parquet_shards import write_parquet

_CHUNK, _CHUNK_OF_FILES = 1 << 12, 1 << 8


def write_split(dataset: Dataset, folder: Path, split: str, shard_bytes: int) -> list[Path]:
    """Writes one split as `SPLIT-00000-of-00002.parquet`, a bounded number of rows at a time.

    The same data gives the same bytes, so that a file which is on the Hub already is not sent again.

    Args:
        dataset: the split.
        folder: where to.
        split: its name.
        shard_bytes: size of a file, about, before compression.
    """
    folder.mkdir(parents=True, exist_ok=True)
    num_rows = len(dataset)
    sample = next(_tables(dataset, 0, min(num_rows, _CHUNK_OF_FILES)), None)
    size = sample.nbytes / sample.num_rows * num_rows if sample is not None else 0
    num_shards = max(1, min(num_rows, -(-int(size) // shard_bytes)))
    files = []
    for shard in range(num_shards):
        start, stop = num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards
        file = folder / f"{split}-{shard:05d}-of-{num_shards:05d}.parquet"
        write_parquet(_tables(dataset, start, stop), file, dataset.features.arrow_schema)
        files.append(file)
    return files


def _tables(dataset: Dataset, start: int, stop: int) -> Iterator[pa.Table]:
    rows, schema = dataset.with_format("arrow"), dataset.features.arrow_schema
    has_files = any(map(require_storage_embed, dataset.features.values()))
    step = _CHUNK_OF_FILES if has_files else _CHUNK
    for first in range(start, stop, step):
        table = rows[first : min(first + step, stop)].replace_schema_metadata(schema.metadata)
        yield embed_table_storage(table) if has_files else table
