"""How many examples training may draw from, by examples seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks, text_size
from hf_curriculum.reporting.html import percent

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
        raise ValueError("`runs` is empty: there is no pool to draw. Pass name -> [(first draw, last draw, size)].")
    longest = max(rounds[-1][1] for rounds in drawn.values())
    largest = max(size for rounds in drawn.values() for _, _, size in rounds)
    figure, axes = new_figure(
        theme,
        "What training may draw from",
        x_label="Examples seen",
        y_label="Examples in the pool",
    )
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
    figure.legend(
        loc="outside lower left",
        ncols=1 if theme.is_narrow else 2,
        frameon=False,
        fontsize=text_size(theme, 9),
        labelcolor="linecolor",
        handlelength=2.2,
    )
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
            raise ValueError(
                f"A round of {name!r} ends at draw {last:,} before it starts at draw {first:,}. "
                "Give the rounds as (first draw, last draw, pool size)."
            )
    kept = [(first, last, size) for first, last, size in rounds if last > first]
    if not kept:
        raise ValueError(f"The run {name!r} has no round with draws, so its pool cannot be drawn. Leave it out.")
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
