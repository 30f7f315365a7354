"""Ranking: stable, the same on every machine, honest about what has no score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hf_curriculum import (
    IID,
    ByImage,
    ByNode,
    CaptionLength,
    Filter,
    NodeSampling,
    Phases,
    add_scores,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.buckets import cut_buckets, mark_easiest
from hf_curriculum.planning.ranking import Ranking, rank_dataset, read_scores, resolve_easy
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.training.setup import rank_training_data

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
        rank_scores(scores, unscored="error", score_column="s")


def test_nothing_to_order_is_said():
    with pytest.raises(ValueError, match="no rows to order"):
        rank_scores(np.array([]))
    with pytest.raises(ValueError, match="None of the 2 rows has a finite score, so there is no order"):
        rank_scores(np.array([np.nan, np.inf]))
    with pytest.raises(ValueError, match="None of the 2 rows has a finite `s`, so there is no order"):
        rank_scores(np.array([np.nan, np.inf]), score_column="s")
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


def scored(easy, column="caption_length", values=(3.0, 1.0, 2.0)):
    data = Dataset.from_dict({column: np.float32(values)})
    return attach_provenance(data, {column: ScoreProvenance(column, "mine", easy=easy)})


def test_the_easy_end_comes_from_the_curriculum_the_provenance_or_the_scorer(caplog):
    data = Dataset.from_dict({"noun_count": [1.0], "mystery": [1.0]})
    for easy in ("low", "high"):  # CaptionLength's own is low
        assert resolve_easy(scored(easy), "caption_length") == easy
        assert resolve_easy(scored(easy), "caption_length", "high") == "high"
        assert resolve_easy(scored(easy), "caption_length", "low") == "low"
        assert resolve_easy(scored(easy).rename_column("caption_length", "mystery"), "mystery") == easy
    assert caplog.text == ""
    assert resolve_easy(data, "noun_count") == "low"
    assert (
        "Nothing is recorded of where `noun_count` came from, so it is taken for the score that NounCount"
        in caplog.text
    )
    assert resolve_easy(data, "noun_count", "high") == "high"
    with pytest.raises(ValueError, match="Whether a low or a high `mystery` is easy is not recorded"):
        resolve_easy(data, "mystery")
    assert resolve_easy(data, "mystery", default="low") == "low"


def test_a_long_caption_that_was_scored_as_easy_comes_first():
    data = Dataset.from_dict({"caption": ["a", "a b c", "a b"]})
    for easy, order in (("low", [0, 2, 1]), ("high", [1, 2, 0])):
        plan = make_plan(
            Phases(3, cut="rank"),
            add_scores(data, CaptionLength(easy=easy)),
            score_column="caption_length",
            global_batch_size=1,
        )
        assert plan.ranking.order.tolist() == order
        assert plan.step_rows(0).tolist() == order[:1]
        assert f"by caption_length ({easy} = easy)" in plan.describe()


def test_a_plan_of_a_data_set_is_the_plan_of_its_ranking():
    data = scored("high", values=np.random.default_rng(0).random(40))
    options = {"global_batch_size": 4, "seed": 3}
    from_data = make_plan(Phases(4), data, score_column="caption_length", **options)
    from_ranking = make_plan(Phases(4), rank_dataset(data, Phases(4), "caption_length"), **options)
    assert from_data.rows(0, from_data.num_samples).tolist() == from_ranking.rows(0, from_data.num_samples).tolist()
    assert from_data.fingerprint() == from_ranking.fingerprint()
    turned = make_plan(Phases(4, easy="low"), data, score_column="caption_length", **options)
    assert turned.ranking.order.tolist() == from_data.ranking.order.tolist()[::-1]
    assert make_plan(IID(), data, epochs=1, **options).ranking.scores is None


def test_what_cannot_be_planned_for_is_said():
    data = Dataset.from_dict({"mystery": [1.0, 2.0]})
    with pytest.raises(ValueError, match="Phases sorts examples by a score, and neither score_column= nor scores="):
        make_plan(Phases(2), data, global_batch_size=1)
    with pytest.raises(ValueError, match="`gone` is not in the data"):
        make_plan(Phases(2), data, score_column="gone", global_batch_size=1)
    with pytest.raises(ValueError, match="Whether a low or a high `mystery` is easy is not recorded"):
        make_plan(Phases(2), data, score_column="mystery", global_batch_size=1)
    with pytest.raises(TypeError, match=r"was given a DatasetDict of .* as `ranking`"):
        make_plan(Phases(2), DatasetDict(train=data), score_column="mystery", global_batch_size=1)
    with pytest.raises(TypeError, match=r"was given an IterableDataset as `ranking`"):
        make_plan(Phases(2), data.to_iterable_dataset(), score_column="mystery", global_batch_size=1)
    with pytest.raises(ValueError, match="score_column='mystery' names a column of a data set, and a ndarray"):
        make_plan(Phases(2, easy="low"), np.arange(4.0), score_column="mystery", global_batch_size=1)
    with pytest.raises(TypeError, match=r"was given a Dataset as `scores`, and an array is needed"):
        rank_scores(data)


LARGE = [
    (np.arange(100) + 2**25, np.int64),
    (np.arange(100) + 2**53, np.int64),
    (np.arange(100) + 2**25, np.int32),
    (np.arange(100, dtype=np.uint64) + np.uint64(2**63), np.uint64),
    (np.arange(100) * 1e-9 + 1, np.float64),
    (np.arange(1, 101) * 1e300, np.float64),
    (np.arange(100) + np.iinfo(np.int64).min, np.int64),
]


@pytest.mark.parametrize("easy", ["low", "high"])
@pytest.mark.parametrize(("values", "kind"), LARGE)
def test_scores_that_float32_would_merge_keep_their_order(values, kind, easy):
    shuffle = np.random.default_rng(0).permutation(100)
    data = Dataset.from_dict({"s": values.astype(kind)[shuffle]})
    ranking = rank_scores(read_scores(data, "s"), easy)
    wanted = np.argsort(shuffle)
    assert ranking.order.tolist() == (wanted if easy == "low" else wanted[::-1]).tolist()
    assert ranking.order.dtype == np.int32
    assert ranking.num_scored == 100


@pytest.mark.parametrize("easy", ["low", "high"])
def test_equal_large_scores_keep_the_order_of_the_data(easy):
    values = np.array([2**25 + 1, 2**25, 2**25 + 1, 2**25])
    assert rank_scores(values, easy).order.tolist() == ([1, 3, 0, 2] if easy == "low" else [0, 2, 1, 3])
    with_gaps = np.array([1 + 1e-9, np.nan, 1.0, np.inf, 1 + 1e-9])
    ranking = rank_scores(with_gaps, easy)
    assert ranking.order.tolist() == ([2, 0, 4, 1, 3] if easy == "low" else [0, 4, 2, 1, 3])
    assert (ranking.num_scored, ranking.num_unscored) == (3, 2)


def test_phases_of_time_stamps_have_equal_sizes_and_thresholds_that_differ():
    ranking = rank_scores(np.arange(100) + 2**25, score_column="t")
    assert cut_buckets(ranking, 4, "value").sizes == (25, 25, 25, 25)
    assert cut_buckets(ranking, 2, "value", thresholds=[2**25 + 33]).sizes == (34, 66)
    plan = make_plan(Phases(4, cut="value"), ranking, global_batch_size=5)
    assert [stage.pool_size for stage in plan.stages] == [25, 50, 75, 100]
    assert [stage.rule for stage in plan.stages[:3]] == ["t ≤ 33554456.75", "t ≤ 33554481.5", "t ≤ 33554506.25"]


def test_scores_that_float32_keeps_apart_are_planned_for_as_before():
    values = np.random.default_rng(0).normal(size=1000)
    for numbers in (values, values.astype(np.float32), np.arange(1000), np.round(values, 1)):
        ranking = rank_scores(numbers)
        assert ranking.scores.dtype == np.float32
        assert np.array_equal(ranking.scores, numbers.astype(np.float32))
        assert ranking.order.tolist() == rank_scores(numbers.astype(np.float32)).order.tolist()


def test_the_easiest_of_large_scores_are_kept():
    data = Dataset.from_dict({"t": np.arange(100)[::-1] + 2**25})
    assert mark_easiest(data, "t", 0.25, easy="low")["keep"][:] == [False] * 75 + [True] * 25


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


def test_scores_given_to_the_trainer_keep_their_order_too():
    data, scores = Dataset.from_dict({"caption": ["x"] * 100}), np.arange(100)[::-1] + 2**25
    ranking = rank_training_data(data, Phases(4), None, scores)
    assert ranking.order.tolist() == list(range(100))[::-1]
    assert rank_training_data(data, Phases(4), None, scores.tolist()).order.tolist() == ranking.order.tolist()


def test_batches_by_image_keep_large_scores_apart():
    data = Dataset.from_dict({"image_id": [str(row // 2) for row in range(40)], "t": np.arange(40)[::-1] + 2**25})
    plan = make_plan(
        Phases(4, cut="rank", easy="low", batches=ByImage(2)), data, score_column="t", global_batch_size=2
    )
    assert plan.order.order.tolist() == list(range(20))[::-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_of_scores_is_ranked_without_its_history(dtype):
    scores = torch.tensor([3.0, 1.0, 2.0], dtype=dtype, requires_grad=True)
    plan = make_plan(Phases(3), scores, global_batch_size=1)
    assert plan.order.order.tolist() == rank_scores(scores).order.tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])
def test_whole_numbers_that_float32_would_merge_keep_their_order(kind):
    scores = np.array([2**24 + 1, 2**24, 2**24 + 2], dtype=kind)
    assert rank_scores(scores).order.tolist() == [1, 0, 2]
    assert rank_scores(scores, "high").order.tolist() == [2, 0, 1]


def test_an_order_of_some_rows_knows_how_many_there_are():
    nodes = [["a", "b"][: 1 + row % 2] for row in range(22)]
    data = Dataset.from_dict({"caption_length": list(range(22)), "nodes": nodes})
    for rule in (
        Filter(at_least=15, by="caption_length", then=IID(epochs=2), batches=ByNode()),
        Filter(0.5, by="caption_length", by_easy="high", then=NodeSampling(epochs=2, check_every=9)),
    ):
        rows = make_plan(rule, data, global_batch_size=4).rows(0, 4 * 3)
        assert 11 <= rows.min() <= rows.max() < 22
