"""Studies: what is run, what is read back, what diverged or crashed, and the tables made of it."""

from __future__ import annotations

import csv
import json
import math
import pickle
import shutil
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from hostile import Page
from PIL import Image
from transformers import TrainerControl, TrainerState

from hf_curriculum import StopWhenDiverged, Study, summarise
from hf_curriculum.files import DamagedFileError, read_sealed, verify_together
from hf_curriculum.fingerprint import fingerprint_rows
from hf_curriculum.reporting.report import Report
from hf_curriculum.studies.statistics import Interval, mean_interval, paired_test
from hf_curriculum.studies.study import _raised, grid_arms, settings_key, short, verify_result
from hf_curriculum.studies.tables import _p_text, interval_text
from hf_curriculum.training.callbacks import Diverged
from hf_curriculum.verify import verify

TESTS = ("control", "difference", "p (t)", "p (sign flip)")
ARMS = {"control": {"rate": 1.0}, "faster": {"rate": 2.0}}


class Function:
    """A run that notes how it was called and does what `special` says for some (rate, seed)."""

    def __init__(self, **special):
        self.calls, self.special = [], special

    def __call__(self, given):
        self.calls.append((given["rate"], given["seed"]))
        found = self.special.get(f"r{given['rate']:g}s{given['seed']}")
        if isinstance(found, BaseException):
            raise found
        return {"eval_loss": 10 / given["rate"] + given["seed"], **(found or {})}


def study(folder, function, arms=ARMS, seeds=(0, 1), **options):
    made = Study(function, arms, seeds, folder, **options)
    made.run()
    return made


def statuses(made):
    return [item.status for item in made.runs]


class TestRunning:
    def test_seeds_change_slowest_and_every_run_has_its_folder(self, tmp_path):
        function = Function()
        made = study(tmp_path, function)
        assert function.calls == [(1.0, 0), (2.0, 0), (1.0, 1), (2.0, 1)]
        assert [item.folder.name for item in made.runs] == [
            *("control-seed0", "faster-seed0", "control-seed1", "faster-seed1")
        ]
        facts = json.loads((tmp_path / "faster-seed1" / "result.json").read_text())
        assert facts["status"] == "finished"
        assert facts["result"] == {"eval_loss": 6.0}
        assert (facts["settings"], facts["seed"]) == ({"rate": 2.0}, 1)

    def test_finished_runs_are_read_back(self, tmp_path):
        before = study(tmp_path, Function())
        function = Function()
        after = study(tmp_path, function, seeds=(0, 1, 2))
        assert function.calls == [(1.0, 2), (2.0, 2)]
        assert [item.result for item in after.runs[:4]] == [item.result for item in before.runs]

    def test_another_setting_is_another_run_and_both_are_kept(self, tmp_path):
        study(tmp_path, Function(), seeds=[0])
        function = Function()
        other = study(tmp_path, function, arms={"control": {"rate": 5.0}}, seeds=[0])
        assert function.calls == [(5.0, 0)]
        assert other.runs[0].folder.name == f"control-seed0-{other.runs[0].key}"
        again = Function()
        assert study(tmp_path, again, seeds=[0]).runs[0].result == {"eval_loss": 10.0}
        study(tmp_path, again, arms={"control": {"rate": 5.0}}, seeds=[0])
        assert again.calls == []

    def test_a_folder_of_something_else_is_left_alone(self, tmp_path):
        (tmp_path / "control-seed0").mkdir()
        (tmp_path / "control-seed0" / "notes.txt").write_text("mine")
        (tmp_path / "faster-seed0").mkdir()
        (tmp_path / "faster-seed0" / ".0bbfd16a-1-a.result.json").write_text("")  # as a killed process leaves
        made = study(tmp_path, Function(), seeds=[0])
        assert made.runs[0].folder.name.startswith("control-seed0-")
        assert [path.name for path in (tmp_path / "control-seed0").iterdir()] == ["notes.txt"]
        assert made.runs[1].folder.name == "faster-seed0"

    def test_a_killed_run_is_made_again_in_its_folder(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path, Function(r2s0=KeyboardInterrupt()))
        assert json.loads((tmp_path / "faster-seed0" / "result.json").read_text())["status"] == "running"
        (tmp_path / "faster-seed0" / "checkpoint-3").mkdir()
        function = Function()
        made = study(tmp_path, function)
        assert function.calls == [(2.0, 0), (1.0, 1), (2.0, 1)]
        assert made.runs[1].folder.name == "faster-seed0"
        assert not list(tmp_path.glob("**/result.json.*"))

    def test_one_run_is_counted_as_one(self, tmp_path):
        made = Study(Function(), {"control": ARMS["control"]}, [0], tmp_path)
        made.run()
        assert made.describe() == "1 run: 1 finished"

    def test_a_limit_leaves_the_rest_for_later(self, tmp_path):
        function = Function()
        made = Study(function, ARMS, [0, 1], tmp_path)
        made.run(limit=3)
        assert statuses(made) == ["finished"] * 3 + ["pending"]
        assert made.num_waiting == 1
        assert "4 runs: 3 finished, 1 left" in made.describe()

    def test_the_result_is_as_json_has_it_the_first_time_too(self, tmp_path):
        special = {"count": np.int64(3), "curve": np.array([1.0, np.nan]), "pair": (1, 2), "best": math.inf}
        first = study(tmp_path, Function(r1s0=special), seeds=[0]).runs[0]
        assert first.result == {"eval_loss": 10.0, "count": 3, "curve": [1.0, None], "pair": [1, 2], "best": None}
        assert first.numbers == {"eval_loss": 10.0, "count": 3}
        assert Study(Function(), ARMS, [0], tmp_path).runs[0].result == first.result

    def test_what_is_written_of_a_run(self, tmp_path):
        run = study(tmp_path, Function(), seeds=[0]).runs[0]
        facts = {"key": run.key, "arm": "control", "seed": 0, "status": "finished", "step": None, "error": None}
        facts |= {"result": {"eval_loss": 10.0}, "settings": {"rate": 1.0}}
        assert read_sealed(run.folder / "result.json", "") == facts

    def test_a_damaged_result_is_refused(self, tmp_path):
        file = study(tmp_path, Function(), seeds=[0]).runs[0].folder / "result.json"
        whole = file.read_text()
        for damaged in (whole.replace("10.0", "90.0"), whole.replace("finished", "diverged"), whole[:-9], "{}"):
            file.write_text(damaged)
            with pytest.raises(DamagedFileError, match=r"control-seed0/result\.json (was|is) damaged.*Delete it"):
                Study(Function(), ARMS, [0], tmp_path)
        file.unlink()
        assert study(tmp_path, Function(), seeds=[0]).runs[0].result == {"eval_loss": 10.0}

    @pytest.mark.parametrize("other", ["faster-seed0", "control-seed1"])
    def test_exchanged_results_are_refused(self, tmp_path, other):
        study(tmp_path, Function(), arms={**ARMS, "again": ARMS["faster"]})
        first, second = tmp_path / "control-seed0" / "result.json", tmp_path / other / "result.json"
        contents = first.read_bytes(), second.read_bytes()
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
        for read in (lambda: Study(Function(), ARMS, [0, 1], tmp_path), lambda: verify_result(first)):
            with pytest.raises(
                DamagedFileError, match=r"is the result of the arm .* results were exchanged or copied"
            ):
                read()

    def test_a_study_is_verified(self, tmp_path):
        made = study(tmp_path, Function(), arms={**ARMS, "an arm / of words": ARMS["faster"]})
        study(tmp_path, Function(), arms={"control": {"rate": 5.0}}, seeds=[0])  # in a folder with its key
        files = summarise(made.runs, ["eval_loss"]).write(tmp_path)
        whole = verify(tmp_path)
        assert [each.kind for each in whole] == ["record"] + ["result of a study"] * 7
        assert not any(each.error for each in whole)
        for file in (*files.values(), *tmp_path.glob("*/result.json")):
            content = file.read_bytes()
            file.write_bytes(content.replace(b"0", b"1", 1) if b"0" in content else content[:-1])
            assert [file.name in (each.error or "") for each in verify(tmp_path)].count(True) == 1
            file.write_bytes(content)
        files["csv"].unlink()
        assert "study.csv" in verify(tmp_path)[0].error

    def test_the_result_of_an_arm_with_equal_settings_is_another_result(self, tmp_path):
        study(tmp_path, Function(), arms={"a": {"rate": 1.0}, "b": {"rate": 1.0}}, seeds=[0])
        shutil.copy(tmp_path / "a-seed0" / "result.json", tmp_path / "b-seed0" / "result.json")
        with pytest.raises(
            DamagedFileError, match="the result of the arm 'a' with seed 0, and its folder is that of 'b'"
        ):
            Study(Function(), {"b": {"rate": 1.0}}, [0], tmp_path)

    def test_the_result_of_other_settings_of_an_arm_is_another_result(self, tmp_path):
        study(tmp_path, Function(), seeds=[0])
        changed = study(tmp_path, Function(), arms={"control": {"rate": 5.0}}, seeds=[0]).runs[0]
        shutil.copy(tmp_path / "control-seed0" / "result.json", changed.folder)
        with pytest.raises(DamagedFileError, match=r"result\.json is the result of other settings"):
            Study(Function(), {"control": {"rate": 5.0}}, [0], tmp_path)

    def test_two_studies_of_other_settings_that_are_made_at_once_have_folders_of_their_own(self, tmp_path):
        functions = Function(), Function()
        studies = [Study(function, {"a": {"rate": n + 1.0}}, [0], tmp_path) for n, function in enumerate(functions)]
        results = [made.run()[0] for made in studies]
        assert [(run.folder.name, run.result) for run in results] == [
            ("a-seed0", {"eval_loss": 10.0}),
            (f"a-seed0-{results[1].key}", {"eval_loss": 5.0}),
        ]
        assert [Study(Function(), {"a": {"rate": n + 1.0}}, [0], tmp_path).num_waiting for n in range(2)] == [0, 0]

    def test_a_link_in_place_of_a_run_is_refused_and_one_of_the_user_is_followed(self, tmp_path):
        (tmp_path / "scratch").mkdir()
        (tmp_path / "out").symlink_to(tmp_path / "scratch")
        study(tmp_path / "out", Function(), seeds=[0])
        assert (tmp_path / "scratch" / "control-seed0" / "result.json").is_file()
        made = Study(Function(), ARMS, [1], tmp_path / "out")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "scratch" / "control-seed1").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ValueError, match="control-seed1 is a link to"):
            made.run()
        assert not [*(tmp_path / "elsewhere").iterdir()]

    def test_what_is_logged(self, tmp_path, caplog):
        caplog.set_level("INFO", logger="hf_curriculum.studies.study")
        study(tmp_path, Function(), seeds=[0])
        lines = [f"Run {n} of 2: {arm}, seed 0, in {tmp_path}/{arm}-seed0" for n, arm in enumerate(ARMS, start=1)]
        assert caplog.messages == [*lines, "2 runs: 2 finished"]
        caplog.clear()
        made = study(tmp_path, Function(r1s1=Diverged(3, "loss is inf"), r2s1=OSError("disk")))
        where = tmp_path / "faster-seed1" / "result.json"
        assert [(record.levelname, record.message) for record in caplog.records] == [
            ("INFO", "2 of 4 runs were made before and are read back; a run whose folder is deleted is made again."),
            ("INFO", f"Run 1 of 2: control, seed 1, in {tmp_path}/control-seed1"),
            ("INFO", f"Run 2 of 2: faster, seed 1, in {tmp_path}/faster-seed1"),
            ("WARNING", made.describe()),
        ]
        assert made.describe().splitlines() == [
            "4 runs: 2 finished, 1 diverged, 1 crashed",
            "- control, seed 1: diverged at step 3: loss is inf",
            f"- faster, seed 1: crashed, OSError: disk (see {where})",
            "Start the study again to try those that crashed once more.",
        ]

    @pytest.mark.parametrize("main", [True, False])
    def test_what_another_process_has_made_meanwhile_is_read_before_any_run_begins(self, tmp_path, monkeypatch, main):
        function, events = Function(), []
        made = Study(function, ARMS, [0], tmp_path)
        before = study(tmp_path, Function(), seeds=[0])

        @contextmanager
        def alone(folder, rank):
            events.append((folder, rank))
            yield
            events.append("left")

        state = SimpleNamespace(num_processes=2, is_main_process=main)
        state.wait_for_everyone = lambda: events.append(statuses(made))
        monkeypatch.setattr("hf_curriculum.studies.study.PartialState", lambda: state)
        monkeypatch.setattr("hf_curriculum.studies.study.only_run_in", alone)
        assert made.run() is made.runs
        assert (function.calls, events) == ([], [(tmp_path, 1 - main), ["finished"] * 2, "left"])
        assert [item.result for item in made.runs] == [item.result for item in before.runs]

    def test_a_long_name_is_cut(self, tmp_path):
        whole, long = Study(Function(), {"x" * 80: {"rate": 1.0}, "x" * 81: {"rate": 1.0}}, [0], tmp_path).runs
        assert whole.folder == tmp_path / f"{'x' * 80}-seed0"
        assert long.folder == tmp_path / f"{'x' * 80}-seed0-{long.key}"

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (None, ""),
            ("one thing\nand another!", "and another!"),
            ("Traceback:\n  here\nKeyError: 'a'\n  b\n", "KeyError: 'a'"),
            ("a.b.Lost\n", "a.b.Lost"),
        ],
    )
    def test_what_a_crash_is_told_by(self, error, line):
        assert _raised(error) == line

    def test_arms_that_are_spelt_alike_have_folders_of_their_own(self, tmp_path):
        arms = {"a b": {"rate": 1.0}, "a_b": {"rate": 2.0}, "a/b": {"rate": 4.0}}
        made = study(tmp_path, Function(), arms=arms, seeds=[0])
        assert len({item.folder for item in made.runs}) == 3
        assert all(item.folder.parent == tmp_path for item in made.runs)

    @pytest.mark.parametrize(
        ("arms", "seeds", "message"),
        [
            ({}, [0], "A study of 0 arms and 1 seeds has no run"),
            (ARMS, [], "A study of 2 arms and 0 seeds has no run"),
            (ARMS, [1, 1], r"The seeds \[1, 1\] hold one twice"),
            ({"a": {"seed": 3}}, [0], "The arm 'a' has a setting `seed`"),
            ({"a": {"output_dir": "x"}}, [0], "The arm 'a' has a setting `output_dir`"),
        ],
    )
    def test_errors(self, tmp_path, arms, seeds, message):
        with pytest.raises(ValueError, match=message):
            Study(Function(), arms, seeds, tmp_path)


class TestDivergedAndCrashed:
    @pytest.mark.parametrize(
        ("outcome", "step"),
        [
            (Diverged(120, "eval_loss is nan"), 120),
            (FloatingPointError("overflow"), None),
            ({"eval_loss": math.nan, "steps": 50}, 50),
            ({"loss": math.inf, "log": [{"step": 1, "loss": 2.0}, {"step": 7, "loss": math.inf}], "steps": 9}, 7),
        ],
    )
    def test_a_diverged_run_is_a_result_and_no_number(self, tmp_path, outcome, step):
        made = study(tmp_path, Function(r2s1=outcome))
        assert statuses(made) == ["finished"] * 3 + ["diverged"]
        assert made.runs[3].step == step
        assert made.runs[3].numbers == {}
        assert "1 diverged" in made.describe()
        again = Function()
        assert study(tmp_path, again).runs[3].step == step
        assert again.calls == []
        table = summarise(made.runs, ["eval_loss"], control="control")
        row = table.rows[1]
        assert (row.mean.value, row.mean.n, row.diverged, row.test.difference.n) == (5.0, 1, 1, 1)

    def test_other_numbers_may_be_missing(self, tmp_path):
        made = study(tmp_path, Function(r2s1={"recall": math.nan}))
        assert statuses(made) == ["finished"] * 4
        assert (
            study(tmp_path / "b", Function(r2s1={"recall": math.nan}), losses=["recall"]).runs[3].status == "diverged"
        )

    def test_a_crash_is_recorded_the_others_go_on_and_it_is_tried_again(self, tmp_path, caplog):
        made = study(tmp_path, Function(r2s0=KeyError("no such column")))
        assert statuses(made) == ["finished", "crashed", "finished", "finished"]
        said = caplog.messages[-1]
        assert "3 finished, 1 crashed" in said
        assert "- faster, seed 0: crashed, KeyError: 'no such column'" in said
        assert "Start the study again" in said
        assert "Traceback" in json.loads((tmp_path / "faster-seed0" / "result.json").read_text())["error"]
        row = summarise(made.runs, ["eval_loss"]).rows[1]
        assert (row.mean.value, row.crashed, row.note) == (6.0, 1, "1 crashed")
        function = Function()
        assert statuses(study(tmp_path, function)) == ["finished"] * 4
        assert function.calls == [(2.0, 0)]

    def test_on_several_processes_a_crash_ends_the_study(self, tmp_path, monkeypatch):
        # The other processes wait for the one that fell: going on without it would wait for ever.
        state = SimpleNamespace(num_processes=2, is_main_process=False, wait_for_everyone=lambda: None)
        monkeypatch.setattr("hf_curriculum.studies.study.PartialState", lambda: state)
        function = Function(r2s0=OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            study(tmp_path, function)
        assert function.calls == [(1.0, 0), (2.0, 0)]
        assert "disk full" in json.loads((tmp_path / "faster-seed0" / "result.json").read_text())["error"]
        assert not (tmp_path / "control-seed0").exists()  # only the main process writes what went well

    def test_a_crash_of_many_lines_is_told_by_its_first(self, tmp_path):
        made = study(tmp_path, Function(r2s0=OSError("no jar. Get it by\n    curl -L -o a.zip there")))
        assert "- faster, seed 0: crashed, OSError: no jar. Get it by (see " in made.describe()

    def test_what_no_json_can_hold_or_is_no_mapping_is_a_crash(self, tmp_path):
        made = study(tmp_path, Function(r1s0={"model": object()}), seeds=[0])
        assert made.runs[0].status == "crashed"
        assert "not JSON serializable" in made.runs[0].error
        made = study(tmp_path / "b", lambda given: None, seeds=[0])
        assert "TypeError: The run returned a NoneType" in made.runs[0].error
        made = study(tmp_path / "c", lambda given: {"eval_loss": "0.5"}, seeds=[0])
        assert "TypeError: The run returned the text '0.5' as 'eval_loss'; a study compares nu" in made.runs[0].error

    def test_training_that_diverges_ends(self, make_trainer):
        trainer = make_trainer({"type": "iid", "epochs": 4}, learning_rate=1e30, logging_nan_inf_filter=False)
        trainer.add_callback(StopWhenDiverged())
        with pytest.raises(Diverged, match=r"diverged at step \d+: loss is (nan|inf)") as caught:
            trainer.train()
        assert 1 <= caught.value.step < trainer.plan.num_steps
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    @pytest.mark.parametrize("name", ["loss", "train_loss", "eval_loss"])
    @pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
    def test_a_loss_that_is_not_finite_ends_a_run(self, name, value):
        callback, state = StopWhenDiverged(), TrainerState(global_step=7)
        callback.on_log(None, state, TrainerControl(), logs={name: 1e30, "grad_norm": value, "learning_rate": value})
        with pytest.raises(Diverged, match=f"^diverged at step 7: {name} is {value}$"):
            callback.on_log(None, state, TrainerControl(), logs={name: value})


class TestData:
    """What the runs were made on is recorded, and compared before another is made."""

    first = Dataset.from_dict({"caption": ["a dog", "a cat", "two dogs"]})
    other = Dataset.from_dict({"caption": ["a dog", "a zebra", "two dogs"]})

    def test_runs_on_other_data_are_refused_before_any_is_made(self, tmp_path):
        study(tmp_path, Function(), seeds=[0], arms={"control": {"rate": 1.0}}, data=self.read)
        function = Function()
        assert statuses(study(tmp_path, function, data=self.read)) == ["finished"] * 4
        assert function.calls == [(2.0, 0), (1.0, 1), (2.0, 1)]  # the data is the same: the first run is read back
        function = Function()
        message = (
            r"The run in .*control-seed0 \(and 3 more\) was made on other data: data: 3 rows then and now, "
            r"but `caption` differs\. Its numbers .* Give another output_dir, or delete the run's folder"
        )
        with pytest.raises(ValueError, match=message):
            study(tmp_path, function, seeds=range(3), data=lambda given: self.other)
        assert function.calls == []
        assert (
            statuses(study(tmp_path / "other", function, seeds=[0], data=lambda given: self.other)) == ["finished"] * 2
        )

    def read(self, given):
        assert set(given) == {"rate", "seed", "output_dir"}
        return self.first

    def test_a_killed_run_is_not_continued_on_other_data_either(self, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path, Function(r1s0=KeyboardInterrupt()), seeds=[0], data=self.read)
        with pytest.raises(ValueError, match=r"control-seed0 was made on other data"):
            study(tmp_path, Function(), seeds=[0], data=lambda given: self.other)
        assert statuses(study(tmp_path, Function(), seeds=[0], data=self.read)) == ["finished"] * 2

    def test_several_data_sets_by_name(self, tmp_path):
        parts = {"train": self.first, "validation": self.other}
        study(tmp_path, Function(), seeds=[0], data=lambda given: parts)
        facts = json.loads((tmp_path / "control-seed0" / "result.json").read_text())["data"]
        assert {name: part["num_rows"] for name, part in facts.items()} == {"train": 3, "validation": 3}
        now = {"train": self.first, "validation": self.first, "text": self.other}
        with pytest.raises(ValueError, match=r"other data: validation: 3 rows then and now, .* differs; text: new"):
            study(tmp_path, Function(), seeds=[0], data=lambda given: now)
        with pytest.raises(ValueError, match=r"control-seed0 \(and 1 more\) .* validation: there then, and no more"):
            study(tmp_path, Function(), seeds=[0], data=lambda given: {"train": self.first})

    def test_a_data_set_is_read_once(self, tmp_path, monkeypatch, caplog):
        read = []
        module = "hf_curriculum.studies.study.fingerprint_rows"
        monkeypatch.setattr(module, lambda data: read.append(data) or fingerprint_rows(data))
        study(tmp_path, Function(), seeds=range(3), data=self.read)
        assert len(read) == 1
        assert not caplog.records  # nothing is missing

    def test_runs_without_a_record_are_read_back_with_a_warning(self, tmp_path, caplog):
        study(tmp_path, Function(), seeds=[0])
        function = Function()
        made = study(tmp_path, function, data=self.read)
        assert "2 of 4 runs were made before the data of a run was recorded" in caplog.text
        assert (statuses(made), function.calls) == (["finished"] * 4, [(1.0, 1), (2.0, 1)])

    def test_data_that_cannot_be_read_is_a_crash(self, tmp_path):
        made = study(tmp_path, Function(), seeds=[0], data=lambda given: {}["gone"])
        assert statuses(made) == ["crashed"] * 2
        assert statuses(study(tmp_path, Function(), seeds=[0], data=self.read)) == ["finished"] * 2


class TestArms:
    def test_grid_and_controls(self):
        settings = {"rate": 1, "rule": {"type": "phases"}, "seeded": None}
        arms, controls = grid_arms(
            settings, {"rate": [1, 2], "rule": [{"type": "phases"}, {"type": "iid", "epochs": 3}]}
        )
        assert list(arms) == [
            "rate=1, rule=phases",
            "rate=1, rule=iid(epochs=3)",
            "rate=2, rule=phases",
            "rate=2, rule=iid(epochs=3)",
        ]
        assert arms["rate=2, rule=phases"] == {"rate": 2, "rule": {"type": "phases"}, "seeded": None}
        assert controls == {}

    def test_one_arm_and_its_control(self):
        arms, controls = grid_arms({"rule": "a", "rate": 1}, name="curriculum", control={"rule": "iid"})
        assert arms == {"curriculum": {"rule": "a", "rate": 1}, "control": {"rule": "iid", "rate": 1}}
        assert controls == {"curriculum": "control"}

    def test_a_grid_over_the_rule_has_one_control_and_one_over_the_rate_has_several(self):
        arms, controls = grid_arms({"rule": "a", "rate": 1}, {"rule": ["a", "b"]}, control={"rule": "iid"})
        assert list(arms) == ["rule=a", "rule=b", "control"]
        assert set(controls.values()) == {"control"}
        arms, controls = grid_arms({"rule": "a", "rate": 1}, {"rate": [1, 2]}, control={"rule": "iid"})
        assert controls == {"rate=1": "control, rate=1", "rate=2": "control, rate=2"}
        assert arms["control, rate=2"] == {"rule": "iid", "rate": 2}

    def test_keys(self):
        key = settings_key({"a": 1, "b": [1, 2]}, 0)
        assert (
            key == settings_key({"b": (1, 2), "a": 1}, 0) == "7998ab82120b"
        )  # another digest would make every run again
        assert key not in (settings_key({"a": 1, "b": [2, 1]}, 0), settings_key({"a": 1, "b": [1, 2]}, 1))
        with pytest.raises(TypeError, match="The settings cannot be written as JSON"):
            settings_key({"a": object()}, 0)

    def test_short(self):
        assert short({"type": "phases", "epochs_per_phase": [1, 2]}) == "phases(epochs_per_phase=[1, 2])"
        assert [short(value) for value in (True, None, {"a": 1}, "x")] == ["true", "none", "{a=1}", "x"]

    @pytest.mark.parametrize(
        ("grid", "message"),
        [
            ({"speed": [1]}, "The grid names 'speed', which is none of the settings"),
            ({"rate": []}, "The grid gives 'rate' no values"),
            ({"rate": [1, 1]}, "The grid holds 'rate=1' twice"),
        ],
    )
    def test_errors(self, grid, message):
        with pytest.raises(ValueError, match=message):
            grid_arms({"rate": 1}, grid)


class TestTable:
    @pytest.fixture
    def runs(self, tmp_path):
        special = {f"r2s{seed}": {"eval_loss": 10 + seed - loss} for seed, loss in enumerate((1.0, 2.0, 3.0))}
        return study(tmp_path, Function(**special, r1s3=Diverged(4, "loss is inf")), seeds=range(4)).runs

    def test_means_and_paired_differences_by_hand(self, runs):
        control, faster = summarise(runs, ["eval_loss"], control="control").rows
        assert control.values == {0: 10.0, 1: 11.0, 2: 12.0}
        assert (control.diverged, control.test) == (1, None)
        assert faster.mean.n == 4
        # −1, −2, −3 over the three seeds that both finished: t = −2 √3 / 1, sign flips 2 of 8.
        assert (faster.test.difference.value, faster.test.difference.n) == (-2.0, 3)
        assert faster.test.p_t == pytest.approx(0.07418, abs=1e-5)
        assert faster.test.p_sign_flip == 0.25

    def test_markdown_csv_and_json_say_the_same(self, runs, tmp_path):
        table = summarise(runs, ["eval_loss"], control="control")
        files = table.write(tmp_path / "out")
        lines = files["md"].read_text().replace("\\", "").splitlines()  # what Markdown shows
        assert lines[2] == "| control | eval_loss | 3 | 11 [8.516, 13.48] | – | – | – | – | 1 | 0 |"
        assert "| control | -2 [-4.484, +0.4841] | 0.0742 | 0.25 | 0 | 0 |" in lines[3]
        assert "95 % t interval" in lines[5]
        page = Page(table._repr_html_())
        shown = [cell.strip() for line in (lines[0], *lines[2:4]) for cell in line.strip("|").split("|")]
        assert [text for text in page.text if text.strip()][1:][: len(shown)] == shown
        assert len(page.values("img", "src")) == 1
        with files["csv"].open() as text:
            rows = list(csv.DictReader(text))
        assert float(rows[1]["difference"]) == -2.0
        assert (rows[0]["control"], rows[0]["diverged"]) == ("", "1")
        facts = json.loads(files["json"].read_text())
        assert facts["summary"][1]["values"] == {"0": 9.0, "1": 9.0, "2": 9.0, "3": 8.0}
        assert [run["status"] for run in facts["runs"]].count("diverged") == 1
        assert summarise(runs, ["eval_loss"], control="control").to_dict() == table.to_dict()

    def test_every_cell(self, runs, tmp_path):
        table = summarise(runs, ["eval_loss"], control="control", confidence=0.9)
        control, faster = table.rows
        mean, other = (mean_interval(list(row.values.values()), confidence=0.9) for row in table.rows)
        test = paired_test([9.0, 9.0, 9.0], [10.0, 11.0, 12.0], confidence=0.9)
        ends = [3, -2.0, test.difference.lower, test.difference.upper, test.p_t, 0.25]
        assert (faster.mean, faster.test, list(faster.values)) == (other, test, [0, 1, 2, 3])
        assert [*control.cells()] == [
            *("arm", "metric", "finished", "diverged", "crashed", "n", "mean", "lower", "upper", "control", "pairs"),
            *("difference", "difference_lower", "difference_upper", "p_t", "p_sign_flip"),
        ]
        cells = [["control", "eval_loss", 3, 1, 0, 3, 11.0, mean.lower, mean.upper, *[None] * 7]]
        cells += [["faster", "eval_loss", 4, 0, 0, 4, 8.75, other.lower, other.upper, "control", *ends]]
        assert [[*row.cells().values()] for row in table.rows] == cells
        assert table.header() == ["arm", "metric", "runs", "mean", *TESTS, "diverged", "crashed"]
        assert table.body()[0] == ["control", "eval_loss", "3", "11 [9.314, 12.69]", *"––––", "1", "0"]
        for _ in range(2):  # the second time over the first
            files = table.write(tmp_path / "new" / "folder")
        names = ("study.md", "study.csv", "study.json", "study_eval_loss.png", "study_eval_loss_dark.png")
        assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == sorted(names)
        facts = verify_together(files["json"], "")
        assert facts.pop("files").keys() == {*names} - {"study.json"}
        assert facts == table.to_dict()
        lines = [",".join("" if cell is None else str(cell) for cell in row) for row in cells]
        assert files["csv"].read_bytes().decode() == "\n".join([",".join(control.cells()), *lines, ""])
        facts = table.to_dict()
        assert (facts["confidence"], facts["interval"]) == (0.9, "t")
        assert [*facts["runs"][0].values()] == ["control", 0, runs[0].key, "finished", None, {"eval_loss": 10.0}]

    def test_one_arm_alone(self, runs):
        table = summarise(
            [run for run in runs if run.arm == "faster"], ["eval_loss"], kind="bootstrap", confidence=0.8
        )
        assert table.rows[0].mean == mean_interval([9.0, 9.0, 9.0, 8.0], kind="bootstrap", confidence=0.8)
        assert table.note == "Mean over seeds with its 80 % bootstrap interval."
        assert len(table.to_csv().splitlines()) == 2

    def test_what_a_paper_prints_is_json_whatever_it_is(self, runs):
        table = summarise(runs, ["eval_loss"])
        rows = tuple(replace(row, paper={"paper": math.nan}) for row in table.rows)
        assert [row["paper"] for row in replace(table, rows=rows).to_dict()["summary"]] == [{"paper": None}] * 2

    @pytest.mark.parametrize(
        ("diverged", "crashed", "mean", "note"),
        [(1, 0, "n/a", "1 diverged"), (0, 2, "–", "2 crashed"), (2, 1, "n/a", "2 diverged, 1 crashed")],
    )
    def test_an_arm_without_a_number(self, tmp_path, diverged, crashed, mean, note):
        lost = [Diverged(1, "loss is inf")] * diverged + [OSError("disk")] * crashed
        function = Function(**{f"r1s{seed}": error for seed, error in enumerate(lost)})
        table = summarise(study(tmp_path, function, {"a": {"rate": 1.0}}, range(len(lost))).runs, ["eval_loss"])
        assert table.body() == [["a", "eval_loss", "0", mean, *"––––", str(diverged), str(crashed)]]
        assert table.rows[0].note == note
        assert ("n/a: every run of the arm diverged." in table.note) == (mean == "n/a")
        assert table.drawable() == []

    def test_an_arm_with_one_number_beside_one_that_diverged(self, tmp_path):
        made = study(tmp_path, Function(r1s1=Diverged(1, "loss is inf")), {"a": {"rate": 1.0}})
        assert summarise(made.runs, ["eval_loss"]).body() == [["a", "eval_loss", "1", "10", *"––––", "1", "0"]]

    @pytest.mark.parametrize(
        ("interval", "signed", "text"),
        [
            ((0.0, -0.5, 0.5, 3), True, "0 [-0.5, +0.5]"),
            ((1.23456, math.nan, math.nan, 1), True, "+1.235"),
            ((1.0, 0.5, 1.5, 2), False, "1 [0.5, 1.5]"),
            ((math.nan, math.nan, math.nan, 0), False, "–"),
        ],
    )
    def test_intervals_as_text(self, interval, signed, text):
        assert interval_text(Interval(*interval), signed=signed) == text

    def test_p_values_as_text(self):
        texts = [_p_text(p) for p in (math.nan, 0.0, 9.9e-5, 1e-4, 0.25, 1.0)]
        assert texts == ["–", "< 0.0001", "< 0.0001", "0.0001", "0.25", "1"]

    def test_costs_stand_below_where_a_run_scored_while_training(self, runs, tmp_path):
        assert summarise(runs, ["eval_loss"], control="control", scale=100).costs == ()
        for run in runs:
            if run.status == "finished":
                scored = 240 if run.arm == "faster" else 0
                run.result |= {"examples": 60, "examples_scored": scored, "compute": 180 + scored}
        table = summarise(runs, ["eval_loss"], control="control", scale=100)
        assert table.metrics == ["eval_loss", "examples", "examples_scored", "compute"]
        lines = table.to_markdown().splitlines()
        assert lines[3].startswith("| faster | eval_loss | 4 | 8.75")
        assert lines[-1].startswith("Values but eval_loss, examples, examples_scored, compute × 100. Mean over seeds")
        assert lines[-1].endswith("3 to train on one; a reference's own once.")
        assert "| faster | compute | 4 | 420 [420, 420] | – | – | – | – | 0 | 0 |" in lines
        files = table.write(tmp_path / "out")
        assert not {"examples", "compute"} & set(files)
        with files["csv"].open() as text:
            rows = {(row["arm"], row["metric"]): row for row in csv.DictReader(text)}
        assert (rows["control", "compute"]["mean"], rows["faster", "examples_scored"]["mean"]) == ("180.0", "240.0")
        assert rows["faster", "compute"]["control"] == ""
        asked = summarise(runs, ["compute"], control="control", scale=100)  # which is not added, but asked for
        assert (asked.metrics, asked.drawable()) == (["compute", "examples", "examples_scored"], ["compute"])

    def test_no_name_breaks_the_markdown_table(self, runs):
        table = summarise(runs, ["eval_loss"], control="control")
        rows = tuple(replace(row, arm=f"{row.arm}\n| a | b \u202e") for row in table.rows)
        lines = replace(table, rows=rows).to_markdown().splitlines()
        assert len(lines) == len(table.to_markdown().splitlines())
        assert lines[2].startswith(r"| control \| a \| b | eval_loss | 3 |")

    def test_the_plot_is_there_and_shows_the_runs(self, runs, tmp_path):
        table = summarise(runs, ["eval_loss", "examples"], control="control")
        files = table.write(tmp_path / "out")
        for name in ("eval_loss", "eval_loss_dark"):
            with Image.open(files[name]) as image:
                assert image.width == 1600
        assert "examples" not in files  # no run has such a number
        axes = table.figure("eval_loss").axes[0]
        dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
        means = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
        assert dots == [[10.0, 11.0, 12.0], [9.0, 9.0, 9.0, 8.0]]
        assert means == [11.0, 8.75]
        assert [text.get_text() for text in axes.texts] == ["11  (1 diverged)", "8.75"]
        assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [11.0]  # the control

    def test_it_goes_into_a_report(self, runs, tmp_path):
        report = Report("A study")
        summarise(runs, ["eval_loss"], control="control").add_to(report)
        page = report.write(tmp_path / "report").read_text()
        assert "11 [8.516, 13.48]" in page
        assert (tmp_path / "report" / "figures" / "study_eval_loss.png").is_file()

    def test_bootstrap_intervals_and_a_control_per_arm(self, runs):
        table = summarise(runs, ["eval_loss"], control={"faster": "control"}, kind="bootstrap", confidence=0.9)
        # Of 27 resamples of −1, −2, −3 one has the mean −3, less than 5 %, and three the next one.
        assert table.rows[1].test.difference.lower == pytest.approx(-8 / 3)
        assert table.rows[1].control == "control"
        assert "90 % bootstrap interval" in table.note

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"metrics": []}, "2 arms and 0 metrics make no table"),
            ({"metrics": ["a"], "control": "other"}, "The control 'other' is not an arm"),
            ({"metrics": ["a"], "control": {"faster": "other"}}, "The control 'other' is not an arm"),
            ({"metrics": ["eval_loss"], "kind": "z"}, "kind='z'"),
        ],
    )
    def test_errors(self, runs, options, message):
        with pytest.raises(ValueError, match=message):
            summarise(runs, **options)
