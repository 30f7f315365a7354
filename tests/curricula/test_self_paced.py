"""Self-paced learning: thresholds and pools computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hf_curriculum import Filter, SelfPaced, curriculum_from, make_plan, rank_scores
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.ranking import Ranking

nan = float("nan")


def start(rule, *, size=8, batch=2, **kwargs):
    return make_plan(rule, Ranking.unordered(size), global_batch_size=batch, **kwargs)


def decide(plan, losses):
    return plan.decided(Observed(plan.known_steps, {}, np.array(losses, np.float32)))


def test_thresholds_grow_and_pools_are_the_examples_below_them():
    # Warm-up of 4 steps, rounds of one pass, everything in the last 4 of 20 steps.
    plan = start(SelfPaced(initial=0.25, growth=2, epochs=5))
    assert (plan.max_steps, plan.known_steps) == (20, 4)
    assert sorted(plan.rows(0, 8)) == list(range(8))

    plan = decide(plan, [8, 1, 7, 2, 6, 3, 5, 4])  # the second smallest loss is 2
    assert plan.log[0] == {"round": 0, "step": 4, "decision": "threshold", "threshold": 2.0, "pool": 2, "within": 2}
    assert plan.known_steps == 5
    assert sorted(plan.step_rows(4)) == [1, 3]

    plan = decide(plan, [8, 1, 7, 2, 6, 3, 5, 4])  # up to 4
    assert (plan.log[1]["threshold"], plan.log[1]["pool"], plan.known_steps) == (4.0, 4, 7)
    assert sorted(plan.rows(10, 14)) == [1, 3, 5, 7]

    # Losses that have fallen by themselves: seven are at most 8.
    plan = decide(plan, [0.5, 9, 1, 1, 1, 1, 1, 8])
    assert (plan.log[2]["threshold"], plan.log[2]["pool"], plan.known_steps) == (8.0, 7, 11)
    assert set(plan.rows(14, 22).tolist()) == {0, 2, 3, 4, 5, 6, 7}

    plan = decide(plan, [1.0] * 8)
    assert (plan.log[3]["threshold"], plan.log[3]["pool"], plan.known_steps) == (16.0, 8, 15)
    plan = decide(plan, [1.0] * 8)
    assert not plan.undecided  # cut short by the last passes, which follow without a decision
    assert plan.known_steps == plan.num_steps == 20
    assert [stage.name for stage in plan.stages] == ["warm-up", *(f"round {k}" for k in range(1, 6)), "everything"]
    assert [stage.num_draws for stage in plan.stages] == [8, 2, 4, 8, 8, 2, 8]
    assert [stage.rule for stage in plan.stages] == ["all", "loss ≤ 2", "loss ≤ 4", "loss ≤ 8", "all", "all", "all"]
    assert sorted(plan.rows(32, 40)) == list(range(8))


def test_the_pool_is_never_smaller_than_at_first():
    plan = decide(start(SelfPaced(initial=0.5, epochs=6)), [1, 2, 3, 4, 5, 6, 7, 8])
    assert (plan.log[0]["threshold"], plan.log[0]["pool"]) == (4.0, 4)
    plan = decide(plan, [100, 200, 300, 400, 500, 600, 700, 0.1])
    assert (plan.log[1]["within"], plan.log[1]["pool"]) == (1, 4)
    assert sorted(plan.rows(12, 16)) == [0, 1, 2, 7]


def test_equal_losses_are_in_together_and_a_share_is_rounded():
    plan = decide(start(SelfPaced(initial=0.25, epochs=6)), [1, 1, 1, 1, 2, 2, 2, 2])
    assert (plan.log[0]["threshold"], plan.log[0]["pool"]) == (1.0, 4)
    plan = decide(start(SelfPaced(initial=0.01, epochs=6)), [3, 2, 1, 4, 5, 6, 7, 8])
    assert plan.log[0]["pool"] == 1
    assert set(plan.rows(8, 10).tolist()) == {2}
    plan = decide(start(SelfPaced(initial=1, epochs=6)), [3, 2, 1, 4, 5, 6, 7, 8])
    assert plan.log[0]["pool"] == 8


def test_examples_without_a_loss_come_last():
    losses = [nan, 1, float("inf"), 2, 3, 4, float("-inf"), 5]
    plan = decide(start(SelfPaced(initial=0.5, epochs=6)), losses)
    assert (plan.log[0]["threshold"], plan.log[0]["pool"]) == (4.0, 4)
    assert sorted(plan.rows(8, 12)) == [1, 3, 4, 5]
    # Where there are not so many with a loss, the first ones without fill up the pool.
    plan = decide(start(SelfPaced(initial=0.5, epochs=6)), [nan, nan, 1, nan, nan, nan, nan, 2])
    assert (plan.log[0]["threshold"], plan.log[0]["pool"], plan.log[0]["within"]) == (2.0, 4, 2)
    assert sorted(plan.rows(8, 12)) == [0, 1, 2, 7]
    with pytest.raises(
        ValueError, match=r"The scoring pass after step 4 found no finite loss: the model has diverged"
    ):
        decide(start(SelfPaced(epochs=6)), [nan] * 8)


def test_it_may_begin_with_a_scoring_pass_and_end_without_everything():
    plan = start(SelfPaced(initial=0.25, growth=2, warmup_epochs=0, final_epochs=0, epochs=2))
    assert (plan.known_steps, plan.undecided, plan.stages) == (0, True, ())
    with pytest.raises(IndexError, match="the plan has 0 positions before the next decision"):
        plan.rows(0, 1)
    plan = decide(plan, [8, 1, 7, 2, 6, 3, 5, 4])
    assert plan.log[0]["step"] == 0
    assert sorted(plan.step_rows(0)) == [1, 3]
    while plan.undecided:
        plan = decide(plan, [1.0] * 8)
    assert plan.num_steps == plan.max_steps == 8
    assert [stage.num_draws for stage in plan.stages] == [2, 8, 6]


def test_only_the_rows_since_the_last_scoring_pass_are_known():
    plan = decide(start(SelfPaced(epochs=5)), [8, 1, 7, 2, 6, 3, 5, 4])
    with pytest.raises(
        IndexError, match="SelfPaced orders by the last losses, and those that positions before 8 were"
    ):
        plan.rows(7, 9)
    assert plan.draws_after(5) == 10
    with pytest.raises(
        ValueError, match="SelfPaced orders by the losses of the last decision, and they were not given"
    ):
        plan.with_log(plan.log)
    again = plan.with_log(json.loads(json.dumps(plan.log)), plan.losses)
    assert again.rows(8, 12).tolist() == plan.rows(8, 12).tolist()


def test_within_a_filter_only_what_is_kept_counts():
    scores = np.array([5, 1, 6, 2, 7, 3, 8, 4.0])
    plan = make_plan(Filter(0.5, SelfPaced(initial=0.5, epochs=6)), rank_scores(scores), global_batch_size=1)
    assert sorted(plan.rows(0, 4)) == [1, 3, 5, 7]
    plan = decide(plan, [0, 4, 0, 3, 0, 2, 0, 1])
    assert (plan.log[0]["threshold"], plan.log[0]["pool"]) == (2.0, 2)
    assert sorted(plan.rows(4, 6)) == [5, 7]


def test_what_is_certain_is_printed():
    text = start(SelfPaced(epochs=5)).describe()
    assert "a scoring pass over all 8 examples before each round; everything from step 16" in text
    assert start(SelfPaced(epochs=5)).scenarios() == {}


def test_json_and_budgets():
    rule = SelfPaced(initial=0.3, epochs=10)
    assert curriculum_from(json.dumps(rule.to_dict())) == rule
    assert not rule.needs_scores
    assert start(SelfPaced(), epochs=7).max_steps == 28
    assert start(SelfPaced(), max_steps=11).max_steps == 11
    assert start(SelfPaced(examples=27)).max_steps == 14
    with pytest.raises(
        ValueError, match=r"SelfPaced has a budget of 8 steps, of which the first 4 and the last 4 are for passes over"
    ):
        start(SelfPaced(epochs=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial": 0}, "initial is more than 0 and at most 1"),
        ({"initial": 1.1}, "initial is more than 0 and at most 1"),
        ({"growth": 1}, "the threshold would never rise"),
        ({"growth": nan}, "the threshold would never rise"),
        ({"warmup_epochs": -1}, "warmup_epochs is at least 0"),
        ({"final_epochs": -1}, "final_epochs is at least 0"),
        ({"partial_batches": "keep"}, r"SelfPaced\(partial_batches='keep'\) is not possible"),
        ({"epochs": 1, "examples": 1}, "a run has one length"),
    ],
)
def test_self_paced_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelfPaced(**arguments)


def test_the_most_scoring_passes_there_can_be():
    ranking = Ranking.unordered(40)
    rule = SelfPaced(initial=0.25, warmup_epochs=2, epochs=6)  # of 8 steps; a round takes at least 2
    budget = make_plan(rule, ranking, global_batch_size=5).budget
    assert rule.most_decisions(ranking, budget) == (48 - 16 - 8) // 2
    assert replace(rule, warmup_epochs=0).most_decisions(ranking, budget) == (48 - 8) // 2
    assert replace(rule, final_epochs=0).most_decisions(ranking, budget) == (48 - 16) // 2


def test_its_scoring_passes_stand_beside_the_cost():
    ranking = Ranking.unordered(40)
    plan = make_plan(SelfPaced(initial=0.25, epochs=4), ranking, global_batch_size=5)
    most = 16 // 2  # steps between the first and the last pass / steps of the smallest pool
    assert f"+ at most {most} rounds of scoring all 40 rows (forward only)" in plan.describe()
    while plan.undecided:
        plan = plan.decided(Observed(plan.known_steps, losses=np.arange(1.0, 41)))
    assert len(plan.log) <= most
    assert plan.describe().splitlines()[-1] == f"+ {len(plan.log)} rounds of scoring all 40 rows (forward only)"
