"""Baby steps: decisions computed by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import BabySteps, Filter, Phases, curriculum_from, make_plan
from hf_curriculum.planning.deciding import Observed

SCORES = np.arange(12.0)


def run(rule, values, *, size=12, batch=2, metric="eval_loss", scores=None, **kwargs):
    """The plan after decisions on these values, one after the other."""
    plan = make_plan(rule, np.arange(size) if scores is None else scores, global_batch_size=batch, **kwargs)
    for value in values:
        plan = plan.decided(Observed(plan.known_steps, {metric: value, "eval_runtime": 1.0}))
    return plan


def decisions(plan):
    return [(entry["step"], entry["decision"], entry["bucket"]) for entry in plan.log]


def test_a_bucket_joins_when_patience_has_run_out_and_the_count_starts_anew():
    # 12 examples in 3 buckets of 4, 2 per step: passes of 2, 4 and 6 steps.
    rule = BabySteps(3, patience=2, epochs=10)
    plan = run(rule, [1.0, 0.9, 0.95, 0.9, 5.0, 4.0, 4.5, 4.2])
    assert decisions(plan) == [
        (2, "stay", 0),  # 1.0 is the first value
        (4, "stay", 0),  # 0.9 is better
        (6, "stay", 0),  # 0.95 is not
        (8, "merge", 1),  # 0.9 equals the best and is not better: twice without improvement
        (12, "stay", 1),  # 5.0 is the first value of the new pool, although worse than those of the old
        (16, "stay", 1),
        (20, "stay", 1),
        (24, "merge", 2),
    ]
    assert [entry["without_improvement"] for entry in plan.log] == [0, 0, 1, 2, 0, 0, 1, 2]
    assert [entry["best"] for entry in plan.log] == [1.0, 0.9, 0.9, 0.9, 5.0, 4.0, 4.0, 4.0]
    assert not plan.undecided
    assert plan.num_steps == plan.max_steps == 60
    assert [stage.pool_size for stage in plan.stages] == [4, 4, 4, 4, 8, 8, 8, 8, 12]
    assert [stage.num_draws for stage in plan.stages] == [4, 4, 4, 4, 8, 8, 8, 8, 72]
    assert [stage.rule for stage in plan.stages[3:5]] == ["bucket 1", "buckets 1 to 2"]
    assert plan.stages[-1].rule == "all"
    assert [stage.decides for stage in plan.stages] == [True] * 8 + [False]


def test_a_pool_is_its_buckets_and_a_round_shows_each_example_once():
    plan = run(BabySteps(3, patience=1, epochs=10), [1.0, 1.0, 1.0, 1.0])
    assert sorted(plan.rows(0, 4)) == sorted(plan.rows(4, 8)) == [0, 1, 2, 3]
    assert sorted(plan.rows(8, 16)) == list(range(8))
    assert sorted(plan.rows(24, 36)) == list(range(12))
    assert plan.rows(0, 4).tolist() != plan.rows(4, 8).tolist()


def test_a_round_is_rounded_up_to_whole_steps():
    # Buckets of 4, 8 and 12, 5 per step: 1, 2 and 3 steps.
    plan = run(BabySteps(3, patience=1, epochs=10), [1.0] * 4, batch=5)
    assert [entry["step"] for entry in plan.log] == [1, 2, 4, 6]
    assert plan.max_steps == 24
    assert len(plan.step_rows(1)) == 5


def test_the_rest_is_forced_in_before_the_budget_ends():
    # 4 epochs of 12 at 2 per step are 24 steps; the last passes take 6 and 4: buckets 2 and 3 by steps 14 and 18.
    plan = run(BabySteps(3, patience=3, epochs=4), [1 / (k + 1) for k in range(8)])
    assert decisions(plan) == [
        *[(step, "stay", 0) for step in (2, 4, 6, 8, 10, 12)],
        (14, "forced", 1),
        (18, "forced", 2),
    ]
    assert [stage.pool_size for stage in plan.stages] == [4] * 7 + [8, 12]
    assert plan.num_steps == 24
    assert "bucket 2 after step 14, bucket 3 after step 18" in run(BabySteps(3, epochs=4), []).describe()


def test_the_last_round_before_a_deadline_is_cut_short():
    # Passes of 4, 8 and 12 steps in 48; the deadlines are 28 and 36.
    plan = run(BabySteps(3, patience=1, epochs=4), [9, 9, 8, 7, 6, 5], batch=1)
    assert [entry["step"] for entry in plan.log] == [4, 8, 16, 24, 32, 36]
    assert [entry["decision"] for entry in plan.log] == ["stay", "merge", "stay", "stay", "stay", "forced"]
    assert [stage.num_draws for stage in plan.stages] == [4, 4, 8, 8, 8, 4, 12]


def test_min_epochs_moves_the_deadlines():
    def deadlines(**kwargs):
        return run(BabySteps(3, epochs=8, **kwargs), []).pending_decisions()[1]

    assert "bucket 2 after step 38, bucket 3 after step 42" in deadlines()  # 48 - 6 - 4
    assert "bucket 2 after step 28, bucket 3 after step 36" in deadlines(min_epochs=2)
    assert "bucket 2 after step 46, bucket 3 after step 47" in deadlines(min_epochs=0)


def test_patience_at_a_deadline_is_a_merge():
    plan = run(BabySteps(3, patience=1, epochs=2), [1.0])
    assert decisions(plan) == [(2, "forced", 1)]
    plan = run(BabySteps(2, patience=1, epochs=2), [1.0, 1.0], size=4)
    assert decisions(plan) == [(1, "stay", 0), (2, "merge", 1)]


def test_min_delta_is_the_least_improvement():
    rule = BabySteps(2, patience=2, min_delta=0.125, epochs=9)
    assert [e["without_improvement"] for e in run(rule, [1.0, 0.875]).log] == [0, 1]
    assert [e["without_improvement"] for e in run(rule, [1.0, 0.874]).log] == [0, 0]
    # Small improvements add up: 0.8 is compared with 1.0, the last value that was an improvement.
    slow = run(rule, [1.0, 0.9, 0.8])
    assert [e["without_improvement"] for e in slow.log] == [0, 1, 0]
    assert [e["best"] for e in slow.log] == [1.0, 1.0, 0.8]


@pytest.mark.parametrize(
    ("metric", "greater", "values", "counts"),
    [
        ("cider", None, [0.5, 0.6, 0.4], [0, 0, 1]),
        ("eval_cider", None, [0.5, 0.6, 0.4], [0, 0, 1]),
        ("cider", False, [0.5, 0.6, 0.4], [0, 1, 0]),
        ("val_loss", None, [0.5, 0.6, 0.4], [0, 1, 0]),
        ("loss", True, [0.5, 0.6, 0.4], [0, 0, 1]),
    ],
)
def test_losses_fall_and_other_metrics_rise(metric, greater, values, counts):
    rule = BabySteps(2, patience=3, metric=metric, greater_is_better=greater, epochs=9)
    name = metric if metric.startswith("eval_") else f"eval_{metric}"
    plan = run(rule, values, metric=name)
    assert [entry["without_improvement"] for entry in plan.log] == counts


def test_nan_is_no_improvement_and_no_best_value():
    nan = float("nan")
    plan = run(BabySteps(2, patience=3, epochs=9), [nan, nan, 1.0, nan, 0.5])
    assert [entry["without_improvement"] for entry in plan.log] == [1, 2, 0, 1, 0]
    assert [entry["best"] for entry in plan.log] == [None, None, 1.0, 1.0, 0.5]
    assert decisions(run(BabySteps(2, patience=2, epochs=9), [nan, nan]))[-1][1] == "merge"


def test_a_run_may_stop_when_everything_is_in_and_nothing_helps():
    rule = BabySteps(2, patience=2, epochs=10, stop=True)
    plan = run(rule, [1.0, 1.0, 1.0, 5.0, 4.0, 4.0])
    # Passes of 3 and 6 steps; after the merge the count starts anew, so two passes without improvement stop it.
    assert decisions(plan) == [
        (3, "stay", 0), (6, "stay", 0), (9, "merge", 1), (15, "stay", 1), (21, "stay", 1), (27, "stay", 1),
    ]  # fmt: skip
    stopped = plan.decided(Observed(27 + 6, {"eval_loss": 4.0}))
    assert decisions(stopped)[-1] == (33, "stop", 1)
    assert not stopped.undecided
    assert (stopped.num_steps, stopped.max_steps) == (33, 60)
    never = plan
    while never.undecided:
        never = never.decided(Observed(never.known_steps, {"eval_loss": 1.0 / never.known_steps}))
    assert never.num_steps == never.max_steps == 60


def test_nothing_joins_after_the_last_bucket():
    plan = run(BabySteps(2, patience=1, epochs=10, stop=False), [1.0, 1.0])
    assert not plan.undecided
    with pytest.raises(RuntimeError, match="one is due no more"):
        plan.decided(Observed(plan.known_steps, {"eval_loss": 1.0}))


def test_each_decision_is_said_in_a_line():
    rule = BabySteps(3, patience=2, metric="cider", epochs=10)
    plan = run(rule, [float("nan"), 0.853, 0.8412, 0.8411111], metric="eval_cider")
    while plan.undecided:  # it rises ever on
        plan = plan.decided(Observed(plan.known_steps, {"eval_cider": plan.known_steps / 100}))
    lines = [rule.describe_decision(entry) for entry in plan.log]
    assert lines[:5] == [
        "round 1: cider nan (1 pass without) → stay",
        "round 2: cider 0.853 (the best so far) → stay",
        "round 3: cider 0.8412 (best 0.853, 1 pass without) → stay",
        "round 4: cider 0.8411 (best 0.853, 2 passes without) → bucket 2 joins",
        "round 5: cider 0.12 (the best so far) → stay",
    ]
    assert (
        lines[-1]
        == f"round {len(lines)}: cider {plan.log[-1]['step'] / 100:g} (the best so far) → bucket 3 is forced in"
    )
    assert Filter(then=rule, keep=0.9).describe_decision(plan.log[3]) == lines[3]
    stopped = run(BabySteps(2, patience=1, epochs=10, stop=True), [1.0, 2.0, 2.0, 3.0])
    assert rule.describe_decision(stopped.log[-1]) == "round 4: loss 3 (best 2, 1 pass without) → stop"


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            {"metric": "r1", "value": 0.912345, "refreshes": 2, "random_share": 0.64, "decision": "refresh"},
            "round 3: r1 0.9123 (refreshes 2, random_share 0.64) → refresh",
        ),
        (
            {"decision": "threshold", "threshold": 1.23456, "pool": 12000, "within": 9},
            "round 3: (threshold 1.235, pool 12,000, within 9) → threshold",
        ),
        (
            {"decision": "measured", "values": {"0.1": 1.0, "0.5": None}},
            "round 3: (values 0.1: 1, 0.5: None) → measured",
        ),
    ],
)
def test_decisions_of_other_curricula_are_said_by_what_their_entries_hold(entry, line):
    assert Phases(2).describe_decision({"round": 2, "step": 8, **entry}) == line


def test_the_decision_is_a_function_of_log_and_metrics():
    plan = run(BabySteps(3, patience=2, epochs=10), [1.0, 0.9])
    again = plan.with_log(json.loads(json.dumps(plan.log)))
    seen = Observed(plan.known_steps, {"eval_loss": 0.9})
    assert again.decided(seen).log == plan.decided(seen).log
    assert plan.with_log(()).log == ()


def test_a_metric_that_is_not_there():
    with pytest.raises(
        ValueError, match=r"BabySteps decides on 'eval_cider', and evaluate\(\) returned \['eval_loss'"
    ):
        run(BabySteps(2, metric="cider"), [1.0])


@pytest.mark.parametrize(
    ("size", "pools"),
    [
        # Simi-CL: COCO in buckets of 113,349, 113,349, 113,350, 113,349 and 113,350; Flickr30k of 48,333 twice, 48,334
        (566_747, [113_349, 226_698, 340_048, 453_397, 566_747]),
        (145_000, [48_333, 96_666, 145_000]),
        # WSOD: Conceptual Captions, RedCaps and COCO in quarters
        (416_642, [104_160, 208_321, 312_481, 416_642]),
        (907_339, [226_834, 453_669, 680_504, 907_339]),
        (95_110, [23_777, 47_555, 71_332, 95_110]),
    ],
)
def test_the_published_pools(size, pools):
    plan = make_plan(BabySteps(len(pools), patience=1, epochs=15, easy="low"), np.arange(size), global_batch_size=50)
    soonest = plan.scenarios()["soonest"]
    # The first value of every pool is its best, the second is not better: two passes each.
    assert [stage.pool_size for stage in soonest.stages] == [*(pool for pool in pools[:-1] for _ in range(2)), size]
    assert soonest.num_steps == -(-15 * size // 50)
    phases = make_plan(Phases(len(pools), 1, easy="low"), np.arange(size), global_batch_size=50)
    assert [stage.pool_size for stage in phases.stages] == pools
    assert phases.num_draws - phases.num_filled == sum(pools)


def test_the_ends_of_what_can_happen():
    plan = make_plan(BabySteps(3, patience=2, metric="cider", epochs=8, min_delta=0.5), SCORES, global_batch_size=2)
    ends = plan.scenarios()
    assert set(ends) == {"soonest", "latest"}
    assert [entry["decision"] for entry in ends["soonest"].log] == ["stay", "stay", "merge", "stay", "stay", "merge"]
    assert [entry["step"] for entry in ends["latest"].log if entry["decision"] == "forced"] == [38, 42]
    assert plan.log == ()


@pytest.mark.parametrize("cut", ["rank", "value"])
def test_ties_by_value_and_a_bucket_without_examples(cut):
    scores = np.array([1, 2, 2, 2, 2, 2, 2, 3])
    plan = run(BabySteps(4, patience=1, cut=cut, epochs=20), [1.0] * 6, scores=scores)
    pools = [stage.pool_size for stage in plan.stages]
    assert pools == ([2, 2, 4, 4, 6, 6, 8] if cut == "rank" else [7, 7, 7, 7, 7, 7, 8])


def test_thresholds():
    rule = BabySteps(3, patience=1, cut="value", thresholds=[3, 5], epochs=9)
    assert curriculum_from(rule.to_dict()) == rule
    assert run(rule, []).stages[0].pool_size == 4
    with pytest.raises(ValueError, match="need cut='value'"):
        BabySteps(3, thresholds=(3, 5))


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(5, 80),
    batch=st.integers(1, 9),
    buckets=st.integers(2, 5),
    epochs=st.sampled_from([4.0, 5.5, 9.0]),
    patience=st.integers(1, 4),
    min_epochs=st.sampled_from([0.0, 0.3, 1.0]),
    values=st.lists(st.integers(0, 4), min_size=1, max_size=9),
)
def test_every_bucket_is_shown_within_the_budget_whatever_the_metric_does(
    size, batch, buckets, epochs, patience, min_epochs, values
):
    rule = BabySteps(buckets, patience=patience, epochs=epochs, min_epochs=min_epochs)
    try:
        plan = make_plan(rule, np.arange(size), global_batch_size=batch)
    except ValueError as error:
        assert "BabySteps has a budget of" in str(error)  # noqa: PT017
        return
    while plan.undecided:
        plan = plan.decided(Observed(plan.known_steps, {"eval_loss": values[len(plan.log) % len(values)]}))
    assert plan.num_steps == plan.max_steps
    pools = [stage.pool_size for stage in plan.stages]
    ends = [size * k // buckets for k in range(1, buckets + 1)]
    assert list(dict.fromkeys(pools)) == ends
    for end in ends:
        drawn = sum(stage.num_draws for stage in plan.stages if stage.pool_size == end)
        assert drawn >= min_epochs * end
    assert set(plan.rows(0, plan.num_samples).tolist()) <= set(range(size))


def test_budgets():
    assert run(BabySteps(2), []).max_steps == 18  # three epochs, as of any Trainer
    assert run(BabySteps(2), [], epochs=5).max_steps == 30
    assert run(BabySteps(2), [], max_steps=17).max_steps == 17
    assert run(BabySteps(2, examples=25), []).max_steps == 13
    with pytest.raises(ValueError, match=r"max_steps=31 was given, but the plan of BabySteps has 30 steps of 2"):
        run(BabySteps(2, epochs=5), [], max_steps=31)
    with pytest.raises(ValueError, match=r"num_train_epochs=4 was given, but BabySteps runs for 5 epochs"):
        run(BabySteps(2, epochs=5), [], epochs=4)
    with pytest.raises(ValueError, match=r"a budget of 6 steps, but 1 passes over each of its 3 pools take 12"):
        run(BabySteps(3, epochs=1), [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_buckets": 1}, "num_buckets is at least 2"),
        ({"patience": 0}, "patience is at least 1"),
        ({"min_delta": -0.1}, "min_delta is at least 0"),
        ({"min_delta": float("nan")}, "min_delta is at least 0"),
        ({"min_epochs": -1}, "min_epochs is at least 0"),
        ({"min_epochs": float("inf")}, "min_epochs is at least 0"),
        ({"cut": "size"}, "cut is one of 'rank', 'value'"),
        (
            {"partial_batches": "keep"},
            r"BabySteps\(partial_batches='keep'\) is not possible: every batch of it is full",
        ),
        ({"epochs": 1, "examples": 5}, "a run has one length"),
        ({"epochs": 0}, "would train on nothing"),
    ],
)
def test_baby_steps_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        BabySteps(**arguments)


@pytest.mark.parametrize("steps", [3, 4])
def test_a_run_that_ends_with_a_round_decides_nothing_there(steps):
    """The first bucket takes three steps, and at the end of a run there is nothing to decide."""
    plan = make_plan(BabySteps(2, epochs=5, easy="low"), np.arange(12.0), global_batch_size=2, max_steps=steps)
    assert plan.undecided == (steps == 4)
    assert plan.known_steps == 3
