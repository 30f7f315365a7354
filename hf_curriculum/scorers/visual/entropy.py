"""Predictive entropy of detections."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.config import at_least, digest
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import Aggregate, ImageScorer
from hf_curriculum.scorers.visual.detectors import Detections, Detector, ModelDetector, entropy_of_top, softmax
from hf_curriculum.scorers.visual.images import open_image, read_images
from hf_curriculum.scorers.visual.onnx import OnnxDetector

if TYPE_CHECKING:
    import torch


_OPEN = 32  # images that a detector is given at a time


class VisualEntropy(ImageScorer):
    """Predictive entropy of an image's detections, summed over its highest-confidence boxes, in nats.

    The class probabilities come from a detector or from stored detections: give exactly one of `detector`, `regions`
    and `probabilities`. The largest value is `top_k` times the logarithm of the number of classes: 10 log 1600 = 73.78
    for bottom-up attention. An image with fewer boxes than `top_k` has a smaller sum.

    A detector's "no object" is dropped and the classes are scaled to sum 1, as are classes with a sigmoid each.
    `no_object="keep"` counts it as one more class.

    Args:
        detector: the name or folder of a transformers detector, the path of an .onnx file, or a `ModelDetector` or
            `OnnxDetector` with options of its own.
        top_k: the number of boxes, of the highest confidence.
        no_object: "drop" or "keep".
        regions: a file with class probabilities per region (see `open_regions`), or one opened; no image is read.
        probabilities: a column with the class probabilities themselves: per row a list of boxes, each a list.
        background: the column of "no object" in `regions` or `probabilities`; None where there is none; "auto" is the
            first of 1,601 (bottom-up attention) or 1,595 (VinVL) columns, and none otherwise.
        classifier: an .npz with `weight` (classes, dims) and `bias` (classes,), the detector's last layer, for
            `regions` with features alone.
        column: where the images are, one or a list of them in a row.
        id_column: where the ids of images in `regions` are.
        name: the column to write.
        easy: low entropy is easy by default.
        aggregate: of a row with a list of images, the "mean", "max" or "min" of their scores.

    Shapes:
        float32 (rows,), in nats. NaN where there is no box or no image, or the image cannot be decoded or is too long
        for a transformers detector (over 40 times its width). Also for an empty list or one with such an image, and an
        id that `regions` does not have.

    Raises:
        ValueError: an option out of range, not exactly one source, or numbers that are no probabilities.
        FileNotFoundError: no such file or model.
        ImportError: onnxruntime, h5py or SciPy is missing and needed.
        TypeError: a detector of another type.

    Source: Zhang et al. 2022 (Simi-CL), §3.1, the visual part of Addup-CL: top 10 boxes, 1,600 classes. Whether "no
    object" is dropped is not stated there.

    Example:
        >>> boxes = [[0.5, 0.5], [1.0, 0.0]]
        >>> VisualEntropy(probabilities="boxes")({"boxes": [boxes, []]})["visual_entropy"].round(4)
        array([0.6931,    nan], dtype=float32)
    """

    def __init__(
        self,
        detector: str | Path | Detector | None = None,
        top_k: int = 10,
        *,
        no_object: Literal["drop", "keep"] = "drop",
        regions: str | Path | RegionSource | None = None,
        probabilities: str | None = None,
        background: Background = "auto",
        classifier: str | Path | None = None,
        column: str = IMAGE,
        id_column: str = IMAGE_ID,
        name: str = "visual_entropy",
        easy: Literal["low", "high"] = "low",
        aggregate: Aggregate = "mean",
    ) -> None:
        validate_choice("no_object", no_object, ("drop", "keep"))
        given = {"detector": detector, "regions": regions, "probabilities": probabilities}
        named = [key for key, value in given.items() if value is not None]
        if len(named) != 1:
            found = " and ".join(named) or "no source of class probabilities"
            raise ValueError(f"VisualEntropy was given {found}. It needs exactly one of {', '.join(given)}.")
        at_least("VisualEntropy", top_k=(top_k, 1))
        if classifier is not None and regions is None:
            raise ValueError("`classifier` reads the features of `regions`, and no `regions` were given.")
        self.top_k = top_k
        self.no_object = no_object
        self.background = background
        self.probabilities = probabilities
        self.column = column
        self.id_column = id_column
        self.detector: Detector | None = None if detector is None else resolve_detector(detector)
        self.regions: RegionSource | None = open_regions(regions) if isinstance(regions, (str, Path)) else regions
        self.classifier: str | None = None if classifier is None else str(classifier)
        self.classifier_digest = None
        if classifier is not None:
            self._layer = read_classifier(classifier)  # an unfit file is an error here, not in a worker
            self.classifier_digest: str = digest(Path(classifier))
        source = self.detector or self.regions
        self.packages: tuple[str, ...] = () if source is None else source.packages
        if self.detector is not None:
            self.model: str | None = self.detector.model
            self.revision: str | None = self.detector.revision
            self.backend: str | None = self.detector.backend
            self.group_by: str = IMAGE_ID
            self._set_columns((column,), name, easy, decode_false=(column,))
        else:
            self._set_columns((probabilities if self.regions is None else id_column,), name, easy)
        self._set_aggregate(aggregate)

    def load(self, device: torch.device) -> Any:
        return self.detector.load(device)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        if self.detector is not None:
            return self._detect(batch, rank)
        rows = batch[self.columns[0]]
        if self.regions is not None:
            found = {key: self._of_regions(key) for key in dict.fromkeys(rows) if key is not None}
            return np.array([found.get(key, np.nan) for key in rows], dtype=np.float32)
        return np.array([self._given(row, scores) for row, scores in enumerate(rows)], dtype=np.float32)

    def _detect(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        """Each image of the batch once, a few at a time."""
        scores = np.full(len(batch[self.column]), np.nan, np.float32)
        loaded, every = self.loaded(rank), np.ones(len(scores), bool)
        images = read_images(
            self, batch, self.column, every, lambda stored: self.detector.read(open_image(stored), loaded)
        )
        while some := list(islice(images, _OPEN)):
            found = self.detector.detect([image for image, _ in some], loaded)
            for (_, rows), detections in zip(some, found, strict=True):
                scores[rows] = entropy_of_top(detections, self.top_k, self.no_object)
        return scores

    def _of_regions(self, image_id: Any) -> float:
        if image_id not in self.regions:
            return float("nan")
        regions = self.regions[image_id]
        if self.classifier is not None and "_layer" not in self.__dict__:
            self._layer = read_classifier(self.classifier)
        scores = class_scores_of(regions, None if self.classifier is None else self._layer)
        found = as_detections(scores, regions.confidence, self.background, f"The classes of image {image_id!r}")
        return entropy_of_top(found, self.top_k, self.no_object)

    def _given(self, row: int, scores: Any) -> float:
        if scores is None or len(scores) == 0:
            return float("nan")
        what = f"`{self.probabilities}` in row {row} of the batch"
        return entropy_of_top(as_detections(scores, None, self.background, what), self.top_k, self.no_object)

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"classifier": self.classifier_digest}


def resolve_detector(detector: str | Path | Detector) -> Detector:
    """A detector from its name, a path or a detector."""
    if isinstance(detector, Detector):
        return detector
    return OnnxDetector(detector) if str(detector).endswith(".onnx") else ModelDetector(str(detector))


BACKGROUND_FIRST = (1601, 1595)
"""Numbers of columns of bottom-up attention and VinVL: "no object", then 1,600 or 1,594 classes."""
Background = int | Literal["auto"] | None


def as_detections(scores: Any, confidence: np.ndarray | None, background: Background, what: str) -> Detections:
    """Detections from probabilities (boxes, columns); `background` is the column of "no object"."""
    try:
        scores = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is no table of numbers ({error}): one row per box, one column per class.") from error
    if scores.size == 0:
        return Detections(np.zeros((0, 1)), np.zeros(0), np.zeros(0))
    if scores.ndim != 2:
        raise ValueError(f"{what} has the shape {scores.shape}: one row per box and one column per class are needed.")
    if not (np.isfinite(scores).all() and scores.min() >= 0 and scores.max() <= 1.001):
        found = f"{what} has numbers from {scores.min():g} to {scores.max():g}, which are no probabilities"
        raise ValueError(f"{found}. Apply a softmax to logits first.")
    columns = scores.shape[1]
    if background == "auto":
        background = 0 if columns in BACKGROUND_FIRST else None
    no_object = None
    if background is not None:
        if not -columns <= background < columns or columns < 2:
            raise ValueError(f"{what} has {columns} columns, so `background` cannot be column {background}.")
        no_object = scores[:, background]
        scores = np.delete(scores, background, axis=1)
    return Detections(scores, scores.max(axis=1) if confidence is None else np.asarray(confidence), no_object)


def read_classifier(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """`weight` (classes, dims) and `bias` (classes,) of a detector's last layer, from an .npz."""
    with np.load(path) as content:
        if not {"weight", "bias"} <= set(content):
            raise ValueError(f"{path} holds {sorted(content)}, not a classifier's `weight` and `bias`.")
        weight, bias = content["weight"].astype(np.float64), content["bias"].astype(np.float64)
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        shapes = f"`weight` of shape {weight.shape} and `bias` of {bias.shape}"
        raise ValueError(f"{path} has {shapes}, not (classes, dims) and (classes,).")
    return weight, bias


def class_scores_of(regions: Regions, classifier: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Class probabilities (regions, classes): those of the file, or a classifier's of the features."""
    if len(regions) == 0:
        return np.zeros((0, 1))
    if classifier is None:
        if regions.class_scores is None:
            raise ValueError(
                f"The regions of image {regions.image_id!r} have no class probabilities. Bottom-up attention's "
                "published tables hold features only: pass `classifier=`, the detector's last layer, or write a table "
                "with `cls_prob`."
            )
        return regions.class_scores
    weight, bias = classifier
    if regions.features is None or regions.features.shape[1] != weight.shape[1]:
        found = "no features" if regions.features is None else f"features of {regions.features.shape[1]} numbers"
        raise ValueError(
            f"The regions of image {regions.image_id!r} have {found}, and the classifier takes {weight.shape[1]}. "
            "Give the last layer of the detector that made them."
        )
    return softmax(regions.features @ weight.T + bias)
