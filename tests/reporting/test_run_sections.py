"""Sections of a report on runs: curves of every metric, what joined when, and who was as good how soon."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hf_curriculum import IID, BabySteps, make_plan
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_training


@pytest.fixture
def figures(monkeypatch):
    """Figures by name, undrawn: (title, what would be drawn, its caption)."""
    found = {}
    monkeypatch.setattr(
        Report,
        "add_figure",
        lambda report, title, figure, caption="", *, name: found.update({name: (title, figure, caption)}),
    )
    return found


def run(name, curriculum, ciders, seed=0):
    """A run evaluated on sets, as `Trainer` logs them, and the decisions that its curriculum takes on them."""
    plan = make_plan(curriculum, np.arange(40.0), global_batch_size=4, seed=seed, epochs=None)
    log = []
    for cider in ciders:
        if plan.undecided:
            step = plan.known_steps
            plan = plan.decided(Observed(step=step, metrics={"eval_images_cider": cider}))
        else:
            step = 10 * (1 + len(log) // 2)
        facts = {"step": step, "examples": 4 * step, "seconds": 1.0 * step}
        log += [{"eval_pairs_loss": 2.0 - cider, **facts}, {"eval_images_cider": cider, **facts}]
    return {"name": name, "seed": seed, "plan": plan.to_dict(), "log": log, "decisions": plan.log}


BABY = BabySteps(2, patience=1, metric="images_cider", epochs=4, easy="low")


def test_sets_have_a_figure_each_with_what_joined(figures):
    baby = run("baby", BABY, [0.2, 0.1, 0.3, 0.5])
    assert [entry["decision"] for entry in baby["decisions"]] == ["stay", "merge"]
    add_training(Report("t"), [baby, run("plain", IID(epochs=4), [0.25, 0.3, 0.28, 0.29])])
    assert list(figures) == ["eval_pairs_loss_by_examples", "eval_images_cider_by_examples"]
    title, drawn, caption = figures["eval_images_cider_by_examples"]
    joined = 4 * baby["decisions"][1]["step"]
    assert title == "Validation CIDEr-D of images"
    assert drawn.keywords["merges"] == {"baby": [(joined, "2")], "plain": []}
    assert drawn.keywords["boundaries"] == []  # rounds are no phases
    assert (drawn.keywords["reference"], drawn.keywords["log"]) == (0.3, False)
    assert "in a ring: the bucket that joins there" in caption
    assert "reference" not in figures["eval_pairs_loss_by_examples"][1].keywords
    axes = drawn().axes[0]
    assert [text.get_text() for text in axes.texts if text.get_bbox_patch() is not None] == ["2"]


def test_a_metric_that_decides_has_a_figure_too(figures):
    points = [{"eval_recall": 0.5, "examples": 8, "seconds": 1.0}]
    decisions = [{"step": 2, "decision": "merge", "bucket": 1, "metric": "recall"}]
    baby = {**run("baby", BABY, [0.1]), "log": points, "decisions": decisions}
    add_training(Report("t"), [baby])
    assert list(figures) == ["eval_recall_by_examples"]
    assert figures["eval_recall_by_examples"][1].keywords["reference"] is None  # there is no run beside it


def test_a_set_s_loss_that_is_no_number_is_said(figures):
    baby = run("baby", BABY, [0.2, 0.1])
    broken = {**baby, "name": "broken", "log": [{"eval_pairs_loss": float("nan"), "examples": 4}]}
    report = Report("t")
    add_training(report, [baby, broken])
    assert "no curve shows it: broken diverged." in report.to_html()
    assert list(figures["eval_pairs_loss_by_examples"][1].args[0]) == ["baby"]


def cells(report):
    _, _, rest = report.to_html().partition("Examples until as good as without a curriculum</h2>")
    return re.findall(r"<td[^>]*>(.*?)</td>", rest.partition("</table")[0])


def test_examples_until_as_good_as_the_control(figures):
    baby, slow = run("baby", BABY, [0.2, 0.1, 0.3, 0.5]), run("slow", BABY, [0.1, 0.1, 0.1, 0.1])
    plain = run("plain", IID(epochs=4), [0.25, 0.3, 0.28])
    blind = {**run("blind", BABY, []), "log": [{"eval_pairs_loss": 3.0, "examples": 4}]}
    report = Report("t")
    add_training(report, [baby, slow, plain, blind])
    reached = next(entry["examples"] for entry in baby["log"] if entry.get("eval_images_cider", 0) >= 0.3)
    assert cells(report) == [
        *("baby", f"{reached} (1.7)", f"{reached} (0.3)"),
        *("slow", "never (1.7)", "never (0.3)"),
        *("plain", "80 (1.7)", "80 (0.3)"),
        *("blind", "never (1.7)", "–"),
    ]
    assert "In brackets: the best value of plain" in report.to_html()


def test_seeds_are_compared_with_the_control_of_their_own(figures):
    runs = [
        run(name, rule, ciders, seed)
        for seed, ciders in ((0, [0.3, 0.3]), (1, [0.6, 0.6]))
        for name, rule in (("baby", BABY), ("plain", IID(epochs=4)))
    ]
    report = Report("t")
    add_training(report, runs)
    _, drawn, caption = figures["eval_images_cider_by_examples"]
    assert drawn.keywords["arms"] == {f"{name}, seed {seed}": name for seed in (0, 1) for name in ("baby", "plain")}
    assert "the bucket that joins there, in the first seed" in caption
    assert "the mean of its seeds' last values" in caption
    assert [cell.partition("(")[2] for cell in cells(report)[2::3]] == ["0.3)", "0.3)", "0.6)", "0.6)"]


@pytest.mark.parametrize("curriculum", [BABY, IID(epochs=4)])
def test_without_a_control_or_without_another_there_is_no_table(figures, curriculum):
    report = Report("t")
    add_training(report, [run("one", curriculum, [0.1, 0.2])])
    report.add_text("end", "end")
    assert not cells(report)
