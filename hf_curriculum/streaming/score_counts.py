"""Exact quantiles and bucket numbers of any number of float32 scores, in the memory of a few histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hf_curriculum.planning.buckets import Cut, validate_thresholds
from hf_curriculum.planning.ranking import Easy

_BINS = 1 << 16
_MOST = 64  # bins that are refined in one pass: 32 MB
_UNSCORED = np.uint32(0xFFFFFFFF)


def order_keys(scores: np.ndarray, easy: Easy) -> np.ndarray:
    """uint32 numbers that ascend from the easy end as the scores do, float32 (n,); the largest for unscored rows."""
    signed = (scores if easy == "low" else -scores) + np.float32(0.0)  # -0.0 becomes 0.0
    bits = signed.view(np.uint32)
    keys = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))
    keys[~np.isfinite(signed)] = _UNSCORED
    return keys


def scores_of_keys(keys: np.ndarray, easy: Easy) -> np.ndarray:
    """The scores, float32 (n,), of what `order_keys` gave."""
    bits = np.where(keys >> np.uint32(31), keys & np.uint32(0x7FFFFFFF), ~keys)
    signed = bits.astype(np.uint32).view(np.float32)
    return signed if easy == "low" else -signed + np.float32(0.0)


@dataclass
class ScoreCounts:
    """Counts of scores that are read again and again, part by part: two passes find any number of exact quantiles.

    The first histogram has 65,536 bins, the upper halves of the keys; each bin that holds something asked for is
    refined into the 65,536 keys in it.

    Args:
        parts: a function that reads the scores, float32 arrays one after the other, the same each time.
        easy: which end is easy.
    """

    parts: Callable[[], Iterable[np.ndarray]]
    easy: Easy
    rows: int = 0
    num_unscored: int = 0
    _above: np.ndarray = field(default_factory=lambda: np.zeros(_BINS + 1, np.int64))
    _refined: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = np.zeros(_BINS, np.int64)
        for scores in self.parts():
            keys = order_keys(scores, self.easy)
            counts += np.bincount(keys >> np.uint32(16), minlength=_BINS)
            self.num_unscored += int((keys == _UNSCORED).sum())
            self.rows += len(keys)
        np.cumsum(counts, out=self._above[1:])

    def _refine(self, bins: np.ndarray) -> None:
        """Counts the keys of some bins, cumulated: int64 (65,537,) each."""
        missing = np.array(sorted(set(bins.tolist()) - self._refined.keys()), np.uint32)
        for first in range(0, len(missing), _MOST):
            some = missing[first : first + _MOST]
            place = np.full(_BINS, -1, np.int64)
            place[some] = np.arange(len(some))
            counts = np.zeros(len(some) * _BINS, np.int64)
            for scores in self.parts():
                keys = order_keys(scores, self.easy)
                at = place[keys >> np.uint32(16)]
                keys, at = keys[at >= 0], at[at >= 0]
                np.add.at(counts, at * _BINS + (keys & np.uint32(0xFFFF)), 1)
            for number, each in zip(some.tolist(), counts.reshape(-1, _BINS), strict=True):
                self._refined[number] = np.concatenate([[0], np.cumsum(each)])

    def keys_at(self, positions: np.ndarray) -> np.ndarray:
        """The keys at some positions of the order, the easiest example's being 0; uint32 (n,)."""
        positions = np.asarray(positions, np.int64)
        bins = np.searchsorted(self._above, positions, "right") - 1
        self._refine(bins)
        low = [
            np.searchsorted(self._refined[upper], position - self._above[upper], "right") - 1
            for upper, position in zip(bins.tolist(), positions.tolist(), strict=True)
        ]
        return (bins.astype(np.uint32) << np.uint32(16)) | np.array(low, np.uint32)

    def scores_at(self, positions: np.ndarray) -> np.ndarray:
        """The scores at some positions of the order, float32 (n,)."""
        return scores_of_keys(self.keys_at(positions), self.easy)

    def count_below(self, keys: np.ndarray) -> np.ndarray:
        """How many examples have a smaller key than each of some; int64 (n,)."""
        bins = keys.astype(np.uint32) >> np.uint32(16)
        self._refine(bins)
        low = (keys & np.uint32(0xFFFF)).tolist()
        return np.array(
            [self._above[upper] + self._refined[upper][at] for upper, at in zip(bins.tolist(), low, strict=True)],
            np.int64,
        )


@dataclass(frozen=True)
class KeyCuts:
    """Where buckets end: an example is behind an end if its key is larger, or equal and `ties` equal ones are before.

    Args:
        keys: of the last example before each inner end, uint32 (buckets − 1,).
        ties: how many of the examples with this key are before the end, int64.
        sizes: examples per bucket.
        thresholds: as scores.
    """

    keys: np.ndarray
    ties: np.ndarray
    sizes: tuple[int, ...]
    thresholds: tuple[float, ...]

    def buckets_of(self, keys: np.ndarray, equal_before: np.ndarray) -> np.ndarray:
        """The bucket of each row of a part, int64 (rows,); `equal_before` counts equal keys in the parts before it."""
        bucket = np.zeros(len(keys), np.int64)
        for key, ties, before in zip(self.keys, self.ties, equal_before, strict=True):
            bucket += keys > key
            equal = np.flatnonzero(keys == key)
            bucket[equal[np.arange(before, before + len(equal)) >= ties]] += 1
        return bucket


def cut_keys(
    counts: ScoreCounts, num_buckets: int, cut: Cut, thresholds: Sequence[float] | None, dropped: bool, label: str
) -> KeyCuts:
    """The buckets of `cut_buckets`, from counts alone; `dropped`: rows without a score are in none."""
    validate_thresholds(thresholds, num_buckets, cut)
    scored = counts.rows - counts.num_unscored
    size = scored if dropped else counts.rows
    inner = np.arange(1, num_buckets)
    if num_buckets < 1 or size < num_buckets or not scored:
        raise ValueError(
            f"{size:,} pairs, {scored:,} of them with a `{label}`, cannot fill {num_buckets:,} buckets. Ask for fewer."
        )
    if num_buckets == 1:
        return KeyCuts(np.zeros(0, np.uint32), np.zeros(0, np.int64), (size,), ())
    if thresholds is None and cut == "rank":
        ends = size * inner // num_buckets
        keys = counts.keys_at(ends - 1)
        marks = scores_of_keys(keys, counts.easy).astype(np.float64)
        ties = ends - counts.count_below(keys)
    else:
        if thresholds is None:
            places, parts = np.divmod((scored - 1) * inner, num_buckets)
            low, high = (counts.scores_at(np.minimum(places + more, scored - 1)).astype(np.float64) for more in (0, 1))
            marks = low + (high - low) * (parts / num_buckets)
        else:  # 0.3 as float32 is more than 0.3 as Python has it, and a score of 0.3 belongs below it
            marks = np.array(thresholds, np.float32).astype(np.float64)
        keys = _keys_upto(marks, counts.easy)
        ties = np.full(len(keys), np.iinfo(np.int64).max)
        ends = counts.count_below(keys + np.uint32(1))
    every = np.array([0, *ends, size])
    if (np.diff(every) < 0).any():
        raise ValueError(f"thresholds={list(thresholds or ())} do not run from easy to hard ({counts.easy} = easy).")
    given = marks.tolist() if thresholds is None else [float(mark) for mark in thresholds]
    return KeyCuts(keys, ties, tuple(np.diff(every).tolist()), tuple(given))


def _keys_upto(marks: np.ndarray, easy: Easy) -> np.ndarray:
    """The key of the hardest float32 that is as easy as each of some numbers, float64 (n,)."""
    single = marks.astype(np.float32)
    beyond = single > marks if easy == "low" else single < marks
    single[beyond] = np.nextafter(single[beyond], np.float32(-np.inf if easy == "low" else np.inf))
    return order_keys(single, easy)
