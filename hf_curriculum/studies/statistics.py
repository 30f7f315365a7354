"""Statistics of a study: an interval of a mean over seeds, and tests of differences paired by seed.

With few seeds two tests disagree by nature. The paired t test assumes that differences are normally distributed and
can give any p value; the sign-flip test assumes no more than symmetry, is exact, and cannot fall below 2 / 2^n: 0.0625
with five seeds, however large the difference. Tables show both. No p value is corrected for the number of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

IntervalKind = Literal["t", "bootstrap"]

MOST_EXACT = 16
"""Pairs up to which the sign-flip test goes through all 2^n flips."""
_FLIPS = 1 << 16
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """The mean (or another statistic) of a few values and its interval, NaN where there is none.

    Args:
        value: the statistic.
        lower: lower end of its interval.
        upper: its upper end.
        n: values it is made of.
    """

    value: float
    lower: float
    upper: float
    n: int


@dataclass(frozen=True)
class PairedTest:
    """The mean of (arm − control) with its interval, and two-sided p values: NaN where they cannot be had."""

    difference: Interval
    p_t: float
    p_sign_flip: float


def mean_interval(
    values: Sequence[float], *, confidence: float = 0.95, kind: IntervalKind = "t", seed: int = 0
) -> Interval:
    """The mean over seeds and its interval."""
    array = _checked(values, confidence)
    if kind not in ("t", "bootstrap"):
        raise ValueError(f"kind={kind!r} is not an interval over seeds; it is 't' or 'bootstrap'.")
    n = len(array)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(array.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    if kind == "bootstrap":
        return bootstrap_interval(array, np.mean, confidence=confidence, seed=seed)
    from scipy import stats

    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * float(array.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[..., np.ndarray] = np.mean,
    *,
    confidence: float = 0.95,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic and the percentiles of its resamples."""
    array = _checked(values, confidence, censored=True)
    if not len(array):
        return Interval(math.nan, math.nan, math.nan, 0)
    draws = np.random.Generator(np.random.Philox(seed)).integers(len(array), size=(resamples, len(array)))
    # Percentiles that are values themselves: between a number and "never" there is nothing.
    tail = 50 * (1 - confidence)
    statistics = statistic(array[draws], axis=1)
    lower, upper = np.percentile(statistics, [tail, 100 - tail], method="inverted_cdf")
    return Interval(float(statistic(array, axis=0)), float(lower), float(upper), len(array))


def crossed_interval(
    values: np.ndarray, *, confidence: float = 0.95, resamples: int = _RESAMPLES, seed: int = 0
) -> Interval:
    """The mean and the percentiles of resamples of seeds and units (images, say) together.

    Args:
        values: one for each seed and unit, such as differences of an arm from its control.
        confidence: of the interval.
        resamples: how many.
        seed: of the resamples.

    Shapes: `values` (seeds, units).

    Raises:
        ValueError: no matrix, an empty one, or values that are not finite.

    Example:
        >>> crossed_interval([[1.0, 3.0], [1.0, 3.0]]).value
        2.0
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"Values of the shape {array.shape} were given. Pass one for each seed and unit: a matrix.")
    _checked(array.ravel(), confidence)
    seeds, units = array.shape
    draws, means = np.random.default_rng(seed), np.empty(resamples)
    for number in range(resamples):
        drawn = array[draws.integers(seeds, size=seeds)]
        means[number] = drawn[:, draws.integers(units, size=units)].mean()
    tail = round(50 * (1 - confidence), 9)  # 0.95 is a little less
    lower, upper = np.percentile(means, [tail, 100 - tail])
    return Interval(float(array.mean()), float(lower), float(upper), array.size)


def auc(values: np.ndarray, right: np.ndarray) -> float | None:
    """The probability that a right row has a greater value than a wrong one, ties half; None without rows of both.

    Args:
        values: a score of each row, the greater the better.
        right: whether each row is right.

    Shapes: (rows,) each.

    Raises:
        ValueError: a value is not a number.

    Example:
        >>> auc(np.array([0.1, 0.4, 0.2]), np.array([False, True, True]))
        1.0
    """
    from scipy.stats import rankdata

    if lost := int(np.isnan(values).sum()):
        raise ValueError(f"{lost} of {len(values)} values are NaN, which have no rank. Drop their rows.")
    if right.all() or not right.any():
        return None
    ranks = rankdata(values)
    return float((ranks[right].mean() - (right.sum() + 1) / 2) / (~right).sum())


def auc_interval(
    values: np.ndarray, right: np.ndarray, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """The AUC of a score and the percentiles of resamples of right rows and of wrong ones, each as many as before.

    Args:
        values, right: as of `auc`.
        confidence, resamples, seed: as of `crossed_interval`.

    Shapes: (rows,) each.

    Raises:
        ValueError: as `auc`, or all rows are right, or all wrong.

    Example:
        >>> auc_interval(np.arange(4.0), np.array([False, False, True, True])).lower
        1.0
    """
    found = auc(values, right)
    if found is None:
        raise ValueError(f"All {len(right)} rows are {'right' if len(right) and right[0] else 'wrong'}: no AUC.")
    kinds, draws = [np.flatnonzero(right), np.flatnonzero(~right)], np.random.default_rng(seed)
    drawn = (np.concatenate([draws.choice(rows, len(rows)) for rows in kinds]) for _ in range(resamples))
    tail = round(50 * (1 - confidence), 9)
    lower, upper = np.percentile([auc(values[rows], right[rows]) for rows in drawn], [tail, 100 - tail])
    return Interval(found, float(lower), float(upper), len(values))


def paired_test(
    values: Sequence[float],
    control: Sequence[float],
    *,
    confidence: float = 0.95,
    kind: IntervalKind = "t",
    seed: int = 0,
) -> PairedTest:
    """Tests whether an arm differs from its control, both trained with the same seeds."""
    if len(values) != len(control):
        raise ValueError(
            f"There are {len(values)} values and {len(control)} of the control. A paired test compares two "
            "runs of one seed. Give one control value per value."
        )
    differences = np.asarray(values, dtype=np.float64) - np.asarray(control, dtype=np.float64)
    interval = mean_interval(differences, confidence=confidence, kind=kind, seed=seed)
    return PairedTest(interval, _paired_t(differences), sign_flip_p(differences, seed=seed))


def sign_flip_p(differences: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p value of the sign-flip permutation test: how many flips give a sum at least as far from 0."""
    array = np.asarray(differences, dtype=np.float64)
    n = len(array)
    if n == 0:
        return math.nan
    if n <= MOST_EXACT:
        signs = 1.0 - 2.0 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)  # (2^n, n)
    else:
        signs = 1.0 - 2.0 * np.random.Generator(np.random.Philox(seed)).integers(2, size=(_FLIPS, n))
        signs[0] = 1.0
    sums = np.abs(signs @ array)
    # The same sum in another order of its terms differs in the last bits.
    slack = 1e-12 * float(np.abs(array).sum())
    return float(np.mean(sums >= abs(float(array.sum())) - slack))


def _paired_t(differences: np.ndarray) -> float:
    """p of the paired t test, two-sided; of equal differences, which have no deviation, 1 if they are 0, else NaN."""
    from scipy import stats

    if len(differences) < 2:
        return math.nan
    if np.ptp(differences) == 0:
        return math.nan if differences[0] else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def _checked(values: Sequence[float], confidence: float, censored: bool = False) -> np.ndarray:
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` is {confidence}, which is not between 0 and 1. For 95 % pass 0.95.")
    array = np.asarray(values, dtype=np.float64)
    wrong = np.isnan(array) | (array == -np.inf) if censored else ~np.isfinite(array)
    if wrong.any():
        raise ValueError(
            f"{int(wrong.sum())} of {len(array)} values are not finite ({array[wrong][0]}): a mean over them says "
            "nothing. Leave out runs that diverged, and say how many."
        )
    return array
