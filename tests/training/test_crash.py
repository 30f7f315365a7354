"""SIGKILL at arbitrary steps, and resume: rows, losses, logs and weights are those of a run that was never killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STEPS = 23
"""90 rows in 3 phases of 30, 60 and 90, 8 per step: phases end with steps 4, 12 and 23; checkpoints every 4th."""

KILLS = {
    "after a checkpoint": {"kill_at": 5},
    "on a phase's last step": {"kill_at": 11},
    "late": {"kill_at": 22},
    "inside a save": {"kill_in_save": [16, "before_optimizer"]},
    "while the trainer's state is written": {"cut_state": 12},
}
PHASES = {"type": "phases", "num_phases": 3, "easy": "low"}
GROWING = {"type": "growing", "examples": 8 * STEPS, "easy": "low"}
CELLS = [
    *itertools.product((1, 2), (0, 2), (1, 2), ["rows"]),
    (1, 2, 1, "captions"),
    (2, 2, 2, "captions"),
    (2, 2, 1, "growing"),
    (1, 0, 2, "lora"),
]
"""processes × workers × accumulated batches: noisy rows, augmented pictures, a growing pool, adapters"""


def name_of(cell: tuple[int, int, int, str]) -> str:
    return "p{}-w{}-a{}-{}".format(*cell)


def jobs_of(cell: tuple[int, int, int, str], folder: Path) -> list[dict]:
    processes, workers, accumulation, task = cell
    common = {
        "task": task,
        "curriculum": GROWING if task == "growing" else PHASES,
        "processes": processes,
        "settings": {
            "per_device_train_batch_size": 8 // processes // accumulation,
            "gradient_accumulation_steps": accumulation,
            "dataloader_num_workers": workers,
        },
    }
    root = folder / name_of(cell)
    jobs = [{**common, "out": f"{root}/whole", "log": f"{root}/whole.log"}]
    for number, kill in enumerate(KILLS.values()):
        place = {"out": f"{root}/kill{number}", "log": f"{root}/kill{number}.log"}
        jobs += [{**common, **place, **kill}, {**common, **place, "resume": True}]
    return jobs


@dataclass
class Outcome:
    """What a run left behind."""

    final: dict
    steps: list[dict[int, list]]
    """Per process: step → [[rows, loss] of each forward pass], later entries in place of those trained again."""
    audit: list[list]
    messages: str


def outcome(log: str, processes: int) -> Outcome:
    final = Path(f"{log}.final")
    messages = Path(f"{log}.err0").read_text()
    assert final.exists(), messages[-3000:]
    steps = []
    for rank in range(processes):
        seen: dict[int, list] = {}
        fresh = False
        for line in Path(f"{log}.{rank}").read_text().splitlines():
            if line == "resumed":
                fresh = True
                continue
            step, rows, loss = json.loads(line)
            if fresh:
                seen = {old: entries for old, entries in seen.items() if old < step}
                fresh = False
            seen.setdefault(step, []).append([rows, loss])
        steps.append(seen)
    audit = [
        [json.loads(line) for line in (Path(log).with_suffix("") / f"draws-rank{rank}.jsonl").read_text().splitlines()]
        for rank in range(processes)
    ]
    return Outcome(json.loads(final.read_text()), steps, audit, messages)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All runs of all cells, made by one program that imports the libraries once."""
    folder = tmp_path_factory.mktemp("crash")
    jobs = [job for cell in CELLS for job in jobs_of(cell, folder)]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = Path(__file__).with_name("crash_runs.py")
    subprocess.run([sys.executable, str(program), str(folder / "jobs.json")], check=True, timeout=900)
    return folder


@pytest.mark.parametrize("kill", range(len(KILLS)), ids=list(KILLS))
@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_a_killed_run_continues_bit_for_bit(runs, cell, kill):
    whole = outcome(f"{runs}/{name_of(cell)}/whole.log", cell[0])
    resumed = outcome(f"{runs}/{name_of(cell)}/kill{kill}.log", cell[0])
    assert whole.final["steps"] == STEPS
    assert resumed.steps == whole.steps
    assert resumed.final == whole.final
    assert resumed.audit == whole.audit


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_every_step_trains_on_the_plans_rows_on_any_number_of_processes(runs, cell):
    run = outcome(f"{runs}/{name_of(cell)}/whole.log", cell[0])
    first = next(other for other in CELLS if other[3] == cell[3])
    reference = outcome(f"{runs}/{name_of(first)}/whole.log", first[0]).final["planned"]
    assert run.final["planned"] == reference
    for step in range(STEPS):
        rows = [row for seen in run.steps for rows, _ in seen[step] for row in rows]
        assert sorted(rows) == sorted(reference[step])
        written = [row for lines in run.audit for row in lines[step][1]]
        assert sorted(written) == sorted(rows)


def test_an_unfinished_checkpoint_is_named_and_passed_over(runs):
    for number, (broken, taken) in {
        3: ("checkpoint-16", "checkpoint-12"),
        4: ("checkpoint-12", "checkpoint-8"),
    }.items():
        messages = outcome(f"{runs}/{name_of(CELLS[0])}/kill{number}.log", 1).messages
        assert f"{broken} in" in messages
        assert f"Resuming from {taken}, the last complete checkpoint" in messages
