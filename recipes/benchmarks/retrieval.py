"""Ranks of image and text retrieval beside the bare matrix product of their vectors.

    python recipes/benchmarks/retrieval.py --output recipes/benchmarks/results/retrieval.md

25,000 texts and 5,000 images of 512 numbers, as in COCO's test split: ranks both ways, exact, ties included, by CPU
time of one process on one thread, in turns with the product of the same rows into the same buffer. Memory is the
growth of the highest resident size while the ranks are made.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hf_curriculum.tasks.alignment.retrieval.ranks import CHUNK, VectorSimilarities

WIDTH = 512


def vectors(texts: int, images: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of length 1, texts near their image: (texts, 512), (images, 512)."""
    draws = np.random.default_rng(seed)
    image = draws.standard_normal((images, WIDTH), np.float32)
    text = draws.standard_normal((texts, WIDTH), np.float32) + 0.3 * image[np.arange(texts) * images // texts]
    return tuple(own / np.linalg.norm(own, axis=1, keepdims=True) for own in (text, image))


def seconds(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(texts: int = 25_000, images: int = 5_000, repeats: int = 5) -> dict[str, float]:
    """Median seconds of both, their ratio, and the growth of memory in MB."""
    text, image = vectors(texts, images)
    similarities = VectorSimilarities(text, image)
    rows, buffer = np.arange(texts) * images // texts, np.empty((CHUNK, images), np.float32)

    def product() -> None:
        for start in range(0, texts, CHUNK):
            part = text[start : start + CHUNK]
            np.matmul(part, image.T, out=buffer[: len(part)])

    product()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = _resident()
    similarities.ranks(rows)
    # What was freed before counts as room: the growth is that above what was held.
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - min(before, held)
    bare, ours = zip(
        *((seconds(product), seconds(lambda: similarities.ranks(rows))) for _ in range(repeats)), strict=True
    )
    return {
        "product": float(np.median(bare)),
        "ranks": float(np.median(ours)),
        "ratio": float(np.median(np.array(ours) / bare)),
        "megabytes": growth / 1024,
    }


def _resident() -> int:
    """Kilobytes that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def main() -> None:
    """Measures and prints, or writes a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=25_000)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a Markdown file")
    given = parser.parse_args()
    found = measure(given.texts, given.images, given.repeats)
    text = (
        f"Ranks both ways of {given.texts:,} texts and {given.images:,} images of {WIDTH} numbers, CPU time on one "
        f"thread, median of {given.repeats}.\n\n"
        "| bare product | ranks | ratio | growth of memory |\n|---:|---:|---:|---:|\n"
        f"| {found['product']:.2f} s | {found['ranks']:.2f} s | {found['ratio']:.2f} | {found['megabytes']:.0f} MB |\n"
    )
    print(text)
    if given.output is not None:
        given.output.write_text(f"# Retrieval\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
