"""Score columns: appending and reading them, and their provenance, kept in the data set's own features.

The features carry it as `Value("float32", id=<JSON>)`, which `datasets` keeps through `map`, `filter`, `select`,
`shuffle`, renaming, saving, loading and Parquet. That JSON holds only what is the same for every split, because
`datasets` refuses to concatenate rows whose features differ. What differs (rows, share of unscored rows, quantiles)
is computed when needed.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, LargeList, List, Value
from datasets.features.features import FeatureType
from datasets.fingerprint import Hasher
from datasets.table import InMemoryTable, concat_tables
from xxhash import xxh3_128

from hf_curriculum.columns import require_columns
from hf_curriculum.config import digest, parse_json
from hf_curriculum.rng import hash64
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import RepeatedRows, table_rows

logger: logging.Logger = logging.getLogger(__name__)

_FORMAT = 1  # version of the JSON in features and files
_MARK = "hf_curriculum_score"
_RECORD = "hf_curriculum:"
# In `info.download_checksums`, which `map`, `select` and saving keep. Not in the features: they must be equal where
# data sets are joined, and a record is of one data set's own scores.

DATASET_TYPES = (Dataset, DatasetDict, IterableDataset, IterableDatasetDict)
AnyDataset = TypeVar("AnyDataset", bound=Dataset | DatasetDict | IterableDataset | IterableDatasetDict)


@dataclass(frozen=True)
class ScoreProvenance:
    """How one score column was made.

    Args:
        column: the name under which it was written (a later renaming of the column does not change it).
        scorer: class of the scorer, or name of the file of a joined score.
        arguments: configuration of the scorer; anything JSON can hold, tuples become lists.
        model: name or path of the model that scored, if there was one.
        revision: its revision.
        versions: library → version, of the libraries that decide the result.
        backend: what decoded and preprocessed the images, if any were read.
        easy: which end of the score is easy.
        per_image: how the scores of one image's captions were aggregated, if they were.
        source: `"scorer"`, or `"joined"` for scores made elsewhere.
        trained_on: what the model was trained on, where its folder says so: see `fingerprint.read_trained_on`.

    Raises:
        ValueError: `easy`, `per_image` or `source` is not one of its values, or `arguments`, `versions` or
            `trained_on` is not JSON.

    Example:
        >>> made = ScoreProvenance("noun_count", "NounCount", {"tagger": "pattern"}, easy="low")
        >>> ScoreProvenance.from_json(made.to_json()) == made
        True
    """

    column: str
    scorer: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    revision: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None
    easy: Literal["low", "high"] = "low"
    per_image: Literal["max", "min", "mean"] | None = None
    source: Literal["scorer", "joined"] = "scorer"
    trained_on: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_choice("easy", self.easy, ("low", "high"))
        validate_choice("per_image", self.per_image, (None, "max", "min", "mean"))
        validate_choice("source", self.source, ("scorer", "joined"))
        for name in ("arguments", "versions", "trained_on"):
            try:  # through JSON and back, so that what is read later equals what was written
                object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)), allow_nan=False)))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"`{name}` of the score `{self.column}` by {self.scorer} cannot be written as JSON ({error}). A "
                    "scorer with such arguments overrides `arguments()`."
                ) from error

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_dict(self) -> dict[str, Any]:
        """Its fields, JSON-able; `trained_on` only where it is known, so that older texts stay equal."""
        return {name: value for name, value in asdict(self).items() if name != "trained_on" or value}

    def to_json(self) -> str:
        """One line, keys sorted: equal provenance is equal text."""
        return json.dumps({_MARK: _FORMAT, **self.to_dict()}, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ScoreProvenance:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: not such a text, or one of a newer format.
        """
        try:
            content = parse_json(text)
        except json.JSONDecodeError:
            content = None
        if not isinstance(content, dict) or _MARK not in content:
            raise ValueError(f"Not the provenance of a score: {text[:80]!r}. `ScoreProvenance.to_json` writes it.")
        if content.pop(_MARK) != _FORMAT:
            raise ValueError(
                f"The provenance of a score is not in format {_FORMAT}: {text[:80]!r}. Another version of "
                "hf-curriculum wrote it; upgrade."
            )
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in content.items() if key in known})


def installed_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Distribution → installed version; one that runs from its source without being installed is left out."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def checkout_commit() -> dict[str, str]:
    """`{"commit": …}` of the checkout that the package is imported from, "-dirty" if it was changed; else nothing."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return {}
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"commit": found.stdout.strip()} if found.returncode == 0 else {}


def as_splits(dataset: Dataset | DatasetDict) -> dict[str, Dataset]:
    """The splits of a data set by name, or the one that it is."""
    return dict(dataset) if isinstance(dataset, DatasetDict) else {str(dataset.split or "all"): dataset}


def validate_choice(name: str, given: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` if `given`, the argument called `name`, is not among `choices`."""
    if given not in choices:
        raise ValueError(f"`{name}` is {given!r}. It is one of {', '.join(map(repr, choices))}.")


@validate_arguments
def read_provenance(dataset: AnyDataset, split: str | None = None) -> dict[str, ScoreProvenance]:
    """Returns the provenance of every score column, by the column's present name.

    Args:
        dataset: a data set, or splits; an `IterableDataset` whose features are unknown carries none.
        split: read this split of several only.

    Raises:
        ValueError: two splits disagree on a column, and no `split` was named.

    Example:
        >>> from datasets import Dataset
        >>> read_provenance(Dataset.from_dict({"caption": ["a dog"]}))
        {}
    """
    if isinstance(dataset, (DatasetDict, IterableDatasetDict)):
        return merged_provenance({name: read_provenance(part) for name, part in dataset.items()}, split)
    return read_feature_provenance(dataset.features or {})


def read_feature_provenance(features: Mapping[str, Any]) -> dict[str, ScoreProvenance]:
    """The provenance that the features of a data set carry, by column."""
    found = {}
    for column, feature in features.items():
        mark = feature.id if isinstance(feature, Value) else None
        if mark and _MARK in mark:
            found[column] = ScoreProvenance.from_json(mark)
    return found


def merged_provenance(splits: dict[str, dict[str, ScoreProvenance]], split: str | None) -> dict[str, ScoreProvenance]:
    """One mapping for several splits: what they agree on, or `split`'s own; a `ValueError` if they disagree."""
    if split is not None:
        validate_choice("split", split, tuple(splits))
        return splits[split]
    merged: dict[str, ScoreProvenance] = {}
    for name, found in splits.items():
        for column, provenance in found.items():
            if merged.setdefault(column, provenance) != provenance:
                raise ValueError(
                    f"`{column}` was scored differently in the splits {list(splits)}: {provenance} in {name!r}, but "
                    f"{merged[column]} before it. Score all splits with one scorer, or name a `split=`."
                )
    return merged


@validate_arguments
def attach_provenance(dataset: AnyDataset, provenance: Mapping[str, ScoreProvenance]) -> AnyDataset:
    """Records where existing columns came from; the data is not touched.

    That goes for scores that were changed, too: what is recorded is the scores as they are now.

    Args:
        dataset: a data set, or splits.
        provenance: column → provenance.

    Raises:
        ValueError: a column is missing or does not hold floating-point numbers.

    Example:
        >>> from datasets import Dataset
        >>> import numpy as np
        >>> data = Dataset.from_dict({"noun_count": np.float32([2, 3])})
        >>> data = attach_provenance(data, {"noun_count": ScoreProvenance("noun_count", "counted by hand")})
        >>> read_provenance(data)["noun_count"].scorer
        'counted by hand'
    """
    if isinstance(dataset, (DatasetDict, IterableDatasetDict)):
        return type(dataset)({name: attach_provenance(part, provenance) for name, part in dataset.items()})
    features = dataset.features.copy() if dataset.features else Features()
    for column, made in provenance.items():
        require_columns(features, [column], reader="Provenance belongs to a column.", remedy="Add the scores first.")
        dtype = getattr(features[column], "dtype", None)
        if dtype not in ("float32", "float64", "float16"):
            raise ValueError(
                f"`{column}` is {features[column]}, not a floating-point column. Cast it: "
                '`dataset.cast_column(column, Value("float32"))`.'
            )
        features[column] = Value(dtype, id=made.to_json())
    if isinstance(dataset, IterableDataset):
        for column in provenance:
            dataset = dataset.cast_column(column, features[column])
        return dataset
    return replace_table(dataset, dataset.data, features, provenance)


def append_columns(
    dataset: Dataset,
    values: Mapping[str, np.ndarray | pa.Array | pa.ChunkedArray],
    provenance: Mapping[str, ScoreProvenance],
    *,
    features: Mapping[str, FeatureType] = MappingProxyType({}),
    read: Mapping[str, Iterable[str]] | None = None,
    overwrite: bool = False,
    log: bool = True,
) -> Dataset:
    """Appends columns to a data set; nothing is written to disk, and no other column is read."""
    validate_new_columns(dataset.column_names, values, overwrite)
    arrays, new = {}, Features()
    for column, given in values.items():
        made = provenance.get(column)
        if column in features:
            new[column] = _with_id(features[column], made.to_json()) if made else features[column]
            arrays[column] = _scatter(dataset, given, new.arrow_schema.field(column).type)
            continue
        new[column] = Value("float32", id=made.to_json())
        base = np.asarray(given, dtype=np.float32)
        if (rows := table_rows(dataset)) is not None:
            base = np.full(dataset.data.num_rows, np.nan, np.float32)
            base[rows] = given
        arrays[column] = pa.array(base)
        if log:
            _log_scores(dataset, column, given, made)
    key = Hasher.hash([_content(array) for array in arrays.values()])
    kept = dataset.remove_columns([column for column in dataset.column_names if column in values])
    added = InMemoryTable(pa.table(arrays, schema=new.arrow_schema))
    if isinstance(kept.data, RepeatedRows):
        table: Any = kept.data.with_columns(added.table)
    else:
        # of no rows, `datasets` forgets the blocks that a table of several consists of
        before = kept.data if len(kept.data) else InMemoryTable(kept.data.table)
        table = concat_tables([before, added], axis=1) if kept.column_names else added
    scores = {column: made for column, made in provenance.items() if column not in features}
    return replace_table(kept, table, Features({**kept.features, **new}), scores, read or {}, key)


def _scatter(dataset: Dataset, values: Any, kind: pa.DataType) -> pa.ChunkedArray:
    """Values in the order of a data set → in the order of its table, null in rows that it leaves out."""
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values)])
    column = column.cast(kind) if column.type != kind else column
    if (rows := table_rows(dataset)) is None:
        return column
    base = np.full(dataset.data.num_rows, -1, np.int64)
    base[rows] = np.arange(len(dataset))
    return column.take(pa.array(base, mask=base < 0))


class _Digest:
    """A file that keeps a digest of what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.hash = xxh3_128()

    def write(self, content: Any) -> int:
        self.hash.update(content)
        return memoryview(content).nbytes

    def flush(self) -> None:
        pass


def _content(values: pa.Array | pa.ChunkedArray) -> str:
    """A digest of all that a column holds, which is not copied."""
    chunks, sink = values.chunks if isinstance(values, pa.ChunkedArray) else [values], _Digest()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), pa.schema([pa.field("column", values.type)])) as stream:
        for chunk in chunks:
            stream.write_batch(pa.record_batch([chunk], names=["column"]))
    return sink.hash.hexdigest()


def _with_id(feature: Any, mark: str) -> Any:
    """A feature whose innermost value carries a text: Parquet files keep it there, and not with a list."""
    if isinstance(feature, (List, LargeList)):
        return replace(feature, feature=_with_id(feature.feature, mark))
    if isinstance(feature, dict):
        first = next(iter(feature))
        return {**feature, first: _with_id(feature[first], mark)}
    return replace(feature, id=mark)


def column_provenance(dataset: Dataset, column: str) -> ScoreProvenance | None:
    """Where a column came from, score or not: what `append_columns` was told; None where it is not known."""
    require_columns(dataset.column_names, [column], reader="Its provenance was asked for.", remedy="Add it first.")
    feature = dataset.features[column]
    while isinstance(feature, (List, LargeList, dict)):
        feature = next(iter(feature.values())) if isinstance(feature, dict) else feature.feature
    mark = getattr(feature, "id", None)
    return ScoreProvenance.from_json(mark) if mark and _MARK in mark else None


def validate_new_columns(found: Iterable[str], new: Iterable[str], overwrite: bool) -> None:
    """Raises a `ValueError` if a column to be written exists and may not be overwritten."""
    existing = [column for column in new if column in found]
    if existing and not overwrite:
        raise ValueError(
            f"The data already has {', '.join(f'`{column}`' for column in existing)}. Pass `overwrite=True` to "
            "replace it, or give the new column another name."
        )


def _log_scores(dataset: Dataset, column: str, scores: np.ndarray, provenance: ScoreProvenance) -> None:
    """Logs rows, share unscored, minimum, median, maximum and easy end of a column; warns if all of it is NaN."""
    where = f" of split {dataset.split}" if dataset.split is not None else ""
    counts = score_statistics(scores)
    if counts["rows"] and counts["unscored"] == counts["rows"]:
        message = "`%s`%s: none of the %d rows could be scored, the column holds only NaN."
        logger.warning(message, column, where, counts["rows"])
        return
    marks = [f"{name} {counts[name]:.4g}" for name in ("min", "median", "max") if counts[name] is not None]
    line = [f"{counts['rows']} rows", f"{counts['share_unscored']:.2%} unscored", *marks, f"easy is {provenance.easy}"]
    logger.info("`%s`%s: %s", column, where, ", ".join(line))


def replace_table(
    dataset: Dataset,
    table: Any,
    features: Features,
    provenance: Mapping[str, ScoreProvenance] = MappingProxyType({}),
    read: Mapping[str, Iterable[str]] = MappingProxyType({}),
    key: str = "",
) -> Dataset:
    """`dataset` over another table of the same base rows, its scores recorded; its order, split and format stay."""
    info = dataset.info.copy()
    info.features = features
    records = {_RECORD + name: _record(table, name, made, read.get(name, ())) for name, made in provenance.items()}
    info.download_checksums = {**(info.download_checksums or {}), **records}
    fingerprint = Hasher.hash([dataset._fingerprint, "hf_curriculum", key, features.to_dict(), list(features)])
    # the fields' metadata come before the constructor, which compares them with `info.features`
    table = table.replace_schema_metadata(features.arrow_schema.metadata)
    # `_indices` has no public reader; passing it on is what saves a shuffled data set from being written out again
    new = Dataset(table, info=info, split=dataset.split, indices_table=dataset._indices, fingerprint=fingerprint)
    shape = dataset.format
    columns = [column for column in shape["columns"] if column in features]
    if set(shape["columns"]) == set(dataset.column_names):  # all columns were formatted, so the new ones are too
        columns = None
    new.set_format(
        shape["type"], columns=columns, output_all_columns=shape["output_all_columns"], **shape["format_kwargs"]
    )
    return new


def _record(table: Any, column: str, made: ScoreProvenance, read: Iterable[str]) -> dict[str, Any]:
    """What a score column holds, and the text it was made from, whatever the order of the rows; JSON-able."""
    scores = _as_float32(table.column(column).to_numpy())
    finite = scores[np.isfinite(scores)]
    return {
        "made": digest(made.to_json()),
        "rows": len(scores),
        "ends": [float(finite.min()), float(finite.max())] if len(finite) else None,
        "scores": _score_sum(scores),
        "text": {name: _text_sum(table.column(name)) for name in read if _is_text(table, name)},
    }


def _as_float32(scores: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return scores.astype(np.float32, copy=False)


def _score_sum(scores: np.ndarray) -> str:
    """A checksum of scores (rows,) that does not depend on their order."""
    same = np.where(np.isnan(scores), np.float32(np.nan), scores) + np.float32(0.0)  # one NaN and one zero
    return f"{int(hash64(same.view(np.uint32), 0).sum(dtype=np.uint64)):016x}"


def _is_text(table: Any, column: str) -> bool:
    kind = table.schema.field(column).type if column in table.column_names else pa.null()
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def stored_bytes(array: pa.Array) -> tuple[np.ndarray, memoryview]:
    """The lengths in bytes of texts or binary values (rows,), and all of their bytes, without a copy."""
    _, offsets, content = array.buffers()
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    ends = np.frombuffer(offsets or b"", np.int64 if wide else np.int32)[array.offset :][: len(array) + 1]
    if content is None or not len(ends):
        return np.diff(ends), memoryview(b"")
    return np.diff(ends), memoryview(content)[int(ends[0]) : int(ends[-1])]


def _text_sum(column: pa.ChunkedArray) -> list[int]:
    """The number and the sum of the bytes of all texts, which do not depend on the order of the rows."""
    contents = [np.frombuffer(stored_bytes(chunk)[1], np.uint8) for chunk in column.chunks]
    return [sum(map(len, contents)), sum(int(content.sum(dtype=np.uint64)) for content in contents)]


def validate_recorded(dataset: Dataset, column: str, made: ScoreProvenance, *, strict: bool = True) -> None:
    """Compares a score column with what was recorded when it was written, as far as that can be told from its rows."""
    kept = dataset.info.download_checksums or {} if isinstance(dataset, Dataset) else {}
    record = kept.get(_RECORD + column) or kept.get(_RECORD + made.column)
    dtype = getattr(dataset.features.get(column), "dtype", None) if record else None
    if dtype not in ("float32", "float64") or record["made"] != digest(made.to_json()):
        return
    table = dataset.data
    scores = _as_float32(table.column(column).to_numpy())
    finite = scores[np.isfinite(scores)]
    low, high = record["ends"] or (np.inf, -np.inf)
    outside = int(((finite < low) | (finite > high)).sum())
    remedy = (
        "Score again, or record the column as it is now with `attach_provenance(dataset, {...})`, which says what was "
        "done and which end is easy."
    )
    if outside:
        was = f"from {low:g} to {high:g}" if record["ends"] else "NaN throughout"
        message = (
            f"`{column}` has changed since {made.scorer} wrote it: it was {was}, and {outside:,} of {len(scores):,} "
            f"scores are outside of that. That {made.easy} is easy was recorded for the scores before. {remedy}"
        )
        if strict:
            raise ValueError(message)
        logger.warning(message)
    elif len(scores) == record["rows"]:
        text = {name: _text_sum(table.column(name)) for name in record["text"] if _is_text(table, name)}
        changed = [name for name, found in text.items() if found != record["text"][name]]
        if _score_sum(scores) != record["scores"]:
            changed.insert(0, column)
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            message = "%s changed after %s had written `%s`: score and rows may no longer belong together. %s"
            logger.warning(message, names, made.scorer, column, remedy)


def score_values(dataset: Dataset, column: str) -> np.ndarray:
    """A score column as one contiguous array."""
    return np.ascontiguousarray(numeric_column(dataset, column), dtype=np.float32)


def numeric_column(dataset: Dataset, column: str) -> np.ndarray:
    """A column of numbers as it is stored: (rows,), NaN for null; `score_values` is the same as float32."""
    require_columns(dataset.column_names, [column], reader="The scores are read from it.", remedy="Run `add_scores`.")
    dtype = getattr(dataset.features[column], "dtype", "")
    if not dtype.startswith(("float", "int", "uint")):
        raise ValueError(
            f"`{column}` is {dataset.features[column]}, not a column of numbers, so it holds no scores."
            f"{first_non_number(dataset, column)}"
        )
    return read_column(dataset, column).to_numpy(zero_copy_only=False)


def first_non_number(dataset: Dataset, column: str) -> str:
    """A sentence that names the first cell of a column that is no number, "" where there is none."""
    for row, cell in enumerate(read_column(dataset, column)):
        try:
            number = cell.is_valid and float(cell.as_py())
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(cell, pa.BooleanScalar):
            return (
                f" `{column}` has {cell.as_py()!r:.60} in row {row} (counted from 0). Numbers have a decimal point, "
                "and no %; write 1 and 0 for true and false."
            )
    return ""


def read_column(dataset: Dataset, column: str) -> pa.Array:
    """A column as one Arrow array, (rows,), in the order of the data set."""
    values = dataset.data.column(column)
    if isinstance(values.type, pa.BaseExtensionType):  # `Json` of `datasets`: equal texts are equal values
        values = values.cast(values.type.storage_type)
    if pa.types.is_string(values.type):
        values = values.cast(pa.large_string())  # joined into one array, `string` could hold 2 GB only
    values = values.combine_chunks()
    if dataset._indices is None:
        return values
    return values.take(dataset._indices.column(0).combine_chunks())


def score_statistics(scores: np.ndarray) -> dict[str, Any]:
    """Counts and quantiles of a score column, as JSON can hold them."""
    finite = scores[np.isfinite(scores)].astype(np.float64)
    marks = np.quantile(finite, [0, 0.25, 0.5, 0.75, 1]).tolist() if len(finite) else [None] * 5
    unscored = int(np.isnan(scores).sum())
    return {
        "rows": len(scores),
        "unscored": unscored,
        "infinite": len(scores) - unscored - len(finite),
        "share_unscored": unscored / len(scores) if len(scores) else 0.0,
        **dict(zip(("min", "q25", "median", "q75", "max"), marks, strict=True)),
    }
