"""`selection_runs.py OUT PART`: runs that choose, whole and resumed, the program behind `test_selection_runs.py`."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from datasets import Dataset
from torch import nn
from transformers import set_seed

from hf_curriculum import IID, CurriculumTrainer, CurriculumTrainingArguments, OnlineSelection, Phases, SelfPaced
from hf_curriculum.training.setup import close_process_group

WORLD = int(os.environ.get("WORLD_SIZE", 1))
ROWS, BATCH, STEPS = 24, 4, 6
PRECISION = ("fp32", "bf16")
TWO = SelfPaced(0.4, epochs=2, warmup_epochs=0.3, final_epochs=0.3)
FOUR = SelfPaced(0.5, epochs=2.6, warmup_epochs=0.6, final_epochs=0.4)
RULES = {
    "every step": OnlineSelection(3, "loss", then=IID()),
    "every 2": OnlineSelection(2, "-loss", then=TWO, score_every=2),
    "every 3": OnlineSelection(2, "loss", then=Phases(2, (1, 1.5)), easy="low", temperature=0.5, score_every=3),
    "every 4": OnlineSelection(2, "loss", then=FOUR, score_every=4),
}
"""Rounds of `"every 2"` and `"every 4"` end in the middle of a window."""
CELLS = list(itertools.product((0, 2), (1, 2), PRECISION))
"""workers, accumulated batches, precision"""


class Net(nn.Module):
    """A classifier with dropout, and batch statistics, which differ between processes, where rows are several."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        norm = nn.BatchNorm1d if rows > 1 else nn.LayerNorm
        self.layers = nn.Sequential(nn.Linear(5, 8), norm(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class WholeLosses(CurriculumTrainer):
    """Losses that are whole numbers of the row and the step, many of them equal."""

    def example_losses(self, model, inputs):
        return (inputs["x"][:, 0].long() * 7 + self.state.global_step * 5) % 4


def make_data() -> Dataset:
    """Rows that begin with their number."""
    x = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
    labels = (x[:, 1:].sum(1) > 0).astype(int)
    x[:, 0] = np.arange(ROWS)
    return Dataset.from_dict({"x": x.tolist(), "labels": labels.tolist(), "difficulty": np.arange(ROWS) % 7 * 1.0})


def train(folder: Path, rule: OnlineSelection, cell: tuple, *, kind=CurriculumTrainer, resume=None, save=True) -> int:
    """A run in a folder of its own, with a line about what it has become; its steps."""
    workers, accumulation, precision = cell
    set_seed(0)
    args = CurriculumTrainingArguments(
        str(folder),
        curriculum=rule,
        score_column="difficulty",
        per_device_train_batch_size=BATCH // WORLD // accumulation,
        gradient_accumulation_steps=accumulation,
        dataloader_num_workers=workers,
        bf16=precision == "bf16",
        max_steps=-1 if rule.signal or isinstance(rule.then, Phases) else STEPS,
        learning_rate=0.05,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="steps" if save else "no",
        save_steps=1,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if WORLD > 1 else None,
    )
    trainer = kind(Net(args.per_device_train_batch_size), args, train_dataset=make_data())
    trainer.train(resume_from_checkpoint=resume)
    if args.process_index == 0:
        weights = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.state_dict().values())
        logged = [
            {name: value for name, value in entry.items() if name.startswith(("curriculum/", "step", "loss"))}
            for entry in trainer.state.log_history
            if "loss" in entry
        ]
        facts = {"weights": hashlib.sha256(weights).hexdigest(), "logged": logged, "log": trainer.plan.log}
        (folder / "facts.json").write_text(json.dumps(facts))
    return trainer.state.global_step


def resumed_everywhere(out: Path) -> None:
    """Each cell with a rule in turn, and without workers with every rule, and each run resumed at every step."""
    for number, cell in enumerate(CELLS):
        names = list(RULES)
        for name in names if cell[0] == 0 and cell[2] == "fp32" else [names[number % len(names)]]:
            root = out / f"{WORLD}-{'-'.join(map(str, cell))}-{name}"
            steps = train(root / "whole", RULES[name], cell)
            for step in range(1, steps):
                train(
                    root / str(step), RULES[name], cell, resume=str(root / "whole" / f"checkpoint-{step}"), save=False
                )


def whole_losses(out: Path) -> None:
    """Every rule by losses that are whole numbers."""
    for name, rule in RULES.items():
        train(out / f"{WORLD}-{name}", rule, (0, 1, "fp32"), kind=WholeLosses, save=False)


if __name__ == "__main__":
    {"resumed": resumed_everywhere, "whole": whole_losses}[sys.argv[2]](Path(sys.argv[1]))
    close_process_group()
