"""Buckets on disk as a stream of examples, in the order of a curriculum."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Features
from datasets.features.features import require_decoding
from torch.utils.data import IterableDataset, get_worker_info

from hf_curriculum.columns import require_columns
from hf_curriculum.curricula.iid import IID
from hf_curriculum.data.seeding import IndexedExample
from hf_curriculum.planning.curriculum import Curriculum
from hf_curriculum.planning.plan import Plan
from hf_curriculum.rng import mix64
from hf_curriculum.streaming.index import BucketIndex
from hf_curriculum.streaming.plan import Lanes, plan_buckets, stage_buckets
from hf_curriculum.streaming.reader import PassReader, ShardFiles, Share

_VERSION = 1


class BucketedStream(IterableDataset):
    """What `save_bucketed` wrote, read as one stream: the whole run of a curriculum, easiest bucket first.

    A pass over a pool reads each of its buckets from front to back, shards in a random order, the buckets mixed in
    proportion, and shuffles the examples in blocks. What stands at which position is a pure function of (buckets,
    curriculum, seed, the arguments marked * below). So the same examples are in the same optimizer step on any number
    of processes and workers, and a stream is resumed at any step by opening the shards of that step, no earlier one.

    Use it as any `IterableDataset`. Several processes: `stream.split_by_node(rank, world_size)`, in a loader that
    deals out no more (`accelerate`'s `prepare_data_loader(..., num_processes=1, process_index=0)`). The unsplit stream
    in `Accelerator.prepare` with `dispatch_batches=False` gives the same batches; each process then reads everything,
    and `batch_size` is that of all processes together. `Trainer` needs `num_train_epochs=1` (the stream is the whole
    run) and `remove_unused_columns=False`.

    Args:
        path: the folder.
        curriculum: `Phases`, `IID` or a `Filter` over one of them, with pools that are whole buckets; `IID()` if None.
        global_batch_size: * examples per optimizer step, over all processes and accumulated batches; the stream is
            filled up to a whole number of steps, as every plan is.
        batch_size: what the `DataLoader` is told; a step's share of this process if None. Only with several workers or
            accumulated batches does it matter.
        seed: * key of the order.
        epochs: * passes, for `IID`.
        max_steps: * steps, for `IID`.
        shuffle_buffer: * examples in memory that are shuffled among each other, over all processes.
        shares: * parts of a step that can be read apart: processes × accumulated batches, at most. More processes
            still get the right examples, but then two of them read the same stretch of a shard.
        turns: * steps that can be read apart: workers per process, at most; likewise.
        columns: which to read; all if None.
        decode: whether pictures are decoded, or stay bytes.
        with_samples: whether to yield `IndexedExample` triples (example, row number, sample position), from which
            its own randomness can be seeded. Row numbers count through the buckets.

    Attributes:
        plan: what is drawn when; `print(stream.plan.describe())`. Its stages hold, but the order within one is the
            stream's own: see `rows`.
        index: what is in the buckets.
        opened: shard → how often the latest iteration has opened it, in this process.

    Raises:
        FileNotFoundError: the index or a shard is missing.
        TypeError: the curriculum needs the scores of single examples.
        ValueError: a shard was changed, a pool ends within a bucket, a column does not exist, or numbers do not fit.

    Example:
        >>> stream = BucketedStream("buckets", Phases(4), global_batch_size=32)
        >>> loader = DataLoader(stream, batch_size=32, num_workers=2, collate_fn=collator)
    """

    def __init__(
        self,
        path: str | Path,
        curriculum: Curriculum | None = None,
        *,
        global_batch_size: int = 1,
        batch_size: int | None = None,
        seed: int = 0,
        epochs: float | None = None,
        max_steps: int | None = None,
        shuffle_buffer: int = 1000,
        shares: int = 8,
        turns: int = 2,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        with_samples: bool = False,
    ) -> None:
        if shuffle_buffer < 1:
            raise ValueError(f"shuffle_buffer={shuffle_buffer} was given; at least 1 example has to be in memory.")
        self.path = Path(path)
        self.index = BucketIndex.read(path)
        self.plan: Plan = plan_buckets(
            IID() if curriculum is None else curriculum,
            self.index,
            global_batch_size=global_batch_size,
            seed=seed,
            epochs=epochs,
            max_steps=max_steps,
        )
        self.features = _chosen(self.index.typed_features(), columns)
        self.with_samples = with_samples
        self.opened: Counter[str] = Counter()
        self._batch_size, self._rank, self._world_size = batch_size, 0, 1
        self._lanes = Lanes(global_batch_size, shares, turns)
        self._shuffle_buffer = shuffle_buffer
        self._files = ShardFiles(self.path, self.index, list(self.features))
        self._decode = decode and any(require_decoding(feature) for feature in self.features.values())
        self._start: Mapping[str, Any] = {"step": 0}
        self._seen: int | None = None
        self._placeholders = False
        self._fingerprint = {
            "buckets": self.index.digest,
            "curriculum": self.plan.curriculum.to_dict(),
            "global_batch_size": global_batch_size,
            "seed": seed,
            "num_steps": self.plan.num_steps,
            "shuffle_buffer": shuffle_buffer,
            "shares": self._lanes.shares,
            "turns": self._lanes.turns,
        }
        self._share()

    def split_by_node(self, rank: int, world_size: int) -> BucketedStream:
        """The part of one process; the parts together are the stream, and the same steps.

        Args:
            rank: the process.
            world_size: how many there are.

        Raises:
            ValueError: there is no such process, or a step cannot be shared out evenly.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of world_size={world_size} was given; ranks run from 0 to world_size − 1.")
        part = copy.copy(self)
        part._rank, part._world_size, part._seen, part.opened = rank, world_size, None, Counter()
        part._share()
        return part

    def _share(self) -> Share:
        """The share of whoever asks, a worker or the process itself, if nothing lies behind."""
        worker = get_worker_info()
        size = self.plan.global_batch_size
        batch_size = max(1, size // self._world_size) if self._batch_size is None else self._batch_size
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Share(size, batch_size, self._rank, self._world_size, number, workers)

    def __len__(self) -> int:
        """Examples that iteration over all workers of this process gives, from where it was resumed."""
        share, seen = self._resumed()
        return share.length(self.plan.num_steps) - (0 if self._placeholders else seen)

    def __iter__(self) -> Iterator[Any]:
        share, self._seen = self._resumed()
        self.opened.clear()
        if self._placeholders:
            for _ in range(self._seen):
                yield None
        current: PassReader | None = None
        try:
            for samples in share.samples(self._seen, self.plan.num_steps):
                while len(samples):
                    stage, number, behind = self._pass_of(int(samples[0]))
                    if current is None or current.order.key != self._pass_key(stage, number):
                        if current is not None:
                            current.close()
                        current = self._pass(stage, number)
                    count = int(np.searchsorted(samples, behind))
                    yield from self._examples(current, samples[:count])
                    samples = samples[count:]
        finally:
            if current is not None:
                current.close()

    def _examples(self, current: PassReader, samples: np.ndarray) -> Iterator[Any]:
        lanes, places = current.order.places(samples)
        readers = {number: current.lane(number) for number in set(lanes.tolist())}
        decode = self.features.decode_example if self._decode else None
        for sample, lane, place in zip(samples.tolist(), lanes.tolist(), places.tolist(), strict=True):
            reader = readers[lane]
            example = reader.example(place)
            if decode is not None:
                example = decode(example)
            self._seen += 1
            yield IndexedExample(example, reader.row(place), sample) if self.with_samples else example

    # ---- What stands where ----

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers at positions `[start, stop)` of the whole stream, counted through the buckets; reads no shard.

        Returns:
            int64, shape (stop − start,).

        Raises:
            IndexError: the sample positions are not in the run.
        """
        if not 0 <= start <= stop <= self.plan.num_samples:
            raise IndexError(
                f"Positions {start} to {stop} were asked for; the stream has {self.plan.num_samples} positions."
            )
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            stage, number, behind = self._pass_of(start)
            parts.append(self._pass(stage, number).rows(np.arange(start, min(stop, behind))))
            start = behind
        return np.concatenate(parts)

    def _pass_of(self, sample: int) -> tuple[int, int, int]:
        """(stage, pass of it, the sample position behind that pass) at a sample position."""
        starts = self.plan.stage_starts
        stage = int(np.searchsorted(starts, sample, side="right")) - 1
        size = self.plan.stages[stage].pool_size
        number = (sample - starts[stage]) // size
        return stage, number, min(starts[stage] + (number + 1) * size, starts[stage + 1])

    def _pass_key(self, stage: int, number: int) -> int:
        return mix64(self.plan.seed, stage, number)

    def _pass(self, stage: int, number: int) -> PassReader:
        pool = self.plan.stages[stage]
        return PassReader(
            self._files,
            stage_buckets(pool, self.index),
            self._lanes,
            self.plan.stage_starts[stage] + number * pool.pool_size,
            block=max(1, self._shuffle_buffer // self._lanes.count),
            key=self._pass_key(stage, number),
            opened=self.opened,
            numbered=self.with_samples,
        )

    # ---- Resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Where this object's iteration is, JSON-able. A `DataLoader` reads ahead: for it, see `state_at`."""
        share, seen = self._resumed()
        seen = seen if self._seen is None else self._seen
        return {
            "version": _VERSION,
            "step": share.step_at(seen),
            "first_step": share.first_step,
            "seen": seen,
            "reader": share.reader,
            "stream": self._fingerprint,
        }

    def state_at(self, step: int) -> dict[str, Any]:
        """The state after `step` optimizer steps, for any number of processes and workers.

        Raises:
            ValueError: the run has no such step.
        """
        if not 0 <= step <= self.plan.num_steps:
            raise ValueError(f"Step {step} was asked for; the stream has {self.plan.num_steps:,} steps.")
        return {"version": _VERSION, "step": step, "stream": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any], *, placeholders: bool = False) -> None:
        """Lets every later iteration begin where `state` was taken.

        Args:
            state: of `state_dict` or `state_at`.
            placeholders: whether None stands for each example that lies behind: for a loop that skips the batches it
                has seen, like `Trainer`'s, with a collator that takes None.

        Raises:
            ValueError: it is the state of another stream.
        """
        if state.get("version") != _VERSION:
            raise ValueError(f"{dict(state)!r:.200} is not the state of a BucketedStream in version {_VERSION}.")
        current = self._fingerprint
        changed = [name for name, value in current.items() if state["stream"].get(name) != value]
        if changed:
            was = {name: state["stream"].get(name) for name in changed}
            now = {name: current[name] for name in changed}
            raise ValueError(
                f"The state belongs to another stream: {', '.join(changed)} changed from {was} to {now}. The rest of "
                "the run would repeat some examples and never show others. Set it back, or start anew."
            )
        self._start, self._placeholders, self._seen = dict(state), placeholders, None

    def _resumed(self) -> tuple[Share, int]:
        """The share of whoever asks from where it was resumed, and how many of its examples lie behind."""
        share, start = self._share(), self._start
        if start.get("reader") == share.reader and not self._placeholders:
            return replace(share, first_step=start["first_step"]), start["seen"]
        if start["step"] is None:
            raise ValueError(
                f"The state was taken within a step, or by one worker of several, as reader {start['reader']} (batch "
                f"size, rank, processes, worker, workers), and is resumed by reader {share.reader}. Resume with the "
                "same numbers and without placeholders, or take the state with `state_at(step)`."
            )
        if self._placeholders:
            return share, share.length(start["step"])
        return replace(share, first_step=start["step"]), 0


def _chosen(features: Features, columns: Sequence[str] | None) -> Features:
    if columns is None:
        return features
    require_columns(features, columns, reader="The stream was asked for it.", remedy="Leave it out of `columns`.")
    return Features({name: features[name] for name in columns})
