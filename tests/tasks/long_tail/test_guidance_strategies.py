"""The released code's ways to show levels, its shares of hard and other images, and progress without outliers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hf_curriculum import curriculum_from, make_plan, rank_scores
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule

# 3 images of level 0.1, 4 of 0.3, 2 of 0.5; 9 real ones that are not hard, and 2 that are.
LEVELS = [0.1] * 3 + [0.3] * 4 + [0.5] * 2 + [1.0] * 11
HARD = [1] * 9 + [0] * 9 + [1] * 2
SYNTHETIC = {0.1: set(range(3)), 0.3: set(range(3, 7)), 0.5: {7, 8}, 1.0: set()}
NOT_HARD, DIFFICULT = set(range(9, 18)), {18, 19}
REAL = NOT_HARD | DIFFICULT


def start(rule, *, batch=1, levels=LEVELS, hard=HARD, seed=0):
    ranking = replace(rank_scores(np.float32(levels), "low"), columns={"hard": np.float32(hard)})
    return make_plan(rule, ranking, global_batch_size=batch, seed=seed)


def pools(plan):
    """The rows that each stage may draw."""
    return [{int(row) for part in stage.slices for row in plan.order.order[slice(*part)]} for stage in plan.stages]


def epochs(plan):
    """The rows of each epoch of each stage, in order."""
    found = []
    for begin, stage in zip(plan.stage_starts, plan.stages, strict=False):
        ends = stage.pass_ends()
        found += [plan.rows(begin + a, begin + b).tolist() for a, b in zip([0, *ends], ends, strict=False)]
    return found


def test_all_levels_mixed_then_real_images():
    plan = start(GuidanceSchedule(5, 3, strategy="mixed"))
    assert [stage.name for stage in plan.stages] == ["levels 0.1, 0.3, 0.5, 1", "real images"]
    assert pools(plan) == [set(range(20)), REAL]
    assert [stage.num_draws for stage in plan.stages] == [3 * 20, 2 * 11]
    assert [Counter(rows) for rows in epochs(plan)[:3]] == [Counter(range(20))] * 3
    to_the_end = start(GuidanceSchedule(2, 2, strategy="mixed", levels=(0.1, 0.5)))
    assert pools(to_the_end) == [SYNTHETIC[0.1] | SYNTHETIC[0.5] | REAL]
    # More levels than epochs are no fault here.
    assert pools(start(GuidanceSchedule(1, 1, strategy="mixed"))) == [set(range(20))]


def test_levels_leave_from_the_synthetic_end():
    plan = start(GuidanceSchedule(9, 8, strategy="shrinking"))
    sets = [(0.1, 0.3, 0.5, 1.0), (0.3, 0.5, 1.0), (0.5, 1.0), (1.0,)]
    assert pools(plan) == [set().union(*(SYNTHETIC[level] for level in chosen), REAL) for chosen in sets] + [REAL]
    assert [stage.epochs for stage in plan.stages] == [2, 2, 2, 2, 1]
    assert plan.stages[1].rule == "guidance 0.3, 0.5 and real"


def test_levels_up_and_down():
    rule = GuidanceSchedule(9, 8, strategy="recursive")
    seen = [chosen[0] for chosen in rule.epoch_sets([0.1, 0.3, 0.5, 1.0])]
    assert seen == [0.1, 0.3, 0.5, 1.0, 0.5, 0.3, 0.1, 0.3]
    assert [pool - REAL for pool in pools(start(rule))[:-1]] == [SYNTHETIC[level] for level in seen]
    assert GuidanceSchedule(3, 3, strategy="recursive").epoch_sets([0.5]) == ((0.5,),) * 3


def test_a_random_level_depends_on_its_seed_alone():
    rule = GuidanceSchedule(400, 400, strategy="random")
    seen = Counter(rule.epoch_sets([0.1, 0.3, 0.5, 1.0]))
    assert set(seen) == {(0.1,), (0.3,), (0.5,), (1.0,)}
    assert min(seen.values()) > 70
    assert rule.epoch_sets([0.1, 0.5]) == rule.epoch_sets([0.1, 0.5])
    other = replace(rule, level_seed=1)
    assert other.epoch_sets([0.1, 0.5]) != rule.epoch_sets([0.1, 0.5])
    assert curriculum_from(json.dumps(other.to_dict())) == other
    assert start(GuidanceSchedule(4, 3, strategy="random"), seed=0).to_dict()["curriculum"]["strategy"] == "random"


def test_the_shares_of_imagenet_lt():
    """0.3 of 114,203 others, 1,643 hard real ones, and 3,749 generated ones to make up .136."""
    levels = [0.1] * 5000 + [1.0] * 115_846
    hard = [1] * 5000 + [0] * 114_203 + [1] * 1643
    rule = GuidanceSchedule(2, 1, levels=(0.1,), rest_share=0.3, hard_share=0.136)
    plan = start(rule, levels=levels, hard=hard)
    first, rest = plan.stages
    assert [count for _, count in first.parts] == [34_260, 1643, 3749]
    assert (first.num_draws, rest.num_draws) == (39_652, 115_846)
    rows = np.array(epochs(plan)[0])
    assert len(set(rows.tolist())) == len(rows) == 39_652
    assert ((rows >= 5000) & (rows < 5000 + 114_203)).sum() == 34_260
    assert (rows >= 5000 + 114_203).sum() == 1643


def test_an_epoch_in_shares_one_by_one():
    rule = GuidanceSchedule(7, 6, levels=(0.1, 0.3, 1.0), rest_share=0.5, hard_share=0.6)
    plan = start(rule)
    # 4 of 9 others, so 6 of hard sources: 2 real ones and 4 generated ones.
    assert [[count for _, count in stage.parts] for stage in plan.stages[:3]] == [[4, 2, 4], [4, 2, 4], [4, 6]]
    found = epochs(plan)
    assert [len(rows) for rows in found] == [10] * 6 + [11]
    for number, rows in enumerate(found[:6]):
        counts, level = Counter(rows), (0.1, 0.3, 1.0)[number // 2]
        others = {row for row in rows if row in NOT_HARD}
        assert len(others) == 4
        assert all(counts[row] == 1 for row in others)
        made = Counter({row: count for row, count in counts.items() if row in SYNTHETIC[level]})
        if level == 1.0:
            assert [counts[row] for row in sorted(DIFFICULT)] == [3, 3]
        else:
            assert [counts[row] for row in sorted(DIFFICULT)] == [1, 1]
            assert sum(made.values()) == 4
            assert set(made) == SYNTHETIC[level]  # 3 of them: one is there twice; 4: each once
    assert {row for row in found[0] if row in NOT_HARD} != {row for row in found[1] if row in NOT_HARD}
    assert sorted(found[6]) == sorted(REAL)
    # A position can be asked for alone, and the draws of a batch do not depend on where a read begins.
    whole = plan.rows(0, plan.num_samples)
    assert [int(plan.rows(place, place + 1)[0]) for place in range(plan.num_samples)] == whole.tolist()


def test_expected_draws_are_what_is_drawn():
    rule = GuidanceSchedule(5, 4, levels=(0.1, 1.0), rest_share=0.5, hard_share=0.6)
    runs = 300
    counts = np.zeros((runs, 20))
    for seed in range(runs):
        plan = start(rule, seed=seed)
        stage = plan.stages[0]
        rows = plan.rows(0, plan.stage_starts[1])
        counts[seed] = np.bincount(rows, minlength=20)
    order = plan.order.order
    np.testing.assert_allclose(counts.mean(0)[order], stage.expected_draws(np.arange(20)), atol=0.12)
    np.testing.assert_allclose((counts == 0).mean(0)[order], stage.missed(np.arange(20)), atol=0.12)
    assert "in shares" in plan.describe()


def test_a_part_of_a_share_alone():
    rest = start(GuidanceSchedule(2, 1, levels=(0.5,), rest_share=0.4))
    assert [count for _, count in rest.stages[0].parts] == [3, 2, 2]  # all that there is of the level
    hard = start(GuidanceSchedule(2, 1, levels=(0.5,), hard_share=0.25))
    assert [count for _, count in hard.stages[0].parts] == [9, 2, 1]
    repeat = start(GuidanceSchedule(2, 2, levels=(1.0,), hard_share=0.5))  # the tail repeated, nothing generated
    assert [count for _, count in repeat.stages[0].parts] == [9, 9]
    assert Counter(epochs(repeat)[0])[18] in (4, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "upwards"}, "strategy is one of 'sequence'"),
        ({"strategy": "mixed", "schedule": (0.1,) * 8}, "got schedule and strategy='mixed'"),
        ({"rest_share": 0}, "a share is between 0 and 1"),
        ({"hard_share": 1}, "a share is between 0 and 1"),
        ({"hard_share": 0.5, "partial_batches": "keep"}, "not possible with rest_share or hard_share"),
        ({"strategy": "shrinking", "levels": (0.1, 0.2), "curriculum_epochs": 1}, "no more levels than epochs"),
        ({"strategy": "mixed", "levels": ()}, "at least one level"),
        ({"strategy": "random", "levels": (0.1, 0.1)}, "no level twice"),
    ],
)
def test_a_strategy_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        GuidanceSchedule(**arguments)


def test_a_share_that_the_hard_real_images_exceed():
    with pytest.raises(
        ValueError, match=r"would show 1 hard images beside 9 others, and there are 2 .* at least 0.182"
    ):
        start(GuidanceSchedule(2, 1, levels=(0.1,), hard_share=0.1))
    with pytest.raises(ValueError, match=r"GuidanceSchedule reads `hard` of each row"):
        make_plan(GuidanceSchedule(2, 1, levels=(0.1,), hard_share=0.5), np.float32(LEVELS), global_batch_size=1)


# ---- Progress without outliers ----


def observe(plan, each):
    """The plan after a decision on one probability per image of levels 0.1, 0.3, 0.5 and 1."""
    names = [f"eval_level_{level:g}_probability" for level in (0.1, 0.3, 0.5, 1.0)]
    metrics = {name: float(np.mean(values)) for name, values in zip(names, each, strict=True)}
    arrays = {f"{name}_each": np.array(values) for name, values in zip(names, each, strict=True)}
    return plan.decided(Observed(plan.known_steps, metrics, None, arrays))


FLAT = [0.5] * 8
OUTLIER = [0.5] * 7 + [1.0]  # one image rose by much
EVEN = [0.54] * 8


def test_outliers_of_a_level_do_not_decide():
    for aggregate, level in (("mean", 0.1), ("trimmed", 0.3)):
        rule = AdaptiveGuidance(2, 1, probe_examples=4, aggregate=aggregate)
        plan = observe(start(rule), [FLAT] * 4)
        assert plan.arrays["eval_level_0.1_probability_each"].tolist() == FLAT
        plan = observe(plan, [OUTLIER, EVEN, FLAT, FLAT])
        assert plan.log[1]["level"] == level
    assert plan.log[1]["progress"] == pytest.approx({"0.1": 0.0, "0.3": 0.04, "0.5": 0.0, "1": 0.0})
    assert "arrays" not in json.dumps(plan.log)


def test_the_trimmed_mean_by_hand():
    before, change = np.linspace(0.1, 0.5, 9), np.array([-0.4, 0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.3])
    quarter, three = np.percentile(change, [25, 75])
    kept = [x for x in change if quarter - 1.5 * (three - quarter) <= x <= three + 1.5 * (three - quarter)]
    assert len(kept) == 7
    plan = observe(start(AdaptiveGuidance(2, 1, aggregate="trimmed")), [before] * 4)
    plan = observe(plan, [before + change, before, before, before])
    assert plan.log[1]["progress"]["0.1"] == pytest.approx(np.mean(kept))
    assert plan.log[1]["level"] == 0.1


def test_arrays_that_are_missing_or_of_other_images():
    plan = start(AdaptiveGuidance(2, 1, aggregate="trimmed"))
    metrics = {f"eval_level_{level:g}_probability": 0.5 for level in (0.1, 0.3, 0.5, 1.0)}
    with pytest.raises(ValueError, match=r"'eval_level_0.1_probability_each', one number per image.*per_image=True"):
        plan.decided(Observed(0, metrics))
    plan = observe(plan, [FLAT] * 4)
    with pytest.raises(ValueError, match=r"Level 0.3 was measured on 8 images before the round and on 7 after it"):
        observe(plan, [FLAT, FLAT[:7], FLAT, FLAT])
    with pytest.raises(ValueError, match=r"aggregate is one of 'mean', 'trimmed'"):
        AdaptiveGuidance(aggregate="median")
    nothing = [[float("nan")] * 8] * 4
    with pytest.raises(ValueError, match=r"is not a number on any level"):
        observe(plan, nothing)
