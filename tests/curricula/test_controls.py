"""Controls are as long as what they are compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    Filter,
    Growing,
    OnlineSelection,
    Phases,
    SelfPaced,
    Weighted,
    control_of,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.groups import Groups
from hf_curriculum.tasks.long_tail import GuidanceSchedule

SCORES = np.random.default_rng(0).poisson(3, 500).astype(np.float32)


def plan_of(rule, scores=SCORES, **kwargs):
    return make_plan(rule, scores, global_batch_size=16, **kwargs)


@pytest.mark.parametrize(
    "rule",
    [
        Phases(4, 2),
        Phases(3, 2, "value"),
        Phases(3, (1, 0.5, 2), "value", pools="exclusive"),
        Growing(epochs=3),
        Growing(),
        BabySteps(3, epochs=5),
        Filter(0.5, Phases(3), easy="low"),
        Phases(2, steps_per_phase=(7, 9)),
        OnlineSelection(3, "loss", then=Phases(3, 2, "value")),
        OnlineSelection(2, "-loss", then=Growing(epochs=3)),
        Filter(0.5, OnlineSelection(2, "loss", then=Phases(3)), easy="low"),
    ],
)
def test_hard_first_is_as_long_and_begins_at_the_other_end(rule):
    plan = plan_of(rule, epochs=2 if rule == Growing() else None)
    flipped = control_of(plan, "hard_first")
    turned = plan_of(flipped, rank_scores(SCORES, flipped.easy), epochs=plan.budget.epochs)
    assert flipped.easy == "high"
    assert turned.max_steps == plan.max_steps
    first, other = (SCORES[one.rows(0, 32)].mean() for one in (plan, turned))
    assert first < other


@pytest.mark.parametrize("rule", [Phases(4, 2), Phases(3, 2, "value"), BabySteps(3, epochs=5), SelfPaced(epochs=4)])
def test_iid_draws_as_many_examples(rule):
    plan = plan_of(rule)
    control = plan_of(control_of(plan, "iid"))
    assert isinstance(control.curriculum, IID)
    assert control.num_steps == plan.max_steps
    assert control.num_draws == plan.num_draws


def test_iid_draws_as_many_captions_of_images():
    rule = Phases(2, (2, 1), batches=ByImage(2))
    groups = Groups(None, np.arange(0, 101, 4), np.arange(100, dtype=np.int32))  # 25 images of 4 captions
    ranking = replace(rank_scores(SCORES[:100]), columns={"image_id": groups})
    plan = plan_of(rule, ranking)
    control = control_of(plan, "iid")
    assert control.examples == 2 * 12 + 25  # images
    assert plan_of(control, ranking).num_draws == plan.num_draws


def test_iid_keeps_what_is_not_the_curriculum():
    rule = Phases(2, partial_batches="keep", unscored="drop")
    control = control_of(plan_of(rule), "iid")
    assert (control.partial_batches, control.unscored) == ("keep", "drop")


@pytest.mark.parametrize("rule", [GuidanceSchedule(3, 2), Weighted(epochs=1), SelfPaced(epochs=4), IID(epochs=1)])
def test_rules_without_a_hard_end(rule):
    plan = plan_of(rule, np.repeat([0.5, 1.0], 50))
    with pytest.raises(ValueError, match=f"{type(rule).__name__} has no hard end to begin with"):
        control_of(plan, "hard_first")


def test_lengths_that_differ_and_kinds_that_are_none():
    rule = Filter(0.9, Phases(3, 2, "value"), easy="low")
    with pytest.raises(ValueError, match=r"Filter takes [\d,]+ steps, and with the hard end first [\d,]+"):
        control_of(plan_of(rule), "hard_first")
    with pytest.raises(ValueError, match="The control 'other' was asked for"):
        control_of(plan_of(replace(rule, keep=1.0)), "other")


@pytest.mark.parametrize("rule", [Growing(), BabySteps(3), Filter(0.5, Growing(), easy="low")])
def test_hard_first_follows_max_steps_too(rule):
    plan = plan_of(rule, max_steps=77)
    flipped = control_of(plan, "hard_first")
    assert flipped == replace(rule, easy="high")
    assert plan_of(flipped, max_steps=77).max_steps == 77


def test_given_cuts_are_turned_round():
    rule = Phases(3, 2, "value", thresholds=(2, 4))
    flipped = control_of(plan_of(rule), "hard_first")
    assert flipped.thresholds == (4, 2)
    assert plan_of(flipped).max_steps == plan_of(rule).max_steps
    same = Filter(1.0, BabySteps(2, cut="value", thresholds=(3,), epochs=5), easy="low")
    assert control_of(plan_of(same), "hard_first") == replace(same, easy="high")


def test_controls_of_a_run_that_max_steps_ends():
    plan = plan_of(Phases(3, 2, "value"), max_steps=9)
    assert plan_of(control_of(plan, "iid"), max_steps=9).num_steps == 9
    assert plan_of(control_of(plan, "hard_first"), max_steps=9).num_steps == 9
    # From the other end the pools are smaller, and the whole is shorter than the trial.
    scores = np.array([1.0] * 320 + [2.0] * 10 + [3.0] * 10)
    plan = plan_of(Phases(3, 1, "value", thresholds=(1.5, 2.5)), scores, max_steps=40)
    turned = control_of(plan, "hard_first")
    assert turned.steps_per_phase is not None
    assert plan_of(turned, scores, max_steps=40).num_steps == 40


@pytest.mark.parametrize(
    "rule",
    [OnlineSelection(3, "loss", then=Phases(4, 2)), Filter(0.3, OnlineSelection(4, "loss", then=IID(1)), easy="low")],
)
def test_the_control_of_a_choice_trains_on_as_many_examples(rule):
    plan = plan_of(rule)
    control = plan_of(control_of(plan, "iid"))
    assert isinstance(control.curriculum, IID)
    assert control.num_steps == plan.num_steps
    assert plan.num_examples == plan.num_draws // plan.candidates
    assert 0 <= plan.num_examples - (control.num_draws - control.num_filled) < 16
    assert control.candidates == 1


@pytest.mark.parametrize("then", [IID(1), Weighted(epochs=1, temperature=0.1)], ids=lambda rule: rule.type)
def test_a_choice_among_draws_without_an_order_has_no_hard_end(then):
    with pytest.raises(ValueError, match="OnlineSelection has no hard end to begin with"):
        control_of(plan_of(OnlineSelection(2, "loss", then=then)), "hard_first")


def test_the_hard_end_first_is_chosen_from_too():
    plan = plan_of(OnlineSelection(4, "loss", then=Phases(4, 2)))
    flipped = control_of(plan, "hard_first")
    turned = plan_of(flipped)
    assert turned.num_steps == plan.num_steps
    assert (turned.candidates, turned.ranking.easy) == (4, "high")
