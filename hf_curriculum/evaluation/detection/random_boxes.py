"""The baseline of a detector that is learnt without boxes: its own image scores on boxes drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_curriculum.config import digest
from hf_curriculum.evaluation.detection.inputs import PREDICTION_SIZE
from hf_curriculum.evaluation.detection.metrics import MAX_BOXES
from hf_curriculum.rng import hash64, mix64

_STREAM = 0x72626F78


def random_detections(
    proposals: Sequence[Any],
    image_scores: np.ndarray,
    image_ids: Sequence[str],
    *,
    boxes_per_class: int = 1,
    max_boxes: int = MAX_BOXES,
    seed: int = 0,
) -> np.ndarray:
    """Detections whose classes are a model's and whose boxes are proposals drawn at random.

    What a detector is better by than this, it has learnt of where objects are.

    Args:
        proposals: per image its boxes, [left, top, right, bottom] in pixels, (n, 4) each.
        image_scores: the model's score of each class in each image, (images, classes).
        image_ids: of the images: an image's draws depend on its own and the seed alone.
        boxes_per_class: boxes of each class in an image, drawn without repetition; the k-th has 1/k of the score.
        max_boxes: boxes of an image that are kept.
        seed: of the draws.

    Returns:
        float32 (images, max_boxes, 6): class, score, left, top, right, bottom; class −1 where there is no box.

    Raises:
        ValueError: not as many proposals, scores and names; or nothing is to be drawn.

    Example:
        >>> made = random_detections([[[0, 0, 4, 4]]], np.array([[0.2, 0.9]]), ["a"], max_boxes=3)
        >>> made[0, :, :2].round(1).tolist()
        [[1.0, 0.8999999761581421], [0.0, 0.20000000298023224], [-1.0, 0.0]]
    """
    scores = np.asarray(image_scores, dtype=np.float32)
    if not len(proposals) == len(scores) == len(image_ids) or scores.ndim != 2:
        raise ValueError(
            f"Proposals of {len(proposals):,} images, scores of the shape {scores.shape} and {len(image_ids):,} names "
            "were given: boxes would get the scores of other images. Give all three for the same images, scores as "
            "(images, classes)."
        )
    if boxes_per_class < 1 or max_boxes < 1:
        raise ValueError(
            f"boxes_per_class={boxes_per_class} and max_boxes={max_boxes} were given; a detection needs at least one "
            "of each."
        )
    made = np.zeros((len(scores), max_boxes, PREDICTION_SIZE), dtype=np.float32)
    made[..., 0] = -1
    for image, (boxes, own, name) in enumerate(zip(proposals, scores, image_ids, strict=True)):
        boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
        drawn = min(boxes_per_class, len(boxes))
        if not drawn:
            continue
        key = mix64(seed, _STREAM, int(digest(str(name)), 16) & 0xFFFFFFFF)
        chances = hash64(np.arange(len(own) * len(boxes)), key).reshape(len(own), len(boxes))
        chosen = np.argsort(chances, axis=1, kind="stable")[:, :drawn]  # (classes, drawn)
        classes = np.repeat(np.arange(len(own)), drawn)
        weights = (own[:, None] / np.arange(1, drawn + 1, dtype=np.float32)).ravel()
        best = np.argsort(-weights, kind="stable")[:max_boxes]
        made[image, : len(best)] = np.column_stack([classes[best], weights[best], boxes[chosen.ravel()[best]]])
    return made
