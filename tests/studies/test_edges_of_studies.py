"""Runs of studies at their edges: what is read back, told and run again."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_curriculum import (
    Study,
)
from hf_curriculum.files import read_sealed, write_sealed
from hf_curriculum.fingerprint import fingerprint_rows
from hf_curriculum.studies.study import as_json, grid_arms, replace_names, run_order, short
from hf_curriculum.training.callbacks import Diverged

DATA = Dataset.from_dict({"caption": ["a", "b", "c", "d"]})


class TestStudies:
    def test_numbers_are_finite_numbers_of_a_finished_run(self, tmp_path):
        found = {"a": 1, "b": 0.5, "c": True, "d": None, "e": "2", "f": [3.0]}
        (run,) = Study(lambda given: found, {"a": {}}, [0], tmp_path).run()
        assert run.numbers == {"a": 1, "b": 0.5}
        run.result |= {"g": float("inf"), "h": float("-inf"), "i": float("nan")}
        assert run.numbers == {"a": 1, "b": 0.5}
        run.status = "crashed"
        assert run.numbers == {}

    def test_a_result_is_read_again_only_where_it_has_changed(self, tmp_path):
        made = Study(lambda given: {"eval_loss": 1.0}, {"a": {}}, [0], tmp_path)
        (run,) = made.run()
        run.read()
        run.result = {**run.result, "compute": 5}  # added to the run alone
        run.read()
        assert run.result == {"eval_loss": 1.0, "compute": 5}
        write_sealed(run.folder / "result.json", {**run.known, "result": {"eval_loss": 2.0}})
        run.read()
        assert run.result == {"eval_loss": 2.0}

    def test_while_a_run_is_made_its_record_says_so_and_knows_its_data(self, tmp_path):
        seen = []

        def train(given):
            seen.append(read_sealed(tmp_path / "a-seed3" / "result.json", ""))
            if len(seen) == 1:
                raise OSError("disk")
            return {"eval_loss": 1.0}

        made = Study(train, {"a": {"rate": 1}}, [3], tmp_path, data=lambda given: DATA)
        assert [run.status for run in made.run()] == ["crashed"]
        again = Study(train, {"a": {"rate": 1}}, [3], tmp_path, data=lambda given: DATA)
        assert "OSError: disk" in again.runs[0].error
        assert [run.status for run in again.run()] == ["finished"]
        for facts in seen:  # nothing is left of what happened before
            assert (facts["status"], facts["error"], facts["step"], facts["result"]) == ("running", None, None, {})
            assert facts["data"] == {"data": json.loads(json.dumps(fingerprint_rows(DATA).to_dict()))}
        assert again.runs[0].error is None

    @pytest.mark.parametrize(("limit", "made"), [(0, 0), (1, 1), (3, 3), (9, 3), (None, 3)])
    def test_a_limit_counts_the_runs_that_are_made_now(self, tmp_path, limit, made):
        Study(dict, {"a": {}}, [0], tmp_path).run()
        study = Study(dict, {"a": {}}, range(4), tmp_path)
        study.run(limit=limit)
        assert study.num_waiting == 3 - made
        left = f", {3 - made} left" if made < 3 else ""
        assert study.describe() == f"4 runs: {1 + made} finished{left}"

    @pytest.mark.parametrize(
        ("result", "step", "error"),
        [
            ({"eval_loss": float("nan"), "loss": float("inf"), "steps": 9}, 9, "diverged at step 9: loss is not a"),
            ({"train_loss": float("-inf"), "steps": 9, "log": []}, 9, "diverged at step 9: train_loss is not a"),
            ({"loss": float("nan"), "steps": 9, "log": [{"step": 1, "grad": None}]}, 9, "diverged at step 9: loss"),
            ({"loss": float("nan"), "log": [{"step": 3, "eval_loss": None}, {"step": 4, "loss": None}]}, 3, "step 3"),
            ({"loss": float("nan"), "log": [{"loss": None}], "steps": 9}, None, "loss is not a finite number"),
            ({"loss": float("nan")}, None, "loss is not a finite number"),
        ],
    )
    def test_the_step_of_a_lost_loss(self, tmp_path, result, step, error):
        (run,) = Study(lambda given: result, {"a": {}}, [0], tmp_path).run()
        assert (run.status, run.step) == ("diverged", step)
        assert error in run.error
        assert run.result == as_json(result)

    def test_a_loss_may_be_missing_or_nothing(self, tmp_path):
        (run,) = Study(lambda given: {"loss": None, "eval_loss": 0.0}, {"a": {}}, [0], tmp_path).run()
        assert run.status == "finished"

    def test_of_runs_that_diverged_and_crashed_each_has_its_line(self, tmp_path):
        def train(given):
            raise Diverged(4, "loss is inf") if given["seed"] else Diverged(5, "loss is nan")

        study = Study(train, {"a": {}}, [0, 1], tmp_path)
        study.run()
        assert study.describe().splitlines() == [
            "2 runs: 2 diverged",
            "- a, seed 0: diverged at step 5: loss is nan",
            "- a, seed 1: diverged at step 4: loss is inf",
        ]  # and nothing is to be tried again

    @pytest.mark.parametrize("runs", [1, 2, 3])
    def test_runs_on_other_data_are_counted(self, tmp_path, runs):
        Study(dict, {"a": {}}, range(runs), tmp_path, data=lambda given: DATA).run()
        others = f" (and {runs - 1} more)" if runs > 1 else ""
        said = re.escape(
            f"The run in {tmp_path / 'a-seed0'}{others} was made on other data: data: 4 rows then, 3 now."
        )
        with pytest.raises(ValueError, match=said):
            Study(dict, {"a": {}}, range(4), tmp_path, data=lambda given: DATA.select(range(3))).run()
        assert not (tmp_path / "a-seed3").exists()

    def test_needed_runs_come_first_and_their_folders_are_named(self, tmp_path):
        calls = []
        arms = {"b": {"start": "{a}/model", "more": ["{a}", ("{c}", 1)], "deep": {"x": "{a}{c}"}}, "c": {}, "a": {}}
        study = Study(lambda given: calls.append(given) or {}, arms, [0, 1], tmp_path, needs={"b": ["a", "c"]})
        assert [(run.seed, run.arm) for run in study.runs] == [
            (0, "a"),
            (0, "c"),
            (0, "b"),
            (1, "a"),
            (1, "c"),
            (1, "b"),
        ]
        study.run()
        a, c = (str(tmp_path / f"{arm}-seed1") for arm in "ac")
        assert calls[5] == {
            "start": f"{a}/model",
            "more": [a, [c, 1]],
            "deep": {"x": f"{a}{c}"},
            "seed": 1,
            "output_dir": str(tmp_path / "b-seed1"),
        }
        assert calls[0] == {"seed": 0, "output_dir": str(tmp_path / "a-seed0")}
        facts = read_sealed(tmp_path / "b-seed1" / "result.json", "")
        assert facts["needs"] == {"a": study.runs[3].key, "c": study.runs[4].key}
        assert "needs" not in read_sealed(tmp_path / "a-seed1" / "result.json", "")
        assert replace_names("{a}", {}) == "{a}"

    @pytest.mark.parametrize(
        ("needs", "said"),
        [
            ({"d": ["a"]}, r"The arm 'd' is to be trained before another, and is none of the arms \['a', 'b', 'c'\]"),
            ({"a": ["b", "d"]}, "The arm 'd' is to be trained before another"),
            ({"a": ["a"]}, "in a circle, a → a, so"),
            ({"a": ["b"], "b": ["c"], "c": ["b"]}, "in a circle, b → c → b, so none can be trained first"),
        ],
    )
    def test_what_cannot_be_put_in_order(self, needs, said):
        with pytest.raises(ValueError, match=said):
            run_order(["a", "b", "c"], needs)

    def test_arms_stay_in_order_but_for_what_they_need(self):
        assert run_order(["a", "b", "c", "d"], {"a": ["c"], "b": ["c", "a"]}) == ["c", "a", "b", "d"]

    def test_settings_in_few_characters(self):
        rule = {"type": "phases", "then": {"type": "iid"}, "easy": None, "cuts": (1, [True, "X"]), "of": {"a": False}}
        assert short(rule) == "phases(then=iid, easy=null, cuts=[1, [true, X]], of={a=false})".replace("null", "none")
        assert short({}) == "{}"
        assert list(grid_arms({"a": 0}, {"a": [None, False, 0.5, []]})[0]) == ["a=none", "a=false", "a=0.5", "a=[]"]

    def test_values_as_json_has_them(self):
        values = {
            1: np.float32(0.5),
            "b": (np.nan, -np.inf, 1e300),
            "c": np.array([[1, 2]]),
            "d": torch.tensor(3),
            "e": True,
        }
        values["f"] = {"g": torch.tensor([np.inf, 1.0]), "h": "nan", "i": np.bool_(False)}
        assert as_json(values) == {
            "1": 0.5,
            "b": [None, None, 1e300],
            "c": [[1, 2]],
            "d": 3,
            "e": True,
            "f": {"g": [None, 1.0], "h": "nan", "i": False},
        }
