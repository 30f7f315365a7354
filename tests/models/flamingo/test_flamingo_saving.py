import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    Dinov2Config,
    GitVisionConfig,
    GPT2Config,
    OPTConfig,
    ViTConfig,
)

from hf_curriculum import CaptionFlamingoForCausalLM
from hf_curriculum.models.flamingo.build import flamingo_from_config, small_flamingo_config
from hf_curriculum.models.flamingo.config import CaptionFlamingoConfig
from hf_curriculum.models.flamingo.model import CaptionFlamingoModel
from hf_curriculum.names import MODELS


def small(**fields):
    torch.manual_seed(0)
    sizes = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 2, "perceiver_latents": 3}
    model = flamingo_from_config(small_flamingo_config(60, **sizes, **fields)).eval()
    for layer in model.flamingo.gated_layers:
        nn.init.constant_(layer.attention_gate, 0.5)
    return model


def inputs():
    torch.manual_seed(1)
    ids = torch.randint(5, 59, (2, 6))
    ids[:, 1] = 59
    return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 16, 16)}


def test_models_by_name():
    assert MODELS["flamingo"] is CaptionFlamingoForCausalLM


def test_defaults_are_the_papers():
    config = CaptionFlamingoConfig()
    text, vision = config.text_config, config.vision_config
    assert (text.vocab_size, text.hidden_size, text.num_hidden_layers, text.ffn_dim) == (32_778, 768, 12, 3072)
    assert (text.num_attention_heads, text.max_position_embeddings, config.image_token_id) == (12, 2048, 32_768)
    assert (config.perceiver_depth, config.perceiver_latents, config.cross_attention_every) == (2, 64, 2)
    assert (config.cross_attention_heads, config.cross_attention_head_dim) == (12, 64)
    assert (vision.image_size, vision.patch_size, config.vision_pooler) == (224, 16, True)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 101, 102)
    assert (text.pad_token_id, text.bos_token_id, text.eos_token_id) == (0, 101, 102)


@pytest.mark.parametrize("vision", [ViTConfig, GitVisionConfig, CLIPVisionConfig, Dinov2Config])
def test_config_saved_and_loaded_by_the_auto_class(tmp_path, vision):
    config = CaptionFlamingoConfig(
        vision(hidden_size=24, num_attention_heads=2),
        OPTConfig(vocab_size=99, hidden_size=48, ffn_dim=20),
        image_token_id=98,
        tie_word_embeddings=False,
        bos_token_id=5,
        pad_token_id=1,
        eos_token_id=[6, 7],
        vision_pooler=False,
        perceiver_depth=1,
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is CaptionFlamingoConfig
    assert type(loaded.vision_config) is vision
    assert (loaded.vision_config.hidden_size, loaded.text_config.hidden_size) == (24, 48)
    names = ("tie_word_embeddings", "bos_token_id", "pad_token_id", "eos_token_id")
    for name in names:
        assert getattr(loaded, name) == getattr(config, name) == getattr(loaded.text_config, name), name
    assert (loaded.image_token_id, loaded.vision_pooler, loaded.perceiver_depth) == (98, False, 1)


def test_attention_implementation_reaches_both_parts():
    config = CaptionFlamingoConfig(attn_implementation="eager")
    assert config._attn_implementation == "eager"
    assert config.vision_config._attn_implementation == config.text_config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"perceiver_depth": 0}, ValueError, r"perceiver_depth=0 was given: there would be no way from an image"),
        ({"image_token_id": -1}, ValueError, r"image_token_id=-1, but the embedding matrix has 32778 rows"),
        ({"image_token_id": 32_778}, ValueError, r"image_token_id=32778, but the embedding matrix has 32778 rows"),
        ({"text_config": GPT2Config()}, TypeError, r"GPT2Config of model type 'gpt2'"),
        ({"text_config": {"layerdrop": 0.1, "vocab_size": 40_000}}, ValueError, r"layerdrop=0.1"),
    ],
)
def test_configs_that_make_no_sense_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        CaptionFlamingoConfig(**fields)


@pytest.mark.parametrize("token", [0, 32_777])
def test_the_first_and_the_last_row_may_be_the_image_token(token):
    assert CaptionFlamingoConfig(image_token_id=token).image_token_id == token


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False, "vision_pooler": True}])
@pytest.mark.parametrize("auto", [AutoModelForCausalLM, AutoModelForImageTextToText, CaptionFlamingoForCausalLM])
def test_saved_and_loaded(tmp_path, auto, fields):
    model = small(**fields)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path)
    loaded, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is CaptionFlamingoForCausalLM
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(loaded(**inputs()).logits, model(**inputs()).logits)
    tied = loaded.lm_head.weight is loaded.flamingo.decoder.embed_tokens.weight
    assert tied is fields.get("tie_word_embeddings", True)
    images = inputs()["pixel_values"]
    assert torch.equal(loaded.generate(pixel_values=images), model.generate(pixel_values=images))
    assert loaded.generation_config.max_new_tokens == 7


def test_the_tower_is_frozen_after_loading_too(tmp_path):
    small().save_pretrained(tmp_path)
    loaded = CaptionFlamingoForCausalLM.from_pretrained(tmp_path)
    frozen = {name for name, weight in loaded.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in loaded.named_parameters() if "vision_tower" in name}


def test_the_decoder_alone(tmp_path):
    model = small()
    model.save_pretrained(tmp_path)
    bare = AutoModel.from_pretrained(tmp_path)
    assert type(bare) is CaptionFlamingoModel
    torch.testing.assert_close(model.lm_head(bare(**inputs()).last_hidden_state), model(**inputs()).logits)


def test_from_a_config():
    assert type(AutoConfig.for_model("curriculum_flamingo")) is CaptionFlamingoConfig
    assert type(AutoModelForCausalLM.from_config(small().config)) is CaptionFlamingoForCausalLM


def test_generation_starts_at_cls_and_ends_at_sep():
    generation = small().generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (2, 3, 0)


def test_a_model_that_was_resized_works():
    model = small()
    model.resize_token_embeddings(64)
    assert model.lm_head.weight is model.flamingo.decoder.embed_tokens.weight
    assert model.config.text_config.vocab_size == 64
    assert model.eval()(**inputs(), labels=inputs()["input_ids"]).logits.shape == (2, 6, 64)
