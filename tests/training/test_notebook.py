"""The progress table that `transformers` shows in a notebook says which phase a run is in."""

from __future__ import annotations

import re
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
from transformers.utils import notebook
from transformers.utils.notebook import NotebookProgressCallback

from hf_curriculum import Mixture, Phases, SelfPaced


@pytest.fixture
def shown(monkeypatch):
    """What a cell shows: the HTML of each display, as it was last updated."""
    cells = []

    def display(html, display_id=False):
        cells.append(html.data)
        place = len(cells) - 1
        return SimpleNamespace(update=lambda newer: cells.__setitem__(place, newer.data))

    monkeypatch.setattr(notebook.disp, "display", display)
    return cells


def table_of(html):
    """The rows of the table, the header first, and the text of the progress bar."""
    rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", html, re.DOTALL)]
    return rows, html.partition("</progress>")[2].partition("</div>")[0].strip()


def train(make_trainer, curriculum, parts=None, **arguments):
    trainer = make_trainer(curriculum, trainer={"callbacks": [NotebookProgressCallback], **(parts or {})}, **arguments)
    trainer.train()
    return trainer


def test_without_evaluation_each_log_is_a_line(make_trainer, shown):
    trainer = train(make_trainer, Phases(3, 1, easy="low"), logging_steps=4)
    rows, bar = table_of(shown[-1])
    assert rows[0] == ["Step", "Phase", "Training Loss"]
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [row[:2] for row in rows[1:]] == [[str(one["step"]), f"{one['curriculum/phase']} of 3"] for one in logs]
    assert [row[0] for row in rows[1:]] == ["2", "4", "6", "8", "12"]  # every four steps, and where a phase ends
    assert [float(row[2]) for row in rows[1:]] == pytest.approx([one["loss"] for one in logs], abs=1e-6)
    assert bar.endswith(", phase 3 of 3 · all]")
    assert shown[-1].count("<progress") == len(shown) == 1


@pytest.mark.parametrize("strategy", ["epoch", "steps"])
def test_each_evaluation_is_a_line(make_trainer, data, shown, strategy):
    evaluation = {"eval_strategy": strategy, "eval_steps": 4, "eval_on_start": True}
    trainer = train(make_trainer, Phases(3, 2, easy="low"), {"eval_dataset": data}, **evaluation)
    rows, _ = table_of(shown[-1])
    assert rows[0] == ["Step", "Phase", "Training Loss", "Validation Loss"]
    evaluated = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [row[0] for row in rows[1:]] == [str(entry["step"]) for entry in evaluated]
    assert [int(row[1][0]) for row in rows[1:]] == [
        trainer.plan.stage_at(max(0, entry["step"] - 1)).number + 1 for entry in evaluated
    ]
    assert [float(row[3]) for row in rows[1:]] == pytest.approx([one["eval_loss"] for one in evaluated], abs=1e-6)


def test_the_bar_says_what_the_phase_draws(make_trainer, shown, monkeypatch):
    said = []
    update = notebook.NotebookProgressBar.update_bar
    monkeypatch.setattr(
        notebook.NotebookProgressBar, "update_bar", lambda bar, value: (said.append(bar.comment), update(bar, value))
    )
    monkeypatch.setattr(notebook.NotebookProgressBar, "warmup", 100)  # each step is shown
    train(make_trainer, Phases(2, 1, cut="value", easy="low"))
    assert list(dict.fromkeys(said)) == ["phase 1 of 2 · difficulty ≤ 2.5", "phase 2 of 2 · all"]


def test_a_curriculum_that_decides_while_training(make_trainer, shown):
    trainer = train(make_trainer, SelfPaced(initial=0.4, epochs=4))
    rows, bar = table_of(shown[-1])
    names = [stage.name for stage in trainer.plan.stages]
    assert [row[1] for row in rows[1:]] == [
        trainer.plan.stage_at(int(row[0]) - 1).name.removeprefix("phase ") for row in rows[1:]
    ]
    assert f", {names[-1]} · " in bar


def test_names_of_the_data_stay_text(make_trainer, data, shown):
    name = "<img src=x onerror=alert(1)>"
    rows = data.add_column("source", [name, "b"] * 12)
    train(make_trainer, Mixture("source", {name: 1, "b": 1}, epochs=1), {"train_dataset": rows}, score_column=None)
    assert "<img" not in shown[-1]
    assert name in unescape(table_of(shown[-1])[1])


def test_without_a_curriculum_the_table_is_the_stock_one(make_trainer, shown):
    train(make_trainer, None, score_column=None, num_train_epochs=1)
    rows, bar = table_of(shown[-1])
    assert rows[0] == ["Step", "Training Loss"]
    assert "Epoch" in bar
    assert np.all([len(row) == 2 for row in rows])
