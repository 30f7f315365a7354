"""Batches by image, by length and by node, under any curriculum."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    ByLength,
    ByNode,
    Filter,
    Growing,
    NodeSampling,
    Phases,
    SelfPaced,
    Staged,
    Weighted,
    control_of,
    curriculum_from,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.groups import Groups, read_columns
from hf_curriculum.planning.ranking import Ranking


def plan_of(rule, columns, scores=None, batch=6, **kwargs):
    data = Dataset.from_dict(columns)
    reads = rule.reads_in_all
    scores = np.arange(len(data)) if scores is None else np.asarray(scores)
    ranking = replace(rank_scores(scores, unscored=rule.unscored), columns=read_columns(data, reads))
    return make_plan(rule, ranking, global_batch_size=batch, **kwargs)


IMAGES = {"image_id": ["b", "a", "b", "c", "a", "b", "d", "e", "e", "f", "f", "f"]}


def steps_of(plan):
    return [plan.step_rows(step).tolist() for step in range(plan.known_steps)]


def test_an_image_brings_its_captions_together():
    plan = plan_of(IID(epochs=1, batches=ByImage()), IMAGES)
    assert (plan.layout.unit, plan.num_steps) == (3, 3)
    drawn = plan.rows(0, plan.num_samples).reshape(-1, 3)
    names = np.array(IMAGES["image_id"])
    assert all(len(set(names[rows])) == 1 for rows in drawn)
    assert sorted(names[rows[0]] for rows in drawn) == ["a", "b", "c", "d", "e", "f"]
    for rows in drawn:
        own = np.flatnonzero(names == names[rows[0]])
        assert set(own) == set(rows)  # three sample positions are enough for every caption, and the others are repeats
        ring = [*own, *own]
        start = ring.index(rows[0])
        assert rows.tolist() == [ring[(start + j) % len(own)] for j in range(3)]


def test_images_are_ranked_by_the_mean_of_their_captions():
    scores = [5, 1, 7, 9, 3, 0, np.nan, 8, 8, 2, 2, np.nan]
    plan = plan_of(Phases(2, 1, batches=ByImage(1)), IMAGES, scores, batch=2)
    # b 4, a 2, c 9, d unscored, e 8, f 2
    names = np.array(IMAGES["image_id"])
    first = plan.stage_starts[1]
    assert sorted(names[plan.rows(0, first)]) == ["a", "b", "f"]
    assert sorted(names[plan.rows(first, first + 6)]) == ["a", "b", "c", "d", "e", "f"]
    assert [stage.pool_size for stage in plan.stages] == [3, 6]


def test_fewer_captions_than_an_image_has_are_consecutive_ones_and_differ_from_pass_to_pass():
    plan = plan_of(IID(epochs=40, batches=ByImage(2)), IMAGES, batch=4)
    names = np.array(IMAGES["image_id"])
    pairs = Counter(
        tuple(rows) for rows in plan.rows(0, plan.num_samples).reshape(-1, 2).tolist() if names[rows[0]] == "b"
    )
    assert set(pairs) == {(0, 2), (2, 5), (5, 0)}


def test_sample_positions_draws_and_seeks_of_images():
    plan = plan_of(Phases(2, 2, batches=ByImage(5)), {"image_id": [str(i // 5) for i in range(100)]}, batch=15)
    whole = plan.rows(0, plan.num_samples)
    assert plan.num_draws == plan.num_samples == 15 * plan.num_steps
    assert plan.num_draws - plan.num_filled == 2 * (50 + 100)
    assert plan.cost_ratio == pytest.approx(0.75)
    for start in range(0, plan.num_samples, 7):
        assert plan.rows(start, plan.num_samples).tolist() == whole[start:].tolist()
    assert [plan.draws_after(step) for step in range(plan.num_steps + 1)] == list(range(0, plan.num_samples + 1, 15))
    assert "images of 5 captions" in plan.describe()
    assert sorted(plan.stage_ends) == [7, 20]


def test_unscored_rows_that_are_dropped_take_no_part():
    scores = [5, 1, np.nan, 9, 3, 0, np.nan, 8, 8, 2, 2, 2]
    plan = plan_of(Phases(2, 1, batches=ByImage(), unscored="drop"), IMAGES, scores, batch=3)
    assert set(plan.rows(0, plan.num_samples).tolist()) == set(range(12)) - {2, 6}
    assert len(plan.layout.groups) == 5  # the only caption of an image is dropped


@pytest.mark.filterwarnings("error")
def test_an_image_without_any_loss_has_none():
    plan = plan_of(IID(epochs=1, batches=ByImage(1)), {"image_id": ["a", "a", "b", "b"]}, batch=1)
    losses = np.array([1, np.nan, np.nan, np.nan], np.float32)
    np.testing.assert_array_equal(plan.layout.losses(losses), [1, np.nan])


def test_decisions_on_losses_with_images():
    rule = SelfPaced(initial=0.5, warmup_epochs=0, final_epochs=0, epochs=1, batches=ByImage(1))
    plan = plan_of(rule, {"image_id": ["a", "a", "b", "b", "c", "c", "d", "d"]}, batch=2)
    losses = np.array([9, 9, 1, 3, 4, 4, 0, 1], np.float32)
    plan = plan.decided(Observed(0, {}, losses))
    assert plan.log[0]["pool"] == 2
    assert set(plan.step_rows(0) // 2) == {1, 3}


def test_batches_of_like_length_hold_the_same_examples():
    rng = np.random.default_rng(0)
    columns = {"caption_length": rng.integers(1, 60, 1000).tolist()}
    rule = Phases(3, 2, batches=ByLength(window=8))
    plan, plain = plan_of(rule, columns, batch=16), plan_of(replace(rule, batches=None), columns, batch=16)
    rows, other = plan.rows(0, plan.num_samples), plain.rows(0, plan.num_samples)
    assert len(rows) == len(other)
    for first, stop in zip(plan.stage_starts, plan.stage_starts[1:], strict=False):
        assert Counter(rows[first:stop].tolist()) == Counter(other[first:stop].tolist())
    lengths = np.array(columns["caption_length"])
    spread = np.ptp(lengths[rows].reshape(-1, 16), axis=1).mean()
    assert spread < 0.35 * np.ptp(lengths[other].reshape(-1, 16), axis=1).mean()
    # A step's place says nothing about its length.
    means = lengths[rows].reshape(-1, 16).mean(1)
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2
    for start in range(0, plan.num_samples, 37):
        stop = min(start + 300, plan.num_samples)
        assert plan.rows(start, stop).tolist() == rows[start:stop].tolist()


def test_batches_of_like_length_need_lengths():
    with pytest.raises(ValueError, match="`caption_length` has none for 1 of 2"):
        plan_of(IID(epochs=1, batches=ByLength()), {"caption_length": [3.0, None]}, batch=1)


NODES = {"nodes": [["dog"] if i % 2 else ["cat", "ball"] if i % 4 else [] for i in range(60)]}


def members(name):
    return {row for row, names in enumerate(NODES["nodes"]) if name in names}


@pytest.mark.parametrize(
    "rule", [Phases(3, 6), Growing(initial=0.2, epochs=12), Filter(0.5, IID(epochs=10)), BabySteps(3, epochs=9)]
)
def test_a_batch_comes_from_one_group_of_the_pool(rule):
    plan = plan_of(replace(rule, batches=ByNode()), NODES, batch=5)
    while plan.undecided:
        plan = plan.decided(Observed(plan.known_steps, {"eval_loss": 1.0}))
    drawn = Counter()
    for step, rows in enumerate(steps_of(plan)):
        stage = next(s for s, stop in zip(plan.stages, plan.stage_starts[1:], strict=False) if 5 * step < stop)
        pool = stage.pool_size if stage.pool_at is None else stage.pool_at(step)
        assert all(row < pool for row in rows)
        inside = [name for name in ("dog", "cat") if set(rows) <= members(name)]
        assert len(inside) == 1
        size = len([row for row in members(inside[0]) if row < pool])
        assert len(set(rows)) == min(5, size)
        drawn[inside[0]] += 1
    assert drawn["dog"]
    assert drawn["cat"]


def test_no_batch_is_drawn_from_groups_of_two_stages():
    columns = {"nodes": [["a", "b", "c"][row % 3] for row in range(18)]}
    rule = Phases(2, (1, 3), batches=ByNode())
    plan = plan_of(rule, columns, batch=4)
    # 9 draws make three batches, 54 make thirteen and a half.
    assert [stage.num_draws for stage in plan.stages] == [12, 56]
    assert (plan.num_steps, plan.num_filled) == (17, 2)
    assert [len({row % 3 for row in rows}) for rows in steps_of(plan)] == [1] * 17
    assert plan_of(control_of(plan, "iid"), columns, batch=4).num_steps == 17


def test_a_group_is_as_likely_as_it_has_examples_in_the_pool():
    columns = {"nodes": ["rare"] * 100 + ["common"] * 300}
    plan = plan_of(IID(examples=20_000, batches=ByNode()), columns, batch=10)
    common = np.mean([rows[0] >= 100 for rows in steps_of(plan)])
    assert common == pytest.approx(0.75, abs=5 * np.sqrt(0.75 * 0.25 / 2000))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Phases(3, pools="exclusive", batches=ByNode()), "ByNode needs a pool of the easiest examples"),
        (Weighted(epochs=1, batches=ByNode()), "ByNode cannot be combined with WeightedStage"),
        (NodeSampling(epochs=1, batches=ByImage(image_column="nodes")), "its draws would be images"),
        (NodeSampling(epochs=1, batches=ByImage(2, image_column="nodes")), "its draws would be images"),
    ],
)
def test_what_cannot_be_combined(rule, message):
    columns = {"nodes": ["a"] * 30 + ["b"] * 30}
    with pytest.raises(ValueError, match=message):
        plan_of(rule, columns, np.arange(1, 61), batch=30)


def test_messages_about_columns_and_sizes():
    with pytest.raises(ValueError, match="No example in the pool of phase 1"):
        plan_of(Phases(2, batches=ByNode()), {"nodes": [None, None, None, "a"]}, batch=2)
    with pytest.raises(ValueError, match="belongs to a group"):  # the first example behind the pool does
        plan_of(Phases(2, batches=ByNode()), {"nodes": [None, None, "a", None]}, batch=2)
    assert plan_of(Phases(2, batches=ByNode()), {"nodes": [None, "a", None, None]}, batch=2).step_rows(0).tolist() == [
        1,
        1,
    ]
    with pytest.raises(ValueError, match="A step of 6 examples cannot be made of images with 4 captions each"):
        plan_of(IID(epochs=1, batches=ByImage(4)), IMAGES)
    with pytest.raises(ValueError, match="1 of 2 rows name no image"):
        plan_of(IID(epochs=1, batches=ByImage()), {"image_id": ["a", None]}, batch=1)


@pytest.mark.parametrize("made", [ByImage(5), ByLength("length", 10), ByNode("objects"), ByImage()])
def test_round_trip(made):
    rule = Phases(3, batches=made)
    assert curriculum_from(rule.to_dict()) == rule
    assert Phases(3, batches=made.to_dict()) == rule


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("by_colour", r"There is no kind of batches 'by_colour'\. The types are \['by_image', "),
        (
            {"type": "by_image", "captions": 5},
            r"'by_image' has no field 'captions'; its fields are \['captions_per_image', 'image_column'\]",
        ),
        ({"window": 3}, r"There is no kind of batches None in \{'window': 3\}"),
    ],
)
def test_batches_that_cannot_be_read(value, message):
    with pytest.raises(ValueError, match=message):
        IID(batches=value)


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="window is at least 2"):
        ByLength(window=1)
    with pytest.raises(ValueError, match="captions_per_image is at least 1"):
        ByImage(0)
    with pytest.raises(ValueError, match=r"ByImage\(partial_batches='keep'\) is not possible"):
        IID(batches=ByImage(), partial_batches="keep")
    with pytest.raises(ValueError, match="Give them to Filter"):
        Filter(0.5, IID(batches=ByImage()))


def test_names_are_kept_where_the_rule_needs_them_and_its_batches_do_not():
    rule = Staged({"a": IID(epochs=1), "b": IID(epochs=1)}, column="image_id", batches=ByNode("image_id"))
    assert rule.reads_in_all == {"image_id": "groups"}
    assert IID(batches=ByImage()).reads_in_all == {"image_id": "ids"}
    assert NodeSampling(image_column="image_id").reads_in_all == {"nodes": "groups", "image_id": "ids"}


def test_names_of_images_do_not_matter():
    """The same rows by image, whatever the images are called."""
    rule = IID(epochs=2, batches=ByImage(2))
    other = {"image_id": [{"a": 9, "b": 0, "c": 5, "d": 2, "e": 7, "f": 1}[name] for name in IMAGES["image_id"]]}
    plans = [plan_of(rule, columns) for columns in (IMAGES, other)]
    assert steps_of(plans[0]) == steps_of(plans[1])
    assert plans[0].fingerprint() == plans[1].fingerprint()


@pytest.mark.parametrize("change", [0.5, (1 << 16) - 10, 1 << 17, -40])
def test_lengths_of_any_kind_are_sorted_like_counts(change):
    lengths = np.random.default_rng(0).integers(0, 30, 500)
    rule = IID(epochs=2, batches=ByLength(window=7))
    counts = plan_of(rule, {"caption_length": lengths.tolist()})
    others = plan_of(rule, {"caption_length": (lengths + change).tolist()})
    assert counts.layout.lengths.dtype == np.uint16
    assert others.layout.lengths.dtype == np.float32
    assert steps_of(counts) == steps_of(others)


@pytest.mark.parametrize("change", [0, 0.5])
def test_rows_of_one_length_stay_in_the_order_in_which_they_are_drawn(change):
    lengths = np.arange(600) % 2 + change
    plan = plan_of(IID(epochs=1, batches=ByLength(window=100)), {"caption_length": lengths.tolist()})
    plain = plan_of(IID(epochs=1), {"caption_length": lengths.tolist()}).rows(0, 600)
    alike = [plain[lengths[plain] == length] for length in (change, change + 1)]
    wanted = [batch.tolist() for rows in alike for batch in rows.reshape(-1, 6)]
    assert sorted(rows.tolist() for rows in plan.rows(0, 600).reshape(-1, 6)) == sorted(wanted)


@pytest.mark.filterwarnings("error")
def test_a_last_window_of_one_row_takes_lengths_of_any_kind():
    plan = plan_of(IID(epochs=1, batches=ByLength(window=2)), {"caption_length": [-1.5, 0.5, 2.5, 7.0, -9.0]}, batch=1)
    assert sorted(row for step in steps_of(plan) for row in step) == [0, 1, 2, 3, 4]


def test_ends_and_fillings_count_examples_where_images_are_drawn():
    plan = plan_of(IID(epochs=2.5, batches=ByImage(2)), {"image_id": [row // 2 for row in range(20)]}, batch=8)
    # 25 draws of images are 50 examples; the seventh step lacks 6. Passes end after 20, 40 and 56 examples.
    assert (plan.num_draws, plan.num_filled, plan.num_steps) == (56, 6, 7)
    assert plan.pass_ends == {3, 5, 7}
    assert [stage["draws"] for stage in plan.to_dict()["stages"]] == [56]
    assert "50 examples drawn + 6 to fill the last batch" in plan.describe()


def test_windows_shuffle_their_batches_by_the_seed():
    def first_lengths(seed):
        ranking = replace(Ranking.unordered(64), columns={"caption_length": np.arange(64, dtype=np.float32)})
        rule = IID(epochs=1, batches=ByLength(window=16))
        plan = make_plan(rule, ranking, global_batch_size=4, seed=seed)
        return [int(plan.step_rows(step).min()) // 4 for step in range(16)]  # all rows in one window, sorted

    orders = [first_lengths(seed) for seed in range(5)]
    assert all(sorted(order) == list(range(16)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


def test_images_named_in_any_order_are_drawn_alike():
    rows = np.arange(12, dtype=np.int32).reshape(6, 2)

    def plan(images):
        groups = Groups(None, np.arange(0, 13, 2), rows[images].ravel())
        ranking = replace(Ranking.unordered(12), columns={"image_id": groups})
        return make_plan(IID(epochs=2, batches=ByImage(2)), ranking, global_batch_size=4)

    first, other = plan([0, 1, 2, 3, 4, 5]), plan([3, 0, 5, 1, 2, 4])
    assert first.rows(0, 24).tolist() == other.rows(0, 24).tolist()


@pytest.mark.parametrize(
    "rule",
    ["node_sampling", "adaptive_guidance", {"type": "filter", "by": "caption_length", "by_easy": "low"},
     {"type": "staged", "parts": {"a": "iid"}}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("captions", [1, None])
def test_images_of_one_caption_are_no_rows_either(rule, captions):
    data = Dataset.from_dict(
        {name: [1.0] * 6 for name in ("score", "hard", "caption_length")}
        | {name: list("abcdef") for name in ("nodes", "image_id")}
        | {"source": ["a"] * 6}
    )
    given = {"type": rule} if isinstance(rule, str) else rule
    made = curriculum_from({**given, "easy": "low", "batches": {"type": "by_image", "captions_per_image": captions}})
    with pytest.raises(ValueError, match=r"reads .* of each row, and its draws would be images: the two cannot be"):
        make_plan(made, data, score_column="score", global_batch_size=4)


@pytest.mark.parametrize("then", ["adaptive_guidance", "info_batch"])
def test_pools_that_begin_elsewhere_are_refused_batches_by_node_at_once(then):
    for rule in ({"type": then}, {"type": "filter", "then": {"type": then}}):
        with pytest.raises(ValueError, match=r"\(batches=ByNode\(\)\) is not possible: groups are drawn by chance"):
            curriculum_from({**rule, "batches": "by_node"})
