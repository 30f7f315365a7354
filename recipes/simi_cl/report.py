"""All runs of a command: the table with p values, validation curves with merges, captions, and the report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from simi_cl.evaluation import CIDER, VALUES

from hf_curriculum import Report, Study, compare_captions, summarise
from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.run_sections import add_plan
from hf_curriculum.studies.recipe import command_line

_MOST_CAPTIONS = 12


def write_results(study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, results, captions and report; prints the table with p values, and what to try next.

    Args:
        study: all runs.
        controls: arm → its control.
    """
    finished, folder = [item for item in study.runs if item.status == "finished"], study.output_dir
    if not finished or not PartialState().is_main_process:
        return
    named = [name for name in VALUES if all(name in item.result for item in finished)]
    table = summarise(study.runs, [*named, "validation_cider", "eval_loss"], control=controls)
    table.write(folder)
    runs = [
        {"name": item.arm, "seed": item.seed, "folder": item.folder.relative_to(folder).as_posix(), **item.result}
        for item in finished
    ]
    (folder / "results.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    captions = ["\t".join(map(one_line, (entry["image_id"], entry["generated"]))) for entry in runs[0]["captions"]]
    (folder / "captions.tsv").write_text("image_id\tcaption\n" + "\n".join(captions) + "\n", encoding="utf-8")
    compared = compare_by_seed(runs, finished[0].settings["resamples"])
    for run in runs:
        print(describe(run))
    for seed, comparison in compared.items():
        print(f"\nseed {seed}\n{comparison}")
    print(f"\nreport: {write_report(runs, table, compared, folder / 'report')}")
    print(f"try the model:    {shlex.join(['hf-curriculum', 'evaluate', str(finished[0].folder / 'model')])}")
    if len(runs) == 1 and runs[0]["curriculum"]:
        print(f"beside a control: {command_line('--compare')}")


def compare_by_seed(runs: list[dict[str, Any]], resamples: int) -> dict[int, Any]:
    """For each seed with two arms or more, all arms on the same resamples of the same test images.

    Args:
        runs: of the study, with their captions.
        resamples: of the images.
    """
    compared = {}
    for seed in dict.fromkeys(run["seed"] for run in runs):
        systems = {run["name"]: run["captions"] for run in runs if run["seed"] == seed}
        images = {name: [entry["image_id"] for entry in entries] for name, entries in systems.items()}
        first = next(iter(images.values()))
        alike = {name: entries for name, entries in systems.items() if images[name] == first}
        if len(alike) > 1:  # arms that were tested on other images are no pair
            truths = [entry["references"] for entry in next(iter(alike.values()))]
            written = {name: [entry["generated"] for entry in entries] for name, entries in alike.items()}
            compared[seed] = compare_captions(written, truths, _metrics(runs), resamples=resamples)
    return compared


def _metrics(runs: list[dict[str, Any]]) -> list[str]:
    """The metrics that all runs have."""
    parts = {"bleu_4": "bleu", "meteor": "meteor", "rouge_l": "rouge", "cider": "cider", "spice": "spice"}
    return [metric for name, metric in parts.items() if all(name in run for run in runs)]


def describe(run: Mapping[str, Any]) -> str:
    """One line for a run."""
    joined = ", ".join(f"bucket {merge['bucket']} at {merge['examples']:,}" for merge in run["merges"])
    return (
        f"{run['name']:<16} seed {run['seed']}: {run['examples']:,} examples, {run['steps']:,} steps, "
        f"{run['seconds']:.0f} s of training, CIDEr {run['cider']:.3f}"
        f"{f'; {joined} examples' if joined else ''}"
    )


def write_report(runs: list[dict[str, Any]], table: Any, compared: Mapping[int, Any], folder: Path) -> Path:
    """One self-contained page, and its figures as PNG."""
    report = Report("Simi-CL", f"captioners on regions: {', '.join(dict.fromkeys(run['name'] for run in runs))}")
    report.add_facts(
        {
            "Parameters": runs[0]["parameters"],
            "Examples": runs[0]["examples"],
            "CIDEr": ", ".join(f"{run['name']} {run['cider']:.3f}" for run in runs if run["seed"] == runs[0]["seed"]),
        }
    )
    for seed, comparison in compared.items():
        report.add_text(f"Test captions, seed {seed}", str(comparison), monospace=True)
    if len(runs) > 1:
        table.add_to(report)
    add_validation(report, runs)
    add_merges(report, runs)
    add_plan(report, runs)
    add_captions(report, runs)
    return report.write(folder)


def add_validation(report: Report, runs: list[dict[str, Any]]) -> None:
    """CIDEr of validation images by examples seen; thin lines where the first curriculum's buckets joined."""
    curves = {
        f"{run['name']}, seed {run['seed']}": [entry for entry in run["log"] if CIDER in entry and "examples" in entry]
        for run in runs
    }
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return
    merging = next((run for run in runs if run["merges"]), None)
    report.add_figure(
        "Validation CIDEr",
        partial(
            validation_curves,
            curves,
            metric=CIDER,
            label="CIDEr",
            boundaries=[merge["examples"] for merge in merging["merges"]] if merging else [],
        ),
        "CIDEr of greedy captions by examples seen"
        + (f"; thin lines: a bucket joins in {merging['name']}, seed {merging['seed']}." if merging else "."),
        name="validation_cider",
    )


def add_merges(report: Report, runs: list[dict[str, Any]]) -> None:
    """When each bucket joined, and how soon each run was as good as the control's best."""
    best = next((run["best_validation_cider"] for run in runs if not run["curriculum"]), None)
    rows = []
    for run in runs:
        points = [entry for entry in run["log"] if CIDER in entry]
        reached = next((entry["examples"] for entry in points if best is not None and entry[CIDER] >= best), None)
        joined = ", ".join(
            f"{merge['bucket']} at {merge['examples']:,} ({merge['decision']})" for merge in run["merges"]
        )
        rows.append((run["name"], run["seed"], joined or "–", run["best_validation_cider"], reached))
    report.add_table(
        "Merges and speed",
        ["run", "seed", "buckets that joined", "best validation CIDEr", "examples until the control's best"],
        rows,
        note="The control is the first run without a curriculum; – where its best was not reached, or there is none.",
        align="lrlrr",
    )


def add_captions(report: Report, runs: list[dict[str, Any]]) -> None:
    """What each arm wrote for the first test images."""
    shown = [run for run in runs if run["seed"] == runs[0]["seed"]]
    first = shown[0]["captions"][:_MOST_CAPTIONS]
    rows = [
        (entry["image_id"], *(run["captions"][number]["generated"] for run in shown), entry["references"][0])
        for number, entry in enumerate(first)
    ]
    report.add_table("Test captions", ["image", *(run["name"] for run in shown), "a reference"], rows)
