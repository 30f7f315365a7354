"""Scores made elsewhere, joined by key."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from datasets import Dataset, DatasetDict, Features, Image, Value, concatenate_datasets
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.config import parse_json, redact, redacted
from hf_curriculum.data.image_files import derive_image_ids
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.limits import validate_tables
from hf_curriculum.data.readers.outside_files import named_files, validate_folder
from hf_curriculum.data.text import open_text
from hf_curriculum.files import DamagedFileError, reading, resolved
from hf_curriculum.parts import data_digest
from hf_curriculum.provenance import (
    ScoreProvenance,
    append_columns,
    as_splits,
    columns_read,
    first_non_number,
    numeric_column,
    read_column,
    read_provenance,
    score_values,
    validate_choice,
)
from hf_curriculum.remote import with_retries
from hf_curriculum.scored_shards import CHECKED, KEY, MANIFEST, MARK, SHARD, UID, checksums, load_scored_shards
from hf_curriculum.sealed_parquet import (
    is_sealed_parquet,
    read_sealed_parquet,
    sealed_parquet,
    validate_sealed_parquet,
)
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)


Easy = Literal["low", "high"]
_INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")


@validate_arguments
def add_scores_from(
    dataset: Dataset | DatasetDict,
    source: str | Path | Dataset,
    *,
    on: str | Sequence[str],
    columns: str | Sequence[str] | None = None,
    easy: Easy | Mapping[str, Easy] | None = None,
    overwrite: bool = False,
) -> Dataset | DatasetDict:
    """Joins scores that were made elsewhere to a data set, by key.

    Rows whose key the source lacks get NaN. The matches are logged: rows with and without a score, keys left over. So
    are cells without a number, and columns with numbers among texts, which are not joined. The column's provenance
    says `joined`, and names the file or address and its SHA-256 or a digest of the data read.

    Args:
        dataset: one data set, or several splits that are joined to the same source.
        source: a `.csv`, `.tsv`, `.parquet` or `.jsonl` file, or a `Dataset`; or a folder of `score_shards`. Or
            Parquet: all files of a folder or of an address that `fsspec` opens, such as a repository of `push_scores`
            (`hf://datasets/me/cc3m-scores`). Of these only the key and the scores are read.
        on: the columns that identify a row on both sides, of strings or whole numbers. A key may stand in many rows of
            the data set (all captions of an image), but only once in the source.
        columns: what to join; by default every column of numbers that has a name, but the key.
        easy: which end is easy, for all columns or for each. May be left out for a source that carries provenance.
        overwrite: replace columns that exist, in place of an error.

    Returns:
        The data set with the new columns last: float32, NaN where there is no score.

    Raises:
        FileNotFoundError: the file does not exist, or there is no Parquet file.
        TypeError: a source or a data set of another kind.
        ValueError: a column is missing, exists already or stands twice in the header. A key occurs twice in the
            source, no row matches, `easy` is unknown, or files of one folder hold scores of different provenance.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"image_id": ["a", "a", "b"], "caption": ["a dog", "a big dog", "a cat"]})
        >>> scores = Dataset.from_dict({"image_id": ["a", "c"], "quality": [0.5, 0.25]})
        >>> add_scores_from(data, scores, on="image_id", easy="high")["quality"][:]
        [0.5, 0.5, nan]
    """
    keys = key_columns(on)
    splits = as_splits(dataset)
    table, origin = _read_source(source, keys, columns, next(iter(splits.values())))
    names = _score_columns(table, keys, columns)
    _report_left_out(table, keys, names, origin["from"], columns is None)
    provenance = _provenance(table, names, keys, easy, origin)
    joined = _join(splits, table, keys, provenance, origin["from"], overwrite)
    return DatasetDict(joined) if isinstance(dataset, DatasetDict) else next(iter(joined.values()))


def _read_source(
    source: str | Path | Dataset, keys: list[str], columns: Sequence[str] | None, like: Dataset
) -> tuple[Dataset, dict[str, str]]:
    """The source as a data set, and what the provenance says of it."""
    if isinstance(source, Dataset):
        return source, {"from": "Dataset", "fingerprint": source._fingerprint}
    file = Path(source)
    if "://" in str(source):
        table = _read_parquet(str(source), keys, columns)
        return table, {"from": redact(str(source)), "digest": data_digest(table)}
    if file.is_dir():
        validate_folder(file)
        is_scored = (file / MANIFEST).is_file()
        table = read_scores(file) if is_scored else _read_parquet(str(file.absolute()), keys, columns)
        return table, {"from": file.name, "digest": data_digest(table)}
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. It should hold the scores to join.")
    # a key stays text where the data set's is: read as numbers, "007" and "7" would be one key
    text = {key: pa.string() for key in keys if "string" in str(getattr(like.features.get(key), "dtype", ""))}
    try:
        table = _read_file(file, text)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} cannot be read ({error}). It should be a table with a row per key.") from error
    if twice := sorted(name for name, count in Counter(table.column_names).items() if count > 1):
        raise ValueError(f"{file} has the columns {twice} twice, and it is not known which is meant. Rename one.")
    return Dataset(table), {"from": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def read_scores(path: Path) -> Dataset:
    """What `score_shards` or `save_scores` wrote: keys and scores."""
    if (path / MANIFEST).is_file():
        return load_scored_shards(path)
    table = _read_side_file(path)[0]
    return table.remove_columns([name for name in table.column_names if name.startswith(CHECKED)])


@redacted()
def _read_parquet(address: str, keys: list[str], columns: Sequence[str] | None) -> Dataset:
    """The key and the scores of a Parquet file, or of all of them in a folder, wherever `fsspec` finds it."""
    remedy = "It should be Parquet, with a row per key; or the connection failed."
    fs, path = fsspec.url_to_fs(address)
    fs.invalidate_cache()  # it may have been pushed a moment ago
    names = [path] if path.endswith(".parquet") else sorted(with_retries(redact(address), lambda: fs.find(path)))
    names = [name for name in names if name.endswith(".parquet") and "/." not in name.removeprefix(path)]
    if not names:
        raise FileNotFoundError(f"There is no Parquet file in {address}. It should hold the scores to join.")
    features, tables = Features(), []
    for name in names:
        with with_retries(name, partial(fs.open, name)) as stream, reading(name, remedy):
            file = pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
            found = Features.from_arrow_schema(file.schema_arrow)
            scores = _score_columns(Dataset(found.arrow_schema.empty_table()), keys, columns)
            found = Features({name: found[name] for name in (*keys, *scores) if name in found})
            table = file.read(list(found)).cast(found.arrow_schema)
        if tables and found != features:
            raise ValueError(
                f"{names[0]} and {name} hold scores that were made in different ways, or of other columns: {features} "
                f"and {found}. Together they would be columns made in two ways. Name one of them."
            )
        features = found
        tables.append(table)
    return Dataset(pa.concat_tables(tables))


def _read_file(file: Path, text: dict[str, pa.DataType]) -> pa.Table:
    kind = file.suffix.lower()
    if kind in (".csv", ".tsv"):
        delimiter, encoding = _form_of(file, kind)
        return pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(encoding=encoding),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(column_types=text),
        )
    if kind == ".parquet":
        validate_tables([file])
        with reading(file, "It should be a table with a row per key."):
            return pyarrow.parquet.read_table(file.absolute(), page_checksum_verification=True)
    if kind in (".jsonl", ".ndjson"):
        table = pyarrow.json.read_json(file)
        dates = [key for key in text if key in table.column_names and pa.types.is_temporal(table[key].type)]
        if dates:  # names like "2020-01-31" are read as dates otherwise
            options = pyarrow.json.ParseOptions(explicit_schema=pa.schema([(key, pa.string()) for key in dates]))
            table = pyarrow.json.read_json(file, parse_options=options)
        return table
    raise ValueError(f"{file} is of no known kind. Scores are joined from .csv, .tsv, .parquet or .jsonl files.")


def _form_of(file: Path, kind: str) -> tuple[str, str]:
    """What separates the names in a table's first line, in Excel's of many countries a semicolon; and its encoding."""
    with open_text(file) as lines:
        header, encoding = next(iter(lines), ""), lines.encoding.removesuffix("-sig")
    return (";" if ";" in header and "," not in header else ",") if kind == ".csv" else "\t", encoding


def _report_left_out(table: Dataset, keys: list[str], names: list[str], source: str, chosen: bool) -> None:
    """Warns of scores that are no numbers, and of columns that are not joined although they hold numbers."""
    left_out = LeftOut()
    for name in names:
        values = read_column(table, name)
        lacking = pc.fill_null(pc.is_nan(values), True) if pa.types.is_floating(values.type) else values.is_null()
        left_out.add(f"cells without a number in `{name}` (their rows get NaN)", pc.sum(lacking).as_py() or 0)
        endless = pc.sum(pc.is_inf(values)).as_py() if pa.types.is_floating(values.type) else 0
        if endless:
            logger.warning("%s: %d cells of `%s` are infinite, and are joined as they are.", source, endless, name)
    for name in table.column_names if chosen else ():
        if name not in keys and _INDEX.fullmatch(name):
            left_out.add("columns without a name, such as an index of pandas (`columns` joins them)", 1, repr(name))
        elif name not in (*keys, *names) and not name.startswith(CHECKED):
            values = read_column(table, name)
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                like = pc.match_substring_regex(values, r"^\s*[-+]?[0-9.,]+%?\s*$")
                odd = values.filter(pc.invert(pc.fill_null(like, True)))
                count = pc.sum(like).as_py() or 0
                left_out.add(f"cells of `{name}`, a column of texts", count, odd[0] if len(odd) else values[0])
            elif not pa.types.is_nested(values.type):
                left_out.add(f"cells of `{name}`, a column of {values.type}", len(values))
    left_out.report(source, ())


def _score_columns(table: Dataset, keys: list[str], columns: Sequence[str] | None) -> list[str]:
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
        require_columns(table.column_names, names, reader="They are the scores to join.", remedy="Correct `columns=`.")
    else:
        numbers = ("float", "int", "uint")
        kinds = {name: getattr(feature, "dtype", None) or "" for name, feature in table.features.items()}
        names = [name for name, kind in kinds.items() if kind.startswith(numbers) and name not in keys]
        names = [name for name in names if not name.startswith(CHECKED) and not _INDEX.fullmatch(name)]
    if not names:
        found = f"the source has the columns {table.column_names}, of which {keys} are the key"
        cells = (first_non_number(table, name) for name in table.column_names if name not in keys)
        raise ValueError(f"There is no column of numbers to join: {found}.{''.join(cells)}")
    return names


def _provenance(
    table: Dataset, names: list[str], keys: list[str], easy: Easy | Mapping[str, Easy] | None, origin: dict[str, str]
) -> dict[str, ScoreProvenance]:
    kept, made = read_provenance(table), {}
    for name in names:
        end = easy.get(name) if isinstance(easy, Mapping) else easy
        before = kept.get(name)
        if end is None and before is None:
            unknown = f"Which end of `{name}` is easy is not known: the source carries no provenance"
            raise ValueError(f'{unknown}. Pass `easy=`, "low" or "high", or a mapping from columns to one of them.')
        validate_choice("easy", end, ("low", "high", None))
        joined: dict[str, Any] = {**origin, "on": keys}
        if before is None:
            made[name] = ScoreProvenance(name, origin["from"], joined, easy=end, source="joined")
        else:  # what is known of the making is kept, and how it came here is added
            arguments = {**before.arguments, "joined": joined}
            made[name] = replace(before, arguments=arguments, easy=end or before.easy, source="joined")
    return made


def warn_if_merged(column: str, given: np.ndarray, kept: np.ndarray) -> None:
    """Warns if different integers, of any type, are one number as float32, in which added scores are kept."""
    finite = np.isfinite(given)
    given, kept = given[finite], kept[finite]
    if np.array_equal(given, np.floor(given)) and (before := len(np.unique(given))) > (after := len(np.unique(kept))):
        logger.warning(
            "`%s` has %d different integers, and only %d as float32, as added scores are kept: above 16,777,216 "
            "neighbours become equal. Add smaller numbers, such as ranks or differences; a column that the data has "
            "itself is ranked exactly.",
            column,
            before,
            after,
        )


def _join(
    splits: Mapping[str, Dataset],
    table: Dataset,
    keys: list[str],
    provenance: Mapping[str, ScoreProvenance],
    source: str,
    overwrite: bool,
    side_file: Literal["complete", "partial"] | None = None,
    texts: bool = False,
) -> dict[str, Dataset]:
    """The splits with the score columns of a table, matched by key; `texts` where the table has numbers as texts."""
    reader = f"The scores in {source} are found by it."
    theirs = read_keys(table, keys, reader)
    ours = {name: read_keys(part, keys, reader) for name, part in splits.items()}
    if texts:
        ours = {name: [array.cast(pa.large_string()) for array in arrays] for name, arrays in ours.items()}
    if side_file is not None:
        _validate_types(ours, theirs, keys, source)
    rows = {name: match_keys(arrays, theirs, keys, source, side_file is not None) for name, arrays in ours.items()}
    if side_file == "complete":
        _validate_complete(rows, ours, keys, source)
    for name, part in splits.items() if side_file else ():
        _compare_further(part, table, rows[name], keys, source, side_file)
    _report_matches(rows, ours, theirs, keys, source, side_file is not None)
    scores = {column: score_values(table, column) for column in provenance}
    for column, kept in scores.items():
        warn_if_merged(column, numeric_column(table, column), kept)
    joined = {}
    for name, part in splits.items():
        matched, values = rows[name] >= 0, {}
        for column, array in scores.items():
            values[column] = np.full(len(part), np.nan, np.float32)
            values[column][matched] = array[rows[name][matched]]
        joined[name] = append_columns(part, values, provenance, overwrite=overwrite)
    return joined


def key_columns(on: str | Sequence[str]) -> list[str]:
    """The columns of a key, which may be one."""
    keys = [on] if isinstance(on, str) else list(on)
    if not keys:
        raise ValueError("The key is empty: name the column, or the columns, whose values name a row.")
    return keys


def read_keys(dataset: Dataset, keys: list[str], reader: str) -> list[pa.Array]:
    """The key columns, each (rows,), strings as `pa.large_string()`; a `ValueError` for what cannot be a key."""
    require_columns(dataset.column_names, keys, reader=reader, remedy="Name a column that both have.")
    for key in keys:
        kind = getattr(dataset.features[key], "dtype", None) or ""
        if kind not in ("string", "large_string") and not kind.startswith(("int", "uint")):
            found = f"`{key}` is {dataset.features[key]}, which cannot name a row"
            raise ValueError(f"{found}. A key is a column of strings or whole numbers.")
    return [read_column(dataset, key) for key in keys]


def match_keys(
    ours: list[pa.Array], theirs: list[pa.Array], keys: list[str], source: str, missing_matches: bool = False
) -> np.ndarray:
    """For every row of the data the row of the source with the same key."""
    try:
        theirs = [other.cast(mine.type) for mine, other in zip(ours, theirs, strict=True)]
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"The key {keys} is of another kind in {source} than in the data, and cannot be read as it ({error}). "
            "Convert one of them."
        ) from error
    rows, known = unique_keys(theirs, keys, source, missing_matches)
    found = np.append(rows, -1)[known.get_indexer(_key_index(ours))]
    for start in range(0, len(found), 10_000):  # two keys may share a hash
        hits = start + np.flatnonzero(found[start : start + 10_000] >= 0)
        mine = zip(*(column.take(pa.array(hits)).to_pylist() for column in ours), strict=True)
        other = zip(*(column.take(pa.array(found[hits])).to_pylist() for column in theirs), strict=True)
        found[hits[[one != another for one, another in zip(mine, other, strict=True)]]] = -1
    return found


def unique_keys(
    columns: list[pa.Array], keys: list[str], source: str, missing_matches: bool = False
) -> tuple[np.ndarray, pd.Index]:
    """The rows that have a key, and the index of their keys; a `ValueError` if one stands there twice."""
    valid = np.ones(len(columns[0]), bool)
    if not missing_matches:
        valid = np.all([column.is_valid().to_numpy(zero_copy_only=False) for column in columns], axis=0)
    rows = np.flatnonzero(valid)
    known = _key_index(columns)[rows]
    if not known.is_unique:
        first = rows[known.duplicated(keep=False) & ~known.duplicated()]
        raise ValueError(
            f"{len(first)} keys stand more than once in {source}, such as {show_keys(columns, first)}. Keep one row "
            f"per key, or join `on` more columns than {keys}."
        )
    return rows, known


def _key_index(columns: list[pa.Array]) -> pd.Index:
    """The index of a key's columns, by 64-bit hashes: the keys themselves are not held. A missing value is a value."""
    hashes = np.zeros(len(columns[0]), np.uint64)  # (rows,)
    for start in range(0, len(hashes), 10_000):
        keys = zip(*(column.slice(start, 10_000).to_pylist() for column in columns), strict=True)
        hashes[start : start + 10_000] = [xxh3_64_intdigest(repr(key).encode()) for key in keys]
    return pd.Index(hashes)


def _validate_types(ours: Mapping[str, list[pa.Array]], theirs: list[pa.Array], keys: list[str], source: str) -> None:
    for arrays in ours.values():
        kinds = [[str(array.type) for array in side] for side in (arrays, theirs)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"The key {keys} is {kinds[0]} in the data but {kinds[1]} in {source}: these are not the rows the "
                "scores were made for."
            )


def _validate_complete(
    rows: Mapping[str, np.ndarray], ours: Mapping[str, list[pa.Array]], keys: list[str], source: str
) -> None:
    for name, found in rows.items():
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            raise ValueError(
                f"{len(unknown)} of {len(found)} rows have a key {keys} that {source} does not have, such as "
                f"{show_keys(ours[name], unknown)}. Score these rows, or pass `partial=True` to give them NaN."
            )


def _compare_further(
    part: Dataset,
    table: Dataset,
    found: np.ndarray,
    keys: list[str],
    source: str,
    side_file: Literal["complete", "partial"],
) -> None:
    """Refuses matched rows that differ in what else both have (a caption, an address, an image), or unmatches them."""
    for name in table.column_names:
        column, hits = name.removeprefix(CHECKED), np.flatnonzero(found >= 0)
        shared = column in part.column_names and column not in (IMAGE_ID, *keys)  # that of a record is not the data's
        if not shared or (mine := _comparable(part, column)) is None:
            continue
        mine, theirs = mine.take(pa.array(hits)), read_column(table, name).take(pa.array(found[hits]))
        if name != column:
            mine = _sums(mine)
        elif not pa.types.is_large_string(theirs.type):
            continue  # a score
        others = pc.and_(pc.is_valid(theirs), pc.fill_null(pc.not_equal(mine, theirs), name != column))
        if not (count := pc.sum(others).as_py()):
            continue
        row = int(hits[np.flatnonzero(others)[0]])
        shown = show_keys([read_column(part, key) for key in keys], np.array([row]))
        message = (
            f"{count} of {len(hits)} rows have a key {keys} of {source}, but another `{column}` than the row that was "
            f"scored, such as {shown}. They were changed since, or are of other data that count alike. Score them "
            "again, pass `partial=True` to give them NaN, or join by the key alone: "
            f"add_scores_from(data, {source!r}, on={keys})."
        )
        if side_file == "complete":
            raise ValueError(message)
        logger.warning("%s", message)
        found[hits[others.to_numpy(zero_copy_only=False)]] = -1


def _sums(texts: pa.Array) -> pa.Array:
    parts = (texts.slice(start, 10_000).to_pylist() for start in range(0, len(texts), 10_000))
    return pa.concat_arrays([pa.array([], pa.uint32()), *map(checksums, parts)])


def _sums_of_read(dataset: Dataset, read: set[str], first_of: np.ndarray) -> dict[str, pa.Array]:
    """Column → checksums (rows,), of those that scores were made of, where all rows of a key have the same."""
    found = {}
    for column in sorted(read.intersection(dataset.column_names)):
        if (texts := _comparable(dataset, column)) is not None:
            sums = _sums(texts)
            found |= {CHECKED + column: sums} if sums.equals(sums.take(pa.array(first_of))) else {}
    return found


def _comparable(part: Dataset, column: str) -> pa.Array | None:
    """A column as texts, images by their digests; None for other columns, and where images are elsewhere."""
    if isinstance(part.features[column], Image):
        images = part.select_columns([column])
        if not all(map(os.path.isfile, set(named_files(images)))):
            return None
        ids = read_column(derive_image_ids(images, column), IMAGE_ID)
        return pc.if_else(pc.equal(ids, ""), pa.scalar(None, ids.type), ids)
    kind = getattr(part.features[column], "dtype", "")
    if kind in ("string", "large_string") or kind.startswith(("int", "uint")):
        return read_column(part, column).cast(pa.large_string())
    return None


def _report_matches(
    rows: Mapping[str, np.ndarray],
    ours: Mapping[str, list[pa.Array]],
    theirs: list[pa.Array],
    keys: list[str],
    source: str,
    quiet: bool,
) -> None:
    """Logs how many rows matched, as a warning unless all did or `quiet`; without `quiet` none at all is an error."""
    every = np.concatenate(list(rows.values()))
    matched = int((every >= 0).sum())
    if len(every) and not matched and not quiet:
        mine = next(arrays for arrays in ours.values() if len(arrays[0]))
        some, others = np.arange(len(mine[0])), np.arange(len(theirs[0]))
        raise ValueError(
            f"No row of the data has its key {keys} in {source}. The data has keys such as {show_keys(mine, some)}, "
            f"the source such as {show_keys(theirs, others)}. Check that both name the same thing in the same way."
        )
    unused = len(theirs[0]) - len(np.unique(every[every >= 0]))
    level = logging.INFO if quiet or (matched == len(every) and not unused) else logging.WARNING
    message = "%s: %d of %d rows matched, %d without a score (NaN), %d of %d keys not used."
    logger.log(level, message, source, matched, len(every), len(every) - matched, unused, len(theirs[0]))


def show_keys(arrays: list[pa.Array], rows: np.ndarray, most: int = 3) -> str:
    """The keys of the first few of `rows`, for an error."""
    shown = [tuple(array[int(row)].as_py() for array in arrays) for row in rows[:most]]
    return ", ".join(repr(key[0] if len(key) == 1 else key) for key in shown) + (", …" if len(rows) > most else "")


_MARK = b"hf_curriculum_scores"
_REMEDY = "Save the scores again with `save_scores`. Files of other programs are joined with `add_scores_from`."


@validate_arguments
def save_scores(
    dataset: Dataset | DatasetDict,
    path: str | Path,
    *,
    key: str | Sequence[str] = (IMAGE_ID, CAPTION),
    columns: Sequence[str] | None = None,
) -> Path:
    """Writes the scores of a data set to a side file: Parquet, one row per distinct key.

    Nothing depends on the order of rows: `load_scores` finds each row by its key, also in a shuffled or filtered copy.
    Of images and texts that were scored, and are in no key, it has 32 bits each, which `load_scores` compares.

    Args:
        dataset: the scored data set, or splits, whose rows go into one file.
        path: the file to write. One that is there is replaced when the new one is complete.
        key: the columns that identify a row. Rows that share a key must share their scores, as captions of an image do
            for scores per image (`key="image_id"`).
        columns: the score columns; by default all that carry provenance.

    Returns:
        The file.

    Raises:
        TypeError: not a map-style data set.
        ValueError: splits were scored differently, a column is missing or has no provenance, there are no scores, or
            rows of one key differ in score.
        FileExistsError: something else than a side file is there.
        OSError: the disk is full; a file that was there is unchanged.

    Example:
        >>> from hf_curriculum import CaptionLength, add_scores
        >>> import os, tempfile
        >>> data = add_scores(Dataset.from_dict({"image_id": ["1"], "caption": ["a dog"]}), CaptionLength())
        >>> save_scores(data, os.path.join(tempfile.mkdtemp(), "scores.parquet")).name
        'scores.parquet'
    """
    place = side_file_name(path)
    keys, splits = key_columns(key), as_splits(dataset)
    made_of = (columns_read(part, name) for part in splits.values() for name in columns or part.column_names)
    read = {name for names in made_of for name in names}
    if isinstance(dataset, DatasetDict):
        wanted = [*keys, *(read_provenance(dataset) if columns is None else columns)]
        wanted += read.intersection(*(set(part.column_names).difference(wanted) for part in splits.values()))
        for part in splits.values():
            reader = "It goes into the side file."
            require_columns(part.column_names, wanted, reader=reader, remedy="Score every split.")
        dataset = concatenate_datasets([part.with_format(None).select_columns(wanted) for part in splits.values()])
    carried = read_provenance(dataset)
    names = list(carried) if columns is None else list(columns)
    if not names:
        raise ValueError(
            "No column of the data set carries the provenance of a score. Add scores with `add_scores`, or record "
            "where a column came from with `attach_provenance`."
        )
    require_columns(
        carried, names, reader="Only columns with provenance are saved.", remedy="Use `attach_provenance`."
    )
    arrays = read_keys(dataset, keys, "The key names the rows of the side file.")
    index = _key_index(arrays)
    first = np.flatnonzero(~index.duplicated())  # the first row of every key, in the data's order
    first_of = first[index[first].get_indexer(index)]
    scores = {name: score_values(dataset, name) for name in names}
    for name, values in scores.items():
        same = (values == values[first_of]) | (np.isnan(values) & np.isnan(values[first_of]))
        differs = np.flatnonzero(~same)
        if len(differs):
            raise ValueError(
                f"{len(differs)} rows share their key {keys} with a row of another `{name}`, such as "
                f"{show_keys(arrays, differs)}. Loading could not tell them apart. Add a column to `key=` that does."
            )
    features = dataset.features
    features = Features({name: features[name] for name in (*keys, *names)})
    sums = _sums_of_read(dataset, read.difference(keys), first_of)
    features.update(dict.fromkeys(sums, Value("uint32")))
    schema = features.arrow_schema
    schema = schema.with_metadata({**schema.metadata, _MARK: json.dumps({"key": keys, "scores": names})})
    with sealed_parquet(place, schema) as file:
        for start in range(0, len(first), 20_000):
            rows = first[start : start + 20_000]
            arrow = {**dict(zip(keys, arrays, strict=True)), **sums}
            taken = {name: array.take(pa.array(rows)) for name, array in arrow.items()}
            taken |= {name: pa.array(values[rows]) for name, values in scores.items()}
            table = pa.table({name: taken[name] for name in features})
            file.write_table(table.cast(schema))
    return Path(path)


def side_file_name(path: str | Path) -> Path:
    """Where a side file goes; a `FileExistsError` where something else is, which would be lost."""
    file = resolved(path)
    if file.exists() and not (file.is_file() and (is_sealed_parquet(file) or _is_cut(file))):
        raise FileExistsError(
            f"{file} is there and is no side file of scores, so it is not replaced. Name another file, or remove it."
        )
    return file


def _is_cut(file: Path) -> bool:
    """Whether a file begins as Parquet does, or is empty, and ends otherwise: one that was cut may be replaced."""
    with file.open("rb") as stream:
        start, _ = stream.read(4), stream.seek(max(0, file.stat().st_size - 4))
        return start in (b"", b"PAR1") and stream.read() != b"PAR1"


@validate_arguments
def load_scores(
    dataset: Dataset | DatasetDict, path: str | Path, *, partial: bool = False, overwrite: bool = False
) -> Dataset | DatasetDict:
    """Adds the scores of a side file to their data set, or to any part of it in any order.

    Args:
        dataset: the data set, or splits of it.
        path: the file of `save_scores`, or the folder of `score_shards`, whose rows are found by shard and key, `uid`,
            `url` or `key`: the first of these that both have. What else both have is compared: the texts and images
            that were scored, and the columns of `keep`.
        partial: rows whose key is not in the file, or which have another text or image, get NaN in place of an error.
        overwrite: replace columns that exist, in place of an error.

    Returns:
        The data set with the score columns last; their provenance is the file's.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a side file, a damaged one, rows whose key it lacks or that have another text or image than
            was scored, or columns that exist already.

    Example:
        >>> from hf_curriculum import CaptionLength, add_scores
        >>> import os, tempfile
        >>> data = Dataset.from_dict({"image_id": ["1", "2"], "caption": ["a dog", "a red ball"]})
        >>> file = save_scores(add_scores(data, CaptionLength()), os.path.join(tempfile.mkdtemp(), "scores.parquet"))
        >>> load_scores(data.select([1]), file)["caption_length"][:]
        [3.0]
    """
    splits = as_splits(dataset)
    folder = (Path(path) / MANIFEST).is_file()
    table, about = _read_shards(Path(path), splits) if folder else _read_side_file(Path(path))
    made = read_provenance(table)
    provenance = {name: made[name] for name in about["scores"]}
    side_file: Literal["complete", "partial"] = "partial" if partial else "complete"
    joined = _join(splits, table, about["key"], provenance, str(path), overwrite, side_file, folder)
    return DatasetDict(joined) if isinstance(dataset, DatasetDict) else next(iter(joined.values()))


def _read_shards(folder: Path, splits: Mapping[str, Dataset]) -> tuple[Dataset, dict[str, Any]]:
    table = load_scored_shards(folder, checked=True)
    common = set(table.column_names).intersection(*(part.column_names for part in splits.values()))
    ways = ((SHARD, KEY), (UID,), ("url",), (KEY,))
    keys = next((list(way) for way in ways if common.issuperset(way)), None)
    if keys is None:
        raise ValueError(
            f"The data has none of the columns that name a pair in {folder}: {ways}, of which the scores have "
            f"{table.column_names}. Score with `keep=[...]` of a column that the data has too."
        )
    doubled = 0 if SHARD in keys else len(table) - pc.count_distinct(table.data.column(keys[0]), mode="all").as_py()
    if doubled:
        first = table[SHARD][0]
        raise ValueError(
            f"{doubled} values of `{keys[0]}` stand more than once in {folder}, where keys may begin anew in each "
            f"shard, and the data has no `{SHARD}` and `{KEY}`. Load each shard by itself, name it, and concatenate "
            f'them: data.add_column("{SHARD}", ["{first}"] * len(data)). Or score with `keep=[...]` of a `{UID}` or '
            "`url` that the data has too."
        )
    return table, {"key": keys, "scores": list(read_provenance(table))}


def verify_side_file(file: Path) -> None:
    """Compares a file of `save_scores` with the digest that it holds of itself; others belong to a manifest near."""
    validate_sealed_parquet(file, _REMEDY)
    metadata = pyarrow.parquet.read_schema(file.absolute()).metadata
    if _MARK not in metadata and not any((folder / MANIFEST).is_file() for folder in file.absolute().parents):
        lost = MANIFEST if MARK in metadata else "run.json"
        raise DamagedFileError(
            f"{file} holds a part of scores, and {lost}, which says of what, is not there. Copy the whole folder, or "
            "run the command that made it again."
        )


def _read_side_file(file: Path) -> tuple[Dataset, dict[str, Any]]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist. `save_scores` writes such a file.")
    table = read_sealed_parquet(file, _REMEDY)
    with reading(file, _REMEDY):
        return Dataset(table), parse_json(table.schema.metadata[_MARK])
