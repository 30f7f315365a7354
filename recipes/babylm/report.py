"""All runs of a command: their table, captions and report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from babylm.arguments import SCENES, DataArguments
from babylm.data import prepare
from common.runs import arguments_of, write_runs
from datasets import Dataset, DatasetDict
from tqdm.auto import tqdm

from hf_curriculum import Study, save_scored, save_scores, summarise
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_captions, add_plan, add_results, add_scores_section, add_training
from hf_curriculum.scenes.contact_sheet import contact_sheet
from hf_curriculum.studies.recipe import command_line
from hf_curriculum.studies.tables import StudyTable


def write_results(system: str, study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, captions, scored data and report; prints a line per run, and what to try next."""
    finished, folder = [item for item in study.runs if item.status == "finished"], study.output_dir
    data_args = arguments_of(study, DataArguments)
    if data_args is None:
        return
    data = prepare(data_args, finished[0].seed, folder).data
    if not PartialState().is_main_process:
        return
    table = summarise(study.runs, ["eval_loss", "noun_recall"], control=controls)
    table.write(folder)
    runs = write_runs(study)
    save_training_scores(data["train"], data_args.data, folder)
    page = write_report(system, runs, table, data, data_args.data, folder / "report")
    images = one_row_per_image(data["validation"]).select(range(len(runs[0]["captions"])))
    (folder / "held_out").mkdir(exist_ok=True)
    for number, image in enumerate(images_of(images, range(len(images)))):
        if image is not None:
            image.save(folder / "held_out" / f"{number}.png")
    for outcome in runs:
        print(describe(outcome))
    print(f"report: {page}")
    model = finished[0].folder / "model"
    print(f"try the model:    {shlex.join(['hf-curriculum', 'caption', str(model), str(folder / 'held_out')])}")
    if not controls and runs[0]["curriculum"]:
        print(f"beside a control: {command_line('--compare')}")


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


def write_report(
    system: str, runs: list[dict[str, Any]], table: StudyTable, data: DatasetDict, source: str, folder: Path
) -> Path:
    """One self-contained page, and its figures as PNG."""
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
        *([partial(table.add_to, report)] if len(runs) > 1 else []),
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
    return report.write(folder)


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
