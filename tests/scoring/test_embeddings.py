"""Embeddings of images as a column, by a CLIP, vision towers and open_clip."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow
from transformers import (
    AutoImageProcessor,
    AutoModel,
    CLIPImageProcessorPil,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import hf_curriculum.scoring.per_image as embeddings
from hf_curriculum import CLIPSimilarity, Concreteness, add_scores, make_scenes
from hf_curriculum.provenance import ScoreProvenance, column_provenance, installed_versions, score_values
from hf_curriculum.scoring.per_image import add_embeddings


@pytest.fixture(scope="module")
def scenes():
    return make_scenes(40, captions_per_image=2, validation=0, test=0)["train"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_the_shipped_clip_s_vectors_give_its_cosines(scenes):
    view = scenes.shuffle(seed=1)
    embedded = add_embeddings(view, part_images=7, batch_size=3)
    assert embedded.data.nbytes - view.data.nbytes < 1.1 * (4 * 128 + 4) * len(view)
    scored = add_scores(embedded, CLIPSimilarity(image_embedding="image_embedding", name="given"))
    expected = score_values(add_scores(view, CLIPSimilarity()), "clip_similarity")
    np.testing.assert_allclose(score_values(scored, "given"), expected, atol=1e-5)
    made = column_provenance(embedded, "image_embedding")
    assert (made.model, made.arguments["pooled"], made.backend) == ("scenes_clip", "image features", "pil")
    assert made.revision is not None
    fitted = Concreteness(k=5, min_count=5).fit(embedded)
    assert fitted.images_ == 20
    assert fitted.word_concreteness_


def tower(folder, kind):
    torch.manual_seed(0)
    if kind == "resnet":
        config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
        ResNetModel(config).save_pretrained(folder)
    else:
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = ViTConfig(image_size=16, patch_size=8, **sizes)
        ViTModel(config, add_pooling_layer=kind == "vit_pooler").save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["resnet", "vit", "vit_pooler"])
@pytest.mark.parametrize("num_proc", [None, 1])
def test_vision_towers(scenes, tmp_path, kind, num_proc):
    name = tower(tmp_path / "tower", kind)
    data = scenes.select(range(6))
    found = add_embeddings(data, name, num_proc=num_proc, column="v")
    processor, model = AutoImageProcessor.from_pretrained(name, backend="pil"), AutoModel.from_pretrained(name).eval()
    with torch.no_grad():
        outputs = model(**processor(images=data["image"][:], return_tensors="pt"))
    expected = outputs.last_hidden_state.mean(1) if kind == "vit" else outputs.pooler_output.flatten(1)
    np.testing.assert_allclose(np.float32(found["v"][:]), expected.numpy(), atol=1e-5)
    pooled = column_provenance(found, "v").arguments["pooled"]
    assert pooled == ("mean of the last states" if kind == "vit" else "pooled output")


def test_a_second_call_encodes_nothing_and_a_killed_one_goes_on(scenes, monkeypatch):
    encoded = []
    real = embeddings._Tower.encode

    def spy(self, pixels):
        encoded.append(len(pixels))
        if len(encoded) == 3:
            raise KeyboardInterrupt
        return real(self, pixels)

    monkeypatch.setattr(embeddings._Tower, "encode", spy)
    with pytest.raises(KeyboardInterrupt):
        add_embeddings(scenes, part_images=6)
    found = add_embeddings(scenes, part_images=6)
    assert encoded == [6, 6, 6, 6, 2]  # the third is encoded again
    assert add_embeddings(scenes, part_images=6).to_list() == found.to_list()
    assert len(encoded) == 5
    monkeypatch.setattr(embeddings._Tower, "encode", real)
    whole = add_embeddings(scenes, load_from_cache_file=False)
    np.testing.assert_allclose(whole["image_embedding"][:], found["image_embedding"][:], atol=1e-5)


def test_images_that_cannot_be_read_and_photographs_for_the_shipped_model(caplog):
    file = io.BytesIO()
    Pillow.new("RGB", (50, 30), (0, 200, 0)).save(file, "png")
    stored = [{"bytes": file.getvalue(), "path": None}, {"bytes": b"\x89PNG damaged", "path": None}, None]
    features = Features({"image": Image(decode=False), "image_id": Value("string")})
    data = Dataset.from_dict({"image": stored, "image_id": list("abc")}, features=features)
    found = add_embeddings(data.cast_column("image", Image()))
    assert [row is None for row in found["image_embedding"]] == [False, True, True]
    assert "1 images look unlike the training images" in caplog.text
    assert "2 of 3 rows have null" in caplog.text


def test_bad_input(scenes, tmp_path):
    with pytest.raises(ValueError, match="`batch_size` is 0"):
        add_embeddings(scenes, batch_size=0)
    with pytest.raises(FileNotFoundError, match="found no 'nowhere/nothing'"):
        add_embeddings(scenes, "nowhere/nothing")
    with pytest.raises(ValueError, match="a model of open_clip, which has no revisions"):
        add_embeddings(scenes, "open_clip:ViT-B-32/laion2b_s34b_b79k", revision="main")
    name = tower(tmp_path / "tower", "vit")
    state = ViTModel.from_pretrained(name, add_pooling_layer=False)
    kept = {key: value for key, value in state.state_dict().items() if "layernorm" not in key}
    state.save_pretrained(name, state_dict=kept)
    with pytest.raises(ValueError, match=r"lacks 6 weights of a ViTModel, such as 'layernorm\.bias'"):
        add_embeddings(scenes, name)


def test_a_model_that_gives_no_states(scenes, tmp_path, monkeypatch):
    name = tower(tmp_path / "tower", "vit_pooler")
    monkeypatch.setattr(ViTModel, "forward", lambda self, pixel_values: object())
    with pytest.raises(ValueError, match="ViTModel gives neither a pooled output nor states"):
        add_embeddings(scenes, name)


def test_all_that_is_recorded_of_a_tower_and_what_it_is_given(scenes, tmp_path, monkeypatch):
    name, cropped = tower(tmp_path / "tower", "vit"), []
    ViTModel.from_pretrained(name, add_pooling_layer=False).half().save_pretrained(name)
    monkeypatch.setattr(embeddings, "crop_thin", lambda image: cropped.append(image) or image)
    data = scenes.select(range(4))
    found = add_embeddings(data, name, batch_size=1, column="v")
    assert cropped == []
    versions = installed_versions(("hf-curriculum", "torch", "transformers", "pillow"))
    arguments = {"image_column": "image", "pooled": "mean of the last states"}
    made = {"model": name, "revision": embeddings.folder_digest(name), "versions": versions, "backend": "pil"}
    assert column_provenance(found, "v") == ScoreProvenance("v", "add_embeddings", arguments, **made)
    assert embeddings._Tower(name, None, torch.device("cpu")).model.dtype == torch.float32
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(name)
    add_embeddings(data, name, column="v")
    assert len(cropped) == 2  # images of two captions each


@pytest.mark.parametrize(
    ("pooled", "outputs", "expected"),
    [
        ("pooled output", {"pooler_output": torch.ones(2, 3, 1, 1)}, torch.ones(2, 3)),
        ("mean of the last states", {"last_hidden_state": torch.arange(12.0).view(1, 2, 2, 3)}, [[2.5, 8.5]]),
        ("mean of the last states", {"last_hidden_state": torch.arange(6.0).view(1, 2, 3)}, [[1.5, 2.5, 3.5]]),
        (
            "mean of the last states",
            {"pooler_output": torch.ones(1, 3), "last_hidden_state": torch.zeros(1, 2, 3)},
            torch.zeros(1, 3),
        ),
    ],
)
def test_what_is_pooled(pooled, outputs, expected):
    encoder = embeddings._Tower.__new__(embeddings._Tower)
    encoder.pooled, encoder.model = pooled, lambda pixel_values: SimpleNamespace(**outputs)
    encoder.model.device = "cpu"
    assert torch.equal(encoder.encode(torch.zeros(1)), torch.as_tensor(expected))
