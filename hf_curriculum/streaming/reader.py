"""Reading the examples of a stream from its shards, each partition front to back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Features
from datasets.features.features import require_decoding

from hf_curriculum.data.images import DECODING_ERRORS, UnreadableImageError
from hf_curriculum.data.seeding import IndexedExample
from hf_curriculum.streaming.index import REMEDY, Shard
from hf_curriculum.streaming.plan import PassOrder, StreamPlan
from hf_curriculum.streaming.shards import ParquetShard, TarShard, validate_shard

if TYPE_CHECKING:
    from hf_curriculum.streaming.cache import ReadAhead

logger: logging.Logger = logging.getLogger(__name__)


class StreamReader:
    """Reads examples by sample position, fastest in ascending order.

    `opened` counts how often each shard was opened, and `unreadable` how many of its images could not be decoded.
    """

    ahead: ReadAhead | None = None  # gives the shards of a remote folder

    def __init__(
        self,
        folder: Path,
        plan: StreamPlan,
        features: Features,
        decode: bool,
        opened: Counter[str],
        unreadable: Counter[str],
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.opened = opened
        self.unreadable = unreadable
        self.features = features
        self.columns: tuple[str, ...] = list(features)
        self._is_complete = plan.index.format == "webdataset" or set(features) == set(plan.index.features)
        decoded = decode and any(require_decoding(feature) for feature in features.values())
        self.decode: Any = features.decode_example if decoded else None
        self._pass: PassOrder | None = None
        self._partitions: dict[int, PartitionReader] = {}

    def locate(self, samples: np.ndarray) -> Iterator[Iterator[tuple[int, PartitionReader, int]]]:
        """(sample position, its partition's reader, offset there) of ascending sample positions, pass by pass."""
        while len(samples):
            order = self._pass
            if order is None or not order.start <= samples[0] < order.stop:
                self._close_partitions()
                order = self._pass = self.plan.pass_at(int(samples[0]))
            inside, samples = np.split(samples, [np.searchsorted(samples, order.stop)])
            numbers, offsets = order.locate(inside)
            for number in set(numbers.tolist()) - set(self._partitions):
                self._partitions[number] = PartitionReader(self, order, number)
                if self.ahead is not None:
                    self.ahead.begin(order, number, int(offsets[numbers == number][0]))
            readers = [self._partitions[number] for number in numbers.tolist()]
            yield zip(inside.tolist(), readers, offsets.tolist(), strict=True)

    def read(self, samples: np.ndarray) -> list[IndexedExample]:
        """The examples at ascending sample positions."""
        found = chain.from_iterable(self.locate(samples))
        return [IndexedExample(*reader.example(offset), sample) for sample, reader, offset in found]

    def open(self, shard: Shard) -> ParquetShard | TarShard:
        """An open shard, which is what the index says."""
        opened = (
            self._opened(self.folder / shard.file, shard)
            if self.ahead is None
            else self.ahead.open(shard, self._opened)
        )
        self.opened[shard.file] += 1
        return opened

    def _opened(self, file: Path, shard: Shard) -> ParquetShard | TarShard:
        validate_shard(file, shard, complete=self._is_complete)
        opened = (ParquetShard if self.plan.index.format == "parquet" else TarShard)(file, self.features)
        if opened.num_rows != shard.rows:
            opened.close()
            raise ValueError(
                f"{file} holds {opened.num_rows:,} examples, but the index says {shard.rows:,}, and positions in the "
                f"stream would point at other rows. {REMEDY}"
            )
        return opened

    def decoded(self, example: dict[str, Any], row: int) -> dict[str, Any]:
        """An example with its image decoded; where that fails, the next one of its shard whose image can be."""
        try:
            return self.decode(example)
        except DECODING_ERRORS as error:
            shard, at = self.plan.stored_at(row)
            key = f" (key {example['key']!r})" if "key" in example else ""
            what = f"The image of row {at:,}{key} in {shard.file} cannot be decoded ({type(error).__name__}: {error})"
            self.unreadable[shard.file] += 1
            count = self.unreadable.total()
            if not count & (count - 1):  # each time that there are twice as many
                logger.warning("%s; the next one that can be stands in for it. Such images so far: %d.", what, count)
            return self._next_readable(shard, at, what, error)

    def _next_readable(self, shard: Shard, at: int, what: str, error: BaseException) -> dict[str, Any]:
        """The first example behind a row of a shard, or from its beginning on, whose image can be decoded."""
        opened = self.open(shard)
        try:
            for number in [*range(at + 1, shard.rows), *range(at)]:
                values = (column[0] for column in opened.read(number, number + 1))
                try:
                    return self.decode(dict(zip(self.columns, values, strict=True)))
                except DECODING_ERRORS:
                    continue
        finally:
            opened.close()
        raise UnreadableImageError(
            f"{what}, nor can any other of the {shard.rows:,} there: they are no images, or Pillow lacks what decodes "
            "them. Look at what was bucketed; columns= reads some columns alone, and decode=False keeps the bytes."
        ) from error

    def close(self) -> None:
        """Closes every shard; none is fetched any more."""
        self._close_partitions()
        if self.ahead is not None:
            self.ahead.close()

    def _close_partitions(self) -> None:
        for partition in self._partitions.values():
            partition.close()
        self._pass, self._partitions = None, {}


class PartitionReader:
    """The examples of one partition in one pass. It holds one block of them, and a row group of each bucket."""

    def __init__(self, stream: StreamReader, order: PassOrder, number: int) -> None:
        self.stream = stream
        self.order = order
        self.number = number
        self._columns, self._decode = stream.columns, None if stream.decode is None else stream.decoded
        self._open: dict[int, tuple[int, ParquetShard | TarShard]] = {}
        self._block = range(0)
        self._items: list[tuple] = []

    def example(self, offset: int) -> tuple[dict[str, Any], int]:
        """The example at an offset of this partition's stretch, and its row number."""
        if offset not in self._block:
            self._load(offset)
        item = self._items[offset - self._block.start]
        example = dict(zip(self._columns, item, strict=False))
        return example if self._decode is None else self._decode(example, item[-1]), item[-1]

    def _load(self, offset: int) -> None:
        """Reads the block that holds an offset, without shards that hold nothing from that offset on."""
        first, last = self.order.block_at(self.number, offset)
        pieces = self.order.pieces(self.number, first, last)
        at = self.order.shuffled(self.number, first, last)
        wanted = np.sort(at[offset - first :])
        columns: list[list] = [[] for _ in self.stream.columns]
        begin = 0
        for bucket, shard, start, stop in pieces:
            size = stop - start
            some = np.searchsorted(wanted, begin) < np.searchsorted(wanted, begin + size)
            parts = self._shard(bucket, shard).read(start, stop) if some else [[None] * size] * len(columns)
            for values, part in zip(columns, parts, strict=True):
                values.extend(part)
            begin += size
        rows = self.order.stored_rows(pieces, self.stream.plan.first_rows).tolist()
        items = list(zip(*columns, rows, strict=True))
        self._block, self._items = range(first, last), [items[number] for number in at.tolist()]

    def _shard(self, bucket: int, number: int) -> ParquetShard | TarShard:
        """A shard of one of the pass's buckets, kept open until the partition has been read further."""
        at, opened = self._open.get(bucket, (None, None))
        if at != number:
            if opened is not None:
                opened.close()
            opened = self.stream.open(self.stream.plan.shards[self.order.buckets[bucket]][number])
            self._open[bucket] = number, opened
            if self.stream.ahead is not None:
                self.stream.ahead.opened(self.order, self.number, bucket, number)
        return opened

    def close(self) -> None:
        """Closes its shards."""
        for _, opened in self._open.values():
            opened.close()
        self._open = {}


_CHUNK = 1 << 12


@dataclass(frozen=True)
class WorkerSamples:
    """The sample positions that one worker of one process reads, from a loader that begins after `first_step` steps.

    A step's examples are divided as `accelerate` divides batches: the processes in turn take `batch_size` of them, as
    often as batches are accumulated. A `DataLoader` asks its workers in turn for a batch.
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
            processes = f"{self.world_size} process{'es' * (self.world_size != 1)}"
            step = f"A step of global_batch_size={self.global_batch_size}"
            if self.global_batch_size == 1:
                step = "global_batch_size was not given, and steps of 1"
            raise ValueError(
                f"{step} cannot be made of batches of {self.batch_size} on {processes}: some process would have fewer "
                "examples. Choose global_batch_size = batch_size × processes × accumulated batches."
            )

    @property
    def accumulated(self) -> int:
        """Batches of one process per optimizer step."""
        return self.global_batch_size // (self.batch_size * self.world_size)

    @property
    def reader(self) -> list[int]:
        """What the positions depend on: batch size, rank, processes, worker, workers."""
        return [self.batch_size, self.rank, self.world_size, self.worker, self.workers]

    def length(self, num_steps: int) -> int:
        """Examples of this reader up to step `num_steps`."""
        batches = (num_steps - self.first_step) * self.accumulated
        return (batches - self.worker + self.workers - 1) // self.workers * self.batch_size

    def step_at(self, seen: int) -> int | None:
        """Completed optimizer steps after `seen` examples; None within a step, or for one worker of several."""
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
