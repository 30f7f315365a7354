"""Rows read front to back, and written as one folder of shards per bucket, by any number of processes that may die.

First each piece of the source (a shard of a crawl, a stretch of a data set) is read once, and its rows are kept in
one file, sorted by the shard that they go into. Then each shard is gathered from these files, and its rows are put in
their random order. Pieces and shards are written completely or not at all, and belong to the process that asks first.
What is read back is compared, and bound to its run and its place: what was damaged meanwhile is made again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from datasets import Features
from tqdm.auto import tqdm
from xxhash import xxh3_64_intdigest

from hf_curriculum.claims import Claim, Claims
from hf_curriculum.config import digest
from hf_curriculum.files import (
    DamagedFileError,
    file_digest,
    new_file,
    own_folder,
    read_sealed,
    reading,
    refuse_link,
    write_sealed,
)
from hf_curriculum.rng import mix64, permute
from hf_curriculum.streaming.index import Shard, ShardFormat
from hf_curriculum.streaming.shards import footer_digest, merged_tables, write_parquet, write_tar

logger: logging.Logger = logging.getLogger(__name__)

ENDINGS: dict[str, str] = {"parquet": "parquet", "webdataset": "tar"}
"""The ending of a shard's file, by its format."""
_PLAN, _PIECES, _DONE, _CLAIMS = "plan.json", "pieces", "done", "claims"
_RUN_BYTES = 1 << 27  # rows of a piece that are sorted together: 128 MB
_ROWS = 1 << 10
_POLL = 0.2
_PLACE = "__place"
_ENTRY = 3 * 8  # bytes in the table of a piece's batches: where one begins and ends, and its digest; uint64 each
_REMEDY = "The same command makes it again."


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
        facts: all that decides what is written, JSON-able. Processes with equal ones share the work.
        lease: seconds without a sign of life after which a process on another machine counts as dead.
    """

    source: Source
    layout: Layout
    work: Path
    format: ShardFormat
    facts: Mapping[str, Any]
    lease: float = 120
    _numbers: dict[int, np.ndarray] = field(default_factory=dict)  # piece → shard of each of its batches

    @cached_property
    def identity(self) -> str:
        """A digest of the facts, 32 hexadecimal digits."""
        return digest(json.dumps(self.facts, sort_keys=True), size=16)

    @property
    def out(self) -> Path:
        """The folder that becomes the folder of buckets; no other run has one of this name."""
        return self.work / f"out-{self.identity}"

    @property
    def is_finished(self) -> bool:
        """Whether another process has given the folder its name already, and deleted the work."""
        return not self.out.is_dir()

    @contextmanager
    def joined(self) -> Iterator[Claims]:
        """Claims of this process, one of them on the run itself: as long as it lives no other run is begun here."""
        claims = Claims(self.work / _CLAIMS, self.lease)
        with claims.alive():
            claims.take(f"run {secrets.token_hex(4)}")
            yield claims

    def living(self) -> list[Claim]:
        """Claims of processes that are at work in the folder, for this run or another one."""
        return Claims(self.work / _CLAIMS, self.lease).living()

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
        pieces, shards, lost = len(self.source.names), int(self.layout.first[-1]), set[int]()
        with (
            self.joined() as claims,
            tqdm(total=pieces + shards, desc="Bucketing", unit="file", disable=None if watched else True) as bar,
        ):
            while not self.is_finished:
                bar.update(-bar.n)
                try:
                    self._share(claims, "read", pieces, self._is_read, self._write_piece, bar)
                    self._share(claims, "write", shards, self._is_written, self._write_shard, bar)
                    return
                except _LostPieceError as error:
                    if error.piece in lost:
                        raise error.why from None
                    lost.add(error.piece)
                    vars(self).pop("_batches", None)
                except OSError:
                    if not self.is_finished:
                        raise

    def _share(
        self,
        claims: Claims,
        verb: str,
        count: int,
        is_made: Callable[[int], bool],
        make: Callable[[int], None],
        bar: tqdm,
    ) -> None:
        """Makes what is missing of `count` files, of which other processes make some; returns when all are there."""
        left, before = list(range(count)), bar.n
        while left:
            busy = []
            for number in left:
                if not is_made(number):
                    if self.is_finished:
                        return
                    if not claims.take(f"{verb} {number}"):
                        busy.append(number)
                        continue
                    try:
                        if not (is_made(number) or self.is_finished):
                            make(number)
                    finally:
                        claims.give_back(f"{verb} {number}")
                bar.update(1)
            if left := busy:
                time.sleep(_POLL)
        bar.update(before + count - bar.n)

    def _read_facts(self, file: Path, needs: Sequence[str], number: int) -> dict[str, Any] | None:
        """What this run noted of a piece or a shard; None where it is not made. A damaged note is deleted."""
        try:
            facts = read_sealed(file, _REMEDY, ("run", "number", *needs))
            if (facts["run"], facts["number"]) == (self.identity, number):
                return facts
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            logger.warning("%s", error)
        file.unlink(missing_ok=True)
        return None

    def _write_facts(self, file: Path, number: int, facts: Mapping[str, Any]) -> None:
        write_sealed(file, {"run": self.identity, "number": number, **facts})

    # ---- A piece: read once, sorted by shard ----

    def _piece_file(self, piece: int) -> Path:
        return self.work / _PIECES / f"{piece:06d}.batches"

    @cached_property
    def _before(self) -> np.ndarray:
        """Rows of each bucket in the pieces before each; int64 (pieces, buckets)."""
        return np.cumsum(self.source.counts, axis=0) - self.source.counts

    def _is_read(self, piece: int) -> bool:
        facts = self._read_facts(self._piece_file(piece).with_suffix(".json"), ["shards"], piece)
        if facts is not None:
            self._numbers[piece] = np.array(facts["shards"], np.int32)
        return facts is not None

    def _write_piece(self, piece: int) -> None:
        buckets = self.source.buckets(piece)
        shards, places = np.full(len(buckets), -1, np.int64), np.zeros(len(buckets), np.int64)
        for bucket in np.unique(buckets[buckets >= 0]).tolist():
            rows = np.flatnonzero(buckets == bucket)
            first = int(self._before[piece, bucket])
            shards[rows], places[rows] = self.layout.places(bucket, np.arange(first, first + len(rows)))
        file = self._piece_file(piece)
        schema = self.source.features.arrow_schema.append(pa.field(_PLACE, pa.int64()))
        numbers: list[int] = []
        entries: list[tuple[int, int, int]] = []
        start = 0
        with new_file(file, lasting=False) as temporary, temporary.open("wb") as sink:
            for table in merged_tables(self.source.tables(piece), _RUN_BYTES):
                stop = start + table.num_rows
                table = table.append_column(_PLACE, pa.array(places[start:stop])).cast(schema)
                for number, batch in _sorted(table, shards[start:stop]):
                    content, first = batch.serialize(), sink.tell()
                    sink.write(content)
                    entries.append((first, first + len(content), self._batch_digest(content, piece, len(numbers))))
                    numbers.append(number)
                start = stop
            sink.write(np.array(entries, np.uint64).tobytes())  # an Arrow file would have to be read whole to find one
            if start != len(buckets):
                raise ValueError(
                    f"{self.source.names[piece]} holds {start:,} rows, and {len(buckets):,} were scored: it "
                    "was changed since. Run the same `score_shards` again: it scores what has changed."
                )
        self._write_facts(file.with_suffix(".json"), piece, {"shards": numbers})
        self._numbers[piece] = np.array(numbers, np.int32)

    def _batch_digest(self, content: bytes | pa.Buffer, piece: int, place: int) -> int:
        """XXH3 of a batch, for this place in this piece of this run: elsewhere it has another one."""
        return xxh3_64_intdigest(content, xxh3_64_intdigest(f"{self.identity} {piece} {place}".encode()))

    # ---- A shard: gathered from all pieces ----

    def _done_file(self, number: int) -> Path:
        return self.work / _DONE / f"{number:06d}.json"

    def _is_written(self, number: int) -> bool:
        return self._shard(number) is not None

    def _shard(self, number: int) -> Shard | None:
        """A shard that is written; None where it is not, or not any more."""
        facts = self._read_facts(self._done_file(number), ["shard"], number)
        shard = None if facts is None else Shard(**facts["shard"])
        with suppress(FileNotFoundError):
            if shard is not None and (self.out / shard.file).stat().st_size == shard.bytes:
                return shard
        return None

    @cached_property
    def _batches(self) -> tuple[np.ndarray, np.ndarray]:
        """The shard of every batch of all pieces, int32 (batches,), and where each piece begins among them, int64."""
        numbers = [self._numbers[piece] for piece in range(len(self.source.names))]
        return np.concatenate(numbers), np.cumsum([0, *map(len, numbers)])

    def _batches_of(self, number: int) -> Iterator[tuple[int, int]]:
        """(piece, place in it) of the batches that go into a shard."""
        numbers, starts = self._batches
        at = np.flatnonzero(numbers == number)
        pieces = np.searchsorted(starts, at, "right") - 1
        yield from zip(pieces.tolist(), (at - starts[pieces]).tolist(), strict=True)

    def _batch(self, piece: int, place: int, schema: pa.Schema) -> pa.RecordBatch:
        """A batch of a piece."""
        file = self._piece_file(piece)
        try:
            with reading(file, _REMEDY), file.open("rb") as stream:
                table = os.fstat(stream.fileno()).st_size - _ENTRY * len(self._numbers[piece])
                stream.seek(table + _ENTRY * place)
                start, stop, recorded = np.frombuffer(stream.read(_ENTRY), np.uint64).tolist()
                if not start <= stop <= table:
                    raise ValueError(f"its batch {place} is said to be at bytes {start} to {stop}")
                stream.seek(start)
                content = stream.read(stop - start)
                if self._batch_digest(content, piece, place) != recorded:
                    raise ValueError(f"its batch {place} has another digest than was written")
                return pa.ipc.read_record_batch(pa.py_buffer(content), schema)
        except (DamagedFileError, FileNotFoundError) as error:
            logger.warning("%s", error)
            file.with_suffix(".json").unlink(missing_ok=True)
            raise _LostPieceError(piece, error) from error

    def _write_shard(self, number: int) -> None:
        schema = self.source.features.arrow_schema
        with_place = schema.append(pa.field(_PLACE, pa.int64()))
        batches = [self._batch(piece, place, with_place) for piece, place in self._batches_of(number)]
        table = pa.Table.from_batches(batches, with_place)
        order = np.argsort(table[_PLACE].to_numpy())
        if len(order) != self.layout.rows(number):
            raise DamagedFileError(
                f"{self.work} holds {len(order):,} of the {self.layout.rows(number):,} rows of shard {number}. Delete "
                "the folder, and run the command again."
            )
        table = table.drop_columns([_PLACE]).combine_chunks()
        name = self.layout.file(number, self.format)
        finished = self._done_file(number).with_suffix(f".{ENDINGS[self.format]}")  # not where the buckets will be
        parts = (table.take(order[start : start + _ROWS]) for start in range(0, len(order), _ROWS))
        with new_file(finished) as temporary:
            if self.format == "parquet":
                write_parquet(parts, temporary, schema, name=name)
            else:
                write_tar(parts, temporary, "{}-{:05d}".format(*self.layout.bucket_of(number)))
            footer = footer_digest(temporary) if self.format == "parquet" else ""
            shard = Shard(name, len(order), temporary.stat().st_size, file_digest(temporary), footer)
        file = self.out / name
        with suppress(FileExistsError):
            file.parent.mkdir()  # its parent was deleted where the run is finished
        refuse_link(file.parent)
        os.replace(finished, file)
        self._write_facts(self._done_file(number), number, {"shard": asdict(shard)})

    def shards(self) -> list[tuple[Shard, ...]]:
        """The shards of each bucket, when all are written."""
        written: list[Shard] = []
        for number in range(int(self.layout.first[-1])):
            shard = self._shard(number)
            if shard is None:
                raise DamagedFileError(f"{self._done_file(number)}, or its shard, was damaged meanwhile. {_REMEDY}")
            written.append(shard)
        ends = zip(self.layout.first, self.layout.first[1:], strict=False)
        return [tuple(written[start:stop]) for start, stop in ends]


class _LostPieceError(Exception):
    """A piece cannot be read back, and has to be made again."""

    def __init__(self, piece: int, why: Exception) -> None:
        super().__init__(piece, why)
        self.piece, self.why = piece, why


def _sorted(table: pa.Table, shards: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows as batches, one for each shard that they go into, with its number; rows of shard −1 are left out."""
    order = np.argsort(shards, kind="stable")
    order = order[np.searchsorted(shards[order], 0) :]
    table = table.take(order).combine_chunks()
    numbers, starts = np.unique(shards[order], return_index=True)
    for number, start, stop in zip(numbers.tolist(), starts, [*starts[1:], len(order)], strict=True):
        for batch in table.slice(start, stop - start).to_batches():
            yield number, batch


def open_work(run: Bucketing) -> None:
    """Makes the folder of unfinished work, or goes on with it; another run's is deleted, unless that is at work.

    The caller holds the lock of what is made, and joins the run before it gives that back.

    Raises:
        RuntimeError: processes of another run work there.
        ValueError: there is a link where the work would be.
    """
    refuse_link(run.work)
    plan = run.work / _PLAN
    if run.work.exists():
        try:
            same = read_sealed(plan, _REMEDY, ["run"])["run"] == run.identity and not run.is_finished
        except (DamagedFileError, FileNotFoundError):
            same = False
        if not same:
            if living := run.living():
                raise RuntimeError(
                    f"Another process writes in {run.work}, with other data or other settings: {living[0].owner} "
                    f"({living[0].name}). Wait for it or end it, or name another place."
                )
            shutil.rmtree(run.work)
    for folder in (run.work, run.out, run.work / _PIECES, run.work / _DONE, run.work / _CLAIMS):
        own_folder(folder)
    write_sealed(plan, {"run": run.identity})
