"""The figure of a study: dots, means, intervals, and what was never reached."""

from __future__ import annotations

import io
import math

import pytest
from figure_cases import ROWS
from PIL import Image

from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows


def draw(rows=ROWS, **options):
    return interval_rows(rows, **{"label": "Epochs", "title": "Time", "limit": 2.0, "reference": 1.1, **options})


@pytest.mark.parametrize("theme", [LIGHT, LIGHT.narrow(), DARK, DARK.narrow()])
def test_it_renders_with_its_labels_inside(theme):
    figure = draw(theme=theme)
    with Image.open(io.BytesIO(to_png(figure))) as png:
        assert png.width == theme.width * 200
    width = figure.canvas.get_width_height(physical=True)[0]
    axes = figure.axes[0]
    for text in [*axes.texts, *axes.get_yticklabels()]:
        box = text.get_window_extent()
        assert -1 < box.x0 < box.x1 < width + 1


def test_what_is_drawn():
    axes = draw().axes[0]
    lines = axes.lines
    assert [list(line.get_xdata()) for line in lines if line.get_marker() == "o"] == [
        [1.0, 1.2, 1.1],
        [1.3, 1.2],
        [],
        [],
    ]
    assert [line.get_xdata()[0] for line in lines if line.get_marker() == "D"] == [1.1, 1.3]
    edge = axes.get_xlim()[1]
    assert [list(line.get_xdata()) for line in lines if line.get_marker() == ">"] == [[edge], [edge] * 2]
    intervals = [list(line.get_xdata()) for line in lines if line.get_linewidth() == 2]
    assert intervals == [[0.9, 1.3], [1.2, edge], [edge, edge]]
    assert [text.get_text() for text in axes.texts] == ["1.1", "1.3  (1 diverged)", "never", "–  (3 diverged)"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["control", "phases", "never", "gone"]
    assert axes.get_xlim()[0] == 0
    low, high = axes.get_ylim()
    assert low > high  # the first row at the top
    dashed = [line for line in lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == [1.1]


def test_without_a_budget_the_axis_fits_the_values():
    axes = draw(ROWS[:1], limit=None, reference=None).axes[0]
    low, high = axes.get_xlim()
    assert 0.8 < low < 0.9
    assert 1.3 < high < 1.4


def test_errors():
    with pytest.raises(ValueError, match="has values that were never reached"):
        draw(limit=None)
    with pytest.raises(ValueError, match="None of the 1 rows of 'Epochs' has a value"):
        draw([IntervalRow("gone", [], math.nan)], limit=None, reference=None)
