"""All runs of a command: the table by group of classes, the spectrum, the filter, progress, and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from common.runs import Outcome, write_outcome
from discl.arguments import DataArguments, DisCLArguments, SpectrumArguments
from discl.evaluation import METRICS
from discl.stages import Prepared, make_scorer, prepare

from hf_curriculum import Study, add_scores
from hf_curriculum.columns import GUIDANCE, HARD, IMAGE, IMAGE_ID, LABEL
from hf_curriculum.provenance import numeric_column, read_column
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.figures.distribution import ScoreRow, score_distributions
from hf_curriculum.reporting.report import Report
from hf_curriculum.reporting.run_sections import add_plan
from hf_curriculum.tasks.long_tail import class_counts, distance_to_source, spectrum_grid
from hf_curriculum.tasks.long_tail.generation.filter import DROPPED
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import SCENES_DIFFUSION, SCENES_DIFFUSION_FOLDER
from hf_curriculum.tasks.long_tail.hard import hard_counts


def write_results(study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, results and report; prints a line per run and the table."""
    write_outcome(
        study,
        controls,
        kinds=(DataArguments, SpectrumArguments, DisCLArguments),
        prepare=lambda first, *arguments: prepare(*arguments, first.folder.parent),
        metrics=metrics_of,
        describe=describe,
        report=write_report,
        scale=100,
    )


def metrics_of(runs: list[dict[str, Any]], prepared: Prepared) -> list[str]:
    """What every run has of each test set, the first one's without a prefix."""
    others = [f"{test}_{name}" for test in list(prepared.labelled.tests)[1:] for name in METRICS]
    return [name for name in (*METRICS, *others) if all(name in run for run in runs)]


def describe(run: Mapping[str, Any]) -> str:
    """One line for a run."""
    groups = ", ".join(f"{name.removeprefix('accuracy_')} {run[name]:.3f}" for name in METRICS if name in run)
    return f"{run['name']:<32} seed {run['seed']}: {run['examples']:,} examples, {run['seconds']:.0f} s, {groups}"


def write_report(outcome: Outcome) -> Path:
    """One self-contained page, and its figures as PNG."""
    runs, prepared, (data_args, spectrum_args, _) = outcome.runs, outcome.prepared, outcome.arguments
    report = Report(
        "DisCL", f"a long tail and images generated for it: {'; '.join(dict.fromkeys(r['name'] for r in runs))}"
    )
    report.add_facts(
        {
            "Real images": (len(prepared.marked), f"{len(prepared.labelled.names)} classes"),
            "Hard images": sum(hard for _, _, hard in hard_counts(prepared.marked)),
            "Generated": (len(prepared.spectrum), f"{len(prepared.kept):,} kept"),
            "Parameters": runs[0]["parameters"],
        }
    )
    outcome.table.add_to(report)
    add_spectrum(report, prepared)
    add_filter(report, prepared, spectrum_args)
    add_recognised(report, prepared)
    add_generator(report, spectrum_args)
    add_hard(report, prepared, data_args, spectrum_args)
    add_decisions(report, runs)
    add_shown(report, outcome.first_seed)
    add_classes(report, outcome.first_seed)
    add_plan(report, runs)
    add_chosen(report, runs)
    return report.write(outcome.folder / "report")


def add_spectrum(report: Report, prepared: Prepared) -> None:
    """The grid from prompt to photograph, and how far each level is from its sources."""
    grid = spectrum_grid(prepared.joined)
    report.add_image(
        "From prompt to photograph", grid, "A line per source; its prompt below it. Empty: dropped.", name="spectrum"
    )
    rows = [(f"{level:g}", f"{distance:.4f}") for level, distance in distance_to_source(prepared.joined).items()]
    note = "Root mean square difference of pixels from 0 to 1, averaged over the images that were kept."
    report.add_table("Distance to the source by level", ["guidance", "distance"], rows, note=note, align="rr")


def add_filter(report: Report, prepared: Prepared, spectrum_args: SpectrumArguments) -> None:
    """Scores by level with the threshold; what was kept and dropped."""
    scores, levels = all_scores(prepared, make_scorer(spectrum_args).name)
    by_level = {f"guidance {level:g}": scores[levels == level] for level in np.unique(levels)}
    drawn = {name: values for name, values in by_level.items() if np.isfinite(values).any()}
    least, rows = spectrum_args.at_least, []
    for name, values in by_level.items():
        marks = np.nanquantile(values, [0.1, 0.5, 0.9]) if name in drawn else [np.nan] * 3
        kept = int((values >= np.float32(least)).sum())
        rows.append((name, len(values), kept, len(values) - kept, *(f"{mark:.3f}" for mark in marks)))
    report.add_table(
        "Scores by level, kept and dropped",
        ["level", "images", "kept", "dropped", "10 %", "median", "90 %"],
        rows,
        note=f"{next(iter(spectrum_args.scorer))}: at least {least:g} is kept.",
    )
    shown = {name: ScoreRow(values, easy="high", cuts=(least,)) for name, values in drawn.items()}
    if shown:
        report.add_figure(
            None,
            partial(score_distributions, shown, label=next(iter(spectrum_args.scorer))),
            f"Dashed: the threshold, {least:g}.",
            name="filter_scores",
        )
    names, labels = prepared.labelled.names, read_column(prepared.spectrum, LABEL).to_numpy()
    left = np.bincount(read_column(prepared.kept, LABEL).to_numpy(), minlength=len(names))
    of_class = np.bincount(labels, minlength=len(names))
    most = [(name, int(every), int(kept)) for name, every, kept in zip(names, of_class, left, strict=True) if every]
    report.add_table("Generated images by class", ["class", "generated", "kept"], most[:200])


def recognised(prepared: Prepared) -> list[tuple[str, np.ndarray]]:
    """The mining classifier's probability of the class of generated images, by level, and of real ones."""
    name, ids = prepared.classifier.name, read_column(prepared.kept, IMAGE_ID).to_pylist()
    drawn = add_scores(prepared.spectrum.select_columns([IMAGE, IMAGE_ID, LABEL]), prepared.classifier)
    scores, levels = numeric_column(drawn, name), numeric_column(prepared.spectrum, GUIDANCE)
    kept = np.isin(read_column(prepared.spectrum, IMAGE_ID).to_pylist(), ids)
    groups = [(f"guidance {level:g}", scores[levels == level]) for level in np.unique(levels)]
    groups += [("all levels, kept", scores[kept]), ("all levels, dropped", scores[~kept])]
    hard = read_column(prepared.marked, HARD).to_numpy(zero_copy_only=False)
    scores = numeric_column(prepared.marked, name)
    groups += [("real, hard", scores[hard]), ("real, not hard", scores[~hard])]
    return [(group, values) for group, values in groups if len(values)]


def add_recognised(report: Report, prepared: Prepared) -> None:
    """What a classifier that saw real images alone makes of the generated ones, beside the real ones."""
    groups = recognised(prepared)
    rows = [(name, len(p), f"{np.nanmean(p):.3f}", f"{(p >= 0.5).mean():.3f}") for name, p in groups]
    report.add_table(
        "What a classifier recognises",
        ["images", "number", "probability of its class", "at least 0.5"],
        rows,
        note="By the classifier that found the hard images, which has seen no generated one.",
        align="lrrr",
    )
    print("recognised by the mining classifier:", ", ".join(f"{name} {mean}" for name, _, mean, _ in rows))


def add_generator(report: Report, spectrum_args: SpectrumArguments) -> None:
    """What was measured of a generator of the recipe `scenes_diffusion` on images held out from its training."""
    name = spectrum_args.pipeline
    file = (SCENES_DIFFUSION_FOLDER if name == SCENES_DIFFUSION else Path(name)) / "training.json"
    if not file.is_file():
        return
    facts = json.loads(file.read_text(encoding="utf-8"))
    distance, named = facts["distance"], facts["named"]
    rows = [(level, f"{distance.get(level, 0) / 2:.4f}", f"{share:.3f}") for level, share in named.items()]
    report.add_table(
        "The generator on images it was not trained on",
        ["guidance", "distance to the source", "class recognised"],
        rows,
        note=f"{facts['held_out_pictures']} images; the classifier saw real images alone. Distance: root mean square, "
        "pixels from 0 to 1. Guidance 1 is the image itself.",
        align="rrr",
    )


def all_scores(prepared: Prepared, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The filter's score and the level of every generated image, kept or dropped; float32 (images,) each."""
    kept = dict(
        zip(read_column(prepared.kept, IMAGE_ID).to_pylist(), numeric_column(prepared.kept, name), strict=True)
    )
    place = Path(prepared.spectrum.cache_files[0]["filename"]).parent / "filter" / DROPPED
    dropped = pyarrow.parquet.read_table(place, columns=[IMAGE_ID, name]).to_pydict()
    found = kept | dict(zip(dropped[IMAGE_ID], dropped[name], strict=True))
    ids = read_column(prepared.spectrum, IMAGE_ID).to_pylist()
    scores = np.array([np.nan if found[one] is None else found[one] for one in ids], dtype=np.float32)
    return scores, numeric_column(prepared.spectrum, GUIDANCE)


def add_hard(report: Report, prepared: Prepared, data_args: DataArguments, spectrum_args: SpectrumArguments) -> None:
    """Images of each class, how many are hard, and how many are left to train on."""
    left = class_counts(prepared.real)
    rows = [(*row, int(count)) for row, count in zip(hard_counts(prepared.marked), left, strict=True)]
    rules = [f"p < {spectrum_args.below:g}"] if spectrum_args.below is not None else []
    rules += [f"class of fewer than {spectrum_args.fewer_than}"] if spectrum_args.fewer_than is not None else []
    held = f"{spectrum_args.validation_images} sources are held out, one image of each at each level"
    groups = f"Few: below {data_args.edges[0]}, many: from {data_args.edges[1]} on"
    report.add_table(
        "Real and hard images",
        ["class", "images", "hard", "trained on"],
        rows[:200],
        note=f"Hard: {' or '.join(rules)}. {held}. {groups}.",
    )


def add_decisions(report: Report, runs: list[dict[str, Any]]) -> None:
    """Progress per level of every epoch of the runs that decided by it, and the level that was taken."""
    for run in runs:
        taken = [entry for entry in run["decisions"] if entry.get("decision") == "level"]
        if not taken:
            continue
        levels = list(taken[0]["progress"])
        rows = [
            (number, *(f"{entry['progress'][level]:+.4f}" for level in levels), f"{entry['level']:g}")
            for number, entry in enumerate(taken, start=1)
        ]
        report.add_table(
            f"Progress per level: {run['name']}, seed {run['seed']}",
            ["epoch", *levels, "taken"],
            rows,
            note="The rise of the true class's probability on held-out images of each level, by a round of real ones.",
        )


def add_shown(report: Report, runs: list[dict[str, Any]]) -> None:
    """What each stage of a run showed, of one seed."""
    for run in runs:
        rows = [(one["stage"], one["rule"], one["pool"], one["draws"]) for one in run["shown"]]
        report.add_table(f"What was shown: {run['name']}", ["stage", "images", "pool", "draws"], rows)


def add_classes(report: Report, runs: list[dict[str, Any]]) -> None:
    """Accuracy of each class, and what images of small classes are taken for, of one seed."""
    for run in runs:
        for name, one in run["tests"].items():
            report.add_text(f"By class: {run['name']}, {name}", one["by_class"], monospace=True)
            if one["confused"]:
                rows = [(true, taken, count, f"{share:.2f}") for true, taken, count, share in one["confused"]]
                report.add_table(None, ["few-shot class", "taken for", "images", "share"], rows)
