"""Filtering: the published totals, alone and before another curriculum."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import (
    IID,
    BucketedStream,
    ByImage,
    ByLength,
    Filter,
    Growing,
    Phases,
    curriculum_from,
    make_plan,
    rank_scores,
    read_provenance,
    save_bucketed,
)
from hf_curriculum.planning.buckets import keep_easiest, mark_easiest
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.provenance import ScoreProvenance, append_columns, attach_provenance

SIZE = 416_642
"""Pairs of Conceptual Captions in the WSOD paper."""


@pytest.mark.parametrize(
    ("rule", "total"),
    [
        (Phases(4, 1), 2.5),
        (Filter(0.5, IID(epochs=4), easy="low"), 2.0),
        (Filter(0.5, Phases(4, 1), easy="low"), 1.25),
        (Filter(0.75, Phases(4, 1), easy="low"), 1.875),
        (IID(epochs=3), 3.0),
    ],
)
def test_regimes_see_the_published_number_of_examples(rule, total):
    plan = make_plan(rule, np.arange(SIZE), global_batch_size=4)
    assert (plan.num_draws - plan.num_filled) / SIZE == pytest.approx(total, abs=1e-5)


def test_what_is_not_kept_is_never_drawn():
    scores = np.array([5, 1, np.nan, 2, 4, 3, 6.0])
    plan = make_plan(Filter(0.5, Phases(3, 2), easy="low"), scores, global_batch_size=2)
    assert set(plan.rows(0, plan.num_samples).tolist()) == {1, 3, 5}
    assert "all of the easiest 50 %" in plan.describe()
    assert plan.cost_ratio == pytest.approx((1 + 2 + 3) * 2 / (6 * 7))


def test_it_goes_before_any_curriculum():
    for then in (IID(epochs=2), Growing(epochs=2), Phases(2, 1, partial_batches="keep")):
        rule = Filter(0.5, then, easy="high")
        plan = make_plan(rule, np.arange(40), global_batch_size=4)
        rows = plan.rows(0, plan.num_samples)
        assert rows[rows >= 0].min() >= 20
        assert curriculum_from(rule.to_dict()) == rule
        assert rule.partial_batches == then.partial_batches


def test_rows_say_why_they_are_left_out(caplog):
    data = Dataset.from_dict({"similarity": [0.3, None, 0.1, 0.2, 0.4]})
    with caplog.at_level("INFO"):
        marked = mark_easiest(data, "similarity", 0.5, easy="high")
    assert marked["keep"][:] == [True, False, False, False, True]
    assert marked["keep_reason"][:] == ["kept", "no score", "harder", "harder", "kept"]
    assert "The easiest 50 % by `similarity`: 2 harder, 2 kept, 1 no score." in caplog.text
    with pytest.raises(ValueError, match=r"has \['keep', 'keep_reason'\] already"):
        mark_easiest(marked, "similarity", 0.5, easy="high")


def test_ties_are_cut_by_rank():
    assert keep_easiest(rank_scores(np.full(5, 2.0)), 0.5).order.tolist() == [0, 1]
    assert len(keep_easiest(rank_scores(np.arange(10)), 0.7).order) == 7
    assert keep_easiest(rank_scores(np.arange(10)), 0.1).order.tolist() == [0]


def test_bad_filters_are_refused():
    ranking = rank_scores(np.array([1.0, 2.0]))
    for share in (0, 1.5):
        with pytest.raises(ValueError, match="the share is more than 0 and at most 1"):
            keep_easiest(ranking, share)
        with pytest.raises(ValueError, match="keep is more than 0 and at most 1"):
            Filter(share)
    with pytest.raises(ValueError, match=r"The easiest 10 % of 2 scored examples is less than one"):
        keep_easiest(ranking, 0.1)
    with pytest.raises(ValueError, match="needs a score"):
        keep_easiest(Ranking.unordered(4), 0.5)
    with pytest.raises(ValueError, match="one order serves both"):
        Filter(0.5, Phases(2, easy="low"))
    with pytest.raises(ValueError, match="There is no curriculum 'phase'"):
        Filter(0.5, "phase")
    assert Filter(0.5, "phases") == Filter(0.5, Phases())
    with pytest.raises(ValueError, match=r"ByLength\(partial_batches='keep'\) is not possible"):
        Filter(0.5, IID(epochs=1, partial_batches="keep"), batches=ByLength())


def scored_rows(size: int, seed: int = 0) -> Dataset:
    """Rows with two scores of unlike easy ends, ties among them, and mentions; one of each is missing."""
    rng = np.random.default_rng(seed)
    length = rng.integers(3, 20, size).astype(np.float32)
    similarity = np.round(rng.random(size), 2).astype(np.float32)
    length[3], similarity[5] = np.nan, np.nan
    data = Dataset.from_dict({"row": list(range(size))})
    values = {"caption_length": length, "clip_similarity": similarity}
    made = {name: ScoreProvenance(name, "by hand", easy="high") for name in values}
    return append_columns(data, values, made, log=False).add_column(
        "object_mentions", rng.integers(0, 5, size).astype(np.float32)
    )


def test_one_score_keeps_and_another_orders():
    data = scored_rows(83)
    plan = make_plan(
        Filter(0.75, Phases(4), by="clip_similarity"), data, score_column="caption_length", global_batch_size=4
    )
    similarity, length = (np.array(data[name][:], float) for name in ("clip_similarity", "caption_length"))
    scored = [row for row in range(83) if np.isfinite(similarity[row])]
    best = sorted(scored, key=lambda row: (-similarity[row], row))[: int(82 * 0.75)]
    order = sorted(best, key=lambda row: (-length[row] if np.isfinite(length[row]) else np.inf, row))
    assert plan.order.order.tolist() == order
    assert plan.order.num_scored == len([row for row in best if np.isfinite(length[row])])
    sizes = [len(order) * k // 4 for k in (1, 2, 3, 4)]
    assert [stage.pool_size for stage in plan.stages] == sizes
    assert plan.num_draws - plan.num_filled == sum(sizes)
    assert "easiest 25 % of the easiest 75 % by clip_similarity" in plan.describe()
    drawn = plan.rows(0, plan.num_samples)
    assert set(drawn.tolist()) == set(order)
    turned = make_plan(
        Filter(0.75, Phases(4), by="clip_similarity", by_easy="low"),
        data,
        score_column="caption_length",
        global_batch_size=4,
    )
    worst = sorted(scored, key=lambda row: (similarity[row], row))[: int(82 * 0.75)]
    assert set(turned.order.order.tolist()) == set(worst)


def test_a_threshold_keeps_whatever_end_is_easy():
    data = scored_rows(60)
    mentions = np.array(data["object_mentions"][:])
    rule = Filter(at_least=2, by="object_mentions", then=IID(epochs=8))
    assert not rule.needs_scores
    plan = make_plan(rule, data, global_batch_size=4)
    assert plan.order.order.tolist() == np.flatnonzero(mentions >= 2).tolist()
    assert plan.num_draws - plan.num_filled == 8 * (mentions >= 2).sum()
    assert "of object_mentions ≥ 2" in plan.describe()
    for easy in ("low", "high"):
        own = make_plan(
            Filter(at_least=2, then=Phases(2), easy=easy), data, score_column="object_mentions", global_batch_size=4
        )
        assert (own.exposure().easiest_tenth is None) == (easy == "low")  # those below 2 are the easiest
        assert sorted(own.order.order.tolist()) == np.flatnonzero(mentions >= 2).tolist()
        assert own.order.score_at(0) == (2 if easy == "low" else 4)
    exact = make_plan(Filter(at_least=0.3, easy="low"), np.float32([0.1, 0.3, 0.2]), global_batch_size=1)
    assert exact.order.order.tolist() == [1]  # 0.3 as it is stored
    whole = make_plan(Filter(at_least=2.5, easy="low"), np.array([2, 3, 1]), global_batch_size=1)
    assert whole.order.order.tolist() == [1]


PUBLISHED = {  # arm → rule, examples seen × the data
    "baseline": (IID(epochs=3), 3.0),
    "curriculum": (Phases(4), 2.5),
    "half": (Filter(0.5, IID(epochs=4), by="clip_similarity"), 2.0),
    "half, curriculum": (Filter(0.5, Phases(4), by="clip_similarity"), 1.25),
    "three quarters, curriculum": (Filter(0.75, Phases(4), by="clip_similarity"), 1.875),
    "short: baseline": (IID(epochs=1), 1.0),
    "short: half": (Filter(0.5, IID(epochs=2), by="clip_similarity"), 1.0),
}
SETS = {"Conceptual Captions": 416_642, "RedCaps": 907_339, "COCO": 95_110}
POOLS = {
    "Conceptual Captions": (104_160, 208_321, 312_481, 416_642),
    "RedCaps": (226_834, 453_669, 680_504, 907_339),
    "COCO": (23_777, 47_555, 71_332, 95_110),
}


@pytest.mark.parametrize("name", SETS)
def test_published_pools_and_budgets_with_a_filter_by_another_score(name):
    size = SETS[name]
    rng = np.random.default_rng(1)
    ranking = rank_scores(rng.integers(3, 40, size), "high", score_column="caption_length")
    ranking = replace(ranking, columns={"clip_similarity": rng.random(size)}, easy_ends={"clip_similarity": "high"})
    for rule, passes in PUBLISHED.values():
        plan = make_plan(rule, ranking, global_batch_size=4)
        assert abs(plan.num_draws - plan.num_filled - passes * size) <= 6  # each of four pools is rounded
        assert f": {passes:g} × the data in " in plan.describe()
    curriculum = make_plan(Phases(4), ranking, global_batch_size=4)
    pools = [stage.pool_size for stage in curriculum.stages]
    assert np.abs(np.array(pools) - POOLS[name]).max() <= 3
    kept = make_plan(PUBLISHED["three quarters, curriculum"][0], ranking, global_batch_size=4)
    wanted = [0.75 * pool for pool in POOLS[name]]
    assert np.abs(np.array([stage.pool_size for stage in kept.stages]) - wanted).max() <= 3
    # the two easiest quarters of the data, and no more: 0.25 + 0.5
    short = make_plan(Filter(0.5, Phases(2)), ranking, global_batch_size=4)
    assert [stage.pool_size for stage in short.stages] == [size // 2 // 2, size // 2]
    assert ": 0.75 × the data in " in short.describe()


def test_what_is_kept_is_compared_when_a_run_goes_on():
    data = scored_rows(40)
    rule = Filter(0.5, Phases(2), by="clip_similarity")
    given = {"score_column": "caption_length", "global_batch_size": 4}
    found = make_plan(rule, data, **given).fingerprint()
    assert found["easy_ends"] == {"clip_similarity": "high"}
    assert found == make_plan(rule, data, **given).fingerprint()
    values = np.array(data["clip_similarity"][:], np.float32)
    values[7] = np.float32(0.5)
    other = data.remove_columns("clip_similarity")
    made = {"clip_similarity": read_provenance(data)["clip_similarity"]}
    other = append_columns(other, {"clip_similarity": values}, made, log=False)
    assert make_plan(rule, other, **given).fingerprint()["columns"] != found["columns"]
    turned = attach_provenance(data, {"clip_similarity": replace(made["clip_similarity"], easy="low")})
    assert make_plan(rule, turned, **given).fingerprint()["easy_ends"] == {"clip_similarity": "low"}
    values = values + 7
    features = data.features
    changed = data.map(lambda row, index: {"clip_similarity": values[index]}, with_indices=True, features=features)
    with pytest.raises(ValueError, match="`clip_similarity` has changed since by hand wrote it"):
        make_plan(rule, changed, **given)


def test_a_filter_by_another_score_is_written_and_read():
    for rule in (
        Filter(0.75, Phases(4), by="clip_similarity"),
        Filter(0.5, by="clip_similarity", by_easy="low"),
        Filter(at_least=2, by="object_mentions", then=IID(epochs=8)),
        Filter(at_least=0.25),
    ):
        assert curriculum_from(rule.to_dict()) == rule
        assert curriculum_from(json.dumps(rule.to_dict())) == rule
    text = "{type: filter, keep: 0.75, by: clip_similarity, then: {type: phases}}"
    assert curriculum_from(text) == Filter(0.75, Phases(4), by="clip_similarity")
    assert Filter(0.5).to_dict() == Filter().to_dict() == {"type": "filter", "then": {"type": "iid"}}
    assert replace(Filter(at_least=2), then=Phases(2)) == Filter(at_least=2, then=Phases(2))


def test_bad_filters_by_another_score_are_refused():
    data = scored_rows(30)
    given = {"score_column": "caption_length", "global_batch_size": 4}
    ids = data.add_column("image_id", [str(row // 2) for row in range(30)])
    with pytest.raises(ValueError, match=r"at_least=2 and keep=0.5, and one threshold says"):
        Filter(0.5, at_least=2)
    with pytest.raises(ValueError, match=r"at_least=2 and by_easy='low'"):
        Filter(by="clip_similarity", by_easy="low", at_least=2)
    with pytest.raises(ValueError, match="by_easy='low' without `by`"):
        Filter(0.5, by_easy="low")
    with pytest.raises(ValueError, match="by_easy is one of None, 'low', 'high'"):
        Filter(0.5, by="row", by_easy="up")
    with pytest.raises(ValueError, match="`similarity` is not in the data"):
        make_plan(Filter(0.5, by="similarity"), data, **given)
    with pytest.raises(ValueError, match="easiest by `row`, and whether a low or a high one is easy is not recorded"):
        make_plan(Filter(0.5, by="row"), data, **given)
    with pytest.raises(ValueError, match=r"None of the 30 examples has `object_mentions` ≥ 9 \(the largest is 4\)"):
        make_plan(Filter(at_least=9, by="object_mentions"), data, **given)
    with pytest.raises(ValueError, match=r"≥ 9 \(some have none\)"):
        make_plan(Filter(at_least=9, by="clip_similarity"), data, **given)
    with pytest.raises(ValueError, match="was given scores without columns"):
        make_plan(Filter(0.5, by="clip_similarity", easy="low"), np.arange(9.0), global_batch_size=4)
    with pytest.raises(ValueError, match=r"reads \['clip_similarity'\] of each row, and its draws would be images"):
        make_plan(Filter(0.5, by="clip_similarity", batches=ByImage(2)), ids, **given)


def test_streams_keep_whole_buckets_alone(tmp_path):
    data = scored_rows(40)
    save_bucketed(data, tmp_path / "stream", 2, score_column="caption_length")
    for rule in (Filter(0.5, by="clip_similarity"), Filter(at_least=5)):
        with pytest.raises(TypeError, match="keeps by the values of single examples; a stream reads whole buckets"):
            BucketedStream(tmp_path / "stream", rule, global_batch_size=4)


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_a_threshold_between_whole_numbers_is_not_rounded(kind):
    values = np.array([1, 2, 3, 4], kind)
    assert make_plan(Filter(at_least=2.5), values, global_batch_size=1).order.order.tolist() == [2, 3]
    by = replace(rank_scores(np.arange(4.0)), columns={"mentions": values})
    rule = Filter(at_least=2.5, by="mentions")
    assert make_plan(rule, by, global_batch_size=1).order.order.tolist() == [2, 3]
