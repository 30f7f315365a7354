"""Grid files: arms by name, what they need and refer to, and what each of them draws."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import CurriculumTrainingArguments, Study, summarise
from hf_curriculum.studies.grid import Arm, budget_of, select_arms, study_arms
from hf_curriculum.studies.recipe import RecipeParser
from hf_curriculum.studies.study import run_order
from hf_curriculum.training.callbacks import Diverged

ROWS = """
ours: {curriculum: {type: phases, num_phases: 2}, source: "{vanilla}/model", needs: vanilla, control: vanilla}
vanilla: {curriculum: null}
slow: {rate: 1e-3, control: vanilla}
"""


@dataclass
class Given:
    """A recipe's own fields."""

    rate: float = field(metadata={"help": "how fast"})
    source: str | None = field(metadata={"help": "where from"})
    control_curriculum: dict | None = None


@pytest.fixture
def parser(tmp_path):
    """A recipe's command line; its presets are in `tmp_path`, with a grid called `table_1`."""
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "table_1.yaml").write_text(ROWS)
    (tmp_path / "small.yaml").write_text("rate: 1.0\nsource: null\ncurriculum: iid\nnum_train_epochs: 2\n")
    return RecipeParser((Given, CurriculumTrainingArguments), tmp_path, default="small")


class Run:
    """A run that notes what it was called with; those of `lost` end otherwise."""

    def __init__(self, **lost):
        self.calls, self.lost = [], lost

    def __call__(self, given, args):
        arm = args.output_dir.rpartition("/")[2]
        self.calls.append((arm, given.rate, given.source))
        if arm in self.lost:
            raise self.lost[arm]
        return {"eval_loss": given.rate}


def made(parser, folder, run, *options, **more):
    study, controls = parser.study(run, parser.parse(options), folder, **more)
    study.run()
    return study, controls


def test_arms_by_the_name_of_a_file_run_after_what_they_need_at_their_seed(parser, tmp_path):
    run, out = Run(), tmp_path / "out"
    study, controls = made(parser, out, run, "--grid", "table_1", "--seeds", "0,1", "--rate", "3")
    assert run.calls == [
        *(("vanilla-seed0", 3.0, None), ("ours-seed0", 3.0, f"{out}/vanilla-seed0/model"), ("slow-seed0", 1e-3, None)),
        *(("vanilla-seed1", 3.0, None), ("ours-seed1", 3.0, f"{out}/vanilla-seed1/model"), ("slow-seed1", 1e-3, None)),
    ]
    assert controls == {"ours": "vanilla", "slow": "vanilla"}
    facts = json.loads((out / "ours-seed1" / "result.json").read_text())
    assert facts["settings"]["source"] == "{vanilla}/model"  # a study that is moved is still read back
    assert facts["needs"] == {"vanilla": study.runs[3].key}
    again = Run()
    made(parser, out, again, "--grid", str(tmp_path / "grids" / "table_1.yaml"), "--seeds", "0,1", "--rate", "3")
    assert again.calls == []


def test_another_run_of_what_is_needed_makes_another_run(parser, tmp_path):
    arms = {"a": {"rate": 1.0}, "b": {"rate": 5.0, "of": "{a}"}}
    keys = [
        [item.key for item in Study(dict, {**arms, "a": {"rate": rate}}, [0], tmp_path, needs={"b": ["a"]}).runs]
        for rate in (1.0, 2.0, 1.0)
    ]
    assert keys[0] == keys[2]
    assert keys[0][1] != keys[1][1]
    alone = Study(dict, {"b": arms["b"]}, [0], tmp_path).runs[0]
    assert alone.key not in (keys[0][1], keys[1][1])


def test_what_needs_a_run_that_fell_is_not_trained_and_is_tried_again(parser, tmp_path):
    study, _ = made(parser, tmp_path / "out", Run(**{"vanilla-seed0": OSError("disk")}), "--grid", "table_1")
    assert [(item.arm, item.status) for item in study.runs] == [
        *(("vanilla", "crashed"), ("ours", "crashed"), ("slow", "finished"))
    ]
    assert "ours, seed 0: crashed, RuntimeError: It needs the run of 'vanilla', which is crashed" in study.describe()
    run = Run()
    study, _ = made(parser, tmp_path / "out", run, "--grid", "table_1")
    assert [call[0] for call in run.calls] == ["vanilla-seed0", "ours-seed0"]
    assert {item.status for item in study.runs} == {"finished"}


def test_arms_at_every_value_of_a_field(parser, tmp_path):
    (tmp_path / "two.yaml").write_text("a: {}\nb: {needs: a, source: '{a}'}\n")
    run, grid = Run(), ["--grid", str(tmp_path / "two.yaml"), "--grid", "rate=1,2"]
    _, controls = made(parser, tmp_path / "out", run, *grid)
    assert controls == {"b, rate=1.0": "a, rate=1.0", "b, rate=2.0": "a, rate=2.0"}  # the first row, if none is named
    by_rate = {rate: source for arm, rate, source in run.calls if arm.startswith("b")}
    folders = {rate: f"{tmp_path}/out/{arm}" for arm, rate, _ in run.calls if arm.startswith("a")}
    assert by_rate == folders
    assert sorted(by_rate) == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"The arm 'slow' sets \['rate'\], which --grid rate=\.\.\. sets too"):
        made(parser, tmp_path / "out", run, "--grid", "table_1", "--grid", "rate=1,2")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("{}", "The grid has no arms"),
        ("a: 3", "The arm 'a' is 3. A row holds fields"),
        ("a: {paper: 3}", "The arm 'a' has paper=3, and there it holds a figure by column"),
        ("a: {paper: {cider: [3]}}", "The arm 'a' has paper={'cider': [3]}"),
        ("[a]", "is not a mapping of fields or rows to values"),
        ("a: {rat: 2}", "The arm 'a': 'rat' is none of the fields that make a run. did you mean --rate?"),
        ("a: {output_dir: x}", "The arm 'a': 'output_dir' is none of the fields that make a run"),
        ("a: {rate: fast}", "The arm 'a': argument --rate: invalid float value: 'fast'"),
        ("a: {needs: b}", "The arm 'a' names 'b', which is none of the arms ['a']"),
        ("a: {control: a}", "The arm 'a' names 'a', which is the arm itself"),
        ("a: {}\nb: {source: '{a}/model'}", "The arm 'b' refers to {a}, the folder of an arm that it does not need"),
        ("a: {needs: b}\nb: {needs: [c]}\nc: {needs: a}", "Arms need each other in a circle, a → b → c → a"),
    ],
)
def test_a_file_that_cannot_be_run_ends_before_anything_runs(parser, tmp_path, capsys, rows, message):
    (tmp_path / "own.yaml").write_text(rows)
    with pytest.raises(SystemExit, match="2"):
        parser.parse(["--grid", str(tmp_path / "own.yaml")])
    assert message in capsys.readouterr().err


def test_files_that_are_not_there_twice_or_beside_a_control(parser, tmp_path, capsys):
    for options, message in {
        (
            "--grid",
            "table_9",
        ): "'table_9' is not FIELD=A,B with one of the fields that make a run, nor a file of arms, "
        "nor one of ['table_1']",
        ("--grid", "table_1", "--grid", "table_1"): "'table_1' is a second file of arms",
    }.items():
        with pytest.raises(SystemExit, match="2"):
            parser.parse(options)
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="--control was given with a grid file, whose rows are all that is trained"):
        parser.study(Run(), parser.parse(["--grid", "table_1", "--control"]), tmp_path / "out")


def test_a_preset_names_the_grid_that_is_usual(parser, tmp_path):
    (tmp_path / "many.yaml").write_text("base: small\ngrid: table_1\n")

    def arms(*options):
        found = parser.parse(["--preset", "many", *options])
        return list(found.arms), found.grid

    assert arms() == (["ours", "vanilla", "slow"], {})
    assert arms("--grid", "none") == arms("--control") == arms("--compare") == ([], {})
    assert arms("--grid", "rate=1,2") == ([], {"rate": [1.0, 2.0]})
    assert arms("--grid", "table_1", "--grid", "rate=1,2") == (["ours", "vanilla", "slow"], {"rate": [1.0, 2.0]})


def test_an_order_of_arms_that_are_not_there():
    with pytest.raises(ValueError, match=r"The arm 'c' is to be trained before another, and is none of the arms"):
        run_order(["a", "b"], {"a": ["c"]})


def test_every_budget_is_said_before_the_first_run(parser, tmp_path, caplog):
    rows, run = Dataset.from_dict({"caption": ["a"] * 100}), Run()
    with caplog.at_level(logging.INFO, logger="hf_curriculum.studies.grid"):
        options = parser.parse(["--grid", "table_1", "--global_batch_size", "10"])
        parser.study(run, options, tmp_path / "out", data=lambda given, args: {"train": rows})
    assert run.calls == []
    assert [record.message for record in caplog.records] == [
        "vanilla: 200 examples, 2 × the data, 20 steps of 10",
        "ours: 150 examples, 1.5 × the data, 15 steps of 10",
        "slow: 200 examples, 2 × the data, 20 steps of 10",
    ]


def test_a_budget_that_is_too_small_ends_before_anything_runs(parser, tmp_path):
    (tmp_path / "own.yaml").write_text(
        "a: {curriculum: null}\nb: {curriculum: {type: baby_steps, num_buckets: 5}, num_train_epochs: 1}\n"
    )
    rows, run = Dataset.from_dict({"caption": ["a"] * 100}), Run()
    options = parser.parse(["--grid", str(tmp_path / "own.yaml"), "--global_batch_size", "10"])
    with pytest.raises(
        ValueError, match=r"The arm 'b' cannot be trained, so no run was begun\. BabySteps has a budget"
    ):
        parser.study(run, options, tmp_path / "out", data=lambda given, args: rows)


@pytest.mark.parametrize(
    ("rule", "epochs", "expected"),
    [
        (None, 3, "300 examples, 3 × the data, 30 steps of 10"),
        (
            {"type": "baby_steps", "num_buckets": 5, "stop": True},
            8,
            "at most 800 examples, 8 × the data, 80 steps of 10",
        ),
        ({"type": "baby_steps", "num_buckets": 5}, 8, "at most 800 examples, 8 × the data, 80 steps of 10"),
        (
            {"type": "filter", "keep": 0.75, "by": "clip_similarity", "then": {"type": "phases"}},
            -1,
            "190 examples, 1.86 × the data, 19 steps of 10",
        ),
        (
            {"type": "filter", "by": "object_mentions", "at_least": 2, "then": {"type": "iid", "epochs": 8}},
            -1,
            "a number of examples that depends on the scores",
        ),
        ({"type": "phases", "num_phases": 4, "cut": "value"}, -1, "a number of examples that depends on the scores"),
        (
            {
                "type": "online_selection",
                "candidates": 4,
                "value": "loss",
                "then": {"type": "phases", "num_phases": 2},
            },
            -1,
            "40 examples, the best of 160 candidates, 1.5 × the data, 4 steps of 10",
        ),
        ({"type": "iid", "batches": {"type": "by_image"}}, 2, "a number of examples that depends on the scores"),
        (
            {
                "type": "filter",
                "keep": 0.5,
                "by": "clip_similarity",
                "then": {"type": "phases", "num_phases": 40, "cut": "value"},
            },
            -1,
            "a number of examples that depends on the scores",
        ),
    ],
)
def test_budgets(tmp_path, caplog, rule, epochs, expected):
    args = CurriculumTrainingArguments(
        str(tmp_path), curriculum=rule, num_train_epochs=epochs, global_batch_size=10, report_to=[], use_cpu=True
    )
    with caplog.at_level(logging.INFO):
        assert budget_of(args, Dataset.from_dict({"row": np.arange(100)})) == expected
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "100 examples, 1 × the data, 10 steps of 10"),
        ({"max_steps": 1}, "10 examples, 0.1 × the data, 1 steps of 10"),
        ({"max_steps": 0}, "100 examples, 1 × the data, 10 steps of 10"),
        (
            {"global_batch_size": None, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3},
            "108 examples, 1 × the data, 9 steps of 12",
        ),
    ],
)
def test_budgets_of_epochs_and_steps(tmp_path, options, expected):
    options = {"num_train_epochs": 1, "global_batch_size": 10, "report_to": [], "use_cpu": True, **options}
    args = CurriculumTrainingArguments(str(tmp_path), **options)
    assert budget_of(args, Dataset.from_dict({"row": np.arange(100)})) == expected


def test_budgets_are_said_of_arms_that_wait_and_of_rows_that_are_known(parser, tmp_path, caplog):
    rows, out = Dataset.from_dict({"caption": ["a"] * 100}), tmp_path / "out"
    words = ["--grid", "table_1", "--seeds", "0,1", "--global_batch_size", "10"]
    made(parser, out, Run(**{"slow-seed1": OSError("disk")}), *words)
    asked = []

    def data(given, args):
        asked.append((args.output_dir, args.seed))
        return {"train": rows}

    with caplog.at_level(logging.INFO, logger="hf_curriculum.studies.grid"):
        parser.study(Run(), parser.parse(words), out, data=data)
        assert asked == [(f"{out}/slow-seed1", 1)]
        parser.study(Run(), parser.parse(words), tmp_path / "new", data=lambda given, args: {"text": rows})
        parser.study(Run(), parser.parse([]), tmp_path / "alone", data=lambda given, args: pytest.fail("read"))
    assert caplog.messages[1:] == ["slow: 200 examples, 2 × the data, 20 steps of 10"]


def test_the_runs_of_a_command_line_without_a_file(parser):
    def arms(*words):
        found, controls, needs = study_arms(parser.parse(["--control_curriculum", "iid", *words]))
        assert needs == {}
        kept = {name: (settings["curriculum"]["type"], settings["rate"]) for name, settings in found.items()}
        return kept, controls

    phases = ("--curriculum", "phases")
    assert arms() == ({"control": ("iid", 1.0)}, {})
    assert arms(*phases) == ({"curriculum": ("phases", 1.0)}, {})
    assert arms(*phases, "--compare") == (
        *({"curriculum": ("phases", 1.0), "control": ("iid", 1.0)}, {"curriculum": "control"}),
    )
    assert arms(*phases, "--control") == ({"control": ("iid", 1.0)}, {})
    assert arms("--control") == ({"control": ("iid", 1.0)}, {})
    assert arms("--compare", "--grid", "curriculum=phases") == (
        *({"curriculum=phases": ("phases", 1.0), "control": ("iid", 1.0)}, {"curriculum=phases": "control"}),
    )
    assert arms(*phases, "--control", "--grid", "rate=1,2") == (
        *({"control, rate=1.0": ("iid", 1.0), "control, rate=2.0": ("iid", 2.0)}, {}),
    )
    with pytest.raises(ValueError, match=r"--compare was given, but the curriculum is iid, as a control's"):
        arms("--compare")
    with pytest.raises(ValueError, match="--compare was given with a grid file"):
        arms("--compare", "--grid", "table_1")


def test_some_rows_of_a_file(parser, tmp_path):
    def arms(*names):
        options = parser.parse(["--grid", "table_1", "--arms", *names])
        made = study_arms(options)
        return list(made[0]), *made[1:]

    assert arms("ours") == (["ours", "vanilla"], {"ours": "vanilla"}, {"ours": ("vanilla",)})  # with what it needs
    assert arms("slow") == (["slow"], {}, {})  # without its control
    assert arms("slow", "vanilla") == (["vanilla", "slow"], {"slow": "vanilla"}, {})
    assert select_arms({"a": Arm({})}, None) == {"a": Arm({})}


def test_rows_that_are_not_there(parser, capsys):
    for options, message in (
        (("--grid", "table_1", "--arms", "our"), "--arms names ['our'], and the grid file has the rows ['ours', "),
        (("--arms", "ours"), "--arms ours names rows of a grid file, and none was given. Name one with --grid"),
    ):
        with pytest.raises(SystemExit, match="2"):
            parser.parse(options)
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"--arms names \['our'\], and the grid file has the rows \['ours'\]"):
        select_arms({"ours": Arm({})}, ["our"])


TABLE = """
baseline: {rate: 1.0, paper: {CC: 2.2, RedCaps: 1.8, loss: 0.5}}
longest first: {rate: 2.0, control: baseline, paper: {CC: n/a, RedCaps: 2.5}}
ours: {rate: 0.25, control: baseline, paper: {CC: 5.8}}
not theirs: {rate: 0.5}
"""


def test_a_table_of_the_paper_stands_beside_the_numbers_of_its_rows(parser, tmp_path):
    (tmp_path / "grids" / "table1.yaml").write_text(TABLE)
    lost = {"longest first": Diverged(7, "the loss stayed where it was")}
    run = Run()

    def train(given, args):
        if given.rate == 2.0:
            raise lost["longest first"]
        return {"map_50": run(given, args)["eval_loss"] / 10, "loss": given.rate}

    study, controls = parser.study(train, parser.parse(["--table", "table1", "--seeds", "0,1"]), tmp_path / "out")
    study.run()
    assert controls == {"longest first": "baseline", "ours": "baseline"}
    table = summarise(study.runs, ["map_50", "loss"], control=controls, scale=100)
    assert table.header()[3:7] == ["mean", "paper, CC", "paper, RedCaps", "paper"]
    assert [row[:2] + row[3:7] + row[-2:-1] for row in table.body()] == [
        ["baseline", "map_50", "10 [10, 10]", "2.2", "1.8", "–", "0"],
        ["longest first", "map_50", "n/a", "n/a", "2.5", "–", "2"],
        ["ours", "map_50", "2.5 [2.5, 2.5]", "5.8", "–", "–", "0"],
        ["not theirs", "map_50", "5 [5, 5]", "–", "–", "–", "0"],
        ["baseline", "loss", "1 [1, 1]", "–", "–", "0.5", "0"],
        ["longest first", "loss", "n/a", "–", "–", "–", "2"],
        ["ours", "loss", "0.25 [0.25, 0.25]", "–", "–", "–", "0"],
        ["not theirs", "loss", "0.5 [0.5, 0.5]", "–", "–", "–", "0"],
    ]
    text = table.to_markdown()
    assert "Values but loss × 100. Mean over seeds" in text
    assert "n/a: every run of the arm diverged. paper: as it is printed there." in text
    assert table.body()[2][7:9] == ["baseline", "-7.5 [-7.5, -7.5]"]
    csv, facts = table.to_csv().splitlines(), table.to_dict()
    assert csv[0].endswith('"paper, CC","paper, RedCaps",paper')
    assert csv[3].startswith("ours,map_50,2,0,0,2,0.025,")
    assert csv[3].endswith(",5.8,,")
    assert facts["summary"][2]["paper"] == {"paper, CC": 5.8}
    assert "paper" not in facts["summary"][3]
    assert "longest first, seed 0: diverged at step 7: the loss stayed where it was" in study.describe()


def test_a_table_is_resumed_and_its_rows_can_be_chosen(parser, tmp_path):
    (tmp_path / "grids" / "table1.yaml").write_text(TABLE)
    run = Run()
    made(parser, tmp_path / "out", run, "--table", "table1", "--arms", "ours", "baseline")
    again = Run()
    study, _ = made(parser, tmp_path / "out", again, "--table", "table1")
    assert [call[0] for call in run.calls] == ["baseline-seed0", "ours-seed0"]
    assert [item.arm for item in study.runs] == ["baseline", "longest first", "ours", "not theirs"]
    assert len(again.calls) == 2
    (tmp_path / "grids" / "table1.yaml").write_text(TABLE.replace("5.8", "5.9"))  # a figure makes no other run
    corrected, _ = parser.study(again, parser.parse(["--table", "table1"]), tmp_path / "out")
    assert corrected.num_waiting == 0
    assert corrected.runs[2].paper == {"CC": 5.9}


def test_a_table_at_other_values_is_not_the_papers(parser, tmp_path):
    (tmp_path / "grids" / "table2.yaml").write_text("a: {paper: {loss: 3}}\n")
    options = parser.parse(["--table", "table2", "--grid", "rate=1,2"])
    study, _ = parser.study(Run(), options, tmp_path / "out")
    assert [(item.arm, item.paper) for item in study.runs] == [("a, rate=1.0", {}), ("a, rate=2.0", {})]


def test_a_table_that_is_not_there_is_refused(parser, capsys):
    for words, message in (
        (["--table", "table_9"], r"--table table_9 is none of ['table_1']"),
        (["--table", "table_1", "--grid", "table_1"], "is a second file of arms"),
    ):
        with pytest.raises(SystemExit):
            parser.parse(words)
        assert message in capsys.readouterr().err
