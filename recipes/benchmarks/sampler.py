"""How fast and how small the sampler is, beside PyTorch's `RandomSampler` in the same run.

    python recipes/benchmarks/sampler.py                # an epoch of 3,000,000; every curriculum up to 10,000,000
    python recipes/benchmarks/sampler.py --sizes --json out.json                    # the epoch alone
    python recipes/benchmarks/sampler.py --examples 0 --sizes 1000000 --curricula weighted node_sampling

Every figure is the best of a few repetitions, the two sides in turn; memory is the largest growth of the resident set
while an epoch of indices is drawn. Where DeepSpeed is installed, its curriculum sampler draws an epoch once; it draws
batch by batch, so that its time depends on the batch size.

The table of curricula asks of each: a cost per index that does not grow with the data (at most 1.5 × from 1,000,000
to 10,000,000 examples), at most 0.7 × `RandomSampler` over as many examples (1.5 × where draws are weighted or batches
have a structure), and at most 16 bytes per example for everything that the plan refers to: order, scores, columns read
and their names.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader, RandomSampler

from hf_curriculum import IID, CurriculumSampler, Phases, Plan, make_plan

# Beside this file, which may be run from anywhere.
sys.path.insert(0, str(Path(__file__).parent))
from sampler_cases import CASES, bound, endless, first_step, held_bytes

BATCH = 32


class Sized:
    """A data set of numbers, as small as one can be."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int | tuple[int, int]) -> int:
        return index if isinstance(index, int) else index[0]


def resident_mb() -> float:
    """The process's resident set in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def growth_mb(work: Callable[[], object]) -> float:
    """The largest growth of the resident set while `work` runs, in MB."""
    gc.collect()
    before = peak = resident_mb()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak - before


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def drain(indices: Iterable) -> None:
    """Draws everything there is."""
    for _ in indices:
        pass


def in_turn(sides: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """The best time of each side, the sides taking turns so that a busy moment of the machine hits both."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, work in sides.items():
            times[name].append(seconds(work))
    return {name: min(taken) for name, taken in times.items()}


def planning(size: int, repetitions: int) -> tuple[dict[str, float], Plan]:
    """Time to make a plan from scores, and the plan of one epoch."""
    rng = np.random.default_rng(0)
    real, counts = rng.normal(size=size).astype(np.float32), rng.poisson(3, size).astype(np.float32)
    times = in_turn(
        {
            "real-valued scores": lambda: make_plan(Phases(4, 2, "rank"), real, global_batch_size=BATCH),
            "counts, many ties": lambda: make_plan(Phases(4, 2, "value"), counts, global_batch_size=BATCH),
        },
        repetitions,
    )
    return times, make_plan(IID(epochs=1), real, global_batch_size=BATCH)


def seeking(size: int, repetitions: int) -> float:
    """Time to the first index after a seek into a plan of eight passes, to draw 20,000,000 where there are so many."""
    scores = np.random.default_rng(0).normal(size=size).astype(np.float32)
    plan = make_plan(IID(epochs=8), scores, global_batch_size=BATCH)
    step = min(20_000_000, plan.num_samples * 5 // 6) // BATCH
    return min(seconds(lambda: next(iter(CurriculumSampler(plan, step)))) for _ in range(repetitions))


def resuming(size: int) -> tuple[int, float]:
    """Seconds that a loader as `Trainer` makes it needs to skip to a late step, beyond what its first batch costs."""
    plan = make_plan(IID(epochs=11), np.zeros(size, np.float32), global_batch_size=BATCH)
    step = min(1_000_000, plan.num_steps - 10)
    times = {}
    for at in (0, step):
        sampler = CurriculumSampler(plan, at, placeholders=True, with_samples=True)
        loader = prepare_data_loader(DataLoader(Sized(size), batch_size=BATCH, sampler=sampler), put_on_device=False)
        skipping = skip_first_batches(loader, at) if at else loader
        times[at] = seconds(lambda loader=skipping: next(iter(loader)))
    return step, times[step] - times[0]


def deepspeed_epoch(size: int) -> float | None:
    """Time of an epoch of DeepSpeed's curriculum sampler, where DeepSpeed is installed."""
    if importlib.util.find_spec("deepspeed") is None:
        return None
    from deepspeed_sampler import epoch_seconds

    return epoch_seconds(size, BATCH)


def measure(size: int, repetitions: int) -> list[dict[str, object]]:
    """All figures as rows: what, ours, the alternative's, ratio, target."""
    planned, plan = planning(size, repetitions)
    sampler, shuffled = CurriculumSampler(plan), RandomSampler(Sized(size))
    epoch = in_turn({"ours": lambda: drain(sampler), "RandomSampler": lambda: drain(shuffled)}, repetitions)
    memory = {"ours": growth_mb(lambda: drain(sampler)), "RandomSampler": growth_mb(lambda: drain(shuffled))}
    seek = seeking(size, repetitions)
    step, skip = resuming(size)
    rows = [{"what": f"plan from {name}, s", "ours": taken, "target": "≤ 0.5"} for name, taken in planned.items()]
    rows += [
        {
            "what": "an epoch of indices, s",
            "ours": epoch["ours"],
            "RandomSampler": epoch["RandomSampler"],
            "ratio": epoch["ours"] / epoch["RandomSampler"],
            "target": "ratio ≤ 0.7",
        },
        {
            "what": "memory growth of an epoch, MB",
            "ours": memory["ours"],
            "RandomSampler": memory["RandomSampler"],
            "target": "≤ 2",
        },
        {"what": "first index after a seek over 8 passes, ms", "ours": 1000 * seek, "target": "≤ 20"},
        {"what": f"skipping to step {step:,} on resume, s", "ours": skip, "target": "≤ 2"},
    ]
    rival = deepspeed_epoch(size)
    if rival is not None:
        rows.append(
            {
                "what": f"an epoch, DeepSpeed's sampler once, batch {BATCH}, s",
                "ours": epoch["ours"],
                "DeepSpeed": rival,
                "ratio": epoch["ours"] / rival,
            }
        )
    return rows


def measure_case(name: str, size: int, batch: int, repetitions: int) -> dict[str, object]:
    """One curriculum over `size` examples: nanoseconds per index compared with `RandomSampler`, bytes per example."""
    plan = bound(CASES[name], size, batch)
    step, shuffled = first_step(plan), RandomSampler(Sized(size))
    sampler = CurriculumSampler(plan, step)

    def rows() -> None:
        left = size
        while left > 0:
            for part in plan.chunks(step * plan.global_batch_size):
                left -= len(part)
                if left <= 0:
                    return

    times = in_turn(
        {
            "index": lambda: drain(endless(lambda: sampler, size)),
            "rows": rows,
            "RandomSampler": lambda: drain(shuffled),
        },
        repetitions,
    )
    held = held_bytes(plan)
    return {
        "curriculum": name,
        "examples": size,
        "batch": plan.global_batch_size,
        **{f"{side}_ns": 1e9 * taken / size for side, taken in times.items()},
        "ratio": times["index"] / times["RandomSampler"],
        "million_rows_per_s": size / times["rows"] / 1e6,
        "bytes_per_example": sum(held.values()) / size,
        "held": {part: round(count / size, 2) for part, count in held.items() if count},
    }


def measure_cases(
    sizes: list[int], batch: int, repetitions: int, names: Iterable[str] = tuple(CASES)
) -> list[dict[str, object]]:
    """Every curriculum at every size; `growth` is the cost per index relative to that at the size before."""
    rows: list[dict[str, object]] = []
    for name in names:
        before = None
        for size in sizes:
            row = measure_case(name, size, batch, repetitions)
            row["growth"] = row["index_ns"] / before if before else None
            before = row["index_ns"]
            rows.append(row)
    return rows


def as_markdown(rows: list[dict[str, object]]) -> str:
    """The figures of `measure_cases` as a table."""
    lines = [
        "| curriculum | examples | batch | ns per index | × smaller size | `RandomSampler` | ratio | arrays, 10^6/s | "
        "bytes per example |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        growth = "–" if row["growth"] is None else f"{row['growth']:.2f}"
        lines.append(
            f"| {row['curriculum']} | {row['examples']:,} | {row['batch']} | {row['index_ns']:.0f} | {growth} | "
            f"{row['RandomSampler_ns']:.0f} | {row['ratio']:.2f} | {row['million_rows_per_s']:.1f} | "
            f"{row['bytes_per_example']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=3_000_000, help="size of the data set of the epoch; 0: none")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[10**5, 10**6, 10**7], help="sizes for every curriculum; none: skip"
    )
    parser.add_argument("--curricula", nargs="*", choices=list(CASES), default=list(CASES), help="only these")
    parser.add_argument("--batch", type=int, default=BATCH, help="global batch size of the curricula")
    parser.add_argument("--repetitions", type=int, default=5, help="times each measurement is taken; the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--markdown", type=Path, help="also write the table of the curricula here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(options.examples, options.repetitions) if options.examples else []
    if rows:
        print(f"{options.examples:,} examples, batches of {BATCH}; best of {options.repetitions}")
    for row in rows:
        rest = "  ".join(
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
            if name != "what"
        )
        print(f"{row['what']:<48} {rest}")
    cases = measure_cases(options.sizes, options.batch, options.repetitions, options.curricula)
    if cases:
        print(as_markdown(cases))
    if options.json:
        options.json.write_text(json.dumps({"examples": options.examples, "rows": rows, "curricula": cases}, indent=1))
    if options.markdown:
        options.markdown.write_text(as_markdown(cases) + "\n")


if __name__ == "__main__":
    main()
