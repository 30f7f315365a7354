"""`add_scores`: scores as new columns, without writing or decoding what the scorers do not read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, Value
from datasets.fingerprint import Hasher

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.data.captions import group_codes
from hf_curriculum.provenance import AnyDataset, ScoreProvenance, check_choice, read_column, score_values
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scoring.score_columns import (
    aggregate_per_image,
    append_columns,
    check_columns,
    report_scores,
)


def add_scores(
    dataset: AnyDataset,
    scorers: Scorer | Sequence[Scorer],
    *,
    per_image: Literal["max", "min", "mean"] | None = None,
    batch_size: int = 1000,
    num_proc: int | None = None,
    resume_every: int | None = None,
    cache_dir: str | Path | None = None,
    overwrite: bool = False,
) -> AnyDataset:
    """Adds a column per score, and records in it where it came from.

    Only the columns that a scorer reads are mapped over, and the new columns are laid beside the old ones: 4 bytes per
    row and score, where a plain `map` writes every picture again. That also holds for a shuffled, filtered or split
    data set, whose order is kept. Scores are cached as `map` caches: the same call on the same data does not score
    again. With `num_proc` or `resume_every`, an interrupted call goes on with the parts that were not finished.

    Args:
        dataset: one data set or several splits, map-style or iterable. An iterable one is scored while it is read.
        scorers: one or more; each is mapped and cached on its own. One that combines scores may stand behind those
            that write them.
        per_image: aggregate over the rows with equal `image_id`, and write the result to each of them. Within a split.
        batch_size: rows per call of a scorer.
        num_proc: worker processes; GPUs are dealt to them in turn.
        resume_every: write (and cache) the scores in parts of this many rows. Each part starts its own workers.
        cache_dir: where to cache. By default beside the data, and not at all for a data set in memory, as in `map`.
        overwrite: replace columns that exist, instead of refusing.

    Returns:
        The data set with the new columns last: float32, NaN where a row could not be scored.

    Raises:
        TypeError: something that is not a scorer, or not a data set.
        ValueError: a column is missing, exists already or would be written twice; an option that does not go with an
            iterable data set.
        RuntimeError: a scorer that learns from a corpus was not fitted.

    Source: Saha et al. 2024 (BabyLM), §3.3 for `per_image="max"`.

    Example:
        >>> from datasets import Dataset
        >>> from hf_curriculum.scorers.text.length import CaptionLength
        >>> data = Dataset.from_dict({"caption": ["a dog", "a dog and a cat", ""]})
        >>> add_scores(data, CaptionLength())["caption_length"][:]
        [2.0, 5.0, nan]
    """
    scorers = checked_scorers(scorers)
    for scorer in scorers:
        scorer.check_fitted()
    check_choice("per_image", per_image, (None, "max", "min", "mean"))
    if isinstance(dataset, (DatasetDict, IterableDatasetDict)):
        options = {"per_image": per_image, "batch_size": batch_size, "num_proc": num_proc, "overwrite": overwrite}
        options |= {"resume_every": resume_every, "cache_dir": cache_dir}
        return type(dataset)({name: add_scores(part, scorers, **options) for name, part in dataset.items()})
    if isinstance(dataset, IterableDataset):
        given = {"per_image": per_image, "num_proc": num_proc, "resume_every": resume_every, "cache_dir": cache_dir}
        return add_streaming(dataset, scorers, batch_size, overwrite, given)
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`add_scores` was given a {type(dataset).__name__}. It takes a `datasets.Dataset`, `DatasetDict` or "
            "`IterableDataset`: make one with `load_dataset` or `Dataset.from_dict`."
        )
    check_columns(dataset.column_names, scorers, overwrite)
    images = image_codes(dataset) if per_image else None
    values: dict[str, np.ndarray] = {}
    provenance: dict[str, ScoreProvenance] = {}
    for scorer in scorers:
        given = with_parts(dataset, scorer, values, provenance)
        scores = _score(given, scorer, batch_size, num_proc, resume_every, cache_dir)
        for column, array in scores.items():
            values[column] = aggregate_per_image(array, images, per_image) if per_image else array
            provenance[column] = replace(scorer.describe(column), per_image=per_image)
    report_scores(dataset, values, provenance)
    return append_columns(dataset, values, provenance)


def with_parts(
    dataset: Dataset,
    scorer: Scorer,
    values: Mapping[str, np.ndarray],
    provenance: Mapping[str, ScoreProvenance],
) -> Dataset:
    """The data set with those of the scores made so far that a scorer reads, if it reads any.

    With no more than these: the cache of a scorer that reads none does not depend on which others were given.
    """
    read = {column: values[column] for column in scorer.columns if column in values}
    return append_columns(dataset, read, provenance) if read else dataset


def image_codes(dataset: Dataset) -> np.ndarray:
    """Numbers the images of a data set. Shapes: returns int64 (rows,), equal for captions of one image.

    Raises:
        ValueError: there is no `image_id`, or a row lacks it.
    """
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="`per_image` aggregates the scores of the captions of one image, which share it.",
        remedy="Rename your column to it, or leave `per_image` out.",
    )
    if len(dataset) == 0:
        return np.zeros(0, np.int64)
    return group_codes(read_column(dataset, IMAGE_ID))


def checked_scorers(scorers: Scorer | Sequence[Scorer]) -> list[Scorer]:
    """The scorers as a list.

    Raises:
        TypeError: something that is not a scorer.
        ValueError: none was given, or two write one column.
    """
    scorers = [scorers] if isinstance(scorers, Scorer) or not isinstance(scorers, Sequence) else list(scorers)
    for scorer in scorers:
        if not isinstance(scorer, Scorer):
            given = scorer if isinstance(scorer, type) else type(scorer)
            raise TypeError(
                f"`add_scores` was given {given.__name__!r}, not a scorer. It needs to know which columns are read "
                "and written. Give an instance (`NounCount()`), subclass `Scorer`, or join finished numbers "
                "with `add_scores_from`."
            )
    written = [column for scorer in scorers for column in scorer.outputs]
    twice = sorted({column for column in written if written.count(column) > 1})
    if twice:
        raise ValueError(f"Two scorers write `{twice[0]}`. Only one of them would be kept. Give one another `name=`.")
    if not written:
        raise ValueError("No scorer was given, so there is nothing to add. Pass at least one, like `NounCount()`.")
    return scorers


def _score(
    dataset: Dataset,
    scorer: Scorer,
    batch_size: int,
    num_proc: int | None,
    resume_every: int | None,
    cache_dir: str | Path | None,
) -> dict[str, np.ndarray]:
    """Maps one scorer over what it reads. Returns float32 (rows,) per written column, in the data set's order."""
    view, place = scoring_inputs(dataset, scorer)
    if len(view) == 0:
        return {column: np.zeros(0, np.float32) for column in scorer.outputs}
    features = score_features(scorer)
    step = resume_every or len(view)
    starts = range(0, len(view), step)
    parts: list[Dataset] = []
    for start in starts:
        part = view if len(starts) == 1 else view.select(range(start, min(start + step, len(view))))
        which = f" (part {len(parts) + 1} of {len(starts)})" if len(starts) > 1 else ""
        file = None
        if cache_dir is not None:
            os.makedirs(cache_dir, exist_ok=True)
            key = Hasher.hash([part._fingerprint, scorer, features.to_dict(), batch_size])
            file = os.path.join(cache_dir, f"scores-{key}.arrow")
        options = {"batch_size": batch_size, "num_proc": num_proc, "cache_file_name": file}
        parts.append(map_scorer(part, scorer, features, which, **options))
    scores = {}
    for column in scorer.outputs:
        mapped = np.concatenate([score_values(part, column) for part in parts])  # (rows of the view,)
        scores[column] = mapped if place is None else mapped[place]
    return scores


def add_streaming(
    dataset: IterableDataset, scorers: list[Scorer], batch_size: int, overwrite: bool, given: Mapping[str, object]
) -> IterableDataset:
    """Scores rows while they are read. What `add_scores` does with an iterable data set.

    Args:
        dataset: the data set, lazy before and after.
        scorers: mapped one after the other.
        batch_size: rows per call of a scorer.
        overwrite: replace columns that exist, instead of refusing.
        given: options that need all rows at once, and must be None.

    Raises:
        ValueError: such an option was given, a column is missing or exists already, or the features are not known.
    """
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{option}={value!r}` does not go with an iterable data set, which is scored while it is read, never "
                "as a whole. Leave it out, or load the data as a map-style `Dataset`."
            )
    try:
        dataset = dataset._resolve_features()  # reads one batch if the features are unknown; no public way to ask
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"The features of this iterable data set are not known, and cannot be told from its first rows ({error}). "
            "A `map` without `features=` forgets them, and provenance is kept in them. Restore them with "
            "`dataset.cast(features)`, or use `dataset.map(scorer, batched=True)`, which records no provenance."
        ) from error
    for scorer in scorers:
        dataset = _score_while_read(dataset, scorer, batch_size, overwrite)
    return dataset


def _score_while_read(dataset: IterableDataset, scorer: Scorer, batch_size: int, overwrite: bool) -> IterableDataset:
    check_columns(list(dataset.features), [scorer], overwrite)
    new = {name: Value("float32", id=scorer.describe(name).to_json()) for name in scorer.outputs}
    features = Features({**{name: kept for name, kept in dataset.features.items() if name not in new}, **new})
    # pictures travel as stored: `map` would decode all of them, and `datasets` cannot close them again without a loss
    files = {name: feature for name, feature in features.items() if getattr(feature, "decode", False)}
    for name, feature in files.items():
        dataset = dataset.cast_column(name, replace(feature, decode=False))
    opened = {name: feature for name, feature in files.items() if name in scorer.columns}
    opened = {name: feature for name, feature in opened.items() if name not in scorer.undecoded}
    dataset = dataset.map(_Opening(scorer, opened) if opened else scorer, batched=True, batch_size=batch_size)
    return dataset.cast(features)  # given to `map`, they would count as applied, and nobody would decode the pictures


class _Opening:
    """A scorer over stored pictures: decodes those it reads."""

    def __init__(self, scorer: Scorer, features: dict[str, Any]) -> None:
        self.scorer, self.features = scorer, features

    def __call__(self, batch: Mapping[str, list]) -> dict[str, np.ndarray]:
        opened = {name: [_decoded(feature, value) for value in batch[name]] for name, feature in self.features.items()}
        return self.scorer({**batch, **opened})


def _decoded(feature: Any, stored: Any) -> Any:
    # what an earlier `map` of the user has decoded already is neither
    return feature.decode_example(stored) if isinstance(stored, (dict, str)) else stored


def scoring_inputs(dataset: Dataset, scorer: Scorer) -> tuple[Dataset, np.ndarray | None]:
    """What a scorer is mapped over, and where in it each row of the data set is (None: in the same place).

    It has the scorer's columns only. Rows stand in the order of the table, each once, even if the data set is
    shuffled: a table is read several times faster in its own order. Rows of a group stand side by side.
    """
    columns, group = list(scorer.columns), scorer.group_by
    if group is not None and group in dataset.column_names and group not in columns:
        columns.append(group)
    view, place = dataset.with_format(None).select_columns(columns), None
    if dataset._indices is not None and len(dataset):
        rows, place = np.unique(dataset._indices.column(0).to_numpy(), return_inverse=True)
        fingerprint = Hasher.hash([view._fingerprint, "in the order of its table"])
        table = Dataset(view.data, info=view.info, split=view.split, fingerprint=fingerprint)
        view = table if len(rows) == len(table) else table.select(rows)
    for column in scorer.undecoded:
        if getattr(view.features.get(column), "decode", False):
            view = view.cast_column(column, replace(view.features[column], decode=False))
    if group not in columns or len(view) == 0:
        return view, place
    codes = group_codes(read_column(view, group), group)
    if np.all(np.diff(codes) >= 0):  # numbered by first appearance: sorted means every group is in one piece
        return view, place
    order = np.argsort(codes, kind="stable")
    ordered = np.empty_like(order)
    ordered[order] = np.arange(len(order))
    return view.select(order), ordered if place is None else ordered[place]


def score_features(scorer: Scorer) -> Features:
    """The columns that a scorer writes, with their provenance.

    Typed, so that a first batch of NaN alone is no trouble; the provenance makes the cache key know the versions too.
    """
    return Features({name: Value("float32", id=scorer.describe(name).to_json()) for name in scorer.outputs})


def map_scorer(part: Dataset, scorer: Scorer, features: Features, which: str = "", **options: Any) -> Dataset:
    """The scores of a view, or a part of it, and nothing else.

    Args:
        part: (a part of) what `scoring_inputs` returned.
        scorer: what scores it.
        features: what `score_features` returned.
        which: what to call the part on the progress bar.
        options: of `datasets.Dataset.map`.
    """
    return part.map(
        scorer,
        batched=True,
        with_rank=True,
        remove_columns=part.column_names,
        features=features,
        desc=f"Scoring {', '.join(scorer.outputs)}{which}",
        **options,
    )
