"""Batches whose examples all come from one group, drawn without replacement within the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hf_curriculum.keyed import mix64, permute
from hf_curriculum.ordering import Groups
from hf_curriculum.pacing.stages import Stage

_GRID = 30
"""Shares are rounded to multiples of 2^-30, so that another machine's last bit moves no batch."""


def draw_distinct(size: int, count: int, key: int) -> np.ndarray:
    """`count` places out of `range(size)`, each once; where there are fewer, all of them again and again.

    Args:
        size: how many there are to choose from, at least 1.
        count: how many to draw.
        key: 64-bit key of this draw.

    Returns:
        int64, shape (count,).
    """
    parts = []
    for start in range(0, count, size):
        parts.append(permute(np.arange(min(size, count - start)), size, mix64(key, start)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def draw_other_images(images: np.ndarray, count: int, key: int) -> np.ndarray:
    """As `draw_distinct`, but no two places of the same image, as long as there are images enough.

    Args:
        images: a number for the image of each place, shape (size,).
        count: how many to draw.
        key: 64-bit key of this draw.
    """
    size, asked = len(images), count
    while True:
        places = draw_distinct(size, min(asked, size), key)
        first = np.sort(np.unique(images[places], return_index=True)[1])
        if len(first) >= count or asked >= size:
            break
        asked = min(2 * asked, size)
    chosen = places[first[:count]]
    if len(chosen) == count:
        return chosen
    # Fewer images than the batch is large: the rest are repeats, as even as can be.
    return np.concatenate([chosen, draw_distinct(size, count - len(chosen), mix64(key, size))])


@dataclass(frozen=True)
class NodeStage(Stage):
    """Each batch comes from everything or from one group; a pure function of (key, step).

    Args:
        groups: by rank.
        random_share: how often a batch comes from everything; otherwise each group is as likely as it is large.
        batch_size: examples per optimizer step.
        images: a number for the image of each rank, if no image may come twice in a batch, else None.
        pool_at: the size of the pool at a step, for a pool that grows; None: `pool_size` at every step.
    """

    groups: Groups | None = None
    random_share: float = 1.0
    batch_size: int = 1
    images: np.ndarray | None = None
    pool_at: Callable[[int], int] | None = None

    def node(self, step: int, key: int) -> int | None:
        """The group that step `step` of this stage draws from; None: from everything."""
        chosen = mix64(key, self.number, step)
        if chosen >> 64 - _GRID < round(self.random_share * (1 << _GRID)):
            return None
        starts = self.groups.starts
        pool = self._pool(step)
        while True:
            chosen = mix64(chosen)
            # One membership in proportion to the groups' sizes, kept if it is in the pool.
            place = chosen * int(starts[-1]) >> 64
            if self.groups.members[place] < pool:
                return int(np.searchsorted(starts, place, side="right")) - 1

    def _pool(self, step: int) -> int:
        return self.pool_size if self.pool_at is None else self.pool_at(step)

    def ranks(self, start: int, stop: int, key: int) -> np.ndarray:
        """Ranks drawn at slots `start … stop − 1` of this stage, int64, shape (stop − start,)."""
        size = self.batch_size
        steps = [self._step_ranks(step, key) for step in range(start // size, -(-stop // size))]
        first = start // size * size
        return np.concatenate(steps)[start - first : stop - first]

    def _step_ranks(self, step: int, key: int) -> np.ndarray:
        node = self.node(step, key)
        members = None if node is None else self.groups.rows(node)
        pool = self._pool(step)
        if members is not None and members[-1] >= pool:
            members = members[: np.searchsorted(members, pool)]
        draw = mix64(key, self.number, step, 1)
        if self.images is not None:
            images = self.images[:pool] if members is None else self.images[members]
            places = draw_other_images(images, self.batch_size, draw)
        else:
            places = draw_distinct(pool if members is None else len(members), self.batch_size, draw)
        return places if members is None else members[places].astype(np.int64)
