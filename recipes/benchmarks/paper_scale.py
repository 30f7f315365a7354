"""What each stage of the data costs per row, for images whose bytes are stored, and what that makes of 2.9 million.

    python recipes/benchmarks/paper_scale.py                    # 20,000 JPEGs of 55 kB, a few minutes
    python recipes/benchmarks/paper_scale.py --rows 2000

Each stage runs in a process of its own, at a tenth of the rows and at all of them: the difference is the cost per row,
without what a start costs whatever the data (imports, looking for the files). Costs are CPU time of the process and
its workers, not what a clock shows, so that other work on the machine does not count. Written are the bytes that a
stage leaves in the cache and in its output.
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


def make(folder: Path, rows: int) -> None:
    """Shards of distinct JPEGs of 55 kB with a caption each."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng, drawn = np.random.default_rng(0), []
    for _ in range(50):
        file = io.BytesIO()
        noise = Image.fromarray(rng.normal(128, 60, (256, 320, 3)).clip(0, 255).astype(np.uint8))
        noise.save(file, "JPEG", quality=82)
        drawn.append(file.getvalue())
    words = ["a", "dog", "cat", "runs", "near", "the", "red", "ball", "child", "street"]
    folder.mkdir(parents=True)
    for shard in range(-(-rows // SHARD)):
        numbers = range(shard * SHARD, min(rows, (shard + 1) * SHARD))
        # bytes behind the end of a JPEG make it another file, not another image
        images = [{"bytes": drawn[number % 50] + number.to_bytes(8, "little"), "path": None} for number in numbers]
        captions = [f"{' '.join(rng.choice(words, 9))} {number}" for number in numbers]
        pq.write_table(pa.table({"image": images, "caption": captions}), folder / f"train-{shard:05d}.parquet")


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

    from hf_curriculum import NounCount, add_scores, drop_empty_captions, hold_out, load_captioned, train_wordpiece
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
    bytes_before, start, clock = size_of(folder), cpu(), time.perf_counter()
    work[name](data)
    seconds, shown = cpu() - start, time.perf_counter() - clock
    status = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1e3
    return {"cpu": seconds, "clock": shown, "written": size_of(folder) - bytes_before, "memory": resident}


def measure(rows: int, num_proc: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Every stage at a number of rows."""
    make(folder / "data", rows)
    environment = {**os.environ, "HF_HOME": str(folder / "home"), "HF_DATASETS_CACHE": str(folder / "cache")}
    found = {}
    for name, _ in STAGES:
        words = [sys.executable, __file__, "--stage", name, "--folder", str(folder), "--num_proc", str(num_proc)]
        done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(rows, name, found[name], file=sys.stderr, flush=True)
    return found


def table(few: dict[str, Any], many: dict[str, Any], rows: int) -> str:
    """The stages as Markdown."""
    lines = [
        "| stage | CPU, µs per row | bytes written per row | memory, MB more | at 2,891,030 rows |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, about in STAGES:
        more = {key: many[name][key] - few[name][key] for key in ("cpu", "written", "memory")}
        each, written = 1e6 * more["cpu"] / (0.9 * rows), more["written"] / (0.9 * rows)
        hours = FULL * each / 1e6 / 3600
        time_ = (
            f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"
        )
        lines.append(f"| {about} | {each:,.1f} | {written:,.0f} | {more['memory']:,.0f} | {time_} of CPU |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--num_proc", type=int, default=2)
    parser.add_argument("--stage", choices=[name for name, _ in STAGES], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        print(json.dumps(stage(given.stage, given.folder, given.num_proc)))
        return
    with tempfile.TemporaryDirectory() as folder:
        few, many = (measure(rows, given.num_proc, Path(folder, str(rows))) for rows in (given.rows // 10, given.rows))
    print(table(few, many, given.rows))


if __name__ == "__main__":
    main()
