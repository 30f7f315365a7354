"""Scores made elsewhere, joined by key."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import require_columns
from hf_curriculum.provenance import ScoreProvenance, check_choice, read_provenance, score_values
from hf_curriculum.scorers.attach import attach_columns, check_new_columns, report_scores
from hf_curriculum.scorers.keys import key_columns, match_keys, read_keys, show_keys

logger = logging.getLogger(__name__)

Easy = Literal["low", "high"]


def add_scores_from(
    dataset: Dataset | DatasetDict,
    source: str | Path | Dataset,
    *,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    easy: Easy | Mapping[str, Easy] | None = None,
    overwrite: bool = False,
) -> Dataset | DatasetDict:
    """Adds scores that were made elsewhere, each row's found by its key.

    Rows whose key the source lacks get NaN. What matched is logged: rows with and without a score, keys left over.
    The column's provenance says `joined`, and names the file and its SHA-256.

    Args:
        dataset: one data set, or several splits that are joined to the same source.
        source: a `.csv`, `.tsv`, `.parquet` or `.jsonl` file, or a `Dataset`.
        on: the column, or columns, that name a row on both sides, of strings or whole numbers. A key may stand in many
            rows of the data set (all captions of an image), but only once in the source.
        columns: what to join; by default every column of numbers but the key.
        easy: which end is easy, for all columns or for each. May be left out for a source that carries provenance.
        overwrite: replace columns that exist, instead of refusing.

    Returns:
        The data set with the new columns last: float32, NaN where there is no score.

    Raises:
        FileNotFoundError: the file does not exist.
        TypeError: a source or a data set of another kind.
        ValueError: a column is missing or exists already, a key stands twice in the source, no row matches, or `easy`
            is not known.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"image_id": ["a", "a", "b"], "caption": ["a dog", "a big dog", "a cat"]})
        >>> scores = Dataset.from_dict({"image_id": ["a", "c"], "quality": [0.5, 0.25]})
        >>> add_scores_from(data, scores, on="image_id", easy="high")["quality"][:]
        [0.5, 0.5, nan]
    """
    keys = key_columns(on)
    splits = _as_splits(dataset)
    table, origin = _read_source(source, keys, next(iter(splits.values())))
    names = _score_columns(table, keys, columns)
    provenance = _provenance(table, names, keys, easy, origin)
    for part in splits.values():
        check_new_columns(part.column_names, names, overwrite)
    where = f"The scores in {origin['from']} are found by it."
    theirs = read_keys(table, keys, where)
    ours = {name: read_keys(part, keys, where) for name, part in splits.items()}
    rows = {name: _matching_rows(arrays, theirs, keys, origin["from"]) for name, arrays in ours.items()}
    _report_matches(rows, ours, theirs, keys, origin["from"])
    scores = {column: score_values(table, column) for column in names}
    joined = {}
    for name, part in splits.items():
        values = {column: _taken(array, rows[name]) for column, array in scores.items()}
        report_scores(part, values, provenance)
        joined[name] = attach_columns(part, values, provenance)
    return DatasetDict(joined) if isinstance(dataset, DatasetDict) else next(iter(joined.values()))


def _as_splits(dataset: Dataset | DatasetDict) -> dict[str, Dataset]:
    if isinstance(dataset, DatasetDict):
        return dict(dataset)
    if isinstance(dataset, Dataset):
        return {str(dataset.split or "all"): dataset}
    raise TypeError(
        f"`add_scores_from` was given a {type(dataset).__name__}. Keys are matched over all rows at once: give a "
        "`Dataset` or a `DatasetDict`."
    )


def _read_source(source: str | Path | Dataset, keys: list[str], like: Dataset) -> tuple[Dataset, dict[str, str]]:
    """The source as a data set, and what the provenance says of it."""
    if isinstance(source, Dataset):
        return source, {"from": "Dataset", "fingerprint": source._fingerprint}
    if not isinstance(source, (str, Path)):
        raise TypeError(
            f"Scores cannot be joined from a {type(source).__name__}. Give the path of a CSV, Parquet or JSON-lines "
            "file, or a `Dataset` (`Dataset.from_pandas(frame)` makes one)."
        )
    file = Path(source)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. It should hold the scores to join.")
    # a key stays text where the data set's is: read as numbers, "007" and "7" would be one key
    text = {key: pa.string() for key in keys if "string" in str(getattr(like.features.get(key), "dtype", ""))}
    try:
        table = _read_file(file, text)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} cannot be read ({error}). It should be a table with a row per key.") from error
    return Dataset(table), {"from": file.name, "sha256": _digest(file)}


def _read_file(file: Path, text: dict[str, pa.DataType]) -> pa.Table:
    kind = file.suffix.lower()
    if kind in (".csv", ".tsv"):
        return pyarrow.csv.read_csv(
            file,
            parse_options=pyarrow.csv.ParseOptions(delimiter="," if kind == ".csv" else "\t", newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types=text),
        )
    if kind == ".parquet":
        return pyarrow.parquet.read_table(file)
    if kind in (".jsonl", ".ndjson"):
        table = pyarrow.json.read_json(file)
        dates = [key for key in text if key in table.column_names and pa.types.is_temporal(table[key].type)]
        if dates:  # names like "2020-01-31" are read as dates unless told otherwise
            options = pyarrow.json.ParseOptions(explicit_schema=pa.schema([(key, pa.string()) for key in dates]))
            table = pyarrow.json.read_json(file, parse_options=options)
        return table
    raise ValueError(f"{file} is of no known kind. Scores are joined from .csv, .tsv, .parquet or .jsonl files.")


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _score_columns(table: Dataset, keys: list[str], columns: Sequence[str] | None) -> list[str]:
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
        require_columns(table.column_names, names, reader="They are the scores to join.", remedy="Correct `columns=`.")
    else:
        numbers = ("float", "int", "uint")
        kinds = {name: getattr(feature, "dtype", None) or "" for name, feature in table.features.items()}
        names = [name for name, kind in kinds.items() if kind.startswith(numbers) and name not in keys]
    if not names:
        raise ValueError(
            f"There is no column of numbers to join: the source has the columns {table.column_names}, of which {keys} "
            "are the key."
        )
    return names


def _provenance(
    table: Dataset,
    names: list[str],
    keys: list[str],
    easy: Easy | Mapping[str, Easy] | None,
    origin: dict[str, str],
) -> dict[str, ScoreProvenance]:
    kept, made = read_provenance(table), {}
    for name in names:
        end = easy.get(name) if isinstance(easy, Mapping) else easy
        before = kept.get(name)
        if end is None and before is None:
            raise ValueError(
                f'Nobody says which end of `{name}` is easy: the source carries no provenance. Pass `easy="low"` or '
                '`easy="high"`, or a mapping from columns to one of them.'
            )
        check_choice("easy", end, ("low", "high", None))
        joined: dict[str, Any] = {**origin, "on": keys}
        if before is None:
            made[name] = ScoreProvenance(name, origin["from"], joined, easy=end, source="joined")
        else:  # what is known of the making is kept, and how it came here is added
            arguments = {**before.arguments, "joined": joined}
            made[name] = replace(before, arguments=arguments, easy=end or before.easy, source="joined")
    return made


def _matching_rows(ours: list[pa.Array], theirs: list[pa.Array], keys: list[str], source: str) -> np.ndarray:
    """For every row of the data set the row of the source with its key, or -1: int64 (rows,)."""
    try:
        theirs = [other.cast(mine.type) for mine, other in zip(ours, theirs, strict=True)]
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"The key {keys} is of another kind in {source} than in the data, and cannot be read as it ({error}). "
            "Keys match by value. Convert one of them."
        ) from error
    found, codes = match_keys(ours, theirs)
    counts = np.bincount(codes[codes >= 0])
    if counts.max(initial=0) > 1:
        twice = np.flatnonzero((codes >= 0) & (counts[codes] > 1))
        _, first = np.unique(codes[twice], return_index=True)
        raise ValueError(
            f"{int((counts > 1).sum())} keys stand more than once in {source}, such as "
            f"{show_keys(theirs, np.sort(twice[first]))}. It is not clear which of their scores to take. Keep one "
            f"row per key, or join `on` more columns than {keys}."
        )
    row_of = np.full(len(counts), -1, np.int64)
    row_of[codes[codes >= 0]] = np.flatnonzero(codes >= 0)
    return np.where(found >= 0, row_of[found], -1) if len(counts) else np.full(len(found), -1, np.int64)


def _report_matches(
    rows: Mapping[str, np.ndarray],
    ours: Mapping[str, list[pa.Array]],
    theirs: list[pa.Array],
    keys: list[str],
    source: str,
) -> None:
    every = np.concatenate(list(rows.values()))
    matched = int((every >= 0).sum())
    if len(every) and not matched:
        mine = next(arrays for arrays in ours.values() if len(arrays[0]))
        some, others = np.arange(len(mine[0])), np.arange(len(theirs[0]))
        raise ValueError(
            f"No row of the data has its key {keys} in {source}. The data has keys such as {show_keys(mine, some)}, "
            f"the source such as {show_keys(theirs, others)}. Check that both name the same thing in the same way."
        )
    unused = len(theirs[0]) - len(np.unique(every[every >= 0]))
    level = logging.INFO if matched == len(every) and not unused else logging.WARNING
    logger.log(
        level,
        "%s: %d of %d rows matched, %d without a score (NaN), %d of %d keys not used.",
        source,
        matched,
        len(every),
        len(every) - matched,
        unused,
        len(theirs[0]),
    )


def _taken(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The scores at `rows`, NaN where that is -1."""
    return np.where(rows >= 0, scores[rows], np.float32(np.nan))
