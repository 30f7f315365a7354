"""Scores made elsewhere, joined by key."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from datasets import Dataset, DatasetDict, Features, concatenate_datasets

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.provenance import ScoreProvenance, check_choice, read_column, read_provenance, score_values
from hf_curriculum.scoring.score_columns import append_columns, check_new_columns, report_scores

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
        joined[name] = append_columns(part, values, provenance)
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
    return append_columns(dataset, values, provenance)


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
