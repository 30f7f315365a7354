"""Plans over buckets on disk, where a stream knows the buckets but not every example's score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import ClassVar

import numpy as np

from hf_curriculum.curricula.filter import Filter
from hf_curriculum.curricula.iid import IID
from hf_curriculum.curricula.phases import Phases
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.planning.plan import Plan, make_plan
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import mix64, permute
from hf_curriculum.streaming.index import BucketIndex

_PLANNED = (Filter, IID, Phases)


@dataclass(frozen=True, eq=False)
class BucketScores:
    """Stands for the scores of bucketed examples: all examples of a bucket have its threshold, the hardest ±infinity.

    Cuts by rank, and cuts by value at the buckets' own thresholds, come out as they do with the real scores. It takes
    no memory per example, until somebody wants an array.

    Args:
        index: the buckets; row numbers count through them, easiest first.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.float64)

    index: BucketIndex

    def __post_init__(self) -> None:
        hardest = np.inf if self.index.easy == "low" else -np.inf
        marks = [hardest if mark is None else mark for mark in self.index.thresholds]
        object.__setattr__(self, "_values", np.array([*marks, hardest]))
        object.__setattr__(self, "_ends", np.cumsum(self.index.sizes))

    def __len__(self) -> int:
        return self.index.num_rows

    def __getitem__(self, rows: int | np.ndarray) -> np.ndarray:
        values = self._values[np.searchsorted(self._ends, rows, side="right")]
        # The easiest example is a hair easier than its bucket: all scored ones may share it, and are still ordered.
        return np.where(np.equal(rows, 0), np.nextafter(values, -self._values[-1]), values)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.repeat(self._values, self.index.sizes).astype(np.float32 if dtype is None else dtype)


@dataclass(frozen=True)
class RowNumbers:
    """The numbers 0 … size − 1 as an order of rows, without an array of them."""

    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, ranks: int | slice | np.ndarray) -> int | np.ndarray | RowNumbers:
        return RowNumbers(len(range(self.size)[ranks])) if isinstance(ranks, slice) else ranks


def rank_buckets(index: BucketIndex) -> Ranking:
    """The order of bucketed examples: row numbers count through the buckets, so row number and rank are the same.

    Raises:
        ValueError: there is no example.
    """
    size = index.num_rows
    if not size:
        raise ValueError("The buckets hold no example: there is nothing to read. Write them again with rows.")
    missing = index.num_unscored if index.unscored != "drop" else 0
    return Ranking(RowNumbers(size), BucketScores(index), size - missing, index.easy, index.score_column, missing)


def plan_buckets(
    curriculum: Curriculum,
    index: BucketIndex,
    *,
    global_batch_size: int,
    seed: int = 0,
    epochs: float | None = None,
    max_steps: int | None = None,
) -> Plan:
    """Binds a curriculum to buckets on disk. Its pools have to begin and end where buckets do.

    Args:
        curriculum: `IID`, `Phases`, or a `Filter` over one of them.
        index: the buckets.
        global_batch_size: examples per optimizer step.
        seed: key of every draw.
        epochs: see `make_plan`.
        max_steps: see `make_plan`.

    Raises:
        TypeError: the curriculum looks at the scores of single examples.
        ValueError: a pool ends within a bucket, or the curriculum contradicts what the buckets were written with.

    Example:
        >>> plan = plan_buckets(Phases(2), save_bucketed(scored, "buckets", 4, score_column="s"), global_batch_size=8)
    """
    _validate_planned(curriculum)
    _validate_order(curriculum, index)
    plan = make_plan(
        _with_thresholds(curriculum, index),
        rank_buckets(index),
        global_batch_size=global_batch_size,
        seed=seed,
        epochs=epochs,
        max_steps=max_steps,
    )
    for stage in plan.stages:
        stage_buckets(stage, index)
    return plan


def stage_buckets(stage: Stage, index: BucketIndex) -> tuple[int, ...]:
    """Numbers of the buckets that a stage's pool is made of; those without examples are left out.

    Raises:
        ValueError: the pool begins or ends within a bucket.
    """
    ends = np.cumsum(index.sizes).tolist()
    starts = [0, *ends[:-1]]
    for first, behind in stage.slices:
        if first not in starts or behind not in ends:
            raise ValueError(
                f"{stage.name.capitalize()} draws from the ranks {first:,} to {behind - 1:,}, but the buckets on disk "
                f"end behind the ranks {', '.join(f'{end - 1:,}' for end in ends)}: a stream reads whole buckets. "
                f"Use as many phases as there are buckets ({len(ends)}) or a divisor of it, or run `save_bucketed` "
                "again with the curriculum's own cuts."
            )
    return tuple(
        number
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        if end > start and any(first <= start and end <= behind for first, behind in stage.slices)
    )


def _validate_planned(curriculum: Curriculum) -> None:
    inner = curriculum.then if isinstance(curriculum, Filter) else curriculum
    if not isinstance(inner, _PLANNED):
        raise TypeError(
            f"{type(inner).__name__} looks at the scores of single examples or decides while training runs; a stream "
            f"knows its buckets only. Use {', '.join(rule.__name__ for rule in _PLANNED)}, or load the data as a "
            "`Dataset` for CurriculumTrainer."
        )
    if curriculum.partial_batches == "keep":
        raise ValueError(
            "partial_batches='keep' leaves holes in batches, which a stream does not have. Use 'stream', the default."
        )


def _validate_order(curriculum: Curriculum, index: BucketIndex) -> None:
    """The curriculum's own words on the order have to be those that the buckets were written with."""
    if curriculum.easy not in (None, index.easy):
        raise ValueError(
            f"The curriculum says easy={curriculum.easy!r}, but the buckets were written with easy={index.easy!r}. "
            f"Run `save_bucketed(..., easy={curriculum.easy!r})` into another folder."
        )
    written_without = index.unscored == "drop" or not index.num_unscored
    if curriculum.unscored != "last" and not written_without:
        raise ValueError(
            f"The curriculum says unscored={curriculum.unscored!r}, but the last bucket holds {index.num_unscored:,} "
            "rows without a score. Run `save_bucketed(..., unscored='drop')` into another folder."
        )


def _with_thresholds(curriculum: Curriculum, index: BucketIndex) -> Curriculum:
    """A curriculum that cuts by value takes its cuts from the buckets, whose quantiles a stream could not compute."""
    if isinstance(curriculum, Filter):
        return replace(curriculum, then=_with_thresholds(curriculum.then, index))
    if not isinstance(curriculum, Phases) or curriculum.cut != "value" or curriculum.num_phases == 1:
        return curriculum
    if index.cut != "value" or curriculum.num_phases != len(index.buckets):
        raise ValueError(
            f"{curriculum.num_phases} phases cut by value were asked for, but there are {len(index.buckets)} buckets "
            f"cut by {index.cut}. Run `save_bucketed` with num_buckets={curriculum.num_phases} and cut='value', or "
            "change the curriculum."
        )
    if curriculum.thresholds is not None and curriculum.thresholds != index.thresholds:
        raise ValueError(
            f"The curriculum says thresholds={curriculum.thresholds}, but the buckets were cut at {index.thresholds}. "
            "Leave them out of the curriculum, or run `save_bucketed` with them."
        )
    return replace(curriculum, thresholds=index.thresholds)


@dataclass(frozen=True)
class Lanes:
    """How sample positions are dealt to lanes: by the place within the step, and by the step in turn.

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
        """Neighbouring sample positions of a step that belong to one lane."""
        return self.global_batch_size // self.shares

    def deal(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lane, how many positions of that lane come before) of each sample position, counted from 0."""
        step, place = np.divmod(samples, self.global_batch_size)
        turn, share = step % self.turns, place // self.run
        return turn * self.shares + share, step // self.turns * self.run + place % self.run

    def before(self, sample: int) -> np.ndarray:
        """How many sample positions of each lane are below `sample`; int64, shape (count,)."""
        cycles, rest = divmod(sample, self.global_batch_size * self.turns)
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
        lanes: how sample positions are dealt.
        first_sample: where the pass begins.
        shards: rows of each shard, a sequence for each bucket; none is empty.
        block: examples that are shuffled together.
        key: 64-bit key of the pass.

    Example:
        >>> order = PassOrder(Lanes(1, 1, 1), 0, ((2, 2), (4,)), block=4, key=7)
        >>> order.block_at(0, 5)
        (4, 8)
    """

    lanes: Lanes
    first_sample: int
    shards: tuple[tuple[int, ...], ...]
    block: int
    key: int

    def __post_init__(self) -> None:
        sizes = [sum(rows) for rows in self.shards]
        before = self.lanes.before(self.first_sample)
        lengths = self.lanes.before(self.first_sample + sum(sizes)) - before
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

    def places(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lane, place in that lane's stretch) of sample positions of this pass."""
        lane, number = self.lanes.deal(samples)
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
