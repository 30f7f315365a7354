"""What `score_shards` wrote, read back: a folder with a small Parquet file of scores for each shard of a crawl."""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value
from xxhash import xxh3_64_intdigest

from hf_curriculum.config import digest, parse_json
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.text import cached_arrow
from hf_curriculum.files import read_json, reading
from hf_curriculum.provenance import ScoreProvenance

logger: logging.Logger = logging.getLogger(__name__)

MANIFEST = "shards.json"
"""Says which shards are scored in a folder, and how."""
SHARD, KEY, UID = "shard", "key", "uid"
"""The columns that name a pair: its shard, and its place there; or the name that DataComp gives it everywhere."""
MARK = b"hf_curriculum_shard"
"""What is said of a shard in the metadata of its file of scores."""
CHECKED = "checked_"
"""Begins the names of the columns with `checksums` of what was scored."""
_SCORES = "scores"
_REMEDY = "Delete it and run `score_shards` again: this shard alone is scored anew."


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """`shards.json`: how scores were made, and of which shards."""
    file = Path(folder) / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. `score_shards` writes it.")
    status = file.stat()
    return dict(_manifest(file.absolute(), status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=4)  # it names every shard, and is asked for with each of them
def _manifest(file: Path, changed: int, size: int) -> dict[str, Any]:
    found = read_json(file, "Delete the folder, and score again.", ["format", "scores", "keep", "checked", "shards"])
    validate_inside([os.path.join(file.parent, name) for name in found["shards"]], [file.parent], file)
    return found


def manifest_digest(manifest: dict[str, Any]) -> str:
    """Identifies the way in which scores were made, whatever the shards."""
    return digest(json.dumps({name: value for name, value in manifest.items() if name != "shards"}, sort_keys=True))


def stem_of(shard: str) -> str:
    """What the files of a shard are called by: its name without the ending."""
    return posixpath.splitext(shard)[0] if shard.endswith((".tar", ".parquet")) else shard


def score_file(folder: str | Path, shard: str) -> Path:
    """Where the scores of a shard are."""
    return Path(folder, _SCORES, f"{stem_of(shard)}.parquet")


def done_shards(folder: str | Path) -> set[str]:
    """The stems of the shards that have scores."""
    root, ending = Path(folder, _SCORES), ".parquet"
    found = set()
    for place, _, names in os.walk(root):
        within = Path(place).relative_to(root).as_posix()
        prefix = "" if within == "." else f"{within}/"
        found |= {prefix + name.removesuffix(ending) for name in names if name.endswith(ending) and name[0] != "."}
    return found


def finished_shards(folder: str | Path) -> list[str]:
    """The shards of a folder in order, all of which have scores; a `ValueError` if some have none."""
    shards, done = list(read_manifest(folder)["shards"]), done_shards(folder)
    if missing := [shard for shard in shards if stem_of(shard) not in done]:
        raise ValueError(
            f"{folder} is not complete: {len(missing):,} of {len(shards):,} shards have no scores, {missing[0]} for "
            "example. Run the command that made it again; `hf-curriculum score --status` says how far it is."
        )
    return shards


def read_shard_scores(folder: str | Path, shard: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The scores of one shard, in its order, with `key` and the columns that were kept.

    Raises:
        FileNotFoundError: it has none.
        ValueError: the file is damaged, or of another run.
    """
    file = score_file(folder, shard)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: the shard {shard} is not scored yet. Run `score_shards`.")
    validate_inside([str(file.absolute())], [folder], folder)
    with reading(file, _REMEDY):
        opened = pq.ParquetFile(file.absolute(), page_checksum_verification=True)
        about = parse_json((opened.schema_arrow.metadata or {}).get(MARK, b"{}"))
        table = opened.read(None if columns is None else list(columns), use_threads=False)
    wanted = {"shard": shard, "run": manifest_digest(read_manifest(folder)), "rows": table.num_rows}
    if any(about.get(name) != value for name, value in wanted.items()):
        raise ValueError(f"{file} does not belong here: it says {about}, and {wanted} is expected. {_REMEDY}")
    return table


def about_shard(folder: str | Path, shard: str) -> dict[str, Any]:
    """What is said of a shard where its scores are: its name, bytes, digest and rows."""
    file = score_file(folder, shard)
    with reading(file, _REMEDY):
        return parse_json((pq.read_schema(file.absolute()).metadata or {})[MARK])


def checksums(texts: Iterable[str | None]) -> pa.Array:
    """32 bits of each text, by which rows are known that no longer have what was scored."""
    contents = (None if text is None else text.encode("utf-8", "surrogatepass") for text in texts)
    return pa.array([None if each is None else xxh3_64_intdigest(each) & 0xFFFFFFFF for each in contents], pa.uint32())


def load_scored_shards(folder: str | Path, checked: bool = False) -> Dataset:
    """The scores of all shards as one data set: `shard`, `key`, the columns that were kept, and the scores.

    It is written once to the cache of `datasets`, and memory-mapped; images are not read. `checked` adds the
    `checksums` of what was scored.

    Raises:
        FileNotFoundError: it is no folder of `score_shards`.
        ValueError: shards have no scores yet, or a file is damaged.
    """
    manifest, shards = read_manifest(folder), finished_shards(folder)
    scores = {name: ScoreProvenance(**made) for name, made in manifest["scores"].items()}
    texts = {name: Value("string") for name in (SHARD, KEY, *manifest["keep"])}
    sums = {CHECKED + name: Value("uint32") for name in manifest["checked"] if checked}
    numbers = {name: Value("float32", id=made.to_json()) for name, made in scores.items()}
    schema = Features({**texts, **sums, **numbers}).arrow_schema

    def batches() -> Iterator[pa.RecordBatch]:
        for shard in shards:
            table = read_shard_scores(folder, shard)
            table = table.add_column(0, SHARD, pa.array([shard]).take(pa.array(np.zeros(len(table), np.int64))))
            yield from table.select(schema.names).cast(schema).combine_chunks().to_batches()

    stamps = [(status := score_file(folder, shard).stat()).st_size * 31 + status.st_mtime_ns for shard in shards]
    facts = ["scored shards", 1, manifest_digest(manifest), checked, shards, digest(np.array(stamps, np.int64))]
    data = cached_arrow(facts, batches, schema)
    if UID in data.column_names:
        _warn_of_doubled(data)
    return data


def _warn_of_doubled(data: Dataset) -> None:
    uids = data.data.column(UID)
    doubled = len(uids) - uids.null_count - pc.count_distinct(uids, mode="only_valid").as_py()
    if doubled:
        logger.warning(
            "%d pairs have a `uid` that stands before already: they are in the crawl twice, and count twice.", doubled
        )
