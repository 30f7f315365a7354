"""Rows of a data set that somebody named: of the Hub, or a folder that `datasets` loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset


def load_rows(source: str, split: str, config: str | None = None) -> Dataset:
    """One split of a data set.

    Args:
        source: a repository of the Hub, a folder saved by `save_to_disk`, or one with data files.
        split: its name.
        config: of a repository with several.

    Raises:
        ValueError: the split is not there.

    Example:
        >>> load_rows("facebook/winoground", "test")  # doctest: +SKIP
    """
    from datasets import DatasetDict, load_dataset, load_from_disk

    saved = Path(source) / "dataset_dict.json"
    single = Path(source) / "state.json"
    if single.is_file():
        return load_from_disk(source)
    found = load_from_disk(source) if saved.is_file() else load_dataset(source, config)
    if not isinstance(found, DatasetDict) or split not in found:
        raise ValueError(f"{source!r} has no split {split!r}; it has {list(found)}. Name the data set the task is of.")
    return found[split]


class RowPicture:
    """A picture of a data set, decoded when it is called.

    Args:
        rows: the data set.
        row: which row.
        column: which column.

    Raises:
        ValueError: no such row or column.
    """

    def __init__(self, rows: Dataset, row: int, column: str) -> None:
        if not 0 <= row < len(rows) or column not in rows.column_names:
            raise ValueError(
                f"Row {row}, column {column!r} was asked for, but the data set has {len(rows):,} rows with "
                f"{rows.column_names}. It is not the one that the items' numbers count: check `sources`."
            )
        self.rows, self.row, self.column = rows, row, column

    def __call__(self) -> Any:
        return self.rows[self.row][self.column]


def pictures_of(source: str, split: str) -> Callable[[int, str], RowPicture]:
    """A function from a row's number and a column to its picture."""
    rows = load_rows(source, split)
    return lambda row, column: RowPicture(rows, row, column)
