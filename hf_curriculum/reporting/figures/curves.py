"""Validation curves of runs side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import (
    LIGHT,
    Theme,
    annotate,
    log_ticks,
    new_figure,
    number_ticks,
    spread,
    text_size,
)
from hf_curriculum.reporting.html import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METRICS = {"eval_loss": "Validation loss (nats per token)"}
_MARKERS = "osD^vP"


def validation_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    x: Literal["examples", "seconds"] = "examples",
    metric: str = "eval_loss",
    boundaries: Sequence[float] = (),
    label: str | None = None,
    log: bool | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """A metric from step 0 on, one line per run, its last value written at its end.

    Args:
        runs: name -> its evaluations, each a mapping with `x` and `metric`; those that lack a finite `metric` are
            left out.
        x: what is held equal between runs: `"examples"` seen or `"seconds"` of training.
        metric: what is shown.
        boundaries: where a new phase starts, in examples; on the axis of seconds they stand where the first run
            got there by its own clock.
        label: name and unit of the metric; by default known for `eval_loss`, else `metric`.
        log: whether the y axis is logarithmic; by default when values are positive and span a factor of three.
        theme: colours and width.

    Raises:
        ValueError: an unknown `x`; no run, or a run without a finite value of `metric`; `log=True` for values that
            are not all positive.

    Example:
        >>> points = [{"examples": 0, "eval_loss": 4.1}, {"examples": 800, "eval_loss": 2.0}]
        >>> figure = validation_curves({"curriculum": points}, boundaries=[400])
    """
    if x not in ("examples", "seconds"):
        raise ValueError(f'`x` is {x!r}. Runs are compared by "examples" seen or by "seconds": pass one of them.')
    lines = {name: _points(name, points, x, metric) for name, points in runs.items()}
    if not lines:
        raise ValueError("`runs` is empty: there is no curve to draw. Pass name -> evaluations.")
    values = np.concatenate([y for _, y in lines.values()])
    end = max(float(xs[-1]) for xs, _ in lines.values()) or 1.0
    unit, scale = ("Examples seen", 1.0) if x == "examples" else _time_unit(end)
    label = label or _METRICS.get(metric, metric)
    log = bool(values.min() > 0 and values.max() >= 3 * values.min()) if log is None else log
    figure, axes = new_figure(
        theme,
        f"{label.partition(' (')[0]} by {'examples seen' if x == 'examples' else 'time'}",
        x_label=unit,
        y_label=label + (", logarithmic" if log else ""),
    )
    axes.set_xlim(-0.01 * end / scale, end / scale)
    number_ticks(axes.xaxis, theme, room=8)
    _scale_values(axes, theme, float(values.min()), float(values.max()), log)
    for index, (xs, ys) in enumerate(lines.values()):
        axes.plot(
            xs / scale,
            ys,
            color=theme.series[index % len(theme.series)],
            linewidth=2.2,
            marker=_MARKERS[index % len(_MARKERS)] if len(xs) <= 40 else None,
            markersize=4.5,
            clip_on=False,
            zorder=3 - 0.1 * index,
        )
    _draw_boundaries(axes, theme, _on_axis(boundaries, x, next(iter(runs.values()))), scale)
    _label_ends(axes, theme, {name: (xs / scale, ys) for name, (xs, ys) in lines.items()})
    return figure


def _scale_values(axes: Axes, theme: Theme, low: float, high: float, log: bool) -> None:
    """The y axis: ends near the values, round ticks."""
    if log and low <= 0:
        raise ValueError(f"The lowest value is {low:g}, which a logarithmic axis cannot show. Pass `log=False`.")
    if log:
        log_ticks(axes, low, high)
        return
    margin = 0.06 * (high - low) or 0.05 * max(1.0, abs(high))
    axes.set_ylim(low - margin, high + margin)
    number_ticks(axes.yaxis, theme, room=10)


def _points(name: str, points: Sequence[Mapping[str, Any]], x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    kept = sorted(
        (float(point[x]), float(point[metric]))
        for point in points
        if point.get(metric) is not None and math.isfinite(point[metric])
    )
    if not kept:
        raise ValueError(
            f"The run {name!r} has no finite `{metric}` in its {len(points)} evaluations, so it has no curve. "
            "Evaluate it, pass another `metric=`, or leave it out."
        )
    xs, ys = zip(*kept, strict=True)
    return np.array(xs), np.array(ys)


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds >= 2 * 3600:
        return "Training time (hours)", 3600.0
    return ("Training time (minutes)", 60.0) if seconds >= 120 else ("Training time (seconds)", 1.0)


def _on_axis(boundaries: Sequence[float], x: str, points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Boundaries in the axis' own unit; seconds are read off the first run's clock."""
    if x == "examples" or not len(boundaries):
        return [float(boundary) for boundary in boundaries]
    clock = sorted((point["examples"], point["seconds"]) for point in points)
    examples, seconds = zip(*clock, strict=True)
    return [float(np.interp(boundary, examples, seconds)) for boundary in boundaries]


def _draw_boundaries(axes: Axes, theme: Theme, boundaries: Sequence[float], scale: float) -> None:
    inches = 0.8 * theme.width / axes.get_xlim()[1]  # per unit of the axis
    room, last = (0.25 if theme.is_narrow else 0.65), -math.inf
    for phase, boundary in enumerate((boundary / scale for boundary in boundaries), start=2):
        if boundary > axes.get_xlim()[1]:
            break  # a run that has not come so far
        axes.axvline(boundary, color=theme.muted, linewidth=0.9, linestyle=(0, (1, 2.5)), zorder=1)
        if (boundary - last) * inches < room:
            continue  # its label would cover the one before
        last = boundary
        text = str(phase) if theme.is_narrow else f"phase {phase}"
        box = {"facecolor": theme.surface, "edgecolor": "none", "pad": 1}  # no other line runs through it
        style = {"size": 8.5, "va": "top", "color": theme.muted, "bbox": box}
        annotate(axes, theme, text, (boundary, 1), (4, -3), coords=("data", "axes fraction"), **style)


def _label_ends(axes: Axes, theme: Theme, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Name and last value right of each line's end, moved apart where they would touch."""
    size = text_size(theme, 9)
    gap = size * (1.25 if not theme.is_narrow else 2.5)  # points: two rows where names stand above the values
    axes.figure.draw_without_rendering()  # the layout decides how many points a unit takes
    per_point = axes.figure.dpi / 72
    heights = [axes.transData.transform((0, ys[-1]))[1] / per_point for _, ys in lines.values()]
    for index, ((name, (xs, ys)), moved, height) in enumerate(
        zip(lines.items(), spread(heights, gap), heights, strict=True)
    ):
        colour = theme.series[index % len(theme.series)]
        edge = axes.get_xlim()[1]
        if xs[-1] < 0.98 * edge:  # leads the eye from a shorter run to its label
            axes.plot([xs[-1], edge], [ys[-1]] * 2, color=colour, linewidth=1, linestyle=(0, (1, 2)), alpha=0.8)
        short = one_line(name, 14 if theme.is_narrow else 28)
        text = f"{short}\n{number(ys[-1])}" if theme.is_narrow else f"{short}  {number(ys[-1])}"
        style = {"va": "center", "ha": "left", "color": colour, "weight": "bold", "linespacing": 1.05}
        annotate(axes, theme, text, (1, ys[-1]), (8, moved - height), coords=("axes fraction", "data"), **style)
