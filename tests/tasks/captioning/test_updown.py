import pytest
import torch
from recurrent_captioners import golden_images, golden_weights, random_weights, updown, updown_shapes

from hf_curriculum.tasks.captioning import UpDownConfig, UpDownForCausalLM
from hf_curriculum.tasks.captioning.models.convert import convert_reference

WORDS = [[0, 3, 1, 4], [0, 5, 2, 0]]
TARGETS = [[3, 1, 4, 0], [5, 2, 0, 0]]
GOLDEN = [[-1.88010934, -2.00067877, -1.92787956, -2.19726127], [-1.80091048, -2.05129199, -2.19685363, -2.19742329]]


@pytest.fixture
def convert(tmp_path):
    """A model of a checkpoint with these weights."""

    def convert(weights, **options):
        torch.save(weights, tmp_path / "model.pth")
        return convert_reference(tmp_path / "model.pth", unk_token_id=None, **options)

    return convert


def test_number_of_parameters():
    with torch.device("meta"):
        model = UpDownForCausalLM(UpDownConfig())
    assert sum(weight.numel() for weight in model.parameters()) == 52_125_025
    assert model.config.vocab_size == 9488


def test_golden_log_probabilities(convert):
    model = convert(golden_weights(updown_shapes()))
    assert isinstance(model, UpDownForCausalLM)
    assert next(model.parameters()).dtype == torch.float64
    features, mask = golden_images()
    scores = model(torch.tensor(WORDS), region_features=features, region_mask=mask).logits.log_softmax(-1)
    found = scores.gather(2, torch.tensor(TARGETS)[..., None])[..., 0]
    torch.testing.assert_close(found, torch.tensor(GOLDEN, dtype=torch.float64), rtol=0, atol=1e-6)


def test_golden_captions(convert):
    model = convert(golden_weights(updown_shapes()))
    features, mask = golden_images()
    images = {"region_features": features, "region_mask": mask, "max_new_tokens": 5}
    assert model.generate(**images, num_beams=1).tolist()[0] == [0, 5, 5, 5, 5, 5]
    beams = model.generate(
        **images, num_beams=3, num_return_sequences=3, return_dict_in_generate=True, output_scores=True
    )
    assert beams.sequences[0].tolist() == [0, 5, 5, 5, 5, 5]
    expected = torch.tensor([-8.90792135, -8.95811207, -8.98435079])
    torch.testing.assert_close(beams.sequences_scores[:3].float(), expected, rtol=0, atol=2e-6)


def test_equals_the_written_out_model(convert):
    """Other weights, images of one to four regions, texts of one to six words."""
    weights = random_weights(updown_shapes(outputs=11, attention=5))
    model = convert(weights)
    features = torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    regions, lengths = [4, 1, 3], [6, 2, 1]
    words = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(4) < torch.tensor(regions)[:, None]
    text = torch.arange(6) < torch.tensor(lengths)[:, None]
    logits = model(words, text.long(), features, mask.long()).logits
    for row, (count, length) in enumerate(zip(regions, lengths, strict=True)):
        expected = updown(weights, features[row, :count], words[row, :length].tolist())
        torch.testing.assert_close(logits[row, :length], expected)


def test_checkpoints_that_do_not_fit(convert):
    weights = random_weights(updown_shapes())
    with pytest.raises(ValueError, match=r"unknown: core\.extra"):
        convert({**weights, "core.extra": torch.ones(1)})
    with pytest.raises(ValueError, match=r"missing: fc_embed\.0\.bias"):
        convert({name: value for name, value in weights.items() if name != "fc_embed.0.bias"})
    narrow = {**weights, "embed.0.weight": torch.ones(7, 5), "core.att_lstm.weight_ih": torch.ones(32, 21)}
    with pytest.raises(ValueError, match=r"shape: embed\.0\.weight \(7, 5\), not \(7, 8\)"):
        convert(narrow)


def test_a_norm_that_would_change_nothing():
    with pytest.raises(ValueError, match="UpDown has no layer norm"):
        UpDownConfig(norm="standard")
    assert UpDownConfig.from_dict(UpDownConfig(hidden_size=8).to_dict()).hidden_size == 8
