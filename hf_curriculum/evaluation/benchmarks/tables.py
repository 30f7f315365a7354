"""Results as people read them, and as programs do."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_curriculum.evaluation.benchmarks.catalogue import BENCHMARKS, TEXT, VISION
from hf_curriculum.evaluation.benchmarks.results import TaskResult

RESULTS_FILE = "results.json"
_BY_AGE = "human_similarity_"


def macro_averages(results: Mapping[str, TaskResult]) -> dict[str, float]:
    """The mean of the benchmarks' averages, for text and for vision, where all of a kind were run.

    DevBench goes in with its accuracy.

    Args:
        results: by benchmark.

    Source: README of the BabyLM 2024 evaluation pipeline.
    """
    averages = {}
    for kind, names in (("text", TEXT), ("vision", VISION)):
        if set(names) <= set(results):
            values = [results[name].averages.get(BENCHMARKS[name].main[0], math.nan) for name in names]
            averages[kind] = math.fsum(values) / len(values)
    return averages


def markdown(results: Mapping[str, TaskResult], not_run: Mapping[str, str] = {}, notes: Sequence[str] = ()) -> str:
    """A summary, a table per benchmark with several subtasks, and all notes; shares in percent.

    Args:
        results: by benchmark.
        not_run: benchmark → why it is not among them.
        notes: about all of it.
    """
    lines = ["| benchmark | measure | score | chance | subtasks | items |", "|---|---|---|---|---|---|"]
    for name, result in results.items():
        about = BENCHMARKS[name]
        for measure in about.main:
            chance = "" if about.chance is None else f"{100 * about.chance:.1f}"
            counts = {name: count for name, count in result.counts.items() if name not in about.extra}
            row = (about.title, measure, percent(result.averages.get(measure)), chance)
            lines.append(_row(*row, f"{len(counts)} of {about.size}", f"{sum(counts.values()):,}"))
    for kind, value in macro_averages(results).items():
        lines.append(_row(f"mean of {kind} benchmarks", "", percent(value), "", "", ""))
    lines += [f"\n{note}" for note in notes]
    for name, result in results.items():
        lines += _details(name, result)
    lines += [f"\n{BENCHMARKS[name].title}: not run ({reason})" for name, reason in not_run.items()]
    return "\n".join(lines) + "\n"


def percent(value: float | None) -> str:
    """A share in percent with two digits behind the point, as the paper prints it; a dash for none.

    Example:
        >>> percent(403 / 746)
        '54.02'
    """
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def write_results(
    folder: Path, results: Mapping[str, TaskResult], not_run: Mapping[str, str], about: Mapping[str, Any], text: str
) -> None:
    """`results.json`, `results.md` and the challenge's `predictions.json.gz`.

    Args:
        folder: where to; made if need be.
        results: by benchmark.
        not_run: benchmark → why.
        about: the model, the data and the settings.
        text: the Markdown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "about": dict(about),
        "macro_averages": macro_averages(results),
        "tasks": {name: result.to_dict() for name, result in results.items()},
        "not_run": dict(not_run),
    }
    encoded = json.dumps(_without_nan(content), indent=1, ensure_ascii=False)
    (folder / RESULTS_FILE).write_text(encoded + "\n", encoding="utf-8")
    (folder / "results.md").write_text(text, encoding="utf-8")
    write_predictions(folder / "predictions.json.gz", results)


def write_predictions(file: Path, results: Mapping[str, TaskResult]) -> None:
    """What the challenge wants to be sent: `{task: {subtask: {"predictions": ...}}}`, gzipped JSON.

    Args:
        file: its name usually ends in `_predictions.json.gz`.
        results: by benchmark. DevBench's looking-while-listening, which is none of the challenge's, goes in too.

    Source: BabyLM 2024 evaluation pipeline, "Submission Format".
    """
    predictions = {name: result.predictions for name, result in results.items()}
    # No time of writing in the file: equal predictions make equal files.
    with file.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as stream:
        stream.write(json.dumps(predictions).encode())


def _details(name: str, result: TaskResult) -> list[str]:
    found = dict.fromkeys(measure for values in result.subtasks.values() for measure in values)
    measures = [measure for measure in found if not measure.startswith(_BY_AGE)]
    lines = [f"\n### {BENCHMARKS[name].title}\n", _row("subtask", *measures, "items")]
    lines.append(_row(*["---"] * (len(measures) + 2)))
    notes = []
    for subtask, values in result.subtasks.items():
        shown = (percent(values.get(measure)) for measure in measures)
        mark = " (not in the mean)" if subtask in BENCHMARKS[name].extra else ""
        lines.append(_row(subtask + mark, *shown, f"{result.counts[subtask]:,}"))
        ages = {key.removeprefix(_BY_AGE): value for key, value in values.items() if key.startswith(_BY_AGE)}
        if ages:
            listed = ", ".join(f"{age}: {percent(value)}" for age, value in ages.items())
            notes.append(f"{subtask}, human similarity by age: {listed}")
    if len(result.subtasks) > 1:
        lines.append(_row("mean", *(percent(result.averages.get(measure)) for measure in measures), ""))
    return lines + [f"\n{note}" for note in (*notes, *result.notes)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _without_nan(value: Any) -> Any:
    """The same with null for NaN, which JSON has not."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
