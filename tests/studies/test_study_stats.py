"""Intervals and paired tests, against the formulas that scipy stands for and against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from hf_curriculum.studies.statistics import (
    auc,
    auc_interval,
    bootstrap_interval,
    crossed_interval,
    mean_interval,
    paired_test,
    sign_flip_p,
)


def incomplete_beta(a, b, x):
    """The regularised incomplete beta function, by its continued fraction (Abramowitz & Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    fraction = 0.0
    for m in range(40 + int(4 * math.sqrt(a + b)), 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = even / (1 + odd / (1 + fraction))
    return math.exp(logarithm) / a / (1 - (a + b) * x / (a + 1) / (1 + fraction))


def t_cdf(t, df):
    """Probability that Student's t is at most `t`, by its definition: what `scipy.stats` stands for."""
    tail = 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t))
    return 1 - tail if t > 0 else tail


def t_quantile(probability, df):
    """Its inverse, by bisection; `probability` above 0.5."""
    low, high = 0.0, 1.0
    while t_cdf(high, df) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)]
)
def test_quantiles_are_those_of_the_printed_table(df, expected):
    values = np.random.default_rng(df).normal(size=df + 1)
    interval = mean_interval(values)
    error = values.std(ddof=1) / math.sqrt(df + 1)
    assert (interval.upper - interval.value) / error == pytest.approx(expected, abs=5e-5)
    assert (interval.lower - interval.value) / error == pytest.approx(-expected, abs=5e-5)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 31, 201, 801])
def test_scipy_gives_what_the_formulas_give(n):
    values = np.random.default_rng(n).normal(0.2, 1, size=n)
    error = values.std(ddof=1) / math.sqrt(n)
    for confidence in (0.2, 0.8, 0.95, 0.999):
        interval = mean_interval(values, confidence=confidence)
        half = t_quantile(0.5 + confidence / 2, n - 1) * error
        assert interval.value == values.mean()
        assert interval.lower == pytest.approx(values.mean() - half, rel=1e-9)
        assert interval.upper == pytest.approx(values.mean() + half, rel=1e-9)
    for shift in (-40, -1, -0.1, 0.1, 1, 40):
        differences = values + shift
        expected = 2 * t_cdf(-abs(differences.mean()) / error, n - 1)
        assert paired_test(differences, np.zeros(n)).p_t == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_paired_tests_against_scipy(n):
    one, other = np.random.default_rng(n).normal(size=(2, n))
    test = paired_test(one, other)
    assert test.p_t == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-9)
    low, high = stats.ttest_rel(one, other).confidence_interval()
    assert (test.difference.lower, test.difference.upper) == (pytest.approx(low), pytest.approx(high))
    exact = stats.permutation_test((one - other,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert test.p_sign_flip == pytest.approx(exact.pvalue)


def test_interval_by_hand():
    # mean 2, sd 1, t(0.975, 2) = 4.3027: 2 ± 4.3027 / √3
    interval = mean_interval([1.0, 2.0, 3.0])
    assert (interval.value, interval.n) == (2.0, 3)
    assert interval.upper - 2 == pytest.approx(2.4841, abs=1e-4)
    assert 2 - interval.lower == pytest.approx(2.4841, abs=1e-4)


def test_too_few_values_have_no_interval():
    assert math.isnan(mean_interval([]).value)
    one = mean_interval([3.0])
    assert one.value == 3.0
    assert math.isnan(one.lower)
    alone = paired_test([2.0], [1.0])
    assert math.isnan(alone.p_t)
    assert alone.p_sign_flip == 1.0
    assert math.isnan(paired_test([], []).p_sign_flip)


def test_sign_flips_by_hand():
    # Of the eight signs of 1, 2, 3 only + + + and − − − reach 6.
    assert sign_flip_p([1.0, 2.0, 3.0]) == 2 / 8
    # 4 of 8: |±1 ± 1 ± 0| = 2 for + + ± and − − ±.
    assert sign_flip_p([1.0, 1.0, 0.0]) == 4 / 8
    assert sign_flip_p([0.1] * 5) == 2 / 32  # the least that five seeds can give
    naive = [abs(sum(s * d for s, d in zip(signs, (0.3, -0.1, 0.7, 0.2), strict=True)))
             for signs in itertools.product((1, -1), repeat=4)]  # fmt: skip
    assert sign_flip_p([0.3, -0.1, 0.7, 0.2]) == sum(value >= 1.1 - 1e-9 for value in naive) / 16


def test_many_pairs_are_flipped_at_random_but_the_same_way_each_time():
    differences = np.random.default_rng(0).normal(0.5, 1, size=30)
    found = sign_flip_p(differences)
    assert found == sign_flip_p(differences) != sign_flip_p(differences, seed=1)
    assert found == pytest.approx(paired_test(differences, np.zeros(30)).p_t, abs=0.01)


def test_no_difference_and_the_same_difference_everywhere():
    same = paired_test([1.0, 2.0], [1.0, 2.0])
    assert (same.p_t, same.p_sign_flip) == (1.0, 1.0)
    assert math.isnan(paired_test([2.0, 3.0], [1.0, 2.0]).p_t)  # 0 would claim what two equal differences cannot show


def test_bootstrap_of_the_mean_and_of_censored_values():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    interval = mean_interval(values, kind="bootstrap")
    assert interval.value == 3.0
    # Its standard error is sd(n) / √n = 0.632; percentiles of sums of five lie near 3 ± 1.96 · 0.632.
    assert (interval.lower, interval.upper) == (pytest.approx(1.8, abs=0.01), pytest.approx(4.2, abs=0.01))
    assert mean_interval(values, kind="bootstrap") == interval
    never = bootstrap_interval([10.0, 20.0, 30.0, math.inf, math.inf], np.median)
    assert never.value == 30.0
    assert never.lower == 10.0
    assert math.isinf(never.upper)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([1.0], confidence=95), "`confidence` is 95, which is not between 0 and 1"),
        (lambda: mean_interval([1.0], kind="z"), "kind='z' is not an interval over seeds"),
        (lambda: mean_interval([1.0, math.nan]), r"1 of 2 values are not finite \(nan\)"),
        (lambda: bootstrap_interval([-math.inf]), "1 of 1 values are not finite"),
        (lambda: paired_test([1.0], [1.0, 2.0]), "There are 1 values and 2 of the control"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_intervals_of_none_and_of_one_value():
    nothing = "Interval(value=nan, lower=nan, upper=nan, n=0)"
    assert repr(mean_interval([])) == repr(bootstrap_interval([])) == nothing
    for kind in ("t", "bootstrap"):
        assert repr(mean_interval([3.0], kind=kind)) == "Interval(value=3.0, lower=nan, upper=nan, n=1)"


def test_what_is_asked_of_an_interval_and_a_test_is_passed_on():
    values, control = np.random.default_rng(1).normal(size=(2, 12))
    options = {"confidence": 0.87, "seed": 3}
    interval = mean_interval(values, kind="bootstrap", **options)
    assert interval == bootstrap_interval(values, **options) != bootstrap_interval(values, confidence=0.87)
    assert interval != bootstrap_interval(values, seed=3)
    for kind in ("t", "bootstrap"):
        test = paired_test(values, control, kind=kind, **options)
        assert test.difference == mean_interval(values - control, kind=kind, **options)


def test_a_bootstrap_ends_at_its_percentiles_in_the_sorted_statistics():
    values = np.random.default_rng(2).normal(size=7)
    found = bootstrap_interval(values, confidence=0.5, resamples=400, seed=5)
    draws = np.random.Generator(np.random.Philox(5)).integers(7, size=(400, 7))
    means = np.sort(values[draws].mean(1))
    assert (found.lower, found.upper, found.n) == (means[99], means[299], 7)


def test_up_to_sixteen_pairs_all_flips_are_made():
    sixteen, seventeen = np.random.default_rng(3).normal(0.3, 1, size=16), [1.0] * 12 + [-1.0] * 5
    assert sign_flip_p(sixteen, seed=0) == sign_flip_p(sixteen, seed=1)
    assert sign_flip_p(seventeen, seed=0) != sign_flip_p(seventeen, seed=1)
    # At least 12 of 17 signs alike, with either sign.
    assert sign_flip_p(seventeen) == pytest.approx(2 * stats.binom(17, 0.5).sf(11), abs=0.005)
    assert sign_flip_p([1.0] * 40) == 1 / 65536  # the one that was observed
    assert paired_test([2.0, 4.0], [1.0, 2.0]).p_t == pytest.approx(0.2048, abs=1e-4)  # differences that are 1 apart


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5])
def test_a_confidence_at_an_end_is_none(confidence):
    with pytest.raises(ValueError, match="which is not between 0 and 1"):
        mean_interval([1.0, 2.0], confidence=confidence)


def test_a_crossed_interval_is_as_wide_as_both_variances():
    draws = np.random.default_rng(0)
    seeds, units = draws.normal(size=(12, 1)), draws.normal(size=(1, 80))
    found = crossed_interval(seeds + units, resamples=4000)
    assert found.value == pytest.approx(seeds.mean() + units.mean())
    assert found.n == 960
    expected = 1.96 * math.sqrt(seeds.var() / 12 + units.var() / 80)
    assert (found.upper - found.lower) / 2 == pytest.approx(expected, rel=0.1)
    narrow = crossed_interval(seeds + units, confidence=0.5, resamples=4000)
    assert (narrow.upper - narrow.lower) / 2 == pytest.approx(expected * 0.6745 / 1.96, rel=0.1)
    assert crossed_interval(seeds + units, resamples=50) == crossed_interval(seeds + units, resamples=50)
    assert crossed_interval(np.full((3, 4), 2.5), resamples=9) == crossed_interval(np.full((3, 4), 2.5), seed=7)


def test_values_that_are_no_matrix_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\) were given. Pass one for each seed and unit"):
        crossed_interval(np.zeros(3))
    with pytest.raises(ValueError, match="1 of 4 values are not finite"):
        crossed_interval([[0, 1], [math.nan, 1]])
    with pytest.raises(ValueError, match="not between 0 and 1"):
        crossed_interval([[0, 1]], confidence=95)


def test_the_interval_of_an_auc_is_about_the_hanley_mcneil_one():
    draws = np.random.default_rng(1)
    right = np.arange(600) < 400
    values = draws.normal(size=600) + right
    found = auc_interval(values, right)
    pairs = values[right][:, None] > values[~right]
    area = pairs.mean()
    assert (found.value, found.n) == (pytest.approx(area), 600)
    both, twice = area / (2 - area), 2 * area**2 / (1 + area)  # Hanley & McNeil 1982
    error = math.sqrt((area * (1 - area) + 399 * (both - area**2) + 199 * (twice - area**2)) / (400 * 200))
    assert (found.upper - found.lower) / 2 == pytest.approx(1.96 * error, rel=0.15)
    assert found == auc_interval(values, right)
    ties = auc_interval(np.ones(600), right)
    assert (ties.value, ties.lower, ties.upper) == (0.5, 0.5, 0.5)


def test_an_auc_needs_rows_of_both_kinds_and_numbers():
    values = np.array([1.0, 2.0])
    for right in (np.ones(2, bool), np.zeros(2, bool)):
        assert auc(values, right) is None
        with pytest.raises(ValueError, match=r"All 2 rows are (right|wrong): no AUC"):
            auc_interval(values, right)
    with pytest.raises(ValueError, match="1 of 2 values are NaN, which have no rank"):
        auc(np.array([1, np.nan]), np.array([True, False]))
