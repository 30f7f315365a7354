"""`hf-curriculum train`: its own options, and every flag of `TrainingArguments`."""

from __future__ import annotations

import pytest
import typer
from typer.main import get_command

from hf_curriculum.cli import app
from hf_curriculum.tasks.captioning.train import training_arguments


@pytest.fixture
def made(tmp_path):
    """`made(*flags)`: the arguments that the command trains with."""

    def call(*flags, resume=False):
        command = get_command(app).get_command(None, "train")
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


@pytest.fixture
def from_file(tmp_path):
    """`from_file(text, *words)`: the context of the command, and the arguments that it trains with."""

    def call(text, *words):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        context = get_command(app).get_command(None, "train").make_context("train", ["--config", str(path), *words])
        given = {name: context.params[name] for name in ("batch_size", "learning_rate", "seed")}
        given["num_train_epochs"] = -1 if context.params["epochs"] is None else context.params["epochs"]
        output = str(context.params["output"])
        return context.params, training_arguments(context, output_dir=output, resume=False, curriculum="iid", **given)

    return call


FILE = """
dataset: scored
output: out
curriculum: {type: phases, num_phases: 3}
per_device_train_batch_size: 4
learning-rate: 1e-2
image_size: 32
num_train_epochs: 3
logging_steps: 7
report_to: [tensorboard]
bf16: true
"""


def test_a_file_gives_every_option_and_what_is_typed_holds_against_it(from_file):
    params, args = from_file(FILE)
    assert (str(params["dataset"]), str(params["output"]), params["image_size"]) == ("scored", "out", 32)
    assert params["curriculum"] == '{"type": "phases", "num_phases": 3}'
    assert (args.per_device_train_batch_size, args.learning_rate, args.num_train_epochs) == (4, 0.01, 3)
    assert (args.logging_steps, args.report_to, args.bf16, args.lr_scheduler_type) == (
        7,
        ["tensorboard"],
        True,
        "cosine",
    )
    typed = ("--logging_steps", "9", "--learning-rate", "0.5", "--bf16", "false", "--per_device_train_batch_size=8")
    params, args = from_file(FILE, *typed, "--epochs", "2", "--curriculum", "iid", "mine", "there")
    assert (str(params["dataset"]), str(params["output"]), params["curriculum"]) == ("mine", "there", "iid")
    assert (args.logging_steps, args.learning_rate, args.bf16, args.num_train_epochs) == (9, 0.5, False, 2)
    assert args.per_device_train_batch_size == 8
    assert from_file(FILE, "--num_train_epochs", "5")[1].num_train_epochs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loging_steps: 3", r"fields that are none of `train`: loging_steps \(did you mean --logging_steps\?\)"),
        ("logging_steps: often", "invalid float value: 'often'"),
        ("image_size: large", "should be a valid integer"),
        ("- 1", "is neither a mapping, nor a file that holds one"),
        ("eval_strategy: no", "the result is a validation loss"),
    ],
)
def test_a_file_that_cannot_be_read(from_file, text, message):
    with pytest.raises((typer.BadParameter, ValueError), match=message):
        from_file(text, "scored", "out")


def test_a_file_that_is_not_there(made):
    with pytest.raises(typer.BadParameter, match="does not exist"):
        made("--config", "gone.yaml")


def test_a_flag_and_its_value_are_never_taken_for_the_data(from_file):
    params, args = from_file("output: out\ndataset: scored", "--logging_steps", "3", "--seed", "4")
    assert (str(params["dataset"]), args.logging_steps, args.seed) == ("scored", 3, 4)


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
