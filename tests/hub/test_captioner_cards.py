"""Cards of captioners on regions: real small runs, whose cards say what was read and hold code that captions."""

from __future__ import annotations

import contextlib
import io
import json
import re

import datasets
import numpy as np
import pytest
from transformers import ViTConfig

from hf_curriculum import (
    CaptionCollator,
    CaptionLength,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Phases,
    add_scores,
    make_image_processor,
    make_scenes,
)
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.regions.extract import extract_regions
from hf_curriculum.data.regions.pack import pack_regions
from hf_curriculum.data.tokenizer import train_word_tokenizer
from hf_curriculum.hub.model_card import render_model_card
from hf_curriculum.tasks.captioning import AoANetConfig, RegionTransformerConfig, UpDownConfig
from hf_curriculum.tasks.captioning.models.aoanet import AoANetForCausalLM
from hf_curriculum.tasks.captioning.models.transformer import RegionTransformerForCausalLM
from hf_curriculum.tasks.captioning.models.updown import UpDownForCausalLM


@pytest.fixture(scope="module")
def scenes():
    return add_scores(make_scenes(16, image_size=32, validation=0.0, test=0.0)["train"], CaptionLength())


@pytest.fixture(scope="module")
def tokenizer(scenes):
    return train_word_tokenizer(scenes, min_count=1, max_words=10)


@pytest.fixture(scope="module")
def found(scenes, tmp_path_factory):
    """Regions that a known detector found."""
    return extract_regions(scenes, "scenes_clip", tmp_path_factory.mktemp("found") / "store", grid=2, standardise=True)


@pytest.fixture(scope="module")
def given(scenes, tmp_path_factory):
    """Regions from files of which nobody says what made them."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "files").mkdir()
    for number, image_id in enumerate(sorted(set(scenes["image_id"]))):
        features = np.random.default_rng(number).normal(size=(2 + number % 2, 6))
        np.savez(folder / "files" / f"{image_id}.npz", feat=features.astype(np.float32))
    return pack_regions(folder / "files", folder / "store", progress=False)


def card_of(folder, model, scenes, collator, processor):
    """The card and the facts of a run, saved as a recipe saves it."""
    args = CurriculumTrainingArguments(
        str(folder / "model"), curriculum=Phases(2), score_column="caption_length", max_steps=2, report_to=[],
        per_device_train_batch_size=4, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = CurriculumTrainer(model, args, data_collator=collator, train_dataset=scenes, processing_class=processor)
    trainer.train()
    trainer.save_model(_internal_call=True)
    trainer.create_model_card()
    facts = json.loads((folder / "model" / "training_facts.json").read_text())
    card = (folder / "model" / "README.md").read_text()
    assert render_model_card(facts) == card
    return card, facts


def run_code(card, folder, monkeypatch):
    """What the card's code prints, in a folder where what it names is there; and the code."""
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    monkeypatch.chdir(folder)
    out = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(out):
        exec(compile(code, "card", "exec"), names)
    return out.getvalue(), code, names


def test_a_captioner_with_its_detector_captions_a_photo(tmp_path, monkeypatch, scenes, tokenizer, found):
    sizes = {"hidden_size": 8, "attention_size": 4, "region_feature_size": 128}
    model = UpDownForCausalLM(UpDownConfig(len(tokenizer), **sizes))
    collator = CaptionCollator(tokenizer, None, regions=found, max_length=12)
    processor = CaptionProcessor(collator.image_processor, tokenizer)
    card, facts = card_of(tmp_path, model, scenes, collator, processor)
    assert facts["images"] == {
        "reads": "region_features", "numbers_per_region": 128, "detector": "scenes_clip", "grid": 2,
        "regions_per_image": 4.0, "made_by": found.facts["made_by"], "standardised": True,
    }  # fmt: skip
    assert facts["words"] == {"tokens": len(tokenizer), "unknown": "[UNK]", "max_length": 12}
    assert "| detector | scenes\\_clip |" in card
    assert "| numbers per region | 128 |" in card
    assert f"| tokens | {len(tokenizer):,} |" in card or f"| tokens | {len(tokenizer)} |" in card
    scenes[0]["image"].save(tmp_path / "photo.jpg")
    printed, _, names = run_code(card, tmp_path, monkeypatch)
    assert printed.count("\n") == 1
    assert names["seen"]["region_features"].shape == (1, 4, 128)
    assert type(names["processor"].image_processor).__name__ == "RegionProcessor"


@pytest.mark.parametrize("saved", [True, False])
def test_a_captioner_of_unknown_features_reads_a_store(tmp_path, monkeypatch, scenes, tokenizer, given, saved):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_refiner_layers": 1, "region_feature_size": 6}
    model = AoANetForCausalLM(AoANetConfig(len(tokenizer), **sizes))
    collator = CaptionCollator(tokenizer, None, regions=given, max_length=12)
    processor = CaptionProcessor(collator.image_processor, tokenizer) if saved else None
    card, facts = card_of(tmp_path, model, scenes, collator, processor)
    assert facts["images"] == {"reads": "region_features", "numbers_per_region": 6, "regions_per_image": 2.5}
    assert str(tmp_path.parent) not in json.dumps(facts)  # no folder of this machine
    (tmp_path / "store").symlink_to(given.path)
    printed, code, names = run_code(card, tmp_path, monkeypatch)
    assert printed.count("\n") == 1
    assert "photo.jpg" not in code
    assert names["seen"]["region_features"].shape == (1, 2, 6)


def test_a_captioner_with_a_vision_model_inside_captions_a_photo(tmp_path, monkeypatch, scenes, tokenizer):
    vision = ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16, patch_size=8
    )
    sizes = {
        "hidden_size": 8, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8,
    }  # fmt: skip
    model = RegionTransformerForCausalLM(RegionTransformerConfig(len(tokenizer), vision_config=vision, **sizes))
    collator = CaptionCollator(tokenizer, make_image_processor(16, backend="torchvision", draft=True), max_length=12)
    processor = CaptionProcessor(collator.image_processor, tokenizer)
    undecoded = scenes.cast_column("image", datasets.Image(decode=False))
    card, facts = card_of(tmp_path, model, undecoded, collator, processor)
    assert facts["settings"]["images resized by"] == "torchvision"
    assert facts["settings"]["JPEGs decoded at a smaller scale"]
    assert facts["images"] == {"reads": "pixel_values", "vision_model": "vit", "trained": False}
    scenes[0]["image"].save(tmp_path / "photo.jpg")
    printed, _, names = run_code(card, tmp_path, monkeypatch)
    assert printed.count("\n") == 1
    assert names["seen"]["pixel_values"].shape == (1, 3, 16, 16)
