"""How the numbers that an ONNX detector puts out are boxes and class probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.detections import Detections, softmax

Activation = Literal["none", "sigmoid", "softmax"]


def _activated(values: np.ndarray, activation: Activation) -> np.ndarray:
    """Shapes: (..., classes) -> float64 (..., classes)."""
    values = np.asarray(values, dtype=np.float64)
    if activation == "softmax":
        return softmax(values)
    return 1 / (1 + np.exp(-values)) if activation == "sigmoid" else values


def _single(outputs: list[np.ndarray], who: str, dims: int, shape: str) -> np.ndarray:
    """The one output of one picture, without the batch's axis."""
    if len(outputs) != 1 or outputs[0].ndim != dims + 1 or outputs[0].shape[0] != 1:
        shapes = [output.shape for output in outputs]
        raise ValueError(
            f"{who} reads one output of the shape (1, {shape}), and the model gives {shapes}. Use another head, or a "
            "function `(outputs) -> Detections`."
        )
    return outputs[0][0]


def _check_columns(who: str, columns: int, first_class: int, found: tuple[int, ...]) -> None:
    if columns <= first_class:
        raise ValueError(
            f"{who} finds no classes: they begin at column {first_class}, and the output {found} has {columns} "
            "columns. Pass `first_class=`, or look whether boxes and columns are swapped."
        )


@dataclass(frozen=True)
class GridHead:
    """One box for every cell of a grid: a single output (1, columns, height, width), as FastestDet's.

    Columns are objectness, the offset of the box's middle from its cell (through tanh, in cells), its width and height
    (through a sigmoid, as shares of the picture), and the classes.

    Args:
        objectness: column of objectness.
        box: the first of the four columns of the box.
        first_class: the column where the classes begin.
        activation: what is still to be applied to objectness and classes; FastestDet has applied both.

    Raises:
        ValueError: unknown `activation`; an output of another shape.
    """

    objectness: int = 0
    box: int = 1
    first_class: int = 5
    activation: Activation = "none"

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ("none", "sigmoid", "softmax"))

    def __call__(self, outputs: list[np.ndarray]) -> Detections:
        output = _single(outputs, "GridHead", 3, "columns, height, width")
        columns, height, width = output.shape
        _check_columns("GridHead", columns, self.first_class, output.shape)
        cells = np.asarray(output, dtype=np.float64).reshape(columns, height * width).T  # (cells, columns)
        classes = _activated(cells[:, self.first_class :], self.activation)
        objectness = cells[:, self.objectness]
        if self.activation != "none":
            objectness = _activated(objectness, "sigmoid")
        row, column = np.divmod(np.arange(height * width), width)
        middle = (np.stack([column, row], 1) + np.tanh(cells[:, self.box : self.box + 2])) / [width, height]
        half = _activated(cells[:, self.box + 2 : self.box + 4], "sigmoid") / 2
        boxes = np.concatenate([middle - half, middle + half], axis=1)  # (cells, 4), shares of the sides
        return Detections(classes, objectness * classes.max(axis=1), boxes=boxes)


@dataclass(frozen=True)
class RowHead:
    """One box per row: a single output (1, boxes, columns), as of the YOLO family.

    Columns are the box's middle x and y, width and height, objectness (or none), and the classes.

    Args:
        objectness: column of objectness; None where there is none (YOLOv8), so that the best class is the confidence.
        first_class: the column where the classes begin; left out, the one after the box and objectness.
        activation: what is still to be applied to objectness and classes.
        transposed: the output is (1, columns, boxes), as YOLOv8's.

    Raises:
        ValueError: unknown `activation`; an output of another shape.
    """

    objectness: int | None = 4
    first_class: int | None = None
    activation: Activation = "none"
    transposed: bool = False

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ("none", "sigmoid", "softmax"))

    def __call__(self, outputs: list[np.ndarray]) -> Detections:
        rows = _single(outputs, "RowHead", 2, "boxes, columns")
        rows = np.asarray(rows.T if self.transposed else rows, dtype=np.float64)  # (boxes, columns)
        first_class = self.first_class
        if first_class is None:
            first_class = 4 if self.objectness is None else 5
        _check_columns("RowHead", rows.shape[1], first_class, rows.shape)
        classes = _activated(rows[:, first_class:], self.activation)
        confidence = classes.max(axis=1)
        if self.objectness is not None:
            objectness = rows[:, self.objectness]
            confidence = confidence * (objectness if self.activation == "none" else _activated(objectness, "sigmoid"))
        middle, half = rows[:, :2], rows[:, 2:4] / 2
        return Detections(classes, confidence, boxes=np.concatenate([middle - half, middle + half], axis=1))


Head = Callable[[list[np.ndarray]], Detections]
