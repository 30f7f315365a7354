"""Scoring by many processes on many machines, each its share, put together in order."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from datasets import Dataset, DatasetDict
from datasets.fingerprint import Hasher

from hf_curriculum.provenance import ScoreProvenance, check_choice, read_column, score_values
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scoring.add_scores import (
    checked_scorers,
    image_codes,
    map_scorer,
    score_features,
    scoring_inputs,
    with_parts,
)
from hf_curriculum.scoring.score_columns import aggregate_per_image, append_columns, check_columns, report_scores

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
        view, place = scoring_inputs(self.given(scorer, split), scorer)
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
        return append_columns(split.dataset, values, split.provenance)

    def fit_if_needed(self, scorer: Scorer) -> None:
        """Fits a scorer in the first process, and gives the others what it learnt."""
        if not scorer.needs_fit:
            return
        given = self.given(scorer, self.learnt_on)
        record = {**_record(scorer, scoring_inputs(given, scorer)[0]), "fit_on": self.learnt_on.name}
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


_MARK = b"hf_curriculum_part"
_RUN = "run.json"
_DRAFT = "draft-"
_POLL = 0.5  # seconds between two looks into the folder
_SAMPLE = 256  # rows of a column that is neither text nor number


class PartFolder:
    """The parts of one score of one data set, and the record of the run they belong to.

    The first process that comes writes the record, `run.json`. One that comes with another record (another scorer,
    another version of a library, other data) is turned away before it does any work.

    Args:
        folder: where the parts are, seen by every process.
        record: what must be equal for parts to belong together; anything JSON can hold.
        rows: rows of the whole.
        step: rows of a part; the last one may be shorter.
        alone: no other process shares the folder, so that a record without parts, of a run that failed at once, may be
            replaced.

    Raises:
        ValueError: the folder holds parts of another run.

    Example:
        >>> import tempfile
        >>> parts = PartFolder(tempfile.mkdtemp(), {"scorer": "CaptionLength"}, rows=3, step=2)
        >>> parts.write(0, {"caption_length": np.float32([2, 5])})
        >>> parts.missing([0, 1])
        [1]
    """

    def __init__(
        self, folder: str | Path, record: Mapping[str, Any], rows: int, step: int, alone: bool = False
    ) -> None:
        self.folder, self.rows, self.step = Path(folder), rows, step
        self.count = -(-rows // step)
        self.record = json.loads(json.dumps({**record, "rows": rows, "rows_per_part": step}))
        self.digest = hashlib.blake2b(json.dumps(self.record, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        if alone and not [name for name in os.listdir(self.folder) if name != _RUN and not name.startswith(_DRAFT)]:
            (self.folder / _RUN).unlink(missing_ok=True)
        self._sign()

    def _sign(self) -> None:
        file = self.folder / _RUN
        if not file.exists():
            draft = _draft(self.folder, json.dumps(self.record, indent=1).encode())
            try:
                os.link(draft, file)  # unlike `replace`, leaves the record of whoever came first
            except FileExistsError:
                pass
            except OSError:  # a file system without links: processes that start at the same moment are not compared
                os.replace(draft, file)
            draft.unlink(missing_ok=True)
        found = json.loads(file.read_text(encoding="utf-8"))
        if found != self.record:
            raise ValueError(
                f"{self.folder} holds parts of another scoring run: {_differences(found, self.record)}. Together they "
                "would be scores made in two ways under one name. Give this run a folder of its own, or delete that "
                "one. Processes that score together need the same data, arguments and versions of libraries."
            )

    def file(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / _part_name(part, self.count)

    def rows_of(self, part: int) -> range:
        """The rows of a part."""
        return range(part * self.step, min((part + 1) * self.step, self.rows))

    def missing(self, parts: Sequence[int]) -> list[int]:
        """Those of `parts` that are not there yet."""
        return missing_parts(self.folder, parts, self.rows, self.step)

    def write(self, part: int, scores: Mapping[str, np.ndarray]) -> None:
        """Writes a part: whole, or not at all.

        Args:
            part: its number.
            scores: column → float32 (rows of the part,).
        """
        about = {"run": self.digest, "part": part}
        table = pa.table({column: pa.array(values) for column, values in scores.items()})
        buffer = pa.BufferOutputStream()
        table = table.replace_schema_metadata({_MARK: json.dumps(about).encode()})
        pyarrow.parquet.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        os.replace(_draft(self.folder, buffer.getvalue().to_pybytes()), self.file(part))

    def read(self, part: int) -> dict[str, np.ndarray]:
        """Reads a part. Shapes: returns column → float32 (rows of the part,).

        Raises:
            ValueError: the file is damaged, or of another run or another part.
        """
        file = self.file(part)
        try:
            table = pyarrow.parquet.read_table(file, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"{file} cannot be read ({error}), so the scores of its rows are not there. Delete it and start "
                "again: only this part will be scored."
            ) from error
        about = json.loads((table.schema.metadata or {}).get(_MARK, b"{}"))
        if about != {"run": self.digest, "part": part} or table.num_rows != len(self.rows_of(part)):
            raise ValueError(
                f"{file} does not belong here: it says {about or 'nothing of itself'} and has {table.num_rows} rows, "
                f"where part {part} of run {self.digest!r} with {len(self.rows_of(part))} rows is expected. Delete it "
                "and start again: only this part will be scored."
            )
        return {column: table[column].to_numpy() for column in table.column_names}

    def read_all(self, patience: float) -> dict[str, np.ndarray]:
        """Waits for all parts, and puts them together. Shapes: returns column → float32 (rows,).

        Args:
            patience: seconds to wait without a new part.
        """
        self.wait(range(self.count), patience)
        parts = [self.read(part) for part in range(self.count)]
        return {column: np.concatenate([part[column] for part in parts]) for column in parts[0]} if parts else {}

    def wait(self, parts: Sequence[int], patience: float) -> None:
        """Waits until parts that other processes make are there.

        Raises:
            TimeoutError: no new part came for so long.
        """
        missing, since = self.missing(parts), time.monotonic()
        while missing:
            time.sleep(_POLL)
            left = self.missing(missing)
            if len(left) < len(missing):
                missing, since = left, time.monotonic()
            elif time.monotonic() - since > patience:
                raise TimeoutError(
                    f"{len(left)} of {self.count} parts are missing in {self.folder}, the first of them "
                    f"{self.file(left[0]).name}, and none came for {patience:g} seconds. The process that makes them "
                    "has stopped, or is slower than that. Start it again: finished parts are kept."
                )

    def write_shared(self, name: str, content: bytes) -> None:
        """Writes a file beside the parts, for what one process makes and all read: whole, or not at all."""
        os.replace(_draft(self.folder, content), self.folder / name)

    def read_shared(self, name: str, patience: float) -> bytes:
        """Waits for such a file, and reads it.

        Raises:
            TimeoutError: it did not come for so long.
        """
        start = time.monotonic()
        while name not in os.listdir(self.folder):
            if time.monotonic() - start > patience:
                raise TimeoutError(
                    f"{self.folder / name} did not come for {patience:g} seconds. The first process makes it. Start "
                    "that process again."
                )
            time.sleep(_POLL)
        return (self.folder / name).read_bytes()


def missing_parts(folder: Path, parts: Sequence[int], rows: int, step: int) -> list[int]:
    """Those of `parts`, of `step` rows each out of `rows`, that a folder does not hold."""
    # a listing is fresh where a network file system remembers files that were absent
    there, count = set(os.listdir(folder)) if folder.is_dir() else set(), -(-rows // step)
    return [part for part in parts if _part_name(part, count) not in there]


def _part_name(part: int, count: int) -> str:
    return f"part-{part:05d}-of-{count:05d}.parquet"


def _draft(folder: Path, content: bytes) -> Path:
    """A file with another name, whose content has reached the disk."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=_DRAFT)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return Path(name)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs between two records, entry by entry, down to the innermost mappings."""
    told = []
    for name in sorted({*found, *wanted}):
        theirs, ours = found.get(name), wanted.get(name)
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping) and theirs != ours:
            told.append(f"{name}: {_differences(theirs, ours)}")
        elif theirs != ours:
            told.append(f"{name} was {theirs!r:.100} and is {ours!r:.100}")
    return ", ".join(told)


def data_digest(view: Dataset) -> str:
    """Tells data sets apart that a scorer might be given: equal rows in equal order have equal digests on any machine.

    It rests on all texts and numbers, on the sizes of stored pictures, and on some rows of anything else (vectors,
    boxes). Pictures are not read, nor are their paths, which differ between machines.

    Args:
        view: the columns that a scorer reads.
    """
    digest = hashlib.blake2b(digest_size=8)
    for column in sorted(view.column_names):
        kind = view.data.column(column).type
        digest.update(f"{column} {kind} {len(view)}".encode())
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            stored = pc.struct_field(view.data.column(column), "bytes")  # not joined, which would copy all pictures
            values = pc.binary_length(stored).combine_chunks()
            values = values if view._indices is None else values.take(view._indices.column(0).combine_chunks())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_primitive(kind):
            values = read_column(view, column)
        else:
            rows = np.unique(np.linspace(0, len(view) - 1, _SAMPLE).astype(np.int64)) if len(view) else []
            digest.update(repr(view.select(rows).with_format(None)[column][:]).encode())
            continue
        digest.update(np.packbits(values.is_null().to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_large_string(values.type):
            digest.update(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).tobytes())
            digest.update(_text(values))
        else:
            digest.update(values.fill_null(0).to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def _text(values: pa.LargeStringArray) -> memoryview:
    """All texts of an array, one behind the other, without a copy."""
    _, offsets, content = values.buffers()
    if not len(values) or content is None:
        return memoryview(b"")
    places = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(content)[places[0] : places[-1]]
