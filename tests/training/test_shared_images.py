"""`ByImage` batches whose captions share their image: trained as with an image each, resumed, on two processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_curriculum import ByImage, CaptionCollator, Phases, make_image_processor, make_scenes, train_wordpiece
from hf_curriculum.data.collators import Augment
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.tasks.captioning import CaptioningArguments, CaptioningTrainer, caption_compute_metrics
from hf_curriculum.training.setup import close_process_group

SIZES = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 2, "num_attention_heads": 2}


def build(folder, *, share, augment=None, dropout=0.0, metrics=False, **settings):
    """Two phases of 60 captions of 12 images: 3 and 6 steps of 10, two images with five captions each."""
    data = make_scenes(80, image_size=32, validation=0.25, test=0.0)
    tokenizer = train_wordpiece(data["train"], 300)
    torch.manual_seed(0)
    still = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **SIZES, **still))
    counted = []
    model.git.image_encoder.register_forward_hook(
        lambda module, args, kwargs, output: counted.append(len(kwargs["pixel_values"])), with_kwargs=True
    )
    args = CaptioningArguments(
        str(folder),
        curriculum=Phases(2, 1, easy="low", batches=ByImage(5)),
        score_column="difficulty",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.01,
        max_grad_norm=0.0,
        logging_steps=1,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None,
        **{"per_device_train_batch_size": 10, "save_strategy": "no", **settings},
    )
    trainer = CaptioningTrainer(
        model,
        args,
        data_collator=CaptionCollator(
            tokenizer, make_image_processor(32), max_length=14, augment=augment, share_images=share
        ),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        compute_metrics=caption_compute_metrics(tokenizer, metrics=("bleu",)) if metrics else None,
    )
    trainer.counted = counted
    return trainer


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The run with one image per caption."""
    trainer = build(tmp_path_factory.mktemp("apart"), share=False)
    trainer.train()
    return trainer


# Micro batches of two cut an image's captions apart: each part brings its image.
@pytest.mark.parametrize(
    ("settings", "encoded"),
    [
        ({}, [2] * 9),
        ({"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2}, [1] * 18),
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 5}, [1, 1, 2, 1, 1] * 9),
    ],
)
def test_it_trains_as_one_image_per_caption(tmp_path, apart, settings, encoded):
    trainer = build(tmp_path, share=True, **settings)
    trainer.train()
    assert trainer.counted == encoded
    assert apart.counted == [10] * 9
    losses = losses_of(apart)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses_of(trainer), losses, rtol=2e-3)


def test_evaluation_and_generation_are_those_of_one_image_per_caption(tmp_path):
    found = []
    for share in (True, False):
        trainer = build(
            tmp_path,
            share=share,
            metrics=True,
            predict_with_generate=True,
            generation_max_length=10,
            per_device_eval_batch_size=8,
        )
        result = trainer.predict(trainer.eval_dataset)
        found.append(
            (result.predictions, {k: v for k, v in result.metrics.items() if "second" not in k and "time" not in k})
        )
        assert (sum(trainer.counted) < 2 * len(trainer.eval_dataset)) == share
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for name, value in found[0][1].items():
        assert value == pytest.approx(found[1][1][name], rel=1e-5), name


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_exactly(tmp_path, workers):
    options = {"share": True, "augment": Augment(), "dropout": 0.2, "dataloader_num_workers": workers}
    whole = build(tmp_path / "whole", **options, save_strategy="steps", save_steps=4)
    whole.train()
    resumed = build(tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert losses_of(resumed) == losses_of(whole)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


@pytest.mark.slow
def test_two_processes_train_as_one(launch, tmp_path, apart):
    launch(Path(__file__), tmp_path, processes=2)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["encoded"] == [1] * 9
    np.testing.assert_allclose(facts["losses"], losses_of(apart), rtol=2e-3)
    assert facts["shared"] == pytest.approx(facts["apart"], rel=1e-5)


def train_as_one_of_several() -> None:
    run = build(sys.argv[1], share=True, per_device_train_batch_size=5, per_device_eval_batch_size=4)
    run.train()
    facts = {"losses": losses_of(run), "encoded": list(run.counted), "shared": run.evaluate()["eval_loss"]}
    run.data_collator.share_images = False
    facts["apart"] = run.evaluate()["eval_loss"]
    if run.args.process_index == 0:
        Path(sys.argv[1], "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    train_as_one_of_several()
    close_process_group()
