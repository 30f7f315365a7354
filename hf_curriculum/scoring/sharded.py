"""Scores by several processes: `add_scores_sharded`, and what they share."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset, DatasetDict

from hf_curriculum.files import own_folder, read_sealed, reading, sole_writer, write_sealed
from hf_curriculum.parts import PartFolder, launched, missing_parts, wait_for_files
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scored_shards import FITTED_VALUES
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scoring.add_scores import (
    ScorerInputs,
    ScoringRun,
    Split,
    as_scorers,
    reading_images,
    splits_to_score,
)
from hf_curriculum.shapes import validate_arguments


@validate_arguments
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
    num_workers: int = 0,
    part_rows: int = 10_000,
    fit_on: str | None = None,
    overwrite: bool = False,
    timeout: float = 6 * 3600,
) -> Dataset | DatasetDict | None:
    """Runs `add_scores` in any number of processes, which share a folder and need not run at the same time.

    The rows are split into parts of `part_rows`, and each process scores a contiguous range of parts. A finished part
    is written completely or not at all; the first process concatenates them. Start a killed process again and it
    scores the missing rows, also with another number of processes. Batches do not depend on that number, so the result
    equals `add_scores`', number for number.

    The first process fits scorers that need `fit` and were not fitted. A scorer that reads another one's column comes
    after it.

    Args:
        dataset: one data set or several splits; the same in every process.
        scorers: one or more.
        folder: where the parts and the fitted attributes of scorers (as JSON) are kept, on a disk that every process
            sees. You may delete it when the first process is done.
        rank: of this process; by default from `accelerate launch` or `torchrun` (`RANK`), from Slurm (`srun`, a job
            array), or 0.
        world_size: the number of processes; by default from the same launcher (`WORLD_SIZE`), or 1.
        per_image, batch_size, num_proc, num_workers, overwrite: as in `add_scores`. GPUs are assigned to the processes
            of a machine.
        part_rows: rows of a part, rounded up to complete batches: what a killed process loses.
        fit_on: the split that scorers are fitted on; by default "train", or the only one.
        timeout: seconds to wait for other processes without a new part.

    Returns:
        The data set with the new columns in the first process; None in the others.

    Raises:
        TypeError: something that is not a scorer or a map-style data set.
        ValueError: as `add_scores`; the folder holds parts of another run, or a damaged one; no such `rank` or split.
        TimeoutError: another process has stopped.
        RuntimeError: another process of this `rank` works in the folder.

    Example:
        >>> add_scores_sharded(data, CLIPSimilarity(), "/shared/parts")      # doctest: +SKIP
    """
    rank, world_size = launched(rank, world_size)
    scorers = as_scorers(scorers)
    validate_choice("per_image", per_image, (None, "max", "min", "mean"))
    if part_rows < 1 or batch_size < 1:
        raise ValueError(f"`part_rows={part_rows}` and `batch_size={batch_size}` were given. Both are at least 1 row.")
    splits = splits_to_score(dataset, scorers, per_image, overwrite)
    step = -(-part_rows // batch_size) * batch_size
    corpus = _split_to_fit_on(splits, fit_on) if any(scorer.needs_fit for scorer in scorers) else None
    shared = {"folder": Path(folder), "rank": rank, "world_size": world_size, "timeout": timeout, "fit_on": corpus}
    run = _ShardedRun(scorers, splits, per_image, batch_size, num_proc, step, **shared)
    reading = reading_images(num_workers, num_proc)
    with sole_writer(f"the share of process {rank} in {folder}", run.folder / f".{rank}.lock"), reading:
        return run.add_to(dataset)


def _split_to_fit_on(splits: Sequence[Split], fit_on: str | None) -> Split:
    if fit_on is None and len(splits) == 1:
        return splits[0]
    name, names = "train" if fit_on is None else fit_on, [split.name for split in splits]
    if name not in names:
        raise ValueError(f"A scorer is fitted on a corpus: there is no split {name!r} among {names}. Pass `fit_on=`.")
    return splits[names.index(name)]


@dataclass
class _ShardedRun(ScoringRun):
    """The same by processes that share a folder. A process waits only for parts of scorers before the present one."""

    folder: Path = Path()
    rank: int = 0
    world_size: int = 1
    fit_on: Split | None = None

    def add_to(self, dataset: Dataset | DatasetDict) -> Dataset | DatasetDict | None:
        """`dataset` with the scores of its splits; None in every process but the first."""
        for scorer in self.scorers if self.world_size > 1 else ():
            if self.rank == 0:
                self.fit_if_needed(scorer)
            for split in self.splits:
                # finished parts are checked by the first process, which may be done and delete them at any time
                own, folder = self.own_parts(split), self.folder_of(scorer, split)
                if self.rank == 0 or missing_parts(folder, own, split.rows(), self.step):
                    stage = self.stage(scorer, split)
                    super().score_parts(scorer, stage, self.part_folder(scorer, split, stage), own)
        return None if self.rank else super().add_to(dataset)

    def own_parts(self, split: Split) -> list[int]:
        """This process's parts of a split: its contiguous range of the parts of all splits."""
        every = [(other.name, part) for other in self.splits for part in range(-(-other.rows() // self.step))]
        start, stop = (len(every) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return [part for name, part in every[start:stop] if name == split.name]

    def score_parts(self, scorer: Scorer, stage: ScorerInputs, parts: PartFolder, numbers: Sequence[int]) -> None:
        if self.world_size == 1:  # otherwise each process has scored its own parts before
            super().score_parts(scorer, stage, parts, numbers)

    def folder_of(self, scorer: Scorer, split: Split) -> Path:
        return self.folder / split.name / next(iter(scorer.outputs))

    def part_folder(self, scorer: Scorer, split: Split, stage: ScorerInputs) -> PartFolder:
        own_folder(self.folder / split.name)
        folder, manifest = own_folder(self.folder_of(scorer, split)), self.manifest(stage)
        return PartFolder(folder, manifest, len(stage.inputs), self.step, single_process=self.world_size == 1)

    def stage(self, scorer: Scorer, split: Split) -> ScorerInputs:
        self.fit_if_needed(scorer)
        return super().stage(scorer, split)

    def fit_if_needed(self, scorer: Scorer) -> None:
        """Fits a scorer in the first process, and gives the others its fitted attributes."""
        if not scorer.needs_fit:
            return
        corpus = self.with_scores_read(scorer, self.fit_on)
        manifest = {**ScorerInputs.of(scorer, corpus).manifest(), "fit_on": self.fit_on.name}
        folder = own_folder(self.folder / FITTED_VALUES) / next(iter(scorer.outputs))
        PartFolder(folder, manifest, rows=0, step=1, single_process=self.world_size == 1)
        if self.rank == 0 and not (folder / FITTED).exists():
            scorer.fit(corpus)
            write_fitted(folder, {name: getattr(scorer, name) for name in scorer.fitted_attributes})
        wait_for_files(folder, [FITTED], self.timeout)
        for name, value in read_fitted(folder, scorer.fitted_attributes).items():
            setattr(scorer, name, value)


FITTED = "fitted.json"
"""The file with what a scorer has fitted."""


def write_fitted(folder: Path, attributes: Mapping[str, Any]) -> None:
    """Writes fitted attributes as JSON, arrays in base64: reading them runs no code, whoever wrote the file."""
    content = {name: _to_json(value, name) for name, value in attributes.items()}
    write_sealed(own_folder(folder) / FITTED, {"attributes": content})


def read_fitted(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The attributes that `write_fitted` wrote."""
    file, remedy = folder / FITTED, f"Delete {folder}: the scorer is fitted again."
    facts = read_sealed(file, remedy, ["attributes"])
    with reading(file, remedy):
        attributes = {name: _from_json(value) for name, value in facts["attributes"].items()}
    if set(attributes) != set(names):
        raise ValueError(
            f"{file} has the attributes {sorted(attributes)}, and the scorer needs {sorted(names)}. Another version "
            f"wrote it. {remedy}"
        )
    return {name: attributes[name] for name in names}


def _to_json(value: Any, name: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_to_json(item, name) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [_to_json(item, name) for item in (value if kind is tuple else sorted(value))]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _to_json(item, name) for key, item in value.items()}}
    if kind is dict:
        return {"items": [[_to_json(key, name), _to_json(item, name)] for key, item in value.items()]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": content, "dtype": value.dtype.str, "shape": value.shape, "scalar": kind is not np.ndarray}
    raise TypeError(
        f"The fitted attribute `{name}` holds a {kind.__module__}.{kind.__qualname__}, and what processes share is "
        "kept as JSON: numbers, texts, NumPy arrays, and lists, tuples, sets and dictionaries of such. Keep one of "
        "these, or call `scorer.fit(dataset)` before, in every process."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        content = np.frombuffer(bytearray(base64.b64decode(value["array"])), np.dtype(value["dtype"]))
        content = content.reshape(value["shape"])
        return content[()] if value["scalar"] else content
    ((kind, items),) = value.items()
    if kind == "dict":
        return {key: _from_json(item) for key, item in items.items()}
    if kind == "items":
        return {_from_json(key): _from_json(item) for key, item in items}
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(_from_json, items))
