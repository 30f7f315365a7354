"""`hf-curriculum train`: its own options, and every flag of `TrainingArguments`."""

from __future__ import annotations

import pytest
import typer
from typer.main import get_command

from hf_curriculum.cli import app
from hf_curriculum.cli.train import training_arguments


@pytest.fixture
def made(tmp_path):
    """`made(*flags)`: the arguments that the command trains with."""

    def call(*flags, resume=False):
        command = get_command(app).commands["train"]
        context = command.make_context("train", ["scored", str(tmp_path / "run"), *flags])
        given = {name: context.params[name] for name in ("batch_size", "learning_rate", "seed")}
        return training_arguments(context, output_dir=str(tmp_path / "run"), resume=resume, curriculum="iid", **given)

    return call


def test_flags_hold_against_the_commands_defaults(made):
    args = made("--report_to", "tensorboard", "--bf16", "--logging-steps=3", "--lr_scheduler_type", "linear")
    assert (args.report_to, args.bf16, args.logging_steps, args.lr_scheduler_type) == (
        ["tensorboard"],
        True,
        3,
        "linear",
    )
    assert (args.per_device_train_batch_size, args.learning_rate, args.seed, args.eval_on_start) == (32, 1e-3, 0, True)
    assert (args.hub_strategy, made("--hub_strategy", "checkpoint").hub_strategy) == ("end", "checkpoint")


def test_own_options_are_read_as_before(made):
    args = made("--batch-size", "4", "--learning-rate", "0.1", "--seed", "3")
    assert (args.per_device_train_batch_size, args.learning_rate, args.seed) == (4, 0.1, 3)


def test_a_global_batch_is_that_of_all_processes(made):
    args = made("--global_batch_size", "12")
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (12, 1)
    args = made("--global_batch_size", "12", "--batch-size", "4")
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 3)


def test_resuming(made, tmp_path, monkeypatch):
    assert made().resume_from_checkpoint is None
    (tmp_path / "run" / "checkpoint-3").mkdir(parents=True)
    monkeypatch.setattr("hf_curriculum.training.checkpoints.is_complete", lambda folder: True)
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run"):
        made()
    assert made(resume=True).resume_from_checkpoint == "last"
    assert made("--resume_from_checkpoint", "me/model").resume_from_checkpoint == "me/model"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--report_too", "wandb"), r"unrecognized arguments: --report_too wandb \(did you mean --report_to\?\)"),
        (("--image-sise", "8"), r"\(did you mean --image-size\?\)"),
        (("--logging_steps", "often"), "argument --logging_steps/--logging-steps: invalid float value: 'often'"),
        (("--eval_strategy", "no"), "--eval_strategy no was given, and the result is a validation loss"),
        (("--output_dir", "elsewhere"), "--output_dir elsewhere was given, and OUTPUT is"),
        (("more",), "unrecognized arguments: more"),
    ],
)
def test_errors(made, flags, message):
    with pytest.raises(typer.BadParameter, match=message):
        made(*flags)
