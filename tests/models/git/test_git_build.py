import sys

import pytest
import torch
from transformers import GitConfig, GitForCausalLM, GitVisionConfig, PreTrainedTokenizerFast, ViTConfig, ViTModel
from transformers.utils import logging

from hf_curriculum import CaptionGitForCausalLM, train_wordpiece
from hf_curriculum.models.git.build import (
    LORA_TARGETS,
    add_lora,
    git_from_config,
    git_from_stock,
    git_to_stock,
    load_vision_weights,
    paper_git_config,
    small_git_config,
    special_token_ids,
)
from hf_curriculum.models.git.config import CaptionGitConfig

VOCAB, CAUSAL = 60, {"task_type": "CAUSAL_LM"}
VISION = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def on_meta(config):
    with torch.device("meta"):
        return CaptionGitForCausalLM(config)


def small(**fields):
    torch.manual_seed(0)
    return git_from_config(
        small_git_config(VOCAB, image_size=16, hidden_size=32, vision_layers=1, text_layers=2, **fields)
    )


def test_the_papers_parameter_counts():
    model = on_meta(paper_git_config())
    assert count(model) == 197_997_312
    assert count(model) - count(model.git.image_encoder) == 111_608_064
    assert count(model.git.image_encoder) == 86_389_248
    assert count(model.git.visual_projection) == 592_128
    assert count(model.git.embeddings) == 25_961_472
    assert {count(layer) for layer in model.git.encoder.layer} == {7_087_872}
    assert count(model.git.encoder) == 85_054_464
    assert all(weight.requires_grad for weight in model.parameters())


def test_an_image_of_224_is_a_prefix_of_197_hidden_states():
    model = on_meta(paper_git_config())  # Saha et al. 2024 (BabyLM): ViT-B/16, its class token included
    features = model.git.encode_images(torch.empty(2, 3, 224, 224, device="meta"))
    assert model.git.visual_projection(features).shape == (2, 197, 768)


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({"vocab_size": 30_522}, 196_264_704),
        ({"tie_word_embeddings": False, "output_bias": True}, 223_203_594),
        ({"num_hidden_layers": 6}, 155_470_080),
        ({"vision_pooler": False}, 197_997_312 - 86_389_248 + 85_798_656),
    ],
)
def test_parameter_counts_of_the_variants(fields, parameters):
    assert count(on_meta(paper_git_config(**fields))) == parameters


def test_small_config():
    config = small_git_config(500, image_size=32, patch_size=4, hidden_size=64, vision_layers=2, text_layers=3)
    assert (config.vision_config.num_hidden_layers, config.num_hidden_layers) == (2, 3)
    assert (config.hidden_size, config.intermediate_size, config.vision_config.intermediate_size) == (64, 256, 256)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    assert config.initializer_range == pytest.approx(0.1)
    assert config.vision_config.initializer_range == pytest.approx(0.175)
    assert small_git_config(500, eos_token_id=9).eos_token_id == 9
    with pytest.raises(ValueError, match=r"image_size=30 is not a multiple of patch_size=8"):
        small_git_config(500, image_size=30)


def test_ids_come_from_the_tokenizer():
    tokenizer = train_wordpiece(["a red ball", "a blue cube"], 200, layout="bert")
    ids = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102}
    assert special_token_ids(tokenizer) == special_token_ids(tokenizer, len(tokenizer)) == ids
    config = small_git_config(200, tokenizer=tokenizer)
    assert {name: getattr(config, name) for name in ids} == ids
    assert paper_git_config(tokenizer=tokenizer).bos_token_id == 101
    generation = git_from_config(config).generation_config
    assert {name: getattr(generation, name) for name in ids} == ids


def test_a_tokenizer_that_does_not_fit_is_refused():
    tokenizer = train_wordpiece(["a red ball", "a blue cube"], 200)
    with pytest.raises(ValueError, match=rf"The tokenizer has {len(tokenizer)} entries, but vocab_size=10"):
        small_git_config(10, tokenizer=tokenizer)
    other = {"bos_token": "[SEP]", "eos_token": "[PAD]", "pad_token": "[CLS]"}
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **other)
    assert special_token_ids(plain) == {"pad_token_id": 2, "bos_token_id": 3, "eos_token_id": 0}
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]", cls_token="[CLS]")
    with pytest.raises(ValueError, match=r"gives no eos_token_id"):
        special_token_ids(bare)


def test_building_changes_no_config():
    config = small_git_config(VOCAB, hidden_size=32)
    assert git_from_config(config, attn_implementation="eager").config._attn_implementation == "eager"
    assert config._attn_implementation is None


def test_vision_weights_from_a_folder(tmp_path):
    torch.manual_seed(5)
    donor = ViTModel(small_git_config(VOCAB, image_size=16, hidden_size=32, vision_layers=1).vision_config)
    donor.save_pretrained(tmp_path)
    config = small_git_config(VOCAB, image_size=16, hidden_size=32, vision_layers=1, text_layers=1)
    model = git_from_config(config, vision_model_name_or_path=str(tmp_path))
    weights = donor.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.git.image_encoder.state_dict().items())
    assert all(weight.requires_grad for weight in model.parameters())


def test_vision_weights_without_a_pooler_are_enough(tmp_path):
    config = ViTConfig(**VISION, image_size=16, patch_size=8)
    ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    model = small(vision_config=config, vision_pooler=True)
    before = model.git.image_encoder.embeddings.cls_token.clone()
    load_vision_weights(model, str(tmp_path))
    assert not torch.equal(model.git.image_encoder.embeddings.cls_token, before)


def test_vision_weights_that_are_missing_are_an_error(tmp_path):
    ViTModel(ViTConfig(**{**VISION, "num_hidden_layers": 1}, image_size=16, patch_size=8)).save_pretrained(tmp_path)
    model = small(vision_config=ViTConfig(**VISION, image_size=16, patch_size=8))
    with pytest.raises(ValueError, match=r"lacks \d+ weights of a ViTModel.*would stay random"):
        load_vision_weights(model, str(tmp_path))


def stock_git(**fields):
    torch.manual_seed(0)
    vision = {**VISION, "image_size": 16, "patch_size": 8}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "vocab_size": VOCAB, "initializer_range": 0.2}
    return GitForCausalLM(GitConfig(vision_config=vision, **TEXT, **ids, **fields)).eval()


def our_git(**fields):
    torch.manual_seed(1)
    vision = GitVisionConfig(**VISION, image_size=16, patch_size=8)
    ids = {"bos_token_id": 2, "eos_token_id": 3, "vocab_size": VOCAB, "initializer_range": 0.2}
    return CaptionGitForCausalLM(CaptionGitConfig(vision, **TEXT, **ids, **fields)).eval()


def assert_same_logits(ours, stock):
    torch.manual_seed(2)
    ids, images = torch.randint(5, VOCAB, (2, 7)), torch.randn(2, 3, 16, 16)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    found = ours(ids, attention_mask=mask, pixel_values=images).logits
    expected = stock(input_ids=ids, attention_mask=mask, pixel_values=images).logits[:, 5:]
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=0)
    assert found.abs().max() > 0.5


def test_state_dicts_are_interchangeable_with_stock():
    ours, stock = our_git(tie_word_embeddings=False, output_bias=True), stock_git()
    assert ours.state_dict().keys() == stock.state_dict().keys()
    ours.load_state_dict(stock.state_dict())
    assert_same_logits(ours, stock)
    ours, stock = our_git(tie_word_embeddings=False, output_bias=True), stock_git()
    stock.load_state_dict(ours.state_dict())
    assert_same_logits(ours, stock)


def test_names_are_stocks():
    names = set(our_git().state_dict())
    assert {
        "git.embeddings.word_embeddings.weight",
        "git.encoder.layer.0.attention.self.query.weight",
        "git.encoder.layer.2.attention.output.LayerNorm.bias",
        "git.encoder.layer.1.intermediate.dense.weight",
        "git.visual_projection.visual_projection.0.weight",
        "git.visual_projection.visual_projection.1.bias",
        "output.weight",
    } <= names


def test_losses_equal_stocks():
    stock = stock_git()
    ours = git_from_stock(stock)
    torch.manual_seed(2)
    ids, images = torch.randint(5, VOCAB, (2, 7)), torch.randn(2, 3, 16, 16)
    expected = stock(input_ids=ids, pixel_values=images, labels=ids).loss
    torch.testing.assert_close(ours(ids, pixel_values=images, labels=ids).loss, expected)


@pytest.mark.parametrize("tied", [True, False])
def test_from_stock_and_back(tied, tmp_path):
    stock = stock_git(tie_word_embeddings=tied)
    ours = git_from_stock(stock)
    assert not ours.training
    assert ours.config.tie_word_embeddings is tied
    assert_same_logits(ours, stock)
    again = git_to_stock(ours)
    again.save_pretrained(tmp_path)
    assert_same_logits(ours, GitForCausalLM.from_pretrained(tmp_path))


def test_a_tied_bias_free_model_goes_to_stock_with_a_zero_bias():
    ours = our_git()
    stock = git_to_stock(ours)
    assert stock.output.bias.eq(0).all()
    assert stock.output.weight is stock.git.embeddings.word_embeddings.weight
    assert_same_logits(ours, stock)


def test_stock_weights_load_by_from_pretrained(tmp_path):
    stock = stock_git()
    stock.save_pretrained(tmp_path)
    config = our_git(tie_word_embeddings=False, output_bias=True).config
    ours, report = CaptionGitForCausalLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_same_logits(ours, stock)


def test_what_stock_cannot_hold_or_we_cannot_is_refused():
    with pytest.raises(ValueError, match=r"The vision tower is a 'vit'"):
        git_to_stock(small())
    with pytest.raises(ValueError, match=r"num_image_with_embedding=2: it reads videos"):
        git_from_stock(stock_git(num_image_with_embedding=2))


def test_lora_trains_the_adapters_alone(tmp_path):
    model = add_lora(small(), r=4, alpha=8)
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(trainable) == 2 * 2 * 2
    assert all("lora_" in name and "git.encoder.layer" in name and "image_encoder" not in name for name in trainable)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(0)
    ids, images = torch.randint(5, VOCAB, (2, 7)), torch.randn(2, 3, 16, 16)
    model(input_ids=ids, pixel_values=images, labels=ids, num_items_in_batch=12).loss.backward()
    optimizer.step()
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == {name for name in trainable if "lora_B" in name}  # B is zero, so A has no gradient yet
    model.eval()
    generated = [model.generate(pixel_values=images, max_new_tokens=4, use_cache=use) for use in (True, False)]
    assert torch.equal(*generated)
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_what_adapters_are_made_of(monkeypatch):
    import peft

    given = []
    monkeypatch.setattr(peft, "LoraConfig", lambda **options: options)
    monkeypatch.setattr(peft, "get_peft_model", lambda *parts: given.append(parts))
    add_lora("model")
    add_lora("model", r=2, alpha=3, dropout=0.5, target_modules=[])
    assert given == [
        ("model", {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": LORA_TARGETS} | CAUSAL),
        ("model", {"r": 2, "lora_alpha": 3, "lora_dropout": 0.5, "target_modules": []} | CAUSAL),
    ]


def test_loading_a_tower_is_quiet_and_changes_no_level(tmp_path, monkeypatch):
    model, levels = small(), []
    model.git.image_encoder.save_pretrained(tmp_path)
    before = logging.get_verbosity()
    read = ViTModel.from_pretrained

    def watched(*given, **options):
        levels.append(logging.get_verbosity())
        return read(*given, **options)

    monkeypatch.setattr(ViTModel, "from_pretrained", watched)
    load_vision_weights(model, str(tmp_path))
    with pytest.raises(OSError, match=r"nowhere"):
        load_vision_weights(model, str(tmp_path / "nowhere"))
    assert levels == [logging.ERROR] * 2
    assert logging.get_verbosity() == before != logging.ERROR


def test_lora_on_modules_of_ones_own():
    model = add_lora(small(), target_modules=["visual_projection.0", "intermediate.dense"])
    adapted = {name.split(".lora_")[0] for name, weight in model.named_parameters() if weight.requires_grad}
    assert any(name.endswith("git.visual_projection.visual_projection.0") for name in adapted)
    assert not any("attention" in name for name in adapted)


def test_lora_without_peft_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r'pip install "hf-curriculum\[peft\]"'):
        add_lora(small())
