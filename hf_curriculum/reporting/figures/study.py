"""A number of several arms over seeds: one row per arm, a dot per seed, the mean and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks
from hf_curriculum.reporting.html import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class IntervalRow:
    """One row of `interval_rows`.

    Args:
        name: of the arm.
        values: one per seed; +inf for one that was never reached within the budget.
        centre: mean or median; NaN where there is none, +inf where it was not reached.
        lower: lower end of its interval, NaN where there is none.
        upper: upper end; +inf where it is not bounded.
        note: what the row does not show, such as `"1 diverged"`.
    """

    name: str
    values: Sequence[float]
    centre: float
    lower: float = math.nan
    upper: float = math.nan
    note: str = ""


def interval_rows(
    rows: Sequence[IntervalRow],
    *,
    label: str,
    title: str,
    reference: float | None = None,
    limit: float | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Dots, means and intervals, the first row at the top.

    Values that were never reached stand at the right edge as open triangles, and intervals without an end run there.

    Args:
        rows: the arms.
        label: name and unit of the number.
        title: what is shown.
        reference: a value that a dashed line marks: the control's.
        limit: the budget: the axis runs from 0 to it. Needed where a value was never reached.
        theme: colours and width.

    Raises:
        ValueError: no row has a value; a value is infinite and there is no `limit`.

    Example:
        >>> rows = [IntervalRow("control", [1.0, 1.2], 1.1, 0.9, 1.3), IntervalRow("phases", [1.3], 1.3)]
        >>> figure = interval_rows(rows, label="Validation loss", title="Validation loss over seeds", reference=1.1)
    """
    shown = [value for row in rows for value in (*row.values, row.centre, row.lower, row.upper) if value == value]
    finite = [value for value in (*shown, reference) if value is not None and math.isfinite(value)]
    if not shown or not (finite or limit):
        raise ValueError(f"None of the {len(rows)} rows of {label!r} has a value: there is nothing to draw.")
    if limit is None and len(finite) < len(shown):
        raise ValueError(f"{label!r} has values that were never reached (infinite): pass the budget as `limit=`.")
    figure, axes = new_figure(theme, title, x_label=label, y_label="", height=1.35 + 0.34 * len(rows))
    low, high = (min(finite), max(finite)) if limit is None else (0.0, limit)
    margin = 0.06 * (high - low) or 0.05 * max(1.0, abs(high))
    edge = high + margin
    axes.set_xlim(low - margin if limit is None else 0.0, edge)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    number_ticks(axes.xaxis, theme, room=9)
    axes.set_yticks(
        range(len(rows)), [one_line(row.name, 22 if theme.is_narrow else 44) for row in rows], parse_math=False
    )
    axes.grid(visible=False)
    axes.grid(axis="x", color=theme.line, linewidth=0.8)
    if reference is not None and math.isfinite(reference):
        axes.axvline(reference, color=theme.muted, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for position, row in enumerate(rows):
        _draw_row(axes, theme, position, row, edge)
    return figure


def _draw_row(axes: Axes, theme: Theme, position: int, row: IntervalRow, edge: float) -> None:
    colour = theme.series[0]
    reached = [value for value in row.values if math.isfinite(value)]
    axes.plot(
        reached, [position] * len(reached), "o", color=colour, alpha=0.4, markersize=4.5, markeredgewidth=0, zorder=2
    )
    never = len(row.values) - len(reached)
    if never:
        axes.plot(
            [edge] * never, [position] * never, ">", markersize=6, markerfacecolor="none", color=colour, clip_on=False
        )
    if row.lower == row.lower:
        ends = [min(row.lower, edge), min(row.upper, edge)]
        axes.plot(ends, [position] * 2, color=colour, linewidth=2, solid_capstyle="butt", zorder=3)
    if math.isfinite(row.centre):
        axes.plot([row.centre], [position], "D", color=colour, markersize=6, zorder=4)
    text = number(row.centre) if math.isfinite(row.centre) else "never" if row.values else "–"
    text += f"  ({one_line(row.note, 60)})" if row.note and not theme.is_narrow else "*" if row.note else ""
    style = {"va": "center", "ha": "left", "color": theme.text}
    annotate(axes, theme, text, (1, position), (10, 0), coords=("axes fraction", "data"), **style)
