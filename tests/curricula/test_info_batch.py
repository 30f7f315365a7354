"""InfoBatch: what is left out, what stays and its weights, computed by hand and over many draws."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hf_curriculum import (
    ByImage,
    ByLength,
    ByNode,
    Filter,
    InfoBatch,
    OnlineSelection,
    curriculum_from,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.ranking import Ranking

nan = float("nan")
ALTERNATING = np.array([1, 9] * 5, np.float32)
"""Of the mean 5, the five even rows are below."""


def start(rule, *, size=10, batch=2, **kwargs):
    return make_plan(rule, Ranking.unordered(size), global_batch_size=batch, **kwargs)


def decide(plan, losses):
    return plan.decided(Observed(plan.known_steps, {}, np.asarray(losses, np.float32)))


def test_a_share_of_what_is_below_the_mean_is_left_out_and_the_rest_weighs_more():
    plan = start(InfoBatch(prune=0.4, epochs=6))  # 30 steps, everything from step 27
    assert (plan.max_steps, plan.known_steps, plan.weights_at(0)) == (30, 5, None)
    assert sorted(plan.rows(0, 10)) == list(range(10))

    plan = decide(plan, ALTERNATING)
    entry = {"decision": "prune", "threshold": 5.0, "below": 5, "pruned": 2, "pool": 8}
    assert plan.log == ({"round": 0, "step": 5, **entry},)
    assert plan.known_steps == 9
    kept = set(plan.rows(10, 18).tolist())
    assert len(kept) == 8
    assert {1, 3, 5, 7, 9} < kept
    weights = plan.weights_at(5)
    assert (weights.dtype, weights.shape) == (np.float32, (10,))
    assert {weights[row] for row in (1, 3, 5, 7, 9)} == {1}
    assert {float(weights[row]) for row in kept & {0, 2, 4, 6, 8}} == {np.float32(5 / 3)}
    assert weights[sorted(kept)].sum() == pytest.approx(10)

    plan = decide(plan, [0.0] * 10)  # none is below the mean
    assert (plan.log[1]["below"], plan.log[1]["pruned"], plan.known_steps) == (0, 0, 14)
    assert plan.weights_at(9) is None
    assert sorted(plan.rows(18, 28)) == list(range(10))


def test_from_a_part_of_the_steps_on_everything_is_trained_on_with_weight_1():
    plan = start(InfoBatch(epochs=3, until=0.7))  # 15 steps, everything from step 10.5
    while plan.undecided:
        plan = decide(plan, ALTERNATING)
    assert [stage.name for stage in plan.stages] == ["first pass", "round 1", "round 2", "everything"]
    assert [stage.num_draws for stage in plan.stages] == [10, 8, 4, 8]
    assert [stage.pool_size for stage in plan.stages] == [10, 7, 7, 10]
    assert plan.stages[2].rule == "2 of 5 with loss < 5, all others"
    assert plan.known_steps == plan.num_steps == plan.max_steps == 15
    assert plan.num_draws == 30
    assert plan.weights_at(9) is not None
    assert plan.weights_at(10) is not None
    assert plan.weights_at(11) is None
    assert len(set(plan.rows(22, 30).tolist())) == 8
    # Without such an end the last round is cut by the budget.
    plan = start(InfoBatch(epochs=3, until=1))
    while plan.undecided:
        plan = decide(plan, ALTERNATING)
    assert [stage.num_draws for stage in plan.stages] == [10, 8, 8, 4]
    assert plan.weights_at(14) is not None


def test_over_many_draws_the_weighted_gradient_is_that_of_everything():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(10, 3))
    drawn, left_out, count = np.zeros(10), np.zeros(10), 2000
    for number in range(count):
        plan = decide(start(InfoBatch(epochs=6), seed=number), ALTERNATING)
        rows = np.unique(plan.rows(10, 18))[:7]
        drawn[rows] += plan.weights_at(5)[rows]
        left_out += ~np.isin(np.arange(10), rows)
    assert left_out[1::2].sum() == 0
    # Each of the five stays in 2 of 5 draws and weighs 5 / 2 then: four standard errors.
    assert np.abs(drawn / count - 1).max() < 4 * np.sqrt(2.5**2 * 0.4 - 1) / np.sqrt(count)
    assert np.allclose((drawn[:, None] * gradients).mean(0) / count, gradients.mean(0), atol=0.1)


@pytest.mark.parametrize("prune", [0, 0.01, 0.3, 0.5, 0.99])
def test_weights_add_up_to_the_number_of_examples(prune):
    rng = np.random.default_rng(1)
    for size in (2, 3, 7, 50):
        losses = rng.exponential(size=size).astype(np.float32)
        plan = decide(start(InfoBatch(prune, epochs=9), size=size, batch=1), losses)
        below, pruned = plan.log[0]["below"], plan.log[0]["pruned"]
        assert below == (losses < losses.mean(dtype=np.float64)).sum()
        assert pruned == max(0, min(int(prune * below + 0.5), below - 1))
        rows = plan.rows(size, 2 * size - pruned)
        assert len(set(rows.tolist())) == size - pruned
        weights = plan.weights_at(size)
        assert (weights is None) == (pruned == 0)
        if pruned:
            assert weights[rows].sum() == pytest.approx(size)


def test_what_is_left_out_follows_from_seed_and_round_and_not_from_the_last_bit_of_a_loss():
    losses = np.random.default_rng(2).exponential(size=100).astype(np.float32)

    def left_out(losses, seed=0, rounds=1):
        plan = start(InfoBatch(epochs=6), size=100, batch=10, seed=seed)
        for _ in range(rounds):
            plan = decide(plan, losses)
        return frozenset(plan.order.order[: plan.log[-1]["pruned"]].tolist())

    assert left_out(losses) == left_out(np.nextafter(losses, np.float32(9)))
    found = {left_out(losses, seed, rounds) for seed in (0, 1) for rounds in (1, 2, 3)}
    assert len(found) == 6
    assert all(losses[list(rows)].max() < losses.mean() for rows in found)


def test_examples_without_a_loss_stay_and_weigh_1():
    plan = decide(start(InfoBatch(0.9, epochs=9)), [nan, 1, 1, 9, 9, float("inf"), float("-inf"), 1, 1, 1])
    assert plan.log[0]["threshold"] == pytest.approx(23 / 7)
    assert (plan.log[0]["below"], plan.log[0]["pruned"]) == (5, 4)
    rows = set(plan.rows(10, 16).tolist())
    assert {0, 3, 4, 5, 6} < rows
    assert sorted(plan.weights_at(5)[sorted(rows)].tolist()) == [1, 1, 1, 1, 1, 5]
    with pytest.raises(
        ValueError, match=r"None of the 10 examples had a finite loss by step 5: the model has diverged"
    ):
        decide(start(InfoBatch(epochs=9)), [nan] * 10)


def test_images_are_left_out_with_all_their_captions():
    groups = Groups(None, np.arange(0, 21, 2), np.arange(20, dtype=np.int64))
    ranking = Ranking.unordered(20)
    ranking = type(ranking)(**{**vars(ranking), "columns": {"image_id": groups}})
    plan = make_plan(InfoBatch(epochs=6, batches=ByImage(2)), ranking, global_batch_size=4)
    plan = decide(plan, np.repeat(ALTERNATING, 2) + np.resize([0.1, -0.1], 20))
    assert (plan.log[0]["below"], plan.log[0]["pruned"]) == (5, 3)
    rows = plan.rows(20, 34)
    weights = plan.weights_at(5)
    assert weights[rows].sum() == pytest.approx(20)
    assert (weights[::2] == weights[1::2]).all()
    assert sorted(set(weights[rows].tolist())) == [1, 2.5]


def test_batches_of_like_length_are_drawn_from_what_stays():
    lengths = np.arange(10, dtype=np.float32)
    ranking = Ranking.unordered(10)
    ranking = type(ranking)(**{**vars(ranking), "columns": {"caption_length": lengths}})
    plan = make_plan(InfoBatch(epochs=6, batches=ByLength(window=2)), ranking, global_batch_size=2)
    plan = decide(plan, ALTERNATING)
    rows = set(plan.rows(10, 18).tolist())
    assert {1, 3, 5, 7, 9} < rows
    assert len(rows) == 7


def test_within_a_filter_only_what_is_kept_counts():
    scores = np.array([5, 1, 6, 2, 7, 3, 8, 4.0])
    plan = make_plan(Filter(0.5, InfoBatch(epochs=6)), rank_scores(scores), global_batch_size=1)
    assert sorted(plan.rows(0, 4)) == [1, 3, 5, 7]
    plan = decide(plan, [nan, 1, nan, 1, nan, 9, nan, 9])
    assert (plan.log[0]["threshold"], plan.log[0]["below"], plan.log[0]["pruned"]) == (5.0, 2, 1)
    rows = plan.rows(4, 7)
    assert {5, 7} < set(rows.tolist())
    assert sorted(plan.weights_at(4)[rows].tolist()) == [1, 1, 2]


def test_what_is_certain_is_printed_and_no_scoring_counts():
    plan = start(InfoBatch(epochs=6))
    text = plan.describe()
    assert "before each further pass 50 % of the examples below the mean loss of training are left out" in text
    assert "everything from step 27" in text
    assert text.splitlines()[-1] == "+ no round of scoring: the losses are those of training"
    while plan.undecided:
        plan = decide(plan, ALTERNATING)
    assert plan.scored_after(plan.num_steps) == 0
    assert plan.compute_after(plan.num_steps) == 3 * 60
    assert plan.cost_ratio == 1
    assert plan.exposure().never_shown == 0
    said = plan.curriculum.describe_decision(plan.log[0])
    assert said == "round 1: (threshold 5, below 5, pruned 3, pool 7) → prune"


def test_json_and_budgets():
    rule = InfoBatch(prune=0.3, until=0.8, epochs=10)
    assert curriculum_from(json.dumps(rule.to_dict())) == rule
    assert not rule.needs_scores
    assert start(InfoBatch(), epochs=7).max_steps == 35
    assert start(InfoBatch(), max_steps=11).max_steps == 11
    assert start(InfoBatch(examples=27)).max_steps == 14
    assert start(InfoBatch().fit_to(steps=13)).max_steps == 13
    with pytest.raises(
        ValueError, match=r"InfoBatch has a budget of 5 steps, of which the first 5 are a pass over everything"
    ):
        start(InfoBatch(epochs=1))


def test_it_is_not_chosen_from():
    with pytest.raises(
        ValueError, match=r"OnlineSelection\(then=...\) holds a InfoBatch, which goes by the losses that"
    ):
        OnlineSelection(value="loss", then=InfoBatch())
    with pytest.raises(ValueError, match="most candidates never are"):
        OnlineSelection(value="loss", then=Filter(0.5, InfoBatch()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prune": 1}, "prune is at least 0 and less than 1"),
        ({"prune": -0.1}, "prune is at least 0 and less than 1"),
        ({"until": 0}, "until is more than 0 and at most 1"),
        ({"until": 1.1}, "until is more than 0 and at most 1"),
        ({"batches": ByNode()}, "groups are drawn by chance, not in passes"),
        ({"partial_batches": "keep"}, r"InfoBatch\(partial_batches='keep'\) is not possible"),
        ({"epochs": 1, "examples": 1}, "a run has one length"),
    ],
)
def test_info_batch_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        InfoBatch(**arguments)
