"""All runs of a command: the table with p values, validation curves with merges, captions, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.runs import Outcome, save_images, write_captions, write_outcome
from datasets import Dataset
from simi_cl.arguments import DataArguments
from simi_cl.data import Prepared, prepare
from simi_cl.evaluation import SCORES_FILE, VALUES

from hf_curriculum import Study, load_scores
from hf_curriculum.columns import IMAGE
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.provenance import score_values
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import Gallery, Report
from hf_curriculum.reporting.run_sections import add_plan, add_scores_section, add_training
from hf_curriculum.tasks.captioning import compare_captions

_MOST_CAPTIONS = 12


def write_results(study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, results, captions and report; prints the table with p values, and what to try next."""
    write_outcome(
        study,
        controls,
        kinds=(DataArguments,),
        prepare=lambda first, data_args: prepare(data_args, first.folder.parent),
        metrics=metrics_of,
        describe=describe,
        report=write_report,
        try_it=try_command,
        scale=100 if any(item.paper for item in study.runs) else 1,  # as the paper prints its figures
    )


def metrics_of(runs: list[dict[str, Any]], prepared: Prepared) -> list[str]:
    """The metrics of test captions that every run has, and those of validation."""
    return [*(name for name in VALUES if all(name in run for run in runs)), "validation_cider", "eval_loss"]


def try_command(outcome: Outcome) -> list[str]:
    """What captions the first test images, written as files; or all stored ones, where the model finds no regions."""
    prepared, (data_args,) = outcome.prepared, outcome.arguments
    model, test = str(outcome.finished[0].folder / "model"), prepared.data["test"]
    if IMAGE not in test.column_names or prepared.regions.image_processor.detector is None:
        options = ["--suite", "captions", "--data", data_args.data, "--features", prepared.store]
        return ["hf-curriculum", "evaluate", model, *options]
    images = one_row_per_image(test)
    save_images(images.select(range(min(_MOST_CAPTIONS, len(images)))), outcome.folder / "held_out")
    return ["hf-curriculum", "caption", model, str(outcome.folder / "held_out")]


def compare_by_seed(runs: list[dict[str, Any]], resamples: int) -> dict[int, Any]:
    """For each seed with two arms or more, all arms on the same resamples of the same test images."""
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
    dealt, _ = beside_dealt(run)
    return (
        f"{run['name']:<16} seed {run['seed']}: {run['examples']:,} examples, {run['steps']:,} steps, "
        f"{run['seconds']:.0f} s of training, CIDEr {run['cider']:.3f} ({dealt} if dealt to other images)"
        f"{f'; {joined} examples' if joined else ''}"
    )


def beside_dealt(run: Mapping[str, Any]) -> tuple[str, str]:
    """CIDEr of a run's captions dealt to other images, and the difference to its own with its interval."""
    compared = run["beside_dealt"]
    (found,) = compared["differences"]
    bounds = f"[{found['lower']:+.3f}, {found['upper']:+.3f}]"
    return f"{compared['values'][found['baseline']]['cider']:.3f}", f"{found['difference']:+.3f} {bounds}"


def write_report(outcome: Outcome) -> Path:
    """One self-contained page, and its figures as PNG; the runs of each seed compared are printed too."""
    runs, data = outcome.runs, outcome.prepared.data
    write_captions(outcome)
    compared = compare_by_seed(runs, outcome.finished[0].settings["resamples"])
    for seed, comparison in compared.items():
        print(f"\nseed {seed}\n{comparison}\n")
    report = Report("Simi-CL", f"captioners on regions: {', '.join(dict.fromkeys(run['name'] for run in runs))}")
    report.add_facts(
        {
            "Parameters": runs[0]["parameters"],
            "Examples": runs[0]["examples"],
            "CIDEr": ", ".join(f"{run['name']} {run['cider']:.3f}" for run in outcome.first_seed),
        }
    )
    report.add_table(
        "Do captions fit their own images?",
        ["run", "seed", "CIDEr", "dealt", "difference [95 %]"],
        [(run["name"], run["seed"], f"{run['cider']:.3f}", *beside_dealt(run)) for run in runs],
        note="Dealt: the same captions, each beside the references of another test image; the interval is of "
        f"{runs[0]['beside_dealt']['resamples']:,} resamples of the images.",
        align="lrrrr",
    )
    for seed, comparison in compared.items():
        report.add_text(f"Test captions, seed {seed}", str(comparison), monospace=True)
    if len(runs) > 1:
        outcome.table.add_to(report)
    add_training(report, runs)
    add_plan(report, runs)
    add_chosen(report, runs)
    add_scored_pairs(report, outcome.first_seed, data["train"], outcome.folder)
    add_captions(report, outcome.first_seed, data["test"])
    return report.write(outcome.folder / "report")


def add_scored_pairs(report: Report, runs: list[dict[str, Any]], train: Dataset, folder: Path) -> None:
    """The distribution of the score that each run's pairs were ordered by, and its easiest and hardest pairs."""
    shown: dict[tuple[str, bytes], str] = {}
    for run in runs:
        if (column := run["plan"]["score_column"]) is None:
            continue
        scored = load_scores(train, folder / run["folder"] / SCORES_FILE)
        heading = f"Ordered by `{column}`: {run['name']}"
        first = shown.setdefault((column, score_values(scored, column).tobytes()), run["name"])
        if first != run["name"]:
            report.add_text(heading, f"The same scores as {first}'s.")
            continue
        report.add_text(heading, f"Scores: {', '.join(run['scores'])}.")
        taken = sum(column == other for other, _ in shown) > 1
        add_scores_section(report, scored, column, run["plan"], name=f"{column}_{len(shown)}" if taken else None)


def add_captions(report: Report, runs: list[dict[str, Any]], test: Dataset) -> None:
    """What each arm wrote for the first test images, which are shown where there are any."""
    first = runs[0]["captions"][:_MOST_CAPTIONS]
    rows = [
        (entry["image_id"], *(run["captions"][number]["generated"] for run in runs), entry["references"][0])
        for number, entry in enumerate(first)
    ]
    report.add_table("Test captions", ["image", *(run["name"] for run in runs), "a reference"], rows)
    if IMAGE in test.column_names:
        images = list(images_of(one_row_per_image(test), range(len(first))))
        for run in runs:
            written = [f"“{entry['generated']}”" for entry in run["captions"][: len(first)]]
            references = ["reference: " + entry["references"][0] for entry in first]
            items = list(zip(images, written, references, strict=True))
            report.add_gallery(Gallery(run["name"], items, f"The first test images, captioned by {run['name']}."))
