"""Batches of images with proposals, and the loss of a constant detector."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.provenance import read_column
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.detection.config import validate_classes
from hf_curriculum.tasks.detection.image_processing import (
    SHORTEST,
    View,
    WsddnImageProcessor,
    stack_views,
    validate_boxes,
)

logger: logging.Logger = logging.getLogger(__name__)


@validate_arguments
def constant_loss(dataset: Dataset, column: str = "labels") -> float:
    """Computes the training loss of a detector that predicts every class's frequency for every image.

    No constant prediction has a lower loss. A run whose final training loss is not below it has learned nothing from
    the images, though its loss is finite: `StopWhenDiverged(constant_loss(train))` ends such runs as diverged.

    Args:
        dataset: one row per image.
        column: of lists of class numbers, `List(ClassLabel)`.

    Returns:
        The binary cross-entropy summed over classes, in nats.

    Raises:
        ValueError: there is no such column, it holds no lists of classes, or no image has a class.

    Example:
        >>> from datasets import ClassLabel, Features, List
        >>> features = Features({"labels": List(ClassLabel(names=["dog", "cat"]))})
        >>> data = Dataset.from_dict({"labels": [[0], [0, 1]]}, features=features)
        >>> round(constant_loss(data), 6)  # all have dogs, half have cats: ln 2
        0.693147
    """
    require_columns(
        dataset.column_names,
        (column,),
        reader="The frequency of its classes is needed.",
        remedy="Make labels with `add_labels`, or name the column, `constant_loss(dataset, column=)`.",
    )
    of_lists: Any = getattr(dataset.features[column], "feature", None)
    if not hasattr(of_lists, "names"):
        raise ValueError(
            f"`{column}` is {dataset.features[column]}, and labels of images are lists of classes, "
            "`List(ClassLabel(names=...))`. Make them with `add_labels`, or cast the column (`dataset.cast_column`)."
        )
    rows = read_column(dataset, column)
    found = rows.flatten().to_numpy(zero_copy_only=False)
    if not len(found):
        raise ValueError(f"None of the {len(rows):,} rows has a class in `{column}`: there is nothing to learn.")
    shares = np.bincount(found, minlength=of_lists.num_classes) / len(rows)
    # At 0 and 1 a constant prediction is never wrong.
    either = np.stack([shares, 1 - shares])
    return float(-(either * np.log(either, out=np.zeros_like(either), where=either > 0)).sum())


class PreparedImage(NamedTuple):
    """An image as `DetectionCollator.prepare` leaves it.

    Args:
        views: of the image: one in training.
        labels: 0 or 1 for each class, float32 (classes,).
        objectness: of its proposals, float32 (proposals,), or None.
        size: height and width of the stored image.
    """

    views: list[View]
    labels: np.ndarray | None
    objectness: np.ndarray | None
    size: tuple[int, int]


class DetectionCollator:
    """Makes batches of images, their region proposals and labels for `WsddnForObjectDetection`.

    In training an image and its boxes are resized to one of `sizes` and mirrored or not, by the seed of the draw. In
    evaluation the image processor reads it as in tests.

    Args:
        image_processor: of the detector; it has the names of the classes.
        sizes: lengths of the edge that the processor's `size` names, one of which is drawn for each image; by default
            the processor's own.
        flip: mirror half of the images.
        image_column: the column of images, in any form `to_rgb` reads.
        proposals_column: the column of boxes, left, top, right, bottom in pixels of the stored image
            (`add_proposals`).
        labels_column: the column of lists of class numbers; None for images without labels.
        objectness_column: the column of the boxes' scores, for a model with `objectness=True`.

    Shapes: `labels` (B, C) float32 of 0 and 1. `proposals` (N, P, 4) float32 in pixels of the resized images, padded
        with zeros, and `proposal_counts` (N,) int64. `pixel_values`, a list of N float32 (3, H, W) of any sizes.
        `objectness` (N, P) float32. N is B in training. In evaluation there are `image_sizes` (B, 2) int64, height and
        width of the stored images, and, where scores are averaged over views, `view_index` (N,) int64.

    Attributes:
        num_without_proposals: images without any, counted in each process; they add no gradient.

    Raises:
        ValueError: an edge of less than 32 pixels, a processor with fewer than two classes, a missing column, or a
            label that is none of the classes. Or boxes lie beyond their image, or scores are not one finite number per
            box.
        UnreadableImageError: an image cannot be decoded (a ValueError too).

    Source: Bilen & Vedaldi 2016, section 4: five sizes, half of the images mirrored.

    Example:
        >>> from PIL import Image
        >>> collator = DetectionCollator(WsddnImageProcessor(["dog", "cat"], size={"longest_edge": 64}))
        >>> row = {"image": Image.new("RGB", (40, 20)), "proposals": [[0, 0, 20, 10]], "labels": [1]}
        >>> batch = collator([row])
        >>> batch["labels"].tolist(), batch["proposals"].tolist()
        ([[0.0, 1.0]], [[[0.0, 0.0, 32.0, 16.0]]])
    """

    lists_pictures = True
    """Pictures are a list, which `nn.DataParallel` cannot split: a trainer refuses it."""

    @validate_arguments
    def __init__(
        self,
        image_processor: WsddnImageProcessor,
        sizes: Sequence[int] | None = None,
        flip: bool = False,
        *,
        image_column: str = IMAGE,
        proposals_column: str = "proposals",
        labels_column: str | None = "labels",
        objectness_column: str | None = None,
    ) -> None:
        if labels_column is not None and image_processor.class_names is None:
            raise ValueError(
                "The image processor has no `class_names`, so it is not known how many classes labels are of. Build "
                "it with them, `WsddnImageProcessor(class_names=...)`, or pass `labels_column=None` for images alone."
            )
        if labels_column is not None:
            validate_classes(len(image_processor.class_names))
        self.sizes: list[int] = [image_processor.edge] if sizes is None else [int(size) for size in sizes]
        if not self.sizes or min(self.sizes) < SHORTEST:
            raise ValueError(
                f"`sizes={sizes}` was given. They are lengths of an edge in pixels to draw from: one or more, each at "
                f"least {SHORTEST}."
            )
        self.image_processor = image_processor
        self.flip = flip
        self.image_column = image_column
        self.proposals_column = proposals_column
        self.labels_column = labels_column
        self.objectness_column = objectness_column
        self.num_without_proposals: int = 0
        self._evaluates = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads."""
        named = (self.image_column, self.proposals_column, self.labels_column, self.objectness_column)
        return tuple(name for name in named if name is not None)

    @property
    def is_random(self) -> bool:
        """Whether preparing an example draws random numbers: a size or a mirrored image."""
        return not self._evaluates and (len(self.sizes) > 1 or self.flip)

    def without_augmentation(self) -> DetectionCollator:
        """The same collator for evaluation: images as the processor reads them in tests, and their stored sizes."""
        plain = copy.copy(self)
        plain._evaluates = True
        return plain

    @validate_arguments
    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> PreparedImage:
        """One example, read, resized and mirrored: all that depends on no other example."""
        require_columns(
            example,
            self.columns,
            reader="The collator reads them.",
            remedy="Make proposals with `add_proposals` and labels with `add_labels`, or name your columns, "
            "`DetectionCollator(proposals_column=, labels_column=)`.",
        )
        image_id = str(example.get(IMAGE_ID, ""))
        try:
            image = to_rgb(example[self.image_column])
        except UnreadableImageError as error:
            raise UnreadableImageError(f"The image `{image_id}`: {error}" if image_id else str(error)) from error
        boxes = validate_boxes(example[self.proposals_column], image.size, image_id)
        if self._evaluates:
            views = self.image_processor.test_views(image, boxes)
        else:
            edge = random.choice(self.sizes) if len(self.sizes) > 1 else self.sizes[0]
            views = [self.image_processor.view(image, boxes, edge, self.flip and random.random() < 0.5)]
        scores = None if self.objectness_column is None else self._scores(example, len(boxes), image_id)
        return PreparedImage(views, self._labels(example), scores, image.size[::-1])

    def _scores(self, example: dict[str, Any], boxes: int, image_id: str) -> np.ndarray:
        found = example[self.objectness_column]
        scores = np.asarray([] if found is None else found, np.float32)
        if scores.shape != (boxes,):
            raise ValueError(
                f"`{self.objectness_column}` of image {image_id!r} has {scores.size} scores for {boxes} proposals. "
                "Each proposal has its own: add both columns from the same source."
            )
        if not np.isfinite(scores).all():
            raise ValueError(
                f"`{self.objectness_column}` of image {image_id!r} has a score that is not finite: its file has "
                "scores of other images and none of this one's. Features are multiplied by them, and NaN would spoil "
                "all weights. Leave such images out, or train without objectness."
            )
        return scores

    def collate(self, prepared: list[PreparedImage]) -> dict[str, Any]:
        """The batch of prepared examples."""
        batch: dict[str, Any] = {}
        if self.labels_column is not None:
            # First: `Trainer` takes the length of a batch from what comes first.
            batch["labels"] = torch.from_numpy(np.stack([item.labels for item in prepared]))
        if self._evaluates:
            batch["image_sizes"] = torch.tensor([item.size for item in prepared])
        else:
            self._count_empty(prepared)
        scores = None if self.objectness_column is None else [item.objectness for item in prepared]
        return batch | stack_views([item.views for item in prepared], scores)

    def _labels(self, example: dict[str, Any]) -> np.ndarray | None:
        if self.labels_column is None:
            return None
        names, found = self.image_processor.class_names, example[self.labels_column]
        wrong = [label for label in found or () if not 0 <= label < len(names)]
        if found is None or wrong:
            given = f"has the class {wrong[0]}" if wrong else "has no list of classes (None)"
            raise ValueError(
                f"`{self.labels_column}` of image {str(example.get(IMAGE_ID, ''))!r} {given}, and the detector's "
                f"{len(names)} classes are numbered from 0: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}. "
                "Give the image processor the class list that the labels were made with, in its order."
            )
        labels = np.zeros(len(names), dtype=np.float32)
        labels[list(found)] = 1
        return labels

    def _count_empty(self, prepared: list[PreparedImage]) -> None:
        """Counts images without proposals, and warns of the first."""
        empty = sum(not len(item.views[0].boxes) for item in prepared)
        if empty and not self.num_without_proposals:
            logger.warning(
                "An image has no region proposals: it adds nothing to the loss, and nothing is learnt from it. Such "
                "images are counted in each process (`num_without_proposals`). `dataset.filter` leaves their rows out."
            )
        self.num_without_proposals += empty
