"""Rounds during training: reading a new one, and what its decision is taken on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list

from hf_curriculum.data.draws import forked_generators
from hf_curriculum.pacing import Observed, Plan

if TYPE_CHECKING:
    from hf_curriculum.training.trainer import CurriculumTrainer

SCORING = "Scoring"
"""What the loader of a scoring pass is for: every row, the last ones too."""


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Whatever is done inside leaves the random streams of training as they were."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with forked_generators(), torch.random.fork_rng(devices=devices):
        yield


class RoundReader:
    """Reads a plan's batches round by round.

    The loader of a round ends where the plan's known steps end. When the log has grown, the loader is asked for a new
    iterator, whose sampler reads the new plan from the step the run is at. So a decision takes effect in the first
    step after it, however far ahead workers had read.

    Args:
        loader: the prepared loader of the training data.
        iterator: the one that `Trainer` made at the beginning, or after a resume.
        decisions: how many had been taken then.
    """

    def __init__(self, loader: Any, iterator: Iterator, decisions: int) -> None:
        self.loader, self.iterator, self.decisions = loader, iterator, decisions

    def goes_on(self, plan: Plan) -> bool:
        """Whether the current iterator has the next step of this plan."""
        return self.decisions == len(plan.log)

    def renew(self, plan: Plan) -> None:
        """Makes the iterator of the next round.

        Raises:
            RuntimeError: the round that has ended still has batches.
        """
        # Asking once more lets accelerate's loader close itself.
        if next(self.iterator, None) is not None:
            raise RuntimeError(
                "The loader holds more batches than the round that has just ended: it does not follow the plan. Look "
                "for a replaced sampler or data loader."
            )
        self.iterator, self.decisions = iter(self.loader), len(plan.log)


def decided_everywhere(plan: Plan, observed: Observed) -> Plan:
    """The plan after the next decision: the main process's, on every process."""
    plan = plan.decided(observed)
    shared = [plan.log, plan.losses]
    broadcast_object_list(shared)
    return plan.with_log(*shared)


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float, np.number))}


def round_facts(plan: Plan, step: int) -> dict[str, float]:
    """What is logged when a decision begins a round: its number from 1, its pool, and what decided."""
    stage = plan.stage_at(step)
    return {"round": stage.number + 1, "next_pool_size": stage.pool_size, **decision_numbers(plan.log[-1])}


def decision_numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """What a decision was taken on, for trackers, which draw numbers: `decision_value`, `decision_best`, …

    Args:
        entry: of the log of decisions; a mapping in it, such as one value per level, is taken apart.
    """
    flat: dict[str, Any] = {}
    for name, value in entry.items():
        flat |= {f"{name}_{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
    return {f"decision_{name}": value for name, value in numbers_of(flat).items() if name not in ("round", "step")}


def measure_losses(trainer: CurriculumTrainer) -> np.ndarray:
    """The current loss of every row of the training data, without augmentation and without dropout.

    Returns:
        float32, shape (num_rows,).
    """
    loader = trainer._get_dataloader(
        trainer.train_dataset, description=SCORING, batch_size=trainer.args.eval_batch_size
    )
    # A model that is sharded over processes computes only as a whole.
    model = trainer.model_wrapped if trainer.is_fsdp_enabled else trainer.model
    was_training, parts = model.training, []
    model.eval()
    try:
        with torch.no_grad(), trainer.compute_loss_context_manager(), trainer.accelerator.autocast():
            for inputs in loader:
                losses = trainer.example_losses(model, trainer._prepare_inputs(inputs))
                parts.append(trainer.accelerator.gather_for_metrics(losses.float()).cpu())
    finally:
        model.train(was_training)
    losses = torch.cat(parts).numpy()
    if len(losses) != len(trainer.train_dataset):
        raise RuntimeError(
            f"The scoring pass returned {len(losses):,} losses for {len(trainer.train_dataset):,} rows. "
            "example_losses has to return one number per example of its batch."
        )
    return losses
