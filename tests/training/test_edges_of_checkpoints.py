"""Edges of checkpoints, amendments and studies: limits that are met exactly, and the words of each case."""

from __future__ import annotations

import functools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn

from hf_curriculum import (
    IID,
    Amendment,
    BabySteps,
    BucketedStream,
    OnlineSelection,
    Phases,
    SelfPaced,
    make_plan,
)
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.fingerprint import RowsFingerprint, fingerprint_rows
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.plan import digest_of
from hf_curriculum.training import amendment as AMENDMENT
from hf_curriculum.training.amendment import AMENDMENTS_FILE, note_amendment, rest_of_run
from hf_curriculum.training.checkpoints import (
    ARRAYS_FILE,
    CURRICULUM_FILE,
    LOSSES_FILE,
    ROWS_FILE,
    TRAINING_LOSSES_FILE,
    TrainingData,
    invalidate,
    last_complete_checkpoint,
    load_renamed_weights,
    named_on_hub,
    new_run,
    read_amendments,
    read_arrays,
    read_curriculum,
    read_losses,
    read_state,
    read_training_losses,
    replaced_after,
    resume_plan,
    validate_same_data,
    validate_same_inputs,
    validate_same_plan,
    validate_training_state,
    validate_whole,
    verify_checkpoint,
    whole_checkpoint,
    write_curriculum,
)

ROWS = RowsFingerprint("Dataset", 3, {"caption": {"values": "a" * 32}})
DATA = Dataset.from_dict({"caption": ["a", "b", "c", "d"]})


def plan_of(rule=None, rows=10, batch=2):
    return make_plan(rule or IID(epochs=8), np.arange(float(rows)), global_batch_size=batch)  # 40 steps


def saved_in(folder, step=4, *, run=None, plan=None, weights=b"weights", **given):
    """A checkpoint of a step, as a trainer writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    (folder / "model.bin").write_bytes(weights)
    write_curriculum(folder, plan or plan_of(), 1.5, step=step, run=run, **given)
    return folder


def changed(folder, **facts):
    """The record of a checkpoint as other code, or another run, would have written it; None leaves a fact out."""
    record = {**read_curriculum(folder), **facts}
    write_sealed(folder / CURRICULUM_FILE, {name: value for name, value in record.items() if value is not None})
    return read_curriculum(folder)


def spoil(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def by_hand(rows):
    """A collator."""


class ByHand:
    """Another."""

    def __call__(self, rows):
        """Nothing."""


OTHER_REGIONS = "its stored regions were found by another detector, or in another way"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {}, ""),
        ({"regions": "x"}, {"regions": "x"}, ""),
        ({"regions": "x"}, {}, ""),  # what one of the two does not know is not compared
        ({}, {"regions": "x"}, ""),
        ({"regions": "x"}, {"regions": "y"}, OTHER_REGIONS),
        ({"collator": None}, {}, "its collator was none, is ByHand"),
        ({}, {"collator": None}, "its collator was ByHand, is none"),
        ({"transform": "flip"}, {"transform": "turn"}, "its transform was flip, is turn"),
        ({"inputs": {"x": "1"}, "weights": "1"}, {"inputs": {"x": "2"}}, ""),  # which are compared on their own
        (
            {"rows": RowsFingerprint("Dataset", 4), "regions": "x"},
            {"collator": "Other", "transform": "flip", "regions": "y"},
            "4 rows then, 3 now; its collator was ByHand, is Other; its transform was none, is flip; " + OTHER_REGIONS,
        ),
    ],
)
def test_what_differs_in_training_data_is_all_told(before, now, said):
    own = {"rows": ROWS, "collator": "ByHand", "transform": None}
    assert TrainingData(**{**own, **before}).difference(TrainingData(**{**own, **now})) == said


def test_training_data_is_described_by_rows_names_and_digests():
    collator, weights = ByHand(), np.array([1.0, 2.0, 0.5, 0.0])
    bare = TrainingData.of(DATA, None)
    assert bare == TrainingData(bare.rows, None, None)  # and nothing else
    for given, name in ((by_hand, "by_hand"), (functools.partial(by_hand), "by_hand"), (collator, "ByHand")):
        assert TrainingData.of(DATA, given).collator == name
    found = TrainingData.of(DATA.with_transform(by_hand), collator, weights)
    assert found.rows.to_dict() == fingerprint_rows(DATA).to_dict()
    assert (found.transform, found.weights, found.regions) == ("by_hand", digest_of(weights), None)
    collator.image_inputs = SimpleNamespace(store=SimpleNamespace(fingerprint="of regions"))
    found = TrainingData.of(DATA, collator)
    assert (found.regions, found.weights, found.transform) == ("of regions", None, None)
    collator.image_inputs = SimpleNamespace(store=None)  # of pixels
    assert TrainingData.of(DATA, collator).regions is None
    listed = TrainingData.of([1, 2, 3], by_hand)
    assert (listed.rows.kind, listed.rows.num_rows, listed.transform) == ("list", 3, None)
    stream = object.__new__(BucketedStream)
    stream.index = SimpleNamespace(num_rows=7)
    found = TrainingData.of(stream, collator)
    assert (found.rows.kind, found.rows.num_rows, found.collator, found.transform) == (
        "BucketedStream",
        7,
        "ByHand",
        None,
    )


class TestRecord:
    """What `curriculum.json` holds, and the arrays beside it."""

    @pytest.mark.parametrize(("step", "stop"), [(0, 16), (23, 39), (24, 40), (25, 40), (39, 40), (40, 40)])
    def test_the_rows_of_the_next_sixteen_steps_or_of_those_that_are_left(self, tmp_path, step, stop):
        plan = plan_of()
        facts = read_curriculum(saved_in(tmp_path, step))
        rows = plan.rows(2 * step, 2 * stop)
        assert len(rows) == 2 * (stop - step)
        assert facts["next_rows"] == {"step": step, "stop": stop, "digest": digest_of(rows)}
        assert facts["costs"] == {"examples": 2 * step, "scored": 0}
        assert facts["pools"] == [[[0, 10]]]
        assert sorted(facts["files"]) == ["model.bin", "trainer_state.json"]

    def test_a_saved_model_records_no_step_and_no_other_files(self, tmp_path):
        (tmp_path / "model.bin").write_bytes(b"weights")
        write_curriculum(tmp_path, plan_of(), 2.5)
        facts = read_curriculum(tmp_path)
        facts.pop("seal", None)
        assert sorted(facts) == ["description", "files", "log", "plan", "run", "seconds", "version", "versions"]
        assert (facts["files"], facts["run"], facts["seconds"]) == ({}, {"id": "", "begun": 0.0}, 2.5)
        assert sorted(facts["versions"]) == ["datasets", "hf_curriculum", "torch", "transformers"]
        assert facts["versions"]["torch"] == torch.__version__

    def test_of_the_data_only_what_there_is(self, tmp_path):
        inputs = {"x": "1"}
        plain = TrainingData(ROWS, "ByHand", None, inputs=inputs)
        own = {"rows": ROWS.to_dict(), "collator": "ByHand", "transform": None, "inputs": inputs}
        assert read_curriculum(saved_in(tmp_path / "a", data=plain))["data"] == own
        for name in ("regions", "weights"):
            data = TrainingData(ROWS, "ByHand", None, inputs=inputs, **{name: "digest"})
            assert read_curriculum(saved_in(tmp_path / name, data=data))["data"] == {**own, name: "digest"}
        facts = read_curriculum(saved_in(tmp_path / "b", draws={}, trained_on={}))
        assert facts["draws"] == {}
        assert {"data", "trained_on"}.isdisjoint(facts)
        facts = read_curriculum(saved_in(tmp_path / "c", trained_on={"examples": 3}))
        assert facts["trained_on"] == {"examples": 3}
        assert "draws" not in facts

    def test_arrays_are_written_read_and_removed_one_by_one(self, tmp_path):
        packed, losses = np.arange(10, dtype=np.int64), np.array([1, np.nan, 3, 4] + [0] * 6, np.float32)
        paced = plan_of(SelfPaced(epochs=2, warmup_epochs=0, easy="low")).decided(Observed(0, {}, losses))
        full = paced.with_log(paced.log, losses, {"recall": np.array([0.5, 1.0]), "more": np.ones(3)})
        data = TrainingData.of(DATA, None)
        folder = saved_in(tmp_path, 0, plan=full, data=data, training_losses=packed)
        names = {LOSSES_FILE, ROWS_FILE, TRAINING_LOSSES_FILE, ARRAYS_FILE}
        assert read_curriculum(folder)["files"].keys() == {*names, "model.bin", "trainer_state.json"}
        np.testing.assert_array_equal(read_losses(folder), losses)
        np.testing.assert_array_equal(read_training_losses(folder), packed)
        arrays = read_arrays(folder)
        assert {name: array.tolist() for name, array in arrays.items()} == {"recall": [0.5, 1], "more": [1, 1, 1]}
        np.testing.assert_array_equal(np.load(folder / ROWS_FILE), data.rows.stacked_blocks())
        readers = {LOSSES_FILE: read_losses, TRAINING_LOSSES_FILE: read_training_losses, ARRAYS_FILE: read_arrays}
        for name, read in readers.items():
            whole = (folder / name).read_bytes()
            spoil(folder / name)
            with pytest.raises(DamagedFileError, match=rf"{name} holds something else than was written"):
                read(folder)
            (folder / name).write_bytes(whole)
        saved_in(folder, 0, plan=full)  # without two of them
        assert {path.name for path in folder.glob("curriculum_*")} == {LOSSES_FILE, ARRAYS_FILE}
        saved_in(folder, training_losses=packed)
        assert {path.name for path in folder.glob("curriculum_*")} == {TRAINING_LOSSES_FILE}
        assert read_losses(folder) is None
        assert read_arrays(folder) == {}
        verify_checkpoint(folder)
        (folder / LOSSES_FILE).write_bytes(b"of somebody else")  # recorded nowhere: it is not read
        assert read_losses(folder) is None

    def test_the_state_is_compared_where_it_is_recorded_and_has_what_is_needed(self, tmp_path):
        folder = saved_in(tmp_path / "checkpoint-4")
        assert read_state(folder) == {"global_step": 4, "log_history": []}
        (folder / "trainer_state.json").write_text('{"global_step": 5, "log_history": []}')
        with pytest.raises(DamagedFileError, match=r"trainer_state\.json holds something else than was written"):
            read_state(folder)
        write_curriculum(tmp_path, plan_of(), 1.0)  # beside checkpoints the state is in no record
        state = tmp_path / "trainer_state.json"
        state.write_text('{"global_step": 6, "log_history": [], "more": 1}')
        assert read_state(tmp_path)["global_step"] == 6
        for missing in ("global_step", "log_history"):
            content = {"global_step": 6, "log_history": []}
            del content[missing]
            state.write_text(json.dumps(content))
            with pytest.raises(
                DamagedFileError, match=rf"is damaged \(KeyError: '{missing}'\).*Take another checkpoint"
            ):
                read_state(tmp_path)

    def test_of_several_missing_files_the_first_is_named(self, tmp_path):
        folder = saved_in(tmp_path)
        for name in ("trainer_state.json", "model.bin"):
            (folder / name).unlink()
        with pytest.raises(
            DamagedFileError, match=r"model\.bin is missing: it was there when .* as another one\. Take"
        ):
            verify_checkpoint(folder)

    def test_runs_are_told_apart(self):
        one, other = new_run(), new_run()
        assert re.fullmatch("[0-9a-f]{16}", one["id"])
        assert one["id"] != other["id"]
        assert one["begun"] == round(one["begun"], 3) > 1.7e9

    def test_what_is_written_again_loses_its_record_its_state_and_its_links_alone(self, tmp_path):
        folder = saved_in(tmp_path / "checkpoint-4")
        (tmp_path / "thesis.txt").write_text("years of work")
        (folder / "deep").mkdir()
        (folder / "deep" / "link").symlink_to(tmp_path / "thesis.txt")
        (folder / "deep" / "file").write_text("stays")
        invalidate(folder)
        assert sorted(path.name for path in folder.rglob("*")) == ["deep", "file", "model.bin"]
        assert (tmp_path / "thesis.txt").read_text() == "years of work"
        (tmp_path / "checkpoint-8").symlink_to(folder)
        with pytest.raises(ValueError, match="checkpoint-8 is a link to"):
            invalidate(tmp_path / "checkpoint-8")
        assert (folder / "model.bin").is_file()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("me/model", ("me/model", None)),
        ("me/model@main", ("me/model", "main")),
        ("me/model-2.0@pr/3_a.b", ("me/model-2.0", "pr/3_a.b")),
        ("here/checkpoint-9", None),  # a folder of this name is here, and no checkpoint of that
        ("here/checkpoint-4", None),
        ("here@main/model", None),
        ("model", None),
        ("me/model/more", None),
        ("me/model@", None),
        ("./checkpoint-4", None),
    ],
)
def test_names_on_the_hub_and_paths_are_told_apart(tmp_path, monkeypatch, name, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "checkpoint-4").mkdir(parents=True)
    assert named_on_hub(name) == found


CHANGES = {
    "curriculum": ({"type": "iid"}, "the steps still to come would be another curriculum's"),
    "score_column": ("a", "the examples would be in another order"),
    "easy": ("high", "the examples would be in another order"),
    "scores": ("0" * 16, "the examples would be in another order"),
    "stream": ({"shards": 3}, "the examples would be in another order"),
    "columns": ({"a": "1"}, "the examples would be drawn in another way"),
    "global_batch_size": (3, "a step number would stand for other examples"),
    "seed": (7, "the examples would be in another order"),
    "num_steps": (41, "the learning-rate schedule would be another one"),
}


class TestResuming:
    """What is compared with a checkpoint before a run goes on from it."""

    @pytest.mark.parametrize("name", CHANGES)
    def test_each_part_of_a_plan_has_its_words(self, name):
        own = plan_of().fingerprint()
        validate_same_plan(own, dict(own), "F")
        value, reason = CHANGES[name]
        now = {**own, name: value}
        if name == "score_column":  # of other scores; of the same ones it is a new name
            validate_same_plan(own, now, "F")
            own, now = {**own, "scores": "1"}, {**now, "scores": "2"}
        what = f"was {own.get(name)!r}, is {value!r}"
        if name in ("scores", "columns"):
            what = f"the {name} themselves differ"
        with pytest.raises(ValueError, match="cannot be resumed") as error:
            validate_same_plan(own, now, "F")
        assert str(error.value) == (
            f"F cannot be resumed: {name} has changed since it was saved ({what}), and {reason}. Set it back, or "
            "start a new run from the checkpoint's weights."
        )

    def test_other_numbers_of_rows_are_told_before_anything_else(self):
        own = {**plan_of().fingerprint(), "num_rows": 12345}
        with pytest.raises(
            ValueError, match=r"of F was made for 12,345 rows but train_dataset has 1,234: row numbers"
        ):
            validate_same_plan(own, {**own, "num_rows": 1234, "seed": 9}, "F")

    @pytest.mark.parametrize(
        ("before", "now", "names"),
        [
            ({"x": "1", "y": "1"}, {"x": "1", "y": "1"}, ""),
            ({"x": "1", "y": "1"}, {"x": "1", "z": "2"}, ""),  # of what only one of them has nothing is known
            ({}, {"x": "1"}, ""),
            ({"y": "1", "x": "1", "z": "1"}, {"z": "1", "y": "2", "x": "3"}, "`x`, `y`"),
        ],
    )
    def test_inputs_that_both_have_are_compared(self, tmp_path, caplog, before, now, names):
        data = TrainingData(ROWS, None, None, inputs=before)
        folder, now = saved_in(tmp_path, data=data), TrainingData(ROWS, None, None, inputs=now)
        if not names:
            validate_same_inputs(folder, now)
            validate_same_inputs(folder, now, accept=True)
            assert not caplog.records
            return
        said = re.escape(f"other data: the same rows are collated into another {names} (its processor, ")
        with pytest.raises(ValueError, match=said + r".*a library's version has changed\)\. The rest of the run"):
            validate_same_inputs(folder, now)
        validate_same_inputs(folder, now, accept=True)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"another {names} (its processor" in caplog.text
        assert caplog.text.rstrip().endswith("The run continues: resume_on_other_data=True.")

    def test_a_checkpoint_without_data_has_no_inputs_to_compare(self, tmp_path):
        folder = saved_in(tmp_path)
        assert "data" not in read_curriculum(folder)
        assert validate_same_inputs(folder, TrainingData(ROWS, None, None, inputs={"x": "1"})) is None

    @pytest.mark.parametrize(
        ("before", "now", "was"),
        [
            ("1", "1", ""),
            (None, None, ""),
            (None, "1", "none"),
            ("1", "2", "other numbers"),
            ("1", None, "weights, and"),
        ],
    )
    def test_weights_and_regions_are_compared_with_what_was_recorded(self, tmp_path, before, now, was):
        data, other = TrainingData.of(DATA, None), DATA.select([0, 1, 3, 2])
        folder = saved_in(tmp_path, data=TrainingData(data.rows, None, None, regions="r", weights=before))
        saved = read_curriculum(folder)
        same = TrainingData(data.rows, None, None, regions="r", weights=now)
        if was:
            with pytest.raises(ValueError, match=rf"weights of the examples have changed .* \(there were {was}"):
                validate_same_data(saved, same, folder, accept=True)
        else:
            validate_same_data(saved, same, folder)
            with pytest.raises(ValueError, match=f"was made for other data: {OTHER_REGIONS}"):
                validate_same_data(saved, TrainingData(data.rows, None, None, "s", weights=now), folder)
            now = TrainingData(TrainingData.of(other, None).rows, None, None, weights=now)
            with pytest.raises(ValueError, match=r"`caption` of 2 differs \(first: row 2\)"):
                validate_same_data(saved, now, folder)

    @pytest.mark.parametrize(
        ("versions", "cause"),
        [
            (None, r"It was saved with {own}, as here, so the code has changed\."),
            ({"torch": "0.1"}, r"It was saved with torch 0\.1; here runs torch {torch}\."),
            (
                {"torch": "0.1", "jax": "3"},
                r"It was saved with torch 0\.1, jax 3; here runs torch {torch}, jax none\.",
            ),
            ({}, r"It does not say with which versions it was saved; here runs {own}\."),
        ],
    )
    def test_the_cause_of_another_order_is_told_by_versions(self, tmp_path, versions, cause):
        folder, plan = saved_in(tmp_path), plan_of()
        own = read_curriculum(folder)["versions"]
        saved = changed(folder, versions={**own, **versions} if versions else own if versions is None else versions)
        saved["next_rows"]["digest"] = "0"
        spelt = re.escape(", ".join(f"{name} {number}" for name, number in own.items()))
        cause = cause.format(own=spelt, torch=re.escape(own["torch"]))
        with pytest.raises(
            ValueError, match=rf"but the rows of steps 5 to 20 are others\. The code of IID.* {cause} Set"
        ):
            resume_plan(saved, plan, folder)

    def test_what_of_a_stage_is_another_is_told(self, tmp_path):
        plan = plan_of(Phases(2, 2, easy="low"))
        folder = saved_in(tmp_path, plan=plan)
        saved = read_curriculum(folder)
        assert resume_plan(saved, plan, folder).rows(0, 20).tolist() == plan.rows(0, 20).tolist()
        others = {"pool": 4, "draws": 9, "first_sample": 1, "last_sample": 8, "pools": [[0, 9, 4]]}
        for name, value in others.items():
            saved = read_curriculum(folder)
            own = saved["plan"]["stages"][0][name]
            saved["plan"]["stages"][0][name] = value
            said = re.escape(f"but phase 1 had {name}={value} and has {name}={own}. The code of Phases")
            with pytest.raises(ValueError, match=said):
                resume_plan(saved, plan, folder)
        saved = read_curriculum(folder)
        saved["plan"]["stages"][1] |= {"rule": "in other words", "new": 3}  # which change no draw
        resume_plan(saved, plan, folder)
        saved["plan"]["stages"].pop()
        with pytest.raises(ValueError, match=r"but the plan had 1 stages and has 2\. The code"):
            resume_plan(saved, plan, folder)
        saved = read_curriculum(folder)
        saved["pools"][1] = [[1, 9]]
        with pytest.raises(
            ValueError, match=r"phase 2 had the positions \[\[1, 9\]\] of the order .* has \[\(0, 10\)\]\."
        ):
            resume_plan(saved, plan, folder)
        del saved["pools"], saved["next_rows"]  # as an earlier version has written it
        resume_plan(saved, plan, folder)

    def test_weights_that_a_model_does_not_know_are_an_error_and_tied_ones_none(self, tmp_path):
        model = nn.Linear(2, 2)
        before = [value.clone() for value in model.parameters()]
        unknown = SimpleNamespace(missing_keys=[], unexpected_keys=["a", "b", "c", "d"])
        with pytest.raises(ValueError, match=re.escape("lacks 0 weights ([] …) and has 4 others (['a', 'b', 'c'] …)")):
            load_renamed_weights(model, tmp_path, unknown)
        missing = SimpleNamespace(missing_keys=["weight", "bias"], unexpected_keys=[])
        with pytest.raises(
            ValueError, match=re.escape("lacks 2 weights (['weight', 'bias'] …) and has 0 others ([] …)")
        ):
            load_renamed_weights(model, tmp_path, missing)
        model.all_tied_weights_keys = {"weight": "bias"}
        with pytest.raises(ValueError, match=re.escape("lacks 1 weights (['bias'] …)")):
            load_renamed_weights(model, tmp_path, missing)
        load_renamed_weights(model, tmp_path, SimpleNamespace(missing_keys=["weight"], unexpected_keys=[]))
        assert all(map(torch.equal, model.parameters(), before))

    @pytest.mark.parametrize("name", ["rng_state.pth", "rng_state_0.pth"])
    def test_a_random_state_makes_a_checkpoint_one_to_resume(self, tmp_path, name):
        (tmp_path / "rng_state.txt").write_text("")
        with pytest.raises(ValueError, match="holds the model alone"):
            validate_training_state(tmp_path)
        (tmp_path / name).write_text("")
        assert validate_training_state(tmp_path) is None


def run_of(name, begun):
    return {"id": name, "begun": begun}


class TestTheNewest:
    """Which checkpoint of a folder is taken, and what is said of the others."""

    def test_what_is_older_than_the_one_that_is_taken_is_not_told(self, tmp_path, caplog):
        caplog.set_level("INFO", logger="hf_curriculum.training.checkpoints")
        for step in (9, 10, 11):
            saved_in(tmp_path / f"checkpoint-{step}", step, run=run_of("a", 2.0))
        (tmp_path / "checkpoint-9" / "trainer_state.json").unlink()
        saved_in(tmp_path / "checkpoint-8", 8, run=run_of("b", 1.0))
        (tmp_path / "checkpoint-12").write_text("a file")
        saved_in(tmp_path / "checkpoint-13x", 13, run=run_of("a", 3.0))
        assert last_complete_checkpoint(tmp_path, whole=True) == str(tmp_path / "checkpoint-11")
        told = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert told == [("INFO", "Resuming from checkpoint-11, the last complete checkpoint.")]

    def test_all_that_is_passed_over_is_told_and_older_runs_last(self, tmp_path, caplog):
        saved_in(tmp_path / "checkpoint-2", 2, run=run_of("b", 5.0))
        saved_in(tmp_path / "checkpoint-4", 4, run=run_of("b", 5.0))
        saved_in(tmp_path / "checkpoint-6", 6, run=run_of("a", 1.0))
        saved_in(tmp_path / "checkpoint-8", 8).joinpath("trainer_state.json").unlink()
        spoil(tmp_path / "checkpoint-4" / "model.bin")
        assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")  # only with `whole` it is read
        caplog.clear()
        assert last_complete_checkpoint(tmp_path, whole=True) == str(tmp_path / "checkpoint-2")
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 4
        told = caplog.messages
        assert told[0] == (f"checkpoint-8 in {tmp_path} is incomplete: the run ended while it was being saved.")
        assert "checkpoint-4/model.bin holds something else" in told[1]
        assert told[2] == f"{tmp_path / 'checkpoint-6'} is of an earlier run into {tmp_path}."
        assert told[3] == "Resuming from checkpoint-2, the last complete checkpoint."

    def test_where_none_is_left_all_reasons_are_told(self, tmp_path):
        for step in (2, 4):
            saved_in(tmp_path / f"checkpoint-{step}", step).joinpath("trainer_state.json").unlink()
        said = [
            f"checkpoint-{step} in {tmp_path} is incomplete: the run ended while it was being saved."
            for step in (4, 2)
        ]
        with pytest.raises(ValueError, match=re.escape(f"({tmp_path}): {' '.join(said)} A report, and")):
            last_complete_checkpoint(tmp_path)

    def test_a_checkpoint_is_replaced_by_an_amendment_of_an_earlier_step_of_its_run(self, tmp_path):
        first, last = {"step": 4, "asked": {"a": 1}}, {"step": 8, "asked": {"b": 2}}
        noted = [{"run": "a", **first}, {"run": "a", **last}, {"run": "b", "step": 0, "asked": {}}]
        folder = saved_in(tmp_path, run=run_of("a", 1.0))
        found = [replaced_after(folder, step, noted) for step in (4, 8, 9, 40)]
        assert found == [None, None, 8, 8]
        assert replaced_after(folder, 9, noted[:1]) == 4
        assert replaced_after(folder, 9, []) is None
        assert replaced_after(folder, 9, noted[2:]) is None  # of another run
        plan = read_curriculum(folder)["plan"]
        for amended, replaced in (
            (last, None),
            (first, 8),
            ({**last, "asked": {"a": 1}}, 8),
            ({**last, "step": 4}, 8),
        ):
            changed(folder, plan={**plan, "amended": amended})
            assert replaced_after(folder, 12, noted) == replaced

    def test_a_damaged_checkpoint_names_the_newest_whole_one_beside_it(self, tmp_path):
        for step in (2, 4, 6):
            saved_in(tmp_path / f"checkpoint-{step}", step, run=run_of("a", 1.0))
        validate_whole(tmp_path / "checkpoint-6")
        spoil(tmp_path / "checkpoint-6" / "model.bin")
        said = rf"replaced\. Take another checkpoint: checkpoint-4 is the newest whole one of {tmp_path}\.$"
        with pytest.raises(DamagedFileError, match=said):
            validate_whole(tmp_path / "checkpoint-6")
        for step in (2, 4):
            spoil(tmp_path / f"checkpoint-{step}" / "model.bin")
        with pytest.raises(DamagedFileError, match=r"replaced\. No other one beside it is whole: start a new run\.$"):
            validate_whole(tmp_path / "checkpoint-6")

    def test_one_process_of_each_machine_reads_a_checkpoint(self, tmp_path):
        whole, damaged = (saved_in(tmp_path / f"checkpoint-{step}", step, run=run_of("a", 1.0)) for step in (2, 4))
        spoil(damaged / "model.bin")

        def process(index, local):
            return SimpleNamespace(output_dir=str(tmp_path), process_index=index, local_process_index=local)

        assert whole_checkpoint(process(0, 0), None) == str(whole)
        assert whole_checkpoint(process(1, 0), None) is None  # the main process says which, here it is not there
        for index, local in ((0, 0), (2, 0)):
            assert whole_checkpoint(process(index, local), str(whole)) == str(whole)
            with pytest.raises(DamagedFileError, match=r"checkpoint-4/model\.bin holds"):
                whole_checkpoint(process(index, local), str(damaged))
        assert whole_checkpoint(process(1, 1), str(damaged)) == str(damaged)


OUT = "out"
PHASES, OTHER = Phases(2, 2, easy="low"), IID(easy="low")


class Trainer(SimpleNamespace):
    """What an amendment reads of a trainer, and sets: a run of 40 steps of 2 rows."""

    def __init__(self, folder, rule=PHASES, data=DATA, *, batch=2, saves=True):
        args = SimpleNamespace(output_dir=str(folder), should_save=saves, score_column="length", curriculum=rule)
        super().__init__(args=args, train_dataset=data, batch=batch, _run=run_of("a", 1.0))

    @property
    def curriculum(self):
        return self.args.curriculum

    def get_total_train_batch_size(self, args):
        assert args is self.args
        return self.batch


@pytest.fixture
def at_step(tmp_path):
    """`at_step(n)` is a checkpoint of step n in the output folder."""
    return lambda step: str(saved_in(tmp_path / OUT / f"checkpoint-{step}", step, run=run_of("a", 1.0)))


class TestAmendments:
    def test_what_is_asked_is_equal_for_equal_amendments(self):
        nothing = {"curriculum": None, "score_column": None, "max_steps": None, "rows": None}
        rows = fingerprint_rows(DATA).to_dict()
        for given, asked in (
            ({}, {}),
            ({"curriculum": "phases"}, {"curriculum": Phases().to_dict()}),
            ({"curriculum": Phases()}, {"curriculum": Phases().to_dict()}),
            ({"score_column": "length"}, {"score_column": "length"}),
            ({"max_steps": 9}, {"max_steps": 9}),
            ({"train_dataset": DATA.select(range(4))}, {"rows": rows}),
        ):
            assert Amendment(**given).asked() == json.loads(json.dumps({**nothing, **asked}))

    @pytest.mark.parametrize(
        ("step", "max_steps", "steps"),
        [(39, None, 40), (40, 41, 41), (8, 40, 40), (8, 45, 45), (40, None, None), (40, 40, None), (8, 39, None)],
    )
    def test_a_run_is_amended_while_steps_are_left(self, tmp_path, at_step, caplog, step, max_steps, steps):
        trainer, folder = Trainer(tmp_path / OUT), at_step(step)
        change = Amendment(OTHER, max_steps=max_steps)
        if steps is None:
            said = f"has 40 steps, of which {step} are taken; amended it would have {max_steps or 40}. Give Amendment"
            with pytest.raises(ValueError, match=re.escape(said)):
                AMENDMENT.amend_run(trainer, folder, change)
            assert not hasattr(trainer, "amended")
            return
        assert AMENDMENT.amend_run(trainer, folder, change) == folder
        saved = read_curriculum(folder)
        assert trainer.amended == json.loads(
            json.dumps(
                {
                    "step": step,
                    "steps": steps,
                    "examples": 2 * step,
                    "scored": 0,
                    "description": saved["description"].splitlines()[0],
                    "asked": change.asked(),
                    "rule": OTHER.to_dict(),
                    "score_column": "length",
                    "before": {"plan": saved["plan"], "log": []},
                }
            )
        )
        assert trainer.curriculum == OTHER
        longer = [f"The run had 40 steps, and has {steps} as amended" in text for text in caplog.messages]
        assert longer == ([True] if steps > 40 else [])
        plan = rest_of_run(OTHER, plan_of().ranking, trainer.amended, global_batch_size=2, seed=3, epochs=7)
        assert (plan.first_step, plan.num_steps, plan.known_samples) == (step, steps, 2 * steps)
        assert (plan.seed, plan.global_batch_size) == (3, 2)

    def test_of_several_amendments_only_the_plan_is_in_the_description(self, tmp_path, at_step):
        folder = at_step(8)
        changed(tmp_path / OUT / "checkpoint-8", description="amended after step 4: a\nPhases by length\nmore")
        trainer = Trainer(tmp_path / OUT)
        AMENDMENT.amend_run(trainer, folder, Amendment(OTHER))
        assert trainer.amended["description"] == "Phases by length"

    def test_what_is_not_given_stays(self, tmp_path, at_step):
        own = Phases(2, 2, easy="low")
        trainer = Trainer(tmp_path / OUT, own)
        harder = DATA.select([3, 2])
        AMENDMENT.amend_run(trainer, at_step(8), Amendment(train_dataset=harder))
        assert trainer.curriculum is own
        assert trainer.train_dataset is harder
        assert (trainer.args.score_column, trainer.amended["rule"]) == ("length", own.to_dict())
        AMENDMENT.amend_run(trainer, at_step(8), Amendment(OTHER, score_column="other"))
        assert trainer.curriculum == OTHER
        assert (trainer.args.score_column, trainer.amended["score_column"]) == ("other", "other")
        assert trainer.train_dataset is harder

    def test_a_run_that_was_never_amended_is_left_alone(self, tmp_path, at_step):
        trainer = Trainer(tmp_path / OUT)
        trainer.amended = {"step": 3}  # of an earlier training
        assert AMENDMENT.amend_run(trainer, at_step(8), None) is None
        assert trainer.amended is None
        assert trainer.curriculum is PHASES

    def test_batches_of_another_size_are_refused(self, tmp_path, at_step):
        with pytest.raises(ValueError, match=r"A step of .*checkpoint-8 takes 2 examples, and now 3: an amendment"):
            AMENDMENT.amend_run(Trainer(tmp_path / OUT, batch=3), at_step(8), Amendment(OTHER))

    @pytest.mark.parametrize(
        ("own", "given", "name"),
        [
            (PHASES, BabySteps(2, epochs=3), "BabySteps"),
            (PHASES, OnlineSelection(2, "loss", then=IID()), "OnlineSelection"),
            (BabySteps(2, epochs=3), None, "BabySteps"),  # other data, for a rule that goes on deciding
            (OnlineSelection(2, "loss", then=IID()), None, "OnlineSelection"),
        ],
    )
    def test_a_rule_that_decides_is_no_rest_of_a_run(self, tmp_path, at_step, own, given, name):
        change = Amendment(given, DATA.select([0, 1]))
        with pytest.raises(ValueError, match=f"^{name} decides while training, from its first step on"):
            AMENDMENT.amend_run(Trainer(tmp_path / OUT, own), at_step(8), change)
        if given is None:
            assert AMENDMENT.amend_run(Trainer(tmp_path / OUT, own), at_step(8), Amendment(OTHER))

    @pytest.mark.parametrize("own", ["buckets", "a path", "a stream"])
    @pytest.mark.parametrize("side", ["trainer", "amendment"])
    def test_buckets_of_either_side_are_refused(self, tmp_path, at_step, own, side):
        buckets = {"buckets": "buckets", "a path": tmp_path, "a stream": object.__new__(BucketedStream)}[own]
        trainer = Trainer(tmp_path / OUT, data=buckets if side == "trainer" else DATA)
        change = Amendment(OTHER, buckets if side == "amendment" else DATA)
        with pytest.raises(ValueError, match="The training data is read from buckets"):
            AMENDMENT.amend_run(trainer, at_step(8), change)

    def test_the_output_folder_holds_one_amendment_of_each_checkpoint(self, tmp_path, at_step, caplog):
        file, noted = tmp_path / OUT / AMENDMENTS_FILE, {}
        for step, rule in ((8, OTHER), (12, OTHER), (8, Phases(3, easy="low"))):
            trainer, folder = Trainer(tmp_path / OUT), at_step(step)
            AMENDMENT.amend_run(trainer, folder, Amendment(rule))
            note_amendment(trainer, folder)
            noted = {at: entry for at, entry in noted.items() if at != step} | {step: rule}
            found = read_amendments(tmp_path / OUT)
            assert [(entry["step"], entry["asked"]["curriculum"]) for entry in found] == [
                (at, json.loads(json.dumps(each.to_dict()))) for at, each in noted.items()
            ]
            assert {entry["run"] for entry in found} == {"a"}
            assert f"The run is amended after step {step}: {rule} from there on." in caplog.text
        assert list(noted) == [12, 8]
        before = file.read_bytes()
        note_amendment(trainer, folder)
        assert file.read_bytes() == before  # told once more, it is noted once
        again = Trainer(tmp_path / OUT)
        assert AMENDMENT.amend_run(again, at_step(8), None) == folder  # it was killed before its next checkpoint
        assert again.curriculum == Phases(3, easy="low")

    def test_only_a_process_that_saves_writes_it(self, tmp_path, at_step, caplog):
        trainer, folder = Trainer(tmp_path / OUT, saves=False), at_step(8)
        AMENDMENT.amend_run(trainer, folder, Amendment(OTHER))
        note_amendment(trainer, folder)
        assert "The run is amended after step 8" in caplog.text
        assert not (tmp_path / OUT / AMENDMENTS_FILE).exists()
        assert read_amendments(tmp_path / OUT) == []
