"""A stage: a stretch of the run in which examples are drawn from one pool."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.rows import bisect
from hf_curriculum.rng import PAD_INDEX, draw_each, hash64, hash_below, mix64, permute

_MOST_POOLS = 16
_GRID = 30
"""Shares are rounded to multiples of 2^-30, so that another machine's last bit changes no batch."""


@dataclass(frozen=True)
class Budget:
    """The length of a run in the training arguments: epochs of the whole data set, or optimizer steps.

    Args:
        epochs: passes over the data set (`num_train_epochs`), or None.
        steps: optimizer steps (`max_steps`), or None.
        global_batch_size: examples per optimizer step, over all processes and accumulated batches.

    Raises:
        ValueError: there would be no step, or no end.
    """

    epochs: float | None
    steps: int | None
    global_batch_size: int

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("max_steps", self.steps)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} would train on nothing, or for ever; it is a number more than 0.")


@dataclass(frozen=True)
class Stage:
    """Shuffled passes over one pool, each in its own order; a pure function of (key, sample position).

    A *sample position* counts the examples of the run. With `batch_multiple=None` every position holds an example
    and stages follow each other without partial batches. Otherwise every pass ends in a batch of its own, filled up
    with padding indices that are spread evenly, so that each process has examples of that batch.

    Args:
        number: number of the stage in the plan, from 0.
        name: the stage's name, such as "phase 2".
        rule: the pool in words, such as "noun_count ≤ 3".
        slices: the pool as half-open stretches `(start, stop)` of the order, in order and without overlap.
        num_draws: examples drawn in this stage; a multiple of the pool's size gives complete passes.
        batch_multiple: the global batch size if passes keep their own last batch, else None.
        decides: whether the stage ends with a decision, on which the next stage depends.

    Raises:
        ValueError: the pool is empty or no such stretches, or nothing would be drawn.

    Example:
        >>> Stage(0, "phase 1", "all", slices=((0, 3),), num_draws=6).positions(0, 6, key=1).tolist()
        [1, 2, 0, 2, 0, 1]
    """

    in_passes: ClassVar[bool] = True
    """Whether it draws in shuffled passes, and not each example or batch by chance."""

    number: int
    name: str
    rule: str
    slices: tuple[tuple[int, int], ...]
    num_draws: int
    batch_multiple: int | None = None
    decides: bool = False

    def __post_init__(self) -> None:
        ends = np.array(self.slices or [[0, 0]])
        if ends.shape[1:] != (2,) or ends.dtype.kind not in "iu" or (np.diff(ends.ravel(), prepend=0) < 0).any():
            raise ValueError(
                f"{self.name.capitalize()} has the pool {self.slices}. A pool is a tuple of stretches (start, stop) "
                "of the order, in whole numbers from 0, in order and without overlap: ((0, 10), (20, 30))."
            )
        if self.pool_size < 1:
            raise ValueError(
                f"{self.name.capitalize()} has no rows ({self.rule}): no example could be drawn. "
                "Use fewer stages, a score with more distinct values, or, for Phases, cut='rank'."
            )
        if self.num_draws < 1:
            raise ValueError(
                f"{self.name.capitalize()} would draw {self.num_draws} examples from its pool of {self.pool_size:,}: "
                "it would do nothing. Give it more epochs or steps, or leave it out."
            )

    @property
    def pool_size(self) -> int:
        """Examples that may be drawn."""
        return sum(stop - start for start, stop in self.slices)

    @property
    def epochs(self) -> float:
        """Passes over the pool."""
        return self.num_draws / self.pool_size

    @property
    def num_samples(self) -> int:
        """Sample positions: `num_draws`, and the padding."""
        passes, rest = divmod(self.num_draws, self.pool_size)
        return passes * self._padded(self.pool_size) + self._padded(rest)

    def change_points(self) -> np.ndarray | None:
        """Positions in the order from which on examples are drawn more or less often; None: from each to the next."""
        return np.array(self.slices).ravel()

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """How often the stage draws the examples at these positions (m,) of the order, on average over seeds: (m,)."""
        return self._holds(positions) * self.epochs

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """The probability that no draw shows the examples at these positions.

        A pass over the pool draws everything; r draws of a further one draw r of the pool's s positions.

        Args:
            positions: in the order, int64, shape (m,), as the probabilities.
            part: the probability that a draw of the position shows it: 1, or the share of an image's captions.
        """
        passes, rest = divmod(self.num_draws, self.pool_size)
        return np.where(self._holds(positions), (1 - part) ** passes * (1 - part * rest / self.pool_size), 1.0)

    def _holds(self, positions: np.ndarray) -> np.ndarray:
        """Which positions are in the pool."""
        return np.any([(start <= positions) & (positions < stop) for start, stop in self.slices], axis=0)

    def cut(self, samples: int) -> Stage:
        """The stage's first sample positions, unchanged; they end with a batch."""
        return replace(self, num_draws=self.draws_within(samples), decides=False)

    def fit(self, samples: int) -> Stage:
        """The stage with passes enough for a number of sample positions that is a multiple of the batch size."""
        passes, rest = divmod(samples, self._padded(self.pool_size))
        return replace(self, num_draws=passes * self.pool_size + min(rest, self.pool_size))

    def draws_within(self, samples: int) -> int:
        """Examples in the first `samples` sample positions of this stage, which end with a batch."""
        passes, rest = divmod(samples, self._padded(self.pool_size))
        return passes * self.pool_size + min(rest, self.pool_size, self.num_draws - passes * self.pool_size)

    def pools(self) -> list[tuple[int, int, int]]:
        """(first, last, size) of the parts with pools of their own, in sample positions of this stage."""
        return [(0, self.num_samples - 1, self.pool_size)]

    def pass_ends(self) -> list[int]:
        """The number of sample positions of this stage after which each pass ends."""
        passes, rest = divmod(self.num_draws, self.pool_size)
        ends = [self._padded(self.pool_size) * number for number in range(1, passes + 1)]
        return [*ends, self.num_samples] if rest else ends

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order that are drawn at the sample positions `[start, stop)` of this stage.

        Args:
            start: first sample position, counted from the stage's first.
            stop: end of the sample positions.
            key: 64-bit key of the run.

        Returns:
            int64, shape (stop − start,); `PAD_INDEX` where a sample position has no example.
        """
        size, length = self.pool_size, self._padded(self.pool_size)
        parts = []
        # Each pass is a permutation of the pool under a key of its own, so that any sample position is known without
        # those before it: a resumed run reads on where it was, and stores no state of a sampler.
        while start < stop:
            number, first = divmod(start, length)
            end = min(length, first + stop - start)
            left = min(size, self.num_draws - number * size)
            parts.append(self._pass_positions(np.arange(first, end), left, mix64(key, self.number, number)))
            start += end - first
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _pass_positions(self, samples: np.ndarray, size: int, key: int) -> np.ndarray:
        """Positions in the order of one pass that draws `size` examples of the pool."""
        if self.batch_multiple is None:
            return self._within(permute(samples, self.pool_size, key))
        # Sample positions that hold no example pad the last batch, spread evenly so that each process has its share.
        full = size // self.batch_multiple * self.batch_multiple
        # Of the last batch's sample positions, those where the even spread rises by one have an example.
        before, after = ((samples - full + more) * (size - full) // self.batch_multiple for more in (0, 1))
        filled = (samples < full) | (after > before)
        drawn = np.where(samples < full, samples, full + before)[filled]
        positions = np.full(len(samples), PAD_INDEX, dtype=np.int64)
        positions[filled] = self._within(permute(drawn, self.pool_size, key))
        return positions

    def _within(self, drawn: np.ndarray) -> np.ndarray:
        """Numbers below the pool's size as positions in the order."""
        (first, end), *others = self.slices
        positions, before = drawn + first if first else drawn, end - first
        for start, stop in others:
            # Skip the gap between this slice and the one before it.
            positions = positions + (drawn >= before) * np.int64(start - end)
            before, end = before + stop - start, stop
        return positions

    def _padded(self, draws: int) -> int:
        """Sample positions that so many draws of one pass take."""
        return draws if self.batch_multiple is None else -(-draws // self.batch_multiple) * self.batch_multiple


@dataclass(frozen=True, eq=False)
class NodeStage(Stage):
    """Each batch comes from everything or from one group; a pure function of (key, step).

    Args:
        groups: with positions in the order as members.
        random_share: how often a batch comes from everything; otherwise each group is as likely as it is large.
        batch_size: examples per optimizer step.
        images: a number for the image at each position in the order, if no image may come twice in a batch, else None.
        pool_at: the sizes of the pool at an array of steps, for a pool that grows; None: `pool_size` at every step.
    """

    in_passes: ClassVar[bool] = False

    groups: Groups | None = None
    random_share: float = 1.0
    batch_size: int = 1
    images: np.ndarray | None = None
    pool_at: Callable[[np.ndarray], np.ndarray] | None = None

    def change_points(self) -> None:
        """None: an example is drawn as often as its groups are."""

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """As `Stage.expected_draws`: a batch of one group has each of its members batch size / members times."""
        batch, share, drawn = self.batch_size, self.random_share, np.zeros(len(positions))
        for part in self._parts:
            held, numbers = _counted(self.groups.memberships, positions)
            each = part.steps * (1 - share) * batch / part.members * numbers + part.steps * share * batch / part.pool
            drawn += _within(positions, part.pool, each[held], 0.0)
        return drawn

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """As `Stage.missed`. Where no image may come twice, as if it might; `part` is 1 for every batch of a group."""
        batch, share, none = self.batch_size, self.random_share, np.ones(len(positions))
        for one in self._parts:
            taken, numbers = _counted(one.taken, positions)
            hit = (1 - share) / one.members * (one.scale * numbers) + share * min(1.0, batch / one.pool)
            with np.errstate(divide="ignore"):
                chance = np.exp(one.steps * np.log1p(-np.minimum(hit, 1.0)))
            none *= _within(positions, one.pool, chance[taken], 1.0)
        return none

    def counts(self, first: int, end: int) -> list[np.ndarray] | None:
        """The counts by which the positions `[first, end)` differ; None: some are in a pool that others are not in."""
        if any(first < part.pool < end for part in self._parts):
            return None
        return [self.groups.memberships, *(part.taken for part in self._parts if part.pool >= end)]

    @cached_property
    def _parts(self) -> list[_Part]:
        """The stage while its pool is alike; one that grows is looked at `_MOST_POOLS` times."""
        pools = self._pools(np.arange(self.num_draws // self.batch_size))
        parts = np.array_split(pools, min(len(np.unique(pools)), _MOST_POOLS))
        return [self._part(int(steps[len(steps) // 2]), len(steps)) for steps in parts]

    def _part(self, pool: int, steps: int) -> _Part:
        sizes = self.groups.sizes_below(pool)
        taken = np.minimum(sizes, self.batch_size)
        most = int(taken.max(initial=0))
        if (taken[sizes > 0] == most).all():
            return _Part(pool, steps, int(sizes.sum()), most, self.groups.memberships)
        return _Part(pool, steps, int(sizes.sum()), 1, self.groups.add_up(taken))

    def nodes(self, steps: np.ndarray, key: int) -> np.ndarray:
        """The groups that these steps of the stage draw from; −1: from everything."""
        return self._nodes(steps, self._pools(steps), key)

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order drawn at the sample positions `[start, stop)`; int64, shape (stop − start,)."""
        size = self.batch_size
        steps = np.arange(start // size, -(-stop // size))
        pools = self._pools(steps)
        nodes = self._nodes(steps, pools, key)
        starts, ends = self._members(nodes, pools)
        draws = hash64(steps, mix64(key, self.number, 1))
        if self.images is None:
            members = draw_each(ends - starts, size, draws)
        else:
            members = self._of_other_images(starts, ends, nodes, draws)
        first = start // size * size
        return self._positions_at(members, starts, nodes).ravel()[start - first : stop - first]

    def _pools(self, steps: np.ndarray) -> np.ndarray:
        return np.full(len(steps), self.pool_size) if self.pool_at is None else self.pool_at(steps)

    def _nodes(self, steps: np.ndarray, pools: np.ndarray, key: int) -> np.ndarray:
        starts, members = self.groups.starts, self.groups.members
        nodes = np.full(len(steps), -1)
        chosen = hash64(steps, mix64(key, self.number))
        waiting = np.flatnonzero(chosen >> np.uint64(64 - _GRID) >= round(self.random_share * (1 << _GRID)))
        while len(waiting):
            # One membership in proportion to the groups' sizes, kept if it is in the pool.
            chosen[waiting] = hash64(chosen[waiting], self.number)
            drawn = hash_below(chosen[waiting], int(starts[-1]))
            kept = members[drawn] < pools[waiting]
            nodes[waiting[kept]] = np.searchsorted(starts, drawn[kept], side="right") - 1
            waiting = waiting[~kept]
        return nodes

    def _members(self, nodes: np.ndarray, pools: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the members of each step's group begin and those in its pool end; for no group 0 and the pool."""
        groups, none = self.groups, nodes < 0
        starts, ends = np.where(none, 0, groups.starts[nodes]), np.where(none, 0, groups.starts[nodes + 1])
        if len(groups.members) and (groups.members[ends - 1] >= pools)[~none].any():
            last = len(groups.members) - 1
            ends = bisect(lambda at: groups.members[np.minimum(at, last)] < pools, starts, ends)
        return starts, np.where(none, pools, ends)

    def _of_other_images(
        self, starts: np.ndarray, ends: np.ndarray, nodes: np.ndarray, keys: np.ndarray
    ) -> np.ndarray:
        """Members, none of the same image: the first of each image among twice as many as are needed."""
        size = self.batch_size
        drawn = draw_each(ends - starts, 2 * size, keys)
        # One integer per draw: sorting them puts the draws of one image side by side, the earliest first.
        bits = (2 * size).bit_length()
        packed = self._images_at(drawn, starts, nodes) << bits | np.arange(2 * size)
        packed.sort(axis=1)
        row, column = np.nonzero(np.diff(packed >> bits, axis=1, prepend=-1))
        fresh = np.zeros(packed.shape, dtype=bool)
        fresh[row, packed[row, column] & ((1 << bits) - 1)] = True
        nth = np.cumsum(fresh, axis=1)
        enough = nth[:, -1] >= size
        members = np.empty((len(nodes), size), dtype=np.int64)
        members[enough] = drawn[enough][(fresh & (nth <= size))[enough]].reshape(-1, size)
        for step in np.flatnonzero(~enough):
            every = np.arange(ends[step] - starts[step])[None]
            images = self._images_at(every, starts[step : step + 1], nodes[step : step + 1])[0]
            members[step] = _draw_other_images(images, size, ~keys[step])
        return members

    def _images_at(self, members: np.ndarray, starts: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The images of members of the steps' groups, int64."""
        return self.images[self._positions_at(members, starts, nodes)].astype(np.int64)

    def _positions_at(self, members: np.ndarray, starts: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Members of the steps' groups, a row per step, as positions in the order."""
        positions, chosen = members.copy(), nodes >= 0
        positions[chosen] = self.groups.members[members[chosen] + starts[chosen, None]]
        return positions


class _Part(NamedTuple):
    """Steps of a stage with the same pool, and how many of its members belong to groups.

    What a batch takes of the groups of a position in all is `scale · taken`.
    """

    pool: int
    steps: int
    members: int
    scale: int
    taken: np.ndarray


def _counted(values: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values at positions, 0 beyond the last, and 0 … the largest of them: many positions have the same one."""
    if positions.max(initial=0) < len(values):
        found = values[positions]
    else:
        found = np.where(positions < len(values), values[np.minimum(positions, len(values) - 1)], 0)
    return found, np.arange(int(found.max(initial=0)) + 1)


def _within(positions: np.ndarray, pool: int, values: np.ndarray, beyond: float) -> np.ndarray:
    """What is true of positions in a pool, and `beyond` of others."""
    return values if positions.max(initial=0) < pool else np.where(positions < pool, values, beyond)


def _draw_other_images(images: np.ndarray, count: int, key: np.uint64) -> np.ndarray:
    """`count` indices into `images`, no two of the same image as long as there are images enough."""

    def draw(number: int, key: np.uint64) -> np.ndarray:
        return draw_each(np.array([len(images)]), number, np.array([key]))[0]

    asked = count
    while True:
        drawn = draw(min(asked, len(images)), key)
        first = np.sort(np.unique(images[drawn], return_index=True)[1])
        if len(first) >= count or asked >= len(images):
            break
        asked *= 2
    chosen = drawn[first[:count]]
    # Where there are fewer images than the batch is large, the rest are repeats, as even as can be.
    return chosen if len(chosen) == count else np.concatenate([chosen, draw(count - len(chosen), ~key)])
