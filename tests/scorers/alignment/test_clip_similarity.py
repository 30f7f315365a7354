"""Cosines of CLIP's two vectors: against one pair at a time, for unequal texts, odd images and given vectors."""

from __future__ import annotations

import csv
import io
import json
import logging

import numpy as np
import pytest
import torch
from datasets import Dataset
from datasets import Image as ImageFeature
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)

from hf_curriculum import CLIPSimilarity, add_scores, read_provenance, train_wordpiece
from hf_curriculum.scorers.alignment import clip
from hf_curriculum.scorers.alignment import clip_backends as clip_open
from hf_curriculum.scorers.alignment.clip import OutOfDistributionCheck, can_trim, encode_texts, training_statistics
from hf_curriculum.scorers.alignment.clip_backends import Towers, crop_thin

CAPTIONS = [
    "a dog",
    "two dogs and a cat sit on a red mat in the middle of a very small room",
    "a red ball",
    "a cat",
    "the dog sits on a mat and the cat on a ball",
]
CONTEXT = 32
WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def tokenizer(context=CONTEXT):
    return train_wordpiece(CAPTIONS * 2, 120, max_length=context)


def loud(model, seed):
    """Random weights large enough that a forgotten token or pixel shows."""
    torch.manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random CLIP whose processor crops the middle, saved like any other."""
    folder, words = tmp_path_factory.mktemp("clip"), tokenizer()
    text = {**WIDTH, "vocab_size": len(words), "max_position_embeddings": CONTEXT}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    vision = {**WIDTH, "image_size": 32, "patch_size": 8}
    model = loud(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)), 0)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, resample=3
    ).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    """A random SigLIP: no causal mask, and the last position is read."""
    folder, words = tmp_path_factory.mktemp("siglip"), tokenizer()
    words.model_input_names = ["input_ids"]
    text = {**WIDTH, "vocab_size": len(words), "max_position_embeddings": CONTEXT, "projection_size": 32}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    vision = {**WIDTH, "image_size": 32, "patch_size": 8}
    loud(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)), 1).save_pretrained(folder)
    words.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


def picture(seed, size=(40, 30), mode="RGB"):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def stored(image, kind="png"):
    file = io.BytesIO()
    image.save(file, kind)
    return {"bytes": file.getvalue(), "path": None}


def one_by_one(folder, model_class, images, captions, padding=False):
    """The cosines by the model's own `forward`, one pair at a time."""
    model = model_class.from_pretrained(folder).eval()
    words, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder, backend="pil")
    cosines = []
    for image, caption in zip(images, captions, strict=True):
        text = words([caption], return_tensors="pt", truncation=True, max_length=CONTEXT, padding=padding)
        with torch.inference_mode():
            out = model(**text, **processor(images=[image], return_tensors="pt"))
        cosines.append(torch.cosine_similarity(out.image_embeds, out.text_embeds).item())
    return np.float32(cosines)


def scored(scorer, images, captions, **more):
    return scorer({"image": images, "caption": captions, **more})["clip_similarity"]


def towers_of(scorer):
    return scorer.loaded().towers


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_batches_of_unequal_texts_equal_one_pair_at_a_time(tiny, batch_size):
    images = [picture(seed) for seed in range(5)]
    scorer = CLIPSimilarity(tiny, batch_size=batch_size)
    expected = one_by_one(tiny, CLIPModel, images, CAPTIONS)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scored(scorer, images, CAPTIONS), expected, rtol=1e-4, atol=1e-6)
    assert scorer.loaded().trim


def test_siglip_gets_its_padding(siglip):
    images = [picture(seed) for seed in range(5)]
    scorer = CLIPSimilarity(siglip)
    expected = one_by_one(siglip, SiglipModel, images, CAPTIONS, padding="max_length")
    np.testing.assert_allclose(scored(scorer, images, CAPTIONS), expected, rtol=1e-4, atol=1e-6)
    assert not scorer.loaded().trim
    # what trimming would have done, and why it is tried on loading
    cut, _ = encode_texts(towers_of(scorer), CAPTIONS, 32, trim=True)
    whole, _ = encode_texts(towers_of(scorer), CAPTIONS, 32, trim=False)
    assert np.abs(cut - whole).max() > 1e-2


def test_a_trimmed_batch_is_no_longer_than_its_longest_caption(tiny, monkeypatch):
    scorer = CLIPSimilarity(tiny, batch_size=2)
    towers, lengths = towers_of(scorer), []
    encode = towers.encode_text

    def counted(inputs):
        lengths.append(inputs["input_ids"].shape[1])
        return encode(inputs)

    monkeypatch.setattr(towers, "encode_text", counted)
    scored(scorer, [picture(0)] * 5, CAPTIONS)
    assert lengths == sorted(lengths)
    assert lengths[-1] < CONTEXT


def test_a_context_too_short_to_try_is_not_trimmed():
    class Short(Towers):
        context = 4

        def tokens(self, captions):
            from hf_curriculum.scorers.alignment.clip_backends import Tokens

            return Tokens({"input_ids": torch.ones(3, 4, dtype=torch.long)}, np.full(3, 4))

    assert not can_trim(Short())


def test_a_caption_longer_than_the_context_is_truncated_and_reported(tiny, caplog):
    images, captions = [picture(0), picture(1)], ["a dog " * 5000, "a cat"]
    scorer = CLIPSimilarity(tiny)
    with caplog.at_level(logging.WARNING):
        found = scored(scorer, images, captions)
    np.testing.assert_allclose(found, one_by_one(tiny, CLIPModel, images, captions), rtol=1e-4, atol=1e-6)
    assert f"1 of 2 captions are longer than {CONTEXT} tokens" in caplog.text


def test_an_image_is_encoded_once_for_all_its_captions_and_a_caption_once(tiny, monkeypatch):
    scorer = CLIPSimilarity(tiny, batch_size=2)
    towers, seen, read = towers_of(scorer), [], []
    see, texts = towers.encode_image, towers.encode_text
    monkeypatch.setattr(towers, "encode_image", lambda pixels: seen.append(len(pixels)) or see(pixels))
    monkeypatch.setattr(towers, "encode_text", lambda inputs: read.append(len(inputs["input_ids"])) or texts(inputs))
    rows = {"image": [], "caption": [], "image_id": []}
    for number in (0, 1, 2, 0, 1, 2, 0):  # captions of an image are not side by side
        rows["image"].append(stored(picture(number)))
        rows["image_id"].append(str(number))
        rows["caption"].append(CAPTIONS[number])
    data = Dataset.from_dict(rows).cast_column("image", ImageFeature())
    found = np.array(add_scores(data, scorer)["clip_similarity"][:])
    assert sum(seen) == 3
    assert sum(read) == 3
    np.testing.assert_allclose(found[:3], found[3:6], rtol=1e-6)
    seen.clear()
    found = scored(scorer, rows["image"], rows["caption"])  # which rows share an image is unknown
    assert sum(seen) == 7
    np.testing.assert_allclose(found[:3], found[3:6], rtol=1e-6)


def test_an_image_without_a_readable_caption_is_not_decoded(tiny, monkeypatch):
    scorer = CLIPSimilarity(tiny)
    monkeypatch.setattr(towers_of(scorer), "encode_image", lambda pixels: pytest.fail("a picture was encoded"))
    assert np.isnan(scored(scorer, [picture(0)] * 3, ["", None, "  "])).all()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_modes_of_images(tiny, mode):
    image = picture(0, mode=mode)
    kind = "jpeg" if mode == "CMYK" else "png"
    assert np.isfinite(scored(CLIPSimilarity(tiny), [stored(image, kind)], ["a dog"])).all()


@pytest.mark.parametrize("model", [None, "tiny", "siglip"])
@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 3), (20_000, 20), (20, 20_000)])
def test_sizes_of_images(request, model, size):
    scorer = CLIPSimilarity(*([request.getfixturevalue(model)] if model else []))
    assert np.isfinite(scored(scorer, [picture(0, size)], ["a dog"])).all()


@pytest.mark.parametrize("size", [(700, 40), (701, 40), (41, 1003)])
def test_only_the_middle_of_a_thin_image_is_looked_at(tiny, size):
    image = picture(0, size)
    assert max(crop_thin(image).size) < max(size)
    found = scored(CLIPSimilarity(tiny), [image], ["a dog"])
    np.testing.assert_allclose(found, one_by_one(tiny, CLIPModel, [image], ["a dog"]), atol=2e-2)


def test_an_image_that_is_not_thin_is_left_alone():
    image = picture(0, (160, 10))
    assert crop_thin(image) is image


def test_unreadable_images_are_nan_and_counted(tiny, caplog):
    images = [{"bytes": b"no picture", "path": None}, None, stored(picture(0))]
    with caplog.at_level(logging.WARNING):
        found = scored(CLIPSimilarity(tiny), images, ["a dog"] * 3)
    assert np.isnan(found).tolist() == [True, True, False]
    assert "2 images cannot be scored" in caplog.text
    assert np.isnan(scored(CLIPSimilarity(tiny), images[:2], ["a dog"] * 2)).all()


def test_half_precision(tiny):
    images = [picture(seed) for seed in range(5)]
    found = scored(CLIPSimilarity(tiny, dtype="bfloat16"), images, CAPTIONS)
    # 8 bits in each of two towers, and cosines near 0 of a random model, which no relative bound fits
    np.testing.assert_allclose(found, one_by_one(tiny, CLIPModel, images, CAPTIONS), atol=5e-2)


def test_vectors_in_the_data_give_the_same(tiny):
    images = [picture(seed) for seed in range(5)]
    expected = scored(CLIPSimilarity(tiny), images, CAPTIONS)
    towers = towers_of(CLIPSimilarity(tiny))
    with torch.inference_mode():
        seen = towers.encode_image(torch.stack([towers.pixels(image) for image in images])).numpy().tolist()
    read = (3 * encode_texts(towers, CAPTIONS, 32, trim=False)[0]).tolist()  # any length will do
    rows = {"image": images, "caption": CAPTIONS, "v": seen, "t": read}
    both = {"image_embedding": "v", "text_embedding": "t"}
    for options in ({"image_embedding": "v"}, {"text_embedding": "t"}, both):
        scorer = CLIPSimilarity(tiny, **options)
        kept = {column: rows[column] for column in scorer.columns}  # nothing else is needed
        np.testing.assert_allclose(scorer(kept)["clip_similarity"], expected, rtol=1e-4, atol=1e-6)
        found = add_scores(Dataset.from_dict(kept), scorer)["clip_similarity"][:]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_vectors_by_hand():
    scorer = CLIPSimilarity(image_embedding="v", text_embedding="t")
    rows = {
        "v": [[3, 4], [3, 4], None, [0, 0], [1, 0], [1, 0], [np.nan, 1]],
        "t": [[4, 3], [-6, -8], [1, 0], [1, 0], None, [np.inf, 1], [1, 0]],
    }
    found = scorer(rows)["clip_similarity"]
    np.testing.assert_allclose(found, np.float32([0.96, -1] + [np.nan] * 5), rtol=1e-6)
    assert scorer.describe().model is None
    assert scorer.describe().backend is None
    assert CLIPSimilarity("org/name", image_embedding="v", text_embedding="t").describe().model == "org/name"


def test_vectors_of_different_models_are_refused(tiny):
    with pytest.raises(ValueError, match="`v` have 2 numbers and those of `t` 3"):
        CLIPSimilarity(image_embedding="v", text_embedding="t")({"v": [[1, 0]], "t": [[1, 0, 0]]})
    with pytest.raises(ValueError, match="`v` have 2 numbers and those of `caption` 16"):
        CLIPSimilarity(tiny, image_embedding="v")({"v": [[1, 0]], "caption": ["a dog"]})
    with pytest.raises(ValueError, match="have 1 to 2 numbers"):
        CLIPSimilarity(image_embedding="v", text_embedding="t")({"v": [[1, 0], [1]], "t": [[1, 0], [1, 0]]})


@pytest.mark.parametrize("bad", ["a dog", 3.0, [[1.0, 2.0]], ["a", "b"]])
def test_what_is_no_vector_is_refused(bad):
    with pytest.raises(TypeError, match="does not hold one list of numbers per row"):
        CLIPSimilarity(image_embedding="v", text_embedding="t")({"v": [bad], "t": [[1.0, 2.0]]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "tensorflow"}, "`backend` is 'tensorflow'"),
        ({"dtype": "int8"}, "`dtype` is 'int8'"),
        ({"easy": "hard"}, "`easy` is 'hard'"),
        ({"pretrained": "openai"}, "is for open_clip, not 'scenes_clip'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        CLIPSimilarity(**options)


def test_a_model_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    scorer = CLIPSimilarity(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"found no .*nowhere.*Check the name"):
        scored(scorer, [picture(0)], ["a dog"])


def test_a_model_of_one_tower_is_refused(tmp_path):
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a BertModel, which has no `get_image_features`"):
        scored(CLIPSimilarity(str(tmp_path)), [picture(0)], ["a dog"])


def test_calls_that_a_model_must_define():
    towers = Towers()
    for call, argument in (
        ("pixels", None),
        ("encode_image", None),
        ("tokens", []),
        ("count_truncated", []),
        ("encode_text", {}),
    ):
        with pytest.raises(NotImplementedError, match=f"Towers does not define `{call}`"):
            getattr(towers, call)(argument)


def test_a_model_trained_further_in_its_folder_has_another_revision(tiny, tmp_path):
    before = CLIPSimilarity(tiny)
    CLIPModel.from_pretrained(tiny).save_pretrained(tmp_path)
    assert CLIPSimilarity(str(tmp_path)).revision not in (None, before.revision)
    assert before.describe().revision == before.revision


def warnings_of(caplog, images, captions):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        scorer = CLIPSimilarity()
        scored(scorer, images, captions)
        scored(scorer, images, captions)  # says it once
    return [
        record.getMessage() for record in caplog.records if "trained on the embedded scenes only" in record.message
    ]


def test_the_shipped_model_warns_out_of_distribution(caplog):
    pale = Image.new("RGB", (96, 96), (230, 238, 246))
    assert warnings_of(caplog, [pale] * 3, ["a red ball", "two blue boats", "a man rides a bicycle"]) == []
    (said,) = warnings_of(caplog, [pale] * 3, ["a man rides a bicycle", "a dog", "a red ball"])
    assert "2 of 3 captions have words that no training caption has" in said
    (said,) = warnings_of(caplog, [picture(0), picture(1), pale], ["a red ball", "a blue ball", "a red ball"])
    assert "2 of 3 images look unlike the training images" in said
    data = Dataset.from_dict({"image": [stored(pale)], "caption": ["a red ball"]})
    made = read_provenance(add_scores(data, CLIPSimilarity()))["clip_similarity"]
    assert (made.model, made.backend) == (clip.SCENES_CLIP, "pil")
    assert made.arguments["knows"] == "the scenes of make_scenes only"
    assert made.arguments["backend"] == "transformers"


def test_the_check_compares_with_training_data():
    pictures = torch.stack([torch.full((3, 16, 16), value) for value in (0.4, 0.6)])
    pictures[:, :, 4:12, 4:12] = -1  # only the frame counts
    training = training_statistics(["A red ball,", "a ball"], pictures)
    assert training == {"words": ["a", "ball", "red"], "border_brightness": [0.68, 0.82]}
    check = OutOfDistributionCheck(training)
    assert check.count_images(pictures) == 0
    assert check.count_images(torch.stack([pictures[0] - 0.2, pictures[1] + 0.2, pictures[1]])) == 2
    assert check.count_captions(["a red ball", "A BALL", "two balls"]) == 1


def test_real_vectors_as_columns(test_data):
    folder = test_data("clip_b32_embeddings")
    images = np.load(folder / "flickr8k_image_embeds.npy").astype(np.float32)
    texts = np.load(folder / "coco80_text_embeds.npy").astype(np.float32)
    names = json.loads((folder / "coco80_names.json").read_text())
    with open(folder / "flickr8k_image_embeds_index.csv", newline="") as file:
        captions = [row["caption"].lower().split() for row in csv.DictReader(file)]
    names = [name if isinstance(name, str) else name["name"] for name in names]
    dog = texts[names.index("dog")]
    data = Dataset.from_dict({"v": images.tolist(), "t": [dog.tolist()] * len(images)})
    scores = np.array(add_scores(data, CLIPSimilarity(image_embedding="v", text_embedding="t"))["clip_similarity"][:])
    expected = images @ dog / np.linalg.norm(images, axis=1) / np.linalg.norm(dog)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    says = np.array(["dog" in caption for caption in captions])
    above = (scores[says][:, None] > scores[~says]).mean()
    assert above > 0.97  # the area under the curve that was measured when the vectors were collected is .981


def test_names_of_open_clip_are_read_without_it():
    assert clip_open.parse_name("ViT-B-32", "openai") == ("ViT-B-32", "openai")
    assert clip_open.parse_name("open_clip:hf-hub:org/name", None) == ("hf-hub:org/name", None)


def test_one_column_is_not_both_embeddings():
    with pytest.raises(ValueError, match="`v` was given for the embedding of the image and of the text"):
        CLIPSimilarity(image_embedding="v", text_embedding="v")
