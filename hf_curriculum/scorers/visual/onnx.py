"""A detector in an ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from hf_curriculum.config import digest
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.pretrained import one_thread_in_workers
from hf_curriculum.scorers.visual.detectors import Detections, Detector, keep_distinct, softmax


class OnnxDetector(Detector):
    """A detector in an ONNX file, run by onnxruntime one image at a time.

    Images are resized to the model's input without keeping their proportions, and scaled to 0...1. Of overlapping
    boxes the one with the highest confidence is kept (non-maximum suppression).

    Args:
        path: the file.
        head: what reads the model's outputs: a `GridHead` (the default, FastestDet's), a `RowHead`, or a picklable
            function `(outputs: list[np.ndarray]) -> Detections`.
        size: height and width of the input in pixels; needed where the model leaves them open.
        colours: the order of the channels, "bgr" (FastestDet, models trained with OpenCV) or "rgb".
        mean: of the three channels, subtracted after scaling.
        std: of the three channels, divided by.
        overlap: intersection over union above which the box of lower confidence is dropped; None keeps all.
        min_confidence: boxes below are dropped. 0 by default: bottom-up attention, too, gives each image at least ten
            boxes, whatever their confidence. With a threshold scores grow with the number of objects.

    Raises:
        FileNotFoundError: no such file.
        ImportError: onnxruntime is missing, when the model is loaded.
        ValueError: an option out of range; or the input's size is open and `size` is not given, or is another.
    """

    packages: tuple[str, ...] = ("onnxruntime", "pillow")
    backend: str = "pil"

    def __init__(
        self,
        path: str | Path,
        head: Head | None = None,
        *,
        size: tuple[int, int] | None = None,
        colours: Literal["bgr", "rgb"] = "bgr",
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        overlap: float | None = 0.45,
        min_confidence: float = 0.0,
    ) -> None:
        validate_choice("colours", colours, ("bgr", "rgb"))
        if overlap is not None and not 0 <= overlap <= 1:
            raise ValueError(f"`overlap` is {overlap}. It is an intersection over union, from 0 to 1, or None.")
        if len(mean) != 3 or len(std) != 3 or 0 in std:
            raise ValueError(f"`mean` is {mean} and `std` {std}. Each has three numbers, and no `std` is 0.")
        if not Path(path).is_file():
            raise FileNotFoundError(f"There is no ONNX detector at {str(path)!r}: no such file.")
        self.path: str = str(path)
        self.model: str = Path(path).name
        self.revision: str = digest(Path(path))
        self.head: GridHead | Head = GridHead() if head is None else head
        self.size: tuple[int, ...] | None = None if size is None else tuple(size)
        self.colours = colours
        self.mean: tuple[float, ...] = tuple(mean)
        self.std: tuple[float, ...] = tuple(std)
        self.overlap = overlap
        self.min_confidence = min_confidence

    def arguments(self) -> dict[str, Any]:
        state = self.__getstate__()
        del state["path"]  # name and digest of the file identify it on any machine
        if is_dataclass(self.head):
            state["head"] = {"type": type(self.head).__name__, **asdict(self.head)}
        else:
            from datasets.fingerprint import Hasher

            state["head"] = {
                "function": getattr(self.head, "__qualname__", type(self.head).__qualname__),
                "digest": Hasher.hash(self.head),
            }
        return {"type": type(self).__name__, **state}

    def load(self, device: Any) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            remedy = "Run `pip install 'hf-curriculum[detection]'`."
            raise ImportError(f"{self.model} needs onnxruntime, which is not installed. {remedy}") from error
        import torch

        one_thread_in_workers()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        available = onnxruntime.get_available_providers()
        wanted = ["CUDAExecutionProvider"] if device.type == "cuda" else []
        providers = [name for name in (*wanted, "CPUExecutionProvider") if name in available]
        return onnxruntime.InferenceSession(self.path, options, providers=providers)

    def read(self, image: Image.Image, loaded: Any) -> np.ndarray:
        return self._pixels(image, *self._input_size(loaded.get_inputs()[0].shape))

    def detect(self, images: list[np.ndarray], loaded: Any) -> list[Detections]:
        entry = loaded.get_inputs()[0].name
        return [self._read(loaded.run(None, {entry: pixels})) for pixels in images]

    def box_sides(self, loaded: Any) -> tuple[float, float]:
        """As `Detector.box_sides`; a head says by its attribute `box_unit` in which unit its boxes are."""
        unit = getattr(self.head, "box_unit", None)
        if unit not in ("share", "input"):
            head = getattr(self.head, "__qualname__", self.head)
            raise ValueError(f"It is not known in which unit {head} gives boxes. Set its `box_unit`.")
        height, width = self._input_size(loaded.get_inputs()[0].shape)
        return (1.0, 1.0) if unit == "share" else (float(width), float(height))

    def _input_size(self, shape: list[Any]) -> tuple[int, int]:
        asked = self.size or (None, None)
        sides = []
        for side, own, want in zip(("height", "width"), shape[-2:], asked, strict=True):
            fixed = own if isinstance(own, int) else None
            if (fixed or want) is None or (fixed and want and fixed != want):
                raise ValueError(
                    f"The input of {self.model} has the shape {shape} and `size` is {self.size}, so its {side} is "
                    "unknown or contradicted. Pass `size=(height, width)`."
                )
            sides.append(fixed or want)
        return sides[0], sides[1]

    def _pixels(self, image: Image.Image, height: int, width: int) -> np.ndarray:
        """The model's input, float32 (1, 3, height, width)."""
        values = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32) / 255
        if self.colours == "bgr":
            values = values[:, :, ::-1]
        values = (values - np.float32(self.mean)) / np.float32(self.std)
        return np.ascontiguousarray(values.transpose(2, 0, 1))[None]

    def _read(self, outputs: list[np.ndarray]) -> Detections:
        found = self.head(outputs)
        rows = np.flatnonzero(np.asarray(found.confidence) >= self.min_confidence)
        if self.overlap is not None:
            if found.boxes is None:
                raise ValueError("The head gives no boxes, so their overlap is unknown. Pass `overlap=None`.")
            rows = rows[keep_distinct(found.boxes[rows], found.confidence[rows], self.overlap, len(rows))]
        return Detections(*(None if part is None else np.asarray(part)[rows] for part in found))


Activation = Literal["none", "sigmoid", "softmax"]


def _activated(values: np.ndarray, activation: Activation) -> np.ndarray:
    """Probabilities from a model's outputs, float64."""
    values = np.asarray(values, dtype=np.float64)
    if activation == "softmax":
        return softmax(values)
    return 1 / (1 + np.exp(-values)) if activation == "sigmoid" else values


def _single(outputs: list[np.ndarray], who: str, dims: int, shape: str) -> np.ndarray:
    """The one output of one image, without the batch's axis."""
    if len(outputs) != 1 or outputs[0].ndim != dims + 1 or outputs[0].shape[0] != 1:
        shapes = [output.shape for output in outputs]
        raise ValueError(f"{who} reads one output of the shape (1, {shape}), and the model gives {shapes}.")
    return outputs[0][0]


def _validate_columns(who: str, columns: int, first_class: int, found: tuple[int, ...]) -> None:
    if columns <= first_class:
        output = f"they begin at column {first_class}, and the output {found} has {columns} columns"
        raise ValueError(f"{who} finds no classes: {output}. Pass `first_class=`.")


@dataclass(frozen=True)
class GridHead:
    """One box for every cell of a grid: a single output (1, columns, height, width), as FastestDet's.

    Columns are objectness, the offset of the box's centre from its cell (through tanh, in cells), its width and height
    (through a sigmoid, as shares of the image), and the classes.

    Args:
        objectness: column of objectness.
        box: the first of the four columns of the box.
        first_class: the column where the classes begin.
        activation: applied to objectness and classes; FastestDet's are probabilities already.

    Raises:
        ValueError: unknown `activation`; an output of another shape.
    """

    box_unit: ClassVar[str] = "share"

    objectness: int = 0
    box: int = 1
    first_class: int = 5
    activation: Activation = "none"

    def __post_init__(self) -> None:
        validate_choice("activation", self.activation, ("none", "sigmoid", "softmax"))

    def __call__(self, outputs: list[np.ndarray]) -> Detections:
        output = _single(outputs, "GridHead", 3, "columns, height, width")
        columns, height, width = output.shape
        _validate_columns("GridHead", columns, self.first_class, output.shape)
        cells = np.asarray(output, dtype=np.float64).reshape(columns, height * width).T  # (cells, columns)
        classes = _activated(cells[:, self.first_class :], self.activation)
        objectness = cells[:, self.objectness]
        if self.activation != "none":
            objectness = _activated(objectness, "sigmoid")
        row, column = np.divmod(np.arange(height * width), width)
        centre = (np.stack([column, row], 1) + np.tanh(cells[:, self.box : self.box + 2])) / [width, height]
        half = _activated(cells[:, self.box + 2 : self.box + 4], "sigmoid") / 2
        boxes = np.concatenate([centre - half, centre + half], axis=1)  # (cells, 4), shares of the sides
        return Detections(classes, objectness * classes.max(axis=1), boxes=boxes)


@dataclass(frozen=True)
class RowHead:
    """One box per row: a single output (1, boxes, columns), as of the YOLO family.

    Columns are the box's centre x and y, width and height, objectness (or none), and the classes.

    Args:
        objectness: column of objectness; None where there is none (YOLOv8), so that the best class is the confidence.
        first_class: the column where the classes begin; left out, the one after the box and objectness.
        activation: applied to objectness and classes.
        transposed: the output is (1, columns, boxes), as YOLOv8's.

    Raises:
        ValueError: unknown `activation`; an output of another shape.
    """

    box_unit: ClassVar[str] = "input"

    objectness: int | None = 4
    first_class: int | None = None
    activation: Activation = "none"
    transposed: bool = False

    def __post_init__(self) -> None:
        validate_choice("activation", self.activation, ("none", "sigmoid", "softmax"))

    def __call__(self, outputs: list[np.ndarray]) -> Detections:
        rows = _single(outputs, "RowHead", 2, "boxes, columns")
        rows = np.asarray(rows.T if self.transposed else rows, dtype=np.float64)  # (boxes, columns)
        first_class = self.first_class
        if first_class is None:
            first_class = 4 if self.objectness is None else 5
        _validate_columns("RowHead", rows.shape[1], first_class, rows.shape)
        classes = _activated(rows[:, first_class:], self.activation)
        confidence = classes.max(axis=1)
        if self.objectness is not None:
            objectness = rows[:, self.objectness]
            confidence = confidence * (objectness if self.activation == "none" else _activated(objectness, "sigmoid"))
        centre, half = rows[:, :2], rows[:, 2:4] / 2
        return Detections(classes, confidence, boxes=np.concatenate([centre - half, centre + half], axis=1))


Head = Callable[[list[np.ndarray]], Detections]
