"""Ranking: stable, the same on every machine, honest about what has no score."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hf_curriculum import CaptionLength, add_scores, rank_scores
from hf_curriculum.planning.ranking import Ranking, read_scores, resolve_easy

FLOATS = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


@given(scores=FLOATS, easy=st.sampled_from(["low", "high"]))
def test_the_order_is_the_stable_sort_of_a_naive_reference(scores, easy):
    if not np.isfinite(scores).any():
        return
    sign = 1 if easy == "low" else -1

    def naive_key(row):
        return (0, sign * scores[row]) if np.isfinite(scores[row]) else (1, 0)

    naive = sorted(range(len(scores)), key=naive_key)
    assert rank_scores(scores, easy).order.tolist() == naive


def test_ties_keep_the_order_of_the_data_from_both_ends():
    scores = np.array([2, 1, 2, 1, -0.0, 0.0])
    assert rank_scores(scores, "low").order.tolist() == [4, 5, 1, 3, 0, 2]
    assert rank_scores(scores, "high").order.tolist() == [0, 2, 1, 3, 4, 5]


def test_unscored_rows_stand_last_or_are_dropped_or_refused():
    scores = np.array([3.0, np.nan, 1.0, np.inf, -np.inf])
    last = rank_scores(scores, unscored="last")
    assert (last.order.tolist(), last.num_scored, last.num_unscored) == ([2, 0, 1, 3, 4], 2, 3)
    assert rank_scores(scores, unscored="drop").order.tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"3 of 5 rows have no finite `s` \(rows \[1, 3, 4\]"):
        rank_scores(scores, unscored="error", name="s")


def test_nothing_to_order_is_said():
    with pytest.raises(ValueError, match="no rows to order"):
        rank_scores(np.array([]))
    with pytest.raises(ValueError, match="None of the 2 rows has a finite"):
        rank_scores(np.array([np.nan, np.inf]))
    with pytest.raises(ValueError, match="easy='hard' was given"):
        rank_scores(np.array([1.0]), "hard")
    with pytest.raises(ValueError, match="unscored='skip' was given"):
        rank_scores(np.array([1.0]), unscored="skip")


def test_order_takes_four_bytes_an_example():
    ranking = rank_scores(np.arange(1000))
    assert ranking.order.dtype == np.int32
    assert ranking.order.flags.owndata


def test_scores_are_read_in_one_go_with_null_as_nan():
    data = Dataset.from_dict({"score": [1, None, 3], "caption": ["a", "b", "c"], "box": [[1.0, 2.0]] * 3})
    np.testing.assert_array_equal(read_scores(data, "score"), np.array([1, np.nan, 3], np.float32))
    assert read_scores(data.select([2, 0]), "score").tolist() == [3, 1]


def test_columns_that_are_no_score_are_refused():
    data = Dataset.from_dict({"caption": ["a", "b", "c"], "box": [[1.0, 2.0]] * 3})
    with pytest.raises(ValueError, match=r"`score` is not in the data, which has.*'box'\].*add_scores"):
        read_scores(data, "score")
    with pytest.raises(ValueError, match=r"`caption` is .*, not a column of numbers"):
        read_scores(data, "caption")
    with pytest.raises(ValueError, match=r"`box` is .*, not a column of numbers"):
        read_scores(data, "box")
    with pytest.raises(ValueError, match="list without named columns"):
        read_scores([1, 2], "score")


def test_the_easy_end_comes_from_the_curriculum_the_provenance_or_the_scorer():
    data = Dataset.from_dict({"noun_count": [1.0], "mystery": [1.0]})
    assert resolve_easy(data, "noun_count") == "low"
    assert resolve_easy(data, "noun_count", "high") == "high"
    with pytest.raises(ValueError, match="Whether a low or a high `mystery` is easy is not recorded"):
        resolve_easy(data, "mystery")


def test_rows_without_a_score_are_in_their_own_order():
    ranking = Ranking.unordered(7)
    assert ranking.order.tolist() == list(range(7))
    assert (ranking.order.dtype, len(ranking), ranking.num_rows) == (np.int32, 7, 7)


def test_what_is_recorded_with_the_data_goes_before_the_scorer_s_default(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    data = Dataset.from_dict({"caption": ["a dog", "a dog runs"]})
    assert resolve_easy(add_scores(data, CaptionLength()), "caption_length") == "low"
    longer = add_scores(data, CaptionLength(easy="high"))
    assert resolve_easy(longer, "caption_length") == "high"
    assert resolve_easy(longer, "caption_length", "low") == "low"
