"""`RegionTransformerForCausalLM` beside `nn.Transformer`, itself without a cache, and every caption there is."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Trainer,
    TrainingArguments,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "recipes" / "benchmarks"))
from captioners import SIZES as TIMED
from captioners import PaddedTransformer, as_padded, on_cpu

from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.names import MODELS
from hf_curriculum.tasks.captioning import RegionTransformerConfig, RegionTransformerForCausalLM
from hf_curriculum.tasks.captioning.models.transformer import ImageTextCache, RegionTransformerModel, sinusoids

FEATURES = 6
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feature_dropout": 0.0}
SIZES = {
    "hidden_size": 16,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "region_feature_size": FEATURES,
}


def tiny(words=12, seed=0, **options):
    torch.manual_seed(seed)
    model = RegionTransformerForCausalLM(RegionTransformerConfig(words, **{**SIZES, **STILL, **options}))
    for weight in model.parameters():  # as new, all captions are about as likely
        nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else nn.init.normal_(weight, 1.0, 0.2)
    return model.double()


def batch(words=12, images=3, regions=5, texts=7, seed=0):
    """Images with one to all regions, texts of one to eight words, some images with none."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([regions, 2, 1])[:images]
    region_mask = (torch.arange(regions) < counts[:, None]).long()
    lengths = torch.tensor([10, 3, 7, 5, 10, 4, 6])[:texts]
    mask = (torch.arange(10) < lengths[:, None]).long()
    ids = torch.randint(1, words - 1, (texts, 10), generator=generator) * mask
    ids[:, 0] = 0
    ids[torch.arange(texts), lengths - 1] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
        "region_features": torch.randn(images, regions, FEATURES, generator=generator).double()
        * region_mask[..., None],
        "region_mask": region_mask,
        "image_index": torch.tensor([2, 0, 0, 2, 0, 0, 2])[:texts],
    }


def apart(inputs):
    """The same with an image for each text."""
    index = inputs["image_index"]
    found = {name: value for name, value in inputs.items() if name != "image_index"}
    return found | {name: inputs[name][index] for name in ("region_features", "region_mask")}


def images_of(inputs):
    return {name: inputs[name] for name in ("region_features", "region_mask")}


def step(model, inputs):
    """Loss and gradients."""
    model.zero_grad(set_to_none=True)
    loss = model(**inputs).loss
    loss.backward()
    return loss.item(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def assert_same_step(found, expected, tolerance=1e-6):
    # The loss of labelled tokens alone is computed in float32.
    assert found[0] == pytest.approx(expected[0], abs=tolerance)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=tolerance, msg=name)


@pytest.mark.parametrize(("words", "parameters"), [(9488, 54_914_832), (7001, 52_365_657)])
def test_the_number_of_parameters(words, parameters):
    with torch.device("meta"):
        for norm in ("reference", "standard"):
            model = RegionTransformerForCausalLM(RegionTransformerConfig(words, norm=norm))
            assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert sum(weight.numel() for weight in model.model.encoder[0].parameters()) == 3_152_384
    assert sum(weight.numel() for weight in model.model.decoder[0].parameters()) == 4_204_032


def test_new_weights_are_the_reference_s():
    """Xavier-uniform, each of the projections on its own; words too; the region embedding is `torch`'s."""
    torch.manual_seed(0)
    model = RegionTransformerForCausalLM(RegionTransformerConfig(300, 64, 1, 1, 4, 128, region_feature_size=100)).model

    def bound(rows, columns):
        return (6 / (rows + columns)) ** 0.5

    model.requires_grad_(False)
    layer = model.decoder[0]
    for part in (*layer.attention.qkv.weight.chunk(3), *layer.image_attention.key_value.weight.chunk(2)):
        assert part.abs().max() == pytest.approx(bound(64, 64), rel=0.01)
    assert model.word_embedding.weight.abs().max() == pytest.approx(bound(300, 64), rel=0.01)
    assert model.region_embedding.linear.weight.abs().max() == pytest.approx(0.1, rel=0.01)
    assert layer.feed_forward.wide.weight.abs().max() == pytest.approx(bound(128, 64), rel=0.01)
    assert torch.equal(layer.norms[0].weight, torch.ones(64))


def test_positions_are_sines_and_cosines():
    table = sinusoids(4, 6)
    for position, at in itertools.product(range(4), range(3)):
        angle = torch.tensor(position / 10000 ** (2 * at / 6))
        torch.testing.assert_close(table[position, 2 * at], angle.sin())
        torch.testing.assert_close(table[position, 2 * at + 1], angle.cos())
    assert sinusoids(2, 5).shape == (2, 5)


def test_it_is_an_nn_transformer():
    """With its norm, on padded captions: the same loss, and the same gradient of every weight."""
    ours, inputs = tiny(norm="standard").train(), batch()
    inputs["region_features"] = torch.randn(3, 5, FEATURES).double()
    del inputs["region_mask"]
    padded = PaddedTransformer(ours).double().train()
    expected = step(padded, inputs)
    loss, gradients = step(ours, inputs)
    assert_same_step((loss, as_padded(gradients)), expected)


def test_the_benchmark_compares_equal_steps():
    """It says so itself: losses or gradients that differ are an error."""
    found = on_cpu(TIMED["tiny"], 1)
    assert len(found["seconds"]) == 4
    assert found["largest difference of a gradient"]["float64"] < 1e-6


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_texts_share_images_and_padding_is_left_out(attention):
    """In training on labelled tokens alone, in evaluation on all: one loss, whether images are shared or not."""
    model, inputs = tiny(attn_implementation=attention), batch()
    assert model.config._attn_implementation == attention
    expected = step(model.eval(), apart(inputs))
    for mode, given in itertools.product((True, False), (inputs, apart(inputs))):
        assert_same_step(step(model.train(mode), given), expected)
    # Longest caption apart, and tokens whose labels are left out.
    partly = inputs["labels"].clone()
    partly[1:, 4:] = -100
    partly[3] = -100
    expected = step(model.eval(), apart({**inputs, "labels": partly}))
    assert_same_step(step(model.train(), {**inputs, "labels": partly}), expected)
    assert torch.isnan(model(**{**inputs, "labels": torch.full_like(partly, -100)}).loss)


@pytest.mark.parametrize("dropout", sorted(STILL))
def test_each_dropout_drops(dropout):
    """In training alone, and nothing at 0."""
    inputs = batch()
    for share, varies in ((0.0, False), (0.5, True)):
        model = tiny(**{dropout: share}).train()
        losses = {round(model(**inputs).loss.item(), 7) for _ in range(3)}
        assert (len(losses) == 3) == varies
        model.eval()
        assert len({model(**inputs).loss.item() for _ in range(2)}) == 1


def test_an_image_is_encoded_once_for_its_captions():
    model, inputs, seen = tiny().train(), batch(), []
    model.model.encoder[0].feed_forward.register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    model.model.decoder[0].image_attention.key_value.register_forward_hook(
        lambda module, args, output: seen.append(args[0].shape)
    )
    model(**inputs)
    assert seen == [(1, 5 + 2 + 1, 16), (3, 5, 16)]  # regions without padding, keys of three images
    seen.clear()
    model.eval().generate(**images_of(inputs), max_new_tokens=4)
    assert seen == [(1, 8, 16), (3, 5, 16)]  # five beams, four steps


def test_more_padding_changes_nothing():
    model, inputs = tiny().eval(), batch()
    wider = dict(inputs)
    wider["region_features"] = nn.functional.pad(inputs["region_features"], (0, 0, 0, 4))
    wider["region_mask"] = nn.functional.pad(inputs["region_mask"], (0, 4))
    for name, value in (("input_ids", 0), ("attention_mask", 0), ("labels", -100)):
        wider[name] = nn.functional.pad(inputs[name], (0, 3), value=value)
    found, expected = model(**wider), model(**inputs)
    real = inputs["attention_mask"] != 0
    torch.testing.assert_close(found.logits[:, :10][real], expected.logits[real], rtol=0, atol=1e-12)
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-12)
    for beams in (1, 4):
        first, second = (model.generate(**images_of(given), num_beams=beams) for given in (wider, inputs))
        assert torch.equal(first, second)


def test_a_cache_goes_on_where_it_was():
    model, inputs = tiny().eval(), batch()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    images = {name: inputs[name] for name in ("region_features", "region_mask", "image_index")}
    whole = model(ids, attention_mask=mask, **images).logits
    for cuts in ((1, 2, 3, 4), (4,), (2, 9)):
        parts, cache = [], None
        for start, stop in itertools.pairwise((0, *cuts, 10)):
            given = images if cache is None else {}
            outputs = model(ids[:, start:stop], attention_mask=mask[:, :stop], cache=cache, use_cache=True, **given)
            cache = outputs[CACHE_NAME]
            parts.append(outputs.logits)
        real = mask != 0
        torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], rtol=0, atol=1e-12)
    assert isinstance(cache, ImageTextCache)
    assert cache.get_seq_length() == 10


def test_a_cache_of_other_texts():
    """Reordered, chosen and repeated texts keep their images."""
    model, inputs = tiny().eval(), batch()
    ids = inputs["input_ids"][:, :4]
    images = {name: inputs[name] for name in ("region_features", "region_mask", "image_index")}

    def next_scores(change, order):
        cache = model(ids, use_cache=True, **images)[CACHE_NAME]
        change(cache)
        index = images["image_index"][order]
        expected = model(ids[order], **{**images, "image_index": index}, use_cache=True)[CACHE_NAME]
        token = torch.full((len(order), 1), 3)
        found, expected = (model(token, cache=kept).logits for kept in (cache, expected))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    order = torch.tensor([3, 3, 0, 1, 6, 5, 4])
    next_scores(lambda cache: cache.reorder_cache(order), order)
    next_scores(lambda cache: cache.batch_select_indices(order[:3]), order[:3])
    next_scores(lambda cache: cache.batch_repeat_interleave(2), torch.arange(7).repeat_interleave(2))


@pytest.mark.parametrize(
    "options", [{"num_beams": 1}, {}, {"num_beams": 1, "do_sample": True, "num_return_sequences": 3}]
)
def test_generation_with_and_without_a_cache(options):
    model, inputs = tiny().eval(), batch()
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        found.append(model.generate(**images_of(inputs), use_cache=use_cache, max_new_tokens=8, **options))
    assert torch.equal(*found)
    if "do_sample" not in options:
        index = torch.tensor([1, 0, 0, 2])
        shared = model.generate(**images_of(inputs), image_index=index, max_new_tokens=8, **options)
        assert torch.equal(shared, found[0][index])
        encoded = model.encode_images(**images_of(inputs))
        assert torch.equal(model.generate(image_features=encoded, max_new_tokens=8, **options), found[0])


def test_beams_find_the_best_of_all_captions():
    """As many beams as there are prefixes of three words: the ten best of every caption of four steps, and their
    sums of log-probabilities."""
    words, steps = 4, 4
    model, inputs = tiny(words, unk_token_id=None).eval(), batch(words)
    images = images_of(inputs)
    captions = [
        (*said, 0) if len(said) < steps else said
        for length in range(steps + 1)
        for said in itertools.product(range(1, words), repeat=length)
    ]
    ids = torch.tensor([(0, *said, *[0] * (steps - len(said))) for said in captions])
    real = torch.tensor([[1] * len(said) + [0] * (steps - len(said)) for said in captions])
    found = model.generate(
        **images,
        num_beams=(words - 1) ** 3,
        num_return_sequences=10,
        max_new_tokens=steps,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for image in range(3):
        index = torch.full((len(ids),), image)
        logits = model(ids, **images, image_index=index).logits[:, :-1].log_softmax(-1)
        sums = (logits.gather(2, ids[:, 1:, None])[..., 0] * real).sum(1)
        best = sums.topk(10)
        rows = slice(10 * image, 10 * image + 10)
        torch.testing.assert_close(found.sequences_scores[rows].double(), best.values, rtol=0, atol=1e-5)
        written = [row + [0] * (steps + 1 - len(row)) for row in found.sequences[rows].tolist()]
        assert written == ids[best.indices].tolist()


def test_it_is_saved_and_found_by_the_auto_classes(tmp_path):
    model, inputs = tiny().float().eval(), batch()
    inputs["region_features"] = inputs["region_features"].float()
    model.generation_config.num_beams = 2
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is RegionTransformerConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is RegionTransformerModel
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText, RegionTransformerForCausalLM):
        loaded = auto.from_pretrained(tmp_path).eval()
        assert type(loaded) is MODELS["transformer"] is RegionTransformerForCausalLM
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
        assert loaded.generation_config.num_beams == 2
        assert loaded.generation_config.suppress_tokens == [11]
    tied = tiny(tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.word_embedding.weight
    tied.resize_token_embeddings(15)
    assert tied(torch.tensor([[0, 14]]), region_features=inputs["region_features"][:1].double()).logits.shape[-1] == 15
    outputs = model(**inputs, return_dict=False)
    assert torch.equal(outputs[1], model(**inputs).logits)


def test_lora_trains_alone(tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    model, inputs = tiny().train(), batch()
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["qkv", "query"], task_type="CAUSAL_LM")).double()
    optimizer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.02)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = adapted(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all((weight.grad is not None) == ("lora" in name) for name, weight in adapted.named_parameters())
    adapted.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny(), tmp_path).double().eval()
    assert again(**inputs).loss.item() == pytest.approx(adapted.eval()(**inputs).loss.item(), abs=1e-6)
    assert again.generate(**images_of(inputs), max_new_tokens=3).shape[0] == 3


def test_half_precision():
    model, inputs = tiny(), batch()
    expected = step(model.train(), inputs)[0]
    half = tiny().bfloat16().train()  # features stay float32, as they are read
    found, gradients = step(half, {**inputs, "region_features": inputs["region_features"].float()})
    assert found == pytest.approx(expected, rel=0.02)
    assert all(gradient.dtype == torch.bfloat16 and torch.isfinite(gradient).all() for gradient in gradients.values())
    assert half.eval().generate(**images_of(inputs), max_new_tokens=3).shape[0] == 3
    with torch.autocast("cpu", torch.bfloat16):
        mixed, _ = step(tiny().float().train(), {**inputs, "region_features": inputs["region_features"].float()})
    assert mixed == pytest.approx(expected, rel=0.02)


def test_smoothed_labels_are_those_of_the_next_token(tmp_path):
    model, inputs = tiny().eval(), batch()
    args = TrainingArguments(str(tmp_path), label_smoothing_factor=0.2, use_cpu=True, report_to="none")
    found = Trainer(model, args).compute_loss(model, dict(inputs))
    labels = inputs["labels"][:, 1:].flatten()
    logits = model(**inputs).logits[:, :-1].flatten(0, 1)
    torch.testing.assert_close(found, nn.functional.cross_entropy(logits, labels, label_smoothing=0.2))


def test_checkpointed_gradients_are_the_same():
    model, inputs = tiny().train(), batch()
    expected = step(model, inputs)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert_same_step(step(model, inputs), expected, tolerance=1e-12)


@pytest.mark.slow
def test_it_compiles_to_one_graph():
    model, inputs = tiny().train(), batch()
    expected = step(model, inputs)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for given in (inputs, apart(inputs)):
        model.zero_grad(set_to_none=True)
        loss = compiled(**given).loss
        loss.backward()
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
        assert_same_step((loss.item(), gradients), expected)


def test_it_learns_ten_images_by_heart():
    """Ten captions of four to eight words, written back word by word, with beams too."""
    torch.manual_seed(0)
    options = {**SIZES, **STILL, "hidden_size": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = RegionTransformerForCausalLM(RegionTransformerConfig(30, **options)).train()
    regions, mask = torch.randn(10, 4, FEATURES), torch.ones(10, 4, dtype=torch.int64)
    mask[::2, 2:] = 0
    lengths = torch.arange(10) % 5 + 4
    real = (torch.arange(10) < lengths[:, None] + 2).long()
    ids = torch.randint(1, 29, (10, 10)) * (torch.arange(10) < lengths[:, None] + 1)
    ids[:, 0] = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        labels = ids.masked_fill(real == 0, -100)
        model(ids, attention_mask=real, region_features=regions, region_mask=mask, labels=labels).loss.backward()
        optimizer.step()
    model.eval()
    for beams in (1, 5):
        written = model.generate(region_features=regions, region_mask=mask, num_beams=beams)
        assert nn.functional.pad(written, (0, 10 - written.shape[1])).tolist() == ids.tolist()


@pytest.mark.slow
def test_two_processes_train_as_one(launch, tmp_path):
    launch(Path(__file__), tmp_path / "one")
    launch(Path(__file__), tmp_path / "two", processes=2)
    one, two = (json.loads((tmp_path / name / "facts.json").read_text()) for name in ("one", "two"))
    assert one["losses"][-1] < one["losses"][0]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert two["captions"] == one["captions"]


def train(folder: Path) -> None:
    """Six steps of SGD on four images and eight captions, half of them on each of two processes."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    model, inputs = tiny().train(), batch(images=3, texts=6)
    wrapped = model
    if processes > 1:
        torch.distributed.init_process_group("gloo")
        wrapped = nn.parallel.DistributedDataParallel(model)
    tokens = int((inputs["labels"][:, 1:] != -100).sum())
    mine = slice(rank * 6 // processes, (rank + 1) * 6 // processes)
    texts = ("input_ids", "attention_mask", "labels", "image_index")
    part = {name: value[mine] if name in texts else value for name, value in inputs.items()}
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = wrapped(**part, num_items_in_batch=tokens).loss * processes  # gradients are averaged
        loss.backward()
        optimizer.step()
        mean = loss.detach() / processes
        if processes > 1:
            torch.distributed.all_reduce(mean)
        losses.append(mean.item())
    captions = model.eval().generate(**images_of(inputs), max_new_tokens=8).tolist()
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "facts.json").write_text(json.dumps({"losses": losses, "captions": captions}))
    if processes > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
