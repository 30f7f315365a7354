"""All runs of a command: the table beside the paper's, detections beside true boxes, what each score calls easy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common.runs import Outcome, save_images, write_outcome
from datasets import Dataset
from PIL import Image
from wsod.arguments import FROM_BOXES, DataArguments, needed_scores
from wsod.data import Prepared, prepare, with_scores
from wsod.evaluation import DETECTIONS_FILE, RANDOM, SHOWN

from hf_curriculum import Study
from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.data.readers.coco import OBJECTS
from hf_curriculum.planning.curriculum import curriculum_from
from hf_curriculum.planning.ranking import resolve_easy
from hf_curriculum.provenance import read_provenance, score_values
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.inspection import rank_for_show
from hf_curriculum.reporting.report import Gallery, Report
from hf_curriculum.reporting.run_sections import add_plan, add_scores_section, add_training
from hf_curriculum.tasks.detection.boxes import draw_boxes
from hf_curriculum.tasks.detection.labels import LABELS, label_quality

_MOST_IMAGES = 12
_SHOWN = 3
"""Images of each end and of the middle of a score."""


def write_results(study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, results and report; prints the table, and what to try next."""
    write_outcome(
        study,
        controls,
        kinds=(DataArguments,),
        prepare=lambda first, data_args: prepare(data_args),
        metrics=metrics_of,
        describe=describe,
        report=write_report,
        try_it=try_command,
        scale=100,
    )


def metrics_of(runs: list[dict[str, Any]], prepared: Prepared) -> list[str]:
    """What every run has of detections; the loss where there are no boxes to compare them with."""
    named = [name for name in SHOWN if all(name in run for run in runs)]
    return [*named, *(["map_50_over_random"] if "map_50" in named else [])] or ["eval_loss"]


def describe(run: Mapping[str, Any]) -> str:
    """One line for a run."""
    text = (
        f"{run['name']:<24} seed {run['seed']}: {run['examples']:,} examples ({run['passes']:.4g} × the data), "
        f"{run['steps']:,} steps, {run['seconds']:.0f} s of training"
    )
    if "map_50" in run:
        text += f", mAP@0.5 {100 * run['map_50']:.1f}, CorLoc {100 * run['corloc']:.1f}; {over_random(run)}"
    return text


def over_random(run: Mapping[str, Any]) -> str:
    """By how much a run's mAP@0.5 is better than that of random boxes."""
    compared = run["beside_random"]
    found = next(each for each in compared["differences"] if each["metric"] == "map_50")
    return (
        f"random {100 * compared['values'][RANDOM]['map_50']:.1f}, difference {100 * found['difference']:+.1f} "
        f"[{100 * found['lower']:+.1f}, {100 * found['upper']:+.1f}]"
    )


def try_command(outcome: Outcome) -> list[str]:
    """What detects objects in the first test images, written as files."""
    folder, test = outcome.folder / "test_images", outcome.prepared.test
    model = outcome.finished[0].folder / "model"
    save_images(test.select(range(min(_MOST_IMAGES, len(test)))), folder)
    return ["hf-curriculum", "detect", str(model), str(folder), "--output", str(folder.with_name("drawn"))]


def report_scores(outcome: Outcome) -> Dataset:
    """The training images with the scores that the report shows: those asked for, and those that runs went by."""
    wanted = []
    for item in outcome.finished:
        rule = item.settings["curriculum"]
        used = needed_scores(curriculum_from(rule) if rule else None, item.settings["score_column"])
        wanted += [*used, *item.settings["report_scores"]]
    return with_scores(outcome.prepared, outcome.arguments[0], list(dict.fromkeys(wanted)))


def write_report(outcome: Outcome) -> Path:
    """One self-contained page, and its figures as PNG."""
    runs, first, prepared, scored = outcome.runs, outcome.first_seed, outcome.prepared, report_scores(outcome)
    names = ", ".join(dict.fromkeys(run["name"] for run in runs))
    report = Report("Weakly supervised detection", f"WSDDN on labels from captions: {names}")
    facts = {"Parameters": runs[0]["parameters"], "Images": len(prepared.train), "Classes": len(prepared.class_names)}
    if "map_50" in runs[0]:
        facts["mAP@0.5"] = ", ".join(f"{run['name']} {100 * run['map_50']:.1f}" for run in first)
    report.add_facts(facts)
    if "map_50" in runs[0]:
        add_beside_random(report, runs)
    outcome.table.add_to(report)
    if "per_class" in runs[0]:
        add_classes(report, first)
        learnt = [run for run in first if run["labels"] != FROM_BOXES] or first
        add_detections(report, learnt[-1], prepared, outcome.folder)
    add_training(report, runs, loss_unit="nats per image, summed over classes")
    add_plan(report, runs)
    add_chosen(report, runs)
    if OBJECTS in scored.column_names:
        report.add_text("How right the labels are", str(label_quality(scored, field=prepared.field)), monospace=True)
    add_scored_images(report, scored, prepared.field, first)
    return report.write(outcome.folder / "report")


def add_beside_random(report: Report, runs: Sequence[Mapping[str, Any]]) -> None:
    """Each run's boxes beside random proposals under the same image scores."""
    rows = []
    for run in runs:
        compared = run["beside_random"]
        for each in compared["differences"]:
            interval = f"{100 * each['difference']:+.1f} [{100 * each['lower']:+.1f}, {100 * each['upper']:+.1f}]"
            values = (compared["values"][name][each["metric"]] for name in (each["system"], RANDOM))
            cells = [f"{100 * value:.1f}" for value in values]
            rows.append((run["name"], run["seed"], each["metric"], *cells, interval))
    report.add_table(
        "Is it more than chance where the boxes are?",
        ["run", "seed", "metric", "its boxes", "random boxes", "difference [95 %]"],
        rows,
        note=f"Values × 100. Random: each class's image score on proposals drawn at random; the interval is of "
        f"{runs[0]['beside_random']['resamples']:,} resamples of the {runs[0]['test_images']:,} test images; at most "
        f"{runs[0]['max_boxes']} boxes of a class in an image are kept.",
        align="lrlrrr",
    )


def add_classes(report: Report, runs: Sequence[Mapping[str, Any]]) -> None:
    """Average precision and CorLoc by class."""
    names = list(dict.fromkeys(name for run in runs for name in run["per_class"]))
    rows = []
    for name in names:
        found = [run["per_class"].get(name, {}) for run in runs]
        rows.append((name, *(_hundredths(one.get("ap_50")) for one in found)))
    rows.append(("mean", *(_hundredths(run["map_50"]) for run in runs)))
    report.add_table(
        "AP@0.5 of each class",
        ["class", *(run["name"] for run in runs)],
        rows,
        note=f"× 100, seed {runs[0]['seed']}.",
        align="l" + "r" * len(runs),
    )


def _hundredths(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def add_detections(report: Report, run: Mapping[str, Any], prepared: Prepared, folder: Path) -> None:
    """Predicted beside true boxes of the first test images: as many boxes as there are objects, the best ones."""
    with np.load(folder / run["folder"] / DETECTIONS_FILE) as stored:
        detections = stored["detections"]
    items = []
    for row, found in zip(
        prepared.test.select(range(min(_MOST_IMAGES, len(prepared.test)))), detections, strict=False
    ):
        objects = [item for item in row[OBJECTS] or () if item[prepared.field] in prepared.class_names]
        kept = [(prepared.class_names[int(one[0])], one[2:].tolist()) for one in found[: len(objects)] if one[0] >= 0]
        true = [(item[prepared.field], item["box"]) for item in objects]
        pair = side_by_side(*(draw_named(row[IMAGE], boxes, prepared.class_names) for boxes in (true, kept)))
        items.append((pair, "found: " + ", ".join(name for name, _ in kept), "true: " + ", ".join(n for n, _ in true)))
    report.add_gallery(
        Gallery(
            f"Detections of {run['name']}",
            items,
            "True boxes left; right as many boxes of the highest scores. A class has one colour.",
            large=True,
        )
    )


def add_scored_images(report: Report, scored: Dataset, field: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """What each score calls easiest, middle and hardest, with labels and true boxes; and which runs went by it."""
    columns = [name for name in scored.column_names if name in _score_columns(scored)]
    for column in columns:
        users = [run for run in runs if run["plan"]["score_column"] == column]
        if users:
            add_scores_section(report, scored, column, users[0]["plan"])
        ranked = rank_for_show(score_values(scored, column), resolve_easy(scored, column))
        middle = len(ranked) // 2
        parts = {
            "easiest": ranked[:_SHOWN],
            "middle": ranked[middle - 1 : middle - 1 + _SHOWN],
            "hardest": ranked[-_SHOWN:],
        }
        items = [_scored_item(scored, column, int(row), part, field) for part, rows in parts.items() for row in rows]
        report.add_gallery(
            Gallery(f"By `{column}`", items, "True boxes are drawn; the labels are what is learnt from.")
        )


def _score_columns(scored: Dataset) -> list[str]:
    return list(read_provenance(scored))


def _scored_item(scored: Dataset, column: str, row: int, part: str, field: str) -> tuple[Any, str, str]:
    """An image with its true boxes, its caption and labels, and its score."""
    example = scored[row]
    names = scored.features[LABELS].feature.names
    boxes = [(item[field], item["box"]) for item in example.get(OBJECTS) or ()]
    captions = example.get(CAPTION) or [""]
    labels = ", ".join(names[label] for label in example[LABELS])
    return (
        draw_named(example[IMAGE], boxes, names),
        f"{part}: “{captions[0]}”",
        f"labels: {labels}; {column} {example[column]:.4g}",
    )


def draw_named(image: Any, boxes: Sequence[tuple[str, Sequence[float]]], class_names: Sequence[str]) -> Image.Image:
    """An image with boxes and their names; those of a class have its colour."""
    kept = [(name, box) for name, box in boxes if name in class_names]
    names = [name for name, _ in kept]
    return draw_boxes(image, [box for _, box in kept], names, [class_names.index(name) for name in names])


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two images of one size beside each other."""
    both = Image.new("RGB", (left.width + right.width + 4, left.height), "white")
    both.paste(left, (0, 0))
    both.paste(right, (left.width + 4, 0))
    return both
