"""A curriculum for any `Trainer`: `with_curriculum(SFTTrainer)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import Trainer, TrainingArguments

from hf_curriculum.training.arguments import CurriculumTrainingArguments
from hf_curriculum.training.setup import arguments_of
from hf_curriculum.training.trainer import CurriculumTrainer


@cache
def with_curriculum(
    trainer_class: type[Trainer], args_class: type[TrainingArguments] | None = None
) -> type[CurriculumTrainer]:
    """Adds a curriculum to a trainer class, as `class CurriculumSFTTrainer(CurriculumTrainer, SFTTrainer)` would.

    Its `args_class` has the fields and defaults of both. Model, collator, loss, callbacks and all else are the given
    trainer's.

    Args:
        trainer_class: of transformers, TRL, Sentence Transformers, or your own.
        args_class: the arguments it reads; by default the class called like it, `SFTConfig` or
            `Seq2SeqTrainingArguments`, where the trainer is defined or in its package.

    Returns:
        The class, the same one for the same arguments.

    Raises:
        TypeError: not a `Trainer`, or the arguments are no `TrainingArguments`.

    Example:
        >>> from transformers import Seq2SeqTrainer
        >>> from hf_curriculum import Phases
        >>> trainer_class = with_curriculum(Seq2SeqTrainer)
        >>> trainer_class.__name__, trainer_class.args_class.__name__
        ('CurriculumSeq2SeqTrainer', 'CurriculumSeq2SeqTrainingArguments')
        >>> args = trainer_class.args_class("out", curriculum=Phases(4), score_column="length", report_to=[])
    """
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, Trainer)):
        raise TypeError(f"{trainer_class!r} is not a class of transformers' Trainer. Give one, such as SFTTrainer.")
    if args_class is None:
        args_class = arguments_of(trainer_class)
    if not (isinstance(args_class, type) and issubclass(args_class, TrainingArguments)):
        raise TypeError(f"args_class={args_class!r} is not a class of TrainingArguments. Give one, such as SFTConfig.")
    if issubclass(trainer_class, CurriculumTrainer):
        return trainer_class
    content = {
        "__init__": _init_like(trainer_class),
        "args_class": _arguments_with_curriculum(args_class),
        "__module__": __name__,
        "__doc__": f"`CurriculumTrainer` and `{trainer_class.__name__}`.",
    }
    return type(f"Curriculum{trainer_class.__name__}", (CurriculumTrainer, trainer_class), content)


def _init_like(trainer_class: type[Trainer]) -> Callable[..., None]:
    """A constructor with the parameters of a trainer, in their order, and `scores`."""
    parameters = list(inspect.signature(trainer_class.__init__).parameters.values())

    def __init__(self: CurriculumTrainer, *args: Any, **kwargs: Any) -> None:
        names = [parameter.name for parameter in parameters[1:]]
        CurriculumTrainer.__init__(self, **dict(zip(names, args, strict=False)), **kwargs)

    scores = inspect.Parameter("scores", inspect.Parameter.KEYWORD_ONLY, default=None)
    others = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    __init__.__signature__ = inspect.Signature([*others, scores])  # type: ignore[attr-defined]
    return __init__


@cache
def _arguments_with_curriculum(args_class: type[TrainingArguments]) -> type[CurriculumTrainingArguments]:
    """The fields of both, with the defaults that either changed."""
    if issubclass(args_class, CurriculumTrainingArguments):
        return args_class
    content = {
        "__module__": __name__,
        "__doc__": f"`CurriculumTrainingArguments` and `{args_class.__name__}`.",
        "__reduce__": lambda self: (_new_arguments, (args_class,), self.__getstate__()),
    }
    return dataclass(type(f"Curriculum{args_class.__name__}", (CurriculumTrainingArguments, args_class), content))


def _new_arguments(args_class: type[TrainingArguments]) -> Any:
    """What a pickle begins with: `training_args.bin` is read where `with_curriculum` was not called."""
    made = _arguments_with_curriculum(args_class)
    return made.__new__(made)
