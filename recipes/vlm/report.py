"""All runs of a command: the table with p values, what seeing brings, and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common.runs import Outcome, write_outcome
from vlm.arguments import DataArguments
from vlm.data import prepare

from hf_curriculum import Study
from hf_curriculum.markdown import table
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_plan
from hf_curriculum.studies.statistics import Interval, bootstrap_interval

ANSWERS = "answers.json"
"""In a run's folder: the answer to each question of the test, and whether it is right."""


def write_results(study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, results and report; prints the table, and the comparison with the blind twin."""
    write_outcome(
        study,
        controls,
        kinds=(DataArguments,),
        prepare=lambda run, data_args: prepare(data_args),
        metrics=lambda runs, prepared: metrics_of(runs),
        describe=describe,
        report=write_report,
        scale=100,
    )


def metrics_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The accuracies that every run has, that of all kinds last."""
    names = [name for name in runs[0] if name.startswith("accuracy_")]
    return [name for name in (*names, "accuracy") if all(name in run for run in runs)]


def describe(run: Mapping[str, Any]) -> str:
    """One line for a run."""
    found = ", ".join(
        f"{name.removeprefix('accuracy_').replace('_', '/')} {100 * run[name]:.1f}" for name in metrics_of([run])[:-1]
    )
    return f"{run['name']:<10} seed {run['seed']}: {run['steps']:,} steps, {run['seconds']:.0f} s; right in %: {found}"


def seeing(outcome: Outcome) -> dict[str, Interval]:
    """For each kind of question, accuracy by sight minus that of the blind twin, with a 95 % interval.

    Both answer the same questions. The interval is a bootstrap over questions, each the mean over the seeds that both
    have. Empty where no arm is the same run with grey images.
    """
    settings = {item.arm: {**item.settings, "blind": None} for item in outcome.finished}
    blind = next((item for item in outcome.finished if item.settings["blind"]), None)
    if blind is None:
        return {}
    twin = next(
        (
            item.arm
            for item in outcome.finished
            if not item.settings["blind"] and settings[item.arm] == settings[blind.arm]
        ),
        None,
    )
    folders = {(item.arm, item.seed): item.folder for item in outcome.finished}
    seeds = [item.seed for item in outcome.finished if item.arm == twin and (blind.arm, item.seed) in folders]
    if not seeds:
        return {}

    def right(arm: str, seed: int) -> tuple[list[str], np.ndarray]:
        facts = json.loads((folders[arm, seed] / ANSWERS).read_text(encoding="utf-8"))
        return [one["kind"] for one in facts], np.array([one["right"] for one in facts], dtype=float)

    kinds = np.array(right(blind.arm, seeds[0])[0])
    each = np.mean([right(twin, seed)[1] - right(blind.arm, seed)[1] for seed in seeds], axis=0)  # (questions,)
    return {str(kind): bootstrap_interval(each[kinds == kind]) for kind in dict.fromkeys(kinds.tolist())}


def write_report(outcome: Outcome) -> Path:
    """One self-contained page; what seeing brings is printed too."""
    found, runs = seeing(outcome), outcome.runs
    report = Report("Vision-language SFT", f"the orders {', '.join(dict.fromkeys(run['name'] for run in runs))}")
    report.add_facts({"Trained parameters": runs[0]["parameters"], "Examples": runs[0]["examples"]})
    outcome.table.add_to(report)
    if found:
        rows = [
            (kind.replace("_", "/"), f"{100 * one.value:+.1f} [{100 * one.lower:+.1f}, {100 * one.upper:+.1f}]", one.n)
            for kind, one in found.items()
        ]
        columns = ("kind", "by sight minus blind, in % [95 %]", "questions")
        print("What seeing brings: the same run, trained and tested on grey images.")
        print(table(columns, rows, for_terminals=True))
        report.add_table("What seeing brings", columns, rows, note="A bootstrap over questions, means over seeds.")
        facts = {kind: [one.value, one.lower, one.upper] for kind, one in found.items()}
        (outcome.folder / "seeing.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    wrong = {run["name"]: run["wrong_drawn"] for run in outcome.first_seed if "wrong_drawn" in run}
    if wrong:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in wrong.items())
        print(f"Wrong answers among those trained on: {shares}")
        report.add_facts({"Wrong answers among those trained on": shares})
    known = next((run["wrong_auc"] for run in runs if "wrong_auc" in run), None)
    if known is not None:
        print(f"Grounding tells wrong answers about images from right ones with an AUC of {known:.3f}")
    add_plan(report, runs)
    return report.write(outcome.folder / "report")
