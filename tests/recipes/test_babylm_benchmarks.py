"""The challenge's benchmarks beside the figures of the paper's tables: what is refused, named, and scored once."""

from __future__ import annotations

import json
import math
import sys

import babylm_flamingo
import babylm_git
import pytest
from babylm.benchmarks import benchmark_numbers, table_metrics
from babylm.data import read_before

from hf_curriculum import Study
from hf_curriculum.studies.recipe import study_arms
from hf_curriculum.tasks.babylm import TextImageScorer
from hf_curriculum.tasks.babylm.run import TaskResult
from hf_curriculum.tasks.babylm.suite import SuiteResult

TABLES = ["table1", "table6", "table9", "table11"]


def test_the_paper_s_variants_are_the_rows_of_its_tables():
    for recipe in (babylm_git, babylm_flamingo):
        for table in [one for one in TABLES if recipe is babylm_git or one != "table6"]:
            options = recipe.PARSER.parse(["--preset", "paper", "--text", "train_50M", "--table", table])
            arms, controls, _ = study_arms(options)
            assert list(arms) == ["C", "T+C", "CL C", "CL T+C"]
            assert controls == {"CL C": "C", "CL T+C": "T+C"}
            assert [arm["text_epochs"] for arm in arms.values()] == [0, 20, 0, 20]
            rules = [arm["curriculum"]["type"] for arm in arms.values()]
            assert rules == ["iid", "iid", "phases", "phases"]
            assert arms["C"]["curriculum"] == options.settings["control_curriculum"]
            assert all(arm.paper for arm in options.arms.values())
        arms, _, _ = study_arms(recipe.PARSER.parse(["--text", "scenes", "--grid", "embedded"]))
        assert arms["C"]["curriculum"] == arms["CL C"]["control_curriculum"]


def test_a_variant_that_reads_text_is_refused_without_any(tmp_path):
    study = Study(lambda given: {}, {"CL T+C": {"text": None}}, [0], tmp_path)
    with pytest.raises(ValueError, match=r"'CL T\+C' is trained on text first, and none was given: .* `--text PATH`"):
        read_before(study)


def test_benchmarks_that_cannot_be_run_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(babylm_git, "run", lambda *_: pytest.fail("a run was made"))
    command = ["babylm_git.py", "--preset", "smoke", "--output_dir", str(tmp_path), "--benchmarks"]
    monkeypatch.setattr(sys, "argv", [*command, "evaluation_data"])
    with pytest.raises(ValueError, match=r"--benchmarks evaluation_data is no folder\. Give the challenge's"):
        babylm_git.main()
    monkeypatch.setattr(sys, "argv", [*command, "miniature"])
    monkeypatch.setattr("babylm.benchmarks.PartialState", lambda: type("State", (), {"num_processes": 2}))
    with pytest.raises(ValueError, match="--benchmarks runs on one process"):
        babylm_git.main()


def test_every_average_and_subtask_has_a_name_and_is_in_per_cent():
    tasks = {
        "devbench": (
            {"lex-viz_vocab": {"accuracy": 0.5, "human_similarity": 0.25}, "sem-things": {"rsa": 0.125}},
            {"accuracy": 0.75, "human_similarity": math.nan},
        ),
        "glue": ({"cola": {"accuracy": 0.9, "score": 0.5}}, {"score": 0.5}),
        "winoground": ({"winoground": {"accuracy": 0.375}}, {"accuracy": 0.375}),
    }
    made = {name: TaskResult(name, subtasks, averages, {}, {}) for name, (subtasks, averages) in tasks.items()}
    assert benchmark_numbers(SuiteResult(made, {}, {}, "")) == {
        "lex-viz_vocab": 50.0,
        "lex-viz_vocab human_similarity": 25.0,
        "sem-things": 12.5,
        "devbench": 75.0,
        "cola": 50.0,
        "cola accuracy": 90.0,
        "glue": 50.0,
        "winoground": 37.5,
    }


def test_a_table_shows_what_its_paper_names_or_every_benchmark(tmp_path):
    arms = {"C": {"a": 1}, "CL C": {"a": 2}}
    study = Study(lambda given: {}, arms, [0], tmp_path, paper={"C": {"vqa": 41.22}, "CL C": {"vqa": 1, "hours": 50}})
    assert table_metrics(study) == ["vqa", "hours"]
    study = Study(lambda given: {}, arms, [0], tmp_path)
    study.runs[0].result = {"ewok": 50.0, "blimp": 60.0, "cola": 1.0}
    assert table_metrics(study) == ["blimp", "ewok"]


@pytest.mark.slow
def test_a_table_of_the_paper_on_miniatures(tmp_path, monkeypatch, capsys):
    """Two variants are trained, evaluated and set beside the paper's figures; a second start scores nothing again."""
    batches, in_batches = [], TextImageScorer.in_batches

    def counted(self, rows, score):
        batches.append(len(rows))
        return in_batches(self, rows, score)

    monkeypatch.setattr(TextImageScorer, "in_batches", counted)
    command = ["babylm_git.py", "--preset", "smoke", "--num_examples", "120", "--text", "scenes", "--table", "table1"]
    command += ["--arms", "C", "CL C", "--benchmarks", "miniature", "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    babylm_git.main()
    shown = capsys.readouterr().out
    scored = len(batches)
    assert scored > 0
    assert "their scores cannot be compared with the paper's" in shown
    runs = json.loads((tmp_path / "results.json").read_text())
    assert [run["name"] for run in runs] == ["C", "CL C"]
    assert all({"winoground", "vqa", "devbench", "glue", "ewok", "blimp"} <= set(run) for run in runs)
    (row,) = [line for line in shown.splitlines() if line.replace(" ", "").startswith("|C|winoground|1|")]
    assert f"| {runs[0]['winoground']:.4g} | 54.02 |" in " ".join(row.split())
    babylm_git.main()
    assert len(batches) == scored
    assert json.loads((tmp_path / "results.json").read_text()) == runs
