"""`buckets.json`: what is in each bucket, which shards hold it, and how the buckets were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from datasets import Features

from hf_curriculum.config import digest
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.files import parse_sealed, reading, validate_digest, write_sealed
from hf_curriculum.planning.buckets import Cut
from hf_curriculum.planning.ranking import Easy

if TYPE_CHECKING:
    from hf_curriculum.remote import RemoteFolder

FILE_NAME = "buckets.json"
"""The index that `save_bucketed` writes beside the buckets."""

REMEDY = "Copy it again, or run `save_bucketed` again, or `bucket_shards`, with overwrite=True."

ShardFormat = Literal["parquet", "webdataset"]

FORMAT = 1
"""Version of the index, and of how buckets are written."""


@dataclass(frozen=True)
class Shard:
    """One file of a bucket.

    Args:
        file: its path, from the data set's folder.
        rows: examples in it.
        bytes: its size.
        digest: XXH3 of its content, 128 bits as hexadecimal digits.
        footer: the same of a Parquet file's footer alone, in which its name stands.
    """

    file: str
    rows: int
    bytes: int
    digest: str
    footer: str = ""


@dataclass(frozen=True)
class StoredBucket:
    """One bucket on disk.

    Args:
        rows: examples in it; 0 where one score spans more than a bucket.
        lowest: the lowest finite score in it, None if there is none.
        highest: the highest.
        shards: its files; each holds a random part of the bucket in random order.
    """

    rows: int
    lowest: float | None
    highest: float | None
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class BucketIndex:
    """What `save_bucketed` wrote.

    Args:
        score_column: the score that defines the buckets.
        easy: which end of it is easy.
        cut: into equal sizes by rank, or at thresholds by value.
        thresholds: the score at each inner threshold, easiest first, see `Buckets`; None among rows without a score.
        num_scored: examples with a score.
        num_unscored: rows without one, in the last bucket, or dropped.
        unscored: what was done with them.
        seed: key of the order within the buckets.
        format: of the shards.
        features: the columns and their types, provenance included, as `Features.to_dict` gives them.
        buckets: easiest first.
        quantiles: of the scores in each bucket, easiest first, at `quantile_positions`.
        run: digest of all that decided what was written; "" where another program did.

    Example:
        >>> index = BucketIndex.read("flickr30k-buckets")
        >>> index.sizes
        (7945, 7945, 7945, 7946)
    """

    score_column: str
    easy: Easy
    cut: Cut
    thresholds: tuple[float | None, ...]
    num_scored: int
    num_unscored: int
    unscored: str
    seed: int
    format: ShardFormat
    features: dict[str, Any]
    buckets: tuple[StoredBucket, ...]
    quantiles: tuple[tuple[float, ...], ...]
    run: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples per bucket."""
        return tuple(bucket.rows for bucket in self.buckets)

    @property
    def num_rows(self) -> int:
        """Examples in all buckets."""
        return sum(self.sizes)

    @cached_property
    def digest(self) -> str:
        """Identifies the whole content: another score, threshold, order or image gives another one."""
        content = {name: value for name, value in asdict(self).items() if name != "run"}
        return digest(json.dumps(content, sort_keys=True), size=16)

    def typed_features(self) -> Features:
        """The columns and their types."""
        return Features.from_dict(self.features)

    def write(self, folder: Path) -> None:
        """Writes `buckets.json`."""
        content = json.loads(json.dumps(asdict(self), allow_nan=False))
        write_sealed(folder / FILE_NAME, {"format_version": FORMAT, **content})

    @classmethod
    def read(cls, path: str | Path, storage_options: Mapping[str, Any] | None = None) -> BucketIndex:
        """Reads `buckets.json` of a folder, and checks that its shards exist and have the recorded sizes.

        Args:
            path: the folder, or its address, which is listed once.
            storage_options: what `fsspec` passes to the file system of an address.

        Raises:
            FileNotFoundError: there is no index, or a shard is missing.
            ImportError: no file system for the address is installed.
            OSError: an address cannot be read.
            ValueError: the index is of another version or was changed, or a shard has another size or is outside.
        """
        remote = open_remote(path, storage_options)
        file = Path(path) / FILE_NAME if remote is None else f"{remote.address}/{FILE_NAME}"
        sizes = remote.sizes() if remote else None
        absent = None if sizes is not None and FILE_NAME not in sizes else -1  # the folder cannot be listed
        content = file.read_bytes() if remote is None and file.is_file() else None
        content = remote.read(FILE_NAME, sizes.get(FILE_NAME)) if remote else content
        if content is None:
            raise FileNotFoundError(
                f"{file} does not exist. It says which shards hold which bucket. `save_bucketed` writes it; a copy of "
                "the folder, or `snapshot_download` of its repository, has to hold it."
            )
        facts = parse_sealed(content, file, REMEDY, ["format_version", "buckets"])
        if facts.pop("format_version") != FORMAT:
            raise ValueError(f"{file} is not an index of buckets in version {FORMAT}. {REMEDY}")
        with reading(file, REMEDY):
            facts["thresholds"] = tuple(facts["thresholds"])
            facts["buckets"] = tuple(
                StoredBucket(**{**bucket, "shards": tuple(Shard(**shard) for shard in bucket["shards"])})
                for bucket in facts["buckets"]
            )
            facts["quantiles"] = tuple(map(tuple, facts["quantiles"]))
            index = cls(**facts)
        shards = [shard for bucket in index.buckets for shard in bucket.shards]
        validate_inside([str(Path(path, shard.file).absolute()) for shard in shards], [path], file)
        for shard in shards:
            at = Path(path, shard.file)
            size = (at.stat().st_size if at.is_file() else -1) if sizes is None else sizes.get(shard.file, absent)
            _validate_size(at if remote is None else f"{remote.address}/{shard.file}", shard, size)
        return index


def open_remote(path: str | Path, storage_options: Mapping[str, Any] | None = None) -> RemoteFolder | None:
    """The `RemoteFolder` at an address; None for a folder of this machine, which has no options."""
    if "://" not in str(path):
        return None
    from hf_curriculum.remote import RemoteFolder

    return RemoteFolder(str(path), storage_options)


def _validate_size(file: str | Path, shard: Shard, size: int | None) -> None:
    """`size` is -1 where there is no such file, and None where a server does not tell."""
    if size == -1:
        raise FileNotFoundError(
            f"{file} does not exist, but {FILE_NAME} counts {shard.rows:,} examples in it. {REMEDY}"
        )
    if size not in (shard.bytes, None):
        raise ValueError(
            f"{file} has {size:,} bytes, but {FILE_NAME} says {shard.bytes:,}: it was changed or truncated after "
            f"`save_bucketed` wrote it, and positions in the stream would point at other rows. {REMEDY}"
        )


def quantile_positions(start: int, stop: int) -> np.ndarray:
    """At most 101 positions of `[start, stop)`, evenly spaced, both ends included; int64, shape (k,)."""
    count = min(101, stop - start)
    return start + np.arange(count) * (stop - start - 1) // (max(2, count) - 1)


def verify_bucketed(path: str | Path, storage_options: Mapping[str, Any] | None = None) -> BucketIndex:
    """Reads every shard and compares its content with the index: for a copy that came over a network.

    `BucketedStream` does so with each shard that it opens, except for Parquet of which it reads some columns.

    Args:
        path: the folder that `save_bucketed` wrote, or its address, from which each shard is fetched in turn.
        storage_options: what `fsspec` passes to the file system of an address.

    Returns:
        The index.

    Raises:
        FileNotFoundError: the index or a shard is missing.
        ImportError: no file system for the address is installed.
        OSError: an address cannot be read.
        ValueError: a shard is not what was written.
    """
    index, remote = BucketIndex.read(path, storage_options), open_remote(path, storage_options)
    for shard in (shard for bucket in index.buckets for shard in bucket.shards):
        if remote is not None:
            remote.verify(shard.file, shard.bytes, shard.digest)
            continue
        validate_digest(Path(path) / shard.file, shard.digest, REMEDY)
    return index
