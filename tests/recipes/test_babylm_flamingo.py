"""The Flamingo recipe: its presets beside GIT's, what it refuses, and a run from end to end."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import babylm_flamingo
import babylm_git
import datasets
import numpy as np
import pytest
import torch
from babylm.data import prepare
from babylm.text import train_on_text
from recipe_runs import arguments_of as arguments_of_recipe
from recipe_runs import settings_of as settings_of_recipe

from hf_curriculum import CaptionCollator, ModelLoss, curriculum_from
from hf_curriculum.models.captioner import load_captioner
from hf_curriculum.models.flamingo.build import add_image_token, flamingo_from_config, paper_flamingo_config
from hf_curriculum.studies.recipe import read_preset

ROOT = Path(__file__).parents[2] / "recipes"
PRESETS = ["smoke", "embedded", "paper", "baseline", "as_released", "organisers"]


def settings_of(*options, recipe="babylm_flamingo"):
    return settings_of_recipe(*options, recipe=recipe)


def arguments_of(*options, recipe="babylm_flamingo", **changed):
    return arguments_of_recipe(*options, recipe=recipe, **changed)


def prepared_for(data_args, folder):
    made = prepare(data_args, 0, folder)
    add_image_token(made.tokenizer)
    return made


def build(tokenizer, *options, recipe=babylm_flamingo):
    data_args, model_args, *_ = arguments_of(*options, recipe=recipe.PARSER.presets.name)
    return recipe.build_model(data_args, model_args, tokenizer)


class TestPresets:
    @pytest.mark.parametrize("name", PRESETS)
    def test_they_are_complete(self, name):
        values = settings_of("--preset", name)
        assert set(read_preset(name, ROOT / "presets" / "babylm_flamingo")) == set(values)
        curriculum_from(values["curriculum"])
        curriculum_from(values["control_curriculum"])
        assert values["freeze_vision"]
        assert not values["lora_rank"]

    def test_the_papers_model_is_the_papers(self):
        settings = SimpleNamespace(**settings_of("--preset", "paper"))
        with torch.device("meta"):
            model = flamingo_from_config(paper_flamingo_config(**settings.model_options))
        counts = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
        assert sum(count for count, _ in counts) == 255_487_500
        assert sum(count for count, trained in counts if trained) == 169_098_252
        assert (settings.global_batch_size, settings.learning_rate, settings.max_length) == (32, 1e-5, 50)
        assert (settings.fp16, settings.weight_decay, settings.text_epochs) == (True, 0.0, 20)

    @pytest.mark.parametrize("name", PRESETS)
    def test_they_differ_from_gits_in_the_model_alone(self, name):
        ours, gits = (settings_of("--preset", name, recipe=recipe) for recipe in ("babylm_flamingo", "babylm_git"))
        model = {"model_options", "freeze_vision"}
        if name in ("smoke", "embedded"):
            model |= {"vision_weights", "image_size", "image_mean", "image_std", "learning_rate"}
        assert {field for field in ours if ours[field] != gits[field]} <= model

    @pytest.mark.parametrize("file", ["babylm/flamingo", "babylm_flamingo/embedded"])
    def test_every_value_says_where_it_is_from(self, file):
        lines = (ROOT / "presets" / f"{file}.yaml").read_text().splitlines()
        values = [line for line in lines if re.match(r"\s*\w+: \S", line) and not line.startswith("base:")]
        assert values
        assert not [line for line in values if "#" not in line]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield prepared_for(arguments_of("--num_examples", "60")[0], folder).tokenizer


class TestModel:
    def test_the_shipped_tower_is_frozen_and_pretrained(self, tokenizer):
        model = build(tokenizer)
        again = build(tokenizer)
        images = torch.rand(2, 3, 64, 64)
        assert torch.equal(model.encode_images(images), again.encode_images(images))
        assert not any(weight.requires_grad for weight in model.flamingo.vision_tower.parameters())
        assert model.config.image_token_id == tokenizer.convert_tokens_to_ids("<image>")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--freeze_vision", "false"), "freeze_vision=false was given, but Flamingo's vision tower is frozen"),
            (("--lora_rank", "4"), "lora_rank=4 was given. Adapters freeze all other weights"),
            (("--image_size", "32"), "image_size=32, but the vision tower of .* takes images of 64 pixels"),
        ],
    )
    def test_what_would_have_no_effect_is_refused(self, tokenizer, options, message):
        with pytest.raises(ValueError, match=message):
            build(tokenizer, *options)

    def test_a_random_frozen_tower_is_logged(self, tokenizer, caplog):
        with caplog.at_level(logging.WARNING):
            build(tokenizer, "--vision_weights", "none")
        assert "The vision tower is frozen and its weights are random" in caplog.text

    def test_gits_tower_may_be_the_shipped_one_too(self, tokenizer):
        options = ("--vision_weights", "scenes_clip", "--image_size", "64", "--model_options", "{hidden_size: 32}")
        model = build(tokenizer, *options, recipe=babylm_git)
        assert model.config.vision_config.model_type == "clip_vision_model"

    def test_captions_have_the_image_token_and_text_has_none(self, tokenizer):
        collator = CaptionCollator(tokenizer, None, prefix=f"{babylm_flamingo.IMAGE_TOKEN} ")
        image = tokenizer.convert_tokens_to_ids("<image>")
        assert collator([{"caption": "a red ball"}])["input_ids"][0, 1] == image
        assert image not in CaptionCollator(tokenizer, None)([{"caption": "a red ball"}])["input_ids"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The smoke preset's run of Flamingo, and its folder, for tests that only read them."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        patch.setattr(sys, "argv", ["babylm_flamingo", "--preset", "smoke", "--num_examples", "120"])
        babylm_flamingo.main()
    (out,) = folder.glob("outputs/babylm_flamingo/*")
    (run,) = json.loads((out / "results.json").read_text())
    return run, out


@pytest.fixture
def start(monkeypatch, tmp_path):
    """`start(recipe, *options)` runs the smoke preset in an empty folder; returns the results, and their folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def call(recipe, *options):
        name = Path(recipe.__file__).stem
        before = set(tmp_path.glob(f"outputs/{name}/*"))
        monkeypatch.setattr(sys, "argv", [name, "--preset", "smoke", "--num_examples", "120", *options])
        recipe.main()
        (folder,) = set(tmp_path.glob(f"outputs/{name}/*")) - before
        return json.loads((folder / "results.json").read_text()), folder

    return call


def assert_ran(run, folder, curriculum, text=False):
    """What every variant's run says of itself, leaves and reports."""
    assert (run["system"], run["variant"]) == ("Flamingo", "T+C" if text else "C")
    assert (run["curriculum"], run["name"], run["seed"]) == (curriculum, "curriculum" if curriculum else "control", 0)
    assert (folder / run["folder"] / "model" / "config.json").is_file()
    assert run["hours"]["captions"] > 0
    first = next(entry for entry in run["log"] if "eval_loss" in entry)
    assert (first["epoch"], first["examples"]) == (0, 0)
    page = (folder / "report" / "report.html").read_text()
    assert f"BabyLM: Flamingo with{'' if curriculum else 'out'} a curriculum" in page


@pytest.mark.slow
def test_captions_with_a_curriculum(plain):
    run, folder = plain
    assert folder.name == "smoke"
    assert_ran(run, folder, curriculum=True)


@pytest.mark.slow
def test_text_and_captions_without_a_curriculum(start):
    (run,), folder = start(babylm_flamingo, "--text", "scenes", "--control")
    assert folder.name == "smoke-text-control"
    assert_ran(run, folder, curriculum=False, text=True)
    assert run["hours"]["text"] > 0
    first = next(entry for entry in run["text"]["log"] if "eval_loss" in entry)
    assert (first["epoch"], first["examples"]) == (0, 0)


@pytest.mark.slow
def test_a_run_leaves_a_captioner_whose_losses_are_the_runs(plain):
    run, folder = plain
    assert run["parameters"] > 1_000_000
    model, processor = load_captioner(folder / run["folder"] / "model")
    image = processor.tokenizer.convert_tokens_to_ids("<image>")
    assert model.config.image_token_id == image
    written = model.generate(pixel_values=torch.rand(1, 3, 64, 64), max_new_tokens=3)
    assert written[0, 1] == image
    assert all("<image>" not in entry["generated"] for entry in run["captions"])
    rows = prepare(arguments_of("--num_examples", "120")[0], 0, folder).data["validation"]
    losses = ModelLoss(str(folder / run["folder"] / "model"))(rows[:])["model_loss"]
    tokens = [len(ids) - 1 for ids in processor.tokenizer(rows["caption"][:])["input_ids"]]
    assert np.sum(losses) / sum(tokens) == pytest.approx(run["eval_loss"], rel=1e-3)


def test_text_moves_the_decoder_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    options = ("--text", "scenes", "--num_examples", "60", "--text_epochs", "1")
    data_args, model_args, args, training_args = arguments_of(*options, output_dir=tmp_path / "run")
    prepared = prepared_for(data_args, tmp_path / "study")
    model = babylm_flamingo.build_model(data_args, model_args, prepared.tokenizer)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    model, _ = train_on_text(model, prepared, args, training_args)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if name.startswith("flamingo.decoder.")}


@pytest.mark.slow
def test_stored_features_are_computed_once_and_train_the_same(start, plain, tmp_path):
    told = ("--vision_features", str(tmp_path / "features"))
    (stored,), _ = start(babylm_flamingo, *told, "--output_dir", "outputs/babylm_flamingo/stored")
    assert stored["eval_loss"] == pytest.approx(plain[0]["eval_loss"], rel=0.01)
    written = (tmp_path / "features" / "features.npy").stat().st_mtime_ns
    (again,), _ = start(babylm_flamingo, *told, "--control")
    assert again["steps"] > 0
    assert (tmp_path / "features" / "features.npy").stat().st_mtime_ns == written


def test_features_of_a_trained_tower_or_without_a_reader_are_refused(tokenizer):
    with pytest.raises(ValueError, match="vision_features='f' was given, but the vision tower is trained"):
        arguments_of("--vision_features", "f", "--freeze_vision", "false")
    with pytest.raises(ValueError, match="vision_features='f' was given, but GIT takes images alone"):
        build(tokenizer, "--vision_features", "f", "--freeze_vision", "true", recipe=babylm_git)
