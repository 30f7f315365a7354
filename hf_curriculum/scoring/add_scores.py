"""`add_scores`: scores as new columns; what scorers do not read is not written or decoded."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, LargeList, List, Value
from datasets.fingerprint import Hasher

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.data.captions import group_codes
from hf_curriculum.data.grouping import aggregate_per_image
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.data.image_files import stored_feature, with_stored
from hf_curriculum.data.readers.coco import OBJECTS
from hf_curriculum.files import own_folder
from hf_curriculum.parts import PartFolder, data_digest
from hf_curriculum.provenance import (
    AnyDataset,
    ScoreProvenance,
    append_columns,
    read_column,
    score_values,
    validate_choice,
    validate_new_columns,
)
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.shared_passes import share_passes
from hf_curriculum.scorers.visual.images import image_workers
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import table_rows, warn_of_transform

logger: logging.Logger = logging.getLogger(__name__)


@validate_arguments
def add_scores(
    dataset: AnyDataset,
    scorers: Scorer | Sequence[Scorer],
    *,
    per_image: Literal["max", "min", "mean"] | None = None,
    batch_size: int = 1000,
    num_proc: int | None = None,
    num_workers: int = 0,
    resume_every: int | None = None,
    cache_dir: str | Path | None = None,
    load_from_cache_file: bool = True,
    overwrite: bool = False,
) -> AnyDataset:
    """Scores a data set: adds one column per score, with its provenance.

    It maps over the columns that a scorer reads alone, and appends the new ones: 4 bytes per row and score, where a
    plain `map` writes every image again. This also holds for a shuffled, filtered or split data set, whose order is
    kept. Scores are cached as in `map`. The same call on the same data scores again only if the scorer, the source of
    its module (`Scorer.source_digest`) or a library's version has changed. With `num_proc` or `resume_every`, an
    interrupted call continues with the parts that were not finished.

    Args:
        dataset: one data set or several splits, map-style or iterable. An iterable one is scored while it is read.
        scorers: one or more. One that combines scores comes after those that write them.
        per_image: aggregate over the rows of a split with equal `image_id`, and write the result to each of them.
        batch_size: rows per call of a scorer.
        num_proc: worker processes, each with its own model; GPUs are assigned to them in turn.
        num_workers: processes that open and prepare images for one model while it computes, in place of `num_proc`;
            the scores are the same.
        resume_every: keep finished scores in parts of this many rows, as `add_scores_sharded` does: in `cache_dir`,
            next to the data, or in the cache of `datasets` for a data set in memory. Each part starts its own workers.
        cache_dir: where to cache, by default next to the data. Without `resume_every` a data set in memory is not
            cached, as in `map`.
        load_from_cache_file: False scores again, whatever is cached.
        overwrite: replace columns that exist, in place of an error.

    Returns:
        The data set with the new columns last: float32, NaN where a row could not be scored.

    Raises:
        TypeError: something that is not a scorer, or not a data set.
        ValueError: a column is missing, exists already or would be written twice; an option that an iterable data set
            does not support; `num_workers` with `num_proc`.
        RuntimeError: a scorer that is fitted on a corpus was not fitted.

    Source: Saha et al. 2024 (BabyLM), §3.3 for `per_image="max"`.

    Example:
        >>> from datasets import Dataset
        >>> from hf_curriculum.scorers.text.length import CaptionLength
        >>> data = Dataset.from_dict({"caption": ["a dog", "a dog and a cat", ""]})
        >>> add_scores(data, CaptionLength())["caption_length"][:]
        [2.0, 5.0, nan]
    """
    scorers = as_scorers(scorers)
    for scorer in scorers:
        scorer.validate_fitted()
    validate_choice("per_image", per_image, (None, "max", "min", "mean"))
    given = {"per_image": per_image, "num_proc": num_proc, "resume_every": resume_every, "cache_dir": cache_dir}
    given["load_from_cache_file"], given["num_workers"] = None if load_from_cache_file else False, num_workers or None
    if isinstance(dataset, IterableDatasetDict):
        parts = {name: _score_iterable(part, scorers, batch_size, overwrite, given) for name, part in dataset.items()}
        return IterableDatasetDict(parts)
    if isinstance(dataset, IterableDataset):
        return _score_iterable(dataset, scorers, batch_size, overwrite, given)
    splits = splits_to_score(dataset, scorers, per_image, overwrite)
    options = (batch_size, num_proc, resume_every or None, cache_dir, load_from_cache_file)
    with reading_images(num_workers, num_proc):
        return ScoringRun(scorers, splits, per_image, *options).add_to(dataset)


def reading_images(num_workers: int, num_proc: int | None) -> AbstractContextManager[None]:
    """`image_workers`, which processes with models of their own do not go with: they read what they score."""
    if num_workers and num_proc:
        raise ValueError(
            f"num_workers={num_workers} and num_proc={num_proc} were given. The first are for one model in this "
            "process, the others have a model each and read images themselves. Leave one of them out."
        )
    return image_workers(num_workers)


def as_scorers(scorers: Scorer | Sequence[Scorer]) -> list[Scorer]:
    """The scorers as a list: at least one, no column written twice; those of one model together."""
    scorers = [scorers] if isinstance(scorers, Scorer) else list(scorers)
    for scorer in scorers:
        scorer.validate_columns()
    written = [column for scorer in scorers for column in scorer.outputs]
    if twice := sorted({column for column in written if written.count(column) > 1}):
        raise ValueError(f"Two scorers write `{twice[0]}`. Only one of them would be kept. Give one another `name=`.")
    if not written:
        raise ValueError("No scorer was given, so there is nothing to add. Pass at least one, like `NounCount()`.")
    return share_passes(scorers)


def _validate_columns(found: Sequence[str], scorers: Sequence[Scorer], overwrite: bool) -> None:
    """Checks that columns that are read exist, or are written by a scorer before, and that written ones are new."""
    known = list(found)
    remedy = "Rename the columns (`dataset.rename_column`), or give the scorer their names; one that another scorer "
    remedy += "writes must be written before."
    for scorer in scorers:
        boxes = " Boxes of COCO or VOC are loaded with `load_captioned(..., objects=FILE)` (hf-curriculum score: "
        boxes += f"--objects FILE), as the column `{OBJECTS}`."
        reader = f"{type(scorer).__name__} reads {', '.join(f'`{column}`' for column in scorer.columns)}."
        without_boxes = OBJECTS in scorer.columns and OBJECTS not in known
        require_columns(known, scorer.columns, reader=reader, remedy=remedy + boxes * without_boxes)
        known += [column for column in scorer.outputs if column not in known]
    validate_new_columns(found, [column for scorer in scorers for column in scorer.outputs], overwrite)


@dataclass
class Split:
    """One split, and those of its new columns that are known in this process."""

    name: str
    dataset: Dataset
    images: np.ndarray | None
    values: dict[str, np.ndarray] = field(default_factory=dict)
    provenance: dict[str, ScoreProvenance] = field(default_factory=dict)

    def rows(self) -> int:
        """How many rows are scored: each of the table once."""
        rows = table_rows(self.dataset)
        return len(self.dataset) if rows is None else len(np.unique(rows))


def splits_to_score(
    dataset: Dataset | DatasetDict, scorers: Sequence[Scorer], per_image: str | None, overwrite: bool
) -> list[Split]:
    """The splits; a `ValueError` if a column is missing or exists already, or `per_image` has no `image_id`."""
    parts = dict(dataset) if isinstance(dataset, DatasetDict) else {"all": dataset}
    warn_of_transform(parts.values())
    for part in parts.values():
        _validate_columns(part.column_names, scorers, overwrite)
    return [Split(name, part, _image_codes(part) if per_image else None) for name, part in parts.items()]


def _image_codes(dataset: Dataset) -> np.ndarray:
    """int64 (rows,), equal for captions of one image."""
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="`per_image` aggregates the scores of the captions of one image, which share it.",
        remedy="Rename your column to it, or leave `per_image` out.",
    )
    validate_image_ids(dataset)
    return group_codes(read_column(dataset, IMAGE_ID))


@dataclass(frozen=True)
class ScorerInputs:
    """What a scorer reads of a split, and where each row of the split is in it (None: in the same place)."""

    inputs: Dataset
    position: np.ndarray | None
    provenance: dict[str, ScoreProvenance]
    source: str | None

    @classmethod
    def of(cls, scorer: Scorer, dataset: Dataset) -> ScorerInputs:
        return cls(*scoring_inputs(dataset, scorer), _provenance(scorer), scorer.source_digest())

    def manifest(self) -> dict[str, Any]:
        """What must be equal in all processes for their parts to belong together."""
        scores = {column: made.to_dict() for column, made in self.provenance.items()}
        source = {} if self.source is None else {"source": self.source}
        return {"data": data_digest(self.inputs), "scores": scores, **source}

    def map(self, scorer: Scorer, rows: range | None = None, which: str = "", **options: Any) -> dict[str, np.ndarray]:
        """Column → float32 scores of all `rows` or some; `which` they are goes to the progress bar."""
        inputs = self.inputs if rows is None else self.inputs.select(rows)
        found = inputs.map(
            scorer,
            batched=True,
            with_rank=True,
            remove_columns=inputs.column_names,
            features=_features(self.provenance),
            desc=f"Scoring {', '.join(self.provenance)}{which}",
            **options,
        )
        return {column: score_values(found, column) for column in self.provenance}


def _provenance(scorer: Scorer) -> dict[str, ScoreProvenance]:
    return {column: scorer.describe(column) for column in scorer.outputs}


def _features(provenance: Mapping[str, ScoreProvenance]) -> Features:
    """The written columns: typed, so that a first batch of NaN is float32; the provenance enters the cache key."""
    return Features({column: Value("float32", id=made.to_json()) for column, made in provenance.items()})


@dataclass
class ScoringRun:
    """The scorers of a call over its splits, in parts of `step` rows, or by a `map` that caches all rows (None)."""

    scorers: list[Scorer]
    splits: list[Split]
    per_image: Literal["max", "min", "mean"] | None
    batch_size: int
    num_proc: int | None
    step: int | None
    cache_dir: str | Path | None = None
    load_from_cache_file: bool = True
    timeout: float = 0

    def add_to(self, dataset: Dataset | DatasetDict) -> Dataset | DatasetDict | None:
        """`dataset` with the scores of its splits."""
        scored = {}
        for split in self.splits:
            for scorer in self.scorers:
                self.collect(scorer, split)
            values = {column: split.values[column] for scorer in self.scorers for column in scorer.outputs}
            read = {column: scorer.columns for scorer in self.scorers for column in scorer.outputs}
            scored[split.name] = append_columns(split.dataset, values, split.provenance, read=read, overwrite=True)
        return DatasetDict(scored) if isinstance(dataset, DatasetDict) else scored["all"]

    def collect(self, scorer: Scorer, split: Split) -> None:
        """Puts a scorer's columns and their provenance into the split, once."""
        if split.values.keys() >= scorer.outputs.keys():
            return
        stage = self.stage(scorer, split)
        if self.step is None:
            scores = self.map_all(scorer, stage)
        else:
            parts = self.part_folder(scorer, split, stage)
            self.score_parts(scorer, stage, parts, range(parts.count))
            table = parts.read_all(self.timeout)
            scores = {column: table[column].to_numpy() for column in table.column_names}
        for column, made in stage.provenance.items():
            array = scores.get(column, np.zeros(0, np.float32))
            array = array if stage.position is None else array[stage.position]
            if self.per_image:
                array = aggregate_per_image(array, split.images, self.per_image)
            split.values[column], split.provenance[column] = array, replace(made, per_image=self.per_image)

    def map_all(self, scorer: Scorer, stage: ScorerInputs) -> dict[str, np.ndarray]:
        """Scores of all rows, cached by `map`."""
        if not len(stage.inputs):
            return {}
        file = None
        if self.cache_dir is not None:
            os.makedirs(self.cache_dir, exist_ok=True)
            file = os.path.join(self.cache_dir, f"scores-{self.cache_key(scorer, stage)}.arrow")
        return stage.map(
            scorer,
            batch_size=self.batch_size,
            num_proc=self.num_proc,
            cache_file_name=file,
            load_from_cache_file=None if self.load_from_cache_file else False,  # None: `datasets.disable_caching`
        )

    def score_parts(self, scorer: Scorer, stage: ScorerInputs, parts: PartFolder, numbers: Sequence[int]) -> None:
        """Scores those of some parts that are missing."""
        for part in parts.missing(numbers):
            found = stage.map(
                scorer,
                parts.rows_of(part),
                f" (part {part + 1} of {parts.count})",
                batch_size=self.batch_size,
                num_proc=self.num_proc,
                keep_in_memory=True,  # the part itself is what is kept
                load_from_cache_file=False,
                new_fingerprint=Hasher.hash([parts.digest, part]),  # saves hashing the scorer once per part
            )
            parts.write(part, found)
            logger.info("%s: part %d of %d is written.", parts.folder, part + 1, parts.count)

    def part_folder(self, scorer: Scorer, split: Split, stage: ScorerInputs) -> PartFolder:
        """The folder of a scorer's parts: in `cache_dir`, where `map` caches, or in the cache of `datasets`."""
        cache: str | Path = Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", "scores")
        if split.dataset.cache_files:
            cache = Path(split.dataset.cache_files[0]["filename"]).parent
        folder = Path(self.cache_dir or cache, f"scores-{self.cache_key(scorer, stage)}")
        if not self.load_from_cache_file:
            shutil.rmtree(folder, ignore_errors=True)
        return PartFolder(own_folder(folder), self.manifest(stage), len(stage.inputs), self.step)

    def manifest(self, stage: ScorerInputs) -> dict[str, Any]:
        return {**stage.manifest(), "batch_size": self.batch_size}

    def cache_key(self, scorer: Scorer, stage: ScorerInputs) -> str:
        key = [stage.inputs._fingerprint, scorer, _features(stage.provenance).to_dict(), self.batch_size, self.step]
        return Hasher.hash(key)

    def stage(self, scorer: Scorer, split: Split) -> ScorerInputs:
        return ScorerInputs.of(scorer, self.with_scores_read(scorer, split))

    def with_scores_read(self, scorer: Scorer, split: Split) -> Dataset:
        """The data set with those new scores that a scorer reads: its cache does not depend on other scorers."""
        earlier = self.scorers[: self.scorers.index(scorer)]
        writer_of = {column: other for other in earlier for column in other.outputs}
        read = [column for column in scorer.columns if column in writer_of]
        for column in read:
            self.collect(writer_of[column], split)
        if not read:
            return split.dataset
        values = {column: split.values[column] for column in read}
        return append_columns(split.dataset, values, split.provenance, overwrite=True, log=False)


def scoring_inputs(dataset: Dataset, scorer: Scorer) -> tuple[Dataset, np.ndarray | None]:
    """What a scorer is mapped over: its columns, each row of the table once and in its order, groups side by side."""
    columns, group = list(dict.fromkeys(scorer.columns)), scorer.group_by
    if group is not None and group in dataset.column_names and group not in columns:
        columns.append(group)
    inputs, position = dataset.with_format(None).select_columns(columns), None
    if (shown := table_rows(dataset)) is not None and len(dataset):
        rows, position = np.unique(shown, return_inverse=True)
        fingerprint = Hasher.hash([inputs._fingerprint, "in the order of its table"])
        table = Dataset(inputs.data, info=inputs.info, split=inputs.split, fingerprint=fingerprint)
        inputs = table if len(rows) == len(table) else table.select(rows)
    for column in scorer.decode_false:
        if column in columns:
            inputs = with_stored(inputs, column)
    if scorer.numpy_columns:
        inputs = inputs.with_format("numpy", columns=list(scorer.numpy_columns), output_all_columns=True)
    if group not in columns or len(inputs) == 0:
        return inputs, position
    codes = group_codes(read_column(inputs, group), group)
    if np.all(np.diff(codes) >= 0):  # numbered by first appearance: sorted means every group is contiguous
        return inputs, position
    order = np.argsort(codes, kind="stable")
    ordered = np.empty_like(order)
    ordered[order] = np.arange(len(order))
    return inputs.select(order), ordered if position is None else ordered[position]


def _score_iterable(
    dataset: IterableDataset, scorers: Sequence[Scorer], batch_size: int, overwrite: bool, given: Mapping[str, object]
) -> IterableDataset:
    """Scores rows while they are read, lazily; the options `given` need all rows at once and must be None."""
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{option}={value!r}` does not go with an iterable data set, which is scored while it is read. Leave "
                "it out, or load the data as a map-style `Dataset`."
            )
    try:
        dataset = dataset._resolve_features()  # reads one batch if the features are unknown; there is no public way
    except pa.ArrowInvalid as error:
        raise ValueError(
            "The features of this iterable data set are not known, and its first rows do not determine them "
            f"({error}). Restore them with `dataset.cast(features)`, or use `dataset.map(scorer, batched=True)`, "
            "which records no provenance."
        ) from error
    for scorer in scorers:
        _validate_columns(list(dataset.features), [scorer], overwrite)
        kept = {name: feature for name, feature in dataset.features.items() if name not in scorer.outputs}
        features = Features({**kept, **_features(_provenance(scorer))})
        # images pass through as stored: `map` would decode all of them and encode them again, with a loss
        stored = {name: feature for name, feature in features.items() if stored_feature(feature) != feature}
        for name, feature in stored.items():
            dataset = dataset.cast_column(name, stored_feature(feature))
        read = [name for name in scorer.columns if name not in scorer.decode_false]
        decoded = {name: feature for name, feature in stored.items() if name in read}
        function = _Decoding(scorer, decoded) if decoded else scorer
        dataset = dataset.map(function, batched=True, batch_size=batch_size)
        dataset = dataset.cast(features)  # given to `map` they would count as applied: images would not be decoded
    return dataset


class _Decoding:
    """A scorer over images as stored, which decodes those that it reads."""

    def __init__(self, scorer: Scorer, features: dict[str, Any]) -> None:
        self.scorer, self.features = scorer, features

    def __call__(self, batch: Mapping[str, list]) -> dict[str, np.ndarray]:
        decoded = {name: [_decoded(feature, cell) for cell in batch[name]] for name, feature in self.features.items()}
        return self.scorer({**batch, **decoded})


def _decoded(feature: Any, cell: Any) -> Any:
    """A cell decoded at any depth; what an earlier `map` of the user has decoded is neither a mapping nor a text."""
    if isinstance(feature, (List, LargeList)):
        return cell if cell is None else [_decoded(feature.feature, item) for item in cell]
    if isinstance(feature, dict) and isinstance(cell, dict):
        return {name: _decoded(feature[name], item) for name, item in cell.items()}
    return feature.decode_example(cell) if hasattr(feature, "decode") and isinstance(cell, (dict, str)) else cell
