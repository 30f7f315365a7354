"""`hf-curriculum train --features`: captioners on stored regions, from the command line to a caption."""

from __future__ import annotations

import json

import pytest
import tiny_models
from typer.testing import CliRunner

from hf_curriculum import CaptionLength, add_scores, make_scenes, save_scored
from hf_curriculum.cli import app
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.models.captioner import load_captioner
from hf_curriculum.tasks.captioning import AoANetForCausalLM, RegionTransformerForCausalLM, UpDownForCausalLM

SIZES = {
    "transformer": "{hidden_size: 16, num_attention_heads: 2, num_encoder_layers: 1, num_decoder_layers: 1}",
    "updown": '{"hidden_size": 16, "attention_size": 8}',
    "aoanet": "{hidden_size: 16, num_attention_heads: 2, num_refiner_layers: 1}",
}
CLASSES = {"transformer": RegionTransformerForCausalLM, "updown": UpDownForCausalLM, "aoanet": AoANetForCausalLM}


def result(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Scored pairs, the regions of their images, and a store that lacks an image."""
    folder = tmp_path_factory.mktemp("given")
    scenes = make_scenes(24, image_size=32, validation=0.0, test=0.0)["train"]
    save_scored(add_scores(scenes, CaptionLength()), folder / "scored")
    extract_regions(scenes, "scenes_clip", folder / "store", grid=2, standardise=True)
    first = scenes[0]["image_id"]
    without = scenes.select([row for row, image in enumerate(scenes["image_id"]) if image != first])
    extract_regions(without, "scenes_clip", folder / "less", grid=2)
    save_scored(add_scores(scenes.remove_columns("image"), CaptionLength()), folder / "captions")
    return folder


def train(given, run, *words, scored="scored"):
    options = ("--curriculum", "iid", "--epochs", "1", "--validation", "0.25", "--batch-size", "8", "--json")
    options += ("--learning-rate", "0.01")
    return result("train", given / scored, run, *options, *words)


@pytest.mark.parametrize("name", SIZES)
def test_each_captioner_is_trained_on_a_store_and_captions_new_images(given, tmp_path, name):
    run = tmp_path / "run"
    options = ("--features", given / "store", "--model", name, "--model-options", SIZES[name], "--min-count", "1")
    done = train(given, run, *options)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["loss"] < facts["loss_before"]
    store = given / "store"
    assert f"caption {run / 'model'} " in done.stderr
    assert f"--features {store}" in done.stderr
    model, processor = load_captioner(str(run / "model"))
    assert type(model) is CLASSES[name]
    assert model.config.hidden_size == 16
    assert model.config.vocab_size == len(processor.tokenizer)
    assert processor.image_processor.detector == "scenes_clip"
    written = json.loads((run / "held_out" / "captions.json").read_text())
    assert written
    assert all((run / "held_out" / entry["file"]).is_file() for entry in written)
    by_detector = result("caption", run / "model", run / "held_out", "--json")
    assert [entry["caption"] is not None for entry in json.loads(by_detector.stdout)] == [True] * len(written)
    by_store = result("caption", run / "model", written[0]["image_id"], "--features", store, "--json")
    assert json.loads(by_store.stdout)[0]["caption"] == written[0]["generated"]


def test_a_trained_captioner_is_trained_further_on_captions_alone(given, tmp_path):
    first = ("--model", "updown", "--model-options", SIZES["updown"], "--min-count", "1")
    store = ("--features", given / "store")
    done = train(given, tmp_path / "first", *first, *store, scored="captions")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "first" / "held_out" / "captions.json").read_text()) == []  # no image to show
    again = train(given, tmp_path / "again", "--model", tmp_path / "first" / "model", *store, scored="captions")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["loss_before"] == pytest.approx(json.loads(done.stdout)["loss"], rel=1e-5)
    assert type(load_captioner(str(tmp_path / "again" / "model"))[0]) is UpDownForCausalLM


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "updown"), "The captioner 'updown' reads stored regions. Name their store"),
        (("--features", "{store}"), "stored features mean nothing. Name a captioner on regions"),
        (("--model", "git", "--features", "{store}"), "stored features mean nothing"),
        (("--min-count", "2"), "It is for a new captioner on regions, and has no effect on --model small"),
        (("--model", "somewhere", "--model-options", "{}"), "has no effect on --model somewhere"),
        (("--model", "updown", "--features", "{store}", "--image-size", "32"), "It is a new GIT's, and has no effect"),
        (
            ("--model", "updown", "--features", "{store}", "--model-options", "[1]"),
            "is no mapping of fields to values",
        ),
        (("--model", "updown", "--features", "{store}", "--model-options", "{heads: 2}"), "has no field heads, which"),
        (("--model", "updown", "--features", "{store}", "--min-count", "999"), "No word of the"),
        (("--model", "updown", "--features", "{less}", "--min-count", "1"), "1 are not in RegionStore"),
        (("--model", "{stored}"), "the detector that made them is not saved with it"),
    ],
)
def test_what_does_not_go_together_is_said_before_training(given, tmp_path, words, message):
    folders = {name: str(given / name) for name in ("store", "less")} | {"stored": tiny_models.region_transformer()}
    filled = [folders.get(word.strip("{}"), word) if word.startswith("{") else word for word in words]
    sizes = () if "--model-options" in words or "updown" not in words else ("--model-options", SIZES["updown"])
    if "--features" not in words:
        sizes = ()
    done = train(given, tmp_path / "run", *filled, *sizes)
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "run" / "model").exists()
