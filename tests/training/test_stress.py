"""Many kills at random places, over all curricula: `pytest -m stress`, an hour or two; no run may diverge.

`HF_CURRICULUM_STRESS_KILLS` says how many (100), `HF_CURRICULUM_STRESS_SEED` which (0). A run is killed up to three
times, at a step, inside a save, while the trainer's state is written, before files are recorded, or after some time
whatever it is doing, as a whole or one process before the other, and resumed after each. What it has seen, logged,
decided and become is compared with a run that was never killed.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from curriculum_cases import first_cases, make_columns

from hf_curriculum import curriculum_from, make_plan
from hf_curriculum.names import BATCHES
from hf_curriculum.names import CURRICULA as ALL

CRASH = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("test_crash.py"))))
CASES = {name: case for name, case in first_cases().items() if name not in CRASH.CURRICULA}
NODES = {**CRASH.CURRICULA["node_sampling"], "node_column": "node", "metric": "image_r1", "threshold": 0.1}
PHASES = CRASH.CURRICULA["phases"]
PACED = {**CRASH.CURRICULA["self_paced"], "examples": 8 * 2 * CRASH.STEPS}
FILTERED = {"type": "filter", "keep": 0.685, "then": {"type": "iid", "epochs": 3}, "easy": "low"}
"""Two of the three buckets: 60 of the 88 rows with a score."""
CHOOSING = {
    "online_selection": {"value": "loss", "candidates": 3, "then": {"type": "iid", "epochs": 6}},
    "online_every": {"value": "loss", "then": {"type": "iid", "epochs": 8}},
    "online_window": {"value": "-loss", "candidates": 2, "score_every": 3, "temperature": 0.5, "then": PACED},
    "online_decides": {
        "value": "loss",
        "candidates": 2,
        "then": {**CRASH.BABY_STEPS, "examples": 8 * 2 * CRASH.STEPS},
    },
}
"""As long as the others, so that kills meet them."""
OTHER_TRAINERS = {
    "sft": PHASES,
    "buckets": PHASES,
    "buckets_filter": FILTERED,
    "aligner": NODES,
    "detector": PHASES,
    "detector_filter": FILTERED,
    "self_critical_transformer": PHASES,
    "self_critical_updown": PHASES,
    "self_critical_aoanet": PHASES,
}
"""Tasks with a stream, a trainer or a model of their own, by their curriculum."""
CURRICULA = {
    **CRASH.CURRICULA,
    **{name: replace(case.rule, easy="low").to_dict() for name, case in CASES.items()},
    "images_cider": CRASH.CAPTIONING["images_cider"],
    **{name: {"type": "online_selection", "easy": "low", **rule} for name, rule in CHOOSING.items()},
    **OTHER_TRAINERS,
}
"""By type, or by batches: the cases of `test_crash.py`, and of the other curricula those of `curriculum_cases.py`."""
LEVELS = ("adaptive_guidance", *(name for name, case in CASES.items() if case.score == "level"))
PLACES = ("step", "step", "save", "state", "record", "time")
Cell = tuple[int, int, int, str, str]


def tasks_of(curriculum: str) -> tuple[str, ...]:
    """What is trained by a curriculum, models with batch statistics first."""
    if curriculum == "images_cider":
        return ("captions", "self_critical", *CRASH.CAPTIONERS, "aoanet")
    if curriculum in OTHER_TRAINERS:
        return (curriculum.removesuffix("_filter"),)
    classifiers = ("resnet", "flyp") if curriculum in LEVELS else ()
    return ("norm", *classifiers, "rows", "captions", "lora")


def draw_cells(chance: random.Random) -> Iterator[Cell]:
    """Curricula in turn; each meets every task on one process and on two, batch statistics first, before any again."""
    names = list(CURRICULA)
    chance.shuffle(names)
    decks = {}
    for name in names:
        first, *others = tasks_of(name)
        cells = [(task, processes) for task in others for processes in (1, 2)]
        chance.shuffle(cells)
        decks[name] = cycle([*((first, processes) for processes in chance.sample((1, 2), 2)), *cells])
    for name in cycle(names):
        task, processes = next(decks[name])
        accumulation = 1 if task == "aligner" else chance.choice((1, 2))  # which the aligner refuses
        yield processes, chance.choice((0, 2)), accumulation, name, task


@cache
def steps_of(curriculum: str) -> int:
    """Optimizer steps of a run at most."""
    data = make_columns(90)[0].add_column("node", ["a"] * 90)
    column = "level" if curriculum in LEVELS else "difficulty"
    rule = curriculum_from(CURRICULA[curriculum])
    return make_plan(rule, data, score_column=column, global_batch_size=8).max_steps


def draw_kills(chance: random.Random, steps: int, processes: int) -> list[dict]:
    """One to three kills before the last of so many steps, each later than the one before, of any process."""
    kills, after = [], 0
    for _ in range(chance.randint(1, 3)):
        place, rank = chance.choice(PLACES), {"kill_rank": chance.randrange(processes)}
        saves = [step for step in range(4, steps, 4) if step > after]
        if place == "time":
            kills.append({"kill_after": round(chance.uniform(0.05, 1.5), 3)})
        elif place == "step" and after < steps - 2:
            after = chance.randint(after + 1, steps - 1)
            kills.append({"kill_at": after, **rank})
        elif saves:
            after = chance.choice(saves)
            states = {"state": {"cut_state": after}, "record": {"kill_in_save": [after, "before_record"]}}
            kills.append(states.get(place, {"kill_in_save": [after, "before_optimizer"], **rank}))
    return kills


def common_of(cell: Cell) -> dict:
    like = cell[3] if cell[3] == "images_cider" else "phases"
    known = {**CRASH.common_of((*cell[:3], like, cell[4])), "curriculum": CURRICULA[cell[3]]}
    column = None if cell[4] == "buckets" else "level" if cell[3] in LEVELS else "difficulty"
    return {**known, "score_column": column}


def test_every_curriculum_is_killed_now_and_then():
    types = {rule["type"] for rule in CURRICULA.values()}
    assert types == set(ALL)
    assert {rule["batches"]["type"] for rule in CURRICULA.values() if "batches" in rule} == set(BATCHES)
    chance = random.Random(0)
    assert all(draw_kills(chance, steps_of(name), 2) for name in CURRICULA)
    drawn = [(name, task, processes) for processes, *_, name, task in islice(draw_cells(chance), 2 * len(CURRICULA))]
    assert set(drawn) == {(name, tasks_of(name)[0], processes) for name in CURRICULA for processes in (1, 2)}


def test_two_kills_of_every_run_come_before_its_end():
    """A rule that chooses among candidates once had 8 steps, and kills that seldom came."""
    assert all(steps_of(name) >= 19 for name in CURRICULA)


def kill_runs(launch, folder: Path, capsys, cells: Iterator[Cell] | None, fast: dict | None = None) -> None:
    """Kills runs of these cells at random places, and compares each with one that was not killed."""
    wanted = int(os.environ.get("HF_CURRICULUM_STRESS_KILLS", "100"))
    chance = random.Random(int(os.environ.get("HF_CURRICULUM_STRESS_SEED", "0")))
    cells, places, killed_of, outcomes, done = cells or draw_cells(chance), Counter(), Counter(), Counter(), 0
    while done < wanted:
        cell = next(cells)
        kills = draw_kills(chance, steps_of(cell[3]), cell[0])[: wanted - done]
        root = folder / f"run{outcomes.total()}"
        root.mkdir()
        common, place = common_of(cell), {"out": f"{root}/killed", "log": f"{root}/killed.log", "unless_done": True}
        if fast:
            common |= {"pad_to_multiple_of": 4, "settings": {**common["settings"], **fast}}
        jobs = [{**common, "out": f"{root}/whole", "log": f"{root}/whole.log"}]
        for kill in [*kills, {}]:
            jobs.append({**common, **place, **kill, "resume": "if possible" if len(jobs) > 1 else False})
        (folder / "jobs.json").write_text(json.dumps(jobs))
        launch(Path(__file__).with_name("crash_runs.py"), folder / "jobs.json", timeout=1200)
        died = Path(f"{root}/killed.log.kills")
        killed = len(died.read_text().splitlines()) if died.exists() else 0
        done += killed
        places.update(next(iter(kill)) for kill in kills[:killed])
        killed_of[cell[3]] += killed
        outcome = compare(root, cell)
        outcomes[outcome] += 1
        if outcome == "same":
            shutil.rmtree(root)
        with capsys.disabled():
            print(f"{done:4d} kills  {outcome:8}  {CRASH.name_of(cell)}  {kills}", flush=True)
    with capsys.disabled():
        print(f"{done} kills of {outcomes.total()} runs, {dict(places)}, of {dict(killed_of)}: {dict(outcomes)}")
    assert set(outcomes) == {"same"}


@pytest.mark.stress
def test_random_kills(launch, tmp_path, capsys):
    kill_runs(launch, tmp_path, capsys, None)


FAST = {"uint8_images": True, "torch_compile": True, "torch_compile_backend": "aot_eager"}
FAST_CELLS = [
    (1, 0, 1, "phases", "captions"),
    (2, 2, 1, "baby_steps", "captions"),
    (1, 2, 2, "self_paced", "captions"),
]


@pytest.mark.stress
def test_random_kills_of_compiled_runs_on_bytes_and_padded_texts(launch, tmp_path, capsys):
    kill_runs(launch, tmp_path, capsys, cycle(FAST_CELLS), FAST)


AMENDED = ({"type": "iid", "easy": "low"}, {"type": "phases", "num_phases": 2, "easy": "low"})
"""The rules after checkpoints 8 and 16."""


def draw_amended(chance: random.Random, common: dict, root: Path) -> list[dict]:
    """A run that is amended twice, and one that is killed besides, before and after either amendment.

    Only the launch that amends is told of it: those that go on are not. A kill by the clock may come before the
    amendment is written down, so the same command is given again.
    """
    first, second = ({"resume": at, "amend": rule} for at, rule in zip((8, 16), AMENDED, strict=True))
    whole = {"out": f"{root}/whole", "log": f"{root}/whole.log"}
    jobs = [{**whole, "kill_at": 9}, {**whole, **first, "kill_at": 17}, {**whole, **second}]
    killed = {"out": f"{root}/killed", "log": f"{root}/killed.log"}
    ends = [{"kill_at": 9}, {"kill_at": 17}, {}]
    for number, (begin, end) in enumerate(zip(({}, first, second), ends, strict=True)):
        start, stop = 8 * number, min(8 * number + 8, CRASH.STEPS)
        kill = chance.choice(
            [
                {"kill_at": chance.randint(start + 1, stop - 1)},
                {"kill_in_save": [start + 4, "before_optimizer"]},
                {"kill_in_save": [start + 4, "before_record"]},
                {"cut_state": start + 4},
                {"kill_after": round(chance.uniform(0.05, 1.0), 3)},
            ]
        )
        again = {"resume": True} if number else {"resume": "if possible"}
        again = begin if begin and "kill_after" in kill else again
        jobs += [{**killed, **begin, **kill}, {**killed, **again, **end}]
    return [{**common, **job} for job in jobs]


def amended_runs(launch, folder: Path, wanted: int, chance: random.Random, cells: Iterator[Cell]) -> Counter:
    """How many amended runs, killed so often in all, were the same as without kills."""
    outcomes: Counter = Counter()
    while outcomes["kills"] < wanted:
        cell, root = next(cells), folder / f"amended{outcomes.total()}"
        root.mkdir(parents=True)
        jobs = draw_amended(chance, common_of(cell), root)
        (folder / "jobs.json").write_text(json.dumps(jobs))
        launch(Path(__file__).with_name("crash_runs.py"), folder / "jobs.json", timeout=1200)
        outcomes["kills"] += len(Path(f"{root}/killed.log.kills").read_text().splitlines())
        outcome = compare(root, cell)
        outcomes[outcome] += 1
        assert outcome != "same" or CRASH.outcome(f"{root}/killed.log", cell[0]).final["amended"] == [8, 16]
    return outcomes


AMENDED_CELLS = [(1, 0, 1, "phases", "rows"), (2, 2, 1, "baby_steps", "norm")]


@pytest.mark.slow
def test_a_run_that_is_amended_twice_and_killed_is_the_same(launch, tmp_path):
    outcomes = amended_runs(launch, tmp_path, 8, random.Random(0), cycle(AMENDED_CELLS))
    assert set(outcomes) == {"kills", "same"}


@pytest.mark.stress
def test_random_kills_around_two_amendments(launch, tmp_path, capsys):
    wanted = int(os.environ.get("HF_CURRICULUM_STRESS_KILLS", "100"))
    chance = random.Random(int(os.environ.get("HF_CURRICULUM_STRESS_SEED", "0")))
    cells = cycle([*AMENDED_CELLS, (1, 2, 2, "self_paced", "norm"), (1, 0, 2, "filter", "captions")])
    outcomes = amended_runs(launch, tmp_path, wanted, chance, cells)
    with capsys.disabled():
        print(f"kills of amended runs, and what became of the runs: {dict(outcomes)}")
    assert set(outcomes) == {"kills", "same"}


def compare(root: Path, cell: Cell) -> str:
    """Whether the killed run and the whole one saw, logged, decided and became the same."""
    try:
        whole, killed = (CRASH.outcome(f"{root}/{name}.log", cell[0]) for name in ("whole", "killed"))
    except AssertionError as error:  # a run that did not come to its end
        print(error)
        return "ERROR"
    same = (whole.steps, whole.final, whole.audit) == (killed.steps, killed.final, killed.audit)
    return "same" if same else "DIVERGED"
