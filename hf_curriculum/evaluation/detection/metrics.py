"""All metrics of detections in one call, and as a trainer's `compute_metrics`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.evaluation.detection.coco import COCO_VALUES, coco_values
from hf_curriculum.evaluation.detection.inputs import (
    PREDICTION_SIZE,
    Predictions,
    Truths,
    check_class_names,
    read_predictions,
    read_truths,
)
from hf_curriculum.evaluation.detection.voc import corloc_values, voc_values

if TYPE_CHECKING:
    from transformers import EvalPrediction

DETECTION_METRICS = {"coco": tuple(COCO_VALUES), "voc": ("voc_ap", "voc_ap_11"), "corloc": ("corloc",)}
"""Metric → the values that it gives, by class and as a mean over classes."""
MAX_BOXES = 100
"""Boxes of an image that COCO's evaluation keeps."""
_PER_CLASS = {"map": "ap", "map_50": "ap_50", "map_75": "ap_75"}


@dataclass(frozen=True)
class DetectionScores:
    """How good detections are; `print` shows them as a table, values times 100.

    Args:
        values: value's name → its mean over the classes that have it, in [0, 1]; what no class has is left out.
        per_class: class → value's name → value, likewise. A mean over one class is no mean: `map_50` is `ap_50` here.
        images: how many were evaluated.
        objects: true boxes of the classes.
        other_objects: true boxes of other names, which count for nothing.
        max_boxes: boxes of a class in an image that are kept, those with the highest scores. More of them raise
            average precision, and leave CorLoc alone.
        most_boxes: the most boxes that any image was given with.
        iou: the threshold of VOC's average precision and of CorLoc.
    """

    values: dict[str, float]
    per_class: dict[str, dict[str, float]]
    images: int
    objects: int
    other_objects: int
    max_boxes: int
    most_boxes: int
    iou: float

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        names = [
            name for name in ("ap_50", "ap", "voc_ap", "corloc") if any(name in v for v in self.per_class.values())
        ]
        width = max(map(len, [*self.per_class, "mean"]))
        lines = [" " * width + "".join(f"{name:>9}" for name in names)]
        means = {_PER_CLASS.get(name, name): value for name, value in self.values.items()}
        for label, found in (*self.per_class.items(), ("mean", means)):
            cells = (f"{100 * found[name]:>9.1f}" if name in found else f"{'–':>9}" for name in names)
            lines.append(f"{label:<{width}}" + "".join(cells))
        sizes = ", ".join(
            f"{name.removeprefix('ap_')} {100 * self.values[name]:.1f}"
            for name in ("ap_small", "ap_medium", "ap_large")
            if name in self.values
        )
        lines += ["", *([f"AP by size: {sizes}"] if sizes else [])]
        lines.append(
            f"values × 100; {self.objects:,} objects in {self.images:,} images, at most {self.max_boxes} boxes of a "
            "class in an image kept"
        )
        return "\n".join(lines)


def detection_metrics(
    predictions: Predictions,
    truths: Truths,
    class_names: Sequence[str],
    metrics: Sequence[str] = tuple(DETECTION_METRICS),
    *,
    max_boxes: int = MAX_BOXES,
    iou: float = 0.5,
    field: str = "name",
) -> DetectionScores:
    """Compares predicted with true boxes.

    Args:
        predictions: per image rows of `[class, score, left, top, right, bottom]`, class counted from 0 in
            `class_names`: float (images, k, 6) with class −1 where there is no box, or one array (n, 6) per image.
        truths: per image its objects as the column `objects` has them: `name` and `box`; and where they are known
            `iscrowd`, `area` (of the object, not of its box) and `difficult`, without which COCO's sizes and crowds
            and VOC's difficult objects are those of the boxes alone.
        class_names: of the model, in its order. Objects of other names are left out, and counted.
        metrics: of `DETECTION_METRICS`: `"coco"` gives `map` (the mean over IoU .50:.05:.95 and classes), `map_50`,
            `map_75`, `ap_small`, `ap_medium`, `ap_large` and `ar`; `"voc"` gives `voc_ap` and `voc_ap_11`;
            `"corloc"` gives `corloc`.
        max_boxes: boxes of a class in an image that are kept: COCO's `maxDets`.
        iou: the threshold of `"voc"` and `"corloc"`.
        field: the entry of an object that is its class; `"noun"` in the embedded scenes, whose names have a colour.

    Shapes and units:
        Boxes are in pixels of one picture, the right and lower edges exclusive: a box of VOC's files, whose pixels
        count from 1 and include the last, begins 1 earlier. `predictions` and `truths` are of the same images in the
        same order.

    Raises:
        ImportError: COCO's metrics are asked for and faster-coco-eval is not installed.
        ValueError: an unknown metric, no class or one twice, not one prediction per image, an image without
            annotation, no object of the classes, an `iou` out of range, or boxes that cannot be (see the message).

    Source: Lin et al. 2014 (COCO); Everingham et al. 2010 (VOC); Deselaers et al. 2012 (CorLoc).

    Example:
        >>> truths = [[{"name": "dog", "box": [0, 0, 10, 10]}], [{"name": "dog", "box": [5, 5, 9, 9]}]]
        >>> predictions = [[[0, 0.9, 0, 0, 10, 9]], [[0, 0.8, 0, 0, 3, 3]]]
        >>> scores = detection_metrics(predictions, truths, ["dog"], ["voc", "corloc"])
        >>> scores.values
        {'voc_ap': 0.5, 'voc_ap_11': 0.5454545454545454, 'corloc': 0.5}
    """
    names = check_class_names(class_names)
    _check_options(metrics, iou)
    if len(predictions) != len(truths):
        raise ValueError(
            f"Predictions of {len(predictions):,} images were given, and the objects of {len(truths):,}: row by row "
            "they would be of other images. Give both for the same images, in one order."
        )
    predicted, true = read_predictions(predictions, len(names), max_boxes), read_truths(truths, names, field)
    found: dict[str, np.ndarray] = {}
    if "coco" in metrics:
        found |= coco_values(predicted, true, len(names), max_boxes)
    if "voc" in metrics:
        found |= voc_values(predicted, true, len(names), iou)
    if "corloc" in metrics:
        found |= corloc_values(predicted, true, len(names), iou)
    values = {name: float(np.nanmean(each)) for name, each in found.items() if np.isfinite(each).any()}
    per_class = {
        label: {
            _PER_CLASS.get(name, name): float(each[number])
            for name, each in found.items()
            if math.isfinite(each[number])
        }
        for number, label in enumerate(names)
    }
    kept = {label: own for label, own in per_class.items() if own}
    return DetectionScores(
        values, kept, true.number_of_images, len(true.images), true.other, max_boxes, predicted.most, iou
    )


def detection_compute_metrics(
    class_names: Sequence[str],
    truths: Truths,
    *,
    metrics: Sequence[str] = ("coco", "corloc"),
    per_class: bool = False,
    max_boxes: int = MAX_BOXES,
    iou: float = 0.5,
    field: str = "name",
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for a trainer whose model returns detections while it evaluates.

    Args:
        class_names: as in `detection_metrics`.
        truths: the objects of each evaluated row, in its order: `eval_dataset["objects"]`.
        metrics: as in `detection_metrics`.
        per_class: add the values of each class, as `ap_50_dog`.
        max_boxes: as in `detection_metrics`.
        iou: likewise.
        field: likewise.

    Returns:
        A function from `EvalPrediction(predictions=float [images, k, 6])` to named values, `map_50` among them; of
        several outputs the one of this shape is taken.

    Raises:
        ImportError: COCO's metrics are asked for and faster-coco-eval is not installed.
        ValueError: as `detection_metrics`, before training begins where `truths` or names are wrong.

    Example:
        >>> truths = [[{"name": "dog", "box": [0, 0, 10, 10]}]]
        >>> compute = detection_compute_metrics(["dog"], truths, metrics=["corloc"], per_class=True)
        >>> from transformers import EvalPrediction
        >>> compute(EvalPrediction(np.array([[[0, 0.9, 0, 0, 10, 9.0]]]), None))
        {'corloc': 1.0, 'corloc_dog': 1.0}
    """
    truths, names = list(truths), check_class_names(class_names)
    empty: Predictions = [()] * len(truths)
    options: dict[str, Any] = {"max_boxes": max_boxes, "iou": iou, "field": field}
    detection_metrics(empty, truths, names, metrics, **options)  # what is wrong is said now

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        scores = detection_metrics(_detections(prediction.predictions), truths, names, metrics, **options)
        more = scores.per_class.items() if per_class else ()
        return scores.values | {f"{name}_{label}": value for label, own in more for name, value in own.items()}

    return compute


def _detections(outputs: Any) -> Any:
    """The output that holds detections, of one or several."""
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    found = [one for one in given if np.ndim(one) == 3 and np.shape(one)[2] == PREDICTION_SIZE]
    if len(found) != 1:
        raise ValueError(
            f"The model's outputs in evaluation have the shapes {[np.shape(one) for one in given]}, and one of "
            f"(images, boxes, {PREDICTION_SIZE}) is needed: its detections. `keys_to_ignore_at_inference` of its "
            "configuration, or `ignore_keys`, leaves others out."
        )
    return found[0]


def _check_options(metrics: Sequence[str], iou: float) -> None:
    unknown = [name for name in metrics if name not in DETECTION_METRICS]
    if isinstance(metrics, str) or unknown or not metrics:
        raise ValueError(
            f"metrics={metrics!r} was given; it is a list of some of {list(DETECTION_METRICS)}. Name at least one."
        )
    if not 0 < iou <= 1:
        raise ValueError(f"iou={iou} was given; how much two boxes overlap is more than 0 and at most 1. Try 0.5.")
