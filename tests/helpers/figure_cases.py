"""Every figure, with a little data."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image
from ten_sentences import induce

from hf_curriculum import Phases, make_plan
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.planning.score_mixture import fit_score_mixture
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.figures.distribution import (
    ScoreRow,
    score_correlations,
    score_distribution,
    score_distributions,
    score_mixture,
)
from hf_curriculum.reporting.figures.growth import (
    chosen_counts,
    chosen_scores,
    drawn_scores,
    drawn_shares,
    plan_growth,
    pool_growth,
)
from hf_curriculum.reporting.figures.study import IntervalRow, interval_rows
from hf_curriculum.tasks.alignment.figures import (
    held_out_retrieval,
    ontology_sizes,
    region_attention,
    vectors_by_colour,
)

SCORES = [0, 1, 2, 2, 2, 3, 4, 5, 6, 9]
POOLS = {
    "curriculum": [(0, 1_683_814, 841_907), (1_683_814, 4_704_700, 1_510_443), (4_704_700, 9_272_432, 2_283_866)],
    "control": [(0, 23_128_240, 2_891_030)],
}
CURVES = {
    "curriculum": [
        {"step": 0, "examples": 0, "seconds": 0.0, "eval_loss": 6.0},
        {"step": 5, "examples": 160, "seconds": 100.0, "eval_loss": 2.5},
        {"step": 9, "examples": 288, "seconds": 200.0, "eval_loss": 1.65},
    ],
    "control": [
        {"step": 0, "examples": 0, "seconds": 0.0, "eval_loss": 6.0},
        {"step": 12, "examples": 384, "seconds": 300.0, "eval_loss": 1.61},
    ],
}
DRAWN = [
    {"round": 0, "phase": 1, "q0": 0, "q25": 1, "q50": 2, "q75": 2, "q100": 2},
    {"round": 1, "phase": 2, "q0": 0, "q25": 2, "q50": 3, "q75": 4, "q100": 9},
]
HUMPS = np.concatenate([place + np.linspace(-1, 1, count) ** 3 for place, count in ((0, 200), (5, 100))])
SHARES = {"bucket 1": [1.0, 0.5, 0.25], "bucket 2": [0.0, 0.5, 0.75]}
ROWS = [
    IntervalRow("control", [1.0, 1.2, 1.1], 1.1, 0.9, 1.3),
    IntervalRow("phases", [1.3, math.inf, 1.2], 1.3, 1.2, math.inf, note="1 diverged"),
    IntervalRow("never", [math.inf] * 2, math.inf, math.inf, math.inf),
    IntervalRow("gone", [], math.nan, note="3 diverged"),
]
PARTS = [{"name": f"phase {n}", "candidates": [0, 1, 2, 3, 4], "chosen": [1, 2, 3 + n, 5, 6]} for n in range(2)]
ARMS = {
    name: [{"examples": 0, "eval_loss": 4.0}, {"examples": at, "eval_loss": last}]
    for name, at, last in [("a0", 100, 1.0), ("b0", 100, 3.0), ("a1", 80, 2.0), ("b1", 100, 3.5)]
}
FOUND = Regions(
    "9", boxes=np.float32([[0, 0, 20, 20], [30, 5, 70, 40]]), features=np.zeros((2, 2)), classes=("tree", "dog")
)
VECTORS = {
    name: np.sin(np.arange(12 * wide)).reshape(12, wide).astype(np.float32) for name, wide in (("BERT", 4), ("A", 5))
}
FIGURES = {
    "distribution": lambda theme: score_distribution(SCORES, name="noun_count", cuts=(2, 4), theme=theme),
    "scores": lambda theme: score_distributions(
        {"noun_count": ScoreRow(SCORES, cuts=(2, 4)), "clip_similarity": ScoreRow(SCORES, "high")}, theme=theme
    ),
    "mixture": lambda theme: score_mixture(HUMPS, fit_score_mixture(HUMPS), name="clip", easy="high", theme=theme),
    "growth": lambda theme: pool_growth(POOLS, theme=theme),
    "curves": lambda theme: validation_curves(CURVES, boundaries=[160], theme=theme),
    "merges": lambda theme: validation_curves(CURVES, merges={"curriculum": [(160, "2"), (200, "3*")]}, theme=theme),
    "drawn": lambda theme: drawn_scores(DRAWN, theme=theme),
    "shares": lambda theme: drawn_shares([8, 16, 24], SHARES, theme=theme),
}
"""Those that are drawn in every theme."""
MORE = {
    "curves by time": lambda theme: validation_curves(
        CURVES, x="seconds", boundaries=[160], reference=2.0, theme=theme
    ),
    "curves of arms": lambda theme: validation_curves(
        ARMS,
        merges={name: [(50, "2")] for name in ARMS},
        arms={name: {"a": "easy first", "b": "random"}[name[0]] for name in ARMS},
        theme=theme,
    ),
    "correlations": lambda theme: score_correlations(["a", "b"], np.array([[1, -0.5], [-0.5, 1]]), theme=theme),
    "plan": lambda theme: plan_growth(
        make_plan(Phases(2, 1, easy="low"), np.arange(100), global_batch_size=10), theme=theme
    ),
    "chosen scores": lambda theme: chosen_scores(PARTS, name="score", easy="high", theme=theme),
    "chosen counts": lambda theme: chosen_counts([0.2, 0.5, 0.3], [0.1, 0.6, 0.3], theme=theme),
    "ontology": lambda theme: ontology_sizes(induce(min_pairs=2), most=1, theme=theme),
    "retrieval": lambda theme: held_out_retrieval(
        {"TOnICS": [(100, 0.1), (200, 0.3)], "random": [(100, 0.2)]}, {"TOnICS": [200, 300]}, 0.2, theme=theme
    ),
    "vectors": lambda theme: vectors_by_colour(VECTORS, ["white", "tan", "navy"] * 4, projection="pca", theme=theme),
    "study": lambda theme: interval_rows(ROWS, label="Epochs", title="Time", limit=2.0, reference=1.1, theme=theme),
    "attention": lambda theme: region_attention(
        Image.new("RGB", (80, 60), "white"), FOUND, [0.2, 0.8], "a dog", labelled=1, theme=theme
    ),
    "many rounds": lambda theme: drawn_scores(
        [
            {"round": n, "phase": 1 + n // 12, "q0": 0, "q25": n, "q50": n + 2, "q75": n + 3, "q100": 2 * n + 4}
            for n in range(24)
        ],
        easy="high",
        name="clip",
        theme=theme,
    ),
    "a constant score": lambda theme: score_distribution([2.5] * 4, name="x" * 90, theme=theme),
    "outliers": lambda theme: score_distribution(
        [*np.sqrt(np.arange(200)), 1e6, math.nan], name="clip", easy="high", cuts=(3.0,), theme=theme
    ),
    "rows": lambda theme: score_distributions(
        {"a" * 60: ScoreRow(SCORES, "high", cuts=(3,)), "one": ScoreRow([1.0, 1.0, math.nan])}, theme=theme
    ),
    "rows in a unit": lambda theme: score_distributions(
        {"train": ScoreRow(SCORES, cuts=(2, 4)), "test": ScoreRow([3, 30, 3])}, label="words", theme=theme
    ),
    "a small span": lambda theme: validation_curves(
        {"one": [{"examples": n, "eval_loss": 2.0 - n / 100} for n in range(4)]}, label="loss", log=True, theme=theme
    ),
    "a large span": lambda theme: validation_curves(
        {"one": [{"examples": n, "eval_loss": 10.0 ** (3 - n)} for n in range(6)]}, log=True, theme=theme
    ),
    "greater is better": lambda theme: validation_curves(
        {"one": [{"examples": n, "eval_cider": n / 9} for n in range(6)]}, metric="eval_cider", log=False, theme=theme
    ),
    "counts alone": lambda theme: chosen_counts([0.2] * 5, None, theme=theme),
    "no bounds": lambda theme: interval_rows(ROWS[:1], label="Epochs", title="Time", theme=theme),
    "one pool": lambda theme: pool_growth({"c": [(0, 50, 10), (50, 90, 20)]}, theme=theme),
    "no reference": lambda theme: held_out_retrieval({"one": [(100, 0.1), (200, 0.3)]}, {}, None, theme=theme),
}
