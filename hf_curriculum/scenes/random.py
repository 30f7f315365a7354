"""Random numbers keyed by (seed, image, stream)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

LAYOUT, LOOK, WORDING, MISMATCH = range(4)
"""Streams of one image: a new draw in one of them moves nothing in the others."""

_BLOCK = 64


class KeyedRandom:
    """An endless sequence of random numbers keyed by (seed, image index, stream).

    NumPy promises that the raw output of Philox never changes, but not what its `Generator` makes of it, so the raw
    64-bit words are turned into numbers here, with integer arithmetic.
    """

    def __init__(self, seed: int, index: int, stream: int) -> None:
        self._source = np.random.Philox(key=seed | index << 64, counter=stream << 192)
        self._block: list[int] = []

    def word(self) -> int:
        """The next 64 bits as an integer."""
        if not self._block:
            self._block = self._source.random_raw(_BLOCK).tolist()
        return self._block.pop()

    def integer(self, end: int) -> int:
        """An integer from 0 to `end` - 1."""
        return (self.word() >> 32) * end >> 32

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number in [low, high)."""
        return low + (high - low) * ((self.word() >> 11) * 2.0**-53)

    def chance(self, share: float) -> bool:
        """True in `share` of all draws."""
        return self.uniform() < share

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[self.integer(len(options))]

    def weighted(self, options: Sequence[T], weights: Sequence[int]) -> T:
        """One of the options, likely in proportion to its weight."""
        left = self.integer(sum(weights))
        for option, weight in zip(options, weights, strict=True):
            if left < weight:
                return option
            left -= weight
        return options[-1]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different options, in random order."""
        rest = list(options)
        return [rest.pop(self.integer(len(rest))) for _ in range(count)]
