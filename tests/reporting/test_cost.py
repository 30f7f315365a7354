"""What a run cost, from its log or from its plan, and figures that count what is trained on."""

from __future__ import annotations

import numpy as np
import pytest

from hf_curriculum import IID, OnlineSelection, Phases, SelfPaced, make_plan
from hf_curriculum.reporting.figures.growth import phase_starts, plan_growth, pools_of
from hf_curriculum.reporting.run_sections import cost_at
from hf_curriculum.training.report import read_run


@pytest.mark.parametrize(
    "rule",
    [
        IID(epochs=3),
        OnlineSelection(3, "loss", then=Phases(2), easy="low"),
        OnlineSelection(2, "-loss"),
        SelfPaced(epochs=4),
    ],
    ids=lambda rule: rule.type,
)
def test_what_is_read_of_a_run_is_what_its_plan_says(make_trainer, rule):
    column = None if rule.type == "self_paced" else "difficulty"
    trainer = make_trainer(rule, score_column=column, save_strategy="steps", save_steps=2, logging_steps=100)
    trainer.train()
    plan, step = trainer.plan, trainer.state.global_step
    for folder, at in ((trainer.args.output_dir, step), (f"{trainer.args.output_dir}/checkpoint-2", 2)):
        run = read_run(folder)
        assert run["steps"] == at
        known = plan.examples_after(at), plan.scored_after(at), plan.compute_after(at)
        if rule.type == "self_paced":  # the plan's log is that of the end
            known = known[0], sum(entry["step"] < at for entry in run["decisions"]) * 24, run["compute"]
        assert (run["examples"], run["examples_scored"], run["compute"]) == known
    assert (run["examples_scored"] == 0) == (rule.type in ("iid", "self_paced"))


def test_a_log_is_believed_and_one_of_another_step_is_not():
    plan = {"global_batch_size": 4, "num_rows": 9, "candidates": 2, "forwards": 2}
    plan["stages"] = [{"first_sample": 0, "draws": 50}, {"first_sample": 50, "draws": 30}]
    assert cost_at([], plan, 10) == {"examples": 40, "examples_scored": 160, "compute": 280}
    log = [{"step": 3, "examples": 1}, {"step": 10, "loss": 1.0}, {"step": 10, "examples": 39, "examples_scored": 7}]
    assert cost_at(log, plan, 10) == {"examples": 39, "examples_scored": 7, "compute": 124}


def test_figures_count_what_is_trained_on():
    plain = make_plan(Phases(2, 3, easy="low"), np.arange(40.0), global_batch_size=4)
    chosen = make_plan(OnlineSelection(3, "loss", then=Phases(2, 3)), np.arange(40.0), global_batch_size=4)
    assert (pools_of(plain.to_dict()), phase_starts(plain.to_dict())) == ([(0, 60, 20), (60, 180, 40)], [60])
    assert (pools_of(chosen.to_dict()), phase_starts(chosen.to_dict())) == ([(0, 20, 20), (20, 60, 40)], [20])
    assert chosen.to_dict()["num_examples"] == chosen.num_examples == 60
    assert not {"num_examples", "forwards", "candidates"} & set(plain.to_dict())
    labels = {}
    for plan in (plain, chosen):
        lines = plan_growth(plan).axes[0].lines
        labels[plan] = [line.get_label() for line in lines if line.get_drawstyle() == "steps-post"]
    assert labels[plain] == ["Phases: 180 draws", "i.i.d. control: 240 draws"]
    assert labels[chosen] == ["OnlineSelection: 60 examples", "i.i.d. control: 240 examples"]
