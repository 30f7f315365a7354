"""Which slots of a stream one reader has to deliver: one worker of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
        >>> [slots.tolist() for slots in Share(4, 2, rank=1, world_size=2, worker=0, workers=1).slots(0, num_steps=2)]
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

    def slots(self, seen: int, num_steps: int) -> Iterator[np.ndarray]:
        """The slots of this reader from its `seen`-th example on, ascending, a few thousand at a time."""
        batch, within = divmod(seen, self.batch_size)
        total = self.length(num_steps) // self.batch_size
        step_size = max(1, _CHUNK // self.batch_size)
        for first in range(batch, total, step_size):
            own = np.arange(first, min(first + step_size, total))
            step, accumulated = np.divmod(own * self.workers + self.worker, self.accumulated)
            within_step = (accumulated * self.world_size + self.rank) * self.batch_size
            starts = (self.first_step + step) * self.global_batch_size + within_step
            slots = (starts[:, None] + np.arange(self.batch_size)).ravel()
            yield slots[within:] if first == batch else slots
