"""What `score_shards` wrote, read back: a folder with a small Parquet file of scores for each shard of a crawl."""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from hf_curriculum.files import DamagedFileError, read_sealed, reading
from hf_curriculum.provenance import ScoreProvenance
from hf_curriculum.sealed_parquet import validate_sealed_parquet

logger: logging.Logger = logging.getLogger(__name__)

MANIFEST = "shards.json"
"""Says which shards are scored in a folder, and how."""
SHARD, KEY, UID = "shard", "key", "uid"
"""The columns that name a pair: its shard, and its place there; or the name that DataComp gives it everywhere."""
MARK = b"hf_curriculum_shard"
"""What is said of a shard in the metadata of its file of scores."""
CHECKED = "checked_"
"""Begins the names of the columns with `checksums` of what was scored."""
SCORES = "scores"
"""The folder with a file of scores for each shard."""
FITTED_VALUES = ".fitted"
"""The folder with what scorers have fitted."""
FAILED = ".failed"
"""The folder with a note for each shard that could not be read."""
_SEAL = "seal"
OF_SHARDS = ("shards", "dropped", "contents")
"""What a manifest says of shards: versions, why some were left out, and digests; the rest is how they are scored."""
_REMEDY = "Delete it and run `score_shards` again: this shard alone is scored anew."


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """`shards.json`: how scores were made, and of which shards."""
    file = Path(folder) / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. `score_shards` writes it.")
    status = file.stat()
    return dict(_manifest(file.absolute(), status.st_mtime_ns, status.st_size, status.st_ino))


@lru_cache(maxsize=4)  # it names every shard, and is asked for with each of them
def _manifest(file: Path, changed: int, size: int, number: int) -> dict[str, Any]:
    remedy = "Delete it, and run `score_shards` again: scores of shards that are as they were are kept."
    manifest = read_sealed(file, remedy, ["format", "scores", "keep", "checked", *OF_SHARDS])
    validate_inside([os.path.join(file.parent, name) for name in manifest["shards"]], [file.parent], file)
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Identifies the way in which scores were made, whatever the shards."""
    way = {name: value for name, value in manifest.items() if name not in OF_SHARDS}
    return digest(json.dumps(way, sort_keys=True))


def stem_of(shard: str) -> str:
    """What the files of a shard are called by: its name without the ending."""
    return posixpath.splitext(shard)[0] if shard.endswith((".tar", ".parquet")) else shard


def score_file(folder: str | Path, shard: str) -> Path:
    """Where the scores of a shard are."""
    return Path(folder, SCORES, f"{stem_of(shard)}.parquet")


def done_shards(folder: str | Path) -> set[str]:
    """The stems of the shards that have scores."""
    root, ending = Path(folder, SCORES), ".parquet"
    found = set()
    for place, _, names in os.walk(root):
        within = Path(place).relative_to(root).as_posix()
        prefix = "" if within == "." else f"{within}/"
        found |= {prefix + name.removesuffix(ending) for name in names if name.endswith(ending) and name[0] != "."}
    return found


def finished_shards(folder: str | Path) -> list[str]:
    """The shards of a folder in order, without dropped ones; a `ValueError` if some have no scores."""
    manifest, done = read_manifest(folder), done_shards(folder)
    dropped, count = manifest["dropped"], len(manifest["shards"])
    shards = [shard for shard in manifest["shards"] if shard not in dropped]
    if missing := [shard for shard in shards if stem_of(shard) not in done]:
        raise ValueError(
            f"{folder} is not complete: {len(missing):,} of {count:,} shards have no scores, {missing[0]} for "
            "example. Run the same `score_shards` again, as the command that made it does: finished shards are kept. "
            "`hf-curriculum score --status` says how far it is."
        )
    if dropped:
        name, why = next(iter(dropped.items()))
        logger.warning("%s goes without %d of %d shards, such as %s: %s", folder, len(dropped), count, name, why)
    return shards


def read_shard_scores(folder: str | Path, shard: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The scores of one shard, in its order, with `key` and the columns that were kept.

    Raises:
        FileNotFoundError: it has none.
        DamagedFileError: the file is damaged, or of another shard.
        ValueError: it was made in another way than the others.
    """
    file, opened, _ = _opened(folder, shard)
    validate_sealed_parquet(file, _REMEDY)
    with reading(file, _REMEDY):
        return opened.read(None if columns is None else list(columns), use_threads=False)


def verify_shard_scores(folder: str | Path, shard: str) -> dict[str, Any]:
    """Compares all scores of a shard with what was written; returns what is said of it, errors as above."""
    file, _, about = _opened(folder, shard)
    validate_sealed_parquet(file, _REMEDY)
    return about


def about_shard(folder: str | Path, shard: str) -> dict[str, Any]:
    """What is said of a shard where its scores are: its name, bytes, digest and rows; errors as above."""
    return _opened(folder, shard)[2]


def _opened(folder: str | Path, shard: str) -> tuple[Path, pq.ParquetFile, dict[str, Any]]:
    """The file of a shard's scores, and what it says of itself."""
    file, manifest = score_file(folder, shard), read_manifest(folder)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: the shard {shard} is not scored yet. Run `score_shards`.")
    validate_inside([str(file.absolute())], [folder], folder)
    with reading(file, _REMEDY):
        opened = pq.ParquetFile(file.absolute())
        about = parse_json(opened.schema_arrow.metadata[MARK])
        if about.pop(_SEAL) != digest(json.dumps(about)):
            raise DamagedFileError(f"{file} is damaged: its metadata is not what was written. {_REMEDY}")
    if about["run"] != manifest_digest(manifest):
        raise ValueError(
            f"{file} holds scores that were made in another way than {MANIFEST} beside them says. Give these scores a "
            "folder of their own, or delete that one."
        )
    facts = {"shard": shard, "rows": opened.metadata.num_rows}
    schema = score_features(manifest).arrow_schema.remove_metadata()
    if not opened.schema_arrow.remove_metadata().equals(schema) or any(about[name] != facts[name] for name in facts):
        raise DamagedFileError(f"{file} does not belong here: it says {about}, and {facts} is expected. {_REMEDY}")
    if about["digest"] != manifest["contents"].get(shard, about["digest"]):
        raise DamagedFileError(
            f"{file} holds scores of another content than {shard} had when all was scored: it was copied here, or is "
            f"an older one. {_REMEDY}"
        )
    return file, opened, about


def mark(about: Mapping[str, Any]) -> bytes:
    """What is said of a shard in the metadata of its file of scores, with a digest of it."""
    return json.dumps({**about, _SEAL: digest(json.dumps(about))}).encode()


def score_features(manifest: Mapping[str, Any], before: Sequence[str] = (), checked: bool = True) -> Features:
    """The columns of a file of scores, behind others of texts; with the `checksums` of what was scored, or without."""
    texts = {name: Value("string") for name in (*before, KEY, *manifest["keep"])}
    sums = {CHECKED + name: Value("uint32") for name in manifest["checked"] if checked}
    scores = {name: ScoreProvenance(**made).to_json() for name, made in manifest["scores"].items()}
    return Features({**texts, **sums, **{name: Value("float32", id=made) for name, made in scores.items()}})


def verify_scored_shards(folder: str | Path) -> None:
    """Reads all that `score_shards` has written.

    Raises:
        DamagedFileError: something was changed since.
        ValueError: shards have no scores.
    """
    folder, done = Path(folder), done_shards(folder)
    for shard in read_manifest(folder)["shards"]:
        if stem_of(shard) in done:
            verify_shard_scores(folder, shard)
    for file in (*folder.glob(f"{FITTED_VALUES}/*/fitted.json"), *folder.glob(f"{FAILED}/**/*.json")):
        read_sealed(file, "Delete it, and run `score_shards` again.")
    finished_shards(folder)


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
    schema = score_features(manifest, [SHARD], checked).arrow_schema

    def batches() -> Iterator[pa.RecordBatch]:
        for shard in shards:
            table = read_shard_scores(folder, shard)
            table = table.add_column(0, SHARD, pa.array([shard]).take(pa.array(np.zeros(len(table), np.int64))))
            yield from table.select(schema.names).cast(schema).combine_chunks().to_batches()

    with reading(folder, _REMEDY):
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
