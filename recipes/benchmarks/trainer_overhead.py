"""What `CurriculumTrainer` costs per step over `Trainer`: a trivial model, the same rows in the same order.

    python recipes/benchmarks/trainer_overhead.py

Runs are paired and alternate, so that a busy moment of the machine hits both; the median of the differences counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import Trainer, TrainingArguments

from hf_curriculum import CurriculumSampler, CurriculumTrainer, CurriculumTrainingArguments, Phases

ROWS, BATCH = 4096, 8


class Trivial(nn.Module):
    """One multiplication."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"loss": ((self.scale * x).sum(-1) - labels).square().mean()}


class InOrder(Trainer):
    """`Trainer` given the plan's rows as a plain list."""

    rows: list[int]

    def _get_train_sampler(self, train_dataset: object = None) -> list[int]:
        return self.rows


def make_data() -> Dataset:
    """Small rows with a score."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    columns = {"x": x.tolist(), "labels": x.sum(1).tolist(), "score": np.abs(x).sum(1)}
    return Dataset.from_dict(columns).with_format("torch", columns=["x", "labels"], output_all_columns=False)


def steps_per_run(folder: str, data: Dataset) -> tuple[CurriculumTrainer, InOrder]:
    """Both trainers over the same stream."""
    common = {
        "per_device_train_batch_size": BATCH,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
    }
    rule = Phases(4, 1, "rank", easy="low")
    ours = CurriculumTrainer(
        Trivial(),
        CurriculumTrainingArguments(folder, curriculum=rule, score_column="score", **common),
        train_dataset=data,
    )
    theirs = InOrder(Trivial(), TrainingArguments(folder, num_train_epochs=1, **common), train_dataset=data)
    theirs.rows = list(CurriculumSampler(ours.plan))
    return ours, theirs


def seconds_per_step(trainer: Trainer) -> float:
    """Wall time of a run over its steps."""
    start = time.perf_counter()
    steps = trainer.train().global_step
    return (time.perf_counter() - start) / steps


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, help="paired runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = make_data()
    with tempfile.TemporaryDirectory() as folder:
        pairs = []
        for number in range(options.pairs + 1):
            ours, theirs = steps_per_run(folder, data)
            sides = (ours, theirs) if number % 2 else (theirs, ours)
            taken = {id(side): seconds_per_step(side) for side in sides}
            pairs.append((1000 * taken[id(ours)], 1000 * taken[id(theirs)]))
    pairs = pairs[1:]  # The first pair warms up.
    facts = {
        "curriculum_trainer_ms": statistics.median(pair[0] for pair in pairs),
        "trainer_ms": statistics.median(pair[1] for pair in pairs),
        "difference_ms": statistics.median(pair[0] - pair[1] for pair in pairs),
        "pairs": len(pairs),
        "steps": ours.plan.num_steps,
    }
    ours_ms, theirs_ms, difference = (facts[name] for name in ("curriculum_trainer_ms", "trainer_ms", "difference_ms"))
    print(
        f"{facts['pairs']} pairs of {facts['steps']:,} steps: CurriculumTrainer {ours_ms:.3f} ms per step, "
        f"Trainer {theirs_ms:.3f} ms; difference {difference:+.3f} ms (target ≤ 0.2)"
    )
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
