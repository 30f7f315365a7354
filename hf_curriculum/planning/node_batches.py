"""Batches whose examples all come from one group, drawn without replacement within the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import draw_each, hash64, hash_below, mix64

_GRID = 30
"""Shares are rounded to multiples of 2^-30, so that another machine's last bit moves no batch."""


def draw_other_images(images: np.ndarray, count: int, key: np.uint64) -> np.ndarray:
    """Places of `images`, no two of the same image, as long as there are images enough.

    Args:
        images: a number for the image of each place, shape (size,).
        count: how many to draw.
        key: 64-bit key of this draw.

    Returns:
        int64, shape (count,).
    """
    size, asked = len(images), count
    while True:
        places = _draw_one(size, min(asked, size), key)
        first = np.sort(np.unique(images[places], return_index=True)[1])
        if len(first) >= count or asked >= size:
            break
        asked = min(2 * asked, size)
    chosen = places[first[:count]]
    if len(chosen) == count:
        return chosen
    # Fewer images than the batch is large: the rest are repeats, as even as can be.
    return np.concatenate([chosen, _draw_one(size, count - len(chosen), ~key)])


def _draw_one(size: int, count: int, key: np.uint64) -> np.ndarray:
    return draw_each(np.array([size]), count, np.array([key]))[0]


@dataclass(frozen=True, eq=False)
class NodeStage(Stage):
    """Each batch comes from everything or from one group; a pure function of (key, step).

    Args:
        groups: by rank.
        random_share: how often a batch comes from everything; otherwise each group is as likely as it is large.
        batch_size: examples per optimizer step.
        images: a number for the image of each rank, if no image may come twice in a batch, else None.
        pool_at: the sizes of the pool at an array of steps, for a pool that grows; None: `pool_size` at every step.
    """

    groups: Groups | None = None
    random_share: float = 1.0
    batch_size: int = 1
    images: np.ndarray | None = None
    pool_at: Callable[[np.ndarray], np.ndarray] | None = None

    def nodes(self, steps: np.ndarray, key: int) -> np.ndarray:
        """The groups that these steps of the stage draw from; −1: from everything."""
        return self._nodes(steps, self._pools(steps), key)

    def ranks(self, start: int, stop: int, key: int) -> np.ndarray:
        """Ranks drawn at positions `[start, stop)` of this stage, int64, shape (stop − start,)."""
        size = self.batch_size
        steps = np.arange(start // size, -(-stop // size))
        pools = self._pools(steps)
        nodes = self._nodes(steps, pools, key)
        starts, ends = self._members(nodes, pools)
        draws = hash64(steps, mix64(key, self.number, 1))
        if self.images is None:
            places = draw_each(ends - starts, size, draws)
        else:
            places = self._of_other_images(starts, ends, nodes, draws)
        first = start // size * size
        return self._ranks_at(places, starts, nodes).ravel()[start - first : stop - first]

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
            places = hash_below(chosen[waiting], int(starts[-1]))
            kept = members[places] < pools[waiting]
            nodes[waiting[kept]] = np.searchsorted(starts, places[kept], side="right") - 1
            waiting = waiting[~kept]
        return nodes

    def _members(self, nodes: np.ndarray, pools: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the members of each step's group begin and those in its pool end; for no group 0 and the pool."""
        groups, none = self.groups, nodes < 0
        starts, ends = np.where(none, 0, groups.starts[nodes]), np.where(none, 0, groups.starts[nodes + 1])
        if len(groups.members) and (groups.members[ends - 1] >= pools)[~none].any():
            ends = _first_not_below(groups.members, starts, ends, pools)
        return starts, np.where(none, pools, ends)

    def _of_other_images(
        self, starts: np.ndarray, ends: np.ndarray, nodes: np.ndarray, keys: np.ndarray
    ) -> np.ndarray:
        """Places as `draw_other_images` draws them: the first of each image among twice as many as are needed."""
        size = self.batch_size
        drawn = draw_each(ends - starts, 2 * size, keys)
        # One integer per draw: sorting them puts the draws of one image side by side, the earliest first.
        packed = self._images_at(drawn, starts, nodes) << 32 | np.arange(2 * size)
        packed.sort(axis=1)
        row, place = np.nonzero(np.diff(packed >> 32, axis=1, prepend=-1))
        fresh = np.zeros(packed.shape, dtype=bool)
        fresh[row, packed[row, place] & 0xFFFFFFFF] = True
        nth = np.cumsum(fresh, axis=1)
        enough = nth[:, -1] >= size
        places = np.empty((len(nodes), size), dtype=np.int64)
        places[enough] = drawn[enough][(fresh & (nth <= size))[enough]].reshape(-1, size)
        for step in np.flatnonzero(~enough):
            every = np.arange(ends[step] - starts[step])[None]
            images = self._images_at(every, starts[step : step + 1], nodes[step : step + 1])[0]
            places[step] = draw_other_images(images, size, ~keys[step])
        return places

    def _images_at(self, places: np.ndarray, starts: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """The images of places within the steps' groups, int64."""
        return self.images[self._ranks_at(places, starts, nodes)].astype(np.int64)

    def _ranks_at(self, places: np.ndarray, starts: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Places within the steps' groups, a row per step, as ranks of the order."""
        ranks, chosen = places.copy(), nodes >= 0
        ranks[chosen] = self.groups.members[places[chosen] + starts[chosen, None]]
        return ranks


def _first_not_below(values: np.ndarray, low: np.ndarray, high: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Where in each stretch `low … high − 1`, ascending within it, the values stop being below its limit."""
    while (low < high).any():
        middle = (low + high) // 2
        below = (values[np.minimum(middle, len(values) - 1)] < limits) & (low < high)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return low
