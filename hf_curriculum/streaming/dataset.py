"""Buckets on disk as a stream of examples, in the order of a curriculum."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hf_curriculum.columns import require_columns
from hf_curriculum.curricula.iid import IID
from hf_curriculum.data.seeding import IndexedExample
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.streaming.index import BucketIndex, open_remote
from hf_curriculum.streaming.plan import StreamPlan, plan_buckets
from hf_curriculum.streaming.reader import StreamReader, WorkerSamples

if TYPE_CHECKING:
    from hf_curriculum.streaming.cache import ShardCache

_VERSION = 1


class BucketedStream(IterableDataset[Any]):
    """Streams the whole run of a curriculum from a folder of `save_bucketed`, easiest bucket first.

    Each process compares a shard with its digest in the index when it opens it first, for which it reads it whole. Of
    Parquet with some `columns` it compares the footer instead, and the checksums of the pages that it reads. Where an
    image cannot be decoded, the next example of the shard whose image can be stands in for it, under the row number of
    the first. That is counted in `unreadable` and in warnings.

    A pass over a pool reads each of its buckets from front to back, shards in a random order, the buckets mixed in
    proportion, and shuffles the examples in blocks. The example at a position is a pure function of (buckets,
    curriculum, seed, the arguments marked * below). So an optimizer step has the same examples on any number of
    processes and workers. A stream resumes at any step by opening the shards of that step, no earlier ones.

    `CurriculumTrainer` takes it, or the folder alone, as `train_dataset`: curriculum, batch size, seed and length then
    come from the training arguments. It can also be used as any `IterableDataset`. Several processes:
    `stream.split_by_node(rank, world_size)`, in a loader that divides no further (`accelerate`'s
    `prepare_data_loader(..., num_processes=1, process_index=0)`). The unsplit stream in `Accelerator.prepare` with
    `dispatch_batches=False` gives the same batches; each process then reads everything, and `batch_size` is the total
    over all processes. A stock `Trainer` needs `num_train_epochs=1` (the stream is the whole run) and
    `remove_unused_columns=False`.

    Args:
        path: the folder, or its address in object storage, like `"s3://bucket/buckets"`: any that `fsspec` opens.
        curriculum: `Phases`, `IID` or a `Filter` over one of them, with pools that are whole buckets; `IID()` if None.
        global_batch_size: * examples per optimizer step, over all processes and accumulated batches, 1 if None; the
            stream is padded to a whole number of steps by further draws, as every plan is.
        batch_size: the `DataLoader`'s; the examples of a step on this process if None. It matters only with several
            workers or accumulated batches.
        seed: * key of the order, 0 if None.
        epochs: * passes, for `IID`.
        max_steps: * steps, for `IID`.
        shuffle_buffer: * examples in memory that are shuffled among each other, over all processes.
        partitions_per_step: * parts of a step that are read independently: processes × accumulated batches, at most.
            More processes still get the right examples, but then two of them read the same stretch of a shard.
        worker_partitions: * successive steps that are read independently; more workers per process read some twice.
        columns: which to read; all if None.
        decode: whether images are decoded, or stay bytes.
        with_samples: whether to yield `IndexedExample` triples (example, row number, sample position), from which
            its own randomness can be seeded. Row numbers count through the buckets.
        cache: folder of this machine for the shards of an address, in the cache of `datasets` if None. Each is fetched
            once for all processes, before it is needed, and compared with its size and digest in the index.
        cache_limit: bytes of all shards in `cache`, as a number or like `"200GB"`. Beyond it those that were used
            least recently are removed. None: no limit.
        storage_options: what `fsspec` passes to the file system of an address, such as credentials.

    Attributes:
        plan: the plan of the run; `print(stream.plan.describe())`.
        index: the contents of the buckets.
        opened: shard → how often the latest iteration has opened it, in this process.
        unreadable: shard → how many of its images the latest iteration could not decode, in this process.

    Raises:
        FileNotFoundError: the index or a shard is missing.
        ImportError: no file system for the address is installed.
        OSError: an address cannot be read, after several attempts or because access is denied.
        TypeError: the curriculum needs the scores or columns of single examples.
        ValueError: a shard was changed, a pool ends within a bucket, a column does not exist, or numbers do not fit.
            While reading: a shard is damaged, or (`UnreadableImageError`) holds no image that can be decoded.

    Warns:
        UserWarning: `cache_limit` is less than what is open and fetched ahead at once.

    Example:
        >>> stream = BucketedStream("buckets", Phases(4), global_batch_size=32)
        >>> loader = DataLoader(stream, batch_size=32, num_workers=2, collate_fn=collator)
    """

    is_random = False
    """Reading an example twice gives the same."""
    _epoch = 0

    @validate_arguments
    def __init__(
        self,
        path: str | Path,
        curriculum: Curriculum | None = None,
        *,
        global_batch_size: int | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        epochs: float | None = None,
        max_steps: int | None = None,
        shuffle_buffer: int = 1000,
        partitions_per_step: int = 8,
        worker_partitions: int = 2,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        with_samples: bool = False,
        cache: str | Path | None = None,
        cache_limit: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        remote = open_remote(path, storage_options)
        self.path: str | Path = Path(path) if remote is None else remote.address
        self.index: BucketIndex = BucketIndex.read(path, storage_options)
        self._cache: ShardCache | None = None
        if remote is not None:
            from hf_curriculum.streaming.cache import ShardCache

            self._cache = ShardCache(remote, self.index, cache, cache_limit)
        elif (cache, cache_limit, storage_options) != (None, None, None):
            raise ValueError(
                f"{path} is a folder of this machine, and is read in place: cache=, cache_limit= and storage_options= "
                "would change nothing. Leave them out."
            )
        self.features = self.index.typed_features()
        if columns is not None:
            reader, remedy = "The stream was asked for it.", "Leave it out of `columns`."
            require_columns(self.features, columns, reader=reader, remedy=remedy)
            self.features: Any = type(self.features)({name: self.features[name] for name in columns})
        self.decode = decode
        self.with_samples = with_samples
        self.opened: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        self._batch_size, self._rank, self._world_size = batch_size, 0, 1
        self._options = {
            "shuffle_buffer": shuffle_buffer,
            "partitions_per_step": partitions_per_step,
            "worker_partitions": worker_partitions,
        }
        self._given = {
            "curriculum": curriculum,
            "global_batch_size": global_batch_size,
            "seed": seed,
            "epochs": epochs,
            "max_steps": max_steps,
        }
        self._start: Mapping[str, Any] = {"step": 0}
        self._seen: int | None = None
        self._placeholders = False
        self.plan: StreamPlan = self._plan(self._given)
        self._part()

    def _plan(self, given: Mapping[str, Any]) -> StreamPlan:
        defaults = {"curriculum": IID(), "global_batch_size": 1, "seed": 0}
        chosen = {name: defaults.get(name) if value is None else value for name, value in given.items()}
        plan = plan_buckets(chosen.pop("curriculum"), self.index, **chosen, **self._options)
        if self._cache is not None:
            self._cache.validate_limit(plan)
        return plan

    def with_plan(self, score_column: str | None = None, **asked: Any) -> BucketedStream:
        """This stream with the plan of a trainer's arguments, which must not contradict its own.

        Raises:
            TypeError: the curriculum needs the scores or columns of single examples.
            ValueError: the stream was made with another value, or the plan does not fit the buckets.
        """
        if score_column not in (None, self.index.score_column):
            raise ValueError(
                f"score_column={score_column!r} was given, but the buckets in {self.path} were written by "
                f"`{self.index.score_column}`, and their order cannot be changed. Leave score_column out, or run "
                f"`save_bucketed(..., score_column={score_column!r})` into another folder."
            )
        if self._world_size > 1 or self._start["step"] != 0:
            raise ValueError(
                "The BucketedStream was split or resumed, but CurriculumTrainer gives each process its part, and "
                "resumes, by itself. Pass the folder, or a new stream."
            )
        for name, value in asked.items():
            own = self._given[name]
            if own not in (None, value):
                given, said = (str(item) if isinstance(item, Curriculum) else repr(item) for item in (own, value))
                raise ValueError(
                    f"The BucketedStream was made with {name}={given}, but the training arguments say {said}: one "
                    f"of the two would be ignored. Leave {name} out of the stream; the trainer takes it from its "
                    "arguments."
                )
        planned = copy.copy(self)
        planned.plan = planned._plan(asked)
        return planned

    @property
    def column_names(self) -> list[str]:
        """The columns that are read."""
        return list(self.features)

    def remove_columns(self, column_names: str | Sequence[str]) -> BucketedStream:
        """This stream without some columns, which are not read."""
        removed = {column_names} if isinstance(column_names, str) else set(column_names)
        smaller = copy.copy(self)
        smaller.features = self.features.copy()
        for name in removed:
            del smaller.features[name]
        return smaller

    def split_by_node(self, rank: int, world_size: int) -> BucketedStream:
        """The part of one process; the parts together are the stream, and the same steps.

        Args:
            rank: the process.
            world_size: how many there are.

        Raises:
            ValueError: there is no such process, or a step cannot be divided evenly.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of world_size={world_size} was given; ranks run from 0 to world_size − 1.")
        part = copy.copy(self)
        part._rank, part._world_size, part._seen = rank, world_size, None
        part.opened, part.unreadable = Counter(), Counter()
        part._part()
        return part

    def set_epoch(self, epoch: int) -> None:
        """Warns when a loop begins the stream a second time, as a stock `Trainer` does by its default.

        Args:
            epoch: completed passes over the stream, as the loop counts them.

        Warns:
            UserWarning: it is not the first pass.
        """
        begun, self._epoch = self._epoch, epoch
        if epoch > begun:  # loaders say it twice
            warnings.warn(
                f"Epoch {epoch + 1} of a BucketedStream begins. The stream is the whole run of its curriculum "
                f"({self.plan.num_steps:,} steps): it starts again with the easiest examples. Train for one epoch, "
                "in a stock Trainer with num_train_epochs=1.",
                stacklevel=2,
            )

    def _part(self) -> WorkerSamples:
        """The sample positions of the current worker, or process, from the run's first step."""
        worker = get_worker_info()
        size = self.plan.global_batch_size
        batch_size = max(1, size // self._world_size) if self._batch_size is None else self._batch_size
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return WorkerSamples(size, batch_size, self._rank, self._world_size, number, workers)

    def __len__(self) -> int:
        """Examples that iteration over all workers of this process gives, from where it was resumed."""
        part, seen = self._resumed()
        return part.length(self.plan.num_steps) - (0 if self._placeholders else seen)

    def __iter__(self) -> Iterator[Any]:
        part, self._seen = self._resumed()
        self.opened.clear()
        self.unreadable.clear()
        if self._placeholders:
            for _ in range(self._seen):
                yield None
        reader = self._reader()
        try:
            for samples in part.samples(self._seen, self.plan.num_steps):
                for sample, partition, offset in chain.from_iterable(reader.locate(samples)):
                    example, row = partition.example(offset)
                    self._seen += 1
                    yield IndexedExample(example, row, sample) if self.with_samples else example
        finally:
            reader.close()

    def _reader(self) -> StreamReader:
        folder = Path(self.path) if self._cache is None else self._cache.folder
        reader = StreamReader(folder, self.plan, self.features, self.decode, self.opened, self.unreadable)
        reader.ahead = None if self._cache is None else self._cache.read_ahead(self.plan)
        return reader

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers at positions `[start, stop)` of the whole stream, counted through the buckets; reads no shard.

        Returns:
            int64, shape (stop − start,).

        Raises:
            IndexError: the sample positions are not in the run.
        """
        return self.plan.rows(start, stop)

    # ---- Resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Where this object's iteration is, JSON-able. A `DataLoader` reads ahead: for it, see `state_at`."""
        part, seen = self._resumed()
        seen = seen if self._seen is None else self._seen
        state = {"version": _VERSION, "step": part.step_at(seen), "first_step": part.first_step, "seen": seen}
        return {**state, "reader": part.reader, "stream": self._fingerprint()}

    def state_at(self, step: int) -> dict[str, Any]:
        """The state after `step` optimizer steps, for any number of processes and workers.

        Raises:
            ValueError: the run has no such step.
        """
        if not 0 <= step <= self.plan.num_steps:
            raise ValueError(f"Step {step} was asked for; the stream has {self.plan.num_steps:,} steps.")
        return {"version": _VERSION, "step": step, "stream": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any], *, placeholders: bool = False) -> None:
        """Lets every later iteration begin where `state` was taken.

        Args:
            state: of `state_dict` or `state_at`.
            placeholders: whether to yield None for each completed example: for a loop that skips the batches it has
                seen, as a stock `Trainer` does, with a collator that takes None.

        Raises:
            ValueError: it is the state of another stream.
        """
        if state.get("version") != _VERSION:
            raise ValueError(f"{dict(state)!r:.200} is not the state of a BucketedStream in version {_VERSION}.")
        saved, current = state["stream"], self._fingerprint()
        changed = [name for name, value in current.items() if saved.get(name) != value]
        if changed:
            was = {name: saved.get(name) for name in changed}
            now = {name: current[name] for name in changed}
            raise ValueError(
                f"The state belongs to another stream: {', '.join(changed)} changed from {was} to {now}. The rest of "
                "the run would repeat some examples and never show others. Set it back, or start anew."
            )
        self._start, self._placeholders, self._seen = dict(state), placeholders, None

    def _fingerprint(self) -> dict[str, Any]:
        """What a state has to agree with."""
        facts = self.plan.fingerprint()
        kept = {name: facts[name] for name in ("curriculum", "global_batch_size", "seed", "num_steps")}
        return {"buckets": self.index.digest, **kept, **facts["stream"]}

    def _resumed(self) -> tuple[WorkerSamples, int]:
        """What the current worker reads from where it was resumed, and how many of its examples are completed."""
        part, start = self._part(), self._start
        if start.get("reader") == part.reader and not self._placeholders:
            return replace(part, first_step=start["first_step"]), start["seen"]
        if start["step"] is None:
            raise ValueError(
                f"The state was taken within a step, or by one worker of several, as reader {start['reader']} (batch "
                f"size, rank, processes, worker, workers), and is resumed by reader {part.reader}. Resume with the "
                "same numbers and without placeholders, or take the state with `state_at(step)`."
            )
        if self._placeholders:
            return part, part.length(start["step"])
        return replace(part, first_step=start["step"]), 0


class StreamExamples(torch.utils.data.Dataset[Any]):
    """A stream's examples by (row number, sample position), as the sampler of `CurriculumTrainer` asks for them.

    The row numbers that come back are those that were read.
    """

    def __init__(self, stream: BucketedStream) -> None:
        self.stream = stream
        self._reader: StreamReader | None = None

    def __len__(self) -> int:
        return self.stream.index.num_rows

    def __getitems__(self, pairs: Sequence[tuple[int, int]]) -> list[IndexedExample]:
        """The examples of a batch; torch's fetcher calls this once per batch."""
        if self._reader is None:
            self._reader = self.stream._reader()
        return self._reader.read(np.array([sample for _, sample in pairs]))

    def __getstate__(self) -> dict[str, Any]:
        return {"stream": self.stream, "_reader": None}  # open files stay in their process
