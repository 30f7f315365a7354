"""PASCAL VOC's average precision, and CorLoc."""

from __future__ import annotations

import numpy as np

from hf_curriculum.evaluation.detection.inputs import PredictedBoxes, TrueBoxes, candidate_pairs, overlaps

_RECALLS = np.linspace(0, 1, 11)
"""With 0.30000000000000004, which a recall of 0.3 does not reach: so has the code that published figures are of."""


def voc_values(
    predicted: PredictedBoxes, true: TrueBoxes, num_classes: int, iou: float = 0.5
) -> dict[str, np.ndarray]:
    """VOC's average precision by class, float64 (num_classes,), NaN for a class of which all objects are difficult."""
    ignored_truth = true.difficult | true.crowd
    left, right = candidate_pairs(predicted, true)
    overlap = overlaps(predicted.boxes[left], true.boxes[right])
    by_overlap = np.lexsort((right, -overlap, left))
    left, right, overlap = left[by_overlap], right[by_overlap], overlap[by_overlap]
    first = np.unique(left, return_index=True)[1]
    left, right, overlap = left[first], right[first], overlap[first]
    near = overlap >= iou
    left, right = left[near], right[near]
    order = np.argsort(-predicted.scores[left], kind="stable")
    left, right = left[order], right[order]
    taken = np.unique(right, return_index=True)[1]  # the first, of the highest score
    hit = np.zeros(len(predicted.scores), dtype=bool)
    hit[left[taken]] = True
    ignored = np.zeros(len(predicted.scores), dtype=bool)
    ignored[left] = ignored_truth[right]
    made = {"voc_ap": np.full(num_classes, np.nan), "voc_ap_11": np.full(num_classes, np.nan)}
    order = np.argsort(-predicted.scores, kind="stable")
    order = order[~ignored[order]]
    totals = np.bincount(true.classes[~ignored_truth], minlength=num_classes)
    for number in np.flatnonzero(totals).tolist():
        right_ones = hit[order[predicted.classes[order] == number]]
        made["voc_ap"][number], made["voc_ap_11"][number] = _average_precision(right_ones, int(totals[number]))
    return made


def _average_precision(hits: np.ndarray, total: int) -> tuple[float, float]:
    """(the area below the envelope, its mean at recalls 0, 0.1, … 1) of boxes by falling score."""
    found = np.cumsum(hits)
    recall = found / total
    precision = found / np.arange(1, len(hits) + 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)  # (boxes + 1,)
    area = float(np.sum(np.diff(recall, prepend=0.0) * envelope[:-1]))
    reached = np.searchsorted(recall, _RECALLS)
    return area, float(envelope[reached].mean())


def corloc_values(
    predicted: PredictedBoxes, true: TrueBoxes, num_classes: int, iou: float = 0.5
) -> dict[str, np.ndarray]:
    """CorLoc by class: of the images that show a class, those where its highest score is on an object of the class."""
    shown, hits = localised(predicted, true, num_classes, iou)
    counts = np.bincount(shown % num_classes, minlength=num_classes)
    sums = np.bincount(shown % num_classes, weights=hits, minlength=num_classes)
    return {"corloc": np.divide(sums, counts, out=np.full(num_classes, np.nan), where=counts > 0)}


def localised(
    predicted: PredictedBoxes, true: TrueBoxes, num_classes: int, iou: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Each class that an image shows: image · num_classes + class, int64 (n,); and whether it is found, bool (n,)."""
    counted = ~(true.difficult | true.crowd)
    shown = np.unique((true.images * num_classes + true.classes)[counted])
    keys = predicted.images * num_classes + predicted.classes
    order = np.lexsort((-predicted.scores, keys))  # stable: of equal scores the first
    best = np.zeros(len(keys), dtype=bool)
    best[order[np.unique(keys[order], return_index=True)[1]]] = True
    left, right = candidate_pairs(predicted, true)
    kept = best[left] & counted[right]
    left, right = left[kept], right[kept]
    near = overlaps(predicted.boxes[left], true.boxes[right]) >= iou
    return shown, np.isin(shown, keys[left[near]])
