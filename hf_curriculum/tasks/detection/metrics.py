"""Detection metrics of PASCAL VOC and COCO, and detections at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.config import digest
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.detection.boxes import (
    PREDICTION_SIZE,
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

if TYPE_CHECKING:
    from transformers import EvalPrediction

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


@validate_arguments
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
    """Computes metrics of predicted boxes: COCO's and VOC's average precision, or CorLoc.

    Args:
        predictions: per image rows of `[class, score, left, top, right, bottom]`, class counted from 0 in
            `class_names`: float (images, k, 6) with class −1 where there is no box, or one array (n, 6) per image.
        truths: per image its objects as in the column `objects`: `name` and `box`, and if known `iscrowd`, `area` (of
            the object, not its box) and `difficult`. Without these COCO's sizes come from the boxes, and no object is
            a crowd or difficult.
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
            annotation, no object of the classes, a bad `iou`, or impossible boxes.

    Source: Lin et al. 2014 (COCO); Everingham et al. 2010 (VOC); Deselaers et al. 2012 (CorLoc).

    Example:
        >>> truths = [[{"name": "dog", "box": [0, 0, 10, 10]}], [{"name": "dog", "box": [5, 5, 9, 9]}]]
        >>> predictions = [[[0, 0.9, 0, 0, 10, 9]], [[0, 0.8, 0, 0, 3, 3]]]
        >>> scores = detection_metrics(predictions, truths, ["dog"], ["voc", "corloc"])
        >>> scores.values
        {'voc_ap': 0.5, 'voc_ap_11': 0.5454545454545454, 'corloc': 0.5}
    """
    names = validate_class_names(class_names)
    _validate_options(metrics, iou)
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


@validate_arguments
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
    """Makes a `compute_metrics` for a trainer whose model returns detections in evaluation.

    Args:
        class_names: as in `detection_metrics`.
        truths: the objects of each evaluated row, in its order: `eval_dataset["objects"]`.
        metrics: as in `detection_metrics`.
        per_class: add the values of each class, as `ap_50_dog`.
        max_boxes: as in `detection_metrics`.
        iou: as in `detection_metrics`.
        field: as in `detection_metrics`.

    Returns:
        A function from `EvalPrediction(predictions=float [images, k, 6])` to named values, `map_50` among them; of
        several outputs the one of this shape is taken.

    Raises:
        ImportError: COCO's metrics are asked for and faster-coco-eval is not installed.
        ValueError: as `detection_metrics`; wrong `truths` or names before training begins.

    Example:
        >>> truths = [[{"name": "dog", "box": [0, 0, 10, 10]}]]
        >>> compute = detection_compute_metrics(["dog"], truths, metrics=["corloc"], per_class=True)
        >>> from transformers import EvalPrediction
        >>> compute(EvalPrediction(np.array([[[0, 0.9, 0, 0, 10, 9.0]]]), None))
        {'corloc': 1.0, 'corloc_dog': 1.0}
    """
    truths, names = list(truths), validate_class_names(class_names)
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


def _validate_options(metrics: Sequence[str], iou: float) -> None:
    unknown = [name for name in metrics if name not in DETECTION_METRICS]
    if isinstance(metrics, str) or unknown or not metrics:
        raise ValueError(
            f"metrics={metrics!r} was given; it is a list of some of {list(DETECTION_METRICS)}. Name at least one."
        )
    if not 0 < iou <= 1:
        raise ValueError(f"iou={iou} was given; how much two boxes overlap is more than 0 and at most 1. Try 0.5.")


_STREAM = 0x72626F78


@validate_arguments
def random_detections(
    proposals: Sequence[Any],
    image_scores: np.ndarray,
    image_ids: Sequence[str],
    *,
    boxes_per_class: int = 1,
    max_boxes: int = MAX_BOXES,
    seed: int = 0,
) -> np.ndarray:
    """Makes a baseline of detections: a model's classes with randomly drawn proposals as boxes.

    A detector's advantage over it measures how well the detector localises objects.

    Args:
        proposals: per image its boxes, [left, top, right, bottom] in pixels, (n, 4) each.
        image_scores: the model's score of each class in each image, (images, classes).
        image_ids: of the images: an image's draws depend on its own and the seed alone.
        boxes_per_class: boxes of each class in an image, drawn without repetition; the k-th has 1/k of the score.
        max_boxes: boxes of an image that are kept.
        seed: of the draws.

    Returns:
        float32 (images, max_boxes, 6): class, score, left, top, right, bottom; class −1 where there is no box.

    Raises:
        ValueError: the numbers of proposals, scores and ids differ; or nothing would be drawn.

    Example:
        >>> made = random_detections([[[0, 0, 4, 4]]], np.array([[0.2, 0.9]]), ["a"], max_boxes=3)
        >>> made[0, :, :2].round(1).tolist()
        [[1.0, 0.8999999761581421], [0.0, 0.20000000298023224], [-1.0, 0.0]]
    """
    scores = np.asarray(image_scores, dtype=np.float32)
    if not len(proposals) == len(scores) == len(image_ids) or scores.ndim != 2:
        raise ValueError(
            f"Proposals of {len(proposals):,} images, scores of the shape {scores.shape} and {len(image_ids):,} names "
            "were given: boxes would get the scores of other images. Give all three for the same images, scores as "
            "(images, classes)."
        )
    if boxes_per_class < 1 or max_boxes < 1:
        raise ValueError(
            f"boxes_per_class={boxes_per_class} and max_boxes={max_boxes} were given; a detection needs at least one "
            "of each."
        )
    made = np.zeros((len(scores), max_boxes, PREDICTION_SIZE), dtype=np.float32)
    made[..., 0] = -1
    for image, (boxes, own, name) in enumerate(zip(proposals, scores, image_ids, strict=True)):
        boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
        drawn = min(boxes_per_class, len(boxes))
        if not drawn:
            continue
        key = mix64(seed, _STREAM, int(digest(str(name)), 16) & 0xFFFFFFFF)
        chances = hash64(np.arange(len(own) * len(boxes)), key).reshape(len(own), len(boxes))
        chosen = np.argsort(chances, axis=1, kind="stable")[:, :drawn]  # (classes, drawn)
        classes = np.repeat(np.arange(len(own)), drawn)
        weights = (own[:, None] / np.arange(1, drawn + 1, dtype=np.float32)).ravel()
        best = np.argsort(-weights, kind="stable")[:max_boxes]
        made[image, : len(best)] = np.column_stack([classes[best], weights[best], boxes[chosen.ravel()[best]]])
    return made
