"""All tables of the paper, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babylm import tables_ours as ours
from babylm import tables_training as training
from babylm.tables import RULE, PaperTable
from babylm.tables_evaluate import is_miniature
from babylm.tables_ours import Group
from babylm.tables_paper import Paper, Printed
from babylm.tables_runs import LostRun, TrainedRun

from hf_curriculum.tasks.babylm import BENCHMARKS
from hf_curriculum.tasks.babylm.suite import SuiteResult

_BLIMP = ("11", "12", "13", "14")
_HOURS = (
    "Ours: training alone, without evaluation, on the machine of each run. The paper's cannot be compared with them."
)
_EPOCHS = (
    "Row 0 is before the first caption, for T+C after the text stage; row n is after the n-th pass over the examples "
    "that training could draw from. The paper shows curves (Figure 2) and prints no numbers."
)
_SEEDS = "±: standard deviation over seeds (of the sample, n − 1); the paper prints means alone."


def ours_title(group: Group, data: Path) -> str:
    """Whose numbers these are, trained and measured on what."""
    measured = "miniature benchmarks" if is_miniature(data) else str(data)
    return f"ours: {group.name} (trained on {group.data}; {measured})"


def comparability(data: Path) -> str:
    """What the benchmarks are, and what must not be concluded."""
    if is_miniature(data):
        return (
            f"Ours are scores on miniature benchmarks ({data.name}): files of the official formats, made by a program "
            "from drawn scenes, a few items each, with drawn numbers in place of people's answers. They show that "
            "everything runs and what a model learned of scenes; (Super)GLUE is a few steps of fine-tuning there. "
            "They cannot be compared with the paper's, and an item or two between columns means nothing."
        )
    return (
        f"Ours are scores on the benchmarks in {data}. They can be compared with the paper's as far as those files "
        "are the challenge's, and the models were trained on the challenge's words and images."
    )


@dataclass(frozen=True)
class Page:
    """Everything there is to show.

    Args:
        source: of the paper's numbers.
        notes: how to read it, and what is missing.
        runs: a table of the runs: heading and rows.
        benchmarks: a table of the benchmarks: heading and rows.
        tables: in the paper's order.
        groups: our runs, for the curves.
    """

    source: str
    notes: tuple[str, ...]
    runs: tuple[list[str], list[list[Any]]]
    benchmarks: tuple[list[str], list[list[Any]]]
    tables: tuple[PaperTable, ...]
    groups: tuple[Group, ...]


def make_page(results: Mapping[TrainedRun, SuiteResult], lost: Sequence[LostRun], paper: Paper, data: Path) -> Page:
    """The page of these runs."""
    groups = ours.groups(results)
    missing = [f"{group.name}: {group.missing}" for group in groups if group.missing]
    left_out = dict.fromkeys(
        f"{BENCHMARKS[name].title}: not run ({reason})."
        for result in results.values()
        for name, reason in result.not_run.items()
    )
    notes = (comparability(data), RULE, *missing, *(f"In no table: {item.what}." for item in lost), *left_out)
    return Page(
        paper.source,
        notes,
        _runs(results),
        _benchmarks(results),
        tuple(all_tables(groups, paper.tables, data)),
        tuple(groups),
    )


def _runs(results: Mapping[TrainedRun, SuiteResult]) -> tuple[list[str], list[list[Any]]]:
    heading = ["study", "column", "seed", "run", "parameters", "examples", "validation loss", "trained on"]
    rows = [
        [
            run.study,
            run.column.label,
            run.seed,
            run.facts["name"],
            run.facts.get("parameters"),
            run.facts.get("examples"),
            run.facts.get("eval_loss"),
            run.settings.get("data"),
        ]
        for run in results
    ]
    return heading, rows


def _benchmarks(results: Mapping[TrainedRun, SuiteResult]) -> tuple[list[str], list[list[Any]]]:
    """What was run: of how many items, and what guessing reaches."""
    found = {name: task for result in results.values() for name, task in result.tasks.items()}
    rows = []
    for name, about in BENCHMARKS.items():
        if name in found:
            counts = {key: count for key, count in found[name].counts.items() if key not in about.extra}
            chance = None if about.chance is None else 100 * about.chance
            rows.append([about.title, f"{len(counts)} of {about.size}", sum(counts.values()), chance])
    return ["benchmark", "subtasks", "items", "guessing (%)"], rows


def all_tables(groups: Sequence[Group], printed: Mapping[str, Printed], data: Path) -> list[PaperTable]:
    """The paper's tables in its order."""

    def beside(*numbers: str, read: ours.Reader, note: str = "", seeds: bool = False) -> PaperTable:
        blocks = [(group.seeds_block if seeds else group.block)(ours_title(group, data), read) for group in groups]
        blocks += [printed[number].block() for number in numbers]
        name = f"Table {numbers[0]}" if len(numbers) == 1 else f"Tables {numbers[0]} to {numbers[-1]}"
        return PaperTable(name, printed[numbers[0]].title, tuple(blocks), note)

    subtasks = [name for number in _BLIMP for name in printed[number].rows]
    one_seed = "; ".join(f"{group.name}: seed {group.seed}" for group in groups)
    return [
        beside("1", read=ours.multimodal, note=f"Ours are of one seed ({one_seed})."),
        beside("2", read=ours.devbench("accuracy")),
        beside("3", read=ours.devbench("human_similarity")),
        beside("4", read=ours.text_averages),
        _hours(groups, printed),
        beside("6", read=ours.multimodal, note=_SEEDS, seeds=True),
        beside("7", read=ours.devbench("accuracy"), note=_SEEDS, seeds=True),
        beside("8", read=ours.devbench("human_similarity"), note=_SEEDS, seeds=True),
        beside("9", read=ours.glue_and_ewok),
        beside("10", read=ours.supplement),
        beside(*_BLIMP, read=ours.blimp(subtasks)),
        *_losses(groups),
    ]


def _hours(groups: Sequence[Group], printed: Mapping[str, Printed]) -> PaperTable:
    blocks = [training.hours_block(group, f"ours: {group.name} (trained on {group.data})") for group in groups]
    return PaperTable(
        "Table 5", printed["5"].title, (*blocks, printed["5"].block()), _HOURS, digits=None, marked=False
    )


def _losses(groups: Sequence[Group]) -> list[PaperTable]:
    made = []
    for text, title, note in (
        (False, "Validation loss of captions", _EPOCHS),
        (True, "Validation loss of the text stage", "Nats per token, before and after each pass over the text."),
    ):
        found = [
            training.loss_block(group, f"ours: {group.name} (trained on {group.data})", text=text) for group in groups
        ]
        blocks = tuple(block for block in found if block is not None)
        if blocks:
            made.append(PaperTable("Appendix B", title, blocks, note, digits=3, marked=False))
    return made
