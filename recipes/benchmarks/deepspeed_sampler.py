"""Time of DeepSpeed's curriculum sampler, for `sampler.py`, which calls this where DeepSpeed is installed.

    DS_BUILD_OPS=0 pip install deepspeed             # tried with 0.19.8
    python recipes/benchmarks/deepspeed_sampler.py   # 100,000 examples, batches of 32

Its cost is mostly one per batch, so a time means little without the batch size.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch

LEVELS = 100
# DeepSpeed warns about difficulties that are not multiples of eight, as lengths in tokens should be.
STEP = 8


def write_index(folder: Path, scores: np.ndarray) -> dict[str, str]:
    """Writes the two index files of one metric as DeepSpeed's own analyser does: a row per level, easiest first."""
    from deepspeed.runtime.data_pipeline.data_sampling import utils

    sample_path, metric_path = str(folder / "index_to_sample"), str(folder / "index_to_metric")
    samples = utils.create_mmap_dataset_builder(sample_path, utils.find_fit_int_dtype(0, scores.size))
    metrics = utils.create_mmap_dataset_builder(metric_path, utils.find_fit_int_dtype(0, scores.max()))
    order = np.argsort(scores, kind="stable")
    levels, starts = np.unique(scores[order], return_index=True)
    for level, rows in zip(levels, np.split(order, starts[1:]), strict=True):
        samples.add_item_numpy(rows)
        metrics.add_item_numpy(np.array([level]))
    utils.close_mmap_dataset_builder(samples, sample_path)
    utils.close_mmap_dataset_builder(metrics, metric_path)
    return {"index_to_sample_path": sample_path, "index_to_metric_path": metric_path}


def configuration(folder: Path, index: dict[str, str], steps: int) -> dict[str, object]:
    """DeepSpeed's settings: one metric by value, its limit rising linearly over the first half of `steps`."""
    metric = {
        **index,
        "difficulty_type": "value",
        "clustering_type": "schedule_based",
        "min_difficulty": STEP,
        "max_difficulty": STEP * LEVELS,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": max(1, steps // 2), "difficulty_step": STEP},
    }
    curriculum = {"enabled": True, "data_cluster_path": str(folder / "clusters"), "curriculum_metrics": {"m": metric}}
    return {"seed": 0, "data_sampling": {"num_epochs": 1, "curriculum_learning": curriculum}}


@contextlib.contextmanager
def world_of_one(folder: Path) -> Iterator[torch.distributed.ProcessGroup]:
    """A gloo group of this process on the CPU, as the sampler broadcasts every batch; taken down at the end."""
    from deepspeed import comm, ops
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    before = get_accelerator()
    set_accelerator(CPU_Accelerator())
    try:
        # Else an all-reduce kernel the sampler never calls is compiled, for a minute, into the user's cache.
        with mock.patch.dict(ops.__compatible_ops__, {"deepspeed_shm_comm": False}):
            comm.init_distributed("gloo", auto_mpi_discovery=False, rank=0, world_size=1)
        yield torch.distributed.group.WORLD
    finally:
        torch.distributed.destroy_process_group()
        set_accelerator(before)


def epoch_seconds(size: int, batch: int) -> float:
    """Seconds in which DeepSpeed's curriculum sampler draws `size // batch` batches, writing the index not counted."""
    scores = STEP * (1 + np.random.default_rng(0).permutation(size) % LEVELS)
    # DeepSpeed prints four lines for every file it opens; kept in memory, they cost it next to nothing.
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler

        folder = Path(name)
        settings = configuration(folder, write_index(folder, scores), size // batch)
        with world_of_one(folder) as group:
            batches = iter(DeepSpeedDataSampler(settings, size, batch, 0, 1, group, 1, 0))
            start = time.perf_counter()
            for _ in range(size // batch):
                next(batches)
            return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000, help="size of the data set")
    parser.add_argument("--batch", type=int, default=32, help="examples per step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{epoch_seconds(options.examples, options.batch):.3f} s")
