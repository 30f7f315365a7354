"""BLiMP, its supplement and EWoK: which of two texts is more probable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_curriculum.tasks.babylm.files import files_by_stem, load_benchmark_split, read_jsonl, validate_fields
from hf_curriculum.tasks.babylm.run import Run, TaskResult, choice_predictions, unweighted_means
from hf_curriculum.tasks.babylm.scorer import Item, accuracy, chosen

SUPPLEMENT = ("hypernym", "qa_congruence_easy", "qa_congruence_tricky", "subject_aux_inversion", "turn_taking")
"""Subtasks of the BLiMP supplement."""
EWOK = (
    *("agent-properties", "material-dynamics", "material-properties", "physical-dynamics", "physical-interactions"),
    *("physical-relations", "quantitative-properties", "social-interactions", "social-properties"),
    *("social-relations", "spatial-relations"),
)
"""Domains of EWoK."""
_PAIR = ("sentence_good", "sentence_bad")
_CONTRAST = ("Context1", "Target1", "Target2")


def blimp_item(row: Mapping[str, Any]) -> Item:
    """A minimal pair without context; the good sentence is right."""
    return Item((row["sentence_good"], row["sentence_bad"]))


def ewok_item(row: Mapping[str, Any]) -> Item:
    """Two targets after one context, the first of them right: targets are compared, not contexts."""
    return Item((row["Target1"], row["Target2"]), row["Context1"])


def run_blimp(run: Run) -> TaskResult:
    """BLiMP filtered by the challenge's vocabulary, `blimp_filtered/<paradigm>.jsonl`; unfiltered from the Hub."""
    if "blimp" not in run.sources:
        return _run(run, "blimp", "blimp_filtered", (), _PAIR, blimp_item)
    from datasets import get_dataset_config_names

    source = run.sources["blimp"]
    wanted = run.wanted(get_dataset_config_names(source), task="blimp")
    found = {name: list(load_benchmark_split(source, "train", name)) for name in wanted}
    return _score(run, "blimp", found, _PAIR, blimp_item, (f"from {source}, not filtered by the vocabulary",))


def run_supplement(run: Run) -> TaskResult:
    """The BLiMP supplement: `supplement_filtered/<subtask>.jsonl`, five of them."""
    return _run(run, "blimp_supplement", "supplement_filtered", SUPPLEMENT, _PAIR, blimp_item)


def run_ewok(run: Run) -> TaskResult:
    """EWoK filtered by the challenge's vocabulary: `ewok_filtered/<domain>.jsonl`, eleven of them."""
    if "ewok" not in run.sources:
        return _run(run, "ewok", "ewok_filtered", EWOK, _CONTRAST, ewok_item)
    source = run.sources["ewok"]
    domains: dict[str, list[dict[str, Any]]] = {}
    for row in load_benchmark_split(source, "test"):
        validate_fields(row, ("Domain", "Context2", *_CONTRAST), source)
        domains.setdefault(row["Domain"], []).extend(both_ways(row))
    found = {name: domains[name] for name in run.wanted(sorted(domains), task="ewok")}
    return _score(run, "ewok", found, _CONTRAST, ewok_item, (f"from {source}, not filtered by the vocabulary",))


def both_ways(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An item of EWoK, and the same with contexts and targets exchanged."""
    exchanged = {"Context1": row["Context2"], "Context2": row["Context1"]}
    exchanged |= {"Target1": row["Target2"], "Target2": row["Target1"]}
    return [dict(row), {**row, **exchanged}]


def _run(
    run: Run,
    task: str,
    folder: str,
    order: Iterable[str],
    fields: tuple[str, ...],
    make: Callable[[Mapping[str, Any]], Item],
) -> TaskResult:
    files: dict[str, Path] = files_by_stem(run.data_dir / folder, ".jsonl", list(order), task=task)
    found = {name: read_jsonl(files[name], fields) for name in run.wanted(list(files), task=task)}
    return _score(run, task, found, fields, make, ())


def _score(
    run: Run,
    task: str,
    found: Mapping[str, list[Any]],
    fields: tuple[str, ...],
    make: Callable[[Mapping[str, Any]], Item],
    notes: tuple[str, ...],
) -> TaskResult:
    subtasks, predictions, counts = {}, {}, {}
    for name, rows in found.items():
        for row in rows:
            validate_fields(row, fields, name)
        items = [make(row) for row in run.first(rows)]
        scores = run.choice_scores(task, name, items)
        subtasks[name] = {"accuracy": accuracy(scores, [item.answer for item in items])}
        texts = [item.choices[chosen(row)] for item, row in zip(items, scores, strict=True)]
        predictions[name], counts[name] = choice_predictions(name, texts), len(items)
    return TaskResult(task, subtasks, unweighted_means(subtasks), predictions, counts, notes)
