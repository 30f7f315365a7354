"""Checkpoints of the reference code: golden values through `convert_reference`, and files that are none."""

from __future__ import annotations

import json
import math
import pickle

import pytest
import torch
from safetensors.torch import save_file

from hf_curriculum.tasks.captioning import RegionTransformerForCausalLM, convert_reference, reference_tokenizer

WIDTH, INNER, WORDS, FEATURES, LAYERS = 8, 16, 7, 6, 2


def reference_shapes():
    """Names and shapes of the reference's `transformer`, by its state dict."""
    shapes = {
        "att_embed.0.weight": (WIDTH, FEATURES),
        "att_embed.0.bias": (WIDTH,),
        "model.tgt_embed.0.lut.weight": (WORDS, WIDTH),
        "model.generator.proj.weight": (WORDS, WIDTH),
        "model.generator.proj.bias": (WORDS,),
    }
    for part, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "src_attn"])):
        for norm in ("a_2", "b_2"):
            shapes[f"model.{part}.norm.{norm}"] = (WIDTH,)
        for layer in range(LAYERS):
            name = f"model.{part}.layers.{layer}"
            for attention in attentions:
                for index in range(4):
                    shapes[f"{name}.{attention}.linears.{index}.weight"] = (WIDTH, WIDTH)
                    shapes[f"{name}.{attention}.linears.{index}.bias"] = (WIDTH,)
            shapes[f"{name}.feed_forward.w_1.weight"] = (INNER, WIDTH)
            shapes[f"{name}.feed_forward.w_1.bias"] = (INNER,)
            shapes[f"{name}.feed_forward.w_2.weight"] = (WIDTH, INNER)
            shapes[f"{name}.feed_forward.w_2.bias"] = (WIDTH,)
            for index in range(1 + len(attentions)):
                for norm in ("a_2", "b_2"):
                    shapes[f"{name}.sublayer.{index}.norm.{norm}"] = (WIDTH,)
    return shapes


def golden_weights(shapes):
    """The j-th of the sorted names is 0.2 · sin(1 + 0.37 i + 0.91 j) at its i-th number; norms are 1 more."""
    weights = {}
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        flat = torch.arange(math.prod(shape), dtype=torch.float64)
        weights[name] = (0.2 * torch.sin(1 + 0.37 * flat + 0.91 * number)).view(shape) + name.endswith("a_2")
    return weights


@pytest.fixture(scope="module")
def weights():
    return golden_weights(reference_shapes())


@pytest.fixture(scope="module")
def images():
    """Two images of three and two regions."""
    image, region, at = torch.meshgrid(*map(torch.arange, (2, 3, FEATURES)), indexing="ij")
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    features = 0.5 * torch.sin((1 + image + 2 * region + 3 * at).double()) * mask[..., None]
    return {"region_features": features, "region_mask": mask}


@pytest.fixture(scope="module")
def model(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "model.pth"
    buffer = torch.zeros(1, 5000, WIDTH)
    torch.save({**weights, "model.tgt_embed.1.pe": buffer}, path)
    return convert_reference(path, num_attention_heads=2)


def test_golden_log_probabilities(model, images):
    """Those of the reference code, the one behind the end of the second caption included."""
    assert type(model) is RegionTransformerForCausalLM
    assert not model.training
    assert model.dtype == torch.float64
    read = torch.tensor([[0, 3, 1, 4], [0, 5, 2, 0]])
    targets = torch.tensor([[3, 1, 4, 0], [5, 2, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    scores = model(read, attention_mask=mask, **images).logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]
    expected = [
        [-1.39097459, -1.15534652, -2.89262600, -2.82997270],
        [-1.66295449, -2.98192937, -2.71391794, -2.94455912],
    ]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_golden_captions(model, images):
    options = {"max_new_tokens": 5, "suppress_tokens": None}
    greedy = model.generate(**images, num_beams=1, **options)
    assert greedy[0].tolist() == [0, 1, 1, 1, 1, 1]
    found = model.generate(
        **images, num_beams=3, num_return_sequences=3, output_scores=True, return_dict_in_generate=True, **options
    )
    assert found.sequences[0].tolist() == [0, 1, 1, 1, 1, 1]
    expected = torch.tensor([-5.85460452, -5.95549556, -5.99905479])
    torch.testing.assert_close(found.sequences_scores[:3], expected, rtol=0, atol=1e-6)


def test_tensors_of_other_files_and_precisions(weights, images, model, tmp_path):
    save_file({f"module.{name}": value.float() for name, value in weights.items()}, tmp_path / "model.safetensors")
    (tmp_path / "cocotalk.json").write_text(json.dumps(dict(enumerate(["a", "b", "c", "d", "e", "UNK"], 1))))
    single = convert_reference(
        tmp_path / "model.safetensors",
        "transformer",
        vocabulary=tmp_path / "cocotalk.json",
        num_attention_heads=2,
        feature_dropout=0.4,
    )
    assert (single.dtype, single.config.feature_dropout) == (torch.float32, 0.4)
    ids = torch.tensor([[0, 3], [0, 5]])
    torch.testing.assert_close(
        single(ids, **images).logits.double(), model(ids, **images).logits, rtol=1e-4, atol=1e-5
    )


def changed(weights, **changes):
    """Names with `_` in place of dots: other tensors, or none."""
    found = dict(weights)
    for name, value in changes.items():
        found[name] = value
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.decoder.norm.b_2": None, "att_embed.0.bias": None},
            "2 weights .* missing: att_embed.0.bias; missing",
        ),
        ({"att_embed.1.running_mean": torch.zeros(8)}, "unknown: att_embed.1.running_mean"),
        ({"att_embed.0.bias": torch.zeros(9)}, r"shape: att_embed.0.bias \(9,\), not \(8,\)"),
        (
            {"model.encoder.layers.0.self_attn.linears.1.weight": torch.zeros(8, 9)},
            r"self_attn.linears.0.weight, .*linears.2.weight \(24, 8\), not \(24, 8\)",
        ),
        ({"model.encoder.layers.0.self_attn.linears.1.bias": torch.zeros(9)}, r"linears.2.bias \(25,\), not \(24,\)"),
        ({"att_embed.0.weight": None}, "lacks 'att_embed.0.weight', by which a transformer is built"),
        ({"model.generator.proj.weight": None}, "of no captioner that is known here"),
    ],
)
def test_weights_that_do_not_fit(weights, tmp_path, changes, message):
    torch.save(changed(weights, **changes), tmp_path / "model.pth")
    with pytest.raises(ValueError, match=message):
        convert_reference(tmp_path / "model.pth", num_attention_heads=2)


def test_another_kind(weights, tmp_path):
    torch.save(weights, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"are those of a transformer; .* Leave out `kind`"):
        convert_reference(tmp_path / "model.pth", "updown")
    with pytest.raises(ValueError, match="kind='bert' is no captioner of the reference code"):
        convert_reference(tmp_path / "model.pth", "bert")


class Runs:
    """What a pickle does that is loaded."""

    def __reduce__(self):
        return (print, ("it ran",))


def test_no_pickled_object_is_loaded(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        convert_reference(tmp_path / "model.pth")
    torch.save({"opt": Runs()}, tmp_path / "infos.pth")
    (tmp_path / "infos.pkl").write_bytes(pickle.dumps({"opt": Runs()}))
    for name in ("infos.pth", "infos.pkl"):
        with pytest.raises(ValueError, match="does not hold tensors alone"):
            convert_reference(tmp_path / name)
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds a list that is no dict of tensors"):
        convert_reference(tmp_path / "list.pth")
    assert capsys.readouterr().out == ""


def test_the_words_of_a_checkpoint(tmp_path):
    """As it numbered them; what it does not know is the last."""
    words = {"1": "dog", "3": "tshirt", "2": "a", "4": "UNK"}
    (tmp_path / "cocotalk.json").write_text(json.dumps({"ix_to_word": words, "images": []}))
    tokenizer = reference_tokenizer(tmp_path / "cocotalk.json")
    assert tokenizer(["A dog", "a purple T-shirt."]).input_ids == [[0, 2, 1, 0], [0, 2, 4, 3, 0]]
    assert tokenizer.decode([0, 2, 1, 0], skip_special_tokens=True) == "a dog"
    assert (len(tokenizer), tokenizer.unk_token_id) == (5, 4)


def test_a_vocabulary_of_another_run(weights, tmp_path):
    torch.save(weights, tmp_path / "model.pth")
    for name, words in {
        "more.json": [*"abcdef", "UNK"],
        "other.json": [*"abcdef"],
        "list.json": None,
        "empty.json": [],
    }.items():
        found = [] if words is None else {str(number): word for number, word in enumerate(words, start=1)}
        (tmp_path / name).write_text(json.dumps(found))
    (tmp_path / "late.json").write_text('{"2": "a", "3": "UNK"}')
    (tmp_path / "infos.pkl").write_bytes(pickle.dumps({"vocab": Runs()}))
    for name, message in {
        "more.json": "numbers 7 words, but the checkpoint has 7 outputs",
        "other.json": r"does not number words from 1 on, .*: it has 6",
        "list.json": "it has 0",
        "empty.json": "it has 0",
        "late.json": "it has 2",
        "infos.pkl": "is no JSON",
    }.items():
        with pytest.raises(ValueError, match=message):
            convert_reference(tmp_path / "model.pth", vocabulary=tmp_path / name, num_attention_heads=2)
