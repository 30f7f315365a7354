"""What a detector's training loss has to be below: that of constant predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import require_columns
from hf_curriculum.provenance import read_column


def constant_loss(dataset: Dataset, column: str = "labels") -> float:
    """The training loss of a detector that predicts, for every image, how frequent each class is.

    No constant predictions have a lower one. A run whose final training loss is not below it has learnt nothing of
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
