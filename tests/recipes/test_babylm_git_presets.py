"""The presets of the BabyLM recipe: complete, and the paper's where they say so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import babylm_git
import numpy as np
import pytest
import torch
from babylm.arguments import BabyLMArguments, DataArguments, ModelArguments, has_text_stage, variant_of
from babylm.text import text_arguments
from recipe_runs import arguments_of, parser_of, settings_of
from transformers import TrainingArguments

from hf_curriculum import curriculum_from, make_plan
from hf_curriculum.models.git.build import git_from_config, paper_git_config
from hf_curriculum.studies.recipe import read_preset

ROOT = Path(__file__).parents[2] / "recipes"
PRESETS = ROOT / "presets" / "babylm_git"
OWN = {item.name for kind in (DataArguments, ModelArguments, BabyLMArguments) for item in fields(kind)}


def paper(*options):
    return SimpleNamespace(**settings_of("--preset", "paper", *options))


@pytest.mark.parametrize("name", ["smoke", "embedded", "paper", "baseline", "as_released", "organisers"])
def test_presets_are_complete(name):
    values = settings_of("--preset", name)
    assert set(read_preset(name, PRESETS)) == set(values) >= OWN
    assert set(values) - OWN <= {"curriculum", "score_column", "global_batch_size"} | {
        item.name for item in fields(TrainingArguments)
    }
    curriculum_from(values["curriculum"])
    curriculum_from(values["control_curriculum"])


def test_the_papers_preset_is_the_papers_run():
    settings = paper()
    with torch.device("meta"):
        model = git_from_config(paper_git_config(**settings.model_options))
    assert sum(parameter.numel() for parameter in model.parameters()) == 197_997_312
    pairs_by_nouns = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    scores = np.repeat(np.array(list(pairs_by_nouns), np.float32), list(pairs_by_nouns.values()))
    plan = make_plan(curriculum_from(settings.curriculum), scores, global_batch_size=settings.global_batch_size)
    assert [stage.pool_size for stage in plan.stages] == [841_907, 1_510_443, 2_283_866, 2_891_030]
    assert (plan.num_draws, plan.num_filled, plan.num_steps) == (15_054_496, 4, 470_453)
    control = make_plan(curriculum_from(settings.control_curriculum), scores, global_batch_size=32)
    assert control.num_draws - control.num_filled == plan.control_draws == 23_128_240
    assert (settings.learning_rate, settings.max_length, settings.fp16) == (1e-5, 50, True)
    assert (settings.adam_beta1, settings.adam_beta2, settings.adam_epsilon) == (0.9, 0.999, 1e-8)


def test_the_baseline_differs_in_its_curriculum_alone():
    paper, baseline = (settings_of("--preset", name) for name in ("paper", "baseline"))
    assert {name for name in paper if paper[name] != baseline[name]} == {"curriculum"}
    assert baseline["curriculum"] == paper["control_curriculum"]


def test_as_released_differs_in_quirks_of_the_code_alone():
    paper, released = (settings_of("--preset", name) for name in ("paper", "as_released"))
    assert {name for name in paper if paper[name] != released[name]} == {
        *("split_by", "split_seed", "tagger", "noun_tags", "noun_words", "curriculum", "control_curriculum"),
        *("image_mean", "image_std", "train_on_padding"),
    }
    assert released["curriculum"] == {**paper["curriculum"], "partial_batches": "keep"}
    pairs_by_nouns = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    scores = np.repeat(np.array(list(pairs_by_nouns), np.float32), list(pairs_by_nouns.values()))
    plan = make_plan(curriculum_from(released["curriculum"]), scores, global_batch_size=32)
    assert plan.num_draws == 15_054_492
    assert plan.num_steps == 2 * (26_310 + 47_202 + 71_371 + 90_345)


def test_the_organisers_preset_is_their_recipe():
    settings = SimpleNamespace(**settings_of("--preset", "organisers"))
    assert (settings.global_batch_size, settings.learning_rate, settings.weight_decay) == (128, 1e-4, 0.1)
    assert (settings.warmup_steps, settings.max_grad_norm, settings.fp16) == (5000, 1.0, False)
    assert (settings.text_weight, settings.text_blocks, settings.max_length) == (0.25, 128, 128)
    assert (settings.freeze_vision, variant_of(vars(settings))) == (True, "T&C")
    assert not has_text_stage(vars(settings))
    with pytest.raises(ValueError, match=r"text_weight=0.25 was given without text"):
        arguments_of("--preset", "organisers", "--text", "none")


def test_text_makes_the_variant():
    assert variant_of(vars(paper())) == "C"
    settings = paper("--text", "text_50M")
    assert (variant_of(vars(settings)), settings.text_epochs, settings.text_batch_size) == ("T+C", 20, 256)
    assert variant_of(vars(paper("--text", "text_50M", "--text_epochs", "0"))) == "C"


@pytest.mark.parametrize("name", ["paper", "as_released", "organisers"])
def test_every_value_of_a_paper_says_where_it_is_from(name):
    lines = (ROOT / "presets" / "babylm_git" / f"{name}.yaml").read_text().splitlines()
    values = [
        line
        for line in lines
        if re.match(r"\s*\w+: \S", line) and not re.match(r"\s*(base|type|image_std|eval_steps|model):", line)
    ]
    bare = [line for line in values if "#" not in line]
    assert not bare


def test_any_field_can_be_given_on_the_command_line():
    settings = settings_of(
        *("--learning_rate", "1e-4", "--curriculum", "{type: iid, epochs: 2}", "--noun_tags", "NN+NNP"),
        *("--train_on_padding", "true", "--limit", "none", "--global_batch_size", "8"),
        *("--image_mean", "0.5", "0.4", "0.3", "--model_options", '{"hidden_size": 32}'),
    )
    assert (settings["learning_rate"], settings["global_batch_size"], settings["train_on_padding"]) == (1e-4, 8, True)
    assert settings["curriculum"] == {"type": "iid", "epochs": 2}
    assert (settings["limit"], settings["image_mean"]) == (None, [0.5, 0.4, 0.3])
    assert settings["model_options"] == {"hidden_size": 32}


def test_every_training_argument_is_a_flag_and_reaches_the_trainer(tmp_path):
    flags = {name for action in parser_of()._actions for name in action.option_strings}
    assert {f"--{item.name}" for item in fields(TrainingArguments) if item.init} <= flags
    *_, made = arguments_of(
        *("--report_to", "tensorboard", "--bf16", "--torch_compile_mode", "default", "--logging_steps", "3"),
        *("--save_strategy", "steps", "--save_steps", "7", "--hub_model_id", "me/git", "--audit_draws"),
        output_dir=tmp_path,
    )
    assert (made.report_to, made.bf16, made.fp16, made.torch_compile) == (["tensorboard"], True, False, True)
    assert (made.logging_steps, made.save_strategy, made.save_steps) == (3, "steps", 7)
    assert (made.hub_model_id, made.audit_draws, made.per_device_train_batch_size) == ("me/git", True, 32)


def test_the_command_line_holds_against_the_preset_and_a_config(tmp_path):
    (tmp_path / "mine.yaml").write_text("learning_rate: 1e-2\nlora_rank: 2\nlogging_steps: 5\n")
    settings = settings_of("--config", str(tmp_path / "mine.yaml"), "--lora_rank", "4")
    assert (settings["learning_rate"], settings["lora_rank"], settings["logging_steps"]) == (1e-2, 4, 5)
    assert settings_of("--preset", "paper", "--bf16")["fp16"] is False


def test_what_no_result_depends_on_makes_no_other_run():
    flags = (
        "--report_to",
        "tensorboard",
        "--push_to_hub",
        "--hub_token",
        "secret",
        "--resume_from_checkpoint",
        "last",
    )
    assert settings_of(*flags) == settings_of()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train_on_padding", "perhaps"), "argument --train_on_padding"),
        (("--curriculum", "spirals"), "'spirals'"),
        (("--limit", "many"), "argument --limit: invalid int value: 'many'"),
        (("--batchsize", "8"), "unrecognized arguments: --batchsize 8 (--batchsize"),
        (("--batch_size", "8"), "unrecognized arguments: --batch_size 8 (did you mean --"),
        (("--learning_rat", "1"), "unrecognized arguments: --learning_rat 1 (did you mean --learning_rate?)"),
        (("--report-too", "wandb"), "(did you mean --report_to?)"),
        (("--sedes", "1"), "(did you mean --seeds?)"),
    ],
)
def test_what_cannot_be_read_ends_with_a_message(capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        settings_of(*options)
    assert message.removesuffix(" (--batchsize") in capsys.readouterr().err


def test_presets_that_cannot_be_read(tmp_path):
    with pytest.raises(
        ValueError, match=r"The preset 'huge' is neither a file nor one of \['as_released', 'baseline', 'embedded'"
    ):
        settings_of("--preset", "huge")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("learning_rat: 1\n")
    with pytest.raises(ValueError, match=r"does not know: \['learning_rat'\]. Did you mean --learning_rate\?"):
        settings_of("--preset", str(wrong))
    wrong.write_text("- a list\n")
    with pytest.raises(ValueError, match="is not a mapping of fields"):
        settings_of("--preset", str(wrong))
    wrong.write_text("num_examples: many\n")
    with pytest.raises(ValueError, match="invalid int value: 'many'"):
        settings_of("--preset", str(wrong))
    wrong.write_text("data: scenes\n")
    with pytest.raises(ValueError, match=r"has no \['beyond_limit', .*which every run needs"):
        settings_of("--preset", str(wrong))


def test_help_describes_every_field(capsys):
    with pytest.raises(SystemExit, match="0"):
        babylm_git.PARSER.parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in (*OWN, "curriculum", "learning_rate", "report_to", "preset", "config", "grid"):
        assert f"--{name}" in text
    assert "share held out" in text


@pytest.mark.parametrize(
    ("batch", "at_once", "parts"), [(256, 128, (128, 2)), (90, 40, (30, 3)), (7, 3, (1, 7)), (64, 128, (64, 1))]
)
def test_a_large_batch_of_text_is_taken_in_equal_parts(tmp_path, batch, at_once, parts):
    sizes = ("--text_batch_size", str(batch), "--text_at_once", str(at_once))
    _, _, args, training_args = arguments_of(*sizes, output_dir=tmp_path)
    made = text_arguments(args, training_args, evaluated=True)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == parts
    assert (training_args.per_device_train_batch_size, training_args.gradient_accumulation_steps) == (32, 1)
