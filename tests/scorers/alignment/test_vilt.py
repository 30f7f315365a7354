from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_models as TINY
import torch
from datasets import Dataset, Features, Image, Value
from safetensors.torch import load_file, save_file
from transformers import ViltModel

from hf_curriculum import ViLTSimilarity, add_scores, read_provenance
from hf_curriculum.data.images import to_rgb
from hf_curriculum.provenance import score_values
from hf_curriculum.scorers.visual import images

ROWS = {  # images of three sizes after resizing
    "image": [TINY.png(40, 60), TINY.png(60, 40, 1), TINY.png(64, 64, 2), TINY.png(44, 66, 3), TINY.png(40, 60)],
    "caption": ["a dog", "two dogs sleep in the park", "a man rides a bike", "a red ball", "the cat runs"],
    "image_id": ["0", "1", "2", "3", "0"],
}


def naive_matching(image, caption):
    """Both logits of the matching head, its weights applied by hand."""
    model = ViltModel.from_pretrained(TINY.vilt_matching()).eval()
    model.config.max_image_length = -1
    head = load_file(Path(TINY.vilt_matching()) / "model.safetensors")
    with torch.no_grad():
        pooled = model(**TINY.vilt_inputs(image, caption)).pooler_output[0]
    return (head["itm_score.fc.weight"] @ pooled + head["itm_score.fc.bias"]).numpy()


def each_pair(function):
    return np.array([function(*pair) for pair in zip(ROWS["image"], ROWS["caption"], strict=True)])


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_batches_equal_one_by_one(batch_size):
    scores = ViLTSimilarity(TINY.vilt(), batch_size=batch_size)(ROWS)
    expected = each_pair(TINY.naive_vilt_logit)
    np.testing.assert_allclose(scores["vilt_similarity"], expected, rtol=1e-4)
    np.testing.assert_allclose(scores["vilt_probability"], 1 / (1 + np.exp(-expected)), rtol=1e-5)
    assert len(np.unique(scores["vilt_similarity"])) == 5


def test_the_two_way_head():
    """The log-odds of the softmax, so that its sigmoid is the softmax; or the match row alone."""
    logits = each_pair(naive_matching)  # (rows, 2)
    both = ViLTSimilarity(TINY.vilt_matching(), "matching")(ROWS)
    np.testing.assert_allclose(both["vilt_similarity"], logits[:, 1] - logits[:, 0], rtol=1e-4)
    softmax = np.exp(logits[:, 1]) / np.exp(logits).sum(1)
    np.testing.assert_allclose(both["vilt_probability"], softmax, rtol=1e-5)
    row = ViLTSimilarity(TINY.vilt_matching(), "match_row", probability=None)(ROWS)
    assert list(row) == ["vilt_similarity"]
    np.testing.assert_allclose(row["vilt_similarity"], logits[:, 1], rtol=1e-4)


@pytest.mark.parametrize("kind", ["original", "plain", "safetensors"])
def test_the_head_from_the_original_weights(kind, tmp_path):
    """A conversion dropped the head; the original checkpoint has it among weights under other names."""
    converted = tmp_path / "converted"
    shutil.copytree(TINY.vilt_matching(), converted)
    weights = load_file(converted / "model.safetensors")
    head = {name: weights.pop(name) for name in list(weights) if name.startswith("itm_score")}
    save_file(weights, converted / "model.safetensors", metadata={"format": "pt"})
    others = {**head, "transformer.norm.weight": torch.ones(3)}
    file = tmp_path / f"vilt.{'safetensors' if kind == 'safetensors' else 'ckpt'}"
    if kind == "safetensors":
        save_file(others, file)
    else:
        torch.save({"state_dict": others} if kind == "original" else others, file)
    with pytest.raises(ValueError, match=r"dropped the matching head `itm_score`: give the original"):
        ViLTSimilarity(str(converted), "matching")(ROWS)
    found = ViLTSimilarity(str(converted), "matching", matching_weights=file)(ROWS)
    expected = ViLTSimilarity(TINY.vilt_matching(), "matching")(ROWS)
    np.testing.assert_allclose(found["vilt_similarity"], expected["vilt_similarity"], rtol=1e-5)


class Payload:
    """Something other than weights."""


def test_files_without_the_head(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"vilt.ckpt does not exist. It should hold ViLT's matching head"):
        ViLTSimilarity(TINY.vilt(), "matching", matching_weights=tmp_path / "vilt.ckpt")(ROWS)
    torch.save({"state_dict": {"rank_output.weight": torch.ones(1)}}, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match=r"has no 'itm_score.fc.weight' among its 1 weights"):
        ViLTSimilarity(TINY.vilt(), "matching", matching_weights=tmp_path / "other.ckpt")(ROWS)
    torch.save({"state_dict": {}, "callbacks": Payload()}, tmp_path / "objects.ckpt")
    with pytest.raises(ValueError, match="cannot be read as weights alone"):
        ViLTSimilarity(TINY.vilt(), "matching", matching_weights=tmp_path / "objects.ckpt")(ROWS)


def test_models_that_are_not_there_or_lack_the_head():
    with pytest.raises(FileNotFoundError, match="no 'no/such-vilt'"):
        ViLTSimilarity("no/such-vilt")(ROWS)
    with pytest.raises(ValueError, match=r"lacks 2 weights of a ViltForImageAndTextRetrieval, such as 'rank_output"):
        ViLTSimilarity(TINY.vilt_matching())(ROWS)


def test_an_image_is_opened_once_for_its_captions(monkeypatch):
    opened = []
    monkeypatch.setattr(images, "to_rgb", lambda image: opened.append(0) or to_rgb(image))
    ViLTSimilarity(TINY.vilt())(ROWS)
    assert len(opened) == 4
    ViLTSimilarity(TINY.vilt())({column: ROWS[column] for column in ("image", "caption")})
    assert len(opened) == 4 + 5


def test_the_logit_tells_apart_where_the_sigmoid_saturates(tmp_path):
    shutil.copytree(TINY.vilt(), tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["rank_output.bias"] += 30
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    scores = ViLTSimilarity(str(tmp_path))(ROWS)
    assert set(scores["vilt_probability"]) == {1.0}
    assert len(set(scores["vilt_similarity"])) == 5


def test_what_cannot_be_scored_and_what_is_too_long(caplog):
    rows = {
        "image": [TINY.png(40, 60), {"bytes": b"no", "path": None}, None, TINY.png(1, 1), TINY.png(20, 20_000)]
        + [TINY.png(40, 60)] * 3,
        "caption": ["", "a dog", "a dog", "a dog", "a dog", "dog " * 10_000, "dog " * 38, None],
    }
    scorer = ViLTSimilarity(TINY.vilt())
    scores = scorer(rows)
    for found in scores.values():
        np.testing.assert_array_equal(np.isnan(found), [True, True, True, False, True, False, False, True])
    assert scores["vilt_similarity"][5] == pytest.approx(scores["vilt_similarity"][6], rel=1e-5)
    assert "1 of 6 captions are longer than 40 tokens" in caplog.text
    assert "3 images cannot be scored (NaN)" in caplog.text
    assert scorer.num_truncated == 1
    only = scorer({"image": [TINY.png(20, 20_000)], "caption": ["a dog"]})
    assert np.isnan(only["vilt_similarity"]).all()
    assert "20000 x 20 pixels is too long and thin" in caplog.text


def test_the_global_random_numbers_go_on_as_before():
    scorer = ViLTSimilarity(TINY.vilt())
    scorer(ROWS)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = scorer(ROWS)["vilt_similarity"]
    assert torch.equal(torch.rand(2), expected)
    np.testing.assert_array_equal(scorer(ROWS)["vilt_similarity"], first)


def test_added_to_images_of_which_one_is_damaged():
    features = Features({"image": Image(), "caption": Value("string"), "image_id": Value("string")})
    rows = {**ROWS, "image": [*ROWS["image"][:3], {"bytes": b"\x89PNG damaged", "path": None}, ROWS["image"][4]]}
    scored = add_scores(Dataset.from_dict(rows, features=features), ViLTSimilarity(TINY.vilt()), batch_size=2)
    found, expected = score_values(scored, "vilt_similarity"), each_pair(TINY.naive_vilt_logit)
    np.testing.assert_allclose(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]], rtol=1e-4)
    assert np.isnan(found[3])
    made = read_provenance(scored)
    assert made["vilt_similarity"].easy == made["vilt_probability"].easy == "high"
    assert (made["vilt_similarity"].model, made["vilt_similarity"].backend) == (TINY.vilt(), "pil")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": "itc"}, "`head` is 'itc'"),
        ({"easy": "middle"}, "`easy` is 'middle'"),
        ({"matching_weights": "x.ckpt"}, 'has no effect with `head="retrieval"`'),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ViLTSimilarity("vilt", **arguments)
