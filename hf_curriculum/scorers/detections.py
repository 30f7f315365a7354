"""What a detector says of one picture, and how spread its verdicts are."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np


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
