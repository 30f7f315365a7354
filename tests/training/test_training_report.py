"""A report from what a run's last checkpoint says."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from hf_curriculum import IID, BabySteps, Phases, make_plan, rank_scores
from hf_curriculum.reporting.html import percent
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_scores_section, add_training
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


def test_the_last_phase_is_in_it_whatever_the_logging_steps(make_trainer, tmp_path):
    make_trainer(Phases(3, 1, easy="low"), logging_steps=5, save_strategy="steps").train()
    log = read_run(tmp_path / "out")["log"]
    assert [entry["step"] for entry in log if "loss" in entry] == [2, 5, 6, 10, 12]
    assert [entry["curriculum/phase"] for entry in log if "curriculum/score_q0" in entry] == [1, 2, 3]
    assert log[-1]["examples"] == 48


def test_the_scores_of_the_data_are_shown_where_it_is_given(make_trainer, data, tmp_path):
    captioned = data.add_column("caption", [f"caption {row}" for row in range(len(data))])
    make_trainer(Phases(2, easy="low"), save_strategy="steps", save_steps=5).train()
    assert "Scores: difficulty" not in training_report(tmp_path / "out").to_html()
    page = training_report(tmp_path / "out", dataset=captioned, title="My run").to_html()
    for part in ("My run", "Scores: difficulty", "Easiest examples", "difficulty 5", "caption 23", "out: phases"):
        assert part in page
    rule = {"score_column": None, "output_dir": str(tmp_path / "plain")}
    make_trainer(IID(epochs=1), save_strategy="steps", save_steps=5, **rule).train()
    assert "Scores:" not in training_report(tmp_path / "plain", dataset=captioned).to_html()


def test_runs_stand_beside_each_other_in_numbers(trained, monkeypatch, tmp_path):
    trained(Phases(2, 2, easy="low"), "own")
    trained(IID(epochs=4, easy="low"), "plain")
    tables = {}
    monkeypatch.setattr(
        Report, "add_table", lambda report, title, names, rows, **_: tables.update({title: [tuple(r) for r in rows]})
    )
    training_report(tmp_path / "own")
    assert "Runs" not in tables
    training_report(tmp_path / "own", controls={"i.i.d.": tmp_path / "plain"})
    own, plain = read_run(tmp_path / "own"), read_run(tmp_path / "plain", "i.i.d.")
    assert (own["steps"], plain["steps"]) == (18, 24)
    assert tables["Runs"] == [
        (run["name"], run["steps"], run["examples"], round(run["seconds"], 1), run["eval_loss"])
        for run in (own, plain)
    ]


def test_what_was_written_to_held_out_images_is_shown(make_trainer, tmp_path):
    make_trainer(Phases(2, easy="low"), save_strategy="steps", save_steps=5).train()
    held_out = tmp_path / "out" / "held_out"
    held_out.mkdir()
    assert "Generated captions" not in training_report(tmp_path / "out").to_html()
    (held_out / "captions.json").write_text("[]")
    assert "Generated captions" not in training_report(tmp_path / "out").to_html()
    Image.new("RGB", (8, 8), "red").save(held_out / "1.png")
    entries = [{"file": "1.png", "generated": "a green cup", "references": ["a red cup", "a cup"]}]
    (held_out / "captions.json").write_text(json.dumps(entries))
    page = training_report(tmp_path / "out").to_html()
    for part in ("Generated captions", "by the model of out", "“a green cup”", "reference: a red cup"):
        assert part in page


def test_a_control_with_the_run_s_own_name(trained, tmp_path):
    trained(IID(epochs=4, easy="low"), "plain")
    with pytest.raises(ValueError, match="A control is called 'plain', as is the run itself"):
        training_report(tmp_path / "plain", controls={"plain": tmp_path / "other"})


def test_no_run_at_all(tmp_path):
    with pytest.raises(ValueError, match="needs a complete checkpoint"):
        read_run(tmp_path)


def test_examples_without_a_log_are_those_of_the_plan(make_trainer, tmp_path):
    """Nothing was logged or evaluated when the checkpoint was written."""
    trainer = make_trainer(Phases(2, easy="low"), save_strategy="steps", save_steps=5, logging_steps=1000)
    trainer.train()
    run = read_run(tmp_path / "out" / "checkpoint-5")
    assert (run["steps"], run["examples"]) == (5, trainer.examples_seen(5)) == (5, 20)
    whole = read_run(tmp_path / "out")
    assert whole["examples"] == trainer.examples_seen(whole["steps"])


def test_a_saved_state_beside_the_checkpoints_is_no_checkpoint(trained, tmp_path):
    trainer = trained(IID(epochs=4, easy="low"), "plain")
    trainer.evaluate()  # logged without examples or seconds
    trainer.save_state()
    run = read_run(tmp_path / "plain")
    assert run["steps"] == trainer.state.global_step
    trainer._save_curriculum()  # as a push does: then the folder is a checkpoint, with that evaluation
    run = read_run(tmp_path / "plain")
    assert "examples" not in run["log"][-1]
    report = Report("t")
    add_training(report, [run])
    assert "Validation loss" in report.to_html()


@pytest.fixture
def figures(monkeypatch):
    """Figures by name, undrawn: what would be drawn."""
    found = {}
    monkeypatch.setattr(
        Report,
        "add_figure",
        lambda report, title, figure, caption="", *, name: found.update({name: (figure, caption)}),
    )
    return found


def run_with(losses, name="run", **changes):
    plan = make_plan(Phases(4, easy="low"), np.arange(40.0), global_batch_size=4).to_dict()
    log = [{"eval_loss": loss, "examples": 8 * place, "seconds": 1.0 * place} for place, loss in enumerate(losses)]
    return {"name": name, "seed": 0, "plan": plan, "log": log, **changes}


def test_a_run_that_diverged_has_a_page(figures):
    report = Report("t")
    add_training(report, [run_with([2.0, math.nan], "one"), run_with([math.nan], "two"), run_with([], "three")])
    assert "one, two diverged." in report.to_html()
    assert list(figures["validation_loss_by_examples"][0].args[0]) == ["one"]
    figures.clear()
    report = Report("t")
    add_training(report, [run_with([math.nan]), run_with([1.0], "control")])
    assert figures["validation_loss_by_examples"][0].keywords["boundaries"] == []  # they are the other run's
    figures.clear()
    report = Report("t")
    add_training(report, [run_with([math.nan])])
    assert "Validation loss" in report.to_html()
    assert not figures


def test_what_was_drawn_is_shown_without_any_evaluation(figures):
    drawn = {f"curriculum/score_{name}": 1.0 for name in ("q0", "q25", "q50", "q75", "q100")}
    add_training(Report("t"), [run_with([], log=[{"curriculum/phase": 1, **drawn}])])
    assert list(figures) == ["drawn_scores"]


def logged(step, **curriculum):
    facts = {f"curriculum/{name}": value for name, value in curriculum.items()}
    return {"loss": 1.0, "step": step, "examples": 4 * step, **facts}


def test_what_was_drawn_is_read_from_the_rows_of_the_loss(figures):
    drawn = {f"score_{name}": 1.0 for name in ("q0", "q25", "q50", "q75", "q100")}
    early = {"phase": 1, "pool_size": 10, "score_mean": 1.5, "score_std": 0.5, "repeats": 0.0}
    late = {"phase": 2, "pool_size": 40, "score_mean": 4.25, "score_std": 2.0, "repeats": 0.25}
    log = [
        logged(2, **early, bucket_1=1.0, bucket_2=0.0),
        logged(4, **late, **drawn, bucket_1=0.25, bucket_2=0.75),
        {"eval_loss": 1.0, "step": 4, "examples": 16, "seconds": 1.0},
    ]
    report = Report("t")
    add_training(report, [run_with([], log=log)])
    assert [row["phase"] for row in figures["drawn_scores"][0].args[0]] == [2]
    examples, shares = figures["drawn_shares"][0].args
    assert examples == [8, 16]
    assert shares == {"bucket 1": [1.0, 0.25], "bucket 2": [0.0, 0.75]}
    cells = re.findall(r"<td[^>]*>(.*?)</td>", report.to_html())
    assert cells == ["8", "1", "10", "1.5", "0.5", "0", "16", "2", "40", "4.25", "2", "0.25"]


def test_the_table_of_what_was_drawn_stays_short(figures):
    log = [logged(step, phase=1, pool_size=step, repeats=0.0) for step in range(1, 501)]
    report = Report("t")
    add_training(report, [run_with([], log=log)])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", report.to_html())
    assert len(cells) == 12 * 6
    assert (cells[0], cells[-6]) == ("4", "2,000")  # the first entry and the last
    assert "drawn_shares" not in figures  # nothing was in buckets


@pytest.mark.parametrize(("first", "says"), [(0, "from step 0"), (8, "from each run's first evaluation")])
def test_curves_begin_where_the_caption_says(figures, first, says):
    def run(name, first):
        points = [{"eval_loss": 2.0, "examples": examples, "seconds": 1.0} for examples in (first, 16)]
        return run_with([], name, log=points)

    add_training(Report("t"), [run("one", 0), run("other", first)])
    assert figures["validation_loss_by_examples"][1].startswith(f"Validation loss {says} by examples seen")


@pytest.mark.parametrize(
    ("curriculum", "rows", "cuts"),
    [
        (Phases(4), 40, [9, 19, 29]),
        (Phases(4, pools="exclusive"), 40, [9, 19, 29]),
        (Phases(4), 80, [19, 39, 59]),  # with as many held out: the same shares
        (IID(epochs=2), 40, []),
    ],
)
def test_cuts_are_where_the_phases_have_come_to(figures, curriculum, rows, cuts):
    plan = make_plan(curriculum, rank_scores(np.arange(40.0), score_column="s"), global_batch_size=4).to_dict()
    data = Dataset.from_dict({"caption": ["a"] * rows, "s": np.arange(rows, dtype=np.float32)})
    report = Report("t")
    add_scores_section(report, data, "s", plan)
    (figure, caption) = figures["scores_s"]
    assert figure.keywords["cuts"] == cuts
    assert ("Trained on: 40 of them." in caption) == (rows != 40)
    assert "Easiest examples" in report.to_html()  # a table: there are no images
    assert "s 0" in report.to_html()


@pytest.mark.parametrize(("cut", "shares"), [("rank", [0.25] * 4), ("value", [0.375, 0.375, 0.25])])
def test_shares_of_the_distribution_are_those_of_the_plan(figures, cut, shares):
    scores = np.repeat([2.0, 3.0, 4.0, 6.0], [15, 15, 5, 5])
    plan = make_plan(Phases(4, cut=cut), rank_scores(scores, score_column="s"), global_batch_size=4).to_dict()
    data = Dataset.from_dict({"caption": ["a"] * 40, "s": scores.astype(np.float32)})
    add_scores_section(Report("t"), data, "s", plan)
    figure = figures["scores_s"][0]
    assert figure.keywords["shares"] == shares
    labels = [text.get_text() for text in figure().axes[0].texts]
    assert labels[: len(shares)] == [percent(share) for share in shares]
