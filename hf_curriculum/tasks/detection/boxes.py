"""Boxes of detections and of objects: checked, and drawn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hf_curriculum.data.images import to_rgb
from hf_curriculum.shapes import validate_arguments

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
"""Of classes, by their numbers; they repeat."""
_LEAST = 480  # pixels of the longer side, so that names can be read


@validate_arguments
def draw_boxes(
    image: Any,
    boxes: Sequence[Sequence[float]],
    texts: Sequence[str] | None = None,
    classes: Sequence[int] | None = None,
    truths: Sequence[Sequence[float]] = (),
) -> Image.Image:
    """Draws boxes on an image, each in the colour of its class with a text in its upper left corner.

    An image whose longer side is less than 480 pixels is enlarged by a whole number.

    Args:
        image: in any form `to_rgb` reads.
        boxes: left, top, right, bottom in pixels of the image, the most important first.
        texts: of each box.
        classes: the number of each box's class; of one colour without them.
        truths: annotated boxes, drawn below the others in white with a dark edge.

    Returns:
        An RGB image.

    Raises:
        ValueError: `texts` or `classes` are not one for each box.
        UnreadableImageError: the image cannot be decoded (a ValueError too).

    Example:
        >>> draw_boxes(Image.new("RGB", (100, 50)), [[10, 10, 40, 30]], ["dog 0.81"]).size
        (500, 250)
    """
    texts, classes = list(texts or [""] * len(boxes)), list(classes or [0] * len(boxes))
    if not len(boxes) == len(texts) == len(classes):
        raise ValueError(
            f"{len(texts)} texts and {len(classes)} classes were given for {len(boxes)} boxes. Each box has its own."
        )
    picture = to_rgb(image)
    zoom = -(-_LEAST // max(picture.size)) if max(picture.size) < _LEAST else 1
    # A new image: what was given stays as it is.
    drawn = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    pen, thick = ImageDraw.Draw(drawn), max(2, max(drawn.size) // 300)
    font = ImageFont.load_default(max(12, max(drawn.size) // 45))
    for box in truths:
        edges = _edges(box, zoom, drawn.size)
        pen.rectangle(edges, outline="#202020", width=2 * thick)
        pen.rectangle(edges, outline="white", width=thick)
    for box, text, number in reversed(list(zip(boxes, texts, classes, strict=True))):
        edges, colour = _edges(box, zoom, drawn.size), COLOURS[number % len(COLOURS)]
        pen.rectangle(edges, outline=colour, width=thick)
        if text:
            left, top = edges[0] + thick, edges[1] + thick
            width, height = (int(side) + 4 for side in pen.textbbox((0, 0), text, font=font)[2:])
            left, top = max(0, min(left, drawn.width - width)), max(0, min(top, drawn.height - height))
            pen.rectangle((left, top, left + width, top + height), fill=colour)
            pen.text((left + 2, top + 1), text, fill="white", font=font)
    return drawn


def _edges(box: Sequence[float], zoom: int, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """A box's outermost pixels in the picture as it is drawn, in order also where the box is empty."""
    left, top, right, bottom = (float(edge) * zoom for edge in box)
    right, bottom = min(right, size[0]) - 1, min(bottom, size[1]) - 1
    return left, top, max(left, right), max(top, bottom)


Predictions = np.ndarray | Sequence[Any]
"""Per image rows of `[class, score, left, top, right, bottom]`: float (images, k, 6), class −1 where there is no box;
or one array (n, 6) per image."""
Truths = Sequence[Sequence[Mapping[str, Any]] | None]
"""Per image its objects, each with `name` and `box`; `difficult`, `iscrowd` and `area` where they are known."""
PREDICTION_SIZE = 6


@dataclass(frozen=True, eq=False)
class PredictedBoxes:
    """Boxes of all images, the highest scores of an image first; b of them.

    Args:
        images: of each box, int64 (b,).
        classes: numbers in the list of classes, int64 (b,).
        scores: float64 (b,).
        boxes: left, top, right, bottom in pixels, float64 (b, 4).
        most: the most boxes that any image was given with.
    """

    images: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray
    most: int


@dataclass(frozen=True, eq=False)
class TrueBoxes:
    """Annotated boxes of all images; t of them.

    Args:
        images: of each box, int64 (t,).
        classes: numbers in the list of classes, int64 (t,).
        boxes: left, top, right, bottom in pixels, float64 (t, 4).
        areas: in square pixels, float64 (t,): the annotation's, or the box's.
        crowd: COCO's `iscrowd`, bool (t,).
        difficult: VOC's flag, bool (t,).
        number_of_images: with boxes or without.
        other: objects of names that are none of the classes; they count for nothing.
    """

    images: np.ndarray
    classes: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray
    difficult: np.ndarray
    number_of_images: int
    other: int


def validate_class_names(class_names: Sequence[str]) -> list[str]:
    """The names as a list."""
    names = list(class_names)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"`class_names` holds {twice[0]!r} more than once, so a predicted class could not be matched with true "
            "objects by name. Give each class a name of its own."
        )
    if not names:
        raise ValueError("`class_names` is empty: there is nothing to detect. Give the names of the model's classes.")
    return names


def read_predictions(predictions: Predictions, num_classes: int, max_boxes: int) -> PredictedBoxes:
    """Flat boxes of predictions, of each image and class the `max_boxes` with the highest scores."""
    if max_boxes < 1:
        raise ValueError(f"max_boxes={max_boxes} keeps no box, so nothing could be right. Keep at least 1, or 100.")
    parts = [_as_rows(rows, image) for image, rows in enumerate(predictions)]
    parts = [rows[rows[:, 0] >= 0] for rows in parts]
    most = max((len(rows) for rows in parts), default=0)
    parts = [_best(rows, max_boxes) for rows in parts]
    images = np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])
    flat = np.concatenate([np.empty((0, PREDICTION_SIZE)), *parts])
    classes = flat[:, 0].astype(np.int64)
    for wrong, what in (
        (classes >= num_classes, f"a class that is none of the {num_classes} in `class_names`, counted from 0"),
        (classes != flat[:, 0], "a class that is no whole number"),
        (~np.isfinite(flat).all(1), "a value that is not finite"),
        ((flat[:, 4:] < flat[:, 2:4]).any(1), "a box that ends before it begins"),
    ):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"{int(wrong.sum()):,} of {len(flat):,} predicted boxes have {what}, the first of them "
                f"{flat[first].tolist()} of image {int(images[first])}. A row is [class, score, left, top, right, "
                "bottom] in pixels, class -1 where there is no box; turn [left, top, width, height] into corners."
            )
    return PredictedBoxes(images, classes, flat[:, 1], flat[:, 2:], most)


def _best(rows: np.ndarray, max_boxes: int) -> np.ndarray:
    """The `max_boxes` rows of each class with the highest scores, the highest first."""
    rows = rows[np.argsort(-rows[:, 1], kind="stable")]
    by_class = np.argsort(rows[:, 0], kind="stable")
    classes = rows[by_class, 0]
    ranks = np.arange(len(rows)) - np.searchsorted(classes, classes)
    return rows[np.sort(by_class[ranks < max_boxes])]


def _as_rows(rows: Any, image: int) -> np.ndarray:
    """An image's rows as float64 (n, 6)."""
    array = np.asarray(rows, dtype=np.float64)
    if array.size == 0:
        return np.empty((0, PREDICTION_SIZE))
    if array.ndim != 2 or array.shape[1] != PREDICTION_SIZE:
        raise ValueError(
            f"The predictions of image {image} have the shape {array.shape}, and rows of [class, score, left, top, "
            "right, bottom] are needed: (boxes, 6) per image, or (images, boxes, 6) in all."
        )
    return array


def read_truths(truths: Truths, class_names: Sequence[str], field: str = "name") -> TrueBoxes:
    """Flat boxes of annotated objects; their names become numbers once, here."""
    numbers = {name: number for number, name in enumerate(class_names)}
    if missing := [image for image, objects in enumerate(truths) if objects is None]:
        raise ValueError(
            f"{len(missing):,} of {len(truths):,} images have no annotation (None; the first is image {missing[0]}): "
            "whether boxes in them are right is not known. Leave these rows out of the evaluation."
        )
    found, boxes, other = [], [], 0
    for image, objects in enumerate(truths):
        for item in objects:
            if item.get(field) is None or item.get("box") is None:
                raise ValueError(
                    f"An object of image {image} is {dict(item)}, and each needs a `{field}` and a `box` of [left, "
                    "top, right, bottom] to be compared with predictions. Read them with their categories."
                )
            number = numbers.get(item[field])
            if number is None:
                other += 1
                continue
            boxes.append(item["box"])
            area = item.get("area")
            flags = bool(item.get("iscrowd")), bool(item.get("difficult"))
            found.append((image, number, math.nan if area is None else area, *flags))
    if not found:
        raise ValueError(
            f"None of the {other:,} objects of {len(truths):,} images has one of the names {list(class_names)}: there "
            "is nothing to find. Give annotated images, and names spelt as the annotations spell them."
        )
    images, classes, areas, crowd, difficult = map(np.asarray, zip(*found, strict=True))
    boxes = np.asarray(boxes, dtype=np.float64).reshape(len(found), 4)
    sides = boxes[:, 2:] - boxes[:, :2]
    if (sides < 0).any() or not np.isfinite(boxes).all():
        first = int(np.flatnonzero((sides < 0).any(1) | ~np.isfinite(boxes).all(1))[0])
        raise ValueError(
            f"A true box of image {images[first]} is {boxes[first].tolist()}, which ends before it begins, or is not "
            "finite. Boxes are [left, top, right, bottom] in pixels: add width and height to the corner where they "
            "are stored."
        )
    areas = np.where(np.isnan(areas), sides.prod(1), areas).astype(np.float64)
    return TrueBoxes(images, classes, boxes, areas, crowd, difficult, len(truths), other)


def overlaps(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray | None = None) -> np.ndarray:
    """Intersection over union of boxes, pair by pair; over the box's own area where the other one is a crowd."""
    width = np.minimum(boxes[:, 2], others[:, 2]) - np.maximum(boxes[:, 0], others[:, 0])
    height = np.minimum(boxes[:, 3], others[:, 3]) - np.maximum(boxes[:, 1], others[:, 1])
    shared = np.clip(width, 0, None) * np.clip(height, 0, None)
    own, their = (np.prod(part[:, 2:] - part[:, :2], axis=1) for part in (boxes, others))
    whole = own + their - shared
    if crowd is not None:
        whole = np.where(crowd, own, whole)
    return np.divide(shared, whole, out=np.zeros(len(shared)), where=whole > 0)


def candidate_pairs(predicted: PredictedBoxes, true: TrueBoxes) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of a predicted and a true box of one image and class: numbers of both, by predicted box."""
    size = int(max(predicted.classes.max(initial=0), true.classes.max(initial=0))) + 1
    keys = true.images * size + true.classes
    order = np.argsort(keys, kind="stable")
    wanted = predicted.images * size + predicted.classes
    first = np.searchsorted(keys[order], wanted)
    counts = np.searchsorted(keys[order], wanted, side="right") - first
    left = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    return left, order[np.repeat(first, counts) + within]
