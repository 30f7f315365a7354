"""The presets of the BabyLM recipe: complete, and the paper's where they say so."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from babylm.settings import Settings
from babylm.stages import training_arguments

from hf_curriculum import curriculum_from, make_plan
from hf_curriculum.models.git.build import git_from_config, paper_git_config
from hf_curriculum.studies.settings import parse_settings, read_preset

ROOT = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("babylm_git", ROOT / "babylm_git.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["babylm_git"] = module
    spec.loader.exec_module(module)
    return module


def settings_of(recipe, *options):
    settings, _ = parse_settings(Settings, recipe.PRESETS, default="embedded", argv=options)
    return settings


@pytest.mark.parametrize("name", ["smoke", "embedded", "paper", "baseline", "as_released", "organisers"])
def test_presets_are_complete(recipe, name):
    values = dataclasses.asdict(settings_of(recipe, "--preset", name))
    assert set(read_preset(name, recipe.PRESETS)) == set(values)
    curriculum_from(values["curriculum"])
    curriculum_from(values["control_curriculum"])


def test_the_papers_preset_is_the_papers_run(recipe):
    settings = settings_of(recipe, "--preset", "paper")
    with torch.device("meta"):
        model = git_from_config(paper_git_config(**settings.model_options))
    assert sum(parameter.numel() for parameter in model.parameters()) == 197_997_312
    pairs_by_nouns = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    scores = np.repeat(np.array(list(pairs_by_nouns), np.float32), list(pairs_by_nouns.values()))
    plan = make_plan(curriculum_from(settings.curriculum), scores, global_batch_size=settings.batch_size)
    assert [stage.pool_size for stage in plan.stages] == [841_907, 1_510_443, 2_283_866, 2_891_030]
    assert (plan.num_draws, plan.num_filled, plan.num_steps) == (15_054_496, 4, 470_453)
    control = make_plan(curriculum_from(settings.control_curriculum), scores, global_batch_size=settings.batch_size)
    assert control.num_draws - control.num_filled == plan.control_draws == 23_128_240
    assert (settings.learning_rate, settings.max_length, settings.precision) == (1e-5, 50, "fp16")
    assert (settings.adam_beta1, settings.adam_beta2, settings.adam_epsilon) == (0.9, 0.999, 1e-8)


def test_the_baseline_differs_in_its_curriculum_alone(recipe):
    paper, baseline = (dataclasses.asdict(settings_of(recipe, "--preset", name)) for name in ("paper", "baseline"))
    assert {name for name in paper if paper[name] != baseline[name]} == {"curriculum"}
    assert baseline["curriculum"] == paper["control_curriculum"]


def test_as_released_differs_in_quirks_of_the_code_alone(recipe):
    paper, released = (dataclasses.asdict(settings_of(recipe, "--preset", name)) for name in ("paper", "as_released"))
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


def test_the_organisers_preset_is_their_recipe(recipe):
    settings = settings_of(recipe, "--preset", "organisers")
    assert (settings.batch_size, settings.learning_rate, settings.weight_decay) == (128, 1e-4, 0.1)
    assert (settings.warmup_steps, settings.max_grad_norm, settings.precision) == (5000, 1.0, "fp32")
    assert (settings.text_weight, settings.text_blocks, settings.max_length) == (0.25, 128, 128)
    assert (settings.freeze_vision, settings.variant, settings.has_text_stage) == (True, "T&C", False)
    with pytest.raises(ValueError, match=r"text_weight=0.25 was given without text"):
        settings_of(recipe, "--preset", "organisers", "--text", "none")


def test_text_makes_the_variant(recipe):
    assert settings_of(recipe, "--preset", "paper").variant == "C"
    settings = settings_of(recipe, "--preset", "paper", "--text", "text_50M")
    assert (settings.variant, settings.text_epochs, settings.text_batch_size) == ("T+C", 20, 256)
    assert settings_of(recipe, "--preset", "paper", "--text", "text_50M", "--text_epochs", "0").variant == "C"


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


def test_any_field_can_be_given_on_the_command_line(recipe):
    settings = settings_of(
        recipe,
        *("--learning_rate", "1e-4", "--curriculum", "{type: iid, epochs: 2}", "--noun_tags", "NN+NNP"),
        *("--train_on_padding", "true", "--limit", "none", "--batch_size", "8"),
    )
    assert (settings.learning_rate, settings.batch_size, settings.train_on_padding) == (1e-4, 8, True)
    assert settings.curriculum == {"type": "iid", "epochs": 2}
    assert settings.limit is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train_on_padding", "yes"), "neither true nor false"),
        (("--curriculum", "spirals"), "is not a mapping"),
        (("--batchsize", "8"), "unrecognized arguments"),
    ],
)
def test_what_cannot_be_read_ends_with_a_usage(recipe, capsys, options, message):
    with pytest.raises(SystemExit, match="2"):
        settings_of(recipe, *options)
    assert message in capsys.readouterr().err


def test_presets_that_cannot_be_read(recipe, tmp_path):
    with pytest.raises(
        ValueError, match=r"The preset 'huge' is neither a file nor one of \['as_released', 'baseline', 'embedded'"
    ):
        settings_of(recipe, "--preset", "huge")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("learning_rat: 1\n")
    with pytest.raises(ValueError, match=r"has fields this recipe does not know: \['learning_rat'\]"):
        settings_of(recipe, "--preset", str(wrong))
    wrong.write_text("- a list\n")
    with pytest.raises(ValueError, match="is not a mapping of fields"):
        settings_of(recipe, "--preset", str(wrong))


def test_help_describes_every_field(recipe, capsys):
    with pytest.raises(SystemExit, match="0"):
        settings_of(recipe, "--help")
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Settings):
        assert f"--{field.name}" in text
    assert "share held out" in text


@pytest.mark.parametrize(
    ("batch", "at_once", "parts"), [(256, 128, (128, 2)), (90, 40, (30, 3)), (7, 3, (1, 7)), (64, 128, (64, 1))]
)
def test_a_large_batch_of_text_is_taken_in_equal_parts(recipe, tmp_path, batch, at_once, parts):
    settings = dataclasses.replace(settings_of(recipe, "--preset", "smoke"), precision="fp32")
    made = training_arguments(settings, tmp_path, 0, batch_size=batch, at_once=at_once)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == parts
    assert training_arguments(settings, tmp_path, 0).gradient_accumulation_steps == 1
