"""A stage whose epochs have fixed numbers of examples from several pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import mix64, permute

Part = tuple[tuple[tuple[int, int], ...], int]
"""A pool, as half-open stretches of the order, and how many of its examples an epoch shows."""


@dataclass(frozen=True)
class MixtureStage(Stage):
    """Epochs that each show so many examples of every part, in one shuffled order; a function of (key, position).

    Of a part that has more, an epoch shows others than the one before, by chance and none twice; one that has fewer is
    shown again and again.

    Args:
        parts: pools that do not overlap, and the examples of each in an epoch. `slices` are all of them.
    """

    in_passes: ClassVar[bool] = False

    parts: tuple[Part, ...] = ()

    @property
    def epoch_size(self) -> int:
        """Examples of an epoch."""
        return sum(count for _, count in self.parts)

    @property
    def epochs(self) -> float:
        """Epochs of the stage."""
        return self.num_draws / self.epoch_size

    def expected_draws(self, positions: np.ndarray) -> np.ndarray:
        """As `Stage.expected_draws`: of a part, its examples of an epoch over its size, in each epoch."""
        return self.epochs * self._per_part(positions, lambda count, size: count / size)

    def missed(self, positions: np.ndarray, part: float = 1.0) -> np.ndarray:
        """As `Stage.missed`: an epoch shows r of a part's s examples r div s times each, and r mod s of them again."""

        def none(count: int, size: int) -> float:
            return (1 - part) ** (count // size) * (1 - part * (count % size) / size)

        epochs = round(self.epochs)
        return np.where(self._holds(positions), self._per_part(positions, none) ** epochs, 1.0)

    def _per_part(self, positions: np.ndarray, value: Callable[[int, int], float]) -> np.ndarray:
        """`value(examples of an epoch, size)` of the part that holds each position, 0 where none does."""
        found = np.zeros(len(positions))
        for slices, count in self.parts:
            size = sum(stop - start for start, stop in slices)
            for start, stop in slices:
                found[(start <= positions) & (positions < stop)] = value(count, size)
        return found

    def pass_ends(self) -> list[int]:
        """The number of sample positions after which each epoch ends."""
        whole, rest = divmod(self.num_draws, self.epoch_size)
        ends = [self.epoch_size * number for number in range(1, whole + 1)]
        return [*ends, self.num_draws] if rest else ends

    def positions(self, start: int, stop: int, key: int) -> np.ndarray:
        """Positions in the order drawn at the sample positions `[start, stop)`; int64, shape (stop − start,)."""
        found = [np.empty(0, dtype=np.int64)]
        while start < stop:
            epoch, first = divmod(start, self.epoch_size)
            end = min(self.epoch_size, first + stop - start)
            own = mix64(key, self.number, epoch)
            found.append(self._of_epoch(permute(np.arange(first, end), self.epoch_size, own), own))
            start += end - first
        return np.concatenate(found)

    def _of_epoch(self, drawn: np.ndarray, key: int) -> np.ndarray:
        """Numbers below the epoch's size as positions in the order: those of one part after those of another."""
        positions, before = np.empty(len(drawn), dtype=np.int64), 0
        for number, (slices, count) in enumerate(self.parts):
            mine = np.flatnonzero((before <= drawn) & (drawn < before + count))
            size = sum(stop - start for start, stop in slices)
            turn, place = np.divmod(drawn[mine] - before, size)
            for each in np.unique(turn).tolist():
                chosen = turn == each
                within = permute(place[chosen], size, mix64(key, number + 1, each))
                positions[mine[chosen]] = _at(within, slices)
            before += count
        return positions


def _at(within: np.ndarray, slices: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Numbers below a pool's size as positions in the order."""
    starts, sizes = np.array(slices)[:, 0], np.diff(np.array(slices), axis=1)[:, 0]
    ends = np.cumsum(sizes)
    part = np.searchsorted(ends, within, side="right")
    return starts[part] + within - (ends - sizes)[part]
