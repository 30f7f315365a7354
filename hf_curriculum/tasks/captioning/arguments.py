"""Training arguments of captioning: those of a curriculum, text generated in evaluation, and captioners' schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from transformers import SchedulerType

from hf_curriculum.config import read_config
from hf_curriculum.tasks.captioning.schedules import (
    CaptioningSchedulerType,
    ScheduledSampling,
    StepDecay,
    read_schedule,
)
from hf_curriculum.training.arguments import CurriculumTrainingArguments, default_of


@dataclass
class CaptioningArguments(CurriculumTrainingArguments):
    """The training arguments of a `CaptioningTrainer`: `CurriculumTrainingArguments` with settings for captioners.

    `max_grad_norm` is None: 0 (no clipping by norm) if `max_grad_value` is given, else the usual default.

    `lr_scheduler_type` is None for `TrainingArguments`' default. It may also be `"step"`, with
    `lr_scheduler_kwargs={"rate": 0.8, "every": 3, "start": 0}`: after `warmup_steps` the learning rate is multiplied
    by `rate` after every `every` epochs of the training data (`tasks.captioning.schedules.StepDecay`). The "Noam"
    schedule of a model of width d with w warm-up steps is `"inverse_sqrt"` with `warmup_steps=w` and
    `learning_rate=(d * w) ** -0.5`.

    Raises:
        ValueError: a schedule cannot be read, a setting contradicts another one, or as `CurriculumTrainingArguments`.

    Example:
        >>> args = CaptioningArguments("out", predict_with_generate=True, generation_max_length=20, report_to=[])
        >>> args.generation_max_length
        20
    """

    predict_with_generate: bool = field(
        default=False,
        metadata={
            "help": "Whether evaluation generates text, for compute_metrics or else for BLEU, CIDEr and ROUGE-L. Of "
            "several evaluation sets, those with one row per image; see generation_sets."
        },
    )
    generation_sets: list[str] | None = field(
        default=None,
        metadata={
            "help": "The evaluation sets, by name, that text is generated for, row by row; None: those in which no "
            "image repeats. The others give their loss alone."
        },
    )
    generation_max_length: int | None = field(
        default=None, metadata={"help": "Longest text to generate in evaluation, in tokens; the model's own if None."}
    )
    generation_num_beams: int | None = field(
        default=None, metadata={"help": "Beams to generate with in evaluation; the model's own if None."}
    )

    lr_scheduler_type: str | None = field(
        default=None,
        metadata={
            "help": 'A schedule of transformers (default "linear"), or "step": multiplied by rate every so many '
            'epochs of the training data, lr_scheduler_kwargs={"rate": 0.8, "every": 3, "start": 0}.'
        },
    )
    max_grad_norm: float | None = field(
        default=None,
        metadata={"help": "Largest norm of all gradients; 0: not limited, as with max_grad_value; else 1."},
    )
    max_grad_value: float | None = field(
        default=None, metadata={"help": "Largest absolute value of each gradient, after accumulation and unscaling."}
    )
    scheduled_sampling: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "How often a recurrent captioner reads a word of its own: {increase: 0.05, every: 5, start: 0, "
            "max: 0.25}, in epochs of the training data; what is left out is as here."
        },
    )

    def __post_init__(self) -> None:
        self._resolve_clipping()
        self.lr_scheduler_type = default_of(type(self), "lr_scheduler_type", self.lr_scheduler_type)
        steps = self.lr_scheduler_type == CaptioningSchedulerType.STEP
        if steps:  # `TrainingArguments` knows its own types alone
            self.lr_scheduler_type = SchedulerType.CONSTANT_WITH_WARMUP
        super().__post_init__()
        if steps:
            self.lr_scheduler_type = CaptioningSchedulerType.STEP
            read_schedule(StepDecay, self.lr_scheduler_kwargs)
        if self.scheduled_sampling is not None:
            self.scheduled_sampling = read_config(self.scheduled_sampling, "scheduled_sampling")
            read_schedule(ScheduledSampling, self.scheduled_sampling)
        if self.generation_sets is not None and not self.predict_with_generate:
            raise ValueError(
                f"generation_sets={self.generation_sets} was given without predict_with_generate=True: no text would "
                "be generated for them. Set it, or leave generation_sets out."
            )

    def _resolve_clipping(self) -> None:
        """Makes a number of `max_grad_norm` where it was not given."""
        value = self.max_grad_value
        if value is not None and not 0 < value < math.inf:
            raise ValueError(
                f"max_grad_value={value} would leave no gradient, or limit none; it is a number more than 0, or None."
            )
        if value is not None and self.deepspeed:
            raise ValueError(
                f"max_grad_value={value} was given with DeepSpeed, which keeps the gradients to itself and limits "
                "their norm alone: it would do nothing. Give max_grad_norm instead."
            )
        if self.max_grad_norm is None and value is not None:
            self.max_grad_norm = 0.0
        self.max_grad_norm = default_of(type(self), "max_grad_norm", self.max_grad_norm)
