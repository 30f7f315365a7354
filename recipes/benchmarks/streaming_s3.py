"""How fast a `BucketedStream` reads from object storage, compared with the bare client that copies the same shards.

    pip install 'hf-curriculum[s3]' 'moto[server]'
    python recipes/benchmarks/streaming_s3.py                   # 512 MB in 256 shards, about three minutes
    python recipes/benchmarks/streaming_s3.py --megabytes 2000 --json out.json

A server of `moto` in a process of its own holds the buckets. In turn `s3fs` copies all shards by one call, `get`, and
the stream reads every example, its images as bytes, through an empty cache; then from disk. Ratios are of medians.
Server and client share the machine: where both cores are busy, reading the examples adds its time to that of copying.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import s3fs
import torch
from datasets import Dataset, Features, Image, Value, disable_progress_bars

from hf_curriculum import IID, BucketedStream, save_bucketed

PORT, IMAGE_BYTES = 5999, 50_000
ADDRESS = "s3://bench/buckets"
SETTINGS = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def rows(size: int) -> Iterator[dict]:
    """Rows with random bytes for images."""
    rng = np.random.default_rng(0)
    for row in range(size):
        yield {"image": {"bytes": rng.bytes(IMAGE_BYTES), "path": None}, "score": float(row)}


def write(folder: Path, megabytes: int) -> None:
    """Writes the buckets."""
    features = Features({"image": Image(), "score": Value("float32")})
    size = {"size": megabytes * 1_000_000 // IMAGE_BYTES}
    data = Dataset.from_generator(rows, features=features, cache_dir=str(folder / "table"), gen_kwargs=size)
    save_bucketed(data, folder / "buckets", 4, score_column="score", easy="low", num_shards=64)


def serve() -> subprocess.Popen:
    """A server that answers."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            urlopen(SETTINGS["AWS_ENDPOINT_URL"]).close()
            return server
        except URLError:
            time.sleep(0.1)


def copied(files: s3fs.S3FileSystem, names: list[str], folder: Path) -> float:
    """Seconds in which the client copies the shards."""
    start = time.perf_counter()
    files.get(names, [str(folder / name) for name in names])
    return time.perf_counter() - start


def streamed(source: str | Path, cache: Path | None = None) -> float:
    """Seconds in which a stream reads every example, its making included."""
    start = time.perf_counter()
    stream = BucketedStream(source, IID(epochs=1), global_batch_size=32, decode=False, cache=cache)
    assert sum(1 for _ in stream) >= stream.index.num_rows
    return time.perf_counter() - start


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512, help="size of the data set")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bars()
    os.environ.update(SETTINGS)
    server = serve()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, options.megabytes)
            files = s3fs.S3FileSystem()
            files.mkdir("bench")
            files.put(str(folder / "buckets"), ADDRESS, recursive=True)
            shards = files.glob("bench/buckets/*/*.parquet")
            size = sum(files.sizes(shards)) / 1e6
            taken: dict[str, list[float]] = {"get": [], "stream": [], "disk": []}
            for number in range(options.repetitions):
                taken["get"].append(copied(files, shards, folder / f"get{number}"))
                taken["stream"].append(streamed(ADDRESS, folder / f"stream{number}"))
                taken["disk"].append(streamed(folder / "buckets"))
    finally:
        server.terminate()
        server.wait()
    middle = {side: statistics.median(times) for side, times in taken.items()}
    figures = {"megabytes": size, "shards": len(shards)}
    figures |= {f"{side}_mb_per_second": size / seconds for side, seconds in middle.items()}
    figures |= {"seconds": taken, "speed_ratio": middle["get"] / middle["stream"]}
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
