"""Which of several detectors is better, and whether that is more than chance: the paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hf_curriculum.evaluation.comparison import Comparison, differences, draw_images, validate_comparison
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.detection.boxes import (
    PredictedBoxes,
    Predictions,
    TrueBoxes,
    Truths,
    candidate_pairs,
    overlaps,
    read_predictions,
    read_truths,
    validate_class_names,
)
from hf_curriculum.tasks.detection.metrics import MAX_BOXES, localised

_TITLES = {"map_50": "mAP@0.5", "corloc": "CorLoc"}
_RECALLS = np.linspace(0, 1, 101)
"""COCO's."""
_NUMBERS = 1 << 22
"""Weights of boxes in memory at once."""


@validate_arguments
def compare_detections(
    systems: Mapping[str, Predictions],
    truths: Truths,
    class_names: Sequence[str],
    *,
    max_boxes: int = MAX_BOXES,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    field: str = "name",
) -> Comparison:
    """Compares detections of the same images by COCO's mAP@0.5 and CorLoc, with intervals of the differences.

    Images are drawn with replacement, the same for all systems, and both values are computed on the images drawn.

    Args:
        systems: name → predictions as for `detection_metrics`; the baseline first.
        truths: as for `detection_metrics`.
        class_names: as for `detection_metrics`.
        max_boxes: as for `detection_metrics`.
        resamples: how many times images are drawn.
        seed: of the draws: the same seed draws the same images, whatever is compared.
        confidence: of the intervals, between percentiles.
        field: as for `detection_metrics`.

    Raises:
        ValueError: fewer than two systems, predictions of another number of images, an option out of range, or what
            `detection_metrics` refuses.

    Source: Koehn 2004, *Statistical Significance Tests for Machine Translation Evaluation*, §3.

    Example:
        >>> truths = [[{"name": "dog", "box": [0, 0, 10, 10]}]] * 4
        >>> systems = {"random": [[[0, 1, 5, 5, 9, 9]]] * 4, "ours": [[[0, 1, 0, 0, 9, 9]]] * 4}
        >>> found = compare_detections(systems, truths, ["dog"], resamples=100)
        >>> found.values["ours"]["map_50"], found.differences[0].lower
        (1.0, 1.0)
    """
    validate_comparison(systems, resamples, confidence)
    names, drawn, values = validate_class_names(class_names), {}, {}
    true = read_truths(truths, names, field)
    for system, predictions in systems.items():
        if len(predictions) != len(truths):
            raise ValueError(
                f"{system!r} has predictions of {len(predictions):,} images, and there are the objects of "
                f"{len(truths):,}. Images are drawn for all systems alike: give predictions of the same images."
            )
        evaluate = _Resampled(read_predictions(predictions, len(names), max_boxes), true, len(names))
        values[system] = {name: float(each[0]) for name, each in evaluate(np.ones((1, len(truths)))).items()}
        parts = [evaluate(counts) for counts in draw_images(len(truths), resamples, seed)]
        drawn[system] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found = differences(values, drawn, confidence)
    notes = (f"At most {max_boxes} boxes of a class in each image.",)
    return Comparison(values, found, len(truths), resamples, seed, confidence, notes, _TITLES)


class _Resampled:
    """mAP@0.5 and CorLoc of one system for images that count several times or not at all."""

    def __init__(self, predicted: PredictedBoxes, true: TrueBoxes, num_classes: int) -> None:
        hit, ignored = _coco_matches(predicted, true)
        order = np.argsort(-predicted.scores, kind="stable")
        order = order[~ignored[order]]
        counted = ~true.crowd
        self._classes = []
        for number in range(num_classes):
            own = order[predicted.classes[order] == number]
            objects = true.images[counted & (true.classes == number)]
            if len(objects):
                self._classes.append((predicted.images[own], hit[own], objects))
        self._shown, self._found = localised(predicted, true, num_classes)
        self._num_classes = num_classes

    def __call__(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """`map_50` and `corloc`, float64 (r,), of `counts`, how often each image counts, (r, images)."""
        longest = max((len(images) for images, *_ in self._classes), default=1)
        rows = max(1, _NUMBERS // max(longest, 1))
        parts = [self._chunk(counts[start : start + rows]) for start in range(0, len(counts), rows)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _chunk(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        precisions = [
            _weighted_precision(counts[:, images], hit, counts[:, objects].sum(1))
            for images, hit, objects in self._classes
        ]
        weights = counts[:, self._shown // self._num_classes]  # (r, shown)
        classes = self._shown % self._num_classes
        rates = []
        for number in np.unique(classes).tolist():
            own = weights[:, classes == number]
            rates.append(_ratio(own @ self._found[classes == number], own.sum(1)))
        return {"map_50": _mean(precisions), "corloc": _mean(rates)}


def _weighted_precision(weights: np.ndarray, hit: np.ndarray, total: np.ndarray) -> np.ndarray:
    """COCO's average precision where boxes count several times: float64 (r,), NaN without objects."""
    found = np.cumsum(weights * hit, axis=1)
    precision = found / np.maximum(np.cumsum(weights, axis=1), 1)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    made = np.full(len(weights), np.nan)
    for row in np.flatnonzero(total).tolist():
        reached = np.searchsorted(found[row] / total[row], _RECALLS)
        made[row] = np.append(envelope[row], 0.0)[reached].mean()
    return made


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _mean(columns: list[np.ndarray]) -> np.ndarray:
    """The mean over the classes that a resample has; (r,)."""
    values = np.stack(columns, axis=1)
    there = np.isfinite(values)
    return _ratio(np.where(there, values, 0).sum(1), there.sum(1))


def _coco_matches(predicted: PredictedBoxes, true: TrueBoxes, iou: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Which boxes are right, and which count for nothing because they lie on a crowd; bool (boxes,) each."""
    left, right = candidate_pairs(predicted, true)
    overlap = overlaps(predicted.boxes[left], true.boxes[right], true.crowd[right])
    near = overlap >= iou
    left, right, overlap = left[near], right[near], overlap[near]
    # of equal overlaps the last object, as COCO's loop has it
    order = np.lexsort((-right, -overlap, true.crowd[right], left, -predicted.scores[left]))
    hit, ignored = (np.zeros(len(predicted.scores), dtype=bool) for _ in range(2))
    taken = np.zeros(len(true.images), dtype=bool)
    done = -1
    for box, item in zip(left[order].tolist(), right[order].tolist(), strict=True):
        if box == done:
            continue
        if true.crowd[item]:
            ignored[box], done = True, box
        elif not taken[item]:
            hit[box], taken[item], done = True, True, box
    return hit, ignored
