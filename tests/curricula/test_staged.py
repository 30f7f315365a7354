"""Staged data sets: part after part in one run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    ByLength,
    Filter,
    Growing,
    NodeSampling,
    Phases,
    Staged,
    Weighted,
    curriculum_from,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.groups import read_columns
from hf_curriculum.tasks.long_tail import GuidanceSchedule
from hf_curriculum.training.sampler import validate_steps_per_process

SOURCES = ["text", "captions", "text", "captions", "captions", "text", "captions", "captions", "captions", "captions"]
SCORES = np.array([np.nan, 3, np.nan, 1, 2, np.nan, 8, 5, 4, 9], np.float32)


def plan_of(rule, sources=SOURCES, scores=SCORES, batch=4, **kwargs):
    columns = read_columns(Dataset.from_dict({"source": sources}), rule.reads)
    return make_plan(rule, replace(rank_scores(scores), columns=columns), global_batch_size=batch, **kwargs)


def test_parts_follow_each_other_and_share_no_batch():
    plan = plan_of(Staged({"text": IID(epochs=3), "captions": Phases(2, 2)}))
    assert [stage.name for stage in plan.stages] == ["text, i.i.d.", "captions, phase 1", "captions, phase 2"]
    assert [stage.number for stage in plan.stages] == [0, 1, 2]
    assert [stage.pool_size for stage in plan.stages] == [3, 3, 7]
    text, captions = plan.rows(0, 12), plan.rows(12, plan.num_samples)
    assert sorted(set(text.tolist())) == [0, 2, 5]
    assert sorted(set(captions[:6].tolist())) == [1, 3, 4]
    assert set(captions.tolist()) == {1, 3, 4, 6, 7, 8, 9}
    assert plan.num_steps == 3 + 5
    # Three epochs over 3 of 10 rows and four over 7 of 10.
    assert plan.nominal_epochs == pytest.approx((3 * 3 + 4 * 7) / 10)
    assert plan.control_draws == 37


def test_a_pool_grows_within_its_part():
    rule = Growing(initial=0.3, epochs=2)
    stage = plan_of(Staged({"text": IID(epochs=1), "captions": rule})).stages[1]
    alone = make_plan(rule, np.arange(7), global_batch_size=4).stages[0]
    for name in ("expected_draws", "missed"):
        outside, inside = np.split(getattr(stage, name)(np.arange(10)), [3])
        np.testing.assert_array_equal(inside, getattr(alone, name)(np.arange(7)))
        assert set(outside) == {0.0 if name == "expected_draws" else 1.0}
    assert stage.change_points().tolist() == [size + 3 for size in alone.change_points()]


def test_a_part_is_rounded_up_to_a_whole_batch():
    plan = plan_of(Staged({"text": IID(epochs=1), "captions": IID(epochs=1)}))
    assert [stage.num_samples for stage in plan.stages] == [4, 8]


def test_the_order_is_that_of_the_rule_and_any_number_of_parts_is_fine():
    sources = ["c", "a", "b", "a", "c", "b"]
    rule = Staged({"b": IID(epochs=1), "c": IID(epochs=1), "a": IID(epochs=1)})
    assert not rule.needs_scores
    plan = plan_of(rule, sources, np.arange(6), batch=2)
    assert [sorted(plan.step_rows(step).tolist()) for step in range(3)] == [[2, 5], [0, 4], [1, 3]]


def test_a_part_may_arrange_its_examples_itself():
    levels = np.array([1, 0.1, 1, 0.5, 1, 0.1], np.float32)
    rule = Staged({"text": IID(epochs=1), "images": GuidanceSchedule(3, 3)})
    plan = plan_of(rule, ["text", *["images"] * 5], levels, batch=1)
    assert [stage.rule for stage in plan.stages] == ["all", "guidance 0.1 and real", "guidance 0.5 and real", "real"]
    drawn = [sorted(plan.rows(a, b).tolist()) for a, b in zip(plan.stage_starts, plan.stage_starts[1:], strict=False)]
    assert drawn == [[0], [1, 2, 4, 5], [2, 3, 4], [2, 4]]


def test_a_part_that_keeps_its_easiest_half_is_halved_once():
    rule = Staged({"text": IID(epochs=1), "captions": Filter(0.5, IID(epochs=2))})
    plan = plan_of(rule, scores=np.arange(10.0), batch=1)
    assert [stage.pool_size for stage in plan.stages] == [3, 3]
    assert sorted(plan.rows(3, 9).tolist()) == [1, 1, 3, 3, 4, 4]
    assert len(plan.ranking) == 10


def test_rows_of_no_part_are_an_error():
    with pytest.raises(ValueError, match=r"names no part for 2 of 10 rows: .* Name their part"):
        plan_of(Staged({"text": IID(epochs=1), "captions": IID(epochs=1)}), ["text", None, None, *SOURCES[3:]])


def test_the_plan_keeps_one_order_and_the_parts_in_it():
    plan = plan_of(Staged({"text": IID(epochs=1), "captions": IID(epochs=1)}))
    assert plan.ranking is plan.order
    parts = plan.order.columns["source"]
    assert parts.members is plan.order.order
    assert {name: sorted(parts.rows(number).tolist()) for number, name in enumerate(parts.names)} == {
        "text": [0, 2, 5],
        "captions": [1, 3, 4, 6, 7, 8, 9],
    }


def test_round_trip():
    rule = Staged({"text": IID(epochs=3), "captions": Phases(2, 2)}, column="kind")
    assert curriculum_from(rule.to_dict()) == rule
    assert rule.reads == {"kind": "groups"}
    assert rule.needs_scores


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, r"Staged\(parts=\{\}\) shows nothing"),
        ({"a": BabySteps()}, "has a BabySteps for 'a', which decides while training"),
        ({"a": Phases(easy="low")}, "`easy` or `unscored` of its own for 'a'"),
        ({"a": IID(batches=ByImage())}, "has a curriculum with `batches` for 'a'"),
    ],
)
def test_parts_that_cannot_be_used(parts, message):
    with pytest.raises(ValueError, match=message):
        Staged(parts)


def test_rows_left_over_or_missing():
    with pytest.raises(ValueError, match=r"nothing would be shown of \['captions'\]"):
        plan_of(Staged({"text": IID(epochs=1)}))
    with pytest.raises(ValueError, match=r"there are no rows of \['books'\]"):
        plan_of(Staged({"text": IID(epochs=1), "captions": IID(epochs=1), "books": IID(epochs=1)}))


@pytest.mark.parametrize("rule", [Growing(epochs=4), Weighted(epochs=4), Filter(0.5, Growing(epochs=4))])
def test_a_part_that_draws_in_a_way_of_its_own_draws_its_own_rows(rule):
    plan = plan_of(Staged({"text": IID(epochs=1), "captions": rule}))
    first = plan.stage_starts[1]
    assert set(plan.rows(0, first).tolist()) == {0, 2, 5}
    assert set(plan.rows(first, plan.num_samples).tolist()) <= {1, 3, 4, 6, 7, 8, 9}
    alone = make_plan(rule, rank_scores(SCORES[[1, 3, 4, 6, 7, 8, 9]]), global_batch_size=4)
    assert len(plan.rows(first, plan.num_samples)) == alone.num_samples


def test_a_part_may_keep_its_last_batches():
    rule = Staged({"text": IID(epochs=1, partial_batches="keep"), "captions": IID(epochs=1)})
    plan = plan_of(rule)
    assert rule.partial_batches == "keep"
    assert "partial_batches" not in rule.to_dict()  # it stands in the part
    assert curriculum_from(rule.to_dict()) == rule
    assert curriculum_from(rule.to_dict()) == rule
    assert sorted(plan.step_rows(0).tolist()) == [0, 2, 5]
    validate_steps_per_process(plan, 2)
    with pytest.raises(ValueError, match=r"ByLength\(partial_batches='keep'\) is not possible"):
        replace(rule, batches=ByLength())


@pytest.mark.parametrize(
    ("rule", "columns"),
    [
        (Staged({"a": IID(epochs=1)}), "`source`"),
        (NodeSampling(epochs=1, image_column="image_id"), "`nodes`, `image_id`"),
        (IID(epochs=1, batches=ByLength()), "`caption_length`"),
    ],
)
def test_scores_alone_do_not_say_what_a_rule_reads(rule, columns):
    with pytest.raises(ValueError, match=f"{type(rule).__name__} reads {columns} of each row, and was given scores"):
        make_plan(rule, np.arange(8), global_batch_size=4)


def test_a_part_without_scores_cannot_grow():
    with pytest.raises(ValueError, match="None of the 3 rows has a score: it orders nothing, and the easiest share"):
        plan_of(Staged({"text": Growing(epochs=1), "captions": IID(epochs=1)}))


def test_a_part_is_planned_by_an_order_of_its_own_rows():
    seen = []

    class Looking(IID):
        def stages(self, ranking, budget, log=()):
            seen.append((ranking.order.tolist(), ranking.num_scored, ranking.num_unscored))
            return super().stages(ranking, budget, log)

    scores = np.where(np.arange(10) == 4, np.nan, SCORES)
    plan_of(Staged({"text": Looking(epochs=1), "captions": Looking(epochs=1)}), scores=scores)
    assert set(map(repr, seen)) == {repr(([0, 2, 5], 0, 3)), repr(([3, 1, 8, 7, 6, 9, 4], 6, 1))}
