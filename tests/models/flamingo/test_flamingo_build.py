import pytest
import torch
from transformers import ViTConfig, ViTModel

from hf_curriculum import CaptionFlamingoForCausalLM, train_wordpiece
from hf_curriculum.models.flamingo.build import (
    add_image_token,
    flamingo_from_config,
    paper_flamingo_config,
    small_flamingo_config,
)
from hf_curriculum.models.git.build import add_lora

VOCAB = 60
SIZES = {"image_size": 16, "hidden_size": 32, "vision_layers": 1, "text_layers": 2, "perceiver_latents": 3}


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def on_meta(config):
    with torch.device("meta"):
        return CaptionFlamingoForCausalLM(config)


def small(**fields):
    torch.manual_seed(0)
    return flamingo_from_config(small_flamingo_config(VOCAB, **{**SIZES, **fields}))


def test_the_papers_parameter_counts():
    model = on_meta(paper_flamingo_config())
    parts = model.flamingo
    assert count(model) == 255_487_500
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == 169_098_252
    assert count(parts.vision_tower) == 86_389_248
    assert not any(weight.requires_grad for weight in parts.vision_tower.parameters())
    assert count(parts.decoder) == 111_803_904
    assert {count(layer) for layer in parts.decoder.layers} == {7_087_872}
    assert count(parts.perceiver) == 14_808_576
    assert {count(layer) for layer in parts.gated_layers} == {7_080_962}
    assert count(parts.gated_layers) == 42_485_772
    assert model.lm_head.weight is parts.decoder.embed_tokens.weight


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({"vocab_size": 30_522, "image_token_id": 30_521}, 253_754_892),
        ({"cross_attention_every": 3}, 255_487_500 - 2 * 7_080_962),
        ({"cross_attention_every": 5}, 255_487_500 - 3 * 7_080_962),
        ({"tie_word_embeddings": False}, 255_487_500 + 32_778 * 768),
        ({"vision_pooler": False}, 255_487_500 - 86_389_248 + 85_798_656),
    ],
)
def test_parameter_counts_of_the_variants(fields, parameters):
    assert count(on_meta(paper_flamingo_config(**fields))) == parameters


def test_blocks_stand_before_every_second_layer():
    model = small(text_layers=4).eval()
    order = []
    for name, layers in (("gate", model.flamingo.gated_layers), ("layer", model.flamingo.decoder.layers)):
        for number, layer in enumerate(layers):
            layer.register_forward_hook(lambda *_, called=(name, number): order.append(called))
    model(torch.tensor([[2, VOCAB - 1, 7]]), pixel_values=torch.randn(1, 3, 16, 16))
    assert order == [("gate", 0), ("layer", 0), ("layer", 1), ("gate", 1), ("layer", 2), ("layer", 3)]


def test_new_weights_are_as_the_configuration_says():
    model = small(hidden_size=64)
    parts, spread = model.flamingo, 0.1
    assert parts.perceiver.latents.std().item() == pytest.approx(1, rel=0.2)
    assert parts.perceiver.image_positions.std().item() == pytest.approx(1, rel=0.2)
    for weight in (
        parts.gated_layers[0].attention.q_proj.weight,
        parts.perceiver.layers[0].feed_forward.wide.weight,
        parts.decoder.layers[0].fc1.weight,
        parts.decoder.embed_tokens.weight,
    ):
        assert weight.std().item() == pytest.approx(spread, rel=0.1)


def test_small_config():
    config = small_flamingo_config(500, image_size=32, patch_size=4, hidden_size=64, vision_layers=2, text_layers=6)
    assert (config.vision_config.num_hidden_layers, config.text_config.num_hidden_layers) == (2, 6)
    assert (config.text_config.hidden_size, config.text_config.ffn_dim) == (64, 256)
    assert (config.cross_attention_heads, config.cross_attention_head_dim) == (4, 16)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id, config.image_token_id) == (0, 2, 3, 499)
    assert small_flamingo_config(500, eos_token_id=9).eos_token_id == 9
    tower = ViTConfig(hidden_size=24, num_attention_heads=2)
    assert small_flamingo_config(500, vision_config=tower).vision_config.hidden_size == 24
    with pytest.raises(ValueError, match=r"image_size=30 is not a multiple of patch_size=8"):
        small_flamingo_config(500, image_size=30)
    with pytest.raises(ValueError, match=r"hidden_size=30 is not a multiple of num_attention_heads=4"):
        small_flamingo_config(500, hidden_size=30)


def test_ids_come_from_the_tokenizer():
    tokenizer = train_wordpiece(["a red ball", "a blue cube"], 200, layout="bert")
    with pytest.raises(ValueError, match=r"no '<image>'.*`hf_curriculum.models.flamingo.build.add_image_token\("):
        small_flamingo_config(200, tokenizer=tokenizer)
    before = len(tokenizer)
    assert add_image_token(tokenizer) == add_image_token(tokenizer) == before == len(tokenizer) - 1
    assert tokenizer("a <image> ball")["input_ids"].count(before) == 1
    assert tokenizer.decode(tokenizer("<image> a red ball")["input_ids"], skip_special_tokens=True) == "a red ball"
    ids = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102, "image_token_id": before}
    for make in (small_flamingo_config, paper_flamingo_config):
        config = make(200, tokenizer=tokenizer)
        assert {name: getattr(config, name) for name in ids} == ids
    with pytest.raises(ValueError, match=rf"The tokenizer has {len(tokenizer)} entries, but vocab_size=10"):
        small_flamingo_config(10, tokenizer=tokenizer)


def test_building_changes_no_config():
    config = small_flamingo_config(VOCAB, **SIZES)
    assert flamingo_from_config(config, attn_implementation="eager").config._attn_implementation == "eager"
    assert config._attn_implementation is None


def test_vision_weights_from_a_folder_stay_frozen(tmp_path):
    torch.manual_seed(5)
    config = small_flamingo_config(VOCAB, **SIZES)
    donor = ViTModel(config.vision_config)
    donor.save_pretrained(tmp_path)
    model = flamingo_from_config(config, vision_model_name_or_path=str(tmp_path))
    weights = donor.state_dict()
    tower = model.flamingo.vision_tower
    assert all(torch.equal(weight, weights[name]) for name, weight in tower.state_dict().items())
    assert not any(weight.requires_grad for weight in tower.parameters())


def test_lora_trains_the_adapters_alone():
    model = small()
    for layer in model.flamingo.gated_layers:
        torch.nn.init.constant_(layer.attention_gate, 0.5)
    model = add_lora(model, r=4, alpha=8)
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    # Two decoder layers and a gated block, queries and values of each, two matrices each.
    assert len(trainable) == 3 * 2 * 2
    assert all("lora_" in name and "vision_tower" not in name and "perceiver" not in name for name in trainable)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids = torch.tensor([[2, VOCAB - 1, 7, 8, 9]])
    images = torch.randn(1, 3, 16, 16)
    model(input_ids=ids, pixel_values=images, labels=ids, num_items_in_batch=4).loss.backward()
    optimizer.step()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == {name for name in trainable if "lora_B" in name}  # B is zero, so A has no gradient yet
    model.eval()
    generated = [model.generate(pixel_values=images, max_new_tokens=4, use_cache=use) for use in (True, False)]
    assert torch.equal(*generated)
