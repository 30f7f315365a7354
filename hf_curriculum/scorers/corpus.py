"""What every scorer with a `fit` does first: read a few columns of a corpus, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hf_curriculum.columns import require_columns

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

_BATCH = 1000


def corpus_batches(dataset: Dataset | IterableDataset, columns: Sequence[str], who: str) -> Iterator[dict[str, list]]:
    """Reads columns of a data set once, and nothing else of it: no picture is decoded.

    Args:
        dataset: one data set; of several splits, the one to learn from.
        columns: the columns to read.
        who: who learns from them, for errors.

    Raises:
        TypeError: not a data set, or several splits.
        ValueError: a column is missing.
    """
    from datasets import Dataset, IterableDataset

    if not isinstance(dataset, (Dataset, IterableDataset)):
        raise TypeError(
            f"`{who}.fit` was given a {type(dataset).__name__}. It learns from one `Dataset` or `IterableDataset`: of "
            'several splits give the one that is trained on, like `fit(splits["train"])`.'
        )
    if dataset.column_names is not None:
        require_columns(
            dataset.column_names,
            columns,
            reader=f"`{who}.fit` learns from it.",
            remedy="Rename the column (`dataset.rename_column`), or tell the scorer its name.",
        )
    yield from dataset.with_format(None).select_columns(list(columns)).iter(batch_size=_BATCH)
