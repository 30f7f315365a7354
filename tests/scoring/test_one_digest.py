"""20,000 pairs in 40 archives, scored by one process, `torchrun`, an array of Slurm and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crawl import contents, crawl

from hf_curriculum import CaptionLength, WordRarity, score_shards
from hf_curriculum.scoring import shards

pytestmark = pytest.mark.slow


def score(folder: str, out: str, environment: dict[str, str]) -> None:
    """What each process does."""
    os.environ.update(environment)
    score_shards(folder, [CaptionLength(), WordRarity()], out, keep=["uid"], lease=3)


def score_until_killed(folder: str, out: str, environment: dict[str, str], mark: Path) -> None:
    """As `score`, and stops where the first file of scores would be written."""

    def stop(*_, **__) -> None:
        mark.touch()
        time.sleep(600)

    shards.sealed_parquet = stop
    score(folder, out, environment)


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
    out, marks = tmp_path / "out", [tmp_path / str(rank) for rank in range(3)]
    places = [(str(whole[0]), str(out), {"RANK": str(rank), "WORLD_SIZE": "8"}) for rank in range(8)]
    dying = [
        processes.Process(target=score_until_killed, args=(*place, mark), daemon=True)
        for place, mark in zip(places, marks, strict=False)
    ]
    others = [processes.Process(target=score, args=place) for place in places[3:]]
    for process in dying:
        process.start()
    while not all(mark.exists() for mark in marks):  # each has a shard that is scored, and not written
        assert all(process.is_alive() for process in dying)
        time.sleep(0.01)
    for process in others:
        process.start()
    while not list(out.glob("scores/*.parquet")):
        assert any(process.is_alive() for process in others)
        time.sleep(0.01)
    for process in dying:
        os.kill(process.pid, signal.SIGKILL)
    for process in (*dying, *others):
        process.join()
    assert [process.exitcode for process in dying] == [-signal.SIGKILL] * 3
    assert [process.exitcode for process in others] == [0] * 5
    assert contents(out) == whole[1]
    assert sorted(path.name for path in out.iterdir()) == [".fitted", "scores", "shards.json"]
