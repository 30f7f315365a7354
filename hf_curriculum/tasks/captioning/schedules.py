"""Schedules of captioners' reference implementations: pure functions of the epochs that a step has completed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers.utils import ExplicitEnum

from hf_curriculum.config import Configured, at_least
from hf_curriculum.shapes import validate_fields


class CaptioningSchedulerType(ExplicitEnum):
    """Values of `lr_scheduler_type` beside those of transformers' `SchedulerType`."""

    STEP = "step"


def completed_epochs(step: int, global_batch_size: int, num_examples: int) -> int:
    """Passes over the training data, whatever the curriculum shows of it, that so many optimizer steps complete."""
    return step * global_batch_size // num_examples


@dataclass(frozen=True)
class StepDecay(Configured):
    """The learning rate multiplied by `rate` every so many epochs: `lr_scheduler_type="step"`.

    Args:
        rate: what the learning rate is multiplied by, above 0 and at most 1.
        every: epochs of the training data between two decays.
        start: epochs before the first `every` begin.
    """

    type: ClassVar[str] = "step"

    rate: float = 0.8
    every: int = 3
    start: int = 0

    def __post_init__(self) -> None:
        validate_fields(self)
        at_least("lr_scheduler_kwargs", every=(self.every, 1), start=(self.start, 0))
        if not 0 < self.rate <= 1:
            raise ValueError(
                f"lr_scheduler_kwargs has rate={self.rate}: a step decay multiplies the learning rate by more than 0 "
                "and at most 1."
            )

    def factor(self, epoch: int) -> float:
        """What the learning rate is multiplied by after so many complete epochs."""
        return float(self.rate ** (max(0, epoch - self.start) // self.every))


@dataclass(frozen=True)
class ScheduledSampling(Configured):
    """How often a captioner reads a word of its own in place of the caption's, growing with the epochs.

    Args:
        increase: added to the probability every so many epochs.
        every: epochs of the training data between two increases.
        start: epochs before the first `every` begin.
        max: the highest probability.
    """

    type: ClassVar[str] = "scheduled_sampling"

    increase: float = 0.05
    every: int = 5
    start: int = 0
    max: float = 0.25

    def __post_init__(self) -> None:
        validate_fields(self)
        at_least("scheduled_sampling", every=(self.every, 1), start=(self.start, 0))
        if not 0 < self.increase <= 1 or not 0 < self.max <= 1:
            raise ValueError(
                f"scheduled_sampling has increase={self.increase} and max={self.max}: both are probabilities above 0 "
                "and at most 1. Leave scheduled_sampling out to read the captions' words alone."
            )

    def probability(self, epoch: int) -> float:
        """The probability after so many complete epochs."""
        return float(min(self.increase * (max(0, epoch - self.start) // self.every), self.max))


def get_step_decay_schedule(
    optimizer: Optimizer, decay: StepDecay, num_warmup_steps: int, global_batch_size: int, num_examples: int
) -> LambdaLR:
    """A learning rate that rises linearly from 0 to the optimizer's, and is multiplied by `decay` at epochs' ends."""

    def factor(step: int) -> float:
        if step < num_warmup_steps:
            return step / num_warmup_steps
        return decay.factor(completed_epochs(step, global_batch_size, num_examples))

    return LambdaLR(optimizer, factor)


def read_schedule(kind: Any, given: Any) -> Any:
    """A `StepDecay` or `ScheduledSampling` of the mapping in the training arguments; None: all by default."""
    return given if isinstance(given, kind) else kind.from_dict(given or {})
