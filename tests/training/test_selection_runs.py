"""Stopped and resumed at every step, on one process and on several, with workers or without: the same is chosen."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from verifying import verify_all

from hf_curriculum import OnlineSelection, Phases, SelfPaced
from hf_curriculum.training.checkpoints import last_complete_checkpoint, read_curriculum

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("selection_runs.py")
CRASH = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("test_crash.py"))))


def lines_of(folder: Path) -> list:
    """`[step, rows, values]` of each step, of all processes together."""
    shares = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("draws-rank*.jsonl"))
    ]
    assert all(len(share) == len(shares[0]) for share in shares)
    return [
        [parts[0][0], [row for part in parts for row in part[1]], [value for part in parts for value in part[2]]]
        for parts in zip(*shares, strict=True)
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_resumed_at_every_step_it_chooses_and_becomes_the_same(launch, tmp_path, processes):
    launch(PROGRAM, tmp_path, "resumed", processes=processes)
    runs = sorted(tmp_path.iterdir())
    assert len(runs) == 4 * 2 + 2 * 3
    resumed, inside = 0, 0
    for run in runs:
        whole, final = lines_of(run / "whole"), json.loads((run / "whole" / "facts.json").read_text())
        assert len(list((run / "whole").glob("draws-rank*"))) == processes
        for step in range(1, len(whole)):
            held = run / "whole" / f"checkpoint-{step}"
            inside += len(list(held.glob("selection_*.npz"))) == processes
            assert lines_of(run / str(step)) == whole[step:], (run.name, step)
            assert json.loads((run / str(step) / "facts.json").read_text()) == final, (run.name, step)
            resumed += 1
    assert resumed > 60
    assert inside > 15


def test_by_whole_numbers_one_two_and_four_processes_choose_the_same(launch, tmp_path):
    for processes in (1, 2, 4):
        launch(PROGRAM, tmp_path, "whole", processes=processes)
    names = {run.name.partition("-")[2] for run in tmp_path.iterdir()}
    assert len(names) == 4
    for name in names:
        alone, *others = [
            [
                [step, sorted(zip(rows, values, strict=True))]
                for step, rows, values in lines_of(tmp_path / f"{count}-{name}")
            ]
            for count in (1, 2, 4)
        ]
        assert len(alone) >= 6
        assert len({value for _, pairs in alone for _, value in pairs}) > 1
        assert others == [alone, alone], name


# ---- Kills ----

STEPS, KILLS = 11, 13
RULES = [
    OnlineSelection(2, "-loss", then=Phases(2, 1), easy="low"),
    OnlineSelection(
        3, "loss", then=SelfPaced(initial=0.4, growth=1.3, warmup_epochs=0.4, examples=8 * 3 * STEPS), score_every=3
    ),
    OnlineSelection(2, "loss", then=Phases(3, 1), temperature=0.3, score_every=2, easy="low"),
]


def jobs_of(number: int, chance: random.Random, folder: Path) -> tuple[int, list[dict]]:
    """(the processes, a whole run and one that is killed up to three times)."""
    processes, accumulation = 1 + (number % 4 == 1), 1 + number % 2
    settings = {
        "per_device_train_batch_size": 8 // processes // accumulation,
        "gradient_accumulation_steps": accumulation,
        "dataloader_num_workers": 2 * (number % 4 == 3),
        "save_steps": 2,
        "save_total_limit": 3,
    }
    rule = RULES[number % len(RULES)].to_dict()
    common = {"task": "norm", "curriculum": rule, "processes": processes, "settings": settings}
    place = {"out": f"{folder}/killed", "log": f"{folder}/killed.log", "unless_done": True, "resume": "if possible"}
    first, second = sorted(chance.sample(range(1, STEPS), 2))
    kills = [
        {"kill_at": first},
        chance.choice(
            [{"kill_in_save": [first - first % 2 + 2, "before_optimizer"]}, {"kill_after": chance.uniform(0.02, 0.12)}]
        ),
        {"kill_at": max(second, first - first % 2 + 2)},
    ]
    jobs = [{**common, "out": f"{folder}/whole", "log": f"{folder}/whole.log"}]
    return processes, jobs + [{**common, **place, **kill} for kill in [*kills, {}]]


def test_killed_at_random_places_no_run_diverges(launch, tmp_path):
    chance, runs = random.Random(0), []
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append((folder, *jobs_of(number, chance, folder)))
    (tmp_path / "jobs.json").write_text(json.dumps([job for *_, jobs in runs for job in jobs]))
    launch(PROGRAM.with_name("crash_runs.py"), tmp_path / "jobs.json", timeout=600)
    killed = 0
    for folder, processes, _ in runs:
        whole, other = (CRASH.outcome(f"{folder}/{name}.log", processes) for name in ("whole", "killed"))
        assert (other.steps, other.final, other.audit) == (whole.steps, whole.final, whole.audit), folder
        recorded = [read_curriculum(last_complete_checkpoint(folder / name))["draws"] for name in ("whole", "killed")]
        assert recorded[0] == recorded[1]
        assert len(recorded[0]) == processes
        verify_all(folder / "killed")
        assert len(whole.steps[0]) > 6
        killed += len(Path(f"{folder}/killed.log.kills").read_text().splitlines())
    assert killed >= KILLS
