"""What UpDown and AoANet have in common: shared images, scheduled sampling, saving, precision, adapters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from recurrent_captioners import aoanet, aoanet_shapes, random_weights, updown, updown_shapes
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, ViTConfig

from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.models.git.build import add_lora
from hf_curriculum.names import MODELS
from hf_curriculum.tasks.captioning import AoANetConfig, AoANetForCausalLM, UpDownConfig, UpDownForCausalLM
from hf_curriculum.tasks.captioning.models.convert import convert_reference
from hf_curriculum.tasks.captioning.models.recurrent import RecurrentCache, RecurrentCaptionerModel, SampledWords

KINDS = ("updown", "aoanet")
WITHOUT_DROPOUT = {"feature_dropout": 0.0, "word_dropout": 0.0, "output_dropout": 0.0}
AOA_DROPOUTS = ("context_dropout", "refiner_dropout", "attention_dropout", "aoa_dropout")


def build(kind, dropouts=True, **options):
    """A small captioner of 12 outputs with new weights."""
    torch.manual_seed(0)
    options = {"vocab_size": 12, "hidden_size": 8, "region_feature_size": 6, **options}
    if kind == "updown":
        return UpDownForCausalLM(UpDownConfig(attention_size=5, **({} if dropouts else WITHOUT_DROPOUT) | options))
    still = {} if dropouts else WITHOUT_DROPOUT | dict.fromkeys(AOA_DROPOUTS, 0.0)
    return AoANetForCausalLM(AoANetConfig(num_attention_heads=2, num_refiner_layers=2, **still | options))


def batch(seed=0, dtype=torch.float32, outputs=12):
    """Five captions of three images, all ragged."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(3, 4, 6, generator=generator, dtype=dtype)
    lengths = torch.tensor([5, 3, 7, 4, 3])
    words = torch.randint(1, outputs, (5, 7), generator=generator)
    text = torch.arange(7) < lengths[:, None]
    words[:, 0], words[torch.arange(5), lengths - 1] = 0, 0
    words = words * text
    return {
        "input_ids": words,
        "attention_mask": text.long(),
        "labels": words.masked_fill(~text, -100),
        "region_features": features,
        "region_mask": (torch.arange(4) < torch.tensor([4, 1, 3])[:, None]).long(),
        "image_index": torch.tensor([1, 0, 2, 2, 0]),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_shared_images_equals_the_written_out_model(kind, tmp_path):
    """Loss and gradients, caption by caption, of logits of all words."""
    shapes = updown_shapes(outputs=11) if kind == "updown" else aoanet_shapes(outputs=11, layers=2)
    weights = random_weights(shapes)
    torch.save(weights, tmp_path / "model.pth")
    options = {} if kind == "updown" else dict.fromkeys(AOA_DROPOUTS, 0.0) | {"num_attention_heads": 2}
    model = convert_reference(tmp_path / "model.pth", **WITHOUT_DROPOUT, **options).train()
    inputs = batch(dtype=torch.float64, outputs=11)
    loss = model(**inputs, num_items_in_batch=4).loss
    loss.backward()
    weights = {name: weight.requires_grad_() for name, weight in weights.items()}
    written_out = updown if kind == "updown" else aoanet
    expected = 0
    for row, image in enumerate(inputs["image_index"]):
        regions = inputs["region_features"][image, : inputs["region_mask"][image].sum()]
        words = inputs["input_ids"][row, : inputs["attention_mask"][row].sum()]
        logits = written_out(weights, regions, words[:-1].tolist())
        expected = expected + functional.cross_entropy(logits, words[1:], reduction="sum") / 4
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    pairs = {
        "lm_head.weight": "logit.weight",
        "model.word_embedding.weight": "embed.0.weight",
        "model.region_embedding.linear.weight": "att_embed.0.weight",
        "model.attention_lstm.hidden.weight": "core.att_lstm.weight_hh",
        "model.attention_lstm.words.bias": "core.att_lstm.bias_ih",
    }
    for ours, theirs in pairs.items():
        torch.testing.assert_close(
            model.get_parameter(ours).grad,
            weights[theirs].grad,
            rtol=1e-4,
            atol=1e-6,
            msg=lambda m, n=ours: f"{n}: {m}",
        )
    words = {"updown": slice(16, 24), "aoanet": slice(0, 8)}[kind]
    torch.testing.assert_close(
        model.model.attention_lstm["words"].weight.grad,
        weights["core.att_lstm.weight_ih"].grad[:, words],
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_in_training_is_that_in_evaluation(kind):
    model = build(kind, dropouts=False)
    inputs = batch()
    evaluated = model.eval()(**inputs)
    assert evaluated.logits.shape == (5, 7, 12)
    trained = model.train()(**inputs)
    assert trained.logits is None
    sizes = []
    layer = model.model.key if kind == "updown" else model.model.value_key
    handle = layer.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    model(**inputs)
    handle.remove()
    assert sizes == [3]  # each image's keys once, whatever texts read it
    torch.testing.assert_close(trained.loss, evaluated.loss)
    pairs = {name: value for name, value in inputs.items() if name != "image_index"}
    for name in ("region_features", "region_mask"):
        pairs[name] = pairs[name][inputs["image_index"]]
    torch.testing.assert_close(model(**pairs).loss, trained.loss)
    nothing = model(**{**inputs, "labels": torch.full((5, 7), -100)}, num_items_in_batch=1).loss
    assert nothing == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_dropout_is_one(kind):
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    model = build(kind, dropouts=False)
    expected = model.eval()(**inputs).logits
    torch.testing.assert_close(model.train()(**inputs).logits, expected)
    for name in (*WITHOUT_DROPOUT, *(AOA_DROPOUTS if kind == "aoanet" else ())):
        model = build(kind, dropouts=False, **{name: 0.9})
        torch.testing.assert_close(model.eval()(**inputs).logits, expected)
        assert (model.train()(**inputs).logits - expected).abs().max() > 1e-4, name


def sampled_by_hand(model, inputs, probability, seed):
    """Logits of each caption under scheduled sampling, word by word."""
    words, mask = inputs["input_ids"], inputs["attention_mask"]
    sampling = SampledWords(probability, seed, model.lm_head)
    coins, picks = (draws.view(words.shape) for draws in sampling.draws(words.numel()))
    logits, replaced = torch.zeros(*words.shape, model.config.vocab_size), 0
    for row, image in enumerate(inputs["image_index"]):
        state = {name: inputs[name][image][None] for name in ("region_features", "region_mask")}
        for place in range(int(mask[row].sum())):
            word = words[row, place]
            if place and coins[row, place]:
                shares = logits[row, place - 1].softmax(-1).double().cumsum(-1)
                word, replaced = (shares > picks[row, place] * shares[-1]).nonzero()[0, 0], replaced + 1
            outputs = model(word[None, None], **state, use_cache=True)
            state = {"cache": outputs[CACHE_NAME]}
            logits[row, place] = outputs.logits[0, 0]
    return logits, replaced


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("probability", [0.4, 1.0])
def test_scheduled_sampling_word_by_word(kind, probability):
    model = build(kind, dropouts=False).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(5)
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    with torch.no_grad():
        expected, replaced = sampled_by_hand(model, inputs, probability, seed=3)
        found = model(**inputs, sampling_probability=probability, sampling_seed=3)
    assert getattr(found, CACHE_NAME) is None
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(found.logits[tokens], expected[tokens])
    assert replaced == 17 if probability == 1 else 0 < replaced < 17
    plain = model(**inputs).logits
    torch.testing.assert_close(found.logits[:, 0], plain[:, 0])  # after the first token nothing is replaced
    assert (found.logits - plain)[tokens].abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_scheduled_sampling_is_a_function_of_its_seed(kind):
    """Whatever the state of the random stream, which it leaves as it is."""
    model = build(kind, dropouts=False).train()
    inputs = batch()
    losses = {}
    for seed in (1, 1, 2, 2**63 + 5):
        torch.manual_seed(len(losses))
        before = torch.get_rng_state()
        loss = model(**inputs, sampling_probability=0.5, sampling_seed=seed).loss
        assert torch.equal(torch.get_rng_state(), before)
        assert losses.setdefault(seed, loss.item()) == loss.item()
        loss.backward()
    assert len(set(losses.values())) == 3
    assert model(**inputs, sampling_probability=0.0, sampling_seed=1).loss == model(**inputs).loss


def test_how_often_words_are_replaced_and_by_which():
    sampling = SampledWords(0.25, 7, torch.nn.Identity())
    coins, picks = sampling.draws(40_000)
    assert coins.double().mean() == pytest.approx(0.25, abs=0.01)
    assert np.corrcoef(coins.double(), picks)[0, 1] == pytest.approx(0, abs=0.02)
    shares = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.3, 0.0])
    words = sampling.words(shares.log().expand(40_000, 6), picks)
    found = torch.bincount(words, minlength=6) / 40_000
    torch.testing.assert_close(found, shares, rtol=0, atol=0.01)
    assert found[shares == 0].sum() == 0
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sampling.words(shares.log().expand(2, 6), ends).tolist() == [1, 4]


def test_scheduled_sampling_that_cannot_be():
    model, inputs = build("updown"), batch()
    with pytest.raises(ValueError, match=r"sampling_probability=1\.5 is no probability"):
        model(**inputs, sampling_probability=1.5, sampling_seed=0)
    with pytest.raises(ValueError, match=r"sampling_probability=0\.5 without `sampling_seed`"):
        model(**inputs, sampling_probability=0.5)
    with pytest.raises(ValueError, match=r"sampling_probability=0\.5 together with a cache"):
        model(**inputs, sampling_probability=0.5, sampling_seed=0, cache=RecurrentCache())
    with pytest.raises(ValueError, match=r"sampling_probability=0\.5 together with a cache"):
        model(**inputs, sampling_probability=0.5, sampling_seed=0, use_cache=True)


def test_a_captioner_that_lacks_its_parts():
    model = RecurrentCaptionerModel(UpDownConfig(12, 8))
    with pytest.raises(NotImplementedError, match="RecurrentCaptionerModel has no `read_images`"):
        model.read_images(None)
    with pytest.raises(NotImplementedError, match="RecurrentCaptionerModel has no `step`"):
        model.step(None, (), ())


@pytest.mark.parametrize("dropout", ["feature_dropout", "word_dropout", "output_dropout", *AOA_DROPOUTS])
def test_dropouts_are_shares(dropout):
    with pytest.raises(ValueError, match=rf"{dropout}=1\.0 is no share of units to drop"):
        AoANetConfig(**{dropout: 1.0})


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind, tmp_path):
    model = build(kind).eval()
    inputs = batch()
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
    assert MODELS[kind] is type(model)
    for auto in (AutoModelForImageTextToText, AutoModelForCausalLM):
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is type(model)
        torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=0, atol=0)
    settings = loaded.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.suppress_tokens) == (5, 0.0, [11])


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision(kind):
    model = build(kind, dropouts=False, hidden_size=16)
    inputs = batch()
    expected = model.train()(**inputs).loss
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(**inputs, sampling_probability=1e-9, sampling_seed=0).loss
    torch.testing.assert_close(mixed, expected, rtol=0.02, atol=0)
    model.to(torch.bfloat16)
    loss = model(**inputs, sampling_probability=0.5, sampling_seed=0).loss
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
    torch.testing.assert_close(model(**inputs).loss, expected, rtol=0.02, atol=0)
    images = {name: inputs[name] for name in ("region_features", "region_mask")}
    assert model.eval().generate(**images, max_new_tokens=4).shape[0] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_a_store_in_half_precision(kind):
    """Large ones, whose sum float16 cannot hold."""
    model = build(kind, dropouts=False).eval()
    inputs = batch()
    features = inputs["region_features"].abs()
    inputs["region_features"] = (60_000 * features / features.max()).half()
    assert inputs["region_features"].sum(1).isinf().any()
    single = model(**inputs | {"region_features": inputs["region_features"].float()})
    torch.testing.assert_close(model(**inputs).logits, single.logits, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_low_rank_adapters_train(kind, tmp_path):
    from peft import PeftModel

    model = add_lora(build(kind, dropouts=False), r=4)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found = {name.removeprefix("base_model.model.model.").partition(".lora_")[0] for name in trained}
    lstms = {
        "updown": {
            *("attention_lstm.image", "attention_lstm.language"),
            *("language_lstm.attended", "language_lstm.attention", "language_lstm.hidden"),
        },
        "aoanet": {"attention_lstm.context"},
    }
    assert found == {"query", "attention_lstm.words", "attention_lstm.hidden", *lstms[kind]}
    inputs = batch()
    optimizer = torch.optim.Adam(trained.values(), lr=0.05)
    losses = []
    for _ in range(20):
        loss = model.train()(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build(kind, dropouts=False), tmp_path)
    torch.testing.assert_close(loaded.eval()(**inputs).loss, model.eval()(**inputs).loss)
    images = {name: inputs[name] for name in ("region_features", "region_mask")}
    assert loaded.generate(**images, max_new_tokens=4).tolist() == model.generate(**images, max_new_tokens=4).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_vision_model_inside(kind):
    vision = ViTConfig(
        hidden_size=6, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
    )
    model = build(kind, dropouts=False, vision_config=vision, train_vision=True).train()
    inputs = {name: value for name, value in batch().items() if "region" not in name}
    images = {"pixel_values": torch.randn(3, 3, 8, 8)}
    model(**inputs, **images).loss.backward()
    assert model.model.vision.model.embeddings.patch_embeddings.projection.weight.grad.abs().sum() > 0
    assert model.eval().generate(**images, max_new_tokens=4).shape[0] == 3
