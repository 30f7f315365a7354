"""Two losses in one step: captions', and that of the text beside them."""

from __future__ import annotations

import random

import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_curriculum import (
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.data.text_blocks import JointText
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.scenes.captions import scene_lines
from hf_curriculum.training.joint_text import JointTextTrainer


@pytest.fixture(scope="module")
def parts():
    scenes = make_scenes(24, image_size=32, validation=0.2, test=0.0)
    lines = scene_lines()
    text = Dataset.from_dict({"caption": [next(lines) for _ in range(50)]})
    tokenizer = train_wordpiece([*scenes["train"]["caption"], *text["caption"]], 200)
    captions = CaptionCollator(tokenizer, make_image_processor(16), max_length=16)
    return scenes, tokenizer, JointText(captions, text, CaptionCollator(tokenizer, None, max_length=16))


@pytest.fixture
def make(parts, tmp_path):
    def build(folder="run", weight=0.25, collator=None, **arguments):
        torch.manual_seed(0)
        scenes, tokenizer, beside = parts
        size = {"image_size": 16, "hidden_size": 16, "vision_layers": 1, "text_layers": 1, "num_attention_heads": 2}
        plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        given = {
            "curriculum": "iid",
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "report_to": "none",
            "use_cpu": True,
            "logging_steps": 2,
            "save_steps": 2,
            "disable_tqdm": True,
        }
        return JointTextTrainer(
            git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **size, **plain)),
            CurriculumTrainingArguments(str(tmp_path / folder), **{**given, **arguments}),
            text_weight=weight,
            data_collator=collator or beside,
            train_dataset=scenes["train"],
            eval_dataset=scenes["validation"],
        )

    return build


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def test_the_loss_is_the_captions_and_a_share_of_the_texts(make, parts):
    trainer = make()
    random.seed(0)
    batch = parts[2]([parts[0]["train"][row] for row in range(4)])
    text = {name.removeprefix("text_"): batch[name] for name in batch if name.startswith("text_")}
    captions = {name: value for name, value in batch.items() if not name.startswith("text_")}
    model = trainer.model.train()
    expected = model(**captions).loss + 0.25 * model(**text).loss
    assert trainer.compute_loss(model, batch).item() == pytest.approx(expected.item(), abs=1e-6)
    assert trainer.compute_loss(model.eval(), batch).item() == pytest.approx(model(**captions).loss.item(), abs=1e-6)


def test_the_text_is_divided_by_the_batches_where_trainer_does_not(make, parts):
    trainer = make()
    trainer.current_gradient_accumulation_steps = 4
    batch = parts[2]([parts[0]["train"][row] for row in range(4)])
    text = {name.removeprefix("text_"): batch[name] for name in batch if name.startswith("text_")}
    captions = {name: value for name, value in batch.items() if not name.startswith("text_")}
    model, items = trainer.model.train(), torch.tensor(50)
    mean, whole, beside = model(**captions).loss, model(**captions, num_items_in_batch=items).loss, model(**text).loss

    def loss(**given):
        return trainer.compute_loss(model, dict(batch), **given)

    torch.testing.assert_close(loss(), mean + 0.25 * beside)
    torch.testing.assert_close(loss(num_items_in_batch=items), whole + 0.25 * beside / 4)
    trainer.model_accepts_loss_kwargs = False
    torch.testing.assert_close(loss(num_items_in_batch=items), mean + 0.25 * beside)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs.logits.square().mean()
    mean, beside = (model(**{**part, "labels": None}).logits.square().mean() for part in (captions, text))
    torch.testing.assert_close(loss(), mean + 0.25 * beside / 4)


def test_both_losses_are_logged_and_evaluation_sees_captions_alone(make):
    trainer = make()
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 2
    assert all(0 < 0.25 * entry["text_loss"] < entry["loss"] for entry in logged)
    assert logged[1]["text_loss"] < logged[0]["text_loss"]
    assert trainer.evaluate()["eval_loss"] > 0


def test_the_text_loss_stands_beside_a_loss_alone(make):
    trainer = make()
    trainer._text_losses = [torch.tensor(1.0), torch.tensor(3.0)]
    for entry in ({"eval_loss": 1.0}, {"loss": 5.0}, {"loss": 5.0}):
        trainer.log(entry)
    assert [entry.get("text_loss") for entry in trainer.state.log_history] == [None, 2.0, None]


def test_images_are_sent_as_bytes(make):
    runs = [make(uint8_images=sends) for sends in (False, True)]
    assert [next(iter(one.get_train_dataloader()))["pixel_values"].dtype for one in runs] == [
        torch.float32,
        torch.uint8,
    ]
    for one in runs:
        one.train()
    assert torch.equal(*map(weights, runs))


def test_texts_do_not_depend_on_how_a_batch_is_made_up(make):
    def texts(**arguments):
        loader = make(**arguments).get_train_dataloader()
        rows = [row for batch in loader for row in zip(batch["text_labels"], batch["input_ids"], strict=True)]
        return [[ids[ids > 0].tolist() for ids in row] for row in rows]

    first = texts()
    assert texts(per_device_train_batch_size=2, gradient_accumulation_steps=2) == first
    assert texts(dataloader_num_workers=1) == first
    assert texts(data_seed=1) != first


def test_accumulated_batches_weigh_as_one(make):
    whole, parted = make(), make("parted", per_device_train_batch_size=2, gradient_accumulation_steps=2)
    whole.train()
    parted.train()
    one, two = ([entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (whole, parted))
    # The texts' means are of two halves, whose lengths differ a little.
    assert two == pytest.approx(one, rel=0.02)


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("looks", [True, False])
def test_gradients_are_the_same_under_ddp(make, parts, group, looks):
    trainer = make()
    random.seed(0)
    batch = parts[2]([parts[0]["train"][row] for row in range(4)])
    model = trainer.model.train()

    def gradients(wrapped):
        model.zero_grad()
        trainer.compute_loss(wrapped, batch).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    alone = gradients(model)
    wrapped = DistributedDataParallel(model, find_unused_parameters=looks)
    torch.testing.assert_close(gradients(wrapped), alone)
    torch.testing.assert_close(gradients(wrapped), alone)


def test_labels_of_both_are_smoothed(make, parts):
    trainer, smooth = make(), make("smooth", label_smoothing_factor=0.5)
    random.seed(0)
    batch = parts[2]([parts[0]["train"][row] for row in range(4)])
    trainer.compute_loss(trainer.model.train(), batch)
    smooth.compute_loss(trainer.model, batch)
    text = {name.removeprefix("text_"): batch[name] for name in batch if name.startswith("text_")}
    labels = text.pop("labels")
    logits = trainer.model(**text).logits[:, :-1].flatten(0, 1)
    expected = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), label_smoothing=0.5)
    torch.testing.assert_close(smooth._text_losses[0], expected.detach())
    assert (smooth._text_losses[0] - trainer._text_losses[0]).abs() > 1e-4


def test_resumed_bit_for_bit(make):
    whole = make()
    whole.train()
    resumed = make()
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-2")
    assert torch.equal(weights(whole), weights(resumed))


def test_a_weight_of_nothing_and_a_batch_without_text(make, parts):
    with pytest.raises(ValueError, match=r"text_weight=0 was given"):
        make(weight=0)
    with pytest.raises(ValueError, match="no auxiliary text"):
        make(collator=parts[2].collator).train()
    assert issubclass(JointTextTrainer, CurriculumTrainer)
