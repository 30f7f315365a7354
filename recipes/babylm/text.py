"""The text stage: a model is trained on text alone before it gets captioned images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from babylm.arguments import BabyLMArguments
from babylm.data import Prepared
from common.runs import last
from safetensors.torch import load_model, save_model

from hf_curriculum import IID, CaptionCollator, CurriculumTrainer, CurriculumTrainingArguments, StopWhenDiverged
from hf_curriculum.data.text_blocks import BlockCollator, text_blocks
from hf_curriculum.studies.recipe import RunLines, resume_point


def text_arguments(
    args: BabyLMArguments, training_args: CurriculumTrainingArguments, evaluated: bool
) -> CurriculumTrainingArguments:
    """The captions' training arguments as the text stage has them: shuffled passes, its own batch, its own folder."""
    devices = training_args.world_size * max(1, training_args.n_gpu)
    share, size = args.text_batch_size // devices, None
    if args.text_batch_size % devices == 0:
        least = -(-share // args.text_at_once)
        size = share // next(parts for parts in range(least, share + 1) if share % parts == 0)
    return dataclasses.replace(
        training_args,
        output_dir=str(Path(training_args.output_dir) / "text"),
        run_name=f"{training_args.run_name}/text",
        curriculum=IID(epochs=args.text_epochs),
        num_train_epochs=-1,
        max_steps=-1,
        max_seconds=None,
        score_column=None,
        global_batch_size=args.text_batch_size,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=None,
        eval_strategy="epoch" if evaluated else "no",
        eval_on_start=evaluated,
        save_total_limit=1,
        load_best_model_at_end=False,
        push_to_hub=False,
        resume_from_checkpoint=None,
        seed_examples=False,  # a row of text comes out the same every time
    )


def text_rows(args: BabyLMArguments, prepared: Prepared) -> tuple[Any, Any, Any]:
    """Training rows, evaluation rows (or None) and collator of the text: lines, or blocks of tokens."""
    lines, tokenizer = prepared.text, prepared.tokenizer
    held_out = lines.get("validation")
    if held_out is not None:
        held_out = held_out.select(range(min(args.text_eval, len(held_out)))) if args.text_eval else None
    if args.text_blocks is None:
        collator = CaptionCollator(
            tokenizer,
            None,
            max_length=args.text_max_length,
            ignore_padding=not args.train_on_padding,
            learn_truncated_ends=True,  # code: labels are the input ids
        )
        return lines["train"], held_out, collator
    blocks = [part and text_blocks(part, tokenizer, args.text_blocks) for part in (lines["train"], held_out)]
    return *blocks, BlockCollator()


def train_on_text(
    model: torch.nn.Module, prepared: Prepared, args: BabyLMArguments, training_args: CurriculumTrainingArguments
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Trains the model on text alone, in random order; its optimizer ends with the stage."""
    folder = Path(training_args.output_dir) / "text"
    weights, record = folder / "weights.safetensors", folder / "text.json"
    if record.is_file():
        load_model(model, weights)
        return model, json.loads(record.read_text(encoding="utf-8"))
    train, held_out, collator = text_rows(args, prepared)
    trainer = CurriculumTrainer(
        model,
        text_arguments(args, training_args, held_out is not None),
        data_collator=collator,
        train_dataset=train,
        eval_dataset=held_out,
        callbacks=[StopWhenDiverged()],
    )
    PartialState().print(f"\n{folder.parent.name}: text\n{trainer.plan.describe()}\n")
    RunLines.follow(trainer)
    trainer.train(resume_from_checkpoint=resume_point(trainer.args))
    log = trainer.state.log_history
    facts = {
        "examples": trainer.plan.num_examples,
        "steps": trainer.state.global_step,
        "seconds": last(log, "seconds"),
        "eval_loss": last(log, "eval_loss"),
        "log": log,
    }
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
    if PartialState().is_main_process:
        save_model(model, str(weights))
        record.write_text(json.dumps(facts), encoding="utf-8")
    PartialState().wait_for_everyone()
    return model, facts
