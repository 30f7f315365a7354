"""`hf-curriculum train`: a captioner on scored data."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.commands.common import (
    AsJson,
    load_split,
    named_curriculum,
    plainly,
    say,
    score_for,
    suggest,
)
from hf_curriculum.commands.completion import complete_column, complete_curriculum


@plainly
def train_command(
    dataset: Annotated[Path, typer.Argument(help="A data set saved by `hf-curriculum score`.")],
    output: Annotated[Path, typer.Argument(help="Folder for checkpoints and the trained model.")],
    curriculum: Annotated[
        str, typer.Option(help="Name, file, JSON or YAML of a curriculum.", autocompletion=complete_curriculum)
    ] = "phases",
    score_column: Annotated[
        str | None,
        typer.Option(help="The score to sort by; the first one, if not given.", autocompletion=complete_column),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="`small`: a GIT of about a million parameters, from scratch; or a folder or Hub name of one."
        ),
    ] = "small",
    epochs: Annotated[
        float | None, typer.Option(help="Epochs, for a curriculum that has no length of its own.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per process and step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule.")] = 1e-3,
    image_size: Annotated[int, typer.Option(help="Pixels along an edge, for the small model.")] = 64,
    max_length: Annotated[int, typer.Option(help="Tokens of a caption, at most.")] = 50,
    validation: Annotated[float, typer.Option(help="Share of the images that is held out.")] = 0.05,
    split: Annotated[str, typer.Option(help="The split to train on, where there are several.")] = "train",
    seed: Annotated[int, typer.Option(help="Of weights, order and the held-out part.")] = 0,
    resume: Annotated[bool, typer.Option(help="Go on from the last whole checkpoint in OUTPUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a captioner in the order of a curriculum; `report` then shows what came out."""
    rule = named_curriculum(curriculum, "--curriculum")
    whole = load_split(dataset, split)
    column = score_for(rule, whole, score_column)

    import torch
    from transformers import set_seed

    from hf_curriculum.data.collators import CaptionCollator
    from hf_curriculum.data.splits import hold_out
    from hf_curriculum.models.captioner import load_captioner, new_captioner
    from hf_curriculum.training import CurriculumTrainer, CurriculumTrainingArguments

    set_seed(seed)
    parts = hold_out(whole, validation, seed=seed)
    made, processor = new_captioner(parts["train"], image_size) if model == "small" else load_captioner(model)
    args = CurriculumTrainingArguments(
        str(output),
        curriculum=rule,
        score_column=column,
        num_train_epochs=epochs or -1,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        eval_on_start=True,
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=10,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),  # it warns where there is nothing to pin for
        report_to=[],
        seed=seed,
    )
    trainer = CurriculumTrainer(
        made,
        args,
        data_collator=CaptionCollator(processor.tokenizer, processor.image_processor, max_length=max_length),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        processing_class=processor,
    )
    if not as_json:
        typer.echo(trainer.plan.describe())
    with redirect_stdout(sys.stderr):  # `Trainer` prints its log there
        trainer.train(resume_from_checkpoint=resume or None)
        trainer.save_model(str(output / "model"))
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    facts = {
        "steps": trainer.state.global_step,
        "examples": trainer.examples_seen(),
        "loss_before": losses[0],
        "loss": losses[-1],
        "model": str(output / "model"),
    }
    result = f"validation loss {losses[0]:.3f} → {losses[-1]:.3f} after {facts['examples']:,} examples"
    say(f"{result}; model in {facts['model']}", facts, as_json)
    suggest("report", output, "--dataset", dataset)
