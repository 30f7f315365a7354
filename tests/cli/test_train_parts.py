"""The parts of `hf-curriculum train`, with stand-ins for what trains."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from datasets import Dataset, DatasetDict
from typed_commands import StandIn, done, result, said

from hf_curriculum import CaptionLength, add_scores, save_scored
from hf_curriculum.reporting.report import Report
from hf_curriculum.tasks.captioning import train
from hf_curriculum.training.report import add_held_out


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Scored captions: `whole`, and `parts` with the splits `train` and `validation`."""
    folder = tmp_path_factory.mktemp("given")
    rows = Dataset.from_dict({"caption": ["a", "a b", "a b c", "d"], "image_id": ["1", "2", "3", "4"]})
    save_scored(add_scores(rows, CaptionLength()), folder / "whole")
    parts = DatasetDict(train=rows, validation=rows.select([0, 1]))
    save_scored(add_scores(parts, CaptionLength()), folder / "parts")
    return folder


@pytest.fixture
def training(replaced):
    """What the command `train` calls, by name."""
    facts = {"steps": 3, "examples": 1200, "loss_before": 2.5, "loss": 1.25, "model": "run/model"}
    return {
        "arguments": replaced("tasks.captioning.train", "training_arguments", SimpleNamespace(learning_rate=0.01)),
        "trainer": replaced("tasks.captioning.train", "_trainer", "the trainer"),
        "train": replaced("tasks.captioning.train", "_train", facts),
        "close": replaced("training.setup", "close_process_group"),
    }


def test_train_without_options(training, scored, tmp_path):
    found = done("train", scored / "whole", tmp_path / "run")
    [(_, named)] = training["arguments"].calls
    assert named.pop("curriculum").to_dict() == {"type": "phases"}
    assert named == {
        "output_dir": str(tmp_path / "run"), "score_column": "caption_length", "num_train_epochs": -1,
        "learning_rate": 1e-3, "seed": 0, "batch_size": 32, "resume": False,
    }  # fmt: skip
    [((data, held_out, args, options, share), _)] = training["trainer"].calls
    assert (len(data), held_out, args, share) == (4, None, training["arguments"].gives, 0.05)
    assert {name: options[name] for name in ("model", "image_size", "max_length", "min_count", "features")} == {
        "model": "small", "image_size": 64, "max_length": 50, "min_count": 5, "features": None,
    }  # fmt: skip
    assert training["train"].calls == [(("the trainer",), {"show_plan": True})]
    assert training["close"].calls == [((), {})]
    assert found.stdout == "validation loss 2.500 → 1.250 after 1,200 examples; model in run/model\n"
    assert found.stderr.splitlines() == [
        f"next: hf-curriculum report {tmp_path / 'run'} --dataset {scored / 'whole'}",
        f"next: hf-curriculum caption {tmp_path / 'run' / 'model'} {tmp_path / 'run' / 'held_out'}",
    ]


def test_train_with_every_option(training, scored, tmp_path):
    words = ["--curriculum", "iid", "--score-column", "caption_length", "--epochs", 2.5, "--batch-size", 3]
    words += ["--learning-rate", 0.5, "--max-length", 9, "--validation", 0.25, "--split", "validation", "--seed", 7]
    words += ["--model", "updown", "--model-options", "{a: 1}", "--features", "a store", "--min-count", 2, "--resume"]
    found = done("train", scored / "parts", tmp_path / "run", *words, "--json")
    [(_, named)] = training["arguments"].calls
    assert named.pop("curriculum").type == "iid"
    assert named == {
        "output_dir": str(tmp_path / "run"), "score_column": None, "num_train_epochs": 2.5, "learning_rate": 0.5,
        "seed": 7, "batch_size": 3, "resume": True,
    }  # fmt: skip
    [((data, held_out, _, options, share), _)] = training["trainer"].calls
    assert (len(data), held_out, share) == (2, None, 0.25)
    assert {name: options[name] for name in ("model", "model_options", "max_length", "min_count", "features")} == {
        "model": "updown", "model_options": "{a: 1}", "max_length": 9, "min_count": 2, "features": Path("a store"),
    }  # fmt: skip
    assert training["train"].calls == [(("the trainer",), {"show_plan": False})]
    assert json.loads(found.stdout) == training["train"].gives
    assert found.stderr.splitlines() == [
        f"next: hf-curriculum report {tmp_path / 'run'} --dataset {scored / 'parts'} --split validation",
        f"next: hf-curriculum caption {tmp_path / 'run' / 'model'} 1 --features 'a store'",
    ]


def test_the_other_processes_say_nothing(training, scored, tmp_path):
    training["train"].gives = None
    assert done("train", scored / "whole", tmp_path / "run").output == ""
    assert training["close"].calls == [((), {})]


def test_the_validation_split_is_held_out_unless_a_share_or_another_split_is_named(scored):
    held_out = train._held_out(scored / "parts", "train", None)
    assert len(held_out) == 2
    assert train._held_out(scored / "parts", "train", 0.1) is None
    assert train._held_out(scored / "parts", "validation", None) is None
    assert train._held_out(scored / "whole", "train", None) is None


def test_empty_captions_are_counted_in_both_parts():
    rows = Dataset.from_dict({"caption": ["a", "", " ", "b"]})
    with pytest.raises(ValueError, match="4 of the captions in there are empty"):
        train._validate_captions(Path("there"), [rows, None, rows])
    train._validate_captions(Path("there"), [rows.select([0, 3]), None])


def test_a_diverged_run_is_told_first_and_fails_then(capsys):
    facts = {"loss_before": 1.0, "loss": math.nan, "examples": 1000, "model": "m"}
    facts |= {"examples_scored": 2000, "compute": 5000}
    with pytest.raises(ValueError, match=r"validation loss is nan: the run has diverged.*--learning-rate than 0\.5"):
        train._say_result(facts, 0.5, False)
    told = "validation loss 1.000 → nan after 1,000 examples (2,000 scored besides: compute 5,000); model in m\n"
    assert capsys.readouterr().out == told


# ---- Training arguments ----


def test_what_the_command_asks_of_the_trainer(tmp_path):
    context = typer.main.get_command(train_app()).make_context("train", ["scored", str(tmp_path)])
    args = train.training_arguments(context, output_dir=str(tmp_path), batch_size=4, resume=False, curriculum="iid")
    names = (
        "lr_scheduler_type",
        "eval_strategy",
        "eval_on_start",
        "save_strategy",
        "save_total_limit",
        "logging_steps",
    )
    found = [getattr(args, name) for name in names]
    assert found == ["cosine", "epoch", True, "epoch", 2, 10]
    names = ("remove_unused_columns", "hub_strategy", "disable_tqdm", "resume_from_checkpoint", "output_dir")
    found = [getattr(args, name) for name in names]
    assert found == [False, "end", True, None, str(tmp_path)]


def train_app():
    """The command alone."""
    app = typer.Typer()
    app.command("train", cls=train.TrainCommand, context_settings={"allow_extra_args": True})(train.train_command)
    return app


def test_the_devices_that_are_there_are_used(tmp_path, monkeypatch):
    import torch

    made = []
    monkeypatch.setattr(
        "hf_curriculum.tasks.captioning.arguments.CaptioningArguments.__init__",
        lambda self, **given: made.append(given),
    )
    context = typer.main.get_command(train_app()).make_context("train", ["scored", str(tmp_path)])
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda there=there: there)
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda there=there: there))
        train.training_arguments(context, output_dir=str(tmp_path), batch_size=4, resume=False)
    names = ("dataloader_pin_memory", "use_cpu", "disable_tqdm")
    assert [[given[name] for name in names] for given in made] == [[True, False, False], [False, True, True]]


# ---- The model, its data, and what it leaves ----


@pytest.fixture
def made(replaced):
    """What `_trainer` calls, by name."""
    processor = SimpleNamespace(tokenizer="tokenizer", image_processor="images")
    return {
        "captioner": replaced("tasks.captioning.train", "_captioner", ("model", processor, {})),
        "collator": replaced("data.collators", "CaptionCollator", "collator"),
        "trainer": replaced("tasks.captioning.trainer", "CaptioningTrainer", "trainer"),
        "processor": processor,
    }


def test_a_trainer_gets_the_parts_and_a_collator(made):
    rows = Dataset.from_dict({"caption": list("abcdefgh"), "image_id": list("12345678")})
    args = SimpleNamespace(seed=3, predict_with_generate=False)
    assert train._trainer(rows, None, args, {"max_length": 9}, 0.25) == "trainer"
    [((parts, options), _)] = made["captioner"].calls
    assert {name: len(part) for name, part in parts.items()} == {"train": 6, "validation": 2}
    assert options == {"max_length": 9}
    assert made["collator"].calls == [(("tokenizer", "images"), {"max_length": 9})]
    [(given, named)] = made["trainer"].calls
    assert given == ("model", args)
    assert named == {
        "data_collator": "collator", "train_dataset": parts["train"], "eval_dataset": parts["validation"],
        "processing_class": made["processor"],
    }  # fmt: skip
    others = set()
    for seed in range(5):
        train._trainer(rows, None, SimpleNamespace(seed=seed, predict_with_generate=False), {"max_length": 9}, 0.25)
        others.add(tuple(made["captioner"].calls[-1][0][0]["validation"]["caption"]))
    assert len(others) > 1  # the seed chooses what is held out
    made["captioner"].gives = ("model", made["processor"], {"regions": "stored"})
    args = SimpleNamespace(seed=3, predict_with_generate=True)
    train._trainer(rows.select([0, 1]), rows.select([2, 3, 4]), args, {"max_length": 9}, 0.25)
    assert made["collator"].calls[-1] == (("tokenizer", None), {"max_length": 9, "regions": "stored"})
    named = made["trainer"].calls[-1][1]
    assert len(named["train_dataset"]) == 2
    assert {name: len(part) for name, part in named["eval_dataset"].items()} == {"pairs": 3, "images": 3}


@pytest.mark.parametrize("main", [True, False])
@pytest.mark.parametrize(
    ("resume", "passed_on"), [("last", True), ("True", True), ("true", True), (None, None), ("me/model", "me/model")]
)
def test_how_a_run_goes(replaced, tmp_path, capsys, monkeypatch, main, resume, passed_on):
    order = []

    def step(name):
        def call(*given, **named):
            order.append((name, given, named))
            print("in the log of", name)

        return call

    history = [{"eval_loss": 3.0}, {"loss": 9.0}, {"eval_loss": 2.0, "eval_pairs_loss": 5.0}, {"eval_loss": 1.0}]
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            output_dir=str(tmp_path), disable_tqdm=True, resume_from_checkpoint=resume, push_to_hub=True,
            predict_with_generate=False,
        ),
        is_world_process_zero=lambda: main, plan=SimpleNamespace(describe=lambda: "the plan"), train=step("train"),
        save_model=step("save"), push_to_hub=step("push"),
        accelerator=SimpleNamespace(wait_for_everyone=lambda: order.append("wait")),
        state=SimpleNamespace(log_history=history, global_step=7), examples_seen=lambda: 70,
    )  # fmt: skip
    bars = replaced("studies.recipe", "disable_progress_bars")
    follow = StandIn()
    monkeypatch.setattr("hf_curriculum.studies.recipe.RunLines.follow", follow)
    captions = replaced("tasks.captioning.train", "_write_captions")
    chosen = replaced("reporting.chosen", "save_chosen")
    replaced("training.facts", "scoring_cost", {"compute": 210})
    facts = train._train(trainer, show_plan=True)
    assert order == [
        ("train", (), {"resume_from_checkpoint": passed_on}),
        ("save", (f"{tmp_path}/model",), {"_internal_call": True}),
        ("push", (), {}),
        "wait",
    ]
    assert trainer.args.output_dir == f"{tmp_path}/model"
    printed = capsys.readouterr()
    assert printed.out == ("the plan\n" if main else "")
    assert "in the log of train" in printed.err
    assert (len(bars.calls), follow.calls) == (1, [((trainer,), {})])
    if not main:
        assert (facts, captions.calls, chosen.calls) == (None, [], [])
        return
    assert captions.calls == [((trainer, tmp_path / "held_out"), {})]
    assert chosen.calls == [((trainer.plan, str(tmp_path)), {})]
    assert facts == {
        "steps": 7, "examples": 70, "compute": 210, "loss_before": 3.0, "loss": 1.0,
        "model": str(tmp_path / "model"),
    }  # fmt: skip
    trainer.args.output_dir, trainer.args.push_to_hub, trainer.args.disable_tqdm = str(tmp_path), False, False
    trainer.args.predict_with_generate = True
    order.clear()
    facts = train._train(trainer, show_plan=False)
    assert (facts["loss_before"], facts["loss"], capsys.readouterr().out) == (5.0, 5.0, "")
    assert ([entry[0] for entry in order if entry != "wait"], len(bars.calls)) == (["train", "save"], 1)


def test_held_out_captions_are_of_ten_images_at_most(replaced, tmp_path):
    from PIL import Image

    count = 12
    images = [None if number == 3 else Image.new("RGB", (4 + number, 4)) for number in range(count)]
    rows = {"image": images, "image_id": [f"i{number}" for number in range(count)], "caption": ["a"] * count}
    data = Dataset.from_dict({name: [value for value in values for _ in range(2)] for name, values in rows.items()})
    write = replaced("evaluation.generate", "generate_captions", [f"it is {number}" for number in range(9)])
    trainer = SimpleNamespace(
        args=SimpleNamespace(predict_with_generate=True), eval_dataset={"pairs": data}, model="m",
        accelerator=SimpleNamespace(unwrap_model=lambda model: f"bare {model}"), data_collator="collator",
    )  # fmt: skip
    train._write_captions(trainer, tmp_path / "held_out")
    [((model, shown, collator), _)] = write.calls
    assert (model, shown["image_id"][:], collator) == (
        "bare m", [f"i{number}" for number in range(10) if number != 3], "collator",
    )  # fmt: skip
    entries = json.loads((tmp_path / "held_out" / "captions.json").read_text())
    assert [entry["file"] for entry in entries] == [f"{number}.png" for number in range(10) if number != 3]
    assert entries[3] == {"file": "4.png", "image_id": "i4", "generated": "it is 3", "references": ["a", "a"]}
    with Image.open(tmp_path / "held_out" / "4.png") as image:
        assert image.width == 8
    page = Report("t")
    add_held_out(page, tmp_path / "held_out", "run")
    assert "it is 3" in page.to_html()
    for name in ("4.png", "captions.json"):
        file = tmp_path / "held_out" / name
        content = file.read_bytes()
        file.write_bytes((tmp_path / "held_out" / "5.png").read_bytes())
        with pytest.raises(ValueError, match=rf"{name} holds something else than was written.*or train again"):
            add_held_out(Report("t"), tmp_path / "held_out", "run")
        file.write_bytes(content)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="other is a link to"):
        train._write_captions(trainer, tmp_path / "other")


def test_what_is_kept_of_an_interrupted_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hf-curriculum", "train", "a b"])
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(
        "hf_curriculum.training.checkpoints.is_complete", lambda folder: not folder.name.endswith("11")
    )
    assert train._how_to_go_on(tmp_path) == (
        "No checkpoint had been saved: the same command begins again.\n  hf-curriculum train 'a b'"
    )
    monkeypatch.setattr(train, "free_bytes", lambda folder: 1_500_000_000)
    assert train._full(tmp_path).startswith(
        f"The disk is full: {tmp_path} could not be written, 1,500.0 MB are free. Make room first. No checkpoint"
    )
    for age, (name, size) in enumerate({"checkpoint-9": 3, "checkpoint-10": 2, "checkpoint-11": 9}.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(b"1" * size * 1_000_000)
        os.utime(tmp_path / name, (age, age))
    on = f"{tmp_path / 'checkpoint-10'} is kept. To go on from it:\n  hf-curriculum train 'a b' --resume"
    assert train._how_to_go_on(tmp_path) == on
    assert train._full(tmp_path) == (
        f"The disk is full: {tmp_path / 'checkpoint-11'} could not be written, 1,500.0 MB are free, and a checkpoint "
        f"takes 3.0. Make room first. {on}"
    )


def test_an_interrupted_training_says_what_is_kept(training, scored, tmp_path):
    training["train"].gives = KeyboardInterrupt()
    found = result("train", scored / "whole", tmp_path / "run")
    assert (found.exit_code, found.stdout) == (130, "")
    assert "Interrupted. No checkpoint had been saved: the same command begins again." in said(found)
    assert training["close"].calls == []
