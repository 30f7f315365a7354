"""Training arguments: those of `transformers`, and what a curriculum adds."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from hf_curriculum.planning.curriculum import Curriculum, curriculum_from
from hf_curriculum.shapes import validate_fields

if TYPE_CHECKING:
    AnyCurriculum = Curriculum | dict[str, Any] | str
else:  # what a command line can give
    AnyCurriculum = dict | str


@dataclass
class CurriculumTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with a curriculum, its score column and settings of the data order.

    Changed defaults: `num_train_epochs` is −1, the curriculum's own length. A number there, or in `max_steps`, sets
    the length of a curriculum without its own (`IID()`). With any other, `num_train_epochs` must agree, and
    `max_steps` ends the run after its first steps. `per_device_train_batch_size` and `gradient_accumulation_steps` are
    None: each follows from `global_batch_size`, or is `TrainingArguments`' default.

    The trainer reads them when `train()` begins. `auto_find_batch_size` makes the plan anew for the batch size found,
    and a resumed run keeps the checkpoint's; `dataloader_drop_last` is for evaluation, since every training batch is
    full. Settings that would draw other examples than the plan are errors: `train_sampling_strategy`,
    `ignore_data_skip`, and on several processes `split_batches` and `dispatch_batches` of `accelerator_config`.

    With a `weight_column` the loss is Σ wᵢ lᵢ, divided as `Trainer` divides Σ lᵢ, not by Σ wᵢ. The divisor is the
    labelled tokens of the step if lᵢ is a sum over tokens, or the examples if lᵢ is an example's loss. So weights with
    a mean of 1 keep the scale of the loss. The weights of `InfoBatch` multiply them. Evaluation is without weights,
    and a run resumes with the same weights only.

    Raises:
        TypeError: a field that is a number holds something else.
        ValueError: the curriculum cannot be read, the batch sizes contradict each other, a setting
            contradicts exact resuming or another one, or label smoothing is 1 or more.

    Example:
        >>> from hf_curriculum import Phases
        >>> args = CurriculumTrainingArguments("out", curriculum=Phases(4), score_column="noun_count", report_to=[])
        >>> args.to_dict()["curriculum"]
        {'type': 'phases'}
    """

    num_train_epochs: float = field(
        default=-1.0,
        metadata={"help": "Epochs for a curriculum that has no length of its own; -1: as the curriculum says."},
    )
    per_device_train_batch_size: int | None = field(
        default=None,
        metadata={"help": "Examples per device and forward pass; follows from global_batch_size, else 8."},
    )
    gradient_accumulation_steps: int | None = field(
        default=None, metadata={"help": "Forward passes per optimizer step; follows from global_batch_size, else 1."}
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Examples per optimizer step over all processes. A given "
            "per_device_train_batch_size or gradient_accumulation_steps stays, and the other follows; with neither, "
            "one forward pass takes all."
        },
    )
    curriculum: AnyCurriculum | None = field(
        default=None,
        metadata={
            "help": "The order of the examples: a curriculum in Python, its JSON or YAML text, a file of it, or "
            "a name. None trains on shuffled passes over everything."
        },
    )
    score_column: str | None = field(
        default=None, metadata={"help": "The column of the training data that holds one difficulty score per row."}
    )
    weight_column: str | None = field(
        default=None,
        metadata={
            "help": "The column of the training data that holds one weight per row, a finite number of at least 0, "
            "that multiplies the example's loss; with or without a curriculum."
        },
    )
    seed_examples: bool | None = field(
        default=None,
        metadata={
            "help": "Whether each example's own randomness (crops, noise, a set_transform) is seeded by its place in "
            "the run, so that it resumes exactly. None: if the data or the collator may be random."
        },
    )
    uint8_images: bool = field(
        default=False,
        metadata={
            "help": "Send images to the device as bytes, a quarter of the memory and of the transfer, and normalise "
            "them there: the same numbers. For collators with an image processor that only resizes to a fixed size "
            "and normalises (make_image_processor), and for any model."
        },
    )
    max_seconds: float | None = field(
        default=None,
        metadata={
            "help": "End the run after the step in which this many seconds of training have passed, for comparisons "
            "at equal time. Evaluation does not count; all restarts do. The learning-rate schedule still follows the "
            "curriculum's own steps."
        },
    )
    audit_draws: bool = field(
        default=False,
        metadata={"help": "Write the row numbers trained on, step by step, into output_dir/draws-rank*.jsonl."},
    )
    resume_on_other_data: bool = field(
        default=False,
        metadata={
            "help": "Resume a checkpoint although rows, collator or transform have changed; the "
            "number of rows, the scores and the curriculum must still be the same."
        },
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Beside other arguments, as in `class Mine(CurriculumTrainingArguments, SFTConfig)`, keeps their defaults."""
        super().__init_subclass__(**kwargs)
        place = cls.__mro__.index(CurriculumTrainingArguments)
        own = inspect.get_annotations(CurriculumTrainingArguments)
        for other in reversed(cls.__mro__[place + 1 : cls.__mro__.index(TrainingArguments)]):
            hints = get_type_hints(other)
            for changed in fields(other) if is_dataclass(other) else ():
                usual = TrainingArguments.__dataclass_fields__.get(changed.name)
                if usual not in (None, changed) and changed.name not in own:
                    cls.__annotations__ = {**inspect.get_annotations(cls), changed.name: hints[changed.name]}
                    setattr(cls, changed.name, copy(changed))

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # A class that joins two without @dataclass above it would have the fields of the first alone.
        if any(is_dataclass(base) for base in cls.__bases__[1:]) and "__dataclass_fields__" not in vars(cls):
            dataclass(cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        validate_fields(self)
        super().__post_init__()
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor} was given; it is the share of a label that "
                "goes to all tokens, at least 0 and less than 1, because at 1 nothing would be left of the label."
            )
        if self.curriculum is not None:
            self.curriculum = curriculum_from(self.curriculum)
        if self.num_train_epochs != -1 and not self.num_train_epochs > 0:
            raise ValueError(
                f"num_train_epochs={self.num_train_epochs} trains on nothing; give more than 0, or -1 for as long as "
                "the curriculum says. To evaluate alone, leave it out and do not call train()."
            )
        _validate_processes(self)
        _validate_trackers(self.report_to)
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds={self.max_seconds} leaves no time to train; it is more than 0, or None.")
        if self.ignore_data_skip:
            raise ValueError(
                "ignore_data_skip=True resumes with other examples or other randomness than the run had. A curriculum "
                "skips nothing it would have to load anyway: leave ignore_data_skip=False."
            )
        if self.train_sampling_strategy != "random":
            raise ValueError(
                f"train_sampling_strategy={self.train_sampling_strategy!r} orders examples in another way than the "
                "curriculum, which alone decides. Leave it out; batches=ByLength(...) makes batches of like lengths."
            )
        config = self.accelerator_config
        for name in ("split_batches", "dispatch_batches"):
            if getattr(config, name, None) and self.world_size > 1:  # one process splits and dispatches nothing
                raise ValueError(
                    f"accelerator_config.{name}=True deals examples to processes in another way than the plan, which "
                    f"would no longer say what a step trains on. Leave {name} off."
                )

    def _process_fsdp_args(self) -> Any:
        # The first step of `TrainingArguments` that knows the devices; DeepSpeed's, the next, reads the batch sizes.
        self._resolve_batch_size()
        return super()._process_fsdp_args()

    def _resolve_batch_size(self) -> None:
        """Makes numbers of the batch sizes that were not given."""
        size, accumulated = self.per_device_train_batch_size, self.gradient_accumulation_steps
        total = self.global_batch_size
        if total is None:
            self.per_device_train_batch_size = default_of(type(self), "per_device_train_batch_size", size)
            self.gradient_accumulation_steps = default_of(type(self), "gradient_accumulation_steps", accumulated)
            return
        if total < 1:
            raise ValueError(f"global_batch_size={total} was given; a step needs at least 1 example.")
        devices = self.world_size * max(1, self.n_gpu)
        if self.parallelism_config is not None:
            devices //= self.parallelism_config.non_data_parallel_size
        if self.auto_find_batch_size:
            raise ValueError(
                f"global_batch_size={total} fixes the examples per optimizer step, and auto_find_batch_size=True "
                "lowers them where memory runs out. Leave one of them out, or give a smaller "
                "per_device_train_batch_size: gradient_accumulation_steps follows."
            )
        given = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        given = {name: value for name, value in given.items() if value is not None}
        fixed = devices * math.prod(given.values())
        if fixed < 1 or total % fixed or (len(given) == 2 and total != fixed):
            named = "".join(f", {name}={value}" for name, value in given.items())
            raise ValueError(
                f"global_batch_size={total} is not possible with {devices} device{'s' * (devices > 1)}{named}: it "
                f"has to be {'exactly' if len(given) == 2 else 'a multiple of'} {fixed}. Leave "
                "gradient_accumulation_steps or per_device_train_batch_size out and it follows, or use another number "
                "of processes."
            )
        rest = total // fixed
        self.per_device_train_batch_size = size or rest
        self.gradient_accumulation_steps = accumulated or (rest if size else 1)

    def __getstate__(self) -> dict[str, Any]:
        """What `training_args.bin` holds, which is pushed with the model: all arguments but the Hub's token."""
        return {**self.__dict__, "hub_token": None}

    def to_dict(self) -> dict[str, Any]:
        """All arguments as a JSON-able mapping, the curriculum as its own mapping."""
        values = super().to_dict()
        if isinstance(self.curriculum, Curriculum):
            values["curriculum"] = self.curriculum.to_dict()
        return values


def default_of(cls: type, name: str, given: Any) -> Any:
    """What was given, else the default of the class that this one changes."""
    inherited = (base.__dataclass_fields__[name].default for base in cls.__mro__ if is_dataclass(base))
    return next(value for value in (given, *inherited) if value is not None)


def _validate_trackers(names: Sequence[str]) -> None:
    """Refuses a tracker that is not installed, which `Trainer` does once data and model are there."""
    if not names:
        return
    known = {
        name for name, callback in INTEGRATION_TO_CALLBACK.items() if callback.__module__.startswith("transformers.")
    }
    absent = sorted({*names} & known - {*get_available_reporting_integrations(), "flyte"})
    if absent:
        package = absent[0].replace("_ml", "-ml")
        raise ValueError(
            f"report_to={list(names)} was given, and {absent[0]!r} is not installed, so that nothing would be logged "
            f"there. Install it, `pip install {package}`, or leave it out: --report_to none."
        )


def _validate_processes(args: TrainingArguments) -> None:
    """Without an accelerator `Trainer` takes launched processes for one each, unless `use_cpu` says otherwise."""
    launched = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    if launched > 1 and args.world_size == 1:
        raise ValueError(
            f"{launched} processes were launched (WORLD_SIZE), and here there is one: each would train on everything, "
            "alone, and write into the same folder. Without a GPU pass use_cpu=True, or launch one process."
        )
