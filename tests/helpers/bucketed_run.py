"""A run on buckets, in process or launched: `torchrun bucketed_run.py FOLDER OUT [--kill_at STEP] [--cache ROOT]`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import TrainerCallback

from hf_curriculum import BucketedStream, CurriculumTrainer, CurriculumTrainingArguments, Phases, remote

SIZE, WIDTH = 51, 4


def make_data() -> Dataset:
    """Rows with a score that does not follow their number, which is their label."""
    x = np.random.default_rng(0).normal(size=(SIZE, WIDTH)).astype(np.float32)
    scores = (np.arange(SIZE) * 37 % 20).astype(np.float32)
    return Dataset.from_dict({"x": x.tolist(), "note": ["."] * SIZE, "labels": range(SIZE), "caption_length": scores})


class Net(nn.Module):
    """A linear model with dropout that notes the labels it was shown in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.2), nn.Linear(WIDTH, 1))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += labels.tolist()
        return {"loss": ((self.layers(x)[:, 0] - labels / SIZE) ** 2).mean()}


class Rows:
    """A collator that makes inputs of the row numbers in one column."""

    is_random = False

    def __init__(self, column: str) -> None:
        self.column = column

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row[self.column] for row in rows])
        return {"x": torch.ones(len(rows), WIDTH), "labels": labels}


def make_trainer(data: Any, out: Path, curriculum: Any = None, **options: Any) -> CurriculumTrainer:
    """A trainer of 8 examples per step; options of the trainer and of its arguments."""
    own = {name: options.pop(name) for name in ("scores", "data_collator", "eval_dataset") if name in options}
    world = int(os.environ.get("WORLD_SIZE", 1))
    settings = {
        "per_device_train_batch_size": 8 // world,
        "seed": 3,
        "save_steps": 8,
        "logging_steps": 1,
        "learning_rate": 0.05,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "audit_draws": True,
        "dataloader_pin_memory": False,
        "ddp_backend": "gloo" if world > 1 else None,
        **options,
    }
    torch.manual_seed(0)
    args = CurriculumTrainingArguments(str(out), curriculum=curriculum or Phases(4), **settings)
    return CurriculumTrainer(model=Net(), args=args, train_dataset=data, **own)


def recorded(out: str | Path) -> dict[int, list[int]]:
    """Row numbers of each step, over all processes."""
    steps: dict[int, list[int]] = {}
    for file in sorted(Path(out).glob("draws-rank*.jsonl")):
        for step, rows in map(json.loads, file.read_text().splitlines()):
            steps.setdefault(step, []).extend(rows)
    return dict(sorted(steps.items()))


class Kill(TrainerCallback):
    """Ends the main process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and args.process_index == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """One process of a run, resumed where it was killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kill_at", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cache", help="where shards of an address are kept")
    given = parser.parse_args()
    remote.BACKOFF = 0.01
    data = BucketedStream(given.folder, cache=given.cache) if given.cache else given.folder
    trainer = make_trainer(data, given.out, dataloader_num_workers=given.workers)
    if given.kill_at:
        trainer.add_callback(Kill(given.kill_at))
    trainer.train(resume_from_checkpoint=(given.out / "checkpoint-8").exists())
    if trainer.is_world_process_zero():
        content = b"".join(parameter.detach().numpy().tobytes() for parameter in trainer.model.parameters())
        (given.out / "weights.txt").write_text(hashlib.sha256(content).hexdigest())


if __name__ == "__main__":
    main()
