"""Our numbers, in the rows of the paper's tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from babylm.arguments import SCENES
from babylm.tables import ALL_COLUMNS, PAPER_COLUMNS, Block, Column, Values
from babylm.tables_runs import TrainedRun

from hf_curriculum.tasks.babylm.glue import GLUE
from hf_curriculum.tasks.babylm.suite import SuiteResult

Rows = dict[str, Values]
Reader = Callable[[SuiteResult], Mapping[str, float]]
"""From one model's results to rows: label → number."""


def multimodal(result: SuiteResult) -> dict[str, float]:
    """Tables 1 and 6."""
    return _named(
        {"Winoground": _average(result, "winoground", "accuracy"), "VQAv2": _average(result, "vqa", "accuracy")}
    )


def devbench(measure: str) -> Reader:
    """Tables 2 and 7 (`accuracy`), 3 and 8 (`human_similarity`); sem-things has its correlation in both."""

    def read(result: SuiteResult) -> dict[str, float]:
        rows = {
            "lex-viz_vocab": _subtask(result, "devbench", "lex-viz_vocab", measure),
            "gram-trog": _subtask(result, "devbench", "gram-trog", measure),
            "sem-things": _subtask(result, "devbench", "sem-things", "rsa"),
            "average": _average(result, "devbench", measure),
        }
        return _named(rows)

    return read


def text_averages(result: SuiteResult) -> dict[str, float]:
    """Table 4."""
    rows = {
        "BLiMP supplement": _average(result, "blimp_supplement", "accuracy"),
        "BLiMP filtered": _average(result, "blimp", "accuracy"),
        "(Super)GLUE": _average(result, "glue", "score"),
        "EWoK": _average(result, "ewok", "accuracy"),
    }
    return _named(rows)


def glue_and_ewok(result: SuiteResult) -> dict[str, float]:
    """Table 9."""
    measures = {name: "" if task.measure == "accuracy" else f" ({task.measure})" for name, task in GLUE.items()}
    glue = {f"{name}{measures[name]}": value for name, value in _subtasks(result, "glue", "score").items()}
    return _named({**glue, **_subtasks(result, "ewok", "accuracy")})


def supplement(result: SuiteResult) -> dict[str, float]:
    """Table 10."""
    rows = _subtasks(result, "blimp_supplement", "accuracy")
    return _named({**rows, "average": _average(result, "blimp_supplement", "accuracy")})


def blimp(order: Iterable[str]) -> Reader:
    """Tables 11 to 14."""

    def read(result: SuiteResult) -> dict[str, float]:
        rows = _subtasks(result, "blimp", "accuracy")
        return _named({name: rows[name] for name in (*(name for name in order if name in rows), *rows)})

    return read


@dataclass(frozen=True, eq=False)
class Group:
    """The runs that share a block.

    Args:
        name: of the block.
        results: of the benchmarks, by run.
    """

    name: str
    results: Mapping[TrainedRun, SuiteResult]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The paper's eight, and those beyond them that some run has."""
        found = {run.column for run in self.results}
        return tuple(column for column in ALL_COLUMNS if column in PAPER_COLUMNS or column in found)

    @cached_property
    def seed(self) -> int:
        """The one of the tables that have a single seed: what most columns have, the lowest of several."""
        seeds = [run.seed for run in self.results]
        return min(seeds, key=lambda seed: (-seeds.count(seed), seed))

    @property
    def of_one_seed(self) -> dict[Column, TrainedRun]:
        """A run per column, in their order."""
        there = {run.column: run for run in self.results if run.seed == self.seed}
        return {column: there[column] for column in self.columns if column in there}

    @property
    def missing(self) -> str:
        """The paper's variants without a run of that seed; empty if there are none."""
        absent = [column.label for column in PAPER_COLUMNS if column not in self.of_one_seed]
        return f"No finished run of seed {self.seed}: {', '.join(absent)}." if absent else ""

    @property
    def data(self) -> str:
        """What the models were trained on."""
        named = dict.fromkeys(run.settings.get("data") for run in self.results)
        shown = {SCENES: "embedded scenes", None: "data that is not recorded"}
        return " and ".join(shown.get(name, str(name)) for name in named)

    def block(self, title: str, read: Reader) -> Block:
        """One seed's numbers."""
        read_rows = [(column, read(self.results[run])) for column, run in self.of_one_seed.items()]
        rows = _rows(read_rows)
        return Block(title, self.columns, rows, "" if rows else "Not evaluated.")

    def seeds_block(self, title: str, read: Reader) -> Block:
        """Means and standard deviations (of the sample, n − 1) of the columns that have several seeds."""
        means: list[tuple[Column, Mapping[str, float]]] = []
        spreads: list[tuple[Column, Mapping[str, float]]] = []
        seeds = []
        for column in self.columns:
            own = [run for run in self.results if run.column == column]
            if len(own) < 2:
                continue
            read_rows = [read(self.results[run]) for run in own]
            full = [label for label in read_rows[0] if all(label in rows for rows in read_rows)]
            means.append((column, {label: statistics.fmean(rows[label] for rows in read_rows) for label in full}))
            spreads.append((column, {label: statistics.stdev(rows[label] for rows in read_rows) for label in full}))
            seeds.append(f"{column.label}: {', '.join(str(seed) for seed in sorted(run.seed for run in own))}")
        note = f"Seeds of {'; '.join(seeds)}." if seeds else "No variant was trained with more than one seed."
        empty: Rows = {label: {} for label in read(next(iter(self.results.values())))}
        return Block(title, self.columns, empty | _rows(means), note, _rows(spreads))


def groups(results: Mapping[TrainedRun, SuiteResult]) -> list[Group]:
    """Runs by their blocks."""
    names = dict.fromkeys(run.study for run in results)
    return [Group(name, {run: result for run, result in results.items() if run.study == name}) for name in names]


def _rows(columns: Iterable[tuple[Column, Mapping[str, float]]]) -> Rows:
    """Label → column → per cent, from column → label → share."""
    rows: dict[str, dict[Column, float]] = {}
    for column, values in columns:
        for label, value in values.items():
            rows.setdefault(label, {})[column] = 100 * value
    return dict(rows)


def _named(rows: Mapping[str, float | None]) -> dict[str, float]:
    """Those that there are."""
    return {label: value for label, value in rows.items() if value is not None and not math.isnan(value)}


def _average(result: SuiteResult, task: str, measure: str) -> float | None:
    return result.averages.get(task, {}).get(measure)


def _subtask(result: SuiteResult, task: str, subtask: str, measure: str) -> float | None:
    return _subtasks(result, task, measure).get(subtask)


def _subtasks(result: SuiteResult, task: str, measure: str) -> dict[str, float]:
    if task not in result.tasks:
        return {}
    return {name: values[measure] for name, values in result.tasks[task].subtasks.items() if measure in values}
