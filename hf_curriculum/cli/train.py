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
    from datasets import Dataset, DatasetDict

    from hf_curriculum.training.arguments import CurriculumTrainingArguments
    from hf_curriculum.training.trainer import CurriculumTrainer


@plainly
def train_command(
    context: typer.Context,
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
    resume: Annotated[bool, typer.Option(help="Resume from the last complete checkpoint in OUTPUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a captioner in the order of a curriculum; `report` then shows what came out.

    Every flag of TrainingArguments may follow: --report_to tensorboard --bf16 --push_to_hub --hub_model_id me/model.
    On several GPUs or machines: `accelerate launch -m hf_curriculum.cli train ...` or `torchrun`.
    """
    rule = named_curriculum(curriculum, "--curriculum")
    data = load_split(dataset, split)
    args = training_arguments(
        context,
        output_dir=str(output),
        curriculum=rule,
        score_column=score_for(rule, data, score_column),
        num_train_epochs=-1 if epochs is None else epochs,
        learning_rate=learning_rate,
        seed=seed,
        batch_size=batch_size,
        resume=resume,
    )
    facts = _train(_trainer(data, args, model, image_size, max_length, validation), show_plan=not as_json)

    from hf_curriculum.training.setup import close_process_group

    close_process_group()  # of several processes, once the trainer is out of reach
    if facts is not None:
        _say_result(facts, args.learning_rate, as_json)
        suggest("report", output, "--dataset", dataset, *in_split(split))


def training_arguments(
    context: typer.Context, *, output_dir: str, batch_size: int, resume: bool, **given: Any
) -> CurriculumTrainingArguments:
    """The command's options, and further flags of `TrainingArguments`, which hold against the command's defaults.

    Raises:
        typer.BadParameter: a flag is unknown or cannot be read.
        ValueError: the folder has checkpoints of an earlier run.
    """
    import torch

    from hf_curriculum.studies.recipe import FlagParser
    from hf_curriculum.training.arguments import CurriculumTrainingArguments
    from hf_curriculum.training.checkpoints import is_complete

    class Flags(FlagParser):
        def error(self, message: str) -> Any:
            raise typer.BadParameter(message)

    values = {
        "lr_scheduler_type": "cosine",
        "eval_strategy": "epoch",
        "eval_on_start": True,
        "save_strategy": "epoch",
        "save_total_limit": 2,
        "logging_steps": 10,
        "remove_unused_columns": False,
        "hub_strategy": "end",
        "dataloader_pin_memory": torch.cuda.is_available(),  # it warns where there is nothing to pin for
        "use_cpu": not torch.accelerator.is_available(),  # or several processes on CPU would each train alone
        **given,
    }
    options = [option for parameter in context.command.params for option in parameter.opts]
    parser = Flags([CurriculumTrainingArguments], others=options)
    parsed = vars(parser.parse_given(context.args, values))
    if parsed.setdefault("output_dir", output_dir) != output_dir:
        raise typer.BadParameter(f"--output_dir {parsed['output_dir']} was given, and OUTPUT is {output_dir}.")
    if parsed["eval_strategy"] == "no":
        raise typer.BadParameter("--eval_strategy no was given, and the result is a validation loss. Leave it out.")
    given_size = context.get_parameter_source("batch_size").name == "COMMANDLINE"
    if given_size or "global_batch_size" not in parsed:
        parsed.setdefault("per_device_train_batch_size", batch_size)
    parsed["resume_from_checkpoint"] = "last" if resume else parsed.get("resume_from_checkpoint")
    if not parsed["resume_from_checkpoint"] and any(map(is_complete, Path(output_dir).glob("checkpoint-*"))):
        raise ValueError(
            f"{output_dir} holds checkpoints of an earlier run, which this one would delete or be taken for. Pass "
            "--resume to continue it, or name another folder."
        )
    return CurriculumTrainingArguments(**parsed)


def _say_result(facts: Mapping[str, Any], learning_rate: float, as_json: bool) -> None:
    result = f"validation loss {facts['loss_before']:.3f} → {facts['loss']:.3f} after {facts['examples']:,} examples"
    say(f"{result}; model in {facts['model']}", facts, as_json)
    if not math.isfinite(facts["loss"]):
        raise ValueError(
            f"The validation loss is {facts['loss']}: the run has diverged, and its model is of no use. Train again "
            f"into another folder with a smaller --learning-rate than {learning_rate:g}."
        )


def _trainer(
    data: Dataset, args: CurriculumTrainingArguments, model: str, image_size: int, max_length: int, validation: float
) -> CurriculumTrainer:
    """A captioner, new or loaded, with its data."""
    from transformers import set_seed

    from hf_curriculum.data.captions import hold_out
    from hf_curriculum.data.collators import CaptionCollator
    from hf_curriculum.models.captioner import load_captioner, new_captioner
    from hf_curriculum.training.trainer import CurriculumTrainer

    set_seed(args.seed)
    parts: DatasetDict = hold_out(data, validation, seed=args.seed)
    captioner, processor = new_captioner(parts["train"], image_size) if model == "small" else load_captioner(model)
    return CurriculumTrainer(
        captioner,
        args,
        data_collator=CaptionCollator(processor.tokenizer, processor.image_processor, max_length=max_length),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        processing_class=processor,
    )


def _train(trainer: CurriculumTrainer, show_plan: bool) -> Mapping[str, Any] | None:
    """Trains, saves and pushes the model; the main process gets the losses, the others None."""
    output = trainer.args.output_dir
    if show_plan and trainer.is_world_process_zero():
        typer.echo(trainer.plan.describe())
    resume = trainer.args.resume_from_checkpoint
    with redirect_stdout(sys.stderr):  # `Trainer` prints its log there
        trainer.train(resume_from_checkpoint=True if resume in ("last", "True", "true") else resume)
        trainer.save_model(f"{output}/model", _internal_call=True)
        if trainer.args.push_to_hub:
            trainer.args.output_dir = f"{output}/model"  # without checkpoints
            trainer.push_to_hub()
    if not trainer.is_world_process_zero():
        return None
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {
        "steps": trainer.state.global_step,
        "examples": trainer.examples_seen(),
        "loss_before": losses[0],
        "loss": losses[-1],
        "model": str(Path(output) / "model"),
    }
