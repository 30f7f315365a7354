"""What `report_to` carries of the curriculum, through transformers' own interface of integrations."""

from __future__ import annotations

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from hf_curriculum import BabySteps, Phases, SelfPaced
from hf_curriculum.training.callbacks import decision_numbers


@pytest.fixture
def tracked(monkeypatch):
    """What a tracker named "recorder" is given, as (step, logs)."""
    seen = []

    class Recorder(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append((state.global_step, dict(logs)))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "recorder", Recorder)
    return seen


def with_name(tracked, name):
    return [(step, logs) for step, logs in tracked if name in logs]


def test_phases(make_trainer, tracked):
    make_trainer(Phases(3, easy="low"), report_to=["recorder"]).train()
    ended = with_name(tracked, "curriculum/score_q0")
    assert [(step, logs["curriculum/phase"], logs["curriculum/pool_size"]) for step, logs in ended] == [
        (2, 1, 8),
        (6, 2, 16),
        (12, 3, 24),
    ]
    assert [logs["curriculum/score_q100"] for _, logs in ended] == [1, 3, 5]
    assert not with_name(tracked, "curriculum/round")
    assert all("examples" in logs for _, logs in tracked)


def test_decisions_and_what_they_were_taken_on(make_trainer, data, tracked):
    trainer = make_trainer(
        BabySteps(3, patience=1, epochs=4, easy="low"),
        trainer={"eval_dataset": data},
        report_to=["recorder"],
        eval_strategy="epoch",
    )
    trainer.train()
    begun = with_name(tracked, "curriculum/round")
    entries = [entry for entry in trainer.plan.log if entry["step"] < trainer.plan.num_steps]
    assert len(begun) == len(entries) > 2
    evaluated = {step: logs["eval_loss"] for step, logs in with_name(tracked, "eval_loss")}
    for (step, logs), entry in zip(begun, entries, strict=True):
        assert step == entry["step"]
        assert logs["curriculum/round"] == entry["round"] + 2
        assert logs["curriculum/decision_value"] == entry["value"] == evaluated[step]
        assert logs["curriculum/decision_best"] == entry["best"]
        assert logs["curriculum/decision_without_improvement"] == entry["without_improvement"]
        assert all(isinstance(value, (int, float)) for value in logs.values())  # trackers draw numbers
    sizes = [logs["curriculum/next_pool_size"] for _, logs in begun]
    assert sizes[0] < sizes[-1] == 24


def test_self_paced(make_trainer, tracked):
    trainer = make_trainer(SelfPaced(epochs=3), score_column=None, report_to=["recorder"])
    trainer.train()
    begun = with_name(tracked, "curriculum/round")
    assert [logs["curriculum/decision_threshold"] for _, logs in begun] == [e["threshold"] for e in trainer.plan.log]
    assert [logs["curriculum/decision_pool"] for _, logs in begun] == [e["pool"] for e in trainer.plan.log]


def test_values_per_level_are_taken_apart():
    entry = {"round": 1, "step": 8, "decision": "to", "values": {"0.1": 0.5, "0.9": 0.25}, "level": 2, "forced": True}
    assert decision_numbers(entry) == {
        "decision_values_0.1": 0.5,
        "decision_values_0.9": 0.25,
        "decision_level": 2,
        "decision_forced": 1,
    }
