"""A page about a run, from its folder: plan, decisions, validation curves, what was drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, Image

from hf_curriculum.columns import IMAGE
from hf_curriculum.config import parse_json
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.files import reading, verify_together
from hf_curriculum.reporting.chosen import add_chosen, find_chosen
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import (
    add_captions,
    add_decisions,
    add_plan,
    add_runs,
    add_scores_section,
    add_training,
    cost_at,
)
from hf_curriculum.training.checkpoints import (
    is_complete,
    last_complete_checkpoint,
    read_curriculum,
    read_losses,
    read_state,
)

HELD_OUT_MANIFEST = "manifest.json"
"""Digests of the images and captions in `held_out`."""


def read_run(folder: str | Path, name: str | None = None) -> dict[str, Any]:
    """A run from its last complete checkpoint, or from that in `folder`: plan, history, decisions and cost."""
    folder = Path(folder)
    checkpoint = folder if is_complete(folder) else Path(last_complete_checkpoint(folder))
    saved = read_curriculum(checkpoint)
    state = read_state(checkpoint)
    history = state["log_history"]
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    row_losses = read_losses(checkpoint)
    return {
        "name": name or folder.resolve().name,
        "seed": saved["plan"]["seed"],
        "plan": saved["plan"],
        "describe": saved["description"],
        "log": history,
        "decisions": saved["log"],
        **cost_at(
            history, saved["plan"], state["global_step"], decisions=saved["log"], by_losses=row_losses is not None
        ),
        "steps": state["global_step"],
        "seconds": saved["seconds"],
        "eval_loss": losses[-1] if losses else None,
        "losses": row_losses,
        "draws": saved.get("draws", {}),
    }


def training_report(
    folder: str | Path,
    *,
    controls: Mapping[str, str | Path] | None = None,
    dataset: Dataset | None = None,
    title: str = "A training run",
) -> Report:
    """A page about a run: its plan and decisions, its validation curves and its controls', what was drawn."""
    run = read_run(folder)
    if run["name"] in (controls or {}):
        raise ValueError(
            f"A control is called {run['name']!r}, as is the run itself, and one would hide the other. Give it a "
            "name of its own (--control NAME=FOLDER)."
        )
    runs = [run, *(read_run(other, name) for name, other in (controls or {}).items())]
    report = Report(title, f"{run['name']}: {run['plan']['curriculum']['type']}")
    scored = {"examples scored": run["examples_scored"], "compute": run["compute"]} if run["examples_scored"] else {}
    report.add_facts(
        {
            "steps": run["steps"],
            "examples": run["examples"],
            **scored,
            "seconds of training": round(run["seconds"], 1),
            **({"examples per second": f"{run['examples'] / run['seconds']:.4g}"} if run["seconds"] else {}),
            "validation loss": "–" if run["eval_loss"] is None else f"{run['eval_loss']:.3f}",
        }
    )
    if len(runs) > 1:
        add_runs(report, runs)
    add_plan(report, runs)
    chosen, not_told = find_chosen(folder, run, dataset, run["losses"])
    add_chosen(report, [{"name": run["name"], "chosen": chosen, "not_told": not_told}])
    if run["decisions"]:
        add_decisions(report, run["decisions"])
    add_training(report, runs, loss_unit=None)  # of any model
    add_held_out(report, Path(folder) / "held_out", run["name"])
    column = run["plan"]["score_column"]
    if dataset is not None and column is not None:
        add_scores_section(report, dataset, column, run["plan"])
    return report


def add_held_out(report: Report, folder: Path, name: str) -> None:
    """The images that `hf-curriculum train` held out, and what the model wrote to them, where it did."""
    written = folder / "captions.json"
    if not written.is_file():
        return
    if (folder / HELD_OUT_MANIFEST).is_file():
        verify_together(folder / HELD_OUT_MANIFEST, "Delete the folder, or train again.")
    with reading(written, "Delete it, or train again."):
        entries = parse_json(written.read_text(encoding="utf-8"))
        paths = [str(folder / entry["file"]) for entry in entries]
    validate_inside(paths, [folder], written)
    files = Dataset.from_dict({IMAGE: paths})
    if entries:
        add_captions(report, files.cast_column(IMAGE, Image()), {"name": name, "captions": entries})
