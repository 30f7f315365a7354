"""What holds for every curriculum, over the table in `curriculum_cases.py`."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import curriculum_cases as TABLE
import numpy as np
import pytest
import yaml
from hostile import Page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_curriculum import (
    IID,
    Filter,
    Growing,
    OnlineSelection,
    Phases,
    SelfPaced,
    Staged,
    Weighted,
    curriculum_from,
    make_plan,
    rank_scores,
)
from hf_curriculum.names import BATCHES, CURRICULA
from hf_curriculum.planning.curriculum import WrappingCurriculum
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.rng import PAD_INDEX
from hf_curriculum.tasks.long_tail import AdaptiveGuidance, GuidanceSchedule

CASES = TABLE.CASES

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
some = settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.too_slow])
sizes, batches, seeds = st.integers(14, 60), st.integers(1, 9), st.integers(0, 5)


def plan_of(case, size, batch, seed=0):
    return TABLE.plan_of(case, size, batch * case.unit, seed)


def facts_of(stage):
    return stage.name, stage.rule, stage.slices, stage.num_draws


def innermost(rule):
    """The curriculum that says what is drawn."""
    return innermost(rule.then) if isinstance(rule, WrappingCurriculum) else rule


def drawn_word(plan):
    return "examples" if plan.candidates == 1 else "candidates"


def test_every_curriculum_and_every_kind_of_batch_has_a_case():
    rules = [case.rule for case in CASES.values()]
    assert {type(rule) for rule in rules} == set(CURRICULA.values())
    assert {type(rule.batches) for rule in rules if rule.batches} == set(BATCHES.values())
    assert {rule.signal for rule in rules if isinstance(rule, Filter)} == {None, "metrics", "losses"}


@every_case
def test_a_notebook_shows_what_the_description_says(case):
    for plan in (plan_of(case, 24, 3), TABLE.realised(plan_of(case, 24, 3))[0]):
        page = Page(plan._repr_html_())
        assert " ".join(page.text).split() == plan.describe().split()
        assert page.tags.count("tr") == 1 + len(plan.stages)


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds, data=st.data())
def test_any_piece_of_the_stream_is_the_stream(case, size, batch, seed, data):
    plan, whole = TABLE.realised(plan_of(case, size, batch, seed), seed)
    assert len(whole) == plan.num_samples == plan.known_samples
    rows = whole[whole != PAD_INDEX]
    assert set(rows.tolist()) <= set(np.asarray(plan.ranking.order).tolist())
    is_padded = case.rule.partial_batches == "keep" or isinstance(case.rule, Staged)
    assert is_padded or len(rows) == len(whole)
    assert len(rows) == plan.num_draws
    first = plan.log[-1]["step"] * plan.samples_per_step if plan.log else 0
    for now in TABLE.rounds(plan_of(case, size, batch, seed), seed):
        first = now.log[-1]["step"] * now.samples_per_step if now.log else 0
        start = data.draw(st.integers(first, now.known_samples))
        stop = data.draw(st.integers(start, now.known_samples))
        assert now.rows(start, stop).tolist() == whole[start:stop].tolist()
        assert np.concatenate([*now.chunks(start), []]).tolist() == whole[start : now.known_samples].tolist()


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds)
def test_a_plan_made_again_from_what_a_checkpoint_holds_is_the_same(case, size, batch, seed):
    ranking = TABLE.ranking_of(case, size, seed)
    rule = curriculum_from(json.loads(json.dumps(case.rule.to_dict())))
    for now in TABLE.rounds(plan_of(case, size, batch, seed), seed):
        fresh = make_plan(rule, ranking, global_batch_size=now.global_batch_size, seed=seed)
        losses = None if now.losses is None else now.losses.copy()
        again = fresh.with_log(json.loads(json.dumps(now.log)), losses, now.arrays)
        first = now.log[-1]["step"] * now.samples_per_step if now.losses is not None else 0
        assert again.rows(first, again.known_samples).tolist() == now.rows(first, now.known_samples).tolist()
        assert (again.max_steps, again.undecided) == (now.max_steps, now.undecided)
        assert again.fingerprint() == now.fingerprint()
        assert json.loads(json.dumps(again.to_dict())) == json.loads(json.dumps(now.to_dict()))
        if now.undecided:
            seen = TABLE.observe(now, seed)
            assert again.decided(seen).log == now.decided(seen).log


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds)
def test_lengths_are_as_stated(case, size, batch, seed):
    before = plan_of(case, size, batch, seed)
    plan, whole = TABLE.realised(before, seed)
    assert before.max_steps == plan.max_steps
    size = plan.samples_per_step
    assert size == plan.global_batch_size * plan.candidates
    assert plan.num_steps * size == plan.num_samples == len(whole)
    if case.rule.signal is None:
        assert plan.max_steps == plan.num_steps == before.num_steps
        assert 0 <= plan.num_filled < size
        assert not plan.log
    else:
        assert before.num_steps == plan.max_steps
        assert plan.num_steps <= plan.max_steps
        assert plan.log
        assert plan.num_filled == 0
    if case.passes is not None:
        draws = math.floor(case.passes * len(plan.order) + 0.5)
        assert plan.num_steps == -(-draws * plan.layout.unit // size)
    for step in range(plan.num_steps + 1):
        assert plan.draws_after(step) == (whole[: step * size] != PAD_INDEX).sum()
        assert plan.examples_after(step) * plan.candidates == plan.draws_after(step)
    assert plan.examples_after(plan.num_steps) == plan.num_examples


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds, steps=st.integers(1, 200))
def test_fitted_to_a_budget_it_takes_exactly_so_many_steps(case, size, batch, seed, steps):
    ranking, batch = TABLE.ranking_of(case, size, seed), batch * case.unit

    def planned(rule):
        return make_plan(rule, ranking, global_batch_size=batch, seed=seed)

    before = planned(case.rule)
    step = before.samples_per_step
    try:
        rule = case.rule.fit_to(steps=steps)
        plan = planned(rule)
    except ValueError as error:
        # What has rounds of a length of its own, and budgets too small for the rule.
        few = "cannot hold" in str(error) or "has a budget of" in str(error)
        assert few or "decides while training, on rounds whose length is its own" in str(error)  # noqa: PT017
        assert not few or steps < before.max_steps
        return
    assert plan.max_steps == plan.num_steps == steps
    assert curriculum_from(json.loads(json.dumps(rule.to_dict()))) == rule
    assert plan.num_filled == 0
    drawer = innermost(case.rule)
    if isinstance(drawer, Growing) and drawer.full_at is None and steps * step < 1.5 * len(plan.order):
        assert [stage.name for stage in plan.stages] == ["growing"]  # no room for a pass over everything
        return
    assert [stage.name for stage in plan.stages] == [stage.name for stage in before.stages]
    if case.rule.signal is None and not isinstance(drawer, Growing):
        # By value, a pool is the same however long the run is.
        assert [stage.slices for stage in plan.stages] == [stage.slices for stage in before.stages]
        scored = 0 if plan.candidates == 1 else plan.num_draws * plan.selection.forwards / 3
        assert plan.cost_ratio == pytest.approx((plan.num_examples + scored) / plan.control_draws)
        shares = np.diff(before.stage_starts) / before.num_samples * steps
        # A step of rounding, one for each stage that has to have one, and what fills the last batches, stretched too.
        room = len(shares) * (1 + step * steps / before.num_samples)
        assert np.abs(np.diff(plan.stage_starts) / step - shares).max() < 1 + room
    again = planned(case.rule.fit_to(epochs=6))
    assert again.max_steps == max(1, -(-6 * len(again.order) * again.layout.unit // step))


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds, data=st.data())
def test_max_steps_runs_the_first_steps_of_the_whole_run(case, size, batch, seed, data):
    ranking, batch = TABLE.ranking_of(case, size, seed), batch * case.unit
    whole, rows = TABLE.realised(make_plan(case.rule, ranking, global_batch_size=batch, seed=seed), seed)
    steps = data.draw(st.integers(1, whole.num_steps))
    before = make_plan(case.rule, ranking, global_batch_size=batch, seed=seed, max_steps=steps)
    plan, cut = TABLE.realised(before, seed)
    assert cut.tolist() == rows[: steps * plan.samples_per_step].tolist()
    assert before.max_steps == plan.max_steps == plan.num_steps == plan.known_steps == steps
    assert plan.num_draws == whole.draws_after(steps) == plan.draws_after(steps)
    assert plan.log == whole.log[: len(plan.log)]
    assert not plan.undecided
    assert f"{drawn_word(plan)} drawn" in plan.describe()
    assert [stage.name for stage in plan.stages] == [stage.name for stage in whole.stages[: len(plan.stages)]]
    assert set(plan.pass_ends) - {steps} == {end for end in whole.pass_ends if end < steps}
    assert set(plan.stage_ends) - {steps} == {end for end in whole.stage_ends if end < steps}


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds)
def test_decisions_are_taken_between_whole_steps_and_change_nothing_before_them(case, size, batch, seed):
    plans = list(TABLE.rounds(plan_of(case, size, batch, seed), seed))
    for number, (earlier, later) in enumerate(itertools.pairwise(plans)):
        entry = later.log[-1]
        assert (entry["round"], entry["step"]) == (number, earlier.known_steps)
        assert earlier.known_samples % earlier.samples_per_step == 0
        assert later.known_steps > earlier.known_steps or not later.undecided
        assert later.log[:-1] == earlier.log
        settled = slice(0, len(earlier.stages))
        assert [facts_of(stage) for stage in later.stages[settled]] == [facts_of(stage) for stage in earlier.stages]
        if later.losses is None:
            assert later.rows(0, earlier.known_samples).tolist() == earlier.rows(0, earlier.known_samples).tolist()
        for wrong in {earlier.known_steps - 1, earlier.known_steps + 1}:
            with pytest.raises(RuntimeError, match=f"one is due after step {earlier.known_steps}: the plan and"):
                earlier.decided(Observed(wrong))
        with pytest.raises(IndexError, match=r"positions before the next decision"):
            earlier.rows(earlier.known_samples, earlier.known_samples + earlier.layout.unit)
        if later.losses is not None and later.log[-1]["step"]:
            with pytest.raises(IndexError, match=r"those that positions before \d+ were drawn by are not kept"):
                later.rows(earlier.known_samples - 1, earlier.known_samples + 1)
    with pytest.raises(RuntimeError, match="but one is due no more"):
        plans[-1].decided(Observed(plans[-1].known_steps))


@every_case
@some
@given(size=sizes, batch=batches, seed=seeds)
def test_pools_grow_where_promised_and_draws_stay_within_them(case, size, batch, seed):
    plan, _ = TABLE.realised(plan_of(case, size, batch, seed), seed)
    pools = [stage.pool_size for stage in plan.stages]
    assert not case.grows or pools == sorted(pools)
    forgotten = plan.log[-1]["step"] * plan.samples_per_step if plan.losses is not None else 0
    for stage, start, stop in zip(plan.stages, plan.stage_starts, plan.stage_starts[1:], strict=False):
        assert 1 <= stage.pool_size <= len(plan.order)
        ends = [end for part in stage.slices for end in part]
        assert ends == sorted(ends)
        assert ends[0] >= 0
        assert ends[-1] <= len(plan.order)
        if start < forgotten:
            continue
        drawn = plan.positions(start // plan.layout.unit, stop // plan.layout.unit)
        inside = np.concatenate([np.arange(*part) for part in stage.slices])
        assert set(drawn[drawn != PAD_INDEX].tolist()) <= set(inside.tolist())
        first = stage.pools()[0][2]
        assert not case.grows or [pool for *_, pool in stage.pools()] == sorted(pool for *_, pool in stage.pools())
        assert 1 <= first <= stage.pool_size


@every_case
def test_curricula_go_through_json_and_yaml(case):
    written = json.dumps(case.rule.to_dict())
    assert curriculum_from(written) == case.rule
    assert curriculum_from(yaml.safe_dump(json.loads(written))) == case.rule
    assert curriculum_from(case.rule.to_dict()).to_dict() == case.rule.to_dict()
    assert json.loads(written)["type"] == case.rule.type


@every_case
def test_its_plan_can_be_printed_at_any_time(case):
    for plan in TABLE.rounds(TABLE.plan_of(case, 40, 8)):
        text = plan.describe()
        assert text.startswith(type(case.rule).__name__)
        assert f"{drawn_word(plan)} drawn" in text
        assert ("examples trained on, " in text) == (plan.candidates > 1)
        assert ("at most" in text) == plan.undecided


@every_case
def test_seeds_give_other_orders(case):
    first, other = (TABLE.plan_of(case, 40, 8, seed=0), TABLE.plan_of(case, 40, 8, seed=0))
    assert TABLE.realised(first)[1].tolist() == TABLE.realised(other)[1].tolist()
    ranking = TABLE.ranking_of(case, 40)
    turned = make_plan(case.rule, ranking, global_batch_size=8, seed=1)
    assert TABLE.realised(turned)[1].tolist() != TABLE.realised(first)[1].tolist()


@every_case
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 16])
def test_too_little_data_gives_a_plan_that_is_right_or_an_error_that_says_why(case, size, batch):
    ours = str(Path(make_plan.__code__.co_filename).parents[1])
    try:
        plan, rows = TABLE.realised(plan_of(case, size, batch))
    except ValueError as error:
        frame = error.__traceback__
        while frame.tb_next is not None:
            frame = frame.tb_next
        assert frame.tb_frame.f_code.co_filename.startswith(ours)
        assert len(str(error)) > 60  # noqa: PT017
    else:
        rows = rows[rows != PAD_INDEX]
        assert rows.min() >= 0
        assert rows.max() < size
        assert len(rows) == plan.num_draws > 0


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rule.needs_scores])
def test_where_all_scores_are_equal_a_rule_that_needs_buckets_or_levels_says_so(name):
    case = CASES[name]
    ranking = replace(rank_scores(np.full(40, 0.5)), columns=TABLE.ranking_of(case, 40).columns)
    try:
        plan = make_plan(case.rule, ranking, global_batch_size=8)
    except ValueError as error:
        assert any(text in str(error) for text in ("same score", "needs examples of level", "≥ 4"))  # noqa: PT017
    else:
        assert len(TABLE.realised(plan)[1]) > 0


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (Phases, {"num_phases": 1}),
        (Phases, {"num_phases": 2, "epochs_per_phase": 0.5}),
        (SelfPaced, {"initial": 1.0, "growth": 1.5, "warmup_epochs": 0, "final_epochs": 0}),
        (SelfPaced, {"initial": 0.01, "growth": 1.01}),
        (Growing, {"initial": 1.0, "full_at": 1.0}),
        (Growing, {"initial": 0.01, "full_at": 0.01, "power": 0.5}),
        (GuidanceSchedule, {"epochs": 2, "curriculum_epochs": 2}),
        (AdaptiveGuidance, {"epochs": 1, "curriculum_epochs": 1}),
        (Filter, {"keep": 1.0}),
        (Weighted, {"temperature": 0.5}),
        (OnlineSelection, {"value": "loss", "candidates": 1, "temperature": 0.5, "score_every": 1}),
    ],
)
def test_the_limits_themselves_are_allowed(make, least):
    rule = make(**least)
    assert {name: getattr(rule, name) for name in least} == least
    assert curriculum_from(rule.to_dict()) == rule


@pytest.mark.parametrize(
    ("make", "beyond"),
    [
        (Phases, {"num_phases": 0}),
        (SelfPaced, {"initial": 0.0}),
        (SelfPaced, {"initial": 1.5}),
        (SelfPaced, {"growth": 1.0}),
        (Growing, {"initial": 0.0}),
        (Growing, {"initial": 1.5}),
        (Growing, {"full_at": 1.5}),
        (GuidanceSchedule, {"epochs": 2, "curriculum_epochs": 3}),
        (Filter, {"keep": 0.0}),
        (Filter, {"keep": 1.5}),
        (Weighted, {"temperature": 0.0}),
        (OnlineSelection, {"value": "loss", "candidates": 0}),
        (OnlineSelection, {"value": "loss", "score_every": 0}),
        (OnlineSelection, {"value": "loss", "temperature": 0.0}),
        (OnlineSelection, {"value": "loss", "temperature": math.inf}),
        (Weighted, {"temperature": math.inf}),
        (IID, {"epochs": 0}),
        (IID, {"epochs": math.inf}),
    ],
)
def test_what_is_beyond_them_is_not(make, beyond):
    with pytest.raises(ValueError, match=next(reversed(beyond))):
        make(**beyond)
