"""Growing pools: the published formulas, their ends, and draws that stay within them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import Growing, curriculum_from, make_plan

FIRST = [2, 0, 3, 2, 1, 5, 6, 5, 5, 5, 1, 2, 6, 8, 3, 0, 1, 9, 8, 13]
LAST = [9, 30, 34, 27, 35, 32, 6, 16, 15, 7, 11, 4, 11, 35, 20, 21, 14, 19, 11, 31]
FUNCTIONS = ["competence", "polynomial", "logarithmic", "exponential", "step", "geometric"]
RULES = st.builds(
    Growing,
    function=st.sampled_from(FUNCTIONS),
    initial=st.floats(0.001, 1),
    full_at=st.floats(0.05, 1),
    power=st.floats(0.2, 5),
    increase=st.floats(1.01, 10),
    every=st.floats(0.01, 1),
)


@pytest.mark.parametrize(
    ("rule", "progress", "share"),
    [
        (Growing("competence", 0.01, power=1), 0.5, 0.505),
        (Growing("competence", 0.01, power=2), 0.5, math.sqrt(0.5 * (1 - 0.01**2) + 0.01**2)),
        (Growing("competence", 0.1, power=5), 0.3, (0.3 * (1 - 1e-5) + 1e-5) ** 0.2),
        (Growing("polynomial", 0.2, 0.8, power=1), 0.4, 0.2 + 0.8 * 0.5),
        (Growing("polynomial", 0.2, 0.8, power=2), 0.4, 0.2 + 0.8 * 0.25),
        (Growing("polynomial", 0.2, 0.8, power=0.5), 0.2, 0.2 + 0.8 * 0.5),
        (Growing("logarithmic", 0.2, 0.8), 0.4, 0.2 + 0.8 * (1 + 0.1 * math.log(0.5 + math.exp(-10)))),
        (Growing("exponential", 0.2, 0.8), 0.4, 0.2 + 0.8 * (math.exp(5) - 1) / (math.exp(10) - 1)),
        (Growing("step", 0.2, 0.8), 0.79, 0.2),
        (Growing("step", 0.2, 0.8), 0.8, 1.0),
        (Growing("geometric", 0.1, increase=2, every=0.1), 0.29, 0.4),
        (Growing("geometric", 0.1, increase=2, every=0.1), 0.3, 0.8),
        (Growing("geometric", 0.1, increase=2, every=0.1), 0.4, 1.0),
    ],
)
def test_shares_are_the_formulas(rule, progress, share):
    assert rule.share(progress) == pytest.approx(share, rel=1e-12)


@given(rule=RULES)
@settings(deadline=None)
def test_a_share_starts_at_b_ends_with_everything_and_never_shrinks(rule):
    assert rule.share(0) == pytest.approx(rule.initial, abs=1e-9)
    shares = [rule.share(x) for x in np.linspace(0, 1, 101)]
    assert all(earlier <= later + 1e-12 for earlier, later in itertools.pairwise(shares))
    assert max(shares) <= 1
    if rule.function != "geometric":
        assert rule.share(rule.full_at) == pytest.approx(1, abs=1e-5)  # the logarithm of 1 + e^-10
        assert rule.share(1) == pytest.approx(1, abs=1e-5)


@given(rule=RULES, size=st.integers(1, 200), batch=st.integers(1, 9), seed=st.integers(0, 3), data=st.data())
@settings(deadline=None, max_examples=60)
def test_draws_stay_within_the_pool_of_their_step(rule, size, batch, seed, data):
    plan = make_plan(rule, np.arange(size), global_batch_size=batch, seed=seed, epochs=2)
    positions = plan.positions(0, plan.num_samples)
    assert len(positions) == plan.num_samples == plan.num_steps * batch
    assert plan.num_samples - 2 * size == plan.num_filled < batch
    stage = plan.stages[0]
    for step in range(plan.num_steps):
        assert positions[step * batch : (step + 1) * batch].min() >= 0
        assert positions[step * batch : (step + 1) * batch].max() < stage.pool_at(step) <= size
    start = data.draw(st.integers(0, plan.num_samples))
    assert plan.positions(start, plan.num_samples).tolist() == positions[start:].tolist()


def test_draws_are_even_over_the_pool():
    plan = make_plan(Growing("step", 0.5, 0.5, examples=40_000, easy="low"), np.arange(20), global_batch_size=10)
    early = np.bincount(plan.positions(0, 20_000), minlength=20)
    late = np.bincount(plan.positions(20_000, 40_000), minlength=20)
    assert early[10:].sum() == 0
    assert ((early[:10] - 2000) ** 2 / 2000).sum() < 30
    assert ((late - 1000) ** 2 / 1000).sum() < 45


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("epochs", [1.5, 2, 3])
def test_by_default_the_last_epoch_is_a_pass_over_everything(function, epochs):
    plan = make_plan(Growing(function, epochs=epochs, easy="low"), np.arange(1000), global_batch_size=16)
    growing = round((epochs - 1) * 1000)
    rows = plan.rows(0, plan.num_samples)
    assert sorted(rows[growing : growing + 1000].tolist()) == list(range(1000))
    assert [stage.num_draws for stage in plan.stages] == [growing, 1000 + plan.num_filled]
    assert rows[:16].max() < 10
    # The share grows as it would in a run that ended there.
    alone = make_plan(
        Growing(function, full_at=1.0, examples=growing, easy="low"), np.arange(1000), global_batch_size=16
    )
    assert rows[: growing // 16 * 16].tolist() == alone.rows(0, growing // 16 * 16).tolist()


def test_a_run_too_short_for_a_pass_over_everything_grows_to_its_end():
    short, same = (
        make_plan(Growing(full_at=at, epochs=1.4, easy="low"), np.arange(100), global_batch_size=8) for at in (None, 1)
    )
    assert short.rows(0, short.num_samples).tolist() == same.rows(0, same.num_samples).tolist()


def test_its_plan_is_printed_and_drawn():
    plan = make_plan(Growing(initial=0.1, full_at=1, epochs=2, easy="low"), np.arange(1000), global_batch_size=10)
    assert "easiest 10 % to 100 %" in plan.describe()
    pools = plan.to_dict()["stages"][0]["pools"]
    assert pools[0][2] == 100
    assert [pool for _, _, pool in pools] == sorted(pool for _, _, pool in pools)
    assert pools[-1][1] == plan.num_samples - 1
    assert [first for first, _, _ in pools[1:]] == [last + 1 for _, last, _ in pools[:-1]]


def test_it_goes_through_json():
    rule = Growing("polynomial", 0.2, power=0.5, epochs=3)
    assert curriculum_from(rule.to_dict()) == rule


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "root-3"}, "function is one of 'competence'"),
        ({"initial": 0}, "initial is more than 0 and at most 1"),
        ({"full_at": 1.5}, "full_at is more than 0 and at most 1"),
        ({"power": 0}, r"power is more than 0\."),
        ({"increase": 1}, r"increase is more than 1\."),
        ({"every": 0}, "every is more than 0 and at most 1"),
        ({"epochs": 1, "examples": 3}, "a run has one length"),
        ({"epochs": -1}, "would train on nothing"),
        ({"epochs": float("nan")}, "would train on nothing"),
        ({"epochs": float("inf")}, "or for ever"),
        ({"partial_batches": "keep"}, "every batch of it is full"),
    ],
)
def test_growing_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Growing(**arguments)


def test_many_increases_do_not_overflow():
    rule = Growing("geometric", initial=0.01, every=0.001, increase=10)
    assert rule.share(1.0) == 1.0
    assert rule.share(0.0) == pytest.approx(0.01)
    assert rule.grid_shares(np.array([0.0, 0.001, 1.0])).tolist() == [round(0.01 * 2**30), round(0.1 * 2**30), 2**30]


def test_equal_scores_are_no_order():
    with pytest.raises(ValueError, match="All 9 scored rows have the same score, 2: it orders nothing"):
        make_plan(Growing(epochs=1, easy="low"), np.full(9, 2.0), global_batch_size=2)
    assert make_plan(Growing(initial=1, epochs=1, easy="low"), np.full(9, 2.0), global_batch_size=2).num_steps == 5
    assert make_plan(Growing(epochs=1, easy="low"), np.ones(1), global_batch_size=2).num_steps == 1


def test_the_share_of_a_step_is_that_of_the_steps_before_it():
    plan = make_plan(
        Growing("polynomial", 0.2, full_at=1, power=1, epochs=4, easy="low"), np.arange(100), global_batch_size=40
    )
    assert plan.num_steps == 10
    assert plan.stages[0].pool_at(np.arange(10)).tolist() == [20, 28, 36, 44, 52, 60, 68, 76, 84, 92]


def test_it_checks_what_every_curriculum_checks():
    with pytest.raises(ValueError, match="a run has one length"):
        Growing(epochs=1, examples=5)
    with pytest.raises(ValueError, match="easy is one of"):
        Growing(easy="hard")
