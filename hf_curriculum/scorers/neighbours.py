"""Nearest neighbours by cosine: all of them exactly, or most of them faster by faiss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_BUFFER = 1 << 26  # similarities held at a time: 256 MB of float32
_MOST_ROWS = 512
_SHARE, _FEWEST = (
    32,
    16,
)  # of faiss's cells one in 32 is searched, but at least 16: more are slower than an exact search
_TRAINING = 64  # vectors per cell that faiss learns its cells from


def nearest_neighbours(
    vectors: np.ndarray, count: int, *, include_self: bool = True, device: torch.device | str = "cpu"
) -> np.ndarray:
    """The nearest vectors of every vector by cosine, exactly, in rows of a matrix product that fit into memory.

    Args:
        vectors: of length 1, so that a product is a cosine.
        count: how many neighbours each has.
        include_self: count every vector as its own first neighbour.
        device: where to multiply.

    Shapes:
        vectors float32 (n, d) → int64 (n, count), in no order.

    Raises:
        ValueError: there are fewer than `count` neighbours.

    Example:
        >>> line = np.float32([[1, 0], [0.8, 0.6], [0, 1]])
        >>> nearest_neighbours(line, 1, include_self=False).tolist()
        [[1], [0], [1]]
    """
    import torch

    size = len(vectors)
    check_neighbours(size, count, include_self)
    every = torch.from_numpy(np.ascontiguousarray(vectors, np.float32)).to(device)  # (n, d)
    rows = max(1, min(_MOST_ROWS, _BUFFER // size))
    buffer = torch.empty((rows, size), device=device)
    found = np.empty((size, count), np.int64)
    for start in range(0, size, rows):
        part = every[start : start + rows]  # (m, d)
        cosines = torch.mm(part, every.T, out=buffer[: len(part)])  # (m, n)
        # set by hand: of two equal vectors either may come out as the nearer one
        cosines.diagonal(start).fill_(torch.inf if include_self else -torch.inf)
        found[start : start + rows] = cosines.topk(count, dim=1, sorted=False).indices.cpu().numpy()
    return found


def approximate_neighbours(vectors: np.ndarray, count: int, *, include_self: bool = True, seed: int = 0) -> np.ndarray:
    """As `nearest_neighbours`, by faiss: vectors fall into cells, of which the nearest 16 or more are searched.

    Args:
        vectors: of length 1.
        count: how many neighbours each has.
        include_self: count every vector as its own first neighbour.
        seed: of the choice of cells.

    Shapes:
        vectors float32 (n, d) → int64 (n, count); -1 where the searched cells held too few.

    Raises:
        ImportError: faiss is not installed.
        ValueError: there are fewer than `count` neighbours.
    """
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "Approximate neighbours need faiss, which is not installed. Run `pip install 'hf-curriculum[retrieval]'`, "
            'or search exactly (`search="exact"`).'
        ) from error
    size = len(vectors)
    check_neighbours(size, count, include_self)
    vectors = np.ascontiguousarray(vectors, np.float32)
    cells = max(1, min(int(4 * size**0.5), size // _TRAINING))
    cells_of = faiss.IndexFlatIP(vectors.shape[1])
    index = faiss.IndexIVFFlat(cells_of, vectors.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.max_points_per_centroid, index.cp.min_points_per_centroid = seed, _TRAINING, 1
    index.train(vectors)
    index.add(vectors)
    index.nprobe = min(cells, max(_FEWEST, cells // _SHARE))
    found = index.search(vectors, count + 1)[1]  # (n, count + 1), nearest first
    found = _self_first(found)
    return found[:, :count] if include_self else found[:, 1:]


def _self_first(found: np.ndarray) -> np.ndarray:
    """Moves each row's own number to its front; the last of a row that lacks it makes room. Shapes: stay."""
    own = np.arange(len(found))[:, None]
    order = np.argsort(found != own, axis=1, kind="stable")
    moved = np.take_along_axis(found, order, axis=1)
    lost = moved[:, :1] != own
    return np.where(lost, np.concatenate([own, moved[:, :-1]], axis=1), moved)


def recall_of(found: np.ndarray, vectors: np.ndarray, *, include_self: bool = True, sample: int = 500) -> float:
    """The share of true neighbours among those found, over a sample of evenly spaced vectors.

    With `include_self` a vector itself, which is always found, does not count.

    Shapes:
        found int64 (n, count), vectors float32 (n, d).
    """
    rows = np.unique(np.linspace(0, len(vectors) - 1, sample).astype(np.int64))  # (m,)
    cosines = vectors[rows] @ vectors.T  # (m, n)
    cosines[np.arange(len(rows)), rows] = -np.inf
    count = found.shape[1] - include_self
    if count == 0:
        return 1.0
    true = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    hits = sum(len(np.intersect1d(true[at], found[row])) for at, row in enumerate(rows.tolist()))
    return hits / (len(rows) * count)


def check_neighbours(size: int, count: int, include_self: bool) -> None:
    """Raises a `ValueError` if `size` vectors do not have `count` neighbours each."""
    most = size if include_self else size - 1
    if not 1 <= count <= most:
        itself = "itself included" if include_self else "itself not counted"
        raise ValueError(
            f"{count} nearest neighbours were asked for, but of {size} vectors each has from 1 to {most} ({itself}). "
            "Pass a smaller `k`, or more images."
        )
