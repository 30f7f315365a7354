"""Scoring by many processes on many machines, each its share, put together in order."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset, DatasetDict
from datasets.fingerprint import Hasher

from hf_curriculum.provenance import ScoreProvenance, check_choice, score_values
from hf_curriculum.scorers.add import checked_scorers, image_codes, with_parts
from hf_curriculum.scorers.attach import attach_columns, check_columns, report_scores
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.parts import PartFolder, data_digest, missing_parts
from hf_curriculum.scorers.per_image import aggregate_per_image
from hf_curriculum.scorers.view import map_scorer, score_features, scorer_view

logger = logging.getLogger(__name__)

_LEARNT = "learnt.pickle"


def add_scores_sharded(
    dataset: Dataset | DatasetDict,
    scorers: Scorer | Sequence[Scorer],
    folder: str | Path,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    per_image: Literal["max", "min", "mean"] | None = None,
    batch_size: int = 1000,
    num_proc: int | None = None,
    part_rows: int = 10_000,
    fit_on: str | None = None,
    overwrite: bool = False,
    patience: float = 6 * 3600,
) -> Dataset | DatasetDict | None:
    """`add_scores` by any number of processes, which meet in a folder and need not run at the same time.

    The rows are cut into parts of `part_rows`, which are dealt to the processes in order, so that each has a
    contiguous share. A finished part is written whole or not at all; the first process puts all together. A process
    that was killed is started again and makes what is missing, with another number of processes, too. What is scored
    together does not depend on their number, so the result is that of `add_scores`, number for number.

    Scorers that learn from a corpus and were not fitted are fitted by the first process. A scorer that reads what
    another one writes comes behind it.

    Args:
        dataset: one data set or several splits; the same in every process.
        scorers: one or more.
        folder: where the parts are kept, on a disk that every process sees. What a scorer learnt is kept there as a
            pickle: use nobody else's folder. It may be deleted when the first process is done.
        rank: which process this is; by default `RANK` of `accelerate launch` or `torchrun`, or 0.
        world_size: how many processes there are; by default `WORLD_SIZE`, or 1.
        per_image, batch_size, num_proc, overwrite: as in `add_scores`. GPUs are dealt to the processes of a machine.
        part_rows: rows of a part, rounded up to whole batches: what a killed process loses.
        fit_on: the split that scorers learn from; by default "train", or the only one.
        patience: seconds to wait for other processes without any part coming.

    Returns:
        The data set with the new columns in the first process; None in the others, whose share is done.

    Raises:
        TypeError: something that is not a scorer or a map-style data set.
        ValueError: what `add_scores` raises; the folder holds parts of another run, or a damaged one; no such `rank`
            or split.
        TimeoutError: another process has stopped.

    Example:
        >>> add_scores_sharded(data, CLIPSimilarity(), "/shared/parts")      # doctest: +SKIP
    """
    rank, world_size = launched(rank, world_size)
    scorers = checked_scorers(scorers)
    check_choice("per_image", per_image, (None, "max", "min", "mean"))
    if part_rows < 1 or batch_size < 1:
        raise ValueError(f"`part_rows={part_rows}` and `batch_size={batch_size}` were given. Both are at least 1 row.")
    if not isinstance(dataset, (Dataset, DatasetDict)):
        raise TypeError(
            f"`add_scores_sharded` was given a {type(dataset).__name__}. Rows are dealt out by number: give a "
            "`Dataset` or a `DatasetDict`. An iterable data set is split by its own means (`split_dataset_by_node`)."
        )
    parts = dict(dataset) if isinstance(dataset, DatasetDict) else {"all": dataset}
    for part in parts.values():
        check_columns(part.column_names, scorers, overwrite)
    step = -(-part_rows // batch_size) * batch_size
    splits = {name: _Split(name, part, image_codes(part) if per_image else None) for name, part in parts.items()}
    learnt_on = _training_split(splits, fit_on) if any(scorer.needs_fit for scorer in scorers) else None
    run = _Run(Path(folder), rank, world_size, per_image, batch_size, num_proc, step, patience, learnt_on)
    for scorer in scorers:
        run.make_share(scorer, list(splits.values()))
        for split in splits.values():
            split.writers.update(dict.fromkeys(scorer.outputs, scorer))
    if rank:
        return None
    done = {name: run.finished(split, scorers) for name, split in splits.items()}
    return DatasetDict(done) if isinstance(dataset, DatasetDict) else done["all"]


def launched(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Which process this is, and of how many: as given, or as `accelerate launch` and `torchrun` say.

    Raises:
        ValueError: one is known without the other, or there is no such rank.

    Example:
        >>> launched(1, 4)
        (1, 4)
    """
    given = {"RANK": rank, "WORLD_SIZE": world_size}
    known = {name: os.environ.get(name) if value is None else value for name, value in given.items()}
    known = {name: int(value) for name, value in known.items() if value is not None}
    if len(known) == 1:
        (name,) = known
        raise ValueError(
            f"`{name}` is {known[name]}, but {'WORLD_SIZE' if name == 'RANK' else 'RANK'} is not known, so this "
            "process cannot tell its share. Give both, as arguments or in the environment."
        )
    rank, world_size = known.get("RANK", 0), known.get("WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise ValueError(f"The rank is {rank} of {world_size} processes. Ranks count from 0 to {world_size - 1}.")
    return rank, world_size


def _training_split(splits: Mapping[str, _Split], fit_on: str | None) -> _Split:
    if fit_on is None and len(splits) == 1:
        return next(iter(splits.values()))
    name = "train" if fit_on is None else fit_on
    if name not in splits:
        raise ValueError(
            f"A scorer learns from a corpus, and there is no split {name!r} among {list(splits)}. Name one of them, "
            "`fit_on=`: usually the one that is trained on."
        )
    return splits[name]


@dataclass
class _Split:
    """One split, who writes which of its new columns, and those that are known in this process."""

    name: str
    dataset: Dataset
    images: np.ndarray | None
    writers: dict[str, Scorer] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    provenance: dict[str, ScoreProvenance] = field(default_factory=dict)

    def rows(self) -> int:
        """How many rows are scored: each of the table once."""
        indices = self.dataset._indices
        return len(self.dataset) if indices is None else len(np.unique(indices.column(0).to_numpy()))


@dataclass(frozen=True)
class _Stage:
    """One scorer over one split: what it reads, where that is in the data set, and its parts."""

    view: Dataset
    place: np.ndarray | None
    parts: PartFolder


@dataclass(frozen=True)
class _Run:
    """What all scorers and splits of a call have in common.

    Processes take the scorers in the order given, and wait only for parts of scorers before the present one.
    """

    folder: Path
    rank: int
    world_size: int
    per_image: Literal["max", "min", "mean"] | None
    batch_size: int
    num_proc: int | None
    step: int
    patience: float
    learnt_on: _Split | None

    def make_share(self, scorer: Scorer, splits: list[_Split]) -> None:
        """Makes those of this process's parts that are missing."""
        every = [(split, part) for split in splits for part in range(-(-split.rows() // self.step))]
        share = slice(len(every) * self.rank // self.world_size, len(every) * (self.rank + 1) // self.world_size)
        if self.rank == 0:
            self.fit_if_needed(scorer)
        for split in splits:
            mine = [part for of, part in every[share] if of is split]
            # what is finished is the first process's to check, who may be done and delete it at any time
            if self.rank and not missing_parts(self.folder_of(split, scorer), mine, split.rows(), self.step):
                continue
            stage = self.stage(scorer, split)
            for part in stage.parts.missing(mine):
                self.write_part(scorer, stage, part)

    def folder_of(self, split: _Split, scorer: Scorer) -> Path:
        return self.folder / split.name / next(iter(scorer.outputs))

    def stage(self, scorer: Scorer, split: _Split) -> _Stage:
        self.fit_if_needed(scorer)
        view, place = scorer_view(self.given(scorer, split), scorer)
        record = {**_record(scorer, view), "batch_size": self.batch_size}
        folder, alone = self.folder_of(split, scorer), self.world_size == 1
        return _Stage(view, place, PartFolder(folder, record, len(view), self.step, alone))

    def given(self, scorer: Scorer, split: _Split) -> Dataset:
        """The data set with the scores that a scorer reads, which are waited for."""
        for column in scorer.columns:
            if column in split.writers and column not in split.values:
                self.collect(split.writers[column], split)
        return with_parts(split.dataset, scorer, split.values, split.provenance)

    def write_part(self, scorer: Scorer, stage: _Stage, part: int) -> None:
        parts = stage.parts
        found = map_scorer(
            stage.view.select(parts.rows_of(part)),
            scorer,
            score_features(scorer),
            f" (part {part + 1} of {parts.count})",
            batch_size=self.batch_size,
            num_proc=self.num_proc,
            keep_in_memory=True,  # the part itself is what is kept
            load_from_cache_file=False,
            new_fingerprint=Hasher.hash([parts.digest, part]),  # saves hashing the scorer once per part
        )
        parts.write(part, {column: score_values(found, column) for column in scorer.outputs})
        logger.info("%s: part %d of %d is written.", parts.folder, part + 1, parts.count)

    def collect(self, scorer: Scorer, split: _Split) -> None:
        """Waits for all parts of a scorer, and puts them together."""
        stage = self.stage(scorer, split)
        scores = stage.parts.read_all(self.patience)
        for column in scorer.outputs:
            array = scores.get(column, np.zeros(0, np.float32))
            array = array if stage.place is None else array[stage.place]
            split.values[column] = (
                aggregate_per_image(array, split.images, self.per_image) if self.per_image else array
            )
            split.provenance[column] = replace(scorer.describe(column), per_image=self.per_image)

    def finished(self, split: _Split, scorers: list[Scorer]) -> Dataset:
        """The split with all its scores, in the order of the scorers."""
        for scorer in scorers:
            if not split.values.keys() >= scorer.outputs.keys():
                self.collect(scorer, split)
        values = {column: split.values[column] for scorer in scorers for column in scorer.outputs}
        report_scores(split.dataset, values, split.provenance)
        return attach_columns(split.dataset, values, split.provenance)

    def fit_if_needed(self, scorer: Scorer) -> None:
        """Fits a scorer in the first process, and gives the others what it learnt."""
        if not scorer.needs_fit:
            return
        given = self.given(scorer, self.learnt_on)
        record = {**_record(scorer, scorer_view(given, scorer)[0]), "fit_on": self.learnt_on.name}
        folder, alone = self.folder / ".fitted" / next(iter(scorer.outputs)), self.world_size == 1
        shared = PartFolder(folder, record, rows=0, step=1, alone=alone)
        if self.rank == 0 and not (shared.folder / _LEARNT).exists():
            scorer.fit(given)
            shared.write_shared(_LEARNT, pickle.dumps({name: getattr(scorer, name) for name in scorer.learnt}))
        learnt: dict[str, Any] = pickle.loads(shared.read_shared(_LEARNT, self.patience))
        for name, value in learnt.items():
            setattr(scorer, name, value)


def _record(scorer: Scorer, view: Dataset) -> dict[str, Any]:
    """What must be equal in all processes for their parts to belong together."""
    scores = {column: asdict(scorer.describe(column)) for column in scorer.outputs}
    return {"data": data_digest(view), "scores": scores}
