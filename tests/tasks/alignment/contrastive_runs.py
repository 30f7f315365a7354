"""Contrastive runs on one process and on two, some of which are killed: the program behind `test_processes.py`.

`python contrastive_runs.py JOBS.json` imports everything once and forks a group of processes for each job.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

import torch
from contrastive_task import grads, make_aligner, make_clip, make_pairs, paint, pixel_collator, region_collator
from launching import fork

from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments, NodeSampling
from hf_curriculum.tasks.alignment import ContrastiveTrainer

BATCH, CHECK_EVERY, STEPS = 16, 4, 14


class Recording(CurriculumTrainer):
    """Writes each step's rows, loss and, for the first, gradients; dies where it is told to."""

    job: dict[str, Any]

    def training_step(self, model, inputs, num_items_in_batch=None):
        step, rank = self.state.global_step, self.args.process_index
        if step == self.job.get("kill_at") and rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = inputs["example_index"].tolist()
        loss = super().training_step(model, inputs, num_items_in_batch)
        with open(f"{self.job['log']}.{rank}", "a") as lines:
            lines.write(json.dumps([step, rows, loss.item()]) + "\n")
        if step == 0 and rank == 0:
            torch.save(grads(self.accelerator.unwrap_model(model)), self.job["log"] + ".grads")
        return loss


class Contrastive(Recording, ContrastiveTrainer):
    """Trained by the loss of all processes."""


class OwnLoss(Recording):
    """Trained by the loss that the model's own `forward` computes."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        names = ("input_ids", "attention_mask", "pixel_values")
        return model(**{name: inputs[name] for name in names}, return_loss=True).loss


def train(job: dict[str, Any]) -> None:
    """One process of one run."""
    torch.manual_seed(0)
    processes, steps = job.get("processes", 1), job.get("steps", STEPS)
    pairs, store = make_pairs(64)
    held, more = make_pairs(20, 64)
    args = CurriculumTrainingArguments(
        job["out"],
        curriculum=NodeSampling(
            "node", metric="heldout_image_r1", check_every=CHECK_EVERY, threshold=0.05, examples=BATCH * steps
        )
        if job["loss"] == "whole"
        else None,
        max_steps=steps if job["loss"] != "whole" else -1,
        per_device_train_batch_size=BATCH // processes,
        learning_rate=5e-3, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1, save_steps=3,
        audit_draws=True, dataloader_pin_memory=False, ddp_backend="gloo" if processes > 1 else None,
        max_grad_norm=0.0,
    )  # fmt: skip
    if job["model"] == "aligner":
        model, collator = make_aligner(job.get("dropout", 0.0), query_residual=False), region_collator(store | more)
    else:
        model, collator = make_clip(), pixel_collator()
        pairs, held = pairs.with_transform(paint), held.with_transform(paint)
    kind, options = (Contrastive, {"chunk_size": job.get("chunk_size")}) if job["loss"] == "whole" else (OwnLoss, {})
    data = {"train_dataset": pairs, "eval_dataset": {"heldout": held}, "data_collator": collator}
    trainer = kind(model, args, **data, **options)
    trainer.job = job
    trainer.train(resume_from_checkpoint=job.get("resume", False))
    if args.process_index == 0:
        weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
        logged = [
            {name: value for name, value in entry.items() if "runtime" not in name and "second" not in name}
            for entry in trainer.state.log_history
        ]
        facts = {"weights": hashlib.sha256(weights).hexdigest(), "log": trainer.plan.log, "logged": logged[:-1]}
        Path(job["log"] + ".final").write_text(json.dumps(facts))


def launch(job: dict[str, Any]) -> None:
    """Forks the job's processes and waits for them."""

    def become(rank: int) -> None:
        errors = os.open(f"{job['log']}.err{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        try:
            train(job)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    fork(become, job.get("processes", 1), 120)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    for item in json.loads(Path(sys.argv[1]).read_text()):
        launch(item)
