from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_models as TINY
import torch
from datasets import Dataset, Features, Image, Value
from datasets.fingerprint import Hasher
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
)

import hf_curriculum.models  # noqa: F401  (makes the library's captioners known to the Auto classes)
from hf_curriculum import ModelLoss, add_scores, make_image_processor, read_provenance
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.processors import CaptionProcessor
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.models.flamingo.model import CaptionFlamingoModel
from hf_curriculum.models.git.model import CaptionGitModel
from hf_curriculum.provenance import score_values

MODELS = ["git", "flamingo", "stock_git", "blip", "encoder_decoder"]
IMAGES = [TINY.png(20, 30, seed) for seed in range(3)]
ROWS = {
    "image": [IMAGES[0], IMAGES[1], IMAGES[0], IMAGES[2]],
    "caption": ["a dog runs in the park", "a cat", "two dogs and a man sleep on the bike", "a red ball"],
    "image_id": ["0", "1", "0", "2"],
}


def folder(name):
    return getattr(TINY, name)()


def losses(scorer, rows=ROWS):
    return scorer(rows)["model_loss"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_batches_equal_the_models_own_loss(name, batch_size):
    found = losses(ModelLoss(folder(name), batch_size=batch_size))
    expected = [TINY.naive_model_loss(name, *pair) for pair in zip(ROWS["image"], ROWS["caption"], strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_image_counts(name):
    rows = {"image": IMAGES, "caption": ["a red ball"] * 3}
    found = losses(ModelLoss(folder(name)), rows)
    assert np.abs(np.diff(found)).min() > 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_is_per_scored_token(name):
    rows = {column: values[1:2] for column, values in ROWS.items()}
    total, mean = (losses(ModelLoss(folder(name), reduction=reduction), rows)[0] for reduction in ("sum", "mean"))
    # [CLS] a cat [SEP]; encoder-decoders score [CLS] too
    tokens = len(TINY.tokenizer()("a cat")["input_ids"]) - (name != "encoder_decoder")
    assert total == pytest.approx(mean * tokens, rel=1e-5)


@pytest.mark.parametrize(("name", "model"), [("git", CaptionGitModel), ("flamingo", CaptionFlamingoModel)])
def test_an_image_is_encoded_once_for_its_captions(monkeypatch, name, model):
    seen, encode = [], model.encode_images
    monkeypatch.setattr(
        model, "encode_images", lambda self, pixels, *rest: seen.append(len(pixels)) or encode(self, pixels)
    )
    together = losses(ModelLoss(folder(name)))
    assert seen == [3]  # four rows, three images
    apart = losses(ModelLoss(folder(name)), {column: ROWS[column] for column in ("image", "caption")})
    assert seen == [3, 4]
    np.testing.assert_allclose(together, apart, rtol=1e-5)


def test_what_cannot_be_scored_and_what_is_too_long(caplog):
    rows = {
        "image": [IMAGES[0], {"bytes": b"no picture", "path": None}, None, TINY.png(1, 1), TINY.png(20, 20_000)]
        + [IMAGES[0]] * 3,
        "caption": ["", "a dog", "a dog", "a dog", "a dog", "dog " * 10_000, "dog " * 48, None],
    }
    scorer = ModelLoss(TINY.git())
    found = losses(scorer, rows)
    np.testing.assert_array_equal(np.isnan(found), [True, True, True, False, False, False, False, True])
    assert found[5] == pytest.approx(found[6], rel=1e-6)  # [CLS], 48 words, [SEP]
    assert "1 of 6 captions are longer than 50 tokens" in caplog.text
    assert "2 images cannot be scored (NaN)" in caplog.text
    assert scorer.num_truncated == 1
    with pytest.raises(TypeError, match="`caption` in row 0 of the batch is a int"):
        losses(scorer, {"image": [None], "caption": [3]})


def test_the_image_s_token_counts_among_the_most():
    rows = {"image": IMAGES[:2], "caption": ["a red ball", "a red dog"]}
    cut = losses(ModelLoss(folder("flamingo"), max_length=5), rows)  # [CLS] <image> a red [SEP]
    whole = losses(ModelLoss(folder("flamingo")), {"image": IMAGES[:2], "caption": ["a red"] * 2})
    np.testing.assert_allclose(cut, whole, rtol=1e-6)


def test_a_tokenizer_without_the_image_s_token(tmp_path):
    TINY.tokenizer().save_pretrained(tmp_path)
    make_image_processor(16).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"Token \d+ is the placeholder of an image, but the tokenizer"):
        losses(ModelLoss(folder("flamingo"), str(tmp_path)))


@pytest.mark.parametrize("name", ["git", "encoder_decoder"])
def test_a_tokenizer_that_writes_no_end_is_given_one(name, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder(name))
    tokenizer.backend_tokenizer.post_processor = None
    assert tokenizer("a")["input_ids"] == tokenizer("a", add_special_tokens=False)["input_ids"]
    tokenizer.save_pretrained(tmp_path)
    make_image_processor(16).save_pretrained(tmp_path)
    rows = {"image": IMAGES[:2], "caption": ["a", "a red ball"]}
    found = losses(ModelLoss(folder(name), str(tmp_path)), rows)
    if name == "git":
        np.testing.assert_array_equal(found, losses(ModelLoss(TINY.git()), rows))
    else:  # [SEP] alone: its decoder makes its own beginning
        assert np.isfinite(found).all()
        assert (found < losses(ModelLoss(folder(name)), rows)).all()


def test_a_tokenizer_with_more_words_than_the_model(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY.git())
    tokenizer.add_tokens(["zork77"])
    tokenizer.save_pretrained(tmp_path)
    make_image_processor(16).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"The tokenizer of .* up to 'zork77' with the id \d+, and the Caption"):
        losses(ModelLoss(TINY.git(), str(tmp_path)))


def test_added_to_images_of_which_one_is_damaged():
    features = Features({"image": Image(), "caption": Value("string"), "image_id": Value("string")})
    rows = {**ROWS, "image": [*ROWS["image"][:3], {"bytes": b"\x89PNG damaged", "path": None}]}
    data = Dataset.from_dict(rows, features=features)
    scored = add_scores(data, ModelLoss(TINY.git()), batch_size=3)
    found = score_values(scored, "model_loss")
    np.testing.assert_allclose(found[:3], losses(ModelLoss(TINY.git()))[:3], rtol=1e-4)
    assert np.isnan(found[3])
    made = read_provenance(scored)["model_loss"]
    assert (made.model, made.backend, made.easy) == (TINY.git(), "pil", "low")


def test_models_that_are_not_there_or_of_another_kind():
    with pytest.raises(FileNotFoundError, match="no 'no/such-model'"):
        losses(ModelLoss("no/such-model"))
    with pytest.raises(FileNotFoundError, match="no 'no/such-processor'"):
        losses(ModelLoss(TINY.git(), "no/such-processor"))
    with pytest.raises(ValueError, match="has no `decoder_start_token_id`"):
        losses(ModelLoss(TINY.encoder_decoder(None)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"reduction": "max"}, "`reduction` is 'max'"), ({"easy": "middle"}, "`easy` is 'middle'")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ModelLoss("git", **arguments)


class TestRegions:
    ROWS = {name: ROWS[name] for name in ("image_id", "caption")}  # noqa: RUF012

    def naive(self, image_id, caption, dims=6, **options):
        """The captioner's own training loss of one pair."""
        model, inputs = AutoModelForImageTextToText.from_pretrained(TINY.region_transformer(dims)).eval(), []
        inputs = RegionInputs(TINY.region_store(), **options).batch([{"image_id": image_id}])
        ids = TINY.tokenizer()([caption], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            return model(input_ids=ids, labels=ids, **inputs).loss.item() * (ids.shape[1] - 1)

    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_losses_equal_the_models_own(self, batch_size):
        scorer = ModelLoss(TINY.region_transformer(), regions=TINY.region_archive(), batch_size=batch_size)
        assert scorer.columns == ("image_id", "caption")
        found = losses(scorer, self.ROWS)
        expected = [self.naive(*pair) for pair in zip(*self.ROWS.values(), strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        rows = {"image_id": ["0", "1", "2"], "caption": ["a red ball"] * 3}
        assert np.abs(np.diff(losses(scorer, rows))).min() > 1e-4

    def test_options_are_those_of_training(self):
        options = {"box_values": True, "normalise": True}
        scorer = ModelLoss(TINY.region_transformer(11), regions=TINY.region_archive(), region_options=options)
        found = losses(scorer, {"image_id": ["2"], "caption": ["a dog"]})
        assert found[0] == pytest.approx(self.naive("2", "a dog", 11, **options), rel=1e-4)
        with pytest.raises(ValueError, match=r"region_features has the shape .*another detector or another choice"):
            losses(ModelLoss(TINY.region_transformer(11), regions=TINY.region_archive()), self.ROWS)

    def test_images_without_regions_are_counted(self, caplog):
        rows = {"image_id": ["9", "0", None, "9"], "caption": ["a dog"] * 4}
        found = losses(ModelLoss(TINY.region_transformer(), regions=TINY.region_archive()), rows)
        np.testing.assert_array_equal(np.isnan(found), [True, False, True, True])
        assert "2 images cannot be scored (NaN). The first: RegionArchive" in caplog.text

    def test_the_store_stands_in_the_provenance_and_in_the_key(self, tmp_path):
        data = Dataset.from_dict(self.ROWS)
        scored = add_scores(data, ModelLoss(TINY.region_transformer(), regions=TINY.region_archive()))
        made = read_provenance(scored)["model_loss"].arguments
        assert (made["regions"]["type"], made["regions"]["path"]) == ("RegionArchive", "regions.npz")
        without = ModelLoss(TINY.git())
        assert not {"regions", "region_options"} & set(without.arguments())
        keys, path = set(), tmp_path / "store.npz"
        for width in (6, 7):
            np.savez(path, **{"0/features": np.ones((1, width), np.float32), "0": [[0, 0, 1, 1]]})
            keys.add(Hasher.hash(ModelLoss(TINY.region_transformer(), regions=path)))
        assert len(keys) == 2
        opened = ModelLoss(TINY.region_transformer(), regions=open_regions(path))
        assert Hasher.hash(opened) in keys

    def test_what_does_not_fit_the_model(self, tmp_path):
        with pytest.raises(ValueError, match=r"`regions` were given, but '.*git' is a CaptionGitForCausalLM"):
            losses(ModelLoss(TINY.git(), regions=TINY.region_archive()), self.ROWS)
        with pytest.raises(ValueError, match=r"without an image processor.*ModelLoss\(\.\.\., regions="):
            losses(ModelLoss(TINY.region_transformer()))
        with pytest.raises(FileNotFoundError, match="There are no regions at"):
            ModelLoss(TINY.region_transformer(), regions=tmp_path / "none.npz")

    def test_an_image_processor_that_finds_regions(self, tmp_path, monkeypatch):
        """A captioner that is saved with one reads images."""

        def from_pretrained(name, **options):
            return SimpleNamespace(image_processor=detector)

        def detector(images, return_tensors):
            features = np.stack([np.resize(np.asarray(image, np.float32) / 255, (2, 6)) for image in images])
            return {"region_features": torch.from_numpy(features)}

        monkeypatch.setattr(CaptionProcessor, "from_pretrained", from_pretrained)
        found = losses(ModelLoss(TINY.region_transformer(), batch_size=2))
        assert np.isfinite(found).all()
        assert len(set(found.tolist())) == 4
