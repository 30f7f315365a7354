"""`NegCLIPLoss` on stored vectors beside the bare matrix products that it needs; a section of `scoring.py`.

Reading the vectors from disk, twice, and drawing the batch are part of ours, and the bare products have theirs in
memory. Memory is the most that the process holds meanwhile, libraries included, without what it maps from files.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets

from hf_curriculum import add_scores
from hf_curriculum.scorers.alignment.neg_clip_loss import NegCLIPLoss

WIDTH = 512
BATCH = 1024
ROWS = 1000  # of a call of `add_scores`
PART = 50_000  # pairs that are made and written at once


def measure(quick: bool = False) -> list[dict[str, object]]:
    """A row for each number of pairs."""
    return [measured(pairs) for pairs in ((2_000,) if quick else (100_000, 1_000_000))]


def measured(pairs: int) -> dict[str, object]:
    """The row of so many pairs."""
    scorer = NegCLIPLoss(image_embedding="v", text_embedding="t", pairs_per_batch=BATCH, num_batches=1)
    with tempfile.TemporaryDirectory() as folder:
        parts = range(0, pairs, PART)
        for part in parts:
            images, texts = vectors(part, min(PART, pairs - part))
            Dataset.from_dict({"v": list(images), "t": list(texts)}).save_to_disk(f"{folder}/{part}")
        data = concatenate_datasets([Dataset.load_from_disk(f"{folder}/{part}") for part in parts])
        del images, texts
        with PeakMemory() as memory:
            start = time.perf_counter()
            scorer.fit(data)
            fitted = time.perf_counter()
            add_scores(data, scorer)
            scored = time.perf_counter()
    bare = sum(products(*vectors(part, min(PART, pairs - part))) for part in parts)
    return {
        "what": f"NegCLIPLoss, {pairs:,} pairs × {WIDTH}, one batch of {BATCH:,}",
        "ours": f"{fitted - start:.1f} s to fit, {scored - fitted:.1f} s to score, {memory.most:.2f} GB",
        "against": f"{bare:.1f} s, the bare matrix products",
        "ratio": (scored - start) / bare,
        "asked": f"≤ {90 * pairs / 1e6:.2g} s, a million in 90 s",
    }


def vectors(seed: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and texts that are alike, (pairs, WIDTH) each."""
    rng = np.random.default_rng(seed)
    images, noise = (rng.standard_normal((pairs, WIDTH), np.float32) for _ in range(2))
    return images, images + 3 * noise


def products(images: np.ndarray, texts: np.ndarray) -> float:
    """Seconds of each part's products with a batch of the other kind."""
    start = time.perf_counter()
    for own, others in ((images, texts), (texts, images)):
        drawn = torch.from_numpy(others[:BATCH]).T
        for part in torch.from_numpy(own).split(ROWS):
            torch.mm(part, drawn)
    return time.perf_counter() - start


class PeakMemory:
    """The most that this process holds while it is open, in GB; looked at every 10 ms."""

    def __enter__(self) -> PeakMemory:
        self.most, self._end = 0.0, Event()
        self._thread = Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._end.wait(0.01):
            self.most = max(self.most, held())

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def held() -> float:
    """GB that are this process's own."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e9
