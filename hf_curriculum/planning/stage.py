"""A stage: a stretch of the run in which examples are drawn from one pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_curriculum.rng import PAD_INDEX, mix64, permute


@dataclass(frozen=True)
class Stage:
    """Passes over one pool, each in an order of its own; a pure function of (key, sample position).

    A *sample position* counts the examples of the run. With `batch_multiple=None` every position holds an example
    and stages follow each other without partial batches. Otherwise every pass ends in a batch of its own, filled up
    with holes that are spread evenly, so that any process's share of that batch holds examples too.

    Args:
        number: place in the plan, from 0.
        name: what a person calls it, such as "phase 2".
        rule: which examples are in the pool, in words, such as "noun_count ≤ 3".
        slices: (first, behind the last) ranks of the pool's parts; they do not overlap.
        num_draws: examples drawn in this stage; a multiple of the pool's size is so many whole passes.
        batch_multiple: the global batch size if passes keep their own last batch, else None.
        decides: whether a decision follows, before which nobody knows the next stage.

    Raises:
        ValueError: the pool is empty.
    """

    number: int
    name: str
    rule: str
    slices: tuple[tuple[int, int], ...]
    num_draws: int
    batch_multiple: int | None = None
    decides: bool = False

    def __post_init__(self) -> None:
        if self.pool_size < 1:
            raise ValueError(
                f"{self.name.capitalize()} has no rows ({self.rule}): no example could be drawn. "
                "Use fewer phases, cut='rank', or a score with more distinct values."
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
        """Places in the stream: `num_draws`, and the holes."""
        if self.batch_multiple is None:
            return self.num_draws
        whole, rest = divmod(self.num_draws, self.pool_size)
        return whole * self._rounded(self.pool_size) + (self._rounded(rest) if rest else 0)

    def draws_within(self, samples: int) -> int:
        """Examples in the first `samples` sample positions of this stage, which end with a batch."""
        if self.batch_multiple is None:
            return samples
        whole, rest = divmod(samples, self._rounded(self.pool_size))
        return whole * self.pool_size + min(rest, self.pool_size, self.num_draws - whole * self.pool_size)

    def pools(self) -> list[tuple[int, int, int]]:
        """(first position, last position, pool) of the parts with pools of their own, from the stage's start."""
        return [(0, self.num_samples - 1, self.pool_size)]

    def pass_ends(self) -> list[int]:
        """The sample position behind each pass's last one, counted from the stage's first."""
        step = self.pool_size if self.batch_multiple is None else self._rounded(self.pool_size)
        whole = self.num_draws // self.pool_size
        ends = [step * k for k in range(1, whole + 1)]
        return ends if self.num_draws % self.pool_size == 0 else [*ends, self.num_samples]

    def ranks(self, start: int, stop: int, key: int) -> np.ndarray:
        """Ranks drawn at positions `[start, stop)` of this stage.

        Args:
            start: first sample position, counted from the stage's first.
            stop: behind the last sample position.
            key: 64-bit key of the run.

        Returns:
            int64, shape (stop − start,); `PAD_INDEX` where a sample position has no example.
        """
        size = self.pool_size
        length = size if self.batch_multiple is None else self._rounded(size)
        parts = []
        while start < stop:
            number, first = divmod(start, length)
            behind = min(length, first + stop - start)
            left = min(size, self.num_draws - number * size)
            parts.append(self._pass_ranks(np.arange(first, behind), left, mix64(key, self.number, number)))
            start += behind - first
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _pass_ranks(self, samples: np.ndarray, size: int, key: int) -> np.ndarray:
        """Ranks of one pass that draws `size` examples of the pool."""
        if self.batch_multiple is None:
            return self._within(permute(samples, self.pool_size, key))
        batch = self.batch_multiple
        full = size // batch * batch
        rest = size - full
        number = np.where(samples < full, samples, full + (samples - full) * rest // batch)
        filled = (samples < full) | ((samples - full + 1) * rest // batch > (samples - full) * rest // batch)
        ranks = np.full(len(samples), PAD_INDEX, dtype=np.int64)
        ranks[filled] = self._within(permute(number[filled], self.pool_size, key))
        return ranks

    def _within(self, places: np.ndarray) -> np.ndarray:
        """Places in the pool (0 … pool_size − 1) as ranks of the order."""
        (first, end), *others = self.slices
        ranks, before = places + first if first else places, end - first
        for start, stop in others:
            # What lies between this slice and the one before it is passed over.
            ranks = ranks + (places >= before) * np.int64(start - end)
            before, end = before + stop - start, stop
        return ranks

    def _rounded(self, draws: int) -> int:
        return -(-draws // self.batch_multiple) * self.batch_multiple
