"""Flamingo under the curriculum's trainer, from images and from stored features."""

from __future__ import annotations

import pytest
import torch

from hf_curriculum import (
    CaptionCollator,
    NounCount,
    Phases,
    add_scores,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.flamingo.build import add_image_token, flamingo_from_config, small_flamingo_config
from hf_curriculum.models.vision_features import cache_vision_features
from hf_curriculum.tasks.captioning import CaptioningArguments, CaptioningTrainer


@pytest.fixture(scope="module")
def scenes():
    data = make_scenes(60, image_size=32, validation=0.2, test=0.0)
    data["train"] = add_scores(data["train"], NounCount(), per_image="max")
    return data


@pytest.fixture(scope="module")
def make(scenes):
    tokenizer = train_wordpiece(scenes["train"], 400)
    add_image_token(tokenizer)

    def build(folder, features=None, model=None, **arguments):
        torch.manual_seed(0)
        sizes = {"image_size": 32, "hidden_size": 32, "vision_layers": 1, "text_layers": 2, "perceiver_latents": 4}
        if model is None:
            model = flamingo_from_config(small_flamingo_config(len(tokenizer), tokenizer=tokenizer, **sizes))
        processor = make_image_processor(32)
        if features is not None:
            features = cache_vision_features(model, scenes, features, processor)
        settings = {
            "per_device_train_batch_size": 16,
            "learning_rate": 1e-2,
            "curriculum": Phases(2, 2),
            "score_column": "noun_count",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_steps": 1,
        }
        return CaptioningTrainer(
            model,
            CaptioningArguments(str(folder), **{**settings, **arguments}),
            data_collator=CaptionCollator(
                tokenizer,
                None if features is not None else processor,
                max_length=20,
                prefix="<image> ",
                vision_features=features,
            ),
            train_dataset=scenes["train"],
            eval_dataset=scenes["validation"],
        )

    return build


def weights(trainer):
    return {name: weight.clone() for name, weight in trainer.model.named_parameters()}


@pytest.mark.parametrize("stored", [False, True])
def test_it_learns_and_resumes_bit_for_bit(make, tmp_path, stored):
    features = tmp_path / "features" if stored else None
    whole = make(tmp_path / "whole", features, save_strategy="steps", save_steps=5)
    before = weights(whole)
    whole.train()
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    after = weights(whole)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {name for name in after if "vision_tower" not in name}
    resumed = make(tmp_path / "resumed", features)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert resumed.state.global_step == whole.state.global_step == 10
    for name, weight in weights(resumed).items():
        assert torch.equal(weight, after[name]), name


def test_stored_features_give_the_losses_of_images(make, tmp_path):
    losses = []
    for features in (None, tmp_path / "features"):
        trainer = make(tmp_path / "out", features, learning_rate=1e-3)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=2e-2)


@pytest.mark.parametrize("stored", [False, True])
def test_evaluation_generates_captions(make, tmp_path, scenes, stored):
    trainer = make(
        tmp_path, tmp_path / "features" if stored else None, predict_with_generate=True, generation_max_length=8
    )
    predictions = trainer.predict(scenes["validation"]).predictions
    tokenizer = trainer.data_collator.tokenizer
    assert predictions.shape[1] <= 8
    assert (predictions[:, 0] == tokenizer.cls_token_id).all()
    assert (predictions[:, 1] == tokenizer.convert_tokens_to_ids("<image>")).all()


def test_text_first_then_images(make, tmp_path, scenes):
    """Weights learnt from text alone go on with images: the model is the same."""
    text = make(tmp_path / "text")
    text.data_collator = CaptionCollator(text.data_collator.tokenizer, None, max_length=20)
    before = weights(text)
    text.train()
    moved = {name for name, weight in weights(text).items() if not torch.equal(weight, before[name])}
    assert moved
    assert all(name.startswith("flamingo.decoder") for name in moved)
    images = make(tmp_path / "images", model=text.model)
    images.train()
    assert any(weight.abs().sum() > 0 for name, weight in weights(images).items() if "attention_gate" in name)
