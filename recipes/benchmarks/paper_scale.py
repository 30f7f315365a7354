"""What each stage of the data costs per row, for images whose bytes are stored, and what that makes of 2.9 million.

    python recipes/benchmarks/paper_scale.py                    # 20,000 JPEGs of 52 kB, a few minutes
    python recipes/benchmarks/paper_scale.py --rows 2000
    python recipes/benchmarks/paper_scale.py --rows 200000 --pixels 64   # of 700 bytes: memory per row

Each stage runs in a process of its own, at a tenth of the rows and at all of them: the difference is the cost per row,
without what a start costs whatever the data (imports, looking for the files). Costs are CPU time of the process and
its workers, not what a clock shows, so that other work on the machine does not count. Written are the bytes that a
stage leaves in the cache and in its output. Memory is the most that the process itself held during the stage, with
the data loaded before; what it maps from files is not counted. A buffer of images that fills once is not memory per
row, so that column is for small images and many rows.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FULL = 2_891_030
"""Image–caption pairs of the paper's captions."""
SHARD = 1_000
STAGES = (
    ("arrow", "`datasets` copies the shards to Arrow (once)"),
    ("first", "first load: ids, every image decoded"),
    ("second", "every later start, resume and process"),
    ("hold_out", "hold out by image"),
    ("drop_empty", "drop empty captions"),
    ("nouns", "noun count"),
    ("tokenizer", "tokenizer"),
    ("side_file", "scores saved as a side file"),
)


def make(folder: Path, rows: int, pixels: int = 256 * 320) -> None:
    """Shards of distinct JPEGs with a caption each, as `push_to_hub` writes them."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    schema = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")}).arrow_schema
    rng, drawn = np.random.default_rng(0), []
    for _ in range(50):
        file = io.BytesIO()
        noise = rng.normal(128, 60, (round((pixels / 1.25) ** 0.5), round((pixels * 1.25) ** 0.5), 3))
        Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=82)
        drawn.append(file.getvalue())
    words = ["a", "dog", "cat", "runs", "near", "the", "red", "ball", "child", "street"]
    folder.mkdir(parents=True)
    for shard in range(-(-rows // SHARD)):
        numbers = range(shard * SHARD, min(rows, (shard + 1) * SHARD))
        # bytes behind the end of a JPEG make it another file, not another image
        images = [{"bytes": drawn[number % 50] + number.to_bytes(8, "little"), "path": None} for number in numbers]
        captions = [f"{' '.join(rng.choice(words, 9))} {number % 1000}" for number in numbers]
        table = pa.table({"image": images, "caption": captions}, schema=schema)
        pq.write_table(table, folder / f"train-{shard:05d}.parquet")


def cpu() -> float:
    """Seconds of CPU of this process and its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def stage(name: str, folder: Path, num_proc: int) -> dict[str, Any]:
    """Runs one stage, the stages before it from the cache."""
    import datasets

    from hf_curriculum import NounCount, add_scores, hold_out, load_captioned, train_wordpiece
    from hf_curriculum.data.captions import drop_empty_captions
    from hf_curriculum.scoring.join import save_scores

    datasets.disable_progress_bars()
    shards = str(folder / "data")
    work: dict[str, Callable[[Any], Any]] = {
        "arrow": lambda _: datasets.load_dataset(shards),
        "first": lambda _: load_captioned(shards, num_proc=num_proc),
        "second": lambda _: load_captioned(shards, num_proc=num_proc),
        "hold_out": lambda data: hold_out(data, 0.05),
        "drop_empty": drop_empty_captions,
        "nouns": lambda data: add_scores(data, NounCount(), per_image="max"),
        "tokenizer": lambda data: train_wordpiece(data, 1000),
        "side_file": lambda data: save_scores(data, folder / "scores.parquet", columns=["noun_count"]),
    }
    data = None if name in ("arrow", "first", "second") else load_captioned(shards)["train"]
    if name == "side_file":
        data = add_scores(data, NounCount(), per_image="max")
    print(flush=True)  # from here on `peak_memory` counts
    bytes_before, start, clock = size_of(folder), cpu(), time.perf_counter()
    work[name](data)
    seconds, shown = cpu() - start, time.perf_counter() - clock
    return {"cpu": seconds, "clock": shown, "written": size_of(folder) - bytes_before}


def peak_memory(process: subprocess.Popen[str]) -> float:
    """MB that a process holds at most until its end, without what it maps from files; looked at every 2 ms."""
    most = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        most = max([most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(0.002)
    return most * 1024 / 1e6


def measure(rows: int, num_proc: int, folder: Path, pixels: int) -> dict[str, dict[str, Any]]:
    """Every stage at a number of rows."""
    make(folder / "data", rows, pixels)
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_DATASETS_CACHE": str(folder / "cache")}
    found = {}
    for name, _ in STAGES:
        words = [sys.executable, __file__, "--stage", name, "--folder", str(folder), "--num_proc", str(num_proc)]
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            memory = peak_memory(process)
            if process.returncode:
                raise RuntimeError(f"The stage {name!r} failed at {rows} rows; its error stands above.")
            found[name] = {**json.loads(process.stdout.read().splitlines()[-1]), "memory": memory}
        print(rows, name, found[name], file=sys.stderr, flush=True)
    return found


def table(few: dict[str, Any], many: dict[str, Any], rows: int) -> str:
    """The stages as Markdown."""
    lines = [
        "| stage | CPU, µs per row | bytes written per row | memory, bytes per row | at 2,891,030 rows |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, about in STAGES:
        more = {key: many[name][key] - few[name][key] for key in ("cpu", "written", "memory")}
        each, written, held = (more[key] / (0.9 * rows) for key in ("cpu", "written", "memory"))
        hours = FULL * each / 3600
        time_ = (
            f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"
        )
        lines.append(f"| {about} | {1e6 * each:,.1f} | {written:,.0f} | {1e6 * held:,.0f} | {time_} of CPU |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--pixels", type=int, default=256 * 320, help="of an image")
    parser.add_argument("--num_proc", type=int, default=2)
    parser.add_argument("--stage", choices=[name for name, _ in STAGES], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        print(json.dumps(stage(given.stage, given.folder, given.num_proc)))
        return
    with tempfile.TemporaryDirectory() as folder:
        sizes = (given.rows // 10, given.rows)
        few, many = (measure(rows, given.num_proc, Path(folder, str(rows)), given.pixels) for rows in sizes)
    print(table(few, many, given.rows))


if __name__ == "__main__":
    main()
