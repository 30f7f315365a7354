"""Which images are hard: by a classifier's probability of their class, or by how few images their class has."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
from datasets import Dataset, Value

from hf_curriculum.columns import GUIDANCE, HARD, LABEL
from hf_curriculum.markdown import table
from hf_curriculum.provenance import append_columns, numeric_column, read_column
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.long_tail.data.classes import class_counts, class_names, read_labels

logger: logging.Logger = logging.getLogger(__name__)


@validate_arguments
def mark_hard(
    dataset: Dataset,
    *,
    below: float | None = None,
    fewer_than: int | None = None,
    score: str = "class_probability",
    label_column: str = LABEL,
    column: str = HARD,
    overwrite: bool = False,
) -> Dataset:
    """Marks images as hard whose class probability is below a threshold, or whose class has few images.

    With both rules, an image is hard if either applies. The log has the number per class (`hard_counts` returns it).

    Args:
        dataset: real images with their classes.
        below: h_hard: an image is hard if its score is less; exactly `below` is not hard.
        fewer_than: all images of a class with fewer images than this are hard.
        score: the column of probabilities (`ClassProbability`).
        label_column: the column of classes.
        column: the column to write (bool).
        overwrite: replace a column that exists.

    Raises:
        TypeError: not a map-style data set.
        ValueError: neither rule is given, a column is missing, a row has no probability, some images are not real, or
            none or all would be hard.

    Source: Liang et al. 2024 (DisCL), algorithm 1: p < h_hard; released code: classes with fewer than 20 images.

    Example:
        >>> from datasets import ClassLabel, Features
        >>> features = Features({"label": ClassLabel(names=["cat", "dog"]), "class_probability": Value("float32")})
        >>> data = Dataset.from_dict({"label": [0, 0, 1], "class_probability": [0.1, 0.2, 0.9]}, features=features)
        >>> mark_hard(data, below=0.2)["hard"][:]
        [True, False, False]
        >>> mark_hard(data, fewer_than=2)["hard"][:]
        [False, False, True]
    """
    if below is None and fewer_than is None:
        raise ValueError(
            "Neither `below` nor `fewer_than` was given, so nothing says which images are hard. Pass below=0.2 (the "
            "probability of their class), fewer_than=20 (images of their class), or both."
        )
    _validate_real(dataset)
    hard = np.zeros(len(dataset), dtype=bool)
    rules = []
    if below is not None:
        hard |= _probabilities(dataset, score) < np.float32(below)
        rules.append(f"{score} < {below:g}")
    if fewer_than is not None:
        labels = read_labels(dataset, label_column)
        hard |= np.bincount(labels, minlength=labels.max(initial=0) + 1)[labels] < fewer_than
        rules.append(f"fewer than {fewer_than:,} images of its class")
    rule = " or ".join(rules)
    if not hard.any() or hard.all():
        found = "No image is" if not hard.any() else f"All {len(hard):,} images are"
        raise ValueError(
            f"{found} hard by the rule {rule}: there would be {'nothing to generate' if not hard.any() else ''}"
            f"{'nothing beside the hard ones' if hard.any() else ''}. {_advice(dataset, score, below)}"
        )
    marked = append_columns(
        dataset, {column: pa.array(hard)}, {}, features={column: Value("bool")}, overwrite=overwrite
    )
    rows = [(name, f"{size:,}", f"{count:,}") for name, size, count in hard_counts(marked, label_column, column)]
    lines = table(("class", "images", "hard"), rows, for_terminals=True)
    logger.info("%s of %s images are hard (%s):\n%s", f"{hard.sum():,}", f"{len(hard):,}", rule, lines)
    return marked


def hard_counts(dataset: Dataset, label_column: str = LABEL, column: str = HARD) -> list[tuple[str, int, int]]:
    """Of each class its name, its real images, and how many of them are hard.

    Raises:
        ValueError: a column is missing.
    """
    names, counts = class_names(dataset, label_column), class_counts(dataset, label_column)
    labels = read_labels(dataset, label_column)
    hard = read_column(dataset, column).to_numpy(zero_copy_only=False).astype(bool)
    if GUIDANCE in dataset.column_names:
        hard &= numeric_column(dataset, GUIDANCE) == 1
    of_class = np.bincount(labels[hard], minlength=len(names))
    return list(zip(names, counts.tolist(), of_class.tolist(), strict=True))


def _validate_real(dataset: Dataset) -> None:
    """Raises where some images were generated: hard ones are looked for among the real."""
    if GUIDANCE in dataset.column_names:
        made = int((numeric_column(dataset, GUIDANCE) != 1).sum())
        if made:
            raise ValueError(
                f"{made:,} of {len(dataset):,} images have a `{GUIDANCE}` below 1: they were generated, and hard ones "
                "are looked for among real images. Mark the real ones before they are joined."
            )


def _probabilities(dataset: Dataset, score: str) -> np.ndarray:
    """The score of each row, float32 (rows,), none of them NaN."""
    values = numeric_column(dataset, score).astype(np.float32)
    missing = np.flatnonzero(~np.isfinite(values))
    if len(missing):
        raise ValueError(
            f"`{score}` of {len(missing):,} of {len(values):,} images is NaN (row {missing[0]}): whether they are "
            "hard is not known. They could not be read, or have no class. Drop such rows, or score again."
        )
    return values


def _advice(dataset: Dataset, score: str, below: float | None) -> str:
    """What other thresholds would find."""
    if below is None:
        return "Pass another `fewer_than`."
    marks = np.quantile(_probabilities(dataset, score), [0, 0.1, 0.5, 1]).tolist()
    return (
        f"`{score}` goes from {marks[0]:.4g} to {marks[3]:.4g}, a tenth is below {marks[1]:.4g}. Pass another `below`."
    )
