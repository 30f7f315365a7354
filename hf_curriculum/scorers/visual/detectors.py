"""Detectors behind one call: pictures in, class probabilities of boxes out."""

from __future__ import annotations

import inspect
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from hf_curriculum.scorers.base import public_state
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained

LONGEST = 40
"""A picture more than so many times as long as wide has no side left after resizing for a transformer detector."""


class Detector:
    """Gives each picture the class probabilities of its boxes.

    A subclass defines `load` and `detect`. Its attributes are its configuration; they are pickled, and hashed by
    `datasets`.

    Attributes:
        packages: distributions whose versions decide the result.
        model, revision: for the provenance of scores.
        backend: what preprocesses pictures.
    """

    packages: tuple[str, ...] = ()
    model: str | None = None
    revision: str | None = None
    backend: str | None = None

    def load(self, device: Any) -> Any:
        """Builds the model on `device` (a `torch.device`)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `load`.")

    def detect(self, pictures: list[Image.Image], loaded: Any) -> list[Detections | None]:
        """What there is in each RGB picture; None for one that the detector cannot take.

        Args:
            pictures: RGB.
            loaded: what `load` built.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `detect`.")

    def arguments(self) -> dict[str, Any]:
        """What the provenance says of this detector, as JSON can hold it."""
        return {"type": type(self).__name__, **public_state(self)}

    def __getstate__(self) -> dict[str, Any]:
        return public_state(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in public_state(self).items())})"


class ModelDetector(Detector):
    """Any `AutoModelForObjectDetection` of transformers: DETR, YOLOS, RT-DETR and their like.

    A model with one output more than it has labels takes a softmax, and its last output is "no object" (DETR, YOLOS).
    One with as many outputs as labels takes a sigmoid of each and knows no "no object" (Conditional and Deformable
    DETR, RT-DETR).
    Pictures of equal size after resizing are batched; others never are, because padding changes what a model sees.

    Args:
        name: a folder, or a repository of the Hub.
        revision: of the repository.
        batch_size: pictures per forward pass.

    Raises:
        FileNotFoundError: there is no such model, when it is loaded.
        ValueError: `batch_size` below 1; or the model has another number of outputs, or weights are missing.
    """

    packages = ("transformers", "torch", "pillow")
    backend = "pil"

    def __init__(self, name: str, revision: str | None = None, batch_size: int = 8) -> None:
        if batch_size < 1:
            raise ValueError(f"`batch_size` is {batch_size}. It is a number of pictures, at least 1.")
        self.model, self.batch_size = name, batch_size
        self.revision = folder_digest(name) or revision
        self.hub_revision = revision

    def load(self, device: Any) -> Any:
        from transformers import AutoImageProcessor, AutoModelForObjectDetection

        processor = load_pretrained(AutoImageProcessor, self.model, self.hub_revision, backend="pil")
        model = load_model(AutoModelForObjectDetection, self.model, self.hub_revision).to(device)
        return model, processor

    def detect(self, pictures: list[Image.Image], loaded: Any) -> list[Detections | None]:
        model, processor = loaded
        takes_mask = "pixel_mask" in inspect.signature(model.forward).parameters
        found: list[Detections | None] = [None] * len(pictures)
        by_size: dict[tuple[int, ...], list[tuple[int, Any]]] = {}
        for place, picture in enumerate(pictures):
            if max(picture.size) <= LONGEST * min(picture.size):
                values = processor(images=picture, input_data_format="channels_last", return_tensors="pt")
                by_size.setdefault(tuple(values["pixel_values"].shape), []).append((place, values))
        for group in by_size.values():
            for start in range(0, len(group), self.batch_size):
                part = group[start : start + self.batch_size]
                logits = _forward(model, [values for _, values in part], takes_mask)  # (B, boxes, outputs)
                for (place, _), values in zip(part, logits, strict=True):
                    found[place] = self._read(values, model.config.num_labels)
        return found

    def _read(self, logits: np.ndarray, labels: int) -> Detections:
        """Shapes: logits (boxes, labels or labels + 1)."""

        if logits.shape[1] == labels + 1:
            probabilities = softmax(logits)
            classes, no_object = probabilities[:, :-1], probabilities[:, -1]
        elif logits.shape[1] == labels:
            classes, no_object = 1 / (1 + np.exp(-logits.astype(np.float64))), None
        else:
            raise ValueError(
                f"{self.model!r} has {logits.shape[1]} outputs per box and {labels} labels. A detector has as many "
                'outputs as labels, or one more for "no object"; which output means what cannot be told here.'
            )
        return Detections(classes, classes.max(axis=1), no_object)


def _forward(model: Any, inputs: list[Any], takes_mask: bool) -> np.ndarray:
    import torch

    names = ["pixel_values", "pixel_mask"] if takes_mask and "pixel_mask" in inputs[0] else ["pixel_values"]
    batch = {name: torch.cat([values[name] for values in inputs]).to(model.device) for name in names}
    with torch.inference_mode():
        return model(**batch).logits.float().cpu().numpy()


class Detections(NamedTuple):
    """The boxes that a detector gives in one picture.

    Shapes:
        class_scores (boxes, classes): a probability for each class, without "no object"; confidence (boxes,): the
        larger, the surer; no_object (boxes,): the probability of "no object", None from detectors without it; boxes
        (boxes, 4): left, top, right, bottom in any unit, None where nothing needs them.
    """

    class_scores: np.ndarray
    confidence: np.ndarray
    no_object: np.ndarray | None = None
    boxes: np.ndarray | None = None


def softmax(logits: np.ndarray) -> np.ndarray:
    """Shapes: (..., classes) -> float64 (..., classes), each row summing to 1."""
    logits = np.asarray(logits, dtype=np.float64)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=-1, keepdims=True)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """-sum p log p over the last axis, in nats, of rows that are scaled to sum 1; NaN for a row of zeros.

    Example:
        >>> entropy(np.array([[1.0, 0.0], [2.0, 2.0]])).round(4).tolist()
        [0.0, 0.6931]
    """
    values = np.asarray(probabilities, dtype=np.float64)
    total = values.sum(axis=-1, keepdims=True)
    shares = values / np.where(total > 0, total, np.nan)  # (..., classes)
    logs = np.log(np.where(shares > 0, shares, 1))  # 0 log 0 is 0
    return -(shares * logs).sum(axis=-1) + 0.0


def entropy_of_top(found: Detections, top_k: int, no_object: Literal["drop", "keep"]) -> float:
    """The summed entropy of the classes of the `top_k` most confident boxes, in nats; NaN without any box.

    Args:
        found: what the detector says; boxes whose classes all have probability 0 are no boxes.
        top_k: how many boxes at most; of equally confident ones the first.
        no_object: "keep" it as one more class, or "drop" it and scale the classes to sum 1.

    Raises:
        ValueError: "no object" is to be kept and the detector has none.

    Example:
        >>> found = Detections(np.array([[0.5, 0.5], [0.9, 0.0]]), np.array([0.5, 0.9]), np.array([0.0, 0.1]))
        >>> round(entropy_of_top(found, 1, "drop"), 4), round(entropy_of_top(found, 2, "drop"), 4)
        (0.0, 0.6931)
        >>> round(entropy_of_top(found, 1, "keep"), 4)  # -0.9 log 0.9 - 0.1 log 0.1
        0.3251
    """
    scores = np.asarray(found.class_scores, dtype=np.float64)
    usable = np.flatnonzero(scores.sum(axis=1) > 0)
    if no_object == "keep":
        if found.no_object is None:
            raise ValueError(
                "`no_object='keep'` was asked for, and this detector gives no probability of \"no object\". Use "
                "`no_object='drop'`, which is the same for a detector without it."
            )
        scores = np.concatenate([scores, np.asarray(found.no_object)[:, None]], axis=1)
    if not len(usable):
        return float("nan")
    order = np.argsort(-np.asarray(found.confidence)[usable], kind="stable")[:top_k]
    return float(entropy(scores[usable[order]]).sum())


def keep_distinct(boxes: np.ndarray, confidence: np.ndarray, overlap: float, most: int) -> np.ndarray:
    """Non-maximum suppression over all classes: the surest boxes, none of which covers another one too much.

    Args:
        boxes: left, top, right, bottom, (boxes, 4).
        confidence: (boxes,).
        overlap: a box goes if its intersection over union with a surer one is larger.
        most: stop at so many.

    Returns:
        Indices of the boxes kept, the surest first.

    Example:
        >>> boxes = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 30, 10]])
        >>> keep_distinct(boxes, np.array([0.8, 0.9, 0.1]), overlap=0.5, most=10).tolist()
        [1, 2]
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    area = np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None), axis=1)  # (boxes,)
    order, kept = np.argsort(-np.asarray(confidence), kind="stable"), []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=1)
        together = area[best] + area[order] - common
        order = order[common <= overlap * together]
    return np.array(kept, dtype=np.int64)
