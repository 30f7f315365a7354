"""The recipe's seeds, grid and control: which runs they make, and what is left when one diverges."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import babylm_git
import pytest
from babylm.arguments import output_folder
from recipe_runs import parser_of

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "babylm_git.py"


def options_of(*options):
    return parser_of().parse(["--preset", "smoke", *options])


@pytest.mark.parametrize("given", [("0,1,2",), ("0", "1", "2"), ("0,1", "2")])
def test_seeds(given):
    assert options_of("--seeds", *given).seeds == [0, 1, 2]
    assert options_of().seeds == [0]
    assert options_of("--seed", "3").seeds == [3]


def test_grid_values_are_read_as_the_field_s_kind():
    rules = 'curriculum=phases, {type: phases, steps_per_phase: [3, 4]},{"type": "iid", "epochs": 2}'
    grid = options_of("--grid", "global_batch_size=8,16", "--grid", rules, "--grid", "noun_tags=none,NN+NNP").grid
    assert grid == {
        "global_batch_size": [8, 16],
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
        (["speed=1"], "'speed=1' is not FIELD=A,B with one of the fields that make a run"),
        (["batch_size=1"], "'batch_size=1' is not FIELD=A,B"),
        (["seed=1,2"], "'seed=1,2' is not FIELD=A,B with one of the fields that make a run"),
        (["max_length"], "'max_length' is not FIELD=A,B"),
        (["max_length=a"], "invalid int value: 'a'"),
        (["curriculum=spirals"], "'spirals'"),
        (["max_length=1", "--grid", "max_length=2"], "'max_length' is given twice"),
    ],
)
def test_a_grid_that_cannot_be_read_ends_with_a_usage(capsys, given, message):
    with pytest.raises(SystemExit, match="2"):
        options_of("--grid", *given)
    assert message in capsys.readouterr().err


@pytest.fixture
def start(monkeypatch, tmp_path):
    """`start(*options)` runs the recipe without training; returns the runs made, and what the results are made of."""

    def call(*options, error=None):
        made, written = [], []

        def run(data_args, model_args, args, training_args):
            made.append(
                SimpleNamespace(**{**vars(data_args), **vars(model_args), **vars(args), **vars(training_args)})
            )
            if error is not None and training_args.seed == 1:
                raise error
            return {"eval_loss": 1.0}

        monkeypatch.setattr("babylm_git.run", run)
        monkeypatch.setattr("babylm_git.write_results", lambda system, _, *given: written.append((system, *given)))
        command = ["babylm_git.py", "--preset", "smoke", "--output_dir", str(tmp_path), *options]
        monkeypatch.setattr(sys, "argv", command)
        babylm_git.main()
        return made, written[0]

    return call


def test_grid_and_compare_make_one_control_for_every_setting(start):
    made, (_, study, controls) = start("--grid", "max_length=8,16", "--compare", "--seeds", "0,1")
    assert [(given.max_length, type(given.curriculum).__name__.lower(), given.seed) for given in made] == [
        (size, rule, seed) for seed in (0, 1) for rule in ("phases", "iid") for size in (8, 16)
    ]
    assert controls == {"max_length=8": "control, max_length=8", "max_length=16": "control, max_length=16"}
    assert {item.status for item in study.runs} == {"finished"}
    again, _ = start("--grid", "max_length=8,16,32", "--compare", "--seeds", "0,1")
    assert {given.max_length for given in again} == {32}


def test_without_compare_the_first_of_a_grid_is_the_control(start):
    assert start("--grid", "learning_rate=1e-3,1e-2")[1][2] == {"learning_rate=0.01": "learning_rate=0.001"}
    assert start()[1][2] == {}


def test_compare_alone_keeps_its_names(start):
    made, (_, study, controls) = start("--compare")
    assert controls == {"curriculum": "control"}
    assert [item.folder.name for item in study.runs] == ["curriculum-seed0", "control-seed0"]
    assert made[1].output_dir == str(study.output_dir / "control-seed0")


def test_the_control_alone(start):
    made, (_, study, controls) = start("--control")
    assert [item.folder.name for item in study.runs] == ["control-seed0"]
    assert (made[0].curriculum.to_dict(), controls) == ({"type": "iid", "epochs": 3}, {})
    again, _ = start("--compare")  # the control is there already
    assert [type(given.curriculum).__name__.lower() for given in again] == ["phases"]


def test_the_control_alone_over_a_grid(start):
    made, (_, study, controls) = start("--control", "--grid", "max_length=8,16", "--grid", "curriculum=phases,iid")
    assert [item.arm for item in study.runs] == ["control, max_length=8", "control, max_length=16"]
    assert controls == {"control, max_length=16": "control, max_length=8"}
    assert {type(given.curriculum).__name__.lower() for given in made} == {"iid"}


def test_a_run_without_a_curriculum_is_called_control(start):
    assert [item.arm for item in start("--curriculum", "iid")[1][1].runs] == ["control"]
    with pytest.raises(ValueError, match=r"--compare was given, but the curriculum is iid, as a control's"):
        start("--curriculum", "iid", "--compare")


def test_the_control_is_made_alone_or_beside(capsys):
    with pytest.raises(SystemExit, match="2"):
        options_of("--control", "--compare")
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
        (("--preset", "embedded"), "embedded"),
        (("--preset", "embedded", "--data", "my own/photos.json", "--control"), "photos-control"),
        (("--preset", "embedded", "--data", "my photos/"), "my-photos"),
        (("--preset", "paper", "--data", "photos"), "paper"),
    ],
)
def test_default_folders_do_not_collide(given, folder):
    parser = parser_of()
    options = parser.parse(["--preset", "smoke", *given])
    assert output_folder(parser, options) == Path("outputs/babylm_git") / folder
    assert output_folder(parser, parser.parse([*given, "--output_dir", "mine"])) == Path("mine")


def test_settings_that_contradict_each_other_are_refused_before_the_first_run(start):
    with pytest.raises(ValueError, match=r"text_weight=0\.5 was given without text"):
        start("--grid", "text_weight=none,0.5")
    with pytest.raises(ValueError, match="global_batch_size=32 is not possible with 1 device,"):
        start("--per_device_train_batch_size", "5")
    assert not list(Path(sys.argv[4]).iterdir())


def test_a_finished_run_that_is_to_be_pushed_is_taken_up_again(start):
    assert len(start("--seeds", "0,1")[0]) == 2
    made, _ = start("--seeds", "0,1", "--push_to_hub", "--hub_model_id", "me/git")
    assert [given.hub_model_id for given in made] == ["me/git-curriculum-seed0", "me/git-curriculum-seed1"]
    made, _ = start("--push_to_hub", "--hub_model_id", "me/git", "--report_to", "tensorboard")
    assert (made[0].hub_model_id, made[0].report_to, made[0].hub_strategy) == ("me/git", ["tensorboard"], "end")
    assert made[0].run_name == f"{Path(made[0].output_dir).parent.name}/curriculum-seed0"
    (made,), _ = start("--push_to_hub", "--hub_model_id", "me/git", "--hub_strategy", "checkpoint")
    assert made.hub_strategy == "checkpoint"


def test_a_crash_is_told_once_and_counted_at_the_end(start, caplog):
    with pytest.raises(SystemExit, match=r"^1 of 2 runs crashed: see above\.$"):
        start("--seeds", "0,1", error=OSError("disk"))
    assert caplog.text.count("1 finished, 1 crashed\n- curriculum, seed 1: crashed, OSError: disk") == 1


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    def start(folder):
        command = ["babylm_git.py", "--preset", "smoke", "--num_examples", "120", "--output_dir", str(folder)]
        monkeypatch.setattr(sys, "argv", command)
        babylm_git.main()
        return json.loads((folder / "results.json").read_text())[0]

    whole = start(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("babylm.evaluation.generate_captions", Mock(side_effect=KeyboardInterrupt))
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
def test_a_run_that_diverges_is_no_number_and_the_rest_is_reported(launch, tmp_path):
    options = ("--preset", "smoke", "--num_examples", 120, "--output_dir", tmp_path)
    done = launch(RECIPE, *options, "--grid", "learning_rate=3e-3,1e25")
    assert "2 runs: 1 finished, 1 diverged" in done.stderr
    facts = json.loads((tmp_path / "study.json").read_text())
    assert [(row["n"], row["diverged"]) for row in facts["summary"] if row["metric"] == "eval_loss"] == [
        (1, 0),
        (0, 1),
    ]
    assert facts["runs"][1]["step"] > 0
    assert len(json.loads((tmp_path / "results.json").read_text())) == 1
    assert (tmp_path / "report" / "report.html").is_file()
