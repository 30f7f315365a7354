"""Accuracy by many, medium and few images of a class, macro F1, and the probability of the true class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_curriculum.markdown import table
from hf_curriculum.shapes import validate_arguments

GROUPS = ("many", "medium", "few")
"""Classes by their number of training images, as ImageNet-LT divides them."""


def class_groups(counts: Sequence[int] | np.ndarray, edges: tuple[int, int] = (20, 100)) -> np.ndarray:
    """The group of each class: 0 many (≥ the upper edge), 1 medium, 2 few (< the lower edge).

    Args:
        counts: training images of each class.
        edges: the smallest medium class, and the smallest large one.

    Shapes:
        returns int64 (classes,), indices into `GROUPS`.

    Raises:
        ValueError: the edges do not rise.

    Source: Liu et al. 2019, *Large-Scale Long-Tailed Recognition in an Open World*: ≥ 100, 20–99, < 20 (their text
        has "over 100" and "under 20"; DisCL's released code < 20, < 100).

    Example:
        >>> class_groups([100, 99, 20, 19]).tolist()
        [0, 1, 1, 2]
    """
    low, high = edges
    if not 0 < low < high:
        raise ValueError(
            f"edges={edges} was given. They are the smallest number of images of a medium class and of a large one, "
            "such as (20, 100)."
        )
    counts = np.asarray(counts)
    return np.where(counts >= high, 0, np.where(counts >= low, 1, 2))


@dataclass(frozen=True, eq=False)
class ClassReport:
    """How a classifier did, class by class.

    Args:
        names: of the classes.
        counts: training images of each class, int64 (C,).
        group: of each class, indices into `GROUPS`, int64 (C,).
        confusion: images of class i that were taken for class j, int64 (C, C).
    """

    names: tuple[str, ...]
    counts: np.ndarray
    group: np.ndarray
    confusion: np.ndarray

    @property
    def images(self) -> np.ndarray:
        """Test images of each class, int64 (C,)."""
        return self.confusion.sum(1)

    @property
    def recall(self) -> np.ndarray:
        """The share of each class's images that were told right, float64 (C,), NaN where it has none."""
        return _ratio(np.diag(self.confusion), self.images)

    @property
    def precision(self) -> np.ndarray:
        """The share of images taken for a class that are of it, float64 (C,), NaN where none was."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(0))

    @property
    def f1(self) -> np.ndarray:
        """2 tp / (2 tp + fp + fn) of each class, float64 (C,), NaN for one that neither occurs nor is predicted."""
        return _ratio(2 * np.diag(self.confusion), self.images + self.confusion.sum(0))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that occur among the labels, as WILDS computes it for iWildCam."""
        return float(self.f1[self.images > 0].mean())

    @property
    def accuracy(self) -> float:
        """The share of all images that were told right."""
        return float(np.diag(self.confusion).sum() / self.confusion.sum())

    def group_accuracy(self) -> dict[str, float]:
        """Of each group that occurs among the labels the mean of its classes' accuracies."""
        present = self.images > 0
        chosen = {name: present & (self.group == number) for number, name in enumerate(GROUPS)}
        return {name: float(self.recall[mask].mean()) for name, mask in chosen.items() if mask.any()}

    def table(self) -> str:
        """A Markdown table, a row per class."""
        numbers = zip(self.recall, self.precision, self.f1, strict=True)
        rows = [
            (name, f"{count:,}", GROUPS[group], f"{images:,}", *(("–" if np.isnan(x) else f"{x:.3f}") for x in own))
            for name, count, group, images, own in zip(
                self.names, self.counts.tolist(), self.group, self.images.tolist(), numbers, strict=True
            )
        ]
        columns = ("class", "training images", "group", "test images", "accuracy", "precision", "F1")
        return table(columns, rows, for_terminals=True)

    def confused(self, group: str = "few", most: int = 10) -> list[tuple[str, str, int, float]]:
        """What images of a group are taken for: (class, taken for, images, their share of the class), most first.

        Raises:
            ValueError: there is no such group.
        """
        if group not in GROUPS:
            raise ValueError(f"group={group!r} was given; the groups are {', '.join(GROUPS)}.")
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        wrong[self.group != GROUPS.index(group)] = 0
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [divmod(int(place), len(self.names)) for place in order if wrong.flat[place]]
        shares = wrong / np.maximum(self.images, 1)[:, None]
        return [(self.names[i], self.names[j], int(wrong[i, j]), float(shares[i, j])) for i, j in pairs]


@validate_arguments
def class_report(
    predictions: np.ndarray,
    labels: np.ndarray,
    counts: Sequence[int] | np.ndarray,
    *,
    class_names: Sequence[str] | None = None,
    edges: tuple[int, int] = (20, 100),
) -> ClassReport:
    """Compares predictions with labels, class by class.

    Args:
        predictions: scores (n, C), of which the largest is taken, or class numbers (n,).
        labels: class numbers (n,).
        counts: training images of each class.
        class_names: names of the classes; by default their numbers.
        edges: see `class_groups`.

    Raises:
        ValueError: shapes do not fit, scores are NaN, a label is outside of the classes, or there is no image.

    Example:
        >>> report = class_report(np.array([0, 0, 1, 0]), np.array([0, 0, 1, 2]), [100, 50, 3])
        >>> report.group_accuracy(), round(report.macro_f1, 4)
        ({'many': 1.0, 'medium': 1.0, 'few': 0.0}, 0.6)
        >>> report.confused()
        [('2', '0', 1, 1.0)]
    """
    counts, labels = np.asarray(counts), np.asarray(labels)
    size = len(counts)
    names = tuple(str(number) for number in range(size)) if class_names is None else tuple(class_names)
    scores = np.asarray(predictions)
    if scores.ndim == 2 and not np.isfinite(scores).all():
        raise ValueError(
            f"{int((~np.isfinite(scores)).any(1).sum()):,} of {len(scores):,} images have scores that are not finite: "
            "the model has diverged, and its largest score means nothing. Take an earlier checkpoint."
        )
    taken = scores.argmax(1) if scores.ndim == 2 else scores
    if len(names) != size or taken.shape != labels.shape or not len(labels) or scores.shape[1:] not in ((), (size,)):
        raise ValueError(
            f"There are predictions of shape {scores.shape} for {labels.shape} labels, {size} classes and "
            f"{len(names)} names: scores are (images, classes), with one label for each image and one count and name "
            "for each class."
        )
    outside = (labels < 0) | (labels >= size) | (taken < 0) | (taken >= size)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"{int(outside.sum()):,} of {len(labels):,} images have a label or a prediction outside of the {size} "
            f"classes (image {row}: label {labels[row]}, prediction {taken[row]}). Count the same classes as the "
            "evaluation set has."
        )
    confusion = np.bincount(labels * size + taken, minlength=size * size).reshape(size, size)
    return ClassReport(names, counts, class_groups(counts, edges), confusion)


@dataclass(frozen=True, eq=False)
class LongTailMetrics:
    """What `long_tail_metrics` returns: a function of an `EvalPrediction`, which can be pickled."""

    counts: tuple[int, ...]
    edges: tuple[int, int] = (20, 100)
    per_image: bool = False
    log_prior: tuple[float, ...] | None = None

    def __call__(self, prediction: Any) -> dict[str, Any]:
        """The metrics of `EvalPrediction(predictions, label_ids)`: logits (n, C) and labels (n,)."""
        logits, labels = first_array(prediction.predictions), np.asarray(prediction.label_ids)
        if self.log_prior is not None and logits.ndim == 2 and logits.shape[1] == len(self.log_prior):
            logits = logits - np.array(self.log_prior)
        report = class_report(logits, labels, self.counts, edges=self.edges)
        each = true_probabilities(logits, labels)
        groups = {f"accuracy_{name}": value for name, value in report.group_accuracy().items()}
        metrics = {"accuracy": report.accuracy, **groups, "macro_f1": report.macro_f1, "probability": each.mean()}
        return {**metrics, "probability_each": each} if self.per_image else metrics


@validate_arguments
def long_tail_metrics(
    class_counts: Sequence[int] | np.ndarray,
    *,
    edges: tuple[int, int] = (20, 100),
    per_image: bool = False,
    adjust: float | None = None,
) -> LongTailMetrics:
    """Makes a `compute_metrics` for a classifier on a long tail.

    Metrics: `accuracy`, `accuracy_many`, `accuracy_medium`, `accuracy_few` (each the mean of its classes' accuracies;
    left out if a set has no image of them). `macro_f1` is over the classes that occur among the labels. `probability`,
    the mean probability of the true class, is for `AdaptiveGuidance`.

    Args:
        class_counts: real training images of each class.
        edges: the smallest medium class and the smallest large one.
        per_image: also `probability_each`, an array with the probability of each image, for
            `AdaptiveGuidance(aggregate="trimmed")`. `CurriculumTrainer` keeps it out of the log; other trainers cannot
            log an array.
        adjust: τ: metrics of z − τ log π, for a model that was trained by plain cross-entropy.

    Raises:
        ValueError: the edges do not rise, a count is not positive with `adjust`; (when called) logits and labels do
            not fit, or are NaN.

    Source: Liu et al. 2019 (groups); Koh et al. 2021, *WILDS* (macro F1); Liang et al. 2024 (DisCL), algorithm 3 (the
        probability); Menon et al. 2021, equation 9 (`adjust`).

    Example:
        >>> from transformers import EvalPrediction
        >>> logits = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
        >>> found = long_tail_metrics([200, 5])(EvalPrediction(logits, np.array([0, 1, 1])))
        >>> {name: round(float(value), 4) for name, value in found.items()}
        {'accuracy': 0.6667, 'accuracy_many': 1.0, 'accuracy_few': 0.5, 'macro_f1': 0.6667, 'probability': 0.6269}
    """
    counts = np.asarray(class_counts)
    class_groups(counts, edges)
    log_prior = None
    if adjust is not None:
        if not (counts > 0).all():
            raise ValueError(
                f"adjust={adjust} was given, and class {int(np.argmin(counts > 0))} has no real image: the log of its "
                "prior is not a number. Leave the class out."
            )
        log_prior = tuple((adjust * np.log(counts / counts.sum())).tolist())
    return LongTailMetrics(tuple(counts.tolist()), tuple(edges), per_image, log_prior)


def true_probabilities(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The probability of each image's own class by a softmax, float64 (n,)."""
    logits = np.asarray(logits, dtype=np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    return np.exp(shifted[np.arange(len(labels)), labels] - np.log(np.exp(shifted).sum(1)))


def first_array(predictions: Any) -> np.ndarray:
    """The logits, of a model that returns more beside them."""
    return np.asarray(predictions[0] if isinstance(predictions, (tuple, list)) else predictions)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
