"""How unsure a detector is of what it sees in a picture."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.region_files import open_regions
from hf_curriculum.data.regions import RegionSource
from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.detections import entropy_of_top
from hf_curriculum.scorers.detectors import Detector, ModelDetector
from hf_curriculum.scorers.onnx_detector import OnnxDetector
from hf_curriculum.scorers.pictures import PictureOpener, distinct_pictures
from hf_curriculum.scorers.precomputed import Background, as_detections, class_scores_of, read_classifier

if TYPE_CHECKING:
    import torch

_OPEN = 32  # pictures decoded at a time


class VisualEntropy(Scorer):
    """The entropy of the class probabilities of a picture's most confident boxes, summed over boxes, in nats.

    It comes from a detector that looks at the pictures, or from what one found before: exactly one of `detector`,
    `regions` and `probabilities` is given. The largest value is `top_k` times the logarithm of the number of classes:
    10 log 1600 = 73.78 for bottom-up attention. A picture with fewer boxes than `top_k` has a smaller sum.

    A detector's "no object" is no class: it is dropped and the classes are scaled to sum 1, so that the entropy says
    what the box may show, not whether it shows anything. `no_object="keep"` counts it as one more class. Classes with
    a sigmoid each are scaled to sum 1 too.

    Args:
        detector: the name or folder of a transformers detector, the path of an .onnx file, or a `ModelDetector` or
            `OnnxDetector` with options of its own.
        top_k: how many boxes are looked at, the most confident ones.
        no_object: "drop" or "keep".
        regions: a file with class probabilities per region (see `open_regions`), or one opened; no picture is read.
        probabilities: a column with the class probabilities themselves: per row a list of boxes, each a list.
        background: the column of "no object" in `regions` or `probabilities`; None where there is none; "auto" is the
            first of 1,601 (bottom-up attention) or 1,595 (VinVL) columns, and none otherwise.
        classifier: an .npz with `weight` (classes, dims) and `bias` (classes,), the detector's last layer, for
            `regions` with features alone.
        column: where the pictures are.
        id_column: where the ids are by which `regions` knows the pictures.
        name: the column to write.
        easy: certainty is easy by default.

    Shapes:
        float32 (rows,), in nats; NaN where there is no box, no picture, one that cannot be decoded, one that is too
        long for a transformers detector (over 40 times its width), or an id that `regions` does not have.

    Raises:
        ValueError: an option out of range, not exactly one source, or something else than probabilities.
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
    ) -> None:
        check_choice("easy", easy, ("low", "high"))
        check_choice("no_object", no_object, ("drop", "keep"))
        given = {"detector": detector, "regions": regions, "probabilities": probabilities}
        named = [key for key, value in given.items() if value is not None]
        if len(named) != 1:
            raise ValueError(
                f"VisualEntropy was given {' and '.join(named) or 'no source of class probabilities'}. It needs "
                f"exactly one of {', '.join(given)}: a detector that looks at pictures, or what one found before."
            )
        if top_k < 1:
            raise ValueError(f"`top_k` is {top_k}. It is a number of boxes, at least 1.")
        if classifier is not None and regions is None:
            raise ValueError("`classifier` turns the features of `regions` into classes, and no `regions` were given.")
        self.top_k, self.no_object, self.background = top_k, no_object, background
        self.probabilities, self.column, self.id_column = probabilities, column, id_column
        self.name, self.easy = name, easy
        self.detector = None if detector is None else resolve_detector(detector)
        self.regions = open_regions(regions) if isinstance(regions, (str, Path)) else regions
        self.classifier = None if classifier is None else str(classifier)
        self.classifier_digest = None
        if classifier is not None:
            self._layer = read_classifier(classifier)  # a file that does not fit fails here, not in a worker
            self.classifier_digest = blake2b(Path(classifier).read_bytes(), digest_size=8).hexdigest()
        if self.detector is not None:
            made = self.detector
            self.packages, self.model, self.revision = made.packages, made.model, made.revision
            self.backend, self.group_by, self.undecoded = made.backend, IMAGE_ID, (column,)
            self.columns = (column,)
        elif self.regions is not None:
            self.packages, self.columns = self.regions.packages, (id_column,)
        else:
            self.columns = (probabilities,)

    def load(self, device: torch.device) -> Any:
        return self.detector.load(device)

    def score(self, batch: dict[str, list], rank: int | None) -> np.ndarray:
        if self.detector is not None:
            return self._look(batch, rank)
        rows = batch[self.columns[0]]
        if self.regions is not None:
            known = {key: self._look_up(key) for key in dict.fromkeys(rows) if key is not None}
            return np.array([known.get(key, np.nan) for key in rows], dtype=np.float32)
        return np.array([self._given(row, scores) for row, scores in enumerate(rows)], dtype=np.float32)

    def _look(self, batch: dict[str, list], rank: int | None) -> np.ndarray:
        """Each picture of the batch once, a few decoded at a time."""
        pictures = batch[self.column]
        scores = np.full(len(pictures), np.nan, np.float32)
        distinct, opener = distinct_pictures(batch, self.column, np.ones(len(pictures), bool)), PictureOpener()
        for start in range(0, len(distinct), _OPEN):
            opened = [(opener(picture), rows) for picture, rows in distinct[start : start + _OPEN]]
            opened = [(picture, rows) for picture, rows in opened if picture is not None]
            if not opened:
                continue
            found = self.detector.detect([picture for picture, _ in opened], self.loaded(rank))
            for (picture, rows), detections in zip(opened, found, strict=True):
                if detections is None:
                    opener.failed.append("A picture of {} × {} pixels is too elongated.".format(*picture.size))
                else:
                    scores[rows] = entropy_of_top(detections, self.top_k, self.no_object)
        opener.report(self)
        return scores

    def _look_up(self, image_id: Any) -> float:
        if image_id not in self.regions:
            return float("nan")
        regions = self.regions[image_id]
        scores = class_scores_of(regions, self._weights())
        found = as_detections(scores, regions.confidence, self.background, f"The classes of image {image_id!r}")
        return entropy_of_top(found, self.top_k, self.no_object)

    def _weights(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self.classifier is None:
            return None
        if "_layer" not in self.__dict__:
            self._layer = read_classifier(self.classifier)
        return self._layer

    def _given(self, row: int, scores: Any) -> float:
        if scores is None or len(scores) == 0:
            return float("nan")
        what = f"`{self.probabilities}` in row {row} of the batch"
        return entropy_of_top(as_detections(scores, None, self.background, what), self.top_k, self.no_object)

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        arguments["detector"] = None if self.detector is None else self.detector.arguments()
        arguments["regions"] = None if self.regions is None else self.regions.arguments()
        arguments["classifier"] = self.classifier_digest
        return arguments


def resolve_detector(detector: str | Path | Detector) -> Detector:
    """The detector that a name, a path or a detector stands for.

    Raises:
        TypeError: none of these.
        FileNotFoundError: no such .onnx file.
    """
    if isinstance(detector, Detector):
        return detector
    if not isinstance(detector, (str, Path)):
        raise TypeError(
            f"A detector cannot be a {type(detector).__name__}. Give the name or folder of a transformers detector, "
            "the path of an .onnx file, or a `ModelDetector` or `OnnxDetector`; each worker loads its own."
        )
    return OnnxDetector(detector) if str(detector).endswith(".onnx") else ModelDetector(str(detector))
