"""Images read ahead by `num_workers=1`, while a model computes elsewhere, beside reading them alone in one process.

The model is a clock: it takes as long for a batch as reading it does, and leaves the processor alone, as a GPU would.
Photographs are prepared as for a CLIP. Reading alone is the fastest that a scorer can be with one process; in turns
with the model it takes twice that. Rates are images per second of wall time, best of three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice

import numpy as np
import torch
from datasets import Dataset
from scoring_clip import as_dataset, photographs, scenes
from transformers import CLIPImageProcessorPil

from hf_curriculum import Scorer, add_scores
from hf_curriculum.data.processors import process_image
from hf_curriculum.scorers.visual.images import open_image, read_images

BATCH = 16
PROCESSOR = CLIPImageProcessorPil()


def read(stored: object) -> torch.Tensor:
    """An image as a CLIP reads it."""
    return process_image(PROCESSOR, open_image(stored))["pixel_values"]


class Elsewhere(Scorer):
    """The mean of an image's numbers, by a model that takes `seconds` for a batch and no processor.

    Args:
        seconds: for a batch of 16.
    """

    columns, name, decode_false = ("image",), "mean", ("image",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def score(self, batch: dict[str, list], rank: int | None) -> np.ndarray:
        """Scores of a batch of any size."""
        scores = np.full(len(batch["image"]), np.nan)
        images = read_images(self, batch, "image", np.ones(len(scores), bool), read)
        while some := list(islice(images, BATCH)):
            time.sleep(self.seconds)
            for pixels, rows in some:
                scores[rows] = float(pixels.mean())
        return scores


def _seconds(work: Callable[[], object], repetitions: int) -> float:
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def measure(quick: bool = False) -> list[dict[str, object]]:
    """All rows of this section."""
    images, repetitions = (8, 1) if quick else (960, 3)
    files, captions = photographs(images) or scenes(images, 1)
    data: Dataset = as_dataset(files, [own[:1] for own in captions]).remove_columns(["caption", "image_id"])
    stored = [{"bytes": file, "path": None} for file in files]
    alone = _seconds(lambda: [read(one) for one in stored], repetitions)
    scorer = Elsewhere(alone / len(files) * BATCH)
    turns = _seconds(lambda: add_scores(data, scorer, load_from_cache_file=False), repetitions)
    ahead = _seconds(lambda: add_scores(data, scorer, num_workers=1, load_from_cache_file=False), repetitions)
    rate = {name: len(files) / taken for name, taken in (("alone", alone), ("turns", turns), ("ahead", ahead))}
    ours = f"{rate['ahead']:.1f} images/s"
    return [
        {
            "what": "images read ahead by one process",
            "ours": ours,
            "against": f"{rate['alone']:.1f} images/s (reading alone)",
            "ratio": rate["ahead"] / rate["alone"],
            "asked": "≥ 0.7",
        },
        {
            "what": "images read ahead by one process",
            "ours": ours,
            "against": f"{rate['turns']:.1f} images/s (in turns with the model)",
            "ratio": rate["ahead"] / rate["turns"],
            "asked": "≥ 1.5",
        },
    ]
