"""All runs of a command: their table, captions and report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from babylm.arguments import SCENES, DataArguments
from babylm.benchmarks import add_benchmarks, table_metrics
from babylm.data import prepare
from common.runs import Outcome, save_images, write_captions, write_outcome
from datasets import Dataset
from tqdm.auto import tqdm

from hf_curriculum import Study, save_scored, save_scores
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_captions, add_plan, add_results, add_scores_section, add_training
from hf_curriculum.scenes.contact_sheet import contact_sheet


def write_results(system: str, benchmarks: str | None, study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, captions, scored data and report; prints a line per run, and what to try next."""
    add_benchmarks(study, benchmarks)
    write_outcome(
        study,
        controls,
        kinds=(DataArguments,),
        prepare=lambda first, data_args: prepare(data_args, first.seed, first.folder.parent),
        metrics=lambda runs, prepared: ["eval_loss", "noun_recall", *table_metrics(study)],
        describe=describe,
        report=partial(write_report, system),
        try_it=try_command,
    )


def try_command(outcome: Outcome) -> list[str]:
    """What captions the first held-out images, written as files."""
    images = one_row_per_image(outcome.prepared.data["validation"])
    save_images(images.select(range(len(outcome.runs[0]["captions"]))), outcome.folder / "held_out")
    model = outcome.finished[0].folder / "model"
    return ["hf-curriculum", "caption", str(model), str(outcome.folder / "held_out")]


def save_training_scores(scored: Dataset, source: str, folder: Path) -> None:
    """The embedded scenes with their scores, for `load_scored`; of a person's own images the scores alone."""
    if source == SCENES:
        save_scored(scored, folder / "scored")
    else:
        save_scores(scored, folder / "scores.parquet")


def describe(outcome: Mapping[str, Any]) -> str:
    """One line for a run, its stages one after the other."""
    text = outcome.get("text")
    before = f"text {text['steps']:,} steps, {text['seconds']:.0f} s; captions " if text else ""
    return (
        f"{outcome['name']:<10} seed {outcome['seed']} ({outcome['variant']}): {before}"
        f"{outcome['examples']:,} examples, {outcome['steps']:,} steps, {outcome['seconds']:.0f} s of training, "
        f"validation loss {outcome['eval_loss']:.3f}"
    )


def write_report(system: str, outcome: Outcome) -> Path:
    """One self-contained page, and its figures as PNG."""
    runs, data, source = outcome.runs, outcome.prepared.data, outcome.arguments[0].data
    write_captions(outcome)
    save_training_scores(data["train"], source, outcome.folder)
    first = runs[0]
    title = f"BabyLM: {system} {'with' if any(run['curriculum'] for run in runs) else 'without'} a curriculum"
    report = Report(title, f"{len(data['train']):,} training pairs of {source}, variant {first['variant']}")
    report.add_facts(
        {
            "Parameters": first["parameters"],
            "Examples": first["examples"],
            "Validation loss": f"{first['eval_loss']:.3f}",
            "Noun recall": (f"{first['recall']['recall']:.3f}", f"{first['recall']['shuffled']:.3f} if shuffled"),
        }
    )
    images = one_row_per_image(data["validation"])
    sections = [
        partial(add_results, report, runs),
        *([partial(outcome.table.add_to, report)] if len(runs) > 1 else []),
        partial(add_training, report, runs),
        partial(add_text_stage, report, [run for run in runs if run.get("text")]),
        partial(add_scores_section, report, data["train"], "noun_count", first["plan"]),
        partial(add_plan, report, runs),
        partial(add_chosen, report, runs),
        partial(add_captions, report, images, first),
        lambda: report.add_image(
            "Data", contact_sheet(data["train"]), f"Images and captions of {source}.", name="data"
        ),
    ]
    for section in tqdm(sections, desc="report", unit="section", delay=2, disable=None):
        section()
    return report.write(outcome.folder / "report")


def add_text_stage(report: Report, runs: list[dict[str, Any]]) -> None:
    """Cost and loss of the text stage."""
    if not runs:
        return
    rows = [
        (
            run["name"],
            run["seed"],
            run["words"]["text"],
            run["text"]["examples"],
            run["text"]["steps"],
            round(run["text"]["seconds"] / 3600, 4),
            round(run["seconds"] / 3600, 4),
            "–" if run["text"]["eval_loss"] is None else f"{run['text']['eval_loss']:.3f}",
        )
        for run in runs
    ]
    columns = ["run", "seed", "words", "rows", "steps", "hours of text", "hours of captions", "val. loss of text"]
    note = "Text first, in random order; then captions by their plan, from its weights, with a new optimizer."
    report.add_table("Text stage", columns, rows, note=note, align="lrrrrrrr")
    curves = {
        f"{run['name']}, seed {run['seed']}": [entry for entry in run["text"]["log"] if "eval_loss" in entry]
        for run in runs
    }
    if all(curves.values()):
        report.add_figure(
            None,
            partial(validation_curves, curves, x="examples", boundaries=[]),
            "Validation loss of text by lines seen.",
            name="text_validation_loss",
        )
