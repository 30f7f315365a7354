"""Many kills at random places, over all curricula: `pytest -m stress`, an hour or two; no run may diverge.

`HF_CURRICULUM_STRESS_KILLS` says how many (100), `HF_CURRICULUM_STRESS_SEED` which (0). A run is killed up to three
times, at a step, inside a save, while the trainer's state is written, or after some time whatever it is doing, and
resumed after each. What it has seen, logged, decided and become is compared with a run that was never killed.
"""

from __future__ import annotations

import json
import os
import random
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from curriculum_cases import first_cases

from hf_curriculum import BATCHES
from hf_curriculum import CURRICULA as ALL

CRASH = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("test_crash.py"))))
CASES = {name: case for name, case in first_cases().items() if name not in CRASH.CURRICULA}
NODES = {**CRASH.CURRICULA["node_sampling"], "node_column": "node", "metric": "image_r1", "threshold": 0.1}
OTHER_TRAINERS = {
    "buckets": CRASH.CURRICULA["phases"],
    "aligner": NODES,
    "detector": CRASH.CURRICULA["phases"],
    "self_critical_transformer": CRASH.CURRICULA["phases"],
    "self_critical_updown": CRASH.CURRICULA["phases"],
    "self_critical_aoanet": CRASH.CURRICULA["phases"],
}
"""Tasks with a stream, a trainer or a model of their own, by their curriculum."""
CURRICULA = {
    **CRASH.CURRICULA,
    **{name: replace(case.rule, easy="low").to_dict() for name, case in CASES.items()},
    "images_cider": CRASH.CAPTIONING["images_cider"],
    "online_every": {"type": "online_selection", "value": "loss", "then": {"type": "iid", "epochs": 4}},
    **OTHER_TRAINERS,
}
"""By type, or by batches: the cases of `test_crash.py`, and of the other curricula those of `curriculum_cases.py`."""
LEVELS = ("adaptive_guidance", *(name for name, case in CASES.items() if case.score == "level"))
PLACES = ("step", "step", "save", "state", "time")


def draw_cell(chance: random.Random, curriculum: str) -> tuple[int, int, int, str, str]:
    processes, workers, accumulation = chance.choice((1, 2)), chance.choice((0, 2)), chance.choice((1, 2))
    tasks = ("rows", "norm", "norm", "captions", "lora")
    if curriculum == "images_cider":
        tasks = ("captions", "self_critical", *CRASH.CAPTIONERS)
    elif curriculum in OTHER_TRAINERS:
        tasks = (curriculum,)
        accumulation = 1 if curriculum == "aligner" else accumulation  # which it refuses
    return processes, workers, accumulation, curriculum, chance.choice(tasks)


def draw_kills(chance: random.Random) -> list[dict]:
    """One to three kills, each later than the one before."""
    kills, after = [], 0
    for _ in range(chance.randint(1, 3)):
        place = chance.choice(PLACES)
        saves = [step for step in range(4, 20, 4) if step > after]
        if place == "time":
            kills.append({"kill_after": round(chance.uniform(0.05, 1.5), 3)})
        elif place == "step" and after < 19:
            after = chance.randint(after + 1, 20)
            kills.append({"kill_at": after})
        elif saves:
            after = chance.choice(saves)
            kills.append({"kill_in_save": [after, "before_optimizer"]} if place == "save" else {"cut_state": after})
    return kills


def common_of(cell: tuple[int, int, int, str, str]) -> dict:
    like = cell[3] if cell[3] == "images_cider" else "phases"
    known = {**CRASH.common_of((*cell[:3], like, cell[4])), "curriculum": CURRICULA[cell[3]]}
    column = None if cell[4] == "buckets" else "level" if cell[3] in LEVELS else "difficulty"
    return {**known, "score_column": column}


def test_every_curriculum_is_killed_now_and_then():
    types = {rule["type"] for rule in CURRICULA.values()}
    assert types == set(ALL)
    assert {rule["batches"]["type"] for rule in CURRICULA.values() if "batches" in rule} == set(BATCHES)
    chance = random.Random(0)
    assert all(draw_kills(chance) for _ in range(50))


@pytest.mark.stress
def test_random_kills(launch, tmp_path, capsys):
    wanted = int(os.environ.get("HF_CURRICULUM_STRESS_KILLS", "100"))
    chance = random.Random(int(os.environ.get("HF_CURRICULUM_STRESS_SEED", "0")))
    names, places, diverged, done, number = list(CURRICULA), Counter(), [], 0, 0
    chance.shuffle(names)
    while done < wanted:
        cell = draw_cell(chance, names[number % len(names)])
        kills, root = draw_kills(chance)[: wanted - done], tmp_path / f"run{number}"
        root.mkdir()
        common, place = common_of(cell), {"out": f"{root}/killed", "log": f"{root}/killed.log", "unless_done": True}
        jobs = [{**common, "out": f"{root}/whole", "log": f"{root}/whole.log"}]
        for kill in [*kills, {}]:
            jobs.append({**common, **place, **kill, "resume": "if possible" if len(jobs) > 1 else False})
        (tmp_path / "jobs.json").write_text(json.dumps(jobs))
        launch(Path(__file__).with_name("crash_runs.py"), tmp_path / "jobs.json", timeout=1200)
        died = Path(f"{root}/killed.log.kills")
        killed = len(died.read_text().splitlines()) if died.exists() else 0
        done, number = done + killed, number + 1
        places.update(next(iter(kill)) for kill in kills[:killed])
        same = compare(root, cell)
        diverged += [] if same else [(CRASH.name_of(cell), kills)]
        with capsys.disabled():
            print(f"{done:4d} kills  {'same' if same else 'DIVERGED':8}  {CRASH.name_of(cell)}  {kills}", flush=True)
    with capsys.disabled():
        print(f"{done} kills of {number} runs over {min(number, len(names))} curricula, {dict(places)}: ", end="")
        print(f"{len(diverged)} diverged")
    assert not diverged


def compare(root: Path, cell: tuple[int, int, int, str, str]) -> bool:
    """Whether the killed run and the whole one saw, logged, decided and became the same."""
    whole, killed = (CRASH.outcome(f"{root}/{name}.log", cell[0]) for name in ("whole", "killed"))
    return (whole.steps, whole.final, whole.audit) == (killed.steps, killed.final, killed.audit)
