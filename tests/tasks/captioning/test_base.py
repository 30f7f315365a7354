"""The common ground of captioners on regions: what is read of images, norms, inputs that do not fit, generation."""

from __future__ import annotations

import copy
import logging
import warnings

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, ResNetConfig, SwinConfig, ViTConfig

from hf_curriculum.models.base import CACHE_NAME
from hf_curriculum.tasks.captioning.models.base import (
    ReferenceLayerNorm,
    RegionCaptionerForCausalLM,
    RegionCaptionerModel,
    layer_norm,
)
from hf_curriculum.tasks.captioning.models.config import RegionCaptionerConfig, RegionTransformerConfig
from hf_curriculum.tasks.captioning.models.regions import EncodedImages, RegionEmbedding
from hf_curriculum.tasks.captioning.models.transformer import RegionTransformerForCausalLM

WORDS, WIDTH, FEATURES = 12, 8, 6
VIT = ViTConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
)
RESNET = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")


def tiny(**options):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    options = {"hidden_size": WIDTH, "region_feature_size": FEATURES, **sizes, **options}
    torch.manual_seed(0)
    return RegionTransformerForCausalLM(RegionTransformerConfig(WORDS, **options)).eval()


@pytest.fixture
def inputs():
    """Two images of three and two regions, two captions of three words and one."""
    torch.manual_seed(1)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    text = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids = torch.tensor([[0, 3, 1, 4, 0], [0, 5, 0, 0, 0]])
    return {
        "input_ids": ids,
        "attention_mask": text,
        "labels": ids.masked_fill(text == 0, -100),
        "region_features": torch.randn(2, 3, FEATURES) * mask[..., None],
        "region_mask": mask,
    }


def without(inputs, *names):
    return {name: value for name, value in inputs.items() if name not in names}


# Norms and what is read of an image


@pytest.mark.parametrize("width", [2, 7])
def test_the_reference_norm_divides_by_the_unbiased_deviation_plus_epsilon(width):
    norm = ReferenceLayerNorm(width, eps=0.5).double()
    torch.nn.init.uniform_(norm.weight)
    torch.nn.init.uniform_(norm.bias)
    states = torch.randn(3, 4, width, dtype=torch.float64)
    for at in range(3):
        for row in range(4):
            x = states[at, row]
            deviation = ((x - x.mean()) ** 2).sum().div(width - 1).sqrt()
            expected = norm.weight * (x - x.mean()) / (deviation + 0.5) + norm.bias
            torch.testing.assert_close(norm(states)[at, row], expected)
    assert type(layer_norm("standard", width)) is torch.nn.LayerNorm
    half = norm.bfloat16()(torch.full((1, width), 300.0).bfloat16())
    assert half.dtype == torch.bfloat16
    assert torch.isfinite(half).all()


def test_padding_never_passes_the_region_embedding():
    """Whatever stands in padded regions, NaN even, what comes out is zeros, and so is its gradient."""
    embedding = RegionEmbedding(RegionTransformerConfig(WORDS, 8, num_attention_heads=2, region_feature_size=6)).eval()
    mask = torch.tensor([[True, True, False], [False, True, False]])
    features = torch.randn(2, 3, 6)
    features[~mask] = torch.nan
    features.requires_grad_()
    embedded = embedding(features, mask)
    torch.testing.assert_close(embedded[mask], embedding.linear(features[mask]).relu())
    assert torch.equal(embedded[~mask], torch.zeros(3, 8))
    embedded.sum().backward()
    assert torch.equal(features.grad[~mask], torch.zeros(3, 6))
    assert torch.isfinite(embedding.linear.weight.grad).all()


def test_encoded_images_are_indexed_without_a_copy():
    images = EncodedImages(torch.randn(3, 4, 5), torch.ones(3, 4, dtype=torch.bool), torch.randn(3, 5))
    assert (len(images), images.shape) == (3, (3, 4, 5))
    texts = images[torch.tensor([2, 0, 0, 1])]
    assert len(texts) == 4
    assert texts.features is images.features
    chosen = texts[torch.tensor([3, 0])].repeat_interleave(2)
    assert chosen.index.tolist() == [1, 1, 2, 2]
    for part, whole in zip(
        (chosen.per_text().features, chosen.per_text().mask, chosen.per_text().pooled),
        (images.features, images.mask, images.pooled),
        strict=True,
    ):
        assert torch.equal(part, whole[[1, 1, 2, 2]])
    assert chosen.per_text().index is None
    assert images.repeat_interleave(1) is images


@pytest.mark.parametrize(("vision", "regions"), [(VIT, 5), (RESNET, 4), (RESNET.to_dict(), 4)])
@pytest.mark.parametrize("train_vision", [False, True])
def test_a_grid_from_a_model_inside(vision, regions, train_vision, tmp_path):
    """A class token and patches of a transformer, or the last map of a convolutional network."""
    model = tiny(vision_config=vision, train_vision=train_vision, region_feature_size=99).train()
    assert model.config.region_feature_size == 16
    pixels, ids = torch.rand(2, 3, 16, 16), torch.tensor([[0, 3, 0], [0, 4, 0], [0, 5, 0]])
    assert model.encode_images(pixels).shape == (2, regions, WIDTH)
    model(ids, pixel_values=pixels, labels=ids, image_index=torch.tensor([0, 1, 1])).loss.backward()
    with torch.no_grad():
        assert not model.model.vision(pixels).requires_grad
    assert getattr(model(ids[:2], pixel_values=pixels), CACHE_NAME) is None  # in training nothing is cached
    tower = model.model.vision.model
    assert tower.training == train_vision
    assert {weight.grad is not None for weight in tower.parameters()} == {train_vision}
    assert all(weight.grad is not None for weight in model.model.encoder.parameters())
    assert model.eval().generate(pixel_values=pixels, max_new_tokens=3).shape[0] == 2
    model.save_pretrained(tmp_path)
    loaded = RegionTransformerForCausalLM.from_pretrained(tmp_path).train()
    assert torch.equal(loaded.eval().encode_images(pixels).features, model.encode_images(pixels).features)
    assert {weight.requires_grad for weight in loaded.model.vision.parameters()} == {train_vision}


@pytest.mark.slow
def test_a_grid_of_timm():
    """Its configuration does not say how wide the last feature map is."""
    backbone = {"backbone": "resnet18", "use_pretrained_backbone": False}
    with pytest.raises(ValueError, match="is a TimmBackboneConfig, which has neither `hidden_size` nor"):
        tiny(vision_config={"model_type": "timm_backbone", **backbone})
    model = tiny(vision_config={"model_type": "timm_backbone", "hidden_size": 512, **backbone})
    assert model.encode_images(torch.rand(2, 3, 64, 64)).shape == (2, 4, WIDTH)


# Inputs that do not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": None}, "No text was given"),
        (
            {"region_features": None},
            "reads `region_features`, because its configuration has no `vision_config`, but w",
        ),
        ({"pixel_values": torch.rand(2, 3, 8, 8)}, "was given the other of the two"),
        ({"region_features": torch.rand(2, 3, 7)}, "reads features of width 6"),
        ({"region_features": torch.rand(3, 6)}, "reads features of width 6"),
        ({"region_mask": torch.ones(2, 4)}, r"region_mask has the shape \(2, 4\)"),
        ({"region_mask": torch.tensor([[1, 0, 0], [0, 0, 0]])}, r"1 of 2 images have no region \(rows \[1\]"),
        ({"attention_mask": torch.ones(2, 4)}, r"attention_mask has the shape \(2, 4\) for 2 texts of 5 new"),
        ({"input_ids": torch.full((2, 5), WORDS)}, "input_ids has the id 12, but the captioner has 12 words"),
        ({"labels": torch.full((2, 5), WORDS + 3)}, "labels has the id 15, but the captioner has 12 words"),
        ({"logits_to_keep": 1}, "`labels` need the logits of all text"),
        ({"image_index": torch.tensor([0, 2])}, "image_index names the images 0 to 2, but there are 2"),
        ({"image_index": torch.tensor([0])}, "names one image per text"),
        ({"region_boxes": torch.zeros(2, 3, 4)}, r"called with \['region_boxes'\], which it does not read"),
        ({"output_attentions": True}, r"called with \['output_attentions'\]"),
    ],
)
def test_inputs_that_do_not_fit(inputs, change, message):
    model = tiny()
    with pytest.raises(ValueError, match=message):
        model(**{**inputs, **change})
    assert torch.isfinite(model(**inputs, output_attentions=False, inputs_embeds=None).loss)


def test_each_beam_reads_the_image_of_its_text():
    model, images = tiny(), EncodedImages(torch.randn(2, 3, WIDTH))
    given = model.prepare_inputs_for_generation(torch.zeros(6, 1, dtype=torch.int64), image_features=images)
    assert given["image_features"].index.tolist() == [0, 0, 0, 1, 1, 1]
    for none in (None, EncodedImages(torch.randn(0, 3, WIDTH))):
        given = model.prepare_inputs_for_generation(torch.zeros(0, 1, dtype=torch.int64), image_features=none)
        assert given["image_features"] is none


def test_images_that_do_not_fit(inputs):
    model = tiny()
    ids, regions = inputs["input_ids"], inputs["region_features"]
    with pytest.raises(ValueError, match="There are 1 images for 2 texts"):
        model(ids, region_features=regions[:1])
    images = model.encode_images(region_features=regions)
    with pytest.raises(ValueError, match="Both images and `image_features` were given"):
        model(ids, region_features=regions, image_features=images)
    cache = model(ids, image_features=images, use_cache=True)[CACHE_NAME]
    with pytest.raises(ValueError, match="An image was given with a cache of 5 tokens"):
        model(ids[:, :1], image_features=images, cache=cache)
    other = DynamicCache()
    other.update(torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 4), 0)
    with pytest.raises(ValueError, match="The cache is a DynamicCache, which has keys of text and none of its images"):
        model(ids[:, :1], cache=other)
    with pytest.raises(ValueError, match="There are 4 prompts for 2 images"):
        model.generate(torch.zeros(4, 1, dtype=torch.int64), region_features=regions)
    seeing = tiny(vision_config=VIT)
    with pytest.raises(ValueError, match="reads `pixel_values`, because its configuration has a `vision_config`, but"):
        seeing(ids, region_features=regions)
    with pytest.raises(ValueError, match=r"pixel_values has the shape \(3, 16, 16\)"):
        seeing(ids, pixel_values=torch.rand(3, 16, 16))
    short = tiny(max_position_embeddings=4)
    with pytest.raises(ValueError, match="The text has 5 tokens, but the model has 4 positions"):
        short(ids, region_features=regions)
    with pytest.raises(ValueError, match="A text has grown to 5 tokens"):
        short.generate(region_features=regions, min_new_tokens=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "batch"}, "norm='batch' is no layer norm of a captioner"),
        ({"dropout": 1.0}, r"dropout=1.0 is no share of units"),
        ({"feature_dropout": -0.1}, r"feature_dropout=-0.1 is no share of units"),
        ({"eos_token_id": [0, 50]}, "The token id 50 is none of 12 outputs"),
        ({"unk_token_id": 12}, "The token id 12 is none of 12 outputs"),
        ({"num_attention_heads": 3}, "hidden_size=512 is not a multiple of num_attention_heads=3"),
        ({"num_attention_heads": 0}, "hidden_size=512 is not a multiple of num_attention_heads=0"),
        ({"vision_config": {"hidden_size": 3}}, "no `model_type`, so it is not known what to build"),
    ],
)
def test_configurations_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        RegionTransformerConfig(WORDS, **options)


def test_a_vision_model_of_unknown_width():
    vision = SwinConfig()
    del vision.hidden_size
    with pytest.raises(ValueError, match="is a SwinConfig, which has neither `hidden_size` nor `hidden_sizes`"):
        RegionTransformerConfig(WORDS, vision_config=vision)


def test_what_a_captioner_has_to_define():
    model = RegionCaptionerModel(RegionCaptionerConfig(WORDS, WIDTH, FEATURES))
    with pytest.raises(NotImplementedError, match="RegionCaptionerModel has no `encode`"):
        model.encode_images(region_features=torch.rand(1, 2, FEATURES))
    with pytest.raises(NotImplementedError, match="RegionCaptionerModel has no `decode`"):
        model(torch.tensor([[0]]), image_features=EncodedImages(torch.rand(1, 2, WIDTH)))


# Generation


def test_how_it_writes_by_default():
    """The reference's: five beams, twenty steps, the sum of log-probabilities, never the unknown word."""
    config = tiny().generation_config
    assert (config.num_beams, config.max_new_tokens, config.length_penalty) == (5, 20, 0.0)
    assert config.suppress_tokens == [WORDS - 1]
    assert tiny(unk_token_id=3).generation_config.suppress_tokens == [3]
    assert tiny(unk_token_id=None).generation_config.suppress_tokens is None
    torch.manual_seed(0)
    regions = torch.randn(40, 2, FEATURES)
    model = tiny()
    with torch.no_grad():
        model.lm_head.bias[WORDS - 1] = 2.0  # else the likeliest word
    sampled = {"region_features": regions, "num_beams": 1, "do_sample": True}
    assert not (model.generate(**sampled) == WORDS - 1).any()
    assert (model.generate(**sampled, suppress_tokens=None) == WORDS - 1).any()


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 21),
        ({"max_length": 4}, 4),
        ({"max_new_tokens": 6}, 7),
        ({"generation_config": GenerationConfig(max_length=5)}, 5),
        ({"generation_config": GenerationConfig(max_length=5), "max_new_tokens": 2}, 3),
        ({"generation_config": GenerationConfig(max_new_tokens=30)}, 31),
        ({"inputs": torch.zeros(1, 3, dtype=torch.int64), "max_length": 5}, 5),
        ({"inputs": torch.zeros(1, 3, dtype=torch.int64), "generation_config": GenerationConfig(max_length=5)}, 5),
    ],
)
def test_how_long_captions_get(options, length):
    """`max_length`, which training arguments give, is no less heard than `max_new_tokens`."""
    model = tiny()
    model.generation_config.suppress_tokens = [0]  # never ends
    model.generation_config.num_beams = 1
    before = copy.deepcopy(options)
    for _ in range(2):
        assert model.generate(region_features=torch.ones(1, 2, FEATURES), **options).shape == (1, length)
    if "generation_config" in options:
        assert options["generation_config"].to_dict() == before["generation_config"].to_dict()


def test_one_id_begins_ends_and_pads_without_a_warning(inputs, caplog):
    logging.getLogger("transformers").propagate = True
    try:
        with warnings.catch_warnings(), caplog.at_level("WARNING"):
            warnings.simplefilter("error")
            for options in ({}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}):
                ids = tiny().generate(**without(inputs, "input_ids", "attention_mask", "labels"), **options)
                assert (ids[:, 0] == 0).all()
            assert not caplog.records
            # Prompts without a mask: which 0 is padding is not known, and `transformers` says so.
            tiny().generate(inputs["input_ids"], **without(inputs, "input_ids", "attention_mask", "labels"))
    finally:
        logging.getLogger("transformers").propagate = False
    assert any("right-padding was detected" in record.getMessage() for record in caplog.records)


def test_prompts_are_continued_whatever_side_they_are_padded_on(inputs):
    """Each caption continues as alone, without padding."""
    model = tiny()
    images = without(inputs, "input_ids", "attention_mask", "labels")
    prompts, mask = torch.tensor([[0, 3, 1], [0, 5, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    flipped = torch.tensor([[0, 3, 1], [0, 0, 5]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    for ids, attention_mask in ((prompts, mask), flipped):
        for beams in (1, 3):
            options = {"num_beams": beams, "max_new_tokens": 6, "min_new_tokens": 6}
            written = model.generate(ids, attention_mask=attention_mask, **images, **options)
            for row, prompt in enumerate(([0, 3, 1], [0, 5])):
                regions = inputs["region_features"][row : row + 1, : 3 - row]
                alone = model.generate(torch.tensor([prompt]), region_features=regions, **options)
                assert written[row, 3:].tolist() == alone[0, len(prompt) :].tolist()


def test_the_base_classes_are_those_of_every_captioner():
    assert issubclass(RegionTransformerForCausalLM, RegionCaptionerForCausalLM)
    assert isinstance(tiny().base_model, RegionCaptionerModel)
