"""Where a score column came from, kept in the data set's own features.

The features carry it as `Value("float32", id=<JSON>)`, which `datasets` keeps through `map`, `filter`, `select`,
`shuffle`, renaming, saving, loading and Parquet. That JSON holds only what is the same for every split, because
`datasets` refuses to concatenate rows whose features differ. What differs (rows, share of unscored rows, quantiles)
is computed when asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, Value
from datasets.fingerprint import Hasher

from hf_curriculum.columns import require_columns

_FORMAT = 1  # version of the JSON in features and files
_MARK = "hf_curriculum_score"

AnyDataset = Dataset | DatasetDict | IterableDataset | IterableDatasetDict


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

    Raises:
        ValueError: `easy`, `per_image` or `source` is not one of its values, or `arguments` is not JSON.

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

    def __post_init__(self) -> None:
        check_choice("easy", self.easy, ("low", "high"))
        check_choice("per_image", self.per_image, (None, "max", "min", "mean"))
        check_choice("source", self.source, ("scorer", "joined"))
        for name in ("arguments", "versions"):
            try:  # through JSON and back, so that what is read later equals what was written
                object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)), allow_nan=False)))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"`{name}` of the score `{self.column}` by {self.scorer} cannot be written as JSON ({error}). "
                    "Provenance is kept as JSON in the data set's features. Give strings, finite numbers, lists and "
                    "mappings; a scorer with other arguments overrides `arguments()`."
                ) from error

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self) -> str:
        """One line, keys sorted: equal provenance is equal text."""
        return json.dumps({_MARK: _FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ScoreProvenance:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: not such a text, or one of a newer format.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError:
            content = None
        if not isinstance(content, dict) or _MARK not in content:
            raise ValueError(f"Not the provenance of a score: {text[:80]!r}. `ScoreProvenance.to_json` writes it.")
        if content.pop(_MARK) != _FORMAT:
            raise ValueError(
                f"The provenance of a score is not in format {_FORMAT}, the one this version reads: {text[:80]!r}. It "
                "was written by another version of hf-curriculum; upgrade."
            )
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in content.items() if key in known})


def check_choice(name: str, given: object, choices: tuple[object, ...]) -> None:
    """Raises a `ValueError` if `given`, the argument called `name`, is not among `choices`."""
    if given not in choices:
        raise ValueError(f"`{name}` is {given!r}. It is one of {', '.join(map(repr, choices))}.")


def read_provenance(dataset: AnyDataset, split: str | None = None) -> dict[str, ScoreProvenance]:
    """The provenance of every score column, by the column's present name.

    Args:
        dataset: a data set, or splits; an `IterableDataset` whose features are unknown carries none.
        split: read this split of several only.

    Raises:
        ValueError: two splits tell different things about one column, and no `split` was named.

    Example:
        >>> from datasets import Dataset
        >>> read_provenance(Dataset.from_dict({"caption": ["a dog"]}))
        {}
    """
    if isinstance(dataset, (DatasetDict, IterableDatasetDict)):
        return merged_provenance({name: read_provenance(part) for name, part in dataset.items()}, split)
    found = {}
    for column, feature in (dataset.features or {}).items():
        mark = feature.id if isinstance(feature, Value) else None
        if mark and _MARK in mark:
            found[column] = ScoreProvenance.from_json(mark)
    return found


def merged_provenance(splits: dict[str, dict[str, ScoreProvenance]], split: str | None) -> dict[str, ScoreProvenance]:
    """One mapping for several splits: what they agree on, or `split`'s own.

    Raises:
        ValueError: they disagree on a column and no `split` was named, or there is no such split.
    """
    if split is not None:
        check_choice("split", split, tuple(splits))
        return splits[split]
    merged: dict[str, ScoreProvenance] = {}
    for name, found in splits.items():
        for column, provenance in found.items():
            if merged.setdefault(column, provenance) != provenance:
                raise ValueError(
                    f"`{column}` was scored differently in the splits {list(splits)}: {provenance} in {name!r}, but "
                    f"{merged[column]} before it. Scores made in two ways are not comparable. Score all splits with "
                    "one scorer, or name a `split=`."
                )
    return merged


def attach_provenance(dataset: AnyDataset, provenance: Mapping[str, ScoreProvenance]) -> AnyDataset:
    """Records where existing columns came from; the data is not touched.

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
                f"`{column}` is {features[column]}, not a floating-point column. A score is a float32 number, NaN "
                'where a row could not be scored. Cast it: `dataset.cast_column(column, Value("float32"))`.'
            )
        features[column] = Value(dtype, id=made.to_json())
    if isinstance(dataset, IterableDataset):
        for column in provenance:
            dataset = dataset.cast_column(column, features[column])
        return dataset
    return rebuilt(dataset, dataset.data, features)


def rebuilt(dataset: Dataset, table: Any, features: Features, key: str = "") -> Dataset:
    """`dataset` over another table of the same rows: its order, split, info and format stay.

    Args:
        dataset: the data set, possibly shuffled or filtered.
        table: a `datasets.table.Table` whose rows are the base rows of `dataset` (before shuffling or filtering).
        features: the features of `table`.
        key: what stands for the new content in the data set's fingerprint.
    """
    info = dataset.info.copy()
    info.features = features
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


def score_values(dataset: Dataset, column: str) -> np.ndarray:
    """A score column as one contiguous array.

    Reading `dataset[column][i]` row by row costs 33 µs each; this reads all rows at once.

    Args:
        dataset: a data set, shuffled, filtered or formatted as it may be.
        column: a column of numbers.

    Shapes:
        returns float32 (rows,), NaN where the row was not scored (or holds null).

    Raises:
        ValueError: the column is missing or does not hold numbers.
    """
    require_columns(dataset.column_names, [column], reader="The scores are read from it.", remedy="Run `add_scores`.")
    dtype = getattr(dataset.features[column], "dtype", "")
    if not dtype.startswith(("float", "int", "uint")):
        raise ValueError(f"`{column}` is {dataset.features[column]}, not a column of numbers, so it holds no scores.")
    return np.ascontiguousarray(read_column(dataset, column).to_numpy(zero_copy_only=False), dtype=np.float32)


def read_column(dataset: Dataset, column: str) -> pa.Array:
    """A column as one Arrow array, (rows,), in the order of the data set.

    `datasets` gathers the rows of a shuffled data set one by one, 9 µs each; this takes them all at once.
    """
    values = dataset.data.column(column)
    if pa.types.is_string(values.type):
        values = values.cast(pa.large_string())  # joined into one array, `string` could hold 2 GB only
    values = values.combine_chunks()
    if dataset._indices is None:
        return values
    return values.take(dataset._indices.column(0).combine_chunks())


def score_statistics(scores: np.ndarray) -> dict[str, Any]:
    """Counts and quantiles of a score column, as JSON can hold them.

    Args:
        scores: float32 (rows,), NaN where a row could not be scored.

    Returns:
        rows, unscored (NaN), infinite (±inf), share_unscored in [0, 1], and min, q25, median, q75, max of the finite
        scores (None if there are none).
    """
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
