"""What each log entry tells of the examples drawn since the one before."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from curriculum_cases import CASES, plan_of, rounds
from transformers import TrainerCallback

from hf_curriculum import IID, BabySteps, Growing, Phases, SelfPaced, make_plan
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.training.callbacks import DrawLog, phase_line

RULE = Phases(3, 2, easy="low")


def naive(plan, first, step):
    """Counted row by row."""
    rows = [row for one in range(first, step) for row in plan.step_rows(one).tolist()]
    repeats, seen, stage = 0, set(), None
    size = plan.samples_per_step
    for sample in range(plan.stage_starts[plan.stage_at(first).number], step * size):
        number = next(n for n, end in enumerate(plan.stage_starts[1:]) if sample < end)
        if number != stage:
            seen, stage = set(), number
        (row,) = plan.rows(sample, sample + 1).tolist()
        if row >= 0:
            repeats += sample >= first * size and row in seen
            seen.add(row)
    facts = {"repeats": repeats / len(rows)}
    if plan.ranking.scores is not None:
        scores = plan.ranking.scores[rows].astype(np.float64)
        scores = scores[np.isfinite(scores)]
        if len(scores):
            facts |= {"score_mean": scores.mean(), "score_std": scores.std()}
    return facts


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("every", [1, 3])
def test_it_is_what_the_rows_say(name, every):
    log, start = DrawLog(), 0
    for plan in rounds(plan_of(CASES[name], 40, 4)):
        for first in range(start, plan.known_steps - every + 1, every):
            found = log.since(plan, first, first + every)
            for key, value in naive(plan, first, first + every).items():
                assert found[key] == pytest.approx(value, abs=1e-6), (key, first)
            shares = [value for key, value in found.items() if key.startswith(("bucket_", "quartile_"))]
            assert not shares or sum(shares) == pytest.approx(1)
            assert found["phase"] == plan.stage_at(first + every - 1).number + 1
            # Asked in the middle of a run, as after a resume, it says the same.
            assert DrawLog().since(plan, first, first + every) == found
        start = plan.known_steps


def test_without_scores_and_buckets_there_are_no_shares():
    plan = make_plan(IID(epochs=2), Ranking.unordered(12), global_batch_size=4)
    assert DrawLog().since(plan, 0, 6) == {"phase": 1, "pool_size": 12, "repeats": 0.5}


def test_the_shares_of_buckets_are_those_of_the_rule():
    plan = make_plan(RULE, np.arange(60.0), global_batch_size=5)
    log = DrawLog()
    for step in range(plan.num_steps):
        found = log.since(plan, step, step + 1)
        rows = plan.step_rows(step)
        assert [found[f"bucket_{n}"] for n in (1, 2, 3)] == [np.mean(rows // 20 == n).item() for n in range(3)]
        assert found["pool_size"] == plan.stage_at(step).pool_size


@pytest.mark.parametrize("rule", [IID(epochs=2), Growing(epochs=2), Phases(12), BabySteps(3, epochs=4)], ids=str)
def test_without_few_known_buckets_there_are_quartiles(rule):
    plan = make_plan(rule, np.arange(48.0)[::-1].copy(), global_batch_size=4)
    found = DrawLog().since(plan, 0, 1)
    quarters = (47 - plan.step_rows(0)) // 12
    assert [found[f"quartile_{n + 1}"] for n in range(4)] == [np.mean(quarters == n).item() for n in range(4)]
    assert not any(name.startswith("bucket") for name in found)


def test_a_pool_that_grows_is_told_as_it_grows():
    plan = make_plan(Growing(initial=0.1, epochs=20, easy="low"), np.arange(100.0), global_batch_size=10)
    sizes = [DrawLog().since(plan, step, step + 1)["pool_size"] for step in range(0, 200, 20)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 40 < 70 < sizes[-1]


def test_an_order_that_a_decision_replaces_is_not_asked_for():
    plan = make_plan(SelfPaced(epochs=4, warmup_epochs=1, easy="low"), np.zeros(8), global_batch_size=4)
    plan = plan.decided(Observed(2, {}, np.arange(8.0)))
    assert set(DrawLog().since(plan, 0, 2)) == {"phase", "pool_size"}
    assert "repeats" in DrawLog().since(plan, 1, 3)


def test_the_log_has_the_entries_of_trainer_and_each_tells_what_was_drawn(make_trainer, data):
    trainer = make_trainer(RULE, logging_steps=5)
    trainer.train()
    *steps, last = trainer.state.log_history
    # One more at the end of each phase.
    assert [entry["step"] for entry in steps] == [4, 5, 10, 12, 15, 20, 24]
    for before, entry in zip([{"step": 0}, *steps], steps, strict=False):
        drawn = data.select([r for s in range(before["step"], entry["step"]) for r in trainer.plan.step_rows(s)])
        assert entry["curriculum/score_mean"] == pytest.approx(np.mean(drawn["difficulty"]))
        assert entry["curriculum/score_std"] == pytest.approx(np.std(drawn["difficulty"]))
        assert {"loss", "learning_rate", "curriculum/phase", "curriculum/pool_size", "curriculum/repeats"} <= set(
            entry
        )
        assert "seconds" not in entry
    assert [entry["curriculum/phase"] for entry in steps] == [1, 2, 2, 2, 3, 3, 3]
    assert [entry["step"] for entry in trainer.state.log_history if "curriculum/score_q50" in entry] == [4, 12, 24]
    assert "train_runtime" in last
    assert not any(name.startswith("curriculum/") for name in last)
    assert trainer.trained_seconds > 0


@pytest.mark.parametrize("rule", [IID(epochs=4), IID(epochs=4, partial_batches="keep")], ids=["stream", "keep"])
def test_without_phases_the_log_has_the_entries_of_trainer_and_the_last_step(make_trainer, rule):
    trainer = make_trainer(rule, score_column=None, logging_steps=5)
    trainer.train()
    assert [("loss" in entry, entry["step"]) for entry in trainer.state.log_history] == [
        *((True, step) for step in (5, 10, 15, 20, 24)),
        (False, 24),
    ]


PACED = {"phases": RULE, "growing": Growing(epochs=3, easy="low"), "self-paced": SelfPaced(epochs=4)}


@pytest.mark.parametrize("rule", PACED.values(), ids=PACED)
def test_a_resumed_run_logs_the_same(make_trainer, rule, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 7, "logging_steps": 5}

    def told(trainer):
        return [
            {name: value for name, value in entry.items() if "curriculum/" in name or name in ("step", "examples")}
            for entry in trainer.state.log_history
        ]

    whole = make_trainer(rule, **settings)
    whole.train()
    resumed = make_trainer(rule, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-7"))
    assert told(resumed) == told(whole)


def test_a_phase_that_begins_is_announced(make_trainer, caplog):
    with caplog.at_level(logging.INFO, "hf_curriculum"):
        trainer = make_trainer(RULE)
        trainer.train()
    lines = [one.message for one in caplog.records if "pool" in one.message]
    assert lines == [
        "Step 0, phase 1 of 3: easiest 33.33 %, pool 8 (8 new), 4 steps",
        "Step 4, phase 2 of 3: easiest 66.67 %, pool 16 (8 new), 8 steps",
        "Step 12, phase 3 of 3: all, pool 24 (8 new), 12 steps",
    ]
    assert phase_line(make_plan(IID(epochs=2), np.zeros(6), global_batch_size=3), 0) == (
        "i.i.d.: all, pool 6 (6 new), 4 steps"
    )


def test_a_decision_is_said_as_it_is_taken(make_trainer, data, caplog):
    rule = BabySteps(2, patience=1, epochs=4, easy="low")
    with caplog.at_level(logging.INFO, "hf_curriculum"):
        trainer = make_trainer(rule, trainer={"eval_dataset": data})
        trainer.train()
    decided = [one.message for one in caplog.records if "→" in one.message]
    entries = trainer.plan.log
    pools = [trainer.plan.stages[number + 1].pool_size for number in range(len(entries))]
    assert decided == [
        f"{rule.describe_decision(entry)}; pool {pool}" for entry, pool in zip(entries, pools, strict=True)
    ]
    assert decided[-1].endswith("pool 24")


def test_a_loss_logged_before_the_first_step_has_nothing_to_tell(make_trainer):
    class Early(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            trainer.log({"loss": 1.0})

    trainer = make_trainer(RULE, trainer={"callbacks": [Early()]})
    trainer.train()
    first, second = trainer.state.log_history[:2]
    assert not any(name.startswith("curriculum/") for name in first)
    assert second["curriculum/phase"] == second["step"] == 1
