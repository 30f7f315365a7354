"""A side file of scores: the scores of a data set without the data, found again by key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset, DatasetDict, Features, concatenate_datasets

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.provenance import read_provenance, score_values
from hf_curriculum.scorers.attach import attach_columns, check_new_columns, report_scores
from hf_curriculum.scorers.keys import key_columns, match_keys, read_keys, show_keys

_MARK = b"hf_curriculum_scores"
_FORMAT = 1


def save_scores(
    dataset: Dataset | DatasetDict,
    path: str | Path,
    *,
    key: str | Sequence[str] = (IMAGE_ID, CAPTION),
    columns: Sequence[str] | None = None,
) -> Path:
    """Writes the scores of a data set into a Parquet file of its own, one row per distinct key.

    Nothing depends on the order of rows: `load_scores` finds each row by its key, also in a shuffled or filtered copy.

    Args:
        dataset: the scored data set, or splits, whose rows go into one file.
        path: the file to write.
        key: the columns that name a row. Rows that share a key must share their scores, as captions of an image do for
            scores per image (`key="image_id"`).
        columns: the score columns; by default all that carry provenance.

    Returns:
        The file.

    Raises:
        TypeError: not a map-style data set.
        ValueError: splits were scored differently, a column is missing or has no provenance, there are no scores, or
            rows of one key differ in score.

    Example:
        >>> save_scores(data, "scores.parquet")                     # doctest: +SKIP
        >>> data = load_scores(the_same_data, "scores.parquet")     # doctest: +SKIP
    """
    if isinstance(dataset, DatasetDict):
        wanted = [*key_columns(key), *(read_provenance(dataset) if columns is None else columns)]
        dataset = concatenate_datasets([_only(part, wanted) for part in dataset.values()])
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`save_scores` was given a {type(dataset).__name__}. It writes the scores of a map-style data set, whose "
            "rows are all known."
        )
    keys, carried = key_columns(key), read_provenance(dataset)
    names = list(carried) if columns is None else list(columns)
    if not names:
        raise ValueError(
            "The data set has no column that carries the provenance of a score, so there is nothing to save. Add "
            "scores with `add_scores`, or record where a column came from with `attach_provenance`."
        )
    require_columns(
        carried, names, reader="Only columns with provenance are saved.", remedy="Use `attach_provenance`."
    )
    arrays = read_keys(dataset, keys, "The key names the rows of the side file.")
    codes = match_keys(arrays, arrays, missing_matches=True)[1]
    _, first = np.unique(codes, return_index=True)
    first = np.sort(first)  # the first row of every key, in the data's order
    row_of = np.empty(len(first), np.int64)
    row_of[codes[first]] = first
    scores = {name: score_values(dataset, name) for name in names}
    for name, values in scores.items():
        differs = np.flatnonzero(~_same(values, values[row_of[codes]]))
        if len(differs):
            raise ValueError(
                f"{len(differs)} rows share their key {keys} with a row of another `{name}`, such as "
                f"{show_keys(arrays, differs)}. Loading could not tell them apart. Add a column to `key=` that does."
            )
    features = Features({**{name: dataset.features[name] for name in keys}, **{n: dataset.features[n] for n in names}})
    taken = {name: array.take(pa.array(first)) for name, array in zip(keys, arrays, strict=True)}
    table = pa.table({**taken, **{name: pa.array(values[first]) for name, values in scores.items()}})
    about = {"format": _FORMAT, "key": keys, "scores": names, "rows": len(first)}
    schema = features.arrow_schema
    table = table.cast(schema).replace_schema_metadata({**schema.metadata, _MARK: json.dumps(about).encode()})
    pyarrow.parquet.write_table(table, path, compression="zstd", write_page_checksum=True)
    return Path(path)


def _only(dataset: Dataset, columns: list[str]) -> Dataset:
    require_columns(dataset.column_names, columns, reader="It goes into the side file.", remedy="Score every split.")
    return dataset.with_format(None).select_columns(columns)


def load_scores(
    dataset: Dataset | DatasetDict, path: str | Path, *, partial: bool = False, overwrite: bool = False
) -> Dataset | DatasetDict:
    """Adds the scores of a side file to the data set they were made for, or to any part of it in any order.

    Args:
        dataset: the data set, or splits of it.
        path: what `save_scores` wrote.
        partial: rows that the file does not know get NaN, instead of an error.
        overwrite: replace columns that exist, instead of refusing.

    Returns:
        The data set with the score columns last; their provenance is the file's.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a side file, a damaged one, rows whose key it does not know, or columns that exist already.
    """
    if isinstance(dataset, DatasetDict):
        options = {"partial": partial, "overwrite": overwrite}
        return DatasetDict({name: load_scores(part, path, **options) for name, part in dataset.items()})
    side, about = _read_side_file(Path(path))
    keys, names = about["key"], about["scores"]
    check_new_columns(dataset.column_names, names, overwrite)
    ours = read_keys(dataset, keys, f"The rows of {path} are found by it.")
    theirs = read_keys(side, keys, f"The rows of {path} are found by it.")
    if any(mine.type != other.type for mine, other in zip(ours, theirs, strict=True)):
        raise ValueError(
            f"The key {keys} is {[str(array.type) for array in ours]} in the data but "
            f"{[str(array.type) for array in theirs]} in {path}: these are not the rows the scores were made for."
        )
    found, codes = match_keys(ours, theirs, missing_matches=True)
    row_of = np.empty(len(side), np.int64)
    row_of[codes] = np.arange(len(side))
    unknown = np.flatnonzero(found < 0)
    if len(unknown) and not partial:
        raise ValueError(
            f"{len(unknown)} of {len(dataset)} rows have a key {keys} that {path} does not know, such as "
            f"{show_keys(ours, unknown)}. The file was made for other data. Score these rows, or pass `partial=True` "
            "to give them NaN."
        )
    values = {}
    for name in names:
        values[name] = np.full(len(dataset), np.nan, np.float32)
        values[name][found >= 0] = score_values(side, name)[row_of[found[found >= 0]]]
    provenance = read_provenance(side)
    report_scores(dataset, values, provenance)
    return attach_columns(dataset, values, provenance)


def _same(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left == right) | (np.isnan(left) & np.isnan(right))


def _read_side_file(file: Path) -> tuple[Dataset, dict[str, Any]]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. `save_scores` writes such a file.")
    try:
        table = pyarrow.parquet.read_table(file, page_checksum_verification=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file} cannot be read as Parquet ({error}). It is damaged, or not a side file.") from error
    metadata = table.schema.metadata or {}
    about = json.loads(metadata[_MARK]) if _MARK in metadata else {}
    if about.get("format") != _FORMAT:
        raise ValueError(
            f"{file} is not a side file of scores in format {_FORMAT}. `save_scores` writes one; other files are "
            "joined with `add_scores_from`."
        )
    if table.num_rows != about["rows"]:
        raise ValueError(
            f"{file} has {table.num_rows} rows but was written with {about['rows']}: somebody changed it. Write "
            "it again."
        )
    return Dataset(table), about
