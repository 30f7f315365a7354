"""Figures of a curriculum run: pure functions from numbers to a matplotlib `Figure`, in light and dark."""

from __future__ import annotations

from hf_curriculum.hub.figures.canvas import to_png
from hf_curriculum.hub.figures.correlations import score_correlations
from hf_curriculum.hub.figures.curves import validation_curves
from hf_curriculum.hub.figures.distribution import score_distribution
from hf_curriculum.hub.figures.drawn import drawn_scores
from hf_curriculum.hub.figures.growth import plan_growth, pool_growth
from hf_curriculum.hub.figures.study import IntervalRow, interval_rows
from hf_curriculum.hub.figures.theme import DARK, LIGHT, THEMES, Theme

__all__ = [
    "DARK",
    "LIGHT",
    "THEMES",
    "IntervalRow",
    "Theme",
    "drawn_scores",
    "interval_rows",
    "plan_growth",
    "pool_growth",
    "score_correlations",
    "score_distribution",
    "to_png",
    "validation_curves",
]
