"""All runs of a command: the table with p values, differences by seed, the ontology, the curriculum, a hard batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common.runs import Outcome, write_outcome
from tonics.arguments import SCENES, DataArguments, ModelArguments
from tonics.data import Prepared, prepare
from tonics.evaluation import HELD_OUT

from hf_curriculum import Study, curriculum_from
from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.evaluation.comparison import Comparison
from hf_curriculum.reporting.chosen import add_chosen
from hf_curriculum.reporting.figures.growth import drawn_shares
from hf_curriculum.reporting.inspection import images_of
from hf_curriculum.reporting.report import Gallery, Report
from hf_curriculum.reporting.run_sections import add_plan
from hf_curriculum.studies.study import StudyRun
from hf_curriculum.tasks.alignment import compare_retrieval
from hf_curriculum.tasks.alignment.figures import held_out_retrieval
from hf_curriculum.tasks.alignment.ontology.ontology import ENTITY
from hf_curriculum.tasks.alignment.retrieval.suite import read_ranks

_RECALLS = ("image_r1", "image_r5", "text_r1", "text_r5")
TEST_PAIRS = "test_pairs"
"""In a study's folder: the embedded test pairs, on which `hf-curriculum evaluate` tries a model."""
_NODES = 8
"""Nodes whose mass is drawn, the largest; the others are drawn as one."""


def write_results(study: Study, controls: Mapping[str, str]) -> None:
    """Writes the study's table, results and report; prints the table with p values, and what to try next."""
    write_outcome(
        study,
        controls,
        kinds=(DataArguments, ModelArguments),
        prepare=lambda first, *arguments: prepare(*arguments, first.folder.parent),
        metrics=metrics_of,
        describe=describe,
        report=write_report,
        try_it=try_command,
        scale=100,
    )


def threshold_of(finished: Sequence[StudyRun]) -> float | None:
    """The held-out recall that the first arm that decides asks for; None where none does."""
    rules = (curriculum_from(item.settings["curriculum"]) for item in finished if item.result["decisions"])
    return next((rule.threshold for rule in rules), None)


def metrics_of(runs: Sequence[Mapping[str, Any]], prepared: Prepared) -> list[str]:
    """The recalls of each test that every run has, within classes too."""
    names = [f"{test}_{part}{recall}" for test in prepared.tests for part in ("", "within_") for recall in _RECALLS]
    return [name for name in names if all(name in run for run in runs)]


def try_command(outcome: Outcome) -> list[str]:
    """What evaluates a run's model again, or on other data; of scenes, which no file has, the test pairs are saved."""
    data, prepared, saved = outcome.arguments[0].data, outcome.prepared, outcome.folder / TEST_PAIRS
    if data == SCENES:
        next(iter(prepared.tests.values())).save_to_disk(saved)
    source = data if Path(data).exists() else saved if data == SCENES else "DATA"
    words = ["hf-curriculum", "evaluate", outcome.finished[0].folder, "--suite", "retrieval", "--data", source]
    if prepared.regions is not None:
        words += ["--features", getattr(prepared.regions.store, "path", "STORE")]
    return [str(word) for word in words]


def compare_by_seed(outcome: Outcome) -> dict[tuple[int, str], Comparison]:
    """For each seed with two arms or more and each test, all arms on the same resamples of the same images."""
    runs, resamples = outcome.runs, outcome.finished[0].settings["resamples"]
    compared = {}
    for seed in dict.fromkeys(run["seed"] for run in runs):
        own = [run for run in runs if run["seed"] == seed]
        for test in outcome.prepared.tests if len(own) > 1 else ():
            ranks = {run["name"]: read_ranks(outcome.folder / run["folder"] / "retrieval" / test) for run in own}
            compared[seed, test] = compare_retrieval(ranks, resamples=resamples)
    return compared


def describe(run: Mapping[str, Any]) -> str:
    """One line for a run."""
    tested = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}"
        for name, value in run.items()
        if name.endswith(("image_r1", "text_r1")) and not name.startswith(("best_", "held_out_"))
    )
    refreshed = f"; {run['refreshes']} refreshes, to {100 * run['random_share']:.3g} % random batches"
    return (
        f"{run['name']:<8} seed {run['seed']}: {run['examples']:,} examples, {run['steps']:,} steps, "
        f"{run['seconds']:.0f} s of training; {tested}{refreshed if run['decisions'] else ''}"
    )


def write_report(outcome: Outcome) -> Path:
    """One self-contained page, and its figures as PNG; the runs of each seed compared are printed too."""
    runs, first, prepared, compared = outcome.runs, outcome.first_seed, outcome.prepared, compare_by_seed(outcome)
    for (seed, test), comparison in compared.items():
        print(f"\n{test}, seed {seed}\n{comparison}\n")
    test = next(iter(prepared.tests))
    report = Report("TOnICS", f"images and captions aligned: {', '.join(dict.fromkeys(run['name'] for run in runs))}")
    report.add_facts(
        {
            "Trained parameters": runs[0]["parameters"],
            "Examples": runs[0]["examples"],
            f"Image R@1, {test}": ", ".join(f"{run['name']} {100 * run[f'{test}_image_r1']:.1f}" for run in first),
        }
    )
    for (seed, name), comparison in compared.items():
        _, columns, rows, notes = comparison.table()
        report.add_table(f"Differences on {name}, seed {seed}", columns, rows, note=" ".join(notes))
    outcome.table.add_to(report)
    add_ontology(report, prepared)
    add_curriculum(report, first, prepared, threshold_of(outcome.finished))
    add_batches(report, first, prepared)
    add_plan(report, runs)
    add_chosen(report, runs)
    return report.write(outcome.folder / "report")


def add_ontology(report: Report, prepared: Prepared) -> None:
    """The tree of classes with their nouns, and what is left at each stage."""
    report.add_text("Ontology", prepared.ontology.tree(), monospace=True)
    columns = ("source", "stage", "pairs", "images", "triplets", "nouns", "classes")
    report.add_table("From pairs to triplets", columns, [tuple(count) for count in prepared.counts])


def add_curriculum(
    report: Report, runs: Sequence[Mapping[str, Any]], prepared: Prepared, threshold: float | None
) -> None:
    """Held-out retrieval with threshold and refreshes, and the mass of each node by examples seen."""
    checked = {run["name"]: [(e["step"], e[HELD_OUT]) for e in run["log"] if HELD_OUT in e] for run in runs}
    refreshed = {
        run["name"]: [entry["step"] for entry in run["decisions"] if entry["decision"] == "refresh"] for run in runs
    }
    if all(checked.values()):
        figure = partial(held_out_retrieval, checked, refreshed, threshold)
        about = "Among the held-out examples, by which the curriculum decides. A dot: a refresh."
        report.add_figure("Held-out retrieval", figure, about, name="held_out_retrieval")
    for number, run in enumerate(run for run in runs if len(run["decisions"]) > 1):
        shares = masses([{"random_share": 1.0}, *run["decisions"]], prepared.ontology.masses)
        ends = [entry["step"] * run["examples"] // run["steps"] for entry in run["decisions"]] + [run["examples"]]
        name = "mass" if number == 0 else f"mass_{number + 1}"
        about = "From decision to decision. Entity: random batches of all examples."
        report.add_figure(f"Mass of each node: {run['name']}", partial(drawn_shares, ends, shares), about, name=name)


def masses(decisions: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> dict[str, list[float]]:
    """The share of batches of the root, of the largest nodes and of all others together after each decision."""
    total, order = sum(sizes.values()), sorted(sizes, key=lambda name: (-sizes[name], name))
    shown = {name: sizes[name] for name in order[:_NODES]}
    if len(order) > _NODES:
        shown[f"{len(order) - _NODES} others"] = sum(sizes[name] for name in order[_NODES:])
    shares = [entry["random_share"] for entry in decisions]
    found = {ENTITY: shares}
    return found | {name: [round((1 - share) * size / total, 12) for share in shares] for name, size in shown.items()}


def add_batches(report: Report, runs: Sequence[Mapping[str, Any]], prepared: Prepared) -> None:
    """The last random batch and the last batch of one node that were trained on, as images and captions."""
    if IMAGE not in prepared.train.column_names:
        return
    for run in runs:
        for batch in run["batches"].values():
            rows = batch["rows"]
            chosen = prepared.train.select(rows)
            items = [
                (image, row[CAPTION], row["noun"])
                for image, row in zip(images_of(prepared.train, rows), chosen.remove_columns(IMAGE), strict=True)
            ]
            text = f"The first {len(rows)} pairs of step {batch['step']:,}; each caption is to find its image."
            what = "A random batch" if batch["node"] is None else f"A batch of {batch['node']}"
            report.add_gallery(Gallery(f"{what}: {run['name']}", items, text))
