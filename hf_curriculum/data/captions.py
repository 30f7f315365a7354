"""One row per caption, and no row without one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Value

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns

logger = logging.getLogger(__name__)

TEXT_FIELDS = ("raw", "caption", "text")
"""Where the text is in captions that are records ({"raw": ..., "tokens": ...})."""


def holds_text(dataset: Dataset, column: str) -> bool:
    """Whether a column holds one text per row."""
    kind = dataset.features.arrow_schema.field(column).type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def expand_captions(dataset: Dataset, columns: str | Sequence[str] = CAPTION) -> Dataset:
    """One row per image-caption pair, from rows that hold several captions.

    All other columns are repeated, undecoded. A picture kept as a path costs nothing that way; bytes of a picture are
    written once per caption, to the cache of `datasets`.

    Args:
        dataset: rows with a list of captions, or with one caption in each of several columns.
        columns: the column of lists, or the columns of captions. The result's captions are in the column `caption`.

    Raises:
        ValueError: the column is missing, or holds neither texts nor lists of texts or of records with one, or
            there is a column `caption` beside it.

    Example:
        >>> expand_captions(Dataset.from_dict({"image_id": ["a"], "caption": [["A dog.", "A puppy."]]}))["caption"][:]
        ['A dog.', 'A puppy.']
    """
    columns = [columns] if isinstance(columns, str) else list(columns)
    require_columns(
        dataset.column_names,
        columns,
        reader="Expanding captions reads them.",
        remedy="Name the column of captions: expand_captions(dataset, 'captions').",
    )
    if CAPTION in dataset.column_names and CAPTION not in columns:
        raise ValueError(
            f"The data has a column `{CAPTION}` already, which the captions of {columns} would overwrite. Remove or "
            f"rename it first: dataset.remove_columns('{CAPTION}')."
        )
    features = dataset.features.copy()
    for column in columns:
        del features[column]
    features[CAPTION] = Value("string")
    expanded = dataset.with_format("arrow").map(
        partial(_expand, columns=columns),
        batched=True,
        batch_size=100,  # rows of pictures, so a few megabytes at a time
        features=features,
        desc="One row per caption",
    )
    logger.info("%d rows with several captions became %d rows with one.", len(dataset), len(expanded))
    return expanded.with_format(None)


def _expand(table: pa.Table, columns: list[str]) -> pa.Table:
    rows = zip(*(table[column].to_pylist() for column in columns), strict=True)
    captions = [_captions_of_row(list(row), columns) for row in rows]
    repeated = np.repeat(np.arange(len(captions)), [len(row) for row in captions])
    others = {name: table[name].take(pa.array(repeated)) for name in table.column_names if name not in columns}
    return pa.table({**others, CAPTION: pa.array([caption for row in captions for caption in row], type=pa.string())})


def _captions_of_row(cells: list[Any], columns: list[str]) -> list[str | None]:
    """The captions of one row: of one cell with a list, or of several with a text each, None where there are fewer."""
    if len(cells) > 1:
        return [_text(cell, columns) for cell in cells if cell is not None]
    captions = cells[0]
    if isinstance(captions, Mapping):  # a record of lists, as older `datasets` keep a list of records
        captions = next((captions[field] for field in TEXT_FIELDS if field in captions), captions)
    return [_text(caption, columns) for caption in (captions if isinstance(captions, list) else [captions])]


def _text(caption: Any, columns: list[str]) -> str | None:
    if isinstance(caption, Mapping):
        caption = next((caption[field] for field in TEXT_FIELDS if field in caption), caption)
    if caption is None or isinstance(caption, str):
        return caption
    raise ValueError(
        f"The caption column {columns} holds {caption!r:.100}, and texts, lists of texts, or lists of records with "
        f"one of the fields {list(TEXT_FIELDS)} are needed. Map the captions to such a form, or name another column: "
        "columns={'caption': 'text'}."
    )


def count_empty_captions(dataset: Dataset, column: str = CAPTION) -> int:
    """The number of rows whose caption is missing or blank."""
    return int((~_has_caption(dataset, column)).sum())


def drop_empty_captions(dataset: Dataset | DatasetDict, column: str = CAPTION) -> Dataset | DatasetDict:
    """The data without rows whose caption is missing or blank. How many those were is logged, and a few are named.

    Raises:
        ValueError: there is no such column, it does not hold texts, or no row has a caption.

    Example:
        >>> drop_empty_captions(Dataset.from_dict({"caption": ["A dog.", " ", None]})).num_rows
        1
    """
    if isinstance(dataset, DatasetDict):
        return DatasetDict({split: drop_empty_captions(part, column) for split, part in dataset.items()})
    kept = _has_caption(dataset, column)
    if kept.all():
        return dataset
    if not kept.any():
        raise ValueError(
            f"All {len(dataset)} captions in `{column}` are empty, so nothing would be left. Look at the source, or "
            "name another column."
        )
    dropped = np.flatnonzero(~kept)
    named = dataset.select(dropped[:5])[IMAGE_ID][:] if IMAGE_ID in dataset.column_names else dropped[:5].tolist()
    logger.warning("%d of %d rows have an empty caption and are dropped: %s ...", len(dropped), len(dataset), named)
    return dataset.select(np.flatnonzero(kept))


def _has_caption(dataset: Dataset, column: str) -> np.ndarray:
    require_columns(
        dataset.column_names,
        [column],
        reader="It is looked through for empty captions.",
        remedy="Name another column.",
    )
    if not holds_text(dataset, column):
        raise ValueError(
            f"`{column}` holds {dataset.features[column]}, and one text per row is needed. `expand_captions(dataset)` "
            "makes one row of each caption."
        )
    captions = dataset.select_columns([column]).with_format(None)[column][:]
    return np.array([caption is not None and caption.strip() != "" for caption in captions], dtype=bool)
