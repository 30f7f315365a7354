"""The CLIP that ships with the package: what it can do, what is recorded, what it weighs, and the recipe of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import hf_curriculum
from hf_curriculum import CLIPSimilarity, add_scores, make_scenes
from hf_curriculum.scorers.alignment.clip import vocabulary_of

SHIPPED = Path(hf_curriculum.__file__).parent / "models" / "scenes_clip"
RECIPE = Path(__file__).parents[2] / "recipes" / "scenes_clip.py"
FACTS = json.loads((SHIPPED / "training.json").read_text(encoding="utf-8"))


def auc(true, false):
    """The share of (matched, mismatched) pairs in the right order."""
    return float((true[:, None] > false).mean())


@pytest.fixture(scope="module")
def held_out():
    """Scenes of a seed that neither training nor its evaluation used, and their cosines."""
    scenes = make_scenes(1000, seed=11, mismatched=0.5, validation=0, test=0)["train"]
    return add_scores(scenes, CLIPSimilarity())


def test_matched_captions_are_told_from_mismatched_ones(held_out):
    scores, mismatched = np.array(held_out["clip_similarity"][:]), np.array(held_out["mismatched"][:])
    assert auc(scores[~mismatched], scores[mismatched]) >= 0.95


def test_captions_are_told_from_those_of_another_scene(held_out):
    true = held_out.filter(lambda mismatched: not mismatched, input_columns="mismatched")
    captions = true["caption"][:]
    shuffled = true.remove_columns(["clip_similarity", "caption"]).add_column("caption", captions[7:] + captions[:7])
    false = np.array(add_scores(shuffled, CLIPSimilarity())["clip_similarity"][:])
    assert auc(np.array(true["clip_similarity"][:]), false) >= 0.95


def test_a_wrong_colour_is_noticed(held_out):
    """Not only nouns: "a red ball" for a blue one has a lower cosine than the caption itself."""
    colours = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "black"]
    plain = [
        row
        for row in held_out.remove_columns("image").to_list()
        if row["num_objects"] == 1
        and row["caption_index"] == 2
        and not row["mismatched"]
        and row["objects"][0]["colour"] in row["caption"].split()
    ]
    rows = [row["image_id"] for row in plain]
    image_of = {row["image_id"]: row["image"] for row in held_out if row["image_id"] in set(rows)}
    wrong = [
        row["caption"].replace(colour := row["objects"][0]["colour"], colours[(colours.index(colour) + 3) % 8], 1)
        for row in plain
    ]
    scorer, images = CLIPSimilarity(), [image_of[image] for image in rows]
    right = scorer({"image": images, "caption": [row["caption"] for row in plain]})["clip_similarity"]
    assert len(rows) > 10
    assert (right > scorer({"image": images, "caption": wrong})["clip_similarity"]).mean() >= 0.8


def test_what_made_it_is_recorded():
    assert FACTS["recipe"] == RECIPE.name
    assert {"seed", "data_seed", "held_out_seed", "scenes", "captions", "steps"} <= set(FACTS)
    assert FACTS["data_seed"] not in (FACTS["held_out_seed"], 0, 1, 2, 3, 11)
    assert set(FACTS["versions"]) == {"python", "torch", "transformers", "hf-curriculum"}
    assert all(value >= 0.9 for value in FACTS["held_out_auc"].values())
    assert FACTS["captions"] == 5 * FACTS["scenes"]


def test_it_knows_every_word_of_the_scenes(held_out):
    assert vocabulary_of(held_out["caption"][:]) <= set(FACTS["knows"]["words"])


def test_it_is_small_and_complete():
    files = {path.name: path.stat().st_size for path in SHIPPED.iterdir()}
    assert sum(files.values()) <= 4_000_000
    assert {"model.safetensors", "config.json", "tokenizer.json", "preprocessor_config.json"} <= set(files)
    assert '"models/scenes_clip/*"' in (RECIPE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("scenes_clip_recipe", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_captions_that_may_be_true_of_a_image_are_no_negatives_of_it(recipe):
    logits, owner = torch.tensor([[2.0, 1.0, 0.5], [0.3, 1.5, -1.0]]), torch.tensor([0, 0, 1])
    possible = torch.tensor([[True, True, False], [True, False, True]])  # caption 0 may be true of image 1 too
    to_text = [[2.0, 0.5], [1.0, 0.5], [-1.0, 1.5]]  # each caption's own logit first, then what is left to beat
    to_image = [[2.0], [1.0, 1.5], [-1.0, 0.5]]
    sides = [[np.log(np.exp(row).sum()) - row[0] for row in side] for side in (to_text, to_image)]
    found = recipe.contrastive_loss(logits, owner, possible).item()
    assert found == pytest.approx((np.mean(sides[0]) + np.mean(sides[1])) / 2, rel=1e-5)


def test_content_words_decide_what_may_be_true(recipe):
    said = recipe.content(["two red balls", "a ball", "a red ball left of a small house", "on the left"])
    assert said.sum(1).tolist() == [2, 1, 4, 0]
    assert ((1 - said[2]) @ said.T == 0).tolist() == [True, True, True, True]
    assert ((1 - said[0]) @ said.T == 0).tolist() == [True, True, False, True]


def test_captions_that_are_left_out_are_never_drawn(recipe):
    scenes = make_scenes(recipe.CAPTIONS * 8, 3, image_size=64, validation=0, test=0)["train"]
    captions = scenes["caption"][:]
    left_out = frozenset([*captions[:4], captions[7]])  # one is left of the first image, four of the second
    tokenizer = recipe.train_wordpiece(scenes, vocab_size=512, max_length=recipe.CONTEXT)
    processor = recipe.make_image_processor(recipe.IMAGE_SIZE)
    pairs = recipe.Pairs(scenes, tokenizer, processor, 0, left_out)
    allowed = {
        tuple(ids[ids != 0].tolist()) for ids, kept in zip(pairs.ids, pairs.known.flatten(), strict=True) if kept
    }
    drawn = [row for _ in range(20) for row in pairs.batch(8, 2)[1]]
    assert len(drawn) == 20 * 7 * 2
    assert {tuple(ids[ids != 0].tolist()) for ids in drawn} <= allowed
    everything = recipe.Pairs(scenes, tokenizer, processor, 0)
    assert len(everything.batch(8, 2)[1]) == 16


@pytest.mark.slow
def test_the_recipe_runs(launch, tmp_path):
    launch(RECIPE, "--steps", 3, "--scenes", 30, "--batch_size", 8, "--output", tmp_path)
    facts = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert (facts["steps"], facts["scenes"], facts["seed"]) == (3, 30, 0)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in SHIPPED.iterdir()}
    scenes = make_scenes(5, validation=0, test=0)["train"]
    assert np.isfinite(add_scores(scenes, CLIPSimilarity(str(tmp_path)))["clip_similarity"][:]).all()
