"""Writing a scored data set as shards, a folder per bucket, in bounded memory."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features

from hf_curriculum.files import explained, recover_folder, resolved, sole_writer, take_place, write_atomically
from hf_curriculum.markdown import front_matter, table
from hf_curriculum.planning.buckets import Buckets, Cut, cut_buckets
from hf_curriculum.planning.ranking import Easy, Ranking, Unscored, rank_scores, read_scores, resolve_easy
from hf_curriculum.provenance import read_provenance, validate_choice
from hf_curriculum.scored_data import FILE_NAME as SCORES_FILE
from hf_curriculum.scored_data import provenance_markdown, write_provenance
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.streaming.bucketing import ENDINGS, Bucketing, Layout, Source, open_work
from hf_curriculum.streaming.index import (
    FILE_NAME,
    FORMAT,
    BucketIndex,
    ShardFormat,
    StoredBucket,
    quantile_positions,
    verify_bucketed,
)
from hf_curriculum.streaming.shards import embedded_tables, validate_features

CARD = "README.md"
SHARD_ROWS = 10_000
"""Rows of a shard where nothing else is asked for, and of a stretch of a data set that is read at once."""


@validate_arguments
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
    `load_dataset(path, "bucket_0", streaming=True)`. `scores.json` (the provenance of the scores) and `buckets.json`
    (the index) lie in the same folder. The folder gets its name when it is complete, never before.

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
    validate_choice("format", format, ("parquet", "webdataset"))
    _validate_shards(shard_size, num_shards)
    if format == "webdataset":
        validate_features(dataset.features)
    target = resolved(path)
    with writing(target):
        if buckets_there(target):
            if not overwrite:
                raise FileExistsError(f"{target} exists. Give another path, or overwrite=True to replace it.")
            validate_replaceable(target)
        scores = read_scores(dataset, score_column)
        easy = resolve_easy(dataset, score_column, easy)
        ranking = rank_scores(scores, easy, unscored=unscored, score_column=score_column)
        buckets = cut_buckets(ranking, num_buckets, cut, thresholds=thresholds)
        source = _Rows(dataset, ranking, buckets)
        spans = [range(start, min(stop, ranking.num_scored)) for start, stop in buckets.slices()]
        cuts = Cuts(
            score_column=score_column,
            easy=easy,
            cut=buckets.cut,
            thresholds=buckets.thresholds,
            num_scored=ranking.num_scored,
            num_unscored=ranking.num_unscored,
            unscored=unscored,
            quantiles=[[ranking.score_at(at) for at in quantile_positions(span.start, span.stop)] for span in spans],
        )
        layout = layout_of(buckets.sizes, format, seed, shard_size or SHARD_ROWS, num_shards)
        run = run_of(source, layout, target, format, cuts, {"data": dataset._fingerprint, "split": split})
        open_work(run)
        with explained(target), removed_on_error(run.work), run.joined():
            run.run()
            return finish(run, cuts, split, target, dataset)


@dataclass(frozen=True)
class Cuts:
    """What the index says of the buckets beside their shards."""

    score_column: str
    easy: Easy
    cut: Cut
    thresholds: Sequence[float]
    num_scored: int
    num_unscored: int
    unscored: Unscored
    quantiles: Sequence[Sequence[float]]


def layout_of(
    sizes: Sequence[int], format: ShardFormat, seed: int, shard_size: int, num_shards: int | None = None
) -> Layout:
    """How many shards each bucket has."""
    counts = [max(1, min(num_shards or -(-size // shard_size), size)) for size in sizes]
    if format == "webdataset":  # an archive without examples has no columns
        counts = [count if size else 0 for count, size in zip(counts, sizes, strict=True)]
    return Layout(tuple(sizes), tuple(counts), seed)


def run_of(
    source: Source, layout: Layout, target: Path, format: ShardFormat, cuts: Cuts, data: Mapping[str, Any]
) -> Bucketing:
    """The run that makes buckets, with all that must be equal for it to go on where another one stopped."""
    facts = {**data, "version": FORMAT, "cuts": asdict(cuts), "layout": asdict(layout), "format": format}
    facts |= {"pieces": list(source.names), "features": source.features.to_dict()}
    return Bucketing(source, layout, target.with_name(f".{target.name}.unfinished"), format, facts)


def index_of(run: Bucketing, cuts: Cuts) -> BucketIndex:
    """The index of the shards that a run has written."""
    stored = []
    for size, files, marks in zip(run.layout.sizes, run.shards(), cuts.quantiles, strict=True):
        ends = sorted((marks[0], marks[-1])) if len(marks) else (None, None)
        stored.append(StoredBucket(size, *ends, files))
    return BucketIndex(
        score_column=cuts.score_column,
        easy=cuts.easy,
        cut=cuts.cut,
        thresholds=tuple(float(mark) if np.isfinite(mark) else None for mark in cuts.thresholds),
        num_scored=cuts.num_scored,
        num_unscored=cuts.num_unscored,
        unscored=cuts.unscored,
        seed=run.layout.seed,
        format=run.format,
        features=run.source.features.to_dict(),
        buckets=tuple(stored),
        quantiles=tuple(map(tuple, cuts.quantiles)),
        run=run.identity,
    )


def writing(target: Path, patience: float = 0) -> AbstractContextManager[None]:
    """`sole_writer` of a folder of buckets."""
    return sole_writer(target, target.with_name(f".{target.name}.lock"), patience)


def buckets_there(target: Path) -> bool:
    """Whether buckets stand there; a `FileExistsError` for anything else. Tidies an interrupted replacement."""
    recover_folder(target)
    if not target.exists() or (target.is_dir() and not os.listdir(target)):
        return False
    if not (target / FILE_NAME).is_file():
        raise FileExistsError(
            f"{target} exists and holds no {FILE_NAME}: these are no buckets, and stay. Give another path, or "
            "remove it yourself."
        )
    return True


def validate_replaceable(target: Path) -> None:
    """Raises a `FileExistsError` where other things lie among buckets, which would be deleted with them."""
    ours = {FILE_NAME, CARD, SCORES_FILE}
    others = [name for name in sorted(os.listdir(target)) if name not in ours and not name.startswith("bucket_")]
    if others:
        raise FileExistsError(
            f"{target} holds {', '.join(others[:3])}{', …' * (len(others) > 3)} beside its buckets, and is replaced "
            "as a whole: they would be lost. Move them, or give another path."
        )


def find_finished(run: Bucketing, cuts: Cuts, target: Path, overwrite: bool) -> BucketIndex | None:
    """The index of what a run makes, where that stands already; None where nothing does, or what is to be replaced.

    Raises:
        FileExistsError: something else stands there, and `overwrite` is False or it is no folder of buckets.
        FileNotFoundError: what stands there lacks a shard, and `overwrite` is False.
        ValueError: what stands there is damaged, and `overwrite` is False.
    """
    if not buckets_there(target):
        return None
    try:
        index = BucketIndex.read(target)
        if index.run == run.identity:
            return verify_bucketed(target) if overwrite else index
    except (ValueError, FileNotFoundError):
        if not overwrite:
            raise
    if overwrite:
        validate_replaceable(target)
        return None
    facts = ("score_column", "easy", "cut", "num_scored", "num_unscored", "unscored", "seed", "format", "sizes")
    asked = {**asdict(cuts), "seed": run.layout.seed, "format": run.format, "sizes": run.layout.sizes}
    there = {name: getattr(index, name) for name in facts}
    differ = [f"{name}={there[name]!r}, not {asked[name]!r}" for name in facts if there[name] != asked[name]]
    raise FileExistsError(
        f"{target} exists and holds other buckets than are asked for: "
        f"{'; '.join(differ) or 'of other data, with other columns, or in other shards'}. Give another path, or "
        "overwrite=True (--overwrite) to replace it."
    )


def finish(run: Bucketing, cuts: Cuts, split: str, target: Path, scores: Dataset | None = None) -> BucketIndex:
    """Gives the folder of all shards its name."""
    index = index_of(run, cuts)
    for left in run.out.glob(".*"):  # of a process that was killed here
        left.unlink()
    if scores is not None and read_provenance(scores):
        write_provenance(scores, run.out)
    write_atomically(run.out / CARD, write_card(index, split, scores))
    index.write(run.out)
    take_place(target, run.out)
    remove_work(run)
    return index


def remove_remains(run: Bucketing) -> None:
    """Deletes unfinished work that nobody does: of who came when all was done, or was killed."""
    if run.work.exists() and not run.living():
        remove_work(run)


def remove_work(run: Bucketing) -> None:
    """Deletes the work of a finished run: under another name, because who is late may still look into it."""
    finished = run.work.with_name(f"{run.work.name}-{secrets.token_hex(4)}")  # `recover_folder` knows such names
    os.replace(run.work, finished)
    shutil.rmtree(finished, ignore_errors=True)


@contextmanager
def removed_on_error(work: Path) -> Iterator[None]:
    """Deletes a folder of unfinished work where it cannot be finished; one of a run that was killed stays."""
    try:
        yield
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise


class _Rows:
    """The rows of a data set in stretches, by their ranking."""

    def __init__(self, dataset: Dataset, ranking: Ranking, buckets: Buckets) -> None:
        self.dataset = dataset
        self.features: Features = dataset.features
        self._bucket = np.full(len(dataset), -1, np.int16 if len(buckets.ends) < 1 << 15 else np.int32)
        for number, (start, stop) in enumerate(buckets.slices()):
            self._bucket[ranking.order[start:stop]] = number
        self._starts = range(0, len(dataset), SHARD_ROWS)
        self.names = [f"rows {start} to {min(start + SHARD_ROWS, len(dataset)) - 1}" for start in self._starts]
        counts = [
            np.bincount(own[own >= 0], minlength=len(buckets.ends))
            for own in map(self.buckets, range(len(self.names)))
        ]
        self.counts: np.ndarray = np.array(counts, np.int64).reshape(-1, len(buckets.ends))

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """The rows of a stretch, images embedded."""
        start = self._starts[piece]
        return embedded_tables(self.dataset, range(start, min(start + SHARD_ROWS, len(self.dataset))))

    def buckets(self, piece: int) -> np.ndarray:
        """The bucket of each row of a stretch."""
        start = self._starts[piece]
        return self._bucket[start : start + SHARD_ROWS].astype(np.int64)


def _validate_shards(shard_size: int | None, num_shards: int | None) -> None:
    if shard_size is not None and num_shards is not None:
        raise ValueError(f"shard_size={shard_size} and num_shards={num_shards} were given; give one of them.")
    for name, value in (("shard_size", shard_size), ("num_shards", num_shards)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} was given; at least 1 is needed.")


def configurations(index: BucketIndex, split: str) -> list[dict[str, Any]]:
    """The `configs:` of the card: one for each bucket that has a file, and `default` over all of them."""
    named = [f"bucket_{number}" for number, bucket in enumerate(index.buckets) if bucket.shards]
    paths = [f"{name}/*.{ENDINGS[index.format]}" for name in named]
    every = {"config_name": "default", "default": True, "data_files": [{"split": split, "path": paths}]}
    files = [[{"split": split, "path": path}] for path in paths]
    single = [{"config_name": name, "data_files": own} for name, own in zip(named, files, strict=True)]
    return [every, *single]


def write_card(index: BucketIndex, split: str, scores: Dataset | None = None) -> str:
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
    return text if scores is None or not read_provenance(scores) else f"{text}\n{provenance_markdown(scores)}"
