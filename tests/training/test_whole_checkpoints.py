"""Every file of a checkpoint is the one that was saved, or the run says so before it loads any."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers.trainer
from small_task import Net, make_data
from transformers import TrainerCallback
from verifying import verify_all
from xxhash import xxh3_128_hexdigest

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, InfoBatch, OnlineSelection, Phases
from hf_curriculum.files import DamagedFileError, write_sealed
from hf_curriculum.reporting.chosen import find_chosen
from hf_curriculum.training.checkpoints import (
    is_complete,
    last_complete_checkpoint,
    read_amendments,
    read_curriculum,
    verify_checkpoint,
    write_curriculum,
)
from hf_curriculum.training.report import read_run
from hf_curriculum.training.sampler import DrawAudit

RULE = Phases(2, 2, easy="low")
"""18 steps of 4 rows."""
SAVED = {"save_strategy": "steps", "save_steps": 2, "audit_draws": True}
FILES = {
    "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin",
    "curriculum_rows.npy",
}  # fmt: skip


def trainer_in(folder, rule=RULE, *, callbacks=None, kind=CurriculumTrainer, **arguments):
    settings = {"per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    args = CurriculumTrainingArguments(
        str(folder), curriculum=rule, score_column="difficulty", **{**settings, **SAVED, **arguments}
    )
    torch.manual_seed(0)
    return kind(Net(), args, train_dataset=make_data(), callbacks=callbacks)


def weights(trainer):
    return torch.cat([value.detach().ravel() for value in trainer.model.parameters()])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that came to its end, and its weights."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trainer = trainer_in(folder)
    trainer.train()
    return folder, weights(trainer)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a run that came to its end."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def flip(file, place=None):
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "a bit": flip,
    "the first byte": lambda file: flip(file, 0),
    "the end": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "all": lambda file: file.write_bytes(b""),
    "gone": lambda file: file.unlink(),
    "of another checkpoint": lambda file: shutil.copy(file.parent.parent / "checkpoint-4" / file.name, file),
}


def test_every_file_is_recorded(run):
    for folder in run.glob("checkpoint-*"):
        assert set(read_curriculum(folder)["files"]) == FILES
        assert {file.name for file in folder.iterdir()} == {*FILES, "curriculum.json"}
        verify_checkpoint(folder)
    verify_all(run)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_file_is_found(run, damage):
    for name in sorted({*FILES, "curriculum.json"}):
        file = run / "checkpoint-12" / name
        whole = file.read_bytes()
        DAMAGES[damage](file)
        same = file.is_file() and file.read_bytes() == whole  # as `training_args.bin` of all checkpoints is
        if same or (name == "curriculum.json" and damage in ("gone", "of another checkpoint")):
            file.write_bytes(whole)
            continue
        for verify, folder in ((verify_checkpoint, file.parent), (verify_all, run)):
            with pytest.raises(DamagedFileError, match=rf"checkpoint-12/{name} .*Take another checkpoint\."):
                verify(folder)
        file.write_bytes(whole)
    verify_checkpoint(run / "checkpoint-12")


def test_a_report_shows_no_state_of_a_checkpoint_that_was_changed(run):
    file = run / "checkpoint-18" / "trainer_state.json"
    (run / "trainer_state.json").unlink(missing_ok=True)
    assert read_run(run / "checkpoint-18")["steps"] == 18
    file.write_text(re.sub(r'"loss": \d', '"loss": 7', file.read_text()))
    with pytest.raises(DamagedFileError, match=r"trainer_state\.json holds something else"):
        read_run(run / "checkpoint-18")


def test_the_record_of_another_checkpoint_is_not_this_ones(run):
    shutil.copy(run / "checkpoint-4" / "curriculum.json", run / "checkpoint-12" / "curriculum.json")
    with pytest.raises(DamagedFileError, match=r"checkpoint-12/.* holds something else than was written"):
        verify_checkpoint(run / "checkpoint-12")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_checkpoint_that_is_named_is_refused_and_the_newest_whole_one_is_told(run, name):
    flip(run / "checkpoint-12" / name)
    flip(run / "checkpoint-18" / "optimizer.pt")
    (run / "checkpoint-16" / "curriculum.json").unlink()
    flip(run / "checkpoint-14" / "curriculum.json")
    trainer = trainer_in(run)
    before = weights(trainer)
    with pytest.raises(
        DamagedFileError, match=rf"checkpoint-12/{name} holds .*Take another checkpoint: checkpoint-10 is the newest"
    ):
        trainer.train(resume_from_checkpoint=str(run / "checkpoint-12"))
    assert torch.equal(weights(trainer), before)


def test_the_last_whole_checkpoint_is_taken_and_the_run_is_the_same(run, finished, caplog):
    flip(run / "checkpoint-18" / "model.safetensors")
    (run / "checkpoint-16" / "rng_state.pth").unlink()
    (run / "checkpoint-14" / "curriculum.json").write_text("{}")
    trainer = trainer_in(run)
    with caplog.at_level(logging.WARNING):
        trainer.train(resume_from_checkpoint=True)
    for told in (
        "checkpoint-18/model.safetensors holds something else than was written",
        "checkpoint-16/rng_state.pth is missing: it was there when",
        "checkpoint-14/curriculum.json is damaged (KeyError: 'seal')",
        "Resuming from checkpoint-12, the last complete checkpoint.",
    ):
        assert told in caplog.text
    assert torch.equal(weights(trainer), finished[1])
    verify_all(run)  # what was damaged was saved again


def test_where_none_is_whole_nothing_is_loaded(run):
    for folder in run.glob("checkpoint-*"):
        flip(folder / "scheduler.pt")
    with pytest.raises(
        ValueError, match=r"No valid checkpoint found .*checkpoint-2/scheduler\.pt holds something else"
    ):
        trainer_in(run).train(resume_from_checkpoint=True)
    with pytest.raises(DamagedFileError, match="No other one beside it is whole: start a new run"):
        trainer_in(run).train(resume_from_checkpoint=str(run / "checkpoint-4"))


def test_what_comes_later_and_notes_for_readers_are_no_damage(run, finished):
    for folder in run.glob("checkpoint-*"):
        (folder / "README.md").write_text("notes")
        (folder / ".cache").mkdir()
        (folder / ".cache" / "uploaded").write_text("by a push")
    trainer = trainer_in(run)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-14"))
    assert torch.equal(weights(trainer), finished[1])


class Sharded(CurriculumTrainer):
    """Saves an optimizer as FSDP does, into a folder with a hidden file, and a card."""

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        for name in ("optimizer_0/.metadata", "optimizer_0/__0_0.distcp", "README.md", ".nfs0001"):
            Path(output_dir, name).parent.mkdir(exist_ok=True)
            Path(output_dir, name).write_text(f"{name} at {self.state.global_step}")


def test_files_in_folders_are_compared_too(tmp_path):
    trainer_in(tmp_path, kind=Sharded, max_steps=4).train()
    folder = tmp_path / "checkpoint-4"
    assert set(read_curriculum(folder)["files"]) == {*FILES, "optimizer_0/.metadata", "optimizer_0/__0_0.distcp"}
    (folder / "README.md").unlink()
    verify_checkpoint(folder)
    flip(folder / "optimizer_0" / ".metadata")
    with pytest.raises(DamagedFileError, match=r"optimizer_0/\.metadata holds something else"):
        verify_checkpoint(folder)


def test_weights_alone_are_whole_and_cannot_be_resumed(tmp_path):
    trainer_in(tmp_path, save_only_model=True, max_steps=4).train()
    verify_all(tmp_path)
    with pytest.raises(ValueError, match="holds the model alone, without optimizer"):
        trainer_in(tmp_path, max_steps=8).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("rule", "arrays"),
    [
        (InfoBatch(epochs=3, easy="low"), {"curriculum_training_losses.npy"}),
        (OnlineSelection(2, "loss", score_every=3, easy="low", then=Phases(2, 2)), {"selection_0.npz"}),
    ],
    ids=["losses", "choice"],
)
def test_arrays_of_a_run_are_compared_and_bring_it_back(tmp_path, rule, arrays):
    whole = trainer_in(tmp_path / "whole", rule)
    whole.train()
    folder = tmp_path / "whole" / "checkpoint-4"
    assert set(read_curriculum(folder)["files"]) == FILES | arrays
    again = trainer_in(tmp_path / "again", rule)
    again.train(resume_from_checkpoint=str(folder))
    assert torch.equal(weights(again), weights(whole))
    for name in arrays:
        flip(folder / name)
        with pytest.raises(DamagedFileError, match=rf"{name} holds something else .*is the newest whole one"):
            trainer_in(tmp_path / "again", rule).train(resume_from_checkpoint=str(folder))


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


def test_a_checkpoint_is_complete_before_older_ones_go(tmp_path, monkeypatch):
    """A kill between the two would leave none."""
    seen, rotate = [], transformers.trainer.rotate_checkpoints

    def watch(output_dir, **options):
        newest = max(Path(output_dir).glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
        seen.append(is_complete(newest))
        verify_checkpoint(newest)
        rotate(output_dir, **options)

    monkeypatch.setattr(transformers.trainer, "rotate_checkpoints", watch)
    trainer_in(tmp_path, save_total_limit=1).train()
    assert seen == [True] * 9
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-18"]


@pytest.mark.parametrize("when", ["before the state", "between state and record"])
def test_a_save_that_was_interrupted_leaves_an_incomplete_checkpoint(run, finished, monkeypatch, caplog, when):
    """Of files that were there before, none is taken for one of the new save."""
    where = "save_to_json" if when == "before the state" else None
    target = transformers.TrainerState if where else "hf_curriculum.training.trainer.write_curriculum"

    def interrupted(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(target, where, interrupted) if where else patch.setattr(target, interrupted)
        with pytest.raises(Killed):
            trainer_in(run).train(resume_from_checkpoint=str(run / "checkpoint-12"))
    assert not is_complete(run / "checkpoint-14")
    for step in (16, 18):
        shutil.rmtree(run / f"checkpoint-{step}")
    trainer = trainer_in(run)
    with caplog.at_level(logging.WARNING):
        trainer.train(resume_from_checkpoint=True)
    assert "checkpoint-14 in" in caplog.text
    assert "Resuming from checkpoint-12" in caplog.text
    assert torch.equal(weights(trainer), finished[1])


class TestLinks:
    """Nothing is written through a link under a name that this package, or `Trainer`, makes itself."""

    @pytest.fixture
    def thesis(self, tmp_path):
        file = tmp_path / "elsewhere" / "thesis.txt"
        file.parent.mkdir()
        file.write_text("years of work")
        yield file
        assert file.read_text() == "years of work"
        assert [entry.name for entry in file.parent.iterdir()] == ["thesis.txt"]

    @pytest.mark.parametrize("name", ["checkpoint-2", "_run.lock", "runs"])
    def test_it_is_refused(self, tmp_path, thesis, name):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / name).symlink_to(thesis if name == "_run.lock" else thesis.parent)
        with pytest.raises(ValueError, match=rf"{name} is a link to .*elsewhere.*Remove the link, or name another"):
            trainer_in(folder, report_to=["tensorboard"] if name == "runs" else []).train()

    def test_it_gives_way_within_a_checkpoint(self, tmp_path, thesis):
        folder = tmp_path / "run" / "checkpoint-2"
        folder.mkdir(parents=True)
        for name in {*FILES, "curriculum.json", "curriculum_losses.npy", "config.json", "selection_0.npz"}:
            (folder / name).symlink_to(thesis)
        (folder / "global_step2").symlink_to(thesis.parent)
        (tmp_path / "run" / "draws-rank0.jsonl").symlink_to(thesis)
        trainer_in(tmp_path / "run").train()
        assert not (tmp_path / "run" / "draws-rank0.jsonl").is_symlink()
        verify_all(tmp_path / "run")
        assert {file.name for file in folder.iterdir()} == {*FILES, "curriculum.json"}

    def test_it_is_replaced_beside_a_model(self, tmp_path, thesis):
        trainer = trainer_in(tmp_path / "run", save_strategy="no")
        trainer.train()
        for name in ("curriculum.json", "curriculum_losses.npy", "curriculum_arrays.npz"):
            (tmp_path / "run" / name).symlink_to(thesis)
        trainer.save_model()
        assert read_curriculum(tmp_path / "run")["trained_on"]["examples"] == trainer.examples_seen()
        for name in ("curriculum_losses.npy", "curriculum_arrays.npz"):
            (tmp_path / "run" / name).symlink_to(thesis)
        write_curriculum(tmp_path / "run", trainer.plan.with_log((), np.zeros(24, np.float32), {"a": np.ones(2)}), 1.0)
        verify_all(tmp_path / "run")
        assert not any(file.is_symlink() for file in (tmp_path / "run").iterdir())


class TestAnotherRun:
    """A second training into a folder that has one."""

    @pytest.mark.parametrize("settings", [{"seed": 1}, {"learning_rate": 0.5}], ids=["another plan", "the same plan"])
    def test_of_two_runs_the_last_begun_is_resumed(self, run, settings, caplog, tmp_path):
        """Its checkpoints are of earlier steps than those that the first one left."""
        whole = trainer_in(tmp_path / "whole", **settings)
        whole.train()
        with pytest.raises(Killed):
            trainer_in(run, callbacks=[KillAt(9)], **settings).train()
        again = trainer_in(run, **settings)
        with caplog.at_level(logging.WARNING):
            again.train(resume_from_checkpoint=True)
        assert "checkpoint-18 is of an earlier run" in caplog.text
        assert "Resuming from checkpoint-8" in caplog.text
        assert torch.equal(weights(again), weights(whole))
        assert len({read_curriculum(folder)["run"]["id"] for folder in run.glob("checkpoint-*")}) == 1

    def test_a_run_that_goes_on_is_the_same_run(self, run):
        before = read_curriculum(run / "checkpoint-18")["run"]
        shutil.rmtree(run / "checkpoint-18")
        trainer_in(run).train(resume_from_checkpoint=True)
        assert read_curriculum(run / "checkpoint-18")["run"] == before

    def test_an_amendment_is_of_its_run_alone(self, run, tmp_path):
        from hf_curriculum import IID, Amendment

        amended = trainer_in(run)
        amended.train(resume_from_checkpoint=str(run / "checkpoint-4"), amend=Amendment(IID(easy="low")))
        with pytest.raises(Killed):
            trainer_in(run, seed=1, callbacks=[KillAt(9)]).train()
        assert last_complete_checkpoint(run) == str(run / "checkpoint-8")
        again = trainer_in(run, seed=1)
        again.train(resume_from_checkpoint=str(run / "checkpoint-4"))
        assert again.plan.amended is None
        (entry,) = read_amendments(run)
        assert entry["step"] == 4
        amendments = run / "amendments.json"
        amendments.write_text(amendments.read_text().replace('"step": 4', '"step": 5'))
        with pytest.raises(DamagedFileError, match=r"amendments\.json was damaged, or changed .*Give amend= again"):
            read_amendments(run)


def test_a_record_of_draws_is_added_to_at_its_end(tmp_path):
    trainer_in(tmp_path).train()
    lines = [json.loads(line) for line in (tmp_path / "draws-rank0.jsonl").read_text().splitlines()]
    assert [step for step, _ in lines] == list(range(18))


RECORD = "draws-rank0.jsonl"
CHOOSING = OnlineSelection(2, "loss", easy="low", then=Phases(2, 2))
EDITS = {
    "a row": lambda text: text.replace("[0, [", "[0, [9", 1),
    "a line": lambda text: text.split("\n", 1)[1],
    "a value": lambda text: text.replace("]]", "1]]", 1),
    "the end": lambda text: text[:30],
    "all": lambda text: "",
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """A run that chose while training."""
    folder = tmp_path_factory.mktemp("chosen") / "run"
    trainer_in(folder, CHOOSING).train()
    return folder


class TestRecordOfDraws:
    """What `draws-rank*.jsonl` says of the steps before a checkpoint is what was written."""

    @pytest.mark.parametrize("edit", EDITS)
    @pytest.mark.parametrize("rule", [RULE, CHOOSING], ids=["audited", "chosen"])
    def test_a_change_is_told(self, finished, chosen, tmp_path, rule, edit):
        run = Path(shutil.copytree(finished[0] if rule is RULE else chosen, tmp_path / "run"))
        file, told = (
            run / RECORD,
            rf"{RECORD} no longer begins with the [\d,]+ bytes that a checkpoint recorded\. It was",
        )
        whole = file.read_text()
        file.write_text(EDITS[edit](whole))
        changed = file.read_bytes()
        with pytest.raises(DamagedFileError, match=told):
            trainer_in(run, rule).train(resume_from_checkpoint=str(run / "checkpoint-2"))
        with pytest.raises(DamagedFileError, match=told):
            trainer_in(run, rule).train(resume_from_checkpoint=True)
        assert file.read_bytes() == changed
        with pytest.raises(DamagedFileError, match=told):
            verify_all(run)
        if rule is CHOOSING:
            assert re.search(f"cannot be told. .*{told}", find_chosen(run, read_run(run))[1])
        file.write_text(whole)
        verify_all(run)

    @pytest.mark.parametrize("rule", [RULE, CHOOSING], ids=["audited", "chosen"])
    @pytest.mark.parametrize("step", [4, 5])
    def test_of_a_killed_run_it_becomes_that_of_a_whole_one(self, finished, chosen, tmp_path, rule, step):
        whole, run = finished[0] if rule is RULE else chosen, tmp_path / "run"
        killed = trainer_in(run, rule, callbacks=[KillAt(step)])
        with pytest.raises(Killed):
            killed.train()
        killed.validate_draws()
        with (run / RECORD).open("a") as file:
            file.write("[5, [1, 2")  # torn
        verify_all(run)
        trainer_in(run, rule).train(resume_from_checkpoint=True)
        assert (run / RECORD).read_bytes() == (whole / RECORD).read_bytes()
        last = f"checkpoint-{18 if rule is RULE else 9}"
        assert read_curriculum(run / last)["draws"] == read_curriculum(whole / last)["draws"]
        verify_all(run)

    def test_where_a_checkpoint_goes_without_it_it_begins_there(self, run, finished, tmp_path):
        whole = (run / RECORD).read_text().splitlines()
        (run / RECORD).unlink()
        verify_all(run)
        for folder in (tmp_path / "other", tmp_path / "other", run):
            trainer_in(folder).train(resume_from_checkpoint=str(run / "checkpoint-4"))
            assert (folder / RECORD).read_text().splitlines() == whole[4:]
            verify_all(folder)
        with pytest.raises(DamagedFileError, match="no longer begins with"):
            trainer_in(tmp_path / "other").train(resume_from_checkpoint=str(finished[0] / "checkpoint-6"))

    def test_only_that_of_the_run_that_began_last_is_compared(self, run):
        with pytest.raises(Killed):
            trainer_in(run, seed=1, callbacks=[KillAt(9)]).train()
        verify_all(run)  # the first run's checkpoints of later steps are still there
        flip(run / RECORD, 5)
        with pytest.raises(DamagedFileError, match="no longer begins with"):
            verify_all(run)

    def test_a_saved_model_knows_it_where_there_is_no_checkpoint(self, tmp_path):
        trainer = trainer_in(tmp_path, save_strategy="no")
        trainer.train()
        trainer.save_model()
        trainer.save_model(str(tmp_path / "elsewhere"))
        verify_all(tmp_path)
        flip(tmp_path / RECORD)
        with pytest.raises(DamagedFileError, match="no longer begins with"):
            verify_all(tmp_path)

    @pytest.mark.parametrize("kind", ["folder", "FIFO"])
    def test_what_is_no_file_is_refused(self, finished, chosen, tmp_path, kind):
        run = Path(shutil.copytree(chosen, tmp_path / "run"))
        (run / RECORD).unlink()
        (run / RECORD).mkdir() if kind == "folder" else os.mkfifo(run / RECORD)
        told = rf"{RECORD} is a {kind}, and a file is written under this name\. Remove it\."
        for resumed in (None, True):
            with pytest.raises(ValueError, match=told):
                trainer_in(run, CHOOSING).train(resume_from_checkpoint=resumed)
        with pytest.raises(DamagedFileError, match=told):
            verify_all(run)
        assert re.search(told, find_chosen(run, read_run(run))[1])

    def test_a_checkpoint_that_recorded_none_is_resumed_as_before(self, run, finished):
        file = run / "checkpoint-4" / "curriculum.json"
        facts = json.loads(file.read_text())
        del facts["draws"], facts["seal"]
        write_sealed(file, facts)
        trainer_in(run).train(resume_from_checkpoint=str(file.parent))
        assert (run / RECORD).read_bytes() == (finished[0] / RECORD).read_bytes()

    def test_processes_that_are_gone_keep_theirs_and_another_runs_goes(self, run):
        (run / "draws-rank1.jsonl").write_text("[0, [1]]\n[1, [2]]\n")
        facts = {"draws-rank1.jsonl": [9, xxh3_128_hexdigest(b"[0, [1]]\n")]}
        audit = DrawAudit(plan=None, process=1, num_processes=2, micro_batch=1, file=run / "draws-rank1.jsonl")
        audit.resume(2, facts)
        assert audit._earlier == b"[0, [1]]\n"
        audit.resume(2, {"draws-rank0.jsonl": [0, ""]})
        assert audit._earlier == b""
        assert (run / "draws-rank1.jsonl").read_text() == "[0, [1]]\n[1, [2]]\n"  # until there is a step to add
