"""Held-out retrieval while training, with what the curriculum asks for and where it was refreshed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks, text_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def held_out_retrieval(
    runs: Mapping[str, Sequence[tuple[int, float]]],
    refreshes: Mapping[str, Sequence[int]],
    threshold: float | None = None,
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """Image R@1 among held-out examples by step, a line per run, a dot at each refresh.

    Args:
        runs: name → (step, recall from 0 to 1) of each evaluation, in order.
        refreshes: name → steps at which the curriculum was refreshed.
        threshold: recall that a refresh needs, a dashed line.
        theme: colours and width.

    Raises:
        ValueError: no run, or one without an evaluation.

    Source: TOnICS, §3 and §4.2.

    Example:
        >>> figure = held_out_retrieval({"TOnICS": [(100, 0.1), (200, 0.3)]}, {"TOnICS": [200]}, threshold=0.2)
    """
    if not runs or not all(runs.values()):
        raise ValueError(
            f"Evaluations of {[name for name, own in runs.items() if own]} were given of the runs {list(runs)}. Each "
            "line needs one or more: evaluate on held-out examples while training."
        )
    figure, axes = new_figure(theme, "Held-out retrieval", x_label="Step", y_label="Image R@1, per cent")
    for index, (name, own) in enumerate(runs.items()):
        colour, values = theme.series[index % len(theme.series)], {step: 100 * value for step, value in own}
        axes.plot(list(values), list(values.values()), color=colour, linewidth=2, label=one_line(name, 28))
        marked = [step for step in refreshes.get(name, ()) if step in values]
        axes.scatter(marked, [values[step] for step in marked], color=colour, s=28, zorder=3)
    if threshold is not None:
        axes.axhline(100 * threshold, color=theme.muted, linewidth=1, linestyle=(0, (4, 3)))
        at = (0.01, 100 * threshold)
        annotate(axes, theme, "threshold", at, (0, 3), coords=("axes fraction", "data"), color=theme.muted, size=8)
    axes.set_ylim(bottom=0)
    number_ticks(axes.xaxis, theme, integer=True)
    number_ticks(axes.yaxis, theme, room=10)
    axes.legend(loc="lower right", frameon=False, fontsize=text_size(theme, 9), labelcolor=theme.muted)
    return figure
