"""Models of `open_clip` behind the same scorer, built offline from tiny configurations."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from hf_curriculum import CLIPSimilarity
from hf_curriculum.scorers.alignment.clip import encode_texts
from hf_curriculum.scorers.alignment.clip_backends import parse_name

open_clip = pytest.importorskip("open_clip")

CAPTIONS = ["a dog", "two dogs and a cat sit on a red mat in a small room", "a red ball", "the cat"]
TEXT = {"context_length": 32, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
KINDS = {
    "clip": ({}, {}),  # one class, positions added whole
    "custom": ({"custom_text": True}, {}),  # the same text tower, by itself
    "linear": ({"custom_text": True}, {"proj_bias": True}),
    "eos": ({}, {"pool_type": "eos", "eos_id": 49407}),
    "siglip": ({"custom_text": True}, {"no_causal_mask": True, "pool_type": "last"}),
}


def folder_of(kind, path):
    """A random model in a folder, as `open_clip` saves them."""
    outer, inner = KINDS[kind]
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 8}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": {**TEXT, **inner}, **outer}
    (path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    torch.manual_seed(0)
    arguments = {name: value for name, value in config.items() if name != "custom_text"}
    model = (open_clip.CustomTextCLIP if outer else open_clip.CLIP)(**arguments)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2)
    torch.save(model.state_dict(), path / "open_clip_pytorch_model.bin")
    return str(path)


def picture(seed, size=(40, 30)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def one_by_one(folder, images):
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    words = open_clip.get_tokenizer(f"local-dir:{folder}")
    model.eval()
    with torch.inference_mode():
        pairs = [
            (model.encode_image(preprocess(image)[None]), model.encode_text(words([caption])))
            for image, caption in zip(images, CAPTIONS, strict=True)
        ]
    return np.float32([torch.cosine_similarity(*pair).item() for pair in pairs])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_unequal_texts_equal_one_pair_at_a_time(kind, tmp_path):
    folder = folder_of(kind, tmp_path)
    images = [picture(seed) for seed in range(4)]
    scorer = CLIPSimilarity(f"open_clip:local-dir:{folder}")
    found = scorer({"image": images, "caption": CAPTIONS})["clip_similarity"]
    expected = one_by_one(folder, images)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    towers, trim, _ = scorer.loaded()
    assert trim == (kind != "siglip")
    whole, _ = encode_texts(towers, CAPTIONS, 2, trim=False)
    cut, _ = encode_texts(towers, CAPTIONS, 2, trim=trim)
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_a_folder_is_known_by_its_configuration(tmp_path):
    folder = folder_of("clip", tmp_path)
    scorer = CLIPSimilarity(folder, batch_size=2)
    assert scorer.backend == "open_clip"
    assert scorer.revision is not None
    made = scorer.describe()
    assert (made.backend, made.arguments["backend"]) == ("pil", "open_clip")
    assert "open_clip_torch" in made.versions
    found = scorer({"image": [picture(0, (5000, 10))], "caption": ["a dog " * 500]})["clip_similarity"]
    assert np.isfinite(found).all()
    assert scorer._num_truncated == 1
    half = CLIPSimilarity(folder, dtype="bfloat16")({"image": [picture(0)] * 4, "caption": CAPTIONS})
    whole = CLIPSimilarity(folder)({"image": [picture(0)] * 4, "caption": CAPTIONS})
    np.testing.assert_allclose(half["clip_similarity"], whole["clip_similarity"], atol=5e-2)


def test_weights_of_an_architecture_from_a_file(tmp_path):
    folder = folder_of("clip", tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())["model_cfg"]
    registered = tmp_path / "tiny-for-a-test.json"
    registered.write_text(json.dumps(config))
    open_clip.add_model_config(registered)
    weights = str(tmp_path / "open_clip_pytorch_model.bin")
    scorer = CLIPSimilarity("open_clip:tiny-for-a-test", pretrained=weights)
    images = [picture(seed) for seed in range(4)]
    found = scorer({"image": images, "caption": CAPTIONS})["clip_similarity"]
    np.testing.assert_allclose(found, one_by_one(folder, images), rtol=1e-4, atol=1e-6)
    assert scorer.revision is not None
    assert scorer.describe().arguments["pretrained"] == weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "open_clip:ViT-B-32"}, "names no weights, and open_clip would make up random ones"),
        ({"model": "ViT-B-32", "backend": "open_clip"}, "names no weights"),
        ({"model": "open_clip:ViT-B-32/openai", "pretrained": "openai"}, "Weights are named twice"),
        ({"model": "open_clip:hf-hub:org/name", "pretrained": "openai"}, "Weights are named twice"),
        ({"model": "open_clip:ViT-B-32/openai", "revision": "main"}, "Name other weights by `pretrained=`"),
    ],
)
def test_names_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        CLIPSimilarity(**options)


def test_names():
    assert parse_name("open_clip:ViT-B-32/laion2b_s34b_b79k", None) == ("ViT-B-32", "laion2b_s34b_b79k")
    assert parse_name("ViT-B-32", "openai") == ("ViT-B-32", "openai")
    assert parse_name("open_clip:hf-hub:org/name", None) == ("hf-hub:org/name", None)
    assert CLIPSimilarity("open_clip:ViT-B-32/openai").revision is None


@pytest.mark.parametrize("model", ["open_clip:ViT-B-32/no-such-tag", "open_clip:no-such-one/openai"])
def test_a_model_that_is_not_there_is_named(model, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=r"open_clip found no .*Check both names"):
        CLIPSimilarity(model)({"image": [picture(0)], "caption": ["a dog"]})


def test_open_clip_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-curriculum\[clip\]'"):
        CLIPSimilarity("open_clip:ViT-B-32/openai")({"image": [picture(0)], "caption": ["a dog"]})
