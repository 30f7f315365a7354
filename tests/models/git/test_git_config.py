import pytest
from transformers import AutoConfig, CLIPConfig, CLIPVisionConfig, Dinov2Config, GitVisionConfig, ViTConfig

import hf_curriculum.models
from hf_curriculum.models.git.config import CaptionGitConfig


def test_defaults_are_the_papers():
    config = CaptionGitConfig()
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (32_778, 768, 12)
    assert (config.num_attention_heads, config.intermediate_size, config.max_position_embeddings) == (12, 3072, 1024)
    assert (config.tie_word_embeddings, config.output_bias, config.vision_pooler) == (True, False, True)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 101, 102)
    assert (config.vision_config.image_size, config.vision_config.patch_size) == (224, 16)


@pytest.mark.parametrize("vision", [ViTConfig, GitVisionConfig, CLIPVisionConfig, Dinov2Config])
def test_saved_and_loaded_by_the_auto_class(tmp_path, vision):
    config = CaptionGitConfig(
        vision(hidden_size=24, num_attention_heads=2),
        tie_word_embeddings=False,
        output_bias=True,
        vocab_size=99,
        bos_token_id=5,
        pad_token_id=1,
        eos_token_id=[6, 7],
        vision_pooler=False,
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is hf_curriculum.models.git.config.CaptionGitConfig
    assert type(loaded.vision_config) is vision
    assert loaded.vision_config.hidden_size == 24
    for name in ("tie_word_embeddings", "output_bias", "vocab_size", "bos_token_id", "pad_token_id", "eos_token_id"):
        assert getattr(loaded, name) == getattr(config, name), name
    assert loaded.vision_pooler is False


def test_attention_implementation_reaches_the_vision_tower():
    config = CaptionGitConfig(attn_implementation="eager")
    assert config._attn_implementation == config.vision_config._attn_implementation == "eager"


def test_the_vision_config_given_is_not_changed():
    fields = {"model_type": "git_vision_model", "hidden_size": 24, "num_attention_heads": 2}
    before = dict(fields)
    assert type(CaptionGitConfig(fields).vision_config) is GitVisionConfig
    assert fields == before


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"hidden_size=30 is not a multiple of num_attention_heads=4"):
        CaptionGitConfig(hidden_size=30, num_attention_heads=4)


def test_a_composite_vision_config_is_refused():
    with pytest.raises(ValueError, match=r"CLIPConfig, which has no `hidden_size`"):
        CaptionGitConfig(CLIPConfig())
