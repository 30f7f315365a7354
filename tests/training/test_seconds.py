"""Budgets in seconds of training, on a clock of the test's own."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, Phases
from hf_curriculum.training.callbacks import TrainingClock

RULE = Phases(3, 10, easy="low")


@pytest.fixture
def now(monkeypatch):
    """The time; a step takes a tenth of a second and an evaluation ten."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("hf_curriculum.training.callbacks.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def timed(now, trainer):
    class Timed(CurriculumTrainer):
        def training_step(self, *args, **kwargs):
            now.now += 0.1
            return super().training_step(*args, **kwargs)

        def evaluation_loop(self, *args, **kwargs):
            now.now += 10
            return super().evaluation_loop(*args, **kwargs)

    return Timed(
        model=trainer.model, args=trainer.args, train_dataset=trainer.train_dataset, eval_dataset=trainer.eval_dataset
    )


def test_training_ends_with_the_step_in_which_the_seconds_have_passed(make_trainer, now, tmp_path):
    made = make_trainer(RULE, save_strategy="steps", save_steps=1000, max_seconds=0.55)
    trainer = timed(now, made)
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.state.max_steps == trainer.plan.num_steps == 120
    saved = json.loads((tmp_path / "out" / "checkpoint-6" / "curriculum.json").read_text())
    assert saved["seconds"] == pytest.approx(0.6)
    # Seconds before a restart count: one more step is taken before it is noticed that there are none left.
    again = timed(now, made)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 7


def test_evaluation_does_not_count(make_trainer, data, now):
    evaluated = {"trainer": {"eval_dataset": data}, "eval_strategy": "steps", "eval_steps": 2}
    trainer = timed(now, make_trainer(RULE, max_seconds=0.55, **evaluated))
    trainer.train()
    assert trainer.state.global_step == 6
    # Nor in what an evaluation logs about itself, which is written while it still goes on.
    logged = [entry["seconds"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert logged == pytest.approx([0.2, 0.4, 0.6])


def test_an_evaluation_inside_another_pass_counts_once(now):
    clock = TrainingClock(5.0)
    now.now += 1
    with clock.paused():
        now.now += 10
        with clock.paused():
            now.now += 10
        now.now += 10
        assert clock.seconds == pytest.approx(6)
    now.now += 1
    assert clock.seconds == pytest.approx(7)


def test_no_time_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_seconds=0 leaves no time to train"):
        CurriculumTrainingArguments(str(tmp_path), max_seconds=0)
