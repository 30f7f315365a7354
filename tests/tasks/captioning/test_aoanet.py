import pytest
import torch
from recurrent_captioners import aoanet, aoanet_shapes, golden_images, golden_weights, random_weights

from hf_curriculum.tasks.captioning import AoANetConfig, AoANetForCausalLM
from hf_curriculum.tasks.captioning.models.convert import convert_reference

WORDS = [[0, 3, 1, 4], [0, 5, 2, 0]]
TARGETS = [[3, 1, 4, 0], [5, 2, 0, 0]]
GOLDEN = [[-2.09466109, -2.00569118, -1.94997396, -1.61839637], [-2.17995913, -1.76042773, -1.61579021, -1.61104560]]


@pytest.fixture
def convert(tmp_path):
    """A model of a checkpoint with these weights."""

    def convert(weights, **options):
        torch.save(weights, tmp_path / "model.pth")
        return convert_reference(tmp_path / "model.pth", unk_token_id=None, num_attention_heads=2, **options)

    return convert


def test_number_of_parameters():
    with torch.device("meta"):
        model = AoANetForCausalLM(AoANetConfig())
    assert sum(weight.numel() for weight in model.parameters()) == 85_562_640
    assert model.config.vocab_size == 9488


def test_golden_log_probabilities(convert):
    model = convert(golden_weights(aoanet_shapes()))
    assert isinstance(model, AoANetForCausalLM)
    assert model.config.num_refiner_layers == 6
    features, mask = golden_images()
    scores = model(torch.tensor(WORDS), region_features=features, region_mask=mask).logits.log_softmax(-1)
    found = scores.gather(2, torch.tensor(TARGETS)[..., None])[..., 0]
    torch.testing.assert_close(found, torch.tensor(GOLDEN, dtype=torch.float64), rtol=0, atol=1e-6)


def test_golden_captions(convert):
    model = convert(golden_weights(aoanet_shapes()))
    features, mask = golden_images()
    images = {"region_features": features, "region_mask": mask, "max_new_tokens": 5}
    assert model.generate(**images, num_beams=1).tolist() == [[0, 0], [0, 0]]
    beams = model.generate(
        **images, num_beams=3, num_return_sequences=3, return_dict_in_generate=True, output_scores=True
    )
    assert beams.sequences[0].tolist()[:2] == [0, 0]
    expected = torch.tensor([-1.63579402, -3.39548044, -3.58419547])
    torch.testing.assert_close(beams.sequences_scores[:3].float(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["reference", "standard"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_equals_the_written_out_model(convert, norm, attention):
    """Other weights, images of one to four regions, texts of one to six words."""
    weights = random_weights(aoanet_shapes(outputs=11, layers=2))
    model = convert(weights, norm=norm)
    model.set_attn_implementation(attention)
    features = torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    regions, lengths = [4, 1, 3], [6, 2, 1]
    words = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(4) < torch.tensor(regions)[:, None]
    text = torch.arange(6) < torch.tensor(lengths)[:, None]
    logits = model(words, text.long(), features, mask.long()).logits
    tolerance = {"rtol": 0, "atol": 1e-5 if attention == "eager" else 1e-9}  # eager's softmax is float32
    for row, (count, length) in enumerate(zip(regions, lengths, strict=True)):
        text_of_row = words[row, :length].tolist()
        expected = aoanet(weights, features[row, :count], text_of_row, standard=norm == "standard")
        torch.testing.assert_close(logits[row, :length], expected, **tolerance)
        other = aoanet(weights, features[row, :count], text_of_row, standard=norm != "standard")
        assert (logits[row, :length] - other).abs().max() > 1e-3


def test_a_checkpoint_that_does_not_fit(convert):
    weights = random_weights(aoanet_shapes(layers=1))
    del weights["refiner.layers.0.self_attn.aoa_layer.0.bias"]
    with pytest.raises(ValueError, match=r"missing: refiner\.layers\.0\.self_attn\.aoa_layer\.0\.bias"):
        convert(weights)


def test_heads_that_do_not_divide():
    with pytest.raises(ValueError, match=r"hidden_size=10 is not a multiple of num_attention_heads=4"):
        AoANetConfig(hidden_size=10, num_attention_heads=4)


def test_gradient_checkpointing_changes_nothing():
    torch.manual_seed(0)
    model = AoANetForCausalLM(AoANetConfig(12, 8, 2, 2, region_feature_size=6)).train()
    batch = {"input_ids": torch.tensor([[0, 3, 1, 0]]), "labels": torch.tensor([[0, 3, 1, 0]])}
    batch["region_features"] = torch.randn(1, 3, 6)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(1)
        model(**batch).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    assert model.model.refiner[0].gradient_checkpointing
    torch.testing.assert_close(*gradients)
