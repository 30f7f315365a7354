"""Reading the examples of a stream from its shards, each lane from front to back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.streaming.index import BucketIndex, Shard
from hf_curriculum.streaming.plan import Lanes, PassOrder
from hf_curriculum.streaming.shards import ParquetShard, TarShard


class ShardFiles:
    """The shards of a data set, numbered, with the row number of the first example of each.

    Args:
        folder: where they are.
        index: which they are.
        columns: which columns to read.
    """

    def __init__(self, folder: Path, index: BucketIndex, columns: Sequence[str]) -> None:
        self.folder, self.format, self.columns = folder, index.format, list(columns)
        self.features = index.typed_features()
        self.buckets = [[shard for shard in bucket.shards if shard.rows] for bucket in index.buckets]
        self.firsts: list[list[int]] = []
        row = 0
        for shards in self.buckets:
            self.firsts.append([])
            for shard in shards:
                self.firsts[-1].append(row)
                row += shard.rows

    def open(self, shard: Shard) -> ParquetShard | TarShard:
        """An open shard.

        Raises:
            ValueError: it holds another number of rows than the index says.
        """
        file = self.folder / shard.file
        if self.format == "parquet":
            opened: ParquetShard | TarShard = ParquetShard(file, self.columns)
        else:
            opened = TarShard(file, self.columns, self.features)
        if opened.num_rows != shard.rows:
            opened.close()
            raise ValueError(
                f"{file} holds {opened.num_rows:,} examples, but the index says {shard.rows:,}: it was replaced after "
                "`save_bucketed` wrote it, and positions in the stream would point at other rows. Copy it again, or "
                "run `save_bucketed` again."
            )
        return opened


class PassReader:
    """One pass over the buckets of a pool.

    Args:
        files: the shards.
        buckets: numbers of the pool's buckets.
        lanes: how sample positions are dealt.
        first_sample: where the pass begins.
        block: examples of a lane that are shuffled together.
        key: 64-bit key of the pass.
        opened: counts how often each shard was opened.
        numbered: whether the row numbers of examples are kept, for `LaneReader.row`.
    """

    def __init__(
        self,
        files: ShardFiles,
        buckets: Sequence[int],
        lanes: Lanes,
        first_sample: int,
        *,
        block: int,
        key: int,
        opened: Counter[str],
        numbered: bool = True,
    ) -> None:
        self.files, self.buckets, self.opened, self.numbered = files, list(buckets), opened, numbered
        rows = tuple(tuple(shard.rows for shard in files.buckets[bucket]) for bucket in buckets)
        self.order = PassOrder(lanes, first_sample, rows, block, key)
        self.lanes: dict[int, LaneReader] = {}

    def lane(self, number: int) -> LaneReader:
        """The reader of one lane."""
        if number not in self.lanes:
            self.lanes[number] = LaneReader(self, number)
        return self.lanes[number]

    def rows(self, samples: np.ndarray) -> np.ndarray:
        """Row numbers, counted through all buckets, of sample positions of this pass; reads no shard."""
        lanes, places = self.order.places(samples)
        rows = np.empty(len(samples), dtype=np.int64)
        blocks = places // self.order.block
        for lane, block in {(int(lane), int(block)) for lane, block in zip(lanes, blocks, strict=True)}:
            chosen = np.flatnonzero((lanes == lane) & (blocks == block))
            first, behind = self.order.block_at(lane, block * self.order.block)
            numbers = self.numbers(self.order.pieces(lane, first, behind))
            rows[chosen] = numbers[self.order.shuffled(lane, first, behind)[places[chosen] - first]]
        return rows

    def numbers(self, pieces: list[tuple[int, int, int, int]]) -> np.ndarray:
        """Row numbers of the examples of a block, in the order in which they are stored."""
        firsts = [self.files.firsts[self.buckets[bucket]][shard] for bucket, shard, _, _ in pieces]
        parts = [np.arange(at + start, at + stop) for at, (_, _, start, stop) in zip(firsts, pieces, strict=True)]
        return np.concatenate(parts)

    def close(self) -> None:
        """Closes every shard."""
        for lane in self.lanes.values():
            lane.close()


class LaneReader:
    """The examples of one lane. It holds one block of them, and a row group of each bucket.

    Args:
        whole: the pass.
        number: of the lane.
    """

    def __init__(self, whole: PassReader, number: int) -> None:
        self.whole, self.number = whole, number
        self._open: dict[int, tuple[int, ParquetShard | TarShard]] = {}
        self._first = self._behind = 0
        self._at: list[int] = []
        self._values: list[list] = []
        self._rows: list[int] = []

    def example(self, place: int) -> dict[str, Any]:
        """The example at a place of this lane's stretch, as stored."""
        if not self._first <= place < self._behind:
            self._load(place)
        at = self._at[place - self._first]
        return {name: values[at] for name, values in zip(self.whole.files.columns, self._values, strict=True)}

    def row(self, place: int) -> int:
        """The row number of the example that `example` gave."""
        return self._rows[self._at[place - self._first]]

    def _load(self, place: int) -> None:
        """Reads the block that holds a place, but for shards that hold nothing from that place on."""
        order = self.whole.order
        self._first, self._behind = order.block_at(self.number, place)
        pieces = order.pieces(self.number, self._first, self._behind)
        at = order.shuffled(self.number, self._first, self._behind)
        wanted = np.sort(at[place - self._first :])
        self._values = [[] for _ in self.whole.files.columns]
        begin = 0
        for bucket, shard, start, stop in pieces:
            size = stop - start
            some = np.searchsorted(wanted, begin) < np.searchsorted(wanted, begin + size)
            parts = self._shard(bucket, shard).read(start, stop) if some else [[None] * size] * len(self._values)
            for values, part in zip(self._values, parts, strict=True):
                values.extend(part)
            begin += size
        self._at = at.tolist()
        self._rows = self.whole.numbers(pieces).tolist() if self.whole.numbered else []

    def _shard(self, bucket: int, number: int) -> ParquetShard | TarShard:
        """A shard of the pool's bucket, kept open until the lane has read on."""
        at, opened = self._open.get(bucket, (None, None))
        if at != number:
            if opened is not None:
                opened.close()
            shard = self.whole.files.buckets[self.whole.buckets[bucket]][number]
            opened = self.whole.files.open(shard)
            self.whole.opened[shard.file] += 1
            self._open[bucket] = number, opened
        return opened

    def close(self) -> None:
        """Closes its shards."""
        for _, opened in self._open.values():
            opened.close()
        self._open = {}


_CHUNK = 1 << 12


@dataclass(frozen=True)
class Share:
    """A reader's share of every optimizer step.

    A step's examples are dealt as `accelerate` deals batches: the processes in turn take `batch_size` of them, as
    often as batches are accumulated. A `DataLoader` asks its workers in turn for a batch.

    Args:
        global_batch_size: examples per optimizer step.
        batch_size: examples per batch of one process.
        rank: this process.
        world_size: processes.
        worker: this worker.
        workers: workers per process.
        first_step: optimizer steps that lie behind the loader's first batch, which it asks of worker 0.

    Raises:
        ValueError: batches of this size cannot make up a step.

    Example:
        >>> share = Share(4, 2, rank=1, world_size=2, worker=0, workers=1)
        >>> [samples.tolist() for samples in share.samples(0, num_steps=2)]
        [[2, 3, 6, 7]]
    """

    global_batch_size: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    first_step: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.global_batch_size % (self.batch_size * self.world_size):
            raise ValueError(
                f"A step of global_batch_size={self.global_batch_size} cannot be made of batches of {self.batch_size} "
                f"on {self.world_size} processes: some process would have fewer examples. Choose global_batch_size = "
                "batch_size × processes × accumulated batches."
            )

    @property
    def accumulated(self) -> int:
        """Batches of one process per optimizer step."""
        return self.global_batch_size // (self.batch_size * self.world_size)

    @property
    def reader(self) -> list[int]:
        """Who this is: batch size, rank, processes, worker, workers."""
        return [self.batch_size, self.rank, self.world_size, self.worker, self.workers]

    def length(self, num_steps: int) -> int:
        """Examples of this reader up to step `num_steps`."""
        batches = (num_steps - self.first_step) * self.accumulated
        return (batches - self.worker + self.workers - 1) // self.workers * self.batch_size

    def step_at(self, seen: int) -> int | None:
        """Optimizer steps that lie behind after `seen` examples, None within a step, or where other workers count."""
        step, rest = divmod(seen, self.batch_size * self.accumulated)
        return self.first_step + step if self.workers == 1 and rest == 0 else None

    def samples(self, seen: int, num_steps: int) -> Iterator[np.ndarray]:
        """The sample positions of this reader from its `seen`-th example on, ascending, a few thousand at a time."""
        batch, within = divmod(seen, self.batch_size)
        total = self.length(num_steps) // self.batch_size
        step_size = max(1, _CHUNK // self.batch_size)
        for first in range(batch, total, step_size):
            own = np.arange(first, min(first + step_size, total))
            step, accumulated = np.divmod(own * self.workers + self.worker, self.accumulated)
            within_step = (accumulated * self.world_size + self.rank) * self.batch_size
            starts = (self.first_step + step) * self.global_batch_size + within_step
            samples = (starts[:, None] + np.arange(self.batch_size)).ravel()
            yield samples[within:] if first == batch else samples
