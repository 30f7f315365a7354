"""How much scores agree about which examples are easy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_curriculum.hub.figures.canvas import new_figure, shorten, text_size
from hf_curriculum.hub.figures.theme import LIGHT, Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        raise ValueError(
            f"The matrix has shape {matrix.shape} for {len(names)} scores; it has one row and column each."
        )
    from matplotlib.colors import LinearSegmentedColormap

    height = 1.3 + 0.42 * len(names) + (0.7 if theme.is_narrow else 0.4)
    figure, axes = new_figure(theme, "How much scores agree", x_label="", y_label="Rank correlation", height=height)
    colours = LinearSegmentedColormap.from_list("agreement", [theme.series[1], theme.surface, theme.series[0]])
    axes.imshow(matrix, cmap=colours, vmin=-1.7, vmax=1.7, aspect="auto")
    labels = [shorten(name, 12 if theme.is_narrow else 22) for name in names]
    small = text_size(theme, 8.5)
    axes.set_xticks(range(len(names)), labels, rotation=30, ha="right", fontsize=small, parse_math=False)
    axes.set_yticks(range(len(names)), labels, fontsize=small, parse_math=False)
    axes.grid(visible=False)
    for (row, column), value in np.ndenumerate(matrix):
        text = "–" if np.isnan(value) else f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", color=theme.text, fontsize=small)
    return figure
