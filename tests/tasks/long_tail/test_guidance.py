"""Levels of guidance: DisCL's published epochs and pool sizes, and the adaptive algorithm by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hf_curriculum import Filter, curriculum_from, make_plan, rank_scores
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule

nan = float("nan")
# 3 images of level 0.1, 4 of 0.3, 2 of 0.5; 5 real ones that are not hard, and 6 that are.
LEVELS = [0.1] * 3 + [0.3] * 4 + [0.5] * 2 + [1.0] * 11
HARD = [0] * 9 + [0] * 5 + [1] * 6
SYNTHETIC = {0.1: set(range(3)), 0.3: set(range(3, 7)), 0.5: {7, 8}}
NOT_HARD, REAL = set(range(9, 14)), set(range(9, 20))


def start(rule, *, batch=1, levels=None, hard=None, mixed=True, seed=0, **kwargs):
    """A plan over rows in any order; row numbers stand for those of `LEVELS`."""
    levels = np.array(LEVELS if levels is None else levels, np.float32)
    hard = np.array(HARD if hard is None else hard, np.float32)
    ranking = replace(rank_scores(levels, rule.easy or "low"), columns={"hard": hard})
    return make_plan(rule, ranking, global_batch_size=batch, seed=seed, **kwargs)


def pools(plan):
    """The rows that each stage may draw."""
    return [{int(row) for part in stage.slices for row in plan.order.order[slice(*part)]} for stage in plan.stages]


# ---- On a schedule ----


def test_four_levels_have_fifteen_epochs_each_and_real_images_the_last_five():
    levels = [0.1] * 3 + [0.3] * 4 + [0.5] * 2 + [1.0] * 11
    plan = start(GuidanceSchedule(epochs=65, curriculum_epochs=60), levels=levels)
    epochs = [stage.num_draws / stage.pool_size for stage in plan.stages]
    assert epochs == [15, 15, 15, 15, 5]
    assert [stage.name for stage in plan.stages] == ["level 0.1", "level 0.3", "level 0.5", "level 1", "real images"]
    # |S_λ| + |D_nh| + |D_h|, and D_nh + D_h alone where the level is that of real images: none is there twice.
    assert [stage.pool_size for stage in plan.stages] == [3 + 5 + 6, 4 + 5 + 6, 2 + 5 + 6, 5 + 6, 5 + 6]
    assert plan.num_steps == 15 * (14 + 15 + 13 + 11) + 5 * 11
    assert plan.nominal_epochs == 65


def test_the_released_codes_epochs_can_be_asked_for():
    schedule = [0.1] * 14 + [0.3] * 15 + [0.5] * 15 + [1.0] * 16
    rule = GuidanceSchedule(epochs=65, curriculum_epochs=60, schedule=schedule)
    plan = start(rule)
    epochs = [stage.num_draws / stage.pool_size for stage in plan.stages]
    assert epochs == [14, 15, 15, 16, 5]
    assert [*epochs[:3], sum(epochs[3:])] == [14, 15, 15, 21]
    assert curriculum_from(json.dumps(rule.to_dict())) == rule


def test_pools_are_the_level_and_all_real_images():
    plan = start(GuidanceSchedule(5, 4))
    assert pools(plan) == [*(SYNTHETIC[level] | REAL for level in (0.1, 0.3, 0.5)), REAL, REAL]
    assert [stage.rule for stage in plan.stages] == [
        "guidance 0.1 and real", "guidance 0.3 and real", "guidance 0.5 and real", "real", "real",
    ]  # fmt: skip
    drawn = [plan.rows(a, b) for a, b in zip(plan.stage_starts, plan.stage_starts[1:], strict=False)]
    assert [sorted(rows) for rows in drawn] == [sorted(pool) for pool in pools(plan)]


def test_levels_in_another_order_and_uneven_epochs():
    rule = GuidanceSchedule(7, 5, levels=(0.5, 0.1, 0.3))
    assert rule.epoch_levels([0.1, 0.3, 0.5, 1.0]) == (0.5, 0.5, 0.1, 0.1, 0.3)
    assert GuidanceSchedule(3, 3).epoch_levels([0.1, 1.0]) == (0.1, 0.1, 1.0)
    plan = start(rule)
    assert [stage.num_draws / stage.pool_size for stage in plan.stages] == [2, 2, 1, 2]
    assert pools(plan)[0] == SYNTHETIC[0.5] | REAL
    again = start(GuidanceSchedule(4, 4, schedule=(0.1, 0.3, 0.1, 0.1)))
    assert [stage.name for stage in again.stages] == ["level 0.1", "level 0.3", "level 0.1"]


def test_a_run_may_end_with_the_last_level():
    plan = start(GuidanceSchedule(4, 4))
    assert [stage.name for stage in plan.stages] == ["level 0.1", "level 0.3", "level 0.5", "level 1"]


def test_rows_in_any_order_and_rows_without_a_level():
    order = np.random.default_rng(0).permutation(23)
    levels = np.array([*LEVELS, nan, float("-inf"), float("inf")])[order]
    hard = np.array([*HARD, 1, 1, 1])[order]
    place = {int(old): new for new, old in enumerate(order)}
    for rule in (GuidanceSchedule(5, 4), GuidanceSchedule(5, 4, easy="high")):
        plan = start(rule, levels=levels, hard=hard)
        assert pools(plan)[0] == {place[row] for row in SYNTHETIC[0.1] | REAL}
        assert pools(plan)[-1] == {place[row] for row in REAL}
        unscored = {place[row] for row in (20, 21, 22)}
        assert not unscored & set(plan.rows(0, plan.num_samples).tolist())


def test_levels_that_float32_holds_only_nearly():
    plan = start(GuidanceSchedule(2, 1, levels=(0.3,), real=1.0))
    assert pools(plan)[0] == SYNTHETIC[0.3] | REAL
    plan = start(GuidanceSchedule(2, 1, levels=(10.0,), real=100.0), levels=[100 * level for level in LEVELS])
    assert pools(plan)[0] == SYNTHETIC[0.1] | REAL


def test_levels_that_are_not_there():
    with pytest.raises(ValueError, match=r"needs examples of level 0.7, and the level holds \[0.1, 0.3, 0.5, 1.0\]"):
        start(GuidanceSchedule(3, 2, levels=(0.7,)))
    with pytest.raises(ValueError, match=r"needs examples of level 100, .* and `real=` as the data writes"):
        start(GuidanceSchedule(3, 2, levels=(0.1,), real=100))
    with pytest.raises(ValueError, match="The data has 4 levels of guidance and GuidanceSchedule only 3"):
        start(GuidanceSchedule(3, 3))
    with pytest.raises(ValueError, match="needs examples of level 1"):
        start(Filter(0.3, GuidanceSchedule(3, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"curriculum_epochs": 0}, "curriculum_epochs is at least 1"),
        ({"epochs": 3, "curriculum_epochs": 4}, "the curriculum is a part of the run"),
        ({"levels": (0.1,), "schedule": (0.1,) * 8}, "the schedule says the levels. Drop one"),
        ({"schedule": (0.1,)}, "has 1 levels for 8 curriculum_epochs"),
        ({"levels": ()}, "at least one level"),
        ({"levels": (0.1, 0.1)}, "no level twice"),
        ({"levels": (0.1, 0.2, 0.3), "curriculum_epochs": 2}, "no more levels than epochs"),
    ],
)
def test_a_schedule_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        GuidanceSchedule(**arguments)


# ---- Adaptively ----


def measure(plan, values, metric="eval_level_{:g}_probability"):
    """The plan after a decision on these values of levels 0.1, 0.3, 0.5 and 1."""
    metrics = {metric.format(level): value for level, value in zip((0.1, 0.3, 0.5, 1.0), values, strict=False)}
    return plan.decided(Observed(plan.known_steps, metrics))


def test_an_epoch_is_a_round_of_real_images_and_one_of_the_level_that_rose_most():
    plan = start(AdaptiveGuidance(epochs=3, curriculum_epochs=2, probe_examples=7), batch=2)
    assert (plan.known_steps, plan.undecided, plan.stages) == (0, True, ())
    assert plan.max_steps == 2 * (4 + 6) + 6  # the largest level with the images that are not hard: D_h and D_nh

    plan = measure(plan, [0.1, 0.2, 0.3, 0.4])
    assert plan.log[0]["decision"] == "measured"
    assert plan.log[0]["values"] == {"0.1": 0.1, "0.3": 0.2, "0.5": 0.3, "1": 0.4}
    assert plan.known_steps == 4  # 7 examples at 2 per step
    assert pools(plan) == [REAL]

    plan = measure(plan, [0.1, 0.5, 0.4, 0.5])
    assert (plan.log[1]["decision"], plan.log[1]["level"]) == ("level", 0.3)
    assert plan.log[1]["progress"] == pytest.approx({"0.1": 0.0, "0.3": 0.3, "0.5": 0.1, "1": 0.1})
    assert pools(plan)[1] == SYNTHETIC[0.3] | NOT_HARD  # hard real images are not beside a level
    assert plan.known_steps == 4 + 5  # 9 examples
    assert sorted(set(plan.rows(8, 17).tolist())) == sorted(SYNTHETIC[0.3] | NOT_HARD)

    # The second epoch's measurement is after the first one's level, which trained the model for good.
    plan = measure(plan, [0.9, 0.9, 0.9, 0.9])
    assert (plan.log[2]["decision"], plan.log[2]["step"]) == ("measured", 9)
    assert plan.known_steps == 13
    plan = measure(plan, [0.8, 0.7, 0.85, 0.6])
    assert plan.log[3]["level"] == 0.5  # all fell; it fell least
    assert pools(plan)[3] == SYNTHETIC[0.5] | NOT_HARD
    assert [stage.name for stage in plan.stages] == [
        "epoch 1, probe", "epoch 1, level 0.3", "epoch 2, probe", "epoch 2, level 0.5", "real images",
    ]  # fmt: skip
    assert pools(plan)[4] == REAL
    assert not plan.undecided
    assert [stage.num_draws for stage in plan.stages] == [8, 10, 8, 8, 12]  # rounded up to whole steps
    assert (plan.num_steps, plan.max_steps) == (23, 26)


def test_the_first_of_equal_levels_is_taken():
    plan = measure(measure(start(AdaptiveGuidance(2, 1)), [0.0] * 4), [0.0, 0.25, 0.25, 0.25])
    assert plan.log[1]["level"] == 0.3
    rule = AdaptiveGuidance(2, 1, levels=(0.5, 0.3, 0.1))
    plan = measure(measure(start(rule), [0.0] * 3), [0.25, 0.25, 0.25])
    assert plan.log[1]["level"] == 0.5
    plan = measure(measure(start(rule), [0.5] * 3), [0.25, 0.25, 0.25])
    assert plan.log[1]["level"] == 0.5


def test_the_level_of_real_images_is_all_of_them():
    plan = measure(measure(start(AdaptiveGuidance(1, 1)), [0.0] * 4), [0.0, 0.0, 0.0, 0.5])
    assert plan.log[1]["level"] == 1.0
    assert pools(plan)[1] == REAL
    assert Counter(plan.rows(1000, plan.num_samples).tolist()) == Counter(REAL)
    assert not plan.undecided  # no epochs are left for real images alone


def test_probes_are_random_real_images_and_differ_from_epoch_to_epoch():
    plan = start(AdaptiveGuidance(3, 3, probe_examples=6))
    drawn = []
    while plan.undecided:
        plan = measure(plan, [0.5] * 4)
        if plan.log[-1]["decision"] == "measured":
            drawn.append(plan.rows(plan.known_samples - 6, plan.known_samples).tolist())
    assert all(set(rows) <= REAL and len(set(rows)) == 6 for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == 3


def test_a_probe_larger_than_the_data_shows_some_again():
    plan = measure(start(AdaptiveGuidance(2, 1, probe_examples=25)), [0.0] * 4)
    counts = Counter(plan.rows(0, 25).tolist())
    assert set(counts) == REAL
    assert set(counts.values()) == {2, 3}


def test_losses_should_fall():
    rule = AdaptiveGuidance(2, 1, metric="level_{level:g}_loss")
    plan = measure(start(rule), [1.0] * 4, "eval_level_{:g}_loss")
    plan = measure(plan, [0.9, 0.8, 1.5, 1.0], "eval_level_{:g}_loss")
    assert plan.log[1]["level"] == 0.3
    assert plan.log[1]["progress"] == pytest.approx({"0.1": 0.1, "0.3": 0.2, "0.5": -0.5, "1": 0.0})
    risen = AdaptiveGuidance(2, 1, metric="level_{level:g}_loss", greater_is_better=True)
    plan = measure(start(risen), [1.0] * 4, "eval_level_{:g}_loss")
    assert measure(plan, [0.9, 0.8, 1.5, 1.0], "eval_level_{:g}_loss").log[1]["level"] == 0.5


def test_a_level_without_a_number_is_passed_over():
    plan = measure(start(AdaptiveGuidance(2, 1)), [nan, 0.5, 0.5, 0.5])
    plan = measure(plan, [1.0, 0.1, 0.2, nan])
    assert plan.log[1]["level"] == 0.5
    plan = measure(start(AdaptiveGuidance(2, 1)), [nan] * 4)
    with pytest.raises(
        ValueError, match=r"'level_\{level:g\}_probability' is not a number on any level after step 1000"
    ):
        measure(plan, [0.5] * 4)


def test_a_level_without_its_metric():
    with pytest.raises(ValueError, match=r"AdaptiveGuidance decides on 'eval_level_0\.5_probability', and evaluate"):
        measure(start(AdaptiveGuidance(2, 1)), [0.5, 0.5])


def test_the_declared_maximum_is_reached_if_the_largest_level_is_taken_every_time():
    rule = AdaptiveGuidance(5, 3, probe_examples=4, levels=(0.1, 0.3, 0.5))
    plan = start(rule, batch=4)
    declared = plan.max_steps
    for epoch in range(3):
        plan = measure(measure(plan, [epoch] * 3), [epoch, epoch + 1, epoch])
    assert plan.num_steps == declared == 3 * (1 + 3) + -(-2 * 11 // 4)
    text = start(rule, batch=4).describe()
    assert "3 epochs of 4 random real images and one level each (examples by level 0.1: 8, 0.3: 9, 0.5: 7)" in text


def test_synthetic_images_may_be_called_hard_too_and_nothing_may_be_hard():
    plan = start(AdaptiveGuidance(2, 1), hard=[1] * 9 + HARD[9:])
    plan = measure(measure(plan, [0.0] * 4), [0.0, 0.0, 0.5, 0.0])
    assert pools(plan)[1] == SYNTHETIC[0.5] | NOT_HARD
    none = measure(measure(start(AdaptiveGuidance(2, 1), hard=[0] * 20), [0.0] * 4), [0.5, 0.0, 0.0, 0.0])
    assert pools(none)[1] == SYNTHETIC[0.1] | REAL
    every = measure(measure(start(AdaptiveGuidance(2, 1), hard=[1] * 20), [0.0] * 4), [0.5, 0.0, 0.0, 0.0])
    assert pools(every)[1] == SYNTHETIC[0.1]


def test_json_and_a_length_of_its_own():
    rule = AdaptiveGuidance(4, 3, levels=[0.1, 0.5], hard_column="few")
    assert curriculum_from(json.dumps(rule.to_dict())) == rule
    assert rule.reads == {"few": "numbers"}
    assert start(AdaptiveGuidance(4, 3)).nominal_epochs == 4
    with pytest.raises(ValueError, match="num_train_epochs=2 was given, but AdaptiveGuidance runs for 4 epochs"):
        start(AdaptiveGuidance(4, 3), epochs=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"curriculum_epochs": 0}, "curriculum_epochs is at least 1"),
        ({"probe_examples": 0}, "probe_examples is at least 1"),
        ({"epochs": 3}, "the curriculum is a part of the run"),
        ({"metric": "accuracy"}, "names one metric for all levels; it needs a place for the level"),
        ({"metric": "level_{level"}, "is no format of a level"),
        ({"metric": "level_{level:g}_{name}"}, "is no format of a level .*'name'"),
        ({"levels": ()}, "leaves no level to choose from"),
        ({"partial_batches": "keep"}, r"AdaptiveGuidance\(partial_batches='keep'\) is not possible"),
    ],
)
def test_adaptive_guidance_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveGuidance(**arguments)
