"""Contrastive training on one process and on two is one run; a killed one goes on bit for bit around a refresh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

WHOLE = {"aligner_1": 1, "aligner_2": 2, "clip_1": 1, "clip_2": 2}
"""Runs by the loss of all processes together, and on how many."""

CHUNKED = 4
"""Steps of the run in chunks, of which the first is compared."""


def job(folder: Path, name: str, **fields: object) -> dict:
    return {"out": f"{folder}/{name}", "log": f"{folder}/{name}.log", "loss": "whole", "model": "aligner", **fields}


@pytest.fixture(scope="module")
def runs(launch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contrastive")
    jobs = [job(folder, name, model=name.split("_")[0], processes=count) for name, count in WHOLE.items()]
    jobs += [job(folder, f"own_{count}", model="clip", loss="own", steps=1, processes=count) for count in (1, 2)]
    jobs += [job(folder, "chunks_2", processes=2, chunk_size=3, steps=CHUNKED)]
    same = {"dropout": 0.1, "processes": 2}
    jobs += [job(folder, "through_2", **same), job(folder, "killed_2", kill_at=7, **same)]
    jobs += [job(folder, "killed_2", resume=True, **same)]
    jobs += [job(folder, "killed_1", kill_at=7), job(folder, "killed_1", resume=True)]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    launch(Path(__file__).with_name("contrastive_runs.py"), folder / "jobs.json", timeout=600)
    return folder


def final(runs: Path, name: str) -> dict:
    path = runs / f"{name}.log.final"
    assert path.exists(), (runs / f"{name}.log.err0").read_text()[-3000:]
    return json.loads(path.read_text())


def steps(runs: Path, name: str, rank: int = 0) -> dict[int, list]:
    """Step → rows and loss; of steps that were trained again the later ones."""
    lines = (runs / f"{name}.log.{rank}").read_text().splitlines()
    return {step: [rows, loss] for step, rows, loss in map(json.loads, lines)}


def largest_difference(runs: Path, one: str, other: str) -> float:
    """The largest difference of two runs' first gradients, in parts of the largest gradient."""
    first, second = (torch.load(runs / f"{name}.log.grads") for name in (one, other))
    assert first.keys() == second.keys()
    largest = max(value.abs().max() for value in first.values())
    return float(max((first[name] - second[name]).abs().max() for name in first) / largest)


@pytest.mark.parametrize("model", ["aligner", "clip"])
def test_two_processes_are_one_run(runs, model):
    one, two = final(runs, f"{model}_1"), final(runs, f"{model}_2")
    assert [(entry["decision"], entry["value"]) for entry in two["log"]] == [
        (entry["decision"], pytest.approx(entry["value"], abs=1e-6)) for entry in one["log"]
    ]
    assert len(one["log"]) == 3
    assert "refresh" in {entry["decision"] for entry in one["log"]}
    whole = steps(runs, f"{model}_1")
    parts = [steps(runs, f"{model}_2", rank) for rank in (0, 1)]
    for step, (rows, loss) in whole.items():
        assert parts[0][step][0] + parts[1][step][0] == rows
        assert parts[0][step][1] == parts[1][step][1]
        # Weights drift apart by the last bits of a sum.
        assert parts[0][step][1] == pytest.approx(loss, abs=1e-6 if step == 0 else 1e-3)
    assert largest_difference(runs, f"{model}_1", f"{model}_2") < 1e-5


def test_chunks_on_two_processes_are_the_same_run(runs):
    assert largest_difference(runs, "aligner_1", "chunks_2") < 1e-5
    assert steps(runs, "chunks_2")[0][1] == pytest.approx(steps(runs, "aligner_1")[0][1], abs=1e-6)


def test_the_loss_of_clip_itself_is_another_on_two_processes(runs):
    """Half the wrong pairs are seen: the reason for all this."""
    final(runs, "own_2")
    rows, loss = steps(runs, "own_1")[0]
    halves = [steps(runs, "own_2", rank)[0] for rank in (0, 1)]
    assert halves[0][0] + halves[1][0] == rows
    assert loss - (halves[0][1] + halves[1][1]) / 2 > 0.5  # about ln 2
    assert largest_difference(runs, "own_1", "own_2") > 0.05


@pytest.mark.parametrize(("through", "processes"), [("aligner_1", 1), ("through_2", 2)])
def test_a_run_killed_around_a_refresh_goes_on_bit_for_bit(runs, through, processes):
    """A checkpoint at step 6, a refresh after step 4 before it and one after step 8 behind the kill."""
    whole, killed = final(runs, through), final(runs, f"killed_{processes}")
    assert {entry["step"]: entry["decision"] for entry in whole["log"]}[4] == "refresh"
    assert killed == whole
    for rank in range(processes):
        assert steps(runs, f"killed_{processes}", rank) == steps(runs, through, rank)
