"""Detectors behind one call: pictures in, class probabilities of boxes out."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from PIL import Image

from hf_curriculum.scorers.base import public_state
from hf_curriculum.scorers.detections import Detections
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
        from hf_curriculum.scorers.detections import softmax

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
