"""A report from what a run's last checkpoint says."""

from __future__ import annotations

import pytest

from hf_curriculum import IID, BabySteps, Phases
from hf_curriculum.training.report import read_run, training_report


@pytest.fixture
def trained(make_trainer, data, tmp_path):
    def train(curriculum, name):
        trainer = make_trainer(
            curriculum,
            trainer={"eval_dataset": data},
            output_dir=str(tmp_path / name),
            save_strategy="steps",
            save_steps=5,
            eval_strategy="steps",
            eval_steps=5,
        )
        trainer.train()
        return trainer

    return train


def test_a_run_is_read_from_its_last_checkpoint(trained, tmp_path):
    trainer = trained(BabySteps(3, patience=1, epochs=4, easy="low"), "baby")
    run = read_run(tmp_path / "baby")
    assert (run["name"], run["steps"], run["examples"]) == ("baby", 24, 96)
    assert run["decisions"] == [dict(entry) for entry in trainer.plan.log]
    assert run["describe"] == trainer.plan.describe()
    assert run["eval_loss"] == [e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e][-1]
    assert read_run(tmp_path / "baby" / "checkpoint-5", "early")["steps"] == 5


def test_the_page_has_plan_decisions_curves_and_the_control(trained, data, tmp_path):
    trained(BabySteps(3, patience=1, epochs=4, easy="low"), "baby")
    trained(IID(epochs=4, easy="low"), "plain")
    report = training_report(tmp_path / "baby", controls={"i.i.d.": tmp_path / "plain"})
    page = report.write(tmp_path / "page").read_text()
    for part in ("Plan: baby", "Decisions", "forced", "Validation loss", "i.i.d.", "Pool growth"):
        assert part in page
    figures = {path.stem for path in (tmp_path / "page" / "figures").iterdir()}
    assert {"pool_growth", "validation_loss_by_examples", "validation_loss_by_seconds", "drawn_scores"} <= figures


def test_a_run_without_evaluation_or_decisions_has_fewer_sections(make_trainer, tmp_path):
    trainer = make_trainer(Phases(2, easy="low"), save_strategy="steps", save_steps=5)
    trainer.train()
    page = training_report(tmp_path / "out").to_html()
    assert "Plan: out" in page
    assert "Decisions" not in page
    assert "Validation loss" not in page.partition("<main")[2]


def test_no_run_at_all(tmp_path):
    with pytest.raises(ValueError, match="needs a complete checkpoint"):
        read_run(tmp_path)
