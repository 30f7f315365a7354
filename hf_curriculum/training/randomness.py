"""Whether fetching or collating an example may draw random numbers."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, default_data_collator
from transformers.data.data_collator import DefaultDataCollator

_PLAIN_COLLATORS = (DataCollatorWithPadding, DefaultDataCollator, DataCollatorForSeq2Seq)


def may_be_random(dataset: Any, collator: Any) -> bool:
    """False only where it is certain that an example comes out the same every time.

    A `datasets.Dataset` without a transform is certain, and so are the collators of `transformers` that only pad. Any
    other collator, and a data set's transform, can say so itself by an attribute `is_random`.

    Args:
        dataset: the training data.
        collator: the data collator.
    """
    plain = collator is default_data_collator or type(collator) in _PLAIN_COLLATORS
    return _fetching_may_be_random(dataset) or getattr(collator, "is_random", not plain)


def _fetching_may_be_random(dataset: Any) -> bool:
    if not isinstance(dataset, Dataset):
        return True
    if dataset.format["type"] != "custom":
        return False
    return getattr(dataset.format["format_kwargs"]["transform"], "is_random", True)
