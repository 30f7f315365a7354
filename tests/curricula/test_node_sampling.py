"""Node sampling: TOnICS's published numbers, refreshes by hand, frequencies, and no image twice."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import Filter, NodeSampling, curriculum_from, make_plan, rank_scores
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.groups import Groups, read_columns
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import FileOrder
from hf_curriculum.planning.stage import NodeStage
from hf_curriculum.rng import draw_each, hash64, mix64

ACCURACY = "eval_retrieval_accuracy"
BALLS = {"nodes": ["ball"] * 100 + ["dog"] * 300}


def start(rule, columns, *, batch=4, seed=0, scores=None, **kwargs):
    data = Dataset.from_dict(columns)
    ranking = Ranking.unordered(len(data)) if scores is None else rank_scores(np.asarray(scores))
    ranking = replace(ranking, columns=read_columns(data, rule.reads))
    return make_plan(rule, ranking, global_batch_size=batch, seed=seed, **kwargs)


def decide(plan, *values, metric=ACCURACY):
    for value in values:
        plan = plan.decided(Observed(plan.known_steps, {metric: value}))
    return plan


def groups_of(plan, number, steps=None):
    """The group, by name, that each step of a stage drew from; None: from everything."""
    stage = plan.stages[number]
    found = stage.nodes(
        np.arange(stage.num_draws // plan.global_batch_size if steps is None else steps), mix64(plan.seed)
    )
    return [None if node < 0 else stage.groups.names[node] for node in found]


def test_shares_after_k_refreshes():
    rule = NodeSampling()
    assert (rule.threshold, rule.check_every, rule.decay, rule.floor, rule.at_floor) == (0.9, 5000, 0.9, 0.2, "stop")
    shares = [rule.random_share(k) for k in range(16)]
    assert shares == pytest.approx([0.9**k for k in range(16)], rel=1e-15)
    assert [round(share, 6) for share in shares[1:4]] == [0.9, 0.81, 0.729]
    assert round(shares[10], 6) == 0.348678
    assert round(shares[15], 6) == 0.205891
    assert round(0.9**16, 6) == 0.185302


def as_published(**kwargs):
    """A plan of the paper's 500,000 steps of 256, over few examples."""
    return start(NodeSampling(examples=256 * 500_000, **kwargs), {"nodes": ["a", "b", "b", None]}, batch=256)


def test_fifteen_refreshes_reach_the_floor_and_the_sixteenth_is_blocked():
    plan = as_published()
    assert plan.max_steps == 500_000
    assert "an evaluation every 5,000 steps, 99 of them; at most 15 refreshes, to 20.59 %" in plan.describe()
    plan = decide(plan, *[1.0] * 14)
    assert plan.known_steps == 75_000
    assert plan.undecided
    plan = decide(plan, 1.0)
    assert (plan.log[-1]["step"], plan.log[-1]["refreshes"]) == (75_000, 15)
    assert round(plan.log[-1]["random_share"], 6) == 0.205891
    # Nothing could change any more: the rest is one stage, without evaluations for decisions.
    assert not plan.undecided
    assert plan.num_steps == 500_000
    assert round(plan.stages[-1].random_share, 6) == 0.205891
    assert plan.stages[-1].num_draws == 425_000 * 256


def test_clamped_the_sixteenth_refresh_goes_exactly_to_the_floor():
    plan = decide(as_published(at_floor="clamp"), *[1.0] * 15)
    assert round(plan.log[-1]["random_share"], 6) == 0.205891
    assert plan.undecided
    plan = decide(plan, 1.0)
    assert (plan.log[-1]["step"], plan.log[-1]["refreshes"], plan.log[-1]["random_share"]) == (80_000, 16, 0.2)
    assert not plan.undecided
    assert plan.stages[-1].random_share == 0.2


def test_a_run_without_success_is_checked_a_hundred_times_at_most():
    plan = decide(as_published(), *[0.5] * 99)
    # The hundredth check would be on the last step, where nothing is left to decide.
    assert not plan.undecided
    assert plan.num_steps == 500_000
    assert {stage.random_share for stage in plan.stages} == {1.0}
    assert {stage.num_draws for stage in plan.stages} == {5000 * 256}
    assert len(plan.stages) == 100


@pytest.mark.parametrize(
    ("value", "refreshes"),
    [
        (0.90, 1),
        (90 / 100, 1),
        (np.float32(0.9), 1),  # 0.8999999762 as a Python number
        (np.mean(np.arange(100) < 90, dtype=np.float32), 1),
        (0.8999, 0),
        (0.89, 0),
        (float("nan"), 0),
        (1.0, 1),
    ],
)
def test_exactly_the_threshold_is_enough(value, refreshes):
    plan = decide(start(NodeSampling(check_every=2, epochs=1), BALLS), float(value))
    assert plan.log[0]["refreshes"] == refreshes
    assert plan.log[0]["decision"] == ("refresh" if refreshes else "stay")
    assert json.loads(json.dumps(plan.log[0]))["refreshes"] == refreshes


def test_refreshes_add_up_and_take_effect_with_the_next_step():
    plan = decide(start(NodeSampling(check_every=10, epochs=1), BALLS), 0.95, 0.5, 0.9, 0.1)
    assert [entry["step"] for entry in plan.log] == [10, 20, 30, 40]
    assert [entry["refreshes"] for entry in plan.log] == [1, 1, 2, 2]
    assert [stage.random_share for stage in plan.stages] == pytest.approx([1, 0.9, 0.9, 0.81, 0.81])
    assert [stage.num_draws for stage in plan.stages] == [40] * 5
    assert plan.stages[1].rule == "90 % random batches, others from one of 2 nodes"


def test_the_mass_of_nodes_of_one_and_three_parts():
    # One refresh: 0.1 of all batches come from a node, 0.025 from the smaller and 0.075 from the larger one.
    rule = NodeSampling(check_every=40_000, examples=80_000 * 4)
    plan = decide(start(rule, BALLS), 1.0)
    drawn = Counter(groups_of(plan, 1))
    assert sum(drawn.values()) == 40_000
    for name, share in ((None, 0.9), ("ball", 0.025), ("dog", 0.075)):
        # Five standard deviations of a binomial share: one seed in two million is further away.
        assert drawn[name] / 40_000 == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / 40_000))
    assert set(groups_of(plan, 0)) == {None}
    assert set(groups_of(decide(start(replace(rule, decay=1e-9, floor=1e-9), BALLS), 1.0), 1)) == {"ball", "dog"}


def test_whether_a_batch_is_random_is_the_grids_arithmetic():
    """2^30 equal parts: a share that is one of them is met exactly, at both ends too."""
    plan = start(NodeSampling(check_every=2, epochs=1), BALLS)
    (stage, *_), steps, key = plan.stages, np.arange(3000), mix64(3)
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    random = [set(steps[replace(stage, random_share=share).nodes(steps, key) < 0].tolist()) for share in shares]
    assert random[0] == set()
    assert random[-1] == set(steps.tolist())
    # A smaller share of random batches is a part of a larger one's, and the nodes of the others stay what they were.
    assert all(smaller < larger for smaller, larger in itertools.pairwise(random))
    nodes = replace(stage, random_share=0.5).nodes(steps, key)
    assert (nodes[nodes >= 0] == replace(stage, random_share=0.0).nodes(steps, key)[nodes >= 0]).all()


def test_a_batch_is_of_one_node_or_of_everything():
    plan = decide(start(NodeSampling(check_every=5, decay=0.3, epochs=2), BALLS), 1.0)
    names = np.array(BALLS["nodes"])
    for step, node in zip(range(5, plan.num_steps), groups_of(plan, 1), strict=True):
        rows = plan.step_rows(step)
        assert len(set(rows.tolist())) == 4
        assert node is None or set(names[rows]) == {node}


def test_rows_of_several_nodes_and_of_none():
    columns = {"nodes": [["a", "b"], ["a"], [], ["b", "b", "c"], None, ["a"]]}
    plan = decide(start(NodeSampling(check_every=50, decay=1e-9, floor=1e-9, examples=5000), columns, batch=2), 1.0)
    members = {"a": {0, 1, 5}, "b": {0, 3}, "c": {3}}
    drawn = Counter()
    for step, node in enumerate(groups_of(plan, 1)):
        rows = set(plan.step_rows(50 + step).tolist())
        assert rows <= members[node]
        assert len(rows) == min(2, len(members[node]))
        drawn[node] += 1
    assert set(drawn) == {"a", "b", "c"}
    # Everything means everything: rows without a node are in random batches.
    assert set(plan.rows(0, 100).tolist()) == set(range(6))
    # In proportion to examples: 3, 2 and 1 of 6.
    total = sum(drawn.values())
    for node, share in (("a", 3 / 6), ("b", 2 / 6), ("c", 1 / 6)):
        assert drawn[node] / total == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / total))


def test_nodes_smaller_than_a_batch_are_shown_as_evenly_as_can_be():
    plan = decide(
        start(
            NodeSampling(check_every=3, decay=1e-9, floor=1e-9, epochs=9), {"nodes": ["a"] * 3 + ["b"] * 4}, batch=7
        ),
        1,
    )
    sizes = {"a": 3, "b": 4}
    for step, node in enumerate(groups_of(plan, 1)):
        counts = Counter(plan.step_rows(3 + step).tolist())
        assert set(counts) == {row for row in range(7) if (row < 3) == (node == "a")}
        assert max(counts.values()) - min(counts.values()) <= 1
        assert sum(counts.values()) == 7
        assert len(counts) == sizes[node]


def test_large_and_small_nodes_draw_without_replacement():
    columns = {"nodes": ["large"] * 3000 + ["middle"] * 400 + ["small"] * 40}
    plan = decide(start(NodeSampling(check_every=10, decay=1e-9, floor=1e-9, epochs=9), columns, batch=32), 1.0)
    seen = set()
    for step in range(plan.num_steps):
        rows = plan.step_rows(step)
        assert len(set(rows.tolist())) == 32
        seen.update(rows.tolist())
    assert len(seen) > 2900


def test_draws_within_a_node_are_even():
    plan = decide(
        start(NodeSampling(check_every=1, decay=1e-9, floor=1e-9, examples=40_004), {"nodes": ["a"] * 20 + ["b"] * 5}),
        1.0,
    )
    counts = np.bincount(plan.rows(4, plan.num_samples), minlength=25)
    # Both nodes are as likely as they are large, so each row is as likely as any other: chi-square with 24 degrees.
    expected = counts.sum() / 25
    assert 0 < ((counts - expected) ** 2 / expected).sum() < 90


IMAGES = {"nodes": ["dog"] * 30 + ["cat"] * 30, "image_id": [f"i{row // 3}" for row in range(60)]}


@pytest.mark.parametrize("batch", [2, 5, 10])
def test_no_image_comes_twice_in_a_batch(batch):
    rule = NodeSampling(check_every=5, decay=0.5, floor=0.01, image_column="image_id", examples=2000)
    plan = start(rule, IMAGES, batch=batch)
    while plan.undecided:
        plan = decide(plan, 1.0)
    images, seen = np.array(IMAGES["image_id"]), Counter()
    for step in range(plan.num_steps):
        rows = plan.step_rows(step)
        assert len(set(images[rows])) == len(rows) == batch
        seen.update(rows.tolist())
    assert set(seen) == set(range(60))
    without = start(NodeSampling(check_every=2000, examples=2000), IMAGES, batch=batch)
    assert any(len(set(images[without.step_rows(step)])) < batch for step in range(without.num_steps))


def test_where_a_node_has_fewer_images_than_the_batch_each_comes_before_any_repeats():
    rule = NodeSampling(check_every=2, decay=1e-9, floor=1e-9, image_column="image_id", epochs=20)
    plan = decide(start(rule, IMAGES, batch=14), 1.0)
    images = np.array(IMAGES["image_id"])
    for step in range(2, plan.num_steps):
        rows = plan.step_rows(step)
        assert len(rows) == 14
        assert len(set(images[rows])) == 10
        assert len(set(images[rows[:10]])) == 10
        assert len({row < 30 for row in rows.tolist()}) == 1


def test_rows_without_a_named_image_are_images_of_their_own():
    columns = {"nodes": ["a"] * 8, "image_id": [None, None, None, None, "x", "x", "x", "x"]}
    rule = NodeSampling(check_every=1, image_column="image_id", epochs=30, decay=0.5)
    plan = decide(start(rule, columns, batch=5), 1.0)
    for step in range(plan.known_steps):
        rows = plan.step_rows(step)
        assert sorted(row for row in rows.tolist() if row < 4) == [0, 1, 2, 3]
        assert sum(row >= 4 for row in rows.tolist()) == 1


def test_small_nodes_can_be_left_out():
    columns = {"nodes": ["a"] * 5 + ["b"] * 4 + ["c"] * 6}
    rule = NodeSampling(check_every=2, min_examples=5, decay=1e-9, floor=1e-9, epochs=40)
    plan = decide(start(rule, columns, batch=3), 1.0)
    assert set(groups_of(plan, 1)) == {"a", "c"}
    assert plan.stages[1].rule.endswith("2 nodes")
    with pytest.raises(ValueError, match=r"None of the 3 nodes of `nodes` has 7 examples \(the largest has 6\)"):
        start(replace(rule, min_examples=7), columns)


def test_within_a_filter_nodes_hold_only_what_is_kept():
    columns = {"nodes": ["a", "b"] * 20}
    rule = Filter(0.5, NodeSampling(check_every=3, decay=1e-9, floor=1e-9, epochs=6))
    scores = np.arange(40.0)[::-1]
    plan = decide(start(rule, columns, scores=scores), 1.0)
    rows = plan.rows(0, plan.num_samples)
    assert set(rows.tolist()) == set(range(20, 40))
    assert all(len(set((plan.step_rows(step) % 2).tolist())) == 1 for step in range(3, plan.num_steps))


def test_whole_number_nodes_and_another_column():
    rule = NodeSampling(node_column="cluster", check_every=1, metric="eval_loss", threshold=0.0, epochs=2)
    plan = decide(start(rule, {"cluster": [3, 3, 12, 12]}, batch=2), 0.5, metric="eval_loss")
    assert plan.stages[1].groups.names == ("12", "3")
    assert plan.log[0]["decision"] == "refresh"


def test_the_metric_has_to_be_there():
    with pytest.raises(ValueError, match="NodeSampling decides on 'eval_retrieval_accuracy', and evaluate"):
        decide(start(NodeSampling(check_every=1, epochs=1), BALLS), 1.0, metric="eval_loss")


def test_a_run_shorter_than_one_round_has_no_decision():
    plan = start(NodeSampling(epochs=1), BALLS)
    assert not plan.undecided
    assert plan.num_steps == 100
    assert start(NodeSampling(floor=1.0, check_every=2, epochs=1), BALLS).known_steps == 100


def test_json_and_budgets():
    rule = NodeSampling(node_column="objects", at_floor="clamp", image_column="image_id", epochs=2)
    assert curriculum_from(json.dumps(rule.to_dict())) == rule
    assert rule.reads == {"objects": "groups", "image_id": "ids"}
    assert start(NodeSampling(), BALLS, max_steps=77).max_steps == 77
    assert start(NodeSampling(), BALLS, epochs=2).max_steps == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at_floor": "go"}, "at_floor is one of 'stop', 'clamp'"),
        ({"check_every": 0}, "check_every is at least 1"),
        ({"min_examples": 0}, "min_examples is at least 1"),
        ({"decay": 1}, "decay is more than 0 and less than 1"),
        ({"decay": 0}, "decay is more than 0 and less than 1"),
        ({"floor": 0}, "floor is more than 0 and at most 1"),
        ({"floor": 1.5}, "floor is more than 0 and at most 1"),
        ({"partial_batches": "keep"}, r"NodeSampling\(partial_batches='keep'\) is not possible"),
        ({"examples": 0}, "would train on nothing"),
    ],
)
def test_node_sampling_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        NodeSampling(**arguments)


def test_the_last_bits_of_a_power_decide_nothing():
    assert 0.7**2 < 0.49
    assert [NodeSampling(decay=0.7, floor=0.49).may_refresh(k) for k in range(3)] == [True, True, False]
    assert 0.9**3 > 0.729
    assert [NodeSampling(floor=0.729, at_floor="clamp").may_refresh(k) for k in (2, 3)] == [True, False]


def test_a_batch_of_different_images_holds_the_first_draws_of_each():
    images, size, key = np.arange(24) // 4, 3, 7
    groups = Groups(None, np.array([0, 1]), np.array([0], np.int32))
    stage = NodeStage(0, "random", "all", ((0, 24),), 600, groups=groups, batch_size=size, images=images)
    found = stage.positions(0, 600, key).reshape(-1, size)
    counts = Counter()
    for step, drawn in enumerate(draw_each(np.full(200, 24), 2 * size, hash64(np.arange(200), mix64(key, 0, 1)))):
        first = [place for n, place in enumerate(drawn) if images[place] not in images[drawn[:n]]]
        counts[len(first)] += 1
        if len(first) >= size:
            assert found[step].tolist() == first[:size]
    assert min(counts[size], counts[size + 1]) > 0


def test_random_batches_need_no_group():
    groups = Groups(None, np.array([0]), np.array([], np.int32))
    stage = NodeStage(0, "random", "all", ((0, 6),), 12, groups=groups, batch_size=6)
    assert [sorted(batch) for batch in stage.positions(0, 12, 7).reshape(2, 6).tolist()] == [list(range(6))] * 2


def test_a_share_of_random_batches_is_exact_to_the_last_bit():
    groups, key, steps = Groups(None, np.array([0, 6]), np.arange(6, dtype=np.int32)), 7, np.arange(20)
    drawn = (hash64(steps, mix64(key, 0)) >> np.uint64(34)).tolist()  # of 2^30
    for step, value in enumerate(drawn):
        for share, node in ((value, 0), (value + 1, -1)):
            stage = NodeStage(
                0, "mixed", "all", ((0, 6),), 120, groups=groups, batch_size=6, random_share=share / 2**30
            )
            assert stage.nodes(steps, key)[step] == node


def test_the_log_says_what_was_decided_and_where_the_mass_is():
    nodes = ["person"] * 131 + ["dog"] * 42 + [f"node {number % 242}" for number in range(827)]
    rule = NodeSampling("nodes", metric="heldout_image_r1", examples=256 * 500_000)
    plan = start(rule, {"nodes": nodes}, batch=256)
    said = []
    for value in (0.92, 0.8999, np.float32(0.9)):
        plan = decide(plan, float(value), metric="eval_heldout_image_r1")
        said.append(rule.describe_decision(plan.log[-1]))
    begin, end = "held-out image R@1", "… (244 nodes)"
    assert said == [
        f"step 5,000: {begin} 0.92 ≥ 0.90 → refresh 1: entity 0.900, person 0.0131, dog 0.0042, {end}",
        f"step 10,000: {begin} 0.8999 < 0.90 → stay: entity 0.900, person 0.0131, dog 0.0042, {end}",
        f"step 15,000: {begin} 0.90 ≥ 0.90 → refresh 2: entity 0.810, person 0.0249, dog 0.00798, {end}",
    ]
    few = decide(start(NodeSampling(check_every=2, epochs=1), BALLS), 1.0)
    assert few.curriculum.describe_decision(few.log[0]) == (
        "step 2: retrieval accuracy 1.00 ≥ 0.90 → refresh 1: entity 0.900, dog 0.075, ball 0.025"
    )


def test_nodes_with_fewer_images_than_a_batch_are_counted():
    columns = {"nodes": ["a"] * 6 + ["b"] * 6, "image_id": ["x"] * 3 + ["y"] * 3 + list("uvwxyz")}
    rule = NodeSampling(check_every=2, epochs=1, image_column="image_id")
    (note,) = start(rule, columns, batch=4).notes
    assert note.startswith(
        "1 of 2 nodes have fewer images than the 4 of a batch (the fewest, 'a', 2): some come twice"
    )
    assert start(rule, columns, batch=2).notes == ()
    assert start(replace(rule, min_examples=6), columns, batch=4).notes != ()
    (note,) = start(replace(rule, image_column=None), columns, batch=7).notes
    assert note.startswith("2 of 2 nodes have fewer examples than the 7 of a batch (the fewest, 'a', 6)")


def test_a_plan_takes_at_most_eight_bytes_a_row():
    """The members of nodes and the image of each row; the order of the file takes nothing."""
    size = 50_000
    columns = {"nodes": [f"n{row % 50}" for row in range(size)], "image_id": [f"i{row // 3}" for row in range(size)]}
    rule = NodeSampling(check_every=9, image_column="image_id", epochs=2)
    plan = decide(start(rule, columns, batch=64), 1.0, 1.0)
    assert isinstance(plan.ranking.order, FileOrder)
    assert plan.ranking is plan.order
    held = {id(array): array.nbytes for array in _arrays(plan)}
    assert sum(held.values()) <= 8 * size + 1000
    # Not of everything in the file: a list is needed.
    scored = start(Filter(0.5, rule), columns, scores=np.arange(size))
    assert isinstance(scored.order.order, np.ndarray)


def _arrays(value, seen=None):
    """The arrays that a plan refers to, views by what they are views of."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (str, int, float, type(None))):
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield value if value.base is None else value.base
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item, seen)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays(item, seen)
    else:
        yield from _arrays(getattr(value, "__dict__", {}), seen)


def test_the_files_order_is_like_a_list_of_all_rows():
    order, plain = FileOrder(7), np.arange(7, dtype=np.int32)
    assert len(order) == 7
    assert order.shape == (7,)
    assert order.tolist() == plain.tolist()
    for positions in (slice(2, 5), slice(None, None, -2), slice(-3, None), np.array([6, 0, 3]), 4, plain > 3, [1, 2]):
        assert (np.asarray(order[positions]) == plain[positions]).all()
    assert np.asarray(order).dtype == np.int32
    marks = np.zeros(7, bool)
    marks[order] = True
    assert marks.all()
    assert (plain[order] == plain).all()
