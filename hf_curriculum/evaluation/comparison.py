"""Systems compared on the same images: the paired bootstrap, and the tables that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from hf_curriculum.markdown import titled_tables
from hf_curriculum.rng import hash64, hash_below, mix64

_STREAM = 0x626F6F74
_NUMBERS = 1 << 21  # counts in memory at once
_PRINTED = 5e-5  # half of the last digit of a value times 100


class ResultTable(NamedTuple):
    """A table of an evaluation: its title, its columns, its rows, and notes below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str | None, ...]]
    notes: Sequence[str]


@dataclass(frozen=True)
class Difference:
    """How much one system is better than another by one metric.

    Args:
        metric: the name of a value.
        system: the one that should be better.
        baseline: the one it is compared with.
        difference: its value less the baseline's, on all images.
        lower: of the interval of the difference over resamples.
        upper: likewise.
        p: two-sided: twice (k + 1) / (resamples + 1), at most 1; k resamples have no difference of this sign.
    """

    metric: str
    system: str
    baseline: str
    difference: float
    lower: float
    upper: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """Values of each system and the differences of each pair; `print` shows both as tables, times 100.

    Args:
        values: system → value's name → value on all images, in its natural unit.
        differences: for each pair of systems (a later one against an earlier one) and each value.
        images: how many.
        resamples: how many.
        seed: of the resamples.
        confidence: of the intervals.
        notes: what a reader of the numbers must know.
        titles: value's name → what tables call it; values that are not in it are left out of tables.
    """

    values: dict[str, dict[str, float]]
    differences: tuple[Difference, ...]
    images: int
    resamples: int
    seed: int
    confidence: float
    notes: tuple[str, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON, without titles."""
        return {name: value for name, value in asdict(self).items() if name != "titles"}

    def table(self) -> ResultTable:
        """The differences as a table, pair by pair."""
        pairs, order = list(combinations(self.values, 2)), list(self.titles)
        shown = [each for each in self.differences if each.metric in self.titles]
        shown.sort(key=lambda each: (pairs.index((each.baseline, each.system)), order.index(each.metric)))
        rows = [
            (
                f"{each.system} - {each.baseline}",
                self.titles[each.metric],
                f"{100 * each.difference:+.2f}",
                f"[{100 * each.lower:+.2f}, {100 * each.upper:+.2f}]",
                f"{each.p:.3f}",
            )
            for each in shown
        ]
        note = (
            f"Values times 100. Intervals and p values from {self.resamples:,} paired resamples of {self.images:,} "
            f"images, seed {self.seed}; p is two-sided."
        )
        columns = ["systems", "metric", "difference", f"{100 * self.confidence:g} % interval", "p"]
        return ResultTable("Differences", columns, rows, [note, *self.notes])

    def _values(self) -> ResultTable:
        names = [name for name in self.titles if name in next(iter(self.values.values()))]
        rows = [(system, *(f"{100 * found[name]:.1f}" for name in names)) for system, found in self.values.items()]
        return ResultTable("", ["system", *(self.titles[name] for name in names)], rows, [])

    def __str__(self) -> str:
        return titled_tables([self._values(), self.table()], for_terminals=True).rstrip("\n")

    def _repr_html_(self) -> str:
        from hf_curriculum.html_table import html_table

        left = ("system", "systems", "metric")
        tables = (self._values(), self.table())
        shown = (html_table(names, rows, left=left, above=title, below=notes) for title, names, rows, notes in tables)
        return "".join(shown)


def validate_comparison(systems: Mapping[str, Any], resamples: int, confidence: float) -> None:
    """Refuses fewer than two systems, no resample, and a confidence that is not between 0 and 1."""
    if len(systems) < 2 or resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"{len(systems)} systems, `resamples={resamples}` and `confidence={confidence}` were given. A comparison "
            "needs two or more systems, one or more resamples, and a confidence between 0 and 1, such as 0.95."
        )


def differences(
    values: Mapping[str, Mapping[str, float]], drawn: Mapping[str, Mapping[str, np.ndarray]], confidence: float
) -> tuple[Difference, ...]:
    """The differences of each pair of systems, a later one against an earlier one."""
    tails = [100 * (1 - confidence) / 2, 100 * (1 + confidence) / 2]
    found = []
    for baseline, system in combinations(values, 2):
        for name in values[system]:
            change = drawn[system][name] - drawn[baseline][name]  # (resamples,)
            change[np.abs(change) < _PRINTED] = 0
            lower, upper = map(float, np.nanpercentile(change, tails))
            point = values[system][name] - values[baseline][name]
            point = 0.0 if abs(point) < _PRINTED else point
            against = min(np.sum(~(change > 0)), np.sum(~(change < 0)))  # a NaN wins for neither side
            p = float(min(1, 2 * (against + 1) / (len(change) + 1))) if point else 1.0
            found.append(Difference(name, system, baseline, point, lower, upper, p))
    return tuple(found)


def draw_images(images: int, resamples: int, seed: int = 0) -> Iterator[np.ndarray]:
    """How often each image is in each resample, (some resamples, images), a few resamples at a time."""
    together = max(1, _NUMBERS // images)
    key = mix64(seed, _STREAM)
    for start in range(0, resamples, together):
        number = min(together, resamples - start)
        places = np.arange(start * images, (start + number) * images)
        rows = hash_below(hash64(places, key), images)
        rows += np.repeat(np.arange(number) * images, images)
        yield np.bincount(rows, minlength=number * images).reshape(number, images).astype(np.float64)
