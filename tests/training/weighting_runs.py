"""`weighting_runs.py OUT [KIND]`: one run whose losses are weighted, resumed from each of its steps.

KIND is "rule" (by the losses of training), "weights" (by a column, i.i.d.) or "control" (i.i.d. alone).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from datasets import Dataset
from transformers import set_seed

from hf_curriculum import IID, CurriculumTrainer, CurriculumTrainingArguments, InfoBatch
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.training.setup import close_process_group


class Noting(CurriculumTrainer):
    """Keeps the losses of each decision."""

    def _decide(self, metrics, losses=None):
        self.noted = [*getattr(self, "noted", []), losses.tolist()]
        super()._decide(metrics, losses)


def make(folder: Path, kind: str) -> CurriculumTrainer:
    """A captioner without dropout on 24 rows, in 12 steps of 8."""
    set_seed(0)
    words = np.random.default_rng(0).integers(5, 50, (24, 6)).tolist()
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "image_size": 32}
    model = git_from_config(small_git_config(text_layers=1, vision_layers=1, **size, **still))
    world = int(os.environ.get("WORLD_SIZE", 1))
    args = CurriculumTrainingArguments(
        str(folder),
        curriculum=InfoBatch(epochs=4) if kind == "rule" else IID(epochs=4),
        weight_column="weight" if kind == "weights" else None,
        per_device_train_batch_size=4 // world,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        learning_rate=1e-2,
        ddp_backend="gloo" if world > 1 else None,
    )
    data = {"input_ids": words, "labels": words, "attention_mask": np.ones((24, 6), int).tolist()}
    return Noting(model, args, train_dataset=Dataset.from_dict({**data, "weight": np.linspace(0, 2, 24)}))


def same(one: CurriculumTrainer, other: CurriculumTrainer) -> bool:
    """Whether weights, decisions and logged losses of two runs are the same."""
    weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
    logs = [[entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (one, other)]
    return one.plan.log == other.plan.log and logs[0] == logs[1] and all(torch.equal(*pair) for pair in weights)


def main(folder: Path, kind: str = "rule") -> None:
    """Trains, resumes, and writes what came of it, of each process."""
    whole = make(folder / "out", kind)
    whole.train()
    resumed = []
    for step in range(1, whole.state.global_step):
        again = make(folder / "out", kind)
        again.train(resume_from_checkpoint=str(folder / "out" / f"checkpoint-{step}"))
        resumed.append(same(again, whole))
    logged = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    noted = getattr(whole, "noted", [])
    facts = {"losses": noted, "decisions": len(whole.plan.log), "resumed": resumed, "logged": logged}
    (folder / f"rank{os.environ.get('RANK', 0)}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    close_process_group()
