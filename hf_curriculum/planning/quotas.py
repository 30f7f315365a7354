"""Exact shares: how many draws each source has had after any step, to one of what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

UNIT_BITS = 30
UNIT = 1 << UNIT_BITS
"""Shares are whole multiples of 2^-30, so that no rounding depends on the machine."""
MOST_DRAWS = 1 << 32
"""In units of 2^-30, more draws would leave 63 bits."""
_BLOCK = 1024
"""Steps that are counted at once."""
_KEPT = 8
"""Blocks that are kept: a data loader reads one after the other."""
_NEVER = 1 << 62


def grid_shares(weights: Sequence[float]) -> np.ndarray:
    """Weights as shares in units of 2^-30, int64, which add up to 1 exactly; 0 stays 0.

    Example:
        >>> (grid_shares([1, 1, 2]) / UNIT).tolist()
        [0.25, 0.25, 0.5]
    """
    exact = [Fraction(weight) for weight in weights]
    scaled = [weight * UNIT / sum(exact) for weight in exact]
    whole = [int(share) for share in scaled]
    largest = sorted(range(len(whole)), key=lambda source: whole[source] - scaled[source])
    for source in largest[: UNIT - sum(whole)]:
        whole[source] += 1
    return np.array(whole, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Steps whose shares stay the same, or move linearly.

    Args:
        first: its first step.
        shares: of its first step, in units of 2^-30, int64 (sources,).
        to: those it moves to, `length` steps later; None: they stay.
        length: steps, where they move.
    """

    first: int
    shares: np.ndarray
    to: np.ndarray | None = None
    length: int = 1

    def asked(self, steps: np.ndarray) -> np.ndarray:
        """Asked draws of the first so many of its steps, a step counting 1, in units of 2^-30; int64 (n, sources)."""
        total = self.shares[:, None] * steps  # few sources, many steps: fast with the steps innermost
        if self.to is None:
            return total.T
        change = (self.to - self.shares)[:, None]
        # Step r adds r / length of the change: Σ r = steps · (steps − 1) / 2, divided before it can overflow.
        whole, rest = np.divmod(steps * (steps - 1) // 2, self.length)
        total += change * whole
        total += change * rest // self.length
        # What rounding down took goes to the source whose share is never small, so that a step's draws add up.
        total[np.argmax(np.minimum(self.shares, self.to))] += steps * UNIT - total.sum(axis=0)
        return total.T


@dataclass(frozen=True, eq=False)
class Quotas:
    """How many draws each source has had after each step; a pure function of the step.

    After any step the draws of a source are what is asked of it, rounded down or up. A step first gives every source
    what it is behind. Its other draws go to those that would be behind soonest, and of these to those most behind:
    earliest deadline first, which meets every deadline that can be met. Where each source has a draw in every step,
    no step depends on those before it; where one has fewer, on those since that was so last.

    Args:
        stretches: one after the other; the shares of the last stay.
        per_step: draws of a step.
        steps: how many steps are counted.
        drawn: draws of each source before the first step, int64 (sources,).
        asked_before: what was asked of each until then, in units of 2^-30, int64 (sources,).

    Source: Tijdeman 1980, "The chairman assignment problem": such draws exist for any shares. Earliest deadline first:
        Liu & Layland 1973.

    Example:
        >>> half = Quotas((Stretch(0, grid_shares([2, 1])),), 2, 3, np.zeros(2, np.int64), np.zeros(2, np.int64))
        >>> half.counts(0, 3).tolist()
        [[0, 0], [1, 1], [3, 1], [4, 2]]
    """

    stretches: tuple[Stretch, ...]
    per_step: int
    steps: int
    drawn: np.ndarray
    asked_before: np.ndarray

    @cached_property
    def _bases(self) -> list[np.ndarray]:
        """What was asked before each stretch."""
        bases = [self.asked_before]
        for one, following in zip(self.stretches, self.stretches[1:], strict=False):
            steps = np.array([following.first - one.first])
            bases.append(bases[-1] + one.asked(steps)[0] * self.per_step)
        return bases

    @cached_property
    def _firsts(self) -> np.ndarray:
        return np.array([stretch.first for stretch in self.stretches])

    def asked(self, steps: np.ndarray) -> np.ndarray:
        """What is asked of each source after so many steps, ascending, in units of 2^-30; int64 (n, sources)."""
        numbers = np.searchsorted(self._firsts, steps, side="right") - 1
        if numbers[0] == numbers[-1]:
            return self._asked_in(int(numbers[0]), steps)
        found = np.empty((len(steps), len(self.drawn)), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            found[numbers == number] = self._asked_in(number, steps[numbers == number])
        return found

    def _asked_in(self, number: int, steps: np.ndarray) -> np.ndarray:
        """The same of steps of one stretch."""
        stretch = self.stretches[number]
        found = stretch.asked(steps - stretch.first)
        found *= self.per_step
        found += self._bases[number]
        return found

    def counts(self, first: int, stop: int) -> np.ndarray:
        """Draws of each source after `first`, `first + 1`, … `stop` steps; int64 (stop − first + 1, sources)."""
        parts = []
        while True:
            start, rows = self._block(min(first, self.steps - 1))
            last = start + len(rows) - 1
            if stop <= last:
                parts.append(rows[first - start : stop - start + 1])
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
            parts.append(rows[first - start : -1])
            first = last

    @cached_property
    def _blocks(self) -> dict[int, np.ndarray]:
        """Draws after 0, 1, … steps of a block, by its first step."""
        return {}

    @cached_property
    def _states(self) -> dict[int, np.ndarray]:
        """Draws before a block, by its first step."""
        return {0: self.drawn}

    def _span(self, step: int) -> tuple[int, int, int]:
        """The stretch, the first step and the end of the block that holds a step."""
        number = int(np.searchsorted(self._firsts, step, side="right")) - 1
        first = step - (step - self.stretches[number].first) % _BLOCK
        return number, first, min([first + _BLOCK, self.steps, *self._firsts[number + 1 : number + 2].tolist()])

    def _block(self, step: int) -> tuple[int, np.ndarray]:
        """The first step of the block that holds a step, and the draws after 0, 1, … of its steps."""
        number, first, end = self._span(step)
        rows = self._blocks.get(first)
        if rows is None:
            rows = self._count(first, end, number, self._before(first))
            while len(self._blocks) >= _KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[first], self._states[end] = rows, rows[-1].copy()
        return first, rows

    def _before(self, first: int) -> np.ndarray:
        """Draws before a block."""
        waiting = []
        while (state := self._known(first)) is None:
            first = self._span(first - 1)[1]
            waiting.append(first)
        for step in reversed(waiting):
            state = self._block(step)[1][-1]
        return state

    def _known(self, first: int) -> np.ndarray | None:
        """Draws before a block, where they are kept or do not depend on those before; None where they do."""
        number = self._span(first)[0]
        begins = self.stretches[number].first
        if first in self._states or first == begins:
            return self._states.get(first)
        active, start = self._active(number), self.drawn
        if not active.all():
            # What is asked of a source without a share is no whole number. Once others make up for it, it stays so.
            second = begins + _BLOCK
            if first == second:
                return None
            start = self._before(second)
            if (self.asked(np.array([second]))[0] - (start << UNIT_BITS))[~active].sum() >= UNIT:
                return None
        rows = self._rounded(self.asked(np.arange(first - 1, first + 2)), np.array([first]), active, start)
        return None if rows is None else rows[0]

    def _active(self, number: int) -> np.ndarray:
        """Which sources have a share in a stretch."""
        stretch = self.stretches[number]
        return (stretch.shares > 0) | (False if stretch.to is None else stretch.to > 0)

    def _rounded(
        self, asked: np.ndarray, ends: np.ndarray, active: np.ndarray, start: np.ndarray
    ) -> np.ndarray | None:
        """Draws after the steps `ends`, where none depends on those before: each source has one in every step.

        `asked` begins a step before `ends`, and ends a step after: all are due in the next step, and none sooner.
        """
        if (np.diff(asked, axis=0)[:, active] < UNIT).any():
            return None
        asked = asked[1:-1]
        drawn = np.where(active, asked >> UNIT_BITS, start)
        part = np.where(active, asked & (UNIT - 1), 0)
        short = self._total(ends) - drawn.sum(axis=1)
        if (short < 0).any() or (short > (part > 0).sum(axis=1)).any():
            return None
        for source in np.argsort(-part, axis=1, kind="stable").T[: short.max()]:
            drawn[np.arange(len(drawn)), source] += short > 0
            short -= 1
        return drawn

    def _total(self, steps: np.ndarray) -> np.ndarray:
        return int(self.drawn.sum()) + steps * self.per_step

    def _count(self, first: int, end: int, number: int, start: np.ndarray) -> np.ndarray:
        """Draws after `first` … `end` steps, of which the first row is known; int64 (end − first + 1, sources)."""
        asked = self.asked(np.arange(first, end + 2))
        ends = np.arange(first + 1, end + 1)
        rows = self._rounded(asked, ends, self._active(number), start)
        if rows is None:
            rows = self._one_by_one(asked[:-1], first, start)
        return np.concatenate([start[None], rows])

    def _one_by_one(self, asked: np.ndarray, first: int, start: np.ndarray) -> np.ndarray:
        """The same step by step, earliest deadline first."""
        rows, part = asked >> UNIT_BITS, asked & (UNIT - 1)
        totals, due = self._total(np.arange(first, first + len(asked))), self._due(asked, first) - first
        # Beyond what is due, so many sources are one draw ahead, each until that draw is due.
        ahead = (totals - rows.sum(axis=1)).tolist()
        turns = np.lexsort((-part, np.where(part > 0, due, _NEVER)), axis=1).tolist()
        until = np.where(start > rows[0], due[0], 0).tolist()
        ends, count, given = [0] * (len(asked) + 1), sum(end > 0 for end in until), []
        for end in until:
            ends[min(end, len(asked))] += 1
        sources, due = len(start), due.ravel().tolist()
        for row in range(1, len(asked)):
            count -= ends[row]
            if count < ahead[row]:
                for source in turns[row]:
                    if until[source] <= row:
                        place = row * sources + source
                        given.append(place)
                        until[source] = end = due[place]
                        if end < len(asked):
                            ends[end] += 1
                        count += 1
                        if count == ahead[row]:
                            break
        rows.flat[given] += 1
        rows[0] = start
        rows = np.maximum.accumulate(rows, axis=0)
        # After a decision more may be due at once than a step has: what is least behind waits.
        for row in np.flatnonzero(rows.sum(axis=1) > totals).tolist():
            for _ in range(int(rows[row].sum() - totals[row])):
                late = np.flatnonzero(rows[row] > rows[row - 1])
                rows[row, late[np.argmin(asked[row, late] - (rows[row, late] << UNIT_BITS))]] -= 1
        return rows[1:]

    def _due(self, asked: np.ndarray, first: int) -> np.ndarray:
        """The step by which each source's next draw is due, by its row of `asked`; int64, same shape."""
        due = np.empty_like(asked)
        for source, column in enumerate(asked.T):
            following = (column >> UNIT_BITS) + 1
            places = np.searchsorted(column, following << UNIT_BITS)
            due[:, source] = np.where(places < len(column), first + places, self._reached(source, int(following[-1])))
        return due

    def _reached(self, source: int, draws: int) -> int:
        """The first step after which so many draws are asked of a source."""
        low, high, last = 0, self.stretches[-1].first, self.stretches[-1]
        wanted = draws << UNIT_BITS

        def asked_after(step: int) -> int:
            return int(self.asked(np.array([step]))[0, source])

        if asked_after(high) < wanted:
            share = int(last.shares[source]) * self.per_step
            return high - (asked_after(high) - wanted) // share if share else _NEVER
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if asked_after(middle) >= wanted else (middle + 1, high)
        return low
