"""What came out of a study: means over seeds with intervals, tests against a control, as tables and figures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_curriculum.files import write_together
from hf_curriculum.markdown import csv_cell, table
from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows
from hf_curriculum.reporting.html import number
from hf_curriculum.reporting.run_sections import COST_NOTE, COSTS, scores_while_training
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.studies.statistics import Interval, IntervalKind, PairedTest, mean_interval, paired_test
from hf_curriculum.studies.study import StudyRun, as_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hf_curriculum.reporting.report import Report


@dataclass(frozen=True)
class ArmSummary:
    """One metric of one arm, over the runs that finished; `test` is over seeds that finished in both arms.

    `paper` holds what a paper prints for it, by the column it stands in.
    """

    arm: str
    metric: str
    values: Mapping[int, float]
    mean: Interval
    finished: int
    diverged: int
    crashed: int
    control: str | None
    test: PairedTest | None
    paper: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """How many runs the mean lacks, and why."""
        counts = {"diverged": self.diverged, "crashed": self.crashed}
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)

    def cells(self) -> dict[str, Any]:
        """One row of the CSV: plain numbers, None where there is none."""
        difference = self.test.difference if self.test else None
        return as_json(
            {
                "arm": self.arm,
                "metric": self.metric,
                "finished": self.finished,
                "diverged": self.diverged,
                "crashed": self.crashed,
                "n": self.mean.n,
                "mean": self.mean.value,
                "lower": self.mean.lower,
                "upper": self.mean.upper,
                "control": self.control,
                "pairs": difference.n if difference else None,
                "difference": difference.value if difference else None,
                "difference_lower": difference.lower if difference else None,
                "difference_upper": difference.upper if difference else None,
                "p_t": self.test.p_t if self.test else None,
                "p_sign_flip": self.test.p_sign_flip if self.test else None,
            }
        )


@dataclass(frozen=True)
class StudyTable:
    """A study's summary, made by `summarise`.

    Args:
        rows: one per metric and arm.
        runs: the runs they are made of.
        confidence: of all intervals.
        kind: of all intervals.
        scale: what numbers but losses are multiplied by as text, 100 for a table in per cent; those of CSV, JSON and
            figures are not, and what a paper prints is never changed.
        costs: metrics that say what a run cost: they are neither scaled nor tested, and have no figure.
    """

    rows: tuple[ArmSummary, ...]
    runs: tuple[StudyRun, ...]
    confidence: float
    kind: IntervalKind
    scale: float = 1
    costs: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[str]:
        """The metrics, in order."""
        return list(dict.fromkeys(row.metric for row in self.rows))

    @property
    def paper_columns(self) -> list[str]:
        """The columns with what a paper prints, in order; empty where no row has any."""
        return list(dict.fromkeys(column for row in self.rows for column in row.paper))

    @property
    def note(self) -> str:
        """What the numbers are, in a sentence or two."""
        unscaled = [metric for metric in self.metrics if self._scale_of(metric) != self.scale]
        but = f" but {', '.join(unscaled)}" if unscaled else ""
        text = "" if self.scale == 1 else f"Values{but} × {self.scale:g}. "
        text += f"Mean over seeds with its {100 * self.confidence:g} % {self.kind} interval."
        if any(row.test for row in self.rows):
            text += (
                " Difference from the control, paired by seed; p: two-sided, of the paired t test and of the sign-flip"
                " test, not corrected for several comparisons."
            )
        if any(not_available(row) for row in self.rows):
            text += " n/a: every run of the arm diverged."
        if "compute" in self.costs:
            text += f" {COST_NOTE}"
        if self.paper_columns:
            text += " paper: as it is printed there."
        return text

    def header(self) -> list[str]:
        """The columns of `body`."""
        tests = ["control", "difference", "p (t)", "p (sign flip)"]
        return ["arm", "metric", "runs", "mean", *self.paper_columns, *tests, "diverged", "crashed"]

    def body(self) -> list[list[str]]:
        """The rows as text."""
        return [_texts(row, self.paper_columns, self._scale_of(row.metric)) for row in self.rows]

    def _scale_of(self, metric: str) -> float:
        return 1 if metric in self.costs or metric.endswith("loss") else self.scale

    def to_markdown(self) -> str:
        """The table in Markdown, its note below."""
        return self._markdown(for_terminals=True)

    def _markdown(self, *, for_terminals: bool) -> str:
        note = self.note if for_terminals else self.note.replace("&", "&amp;").replace("<", "&lt;")
        return f"{table(self.header(), self.body(), for_terminals=for_terminals)}\n{note}\n"

    def _repr_html_(self) -> str:
        from hf_curriculum.reporting.report import Report

        report = Report("")
        self.add_to(report)
        return report._repr_html_()

    def to_csv(self) -> str:
        """One line per metric and arm, numbers in full, an empty cell where there is none, no formulas."""
        out = io.StringIO()
        rows = [row.cells() | {column: row.paper.get(column) for column in self.paper_columns} for row in self.rows]
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON has it, the runs' numbers included."""
        shown = ("arm", "seed", "key", "status", "step", "numbers")
        runs = [{name: getattr(run, name) for name in shown} for run in self.runs]
        summary = [
            {
                **row.cells(),
                **({"paper": as_json(row.paper)} if row.paper else {}),
                "values": {str(seed): value for seed, value in row.values.items()},
            }
            for row in self.rows
        ]
        return {"confidence": self.confidence, "interval": self.kind, "summary": summary, "runs": runs}

    def figure(self, metric: str, **options: Any) -> Figure:
        """A metric of every arm: seeds as dots, mean and interval."""
        rows = [row for row in self.rows if row.metric == metric]
        drawn = [IntervalRow(row.arm, list(row.values.values()), *_ends(row.mean), note=row.note) for row in rows]
        controls = {row.control for row in rows if row.control}
        reference = next((row.mean.value for row in rows if {row.arm} == controls), None)
        return interval_rows(
            drawn, **{"label": metric, "title": f"{metric} over seeds", "reference": reference, **options}
        )

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Writes `study.md`, `study.csv`, `study_METRIC.png`, light and `_dark`, for each metric, and `study.json`.

        All are replaced or none; `study.json` holds the digests of the others.
        """
        names = {"md": "study.md", "csv": "study.csv"}
        contents: dict[str, str | bytes] = {
            names["md"]: self._markdown(for_terminals=False),
            names["csv"]: self.to_csv(),
        }
        for metric in self.drawable():
            for theme, suffix in ((LIGHT, ""), (DARK, "_dark")):
                name = names[f"{metric}{suffix}"] = f"{_file_name(metric)}{suffix}.png"
                contents[name] = to_png(self.figure(metric, theme=theme))
        names["json"] = "study.json"
        write_together(folder, contents, names["json"], self.to_dict())
        return {name: Path(folder, file) for name, file in names.items()}

    def drawable(self) -> list[str]:
        """The metrics that some run has, without costs."""
        named = [metric for metric in self.metrics if metric not in self.costs]
        return [metric for metric in named if any(row.values for row in self.rows if row.metric == metric)]

    def add_to(self, report: Report) -> None:
        """Puts table and figures into a report."""
        report.add_table("Study", self.header(), self.body(), note=self.note)
        for metric in self.drawable():
            report.add_figure(None, partial(self.figure, metric), "Dots: one per seed.", name=_file_name(metric))


@validate_arguments
def summarise(
    runs: Sequence[StudyRun],
    metrics: Sequence[str],
    *,
    control: str | Mapping[str, str] | None = None,
    confidence: float = 0.95,
    kind: IntervalKind = "t",
    scale: float = 1,
) -> StudyTable:
    """Averages a study's runs over seeds, arm by arm, and compares each arm with its control.

    Args:
        runs: of a `Study`.
        metrics: names of the numbers to average. A run that lacks one, or has no finite value of it, is left out of
            that mean alone.
        control: the arm that all others are compared with, or arm -> its control.
        confidence: of all intervals.
        kind: `"t"` or `"bootstrap"`, see `mean_interval`.
        scale: see `StudyTable`.

    Returns:
        the table. A paper's number for an arm (`paper` of its runs) is in the column `paper` if a metric has its name,
        else in `paper, NAME` next to the first metric. If a run scored examples while training (`examples_scored`
        among its numbers), the table ends with the cost of every arm: `examples`, `examples_scored` and `compute`.

    Raises:
        ValueError: there is no run or no metric, a control is no arm, or `kind` or `confidence` is not possible.

    Example:
        >>> table = summarise(study.runs, ["eval_loss"], control="control")
        >>> _ = table.write("out")
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    if not arms or not metrics:
        raise ValueError(f"{len(arms)} arms and {len(metrics)} metrics make no table. Give at least one of each.")
    controls = {arm: control for arm in arms if arm != control} if isinstance(control, str) else dict(control or {})
    unknown = sorted({*controls, *controls.values()} - set(arms))
    if unknown or (isinstance(control, str) and control not in arms):
        raise ValueError(f"The control {unknown[0] if unknown else control!r} is not an arm of the study: {arms}.")
    told = COSTS if scores_while_training([run.numbers for run in runs]) else ()
    costs = tuple(name for name in told if name not in metrics)
    rows = [
        replace(
            _summary(runs, arm, metric, None if metric in costs else controls.get(arm), confidence, kind),
            paper=_figures(runs, arm, metric, metrics),
        )
        for metric in (*metrics, *costs)
        for arm in arms
    ]
    return StudyTable(tuple(rows), tuple(runs), confidence, kind, scale, costs)


def _figures(runs: Sequence[StudyRun], arm: str, metric: str, metrics: Sequence[str]) -> dict[str, float | str]:
    """What a paper prints for an arm, by column of this table."""
    given = next(run.paper for run in runs if run.arm == arm)
    own = {"paper": given[metric]} if metric in given else {}
    others = {f"paper, {name}": figure for name, figure in given.items() if name not in metrics}
    return own | (others if metric == metrics[0] else {})


def _summary(
    runs: Sequence[StudyRun], arm: str, metric: str, control: str | None, confidence: float, kind: IntervalKind
) -> ArmSummary:
    own = [run for run in runs if run.arm == arm]
    values = _values(runs, arm, metric)
    test = None
    if control is not None:
        other = _values(runs, control, metric)
        both = [seed for seed in values if seed in other]
        pairs = [values[seed] for seed in both], [other[seed] for seed in both]
        test = paired_test(*pairs, confidence=confidence, kind=kind)
    counts = {status: sum(run.status == status for run in own) for status in ("finished", "diverged", "crashed")}
    mean = mean_interval(list(values.values()), confidence=confidence, kind=kind)
    return ArmSummary(arm, metric, values, mean, **counts, control=control, test=test)


def _file_name(metric: str) -> str:
    return "study_" + re.sub(r"[^\w.-]+", "_", metric)


def _values(runs: Sequence[StudyRun], arm: str, metric: str) -> dict[int, float]:
    return {run.seed: float(run.numbers[metric]) for run in runs if run.arm == arm and metric in run.numbers}


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.lower, interval.upper


def not_available(row: ArmSummary) -> bool:
    """Whether an arm was trained and has no number, because it diverged at every seed."""
    return row.diverged > 0 and row.finished == 0


def _texts(row: ArmSummary, paper: Sequence[str], scale: float) -> list[str]:
    tests = ["–"] * 3
    if row.test:
        difference = interval_text(_scaled(row.test.difference, scale), signed=True)
        tests = [difference, _p_text(row.test.p_t), _p_text(row.test.p_sign_flip)]
    mean = "n/a" if not_available(row) else interval_text(_scaled(row.mean, scale))
    shown = [row.arm, row.metric, str(row.mean.n), mean, *(str(row.paper.get(column, "–")) for column in paper)]
    return [*shown, row.control or "–", *tests, str(row.diverged), str(row.crashed)]


def _scaled(interval: Interval, scale: float) -> Interval:
    return Interval(scale * interval.value, scale * interval.lower, scale * interval.upper, interval.n)


def interval_text(interval: Interval, *, signed: bool = False) -> str:
    """A value with its interval: `1.234 [1.201, 1.267]`; a dash where there is none."""

    def text(value: float) -> str:
        return ("+" if signed and value > 0 else "") + number(value, digits=4)

    if interval.n == 0:
        return "–"
    if interval.lower != interval.lower:  # one value has no interval
        return text(interval.value)
    return f"{text(interval.value)} [{text(interval.lower)}, {text(interval.upper)}]"


def _p_text(p: float) -> str:
    return "–" if p != p else "< 0.0001" if p < 1e-4 else f"{p:.4f}".rstrip("0").rstrip(".")
