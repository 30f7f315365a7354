"""Validation curves of runs side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
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

_METRICS = {"loss": "loss", "cider": "CIDEr-D", "map_50": "mAP@0.5"}
_MARKERS = "osD^vP"


def validation_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    x: Literal["examples", "seconds"] = "examples",
    metric: str = "eval_loss",
    boundaries: Sequence[float] = (),
    merges: Mapping[str, Sequence[tuple[float, str]]] = MappingProxyType({}),
    arms: Mapping[str, str] = MappingProxyType({}),
    reference: float | None = None,
    label: str | None = None,
    log: bool | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """A metric from step 0 on, one line per run, its last value written at its end.

    Where a bucket joined a run's pool its line has a ring with the bucket's number. Runs of one arm, such as its
    seeds, share a colour and a label with the mean of their last values; rings are those of the first of them.

    Args:
        runs: name -> its evaluations, each a mapping with `x` and `metric`; those that lack a finite `metric` are
            left out.
        x: what is held equal between runs: `"examples"` seen or `"seconds"` of training.
        metric: what is shown.
        boundaries: where a new phase starts, in examples; on the axis of seconds they stand where the first run
            got there by its own clock.
        merges: name -> (examples seen, label of up to 4 characters) of what joined that run's pool, see `merges_of`.
        reference: a value that a dashed line marks: the control's best.
        label: name and unit of the metric; by default that of `metric_label`.
        log: whether the y axis is logarithmic; by default when values are positive and span a factor of three.
        theme: colours and width.

    Raises:
        ValueError: an unknown `x`; no run, or a run without a finite value of `metric`; `merges` of another run;
            `log=True` for values that are not all positive.

    Source: Simi-CL, Figure 2.

    Example:
        >>> points = [{"examples": 0, "eval_loss": 4.1}, {"examples": 800, "eval_loss": 2.0}]
        >>> figure = validation_curves({"curriculum": points}, boundaries=[400])
        >>> figure = validation_curves({"baby steps": points}, merges={"baby steps": [(400, "2")]})
    """
    if x not in ("examples", "seconds"):
        raise ValueError(f'`x` is {x!r}, not "examples" or "seconds".')
    lines = {name: _points(name, points, x, metric) for name, points in runs.items()}
    if not lines:
        raise ValueError("`runs` is empty: there is no curve to draw.")
    if unknown := [name for name in merges if name not in runs]:
        raise ValueError(f"`merges` names {unknown[0]!r}, and the runs are {list(runs)}.")
    values = np.concatenate([y for _, y in lines.values()])
    end = max(float(xs[-1]) for xs, _ in lines.values()) or 1.0
    unit, scale = ("Examples seen", 1.0) if x == "examples" else _time_unit(end)
    label = label or metric_label(metric)
    log = bool(values.min() > 0 and values.max() >= 3 * values.min()) if log is None else log
    figure, axes = new_figure(
        theme,
        f"{label.partition(' (')[0]} by {'examples seen' if x == 'examples' else 'time'}",
        x_label=unit,
        y_label=label + (", logarithmic" if log else ""),
    )
    axes.set_xlim(-0.01 * end / scale, end / scale)
    number_ticks(axes.xaxis, theme, room=8)
    inside = [*values, *([] if reference is None else [reference])]
    _scale_values(axes, theme, float(min(inside)), float(max(inside)), log)
    if reference is not None:
        axes.axhline(reference, color=theme.muted, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    seeds: dict[str, list[str]] = {}  # arm -> its runs
    for name in lines:
        seeds.setdefault(arms.get(name, name), []).append(name)
    shown = {name: (xs / scale, ys) for name, (xs, ys) in lines.items()}
    for index, names in enumerate(seeds.values()):
        _draw_arm(axes, theme, index, [shown[name] for name in names])
    _draw_boundaries(axes, theme, _on_axis(boundaries, x, next(iter(runs.values()))), scale)
    ends = {name: (xs[-1], ys[-1]) for name, (xs, ys) in shown.items()}
    _label_ends(axes, theme, {arm: np.mean([ends[name] for name in names], axis=0) for arm, names in seeds.items()})
    marks = {}
    for name, own in merges.items():
        places = _on_axis([at for at, _ in own], x, runs[name])
        marks[name] = [(at / scale, text) for at, (_, text) in zip(places, own, strict=True)]
    _mark_merges(axes, theme, {names[0]: shown[names[0]] for names in seeds.values()}, marks)
    return figure


def metric_label(metric: str, loss_unit: str | None = "nats per token") -> str:
    """Name and unit of a metric of `evaluate()`, and the set it is of, if that is named."""
    own = metric.removeprefix("eval_")
    name = next((name for name in _METRICS if own == name or own.endswith(f"_{name}")), None)
    if name is None:
        return metric
    part = own.removesuffix(name).removesuffix("_")
    unit = f" ({loss_unit})" if name == "loss" and loss_unit else ""
    return f"Validation {_METRICS[name]}{f' of {part}' if part else ''}{unit}"


def merges_of(decisions: Sequence[Mapping[str, Any]], global_batch_size: int) -> list[tuple[int, str]]:
    """When buckets joined a run's pool, from its log of decisions, as `validation_curves` marks it.

    Args:
        decisions: of a curriculum that merges buckets, such as `BabySteps`; none for any other.
        global_batch_size: examples per step.

    Returns:
        (examples seen, the bucket's number, from 1) in order; a `*` behind one that was forced in.

    Example:
        >>> merges_of([{"step": 4, "decision": "stay"}, {"step": 9, "decision": "merge", "bucket": 1}], 10)
        [(90, '2')]
    """
    marks = {"merge": "", "forced": "*"}
    return [
        (entry["step"] * global_batch_size, f"{entry['bucket'] + 1}{marks[entry['decision']]}")
        for entry in decisions
        if entry.get("decision") in marks and "bucket" in entry
    ]


def examples_until(
    log: Sequence[Mapping[str, Any]], metric: str, target: float, *, greater_is_better: bool = True
) -> float:
    """How many examples a run had seen when an evaluation first was as good as a target: `math.inf` if none was.

    Args:
        log: evaluations with `examples` and `metric`, others are skipped; in any order.
        metric: what is compared.
        target: the value to reach, such as the best of the vanilla model.
        greater_is_better: whether the metric should rise.

    Returns:
        Examples; infinity where the target was not reached, NaN without a finite value of the metric.

    Source: Simi-CL, section 4.2: "accelerate the convergence speed towards the best vanilla model performance".

    Example:
        >>> log = [{"examples": 100, "eval_cider": 0.2}, {"examples": 200, "eval_cider": 0.5}]
        >>> examples_until(log, "eval_cider", 0.4), examples_until(log, "eval_cider", 0.6)
        (200.0, inf)
    """
    points = [(entry["examples"], entry[metric]) for entry in log if has_value(entry, metric) and "examples" in entry]
    if not points:
        return math.nan
    sign = 1 if greater_is_better else -1
    return min((float(examples) for examples, value in points if sign * value >= sign * target), default=math.inf)


def has_value(entry: Mapping[str, Any], metric: str) -> bool:
    """Whether a log entry has a finite value of the metric."""
    return entry.get(metric) is not None and math.isfinite(entry[metric])


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


def _draw_arm(axes: Axes, theme: Theme, index: int, lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """The lines of an arm's seeds in its colour; thinner where there are several."""
    for xs, ys in lines:
        axes.plot(
            xs,
            ys,
            color=theme.series[index % len(theme.series)],
            linewidth=2.2 if len(lines) == 1 else 1.3,
            linestyle="-" if index < len(theme.series) else (0, (4, 1.5)),  # colours begin again
            marker=_MARKERS[index % len(_MARKERS)] if len(xs) <= 40 else None,
            markersize=4.5 if len(lines) == 1 else 3,
            clip_on=False,
            zorder=3 - 0.1 * index,
        )


def _points(name: str, points: Sequence[Mapping[str, Any]], x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    kept = sorted((float(point[x]), float(point[metric])) for point in points if has_value(point, metric))
    if not kept:
        raise ValueError(f"The run {name!r} has no finite `{metric}` in its {len(points)} evaluations.")
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


def _label_ends(axes: Axes, theme: Theme, ends: Mapping[str, np.ndarray]) -> None:
    """Name and last value right of each line's end (x, y), moved apart where they would touch."""
    size = text_size(theme, 9)
    gap = size * (1.25 if not theme.is_narrow else 2.5)  # points: two rows where names stand above the values
    axes.figure.draw_without_rendering()  # the layout decides how many points a unit takes
    per_point = axes.figure.dpi / 72
    heights = [axes.transData.transform((0, y))[1] / per_point for _, y in ends.values()]
    for index, ((name, (x, y)), moved, height) in enumerate(
        zip(ends.items(), spread(heights, gap), heights, strict=True)
    ):
        colour = theme.series[index % len(theme.series)]
        edge = axes.get_xlim()[1]
        if x < 0.98 * edge:  # leads the eye from a shorter run to its label
            axes.plot([x, edge], [y, y], color=colour, linewidth=1, linestyle=(0, (1, 2)), alpha=0.8)
        short = one_line(name, 14 if theme.is_narrow else 28)
        text = f"{short}\n{number(y)}" if theme.is_narrow else f"{short}  {number(y)}"
        style = {"va": "center", "ha": "left", "color": colour, "weight": "bold", "linespacing": 1.05}
        annotate(axes, theme, text, (1, y), (8, moved - height), coords=("axes fraction", "data"), **style)


def _mark_merges(
    axes: Axes,
    theme: Theme,
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    merges: Mapping[str, Sequence[tuple[float, str]]],
) -> None:
    """A ring on each run's line where something joined its pool, the label in it."""
    ring = {"boxstyle": "circle,pad=0.25", "facecolor": theme.surface, "linewidth": 1.6}
    for index, (name, (xs, ys)) in enumerate(lines.items()):
        colour = theme.series[index % len(theme.series)]
        for at, text in merges.get(name, ()):
            if not xs[0] <= at <= xs[-1]:
                continue  # no evaluation as early, or as late
            style = {"size": 7, "ha": "center", "va": "center", "color": theme.text, "zorder": 4}
            style["bbox"] = {**ring, "edgecolor": colour}
            annotate(axes, theme, one_line(text, 4), (at, float(np.interp(at, xs, ys))), (0, 0), **style)
