"""What training could draw from, what it drew, and what it chose among that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.patches import Patch, Rectangle

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks, text_size
from hf_curriculum.reporting.html import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hf_curriculum.planning.plan import Plan

MAX_LABELLED = 6
"""Rounds of a run whose pools are labelled; more labels would cover each other."""


def pool_growth(
    runs: Mapping[str, Sequence[tuple[int, int, int]]], *, counted: str = "draws", theme: Theme = LIGHT
) -> Figure:
    """Pool size against examples seen, one step line per run, the pools of the first run labelled.

    Args:
        runs: name -> its rounds as (first draw, last draw, pool size), in order; a round without draws is skipped.
        counted: what a run's length counts, for the legend.
        theme: colours and width.

    Raises:
        ValueError: no run, or a run without any draw; a round that ends before it starts.

    Example:
        >>> figure = pool_growth({"curriculum": [(0, 800, 400), (800, 2400, 800)], "control": [(0, 3200, 800)]})
    """
    drawn = {name: _with_draws(name, rounds) for name, rounds in runs.items()}
    if not drawn:
        raise ValueError("`runs` is empty: there is no pool to draw.")
    longest = max(rounds[-1][1] for rounds in drawn.values())
    largest = max(size for rounds in drawn.values() for _, _, size in rounds)
    labels = {"x_label": "Examples seen", "y_label": "Examples in the pool"}
    figure, axes = new_figure(theme, "What training may draw from", **labels)
    axes.set_xlim(0, longest * 1.02)
    axes.set_ylim(0, largest * 1.2)
    number_ticks(axes.xaxis, theme, integer=True)
    number_ticks(axes.yaxis, theme, integer=True, room=10)
    for index, (name, rounds) in enumerate(drawn.items()):
        colour = theme.series[index % len(theme.series)]
        x = [rounds[0][0], *(last for _, last, _ in rounds)]
        y = [*(size for _, _, size in rounds), rounds[-1][2]]
        if index == 0:
            axes.fill_between(x, y, step="post", color=colour, alpha=0.10, linewidth=0)
        axes.plot(
            x,
            y,
            drawstyle="steps-post",
            color=colour,
            linewidth=2.4 if index == 0 else 1.8,
            linestyle="-" if index == 0 else (0, (5, 2.5)),
            solid_joinstyle="miter",
            zorder=3 - index * 0.1,
            label=f"{one_line(name, 28)}: {x[-1] - x[0]:,} {counted}",
        )
        axes.plot(x[-1], y[-1], "o", color=colour, markersize=5, zorder=4)
    _label_pools(axes, theme, next(iter(drawn.values())), largest)
    _legend_below(figure, theme, labelcolor="linecolor", handlelength=2.2)
    return figure


def plan_growth(plan: Plan, *, theme: Theme = LIGHT) -> Figure:
    """A plan's pools beside those of its i.i.d. control, before training.

    A signal-paced plan is drawn twice, with the decisions that let examples in soonest and latest; where none can be
    scenarios, as far as it is settled.
    """
    name, size = type(plan.curriculum).__name__, len(plan.ranking)
    shown = {f"{name}, {way}": scenarios for way, scenarios in plan.scenarios().items()} or {name: plan}
    runs = {label: pools_of(one.to_dict()) for label, one in shown.items() if one.known_samples}
    control = [(0, max(plan.control_draws, 1), size)]
    return pool_growth({**runs, "i.i.d. control": control}, counted=counted_in([plan.to_dict()]), theme=theme)


def pools_of(plan: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """The rounds of a plan (`Plan.to_dict()`) as `pool_growth` takes them, by examples trained on."""
    each = plan.get("candidates", 1)
    pools = [part for stage in plan["stages"] for part in stage["pools"]]
    return [(first // each, (last + 1) // each, size) for first, last, size in pools]


def counted_in(plans: Iterable[Mapping[str, Any]]) -> str:
    """What `pools_of` counts, in a word: where a plan chooses, not all that is drawn is trained on."""
    return "examples" if any("candidates" in plan for plan in plans) else "draws"


def phase_starts(plan: Mapping[str, Any]) -> list[int]:
    """Examples trained on before each phase of a plan (`Plan.to_dict()`) but the first."""
    each = plan.get("candidates", 1)
    return [(stage["last_sample"] + 1) // each for stage in plan["stages"][:-1]]


def _with_draws(name: str, rounds: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    for first, last, _ in rounds:
        if last < first:
            raise ValueError(f"A round of {name!r} ends at draw {last:,} before it starts at draw {first:,}.")
    kept = [(first, last, size) for first, last, size in rounds if last > first]
    if not kept:
        raise ValueError(f"The run {name!r} has no round with draws: leave it out.")
    return kept


def _label_pools(axes: Axes, theme: Theme, rounds: list[tuple[int, int, int]], largest: int) -> None:
    """Size and share of each pool above its step; the shares alone where a step is too short for the size."""
    if len(rounds) > MAX_LABELLED:
        return
    inches = 0.85 * theme.width / axes.get_xlim()[1]  # of one draw
    roomy = all((last - first) * inches > 0.066 * len(f"{size:,}") for first, last, size in rounds)
    for first, last, size in rounds:
        share = percent(size / largest)
        text = f"{size:,}\n{share}" if roomy else share
        style = {"size": 8, "ha": "center", "va": "bottom", "color": theme.text}
        annotate(axes, theme, text, ((first + last) / 2, size), (0, 5), **style)


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
        raise ValueError(f"None of the {len(rounds)} rounds has the quantiles {', '.join(QUANTILES)} of `{name}`.")
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
    ends = table[:, [0, 4]]
    _value_axis(axes, theme, float(table.min()), float(table.max()), integer=bool(np.all(ends == np.round(ends))))
    return figure


def drawn_shares(examples: Sequence[int], shares: Mapping[str, Sequence[float]], *, theme: Theme = LIGHT) -> Figure:
    """Each bucket's share of the draws, stacked in steps, against examples seen."""
    if not shares or len(examples) < 2:
        given = f"{len(shares)} buckets in {len(examples)} log entries"
        raise ValueError(f"{given} were given: a course of shares needs a bucket and two entries.")
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
    _legend_below(figure, theme, columns=4)
    return figure


def _draw_boxes(axes: Axes, theme: Theme, table: np.ndarray, names: Sequence[str]) -> None:
    style = {"va": "center", "color": theme.series[1], "weight": "bold"}
    for index, quantiles in enumerate(table):
        _draw_box(axes, theme, index, quantiles, theme.series[0], width=0.4, cap=0.07)
        annotate(axes, theme, number(quantiles[2]), (index + 0.2, quantiles[2]), (5, 0), **style)
    axes.set_xlim(-0.6, len(table) - 0.4)
    axes.set_xticks(range(len(names)), names, parse_math=False)


def _draw_box(
    axes: Axes, theme: Theme, x: float, quantiles: Sequence[float], colour: str, *, width: float, cap: float
) -> None:
    least, lower, median, upper, most = quantiles[:5]
    left = x - width / 2
    axes.plot([x, x], [least, most], color=colour, linewidth=1.4, solid_capstyle="butt", zorder=2)
    for end in (least, most):
        axes.plot([x - cap, x + cap], [end, end], color=colour, linewidth=1.4, zorder=2)
    box = {"xy": (left, lower), "width": width, "height": upper - lower}
    axes.add_patch(Rectangle(**box, facecolor=theme.surface, edgecolor="none", zorder=2.5))
    axes.add_patch(Rectangle(**box, facecolor=(colour, 0.25), edgecolor=colour, lw=1.4, zorder=3))
    axes.plot([left, left + width], [median, median], color=theme.series[1], linewidth=2.6, zorder=4)


def _value_axis(axes: Axes, theme: Theme, low: float, high: float, *, integer: bool = False) -> None:
    """A y axis that ends near its values."""
    margin = 0.07 * (high - low) or max(0.5, 0.05 * abs(high))
    axes.set_ylim(low - margin, high + margin)
    number_ticks(axes.yaxis, theme, integer=integer, room=10)


def _legend_below(figure: Figure, theme: Theme, *, columns: int = 2, **style: Any) -> None:
    """Below the axes; half as many columns on narrow figures."""
    columns = columns // 2 if theme.is_narrow else columns
    style = {"fontsize": text_size(theme, 9), "labelcolor": theme.muted, **style}
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, **style)


def _draw_bands(axes: Axes, theme: Theme, table: np.ndarray, numbers: Sequence[int]) -> None:
    colour = theme.series[0]
    least, lower, median, upper, most = table.T
    axes.fill_between(numbers, least, most, color=colour, alpha=0.14, linewidth=0, label="all")
    axes.fill_between(numbers, lower, upper, color=colour, alpha=0.32, linewidth=0, label="middle half")
    axes.plot(numbers, median, color=theme.series[1], linewidth=2.2, label="median")
    axes.set_xlim(numbers[0], numbers[-1])
    number_ticks(axes.xaxis, theme, integer=True)
    axes.legend(loc="upper left", frameon=False, fontsize=text_size(theme, 9), labelcolor=theme.muted, ncols=3)


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
            x = index + (side - 0.5) * (_WIDTH + 0.06)
            _draw_box(axes, theme, x, part[kind], colours[kind], width=_WIDTH, cap=0.05)
    if len(parts) <= (2 if theme.is_narrow else 4):
        _label_medians(axes, theme, parts)
    _value_axis(axes, theme, min(one["candidates"][0] for one in parts), max(one["candidates"][4] for one in parts))
    axes.set_xlim(-0.6, len(parts) - 0.4)
    texts, turned = [one_line(part["name"], 14) for part in parts], theme.is_narrow and len(parts) > 2
    axes.set_xticks(range(len(parts)), texts, rotation=30 if turned else 0, parse_math=False)
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
        raise ValueError(
            f"{len(shares)} shares and {given} at random were given. Give the same number of both, at least one."
        )
    figure, axes = new_figure(
        theme, "How often rows were chosen", x_label="Times chosen", y_label="Share of the rows, per cent"
    )
    colours, places = _colours(theme), np.arange(len(shares))
    shift = 0.0 if at_random is None else (_WIDTH + 0.04) / 2
    bars = [("chosen", shares, shift)] + ([] if at_random is None else [("candidates", at_random, -shift)])
    for kind, values, aside in bars:
        heights, colour = 100 * np.asarray(values), colours[kind]
        axes.bar(places + aside, heights, _WIDTH, facecolor=theme.surface, edgecolor="none")  # hides the grid
        axes.bar(places + aside, heights, _WIDTH, facecolor=(colour, 0.25), edgecolor=colour, linewidth=1.4)
    style = {"ha": "center", "va": "bottom", "color": colours["chosen"], "weight": "bold", "size": 8.5}
    for place, share in zip(places, shares, strict=True):
        if len(shares) <= (3 if theme.is_narrow else 6):
            annotate(axes, theme, percent(share), (place + shift, 100 * share), (0, 3), **style)
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
    _legend_below(figure, theme, handles=handles)
