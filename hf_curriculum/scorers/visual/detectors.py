"""Object detectors with one interface: images → class probabilities of boxes."""

from __future__ import annotations

import inspect
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from hf_curriculum.config import at_least
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.models.on_host import to_device
from hf_curriculum.scorers.base import Component
from hf_curriculum.scorers.pretrained import folder_digest, load_model, load_pretrained
from hf_curriculum.scorers.visual.images import batches_of_one_size

LONGEST = 40
"""An image more than so many times as long as wide has a side of no pixel after resizing for a detector."""


class Detector(Component):
    """Class probabilities of the boxes of an image; a subclass defines `load`, `detect`, and `read` where it has to.

    Attributes:
        packages: distributions whose versions decide the result.
        model, revision: for the provenance of scores.
        backend: what preprocesses images.
    """

    def read(self, image: Image.Image, loaded: Any) -> Any:
        """What `detect` takes of an RGB image, by default itself; `loaded` is what `load` returned.

        It is called ahead of need, in processes of their own where these were asked for, and must not use the device.

        Raises:
            UnreadableImageError: the image cannot be resized.
        """
        return image

    def detect(self, images: list[Any], loaded: Any) -> list[Detections]:
        """Detections of each image, as `read` returned it."""
        raise NotImplementedError(f"{type(self).__name__} does not define `detect`.")

    def class_names(self, loaded: Any) -> tuple[str, ...] | None:
        """The names of the classes, in the order of `class_scores`; None where the detector does not know them."""
        return None

    def box_sides(self, loaded: Any) -> tuple[float, float]:
        """Width and height of an image in the unit of `Detections.boxes`: (1, 1) for shares of its sides."""
        return 1.0, 1.0


class ModelDetector(Detector):
    """Any `AutoModelForObjectDetection` of transformers: DETR, YOLOS, RT-DETR and their like.

    The outputs of a model with one more than it has labels are a softmax, and the last is "no object" (DETR, YOLOS).
    Those of one with as many as labels are sigmoids, without "no object" (Conditional and Deformable DETR, RT-DETR).
    Images are batched by their size after resizing, because padding changes the outputs.

    Args:
        name: a folder, or a repository of the Hub.
        revision: of the repository.
        batch_size: images per forward pass.

    Raises:
        FileNotFoundError: there is no such model, when it is loaded.
        ValueError: `batch_size` below 1; or the model has another number of outputs, or weights are missing.
    """

    packages: tuple[str, ...] = ("transformers", "torch", "pillow")
    backend: str = "pil"

    def __init__(self, name: str, revision: str | None = None, batch_size: int = 8) -> None:
        at_least("ModelDetector", batch_size=(batch_size, 1))
        self.model: str = name
        self.batch_size = batch_size
        self.revision: str | None = folder_digest(name) or revision
        self.hub_revision = revision

    def load(self, device: Any) -> Any:
        from transformers import AutoImageProcessor, AutoModelForObjectDetection

        processor = load_pretrained(AutoImageProcessor, self.model, self.hub_revision, backend="pil")
        model = load_model(AutoModelForObjectDetection, self.model, self.hub_revision).to(device)
        return model, processor

    def read(self, image: Image.Image, loaded: Any) -> Any:
        if max(image.size) > LONGEST * min(image.size):
            raise UnreadableImageError("An image of {} × {} pixels is too elongated.".format(*image.size))
        return dict(loaded[1](images=image, input_data_format="channels_last", return_tensors="pt"))

    def detect(self, images: list[Any], loaded: Any) -> list[Detections]:
        found: dict[int, Detections] = {}
        resized = ((values["pixel_values"], [index]) for index, values in enumerate(images))
        for batch in batches_of_one_size(resized, self.batch_size):
            rows = [row for row, _ in batch]
            logits, boxes = _forward(loaded[0], [images[row] for row in rows])  # (B, boxes, outputs), (B, boxes, 4)
            for row, values, edges in zip(rows, logits, boxes, strict=True):
                found[row] = self._read(values, loaded[0].config.num_labels, edges)
        return [found[row] for row in range(len(images))]

    def class_names(self, loaded: Any) -> tuple[str, ...]:
        config = loaded[0].config
        return tuple(str(config.id2label[label]) for label in range(config.num_labels))

    def _read(self, logits: np.ndarray, labels: int, boxes: np.ndarray | None = None) -> Detections:
        """Detections from logits (boxes, labels or labels + 1), and boxes as shares of the sides (boxes, 4)."""
        if logits.shape[1] == labels + 1:
            probabilities = softmax(logits)
            classes, no_object = probabilities[:, :-1], probabilities[:, -1]
        elif logits.shape[1] == labels:
            classes, no_object = 1 / (1 + np.exp(-logits.astype(np.float64))), None
        else:
            raise ValueError(
                f"{self.model!r} has {logits.shape[1]} outputs per box and {labels} labels. A detector has one "
                'output per label, or one more for "no object".'
            )
        return Detections(classes, classes.max(axis=1), no_object, boxes)


def _forward(model: Any, inputs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and boxes (left, top, right, bottom) as shares of the sides."""
    import torch

    takes = {"pixel_values", *inspect.signature(model.forward).parameters}
    names = [name for name in ("pixel_values", "pixel_mask") if name in takes and name in inputs[0]]
    batch = {name: to_device(torch.cat([values[name] for values in inputs]), model.device) for name in names}
    with torch.inference_mode():
        outputs = model(**batch)
    middle, side = outputs.pred_boxes.float().split(2, dim=-1)
    boxes = torch.cat([middle - side / 2, middle + side / 2], dim=-1).clamp(0, 1)
    return outputs.logits.float().cpu().numpy(), boxes.cpu().numpy()


class Detections(NamedTuple):
    """The boxes that a detector finds in an image.

    Shapes:
        class_scores (boxes, classes): probabilities, without "no object"; confidence (boxes,); no_object (boxes,):
        probabilities, None from detectors without it; boxes (boxes, 4): left, top, right, bottom in any unit, or None.
    """

    class_scores: np.ndarray
    confidence: np.ndarray
    no_object: np.ndarray | None = None
    boxes: np.ndarray | None = None


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, in float64."""
    logits = np.asarray(logits, dtype=np.float64)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=-1, keepdims=True)


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """-sum p log p over the last axis, in nats, of rows that are scaled to sum 1; NaN for a row of zeros."""
    values = np.asarray(probabilities, dtype=np.float64)
    total = values.sum(axis=-1, keepdims=True)
    shares = values / np.where(total > 0, total, np.nan)  # (..., classes)
    logs = np.log(np.where(shares > 0, shares, 1))  # 0 log 0 is 0
    return -(shares * logs).sum(axis=-1) + 0.0


def entropy_of_top(found: Detections, top_k: int, no_object: Literal["drop", "keep"]) -> float:
    """The predictive entropy of the `top_k` highest-confidence boxes, summed, in nats; NaN without boxes."""
    scores = np.asarray(found.class_scores, dtype=np.float64)
    usable = np.flatnonzero(scores.sum(axis=1) > 0)
    if no_object == "keep":
        if found.no_object is None:
            raise ValueError("`no_object='keep'` was given, but this detector gives no \"no object\". Use 'drop'.")
        scores = np.concatenate([scores, np.asarray(found.no_object)[:, None]], axis=1)
    if not len(usable):
        return float("nan")
    order = np.argsort(-np.asarray(found.confidence)[usable], kind="stable")[:top_k]
    return float(entropy(scores[usable[order]]).sum())


def keep_distinct(boxes: np.ndarray, confidence: np.ndarray, overlap: float, most: int) -> np.ndarray:
    """Non-maximum suppression over all classes: indices of up to `most` boxes, best first."""
    boxes = np.asarray(boxes, dtype=np.float64)
    area = np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None), axis=1)  # (boxes,)
    order, kept = np.argsort(-np.asarray(confidence), kind="stable"), []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=1)
        union = area[best] + area[order] - common
        order = order[common <= overlap * union]
    return np.array(kept, dtype=np.int64)
