"""`hf-curriculum train`: a captioner on scored data."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_curriculum.cli.common import (
    BATCH_SIZE,
    AsJson,
    above_zero,
    complete_column,
    complete_curriculum,
    in_split,
    load_split,
    named_curriculum,
    plainly,
    say,
    score_for,
    suggest,
)

if TYPE_CHECKING:
    from datasets import Dataset


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
        float | None,
        typer.Option(help="Epochs, for a curriculum that has no length of its own.", callback=above_zero),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per process and step.", min=1)] = BATCH_SIZE,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule.", callback=above_zero)] = 1e-3,
    image_size: Annotated[int, typer.Option(help="Pixels along an edge, for the small model.", min=1)] = 64,
    max_length: Annotated[int, typer.Option(help="Tokens of a caption at most, with both end marks.", min=3)] = 50,
    validation: Annotated[float, typer.Option(help="Share of the images that is held out.")] = 0.05,
    split: Annotated[str, typer.Option(help="The split to train on, where there are several.")] = "train",
    seed: Annotated[int, typer.Option(help="Of weights, order and the held-out part.")] = 0,
    resume: Annotated[bool, typer.Option(help="Go on from the last whole checkpoint in OUTPUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a captioner in the order of a curriculum; `report` then shows what came out.

    On several GPUs or machines: `accelerate launch -m hf_curriculum.cli train ...` or `torchrun`.
    """
    rule = named_curriculum(curriculum, "--curriculum")
    whole = load_split(dataset, split)
    column = score_for(rule, whole, score_column)

    from hf_curriculum.training.checkpoints import is_complete
    from hf_curriculum.training.setup import close_process_group

    if not resume and any(map(is_complete, output.glob("checkpoint-*"))):
        raise ValueError(
            f"{output} holds checkpoints of an earlier run, which this one would delete or be taken for. Pass "
            "--resume to go on with it, or name another folder."
        )
    settings = {
        "curriculum": rule,
        "score_column": column,
        "num_train_epochs": -1 if epochs is None else epochs,
        "per_device_train_batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    sizes = {"image_size": image_size, "max_length": max_length}
    facts = _train(whole, output, model, settings, sizes, validation, resume, show_plan=not as_json)
    close_process_group()  # of several processes; here the trainer is out of reach
    if facts is None:
        return
    result = f"validation loss {facts['loss_before']:.3f} → {facts['loss']:.3f} after {facts['examples']:,} examples"
    say(f"{result}; model in {facts['model']}", facts, as_json)
    if not math.isfinite(facts["loss"]):
        raise ValueError(
            f"The validation loss is {facts['loss']}: the run has diverged, and its model is of no use. Train again "
            f"into another folder with a smaller --learning-rate than {learning_rate:g}."
        )
    suggest("report", output, "--dataset", dataset, *in_split(split))


def _train(
    whole: Dataset,
    output: Path,
    model: str,
    settings: Mapping[str, Any],
    sizes: Mapping[str, int],
    validation: float,
    resume: bool,
    show_plan: bool,
) -> dict[str, Any] | None:
    """Trains, saves the model, and says in the main process what came out; None in the others."""
    import torch
    from transformers import set_seed

    from hf_curriculum.data.captions import hold_out
    from hf_curriculum.data.collators import CaptionCollator
    from hf_curriculum.models.captioner import load_captioner, new_captioner
    from hf_curriculum.training.arguments import CurriculumTrainingArguments
    from hf_curriculum.training.trainer import CurriculumTrainer

    set_seed(settings["seed"])
    parts = hold_out(whole, validation, seed=settings["seed"])
    size, longest = sizes["image_size"], sizes["max_length"]
    made, processor = new_captioner(parts["train"], size) if model == "small" else load_captioner(model)
    args = CurriculumTrainingArguments(
        str(output),
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        eval_on_start=True,
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=10,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),  # it warns where there is nothing to pin for
        report_to=[],
        use_cpu=not torch.accelerator.is_available(),  # or several processes on CPU would each train alone
        **settings,
    )
    trainer = CurriculumTrainer(
        made,
        args,
        data_collator=CaptionCollator(processor.tokenizer, processor.image_processor, max_length=longest),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        processing_class=processor,
    )
    is_main = trainer.is_world_process_zero()
    if show_plan and is_main:
        typer.echo(trainer.plan.describe())
    with redirect_stdout(sys.stderr):  # `Trainer` prints its log there
        trainer.train(resume_from_checkpoint=resume or None)
        trainer.save_model(str(output / "model"))
    if not is_main:
        return None
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {
        "steps": trainer.state.global_step,
        "examples": trainer.examples_seen(),
        "loss_before": losses[0],
        "loss": losses[-1],
        "model": str(output / "model"),
    }
