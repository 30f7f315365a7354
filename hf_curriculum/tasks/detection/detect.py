"""`add_detections`: the objects that a detector finds in images, as a column."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.grouping import image_codes
from hf_curriculum.data.image_files import stored_images
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.readers.coco import OBJECTS
from hf_curriculum.parts import PartFolder, data_digest, launched
from hf_curriculum.provenance import ScoreProvenance, append_columns, validate_new_columns
from hf_curriculum.scorers.base import installed_versions
from hf_curriculum.scorers.text.mentions import COCO_NAMES
from hf_curriculum.scorers.visual.detectors import Detections, Detector
from hf_curriculum.scorers.visual.images import image_workers, open_image, read_ahead

logger: logging.Logger = logging.getLogger(__name__)

FEATURE: Any = List({"name": Value("string"), "box": List(Value("float32"), length=4), "confidence": Value("float32")})
"""The column: of each object its class, left, top, right, bottom in pixels of the stored image, and how sure."""
_BATCH = 32  # images opened at a time


def add_detections(
    dataset: Dataset,
    detector: Detector,
    *,
    names: Sequence[str] | str | None = None,
    min_confidence: float = 0.5,
    most: int = 100,
    column: str = OBJECTS,
    num_workers: int = 0,
    cache_dir: str | Path | None = None,
    rows_per_part: int = 1000,
    timeout: float = 3600.0,
    overwrite: bool = False,
) -> Dataset:
    """Runs a detector on images and adds a column of objects: for an ontology, labels or scores.

    Each image is read once, however many captions it has. With `cache_dir` finished parts are kept: an interrupted
    call continues with the missing ones, and several processes (`accelerate launch`, `torchrun`) share the work.

    Args:
        dataset: with `image`, and `image_id` where several rows share one.
        detector: `ModelDetector("facebook/detr-resnet-50")`, `OnnxDetector("FastestDet.onnx")` or your own.
        names: of the detector's classes in their order, or "coco" for its 80; by default the detector's own.
        min_confidence: detections below are left out.
        most: detections of an image at most, those of highest confidence.
        column: to write.
        num_workers: processes that open and prepare images while the detector computes; 0: in turns with it.
        cache_dir: where to keep finished parts.
        rows_per_part: images in each.
        timeout: seconds to wait for a further part of another process.
        overwrite: replace the column where it exists, in place of an error.

    Returns:
        The data set with the column: per row a list of objects with `name`, `box` and `confidence`, the highest
        confidence first; None where the image cannot be read.

    Shapes and units: boxes are left, top, right, bottom in pixels of the image as it is stored.

    Raises:
        TypeError: no data set, or no detector.
        ValueError: a column is missing or exists, the detector gives no boxes, or its classes have no names or another
            number of them. Or no image can be read, or `cache_dir` holds parts of another run.

    Example:
        >>> data = add_detections(data, OnnxDetector("FastestDet.onnx"), names="coco")  # doctest: +SKIP
        >>> ontology = Ontology.induce(data, "objects")  # doctest: +SKIP
    """
    if not isinstance(dataset, Dataset) or not isinstance(detector, Detector):
        wrong = dataset if not isinstance(dataset, Dataset) else detector
        raise TypeError(
            f"`add_detections` was given {kind_of(wrong)}. It takes a `datasets.Dataset` (one split), and a detector "
            "such as `ModelDetector(name)` or `OnnxDetector(path)`."
        )
    require_columns(
        dataset.column_names, [IMAGE], reader="A detector looks at images.", remedy="Load the data with its images."
    )
    if not 0 <= min_confidence <= 1 or most < 1 or rows_per_part < 1:
        raise ValueError(
            f"`min_confidence` is {min_confidence}, `most` {most} and `rows_per_part` {rows_per_part}. The first is "
            "from 0 to 1, the others at least 1."
        )
    validate_new_columns(dataset.column_names, [column], overwrite)
    images = np.arange(len(dataset))
    if IMAGE_ID in dataset.column_names:
        images = image_codes(dataset)
    firsts = np.unique(images, return_index=True)[1]
    distinct = dataset.select_columns([IMAGE]).select(firsts)
    run = _Run(detector, COCO_NAMES if names == "coco" else names, min_confidence, most)
    if cache_dir is None:
        with image_workers(num_workers):
            found = pa.chunked_array([run.find(distinct, range(len(distinct)))])
    else:
        about = {**run.made_by(), "data": data_digest(distinct)}
        rank, world_size = launched()
        parts = PartFolder(cache_dir, about, len(distinct), rows_per_part, single_process=world_size == 1)
        with image_workers(num_workers):
            for part in parts.missing(range(rank, parts.count, world_size)):
                parts.write(part, {column: run.find(distinct, parts.rows_of(part))})
        found = parts.read_all(timeout).column(column)
    if len(distinct) and found.null_count == len(found):
        raise ValueError(f"None of the {len(distinct):,} images can be read: no object was found. Look at the files.")
    made = ScoreProvenance(
        column,
        "add_detections",
        run.made_by(),
        model=getattr(detector, "model", None),
        revision=getattr(detector, "revision", None),
        versions=installed_versions(("hf-curriculum", *detector.packages)),
        backend=getattr(detector, "backend", None),
    )
    values = found.combine_chunks().take(pa.array(images))
    return append_columns(dataset, {column: values}, {column: made}, features={column: FEATURE}, overwrite=overwrite)


class _Run:
    """A detector with its classes and limits; it is loaded at the first image."""

    def __init__(self, detector: Detector, names: Sequence[str] | None, min_confidence: float, most: int) -> None:
        self.detector = detector
        self.names = None if names is None else tuple(names)
        self.min_confidence = min_confidence
        self.most = most

    def made_by(self) -> dict[str, Any]:
        """What the detections follow from."""
        limits = {"min_confidence": self.min_confidence, "most": self.most}
        return {"detector": self.detector.arguments(), "names": self.names and list(self.names), **limits}

    def find(self, images: Dataset, rows: range) -> pa.Array:
        """The objects of these images."""
        loaded, found, failed = self.detector.loaded(), [], []
        sides = self.detector.box_sides(loaded)
        names = self.detector.class_names(loaded) if self.names is None else self.names
        if names is None:
            raise ValueError(
                f"{self.detector!r:.120} does not know the names of its classes, by which objects are stored. Pass "
                '`names=`, a list of them in their order, or "coco" for its 80.'
            )

        def read(stored: Any) -> tuple[tuple[int, int], Any]:
            image = open_image(stored)
            return image.size, self.detector.read(image, loaded)

        for start in range(rows.start, rows.stop, _BATCH):
            stored = stored_images(images.select(range(start, min(start + _BATCH, rows.stop))))
            opened = list(read_ahead(self.detector, stored, read))
            there = [one for one in opened if not isinstance(one, UnreadableImageError)]
            detected = iter(self.detector.detect([one for _, one in there], loaded) if there else [])
            for one in opened:
                if isinstance(one, UnreadableImageError):
                    failed.append(str(one))
                    found.append(None)
                else:
                    found.append(self._objects(next(detected), one[0], sides, names))
        if failed:
            what = "%d images cannot be read, and their objects are unknown. The first: %s"
            logger.warning(what, len(failed), failed[0])
        return pa.array(found, Features({"objects": FEATURE}).arrow_schema.field("objects").type)

    def _objects(
        self, found: Detections, size: tuple[int, int], sides: tuple[float, float], names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The objects of an image, boxes in its pixels."""
        scores = np.asarray(found.class_scores)
        if scores.shape[1] != len(names):
            raise ValueError(
                f"{self.detector!r:.120} has {scores.shape[1]} classes, and {len(names)} names were given: objects "
                "would get wrong ones. Give one name per class, in their order."
            )
        if found.boxes is None:
            raise ValueError(
                f"{self.detector!r:.120} gives no boxes (`Detections.boxes`), so it is not known where objects are. "
                "Return them from `detect`."
            )
        scale = np.array([size[0] / sides[0], size[1] / sides[1]] * 2)
        boxes = np.clip(np.asarray(found.boxes) * scale, 0, [size[0], size[1]] * 2)
        order = np.argsort(-np.asarray(found.confidence), kind="stable")
        sure = order[np.asarray(found.confidence)[order] >= self.min_confidence][: self.most]
        best = scores.argmax(axis=1)
        return [
            {
                "name": names[best[at]],
                "box": boxes[at].astype(np.float32).tolist(),
                "confidence": float(found.confidence[at]),
            }
            for at in sure
        ]
