"""Finding the row of one table that has the key of a row of another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_curriculum.columns import require_columns
from hf_curriculum.provenance import read_column


def key_columns(on: str | Sequence[str]) -> list[str]:
    """The key's columns as a list. Raises a `ValueError` if there is none."""
    keys = [on] if isinstance(on, str) else list(on)
    if not keys:
        raise ValueError("The key is empty: name the column, or the columns, whose values name a row.")
    return keys


def read_keys(dataset: Dataset, keys: list[str], reader: str) -> list[pa.Array]:
    """The key columns of a data set, each (rows,), strings as `pa.large_string()`.

    Raises:
        ValueError: a column is missing, or holds neither strings nor whole numbers.
    """
    require_columns(dataset.column_names, keys, reader=reader, remedy="Name a column that both have.")
    arrays = []
    for key in keys:
        kind = getattr(dataset.features[key], "dtype", None) or ""
        if kind not in ("string", "large_string") and not kind.startswith(("int", "uint")):
            raise ValueError(
                f"`{key}` is {dataset.features[key]}, which cannot name a row. A key is a column of strings or whole "
                "numbers, such as an identifier, a URL or a file name."
            )
        arrays.append(read_column(dataset, key))
    return arrays


def match_keys(
    left: list[pa.Array], right: list[pa.Array], missing_matches: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the distinct keys of the right side, and finds them on the left.

    Args:
        left: the key's columns, each (left rows,).
        right: the same columns of the other table, each (right rows,).
        missing_matches: a missing value matches a missing value; otherwise it matches nothing.

    Shapes:
        returns int64 (left rows,) and (right rows,): equal where the keys are equal, -1 where the right side has no
        such key or a part of the key is missing.
    """
    found, codes = np.zeros(len(left[0]), np.int64), np.zeros(len(right[0]), np.int64)
    for mine, other in zip(left, right, strict=True):
        distinct = other.unique() if missing_matches else other.unique().drop_null()
        size = max(len(distinct), 1)
        codes = _combined(codes, _places(other, distinct, not missing_matches), size)
        found = _combined(found, _places(mine, distinct, not missing_matches), size)
        # close the gaps, so that the next column cannot make the numbers overflow
        kept = np.unique(codes[codes >= 0])
        codes, found = _closed(codes, kept), _closed(found, kept)
    return found, codes


def _places(values: pa.Array, distinct: pa.Array, skip_missing: bool) -> np.ndarray:
    places = pc.index_in(values.cast(distinct.type), value_set=distinct, skip_nulls=skip_missing)
    return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _combined(codes: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    return np.where((codes < 0) | (places < 0), -1, codes * size + places)


def _closed(codes: np.ndarray, kept: np.ndarray) -> np.ndarray:
    if len(kept) == 0:
        return np.full(len(codes), -1, np.int64)
    places = np.minimum(np.searchsorted(kept, codes), len(kept) - 1)
    return np.where(kept[places] == codes, places, -1)


def show_keys(arrays: list[pa.Array], rows: np.ndarray, most: int = 3) -> str:
    """The keys of the first few of `rows`, for an error."""
    shown = [tuple(array[int(row)].as_py() for array in arrays) for row in rows[:most]]
    return ", ".join(repr(key[0] if len(key) == 1 else key) for key in shown) + (", …" if len(rows) > most else "")
