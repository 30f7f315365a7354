"""What changes with the step: a learning rate that decays by epochs, and words of a captioner's own as its input."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from hf_curriculum.rng import mix64
from hf_curriculum.tasks.captioning.schedules import (
    CaptioningSchedulerType,
    ScheduledSampling,
    StepDecay,
    completed_epochs,
    get_step_decay_schedule,
    read_schedule,
)
from hf_curriculum.training.evaluation import EvaluatingTrainer
from hf_curriculum.training.prediction import base_model

_SAMPLING = 0x5A3D11
_INPUTS = ("sampling_probability", "sampling_seed")


class SchedulingTrainer(EvaluatingTrainer):
    """What `CurriculumTrainer` does about schedules by epochs of the training data, and nothing else.

    `lr_scheduler_type="step"` is a `StepDecay`. With `scheduled_sampling` the model is called with
    `sampling_probability`, a function of the step alone, and `sampling_seed`, one of (seed, step, batch, process).
    """

    lr_scheduler: Any
    _batch_of_step = (-1, 0)
    """The step, and which of its accumulated batches is trained on."""

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        """`Trainer.create_scheduler`, and `lr_scheduler_type="step"`."""
        args = self.args
        if self.lr_scheduler is not None or args.lr_scheduler_type != CaptioningSchedulerType.STEP:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = get_step_decay_schedule(
            self.optimizer if optimizer is None else optimizer,
            read_schedule(StepDecay, args.lr_scheduler_kwargs),
            args.get_warmup_steps(num_training_steps),
            self.plan.global_batch_size,
            len(self.plan.ranking),
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """`Trainer.training_step`, with scheduled sampling."""
        step, (before, number) = self.state.global_step, self._batch_of_step
        self._batch_of_step = step, number + 1 if step == before else 0
        if self.args.scheduled_sampling is not None:
            epoch = completed_epochs(step, self.plan.global_batch_size, len(self.plan.ranking))
            probability = read_schedule(ScheduledSampling, self.args.scheduled_sampling).probability(epoch)
            if probability:
                inputs = {**inputs, **dict(zip(_INPUTS, (probability, self.batch_seed(_SAMPLING)), strict=True))}
        return super().training_step(model, inputs, num_items_in_batch)

    def batch_seed(self, purpose: int) -> int:
        """63 random bits for the batch that is trained on, a function of (seed, purpose, step, batch, process)."""
        return mix64(self.args.seed, purpose, *self._batch_of_step, self.args.process_index) >> 1

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        self._batch_of_step = (-1, 0)
        return super()._init_training_state(*args, **kwargs)

    def validate_schedules(self) -> None:
        """Checks that the model takes part in scheduled sampling, where it is asked for."""
        if self.args.scheduled_sampling is None:
            return
        model = base_model(self.model)
        missing = [name for name in _INPUTS if name not in inspect.signature(model.forward).parameters]
        if missing:
            raise ValueError(
                f"scheduled_sampling={self.args.scheduled_sampling} was given, and the forward of a "
                f"{type(model).__name__} does not take {missing}: it would read the captions' words alone. Use a "
                "recurrent captioner (UpDownForCausalLM, AoANetForCausalLM), or leave scheduled_sampling out."
            )
