"""COCO's average precision and recall."""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_curriculum.evaluation.detection.inputs import PredictedBoxes, TrueBoxes

COCO_VALUES = {
    "map": ("precision", None, "all"),
    "map_50": ("precision", 0.5, "all"),
    "map_75": ("precision", 0.75, "all"),
    "ap_small": ("precision", None, "small"),
    "ap_medium": ("precision", None, "medium"),
    "ap_large": ("precision", None, "large"),
    "ar": ("recall", None, "all"),
}
"""Value → (what is averaged, IoU threshold or all ten of .50:.05:.95, sizes: below 32², to 96², beyond)."""


def coco_values(predicted: PredictedBoxes, true: TrueBoxes, num_classes: int, max_boxes: int) -> dict[str, np.ndarray]:
    """Each of `COCO_VALUES` by class, float64 (num_classes,), NaN where a class has no such object."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as error:
        raise ImportError(
            "COCO's metrics need faster-coco-eval, which is not installed. Run "
            "`pip install 'hf-curriculum[detection]'`, or ask for others, metrics=['voc', 'corloc']."
        ) from error
    sides = np.concatenate([true.boxes[:, :2], true.boxes[:, 2:] - true.boxes[:, :2]], axis=1)
    columns = (true.images, true.classes, sides, true.areas, true.crowd)
    names = ("image_id", "category_id", "bbox", "area", "iscrowd")
    expected = _dataset(COCO, _annotations(names, columns), true.number_of_images, num_classes)
    sides = np.concatenate([predicted.boxes[:, :2], predicted.boxes[:, 2:] - predicted.boxes[:, :2]], axis=1)
    columns = (predicted.images, predicted.classes, sides, sides[:, 2:].prod(1), predicted.scores)
    names = ("image_id", "category_id", "bbox", "area", "score")
    found = _dataset(COCO, _annotations(names, columns), true.number_of_images, num_classes)
    evaluation = COCOeval_faster(expected, found, "bbox", print_function=_silent)
    evaluation.params.maxDets = [max(100, max_boxes)]
    evaluation.evaluate()
    evaluation.accumulate()
    return {name: _by_class(evaluation, *where) for name, where in COCO_VALUES.items()}


def _silent(*args: Any) -> None:
    """In place of printing."""


def _annotations(names: tuple[str, ...], columns: tuple[np.ndarray, ...]) -> list[dict[str, Any]]:
    """COCO's annotations; ids count from 1, because 0 stands for no match there."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [{"id": number, **dict(zip(names, row, strict=True))} for number, row in enumerate(rows, start=1)]


def _dataset(kind: Any, annotations: list[dict[str, Any]], images: int, num_classes: int) -> Any:
    made = kind(print_function=_silent)
    made.dataset = {
        "images": [{"id": image} for image in range(images)],
        "annotations": annotations,
        "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
    }
    made.createIndex()
    return made


def _by_class(evaluation: Any, what: str, iou: float | None, size: str) -> np.ndarray:
    """A value by class: the mean over IoU thresholds (and recalls), −1 being none."""
    parameters, numbers = evaluation.params, evaluation.eval[what]  # (T, R, K, A, M) or (T, K, A, M)
    numbers = np.moveaxis(numbers[..., parameters.areaRngLbl.index(size), -1], -1, 0)  # (K, T, R) or (K, T)
    if iou is not None:
        numbers = numbers[:, np.isclose(parameters.iouThrs, iou)]
    numbers = numbers.reshape(len(numbers), -1)
    there = numbers > -1
    counts = there.sum(1)
    sums = np.where(there, numbers, 0).sum(1)
    return np.divide(sums, counts, out=np.full(len(numbers), np.nan), where=counts > 0)
