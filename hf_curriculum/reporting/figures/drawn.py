"""The scores of the examples drawn while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.patches import Rectangle

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks, text_size
from hf_curriculum.reporting.html import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTILES = ("q0", "q25", "q50", "q75", "q100")
MAX_BOXES = 16
"""Rounds drawn as boxes; more are drawn as bands."""


def drawn_scores(
    rounds: Sequence[Mapping[str, Any]],
    *,
    name: str = "score",
    easy: Literal["low", "high"] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Quantiles of the drawn examples' scores, a box per round, bands where there are many rounds.

    The box holds the middle half, the bar in it is the median (its value beside it), the thin line reaches from the
    lowest to the highest score drawn.

    Args:
        rounds: per round `round`, optionally `phase`, and the quantiles `q0`, `q25`, `q50`, `q75`, `q100` of the
            scores; a round with a quantile that is `None` or NaN is left out.
        name: the score's column.
        easy: which end is easy, for the axis label.
        theme: colours and width.

    Raises:
        ValueError: no round with all five quantiles.

    Example:
        >>> row = {"round": 0, "phase": 1, "q0": 0, "q25": 1, "q50": 2, "q75": 2, "q100": 2}
        >>> figure = drawn_scores([row], name="noun_count")
    """
    kept = [row for row in rounds if all(row.get(key) is not None and np.isfinite(row[key]) for key in QUANTILES)]
    if not kept:
        raise ValueError(
            f"None of the {len(rounds)} rounds has the quantiles {', '.join(QUANTILES)} of `{name}`, so there is "
            "nothing to draw. They are logged per round while training."
        )
    by_phase = all(row.get("phase") is not None for row in kept)
    figure, axes = new_figure(
        theme,
        f"{one_line(name, 18 if theme.is_narrow else 48)} of the examples drawn",
        x_label="Phase" if by_phase else "Round",
        y_label=name + (f" ({easy} is easy)" if easy else ""),
    )
    table = np.array([[row[key] for key in QUANTILES] for row in kept], dtype=np.float64)  # [rounds, 5]
    names = [str(row["phase"] if by_phase else row["round"]) for row in kept]
    if len(kept) <= MAX_BOXES:
        _draw_boxes(axes, theme, table, names)
    else:
        _draw_bands(axes, theme, table, [row["round"] for row in kept])
        axes.set_xlabel("Round")
    low, high = float(table.min()), float(table.max())
    margin = 0.07 * (high - low) or max(0.5, 0.05 * abs(high))
    axes.set_ylim(low - margin, high + margin)
    number_ticks(axes.yaxis, theme, integer=bool(np.all(table[:, [0, 4]] == np.round(table[:, [0, 4]]))), room=10)
    return figure


def drawn_shares(examples: Sequence[int], shares: Mapping[str, Sequence[float]], *, theme: Theme = LIGHT) -> Figure:
    """Each bucket's share of the draws, stacked in steps, against examples seen."""
    if not shares or len(examples) < 2:
        raise ValueError(
            f"{len(shares)} buckets in {len(examples)} log entries were given: a course of shares needs a bucket and "
            "two entries. Log more often (`logging_steps`), or leave the figure out."
        )
    figure, axes = new_figure(theme, "What was drawn", x_label="Examples seen", y_label="Share of the draws, per cent")
    ends = [0, *examples]
    parts = [100 * np.asarray([values[0], *values]) for values in shares.values()]
    # One colour, darker for harder buckets: they are ordered.
    alphas = np.linspace(0.2, 0.95, len(parts))
    colours = [(theme.series[0], alpha) for alpha in alphas]
    names = [one_line(name, 28) for name in shares]
    axes.stackplot(ends, parts, step="pre", colors=colours, labels=names, linewidth=0.6, edgecolor=theme.surface)
    axes.set_xlim(ends[0], ends[-1])
    axes.set_ylim(0, 100)
    number_ticks(axes.xaxis, theme, integer=True)
    number_ticks(axes.yaxis, theme, integer=True, room=10)
    legend = {"loc": "outside lower left", "ncols": 2 if theme.is_narrow else 4, "frameon": False}
    figure.legend(**legend, fontsize=text_size(theme, 9), labelcolor=theme.muted)
    return figure


def _draw_boxes(axes: Axes, theme: Theme, table: np.ndarray, names: Sequence[str]) -> None:
    colour = theme.series[0]
    for index, (least, lower, median, upper, most) in enumerate(table):
        axes.plot([index, index], [least, most], color=colour, linewidth=1.4, solid_capstyle="butt", zorder=2)
        for end in (least, most):
            axes.plot([index - 0.07, index + 0.07], [end, end], color=colour, linewidth=1.4, zorder=2)
        box = {"xy": (index - 0.2, lower), "width": 0.4, "height": upper - lower}
        axes.add_patch(Rectangle(**box, facecolor=theme.surface, edgecolor="none", zorder=2.5))
        axes.add_patch(Rectangle(**box, facecolor=(colour, 0.25), edgecolor=colour, lw=1.4, zorder=3))
        axes.plot([index - 0.2, index + 0.2], [median, median], color=theme.series[1], linewidth=2.6, zorder=4)
        style = {"va": "center", "color": theme.series[1], "weight": "bold"}
        annotate(axes, theme, number(median), (index + 0.2, median), (5, 0), **style)
    axes.set_xlim(-0.6, len(table) - 0.4)
    axes.set_xticks(range(len(names)), names)
    for tick in axes.get_xticklabels():
        tick.set_parse_math(False)


def _draw_bands(axes: Axes, theme: Theme, table: np.ndarray, numbers: Sequence[int]) -> None:
    colour = theme.series[0]
    least, lower, median, upper, most = table.T
    axes.fill_between(numbers, least, most, color=colour, alpha=0.14, linewidth=0, label="all")
    axes.fill_between(numbers, lower, upper, color=colour, alpha=0.32, linewidth=0, label="middle half")
    axes.plot(numbers, median, color=theme.series[1], linewidth=2.2, label="median")
    axes.set_xlim(numbers[0], numbers[-1])
    number_ticks(axes.xaxis, theme, integer=True)
    axes.legend(loc="upper left", frameon=False, fontsize=text_size(theme, 9), labelcolor=theme.muted, ncols=3)
