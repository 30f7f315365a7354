"""Buckets: the papers' sizes, ties, empty parts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_curriculum import Phases, make_plan, rank_scores
from hf_curriculum.planning.buckets import cut_buckets, uneven_buckets
from hf_curriculum.planning.ranking import Ranking


@pytest.mark.parametrize(
    ("size", "num_buckets", "sizes"),
    [
        (566_747, 5, (113_349, 113_349, 113_350, 113_349, 113_350)),  # Simi-CL, COCO
        (145_000, 3, (48_333, 48_333, 48_334)),  # Simi-CL, Flickr30k
        (416_642, 4, (104_160, 104_161, 104_160, 104_161)),  # WSOD, CC: pools 104,160 / 208,321 / 312,481 / 416,642
    ],
)
def test_equal_parts_have_the_published_sizes(size, num_buckets, sizes):
    assert cut_buckets(rank_scores(np.arange(size)), num_buckets, "rank").sizes == sizes


def test_value_parts_keep_ties_together_and_include_the_cut():
    scores = np.array([1, 1, 1, 2, 3, 3, 5, 9])
    buckets = cut_buckets(rank_scores(scores), 4, "value")
    assert buckets.thresholds == (1.0, 2.5, 3.5)
    assert buckets.sizes == (3, 1, 2, 2)


def test_value_parts_from_the_high_end():
    buckets = cut_buckets(rank_scores(np.array([0.9, 0.1, 0.5, 0.5, 0.2]), "high"), 2, "value")
    assert buckets.thresholds == (0.5,)
    assert buckets.sizes == (3, 2)


@given(
    scores=st.lists(st.integers(-5, 5), min_size=2, max_size=80).filter(lambda v: len(set(v)) > 1),
    num_buckets=st.integers(1, 7),
    easy=st.sampled_from(["low", "high"]),
)
def test_value_cuts_are_numpys_quantiles(scores, num_buckets, easy):
    scores = np.array(scores, dtype=float)
    buckets = cut_buckets(rank_scores(scores, easy), num_buckets, "value")
    sign = 1 if easy == "low" else -1
    cuts = np.percentile(sign * scores, [100 * k / num_buckets for k in range(1, num_buckets)])
    assert [sign * cut for cut in buckets.thresholds] == pytest.approx(cuts.tolist())
    ends = [int((sign * scores <= sign * cut).sum()) for cut in buckets.thresholds]
    assert list(buckets.ends) == [*ends, len(scores)]


def test_one_value_over_two_quarters_leaves_a_bucket_empty():
    buckets = cut_buckets(rank_scores(np.array([1, 2, 2, 2, 2, 2, 2, 3])), 4, "value")
    assert buckets.sizes == (7, 0, 0, 1)


def test_unscored_rows_are_in_the_last_bucket():
    ranking = rank_scores(np.array([1, np.nan, 2, 3, np.nan]))
    assert cut_buckets(ranking, 2, "value").ends == (2, 5)
    assert cut_buckets(ranking, 5, "rank").ends == (1, 2, 3, 4, 5)


def test_given_thresholds():
    scores = rank_scores(np.array([0, 2, 3, 4, 5, 6]))
    assert cut_buckets(scores, 4, "value", thresholds=[2, 3, 5]).sizes == (2, 1, 2, 1)
    with pytest.raises(ValueError, match="2 thresholds were given for 4 buckets; 3 inner thresholds"):
        cut_buckets(scores, 4, "value", thresholds=[2, 3])
    with pytest.raises(ValueError, match="do not run from easy to hard"):
        cut_buckets(scores, 3, "value", thresholds=[3, 2])
    with pytest.raises(ValueError, match="need cut='value'"):
        cut_buckets(scores, 3, "rank", thresholds=[2, 3])


@pytest.mark.parametrize(("easy", "sizes"), [("low", (3, 2)), ("high", (3, 2))])
def test_a_threshold_that_float32_rounds_is_inclusive(easy, sizes):
    # As float32, 0.3 is a little more and 0.7 a little less than what Python calls so.
    scores, mark = ([0.1, 0.2, 0.3, 0.4, 0.5], 0.3) if easy == "low" else ([0.5, 0.6, 0.7, 0.8, 0.9], 0.7)
    buckets = cut_buckets(rank_scores(np.array(scores), easy), 2, "value", thresholds=[mark])
    assert (buckets.sizes, buckets.thresholds) == (sizes, (mark,))


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="0 buckets were asked for"):
        cut_buckets(rank_scores(np.arange(3)), 0)
    with pytest.raises(ValueError, match="cut='size' was given"):
        cut_buckets(rank_scores(np.arange(3)), 2, "size")
    with pytest.raises(ValueError, match="3 examples cannot fill 4 buckets by rank"):
        cut_buckets(rank_scores(np.arange(3)), 4)
    with pytest.raises(ValueError, match=r"All 5 scored rows have the same `n`, 3: it orders nothing"):
        cut_buckets(rank_scores(np.full(5, 3), score_column="n"), 2, "value")
    with pytest.raises(ValueError, match="None of the 3 rows has a score: it orders nothing, and 2 buckets"):
        cut_buckets(Ranking.unordered(3), 2)
    with pytest.raises(ValueError, match="All 1 scored rows"):
        cut_buckets(rank_scores(np.array([1.0])), 2)


def test_one_bucket_needs_no_spread():
    assert cut_buckets(rank_scores(np.full(5, 3)), 1).ends == (5,)


@pytest.mark.parametrize(
    ("scores", "many", "found"),
    [
        ([1, 1, 2, 2, 3, 4], 2, ["bucket 1 of 2 ends after 1 of 2 examples whose `the score` is 2"]),
        ([1, 2, 2, 2, 3, 4], 3, ["bucket 1 of 3 ends after 1 of 3 examples whose `the score` is 2"]),
        ([1, 2, 3, 3, 3, 4], 3, ["bucket 2 of 3 ends after 2 of 3 examples whose `the score` is 3"]),
        ([1, 2, 3, 3, 4, 5], 3, None),
        ([1, 2, 2], 3, ["bucket 2 of 3 ends after 1 of 2 examples whose `the score` is 2"]),
        ([1, 1, 2, 2, np.nan, np.nan, np.nan, np.nan], 4, None),
        ([1, 1, 2], 3, ["bucket 1 of 3 ends after 1 of 2 examples whose `the score` is 1"]),
    ],
)
def test_buckets_that_end_among_equal_scores(scores, many, found):
    ranking = rank_scores(np.array(scores, dtype=float))
    said = uneven_buckets(cut_buckets(ranking, many), ranking)
    if found is None:
        assert said is None
    else:
        assert said.startswith(f"Equal scores are cut by the order of the file: {'; '.join(found)}. Use cut='value'")
        ranking = rank_scores(-np.array(scores, dtype=float), "high")
        assert uneven_buckets(cut_buckets(ranking, many), ranking) == re.sub(r"is (\d)", r"is -\1", said)


@pytest.mark.parametrize(("threshold", "said"), [(1234.56, "1235"), (10_000, "10000"), (33_554_457, "33554457")])
def test_a_threshold_has_four_digits_or_all_before_the_point(threshold, said):
    scores = np.array([1.0, 2.0, 4e7, 5e7])
    plan = make_plan(Phases(2, cut="value", thresholds=(threshold,)), scores, global_batch_size=2)
    assert plan.stages[0].rule == f"score ≤ {said}"
    plan = make_plan(Phases(2, cut="value", thresholds=(-threshold,), easy="high"), -scores, global_batch_size=2)
    assert plan.stages[0].rule == f"score ≥ -{said}"
