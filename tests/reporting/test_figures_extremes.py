"""Figures of runs that were cut short or diverged: numbers far from 1, and phases that never came."""

from __future__ import annotations

import math

import pytest

from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, to_png
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.figures.distribution import score_distribution
from hf_curriculum.reporting.html import number

pytestmark = pytest.mark.filterwarnings("error")  # matplotlib warns where a label leaves no room for the plot


def test_numbers_far_from_one():
    assert [number(value) for value in (2.5e28, -2.5e28, 1.234e-9, 0.0, 1e14)] == [
        "2.5e+28",
        "-2.5e+28",
        "1.23e-09",
        "0",
        "100,000,000,000,000",
    ]


@pytest.mark.parametrize("theme", [LIGHT, DARK.narrow()], ids=["wide", "narrow"])
def test_a_run_that_diverged(theme):
    losses = enumerate([3.6, 2.2e28, 5e12, math.nan])
    points = [{"examples": 8 * place, "seconds": 1.0 * place, "eval_loss": loss} for place, loss in losses]
    figure = validation_curves({"run": points}, boundaries=[8], theme=theme)
    to_png(figure)
    assert max(len(label.get_text()) for label in figure.axes[0].get_yticklabels()) < 10


@pytest.mark.parametrize("axis", ["examples", "seconds"])
def test_a_run_that_has_not_come_to_all_its_phases(axis):
    points = [{"examples": 0, "seconds": 0.3, "eval_loss": 3.6}, {"examples": 10, "seconds": 2.3, "eval_loss": 2.6}]
    for shown, texts in ((points, ["phase 2"]), (points[:1], [])):
        figure = validation_curves({"run": shown}, x=axis, boundaries=[4, 24, 40], theme=LIGHT)
        to_png(figure)
        labels = [text.get_text() for text in figure.axes[0].texts]
        if axis == "examples":
            assert [label for label in labels if label.startswith("phase")] == texts


def test_scores_far_from_one_have_ticks_of_their_own():
    figure = score_distribution([1e-8, 2e-8, 3e-8], name="s")
    to_png(figure)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(set(labels)) == len(labels) > 2
