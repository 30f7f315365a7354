"""A report of any run of `CurriculumTrainer`, from what its last checkpoint says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers.trainer import TRAINER_STATE_NAME

from hf_curriculum.hub.report import Report
from hf_curriculum.hub.run_report import add_plan, add_scores_section, add_training
from hf_curriculum.training.checkpoints import (
    CURRICULUM_FILE,
    is_complete,
    last_complete_checkpoint,
    read_curriculum,
)


def read_run(folder: str | Path, name: str | None = None) -> dict[str, Any]:
    """What a run's last whole checkpoint knows of it.

    Args:
        folder: the run's `output_dir`, or one checkpoint.
        name: what to call the run; by default after its folder.

    Returns:
        `name`, `seed`, `plan`, `describe`, `log` (the trainer's history), `decisions`, `examples`, `steps`, `seconds`
        and `eval_loss` (None where nothing was evaluated).

    Raises:
        ValueError: there is no whole checkpoint, or it was not written by `CurriculumTrainer`.
    """
    folder = Path(folder)
    # `trainer.save_state()` writes a state beside the checkpoints too.
    named = is_complete(folder) and ((folder / CURRICULUM_FILE).is_file() or not any(folder.glob("checkpoint-*")))
    checkpoint = folder if named else Path(last_complete_checkpoint(folder))
    saved = read_curriculum(checkpoint)
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    history = state["log_history"]
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    return {
        "name": name or folder.resolve().name,
        "seed": saved["plan"]["seed"],
        "plan": saved["plan"],
        "describe": saved["description"],
        "log": history,
        "decisions": saved["log"],
        "examples": _examples(history, saved["plan"], state["global_step"]),
        "steps": state["global_step"],
        "seconds": saved["seconds"],
        "eval_loss": losses[-1] if losses else None,
    }


def training_report(
    folder: str | Path,
    *,
    controls: Mapping[str, str | Path] | None = None,
    dataset: Dataset | None = None,
    title: str = "A training run",
) -> Report:
    """A page about a run: its plan and decisions, validation curves beside its controls', what was drawn.

    Args:
        folder: the run's `output_dir`, or one checkpoint.
        controls: name → folder of runs to draw beside it.
        dataset: the training data, for the distribution of its scores and examples at both ends.
        title: of the page.

    Raises:
        ValueError: a folder holds no run, or a control has the name of the run's folder.
    """
    run = read_run(folder)
    if run["name"] in (controls or {}):
        raise ValueError(
            f"A control is called {run['name']!r}, as is the run itself, and one would hide the other. Give it a "
            "name of its own (--control NAME=FOLDER)."
        )
    runs = [run, *(read_run(other, name) for name, other in (controls or {}).items())]
    report = Report(title, f"{run['name']}: {run['plan']['curriculum']['type']}")
    report.add_facts(
        {
            "steps": run["steps"],
            "examples": run["examples"],
            "seconds of training": round(run["seconds"], 1),
            "validation loss": "–" if run["eval_loss"] is None else f"{run['eval_loss']:.3f}",
        }
    )
    if len(runs) > 1:
        columns = ["run", "steps", "examples", "seconds", "val. loss"]
        rows = [
            (one["name"], one["steps"], one["examples"], round(one["seconds"], 1), one["eval_loss"]) for one in runs
        ]
        report.add_table("Runs", columns, rows)
    add_plan(report, runs)
    if run["decisions"]:
        add_decisions(report, run["decisions"])
    add_training(report, runs)
    column = run["plan"]["score_column"]
    if dataset is not None and column is not None:
        add_scores_section(report, dataset, column, run["plan"])
    return report


def add_decisions(report: Report, decisions: Sequence[Mapping[str, Any]]) -> None:
    """The log as a table: each decision with the step it was taken after and what it was taken on."""
    names = list(dict.fromkeys(name for entry in decisions for name in entry))
    rows = [[_cell(entry.get(name)) for name in names] for entry in decisions]
    report.add_table(
        "Decisions",
        [name.replace("_", " ") for name in names],
        rows,
        note="Each is in force from the step after the one it is listed with.",
    )


def _examples(history: Sequence[Mapping[str, Any]], plan: Mapping[str, Any], step: int) -> int:
    """Examples trained on after a step: as logged with it, or else by the plan."""
    logged = [entry["examples"] for entry in history if entry.get("step") == step and "examples" in entry]
    if logged:
        return logged[-1]
    slots = step * plan["global_batch_size"]
    return sum(min(max(slots - stage["first_slot"], 0), stage["draws"]) for stage in plan["stages"])


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {number:.4g}" for name, number in value.items())
    return round(value, 6) if isinstance(value, float) else value
