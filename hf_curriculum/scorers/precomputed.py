"""Class probabilities that were computed beforehand, as a detector would have given them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from hf_curriculum.data.regions import Regions
from hf_curriculum.scorers.detections import Detections, softmax

BACKGROUND_FIRST = (1601, 1595)
"""Numbers of columns of bottom-up attention and VinVL: "no object", then 1,600 or 1,594 classes."""
Background = int | Literal["auto"] | None


def as_detections(scores: Any, confidence: np.ndarray | None, background: Background, what: str) -> Detections:
    """Class probabilities of the boxes of one picture, "no object" set apart.

    Args:
        scores: probabilities, (boxes, columns).
        confidence: (boxes,); None for the probability of the likeliest class.
        background: the column of "no object"; None where there is none; "auto": the first of 1,601 or 1,595 columns.
        what: what the scores are called in errors.

    Raises:
        ValueError: not (boxes, columns), not probabilities, or no such column.

    Example:
        >>> found = as_detections([[0.2, 0.5, 0.3]], None, 0, "scores")
        >>> found.class_scores.tolist(), found.no_object.tolist(), found.confidence.tolist()
        ([[0.5, 0.3]], [0.2], [0.5])
    """
    try:
        scores = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is no table of numbers ({error}): one row per box, one column per class.") from error
    if scores.size == 0:
        return Detections(np.zeros((0, 1)), np.zeros(0), np.zeros(0))
    if scores.ndim != 2:
        raise ValueError(f"{what} has the shape {scores.shape}: one row per box and one column per class are needed.")
    if not (np.isfinite(scores).all() and scores.min() >= 0 and scores.max() <= 1.001):
        raise ValueError(
            f"{what} has numbers from {scores.min():g} to {scores.max():g}, which are no probabilities. Apply a "
            "softmax to logits first."
        )
    columns = scores.shape[1]
    if background == "auto":
        background = 0 if columns in BACKGROUND_FIRST else None
    no_object = None
    if background is not None:
        if not -columns <= background < columns or columns < 2:
            raise ValueError(
                f'{what} has {columns} columns and `background` is {background}. It is the column of "no object", or '
                "None where each column is a class."
            )
        no_object = scores[:, background]
        scores = np.delete(scores, background, axis=1)
    return Detections(scores, scores.max(axis=1) if confidence is None else np.asarray(confidence), no_object)


def read_classifier(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The linear layer from features to classes that belongs to a detector.

    Args:
        path: an .npz with `weight` (classes, dims) and `bias` (classes,).

    Raises:
        FileNotFoundError: no such file.
        ValueError: one is missing, or their sizes do not fit.
    """
    with np.load(path) as content:
        if not {"weight", "bias"} <= set(content):
            raise ValueError(
                f"{path} holds {sorted(content)}. The classifier of a detector is `weight` (classes, dims) and `bias` "
                "(classes,)."
            )
        weight, bias = content["weight"].astype(np.float64), content["bias"].astype(np.float64)
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{path} has `weight` of shape {weight.shape} and `bias` of {bias.shape}. They are (classes, dims) and "
            "(classes,)."
        )
    return weight, bias


def class_scores_of(regions: Regions, classifier: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """The class probabilities of regions, or those that a classifier gives their features.

    Shapes:
        returns (regions, classes).

    Raises:
        ValueError: there are neither class probabilities, nor features with a classifier that fits them.
    """
    if len(regions) == 0:
        return np.zeros((0, 1))
    if classifier is None:
        if regions.class_scores is None:
            raise ValueError(
                f"The regions of image {regions.image_id!r} have no class probabilities, and how spread these are is "
                "the score. Bottom-up attention's published tables hold features only: pass `classifier=`, the "
                "detector's last layer, or write a table with `cls_prob`."
            )
        return regions.class_scores
    weight, bias = classifier
    if regions.features is None or regions.features.shape[1] != weight.shape[1]:
        found = "no features" if regions.features is None else f"features of {regions.features.shape[1]} numbers"
        raise ValueError(
            f"The regions of image {regions.image_id!r} have {found}, and the classifier takes {weight.shape[1]}. It "
            "must be the last layer of the detector that made them."
        )
    return softmax(regions.features @ weight.T + bias)
