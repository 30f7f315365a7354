"""The scores of a seed's captions: two cheap ones, both together, and what no user has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from datasets import Dataset
from photos.data import Photographs, named
from reference.data import halves
from scipy.stats import norm, rankdata

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.provenance import ScoreProvenance, append_columns

Train = Callable[[Dataset, int], Callable[[Dataset], np.ndarray]]
"""Trains a tower on rows with a seed; what it returns gives the cosine of each row's caption with its image."""


def all_scores(photographs: Photographs, rows: Dataset, right: np.ndarray, seed: int, train: Train) -> dict:
    """Every score by name, float32 (rows,); of each the greater the better."""
    images = np.concatenate([photographs.vectors[image] for image in rows[IMAGE_ID]])  # (rows, width)
    scores = {
        "names": by_names(named(photographs, rows[CAPTION]), images),
        "cross_fit": in_halves(rows, seed, lambda others, own: train(others, seed)(own)),
    }
    scores["both"] = (rankdata(scores["names"]) + rankdata(scores["cross_fit"])) / (2 * len(rows))
    draws = np.random.default_rng([seed, 1])
    scores["shuffled"] = draws.permutation(scores["both"])
    scores["oracle"] = right.astype(np.float64)
    for auc in (0.6, 0.7, 0.8, 0.9):
        scores[f"oracle_{auc}"] = right + draws.normal(0, 1 / (np.sqrt(2) * norm.ppf(auc)), len(rows))
    return {name: values.astype(np.float32) for name, values in scores.items()}


def by_names(names: list[np.ndarray], images: np.ndarray) -> np.ndarray:
    """The mean cosine of each image with the names in its caption, (rows,); the median where there is none."""
    pairs = zip(names, images, strict=True)
    means = np.array([(vectors @ image).mean() if len(vectors) else np.nan for vectors, image in pairs])
    return np.where(np.isnan(means), np.nanmedian(means), means)


def in_halves(rows: Dataset, seed: int, score: Callable[[Dataset, Dataset], np.ndarray]) -> np.ndarray:
    """What `score(others, own)` gives of each row, by a model that has seen the other half of the images alone."""
    parts = halves(rows, seed)
    found = [score(rows.select(other), rows.select(own)) for own, other in zip(parts, reversed(parts), strict=True)]
    return np.concatenate(found)[np.argsort(np.concatenate(parts))]


def with_score(rows: Dataset, name: str, values: np.ndarray) -> Dataset:
    """The rows with a column of scores."""
    made = {name: ScoreProvenance(name, "photographs", easy="high")}
    return append_columns(rows, {name: values}, made, read={name: (CAPTION, IMAGE_ID)})


def kept(file: Path, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What was made once, from its file."""
    if not file.is_file():
        draft = file.with_suffix(".part.npz")
        draft.parent.mkdir(parents=True, exist_ok=True)
        np.savez(draft, **make())
        draft.replace(file)  # a kill leaves no incomplete scores
    with np.load(file) as stored:
        return dict(stored)
