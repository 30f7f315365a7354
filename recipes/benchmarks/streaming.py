"""How fast and how small a `BucketedStream` is, beside `datasets`' own streaming of the same shards in the same run.

    python recipes/benchmarks/streaming.py                 # 1,000,000 examples in 4 buckets, about two minutes
    python recipes/benchmarks/streaming.py --examples 100000 --json out.json

Each side reads every example once, the two in turn; the better of two repetitions counts. Memory is the largest growth
of the resident set over the imports, in a process of its own for each side. A resumed stream counts the shards that it
opens, and how many finished ones (read to their end before) are among them.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars, load_dataset

from hf_curriculum import IID, BucketedStream, Phases, save_bucketed

BATCH = 32


def resident_mb() -> float:
    """The process's resident set in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def growth_mb(work: Callable[[], object]) -> float:
    """The largest growth of the resident set while `work` runs, in MB."""
    gc.collect()
    before = peak = resident_mb()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(peak, resident_mb()) - before


def count(examples: Iterable) -> int:
    """How many there are."""
    return sum(1 for _ in examples)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write(folder: Path, size: int, shard_size: int) -> float:
    """Writes captions with their lengths as a data set in buckets; seconds of `save_bucketed`."""
    words = np.array(["a", "dog", "runs", "on", "green", "grass", "near", "two", "small", "houses"])
    lengths = np.random.default_rng(0).integers(3, 12, size)
    rows = {
        "image_id": (str(row) for row in range(size)),
        "caption": (" ".join(np.roll(words, row)[:length].tolist()) for row, length in enumerate(lengths)),
        "caption_length": lengths.astype(np.float32),
    }
    data = Dataset.from_dict({name: list(values) for name, values in rows.items()})
    data.save_to_disk(str(folder / "table"))
    data = Dataset.load_from_disk(str(folder / "table"))
    return seconds(
        lambda: save_bucketed(data, folder / "buckets", 4, score_column="caption_length", shard_size=shard_size)
    )


def plain(path: Path) -> Iterable:
    """`datasets`' own stream of all buckets."""
    return load_dataset(str(path), split="train", streaming=True)


def bucketed(path: Path) -> BucketedStream:
    """Ours, one pass over all buckets."""
    return BucketedStream(path, IID(epochs=1), global_batch_size=BATCH)


SIDES = {"plain": plain, "bucketed": bucketed}


def memory(side: str, path: Path) -> float:
    """Growth over the imports in a fresh process that streams everything."""
    command = [sys.executable, __file__, "--memory-of", side, "--path", str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def resuming(path: Path, share: float) -> dict[str, float]:
    """Shards opened by a stream of four phases that goes on after `share` of its steps."""
    stream = BucketedStream(path, Phases(4), global_batch_size=BATCH, with_samples=True)
    step = int(stream.plan.num_steps * share)
    start = time.perf_counter()
    stream.load_state_dict(stream.state_at(step))
    iterator = iter(stream)
    first_drawn = next(iterator)
    first = time.perf_counter() - start
    completed = stream.rows(stream.plan.stage_starts[3], step * BATCH)
    # Draws that fill the last batch belong to a pass of their own.
    rest = itertools.islice(iterator, stream.plan.num_samples - stream.plan.num_filled - step * BATCH - 1)
    ahead = np.fromiter((first_drawn.index, *(drawn.index for drawn in rest)), dtype=np.int64)
    shards = [shard for bucket in stream.index.buckets for shard in bucket.shards]
    ends = np.cumsum([shard.rows for shard in shards])
    left = np.bincount(np.searchsorted(ends, ahead, side="right"), minlength=len(shards))
    seen = np.bincount(np.searchsorted(ends, completed, side="right"), minlength=len(shards))
    done = [shard.file for shard, rows, read in zip(shards, left, seen, strict=True) if rows == 0 and read]
    return {
        "at": share,
        "seconds_to_first": first,
        "shards": len(shards),
        "finished": len(done),
        "opened": len(stream.opened),
        "finished_and_opened": sum(stream.opened[file] > 0 for file in done),
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1_000_000, help="size of the data set")
    parser.add_argument("--shard_size", type=int, default=4_000, help="examples per shard")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--memory-of", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bars()
    if options.memory_of:
        print(growth_mb(lambda: count(SIDES[options.memory_of](options.path))), flush=True)
        os._exit(0)  # a thread of `datasets` that reads ahead may outlive the interpreter, which then aborts
    with tempfile.TemporaryDirectory() as name:
        figures: dict[str, object] = {"examples": options.examples}
        figures["write_seconds"] = write(Path(name), options.examples, options.shard_size)
        path = Path(name) / "buckets"
        taken: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(2):
            for side, make in SIDES.items():
                taken[side].append(seconds(lambda make=make: count(make(path))))
        for side, times in taken.items():
            figures[f"{side}_examples_per_second"] = options.examples / min(times)
            figures[f"{side}_growth_mb"] = memory(side, path)
        figures["speed_ratio"] = min(taken["plain"]) / min(taken["bucketed"])
        figures["resumed"] = resuming(path, 0.95)
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
