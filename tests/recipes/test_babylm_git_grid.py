"""The recipe's seeds, grid and control: which runs they make, and what is left when one diverges."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from babylm.settings import Settings
from babylm.study import default_folder

from hf_curriculum.studies.settings import parse_settings

RECIPE = Path(__file__).parents[2] / "recipes" / "babylm_git.py"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("babylm_git_grid", RECIPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["babylm_git_grid"] = module
    spec.loader.exec_module(module)
    return module


def options_of(recipe, *options):
    return parse_settings(Settings, recipe.PRESETS, default="smoke", argv=options)[1]


@pytest.mark.parametrize("given", [("0,1,2",), ("0", "1", "2"), ("0,1", "2")])
def test_seeds(recipe, given):
    assert options_of(recipe, "--seeds", *given).seeds == [0, 1, 2]
    assert options_of(recipe).seeds == [0]


def test_grid_values_are_read_as_the_field_s_kind(recipe):
    rules = 'curriculum=phases, {type: phases, steps_per_phase: [3, 4]},{"type": "iid", "epochs": 2}'
    grid = options_of(recipe, "--grid", "batch_size=8,16", "--grid", rules, "--grid", "noun_tags=none,NN+NNP").grid
    assert grid == {
        "batch_size": [8, 16],
        "curriculum": [
            {"type": "phases"},
            {"type": "phases", "steps_per_phase": [3, 4]},
            {"type": "iid", "epochs": 2},
        ],
        "noun_tags": [None, "NN+NNP"],
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["speed=1"], "'speed=1' is not FIELD=A,B with one of the fields"),
        (["batch_size"], "'batch_size' is not FIELD=A,B"),
        (["batch_size=a"], "invalid literal"),
        (["curriculum=spirals"], "is not a mapping"),
        (["batch_size=1", "--grid", "batch_size=2"], "'batch_size' is given twice"),
    ],
)
def test_a_grid_that_cannot_be_read_ends_with_a_usage(recipe, capsys, given, message):
    with pytest.raises(SystemExit, match="2"):
        options_of(recipe, "--grid", *given)
    assert message in capsys.readouterr().err


@pytest.fixture
def start(recipe, monkeypatch, tmp_path):
    """`start(*options)` runs the recipe without training; returns the runs made, and what the results are made of."""

    def call(*options, error=None):
        made, written = [], []

        def run(system, given):
            assert system.name == "GIT"
            made.append(given)
            if error is not None and given["seed"] == 1:
                raise error
            return {"eval_loss": 1.0}

        monkeypatch.setattr("babylm.stages.run", run)
        monkeypatch.setattr("babylm.study.write_results", lambda *arguments: written.append(arguments))
        monkeypatch.setattr(
            sys, "argv", ["babylm_git.py", "--preset", "smoke", "--output_dir", str(tmp_path), *options]
        )
        recipe.main()
        return made, written[0]

    return call


def test_grid_and_compare_make_one_control_for_every_setting(start):
    made, (_, study, controls, _) = start("--grid", "batch_size=8,16", "--compare", "--seeds", "0,1")
    assert [(given["batch_size"], given["curriculum"]["type"], given["seed"]) for given in made] == [
        (size, rule, seed) for seed in (0, 1) for rule in ("phases", "iid") for size in (8, 16)
    ]
    assert controls == {"batch_size=8": "control, batch_size=8", "batch_size=16": "control, batch_size=16"}
    assert {item.status for item in study.runs} == {"finished"}
    again, _ = start("--grid", "batch_size=8,16,32", "--compare", "--seeds", "0,1")
    assert {given["batch_size"] for given in again} == {32}


def test_without_compare_the_first_of_a_grid_is_the_control(start):
    assert start("--grid", "learning_rate=1e-3,1e-2")[1][2] == {"learning_rate=0.01": "learning_rate=0.001"}
    assert start()[1][2] == {}


def test_compare_alone_keeps_its_names(start):
    made, (_, study, controls, folder) = start("--compare")
    assert controls == {"curriculum": "control"}
    assert [item.folder.name for item in study.runs] == ["curriculum-seed0", "control-seed0"]
    assert made[1]["output_dir"] == str(folder / "control-seed0")


def test_the_control_alone(start):
    made, (_, study, controls, _) = start("--control")
    assert [item.folder.name for item in study.runs] == ["control-seed0"]
    assert (made[0]["curriculum"], controls) == ({"type": "iid", "epochs": 3}, {})
    again, _ = start("--compare")  # the control is there already
    assert [given["curriculum"]["type"] for given in again] == ["phases"]


def test_the_control_alone_over_a_grid(start):
    made, (_, study, controls, _) = start("--control", "--grid", "batch_size=8,16", "--grid", "curriculum=phases,iid")
    assert [item.arm for item in study.runs] == ["control, batch_size=8", "control, batch_size=16"]
    assert controls == {"control, batch_size=16": "control, batch_size=8"}
    assert {given["curriculum"]["type"] for given in made} == {"iid"}


def test_a_run_without_a_curriculum_is_called_control(start):
    assert [item.arm for item in start("--curriculum", "iid")[1][1].runs] == ["control"]
    with pytest.raises(ValueError, match=r"--compare was given, but the curriculum is iid, as a control's"):
        start("--curriculum", "iid", "--compare")


def test_the_control_is_made_alone_or_beside(recipe, capsys):
    with pytest.raises(SystemExit, match="2"):
        options_of(recipe, "--control", "--compare")
    assert "argument --compare: not allowed with argument --control" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ((), "smoke"),
        (("--compare",), "smoke"),
        (("--control",), "smoke-control"),
        (("--text", "scenes"), "smoke-text"),
        (("--text", "scenes", "--control"), "smoke-text-control"),
        (("--preset", "organisers", "--text", "mine"), "organisers"),  # is with text in any case
    ],
)
def test_default_folders_do_not_collide(recipe, given, folder):
    settings, options = parse_settings(Settings, recipe.PRESETS, default="smoke", argv=given)
    assert default_folder(recipe.GIT, settings, options) == Path("outputs/babylm_git") / folder


def test_a_crash_is_told_at_the_end(start):
    with pytest.raises(SystemExit, match=r"1 finished, 1 crashed\n- curriculum, seed 1: crashed, OSError: disk"):
        start("--seeds", "0,1", error=OSError("disk"))


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(recipe, tmp_path, monkeypatch):
    def start(folder):
        command = ["babylm_git.py", "--preset", "smoke", "--num_examples", "120", "--output_dir", str(folder)]
        monkeypatch.setattr(sys, "argv", command)
        recipe.main()
        return json.loads((folder / "results.json").read_text())[0]

    whole = start(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("babylm.stages.generate_captions", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "killed")
    folder = tmp_path / "killed" / "curriculum-seed0"
    first, last = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    shutil.rmtree(last)
    resumed = start(tmp_path / "killed")
    assert resumed["eval_loss"] == whole["eval_loss"]
    assert resumed["captions"] == whole["captions"]
    steps = [entry["step"] for entry in resumed["log"] if "eval_loss" in entry]
    assert steps.count(int(first.name.partition("-")[2])) == 2  # evaluated before the kill, and on resuming


@pytest.mark.slow
def test_a_run_that_diverges_is_no_number_and_the_rest_is_reported(tmp_path):
    command = [
        sys.executable,
        str(RECIPE),
        "--preset",
        "smoke",
        "--num_examples",
        "120",
        "--output_dir",
        str(tmp_path),
    ]
    done = subprocess.run([*command, "--grid", "learning_rate=3e-3,1e25"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 runs: 1 finished, 1 diverged" in done.stderr
    facts = json.loads((tmp_path / "study.json").read_text())
    assert [(row["n"], row["diverged"]) for row in facts["summary"] if row["metric"] == "eval_loss"] == [
        (1, 0),
        (0, 1),
    ]
    assert facts["runs"][1]["step"] > 0
    assert len(json.loads((tmp_path / "results.json").read_text())) == 1
    assert (tmp_path / "report" / "report.html").is_file()
