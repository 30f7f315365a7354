"""The images of a batch, each read once for all its captions, here or ahead of need in processes of their own."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.config import at_least, brief
from hf_curriculum.data.identity import validate_same_image
from hf_curriculum.data.images import UnreadableImageError, to_rgb

if TYPE_CHECKING:
    from hf_curriculum.scorers.base import Component, Scorer

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST = 8  # images that a process is given at a time
_workers: _Workers | None = None


def open_image(stored: Any) -> Image.Image:
    """An image as RGB.

    Raises:
        UnreadableImageError: it cannot be decoded.
        ValueError: it is an address.
    """
    if isinstance(stored, str) and stored.startswith(("http://", "https://")):
        raise ValueError(
            f"The column of images holds addresses ({brief(repr(stored))}), not images, and scorers download nothing. "
            "Load the data with `load_captioned(source, download=True)` (hf-curriculum score: --download)."
        )
    return to_rgb(stored)


def distinct_images(batch: dict[str, list[Any]], column: str, mask: np.ndarray) -> list[tuple[Any, list[int]]]:
    """Each image of a batch with its rows, of those in a bool mask (rows,), in order of first appearance."""
    ids = batch.get(IMAGE_ID) or [None] * len(mask)
    rows: dict[Any, list[int]] = {}
    for row in np.flatnonzero(mask).tolist():
        missing = ids[row] is None or ids[row] == "" or ids[row] != ids[row]
        rows.setdefault(("row", row) if missing else ids[row], []).append(row)
    for own in rows.values():
        validate_same_image(ids[own[0]], [batch[column][row] for row in own])
    return [(batch[column][first], [first, *others]) for first, *others in rows.values()]


def read_images(
    scorer: Scorer, batch: dict[str, list[Any]], column: str, mask: np.ndarray, read: Callable[[Any], T]
) -> Iterator[tuple[T, list[int]]]:
    """What `read` makes of each image of the rows in a mask, with its rows; each image is read once.

    It leaves out those for which `read` raises an `UnreadableImageError`, and logs at its end how many these were.
    """
    images, failed = distinct_images(batch, column, mask), []
    found = read_ahead(scorer, [stored for stored, _ in images], read)
    for one, (_, rows) in zip(found, images, strict=True):
        if isinstance(one, UnreadableImageError):
            failed.append(str(one))
        else:
            yield one, rows
    if failed:
        logger.warning("`%s`: %d images cannot be scored (NaN). The first: %s", scorer.name, len(failed), failed[0])


def read_ahead(owner: Component, items: Sequence[Any], read: Callable[[Any], T]) -> Iterator[T | UnreadableImageError]:
    """`read(item)` of each item, in order, inside `image_workers` ahead of need; an image's error in its place.

    `read` has to be the same whenever an owner asks: its processes have it since they were started.
    """
    found = _workers.map(owner, items, read) if _workers is not None and items else _each(items, read)
    for one in found:
        if isinstance(one, Exception) and not isinstance(one, UnreadableImageError):
            raise one
        yield one


def _each(items: Iterable[Any], read: Callable[[Any], T]) -> Iterator[T | Exception]:
    for item in items:
        try:
            yield read(item)
        except Exception as error:  # a data loader would wrap it
            yield error


@contextmanager
def image_workers(count: int) -> Iterator[None]:
    """Meanwhile the scorers of this process read images in `count` processes, while the model computes; 0: in turns.

    The processes begin at the first image, and each has two chunks of images before it.
    """
    global _workers
    at_least("image_workers", num_workers=(count, 0))
    if count and "fork" not in multiprocessing.get_all_start_methods():
        raise ValueError(
            f"num_workers={count} was given, and this system cannot fork a process that holds a model. Leave it out; "
            "`num_proc` starts processes with a model each."
        )
    before, _workers = _workers, _Workers(count) if count else None
    try:
        yield
    finally:
        if _workers is not None:
            _workers.loaders.clear()  # with the last reference to them their processes end
        _workers = before


class _Workers:
    """A data loader for each scorer, whose processes stay for its next batch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.loaders: dict[int, tuple[Component, Any, _Chunks]] = {}

    def map(self, owner: Component, items: Sequence[Any], read: Callable[[Any], T]) -> Iterator[T | Exception]:
        from torch import Generator
        from torch.utils.data import DataLoader

        if id(owner) not in self.loaders:
            chunks = _Chunks(self.count)
            loader = DataLoader(
                _Read(read),
                batch_sampler=chunks,
                collate_fn=_together,
                num_workers=self.count,
                persistent_workers=True,
                multiprocessing_context="fork",  # `read` holds a model, which is not copied
                generator=Generator(),  # the caller's is left
            )
            self.loaders[id(owner)] = owner, loader, chunks
        _, loader, chunks = self.loaders[id(owner)]
        chunks.items = items
        for chunk in loader:
            yield from _apart(chunk)


class _Chunks:
    """Items in chunks, in place of numbers of items: the data does not exist yet when the processes are started."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.items: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Sequence[Any]]:
        size = max(1, min(_MOST, len(self.items) // (2 * self.count)))
        for start in range(0, len(self.items), size):
            yield self.items[start : start + size]


class _Read:
    """What a data loader takes for a data set: the item itself stands where its number would."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __getitem__(self, item: Any) -> Any:
        return next(_each([item], self.read))


def _together(found: list[Any]) -> Any:
    """Tensors of one shape as one, which costs a process one piece of shared memory; anything else as it is."""
    import torch

    if all(isinstance(one, torch.Tensor) and one.shape == found[0].shape for one in found):
        return torch.stack(found)
    if all(isinstance(one, dict) and one.keys() == found[0].keys() for one in found):
        parts = {name: _together([one[name] for one in found]) for name in found[0]}
        if all(isinstance(part, torch.Tensor) for part in parts.values()):
            return parts
    return found


def _apart(chunk: Any) -> Iterator[Any]:
    """What `_together` was given."""
    if isinstance(chunk, dict):
        yield from (dict(zip(chunk, values, strict=True)) for values in zip(*chunk.values(), strict=True))
    else:
        yield from chunk


def batches_of_one_size(
    images: Iterable[tuple[Any, list[int]]], size: int, shape_of: Callable[[Any], Any] = lambda image: image.shape
) -> Iterator[list[tuple[int, Any]]]:
    """Up to `size` pairs of a row and its image (3, height, width), all of one shape, so that none must be padded."""
    waiting: dict[tuple[int, ...], list[tuple[int, Any]]] = {}
    for image, rows in images:
        shape = tuple(shape_of(image))
        for row in rows:
            same = waiting.setdefault(shape, [])
            same.append((row, image))
            if len(same) == size:
                yield waiting.pop(shape)
    yield from waiting.values()
