"""Plans over buckets on disk: which example of which shard stands at which sample position."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.curricula.filter import Filter
from hf_curriculum.curricula.iid import IID
from hf_curriculum.curricula.phases import Phases
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.planning.plan import Plan, make_plan
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import FileOrder
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import mix64, permute
from hf_curriculum.streaming.index import BucketIndex, Shard, quantile_positions

_PLANNED = (Filter, IID, Phases)


class BucketScores:
    """The scores of bucketed examples by position in the order, interpolated between the quantiles of each bucket.

    It takes no memory per example. Which row of a bucket has which of its scores is not recorded: row numbers count
    through the buckets, and stand for positions. Thresholds fall between the same buckets as in the real scores.
    """

    dtype: ClassVar[np.dtype] = np.dtype(np.float64)

    def __init__(self, index: BucketIndex) -> None:
        self.num_rows: int = index.num_rows
        self.num_scored: int = index.num_rows - (0 if index.unscored == "drop" else index.num_unscored)
        positions, values = [np.array([])], [np.array([])]
        stop = 0
        for number, bucket in enumerate(index.buckets):
            start, stop = stop, min(stop + bucket.rows, self.num_scored)
            if start == stop:
                continue
            positions.append(quantile_positions(start, stop))
            values.append(np.array(index.quantiles[number]))
            mark = index.thresholds[number] if number < len(index.thresholds) else None
            if mark is not None:  # as float32 the hardest score may exceed a threshold that it equals
                values[-1] = (np.minimum if index.easy == "low" else np.maximum)(values[-1], mark)
        self._positions, self._values = np.concatenate(positions), np.concatenate(values)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, positions: int | np.ndarray) -> np.ndarray:
        values = np.interp(positions, self._positions, self._values)
        return np.where(np.less(positions, self.num_scored), values, np.nan)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[np.arange(self.num_rows)].astype(np.float32 if dtype is None else dtype)

    def statistics(self) -> dict[str, Any]:
        """As `score_statistics` of the scores; no array of them is made."""
        unscored = self.num_rows - self.num_scored
        marks = sorted(self[np.linspace(0, self.num_scored - 1, 5)].tolist())
        return {
            "rows": self.num_rows,
            "unscored": unscored,
            "infinite": 0,
            "share_unscored": unscored / self.num_rows,
            **dict(zip(("min", "q25", "median", "q75", "max"), marks, strict=True)),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamPlan(Plan):
    """A plan over buckets on disk, whose order within a stage can be read from shards front to back.

    A pass over a pool reads each of its buckets from front to back, shards in a random order, the buckets mixed in
    proportion, and shuffles the examples in blocks. Row numbers count through the buckets, easiest first. Made by
    `plan_buckets`.
    """

    index: BucketIndex
    partitions: Partitions
    shuffle_buffer: int

    @cached_property
    def shards(self) -> list[list[Shard]]:
        """The shards of each bucket that hold examples."""
        return [[shard for shard in bucket.shards if shard.rows] for bucket in self.index.buckets]

    @cached_property
    def first_rows(self) -> list[np.ndarray]:
        """The row number of the first example of each of `shards`."""
        starts, row = [], 0
        for shards in self.shards:
            ends = row + np.cumsum([0, *(shard.rows for shard in shards)])
            starts.append(ends[:-1])
            row = int(ends[-1])
        return starts

    def stored_at(self, row: int) -> tuple[Shard, int]:
        """The shard that holds a row number, and the row's place in it."""
        starts = np.concatenate(self.first_rows)
        number = int(np.searchsorted(starts, row, "right")) - 1
        return [shard for shards in self.shards for shard in shards][number], row - int(starts[number])

    def pass_at(self, sample: int) -> PassOrder:
        """The pass that a sample position is in."""
        stage = int(np.searchsorted(self.stage_starts, sample, side="right")) - 1
        start, size = self.stage_starts[stage], self.stages[stage].pool_size
        number = (sample - start) // size
        if (stage, number) not in self._passes:  # one at a time: it has a number for each shard
            self._passes.clear()
            self._passes[stage, number] = self._pass(stage, number, start, size)
        return self._passes[stage, number]

    @cached_property
    def _passes(self) -> dict[tuple[int, int], PassOrder]:
        return {}

    def _pass(self, stage: int, number: int, start: int, size: int) -> PassOrder:
        buckets = stage_buckets(self.stages[stage], self.index)
        return PassOrder(
            self.partitions,
            start + number * size,
            min(start + (number + 1) * size, self.stage_starts[stage + 1]),
            buckets,
            tuple(tuple(shard.rows for shard in self.shards[bucket]) for bucket in buckets),
            max(1, self.shuffle_buffer // self.partitions.count),
            mix64(self.seed, stage, number),
        )

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers at positions `[start, stop)`, counted through the buckets; int64. It reads no shard."""
        if not 0 <= start <= stop <= self.num_samples:
            raise IndexError(
                f"Positions {start} to {stop} were asked for; the stream has {self.num_samples} positions."
            )
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            order = self.pass_at(start)
            parts.append(order.rows(np.arange(start, min(stop, order.stop)), self.first_rows))
            start = order.stop
        return np.concatenate(parts)

    def drawn_scores(self, start: int, stop: int) -> np.ndarray:
        """Scores of random draws from the pool of each position; that of a single row stands in its shard alone."""
        return self.ranking.scores[self.positions(start, stop)]

    def fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a checkpoint to be resumed, JSON-able."""
        facts = Plan.fingerprint(replace(self, ranking=replace(self.ranking, scores=None)))
        order = {
            "shuffle_buffer": self.shuffle_buffer,
            "partitions_per_step": self.partitions.per_step,
            "worker_partitions": self.partitions.per_worker,
        }
        return {**facts, "scores": self.index.digest, "stream": order}


def rank_buckets(index: BucketIndex) -> Ranking:
    """The order of bucketed examples: row numbers count through the buckets, so they are positions in it."""
    if not index.num_rows:
        raise ValueError("The buckets hold no example: there is nothing to read. Write them again with rows.")
    scores = BucketScores(index)
    unscored = scores.num_rows - scores.num_scored
    return Ranking(FileOrder(len(scores)), scores, scores.num_scored, index.easy, index.score_column, unscored)


def plan_buckets(
    curriculum: Curriculum,
    index: BucketIndex,
    *,
    global_batch_size: int,
    seed: int = 0,
    epochs: float | None = None,
    max_steps: int | None = None,
    shuffle_buffer: int = 1000,
    partitions_per_step: int = 8,
    worker_partitions: int = 2,
) -> StreamPlan:
    """Binds a curriculum, whose pools begin and end where buckets do, to buckets on disk; see `BucketedStream`."""
    if shuffle_buffer < 1:
        raise ValueError(f"shuffle_buffer={shuffle_buffer} was given; at least 1 example has to be in memory.")
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
    return StreamPlan(
        **{field.name: getattr(plan, field.name) for field in fields(plan)},
        index=index,
        partitions=Partitions(global_batch_size, partitions_per_step, worker_partitions),
        shuffle_buffer=shuffle_buffer,
    )


def stage_buckets(stage: Stage, index: BucketIndex) -> tuple[int, ...]:
    """Numbers of the buckets that a stage's pool is made of, empty ones left out."""
    ends = np.cumsum(index.sizes).tolist()
    starts = [0, *ends[:-1]]
    for first, stop in stage.slices:
        if first not in starts or stop not in ends:
            raise ValueError(
                f"{stage.name.capitalize()} draws from positions [{first:,}, {stop:,}) of the order, but the buckets "
                f"on disk end at {', '.join(f'{end:,}' for end in ends)}: a stream reads whole buckets. Use as many "
                f"phases as there are buckets ({len(ends)}) or a divisor of it, or run `save_bucketed` again with the "
                "curriculum's own thresholds."
            )
    return tuple(
        number
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        if end > start and any(first <= start and end <= stop for first, stop in stage.slices)
    )


def _validate_planned(curriculum: Curriculum) -> None:
    inner = curriculum.then if isinstance(curriculum, Filter) else curriculum
    if not isinstance(inner, _PLANNED):
        raise TypeError(
            f"{type(inner).__name__} reads the scores of single examples or decides while training; a stream reads "
            f"whole buckets. Use {', '.join(rule.__name__ for rule in _PLANNED)}, or load the data as a `Dataset` for "
            "CurriculumTrainer."
        )
    if isinstance(curriculum, Filter) and (
        curriculum.by is not None or curriculum.at_least is not None or curriculum.keep == "auto"
    ):
        raise TypeError(
            f"{curriculum} keeps by the values of single examples; a stream reads whole buckets. Filter the data "
            "before `save_bucketed`, or load it as a `Dataset` for CurriculumTrainer."
        )
    if curriculum.batches is not None:
        raise TypeError(
            f"batches={type(curriculum.batches).__name__}(...) composes batches by a column of single examples; a "
            "stream reads shards front to back. Leave it out, or load the data as a `Dataset` for CurriculumTrainer."
        )
    if curriculum.partial_batches == "keep":
        raise ValueError(
            "partial_batches='keep' pads the last batch of a pass, which a stream does not do. Use 'stream', the "
            "default."
        )


def _validate_order(curriculum: Curriculum, index: BucketIndex) -> None:
    """The curriculum has to order examples as the buckets do."""
    if curriculum.easy not in (None, index.easy):
        raise ValueError(
            f"The curriculum says easy={curriculum.easy!r}, but the buckets were written with easy={index.easy!r}. "
            f"Run `save_bucketed(..., easy={curriculum.easy!r})` into another folder."
        )
    all_scored = index.unscored == "drop" or not index.num_unscored
    if curriculum.unscored != "last" and not all_scored:
        raise ValueError(
            f"The curriculum says unscored={curriculum.unscored!r}, but the last bucket holds {index.num_unscored:,} "
            "rows without a score. Run `save_bucketed(..., unscored='drop')` into another folder."
        )


def _with_thresholds(curriculum: Curriculum, index: BucketIndex) -> Curriculum:
    """Phases by value take their thresholds from the buckets, whose quantiles a stream could not compute."""
    if isinstance(curriculum, Filter):
        return replace(curriculum, then=_with_thresholds(curriculum.then, index))
    if not isinstance(curriculum, Phases) or curriculum.cut != "value" or curriculum.num_phases == 1:
        return curriculum
    if index.cut != "value" or curriculum.num_phases != len(index.buckets):
        raise ValueError(
            f"{curriculum.num_phases} phases by value were asked for, but there are {len(index.buckets)} buckets by "
            f"{index.cut}. Run `save_bucketed` with num_buckets={curriculum.num_phases} and cut='value', or change "
            "the curriculum."
        )
    if curriculum.thresholds is not None and curriculum.thresholds != index.thresholds:
        raise ValueError(
            f"The curriculum says thresholds={curriculum.thresholds}, but those of the buckets are "
            f"{index.thresholds}. Leave them out of the curriculum, or run `save_bucketed` with them."
        )
    return replace(curriculum, thresholds=index.thresholds)


@dataclass(frozen=True)
class Partitions:
    """Divides sample positions into partitions that are read independently.

    The positions of a step are in `per_step` partitions (lowered to a divisor of the batch size), as for several
    processes, and `per_worker` successive steps in different ones, as for several workers.
    """

    global_batch_size: int
    per_step: int
    per_worker: int

    def __post_init__(self) -> None:
        for name, value in (("partitions_per_step", self.per_step), ("worker_partitions", self.per_worker)):
            if value < 1:
                raise ValueError(f"{name}={value} was given; at least 1 is needed.")
        object.__setattr__(self, "per_step", gcd(self.per_step, self.global_batch_size))

    @property
    def count(self) -> int:
        """Number of partitions."""
        return self.per_step * self.per_worker

    @property
    def run(self) -> int:
        """Neighbouring sample positions of a step in one partition."""
        return self.global_batch_size // self.per_step

    def divide(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(partition, number of its sample positions before) of each sample position."""
        step, position = np.divmod(samples, self.global_batch_size)
        cycle, turn = np.divmod(step, self.per_worker)
        return turn * self.per_step + position // self.run, cycle * self.run + position % self.run

    def before(self, sample: int) -> np.ndarray:
        """Number of sample positions of each partition below `sample`; int64, shape (count,)."""
        cycles, rest = divmod(sample, self.global_batch_size * self.per_worker)
        steps, positions = divmod(rest, self.global_batch_size)
        turn, part = np.divmod(np.arange(self.count), self.per_step)
        begun = np.clip(positions - part * self.run, 0, self.run)
        return cycles * self.run + np.where(turn < steps, self.run, np.where(turn == steps, begun, 0))


@dataclass(frozen=True)
class PassOrder:
    """One pass over some buckets, at sample positions `[start, stop)`.

    The buckets are merged into one sequence that holds them in proportion everywhere. Each partition has a stretch of
    it, in blocks of `block` examples that are shuffled. `shards` holds the rows of each shard, by bucket.
    """

    partitions: Partitions
    start: int
    stop: int
    buckets: tuple[int, ...]
    shards: tuple[tuple[int, ...], ...]
    block: int
    key: int

    def __post_init__(self) -> None:
        sizes = [sum(rows) for rows in self.shards]
        before = self.partitions.before(self.start)
        lengths = self.partitions.before(self.start + sum(sizes)) - before
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

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(partition, offset in its stretch of this pass) of sample positions."""
        number, before = self.partitions.divide(samples)
        return number, before - self._before[number]

    def block_at(self, partition: int, offset: int) -> tuple[int, int]:
        """The offsets `[start, stop)` of the block of a partition's stretch that holds `offset`."""
        first = offset // self.block * self.block
        return first, min(first + self.block, self._lengths[partition])

    def shuffled(self, partition: int, start: int, stop: int) -> np.ndarray:
        """Which stored example of the block stands at each of its offsets; int64, shape (stop − start,)."""
        return permute(np.arange(stop - start), stop - start, mix64(self.key, len(self.shards), partition, start))

    def pieces(self, partition: int, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """(bucket of the pass, shard, first row, end of the rows) that part of a partition's stretch is made of.

        For one partition and bucket the pieces of successive parts follow each other through the shards.
        """
        first = self._firsts[partition]
        found = []
        spans = zip(self._merged(first + start), self._merged(first + stop), strict=True)
        for bucket, (position, end) in enumerate(spans):
            ends, order = self._ends[bucket], self._orders[bucket]
            number = int(np.searchsorted(ends, position, side="right"))
            while position < end:
                shard = int(order[number])
                begin = int(ends[number]) - self.shards[bucket][shard]
                upto = min(end, int(ends[number]))
                found.append((bucket, shard, position - begin, upto - begin))
                position, number = upto, number + 1
        return found

    def stored_rows(self, pieces: list[tuple[int, int, int, int]], first_rows: list[np.ndarray]) -> np.ndarray:
        """Row numbers of the examples of some pieces, in the order in which they are stored."""
        parts = []
        for bucket, shard, start, stop in pieces:
            first = first_rows[self.buckets[bucket]][shard]
            parts.append(np.arange(first + start, first + stop))
        return np.concatenate(parts)

    def rows(self, samples: np.ndarray, first_rows: list[np.ndarray]) -> np.ndarray:
        """Row numbers at sample positions of this pass; int64, shape of `samples`."""
        number, offset = self.locate(samples)
        block = offset // self.block
        order = np.lexsort((block, number))
        ends = np.flatnonzero((np.diff(number[order]) != 0) | (np.diff(block[order]) != 0)) + 1
        rows = np.empty(len(samples), dtype=np.int64)
        for chosen in np.split(order, ends):
            partition = int(number[chosen[0]])
            start, stop = self.block_at(partition, int(offset[chosen[0]]))
            stored = self.stored_rows(self.pieces(partition, start, stop), first_rows)
            rows[chosen] = stored[self.shuffled(partition, start, stop)[offset[chosen] - start]]
        return rows

    def _merged(self, position: int) -> list[int]:
        """How many examples of each bucket are among the first `position` of the merged sequence."""
        counts = []
        for number in range(len(self._upto) - 1, 0, -1):
            easier = position * self._upto[number - 1] // self._upto[number]
            counts.append(position - easier)
            position = easier
        return [position, *reversed(counts)]
