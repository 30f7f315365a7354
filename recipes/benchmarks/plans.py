"""How long a plan takes to make, and what memory, at any number of rows.

    python recipes/benchmarks/plans.py                          # 1,000,000 and 10,000,000 rows, and buckets
    python recipes/benchmarks/plans.py --sizes 50000000 --rules phases weighted iid --buckets 0

Each line is a process of its own. Its peak is the largest resident set (`VmHWM`, set back before) over what was there
already: imports, scores and other columns. CPU seconds are those of `rank_scores` and `make_plan`; a seek is the first
thousand rows from two thirds of the run on. The last line is a plan over the index of buckets with 10^9 rows in 40,000
shards, which needs no scores; its index is there before.

Asked: a peak of at most 16 bytes a row, `describe()` in at most 2 s and 4 bytes a row more for 50,000,000 rows; of the
buckets 1 s and 200 MB.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_curriculum import IID, Phases, make_plan
from hf_curriculum.streaming.index import BucketIndex, Shard, StoredBucket, quantile_positions
from hf_curriculum.streaming.plan import plan_buckets

# Beside this file, which may be run from anywhere.
sys.path.insert(0, str(Path(__file__).parent))
from sampler_cases import CASES, Case, first_step, held_bytes, made_data, plan_of

BATCH = 4096
RULES = ("phases", "iid, scored", "growing", "filter", "weighted", "staged", "node_sampling", "iid, by_image")
SCORED = {"iid, scored": IID(epochs=3)}


def _status(name: str) -> int:
    """A field of `/proc/self/status` in bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def measured(work: Callable[[], Any]) -> tuple[Any, float, int]:
    """What the work returns, its CPU seconds, and by how many bytes the resident set grew at most."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back
    before, start = _status("VmRSS"), time.process_time()
    result = work()
    return result, time.process_time() - start, _status("VmHWM") - before


def _line(plan: Any, making: tuple[float, int], rows: int) -> dict[str, Any]:
    """Figures of a plan that was made with so many CPU seconds and bytes."""
    start = max(first_step(plan) * plan.samples_per_step, plan.known_samples * 2 // 3)
    _, seeking, _ = measured(lambda: plan.rows(start, start + 1000))
    seek = min(measured(lambda: plan.rows(start, start + 1000))[1] for _ in range(5))
    kept = sum(held_bytes(plan).values()) / rows
    _, describing, more = measured(plan.describe)
    return {
        "cpu_s": making[0],
        "kept_bytes": kept,
        "peak_bytes": making[1] / rows,
        "describe_s": describing,
        "describe_bytes": more / rows,
        "first_draw_s": seeking,
        "seek_ms": 1000 * seek,
    }


def measure_rule(name: str, rows: int) -> dict[str, Any]:
    """Figures of a rule over random scores."""
    if name in SCORED:
        scores, _ = made_data(CASES["phases"], rows)
        plan, *making = measured(lambda: make_plan(SCORED[name], scores, global_batch_size=BATCH))
    else:
        case: Case = CASES[name]
        data = made_data(case, rows)
        plan, *making = measured(lambda: plan_of(case, rows, BATCH, *data))
    line = _line(plan, making, rows)
    return {"rule": name, "rows": rows, **line}


def bucket_index(rows: int, shards: int, buckets: int = 4) -> BucketIndex:
    """An index of even buckets, as `save_bucketed` would write it."""
    each, stored, quantiles = rows // shards, [], []
    for number in range(buckets):
        files = tuple(
            Shard(f"bucket-{number}/{at:05d}.parquet", each, 1 << 28, f"{number:016x}{at:016x}")
            for at in range(shards // buckets)
        )
        size = each * len(files)
        stored.append(StoredBucket(size, float(number), float(number + 1), files))
        points = quantile_positions(number * size, (number + 1) * size)
        quantiles.append(tuple((points / size).tolist()))
    limits, total = tuple(float(number) for number in range(1, buckets)), each * (shards // buckets) * buckets
    facts = ("score", "low", "rank", limits, total, 0, "last", 0, "parquet", {})
    return BucketIndex(*facts, tuple(stored), tuple(quantiles))


def measure_buckets(rows: int, shards: int = 40_000) -> dict[str, Any]:
    """Figures of a plan over buckets."""
    index = bucket_index(rows, shards)
    plan, *making = measured(lambda: plan_buckets(Phases(4), index, global_batch_size=BATCH))
    line = _line(plan, making, rows)
    return {"rule": f"phases, {shards:,} shards", "rows": rows, **line, "peak_mb": making[1] / 1e6}


def _in_child(function: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """The figures as a fresh process measures them."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given)


def as_markdown(lines: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    text = [
        "| rule | rows | CPU s | peak, bytes a row | kept, bytes a row | `describe()`, s | bytes a row | seek, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        peak = f"{line['peak_mb']:.0f} MB" if "peak_mb" in line else f"{line['peak_bytes']:.1f}"
        text.append(
            f"| {line['rule']} | {line['rows']:,} | {line['cpu_s']:.2f} | {peak} | {line['kept_bytes']:.1f} | "
            f"{line['describe_s']:.2f} | {line['describe_bytes']:.1f} | {line['seek_ms']:.2f} |"
        )
    return "\n".join(text)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10**6, 10**7], help="rows")
    parser.add_argument("--rules", nargs="*", choices=[*CASES, *SCORED], default=list(RULES), help="only these")
    parser.add_argument("--buckets", type=int, default=10**9, help="rows in the buckets of the last line; 0: none")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    options = parser.parse_args()
    lines = [_in_child(measure_rule, name, size) for name in options.rules for size in options.sizes]
    if options.buckets:
        lines.append(_in_child(measure_buckets, options.buckets))
    print(as_markdown(lines))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))
    if options.markdown:
        options.markdown.write_text(as_markdown(lines) + "\n")


if __name__ == "__main__":
    main()
