"""20,000 pairs in 40 archives, scored by one process, `torchrun`, an array of Slurm and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crawl import contents, crawl

from hf_curriculum import CaptionLength, WordRarity, score_shards

pytestmark = pytest.mark.slow


def score(folder: str, out: str, environment: dict[str, str]) -> None:
    """What each process does."""
    os.environ.update(environment)
    score_shards(folder, [CaptionLength(), WordRarity()], out, keep=["uid"], lease=3)


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hf_curriculum.scoring.shards", "hf_curriculum.scorers.text.rarity"])
    return context


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The crawl, and its scores by one process."""
    folder = tmp_path_factory.mktemp("whole")
    crawl(folder / "crawl", 40, 500)
    score(str(folder / "crawl"), str(folder / "scores"), {})
    return folder / "crawl", contents(folder / "scores")


def test_torchrun(whole, tmp_path):
    words = [*("--nproc-per-node", "4", "--master_port", "0", "-m", "hf_curriculum.cli", "score", whole[0])]
    words += [tmp_path, "--in-place", "--scorer", "caption_length", "--scorer", "word_rarity", "--keep", "uid"]
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "40 of 40 shards are scored: 20,000 pairs." in done.stdout
    assert contents(tmp_path) == whole[1]


def test_an_array_of_slurm(whole, tmp_path, processes):
    array = {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "4", "SLURM_ARRAY_TASK_COUNT": "5"}
    started = [
        processes.Process(
            target=score, args=(str(whole[0]), str(tmp_path), {**array, "SLURM_ARRAY_TASK_ID": str(number)})
        )
        for number in range(5)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * 5
    assert contents(tmp_path) == whole[1]


def test_eight_ranks_of_which_three_die(whole, tmp_path, processes):
    rng = random.Random(0)
    started = [
        processes.Process(target=score, args=(str(whole[0]), str(tmp_path), {"RANK": str(rank), "WORLD_SIZE": "8"}))
        for rank in range(8)
    ]
    for process in started:
        process.start()
    while not (tmp_path / "shards.json").exists():
        time.sleep(0.01)
    dead = rng.sample(started, 3)
    for process in dead:
        time.sleep(rng.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
    for process in started:
        process.join()
    assert [process.exitcode for process in started if process not in dead] == [0] * 5
    assert contents(tmp_path) == whole[1]
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == [".fitted", "scores", "shards.json"]
