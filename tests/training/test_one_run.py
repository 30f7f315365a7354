"""One run at a time trains into a folder, and a long run keeps no worker's files open."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from small_task import Net
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_curriculum import IID, InfoBatch, OnlineSelection, Phases
from hf_curriculum.training.checkpoints import only_run_in

LOCK = "_run.lock"


@pytest.fixture
def other_run(tmp_path):
    """Another process that trains into `out`, and is killed in the end."""
    (there, told), folder = os.pipe(), tmp_path / "out"
    process = os.fork()
    if process == 0:
        with only_run_in(folder, 0):
            os.write(told, b"x")
            signal.pause()
        os._exit(0)
    os.read(there, 1)
    yield process
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_a_second_run_in_a_folder_is_refused_until_the_first_ends_however_it_ends(make_trainer, tmp_path, other_run):
    trainer = make_trainer(Phases(2, easy="low"), save_strategy="steps", save_steps=2)
    with pytest.raises(
        RuntimeError, match=rf"trains into .*out \(process {other_run} on .*, begun 2.*another output_dir"
    ):
        trainer.train()
    assert trainer.state.global_step == 0
    os.kill(other_run, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="Another run trains into"):
        trainer.train()
    child = os.fork()  # a worker of the killed run would have what this one has
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    os.kill(other_run, signal.SIGKILL)
    os.waitid(os.P_PID, other_run, os.WEXITED | os.WNOWAIT)
    trainer.train()
    assert trainer.state.global_step == trainer.plan.num_steps
    assert not (tmp_path / "out" / LOCK).exists()


def test_a_lock_that_was_left_and_workers_that_outlive_a_run_block_nothing(tmp_path):
    (tmp_path / LOCK).write_text("process 1 on elsewhere, begun long ago")
    with only_run_in(tmp_path, 0):
        assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()
        there, told = os.pipe()
        worker = os.fork()
        if worker == 0:
            signal.pause()
        with only_run_in(tmp_path, 1):  # another process of the same launch
            pass
    child = os.fork()
    if child == 0:
        with only_run_in(tmp_path, 0):
            os.write(told, b"x")
        os._exit(0)
    os.close(told)
    assert os.read(there, 1) == b"x"
    os.kill(worker, signal.SIGKILL)
    for process in (worker, child):
        os.waitpid(process, 0)


def test_on_a_disk_without_locks_one_run_trains_at_a_time_too(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_curriculum.files.FileLock.acquire", no_locks)
    monkeypatch.setattr("hf_curriculum.files._LEASE", 0.6)
    monkeypatch.setattr("hf_curriculum.files._LOOK", 1.5)
    with only_run_in(tmp_path, 0):
        other = os.fork()
        if other == 0:
            try:
                with only_run_in(tmp_path, 0):
                    os._exit(1)
            except RuntimeError as error:
                os._exit(0 if f"process {os.getppid()} on" in str(error) else 2)
        assert os.waitpid(other, 0)[1] == 0
    assert not (tmp_path / LOCK).exists()


def no_locks(*args, **options):
    raise OSError(errno.ENOTSUP, "no locks here")


class Descriptors(TrainerCallback):
    """Open files after each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(len(list(Path("/proc/self/fd").iterdir())))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [IID(), OnlineSelection(2, "loss"), InfoBatch(epochs=12, easy="low")], ids=["rows", "chosen", "losses"]
)
def test_a_run_with_workers_keeps_no_more_files_open_than_trainer(make_trainer, data, tmp_path, rule):
    settings = {"gradient_accumulation_steps": 3, "dataloader_num_workers": 1, "per_device_train_batch_size": 1}
    length = {} if isinstance(rule, InfoBatch) else {"max_steps": 40}
    counts = []
    ours = make_trainer(rule, **settings, **length)
    stock = TrainingArguments(
        str(tmp_path / "stock"),
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        max_steps=40,
        **settings,
    )
    for trainer in (ours, Trainer(Net(), stock, train_dataset=data.remove_columns("difficulty"))):
        callback = Descriptors()
        trainer.add_callback(callback)
        trainer.train()
        counts.append(max(callback.seen[5:]) - callback.seen[5])
    assert counts[0] <= counts[1] + 6
