"""`bucket_shards`: a crawl in shards, written in order of difficulty by the scores that `score_shards` wrote."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Features, Value

from hf_curriculum.columns import IMAGE
from hf_curriculum.config import digest
from hf_curriculum.data.images import image_frame
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.shards import ShardReader
from hf_curriculum.data.readers.source_shards import SourceShard, find_shards
from hf_curriculum.files import explained, read_array, resolved, write_atomically
from hf_curriculum.planning.buckets import Cut
from hf_curriculum.planning.ranking import Easy, Unscored
from hf_curriculum.provenance import ScoreProvenance, validate_choice
from hf_curriculum.scored_shards import KEY, UID, about_shard, finished_shards, read_manifest, read_shard_scores
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.streaming.bucketing import Bucketing, open_work
from hf_curriculum.streaming.index import BucketIndex, ShardFormat, quantile_positions
from hf_curriculum.streaming.save import (
    CARD,
    SHARD_ROWS,
    Cuts,
    buckets_there,
    find_finished,
    finish,
    layout_of,
    remove_remains,
    run_of,
    write_card,
    writing,
)
from hf_curriculum.streaming.score_counts import KeyCuts, ScoreCounts, cut_keys, order_keys
from hf_curriculum.streaming.shards import validate_features

logger: logging.Logger = logging.getLogger(__name__)

_SHARD_BYTES = 1 << 28  # of a shard where its rows are not named: 256 MB
_PATIENCE = 60  # seconds that one process of a run waits for another that begins or ends


@validate_arguments
def bucket_shards(
    source: str | Path | Sequence[str | Path],
    scores: str | Path,
    path: str | Path,
    num_buckets: int,
    cut: Cut = "rank",
    *,
    score_column: str | None = None,
    easy: Easy | None = None,
    thresholds: Sequence[float] | None = None,
    unscored: Unscored = "last",
    uids: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] | None = None,
    format: ShardFormat = "parquet",
    shard_size: int | None = None,
    seed: int = 0,
    workers: int = 1,
    split: str = "train",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> BucketIndex:
    """Writes a crawl scored by `score_shards` as one folder of shards per bucket, for `BucketedStream`.

    The thresholds come from the files of scores alone, exactly, in flat memory. Then every shard is read once, front
    to back, and its rows are kept in one file next to `path`. From these files each shard of a bucket is gathered, in
    a random order. That takes disk space for the data twice, and memory for `shard_size` rows in each worker. A killed
    worker loses one shard; the same command continues, also on several machines that share the disk. What was
    damaged in these files meanwhile is made again. When all is done, the same command returns the index. While a run
    is at work, another one with other settings is refused for the same folder.

    Images that cannot be opened are kept, and counted in a warning with their shard and key.

    The result does not depend on the number of workers. It equals the result of `save_bucketed` except for the card,
    which has no statistics of the scores.

    Args:
        source: the shards that were scored, as in `score_shards`.
        scores: the folder that `score_shards` wrote.
        path: the folder to make.
        num_buckets, cut, thresholds, unscored, format, seed, split: as in `save_bucketed`.
        score_column: the score; the first one if None.
        easy: which end of it is easy, in place of what its provenance says.
        uids: a `.npy` file of DataComp's uids: only these pairs are written. `score_shards(keep=["uid"])` keeps them.
        columns: our names of columns to theirs, as in `score_shards`.
        keep: the columns to write, in addition to key and scores; all if None, of archives those in the JSON of the
            first shard's first 10,000 pairs. What only later pairs have is counted in a warning.
        shard_size: rows per shard at most; by default about 256 MB, and 10,000 rows at most.
        workers: processes to start here.
        overwrite: replace other buckets in the folder. The same ones are read and compared, and made again only where
            they were damaged.
        storage_options: for `fsspec`.

    Returns:
        The index.

    Raises:
        FileNotFoundError: a shard, or the folder of scores, does not exist.
        ValueError: shards are not scored, were changed since, or an option does not fit.
        FileExistsError: the folder holds other buckets and `overwrite` is False, or it holds something else.
        RuntimeError: another process writes the folder in another way, or a worker has failed.

    Example:
        >>> index = bucket_shards("cc12m", "scores", "buckets", 4, workers=16)                  # doctest: +SKIP
        >>> stream = BucketedStream("buckets", Phases(4), global_batch_size=256)                # doctest: +SKIP
    """
    validate_choice("format", format, ("parquet", "webdataset"))
    validate_choice("unscored", unscored, ("last", "drop", "error"))
    validate_choice("cut", cut, ("rank", "value"))
    if workers < 1 or (shard_size is not None and shard_size < 1):
        raise ValueError(f"workers={workers} and shard_size={shard_size} were given; at least 1 of each is needed.")
    target = resolved(path)
    with writing(target, _PATIENCE):
        buckets_there(target)
    made = {name: ScoreProvenance(**each) for name, each in read_manifest(scores)["scores"].items()}
    column = score_column or next(iter(made))
    validate_choice("score_column", column, tuple(made))
    shards = _same_shards(find_shards(source, storage_options, allow_missing=True), scores)
    chosen = _Scores(Path(scores), [shard.name for shard in shards], column, easy or made[column].easy, uids)
    cuts, sizes, keys = _cut(chosen, num_buckets, cut, thresholds, unscored)
    with shards[0].local() as first:
        features = ShardReader(first, shards[0].kind, columns, named=keep or ()).features(keep)
    features = Features({**features, **{name: Value("float32", id=each.to_json()) for name, each in made.items()}})
    if format == "webdataset":
        validate_features(features)
    crawl = _Crawl(shards, dict(columns or {}), features, chosen, keys, unscored == "drop", keep is None)
    if shard_size is None:
        average = sum(shard.bytes for shard in shards) // max(1, chosen.counts.rows)
        shard_size = max(1, min(SHARD_ROWS, _SHARD_BYTES // max(1, average)))
    data = {"scores": chosen.digest, "columns": crawl.columns, "split": split}
    run = run_of(crawl, layout_of(sizes, format, seed, shard_size), target, format, cuts, data)
    return _write_together(run, cuts, split, target, workers, overwrite)


def _write_together(
    run: Bucketing, cuts: Cuts, split: str, target: Path, workers: int, overwrite: bool
) -> BucketIndex:
    """What all processes of one run write, by whomever of them; a run in another way is refused meanwhile."""
    with explained(target), ExitStack() as joined:
        with writing(target, _PATIENCE):
            finished = find_finished(run, cuts, target, overwrite)
            if finished is not None:
                remove_remains(run)
                card = target / CARD
                if card.is_symlink() or not card.is_file():  # without it `load_dataset` finds no buckets
                    write_atomically(card, write_card(finished, split))
                return finished
            open_work(run)
            joined.enter_context(run.joined())
        run.run(workers)
        with writing(target, _PATIENCE):
            joined.close()
            if not run.is_finished:
                return finish(run, cuts, split, target)
            remove_remains(run)
            return find_finished(run, cuts, target, overwrite=False) or BucketIndex.read(target)


def _same_shards(shards: list[SourceShard], scores: str | Path) -> list[SourceShard]:
    """The shards in the order of their scores; a `ValueError` where they are not those that were scored."""
    named, scored = {shard.name: shard for shard in shards}, dict.fromkeys(finished_shards(scores))
    dropped = read_manifest(scores)["dropped"]
    if missing := [name for name in scored if name not in named]:
        raise ValueError(
            f"{scores} holds scores of {missing[0]}, which is not among the {len(shards):,} shards of this source. "
            "Name the shards that were scored, from the same folder."
        )
    if more := [name for name in named if name not in scored and name not in dropped]:
        raise ValueError(f"{more[0]} is not scored in {scores}. Run `score_shards` on all of the source first.")
    return [named[name] for name in scored]


def _cut(
    chosen: _Scores, num_buckets: int, cut: Cut, thresholds: Sequence[float] | None, unscored: Unscored
) -> tuple[Cuts, tuple[int, ...], KeyCuts]:
    """What the index says of the buckets, their sizes, and where they end."""
    counts = chosen.counts
    if counts.num_unscored and unscored == "error":
        raise ValueError(
            f"{counts.num_unscored:,} of {counts.rows:,} pairs have no `{chosen.column}`, and unscored='error' was "
            "asked for. Use 'last' or 'drop'."
        )
    keys = cut_keys(counts, num_buckets, cut, thresholds, unscored == "drop", chosen.column)
    scored, ends, quantiles = counts.rows - counts.num_unscored, np.cumsum([0, *keys.sizes]).tolist(), []
    for start, stop in pairwise(ends):
        at = quantile_positions(start, min(stop, scored)) if start < min(stop, scored) else np.zeros(0, np.int64)
        quantiles.append(counts.scores_at(at).astype(np.float64).tolist() if len(at) else [])
    about = {
        "score_column": chosen.column,
        "easy": chosen.easy,
        "cut": "rank" if thresholds is None and cut == "rank" else "value",
    }
    about |= {"num_scored": scored, "num_unscored": counts.num_unscored, "unscored": unscored}
    return Cuts(**about, thresholds=keys.thresholds, quantiles=quantiles), keys.sizes, keys


class _Scores:
    """The scores of all shards by one column, read part by part; rows that are not among `uids` are left out."""

    def __init__(self, folder: Path, names: list[str], column: str, easy: Easy, uids: str | Path | None) -> None:
        self.folder = folder
        self.names = names
        self.column = column
        self.easy: Easy = easy
        self.uids: np.ndarray | None = None
        if uids is not None:
            if UID not in read_manifest(folder)["keep"]:
                raise ValueError(f"{folder} holds no uids: score with keep=['uid'] to choose pairs by theirs.")
            loaded = read_array(uids, "DataComp's subset files are arrays of two uint64 each.", allow_pickle=False)
            if loaded.dtype.itemsize != 16:
                raise ValueError(f"{uids} holds {loaded.dtype}, and DataComp's uids are pairs of uint64.")
            self.uids = np.unique(_as_bytes(loaded.view(np.uint64).reshape(-1, 2)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("counts",)}

    @cached_property
    def counts(self) -> ScoreCounts:
        """Counts of the scores of rows that are not left out."""
        return ScoreCounts(lambda: (self.of(piece)[0] for piece in range(len(self.names))), self.easy)

    @cached_property
    def digest(self) -> str:
        """Identifies the scores, their shards and their rows."""
        about = [about_shard(self.folder, name) for name in self.names]
        uids = b"" if self.uids is None else self.uids.tobytes()
        return digest(repr([(each["shard"], each["digest"], each["run"]) for each in about]), uids)

    def of(self, piece: int) -> tuple[np.ndarray, np.ndarray]:
        """The scores of the rows that are not left out of a shard, float32 (k,), and which rows these are (rows,)."""
        names = [self.column] if self.uids is None else [self.column, UID]
        table = read_shard_scores(self.folder, self.names[piece], names)
        scores = table[self.column].to_numpy()
        if self.uids is None:
            return scores, np.ones(len(scores), bool)
        texts = ["0" * 32 if uid is None else uid for uid in table[UID].to_pylist()]
        pairs = np.array([(int(text[:16], 16), int(text[16:32], 16)) for text in texts], np.uint64).reshape(-1, 2)
        kept = np.isin(_as_bytes(pairs), self.uids)
        return scores[kept], kept


def _count_unreadable(table: pa.Table, counted: LeftOut) -> None:
    """Counts images that cannot be opened. Headers are read where a file does not begin and end as JPEG or PNG do."""
    if IMAGE not in table.column_names:
        return
    files = pc.struct_field(table[IMAGE], "bytes")
    whole = [pc.and_(pc.starts_with(files, first), pc.ends_with(files, last)) for first, last in _WHOLE_FILES]
    others = table.filter(pc.invert(pc.fill_null(pc.or_(*whole), False)))  # all headers take a third of the time
    for key, image in zip(others[KEY].to_pylist(), others[IMAGE].to_pylist(), strict=True):
        if image is not None and image_frame(image)[0] is None:
            counted.add("images that cannot be opened (kept; a stream shows the next one of their shard)", 1, key)


_WHOLE_FILES = ((b"\xff\xd8\xff", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"))
"""The first and last bytes of a JPEG and of a PNG."""


def _as_bytes(pairs: np.ndarray) -> np.ndarray:
    """uint64 (n, 2) as n values of 16 bytes that can be compared."""
    return np.ascontiguousarray(pairs).view("V16").ravel()


class _Crawl:
    """The pairs of a crawl, shard by shard."""

    def __init__(
        self,
        shards: list[SourceShard],
        columns: dict[str, str],
        features: Features,
        scores: _Scores,
        cuts: KeyCuts,
        dropped: bool,
        complete: bool,
    ) -> None:
        self.shards, self.columns, self.features = shards, columns, features
        self.known = tuple(features) if complete else None
        self.scores, self.cuts, self.dropped = scores, cuts, dropped
        self.names = scores.names
        equal = np.zeros((len(shards), len(cuts.keys)), np.int64)
        rows = np.zeros((len(shards), len(cuts.sizes)), np.int64)
        before = np.zeros(len(cuts.keys), np.int64)
        for piece in range(len(shards)):
            keys = order_keys(scores.of(piece)[0], scores.easy)
            equal[piece] = before
            rows[piece] = np.bincount(self._of_keys(keys, before), minlength=len(cuts.sizes) + 1)[1:]
            before = before + [(keys == key).sum() for key in cuts.keys]
        self._equal_before, self.counts = equal, rows

    def _of_keys(self, keys: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The bucket of each row + 1, int64 (rows,); 0 for a row that is dropped."""
        found = self.cuts.buckets_of(keys, before) + 1
        if self.dropped:
            found[keys == np.uint32(0xFFFFFFFF)] = 0
        return found

    def buckets(self, piece: int) -> np.ndarray:
        """The bucket of each row of a shard."""
        scores, kept = self.scores.of(piece)
        found = np.full(len(kept), -1, np.int64)
        found[kept] = self._of_keys(order_keys(scores, self.scores.easy), self._equal_before[piece]) - 1
        return found

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """The pairs of a shard with their scores; a `ValueError` where it is not the one that was scored."""
        shard = self.shards[piece]
        about = about_shard(self.scores.folder, shard.name)
        scores = read_shard_scores(self.scores.folder, shard.name)
        of_shard = Features(
            {
                name: each
                for name, each in self.features.items()
                if name not in read_manifest(self.scores.folder)["scores"]
            }
        )
        with shard.local() as path:
            reader = ShardReader(path, shard.kind, self.columns, known=self.known, named=of_shard, address=shard.shown)
            if reader.digest != about["digest"]:
                raise ValueError(
                    f"{shard.shown} was changed after it was scored: its digest is {reader.digest}, and was "
                    f"{about['digest']}. Its scores would belong to other pairs. Run the same `score_shards` "
                    f"into {self.scores.folder} again: it scores what has changed, and nothing else."
                )
            start = 0
            for table in reader.tables(of_shard):
                _count_unreadable(table, reader.left_out)
                part = scores.slice(start, len(table))
                start += len(table)
                if part[KEY].to_pylist() != table[KEY].to_pylist():
                    raise ValueError(
                        f"{shard.shown} has other keys than were scored, behind row {start - len(table):,}."
                    )
                for name in self.features.keys() - of_shard.keys():
                    table = table.append_column(name, part[name])
                yield table.select(list(self.features)).cast(self.features.arrow_schema)
            if reader.left_out.counts:
                logger.warning("%s: %s.", shard.shown, reader.left_out.describe())
