"""What a trainer asks `generate` for, and what counts as a text's loss."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import encoder_decoder
from torch.nn import functional
from transformers import VisionEncoderDecoderModel

from hf_curriculum.tasks.captioning import trainer as module
from hf_curriculum.tasks.captioning.trainer import generate_predictions
from hf_curriculum.training.prediction import evaluation_model, example_losses


def test_text_alone_gives_nothing_to_write_about():
    batch = {name: torch.ones(2, 3, dtype=torch.long) for name in ("input_ids", "attention_mask", "labels")}
    with pytest.raises(ValueError, match=r"has \['attention_mask', 'input_ids', 'labels'\] alone.*prompt_input_ids"):
        generate_predictions(None, batch, {})


def trainer_of(asked, *, fsdp=False, **limits):
    """A trainer whose model notes what `generate` is asked for."""

    def generate(**given):
        asked.append((given, torch.is_grad_enabled()))
        return torch.zeros(2, 5)

    args = SimpleNamespace(**{"generation_max_length": None, "generation_num_beams": None, **limits})
    return SimpleNamespace(args=args, is_fsdp_enabled=fsdp, model=SimpleNamespace(generate=generate))


def test_images_and_prompts_are_given_and_the_answer_is_not():
    asked, answer = [], torch.ones(2, 3, dtype=torch.long)
    batch = {"pixel_values": torch.rand(2, 3), "input_ids": answer, "attention_mask": answer, "labels": answer}
    prompt = {"prompt_input_ids": answer[:, :1], "prompt_attention_mask": answer[:, :1]}
    assert generate_predictions(trainer_of(asked), batch, {}).shape == (2, 5)
    generate_predictions(trainer_of(asked, generation_num_beams=3), batch, prompt)
    generate_predictions(trainer_of(asked, generation_max_length=7), batch, {})
    (images, graded), (prompted, _), (short, _) = asked
    assert not graded
    assert images == {"pixel_values": batch["pixel_values"], "synced_gpus": False}
    assert sorted(prompted) == ["attention_mask", "input_ids", "num_beams", "pixel_values", "synced_gpus"]
    assert (prompted["num_beams"], prompted["input_ids"].shape) == (3, (2, 1))
    assert short == {**images, "max_length": 7}


@pytest.mark.parametrize(("zero3", "fsdp"), [(False, False), (True, False), (False, True), (True, True)])
def test_processes_that_share_a_model_decode_as_many_steps(zero3, fsdp, monkeypatch):
    monkeypatch.setattr(module, "is_deepspeed_zero3_enabled", lambda: zero3)
    asked = []
    generate_predictions(trainer_of(asked, fsdp=fsdp), {"pixel_values": torch.rand(2, 3)}, {})
    assert asked[0][0]["synced_gpus"] is (zero3 or fsdp)


def test_weights_in_shards_are_summoned_to_generate(monkeypatch):
    asked, whole = [], []

    class Sharded:
        @staticmethod
        @contextmanager
        def summon_full_params(model):
            whole.append(len(asked))
            yield
            whole.append(len(asked))

    trainer = trainer_of(asked, fsdp=True)
    monkeypatch.setattr(module, "FullyShardedDataParallel", Sharded)
    generate_predictions(trainer, {"pixel_values": torch.rand(2, 3)}, {})
    assert whole == []
    sharded = Sharded()
    sharded.generate, trainer.model = trainer.model.generate, sharded
    generate_predictions(trainer, {"pixel_values": torch.rand(2, 3)}, {})
    assert whole == [1, 2]  # before it generates, and after


class Fixed(torch.nn.Module):
    """Gives the logits it was made with, as a mapping or as a tuple."""

    def __init__(self, logits, named=True, **attributes):
        super().__init__()
        self.logits, self.named = logits, named
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, **inputs):
        return {"logits": self.logits} if self.named else (self.logits,)


def adapted(model):
    """The model with adapters, which are zero."""
    return get_peft_model(model, LoraConfig(r=2, target_modules=["query"]))


def naive(logits, labels, first):
    """The mean loss of each text's tokens, with the logits `first` positions before them."""
    means = []
    for scores, tokens in zip(logits, labels, strict=True):
        each = [
            functional.cross_entropy(scores[place - first], token).item()
            for place, token in enumerate(tokens)
            if place >= first and token != -100
        ]
        means.append(np.mean(each) if each else np.nan)
    return means


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("images", [0, 2])
def test_the_loss_of_a_text_is_that_of_its_own_tokens(named, images):
    torch.manual_seed(0)
    labels = torch.tensor([[3, 1, 2, -100], [0, 1, -100, -100], [-100, -100, -100, -100]])
    logits = torch.randn(3, 4 + images, 5)
    text = logits[:, images:]
    found = example_losses(Fixed(logits, named), {"labels": labels})
    np.testing.assert_allclose(found.numpy(), naive(text, labels, 1), rtol=1e-5)
    np.testing.assert_allclose(example_losses(Fixed(text[:, :-1]), {"labels": labels}), found)
    for same in (
        {"loss_type": "ForMaskedLM"},
        {"loss_type": "ForTokenClassification"},
        {"config": SimpleNamespace(is_encoder_decoder=True)},
    ):
        found = example_losses(Fixed(logits, named, **same), {"labels": labels})
        np.testing.assert_allclose(found.numpy(), naive(text, labels, 0), rtol=1e-5)


def test_the_loss_of_a_class_and_what_has_none():
    logits, labels = torch.randn(3, 5).half(), torch.tensor([0, 4, 2])
    found = example_losses(Fixed(logits), {"labels": labels})
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, functional.cross_entropy(logits.float(), labels, reduction="none"))
    for shape, classes in (((3, 2, 5), (3, 4)), ((3, 4, 5), (3,)), ((3, 5), (3, 5)), ((3,), (3,))):
        with pytest.raises(ValueError, match=r"shape \(3.*losses per example are known for"):
            example_losses(Fixed(torch.zeros(shape)), {"labels": torch.zeros(classes, dtype=torch.long)})
    with pytest.raises(ValueError, match=r"has \['x'\] and no `labels`"):
        example_losses(Fixed(logits), {"x": labels})


@pytest.mark.parametrize(
    "wrap", [lambda model: model, adapted, torch.nn.DataParallel], ids=["alone", "LoRA", "wrapped"]
)
def test_the_loss_of_an_encoder_decoders_text_is_that_of_all_its_tokens(wrap):
    model = VisionEncoderDecoderModel.from_pretrained(encoder_decoder()).eval()
    pixels, labels = torch.rand(2, 3, 16, 16), torch.tensor([[5, 6, 7, 2, -100], [8, 9, 2, -100, -100]])
    found = example_losses(wrap(model), {"pixel_values": pixels, "labels": labels})
    for row, tokens in enumerate(([5, 6, 7, 2], [8, 9, 2])):
        read = torch.tensor([[model.config.decoder_start_token_id, *tokens[:-1]]])
        logits = model(pixel_values=pixels[row : row + 1], decoder_input_ids=read).logits[0]
        by_hand = -logits.log_softmax(-1)[range(len(tokens)), tokens].mean()
        assert found[row].item() == pytest.approx(by_hand.item(), rel=1e-5)
    means = (found[0] * 4 + found[1] * 3) / 7
    assert model(pixel_values=pixels, labels=labels).loss.item() == pytest.approx(means.item(), rel=1e-5)


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_losses_are_taken_of_a_sharded_model_as_a_whole(fsdp, training):
    own, wrapped = torch.nn.Linear(1, 1).train(training), torch.nn.Linear(1, 1).train(training)
    plain = SimpleNamespace(autocast=nullcontext)
    trainer = SimpleNamespace(
        model=own, model_wrapped=wrapped, is_fsdp_enabled=fsdp, compute_loss_context_manager=nullcontext,
        accelerator=plain,
    )  # fmt: skip
    with evaluation_model(trainer) as model:
        assert model is (wrapped if fsdp else own)
        assert (model.training, torch.is_grad_enabled()) == (False, False)
    assert (own.training, wrapped.training) == (training, training)
    with pytest.raises(KeyError), evaluation_model(trainer):
        raise KeyError
    assert (own.training, wrapped.training) == (training, training)
