"""What was chosen among candidates while training: their scores beside each other, and how often rows were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.patches import Patch, Rectangle

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks, text_size
from hf_curriculum.reporting.html import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 0.34
"""Of a box or a bar; two of them stand beside each other in a unit of the axis."""


def chosen_scores(
    parts: Sequence[Mapping[str, Any]],
    *,
    name: str = "score",
    easy: Literal["low", "high"] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Quantiles of a column's values, of the candidates and of what was chosen, two boxes for each part of a run.

    The box holds the middle half, the bar in it is the median, the thin line reaches from the lowest to the highest.

    Args:
        parts: of the run, in order: `name`, and under `candidates` and `chosen` the quantiles 0, 25, 50, 75 and 100 %.
        name: the column's.
        easy: which end is easy, for the axis label.
        theme: colours and width.

    Raises:
        ValueError: no part.

    Example:
        >>> part = {"name": "phase 1", "candidates": [0.1, 0.2, 0.24, 0.3, 0.4], "chosen": [0.1, 0.2, 0.3, 0.3, 0.4]}
        >>> figure = chosen_scores([part], name="clip_similarity", easy="high")
    """
    if not parts:
        raise ValueError(f"No part of a run has values of `{name}`: there is nothing to draw. Leave the figure out.")
    figure, axes = new_figure(
        theme,
        f"{one_line(name, 18 if theme.is_narrow else 48)} of what was chosen",
        x_label="",
        y_label=name + (f" ({easy} is easy)" if easy else ""),
    )
    colours = _colours(theme)
    for index, part in enumerate(parts):
        for side, kind in enumerate(colours):
            _draw_box(axes, theme, index + (side - 0.5) * (_WIDTH + 0.06), part[kind], colours[kind])
    if len(parts) <= (2 if theme.is_narrow else 4):
        _label_medians(axes, theme, parts)
    low = min(part["candidates"][0] for part in parts)
    high = max(part["candidates"][4] for part in parts)
    margin = 0.07 * (high - low) or max(0.5, 0.05 * abs(high))
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(-0.6, len(parts) - 0.4)
    texts = [one_line(part["name"], 14) for part in parts]
    axes.set_xticks(range(len(parts)), texts, rotation=30 if theme.is_narrow and len(parts) > 2 else 0)
    for tick in axes.get_xticklabels():
        tick.set_parse_math(False)
    number_ticks(axes.yaxis, theme, room=10)
    _legend(figure, theme, {"candidates": "candidates", "chosen": "chosen"})
    return figure


def chosen_counts(
    shares: Sequence[float], at_random: Sequence[float] | None = None, *, theme: Theme = LIGHT
) -> Figure:
    """The shares of rows that were chosen never, once, twice and so on, beside what a choice at random gives.

    Args:
        shares: of the rows chosen 0, 1, 2, … times; the last of them also of those chosen more often.
        at_random: the same if every candidate of a place had been as likely; None where it is not known.
        theme: colours and width.

    Raises:
        ValueError: no share, or not as many of both.

    Example:
        >>> figure = chosen_counts([0.25, 0.5, 0.25], [0.3, 0.4, 0.3])
    """
    if not shares or (at_random is not None and len(at_random) != len(shares)):
        given = "none" if at_random is None else len(at_random)
        raise ValueError(f"{len(shares)} shares and {given} at random were given. Give as many of both, and one.")
    figure, axes = new_figure(
        theme, "How often rows were chosen", x_label="Times chosen", y_label="Share of the rows, per cent"
    )
    colours, places = _colours(theme), np.arange(len(shares))
    bars = {"chosen": (shares, (_WIDTH + 0.04) / 2)}
    if at_random is None:
        bars = {"chosen": (shares, 0.0)}
    else:
        bars["candidates"] = (at_random, -(_WIDTH + 0.04) / 2)
    for kind, (values, shift) in bars.items():
        heights, colour = 100 * np.asarray(values), colours[kind]
        axes.bar(places + shift, heights, _WIDTH, facecolor=theme.surface, edgecolor="none")  # hides the grid
        axes.bar(places + shift, heights, _WIDTH, facecolor=(colour, 0.25), edgecolor=colour, linewidth=1.4)
    style = {"ha": "center", "va": "bottom", "color": colours["chosen"], "weight": "bold", "size": 8.5}
    for place, share in zip(places, shares, strict=True):
        if len(shares) <= (3 if theme.is_narrow else 6):
            annotate(axes, theme, percent(share), (place + bars["chosen"][1], 100 * share), (0, 3), **style)
    names = [f"{number:,}" for number in range(len(shares))]
    names[-1] += " or more" if len(shares) > 2 and not theme.is_narrow else "+" if len(shares) > 2 else ""
    axes.set_xticks(places, names)
    axes.set_ylim(0, 112 * max(*shares, *(at_random or ())) if len(shares) > 1 else 112)
    number_ticks(axes.yaxis, theme, room=8)
    if at_random is not None:
        _legend(figure, theme, {"candidates": "at random among the candidates", "chosen": "as it was"})
    return figure


def _colours(theme: Theme) -> dict[str, str]:
    return {"candidates": theme.muted, "chosen": theme.series[0]}


def _draw_box(axes: Axes, theme: Theme, x: float, quantiles: Sequence[float], colour: str) -> None:
    least, lower, median, upper, most = quantiles[:5]
    left = x - _WIDTH / 2
    axes.plot([x, x], [least, most], color=colour, linewidth=1.4, solid_capstyle="butt", zorder=2)
    for end in (least, most):
        axes.plot([x - 0.05, x + 0.05], [end, end], color=colour, linewidth=1.4, zorder=2)
    box = {"xy": (left, lower), "width": _WIDTH, "height": upper - lower}
    axes.add_patch(Rectangle(**box, facecolor=theme.surface, edgecolor="none", zorder=2.5))
    axes.add_patch(Rectangle(**box, facecolor=(colour, 0.25), edgecolor=colour, lw=1.4, zorder=3))
    axes.plot([left, left + _WIDTH], [median, median], color=theme.series[1], linewidth=2.6, zorder=4)


def _label_medians(axes: Axes, theme: Theme, parts: Sequence[Mapping[str, Any]]) -> None:
    """Each median's value, above its bar."""
    style = {"va": "bottom", "ha": "center", "color": theme.series[1], "weight": "bold", "size": 8.5}
    style["bbox"] = {"boxstyle": "round,pad=0.1", "facecolor": theme.surface, "edgecolor": "none", "alpha": 0.75}
    for index, part in enumerate(parts):
        for side, kind in enumerate(("candidates", "chosen")):
            place = index + (side - 0.5) * (_WIDTH + 0.06), part[kind][2]
            annotate(axes, theme, number(part[kind][2]), place, (0, 3), zorder=5, **style)


def _legend(figure: Figure, theme: Theme, names: Mapping[str, str]) -> None:
    colours = _colours(theme)
    handles = [
        Patch(facecolor=(colours[kind], 0.25), edgecolor=colours[kind], label=label) for kind, label in names.items()
    ]
    style = {"frameon": False, "fontsize": text_size(theme, 9), "labelcolor": theme.muted}
    figure.legend(handles=handles, loc="outside lower left", ncols=1 if theme.is_narrow else 2, **style)
