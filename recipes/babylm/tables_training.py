"""What training cost and how its loss went, in the form of the paper's Table 5 and Appendix B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from babylm.tables import SYSTEMS, Block, Column
from babylm.tables_ours import Group
from babylm.tables_runs import TrainedRun

Log = Sequence[Mapping[str, Any]]


def hours_block(group: Group, title: str) -> Block:
    """Hours of both stages, of one seed; evaluation is not counted."""
    hours = {column: run.facts["hours"] for column, run in group.of_one_seed.items()}
    text = {column: spent["text"] for column, spent in hours.items() if spent["text"] is not None}
    captions = {column: spent["captions"] for column, spent in hours.items()}
    both = {column: value + text.get(column, 0.0) for column, value in captions.items()}
    rows = {"text stage": text, "captions": captions, "all": both}
    return Block(title, group.columns, rows, f"Seed {group.seed}.")


def loss_block(group: Group, title: str, *, text: bool = False) -> Block | None:
    """Validation losses from epoch 0, of one seed."""
    losses = {
        column: [entry["eval_loss"] for entry in evaluations(run, text=text)]
        for column, run in group.of_one_seed.items()
    }
    longest = max(map(len, losses.values()), default=0)
    if not longest:
        return None
    rows: dict[str, dict[Column, float]] = {
        f"{_unit(group)} {number}": {
            column: values[number] for column, values in losses.items() if number < len(values)
        }
        for number in range(longest)
    }
    return Block(title, group.columns, rows, f"Seed {group.seed}.")


def curves(group: Group, *, text: bool = False) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    """Model → column → its evaluations, of one seed: a figure per model."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for system in SYSTEMS:
        own = {
            column.label: points
            for column, run in group.of_one_seed.items()
            if column.system == system and (points := evaluations(run, text=text))
        }
        if own:
            found[system] = own
    return found


def evaluations(run: TrainedRun, *, text: bool = False) -> list[Mapping[str, Any]]:
    """The log's evaluations, from the one before the first step on; one per step where a resumed run has two."""
    stage = run.facts.get("text") if text else run.facts
    log: Log = stage["log"] if stage else ()
    return list({entry["step"]: entry for entry in log if "eval_loss" in entry}.values())


def _unit(group: Group) -> str:
    by_epoch = all(run.settings.get("eval_strategy") == "epoch" for run in group.of_one_seed.values())
    return "epoch" if by_epoch else "evaluation"
