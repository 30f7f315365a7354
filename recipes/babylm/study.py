"""A command's runs, one per setting and seed, and what they came to."""

from __future__ import annotations

import dataclasses
import json
import logging
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from tqdm.auto import tqdm

from babylm import stages
from babylm.data import prepare
from babylm.settings import Settings
from hf_curriculum import Report, Study, grid_arms, one_row_per_image, save_scored, summarise
from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.run_sections import add_captions, add_plan, add_results, add_scores_section, add_training
from hf_curriculum.scenes.contact_sheet import contact_sheet
from hf_curriculum.studies.settings import parse_settings, read_preset
from hf_curriculum.studies.study import short
from hf_curriculum.studies.tables import StudyTable
from hf_curriculum.training.setup import close_process_group

CONTROL = "control"
"""What a run without a curriculum is called."""


def start(system: stages.System, description: str | None) -> None:
    """A recipe's command: settings from the command line, all runs, results and report."""
    settings, options = parse_settings(Settings, system.presets, default="embedded", description=description or "")
    # Without an accelerator several processes are several only if this says so, whatever has launched them.
    main_process = PartialState(cpu=not torch.accelerator.is_available()).is_main_process
    logging.basicConfig(level=logging.INFO if main_process else logging.ERROR, format="%(message)s")
    folder = Path(options.output_dir or default_folder(system, settings, options))
    arms, controls = arms_of(settings, options)
    study = Study(partial(stages.run, system), arms, options.seeds, folder)
    study.run()
    first, *others = arms
    write_results(system, study, controls or dict.fromkeys(others, first), folder)
    close_process_group()
    if any(item.status == "crashed" for item in study.runs):
        raise SystemExit(study.describe())


def default_folder(system: stages.System, settings: Settings, options: Namespace) -> Path:
    """`outputs/RECIPE/PRESET`, and what was asked for beyond the preset: `-text`, `-control`."""
    own = read_preset(options.preset, system.presets)
    text = "-text" if settings.text is not None and own["text"] is None else ""
    control = f"-{CONTROL}" if options.control else ""
    return Path("outputs") / system.recipe / f"{Path(options.preset).stem}{text}{control}"


def arms_of(settings: Settings, options: Namespace) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The runs' settings by name, and the control of each, as `grid_arms` makes them.

    Args:
        settings: of the preset and the command line.
        options: `grid`, and `compare` or `control`, of `parse_settings`.

    Raises:
        ValueError: a control is to be made beside a run that is its own control.
    """
    alone = "curriculum" if settings.has_curriculum else CONTROL
    if alone == CONTROL and options.compare and "curriculum" not in options.grid:
        raise ValueError(
            f"--compare was given, but the curriculum is {short(settings.curriculum)}, as a control's: there is "
            "nothing to compare. Leave --compare out, or name a curriculum, `--curriculum phases`."
        )
    replaced = {"curriculum": settings.control_curriculum} if options.compare or options.control else None
    arms, controls = grid_arms(dataclasses.asdict(settings), options.grid, name=alone, control=replaced)
    if options.control:
        return {name: arms[name] for name in controls.values()}, {}
    return arms, controls


def write_results(system: stages.System, study: Study, controls: Mapping[str, str], folder: Path) -> None:
    """What all runs came to: the study's table, captions, and the report."""
    finished = [item for item in study.runs if item.status == "finished"]
    if finished:
        settings = Settings(**finished[0].settings)
        data = prepare(settings, finished[0].seed, folder, system.extend_tokenizer).data
    if not finished or not PartialState().is_main_process:
        return
    table = summarise(study.runs, ["eval_loss", "noun_recall"], control=controls)
    table.write(folder)
    runs = [
        {"name": item.arm, "seed": item.seed, "folder": item.folder.relative_to(folder).as_posix(), **item.result}
        for item in finished
    ]
    save_scored(data["train"], folder / "scored")
    (folder / "results.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    captions = ["\t".join(map(one_line, (entry["image_id"], entry["generated"]))) for entry in runs[0]["captions"]]
    (folder / "captions.tsv").write_text("image_id\tcaption\n" + "\n".join(captions) + "\n", encoding="utf-8")
    page = write_report(system, runs, table, data, settings, folder / "report")
    for outcome in runs:
        stages.say(describe(outcome))
    stages.say(f"report: {page}")


def describe(outcome: Mapping[str, Any]) -> str:
    """One line for a run; the hours of both stages apart."""
    text = outcome.get("text")
    before = f"text {text['steps']:,} steps, {text['seconds']:.0f} s; captions " if text else ""
    return (
        f"{outcome['name']:<10} seed {outcome['seed']} ({outcome['variant']}): {before}"
        f"{outcome['examples']:,} examples, {outcome['steps']:,} steps, {outcome['seconds']:.0f} s of training, "
        f"validation loss {outcome['eval_loss']:.3f}"
    )


def write_report(
    system: stages.System,
    runs: list[dict[str, Any]],
    table: StudyTable,
    data: DatasetDict,
    settings: Settings,
    folder: Path,
) -> Path:
    """One self-contained page, and its figures as PNG."""
    first = runs[0]
    title = f"BabyLM: {system.name} {'with' if any(run['curriculum'] for run in runs) else 'without'} a curriculum"
    report = Report(title, f"{len(data['train']):,} training pairs of {settings.data}, variant {settings.variant}")
    report.add_facts(
        {
            "Parameters": first["parameters"],
            "Examples": first["examples"],
            "Validation loss": f"{first['eval_loss']:.3f}",
            "Noun recall": (f"{first['recall']['recall']:.3f}", f"{first['recall']['shuffled']:.3f} if shuffled"),
        }
    )
    pictures = one_row_per_image(data["validation"])
    sections = [
        partial(add_results, report, runs),
        *([partial(table.add_to, report)] if len(runs) > 1 else []),
        partial(add_training, report, runs),
        partial(add_text_stage, report, [run for run in runs if run.get("text")]),
        partial(add_scores_section, report, data["train"], "noun_count", first["plan"]),
        partial(add_plan, report, runs),
        partial(add_captions, report, pictures, first),
        partial(add_contact_sheet, report, data["train"], settings.data),
    ]
    for section in tqdm(sections, desc="report", unit="section", delay=2):
        section()
    return report.write(folder)


def add_text_stage(report: Report, runs: list[dict[str, Any]]) -> None:
    """What training on text cost and came to, before the captions."""
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


def add_contact_sheet(report: Report, dataset: Dataset, name: str) -> None:
    """What the data looks like."""
    report.add_image("Data", contact_sheet(dataset), f"Pictures and captions of {name}.", name="data")
