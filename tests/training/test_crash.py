"""SIGKILL at arbitrary steps, and resume: rows, losses, logs and weights are those of a run that was never killed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from verifying import verify_all

from hf_curriculum.training.checkpoints import read_curriculum

pytestmark = pytest.mark.slow

STEPS = 23
"""90 rows, 8 per step; 3 phases of 30, 60 and 90 rows end with steps 4, 12 and 23. A checkpoint every 4th step."""

KILLS = {
    "after a checkpoint": {"kill_at": 5},
    "on a phase's last step": {"kill_at": 11},
    "while the trainer's state is written": {"cut_state": 12},
    "inside a save": {"kill_in_save": [16, "before_optimizer"]},
    "late": {"kill_at": 21},
}
"""In the order of their steps: one run is killed at several, and goes on from the checkpoint before each."""
BABY_STEPS = {"type": "baby_steps", "num_buckets": 3, "patience": 1, "min_epochs": 0.5, "examples": 8 * STEPS}
CURRICULA = {
    "phases": {"type": "phases", "num_phases": 3, "easy": "low"},
    "baby_steps": {**BABY_STEPS, "easy": "low"},
    "self_paced": {
        "type": "self_paced", "initial": 0.3, "growth": 1.1, "warmup_epochs": 0.3, "final_epochs": 0.5,
        "examples": 8 * STEPS,
    },
    "node_sampling": {
        "type": "node_sampling", "metric": "loss", "threshold": 0.6, "check_every": 4, "decay": 0.6,
        "examples": 8 * STEPS,
    },
    "adaptive_guidance": {
        "type": "adaptive_guidance", "epochs": 3, "curriculum_epochs": 2, "probe_examples": 8, "levels": [0.1, 0.5],
        "metric": "level_{level:g}_loss", "easy": "low",
    },
    "mixture": {
        "type": "mixture", "column": "source", "shares": {"a": 1, "b": 3}, "adapt": "odm", "every": 4,
        "examples": 8 * STEPS,
    },
    "filter": {"type": "filter", "keep": 0.7, "then": {**BABY_STEPS, "num_buckets": 2}, "easy": "low"},
}  # fmt: skip
CAPTIONING = {
    "images_cider": {**BABY_STEPS, "metric": "images_cider", "easy": "low"},
    "captioning": CURRICULA["phases"],
}
GENERATING = {"predict_with_generate": True, "generation_max_length": 6, "generation_num_beams": 2}
SAMPLING = {"scheduled_sampling": {"increase": 0.3, "every": 1, "start": 0, "max": 0.5}}
BY_EPOCHS = {"max_grad_value": 0.05, "lr_scheduler_type": "step", "lr_scheduler_kwargs": {"rate": 0.5, "every": 1}}
SETTINGS = {"updown": SAMPLING | BY_EPOCHS, "node_sampling": {"uint8_images": True}}
"""Schedules by epochs; images as bytes, with padded texts; `images_cider` is the CIDEr of generated captions."""
SCORES = {"adaptive_guidance": "level"}
CELLS = [
    (1, 0, 1, "phases", "rows"),
    (2, 2, 2, "phases", "rows"),
    (2, 0, 1, "baby_steps", "norm"),
    (1, 2, 2, "baby_steps", "captions"),
    (1, 2, 1, "self_paced", "norm"),
    (2, 0, 2, "self_paced", "captions"),
    (2, 2, 1, "node_sampling", "captions"),
    (1, 0, 2, "node_sampling", "lora"),
    (2, 0, 2, "adaptive_guidance", "rows"),
    (1, 2, 1, "adaptive_guidance", "rows"),
    (2, 0, 2, "filter", "rows"),
    (1, 2, 1, "filter", "rows"),
    (2, 2, 1, "mixture", "norm"),
    (1, 0, 2, "mixture", "rows"),
    (2, 0, 1, "images_cider", "captions"),
    (2, 0, 2, "images_cider", "self_critical"),
    (1, 2, 1, "images_cider", "transformer"),
    (2, 0, 2, "images_cider", "updown"),
    (1, 0, 2, "captioning", "self_critical_transformer"),
    (2, 0, 1, "captioning", "self_critical_aoanet"),
]
"""processes, workers, accumulated batches, curriculum, task: any value of one meets any of another, tasks aside"""
CAPTIONERS = ("transformer", "updown")


def name_of(cell: tuple[int, int, int, str, str]) -> str:
    return "p{}-w{}-a{}-{}-{}".format(*cell)


def common_of(cell: tuple[int, int, int, str, str]) -> dict:
    processes, workers, accumulation, curriculum, task = cell
    return {
        "task": task,
        "curriculum": {**CURRICULA, **CAPTIONING}[curriculum],
        "score_column": SCORES.get(curriculum, "difficulty"),
        "pad_to_multiple_of": 4 if curriculum == "node_sampling" else None,
        "processes": processes,
        "settings": {
            "per_device_train_batch_size": 8 // processes // accumulation,
            "gradient_accumulation_steps": accumulation,
            "dataloader_num_workers": workers,
            **SETTINGS.get(curriculum, SETTINGS.get(task, {})),
            **(GENERATING if curriculum == "images_cider" else {}),
        },
    }


def kills_of(cell: tuple[int, int, int, str, str]) -> list[str]:
    """Where a cell's runs are killed: every curriculum everywhere, in one of its two cells.

    Captioners on regions, whose steps cost most, are killed at the places that differ most.
    """
    if cell[4] in CAPTIONERS:
        return ["after a checkpoint", "inside a save"]
    if cell[4].startswith("self_critical_"):
        return ["late"]
    by_signal = ["after a checkpoint", "late"]
    return by_signal if CELLS.index(cell) % 2 else [kill for kill in KILLS if kill not in by_signal]


def test_every_curriculum_is_killed_everywhere():
    for curriculum in {*CURRICULA, "images_cider"}:
        assert {kill for cell in CELLS if cell[3] == curriculum for kill in kills_of(cell)} == set(KILLS), curriculum


def steps_of(cell: tuple[int, int, int, str, str]) -> int:
    """Two epochs of 8 real images and 52 or 53 others, and all 45 real images: 1 + 7 + 1 + 7 + 6."""
    return 22 if cell[3] == "adaptive_guidance" else STEPS


def killed_often(common: dict, kills: list[str], root: str) -> list[dict]:
    """A run that goes to its end, and one that is killed at each place in turn and goes on after each kill."""
    place = {"out": f"{root}/killed", "log": f"{root}/killed.log"}
    jobs = [{**common, "out": f"{root}/whole", "log": f"{root}/whole.log"}]
    jobs += [{**common, **place, **KILLS[kill], "resume": number > 0} for number, kill in enumerate(kills)]
    return [*jobs, {**common, **place, "resume": True}]


def jobs_of(cell: tuple[int, int, int, str, str], folder: Path) -> list[dict]:
    """Workers evaluate rows on two processes and images on one; elsewhere they only train."""
    common = common_of(cell) | ({} if cell in (CELLS[1], CELLS[3]) else {"evaluation_workers": 0})
    return killed_often(common, kills_of(cell), f"{folder}/{name_of(cell)}")


def assert_each_kill_happened(log: str, kills: list[str]) -> None:
    """The first process trained up to each place, and no further before it went on from a checkpoint."""
    *killed, _ = Path(f"{log}.0").read_text().split("resumed\n")
    ends = [json.loads(part.splitlines()[-1])[0] + 1 for part in killed]
    places = [KILLS[kill] for kill in kills]
    assert ends == [place.get("kill_at") or place.get("cut_state") or place["kill_in_save"][0] for place in places]


def pair_of(captioner: str, folder: Path) -> list[dict]:
    """A captioner without anything random in a step, on one process and on two."""
    jobs = []
    for processes in (1, 2):
        common = common_of((processes, 0, 1, "images_cider", captioner))
        place = f"{folder}/{captioner}-on-{processes}"
        common["settings"].pop("scheduled_sampling", None)
        jobs.append({**common, "dropout": 0.0, "out": place, "log": f"{place}.log"})
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
def runs(launch, tmp_path_factory):
    """All runs of all cells."""
    folder = tmp_path_factory.mktemp("crash")
    jobs = [job for cell in CELLS for job in jobs_of(cell, folder)]
    jobs += [job for captioner in CAPTIONERS for job in pair_of(captioner, folder)]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    launch(Path(__file__).with_name("crash_runs.py"), folder / "jobs.json", timeout=1500)
    return folder


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{name_of(cell)}-{' and '.join(kills_of(cell))}")
def test_a_killed_run_continues_bit_for_bit(runs, cell):
    """Every step is compared, so what is lost by one kill shows, whatever the next resumes from."""
    assert_each_kill_happened(f"{runs}/{name_of(cell)}/killed.log", kills_of(cell))
    whole, resumed = (outcome(f"{runs}/{name_of(cell)}/{run}.log", cell[0]) for run in ("whole", "killed"))
    assert whole.final["steps"] == steps_of(cell)
    assert resumed.steps == whole.steps
    assert resumed.final == whole.final
    assert resumed.audit == whole.audit


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_checkpoints_hold_what_every_process_wrote(runs, cell):
    names = {f"rng_state_{rank}.pth" for rank in range(cell[0])} if cell[0] > 1 else {"rng_state.pth"}
    for run in ("whole", "killed"):
        folder = runs / name_of(cell) / run
        verify_all(folder)
        for checkpoint in folder.glob("checkpoint-*"):
            assert names <= read_curriculum(checkpoint)["files"].keys()


@pytest.mark.parametrize("cell", CELLS, ids=name_of)
def test_every_step_trains_on_the_plans_rows(runs, cell):
    run = outcome(f"{runs}/{name_of(cell)}/whole.log", cell[0])
    # The audit compared every step with the plan of its time; where that is still known, it is compared once more.
    trained = [[row for seen in run.steps for rows, _ in seen[step] for row in rows] for step in range(steps_of(cell))]
    written = [[row for lines in run.audit for row in lines[step][1]] for step in range(steps_of(cell))]
    assert [sorted(rows) for rows in trained] == [sorted(rows) for rows in written]
    if run.final["planned"] is not None:
        assert [sorted(rows) for rows in trained] == [sorted(rows) for rows in run.final["planned"]]
    decisions = run.final["log"]
    assert bool(decisions) == (cell[3] not in ("phases", "captioning"))
    one_kind = ("phases", "captioning", "self_paced", "node_sampling", "mixture")
    assert len({entry["decision"] for entry in decisions}) > 1 or cell[3] in one_kind


@pytest.mark.parametrize("name", ["phases", "adaptive_guidance", "filter"])
def test_any_number_of_processes_sees_the_same_rows_in_every_step(runs, name):
    """A metric's last bits, and so a decision, may differ; nothing may before the first one on a trained model."""
    both = [cell for cell in CELLS if cell[3] == name]
    assert [cell[4] for cell in both] == ["rows", "rows"]
    assert {cell[0] for cell in both} == {1, 2}
    finals = [outcome(f"{runs}/{name_of(cell)}/whole.log", cell[0]) for cell in both]
    last = min([steps_of(both[0]), *(entry["step"] for run in finals for entry in run.final["log"] if entry["step"])])
    one, other = (
        [sorted(row for seen in run.steps for rows, _ in seen[step] for row in rows) for step in range(last)]
        for run in finals
    )
    assert one == other


@pytest.mark.parametrize("captioner", CAPTIONERS)
def test_a_captioner_on_two_processes_is_that_on_one(runs, captioner):
    """To the last step, through decisions on generated captions: 8 rows a step are 2 times 4."""
    one, two = (outcome(f"{runs}/{captioner}-on-{processes}.log", processes) for processes in (1, 2))
    assert len([entry for entry in one.final["log"] if entry["step"]]) > 1
    for step in range(STEPS):
        [[rows, loss]] = one.steps[0][step]
        (first, loss_of_first), (second, loss_of_second) = (two.steps[rank][step][0] for rank in (0, 1))
        assert (first, second) == (rows[:4], rows[4:])
        assert (loss_of_first + loss_of_second) / 2 == pytest.approx(loss, rel=1e-3)
    for ours, theirs in zip(one.final["log"], two.final["log"], strict=True):
        assert theirs == {**ours, "value": pytest.approx(ours["value"], abs=1e-6)}


def test_an_unfinished_checkpoint_is_named_and_passed_over(runs):
    messages = outcome(f"{runs}/{name_of(CELLS[0])}/killed.log", 1).messages
    for broken, taken in (("checkpoint-12", "checkpoint-8"), ("checkpoint-16", "checkpoint-12")):
        named, messages = messages.split(f"Resuming from {taken}, the last complete checkpoint", maxsplit=1)
        assert f"{broken} in" in named


DETECTORS = {1: {"gradient_accumulation_steps": 2, "dataloader_num_workers": 0}, 2: {"dataloader_num_workers": 2}}
"""Processes → settings of a detector's runs, with random sizes and mirrored pictures; 8 pictures a step."""
KILLED = ["inside a save", "late"]


def detector_jobs(processes, folder):
    settings = {"per_device_train_batch_size": 4, **DETECTORS[processes]}
    common = {"task": "detector", "curriculum": CURRICULA["phases"], "processes": processes, "settings": settings}
    jobs = killed_often(common, KILLED, f"{folder}/{processes}")
    still = {"out": f"{folder}/{processes}/still", "log": f"{folder}/{processes}/still.log", "dropout": 0.0}
    settings = {"per_device_train_batch_size": 8 // processes}
    return [*jobs, {**common, **still, "settings": settings}]


@pytest.fixture(scope="module")
def detectors(launch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("detectors")
    jobs = [job for processes in DETECTORS for job in detector_jobs(processes, folder)]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    launch(Path(__file__).with_name("crash_runs.py"), folder / "jobs.json", timeout=600)
    return folder


@pytest.mark.parametrize("processes", DETECTORS)
def test_a_killed_detector_continues_bit_for_bit(detectors, processes):
    assert_each_kill_happened(f"{detectors}/{processes}/killed.log", KILLED)
    whole, resumed = (outcome(f"{detectors}/{processes}/{run}.log", processes) for run in ("whole", "killed"))
    assert whole.final["steps"] == STEPS
    assert resumed.steps == whole.steps
    assert resumed.final == whole.final
    assert resumed.audit == whole.audit
    losses = [loss for seen in whole.steps for step in range(STEPS) for _, loss in seen[step]]
    assert len(set(losses)) > STEPS


def test_a_detector_on_two_processes_is_that_on_one(detectors):
    """Sizes and mirrored pictures are drawn by an example's place in the run, on whatever process it is."""
    one, two = (outcome(f"{detectors}/{processes}/still.log", processes) for processes in DETECTORS)
    for step in range(STEPS):
        [[rows, loss]] = one.steps[0][step]
        (first, loss_of_first), (second, loss_of_second) = (two.steps[rank][step][0] for rank in (0, 1))
        assert (first, second) == (rows[:4], rows[4:])
        assert (loss_of_first + loss_of_second) / 2 == pytest.approx(loss, rel=1e-3)
