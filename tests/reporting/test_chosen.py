"""What was chosen while training: numbers from the records of real runs, beside the candidates of their plans."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from hf_curriculum import IID, ByImage, Filter, OnlineSelection, Phases, SelfPaced, make_plan
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.reporting.chosen import (
    MISSING,
    Chosen,
    _at_random,
    _counts,
    _digest_of,
    _parts,
    _quantiles,
    _read_chosen,
    add_chosen,
    chosen_of,
    find_chosen,
    read_draws,
    recorded_choice,
    save_chosen,
)
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.figures.growth import chosen_counts, chosen_scores
from hf_curriculum.reporting.inspection import spread_evenly
from hf_curriculum.reporting.report import Report
from hf_curriculum.training.report import read_run, training_report


@pytest.fixture
def reference(data):
    return data.add_column("reference_loss", (np.arange(24) % 5).astype(np.float32))


@pytest.fixture
def trained(make_trainer, reference):
    """A run in one phase, which reads a reference."""
    rule = OnlineSelection(3, "reducible_loss", "reference_loss", IID(), easy="low")
    trainer = make_trainer(
        rule, max_steps=9, save_strategy="steps", save_steps=6, trainer={"train_dataset": reference}
    )
    trainer.train()
    return trainer


def test_numbers_are_those_of_a_count_by_hand(trained):
    found, plan = chosen_of(trained.plan, trained.args.output_dir), trained.plan
    draws = {step: rows.tolist() for step, rows in read_draws(trained.args.output_dir, 4).items()}
    assert list(draws) == list(range(9))
    taken = Counter(row for rows in draws.values() for row in rows)
    offered = Counter(row for step in range(9) for row in plan.step_rows(step).tolist())
    assert (found.trained, found.candidates, found.steps, found.since) == (36, 108, 9, 0)
    assert (found.rows, found.never) == (24, sum(row not in taken for row in range(24)))
    assert found.most == max(taken.values())
    assert found.shares == [sum(taken[row] == times for row in offered) / 24 for times in range(found.most + 1)]
    once = np.mean([n * (1 / 3) * (2 / 3) ** (n - 1) for n in offered.values()])
    never = np.mean([(2 / 3) ** n for n in offered.values()])
    assert (found.at_random[:2], sum(found.at_random)) == (pytest.approx([never, once]), pytest.approx(1))
    for name, values in (("difficulty", np.arange(24) % 6), ("reference_loss", np.arange(24) % 5)):
        chosen = np.mean([values[row] for rows in draws.values() for row in rows])
        assert found.means[name] == pytest.approx([chosen, sum(values[row] * n for row, n in offered.items()) / 108])
    parts = found.columns["difficulty"]
    assert [part["name"] for part in parts] == ["steps 1–3", "steps 4–5", "steps 6–7", "steps 8–9"]
    of_first = [row % 6 for step in range(3) for row in plan.step_rows(step)]
    assert parts[0]["candidates"] == [*np.percentile(of_first, (0, 25, 50, 75, 100)), np.mean(of_first)]
    assert found.easy == {"difficulty": "low"}
    assert Chosen(**json.loads(json.dumps(asdict(found)))).describe() == found.describe()


def test_the_line_in_words():
    made = {"trained": 48, "candidates": 192, "choice": "the best", "rows": 48, "never": 12, "shares": [0.25, 0.75]}
    assert Chosen(**made, most=5, means={"clip_similarity": [0.31, 0.22]}).describe() == (
        "trained on 48 examples, the best of 192 candidates; 12 of 48 rows were never chosen, the most chosen one 5 "
        "times; clip_similarity 0.31 of the chosen, 0.22 of the candidates"
    )
    assert Chosen(**made, most=1, since=20).describe().startswith("after step 20: trained on 48 examples")
    assert "the most chosen one once" in Chosen(**made, most=1).describe()
    few = Chosen(**made, most=2, all_rows=60).describe()
    assert "; 12 of the 48 rows that were candidates were never chosen, the most" in few


def test_phases_are_parts_and_what_losses_ordered_before_is_not_told(make_trainer, data, tmp_path):
    trainer = make_trainer(OnlineSelection(2, "loss", then=Phases(3, epochs_per_phase=2), easy="low"))
    trainer.train()
    found = chosen_of(trainer.plan, trainer.args.output_dir)
    parts = found.columns["difficulty"]
    assert found.all_rows is None
    assert [part["name"] for part in parts] == ["phase 1", "phase 2", "phase 3"]
    assert parts[0]["candidates"][4] < parts[2]["candidates"][4]
    folder = str(tmp_path / "paced")
    saving = {"save_strategy": "steps", "save_steps": 50}
    paced = make_trainer(
        OnlineSelection(2, "loss", then=SelfPaced(epochs=6)), output_dir=folder, score_column=None, **saving
    )
    paced.train()
    found = chosen_of(paced.plan, folder)
    run = read_run(folder)
    assert find_chosen(folder, run, data, run["losses"]) == (asdict(found), "")
    assert found.since == paced.plan.log[-1]["step"] > 0
    assert found.since + found.steps == paced.state.global_step
    assert (found.columns, found.means) == ({}, {})
    plain = make_trainer(IID(epochs=1)).plan
    assert recorded_choice(plain, tmp_path) is None
    with pytest.raises(ValueError, match=r"IID\(epochs=1\) draws 1 for each example, and .* has no complete record"):
        chosen_of(plain, tmp_path)


def test_a_record_is_read_from_all_processes_and_a_torn_line_is_left_out(tmp_path):
    def write(rank, *lines):
        (tmp_path / f"draws-rank{rank}.jsonl").write_text("".join(lines))

    write(0, "[0, [1, 2], [0.5, null]]\n", "[1, [3, 4], [1, 1]]\n", "[2, [9, 8, 7, 6], [1, 1, 1, 1]]\n", "[3, [5, 5")
    write(1, "[0, [5, 6], [1, 1]]\n", "[2, [0, 0], [1, 1]]\n")  # step 2 was trained again, by one process
    found = {step: rows.tolist() for step, rows in read_draws(tmp_path, 4).items()}
    assert found == {0: [1, 2, 5, 6], 2: [9, 8, 7, 6]}


def test_a_record_of_another_run_is_refused(trained):
    others = sorted(set(range(24)) - set(trained.plan.step_rows(0).tolist()))[:4]
    record = Path(trained.args.output_dir) / "draws-rank0.jsonl"
    record.write_text(json.dumps([0, others, [1, 1, 1, 1]]) + "\n")
    with pytest.raises(ValueError, match="steps 1 to 1 with rows that are no candidates of this plan's"):
        chosen_of(trained.plan, trained.args.output_dir)
    run = read_run(trained.args.output_dir)
    found, why = find_chosen(trained.args.output_dir, run, trained.train_dataset)
    assert found is None
    assert why.startswith("What was chosen cannot be told.")


def test_the_plan_is_made_again_from_the_data_or_it_is_said_why_not(trained, data, reference, tmp_path):
    folder = trained.args.output_dir
    run = read_run(f"{folder}/checkpoint-9")
    expected = asdict(chosen_of(trained.plan, folder))
    for place in (folder, f"{folder}/checkpoint-9"):
        assert find_chosen(place, run, reference) == (expected, "")
    alone, why = find_chosen(folder, run)
    assert (alone["trained"], alone["candidates"], alone["never"]) == (36, 108, expected["never"])
    assert (alone["at_random"], alone["columns"]) == (None, {})
    assert "`--dataset`" in why
    other = reference.remove_columns("difficulty").add_column("difficulty", np.arange(24.0))
    for given, message in (
        (reference.select(range(20)), "trained on 24 rows, and the data has 20"),
        (data, "`reference_loss`"),
        (other, "not those that the run was planned with"),
    ):
        found, why = find_chosen(folder, run, given)
        assert found == alone
        assert why.startswith("What it was chosen among is not shown:")
        assert message in why
    early = {**run, "steps": 12}
    assert "records of 3 of 12 steps are incomplete" in find_chosen(folder, early)[1]
    save_chosen(trained.plan, folder)
    assert find_chosen(folder, run) == (json.loads(json.dumps(expected)), "")
    assert find_chosen(folder, early)[0]["columns"] == {}  # it is of another length
    at_first = {**read_run(f"{folder}/checkpoint-6"), "decisions": ()}
    early, why = find_chosen(f"{folder}/checkpoint-6", at_first, reference)
    assert (early["steps"], early["trained"], why) == (6, 24, "")
    assert find_chosen(f"{folder}/checkpoint-6", at_first)[0]["trained"] == 24
    moved = tmp_path / "moved"
    moved.mkdir()
    assert find_chosen(moved, run) == (None, MISSING)
    (moved / "draws-rank1.jsonl").write_text("[0, [1], [1]]\n")
    assert find_chosen(moved, run)[1].startswith("No step's record")
    assert find_chosen(moved, {**run, "plan": {}}) == (None, "")


def test_a_plan_of_any_length_is_made_again(make_trainer, data, tmp_path):
    for number, (rule, given) in enumerate(
        {
            OnlineSelection(2, "loss", easy="low"): {"num_train_epochs": 1.3},
            OnlineSelection(2, "loss", then=Phases(2), easy="low"): {},
            OnlineSelection(3, "loss", then=Phases(2, 5), easy="low"): {"max_steps": 4},
        }.items()
    ):
        folder = str(tmp_path / str(number))
        trainer = make_trainer(rule, output_dir=folder, save_strategy="epoch", **given)
        trainer.train()
        assert find_chosen(folder, read_run(folder), data) == (asdict(chosen_of(trainer.plan, folder)), "")


def test_a_page_draws_and_says_it(trained, reference, tmp_path, monkeypatch):
    folder, png = trained.args.output_dir, to_png(chosen_counts([1.0]))
    monkeypatch.setattr("hf_curriculum.reporting.report.to_png", lambda figure: png)  # drawing takes seconds
    page = training_report(folder, dataset=reference).write(tmp_path / "page").read_text()
    found = chosen_of(trained.plan, folder).describe()
    for words in (f"T{found[1:]}.", "Scores of the candidates drawn", "examples scored", "value chosen"):
        assert words in page
    names = {file.stem for file in (tmp_path / "page" / "figures").iterdir()}
    assert names >= {"chosen_difficulty", "chosen_reference_loss", "chosen_counts"}
    for file in (tmp_path / "out").glob("draws-rank*"):
        file.unlink()
    text = training_report(folder).to_html()
    assert "this page cannot tell it" in text
    plain = Report("t").add_text(None, "x")
    add_chosen(plain, [{"name": "plain", "chosen": None, "not_told": ""}])
    assert "What was chosen" not in plain.to_html()


def test_runs_stand_below_each_other(monkeypatch):
    figures = []
    monkeypatch.setattr(Report, "add_figure", lambda report, *given, name, **more: figures.append(name))
    part = {"name": "phase 1", "candidates": [0, 1, 2, 3, 4, 2], "chosen": [1, 2, 3, 3, 4, 2.6]}
    made = {
        "trained": 4,
        "candidates": 8,
        "choice": "the best",
        "rows": 5,
        "never": 1,
        "most": 1,
        "shares": [0.2, 0.8],
    }
    runs = [{"name": arm, "chosen": {**made, "trained": at, "columns": {"score": [part]}}}
            for at, arm in enumerate(["a", "b", "a"])]  # fmt: skip
    report = Report("t")
    add_chosen(report, [*runs, {"name": "control"}])
    assert figures == ["chosen_score", "chosen_counts", "chosen_1_score", "chosen_1_counts"]
    html = report.to_html()
    assert html.index("What was chosen: a") < html.index("What was chosen: b")
    assert "Trained on 0 examples" in html  # of an arm's seeds the first
    assert "Trained on 2 examples" not in html


@pytest.mark.parametrize("theme", [LIGHT, DARK, LIGHT.narrow()], ids=["light", "dark", "narrow"])
def test_the_figures_hold_the_numbers(theme):
    parts = [{"name": f"phase {n}", "candidates": [0, 1, 2, 3, 4], "chosen": [1, 2, 3 + n, 5, 6]} for n in range(2)]
    figure = chosen_scores(parts, name="score", easy="high", theme=theme)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [one for one in axes.patches if isinstance(one, Rectangle) and one.get_linewidth() == 1.4]
    assert [(box.get_y(), box.get_height()) for box in boxes] == 2 * [(1, 2), (2, 3)]
    assert [text.get_text() for text in axes.texts] == ["2", "3", "2", "4"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["phase 0", "phase 1"]
    low, high = axes.get_ylim()
    assert low < 0 < 4 < high
    figure = chosen_counts([0.2, 0.5, 0.3], [0.1, 0.6, 0.3], theme=theme)
    figure.draw_without_rendering()
    heights = [round(bar.get_height(), 6) for bar in figure.axes[0].patches if bar.get_linewidth() == 1.4]
    assert heights == [20, 50, 30, 10, 60, 30]
    assert [text.get_text() for text in figure.axes[0].texts] == ["20 %", "50 %", "30 %"]
    assert len(chosen_counts([1.0], theme=theme).axes[0].patches) == 2  # one on the other


def test_figures_of_nothing():
    with pytest.raises(ValueError, match="No part of a run has values of `score`"):
        chosen_scores([])
    with pytest.raises(ValueError, match="0 shares and none at random"):
        chosen_counts([])
    with pytest.raises(ValueError, match="2 shares and 1 at random"):
        chosen_counts([0.5, 0.5], [1.0])


def test_rows_that_were_no_candidates_are_not_counted(make_trainer):
    trainer = make_trainer(Filter(0.5, OnlineSelection(2, "loss"), easy="low"), num_train_epochs=2)
    trainer.train()
    found = chosen_of(trainer.plan, trainer.args.output_dir)
    assert (found.rows, found.all_rows, found.candidates) == (12, 24, trainer.plan.num_draws)
    assert max(part["candidates"][4] for part in found.columns["difficulty"]) == 2


def test_images_are_counted_by_their_captions(make_trainer, data):
    images = data.add_column("image_id", [str(row // 2) for row in range(24)])
    trainer = make_trainer(
        OnlineSelection(3, "loss", easy="low", batches=ByImage(2)),
        num_train_epochs=3,
        trainer={"train_dataset": images},
    )
    trainer.train()
    found, plan = chosen_of(trainer.plan, trainer.args.output_dir), trainer.plan
    assert (found.trained, found.candidates) == (plan.num_examples, plan.num_draws) == (24, 72)
    draws = read_draws(trainer.args.output_dir, 4)
    assert all((rows // 2).reshape(-1, 2).std(1).max() == 0 for rows in draws.values())  # both captions of an image
    assert sum(found.shares) == pytest.approx(1) == pytest.approx(sum(found.at_random))


def test_shares_by_hand():
    assert _counts(np.array([0, 1, 1, 3])) == {"rows": 4, "never": 1, "most": 3, "shares": [0.25, 0.5, 0.0, 0.25]}
    assert _counts(np.array([12, 13, 99, 0]))["shares"] == [0.25, *[0.0] * 11, 0.75]
    assert _counts(np.array([0, 0]))["shares"] == [1.0]
    # Rows offered no, one, and two times among two: one and one, a half and a half, a quarter, a half and a quarter.
    assert _at_random(np.array([0, 1, 2, 2]), 2, 2) == [0.5, 0.375, 0.125]
    assert _at_random(np.array([0, 1, 2, 2]), 2, 1) == [0.5, 0.5]
    assert _at_random(np.array([3]), 4, 4) == pytest.approx([27 / 64, 27 / 64, 9 / 64, 1 / 64, 0])
    assert spread_evenly(range(20), 8) == [0, 3, 5, 8, 11, 14, 16, 19]
    assert spread_evenly(range(3), 8) == [0, 1, 2]
    assert _quantiles(np.float32([0, 1, 2, 3, 4, np.nan, np.inf])) == [0, 1, 2, 3, 4, 2]
    assert _quantiles(np.array([np.nan])) == []


def test_parts_of_a_run_are_its_phases_or_quarters():
    def named(rule, steps):
        plan = make_plan(rule, np.arange(24.0), global_batch_size=4)
        return [(name, part.tolist()) for name, part in _parts(plan, np.array(steps))]

    assert named(Phases(2, 1), [0, 1, 2, 3, 4, 5, 6]) == [("phase 1", [0, 1, 2]), ("phase 2", [3, 4, 5, 6])]
    quarters = ["steps 1–2", "steps 3–4", "steps 5–6", "steps 7–7"]
    assert [name for name, _ in named(IID(3), range(7))] == quarters
    assert named(IID(3), [1, 4]) == [("steps 2–2", [1]), ("steps 5–5", [4])]


def test_what_another_run_chose_is_not_read(tmp_path):
    plan, other = (make_plan(IID(3), np.arange(24.0), global_batch_size=4, seed=seed) for seed in (0, 1))
    chosen, file = {"since": 2, "steps": 5}, tmp_path / "chosen.json"
    write_sealed(file, {"plan": _digest_of(plan.to_dict()), "chosen": chosen})
    saved = json.loads(json.dumps(plan.to_dict()))
    assert [_read_chosen(file, saved, steps) for steps in (5, 7)] == [None, chosen]
    assert _read_chosen(file, other.to_dict(), 7) is None
    assert _read_chosen(file, make_plan(IID(4), np.arange(24.0), global_batch_size=4).to_dict(), 7) is None
    assert _read_chosen(tmp_path / "none.json", saved, 7) is None
    file.write_text(file.read_text().replace('"since": 2', '"since": 3'))
    with pytest.raises(DamagedFileError, match=r"chosen\.json was damaged, or changed after .*Delete it"):
        _read_chosen(file, saved, 7)
