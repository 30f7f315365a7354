"""Rows read front to back, and written as one folder of shards per bucket, by any number of processes that may die.

First each piece of the source (a shard of a crawl, a stretch of a data set) is read once, and its rows are kept in
one file, sorted by the shard that they go into. Then each shard is gathered from these files, and its rows are put in
their random order. Pieces and shards are written completely or not at all, and belong to the process that asks first.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from datasets import Features
from tqdm.auto import tqdm

from hf_curriculum.claims import Claims
from hf_curriculum.files import file_digest, read_json, reading, write_atomically
from hf_curriculum.rng import mix64, permute
from hf_curriculum.streaming.index import Shard, ShardFormat
from hf_curriculum.streaming.shards import merged_tables, write_parquet, write_tar

ENDINGS: dict[str, str] = {"parquet": "parquet", "webdataset": "tar"}
"""The ending of a shard's file, by its format."""
OUT = "out"
"""The folder, in that of the unfinished work, that becomes the folder of buckets."""
_PLAN, _PIECES, _DONE, _CLAIMS = "plan.json", "pieces", "done", "claims"
_RUN_BYTES = 1 << 27  # rows of a piece that are sorted together: 128 MB
_ROWS = 1 << 10
_POLL = 0.2
_PLACE = "__place"
_REMEDY = "Delete it: the same command makes it again."


class Source(Protocol):
    """What is bucketed: rows in pieces, and the bucket of each."""

    features: Features
    names: Sequence[str]
    counts: np.ndarray
    """Rows of each piece in each bucket, int64 (pieces, buckets)."""

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """The rows of a piece front to back, a bounded number at a time, images embedded."""
        ...

    def buckets(self, piece: int) -> np.ndarray:
        """The bucket of each row of a piece, int64 (rows,), −1 for rows that are left out."""
        ...


@dataclass(frozen=True)
class Layout:
    """Which shards there are, and where in them the rows of a bucket go: a keyed random order of the bucket.

    Args:
        sizes: rows of each bucket.
        counts: shards of each bucket.
        seed: key of the order within the buckets.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    seed: int

    @cached_property
    def first(self) -> np.ndarray:
        """The number of each bucket's first shard, among all shards; int64 (buckets + 1,)."""
        return np.cumsum([0, *self.counts])

    def places(self, bucket: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shard's number and the place in it, int64 (n,) each, of some rows of a bucket, counted as they come."""
        size, count = self.sizes[bucket], self.counts[bucket]
        at = permute(rows, size, mix64(self.seed, bucket))
        shard = ((at + 1) * count - 1) // size
        return self.first[bucket] + shard, at - size * shard // count

    def rows(self, number: int) -> int:
        """Rows of a shard."""
        bucket, shard = self.bucket_of(number)
        size, count = self.sizes[bucket], self.counts[bucket]
        return size * (shard + 1) // count - size * shard // count

    def bucket_of(self, number: int) -> tuple[int, int]:
        """The bucket of a shard, and its number in it."""
        bucket = int(np.searchsorted(self.first, number, "right") - 1)
        return bucket, number - int(self.first[bucket])

    def file(self, number: int, format: ShardFormat) -> str:
        """The path of a shard, from the folder of all buckets."""
        bucket, shard = self.bucket_of(number)
        return f"bucket_{bucket}/{shard:05d}-of-{self.counts[bucket]:05d}.{ENDINGS[format]}"


@dataclass
class Bucketing:
    """One run: what processes that are given the same do together.

    Args:
        source: the rows.
        layout: where they go.
        work: the folder of unfinished work.
        format: of the shards.
        lease: seconds without a sign of life after which a process on another machine counts as dead.
    """

    source: Source
    layout: Layout
    work: Path
    format: ShardFormat
    lease: float = 120

    def run(self, processes: int = 1) -> None:
        """Writes all shards; returns when they are written, by whomever."""
        if processes == 1:
            self._work(True)
            return
        context = multiprocessing.get_context("spawn")
        started = [context.Process(target=self._work, args=(number == 0,)) for number in range(processes)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if failed := sum(bool(process.exitcode) for process in started):
            raise RuntimeError(
                f"{failed} of {processes} processes ended with an error, which stands above. Finished parts are kept; "
                "the same command continues."
            )

    def _work(self, watched: bool) -> None:
        claims = Claims(self.work / _CLAIMS, self.lease)
        pieces, shards = len(self.source.names), int(self.layout.first[-1])
        with (
            claims.alive(),
            tqdm(total=pieces + shards, desc="Bucketing", unit="file", disable=None if watched else True) as bar,
        ):
            self._share(claims, "read", pieces, self._piece_file, self._write_piece, bar)
            self._share(claims, "write", shards, self._done_file, self._write_shard, bar)

    def _share(
        self,
        claims: Claims,
        verb: str,
        count: int,
        result: Callable[[int], Path],
        make: Callable[[int], None],
        bar: tqdm,
    ) -> None:
        """Makes what is missing of `count` files, of which other processes make some; returns when all are there."""
        left, before = list(range(count)), bar.n
        while left:
            busy = []
            for number in left:
                if not result(number).exists():
                    if self.is_finished:
                        return
                    if not claims.take(f"{verb} {number}"):
                        busy.append(number)
                        continue
                    if not (result(number).exists() or self.is_finished):
                        make(number)
                    claims.give_back(f"{verb} {number}")
                bar.update(1)
            if left := busy:
                time.sleep(_POLL)
        bar.update(before + count - bar.n)

    @property
    def is_finished(self) -> bool:
        """Whether another process has given the folder its name already, and deleted the work."""
        return not (self.work / OUT).is_dir()

    # ---- A piece: read once, sorted by shard ----

    def _piece_file(self, piece: int) -> Path:
        return self.work / _PIECES / f"{piece:06d}.batches"

    @cached_property
    def _before(self) -> np.ndarray:
        """Rows of each bucket in the pieces before each; int64 (pieces, buckets)."""
        return np.cumsum(self.source.counts, axis=0) - self.source.counts

    def _write_piece(self, piece: int) -> None:
        buckets = self.source.buckets(piece)
        shards, places = np.full(len(buckets), -1, np.int64), np.zeros(len(buckets), np.int64)
        for bucket in np.unique(buckets[buckets >= 0]).tolist():
            rows = np.flatnonzero(buckets == bucket)
            first = int(self._before[piece, bucket])
            shards[rows], places[rows] = self.layout.places(bucket, np.arange(first, first + len(rows)))
        file = self._piece_file(piece)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        schema = self.source.features.arrow_schema.append(pa.field(_PLACE, pa.int64()))
        numbers: list[int] = []
        ends = [0]
        try:
            with temporary.open("wb") as sink:
                start = 0
                for table in merged_tables(self.source.tables(piece), _RUN_BYTES):
                    stop = start + table.num_rows
                    table = table.append_column(_PLACE, pa.array(places[start:stop])).cast(schema)
                    for number, batch in _sorted(table, shards[start:stop]):
                        ends.append(ends[-1] + sink.write(batch.serialize()))
                        numbers.append(number)
                    start = stop
                sink.write(np.array(ends, np.int64).tobytes())  # an Arrow file would have to be read whole to find one
            if start != len(buckets):
                raise ValueError(
                    f"{self.source.names[piece]} holds {start:,} rows, and {len(buckets):,} were scored: it "
                    "was changed since. Score it again: delete its file of scores, and run the command that made it."
                )
            write_atomically(file.with_suffix(".json"), json.dumps(numbers))
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)

    # ---- A shard: gathered from all pieces ----

    def _done_file(self, number: int) -> Path:
        return self.work / _DONE / f"{number:06d}.json"

    @cached_property
    def _found_in(self) -> tuple[np.ndarray, np.ndarray]:
        """The shard of every batch of all pieces, int32 (batches,), and where each piece begins among them, int64."""
        files = (self._piece_file(piece).with_suffix(".json") for piece in range(len(self.source.names)))
        numbers = [np.array(read_json(file, _REMEDY), np.int32) for file in files]
        return np.concatenate(numbers), np.cumsum([0, *map(len, numbers)])

    def _batch(self, piece: int, place: int, count: int, schema: pa.Schema) -> pa.RecordBatch:
        """A batch of a piece, of which there are `count`."""
        file = self._piece_file(piece)
        with reading(file, _REMEDY), file.open("rb") as stream:
            stream.seek(8 * (place - count - 1), os.SEEK_END)
            start, stop = np.frombuffer(stream.read(16), np.int64).tolist()
            stream.seek(start)
            return pa.ipc.read_record_batch(pa.py_buffer(stream.read(stop - start)), schema)

    def _write_shard(self, number: int) -> None:
        numbers, starts = self._found_in
        schema = self.source.features.arrow_schema
        with_place = schema.append(pa.field(_PLACE, pa.int64()))
        places = np.flatnonzero(numbers == number)
        pieces = np.searchsorted(starts, places, "right") - 1
        counts = np.diff(starts)[pieces]
        found = zip(pieces.tolist(), (places - starts[pieces]).tolist(), counts.tolist(), strict=True)
        table = pa.Table.from_batches([self._batch(*each, with_place) for each in found], with_place)
        order = np.argsort(table[_PLACE].to_numpy())
        if len(order) != self.layout.rows(number):
            raise ValueError(
                f"{self.work} holds {len(order):,} of the {self.layout.rows(number):,} rows of shard {number}: a file "
                "in it is damaged. Delete the folder, and run the command again."
            )
        table = table.drop_columns([_PLACE]).combine_chunks()
        name = self.layout.file(number, self.format)
        file = self.work / OUT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._done_file(number).with_suffix(f".{os.getpid()}")  # not where the buckets will be
        temporary.parent.mkdir(exist_ok=True)
        parts = (table.take(order[start : start + _ROWS]) for start in range(0, len(order), _ROWS))
        try:
            if self.format == "parquet":
                write_parquet(parts, temporary, schema)
            else:
                write_tar(parts, temporary, "{}-{:05d}".format(*self.layout.bucket_of(number)))
            made = Shard(name, len(order), temporary.stat().st_size, file_digest(temporary))
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
        write_atomically(self._done_file(number), json.dumps(asdict(made)))

    def shards(self) -> list[tuple[Shard, ...]]:
        """The shards of each bucket, when all are written."""
        read = [Shard(**read_json(self._done_file(number), _REMEDY)) for number in range(int(self.layout.first[-1]))]
        return [tuple(read[start:stop]) for start, stop in zip(self.layout.first, self.layout.first[1:], strict=False)]


def _sorted(table: pa.Table, shards: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows as batches, one for each shard that they go into, with its number; rows of shard −1 are left out."""
    order = np.argsort(shards, kind="stable")
    order = order[np.searchsorted(shards[order], 0) :]
    table = table.take(order).combine_chunks()
    numbers, starts = np.unique(shards[order], return_index=True)
    for number, start, stop in zip(numbers.tolist(), starts, [*starts[1:], len(order)], strict=True):
        for batch in table.slice(start, stop - start).to_batches():
            yield number, batch


def open_work(work: Path, identity: dict[str, Any]) -> None:
    """Makes the folder of unfinished work, or goes on with it; another run's is deleted, unless that is at work."""
    plan = work / _PLAN
    identity = json.loads(json.dumps(identity))
    if work.exists():
        same = plan.is_file() and read_json(plan, _REMEDY) == identity
        if not same:
            living = Claims(work / _CLAIMS, 120).living()
            if living:
                raise RuntimeError(
                    f"Another process writes there, with other data or other settings: {living[0].owner} "
                    f"({living[0].name}). Wait for it or end it, or name another place."
                )
        if not same or not (work / OUT).is_dir():  # of a run that was killed when all was done
            shutil.rmtree(work)
    (work / OUT).mkdir(parents=True, exist_ok=True)
    write_atomically(plan, json.dumps(identity), keep_existing=True)
