"""What `bucket_shards` costs beside copying the same files in the same run: seconds, CPU and memory of each process.

    python recipes/benchmarks/bucketing.py                       # 200,000 rows of 2 kB in Parquet
    python recipes/benchmarks/bucketing.py --rows 2000000 --json out.json

Copies and buckets are on disk, and not only in memory, when a clock stops (`sync`). The projections are by bytes: of
CC12M at 52 kB a pair and DataComp medium (128 million pairs at 36 kB), on as many processes as were measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hf_curriculum import CaptionLength, bucket_shards, score_shards

ROWS_OF_A_SHARD, IMAGE_BYTES = 10_000, 1_900
CRAWLS = {"CC12M": 12_423_374 * 52_000, "DataComp medium": 128_000_000 * 36_000}
"""Bytes of two crawls."""


def write(folder: Path, rows: int) -> None:
    """Shards of noise for images, which no codec makes smaller, and captions of several lengths."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for shard in range(rows // ROWS_OF_A_SHARD):
        offsets = pa.array(np.arange(ROWS_OF_A_SHARD + 1, dtype=np.int32) * IMAGE_BYTES).buffers()[1]
        content = pa.py_buffer(rng.bytes(ROWS_OF_A_SHARD * IMAGE_BYTES))
        images = pa.BinaryArray.from_buffers(pa.binary(), ROWS_OF_A_SHARD, [None, offsets, content])
        captions = [f"a {'red ' * length}ball" for length in rng.integers(0, 40, ROWS_OF_A_SHARD).tolist()]
        keys = [f"{shard:05d}{row:05d}" for row in range(ROWS_OF_A_SHARD)]
        table = pa.table({"key": keys, "jpg": images, "txt": captions})
        pq.write_table(table, folder / f"{shard:05d}.parquet", compression="none", row_group_size=1000)


def seconds(work: Callable[[], object]) -> float:
    """Wall time until what `work` writes is on disk."""
    start = time.perf_counter()
    work()
    os.sync()
    return time.perf_counter() - start


def worker(arguments: list[str]) -> None:
    """Takes part in the bucketing, and prints its CPU seconds and how much its memory grew, in MB."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.time()
    bucket_shards(arguments[0], arguments[1], arguments[2], 4)
    after, end = resource.getrusage(resource.RUSAGE_SELF), time.time()
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps([start, end, spent, (after.ru_maxrss - before.ru_maxrss) / 1e3, after.ru_maxrss / 1e3]))


def bucket(paths: list[str], processes: int) -> list[list[float]]:
    """Several processes that share the work, each a program of its own."""
    command = [sys.executable, __file__, "--worker", *paths]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where to write, a temporary folder if not given")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(folder / "crawl", options.rows)
        size = sum(file.stat().st_size for file in (folder / "crawl").iterdir())
        scoring = seconds(lambda: score_shards(folder / "crawl", CaptionLength(), folder / "scores"))
        copies = []
        for _ in range(2):
            os.sync()
            copies.append(seconds(lambda: shutil.copytree(folder / "crawl", folder / "copy")))
            shutil.rmtree(folder / "copy")
        found: list[list[float]] = []
        paths = [str(folder / part) for part in ("crawl", "scores", "buckets")]
        found.extend(bucket(paths, options.processes))
        starts, ends, cpu, growths, resident = map(list, zip(*found, strict=True))
        taken = max(ends) - min(starts) + seconds(lambda: None)  # without the seconds of importing; on disk
        figures = {
            "rows": options.rows,
            "bytes": size,
            "processes": options.processes,
            "cores": os.cpu_count(),
            "seconds": {"score": scoring, "copy": min(copies), "bucket": taken},
            "times_the_copy": taken / min(copies),
            "cpu_seconds": sum(cpu),
            "mb_per_cpu_second": size / 1e6 / sum(cpu),
            "most_growth_mb": max(growths),
            "most_resident_mb": max(resident),
            "projected_cpu_hours": {crawl: sum(cpu) * whole / size / 3600 for crawl, whole in CRAWLS.items()},
        }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
