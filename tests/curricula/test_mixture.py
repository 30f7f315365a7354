"""Mixtures: exact shares beside a naive count, passes of sources, decisions on losses, and errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    ByLength,
    Filter,
    Growing,
    Mixture,
    OnlineSelection,
    Phases,
    Staged,
    Weighted,
    curriculum_from,
    make_plan,
)
from hf_curriculum.config import digest
from hf_curriculum.curricula import mixture as MIXTURE
from hf_curriculum.planning import quotas as QUOTAS
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.quotas import UNIT, Quotas, Stretch, grid_shares
from hf_curriculum.training.setup import validate_metric

SIZES = {"caption": 60, "vqa": 25, "ocr": 7}
WEIGHTS = {"caption": 1, "vqa": 1, "ocr": 1}
TO = {"caption": 0.2, "vqa": 0.5, "ocr": 0.3}


def data_of(sizes=SIZES, seed=0):
    """Rows of sources in a random order, with a score."""
    rng = np.random.default_rng(seed)
    sources = rng.permutation(np.repeat(list(sizes), list(sizes.values())))
    return Dataset.from_dict({"source": sources.tolist(), "level": rng.permutation(len(sources)).tolist()})


DATA = data_of()
SOURCES = np.array(DATA["source"])


def plan_of(rule, data=DATA, batch=8, **kwargs):
    """A plan by `level`, whose low end is easy."""
    if rule.easy is None and rule.needs_easy:
        rule = replace(rule, easy="low")
    return make_plan(rule, data, score_column="level", global_batch_size=batch, **kwargs)


def naive_shares(rule, step, steps):
    """The share of each source in a step, exactly."""
    start = [Fraction(weight) / sum(map(Fraction, rule.shares.values())) for weight in rule.shares.values()]
    if rule.to is None:
        return start
    total = sum(map(Fraction, rule.to.values()))
    end = [Fraction(rule.to[name]) / total for name in rule.shares]
    length = max(1, round(rule.over * steps))
    moved = min(Fraction(step, length), Fraction(1))
    if rule.jumps is not None:
        firsts = [jump * length // rule.jumps for jump in range(rule.jumps + 1)]
        moved = Fraction(max(jump for jump, first in enumerate(firsts) if first <= step), rule.jumps)
    return [one + moved * (other - one) for one, other in zip(start, end, strict=True)]


def counts_of(plan, rule, sources=SOURCES):
    """Draws of each source after every step, counted in the rows; (steps + 1, sources)."""
    drawn = sources[plan.rows(0, plan.num_samples)].reshape(plan.num_steps, -1)
    each = np.stack([(drawn == name).sum(axis=1) for name in rule.shares], axis=1)
    return np.concatenate([np.zeros((1, len(rule.shares)), int), np.cumsum(each, axis=0)])


RULES = {
    "even": Mixture("source", WEIGHTS),
    "fixed": Mixture("source", {"caption": 0.7, "vqa": 0.29, "ocr": 0.01}),
    "moving": Mixture("source", WEIGHTS, to=TO, over=0.8),
    "to the end": Mixture("source", {"caption": 1, "vqa": 0, "ocr": 0}, to={"ocr": 3, "vqa": 1, "caption": 0}),
    "jumps": Mixture("source", WEIGHTS, to=TO, over=0.6, jumps=4),
    "away": Mixture("source", {"caption": 2, "vqa": 3, "ocr": 2}, to={"caption": 1, "vqa": 0, "ocr": 0}, over=0.3),
}


@pytest.mark.parametrize("batch", [1, 3, 8, 32])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_after_every_step_each_source_is_within_one_example_of_its_share(rule, batch):
    plan = plan_of(rule, batch=batch, epochs=4)
    counts, asked = counts_of(plan, rule), [Fraction(0)] * len(SIZES)
    for step in range(plan.num_steps):
        shares = naive_shares(rule, step, plan.num_steps)
        asked = [before + batch * share for before, share in zip(asked, shares, strict=True)]
        for count, wanted in zip(counts[step + 1].tolist(), asked, strict=True):
            assert abs(count - wanted) < 1 + 1e-6, step


@pytest.mark.parametrize("batch", [4, 8])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_batches_of_one_source_each_are_within_one_batch(rule, batch):
    rule = curriculum_from({**rule.to_dict(), "one_source_per_batch": True})
    plan = plan_of(rule, batch=batch, epochs=6)
    counts, asked = counts_of(plan, rule), np.zeros(len(SIZES))
    assert set(np.diff(counts, axis=0).max(axis=1).tolist()) == {batch}
    for step in range(plan.num_steps):
        asked += [float(share) for share in naive_shares(rule, step, plan.num_steps)]
        assert np.abs(counts[step + 1] / batch - asked).max() < 1 + 1e-6


weights = st.lists(st.sampled_from([0, 0, 1e-3, 0.02, 0.3, 1, 1, 2, 7.5]), min_size=9, max_size=9)


@settings(deadline=None, max_examples=60)
@given(
    sources=st.integers(1, 9), start=weights, end=st.none() | weights, per_step=st.integers(1, 12),
    steps=st.integers(1, 90), part=st.floats(0.05, 1), block=st.sampled_from([3, 7, 1024]), data=st.data(),
)  # fmt: skip
def test_quotas_of_any_shares(sources, start, end, per_step, steps, part, block, data):
    start, end = start[:sources], end and end[:sources]
    start, end = start if any(start) else [1] * sources, end if end is None or any(end) else [1] * sources
    length, none = max(1, round(part * steps)), np.zeros(sources, np.int64)
    moving = end and (Stretch(0, grid_shares(start), grid_shares(end), length), Stretch(length, grid_shares(end)))

    def made():
        return Quotas(moving or (Stretch(0, grid_shares(start)),), per_step, steps, none, none)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QUOTAS, "_BLOCK", block)
        every = np.arange(steps + 1)
        counts, asked = made().counts(0, steps), made().asked(every)
        assert counts.sum(axis=1).tolist() == (every * per_step).tolist()
        assert (np.diff(counts, axis=0) >= 0).all()
        assert np.abs(counts - asked / UNIT).max() < 1 + 1e-6
        first = data.draw(st.integers(0, steps))
        stop = data.draw(st.integers(first, steps))
        assert made().counts(first, stop).tolist() == counts[first : stop + 1].tolist()


def test_a_late_step_needs_none_of_those_before_it(monkeypatch):
    rule = Mixture("source", WEIGHTS, to=TO, over=0.9)
    stretches, none = rule.stretches(300_000), np.zeros(3, np.int64)
    looked = []
    count = Quotas._count
    monkeypatch.setattr(Quotas, "_count", lambda self, *given: looked.append(given[0]) or count(self, *given))
    late = Quotas(stretches, 32, 300_000, none, none).counts(250_000, 250_010)
    assert len(looked) == 1
    assert late.sum(axis=1).tolist() == [32 * step for step in range(250_000, 250_011)]


def test_every_window_of_a_thousand_steps_holds_its_shares():
    rule = Mixture("source", {"caption": 0.5, "vqa": 0.3, "ocr": 0.2})
    counts = counts_of(plan_of(rule, batch=4, max_steps=3000), rule)
    windows = counts[1000:] - counts[:-1000]
    assert np.abs(windows - 4000 * np.array([0.5, 0.3, 0.2])).max() < 2


@pytest.mark.parametrize("rule", [RULES["even"], RULES["moving"], RULES["jumps"]])
def test_a_source_shows_every_row_once_before_any_comes_twice(rule):
    plan = plan_of(rule, epochs=8)
    rows = plan.rows(0, plan.num_samples)
    for name, size in SIZES.items():
        drawn = rows[SOURCES[rows] == name]
        passes = [drawn[first : first + size].tolist() for first in range(0, len(drawn) - size + 1, size)]
        assert len(passes) > 1
        assert all(sorted(one) == sorted(np.flatnonzero(name == SOURCES).tolist()) for one in passes)
        assert len({tuple(one) for one in passes}) == len(passes)


def test_passes_go_on_over_rounds():
    rule = Mixture("source", WEIGHTS, adapt="loss", every=3, epochs=6)
    plan = plan_of(rule)
    while plan.undecided:
        number = len(plan.log)
        losses = {f"eval_{name}_loss": 1.0 + (number * place) % 3 for place, name in enumerate(WEIGHTS)}
        plan = plan.decided(Observed(plan.known_steps, losses))
    rows = plan.rows(0, plan.num_samples)
    assert len(plan.log) > 10
    for name, size in SIZES.items():
        drawn = rows[SOURCES[rows] == name]
        assert all(len(set(drawn[at : at + size].tolist())) == size for at in range(0, len(drawn) - size + 1, size))


def test_the_last_round_ends_with_the_run():
    plan = plan_of(Mixture("source", WEIGHTS, adapt="loss", every=5), epochs=1)
    known = [plan.known_steps]
    while plan.undecided:
        plan = plan.decided(Observed(plan.known_steps, dict.fromkeys([f"eval_{name}_loss" for name in WEIGHTS], 1.0)))
        known.append(plan.known_steps)
    assert known == [5, 10, 12]  # 92 rows in batches of 8
    assert [stage.num_samples for stage in plan.stages] == [40, 40, 16]


def test_within_a_batch_sources_are_in_a_random_order_of_the_seed():
    rule = Mixture("source", {"caption": 1, "vqa": 1, "ocr": 0})
    plans = [plan_of(rule, batch=16, epochs=20, seed=seed) for seed in (0, 1)]
    halves = [SOURCES[plan.rows(0, plan.num_samples)].reshape(-1, 2, 8) == "vqa" for plan in plans]
    assert halves[0].tolist() != halves[1].tolist()
    for half in halves:  # of 8 places, 4 on average for each of two processes, and not always
        shown = half.sum(axis=2)
        assert abs(shown[:, 0].mean() - 4) < 0.4
        assert len(set(shown[:, 0].tolist())) > 2


@pytest.mark.parametrize("rule", [RULES["moving"], Mixture("source", WEIGHTS, then={"vqa": Phases(3)})])
def test_how_many_draws_are_read_at_once_changes_nothing(rule, monkeypatch):
    whole = plan_of(rule, epochs=4).rows(0, 368)
    monkeypatch.setattr(MIXTURE, "_AHEAD", 5)
    plan = plan_of(rule, epochs=4)
    for start, stop in ((0, 368), (101, 102), (7, 300), (200, 200), (3, 9)):
        assert plan.rows(start, stop).tolist() == whole[start:stop].tolist()


def test_the_rows_are_those_of_every_machine():
    found = [digest(plan_of(rule, epochs=3).rows(0, 270).astype("<i8").tobytes()) for rule in RULES.values()]
    assert found == GOLDEN


GOLDEN = [
    "371f0d43ec87f593",
    "400b87ad072bece8",
    "a093624b9fccf75c",
    "c2ffb27d0bf958b5",
    "6ac1f55b377561b1",
    "655f07a6bfd6e921",
]


def test_a_rule_within_is_made_as_long_as_its_source():
    rule = Mixture("source", WEIGHTS, then={"vqa": Phases(3)}, epochs=3)
    plan = plan_of(rule)
    rows = plan.rows(0, plan.num_samples)
    drawn, own = rows[SOURCES[rows] == "vqa"], np.flatnonzero(SOURCES == "vqa")
    easiest = own[np.argsort(np.array(DATA["level"])[own])]
    ends = np.cumsum([0, *(stage.num_draws for stage in plan.stages[0]._rules[1])])
    assert ends[-1] == len(drawn)
    for number in range(3):
        pool = easiest[: [8, 17, 25][number]] if number < 2 else easiest
        assert set(drawn[ends[number] : ends[number + 1]].tolist()) <= set(pool.tolist())
    assert np.diff(ends).tolist() == pytest.approx([len(drawn) * size / 50 for size in (8, 17, 25)], abs=1.5)


@pytest.mark.parametrize(
    "inner", [Growing(), Weighted(temperature=5.0), Filter(0.5, Phases(2)), Mixture("kind", {"x": 1, "y": 3})]
)
def test_other_rules_within_draw_from_their_source(inner):
    data = DATA.add_column("kind", ["xy"[row % 2] for row in range(len(DATA))])
    plan = plan_of(Mixture("source", WEIGHTS, then={"caption": inner}), data)
    rows = plan.rows(0, plan.num_samples)
    assert (SOURCES[rows] == "caption").sum() == pytest.approx(plan.num_samples / 3, abs=1)
    if isinstance(inner, Mixture):
        mine = rows[SOURCES[rows] == "caption"]
        assert (mine % 2).sum() == pytest.approx(0.75 * len(mine), abs=1)


@pytest.mark.parametrize("then", [{}, {"vqa": Phases(3)}, {"caption": Filter(0.5)}])
def test_exposure_is_what_is_counted(then):
    rule = Mixture("source", {"caption": 1, "vqa": 2, "ocr": 0}, to={"caption": 1, "vqa": 1, "ocr": 2}, then=then)
    seen = []
    for seed in range(30):
        plan = plan_of(rule, epochs=1.5, seed=seed)
        seen.append(np.bincount(plan.rows(0, plan.num_samples), minlength=len(DATA)))
    shown, said = np.array(seen)[:, plan.order.order], plan.stages[0]
    every = np.arange(len(plan.order))
    assert said.expected_draws(every).sum() == pytest.approx(plan.num_draws)
    np.testing.assert_allclose(said.expected_draws(every), shown.mean(axis=0), atol=0.5)
    np.testing.assert_allclose(said.missed(every), (shown == 0).mean(axis=0), atol=0.35)
    never = (np.array(seen) == 0).sum(axis=1)
    assert plan.exposure().never_shown == pytest.approx(never.mean(), abs=1.5)
    if not then:
        assert plan.exposure().exact
        assert set(never.tolist()) == {round(plan.exposure().never_shown)}


@pytest.mark.parametrize("then_left_out", [False, True])
def test_the_exposure_of_a_round_is_without_what_earlier_rounds_drew(then_left_out):
    """Passes go on over rounds, and a source may lose its share."""
    rule = Mixture("source", WEIGHTS, adapt="loss", every=3, temperature=0.05 if then_left_out else 1, epochs=2)
    plans = [decided_with(rule, LOSSES[:2], seed) for seed in range(30)]
    order, rounds, each = plans[0].order.order, plans[0].stages, np.arange(len(DATA))
    assert len(rounds) == 3
    starts = plans[0].stage_starts
    seen = np.zeros((len(plans), len(DATA)), dtype=int)
    for number, stage in enumerate(rounds):
        drawn = [np.bincount(plan.rows(*starts[number : number + 2]), minlength=len(DATA)) for plan in plans]
        said, shown = stage.expected_draws(each), np.array(drawn)[:, order]
        assert said.sum() == pytest.approx(stage.num_draws)
        source = np.searchsorted(np.cumsum([(name == SOURCES).sum() for name in WEIGHTS]), each, side="right")
        for part in range(3):  # the draws of a source are exact in every round
            assert shown[:, source == part].sum(axis=1) == pytest.approx(said[source == part].sum(), abs=1)
        before, seen = (seen == 0).mean(axis=0), seen + shown
        missed = (seen == 0).mean(axis=0) / np.where(before > 0, before, 1)
        for part in range(3):
            assert stage.missed(each)[source == part].mean() == pytest.approx(missed[source == part].mean(), abs=0.05)


def test_a_plan_says_how_often_a_source_is_repeated():
    text = plan_of(
        Mixture("source", {"caption": 5, "vqa": 5, "ocr": 0}, then={"vqa": Phases(3)}), max_steps=25
    ).describe()
    assert "  caption: 100 draws (50 %) of 60 rows, each 1 or 2 ×" in text
    assert "  vqa: 100 draws (50 %) of 25 rows, 4 × on average by Phases(num_phases=3)" in text
    assert "  ocr: 0 draws (0 %) of 7 rows, never shown" in text
    text = plan_of(Mixture("source", {"caption": 30, "vqa": 0, "ocr": 14}, examples=88)).describe()
    assert "  caption: 60 draws (68.18 %) of 60 rows, each 1 ×" in text
    assert "  ocr: 28 draws (31.82 %) of 7 rows, each 4 ×" in text
    assert "caption 68.2 %, vqa 0 %, ocr 31.8 %" in text
    text = plan_of(Filter(1, RULES["even"]), max_steps=6).describe()
    assert "  caption: 16 draws (33.33 %) of 60 rows, 44 of them never" in text
    parts = Staged({"x": IID(epochs=1), "y": Mixture("source", {"caption": 1, "vqa": 1}, examples=64)}, column="kind")
    kinds = DATA.add_column("kind", ["x" if name == "ocr" else "y" for name in SOURCES])
    assert "  y: vqa: 32 draws (50 %) of 25 rows, each 1 or 2 ×" in plan_of(parts, kinds).describe()


def test_notes_warn_of_a_source_that_is_shown_far_more_often_than_others_or_never(caplog):
    plan = plan_of(Mixture("source", {"caption": 2, "vqa": 1, "ocr": 0}), epochs=2)
    assert plan.notes == ()
    assert not caplog.records
    plan = plan_of(Mixture("source", {"caption": 300, "vqa": 1, "ocr": 299}, then={"ocr": Phases(3)}, examples=92))
    assert plan.notes == (
        "vqa: its share is less than one draw, and nothing of it is shown.",
        "ocr: a row of it is shown 6.86 × on average, and one of all the data 1.04 ×. Give it a smaller share or more "
        "rows, if that is too often.",
    )
    assert [record.getMessage() for record in caplog.records] == [*plan.notes]
    assert plan_of(Mixture("source", WEIGHTS), max_steps=1).notes == ()


def test_a_source_without_a_share_is_in_no_pool():
    plan = plan_of(Mixture("source", {"caption": 1, "vqa": 0, "ocr": 1}))
    assert plan.stages[0].pool_size == 67
    assert "vqa" not in SOURCES[plan.rows(0, plan.num_samples)]


def test_lengths_come_from_the_rule_or_from_the_arguments():
    assert plan_of(RULES["even"], epochs=2).num_steps == 23
    assert plan_of(RULES["even"], max_steps=11).num_steps == 11
    assert plan_of(Mixture("source", WEIGHTS, examples=80)).num_steps == 10
    assert plan_of(RULES["moving"].fit_to(steps=9)).num_steps == 9


def test_the_beginning_of_a_longer_run_moves_no_faster():
    rule = Mixture("source", WEIGHTS, to=TO, epochs=4, then={"vqa": Growing()})
    whole, cut = plan_of(rule), plan_of(rule, max_steps=13)
    assert cut.rows(0, cut.num_samples).tolist() == whole.rows(0, cut.num_samples).tolist()
    assert cut.stages[0].draws_of(13).tolist() == whole.stages[0].draws_of(13).tolist()


def naive_odm(losses, shares):
    """Albalak et al. 2023, algorithm 1, with the moving average of the paper; the shares after each round.

    A source without a share has no importance weight, which would be infinite: the largest of the others is taken.
    """
    number, rewards, found = len(shares), [0.0] * len(shares), []
    exploring = [1 / number]
    for turn, round_losses in enumerate(losses, start=1):
        largest = max(1 / share for share in shares if share)
        for arm in range(number):
            weight = 1 / shares[arm] if shares[arm] else largest
            rewards[arm] = 0.9 * rewards[arm] + 0.1 * round_losses[arm] * weight
        exploring.append(min(1 / number, math.sqrt(math.log(number) / (number * turn))))
        powers = [math.exp(exploring[turn - 1] * reward) for reward in rewards]
        scale = (1 - number * exploring[turn]) / sum(powers)
        weights = [power * scale + exploring[turn] for power in powers]
        shares = [weight / sum(weights) for weight in weights]
        found.append(shares)
    return found


def decided(rule, losses, batch=8):
    """The plan after decisions on the losses of three sources."""
    return decided_with(rule, losses, 0, batch)


def decided_with(rule, losses, seed, batch=8):
    """The same, of a seed."""
    plan = plan_of(rule, batch=batch, seed=seed)
    for row in losses:
        metrics = {f"eval_{name}_loss": float(loss) for name, loss in zip(rule.shares, row, strict=True)}
        plan = plan.decided(Observed(plan.known_steps, {**metrics, "eval_loss": 9.0}))
    return plan


LOSSES = np.random.default_rng(1).uniform(0.2, 5, (25, 3)).round(3)


@pytest.mark.parametrize("start", [(1, 1, 1), (1, 2, 0), (0, 3, 1), (0, 1, 0)])
def test_odm_is_that_of_a_naive_loop(start):
    rule = Mixture("source", dict(zip(WEIGHTS, start, strict=True)), adapt="odm", every=2, epochs=5)
    plan = decided(rule, LOSSES)
    expected = naive_odm(LOSSES.tolist(), [share / sum(start) for share in start])
    assert expected[-1] != pytest.approx([1 / 3] * 3, abs=0.01)
    for entry, shares in zip(plan.log, expected, strict=True):
        assert list(entry["shares"].values()) == pytest.approx(shares, rel=1e-9)
        assert sum(entry["shares"].values()) == pytest.approx(1)


def test_odm_by_the_released_sum_of_rewards_is_another_estimate_in_the_same_formula():
    """Their code adds L / (10 · share) up; our formula on those sums gives their shares."""
    from hf_curriculum.curricula.mixture import _exploration, _softmax

    shares, sums, before = [1 / 3] * 3, [0.0] * 3, 1 / 3
    for turn, losses in enumerate(LOSSES.tolist(), start=1):
        sums = [total + loss / 10 / share for total, loss, share in zip(sums, losses, shares, strict=True)]
        now = min(1 / 3, math.sqrt(math.log(3) / (3 * turn)))
        powers = [math.exp(total * before) for total in sums]
        theirs = [power * (1 - 3 * now) / sum(powers) + now for power in powers]
        preferred = _softmax({place: _exploration(3, turn - 1) * total for place, total in enumerate(sums)})
        ours = [(1 - 3 * _exploration(3, turn)) * share + _exploration(3, turn) for share in preferred.values()]
        assert ours == pytest.approx(theirs, rel=1e-9)
        shares, before = theirs, now


def test_shares_follow_the_losses():
    rule = Mixture("source", WEIGHTS, adapt="loss", every=4, temperature=0.5, epochs=5)
    plan = decided(rule, LOSSES[:5])
    for entry, losses in zip(plan.log, LOSSES, strict=False):
        powers = np.exp(losses / 0.5)
        assert list(entry["shares"].values()) == pytest.approx((powers / powers.sum()).tolist(), rel=1e-9)
    rows = SOURCES[plan.rows(0, plan.known_samples)].reshape(6, -1)
    for entry, drawn in zip(plan.log, rows[1:], strict=True):
        for name, share in entry["shares"].items():
            assert abs((drawn == name).sum() - 32 * share) < 2
    text = plan.curriculum.describe_decision(plan.log[0])
    losses = ", ".join(f"{name} {loss:.4g}" for name, loss in zip(WEIGHTS, LOSSES[0], strict=True))
    assert text.startswith(f"step 4: {losses} → caption ")
    assert "shares by 'loss' every 4 steps, 14 times, on eval_caption_loss, eval_vqa_loss" in plan.describe()


@pytest.mark.parametrize("adapt", ["loss", "odm"])
def test_a_plan_made_again_from_its_log_is_the_same(adapt):
    rule = Mixture("source", {"caption": 1, "vqa": 2, "ocr": 0}, adapt=adapt, every=3, epochs=5)
    plan = decided(rule, LOSSES[:6])
    again = plan_of(curriculum_from(json.dumps(rule.to_dict()))).with_log(json.loads(json.dumps(plan.log)))
    assert again.rows(0, again.known_samples).tolist() == plan.rows(0, plan.known_samples).tolist()


@pytest.mark.parametrize("adapt", ["loss", "odm"])
def test_a_loss_that_is_no_number_changes_nothing(adapt):
    rule = Mixture("source", {"caption": 1, "vqa": 2, "ocr": 0}, adapt=adapt, every=2, epochs=5)
    plan = decided(rule, [LOSSES[0], [1, math.nan, 2], [math.inf, 1, 1]])
    assert [entry["decision"] for entry in plan.log] == ["shares", "stay", "stay"]
    assert plan.log[2]["shares"] == plan.log[0]["shares"]
    assert "the shares stay" in rule.describe_decision(plan.log[1])


def test_losses_of_sources_are_needed():
    plan = plan_of(Mixture("source", WEIGHTS, adapt="loss", every=2))
    with pytest.raises(
        ValueError, match=r"Mixture decides on 'eval_caption_loss', and evaluate\(\) returned \['eval_"
    ):
        plan.decided(Observed(2, {"eval_loss": 1.0}))


@pytest.mark.parametrize("adapt", [None, "loss"])
def test_a_validation_set_without_sources_is_noticed_before_the_first_step(adapt):
    rule = Mixture("source", WEIGHTS, adapt=adapt, every=adapt and 2)
    trainer = SimpleNamespace(
        curriculum=Filter(0.5, rule), eval_dataset=DATA, metric_names=lambda part: ("loss",), args=None,
        callback_handler=SimpleNamespace(callbacks=[]),
    )  # fmt: skip
    if adapt is None:
        validate_metric(trainer)
    else:
        with pytest.raises(
            ValueError, match=r"decides on 'eval_caption_loss', and evaluate\(\) will return \['eval_loss"
        ):
            validate_metric(trainer)
        trainer.eval_dataset = dict.fromkeys(WEIGHTS, DATA)
        validate_metric(trainer)
        del trainer.eval_dataset["vqa"]
        with pytest.raises(ValueError, match=r"on 'eval_vqa_loss'.* Give an eval_dataset=\{\.\.\.\} with 'vqa'"):
            validate_metric(trainer)


def test_it_goes_through_json_and_yaml_and_into_other_rules():
    text = "{type: mixture, column: source, shares: {caption: 1, vqa: 2, ocr: 1}, then: {vqa: {type: phases}}}"
    rule = curriculum_from(text)
    assert rule == Mixture("source", {"caption": 1, "vqa": 2, "ocr": 1}, then={"vqa": Phases()})
    assert curriculum_from(yaml.safe_dump(rule.to_dict())) == rule
    assert rule.needs_scores
    assert not RULES["even"].needs_scores
    filtered = plan_of(Filter(0.7, RULES["even"], easy="low"))
    assert len(filtered.order) == math.floor(0.7 * len(DATA))
    assert plan_of(OnlineSelection(2, "loss", then=RULES["even"])).candidates == 2
    staged = Staged({"caption": IID(epochs=1), "vqa": RULES["even"], "ocr": IID(epochs=1)}, column="kind")
    kinds = DATA.add_column("kind", [["caption", "vqa", "ocr"][row % 3] for row in range(len(DATA))])
    plan = plan_of(staged, kinds)
    middle = plan.rows(*plan.stage_starts[1:3])
    assert set((middle % 3).tolist()) == {1}
    assert (SOURCES[middle] == "vqa").sum() == pytest.approx(len(middle) / 3, abs=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shares": {"a": 0, "b": 0}}, r"Mixture\(shares=\{'a': 0, 'b': 0\}\) gives no source a weight above 0"),
        ({"to": {"a": 0, "b": 0.0}}, r"Mixture\(to=.*\) gives no source a weight above 0"),
        ({"shares": {}}, r"gives no source a weight above 0"),
        ({"shares": {"a": -1, "b": 1}}, r"has the weight -1 for 'a', and nothing can be drawn so often"),
        ({"shares": {"a": math.nan, "b": 1}}, r"has the weight nan for 'a'"),
        ({"shares": {"a": math.inf, "b": 1}}, r"has the weight inf for 'a'"),
        ({"to": {"a": 1, "c": 1}}, r"has shares of \['a', 'b'\], and `to` names \['c'\] too"),
        ({"to": {"a": 1}}, r"`to` names no weight of \['b'\]"),
        ({"then": {"c": IID()}}, r"`then` names \['c'\] too"),
        ({"to": {"a": 1, "b": 2}, "over": 0}, r"over is more than 0 and at most 1"),
        ({"to": {"a": 1, "b": 2}, "over": 1.1}, r"over is more than 0 and at most 1"),
        ({"to": {"a": 1, "b": 2}, "jumps": 0}, r"jumps is at least 1"),
        ({"over": 0.5}, r"Mixture got over, which would change nothing"),
        ({"every": 5}, r"Mixture got every, which would change nothing"),
        ({"adapt": "odm", "every": 2, "temperature": 0.5}, r"Mixture got temperature, which would change nothing"),
        ({"adapt": "loss", "every": 2, "temperature": 0}, r"a temperature is a number more than 0"),
        ({"adapt": "accuracy"}, r"adapt is one of"),
        ({"adapt": "loss"}, r"needs every=, the optimizer steps between two decisions"),
        ({"adapt": "loss", "every": 2, "to": {"a": 1, "b": 2}}, r"adapt='loss' and to: both say the shares"),
        ({"adapt": "odm", "every": 2, "then": {"a": IID()}}, r"adapt='odm' and then: how often a source is drawn"),
        ({"one_source_per_batch": 2}, r"one_source_per_batch is one of"),
        ({"then": {"a": BabySteps()}}, r"Mixture has a BabySteps for 'a', which decides while training"),
        ({"then": {"a": Phases(easy="low")}}, r"`easy` or `unscored` of its own for 'a'"),
        ({"then": {"a": IID(batches=ByImage())}}, r"Mixture has a curriculum with `batches` for 'a'"),
        ({"then": {"a": OnlineSelection(value="loss")}}, r"OnlineSelection\(then=Mixture\(\.\.\.\)\)"),
        ({"then": {"a": Phases(partial_batches="keep")}}, r"partial_batches='keep' for 'a'"),
        (
            {"then": {"a": Filter(0.5, IID(epochs=2))}},
            r"has a IID with epochs=2 for 'a', and the shares say how often",
        ),
        ({"then": {"a": Phases(fit_steps=9)}}, r"has a Phases with fit_steps=9 for 'a'"),
        ({"batches": ByLength()}, r"Mixture\(batches=.*it puts batches together anew"),
        ({"epochs": 1, "examples": 4}, r"a run has one length"),
    ],
)
def test_what_cannot_be_is_said(given, message):
    with pytest.raises(ValueError, match=message):
        Mixture(**{"column": "source", "shares": {"a": 1, "b": 1}, **given})


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"a": "much"}, r"has the weight 'much' for 'a'; a weight is a number"),
        (["a"], r"Mixture\(shares=\['a'\]\) is not possible; it maps the names"),
    ],
)
def test_weights_are_numbers_by_name(shares, message):
    with pytest.raises(TypeError, match=message):
        Mixture("source", shares)


def test_large_rewards_overflow_nothing():
    from hf_curriculum.curricula.mixture import _softmax

    assert _softmax({"a": 2000.0, "b": 2000.0, "c": -2000.0}) == {"a": 0.5, "b": 0.5, "c": 0.0}


def test_a_single_draw_of_a_source_is_expected_too():
    data = Dataset.from_dict({"source": ["a"] * 9 + ["b"] * 4, "level": [*range(13)]})
    plan = plan_of(Mixture("source", {"a": 3, "b": 1}, then={"b": Filter(0.5)}, examples=4), data, batch=4)
    expected = plan.stages[0].expected_draws(np.arange(13))
    assert expected[:9] == pytest.approx(1 / 3)
    assert sorted(expected[9:]) == pytest.approx([0, 0, 0.5, 0.5])


def test_weights_of_numpy_are_numbers():
    shares = {"caption": np.float32(0.5), "vqa": np.int64(2), "ocr": np.float64(0.25)}
    rule, same = (
        Mixture("source", shares, epochs=1),
        Mixture("source", {"caption": 0.5, "vqa": 2, "ocr": 0.25}, epochs=1),
    )
    assert rule == same
    assert repr(rule) == repr(same)
    assert np.array_equal(plan_of(rule).rows(0, 92), plan_of(same).rows(0, 92))


@pytest.mark.parametrize(
    ("sources", "rule", "message"),
    [
        (["a", "b", "c"], Mixture("source", {"a": 1, "b": 1}), r"nothing would be shown of \['c'\]"),
        (["a", "b", None], Mixture("source", {"a": 1, "b": 1}), r"names no part for 1 of 3 rows"),
        (["a", "b", "b"], Mixture("source", {"a": 1, "b": 1, "d": 1}), r"there are no rows of \['d'\]"),
        ([["a", "b"], ["a"], ["b"]], Mixture("source", {"a": 1, "b": 1}), r"names several parts for a row"),
        (["a", "b", "b"], Mixture("source", {"a": 7, "b": 1}, then={"b": Phases(2)}, examples=8),
         r"Mixture draws 1 examples of 'b', which cannot hold the 2 stages of its Phases"),
        (["a", "b", "b"], Mixture("source", {"a": 1, "b": 1}, examples=1 << 33),
         r"shares are exact up to 4,294,967,296"),
        (["a", "b", "b"], Mixture("kind", {"a": 1, "b": 1}), "`kind`"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit_the_shares(sources, rule, message):
    with pytest.raises(ValueError, match=message):
        plan_of(rule, Dataset.from_dict({"source": sources, "level": [1, 2, 3]}))


def test_a_filter_that_leaves_no_row_of_a_source_says_so():
    data = Dataset.from_dict({"source": ["a"] * 5 + ["b"] * 5, "level": list(range(10))})
    with pytest.raises(ValueError, match=r"there are no rows of \['b'\]"):
        plan_of(Filter(0.5, Mixture("source", {"a": 1, "b": 1}), easy="low"), data)


def test_shares_on_the_way():
    rule = Mixture("source", {"a": 1, "b": 1}, to={"b": 1, "a": 0}, over=0.5)
    assert rule.shares_at(0.25) == {"a": 0.25, "b": 0.75}
    assert rule.shares_at(0.5) == rule.shares_at(1) == {"a": 0, "b": 1}
    jumping = Mixture("source", {"a": 1, "b": 1}, to={"b": 1, "a": 0}, jumps=2)
    assert [jumping.shares_at(at)["a"] for at in (0, 0.49, 0.5, 0.99, 1)] == [0.5, 0.5, 0.25, 0.25, 0]
