"""DevBench's measures: accuracy, similarity to people's choices, and to people's similarities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BETAS = (0.025, 40.0)
"""Between these the inverse temperature is sought."""
_LEAST = 1e-10
"""Probabilities are not smaller, so that a logarithm exists."""
_GOLDEN = (5**0.5 - 1) / 2


class HumanSimilarity(NamedTuple):
    """exp(−KL), from 0 to 1, the inverse temperature it was reached at, and the trials that both sides have."""

    value: float
    beta: float
    trials: int


def trial_accuracy(similarities: np.ndarray) -> float:
    """Share of trials whose first picture is strictly more similar than all others: a tie is wrong.

    Args:
        similarities: (trials, pictures), the right one first.

    Raises:
        ValueError: not two dimensions, fewer than two pictures, no trials, or NaN.

    Source: DevBench, as the BabyLM 2024 evaluation pipeline computes it.

    Example:
        >>> trial_accuracy(np.array([[2.0, 1.0], [1.0, 1.0]]))
        0.5
    """
    similarities = _checked(similarities)
    return float((similarities[:, 0] > similarities[:, 1:].max(1)).mean())


def human_similarity(similarities: np.ndarray, human: np.ndarray) -> HumanSimilarity:
    """How close softmax(β · similarities) comes to people's choices, with the one β that suits all trials best.

    exp(−mean KL(human ‖ model)), β in [0.025, 40]. But for the bound on probabilities KL is convex in β, so a grid
    and golden sections around its best point find the smallest.

    Args:
        similarities: the model's, (trials, pictures).
        human: shares of people's choices in the same trials, (trials, pictures).

    Raises:
        ValueError: of `trial_accuracy`; the shapes differ.

    Source: DevBench (Tan et al. 2024), with the bounds of the BabyLM 2024 evaluation pipeline.

    Example:
        >>> logits = np.array([[2.0, 1.0], [0.0, 3.0]])
        >>> people = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
        >>> round(human_similarity(logits, people).value, 9)
        1.0
    """
    similarities = _checked(similarities)
    human = np.asarray(human, dtype=np.float64)
    if human.shape != similarities.shape:
        raise ValueError(
            f"People's choices have the shape {human.shape}, the model's similarities {similarities.shape}. They are "
            "compared trial by trial and picture by picture: join them first."
        )
    grid = np.geomspace(*BETAS, 200)
    divergences = [mean_divergence(beta, similarities, human) for beta in grid]
    best = int(np.argmin(divergences))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    while high - low > 1e-9 * high:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if mean_divergence(left, similarities, human) <= mean_divergence(right, similarities, human):
            high = right
        else:
            low = left
    beta = float(min((grid[best], (low + high) / 2), key=lambda one: mean_divergence(one, similarities, human)))
    return HumanSimilarity(float(np.exp(-mean_divergence(beta, similarities, human))), beta, len(human))


def mean_divergence(beta: float, similarities: np.ndarray, human: np.ndarray) -> float:
    """Mean over trials of KL(human ‖ softmax(β · similarities)), probabilities not below 1e-10.

    Args:
        beta: inverse temperature.
        similarities: (trials, pictures).
        human: (trials, pictures).
    """
    logits = beta * similarities
    weights = np.exp(logits - logits.max(1, keepdims=True))
    model = np.clip(weights / weights.sum(1, keepdims=True), _LEAST, 1)
    people = np.clip(human, _LEAST, 1)
    return float((people * np.log(people / model)).sum(1).mean())


def cosine_similarities(features: np.ndarray) -> np.ndarray:
    """Cosines between all rows.

    Args:
        features: (n, width).

    Shapes:
        returns float64 (n, n).

    Raises:
        ValueError: a row is zero or not finite.
    """
    features = np.asarray(features, dtype=np.float64)
    size = np.linalg.norm(features, axis=1, keepdims=True)
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise ValueError(
            "A picture's feature is zero or not finite, so it has no direction. Check the model's weights."
        )
    features = features / size
    return features @ features.T


def representational_similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation between the lower triangles of two similarity matrices, diagonals left out.

    Args:
        one: (n, n).
        other: (n, n), of the same things in the same order.

    Returns:
        From -1 to 1; NaN where a triangle is constant.

    Raises:
        ValueError: two shapes, not square, or fewer than three rows.

    Source: DevBench's sem-things.

    Example:
        >>> square = np.arange(16.0).reshape(4, 4)
        >>> representational_similarity(square, square**3)
        1.0
    """
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 2 or one.shape[0] != one.shape[1] or len(one) < 3:
        raise ValueError(
            f"The similarity matrices have the shapes {one.shape} and {other.shape}. Both must be (n, n), of the same "
            "n things in the same order, at least 3."
        )
    below = np.tril_indices(len(one), k=-1)
    ranks = [_ranks(matrix[below]) for matrix in (one, other)]  # (n · (n - 1) / 2,) each
    centred = [values - values.mean() for values in ranks]
    scale = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    return float(centred[0] @ centred[1] / scale) if scale > 0 else float("nan")


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[place]


def _checked(similarities: np.ndarray) -> np.ndarray:
    similarities = np.asarray(similarities, dtype=np.float64)
    if similarities.ndim != 2 or similarities.shape[1] < 2 or not len(similarities):
        raise ValueError(
            f"The similarities have the shape {similarities.shape}. One row per trial and one column per picture are "
            "needed, at least 2 pictures; squeeze the dimension of texts away."
        )
    if not np.isfinite(similarities).all():
        raise ValueError(
            "A similarity is NaN or infinite, so nothing can be compared with it. Check the model's loss."
        )
    return similarities
