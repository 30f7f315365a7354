"""Presets that begin from others, the command line that is made of them, and where a run resumes."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import PrinterCallback, ProgressCallback

from hf_curriculum import BabySteps, CurriculumTrainingArguments, Phases, Study, Weighted, curriculum_from, make_plan
from hf_curriculum.config import read_yaml
from hf_curriculum.studies import recipe
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


def parser_of(presets, folder="a", default="small", **options):
    return RecipeParser((Given, CurriculumTrainingArguments), presets / folder, default=default, **options)


def test_the_options_every_recipe_has(presets):
    options = parser_of(presets).parse(["--rate", "7", "--control", "--report_to", "tensorboard", "--output_dir", "x"])
    assert options.settings == {"rate": 7.0, "size": 2}
    assert (options.preset, options.seeds, options.grid, options.compare, options.control, options.output_dir) == (
        *("small", [0], {}, False, True, "x"),
    )
    assert options.shared["report_to"] == "tensorboard"
    resumed = parser_of(presets).parse(["--rate", "7", "--resume_on_other_data"])
    assert (resumed.settings, resumed.shared["resume_on_other_data"]) == (options.settings, True)  # the same run
    seeds = [parser_of(presets).parse(words).seeds for words in (["--seed", "7"], ["--seeds", "0,1", "2"])]
    assert seeds == [[7], [0, 1, 2]]
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


WHICH_RUNS = (
    "which runs: --preset PRESET a preset's name or file (default: small) --config CONFIG a YAML file of fields that "
    "hold against the preset's --seeds SEEDS [SEEDS ...] one run per seed: 0,1,2 (default: 0) "
    "--grid FIELD=A,B or FILE one run per value, once per field; or one per row of a file, or of one named in the "
    "presets' grids/; none: no grid, where the preset names one --table NAME the rows of a table of the paper, a file "
    "in the presets' grids/ --arms NAME [NAME ...] rows of a grid file, and what they need, alone --compare also "
    "train the i.i.d. control at the same seeds --control train the i.i.d. control alone, in its place"
)


def test_a_curriculum_of_ones_own_is_imported_where_it_is_named(presets, monkeypatch):
    monkeypatch.setattr(recipe, "CURRICULA", dict(recipe.CURRICULA))
    name = "hf_curriculum.curricula.phases:Phases"
    for given in (name, f"{{type: '{name}', num_phases: 2}}"):
        assert parser_of(presets).parse(["--curriculum", given]).settings["curriculum"]["type"] == name
    assert name in recipe.CURRICULA
    with pytest.raises(SystemExit, match="2"):
        parser_of(presets).parse(["--curriculum", "no.such:Rule"])


def test_help_shows_defaults(presets, capsys):
    with pytest.raises(SystemExit, match="0"):
        parser_of(presets).parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "how fast" in text
    assert "(default: 0.9)" in text  # adam_beta1
    assert text.endswith(WHICH_RUNS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--siz 3", "unrecognized arguments: --siz 3 (did you mean --size?)"),
        ("--siz=3 x", "unrecognized arguments: --siz=3 x (did you mean --size?)"),
        ("--conf gone.yaml", "unrecognized arguments: --conf gone.yaml (did you mean --config?)"),
        ("--job 3", "unrecognized arguments: --job 3 (did you mean --jobs?)"),
        ("--speed 3", "unrecognized arguments: --speed 3 (did you mean --seed?)"),
        ("--qqqq", "unrecognized arguments: --qqqq"),
        ("--rate none", "argument --rate: invalid float value: 'none'"),
        ("--compare --control", "argument --control: not allowed with argument --compare"),
        ("--grid rate", "argument --grid: 'rate' is not FIELD=A,B with one of the fields that make a run, nor"),
        ("--grid seed=1,2", "argument --grid: 'seed=1,2' is not FIELD=A,B with one of the fields that make a run"),
        ("--grid rate=1 --grid rate=2", "argument --grid: 'rate' is given twice; put all its values into one"),
        ("--grid size=1,b", "argument --grid: argument --size: invalid int value: 'b'"),
    ],
)
def test_what_is_not_understood_is_said_in_a_line(presets, capsys, words, message):
    parser = parser_of(presets, prog="mine", others=["--jobs"])
    with pytest.raises(SystemExit, match="2"):
        parser.parse(words.split())
    error, more = capsys.readouterr().err.splitlines()
    assert error.startswith(f"mine: error: {message}")
    assert len(message) > 60 or error.endswith(message)
    assert more == "All flags: mine --help"


def test_fields_that_a_preset_lacks_or_has_too_many(presets):
    (presets / "a/wrong.yaml").write_text("base: paper\nsise: 3\n")
    (presets / "a/part.yaml").write_text("rate: 1\n")
    parser = parser_of(presets)
    with pytest.raises(ValueError, match=r"'wrong' has fields .*: \['sise'\]\. Did you mean --size\?\.$"):
        parser.parse(["--preset", "wrong"])
    with pytest.raises(
        ValueError, match=r"^The preset 'part' has no \['size'\], which every run needs\. Give them\.$"
    ):
        parser.parse(["--preset", "part"])
    assert parser.parse(["--preset", "part", "--size", "3"]).settings == {"rate": 1, "size": 3}


def test_values_as_files_and_grids_have_them(presets):
    read = parser_of(presets).read_value
    assert [read("eval_strategy", value) for value in (False, "no", "epoch")] == ["no", "no", "epoch"]
    assert (read("bf16", False), read("size", 3), read("size", "3")) == (False, 3, 3)
    assert [read("label_names", text) for text in ("[a, b]", "a", "3")] == [["a", "b"], ["a"], ["3"]]
    with pytest.raises(ValueError, match=r"argument --eval_strategy\S*: invalid choice: 'often'"):
        read("eval_strategy", "often")


@pytest.mark.parametrize("there", [True, False])
def test_what_the_machine_decides(presets, monkeypatch, there):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: there))
    decided = {"use_cpu": not there, "hub_strategy": "end", "dataloader_pin_memory": there, "disable_tqdm": not there}
    assert parser_of(presets).parse(["--run_name", "x"]).shared == {**decided, "run_name": "x"}
    given = parser_of(presets).parse(["--use_cpu", "true", "--hub_strategy", "every_save", "--disable_tqdm", "true"])
    assert given.shared == {**decided, "use_cpu": True, "hub_strategy": "every_save", "disable_tqdm": True}


def test_the_folder_of_a_recipe(presets):
    parser = parser_of(presets)

    def folder(preset="small", output_dir=None, **settings):
        return parser.folder(SimpleNamespace(preset=preset, output_dir=output_dir, settings=settings))

    assert folder(output_dir="x/y", data="photos") == Path("x/y")
    assert folder() == folder(data="scenes") == Path("outputs/a/small")
    assert folder(data="my/own photos.csv") == Path("outputs/a/own-photos")
    assert folder("paper", data="photos") == Path("outputs/a/paper")
    assert folder("b/own.yaml") == Path("outputs/a/own")


CONTROL = ("--curriculum", "phases", "--control_curriculum", "iid")


def test_the_runs_of_a_command_line(presets, monkeypatch):
    """What each is called with, how it is called on the Hub, and what is checked before the first one."""
    given, checked, said, bars = [], [], [], []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: said.append(options))
    monkeypatch.setattr(recipe, "disable_progress_bars", lambda: bars.append("none"))
    parser = parser_of(presets, check=lambda own, args: checked.append((own.rate, args.seed, args.output_dir)))

    def run(own, args):
        given.append((own.rate, own.size, args.seed, args.output_dir, args.run_name, args.hub_model_id))
        return {"eval_loss": 1.0, "pushed": args.hub_model_id}

    def runs(name, *words):
        options = parser.parse(["--size", "3", *CONTROL, *words])
        study, controls = parser.study(run, options, presets / name)
        study.run()
        return [item.result["pushed"] for item in study.runs], controls

    out = str(presets / "one")
    assert runs("one", "--seeds", "4", "--disable_tqdm", "true") == ([None], {})
    assert given == [(1.0, 3, 4, f"{out}/curriculum-seed4", "one/curriculum-seed4", None)]
    assert checked == [(1.0, 4, f"{out}/run"), (1.0, 4, f"{out}/curriculum-seed4")]
    assert (said, bars) == ([{"level": logging.INFO, "format": "%(message)s"}], ["none"])
    assert runs("one", "--seeds", "4", "--push_to_hub", "--disable_tqdm", "false") == (["a-one"], {})  # taken up again
    assert len(given) == 2
    assert runs("one", "--seeds", "4", "--push_to_hub", "--hub_model_id", "me/x") == (["a-one"], {})  # pushed already
    assert len(given) == 2
    assert bars == ["none", "none"]  # not the second time, where bars were asked for; pytest is no terminal
    monkeypatch.setattr(recipe, "PartialState", lambda: SimpleNamespace(is_main_process=False))
    names = ["me/x-rate-1.0-seed0", "me/x-rate-2.0-seed0"]
    found = runs("two", "--grid", "rate=1,2", "--push_to_hub", "--hub_model_id", "me/x")
    assert found == (names, {"rate=2.0": "rate=1.0"})
    assert said[-1]["level"] == logging.ERROR
    assert runs("pair", "--compare", "--push_to_hub") == (
        *(["a-pair-curriculum-seed0", "a-pair-control-seed0"], {"curriculum": "control"}),
    )


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_command_ends_with_a_line_of_the_first_process(presets, monkeypatch, capsys, rank):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys, "argv", ["mine.py", "--size", "3"])
    parser, called = parser_of(presets, prog="mine"), []
    recipe.run_command(lambda: called.append("main"), parser)
    assert called == ["main"]
    for error, status, said in (
        (ValueError("no such data"), 2, "mine: error: no such data\nAll flags: mine --help\n"),
        (OSError("disk"), 2, "mine: error: disk\nAll flags: mine --help\n"),
        (
            KeyboardInterrupt(),
            130,
            "\nInterrupted. Finished runs and complete checkpoints are kept; the same command continues from them:\n"
            "  accelerate launch mine.py --size 3\n",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            recipe.run_command(lambda error=error: throw(error), parser)
        assert (ended.value.code, capsys.readouterr().err) == (status, said if rank == "0" else "")


def throw(error):
    raise error


def test_the_command_as_it_can_be_typed_again(monkeypatch):
    installed = Path(recipe.__file__).parents[1] / "recipes" / "mine.py"
    for program, start in {
        "own/mine.py": "accelerate launch own/mine.py",
        str(installed): "hf-curriculum recipe mine",
        "hf-curriculum": "hf-curriculum",
    }.items():
        monkeypatch.setattr(sys, "argv", [program, "a b"])
        assert recipe.command_line("--more") == f"{start} 'a b' --more"


def test_no_library_shows_a_bar_where_nobody_watches(monkeypatch):
    off = []
    for name in ("datasets", "huggingface_hub.utils"):
        monkeypatch.setattr(f"{name}.disable_progress_bars", lambda name=name: off.append(name))
    monkeypatch.setattr("transformers.utils.logging.disable_progress_bar", lambda: off.append("transformers"))
    recipe.disable_progress_bars()
    assert off == ["datasets", "huggingface_hub.utils", "transformers"]


def test_lines_take_the_place_of_what_is_printed_and_of_notes():
    for popped, bars in ((ProgressCallback, [recipe._Bar]), (None, [])):
        calls = []
        trainer = SimpleNamespace(
            remove_callback=calls.append, add_callback=calls.append, pop_callback=lambda kind, found=popped: found
        )
        RunLines.follow(trainer)
        *others, lines = calls
        assert (others, type(lines)) == ([PrinterCallback, *bars], RunLines)

    def shown():
        levels = (logging.INFO, logging.WARNING)
        return [bool(recipe._NOTES.filter(logging.makeLogRecord({"levelno": level}))) for level in levels]

    assert shown() == [True, True]
    lines.on_train_begin()
    assert shown() == [False, True]
    lines.on_train_end()
    assert shown() == [True, True]


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
    assert "bf16" not in parser_of(presets).parse(["--preset", "half", "--fp16"]).settings
    assert "fp16" not in parser_of(presets).parse(["--bf16"]).settings


def test_a_rule_that_is_the_controls_is_no_curriculum():
    control = {"type": "iid", "epochs": 3}
    assert has_curriculum({"curriculum": "phases", "control_curriculum": control})
    assert not has_curriculum({"curriculum": {"type": "iid"}, "control_curriculum": control})
    assert not has_curriculum({"curriculum": {"type": "phases"}, "control_curriculum": {"type": "phases"}})
    assert has_curriculum({"curriculum": "phases"})
    assert not has_curriculum({"curriculum": None, "control_curriculum": "phases"})


def test_where_a_run_resumes(tmp_path, monkeypatch):
    def point(named=None):
        return resume_point(SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=named))

    assert point() is point("last") is False
    assert point("me/model") == "me/model"
    (tmp_path / "checkpoint-3").mkdir()
    monkeypatch.setattr("hf_curriculum.studies.recipe.is_complete", lambda folder: folder.name == "checkpoint-3")
    assert point() is point("last") is point("true") is True
    assert point("other/checkpoint-1") == "other/checkpoint-1"


def test_a_crash_is_told_once_and_is_an_exit_status(tmp_path, caplog, monkeypatch):
    closed = []
    monkeypatch.setattr(recipe, "close_process_group", lambda: closed.append("group"))

    def run(given):
        raise OSError("disk")

    study = Study(run, {"a": {}}, [0], tmp_path)
    finish(study)
    study.run()
    assert caplog.text.count("OSError: disk") == 1
    with pytest.raises(SystemExit, match=r"^1 of 1 runs crashed: see above\.$"):
        finish(study)
    assert closed == ["group"] * 2


def test_numbers_with_an_exponent_are_numbers(presets):
    (presets / "a/tiny.yaml").write_text("rate: 1e-5\nsize: 1\n")
    assert parser_of(presets, default="tiny").parse([]).settings["rate"] == 1e-5
    assert curriculum_from("{type: weighted, temperature: 2.5E2}") == Weighted(temperature=250.0)
    assert read_yaml("[1e3, -.5e-1, 1.e+2, 1e, e5, 0x1e3, '1e3']") == [1000.0, -0.05, 100.0, "1e", "e5", 0x1E3, "1e3"]


def test_commas_within_braces_and_brackets_separate_nothing():
    assert _split("{a: 1, b: [2, 3]},iid,[4, 5]") == ["{a: 1, b: [2, 3]}", "iid", "[4, 5]"]


def test_a_run_says_each_phase_once_and_each_evaluation(capsys):
    plan = make_plan(Phases(2, 1, easy="low"), np.arange(100), global_batch_size=10)
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


def test_a_single_phase_and_phases_that_are_not_decided_are_not_counted(capsys):
    for rule, begins in (
        (Phases(1, 1), "phase 1: all, pool 100 (100 new), steps 1 to 10"),
        (BabySteps(2, stop=True, epochs=9), "round 1: bucket 1, pool 50 (50 new), steps 1 to 5"),
    ):
        plan = make_plan(rule, np.arange(100), global_batch_size=10)
        lines = RunLines(SimpleNamespace(plan=plan, examples_seen=lambda: 0))
        state = SimpleNamespace(global_step=0, max_steps=plan.max_steps, is_world_process_zero=True)
        lines.on_log(None, state, None, {"eval_loss": 1.5})
        lines.on_step_begin(None, state, None)
        first, second = capsys.readouterr().out.splitlines()
        assert first == f"  step 0 of {plan.max_steps}: validation loss 1.500, 0 examples"
        assert second == begins
