"""Randomness inside an example, keyed by the draw: the same crop for the same draw on any worker, in any batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from hf_curriculum.config import kind_of
from hf_curriculum.rng import PAD_INDEX, mix64

# Separate streams of one draw, so that a transform of the data set and one of the collator do not share their numbers.
FETCHING, PREPARING, COLLATING = range(3)


def draw_seed(seed: int, draw: int, stream: int = FETCHING) -> int:
    """A 64-bit seed for one draw, by integer arithmetic alone, so that no library's upgrade changes it."""
    return mix64(seed, stream, draw)


def seed_generators(seed: int, draw: int, stream: int = FETCHING) -> None:
    """Seeds `random`, numpy's legacy global generator (32 bits) and torch's default CPU generator by `draw_seed`."""
    key = draw_seed(seed, draw, stream)
    random.seed(key)
    np.random.seed(key >> 32)  # noqa: NPY002 - the global generator is what transforms draw from
    torch.default_generator.manual_seed(key)


@contextmanager
def forked_generators() -> Iterator[None]:
    """Restores the three generators of `seed_generators` as they were, also after an error."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.default_generator.set_state(states[2])


class IndexedExample(NamedTuple):
    """An example as it was drawn."""

    example: Any
    """The row."""
    index: int
    """Its number in the data set."""
    draw: int
    """Its position in the stream of draws, from 0."""


class IndexedDataset(torch.utils.data.Dataset[Any]):
    """A data set asked for (index, draw) pairs, each fetched under its own seed.

    Transforms that draw from the global generators (`Dataset.set_transform`, torchvision) thereby give the same result
    for the same (seed, draw) in any worker and batch.

    Args:
        dataset: any map-style data set.
        seed: the run's seed.
        seeded: whether to seed. False where fetching has no randomness: batches are then fetched at once.
    """

    def __init__(self, dataset: Any, seed: int, seeded: bool) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"The data set is {kind_of(dataset)}, which has no rows by number or no length. Draws are row "
                "numbers: give a map-style data set (a streamed one can be loaded without `streaming=True`)."
            )
        self.dataset = dataset
        self.seed = seed
        self.seeded = seeded

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, pair: tuple[int, int]) -> IndexedExample:
        return self.__getitems__([pair])[0]

    def __getitems__(self, pairs: Sequence[tuple[int, int]]) -> list[IndexedExample]:
        """The examples of (index, draw) pairs, for torch's fetcher; a `PAD_INDEX` gives none."""
        pairs = [pair for pair in pairs if pair[0] != PAD_INDEX]
        if self.seeded:
            examples = []
            with forked_generators():
                for index, draw in pairs:
                    seed_generators(self.seed, draw, FETCHING)
                    examples.append(self.dataset[index])
        elif hasattr(self.dataset, "__getitems__"):  # torch's own protocol for fetching a batch at once
            examples = self.dataset.__getitems__([index for index, _ in pairs])
        else:
            examples = [self.dataset[index] for index, _ in pairs]
        return [IndexedExample(example, *pair) for example, pair in zip(examples, pairs, strict=True)]


@runtime_checkable
class PreparingCollator(Protocol):
    """A collator in two steps: `prepare` for one example, where all its randomness is, and `collate` for the batch."""

    def prepare(self, example: Any) -> Any: ...

    def collate(self, prepared: list[Any]) -> Any: ...


class IndexedCollator:
    """A collator for the items of an `IndexedDataset`, which seeds it and adds row numbers.

    A `PreparingCollator` prepares each example under its own (seed, draw), so an example's pixels do not depend on its
    batch. Any other collator is seeded once per batch, by the batch's first draw.

    Args:
        collator: makes a batch of examples.
        seed: the run's seed.
        seeded: whether to seed. False where collating has no randomness.
        values_of: gives a batch further entries, made of it; None adds nothing.

    Shapes: adds `example_index` (B,) int64, row numbers, where the collator's batch is a mapping.
    """

    def __init__(
        self,
        collator: Callable[[list[Any]], Any],
        seed: int,
        seeded: bool,
        values_of: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self.collator = collator
        self.values_of = values_of
        self.seed = seed
        self.seeded = seeded
        # Asked once: a protocol's check costs as much as a small batch.
        self._prepares = isinstance(collator, PreparingCollator)

    def __call__(self, drawn: Sequence[IndexedExample]) -> Any:
        if self.seeded:
            with forked_generators():
                batch = self._collate(drawn)
        else:
            batch = self._collate(drawn)
        if isinstance(batch, Mapping):
            batch["example_index"] = torch.tensor([item.index for item in drawn], dtype=torch.int64)
            if self.values_of is not None:
                batch.update(self.values_of(batch))
        return batch

    def _collate(self, drawn: Sequence[IndexedExample]) -> Any:
        if self._prepares:
            prepared = [self._prepare(item) for item in drawn]
            if self.seeded:
                seed_generators(self.seed, drawn[0].draw, COLLATING)
            return self.collator.collate(prepared)
        if self.seeded:
            seed_generators(self.seed, drawn[0].draw, COLLATING)
        return self.collator([item.example for item in drawn])

    def _prepare(self, item: IndexedExample) -> Any:
        if self.seeded:
            seed_generators(self.seed, item.draw, PREPARING)
        try:
            return self.collator.prepare(item.example)
        except ValueError as error:
            raise ValueError(f"Row {item.index}: {error}") from error
