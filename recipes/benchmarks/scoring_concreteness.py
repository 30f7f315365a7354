"""Concreteness beside the bare matrix product that its neighbours need, and faiss's recall; a section of `scoring.py`.

Images are points around centres, as embeddings of real images lie in groups; the words of a caption are drawn from
those of its centre and from frequent ones. The bare product has the same rows at a time, into the same buffer, and is
timed on every fifth part of the images, before and after the fit; the fit includes reading embeddings and captions.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from datasets import Dataset

from hf_curriculum import Concreteness
from hf_curriculum.scorers import concreteness as neighbours

WIDTH = 512
WORDS = 2000
EVERY = 5


def pictures(images: int, seed: int = 0) -> Dataset:
    """Embeddings around one centre per 100 images, and one caption of ten words each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(2, images // 100), WIDTH)).astype(np.float32)
    group = rng.integers(len(centres), size=images)
    vectors = centres[group] + rng.normal(size=(images, WIDTH)).astype(np.float32)
    frequent = np.minimum(rng.zipf(1.3, size=(images, 7)), WORDS)  # (images, words)
    words = np.concatenate([frequent, group[:, None] * 3 % WORDS + np.arange(3)], axis=1)
    return Dataset.from_dict(
        {
            "image_id": [str(image) for image in range(images)],
            "caption": [" ".join(f"w{word}" for word in row) for row in words.tolist()],
            "image_embedding": list(vectors),
        }
    )


def bare_product(vectors: np.ndarray) -> float:
    """Seconds of the matrix product alone, from every fifth of its parts."""
    every = torch.from_numpy(vectors)
    rows = max(1, min(neighbours._MOST_ROWS, neighbours._BUFFER // len(every)))
    buffer = torch.empty(rows, len(every))
    torch.mm(every[:rows], every.T, out=buffer)
    starts = range(0, len(every) - rows + 1, rows * EVERY)
    start = time.perf_counter()
    for row in starts:
        torch.mm(every[row : row + rows], every.T, out=buffer)
    return (time.perf_counter() - start) * len(every) / (rows * len(starts))


def seconds_of_fit(scorer: Concreteness, data: Dataset) -> float:
    """Wall time of `fit`."""
    start = time.perf_counter()
    scorer.fit(data)
    return time.perf_counter() - start


def measure(quick: bool = False) -> list[dict[str, object]]:
    """All rows of this section."""
    images, fewer = (2_000, 2_000) if quick else (100_000, 30_000)
    data = pictures(images)
    vectors = np.array(data.with_format("numpy")["image_embedding"][:], np.float32)
    before = bare_product(vectors)
    exact = seconds_of_fit(Concreteness(min_count=images // 500), data)
    bare = (before + bare_product(vectors)) / 2
    rows: list[dict[str, object]] = [
        {
            "what": f"Concreteness.fit, exact, {images:,} images × {WIDTH}, k = 50",
            "ours": f"{exact:.1f} s",
            "against": f"{bare:.1f} s, the bare matrix product",
            "ratio": exact / bare,
            "asked": "≤ 2",
        }
    ]
    data = data.select(range(fewer))
    true, some = Concreteness(min_count=fewer // 500), Concreteness(min_count=fewer // 500, search="faiss")
    slow, fast = seconds_of_fit(true, data), seconds_of_fit(some, data)
    pairs = [(value, some.word_concreteness_[word]) for word, value in true.word_concreteness_.items()]
    apart = max(abs(one - other) / one for one, other in pairs if one)
    rows.append(
        {
            "what": f"the same by faiss, {fewer:,} images",
            "ours": f"{fast:.1f} s, recall {some.recall_:.3f}, words at most {apart:.1%} apart",
            "against": f"{slow:.1f} s, exact",
            "ratio": slow / fast,
            "asked": "its recall",
        }
    )
    return rows
