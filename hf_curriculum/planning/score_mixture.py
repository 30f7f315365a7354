"""Two humps of a score, as a mixture of Gaussians, and the threshold between them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hf_curriculum.planning.ranking import Easy, as_numbers

MAX_POINTS = 4096
"""Scores that the mixture is fitted to, taken evenly from the sorted order where there are more."""
MIN_SCORES, MIN_DISTINCT = 50, 3
"""Fewer scores, or distinct ones, show humps by chance."""
MOST_COMPONENTS = 3
"""Gaussians of both humps: a skewed hump takes two."""
MIN_GAIN, MIN_WEIGHT, MIN_DISTANCE, MAX_VALLEY, MIN_ERRORS = 10.0, 0.05, 2.0, 0.7, 3.0
"""What two humps need, see `ScoreMixture.lacks`."""
_STEPS, _TOLERANCE = 500, 1e-8
"""EM ends after so many steps, or where one changes the mean log-likelihood by less."""
_FENCE, _FEW = 3.0, 0.01
"""Outliers: as many interquartile ranges beyond the quartiles, where that side has a smaller share of them."""
_SURE = 0.95
"""A score whose hump is less probable than this may belong to either."""
_Parameters = np.ndarray
"""Weight, mean and standard deviation of each Gaussian, by ascending mean, float64, shape (3, components)."""


@dataclass(frozen=True)
class ScoreMixture:
    """Gaussians fitted to a score, in two humps, and what tells whether there are two.

    Args:
        num_scored: finite scores.
        components: weight, mean and standard deviation of each Gaussian, in the score's unit, by ascending mean.
        lower: how many of them make the lower hump; the others make the upper one.
        gain: BIC of one Gaussian minus that of the mixture, more than 0 where the mixture describes the scores better.
        valley: the count of scores in the middle between the means over the geometric mean of those around the means;
            at least 1 wherever the density is log-concave, as a Gaussian, a uniform or an exponential one is.
        valley_errors: by how many standard errors its logarithm is less than 0.
        threshold: the score between the humps' means at which both are equally probable; NaN where one of them is more
            probable at both means.
        unsure: share of the scores between the means whose hump is less than 95 % probable.

    Source: D: Ashman, Bird & Zepf 1994, "Detecting bimodality in astronomical datasets", §2. BIC: Schwarz 1978. Humps
        of several Gaussians: Hennig 2010, "Methods for merging Gaussian mixture components". One hump as a
        log-concave density: Walther 2002, "Detecting the presence of mixing". Counts in its place, and limits: ours.
    """

    num_scored: int
    components: tuple[tuple[float, float, float], ...]
    lower: int
    gain: float
    valley: float
    valley_errors: float
    threshold: float
    unsure: float

    @property
    def weights(self) -> tuple[float, float]:
        """Share of each hump, the lower one first."""
        return self._moments[0]

    @property
    def means(self) -> tuple[float, float]:
        """Mean of each hump."""
        return self._moments[1]

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviation of each hump."""
        return self._moments[2]

    @property
    def _moments(self) -> tuple[tuple[float, float], ...]:
        return tuple(tuple(row) for row in _moments(np.array(self.components).T, self.lower).tolist())

    @property
    def distance(self) -> float:
        """Ashman's D: the distance of the means over the root mean square of the standard deviations."""
        return (self.means[1] - self.means[0]) / math.sqrt((self.deviations[0] ** 2 + self.deviations[1] ** 2) / 2)

    @property
    def lacks(self) -> tuple[str, ...]:
        """What two humps have and these scores have not, in words; empty where there are two.

        BIC is lower by 10 than that of one Gaussian, either hump has 5 % of the scores, Ashman's D is more than 2,
        both are equally probable somewhere between the means, and the scores themselves, not the Gaussians alone, are
        sparse there: `valley` is at most 0.7, and below 1 by three standard errors.
        """
        found = []
        if not self.gain >= MIN_GAIN:
            found.append(f"one Gaussian describes them as well (BIC falls by {self.gain:.1f}, {MIN_GAIN:g} needed)")
        if min(self.weights) < MIN_WEIGHT:
            found.append(f"a hump has {100 * min(self.weights):.2g} % of them ({100 * MIN_WEIGHT:g} % needed)")
        if not self.distance > MIN_DISTANCE:
            found.append(f"the means are too close for their spreads (D {self.distance:.2f}, {MIN_DISTANCE:g} needed)")
        if math.isnan(self.threshold):
            found.append("one hump is more probable all the way between the means")
        if self.valley > MAX_VALLEY or self.valley_errors < MIN_ERRORS:
            found.append(
                f"no valley lies between the means ({self.valley:.2f} of the scores around them, "
                f"{self.valley_errors:.1f} standard errors below 1; at most {MAX_VALLEY:g} and at least "
                f"{MIN_ERRORS:g} needed)"
            )
        return tuple(found)

    def densities(self, values: np.ndarray) -> np.ndarray:
        """Density of each hump at values (n,), times its share, float64, shape (2, n)."""
        return np.exp(_log_humps(np.asarray(values, dtype=np.float64), np.array(self.components).T, self.lower))

    def keeps(self, values: np.ndarray, easy: Easy) -> np.ndarray:
        """Whether each value (n,) lies on the threshold's easy side, bool (n,); False for what is not finite."""
        exact = np.asarray(values, dtype=np.float64)
        side = exact >= self.threshold if easy == "high" else exact <= self.threshold
        return np.isfinite(exact) & side

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping, with weights, means and deviations of the humps, and D."""
        humps = {name: list(getattr(self, name)) for name in ("weights", "means", "deviations")}
        return {
            **asdict(self),
            "components": [list(one) for one in self.components],
            **humps,
            "distance": self.distance,
        }


def fit_score_mixture(scores: np.ndarray) -> ScoreMixture:
    """Fits two humps to the finite scores by expectation-maximisation, the same way every time.

    Two or three Gaussians are fitted, as BIC says, and divided into two neighbouring groups where the scores'
    valley is deepest: a skewed hump takes two Gaussians, and with one would move the threshold into itself. No
    standard deviation falls below what the gaps between tied scores hide, nor below a thousandth of that of all.
    Scores far outside of all others, fewer than one in a hundred at that end, are left out of the fit.

    Args:
        scores: numbers, shape (n,), in any order; those that are not finite are left out.

    Raises:
        ValueError: there are fewer than 50 finite scores, or fewer than three distinct ones.

    Source: EM: Dempster, Laird & Rubin 1977. Outliers: Tukey 1977, "far out".

    Example:
        >>> share = np.linspace(0.01, 0.99, 200)
        >>> hump = np.log(share / (1 - share))
        >>> round(fit_score_mixture(np.concatenate([hump, hump + 12])).threshold, 3)
        6.0
    """
    values = as_numbers(scores).ravel()
    values = np.sort(values[np.isfinite(values)])
    distinct = 1 + int(np.count_nonzero(np.diff(values))) if len(values) else 0
    if len(values) < MIN_SCORES or distinct < MIN_DISTINCT:
        raise ValueError(
            f"{len(values):,} scores of {distinct:,} distinct values were given; two humps need at least "
            f"{MIN_SCORES} scores and {MIN_DISTINCT} values. Give a share, or a threshold."
        )
    count = min(len(values), MAX_POINTS)
    places = ((np.arange(count) + 0.5) * (len(values) / count)).astype(np.int64)
    return _fitted(values[places].astype(np.float64).tobytes(), len(values))


@lru_cache(maxsize=8)
def _fitted(points: bytes, num_scored: int) -> ScoreMixture:
    """The mixture of sorted points that stand for so many scores; kept, since a plan asks for it several times."""
    every = np.frombuffer(points, dtype=np.float64)
    kept = _without_outliers(every)
    centre = float(np.median(kept))
    unit = max(float(np.abs(kept - centre).max()), np.finfo(np.float64).tiny)
    kept = kept / unit - centre / unit  # at most 1: no square overflows
    size, spread = len(kept), max(float(kept.std()), 1e-12)
    fits = [_em(kept, number) for number in range(2, MOST_COMPONENTS + 1)]
    bic = [(3 * found.shape[1] - 1) * math.log(size) - 2 * size * likelihood for found, likelihood in fits]
    found = fits[int(np.argmin(bic))][0]
    lower, valley, errors = _divide(kept, found, num_scored)
    threshold = _crossing(found, lower)
    odds = np.diff(_log_humps(kept, found, lower), axis=0)[0]
    low, high = _moments(found, lower)[1].tolist()
    unsure = (low < kept) & (kept < high) & (np.abs(odds) < math.log(_SURE / (1 - _SURE)))
    return ScoreMixture(
        num_scored,
        tuple((weight, mean * unit + centre, deviation * unit) for weight, mean, deviation in found.T.tolist()),
        lower,
        size * (1 + math.log(2 * math.pi * spread**2)) + 2 * math.log(size) - min(bic),
        valley,
        errors,
        threshold * unit + centre,
        float(unsure.sum() / len(every)),
    )


def _without_outliers(points: np.ndarray) -> np.ndarray:
    """Sorted points without the few that lie far outside at an end."""
    low, high = np.quantile(points, (0.25, 0.75))
    reach = _FENCE * (high - low)
    start, stop = np.searchsorted(points, low - reach), np.searchsorted(points, high + reach, side="right")
    few = _FEW * len(points)
    return points[start if start < few else 0 : stop if len(points) - stop < few else len(points)]


def _em(points: np.ndarray, number: int) -> tuple[_Parameters, float]:
    """So many Gaussians, and the mean log-likelihood; the likelier fit of two starts."""
    even = (np.arange(number) + 0.5) / number
    low, high = np.quantile(points, (0.02, 0.98))
    fits = [_em_from(points, start) for start in (np.quantile(points, even), low + even * (high - low))]
    return max(fits, key=lambda fit: fit[1])


def _em_from(points: np.ndarray, means: np.ndarray) -> tuple[_Parameters, float]:
    """As `_em`, from these means (components,)."""
    number, spread = len(means), float(points.std())
    gaps = np.diff(np.unique(points))
    hidden = float(np.median(gaps)) / math.sqrt(12) if len(gaps) else 0.0  # by the step between tied scores
    floor = max(1e-3 * spread, hidden, 1e-12)
    found = np.stack([np.full(number, 1 / number), means, np.full(number, max(spread / number, floor))])
    before = -math.inf
    for _ in range(_STEPS):
        logs = _log_densities(points, found)  # (components, n)
        total = np.logaddexp.reduce(logs, axis=0)
        now = float(total.mean())
        if now - before < _TOLERANCE:
            break
        before = now
        shares = np.exp(logs - total)
        sums = np.maximum(shares.sum(axis=1), 1e-12)
        means = shares @ points / sums
        squares = (shares * (points - means[:, None]) ** 2).sum(axis=1) / sums
        found = np.stack([sums / sums.sum(), means, np.maximum(np.sqrt(squares), floor)])
    return found[:, np.argsort(found[1], kind="stable")], now


def _log_densities(values: np.ndarray, found: _Parameters) -> np.ndarray:
    """Logarithms of the Gaussians' densities at values (n,), times their weights, shape (components, n)."""
    weights, means, deviations = found[:, :, None]
    return np.log(weights / deviations) - 0.5 * math.log(2 * math.pi) - 0.5 * ((values - means) / deviations) ** 2


def _log_humps(values: np.ndarray, found: _Parameters, lower: int) -> np.ndarray:
    """The same of both humps, shape (2, n)."""
    logs = _log_densities(values, found)
    return np.stack([np.logaddexp.reduce(part, axis=0) for part in (logs[:lower], logs[lower:])])


def _moments(found: _Parameters, lower: int) -> np.ndarray:
    """Weight, mean and standard deviation of both humps, shape (3, 2)."""
    humps = []
    for weights, means, deviations in (found[:, :lower], found[:, lower:]):
        share = weights.sum()
        mean = weights @ means / share
        humps.append((share, mean, math.sqrt(weights @ (deviations**2 + (means - mean) ** 2) / share)))
    return np.array(humps).T


def _divide(points: np.ndarray, found: _Parameters, num_scored: int) -> tuple[int, float, float]:
    """How many Gaussians make the lower hump, and its valley: the deepest between two humps of some weight."""
    splits = [(number, *_valley(points, found, number, num_scored)) for number in range(1, found.shape[1])]
    heavy = [split for split in splits if _moments(found, split[0])[0].min() >= MIN_WEIGHT]
    return min(heavy or splits, key=lambda split: split[1])


def _valley(points: np.ndarray, found: _Parameters, lower: int, num_scored: int) -> tuple[float, float]:
    """The count around the middle of the means over the geometric mean of those around them, and errors below 1.

    The mixture says where to look, and the scores are counted, in intervals of a quarter of the way, a tied value
    spread over the way to its neighbours: Gaussians follow a skewed hump, or a plain, with humps that are not there.
    """
    low, high = _moments(found, lower)[1].tolist()
    middles, half = np.array([low, (low + high) / 2, high]), (high - low) / 8
    value, count = np.unique(points, return_counts=True)
    edges = np.concatenate([value[:1], (value[1:] + value[:-1]) / 2, value[-1:]])
    below = np.concatenate([[0], np.cumsum(count)]) * (num_scored / len(points))
    first, between, second = np.diff(np.interp(middles[:, None] + np.array([-half, half]), edges, below), axis=1)[:, 0]
    if min(first, second) < 1:
        return 1.0, 0.0
    valley = float(between / math.sqrt(first * second))
    between = max(float(between), 1.0)  # of an empty valley
    error = math.sqrt(1 / between + 1 / (4 * first) + 1 / (4 * second))
    return valley, -math.log(between / math.sqrt(first * second)) / error


def _crossing(found: _Parameters, lower: int) -> float:
    """Where both humps are equally probable between their means, by bisection; NaN where they are not."""
    low, high = _moments(found, lower)[1].tolist()

    def is_upper(value: float) -> bool:
        logs = _log_humps(np.array([value]), found, lower)
        return bool(logs[1, 0] > logs[0, 0])

    if is_upper(low) or not is_upper(high):
        return math.nan
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if is_upper(middle) else (middle, high)
    return (low + high) / 2
