"""The diffusion model that ships with the package: what it draws, what is recorded, what it weighs, and its recipe."""

from __future__ import annotations

import importlib.util
import json
import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from PIL import Image

from hf_curriculum import CLIPSimilarity
from hf_curriculum.tasks.long_tail import PixelDiffusionPipeline
from hf_curriculum.tasks.long_tail.generation.pipelines import ImageToImage
from hf_curriculum.tasks.long_tail.generation.pixel_diffusion import SCENES_DIFFUSION_FOLDER

RECIPE = Path(__file__).parents[2] / "recipes" / "scenes_diffusion.py"
FACTS = json.loads((SCENES_DIFFUSION_FOLDER / "training.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("scenes_diffusion", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pipeline():
    return PixelDiffusionPipeline.from_pretrained("scenes_diffusion")


def test_what_was_recorded_when_it_was_trained():
    assert {"seed", "data_seed", "steps", "batch_size", "held_out_seed", "versions"} <= FACTS.keys()
    assert {"torch", "transformers", "diffusers", "hf-curriculum"} <= FACTS["versions"].keys()
    distance = list(FACTS["distance"].values())
    assert list(FACTS["distance"]) == [f"{level / 10:g}" for level in range(10)]
    assert all(nearer < farther for farther, nearer in pairwise(distance))
    assert FACTS["held_out_pictures"] == 64
    assert FACTS["named"]["0.5"] >= 0.8
    assert FACTS["named"]["0.6"] >= 0.9
    assert FACTS["named"]["1"] >= 0.95  # of the photographs themselves
    assert FACTS["cpu_minutes"] <= 40  # twenty minutes on two cores


def test_it_is_small():
    files = [file for file in SCENES_DIFFUSION_FOLDER.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 4_000_000
    assert FACTS["parameters"] <= 2_000_000


def test_what_it_draws_shows_what_the_prompt_says(pipeline):
    """Half of the way from another picture: the shipped CLIP finds the colour that was asked for."""
    colours = ["red", "yellow", "green", "blue", "pink", "black"]
    prompts = [f"a large {colour} ball" for colour in colours]
    images = [Image.new("RGB", (32, 32), (236, 240, 246))] * len(prompts)
    generator = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    made = pipeline(prompts, image=images, strength=0.9, generator=generator, guidance_scale=2.5).images
    score = CLIPSimilarity()
    cosines = np.array(
        [score({"image": made, "caption": [prompt] * len(made)})["clip_similarity"] for prompt in prompts]
    )
    own = np.diag(cosines)
    others = cosines[~np.eye(len(prompts), dtype=bool)]
    assert (own[:, None] > others).mean() >= 0.8


def test_new_pictures_come_nearer_to_their_source_with_the_level(recipe, pipeline):
    """On scenes of a seed that neither training nor its evaluation used."""
    held_out = recipe.single_objects(8, seed=31)
    real = recipe.pixels(held_out)
    apart = [
        float((recipe.drawn(pipeline, held_out, level) - real).square().mean((1, 2, 3)).sqrt().mean())
        for level in (0.3, 0.6, 0.9)
    ]
    assert apart[0] > apart[1] > apart[2]


def test_it_says_when_it_is_asked_for_what_it_has_not_seen(caplog):
    drawer = ImageToImage("scenes_diffusion")
    drawer.validate_distribution(["a large red ball"], [Image.new("RGB", (32, 32), (236, 240, 246))])
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        drawer.validate_distribution(["a photo of a tench"], [Image.new("RGB", (64, 32), "black")])
    assert "the prompts have words that none of its captions has and the images look unlike its own" in caplog.text
    assert "it has seen images of 32 pixels a side only" in caplog.text


def test_the_names_of_single_objects(recipe):
    data = recipe.single_objects(60, seed=3, wordings=True)
    full = recipe.single_objects(60, seed=3)
    assert set(data["caption"][:]) - set(full["caption"][:])
    shorter = zip(data["caption"][:], full["caption"][:], strict=True)
    assert all(set(short.split()) <= {*long.split(), "a", "an"} for short, long in shorter)
    assert [image.size for image in data["image"]] == [(32, 32)] * 60


@pytest.fixture
def run(recipe, monkeypatch, capsys):
    """Runs the recipe with two levels in its evaluation, and returns the facts that it prints."""

    def call(*options):
        monkeypatch.setattr(recipe, "LEVELS", (0.0, 0.9))
        monkeypatch.setattr("sys.argv", [RECIPE.name, *map(str, options)])
        threads = torch.get_num_threads()
        try:
            recipe.main()
        finally:
            torch.set_num_threads(threads)
        printed = capsys.readouterr().out
        return json.loads(printed[printed.index("{") :])

    return call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", 64], "--size is of your own pictures"),
        (["--prompt", "a {label}"], "--prompt is of your own pictures"),
        (["--data", "x", "--size", 30], "--size is 30, and the U-Net halves it twice"),
        (
            ["--start", "SHIPPED", "--scenes", 4, "--held_out", 1, "--text_model", "x"],
            "has learnt to read scenes_clip",
        ),
    ],
)
def test_options_of_the_recipe_without_effect_are_refused(recipe, monkeypatch, capsys, options, message):
    options = [str(SCENES_DIFFUSION_FOLDER) if each == "SHIPPED" else str(each) for each in options]
    monkeypatch.setattr("sys.argv", [RECIPE.name, *options])
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    with pytest.raises(SystemExit):
        recipe.main()
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_recipe_runs(run, tmp_path):
    options = ("--steps", 2, "--scenes", 24, "--held_out", 2, "--batch_size", 4, "--output", tmp_path / "made")
    facts = run(*options)
    assert facts["steps"] == 2
    assert list(facts["distance"]) == ["0", "0.9"]
    assert list(facts["named"]) == ["0", "0.9", "1"]
    pipeline = PixelDiffusionPipeline.from_pretrained(tmp_path / "made")
    assert pipeline("a ball", num_inference_steps=2, strength=1).images[0].size == (32, 32)


@pytest.mark.slow
def test_the_recipe_on_other_pictures(run, tmp_path):
    colours = {"fox": "orange", "owl": "brown"}
    rows = [(Image.new("RGB", (20, 12), colour), label) for label, colour in enumerate(colours.values())] * 6
    data = Dataset.from_dict({"image": [image for image, _ in rows], "label": [label for _, label in rows]})
    data.cast_column("label", ClassLabel(names=list(colours))).save_to_disk(str(tmp_path / "data"))
    options = ("--steps", 2, "--held_out", 2, "--batch_size", 4, "--size", 16, "--flip", "--output", tmp_path / "made")
    facts = run("--data", tmp_path / "data", "--prompt", "a photo of {label}", *options)
    assert (facts["pictures"], facts["image_size"], facts["prompt"]) == (10, 16, "a photo of {label}")
    pipeline = PixelDiffusionPipeline.from_pretrained(tmp_path / "made")
    assert pipeline("a photo of owl", num_inference_steps=2, strength=1).images[0].size == (16, 16)
    with pytest.raises(ValueError, match="12 pictures cannot be trained on and 12 of them held out"):
        run("--data", tmp_path / "data", "--held_out", 12)
