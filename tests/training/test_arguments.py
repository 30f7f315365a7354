"""Arguments: in Python, from a command line, and written down."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

import pytest
from transformers import HfArgumentParser, TrainingArguments

from hf_curriculum import IID, CurriculumTrainingArguments, Phases
from hf_curriculum.tasks.captioning import CaptioningArguments
from hf_curriculum.training import arguments


def test_the_curriculum_is_an_object_in_python_and_a_mapping_in_json(tmp_path):
    args = CurriculumTrainingArguments(str(tmp_path), curriculum=Phases(3), score_column="s", report_to=[])
    assert args.curriculum == Phases(3)
    written = json.loads(args.to_json_string())
    assert written["curriculum"] == {"type": "phases", "num_phases": 3}
    assert CurriculumTrainingArguments(
        str(tmp_path), curriculum=written["curriculum"], score_column="s"
    ).curriculum == Phases(3)
    assert "phases" in args.to_sanitized_dict()["curriculum"]


def test_a_command_line_takes_json_a_name_or_a_file(tmp_path):
    parser = HfArgumentParser(CurriculumTrainingArguments)
    file = tmp_path / "rule.yaml"
    file.write_text("type: phases\nnum_phases: 2\n")
    for text, rule in (('{"type": "iid", "epochs": 2}', IID(epochs=2)), ("iid", IID()), (str(file), Phases(2))):
        (args,) = parser.parse_args_into_dataclasses(
            ["--curriculum", text, "--score_column", "s", "--report_to", "none"]
        )
        assert args.curriculum == rule
    assert args.num_train_epochs == -1


def test_contradictions_are_refused(tmp_path, monkeypatch):
    out = str(tmp_path)
    with pytest.raises(ValueError, match="leave ignore_data_skip=False"):
        CurriculumTrainingArguments(out, ignore_data_skip=True)
    for strategy in ("group_by_length", "sequential"):
        with pytest.raises(ValueError, match=f"train_sampling_strategy='{strategy}' orders examples in another way"):
            CurriculumTrainingArguments(out, train_sampling_strategy=strategy)
    for epochs in (0, -2, float("nan")):
        with pytest.raises(ValueError, match=f"num_train_epochs={epochs} trains on nothing"):
            CurriculumTrainingArguments(out, num_train_epochs=epochs)
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"max_seconds={seconds} leaves no time to train"):
            CurriculumTrainingArguments(out, max_seconds=seconds)
    short = CurriculumTrainingArguments(out, max_seconds=0.5, num_train_epochs=0.5)
    assert (short.max_seconds, short.num_train_epochs) == (0.5, 0.5)
    configs = [{"split_batches": True}, {"dispatch_batches": True}]
    assert [CurriculumTrainingArguments(out, accelerator_config=config).world_size for config in configs] == [1, 1]
    monkeypatch.setattr(CurriculumTrainingArguments, "world_size", 2)
    for config in configs:
        with pytest.raises(ValueError, match=f"{next(iter(config))}=True deals examples"):
            CurriculumTrainingArguments(out, accelerator_config=config)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"global_batch_size": "4"}, r"global_batch_size is a whole number or None, and this is a text: write 4$"),
        ({"max_steps": "2"}, r"max_steps is a whole number, and this is a text: write 2$"),
        ({"num_train_epochs": "2"}, r"num_train_epochs is a number, and this is a text: write 2$"),
        ({"learning_rate": "1e-3"}, r"learning_rate is a number, and this is a text: write 0.001$"),
        ({"seed": "one"}, r"seed is a whole number$"),
        ({"global_batch_size": True}, r"global_batch_size is a whole number or None$"),
        ({"max_steps": 2.5}, r"max_steps is a whole number$"),
    ],
)
def test_what_is_no_number_is_named_with_the_number_that_it_writes(given, needed, tmp_path):
    HfArgumentParser(CurriculumTrainingArguments)  # which changes the types of the fields
    with pytest.raises(TypeError, match=needed):
        CurriculumTrainingArguments(str(tmp_path), **given)
    with pytest.raises(TypeError, match=r"Phases\(num_phases=True\) is not possible; num_phases is a whole number$"):
        Phases(True)


@pytest.mark.parametrize("share", [1.0, 1.5, -0.1, float("nan")])
def test_label_smoothing_leaves_something_of_the_label(share, tmp_path):
    with pytest.raises(ValueError, match=f"label_smoothing_factor={share} was given; .* at least 0 and less than 1"):
        CurriculumTrainingArguments(str(tmp_path), label_smoothing_factor=share)
    assert CurriculumTrainingArguments(str(tmp_path), label_smoothing_factor=0.9).label_smoothing_factor == 0.9


def test_edges_of_limits_and_of_what_needs_another_option(tmp_path):
    out = str(tmp_path)
    assert CurriculumTrainingArguments(out, report_to=[], num_train_epochs=0.01, max_seconds=0.01).max_seconds == 0.01
    with pytest.raises(ValueError, match=r"generation_sets=\['a'\] was given without predict_with_generate=True"):
        CaptioningArguments(out, report_to=[], generation_sets=["a"])
    args = CaptioningArguments(out, report_to=[], generation_sets=["a"], predict_with_generate=True)
    assert args.generation_sets == ["a"]
    assert CaptioningArguments(out, report_to=[], predict_with_generate=True).generation_sets is None
    assert args.__getstate__() == {**vars(args), "hub_token": None}


def test_trackers_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(arguments, "get_available_reporting_integrations", lambda: ["tensorboard"])
    arguments._validate_trackers([])
    arguments._validate_trackers(["tensorboard", "flyte", "a tracker of one's own"])
    message = r"report_to=\['wandb', 'comet_ml'\] was given, and 'comet_ml' is not installed.*`pip install comet-ml`"
    with pytest.raises(ValueError, match=message):
        arguments._validate_trackers(["wandb", "comet_ml"])


def test_launched_processes_that_are_each_alone_are_refused(tmp_path, monkeypatch):
    args = CurriculumTrainingArguments(str(tmp_path))
    assert args.world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    args.__post_init__()  # without LOCAL_RANK no launcher has set it
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    args.__post_init__()  # one process launched is one
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes were launched \(WORLD_SIZE\), and here there is one: "):
        args.__post_init__()


@pytest.mark.parametrize(
    ("given", "size", "accumulated"),
    [
        ({}, 8, 1),
        ({"gradient_accumulation_steps": 4}, 8, 4),
        ({"global_batch_size": 1}, 1, 1),
        ({"global_batch_size": 32}, 32, 1),
        ({"global_batch_size": 32, "per_device_train_batch_size": 8}, 8, 4),
        ({"global_batch_size": 32, "gradient_accumulation_steps": 2}, 16, 2),
        ({"global_batch_size": 32, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}, 16, 2),
    ],
)
def test_batch_sizes_follow_from_the_global_one(tmp_path, given, size, accumulated):
    args = CurriculumTrainingArguments(str(tmp_path), use_cpu=True, **given)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (size, accumulated)
    assert args.train_batch_size == size
    written = json.loads(args.to_json_string())
    assert written["global_batch_size"] == given.get("global_batch_size")
    again = CurriculumTrainingArguments(**{**written, "report_to": []})
    assert (again.per_device_train_batch_size, again.gradient_accumulation_steps) == (size, accumulated)
    flags = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    (parsed,) = HfArgumentParser(CurriculumTrainingArguments).parse_args_into_dataclasses(["--use_cpu", *flags])
    assert (parsed.per_device_train_batch_size, parsed.gradient_accumulation_steps) == (size, accumulated)


def test_a_global_batch_means_the_same_on_any_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(CurriculumTrainingArguments, "world_size", 4)
    out = str(tmp_path)
    assert CurriculumTrainingArguments(out, use_cpu=True, global_batch_size=32).per_device_train_batch_size == 8
    args = CurriculumTrainingArguments(out, use_cpu=True, global_batch_size=32, per_device_train_batch_size=2)
    assert args.gradient_accumulation_steps == 4
    with pytest.raises(ValueError, match="global_batch_size=30 is not possible with 4 devices: it has to be a mult"):
        CurriculumTrainingArguments(out, use_cpu=True, global_batch_size=30)


def test_a_global_batch_that_cannot_be_is_refused(tmp_path):
    def refused(match, **given):
        with pytest.raises(ValueError, match=match):
            CurriculumTrainingArguments(str(tmp_path), use_cpu=True, **given)

    refused(r"per_device_train_batch_size=5: it has to be a multiple of 5", global_batch_size=32,
            per_device_train_batch_size=5)  # fmt: skip
    refused(r"gradient_accumulation_steps=3: it has to be a multiple of 3", global_batch_size=32,
            gradient_accumulation_steps=3)  # fmt: skip
    refused(r"it has to be exactly 16", global_batch_size=32, per_device_train_batch_size=8,
            gradient_accumulation_steps=2)  # fmt: skip
    refused(r"global_batch_size=0 was given; a step needs at least 1 example", global_batch_size=0)
    refused(r"auto_find_batch_size=True lowers them", global_batch_size=32, auto_find_batch_size=True)


@dataclass
class OtherArguments(TrainingArguments):
    """Arguments of another trainer, which changes defaults of every kind."""

    learning_rate: float = field(default=0.5, metadata={"help": "Higher than usual."})
    label_names: list[str] | None = field(default_factory=lambda: ["answer"], metadata={"help": "Ours."})
    num_train_epochs: float = 7.0
    width: int = 3


def test_defaults_of_both_are_kept_beside_other_arguments(tmp_path):
    class Mine(CurriculumTrainingArguments, OtherArguments):
        """Both, without a decorator."""

    args = Mine(str(tmp_path), use_cpu=True)
    assert (args.learning_rate, args.label_names, args.width) == (0.5, ["answer"], 3)
    assert args.label_names is not Mine(str(tmp_path), use_cpu=True).label_names
    assert (args.num_train_epochs, args.per_device_train_batch_size, args.weight_decay) == (-1, 8, 0.0)
    told = {one.name: one.metadata.get("help") for one in fields(Mine)}
    assert (told["learning_rate"], told["label_names"]) == ("Higher than usual.", "Ours.")
    theirs = OtherArguments.__dataclass_fields__["learning_rate"]
    assert Mine.__dataclass_fields__["learning_rate"] is not theirs
