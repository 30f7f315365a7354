"""Presets that begin from others, the command line that is made of them, and where a run resumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from hf_curriculum import CurriculumTrainingArguments, Phases, Study, Weighted, curriculum_from, make_plan
from hf_curriculum.config import read_yaml
from hf_curriculum.studies.grid import has_curriculum
from hf_curriculum.studies.recipe import RecipeParser, RunLines, _split, finish, read_preset, resume_point


@dataclass
class Given:
    """A recipe's own fields."""

    rate: float = field(metadata={"help": "how fast"})
    size: int = field(metadata={"help": "how large"})
    control_curriculum: dict | None = None


@pytest.fixture
def presets(tmp_path):
    files = {
        "a/paper.yaml": "rate: 1.0\nsize: 1\n",
        "a/small.yaml": "base: paper\nsize: 2\n",
        "parts/fast.yaml": "rate: 3.0\n",
        "b/paper.yaml": "base: ../a/paper\nsize: 4\n",
        "b/small.yaml": "base: [../a/small, ../parts/fast]\n",
        "b/own.yaml": "base: [../parts/fast, paper]\nsize: 5\n",
        "b/lost.yaml": "base: [paper, ../parts/slow]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        ("a", "small", {"rate": 1.0, "size": 2}),
        ("b", "paper", {"rate": 1.0, "size": 4}),
        ("b", "small", {"rate": 3.0, "size": 2}),  # the later base holds
        ("b", "own", {"rate": 1.0, "size": 5}),  # its own fields hold against all
    ],
)
def test_presets_begin_from_others(presets, folder, name, expected):
    assert read_preset(name, presets / folder) == expected
    assert read_preset(str(presets / folder / f"{name}.yaml"), presets) == expected


def test_a_base_that_is_not_there(presets):
    with pytest.raises(ValueError, match=r"The preset '../parts/slow' is neither a file nor one of \['lost', 'own'"):
        read_preset("lost", presets / "b")


def test_a_base_is_looked_for_beside_its_preset_alone(presets, monkeypatch):
    monkeypatch.chdir(presets)
    (presets / "paper").write_text("size: 9\n")
    assert read_preset("small", presets / "a") == {"rate": 1.0, "size": 2}


def parser_of(presets, folder="a", default="small"):
    return RecipeParser((Given, CurriculumTrainingArguments), presets / folder, default=default)


def test_the_options_every_recipe_has(presets):
    options = parser_of(presets).parse(["--rate", "7", "--control", "--report_to", "tensorboard", "--output_dir", "x"])
    assert options.settings == {"rate": 7.0, "size": 2}
    assert (options.preset, options.seeds, options.grid, options.compare, options.control, options.output_dir) == (
        *("small", [0], {}, False, True, "x"),
    )
    assert options.shared["report_to"] == "tensorboard"
    resumed = parser_of(presets).parse(["--rate", "7", "--resume_on_other_data"])
    assert (resumed.settings, resumed.shared["resume_on_other_data"]) == (options.settings, True)  # the same run
    again = parser_of(presets)
    assert again.parse(["--preset", "paper"]).settings["size"] == 1
    assert again.parse([]).settings["size"] == 2  # nothing stays of an earlier command line


def test_the_command_line_the_config_and_the_preset_in_this_order(presets):
    (presets / "config.yaml").write_text("rate: 8\nsize: 8\ncurriculum: phases\nlearning_rate: 1e-2\n")
    options = parser_of(presets).parse(["--config", str(presets / "config.yaml"), "--size", "9"])
    assert options.settings == {"rate": 8, "size": 9, "curriculum": {"type": "phases"}, "learning_rate": 0.01}
    with pytest.raises(ValueError, match=r"The config file 'gone\.yaml' does not exist"):
        parser_of(presets).parse(["--config", "gone.yaml"])


def test_curricula_and_mappings_are_read_however_they_are_given(presets):
    (presets / "rule.json").write_text('{"type": "growing", "initial": 0.1}')
    for given, expected in {
        "iid": {"type": "iid"},
        "{type: phases, num_phases: 2}": {"type": "phases", "num_phases": 2},
        str(presets / "rule.json"): {"type": "growing", "initial": 0.1},
    }.items():
        settings = parser_of(presets).parse(["--curriculum", given, "--control_curriculum", "none"]).settings
        assert (settings["curriculum"], settings["control_curriculum"]) == (expected, None)


def test_help_shows_defaults(presets, capsys):
    with pytest.raises(SystemExit, match="0"):
        parser_of(presets).parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "how fast" in text
    assert "(default: 0.9)" in text  # adam_beta1


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_made(presets, monkeypatch):
    options = parser_of(presets).parse(
        ["--preset", "paper", "--curriculum", "phases", "--control_curriculum", "iid", "--report_to", "tensorboard"]
    )
    monkeypatch.setattr("hf_curriculum.training.arguments.get_available_reporting_integrations", lambda: ["wandb"])
    with pytest.raises(ValueError, match=r"'tensorboard' is not installed, .* `pip install tensorboard`"):
        parser_of(presets).study(print, options, presets / "study")
    assert not (presets / "study").exists()


def test_one_half_precision_takes_the_place_of_the_other(presets):
    (presets / "a/half.yaml").write_text("base: paper\nfp16: true\n")
    settings = parser_of(presets).parse(["--preset", "half", "--bf16"]).settings
    assert (settings["fp16"], settings["bf16"]) == (False, True)


def test_a_rule_that_is_the_controls_is_no_curriculum():
    control = {"type": "iid", "epochs": 3}
    assert has_curriculum({"curriculum": "phases", "control_curriculum": control})
    assert not has_curriculum({"curriculum": {"type": "iid"}, "control_curriculum": control})
    assert not has_curriculum({"curriculum": {"type": "phases"}, "control_curriculum": {"type": "phases"}})


def test_where_a_run_resumes(tmp_path, monkeypatch):
    def point(named=None):
        return resume_point(SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=named))

    assert point() is point("last") is False
    assert point("me/model") == "me/model"
    (tmp_path / "checkpoint-3").mkdir()
    monkeypatch.setattr("hf_curriculum.studies.recipe.is_complete", lambda folder: folder.name == "checkpoint-3")
    assert point() is point("last") is point("true") is True
    assert point("other/checkpoint-1") == "other/checkpoint-1"


def test_a_crash_is_told_once_and_is_an_exit_status(tmp_path, caplog):
    def run(given):
        raise OSError("disk")

    study = Study(run, {"a": {}}, [0], tmp_path)
    finish(study)
    study.run()
    assert caplog.text.count("OSError: disk") == 1
    with pytest.raises(SystemExit, match=r"^1 of 1 runs crashed: see above\.$"):
        finish(study)


def test_numbers_with_an_exponent_are_numbers(presets):
    (presets / "a/tiny.yaml").write_text("rate: 1e-5\nsize: 1\n")
    assert parser_of(presets, default="tiny").parse([]).settings["rate"] == 1e-5
    assert curriculum_from("{type: weighted, temperature: 2.5E2}") == Weighted(temperature=250.0)
    assert read_yaml("[1e3, -.5e-1, 1.e+2, 1e, e5, 0x1e3, '1e3']") == [1000.0, -0.05, 100.0, "1e", "e5", 0x1E3, "1e3"]


def test_commas_within_braces_and_brackets_separate_nothing():
    assert _split("{a: 1, b: [2, 3]},iid,[4, 5]") == ["{a: 1, b: [2, 3]}", "iid", "[4, 5]"]


def test_a_run_says_each_phase_once_and_each_evaluation(capsys):
    plan = make_plan(Phases(2, 1), np.arange(100), global_batch_size=10)
    lines = RunLines(SimpleNamespace(plan=plan, examples_seen=lambda: 1234))
    for first in (True, False):  # processes
        state = SimpleNamespace(global_step=0, max_steps=plan.max_steps, is_world_process_zero=first)
        for state.global_step in range(plan.max_steps):
            lines.on_step_begin(None, state, None)
        for logs in ({"loss": 2.0}, None, {"eval_loss": 1.5}, {"eval_loss": 1.25, "seconds": 61.4}):
            lines.on_log(None, state, None, logs)
    assert capsys.readouterr().out.splitlines() == [
        "phase 1 of 2: easiest 50 %, pool 50 (50 new), steps 1 to 5",
        "phase 2 of 2: all, pool 100 (50 new), steps 6 to 15",
        "  step 14 of 15: training loss 2.000, validation loss 1.500, 1,234 examples",
        "  step 14 of 15: training loss 2.000, validation loss 1.250, 1,234 examples, 61 s",
    ]
