"""Weighted draws: frequencies, exactness beyond 2^24 examples, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hf_curriculum import Weighted, curriculum_from, make_plan, rank_scores


def drawn(rule, scores, draws, **kwargs):
    plan = make_plan(rule, rank_scores(np.asarray(scores), **kwargs), global_batch_size=10)
    assert plan.num_samples == draws
    return plan.rows(0, draws)


@pytest.mark.parametrize("easy", ["low", "high"])
def test_frequencies_are_those_of_the_weights(easy):
    # One has a share of less than 1/4,096, so that upper bits alone do not tell its class.
    weights = np.array([0.0, 1.0, 2.0, 3.0, 100.0, 0.5, 7.0, 1e-9, 0.014], np.float32)
    rows = drawn(Weighted(examples=400_000), weights, 400_000, easy=easy)
    found = np.bincount(rows, minlength=9) / len(rows)
    share = weights / weights.sum()
    assert found[0] == 0
    # Five standard deviations of a binomial share.
    assert np.all(np.abs(found - share) <= 5 * np.sqrt(share * (1 - share) / len(rows)) + 1e-12)


def test_weights_within_a_class_are_told_apart():
    weights = np.linspace(1.0, 1.9, 10)
    rows = drawn(Weighted(examples=1_000_000), weights, 1_000_000)
    found = np.bincount(rows) / len(rows)
    assert np.allclose(found, weights / weights.sum(), atol=5 * np.sqrt(0.1 / 1e6))


@pytest.mark.parametrize("easy", ["low", "high"])
def test_the_largest_weight_of_each_class_is_known(easy):
    """What is drawn in a class is kept with its weight's share of it: a smaller one would cut weights off."""
    scores = np.random.default_rng(0).lognormal(0, 2, 500)
    (stage,) = make_plan(Weighted(examples=100), rank_scores(scores, easy), global_batch_size=10).stages
    starts, largest, _ = stage._classes
    classes = np.split(stage._weights(np.arange(stage.pool_size)), starts[1:-1])
    assert len(classes) > 20
    assert largest.tolist() == [part.max() for part in classes]


@pytest.mark.parametrize("easy", ["low", "high"])
def test_a_temperature_keeps_to_the_easy_end(easy):
    scores = np.array([0.0, 0.1, 0.2, 0.4])
    rows = drawn(Weighted(temperature=0.1, examples=200_000), scores, 200_000, easy=easy)
    distance = scores if easy == "low" else scores.max() - scores
    share = np.exp(-distance / 0.1) / np.exp(-distance / 0.1).sum()
    assert np.allclose(np.bincount(rows, minlength=4) / len(rows), share, atol=0.006)


def test_unscored_examples_are_never_drawn():
    rows = drawn(Weighted(examples=10_000), [np.nan, 1.0, 1.0, np.nan], 10_000)
    assert set(rows.tolist()) == {1, 2}


def test_more_examples_than_torch_can_weigh():
    # torch.multinomial stops at 2^24 weights.
    size = (1 << 24) + 5
    weights = np.ones(size, np.float32)
    weights[-1] = size
    plan = make_plan(Weighted(examples=20_000), weights, global_batch_size=100)
    rows = plan.rows(0, 20_000)
    assert 0.48 < (rows == size - 1).mean() < 0.52
    rest = rows[rows != size - 1]
    assert len(set(rest.tolist())) > 0.99 * len(rest)
    assert 0.45 < (rest > size / 2).mean() < 0.55


def test_any_part_of_the_stream_can_be_asked_for():
    plan = make_plan(Weighted(epochs=3), np.arange(1, 101), global_batch_size=7)
    whole = plan.rows(0, plan.num_samples)
    for start in range(0, plan.num_samples, 13):
        assert plan.rows(start, plan.num_samples).tolist() == whole[start:].tolist()


def test_round_trip():
    for rule in (Weighted(temperature=0.5, epochs=2), Weighted(cap=0.15, epochs=2)):
        assert curriculum_from(rule.to_dict()) == rule == curriculum_from(json.dumps(rule.to_dict()))
    assert "cap" not in Weighted(epochs=2).to_dict()


@pytest.mark.parametrize(
    ("rule", "scores", "message"),
    [
        (Weighted(), [1.0, -2.0], "goes down to -2: a probability cannot be negative"),
        (Weighted(), [0.0, 0.0], "All 2 weights are 0"),
    ],
)
def test_weights_that_are_none(rule, scores, message):
    with pytest.raises(ValueError, match=message):
        make_plan(rule, np.array(scores), global_batch_size=2)


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="a temperature is a number more than 0"):
        Weighted(temperature=0.0)
    for cap in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="a cap is a number more than 0"):
            Weighted(cap=cap)
    with pytest.raises(ValueError, match=r"Weighted\(partial_batches='keep'\) is not possible"):
        Weighted(partial_batches="keep")


def test_the_draws_of_a_seed_are_fixed_for_good():
    """Written out: others would change a run that is resumed after an upgrade."""
    plan = make_plan(Weighted(temperature=4.0, epochs=1), np.arange(1.0, 13), global_batch_size=6, seed=3)
    assert plan.rows(0, 12).tolist() == [2, 4, 0, 4, 0, 5, 6, 1, 4, 0, 4, 1]


def soft_capped(weights, draws, cap, runs=800):
    """How often each is drawn, on average, if every draw takes `cap` off its log-weight; one draw after the other."""
    left, counts = np.tile(weights, (runs, 1)), np.zeros((runs, len(weights)))
    rng, run = np.random.default_rng(0), np.arange(runs)
    for _ in range(draws):
        ends = left.cumsum(1)
        drawn = (ends < rng.random(runs)[:, None] * ends[:, -1:]).sum(1)
        counts[run, drawn] += 1
        left[run, drawn] *= np.exp(-cap)
    return counts.mean(0)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("cap", [0.05, 0.15, 0.5])
def test_a_soft_cap_has_the_counts_of_draws_that_lighten_what_they_draw(cap, epochs):
    weights = np.random.default_rng(1).lognormal(0, 2, 40)
    draws = 40 * epochs
    expected = soft_capped(weights, draws, cap)
    (stage,) = make_plan(Weighted(cap=cap, epochs=epochs), weights, global_batch_size=10).stages
    found = np.empty(40)
    found[stage.ranking.order] = stage.expected_draws(np.arange(40))
    heaviest = np.argmax(weights)
    assert found.sum() == pytest.approx(draws)
    assert np.abs(found - expected).sum() < 0.03 * draws  # without a cap: 0.19 to 1.1 of the draws
    assert found[heaviest] == pytest.approx(expected[heaviest], rel=0.03)
    assert found[heaviest] < draws * weights.max() / weights.sum()


@pytest.mark.parametrize("rule", [Weighted(cap=0.5), Weighted(temperature=0.7, cap=0.5, easy="high")], ids=str)
def test_what_a_capped_plan_says_is_what_it_draws(rule):
    scores = np.array([np.nan, *np.random.default_rng(2).lognormal(0, 1.5, 20), 0.0])
    plans = [make_plan(replace(rule, epochs=2), scores, global_batch_size=11, seed=seed) for seed in range(300)]
    counts = np.array([np.bincount(plan.rows(0, plan.num_samples), minlength=22) for plan in plans])
    assert counts[:, 0].max() == 0
    assert (counts[:, -1].max() == 0) == (rule.temperature is None)  # a weight of 0 stays one
    (stage,), ranking = plans[0].stages, plans[0].ranking
    order, at = ranking.order[: ranking.num_scored], np.arange(ranking.num_scored)
    drawn, missed = stage.expected_draws(at), stage.missed(at)
    np.testing.assert_allclose(counts.mean(0)[order], drawn, atol=5 * (counts.std(0) / 300**0.5).max())
    np.testing.assert_allclose((counts == 0).mean(0)[order], missed, atol=5 * 0.5 / 300**0.5)
    # ln(1 + w·t) / cap with one t for all
    weights = rule.weights(scores[order], ranking.score_at(0))
    times = (np.expm1(0.5 * drawn) / np.where(weights, weights, 1))[weights > 0]
    np.testing.assert_allclose(times, times.mean(), rtol=5e-3)
    assert ", soft cap 0.5" in plans[0].describe()


def test_a_capped_run_that_ends_early_draws_as_the_whole_one_began():
    weights = np.random.default_rng(1).lognormal(0, 2, 40)
    whole, cut = (
        make_plan(Weighted(cap=0.15, epochs=9), weights, global_batch_size=10, max_steps=n) for n in (None, 3)
    )
    assert cut.rows(0, 30).tolist() == whole.rows(0, 360)[:30].tolist()
    whole, cut = whole.stages[0], cut.stages[0]
    np.testing.assert_allclose(cut.expected_draws(np.arange(40)) * 12, whole.expected_draws(np.arange(40)))
    assert cut.cut(20).capped_draws == 360


def test_a_cap_that_outweighs_all_draws_evenly():
    (stage,) = make_plan(Weighted(cap=50.0, epochs=100), [1e-9, 1.0, 3.0], global_batch_size=10).stages
    np.testing.assert_allclose(stage.expected_draws(np.arange(3)), 100, atol=0.5)
