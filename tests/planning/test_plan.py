"""Plans: the papers' numbers, the stream's purity, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    ByLength,
    Curriculum,
    Filter,
    Growing,
    Phases,
    Stage,
    curriculum_from,
    make_plan,
    rank_scores,
)
from hf_curriculum.planning.buckets import cut_buckets
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.rng import PAD_INDEX


def babylm_scores() -> np.ndarray:
    """Scores with the published numbers of pairs of at most 2, of 3, of 4 to 5 (written as 5) and of more nouns."""
    counts = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    return np.repeat(np.array(list(counts), np.float32), list(counts.values()))


def test_babylm_has_the_published_pools_and_steps():
    plan = make_plan(Phases(4, 2, "value"), babylm_scores(), global_batch_size=32)
    assert [stage.pool_size for stage in plan.stages] == [841_907, 1_510_443, 2_283_866, 2_891_030]
    assert [stage.rule for stage in plan.stages] == ["score ≤ 2", "score ≤ 3", "score ≤ 5", "all"]
    assert plan.num_draws - plan.num_filled == 15_054_492
    assert plan.num_filled == 4
    assert plan.num_steps == 470_453
    assert round(plan.cost_ratio, 3) == 0.651
    assert plan.control_draws == 23_128_240
    text = plan.describe()
    for part in (
        "841,907",
        "668,536",
        "15,054,492 examples drawn + 4 to fill the last batch",
        "470,453 steps",
        "0.651",
    ):
        assert part in text


@pytest.mark.parametrize(("options", "said"), [({}, ""), ({"batches": ByImage(2)}, ", drawn as images of 2 captions")])
def test_the_headline_says_what_is_drawn(options, said):
    data = Dataset.from_dict({"s": np.arange(8.0), "image_id": [f"i{row // 2}" for row in range(8)]})
    text = make_plan(Phases(2, easy="low", **options), data, score_column="s", global_batch_size=4).describe()
    assert text.splitlines()[0].endswith(f" by s (low = easy): 8 examples{said}; 4 per step, seed 0")


def test_partial_batches_of_each_pass_are_those_of_a_loader_per_epoch():
    plan = make_plan(Phases(4, 2, "value", partial_batches="keep"), babylm_scores(), global_batch_size=32)
    assert plan.num_steps == 2 * (26_310 + 47_202 + 71_371 + 90_345)
    assert plan.num_filled == 0
    assert len(plan.step_rows(26_309)) == 841_907 % 32
    assert len(plan.step_rows(26_310)) == 32


@pytest.mark.parametrize(
    ("size", "batches"), [(416_642, [26_040, 52_081, 78_121, 104_161]), (907_339, [56_709, 113_418, 170_126, 226_835])]
)
def test_wsod_has_the_published_batches(size, batches):
    plan = make_plan(Phases(4, 1, "rank", partial_batches="keep", easy="low"), np.arange(size), global_batch_size=4)
    assert [stage.num_samples // 4 for stage in plan.stages] == batches
    assert plan.num_draws == sum(size * k // 4 for k in range(1, 5))


def test_every_pass_shows_every_example_of_its_pool_once():
    plan = make_plan(Phases(3, 2, easy="low"), np.arange(10), global_batch_size=4)
    start = 0
    for stage in plan.stages:
        for _ in range(2):
            rows = plan.rows(start, start + stage.pool_size)
            assert sorted(rows) == list(range(stage.pool_size))
            start += stage.pool_size
    assert plan.num_samples - start == plan.num_filled < 4


def test_passes_differ_in_order_and_seeds_too():
    plan = make_plan(IID(epochs=3), np.zeros(100), global_batch_size=10)
    first, second = plan.rows(0, 100).tolist(), plan.rows(100, 200).tolist()
    assert first != second
    other = make_plan(IID(epochs=3), np.zeros(100), global_batch_size=10, seed=1)
    assert other.rows(0, 100).tolist() != first


CURRICULA_TO_TRY = st.one_of(
    st.builds(
        Phases,
        num_phases=st.integers(1, 4),
        epochs_per_phase=st.sampled_from([1, 2, 0.5, 1.3]),
        cut=st.sampled_from(["rank", "value"]),
        pools=st.just("cumulative"),
        partial_batches=st.sampled_from(["stream", "keep"]),
    ),
    st.builds(IID, epochs=st.sampled_from([1, 2.5]), partial_batches=st.sampled_from(["stream", "keep"])),
)


@given(
    rule=CURRICULA_TO_TRY,
    scores=st.lists(st.integers(0, 6), min_size=4, max_size=60).filter(lambda v: len(set(v)) > 1),
    batch=st.integers(1, 9),
    seed=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_piece_of_the_stream_is_the_stream(rule, scores, batch, seed, data):
    plan = make_plan(rule, np.array(scores, float), global_batch_size=batch, seed=seed)
    whole = plan.rows(0, plan.num_samples)
    assert len(whole) == plan.num_samples == plan.num_steps * batch
    assert (whole != PAD_INDEX).sum() == plan.num_draws
    for step in range(plan.num_steps + 1):
        assert plan.draws_after(step) == (whole[: step * batch] != PAD_INDEX).sum()
    start = data.draw(st.integers(0, plan.num_samples))
    stop = data.draw(st.integers(start, plan.num_samples))
    assert plan.rows(start, stop).tolist() == whole[start:stop].tolist()
    assert np.concatenate([*plan.chunks(start), np.empty(0, int)]).tolist() == whole[start:].tolist()
    for number, stage in enumerate(plan.stages):
        drawn = whole[plan.stage_starts[number] : plan.stage_starts[number + 1]]
        pool = plan.ranking.order[stage.slices[0][0] : stage.slices[0][1]]
        assert set(drawn.tolist()) <= {*pool.tolist(), PAD_INDEX}
        counts = Counter(drawn[drawn != PAD_INDEX].tolist())
        assert max(counts.values()) - min(counts.get(row, 0) for row in pool.tolist()) <= 1


def test_holes_leave_something_for_every_share_of_a_batch():
    plan = make_plan(IID(epochs=1, partial_batches="keep"), np.zeros(13), global_batch_size=8)
    last = plan.rows(8, 16)
    assert (last != PAD_INDEX).sum() == 5
    assert all((part != PAD_INDEX).any() for part in np.split(last, 4))


def test_exclusive_phases_do_not_overlap():
    plan = make_plan(Phases(4, 1, "rank", pools="exclusive", easy="low"), np.arange(10), global_batch_size=1)
    assert [stage.slices for stage in plan.stages] == [((0, 2),), ((2, 5),), ((5, 7),), ((7, 10),)]
    assert plan.num_draws == 10
    assert plan.stages[1].rule == "easiest 25 % to 50 %"


def test_exclusive_phases_by_value_say_what_they_hold():
    plan = make_plan(
        Phases(2, 1, "value", pools="exclusive", thresholds=(2,), easy="low"), np.array([1, 2, 3]), global_batch_size=1
    )
    assert [stage.rule for stage in plan.stages] == ["score ≤ 2", "not score ≤ 2"]


def test_steps_per_phase():
    plan = make_plan(Phases(2, steps_per_phase=(3, 5), easy="low"), np.arange(8), global_batch_size=4)
    assert plan.num_steps == 8
    assert plan.nominal_epochs == 4
    assert [stage.num_draws for stage in plan.stages] == [12, 20]


def test_an_empty_bucket_is_said_and_an_empty_pool_refused(caplog):
    scores = np.array([1, 2, 2, 2, 2, 2, 2, 3])
    plan = make_plan(Phases(4, 1, "value"), scores, global_batch_size=1)
    assert plan.new_examples() == [7, 0, 0, 1]
    assert "Bucket 2, 3 of 4 by value holds no example" in caplog.text
    with pytest.raises(ValueError, match="Phase 2 has no rows"):
        make_plan(Phases(4, 1, "value", pools="exclusive"), scores, global_batch_size=1)


def test_lengths_that_contradict_the_curriculum_are_refused():
    scores = np.arange(8)
    assert make_plan(Phases(2, 1), scores, global_batch_size=4, epochs=2, max_steps=3).num_steps == 3
    for rule, steps in ((Phases(2, 1), 3), (IID(epochs=2), 4)):
        with pytest.raises(ValueError, match=rf"max_steps=5 .* has {steps} steps of 4: .*fit_to\(steps=5\)`"):
            make_plan(rule, scores, global_batch_size=4, max_steps=5)
    with pytest.raises(ValueError, match=r"num_train_epochs=3 was given, but Phases runs for 2 epochs"):
        make_plan(Phases(2, 1), scores, global_batch_size=4, epochs=3)
    with pytest.raises(ValueError, match="num_train_epochs=3 was given, but IID runs for 2 epochs"):
        make_plan(IID(epochs=2), scores, global_batch_size=4, epochs=3)


@pytest.mark.parametrize(
    "length", [{"epochs": 0}, {"epochs": -1}, {"epochs": float("inf")}, {"epochs": float("nan")}, {"max_steps": 0}]
)
def test_no_length_and_endless_ones_are_refused(length):
    (name, value), *_ = length.items()
    with pytest.raises(ValueError, match=f"{name}={value} would train on nothing, or for ever"):
        make_plan(IID(), np.arange(8), global_batch_size=4, **length)


def test_the_control_takes_its_length_from_whoever_says():
    scores = np.zeros(8)
    assert make_plan(IID(), scores, global_batch_size=4).num_steps == 6  # 3 epochs
    assert make_plan(IID(), scores, global_batch_size=4, epochs=2).num_steps == 4
    assert make_plan(IID(), scores, global_batch_size=4, max_steps=7).num_steps == 7
    assert make_plan(IID(epochs=1), scores, global_batch_size=4).num_steps == 2
    assert make_plan(IID(examples=10), scores, global_batch_size=4).num_steps == 3


def test_max_steps_counts_and_epochs_do_not_where_both_are_given():
    assert make_plan(IID(), np.zeros(8), global_batch_size=4, epochs=2, max_steps=7).num_steps == 7
    assert make_plan(Phases(2, 1, easy="low"), np.arange(8), global_batch_size=4, epochs=9, max_steps=3).num_steps == 3


def test_max_steps_ends_a_longer_curriculum_with_one_warning(caplog):
    plan = make_plan(Phases(3, 2, easy="low"), np.arange(12), global_batch_size=4, max_steps=3)
    assert [(stage.name, stage.num_draws) for stage in plan.stages] == [("phase 1", 8), ("phase 2", 4)]
    assert (plan.num_steps, plan.num_draws, plan.num_filled) == (3, 12, 0)
    assert plan.stage_ends[3].name == "phase 2"
    (record,) = caplog.records
    assert record.message == (
        "max_steps=3 ends the run before Phases is over, which has 12 steps: these are the first ones, as for a "
        "trial. Never reached: phase 3."
    )
    assert record.message in plan.describe()
    with pytest.raises(IndexError, match="the plan ends after 12, because of max_steps=3"):
        plan.rows(0, 16)


def test_phases_fit_a_budget_with_the_same_pools_and_shares():
    plan = make_plan(
        Phases(3, 2, easy="low").fit_to(steps=50), np.arange(90), global_batch_size=10
    )  # 36 steps by itself
    assert [stage.pool_size for stage in plan.stages] == [30, 60, 90]
    assert [stage.num_draws for stage in plan.stages] == [80, 170, 250]  # 1/6, 1/3 and 1/2 of 500
    assert (plan.num_steps, plan.num_filled, round(plan.nominal_epochs, 3)) == (50, 0, 5.556)
    assert make_plan(Phases(3, 2, easy="low").fit_to(steps=36), np.arange(90), global_batch_size=10).rows(
        0, 360
    ).tolist() == (make_plan(Phases(3, 2, easy="low"), np.arange(90), global_batch_size=10).rows(0, 360).tolist())
    assert make_plan(Phases(3, easy="low").fit_to(epochs=3), np.arange(90), global_batch_size=10).num_steps == 27
    assert Phases(3).fit_to(epochs=3).fit_to(steps=4) == Phases(3, fit_steps=4)
    assert IID(epochs=3).fit_to(steps=4) == IID(fit_steps=4)
    assert IID(examples=3).fit_to(epochs=4) == IID(epochs=4)
    assert IID(fit_epochs=3).fit_to(steps=4) == IID(fit_steps=4)
    assert Filter(0.5, Phases(2)).fit_to(steps=7) == Filter(0.5, Phases(2, fit_steps=7))
    assert Filter(0.5, Phases(2), fit_epochs=3).fit_to(steps=7) == Filter(0.5, Phases(2, fit_steps=7))
    assert Filter(0.5, Phases(2), fit_steps=3).fit_to(epochs=7) == Filter(0.5, Phases(2, fit_epochs=7))


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda: Phases(3).fit_to(), r"fit_to\(steps=None, epochs=None\): a run has one length"),
        (lambda: Phases(3).fit_to(steps=3, epochs=2), "a run has one length"),
        (lambda: Phases(3).fit_to(steps=0), r"Phases\(fit_steps=0\) would train on nothing"),
        (
            lambda: Phases(3, fit_steps=3, fit_epochs=2),
            "Phases got fit_steps=3 and fit_epochs=2; a run has one length",
        ),
        (lambda: IID(epochs=2, fit_steps=3), "IID got epochs=2 and fit_steps=3; a run has one length"),
        (
            lambda: make_plan(Phases(3, easy="low").fit_to(steps=2), np.arange(9), global_batch_size=2),
            r"2 steps cannot hold 3 stages \(phase 1, phase 2, phase 3\): the last ones would never come",
        ),
    ],
)
def test_budgets_that_nothing_fits(fit, message):
    with pytest.raises(ValueError, match=message):
        fit()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"type": "adaptive_guidance", "fit_steps": 40}, "AdaptiveGuidance decides while training, on rounds whose"),
        ({"type": "adaptive_guidance", "fit_epochs": 2}, "AdaptiveGuidance decides while training, on rounds whose"),
        (
            {"type": "online_selection", "value": "loss", "then": {"type": "adaptive_guidance"}, "fit_steps": 9},
            "AdaptiveGuidance decides while training",
        ),
        (
            {"type": "filter", "fit_epochs": 1.7, "then": {"type": "baby_steps", "epochs": 3.4}},
            "BabySteps got epochs=3.4 and fit_epochs=1.7; a run has one length",
        ),
        (
            {"type": "filter", "fit_steps": 3, "then": {"type": "phases", "fit_steps": 5}},
            "Filter got fit_steps=3, and its `then` has fit_steps=5; a run has one length",
        ),
        (
            {"type": "filter", "fit_steps": 3, "then": {"type": "filter", "then": {"type": "iid", "examples": 5}}},
            "IID got examples=5 and fit_steps=3; a run has one length",
        ),
        ({"type": "filter", "fit_steps": 3, "fit_epochs": 2}, "got fit_steps=3 and fit_epochs=2; a run has one"),
    ],
)
def test_a_length_in_a_field_is_followed_or_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        curriculum_from(rule)


@pytest.mark.parametrize(
    "then", [{"type": "baby_steps", "num_buckets": 3, "patience": 1}, {"type": "self_paced"}, {"type": "phases"}]
)
def test_a_length_around_a_rule_is_the_length_of_that_rule(then):
    for length in ({"steps": 90}, {"epochs": 6}):
        ((name, value),) = length.items()
        outer = curriculum_from({"type": "filter", "keep": 0.7, "then": then, f"fit_{name}": value})
        assert outer == curriculum_from({"type": "filter", "keep": 0.7, "then": then}).fit_to(**length)
        assert outer == curriculum_from(outer.to_dict())
        if name == "steps":
            plan = make_plan(replace(outer, easy="low"), np.arange(230), global_batch_size=8)
            assert plan.max_steps == 90
            assert plan.undecided == (then["type"] != "phases")
            assert plan.known_steps < 90 or not plan.undecided


def test_no_more_buckets_than_rows_and_no_memory_for_them():
    for rule in (Phases(10**9), Phases(2**63, cut="value"), BabySteps(2**31), BabySteps(10**9, cut="value", epochs=3)):
        with pytest.raises(ValueError, match=r"20 examples cannot fill [\d,]+ buckets by (rank|value)"):
            make_plan(rule, np.arange(20), global_batch_size=4)


def test_a_run_shorter_than_an_example_can_be_printed():
    plan = make_plan(IID(epochs=1e-6), np.arange(20), global_batch_size=4)
    assert plan.cost_ratio == 1
    assert "1 examples drawn + 3 to fill the last batch" in plan.describe()


def test_a_stage_within_one_step_is_less_than_a_step():
    lines = make_plan(Phases(4, easy="low"), np.arange(30), global_batch_size=32).describe().splitlines()[2:6]
    assert [line.split("  ")[-2].strip() for line in lines] == ["1", "< 1", "1", "1"]


def test_ties_that_divide_buckets_by_the_order_of_the_file_are_said_once(caplog):
    scores = np.array([1.0] * 5 + [7.0] * 95)
    plan = make_plan(Phases(4), scores, global_batch_size=5)
    assert caplog.messages == [
        "Equal scores are cut by the order of the file: bucket 1 of 4 ends after 20 of 95 examples whose `the score` "
        "is 7; bucket 2 of 4 ends after 45 of 95 examples whose `the score` is 7; bucket 3 of 4 ends after 70 of 95 "
        "examples whose `the score` is 7. Use cut='value', which keeps them together, or a score with more distinct "
        "values."
    ]
    assert f"note: {caplog.messages[0]}" in plan.describe()
    caplog.clear()
    make_plan(BabySteps(2, epochs=4), scores, global_batch_size=5)
    assert "bucket 1 of 2 ends after 45 of 95 examples" in caplog.text
    make_plan(Filter(0.9, Phases(2), easy="low"), scores, global_batch_size=5)
    assert "bucket 1 of 2 ends after 40 of 85 examples whose `the score` is 7. Use cut='value'" in caplog.text
    caplog.clear()
    make_plan(Phases(8), scores, global_batch_size=5)
    assert "bucket 3 of 8 ends after 32 of 95 examples whose `the score` is 7, and 4 more likewise. Use" in caplog.text


@pytest.mark.parametrize("rule", [Phases(4), Phases(4, cut="value"), IID(epochs=1), Growing(initial=0.3)])
def test_a_plan_without_faults_has_no_notes(rule, caplog):
    plan = make_plan(rule, np.repeat(np.arange(20), 5), global_batch_size=5)
    assert not plan.notes
    assert "note" not in plan.describe()
    assert not caplog.messages


def test_pools_smaller_than_a_step_are_said(caplog):
    plan = make_plan(Phases(2, 1, easy="low"), np.arange(100), global_batch_size=80)
    assert caplog.messages == [
        "A step takes 80 examples, and the pool of phase 1 begins with 50: a batch repeats them, or holds those of "
        "other stages too. Use a smaller global batch size or a larger first pool."
    ]
    assert caplog.messages[0] in plan.describe()
    caplog.clear()
    make_plan(Growing(easy="low"), np.arange(160), global_batch_size=16)
    assert "A step takes 16 examples, and the pool of growing begins with 2: a batch repeats them" in caplog.text
    caplog.clear()
    make_plan(Phases(2, (0.1, 1), easy="low"), np.arange(100), global_batch_size=20)
    assert "A step takes 20 examples, and phase 1 fewer in all: one step holds several stages" in caplog.text


def test_one_example():
    plan = make_plan(Phases(1, 3, easy="low"), np.array([1.0]), global_batch_size=2)
    assert plan.rows(0, plan.num_samples).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="All 1 scored rows have the same"):
        make_plan(Phases(4, easy="low"), np.array([1.0]), global_batch_size=2)


def test_duplicated_rows_are_different_examples():
    plan = make_plan(IID(epochs=1), np.array([1.0, 1.0, 1.0, 1.0]), global_batch_size=2)
    assert sorted(plan.rows(0, 4)) == [0, 1, 2, 3]


def test_dropped_rows_never_appear():
    plan = make_plan(Phases(2, 2, unscored="drop", easy="low"), np.array([1, np.nan, 2, 3]), global_batch_size=1)
    assert 1 not in plan.rows(0, plan.num_samples)
    assert "1 without a score left out" in plan.describe()


def test_where_stages_and_passes_end():
    plan = make_plan(Phases(2, 2, easy="low"), np.arange(8), global_batch_size=4)  # pools 4, 4, 8, 8
    assert plan.pass_ends == {1, 2, 4, 6}
    assert {step: stage.name for step, stage in plan.stage_ends.items()} == {2: "phase 1", 6: "phase 2"}


def test_a_last_partial_pass_ends_too():
    plan = make_plan(IID(epochs=2.5), np.zeros(8), global_batch_size=4)
    assert plan.stages[0].pass_ends() == [8, 16, 20]
    assert plan.pass_ends == {2, 4, 5}
    kept = make_plan(IID(epochs=1.5, partial_batches="keep"), np.zeros(10), global_batch_size=4)
    assert kept.stages[0].pass_ends() == [12, 20]


def test_a_plan_is_written_down():
    import json

    plan = make_plan(Phases(2, easy="low"), np.arange(8), global_batch_size=4)
    facts = json.loads(json.dumps(plan.to_dict()))
    assert facts["curriculum"] == {"type": "phases", "num_phases": 2, "easy": "low"}
    assert [stage["pool"] for stage in facts["stages"]] == [4, 8]
    assert facts["num_rows"] == 8
    changed = make_plan(Phases(2, easy="low"), np.arange(8)[::-1].copy(), global_batch_size=4)
    assert changed.fingerprint()["scores"] != facts["scores"]


def test_sample_positions_outside_the_run_are_refused():
    plan = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2)
    with pytest.raises(IndexError, match="the plan has 4 positions"):
        plan.rows(0, 5)
    with pytest.raises(ValueError, match="a step needs at least 1 example"):
        make_plan(IID(epochs=1), np.zeros(4), global_batch_size=0)
    with pytest.raises(ValueError, match="no example to plan for"):
        make_plan(IID(epochs=1), Ranking.unordered(0), global_batch_size=1)


def test_high_can_be_easy():
    scores = np.array([0.1, 0.9, 0.5])
    plan = make_plan(Phases(3, 1, easy="high"), scores, global_batch_size=1)
    assert plan.rows(0, 1).tolist() == [1]
    assert rank_scores(scores, "high").order.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "rule", [Phases(3, (1, 2, 0.5), "value", thresholds=(2, 3)), IID(examples=7), Phases(easy="high")]
)
def test_curricula_go_through_json_and_yaml(rule):
    import json

    import yaml

    assert curriculum_from(rule.to_dict()) == rule
    assert curriculum_from(json.dumps(rule.to_dict())) == rule
    assert curriculum_from(yaml.safe_dump(rule.to_dict())) == rule


def test_curricula_from_names_and_files(tmp_path):
    assert curriculum_from("iid") == IID()
    assert curriculum_from("{type: phases, num_phases: 3}") == Phases(3)
    file = tmp_path / "rule.yaml"
    file.write_text("type: phases\ncut: value\n")
    assert curriculum_from(file) == Phases(cut="value")
    assert curriculum_from(rule := Phases()) is rule
    scores = np.arange(12.0)
    by_file, by_rule = (make_plan(given, scores, global_batch_size=2) for given in (file, Phases(cut="value")))
    assert by_file.fingerprint() == by_rule.fingerprint()


@dataclass(frozen=True)
class Nameless(Curriculum):
    """A rule whose author returns something, and forgot its `type`."""

    returned: Any = None

    def stages(self, ranking, budget, log=()):
        return self.returned

    def nominal_epochs(self, budget, ranking):
        return 1.0


@dataclass(frozen=True)
class Written(Nameless):
    type: ClassVar[str] = "written"


WHOLE = Stage(0, "a", "all", ((0, 4),), 4)


@pytest.mark.parametrize("returned", [None, (), WHOLE, (WHOLE, "b")])
def test_what_a_rule_returns_is_a_tuple_of_stages(returned):
    with pytest.raises(TypeError, match=r"Written\.stages returned .*\. It returns a tuple of one or more `Stage`s"):
        make_plan(Written(returned), np.arange(4.0), global_batch_size=2)
    assert make_plan(Written((WHOLE,)), np.arange(4.0), global_batch_size=2).num_steps == 2


def test_a_rule_without_a_type_says_so():
    with pytest.raises(TypeError, match="Nameless has no `type`, the name by which a plan and a checkpoint know it"):
        Nameless()


def test_a_class_is_no_curriculum():
    with pytest.raises(TypeError, match=r"`make_plan` was given the class Phases .* give one that is made of it"):
        make_plan(Phases, np.arange(12.0), global_batch_size=2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "phase"}, r"There is no curriculum 'phase' in .*\. The types are \[.*'filter', .*'phases'"),
        ({"type": "phases", "phases": 3}, "has no field 'phases'; its fields are"),
        ({"type": "phases", "num_phases": "3"}, "cannot be made: .* such as a number in quotes"),
        ({"type": "staged"}, "cannot be made: .* missing 1 required positional argument: 'parts'"),
        ("missing.yaml", "'missing.yaml' does not exist"),
        ("fases", r"There is no curriculum 'fases'\. The types are \[.*'phases'"),
        ("a: [", "neither a name of .*, a file, JSON nor YAML"),
        ("[iid]", "neither a name of .*, nor a mapping with a `type`"),
    ],
)
def test_curricula_that_cannot_be_read(value, message):
    with pytest.raises(ValueError, match=message):
        curriculum_from(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_phases": 0}, "at least 1 phase"),
        ({"cut": "size"}, "cut is one of 'rank', 'value'"),
        ({"pools": "mixed"}, "pools is one of"),
        ({"easy": "hard"}, "easy is one of None, 'low', 'high'"),
        ({"unscored": "skip"}, "unscored is one of"),
        ({"partial_batches": "drop"}, "partial_batches is one of"),
        ({"epochs_per_phase": (1, 2)}, "has 2 numbers for 4 phases"),
        ({"epochs_per_phase": 0}, "a phase of no length"),
        ({"steps_per_phase": (1, 2, 3, 0)}, "a phase of no length"),
        ({"steps_per_phase": (1, 2, 3, 4), "epochs_per_phase": 2}, "a phase has one length"),
    ],
)
def test_phases_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Phases(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Phases(2.5), r"Phases\(num_phases=2.5\) is not possible; num_phases is a whole number"),
        (lambda: Phases(None), r"Phases\(num_phases=None\) is not possible; num_phases is a whole number"),
        (lambda: Phases(2, steps_per_phase=(3, 2.5)), "steps_per_phase is a list of whole numbers"),
        (lambda: IID(examples=1e3), r"IID\(examples=1000.0\) is not possible; examples is a whole number"),
        (lambda: IID(epochs="3"), r"IID\(epochs='3'\) is not possible; epochs is a number"),
        (lambda: BabySteps(2, patience=1.5), "patience is a whole number"),
        (lambda: ByImage(2.5), "captions_per_image is a whole number"),
        (lambda: ByLength(window="a"), "window is a whole number"),
    ],
)
def test_numbers_of_another_kind_are_refused_at_once(make, message):
    with pytest.raises(TypeError, match=message):
        make()
    with pytest.raises(ValueError, match=r"num_phases is a whole number\. A field is missing, or holds"):
        curriculum_from({"type": "phases", "num_phases": 2.5})
    assert Phases(np.int64(2)) == Phases(2)


def test_thresholds_are_looked_at_at_once():
    with pytest.raises(ValueError, match="need cut='value'; cut='rank' was given"):
        Phases(2, cut="rank", thresholds=(3,))
    with pytest.raises(ValueError, match="2 thresholds were given for 2 buckets; 1 inner"):
        Phases(2, cut="value", thresholds=(3, 4))


def test_iid_refuses():
    with pytest.raises(ValueError, match="a run has one length"):
        IID(epochs=1, examples=3)
    with pytest.raises(ValueError, match="would train on nothing"):
        IID(epochs=0)


def test_the_table_leaves_out_what_fills_the_last_batch():
    plan = make_plan(Phases(2, easy="low"), np.arange(10), global_batch_size=4)
    assert [stage.num_draws for stage in plan.stages] == [5, 11]
    rows = [line.split() for line in plan.describe().splitlines() if line.startswith("phase ")]
    assert [(row[-6], row[-4]) for row in rows[1:]] == [("5", "1"), ("10", "1")]


def test_as_many_steps_as_stages_are_one_for_each():
    plan = make_plan(Phases(3, easy="low").fit_to(steps=3), np.arange(9), global_batch_size=2)
    assert [stage.num_samples for stage in plan.stages] == [2, 2, 2]


def test_a_pool_of_several_parts_of_the_order():
    stage = Stage(0, "parts", "three parts", ((1, 3), (5, 6), (8, 10)), 10)
    assert stage._within(np.arange(5)).tolist() == [1, 2, 5, 8, 9]
    drawn = stage.positions(0, 10, 7)
    assert sorted(drawn[:5].tolist()) == sorted(drawn[5:].tolist()) == [1, 2, 5, 8, 9]


def test_what_is_just_possible_is_done():
    ranking = rank_scores(np.arange(4.0))
    one = make_plan(Phases(1), ranking, global_batch_size=1)
    assert (one.num_steps, len(one.stages)) == (4, 1)
    assert make_plan(Phases(4), ranking, global_batch_size=1).num_steps == 1 + 2 + 3 + 4  # one more in each
    assert make_plan(Phases(2), ranking, global_batch_size=2, max_steps=3).num_steps == 3
    assert cut_buckets(ranking, 4, "rank").sizes == (1, 1, 1, 1)
    assert make_plan(IID(examples=1), rank_scores(np.zeros(1)), global_batch_size=1).num_steps == 1
    assert make_plan(IID(epochs=0.25), ranking, global_batch_size=1).num_steps == 1
    cut = make_plan(Phases(2, 2), ranking, global_batch_size=2, max_steps=3)
    assert len(cut.rows(0, cut.known_samples)) == 6


BEFORE = {"step": 4, "examples": 30, "scored": 7, "description": "IID() of before"}


def test_the_rest_of_an_amended_run_is_counted_from_the_runs_beginning():
    alone = make_plan(Phases(2, easy="low").fit_to(steps=6), np.arange(20.0), global_batch_size=8)
    plan = alone.after(BEFORE)
    assert (plan.first_step, plan.num_steps, plan.max_steps, plan.known_samples) == (4, 10, 10, 80)
    assert plan.stage_starts[0] == 32
    assert [plan.stage_at(step).name for step in (4, 9)] == ["phase 1", "phase 2"]
    assert sorted(plan.stage_ends) == [step + 4 for step in sorted(alone.stage_ends)]
    assert set(plan.step_rows(4)) <= set(range(10))
    assert sorted(plan.rows(32, 42)) == list(range(10))  # a pass over the first pool
    assert plan.step_rows(4).tolist() != alone.step_rows(0).tolist()  # other passes than a plan from the beginning
    assert (plan.examples_after(4), plan.examples_after(6)) == (30, 46)
    assert (plan.scored_after(6), plan.compute_after(6)) == (7, 3 * 46 + 7)
    assert plan.describe().startswith("amended after step 4: IID() of before\nPhases(")
    assert " in 6 steps of 8" in plan.describe()
    assert plan.fingerprint() == {**alone.fingerprint(), "num_steps": 10, "amended": BEFORE}
    assert plan.with_log(()).first_step == 4
    with pytest.raises(IndexError, match="amended after step 4: what earlier steps drew was another plan's"):
        plan.step_rows(3)
    with pytest.raises(ValueError, match="BabySteps decides while training"):
        make_plan(BabySteps(2, epochs=9, easy="low"), np.arange(20.0), global_batch_size=8).after(BEFORE)


@pytest.mark.parametrize("batches", [None, ByImage(2), ByLength("length", window=2)])
def test_the_rest_of_an_amended_run_draws_alike_in_any_parts(batches):
    data = Dataset.from_dict(
        {
            "s": np.arange(40.0),
            "image_id": [f"i{row // 2}" for row in range(40)],
            "length": [row % 9 for row in range(40)],
        }
    )
    rule = Phases(2, easy="low", batches=batches).fit_to(steps=9)
    plan = make_plan(rule, data, score_column="s", global_batch_size=8).after({**BEFORE, "step": 3})
    whole = plan.rows(24, plan.known_samples)
    assert len(whole) == 72
    assert np.concatenate([plan.step_rows(step) for step in range(3, 12)]).tolist() == whole.tolist()
    assert np.concatenate(list(plan.chunks(24))).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (((-10, 20),), r"Only has the pool \(\(-10, 20\),\)\. A pool is a tuple of stretches"),
        (((7.5, 22.5),), "in whole numbers from 0"),
        ((0, 10), r"Only has the pool \(0, 10\)"),
        (((0, 20), (10, 30)), "without overlap"),
        (((20, 30), (0, 10)), "in order"),
        (((0, 80),), r"Only has the pool \(\(0, 80\),\), and there are 30 examples: Own\.stages reaches beyond them"),
    ],
)
def test_the_pools_of_a_rule_of_ones_own_are_checked(slices, message):
    @dataclass(frozen=True)
    class Own(Curriculum):
        type: ClassVar[str] = "own"

        def nominal_epochs(self, budget, ranking):
            return 1.0

        def stages(self, ranking, budget, log=()):
            return (Stage(0, "only", "some", slices, 30),)

    with pytest.raises(ValueError, match=message):
        make_plan(Own(), rank_scores(np.arange(30), "low"), global_batch_size=5)
