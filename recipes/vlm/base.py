"""The model that is fine-tuned: a trained one by its name, or a small one that learns to describe scenes first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel, ProcessorMixin, set_seed
from vlm.arguments import LLAVA, CurriculumSFTTrainer, ModelArguments
from vlm.data import COMPLETION, PROMPT, as_turns, text_of_message
from vlm.model import load_named, new_llava, train_tokenizer
from vlm.world import make_captions, text_questions

from hf_curriculum import IID, StopWhenDiverged
from hf_curriculum.config import digest
from hf_curriculum.studies.recipe import RunLines, resume_point

SEED = 1
"""Of the base's scenes and training, for runs of all seeds; the conversations' scenes are those of seed 0."""


def build(
    model_args: ModelArguments, train: Dataset, arguments_in: Callable[[Path], Any], folder: Path
) -> tuple[PreTrainedModel, ProcessorMixin]:
    """The model of a run and its processor."""
    if model_args.model != LLAVA:
        return load_named(model_args.model)
    where = folder / f"base-{digest(str(asdict(model_args)), size=4)}"
    if not (where / "model" / "config.json").is_file():
        _train_base(model_args, train, arguments_in(where), where)
    model, processor = load_named(str(where / "model"))
    model.model.vision_tower.requires_grad_(False)  # as in the first stage: files do not say what is frozen
    return model, processor


def _train_base(model_args: ModelArguments, train: Dataset, training_args: Any, folder: Path) -> None:
    """LLaVA's first stage: projector and language model learn to describe images, of scenes that no run sees."""
    with PartialState().main_process_first():
        captions = as_turns(make_captions(model_args.base_images, SEED))
    cells = train.select_columns([PROMPT, COMPLETION])
    texts = (f" {text_of_message(cell)}" for row in cells for cell in row.values())
    known = (f" {part}" for one in text_questions() for part in (one.text, one.answer))
    tokenizer = train_tokenizer(itertools.chain(texts, known, ["USER: ASSISTANT:"] * 3), model_args.vocab_size)
    set_seed(SEED)
    model, processor = new_llava(tokenizer, model_args.vision_layers, model_args.text_config)
    training_args.curriculum, training_args.seed = IID(fit_steps=model_args.base_steps), SEED
    training_args.learning_rate = model_args.base_learning_rate
    parts = {"train_dataset": captions, "processing_class": processor, "callbacks": [StopWhenDiverged()]}
    trainer = CurriculumSFTTrainer(model, training_args, **parts)
    trainer.accelerator.print(f"\nthe base: {len(captions):,} images described, {model_args.base_steps:,} steps")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(training_args))
    draft = folder / ".model"  # a kill leaves no incomplete model
    trainer.save_model(str(draft))
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        draft.replace(folder / "model")
    trainer.accelerator.wait_for_everyone()
