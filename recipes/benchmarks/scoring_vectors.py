"""`NegCLIPLoss` on stored vectors beside the bare matrix products that it needs; a section of `scoring.py`.

Reading the vectors, twice, and drawing the batch are part of ours, and the bare products have theirs in memory.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from datasets import Dataset

from hf_curriculum import add_scores
from hf_curriculum.scorers.alignment.neg_clip_loss import NegCLIPLoss

WIDTH = 512
BATCH = 1024
ROWS = 1000  # of a call of `add_scores`


def measure(quick: bool = False) -> list[dict[str, object]]:
    """The row of this section."""
    pairs = 2_000 if quick else 100_000
    rng = np.random.default_rng(0)
    images, noise = (rng.standard_normal((pairs, WIDTH), np.float32) for _ in range(2))
    texts = images + 3 * noise
    data = Dataset.from_dict({"v": list(images), "t": list(texts)})
    scorer = NegCLIPLoss(image_embedding="v", text_embedding="t", pairs_per_batch=BATCH, num_batches=1)
    start = time.perf_counter()
    scorer.fit(data)
    fitted = time.perf_counter()
    add_scores(data, scorer)
    scored = time.perf_counter()
    for own, others in ((images, texts), (texts, images)):
        drawn = torch.from_numpy(others[:BATCH]).T
        for part in torch.from_numpy(own).split(ROWS):
            torch.mm(part, drawn)
    bare = time.perf_counter() - scored
    return [
        {
            "what": f"NegCLIPLoss, {pairs:,} pairs × {WIDTH}, one batch of {BATCH:,}",
            "ours": f"{fitted - start:.1f} s to fit, {scored - fitted:.1f} s to score",
            "against": f"{bare:.1f} s, the bare matrix products",
            "ratio": (scored - start) / bare,
            "asked": f"≤ {90 * pairs / 1e6:.2g} s, a million in 90 s",
        }
    ]
