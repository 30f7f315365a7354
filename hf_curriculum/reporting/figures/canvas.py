"""What all figures share: an empty styled canvas, ticks, labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, Formatter, MaxNLocator
from PIL import Image, ImageChops, ImageStat

from hf_curriculum.markdown import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


DPI = 200
"""Pixels an inch: twice those it is shown at, for sharp screens and print."""


def new_figure(
    theme: Theme,
    title: str,
    *,
    subtitle: str = "",
    x_label: str,
    y_label: str,
    headroom: float = 0.0,
    height: float | None = None,
) -> tuple[Figure, Axes]:
    """An empty figure in the theme's colours, with title, smaller subtitle, units and a light horizontal grid."""
    room = 48 if theme.is_narrow else 96
    title, subtitle, x_label, y_label = (one_line(text, room) for text in (title, subtitle, x_label, y_label))
    height = height or (3.5 if theme.is_narrow else 4.125)
    figure = Figure(figsize=(theme.width, height), dpi=DPI, facecolor=theme.surface, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.07)
    axes = figure.add_subplot(facecolor=theme.surface)
    figure.suptitle(
        title, x=0.015, ha="left", color=theme.text, fontsize=text_size(theme, 11.5), weight="bold", parse_math=False
    )
    small = {"color": theme.muted, "fontsize": text_size(theme, 9), "parse_math": False}
    stacked = bool(subtitle) and theme.is_narrow
    axes.set_title(f"{subtitle}\n{y_label}" if stacked else y_label, loc="left", pad=8 + headroom, **small)
    if subtitle and not stacked:
        axes.set_title(subtitle, loc="right", pad=8 + headroom, **small)
    axes.set_xlabel(x_label, labelpad=6, **small)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.muted)
    axes.spines["bottom"].set_linewidth(0.8)
    axes.tick_params(colors=theme.muted, labelsize=text_size(theme, 9), length=0, pad=5)
    axes.tick_params(axis="x", length=3, width=0.8)
    axes.grid(axis="y", color=theme.line, linewidth=0.8)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    return figure, axes


def text_size(theme: Theme, points: float) -> float:
    """Points of a label; a little smaller on narrow figures."""
    return points * (0.92 if theme.is_narrow else 1.0)


def annotate(
    axes: Axes,
    theme: Theme,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    *,
    size: float = 9,
    coords: str | tuple[str, str] = "data",
    **style: Any,
) -> None:
    """Text so many points from a position, never read as mathematics, and shown outside of the axes too."""
    style = {"fontsize": text_size(theme, size), "textcoords": "offset points", "annotation_clip": False, **style}
    axes.annotate(text, at, xycoords=coords, xytext=offset, parse_math=False, **style)


def number_ticks(axis: Axis, theme: Theme, *, integer: bool = False, room: int = 8) -> None:
    """Round ticks with thousands separators; fewer and shorter ones (`1.5M`) where the figure is narrow."""
    nbins = room // 2 if theme.is_narrow else room
    axis.set_major_locator(MaxNLocator(nbins=nbins, integer=integer, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(_Numbers(theme.is_narrow))


def log_ticks(axes: Axes, low: float, high: float) -> None:
    """A logarithmic y axis that starts and ends near the data, ticks at round numbers, fewer the more it spans."""
    axes.set_yscale("log")
    axes.set_ylim(low / 1.1, high * 1.1)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    span = high / low
    steps = (1, 1.5, 2, 3, 4, 6, 8) if span < 10 else (1, 2, 5) if span < 100 else (1,)
    marks = [step * 10.0**power for power in powers for step in steps]
    marks = [mark for mark in marks if low / 1.1 <= mark <= high * 1.1]
    axes.yaxis.set_major_locator(FixedLocator(marks) if len(marks) > 1 else MaxNLocator(nbins=6))
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.yaxis.set_major_formatter(_Numbers())


class _Numbers(Formatter):
    """Plain numbers, all ticks of an axis with as many decimals as the finest of them needs."""

    def __init__(self, short: bool = False) -> None:
        self.short = short

    def __call__(self, value: float, pos: int | None = None) -> str:
        return self.format_ticks([value])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        largest = max((abs(value) for value in values), default=0.0)
        if largest and not 1e-4 <= largest < 1e12:
            return [f"{value:.3g}" for value in values]
        unit, sign = 1.0, ""
        if self.short and largest >= 5e3:
            unit, sign = (1e6, "M") if largest >= 1e6 else (1e3, "k")
        parts = [f"{value / unit:.6f}".rstrip("0").partition(".")[2] for value in values]
        decimals = max(map(len, parts), default=0)
        return [f"{value / unit:,.{decimals}f}{sign if value else ''}" for value in values]


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions moved as little as it takes for neighbours to be at least `gap` apart, the order kept."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[list[float]] = []  # [start of the block, members]
    for index in order:
        blocks.append([positions[index] - gap / 2, 1])
        while len(blocks) > 1 and blocks[-2][0] + blocks[-2][1] * gap > blocks[-1][0]:
            (first, before), (second, after) = blocks[-2], blocks[-1]
            centre = ((first + before * gap / 2) * before + (second + after * gap / 2) * after) / (before + after)
            blocks[-2:] = [[centre - (before + after) * gap / 2, before + after]]
    moved = [start + (member + 0.5) * gap for start, count in blocks for member in range(int(count))]
    result = [0.0] * len(positions)
    for index, position in zip(order, moved, strict=True):
        result[index] = position
    return result


def to_png(figure: Figure) -> bytes:
    """The figure as PNG; with a palette of 256 colours, half the size, where the eye cannot tell the difference."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a `$` in a name is a `$`, in a legend too
    canvas = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    canvas.draw()
    pixels, out = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"), BytesIO()
    reduced = pixels.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    lost = max(ImageStat.Stat(ImageChops.difference(pixels, reduced.convert("RGB"))).rms)
    (reduced if lost < 1 else pixels).save(out, format="PNG", optimize=True)
    return out.getvalue()


@dataclass(frozen=True)
class Theme:
    """Colours and width of a figure; the report takes the colours of its page from the same place.

    Args:
        name: `"light"` or `"dark"`.
        page: colour of the background.
        surface: colour of cards and figures.
        text: colour of titles and values; at least 7 : 1 against `surface`.
        muted: colour of labels and notes; at least 4.5 : 1.
        line: colour of rules and grids.
        series: colours of runs and buckets, in order: the palette of Okabe and Ito, which colour-blind readers can
            tell apart, lightened for dark pages. The first is also the page's accent.
        width: width of a figure in inches; text is sized for a figure shown at about 100 pixels an inch.

    Example:
        >>> LIGHT.narrow().width < LIGHT.width
        True
    """

    name: str
    page: str
    surface: str
    text: str
    muted: str
    line: str
    series: tuple[str, ...]
    width: float = 8.0

    def narrow(self) -> Theme:
        """The same colours for a telephone's screen."""
        return replace(self, width=4.0)

    @property
    def is_narrow(self) -> bool:
        """Whether there is room for few ticks and short labels only."""
        return self.width < 6


LIGHT = Theme(
    name="light",
    page="#f5f6f8",
    surface="#ffffff",
    text="#16191f",
    muted="#5a6472",
    line="#e1e5ea",
    series=("#0068ad", "#c8500a", "#007f5c", "#a8467f", "#8a6d00", "#2a86b8"),
)
DARK = Theme(
    name="dark",
    page="#0f1216",
    surface="#181c22",
    text="#eef1f5",
    muted="#a0aab8",
    line="#2d343d",
    series=("#62b6f0", "#f59a5b", "#3fcea6", "#e597c4", "#e6c34a", "#9fd6f2"),
)
THEMES = (LIGHT, DARK)
