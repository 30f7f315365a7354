"""Shards of a remote folder as files of this machine: fetched once, ahead of need, and removed beyond a limit."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import datasets
import numpy as np
from datasets.utils.py_utils import convert_file_size_to_int

from hf_curriculum.files import DamagedFileError, lock_file, new_file, own_folder
from hf_curriculum.remote import RemoteFolder
from hf_curriculum.streaming.index import BucketIndex, Shard
from hf_curriculum.streaming.plan import PassOrder, StreamPlan, stage_buckets

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

THREADS = 4
"""Shards that one reader fetches at the same time before it needs them."""
POLL = 0.05
"""Seconds between two looks at a shard that another process fetches."""

_FILLING = 64  # processes that may fill a cache together before one looks at its size again
_PREFIX, _LOCK = "bucketed-", ".lock"

_cleaned: set[Path] = set()


class ShardCache:
    """Files of this machine with shards of a remote folder, shared by readers in any number of processes.

    A shard gets its name when it is complete and has the digest of the index, never before.

    Args:
        remote: the folder.
        index: what is in it.
        root: the cache, by default in that of `datasets`. It has one folder per address and content.
        limit: bytes of all shards in `root`, as a number or like `"200GB"`; beyond it the least recently used ones
            are removed. A reader that has one of them open is not disturbed.

    Raises:
        ValueError: the limit is not a size, or is smaller than a shard.
    """

    def __init__(
        self, remote: RemoteFolder, index: BucketIndex, root: str | Path | None = None, limit: int | str | None = None
    ) -> None:
        self.remote = remote
        self.root: Path = Path(root or Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", "buckets")).absolute()
        name = re.sub(r"[^A-Za-z0-9.]+", "-", remote.address).strip("-")[-100:]
        self.folder: Path = self.root / f"{_PREFIX}{name}-{index.digest}"
        self.limit: int | None = None if limit is None else convert_file_size_to_int(limit)
        largest = max((shard.bytes for bucket in index.buckets for shard in bucket.shards), default=0)
        if self.limit is not None and self.limit < largest:
            raise ValueError(
                f"cache_limit={limit!r} was given, but the largest shard of {remote.address} has {largest:,} bytes, "
                "and a shard is read from the cache. Give at least that, or leave cache_limit out."
            )
        self._room = 0.0
        if self.folder not in _cleaned:  # a second time this process itself might be fetching
            _cleaned.add(self.folder)
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Removes what killed processes left, whose locks nobody holds."""
        for left in self.folder.rglob(".*"):
            name = left.name if left.suffix == _LOCK else f".{left.name.split('.', 2)[-1]}{_LOCK}"
            with lock_file(left.with_name(name)) as holder:
                if holder == "":
                    left.unlink(missing_ok=True)

    def validate_limit(self, plan: StreamPlan) -> None:
        """Warns where a run's readers, all on this machine, hold more open or fetch more ahead than the limit."""
        if self.limit is None:
            return
        needed, count = 0, plan.partitions.count
        for stage in plan.stages:
            sizes = [[shard.bytes for shard in plan.shards[bucket]] for bucket in stage_buckets(stage, plan.index)]
            needed = max(needed, sum(min(sum(each), 2 * count * max(each)) for each in sizes))
        if self.limit < needed:
            warnings.warn(
                f"cache_limit={self.limit:,} bytes, but a machine that reads all {count} partitions of this stream "
                f"has up to {needed:,} bytes of shards open or fetched ahead: some would be fetched again and again. "
                "Give at least that, or lower partitions_per_step or worker_partitions.",
                stacklevel=2,
            )

    def read_ahead(self, plan: StreamPlan) -> ReadAhead:
        """What gives one reader of a plan its shards."""
        return ReadAhead(self, plan)

    def fetch(self, shard: Shard) -> Path:
        """The file of a shard, fetched unless it is there; of several that ask for it one does, and the others wait.

        Raises:
            As `RemoteFolder.download`.
        """
        target = self.folder / shard.file
        for folder in (self.folder, target.parent):
            own_folder(folder)
        while not _touch(target, shard):
            with lock_file(target.with_name(f".{target.name}{_LOCK}")) as holder:
                if not holder and not _touch(target, shard):
                    self._download(shard, target)
            if holder:
                time.sleep(POLL)
        return target

    def _download(self, shard: Shard, target: Path) -> None:
        with new_file(target) as part:
            self.remote.download(shard.file, shard.bytes, shard.digest, part)
        if self.limit is not None:
            self._room -= shard.bytes
            if self._room <= 0:
                self._room = self._evict(target) / _FILLING

    def _evict(self, kept: Path) -> int:
        """Removes least recently used shards but one, down to 95 % if there is more than the limit; the room left."""
        found = []
        for folder in self.root.glob(f"{_PREFIX}*-{'[0-9a-f]' * 32}"):
            for path in folder.rglob("[!.]*.*"):
                with suppress(FileNotFoundError):  # another process has removed it
                    facts = path.stat()
                    found.append((facts.st_atime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in found)
        if total > self.limit:
            for _, size, path in sorted(found):
                if total > self.limit - self.limit // 20 and path != kept:
                    with suppress(PermissionError):  # Windows keeps what is open
                        path.unlink(missing_ok=True)
                        total -= size
        return self.limit - total


def _touch(target: Path, shard: Shard) -> bool:
    """Whether a file holds all of a shard; then it is the one used last. Its other time identifies the content."""
    try:
        facts = target.stat()
        with suppress(PermissionError):  # another user's
            os.utime(target, ns=(time.time_ns(), facts.st_mtime_ns))
    except FileNotFoundError:
        return False
    return facts.st_size == shard.bytes


class ReadAhead:
    """The files of the shards that one reader opens, and threads that fetch the next one of each partition and bucket.

    Args:
        cache: where they are kept.
        plan: what is read.
    """

    def __init__(self, cache: ShardCache, plan: StreamPlan) -> None:
        self._cache, self._plan = cache, plan
        self._order: PassOrder | None = None
        self._following: PassOrder | None = None
        self._after: dict[tuple[int, int, int], int] = {}  # (partition, bucket, shard) → next shard
        self._queue: SimpleQueue[Shard | None] = SimpleQueue()
        self._asked: set[str] = set()
        self._started = False
        self.close: Callable[[], object] = weakref.finalize(self, _stop, self._queue, self._asked)

    def open(self, shard: Shard, opened: Callable[[Path, Shard], T]) -> T:
        """A shard that is needed now, opened; one that was damaged in the cache is fetched again."""
        self._asked.discard(shard.file)
        damaged = False
        while True:
            file = self._cache.fetch(shard)
            try:
                return opened(file, shard)
            except FileNotFoundError:  # another process has removed it since
                continue
            except DamagedFileError as error:
                if damaged:
                    raise
                damaged = True
                logger.warning("It is fetched again: %s", error)
                file.unlink(missing_ok=True)

    def begin(self, order: PassOrder, number: int, offset: int) -> None:
        """A reader begins with a partition of a pass, at an offset."""
        if order is not self._order:
            self._order = order
            self._after.clear()
        first, last = order.block_at(number, offset)
        pieces = order.pieces(number, first, last)
        ends = np.cumsum([stop - start for _, _, start, stop in pieces])
        places = np.searchsorted(ends, order.shuffled(number, first, last)[offset - first :], side="right")
        used = [pieces[place] for place in np.unique(places)]  # a resumed reader does not need all of the block
        latest: dict[int, int] = {}
        for bucket, shard, _, _ in [*used, *order.pieces(number, last, self._end(order, number))]:
            if bucket not in latest:
                self._ask(order, bucket, shard)
            elif shard != latest[bucket]:
                self._after[number, bucket, latest[bucket]] = shard
            latest[bucket] = shard

    def opened(self, order: PassOrder, number: int, bucket: int, shard: int) -> None:
        """A partition has opened a shard: fetches the one after it, or the first ones of the next pass."""
        after = self._after.get((number, bucket, shard))
        if after is not None:
            self._ask(order, bucket, after)
        elif order.stop < self._plan.num_samples:
            following = self._following
            if following is None or following.start != order.stop:
                following = self._following = self._plan.pass_at(order.stop)
            for bucket, shard, _, _ in following.pieces(number, 0, min(following.block, self._end(following, number))):
                self._ask(following, bucket, shard)

    def _end(self, order: PassOrder, number: int) -> int:
        """Where the last block ends that a pass needs of a partition; 0 if it needs none."""
        first, stop = (int(order.partitions.before(at)[number]) for at in (order.start, order.stop))
        return order.block_at(number, stop - first - 1)[1] if stop > first else 0

    def _ask(self, order: PassOrder, bucket: int, number: int) -> None:
        shard = self._plan.shards[order.buckets[bucket]][number]
        if shard.file in self._asked:
            return
        self._asked.add(shard.file)
        self._queue.put(shard)
        if not self._started:
            self._started = True
            for _ in range(THREADS):
                threading.Thread(target=_work, args=(self._cache, self._queue, self._asked), daemon=True).start()


def _work(cache: ShardCache, queue: SimpleQueue[Shard | None], asked: set[str]) -> None:
    """Fetches what is asked for, until there is a None."""
    while (shard := queue.get()) is not None:
        if shard.file in asked:
            try:
                cache.fetch(shard)
            except Exception as error:  # the reader tries again, and raises what it meets
                logger.info("%s was not fetched ahead of need: %s", shard.file, error)
            asked.discard(shard.file)


def _stop(queue: SimpleQueue[Shard | None], asked: set[str]) -> None:
    asked.clear()
    for _ in range(THREADS):
        queue.put(None)
