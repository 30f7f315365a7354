"""Distributions of scores, with the thresholds between buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.ticker import FuncFormatter, MultipleLocator, NullLocator

from hf_curriculum.markdown import one_line
from hf_curriculum.reporting.figures.canvas import LIGHT, Theme, annotate, new_figure, number_ticks, text_size
from hf_curriculum.reporting.html import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from hf_curriculum.planning.score_mixture import ScoreMixture


MAX_POINTS = 2000
"""Points of the curve; more than the figure has pixels would only cost time."""
_CHARACTER = 0.085
"""Width of a character of a label, in inches."""
_ROW = 11
"""Height of a row of labels, in points."""
BINS = 80
"""Bars of a histogram, fewer for whole numbers of a smaller range."""
_GAP = 1.25
"""From the foot of one histogram to that of the next, in heights of a histogram."""
_Label = tuple[float, str, int]
"""Score it stands at, text, row."""


def score_distribution(
    scores: ArrayLike,
    *,
    name: str,
    cuts: Sequence[float] = (),
    easy: Literal["low", "high"] = "low",
    unscored: int = 0,
    shares: Sequence[float] | None = None,
    theme: Theme = LIGHT,
) -> Figure:
    """Share of examples at least as easy as each score, with a dashed line at every threshold.

    The easy end is always at the left, so that a score whose high values are easy runs from high to low. Whole
    numbers are drawn as steps. Where the outermost 0.1 % of the examples would take more than half of the axis, the
    axis ends before them and a note says so.

    Args:
        scores: one per example, in its natural unit; those that are not finite count as unscored.
        name: the score's column.
        cuts: the thresholds: the score of the hardest example of each bucket but the last.
        easy: which end is easy.
        unscored: examples without a score that are not among `scores`.
        shares: shares of the buckets, where they are not what the cuts give (buckets by rank divide ties).
        theme: colours and width.

    Raises:
        ValueError: no finite score; an `easy` that is neither; not one share more than cuts.

    Source: the BabyLM paper's Figure 1.

    Example:
        >>> figure = score_distribution([1, 2, 2, 3, 5, 8], name="noun_count", cuts=(2, 3))
    """
    finite = np.sort(ScoreRow(scores, easy).finite)
    unscored += np.size(scores) - len(finite)
    if not len(finite):
        raise ValueError(f"None of the {unscored:,} examples has a finite `{name}`: there is no distribution to draw.")
    cuts = sorted(cuts, reverse=easy == "high")
    shares = _bucket_shares(finite, cuts, easy) if shares is None else shares
    if len(shares) != len(cuts) + 1:
        raise ValueError(f"There are {len(shares)} shares for {len(cuts)} cuts, which make {len(cuts) + 1} buckets.")
    whole = bool(np.all(finite == np.round(finite)))
    limits, hidden = _limits(finite, easy, whole)
    bucket_labels, cut_labels = _place_labels(theme, limits, cuts, shares)
    figure, axes = new_figure(
        theme,
        f"Distribution of {one_line(name, 24 if theme.is_narrow else 56)}",
        subtitle=f"{len(finite):,} examples" + (f", {unscored:,} without a score" if unscored else ""),
        x_label=f"{name}   (easy → hard)",
        y_label="Share of examples at least this easy",
        headroom=max((5 + _ROW * (row + 1) for _, _, row in bucket_labels), default=0),
    )
    axes.set_xlim(limits)
    number_ticks(axes.xaxis, theme, integer=whole, room=12)
    _draw_curve(axes, theme, *_cumulative(finite, easy, whole), whole)
    _draw_cuts(axes, theme, cuts, bucket_labels, cut_labels)
    if hidden:
        _note_hidden(axes, theme, hidden)
    return figure


def score_mixture(
    scores: ArrayLike, mixture: ScoreMixture, *, name: str, easy: Literal["low", "high"] = "low", theme: Theme = LIGHT
) -> Figure:
    """Histogram of a score with its two humps and the threshold between them, the easy end at the left.

    Args:
        scores: one per example, in its natural unit; those that are not finite are left out.
        mixture: fitted to them, by `fit_score_mixture`.
        name: the score's column.
        easy: which end is easy; its hump is drawn in the first colour.
        theme: colours and width.

    Raises:
        ValueError: no finite score; an `easy` that is neither; a mixture without two humps.

    Example:
        >>> from hf_curriculum.planning.score_mixture import fit_score_mixture
        >>> values = np.concatenate([np.linspace(0, 1, 100) ** 2, 3 + np.linspace(0, 1, 100) ** 2])
        >>> figure = score_mixture(values, fit_score_mixture(values), name="loss")
    """
    row = ScoreRow(scores, easy)
    finite = np.sort(row.finite)
    if not len(finite):
        raise ValueError(f"None of the examples has a finite `{name}`: there is no histogram to draw.")
    if mixture.lacks:
        raise ValueError(f"`{name}` has no two humps to draw: {'; '.join(mixture.lacks)}. Use `score_distribution`.")
    whole = bool(np.all(finite == np.round(finite)))
    limits, hidden = _limits(finite, easy, whole)
    kept = mixture.keeps(finite, easy).mean()
    figure, axes = new_figure(
        theme,
        f"Two humps of {one_line(name, 24 if theme.is_narrow else 56)}",
        subtitle=f"{len(finite):,} examples, threshold {mixture.threshold:.3g}",
        x_label=f"{name}   (easy → hard)",
        y_label="Share of examples",
    )
    low, high = sorted(limits)
    edges = np.linspace(low, high, BINS + 1)
    if whole and high - low < BINS:
        edges = np.arange(math.floor(low), math.ceil(high) + 1) - 0.5  # a bar for each number
    counts, edges = np.histogram(finite, edges)
    axes.bar(edges[:-1], counts / len(finite), np.diff(edges), align="edge", color=theme.muted, alpha=0.35)
    x = np.linspace(low, high, 400)
    humps = mixture.densities(x)[:: 1 if easy == "low" else -1] * (edges[1] - edges[0])
    labels = (f"easy hump, kept {percent(kept)}", f"hard hump, left out {percent(1 - kept)}")
    for label, y, colour in zip(labels, humps, theme.series, strict=False):
        axes.plot(x, y, color=colour, linewidth=2.2, label=label)
    axes.axvline(mixture.threshold, color=theme.text, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.set_xlim(limits)
    axes.set_ylim(0, 1.08 * max(counts.max() / len(finite), humps.max()))
    number_ticks(axes.xaxis, theme, room=12)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    columns = 1 if theme.is_narrow else 2
    size = text_size(theme, 9)
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=size, labelcolor="linecolor")
    if hidden:
        _note_hidden(axes, theme, hidden)
    return figure


def _draw_curve(axes: Axes, theme: Theme, x: np.ndarray, y: np.ndarray, whole: bool) -> None:
    """The shares from 0 to 100 %, as steps where scores are whole numbers."""
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(MultipleLocator(0.25))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    axes.fill_between(x, y, step="post" if whole else None, color=theme.series[0], alpha=0.10, linewidth=0)
    axes.plot(x, y, drawstyle="steps-post" if whole else "default", color=theme.series[0], linewidth=2.2)


def _cumulative(finite: np.ndarray, easy: str, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """x from the easy end to the hard one, y the share of examples up to x, flat to both sides."""
    ordered = finite if easy == "low" else finite[::-1]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # last row of each distinct score
    if len(last) > MAX_POINTS and not whole:
        last = last[np.linspace(0, len(last) - 1, MAX_POINTS).astype(int)]
    reach = max(1.0, float(np.ptp(finite)))
    outward = reach if easy == "low" else -reach
    x = np.concatenate([[ordered[0] - outward, ordered[0]], ordered[last], [ordered[-1] + outward]])
    y = np.concatenate([[0, 0], (last + 1) / len(ordered), [1]])
    return x, y


def _limits(finite: np.ndarray, easy: str, whole: bool) -> tuple[tuple[float, float], int]:
    """Left and right end of the axis, and how many examples lie beyond them."""
    low, high = float(finite[0]), float(finite[-1])
    inner_low, inner_high = np.quantile(finite, [0.001, 0.999], method="nearest")
    core = max(inner_high - inner_low, 1e-9 * max(1.0, abs(inner_high)))
    if len(finite) >= 1000 and high - inner_high > core:
        high = float(inner_high)
    if len(finite) >= 1000 and inner_low - low > core:
        low = float(inner_low)
    hidden = int(np.sum((finite < low) | (finite > high)))
    margin = (0.02 * (high - low) or max(0.5, abs(high) * 0.05)) + 0.5 * whole
    ends = (low - margin, high + margin)
    return (ends if easy == "low" else ends[::-1]), hidden


def _bucket_shares(finite: np.ndarray, cuts: Sequence[float], easy: str) -> list[float]:
    """Share of the examples in each bucket; a score equal to a threshold is on its easy side."""
    if easy == "low":
        edges = np.searchsorted(finite, cuts, side="right")
    else:
        edges = len(finite) - np.searchsorted(finite, cuts, side="left")
    return list(np.diff(np.concatenate([[0], edges, [len(finite)]])) / len(finite))


def _place_labels(
    theme: Theme, limits: tuple[float, float], cuts: Sequence[float], shares: Sequence[float]
) -> tuple[list[_Label], list[_Label]]:
    """Labels of the buckets, centred in them, and of the thresholds, right of their lines."""
    if not len(cuts):
        return [], []
    unit = 0.85 * theme.width / (limits[1] - limits[0])  # inches per unit of score: the plot has 85 % of the width
    middles = [(start + end) / 2 for start, end in pairwise([limits[0], *cuts, limits[1]])]
    buckets = []
    for middle, share in zip(middles, shares, strict=True):
        centre, half = (middle - limits[0]) * unit, 0.5 * _CHARACTER * len(percent(share))
        buckets.append((centre - half, centre + half))
    feet = [(cut - limits[0]) * unit for cut in cuts]
    lines = [(foot, foot + _CHARACTER * (len(number(cut)) + 1)) for foot, cut in zip(feet, cuts, strict=True)]
    return (
        [(middles[index], percent(shares[index]), row) for index, row in _rows(buckets)],
        [(cuts[index], number(cuts[index]), row) for index, row in _rows(lines)],
    )


def _rows(spans: Sequence[tuple[float, float]], rows: int = 2) -> list[tuple[int, int]]:
    """(index, row) of the spans, from left to right, in the first row with room; those that fit in none stay out."""
    ends = [-math.inf] * rows
    placed = []
    for index, (start, end) in enumerate(spans):
        row = next((row for row in range(rows) if ends[row] <= start), None)
        if row is not None:
            ends[row] = end
            placed.append((index, row))
    return placed


def _draw_cuts(
    axes: Axes, theme: Theme, cuts: Sequence[float], bucket_labels: Sequence[_Label], cut_labels: Sequence[_Label]
) -> None:
    """A dashed line per threshold, its value at its foot, and the buckets' shares above the plot."""
    style = {"color": theme.series[1], "coords": ("data", "axes fraction")}
    for cut in cuts:
        axes.axvline(cut, color=theme.series[1], linewidth=1.2, linestyle=(0, (5, 3)))
    for middle, text, row in bucket_labels:
        annotate(axes, theme, text, (middle, 1), (0, 5 + _ROW * row), ha="center", weight="bold", **style)
    for cut, text, row in cut_labels:
        box = {"boxstyle": "round,pad=0.15", "facecolor": theme.surface, "edgecolor": "none", "alpha": 0.75}
        annotate(axes, theme, text, (cut, 0), (4, 6 + _ROW * row), bbox=box, **style)


def _note_hidden(axes: Axes, theme: Theme, hidden: int) -> None:
    style = {"size": 8.5, "ha": "right", "color": theme.muted}
    annotate(axes, theme, f"{hidden:,} examples lie beyond the axis", (1, 0), (-4, 8), coords="axes fraction", **style)


def score_correlations(names: Sequence[str], matrix: np.ndarray, *, theme: Theme = LIGHT) -> Figure:
    """Rank correlations between scores as a coloured table; −1 to 1, blank where there is none.

    Args:
        names: of the scores.
        matrix: shape (names, names), NaN where two scores have no examples in common or one is constant.
        theme: colours and width.

    Raises:
        ValueError: the matrix does not fit the names.
    """
    if matrix.shape != (len(names), len(names)):
        raise ValueError(f"The matrix has shape {matrix.shape} for {len(names)} scores.")
    from matplotlib.colors import LinearSegmentedColormap

    height = 1.3 + 0.42 * len(names) + (0.7 if theme.is_narrow else 0.4)
    figure, axes = new_figure(theme, "How much scores agree", x_label="", y_label="Rank correlation", height=height)
    colours = LinearSegmentedColormap.from_list("agreement", [theme.series[1], theme.surface, theme.series[0]])
    axes.imshow(matrix, cmap=colours, vmin=-1.7, vmax=1.7, aspect="auto")
    labels = [one_line(name, 12 if theme.is_narrow else 22) for name in names]
    small = text_size(theme, 8.5)
    axes.set_xticks(range(len(names)), labels, rotation=30, ha="right", fontsize=small, parse_math=False)
    axes.set_yticks(range(len(names)), labels, fontsize=small, parse_math=False)
    axes.grid(visible=False)
    for (row, column), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", color=theme.text, fontsize=small)
    return figure


@dataclass(frozen=True, eq=False)
class ScoreRow:
    """One score of `score_distributions`.

    Args:
        scores: one per example, in its natural unit; those that are not finite are left out.
        easy: which end is easy.
        cuts: the thresholds of the buckets: the score of the hardest example of each but the last.

    Raises:
        ValueError: an `easy` that is neither end.

    Example:
        >>> ScoreRow([0.1, 0.3], easy="high", cuts=(0.2,)).normalised(np.array([0.1, 0.2, 0.3])).round(3).tolist()
        [1.0, 0.5, 0.0]
    """

    scores: ArrayLike
    easy: Literal["low", "high"] = "low"
    cuts: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.easy not in ("low", "high"):
            raise ValueError(f'`easy` is {self.easy!r}, the easy end of a score: pass "low" or "high".')

    @property
    def finite(self) -> np.ndarray:
        """The scores that are finite, float64 (n,)."""
        values = np.asarray(self.scores, dtype=np.float64).ravel()
        return values[np.isfinite(values)]

    def normalised(self, values: ArrayLike) -> np.ndarray:
        """Values as shares of the way from the easiest score, 0, to the hardest, 1; 0.5 where all scores are equal."""
        low, high = self.finite.min(), self.finite.max()
        if low == high:
            return np.full(np.shape(values), 0.5)
        shares = (np.asarray(values, dtype=np.float64) - low) / (high - low)
        return shares if self.easy == "low" else 1 - shares


def score_distributions(rows: Mapping[str, ScoreRow], *, label: str | None = None, theme: Theme = LIGHT) -> Figure:
    """Histograms of normalised scores below each other, with a dashed line at every threshold between buckets.

    0 is the easiest score and 1 the hardest, so that scores of different units and directions stand on one axis. Each
    histogram is as high as its fullest bar. Beside it stands the standard deviation of the normalised scores.

    Args:
        rows: name of the score -> its values and thresholds, the first at the top.
        label: the one score that all rows have, of different examples: they stand on one axis in its own unit.
        theme: colours and width.

    Raises:
        ValueError: no row, or one without a finite score.

    Source: Simi-CL, appendix A and Figure 4; the paper does not say how scores are normalised.

    Example:
        >>> rows = {"clip_similarity": ScoreRow([0.2, 0.25, 0.3, 0.31], easy="high", cuts=(0.25,)),
        ...         "lm_loss": ScoreRow([30.0, 42.0, 44.0, 90.0], cuts=(42.0,))}
        >>> figure = score_distributions(rows)
    """
    if not rows:
        raise ValueError("`rows` is empty: there is no distribution to draw. Pass name -> ScoreRow.")
    if blank := [name for name, row in rows.items() if not len(row.finite)]:
        raise ValueError(f"No example has a finite `{blank[0]}`: it has no distribution. Leave it out.")
    counts = {len(row.finite) for row in rows.values()}
    figure, axes = new_figure(
        theme,
        "Distributions of scores",
        subtitle=f"{counts.pop():,} examples" if len(counts) == 1 else "",
        x_label="Normalised score   (easy → hard)" if label is None else label,
        y_label="Share of the examples, by score",
        height=1.5 + 0.75 * len(rows),
    )
    ends = (0.0, 1.0)
    if label is not None:
        every = np.concatenate([np.append(row.finite, row.cuts) for row in rows.values()])
        ends = (float(every.min()), float(every.max() if every.max() > every.min() else every.min() + 1))
    margin = 0.02 * (ends[1] - ends[0])
    axes.set_xlim(ends[0] - margin, ends[1] + margin)
    axes.set_ylim((1 - len(rows)) * _GAP, 1.05)
    number_ticks(axes.xaxis, theme)
    axes.yaxis.set_major_locator(NullLocator())
    for index, (name, row) in enumerate(rows.items()):
        place = row.normalised if label is None else np.asarray
        _draw_row(axes, theme, -index * _GAP, theme.series[index % len(theme.series)], name, row, place, ends)
    return figure


def _draw_row(
    axes: Axes,
    theme: Theme,
    foot: float,
    colour: str,
    name: str,
    row: ScoreRow,
    place: Callable[[ArrayLike], np.ndarray],
    ends: tuple[float, float],
) -> None:
    """One histogram on its own foot, its thresholds, and its name and spread to the right."""
    finite = row.finite
    shares = place(finite)
    whole = bool(np.all(finite == np.round(finite)))
    bins = min(BINS, int(np.ptp(finite)) + 1) if whole and ends == (0, 1) else BINS
    counts, edges = np.histogram(shares, bins=bins, range=ends)
    heights = np.append(counts / counts.max(), 0)
    axes.fill_between(edges, foot, foot + heights, step="post", color=colour, alpha=0.25, linewidth=0)
    axes.plot(edges, foot + heights, drawstyle="steps-post", color=colour, linewidth=1.4)
    axes.plot(ends, [foot, foot], color=theme.line, linewidth=0.8, zorder=1)
    for cut in np.unique(place(row.cuts)):
        axes.plot([cut, cut], [foot, foot + 1], color=theme.text, linewidth=1, linestyle=(0, (3, 2)), zorder=3)
    spread = f"spread {number(float(shares.std()))}"
    for text, lift, style in (
        (one_line(name, 16 if theme.is_narrow else 28), 0.55, {"weight": "bold", "color": colour}),
        (spread, 0.2, {"color": theme.muted, "size": text_size(theme, 8.5)}),
    ):
        at = {"coords": ("axes fraction", "data"), "va": "center", "ha": "left"}
        annotate(axes, theme, text, (1, foot + lift), (8, 0), **at, **style)
