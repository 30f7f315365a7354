"""Writing a scored data set as shards, a folder per bucket, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum.config import complete_folder, kind_of
from hf_curriculum.markdown import front_matter, table
from hf_curriculum.planning.buckets import Buckets, Cut, cut_buckets
from hf_curriculum.planning.ranking import Easy, Ranking, Unscored, rank_scores, read_scores, resolve_easy
from hf_curriculum.provenance import read_provenance, validate_choice
from hf_curriculum.rng import mix64, permute
from hf_curriculum.scored_data import provenance_markdown, write_provenance
from hf_curriculum.streaming.index import (
    FILE_NAME,
    BucketIndex,
    Shard,
    ShardFormat,
    StoredBucket,
    file_digest,
    quantile_positions,
)
from hf_curriculum.streaming.shards import embedded_tables, validate_features, write_parquet, write_tar

_SHARD_ROWS = 10_000
_ENDINGS = {"parquet": "parquet", "webdataset": "tar"}


def save_bucketed(
    dataset: Dataset,
    path: str | Path,
    num_buckets: int,
    cut: Cut = "rank",
    *,
    score_column: str,
    easy: Easy | None = None,
    thresholds: Sequence[float] | None = None,
    unscored: Unscored = "last",
    format: ShardFormat = "parquet",
    shard_size: int | None = None,
    num_shards: int | None = None,
    seed: int = 0,
    split: str = "train",
    overwrite: bool = False,
) -> BucketIndex:
    """Writes a scored data set as one folder of shards per bucket, easiest first, for `BucketedStream`.

    Within a bucket rows stand in a random order (keyed by `seed`), so each shard is a random part of its bucket.
    Images are embedded as stored. A card with a configuration per bucket lets `datasets` alone load them:
    `load_dataset(path, "bucket_0", streaming=True)`. Beside them stand `scores.json` (where the scores came from) and
    `buckets.json` (the index). The folder gets its name when it is complete, never before.

    Args:
        dataset: the scored data set; read a few thousand rows at a time.
        path: the folder to make.
        num_buckets: how many.
        cut: by rank or by value, see `cut_buckets`.
        score_column: the score.
        easy: which end of it is easy, in place of what its provenance says.
        thresholds: the inner thresholds as scores, with `cut="value"`.
        unscored: what to do with rows that have no score, see `rank_scores`.
        format: `"parquet"`, or `"webdataset"`, tar archives. A bucket without examples is an empty stream in the
            first, and has no configuration in the second.
        shard_size: rows per shard at most, 10,000 if neither this nor `num_shards` is given.
        num_shards: shards per bucket, in place of `shard_size`.
        seed: key of the order within the buckets.
        split: name of the split the card gives the rows.
        overwrite: replace an earlier folder of this function.

    Returns:
        The index.

    Raises:
        TypeError: not a `Dataset`.
        ValueError: an option does not fit, the scores cannot be ordered or bucketed, or a column does not fit the
            format.
        FileExistsError: the folder exists, and `overwrite` is False or the folder is not one of this function's.
        RuntimeError: another process writes the folder.

    Example:
        >>> index = save_bucketed(scored, "buckets", 4, score_column="noun_count")
        >>> stream = BucketedStream("buckets", Phases(4), global_batch_size=32)
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`save_bucketed` was given {kind_of(dataset)}. Buckets are made of all rows of one split at once: give a "
            "`datasets.Dataset`, such as `splits['train']`."
        )
    validate_choice("format", format, ("parquet", "webdataset"))
    _validate_shards(shard_size, num_shards)
    if format == "webdataset":
        validate_features(dataset.features)
    with complete_folder(path) as folder:
        _validate_target(Path(path).absolute(), overwrite)
        scores = read_scores(dataset, score_column)
        easy = resolve_easy(dataset, score_column, easy)
        ranking = rank_scores(scores, easy, unscored=unscored, score_column=score_column)
        buckets = cut_buckets(ranking, num_buckets, cut, thresholds=thresholds)
        stored = _write_buckets(dataset, folder, ranking, buckets, format, seed, shard_size or _SHARD_ROWS, num_shards)
        spans = [range(start, min(stop, ranking.num_scored)) for start, stop in buckets.slices()]
        index = BucketIndex(
            score_column=score_column,
            easy=easy,
            cut=buckets.cut,
            thresholds=tuple(float(mark) if np.isfinite(mark) else None for mark in buckets.thresholds),
            num_scored=ranking.num_scored,
            num_unscored=ranking.num_unscored,
            unscored=unscored,
            seed=seed,
            format=format,
            features=dataset.features.to_dict(),
            buckets=stored,
            quantiles=tuple(
                tuple(ranking.score_at(at) for at in quantile_positions(span.start, span.stop)) if span else ()
                for span in spans
            ),
        )
        if read_provenance(dataset):
            write_provenance(dataset, folder)
        (folder / "README.md").write_text(write_card(dataset, index, split), encoding="utf-8")
        index.write(folder)
    return index


def _validate_shards(shard_size: int | None, num_shards: int | None) -> None:
    if shard_size is not None and num_shards is not None:
        raise ValueError(f"shard_size={shard_size} and num_shards={num_shards} were given; give one of them.")
    for name, value in (("shard_size", shard_size), ("num_shards", num_shards)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} was given; at least 1 is needed.")


def _validate_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise FileExistsError(f"{target} exists. Give another path, or overwrite=True to replace it.")
    if not (target / FILE_NAME).is_file():
        raise FileExistsError(
            f"{target} exists and holds no {FILE_NAME}, so `save_bucketed` did not write it and does not delete it, "
            "overwrite=True or not. Give another path, or remove it yourself."
        )


def _write_buckets(
    dataset: Dataset,
    folder: Path,
    ranking: Ranking,
    buckets: Buckets,
    format: ShardFormat,
    seed: int,
    shard_size: int,
    num_shards: int | None,
) -> tuple[StoredBucket, ...]:
    """Writes the shards of every bucket, its rows in a keyed random order."""
    stored = []
    for number, (start, stop) in enumerate(buckets.slices()):
        size = stop - start
        shuffled = partial(_shuffled, ranking.order[start:stop], mix64(seed, number))
        (folder / f"bucket_{number}").mkdir()
        count = max(1, min(num_shards or -(-size // shard_size), size))
        if not size and format == "webdataset":
            count = 0  # an archive without examples has no columns
        shards = []
        for shard in range(count):
            file = f"bucket_{number}/{shard:05d}-of-{count:05d}.{_ENDINGS[format]}"
            first, end = size * shard // count, size * (shard + 1) // count
            tables = embedded_tables(dataset, range(first, end), shuffled)
            if format == "parquet":
                write_parquet(tables, folder / file, dataset.features.arrow_schema)
            else:
                write_tar(tables, folder / file, f"{number}-{shard:05d}")
            shards.append(Shard(file, end - first, (folder / file).stat().st_size, file_digest(folder / file)))
        scored = range(start, min(stop, ranking.num_scored))
        ends = sorted((ranking.score_at(scored[0]), ranking.score_at(scored[-1]))) if scored else (None, None)
        stored.append(StoredBucket(size, *ends, tuple(shards)))
    return tuple(stored)


def _shuffled(rows: np.ndarray, key: int, positions: range) -> np.ndarray:
    """The rows at some positions of a bucket's random order."""
    return rows[permute(np.arange(positions.start, positions.stop), len(rows), key)]


def configurations(index: BucketIndex, split: str) -> list[dict[str, Any]]:
    """The `configs:` of the card: one for each bucket that has a file, and `default` over all of them."""
    named = [f"bucket_{number}" for number, bucket in enumerate(index.buckets) if bucket.shards]
    paths = [f"{name}/*.{_ENDINGS[index.format]}" for name in named]
    every = {"config_name": "default", "default": True, "data_files": [{"split": split, "path": paths}]}
    files = [[{"split": split, "path": path}] for path in paths]
    single = [{"config_name": name, "data_files": own} for name, own in zip(named, files, strict=True)]
    return [every, *single]


def write_card(dataset: Dataset, index: BucketIndex, split: str) -> str:
    """The text of `README.md`."""
    column = "".join(char if char.isalnum() or char in "_-. " else "?" for char in index.score_column)
    rows = []
    for number, bucket in enumerate(index.buckets):
        ends = [None if mark is None else f"{mark:.4g}" for mark in (bucket.lowest, bucket.highest)]
        rows.append((number, f"{bucket.rows:,}", *ends, len(bucket.shards)))
    text = f"""{front_matter({"configs": configurations(index, split)})}
# Examples in buckets of difficulty

{index.num_rows:,} examples in {len(index.buckets)} buckets by {index.cut} of `{column}` \
({index.easy} = easy), easiest first. Within a bucket the order is random.

```python
from datasets import load_dataset

easiest = load_dataset("path/to/this", "bucket_0", split="{split}", streaming=True)
everything = load_dataset("path/to/this", split="{split}", streaming=True)
```

{table(("bucket", "examples", "lowest score", "highest score", "shards"), rows)}"""
    return f"{text}\n{provenance_markdown(dataset)}" if read_provenance(dataset) else text
