"""The order of a stream: which example of which shard stands at which slot, as integer arithmetic.

Readers of a stream cannot jump to any row, as those of a table can. So the stream is dealt to *lanes*, each of which
reads its own part of every bucket of the pool from front to back. Lanes are dealt by the slot alone: how many
processes and workers share them changes who reads what, never what stands where.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from hf_curriculum.keyed import mix64, permute


@dataclass(frozen=True)
class Lanes:
    """How slots are dealt to lanes: by the place within the step, and by the step in turn.

    Args:
        global_batch_size: examples per optimizer step.
        shares: parts of a step that are read apart, as by several processes; lowered to a divisor of the batch size.
        turns: steps in turn that are read apart, as by several workers.

    Raises:
        ValueError: a number is less than 1.

    Example:
        >>> lane, place = Lanes(4, shares=2, turns=2).deal(np.arange(10))
        >>> lane.tolist()
        [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]
    """

    global_batch_size: int
    shares: int
    turns: int

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "shares", "turns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} was given; at least 1 is needed.")
        object.__setattr__(self, "shares", gcd(self.shares, self.global_batch_size))

    @property
    def count(self) -> int:
        """How many lanes there are."""
        return self.shares * self.turns

    @property
    def run(self) -> int:
        """Neighbouring slots of a step that belong to one lane."""
        return self.global_batch_size // self.shares

    def deal(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lane, how many slots of that lane stand before) of each slot, counted from slot 0."""
        step, place = np.divmod(slots, self.global_batch_size)
        turn, share = step % self.turns, place // self.run
        return turn * self.shares + share, step // self.turns * self.run + place % self.run

    def before(self, slot: int) -> np.ndarray:
        """How many slots of each lane are below `slot`; int64, shape (count,)."""
        cycles, rest = divmod(slot, self.global_batch_size * self.turns)
        steps, places = divmod(rest, self.global_batch_size)
        turn, share = np.divmod(np.arange(self.count), self.shares)
        begun = np.clip(places - share * self.run, 0, self.run)
        return cycles * self.run + np.where(turn < steps, self.run, np.where(turn == steps, begun, 0))


@dataclass(frozen=True)
class PassOrder:
    """One pass over some buckets.

    The buckets are merged into one sequence that holds them in proportion everywhere. Each lane has a stretch of it,
    in blocks that are shuffled.

    Args:
        lanes: how slots are dealt.
        first_slot: where the pass begins.
        shards: rows of each shard, a sequence for each bucket; none is empty.
        block: examples that are shuffled together.
        key: 64-bit key of the pass.

    Example:
        >>> order = PassOrder(Lanes(1, 1, 1), 0, ((2, 2), (4,)), block=4, key=7)
        >>> order.block_at(0, 5)
        (4, 8)
    """

    lanes: Lanes
    first_slot: int
    shards: tuple[tuple[int, ...], ...]
    block: int
    key: int

    def __post_init__(self) -> None:
        sizes = [sum(rows) for rows in self.shards]
        before = self.lanes.before(self.first_slot)
        lengths = self.lanes.before(self.first_slot + sum(sizes)) - before
        orders = [permute(np.arange(len(rows)), len(rows), mix64(self.key, n)) for n, rows in enumerate(self.shards)]
        ends = [np.cumsum(np.asarray(rows)[order]) for rows, order in zip(self.shards, orders, strict=True)]
        for name, value in (
            ("_upto", np.cumsum(sizes).tolist()),
            ("_before", before),
            ("_lengths", lengths.tolist()),
            ("_firsts", (np.cumsum(lengths) - lengths).tolist()),
            ("_orders", orders),
            ("_ends", ends),
        ):
            object.__setattr__(self, name, value)

    def places(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lane, place in that lane's stretch) of slots of this pass."""
        lane, number = self.lanes.deal(slots)
        return lane, number - self._before[lane]

    def block_at(self, lane: int, place: int) -> tuple[int, int]:
        """First place, and place behind the last, of the block of a lane's stretch that holds `place`."""
        first = place // self.block * self.block
        return first, min(first + self.block, self._lengths[lane])

    def shuffled(self, lane: int, first: int, behind: int) -> np.ndarray:
        """Which example of the block stands at each of its places; int64, shape (behind − first,)."""
        size = behind - first
        return permute(np.arange(size), size, mix64(self.key, len(self.shards), lane, first))

    def pieces(self, lane: int, first: int, behind: int) -> list[tuple[int, int, int, int]]:
        """(bucket, shard, first row, row behind the last) of what a stretch of a lane is made of, bucket by bucket.

        For one lane and bucket the pieces of successive stretches follow each other through the shards.
        """
        start = self._firsts[lane]
        found = []
        spans = zip(self._merged(start + first), self._merged(start + behind), strict=True)
        for bucket, (position, stop) in enumerate(spans):
            ends, order = self._ends[bucket], self._orders[bucket]
            number = int(np.searchsorted(ends, position, side="right"))
            while position < stop:
                shard = int(order[number])
                begin = int(ends[number]) - self.shards[bucket][shard]
                upto = min(stop, int(ends[number]))
                found.append((bucket, shard, position - begin, upto - begin))
                position, number = upto, number + 1
        return found

    def _merged(self, position: int) -> list[int]:
        """How many examples of each bucket are among the first `position` of the merged sequence."""
        counts = []
        for number in range(len(self._upto) - 1, 0, -1):
            easier = position * self._upto[number - 1] // self._upto[number]
            counts.append(position - easier)
            position = easier
        return [position, *reversed(counts)]
