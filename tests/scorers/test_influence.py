"""Influence: against products of gradients, one row at a time, and what it refuses."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tiny_models as TINY
import torch
from datasets import Dataset, Features, Image, Value
from datasets.fingerprint import Hasher

from hf_curriculum import ModelLoss, add_scores, read_provenance
from hf_curriculum.models.captioner import new_captioner
from hf_curriculum.scorers.influence import Influence

IMAGES = [TINY.png(20, 30, seed) for seed in range(4)]
KINDS = Features({"image": Image(), "caption": Value("string"), "image_id": Value("string")})
TARGETS = Dataset.from_dict(
    {"image": IMAGES[:2], "caption": ["a man rides a bike", "two cats sleep"], "image_id": ["8", "9"]}, KINDS
)
CAPTIONS = ["a dog runs in the park", "a cat", "two dogs and a man sleep on the bike", "a red ball"]
ROWS = {"image": IMAGES, "caption": CAPTIONS, "image_id": list("0123")}


def talk(text):
    return [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": text}]


TALKS = {"messages": [talk(text) for text in ("A red ball.", "Two dogs run in the park.", "the dog")]}
TARGET_TALKS = {"messages": [talk("A man rides a bike."), talk("Two cats.")]}


def gradients(folder, rows, reduction):
    """The gradient of each row's loss by autograd, float64 (rows, weights)."""
    scorer, found = ModelLoss(folder, reduction=reduction), []
    scorer.dtype, scorer._differentiable = "float64", True
    loaded, kept = scorer.loaded(), []
    if scorer.reads_chats:
        plain = loaded.losses

        def losses(inputs, marks):
            made = plain(inputs, marks, True)
            kept.append(made / (marks[:, 1:] > 0).sum() if reduction == "mean" else made)
            return made

        loaded.losses = losses
    else:
        scorer.run = lambda *given: kept.append(ModelLoss.run(scorer, *given)) or kept[-1]
    for row in range(len(rows[scorer.caption_column])):
        loaded.model.zero_grad()
        scorer.score({name: values[row : row + 1] for name, values in rows.items()}, None)
        kept.pop().sum().backward()
        parts = [torch.zeros_like(part) if part.grad is None else part.grad for part in loaded.model.parameters()]
        found.append(torch.cat([part.flatten() for part in parts]).double().numpy())
    return np.stack(found)


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-3), ("float64", 1e-6)])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ["git", "gpt2"])
def test_it_is_the_product_of_gradients_of_one_row_at_a_time(name, reduction, dtype, rtol):
    folder, rows, targets = getattr(TINY, name)(), ROWS, {**ROWS, **TARGETS[:], "image": IMAGES[:2]}
    if name == "gpt2":
        rows, targets = TALKS, TARGET_TALKS
    given = TARGETS if name == "git" else Dataset.from_dict(TARGET_TALKS)
    scorer = Influence([folder], given, reduction=reduction, learning_rates=[0.5], dtype=dtype, batch_size=3)
    expected = 0.5 * gradients(folder, rows, reduction) @ gradients(folder, targets, reduction).mean(0)
    np.testing.assert_allclose(scorer(rows)["influence"], expected, rtol=rtol)
    assert np.abs(expected).min() > 1e-3


def moved(folder, source, amount, rates=(), names=("",)):
    """A copy of a captioner, some of its weights changed, with what a trainer logged."""
    from transformers import AutoModelForImageTextToText

    shutil.copytree(source, folder)
    model = AutoModelForImageTextToText.from_pretrained(source)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, part in model.named_parameters():
            if any(each in name for each in names):
                part.add_(amount * torch.randn_like(part))
    model.save_pretrained(folder)
    log = [{"step": number, "learning_rate": rate} for number, rate in enumerate(rates)] + [{"step": 9, "loss": 1.0}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}), encoding="utf-8")
    return str(folder)


def test_a_run_s_checkpoints_add_up_by_their_learning_rates(tmp_path):
    late = moved(tmp_path / "checkpoint-10", TINY.git(), 0.05, (0.3, 0.1))
    early = moved(tmp_path / "checkpoint-9", TINY.git(), 0.1, (0.2,))
    scorer = Influence(tmp_path, TARGETS)
    assert scorer.checkpoints == [early, late]
    assert scorer.learning_rates == [0.2, 0.1]
    alone = [Influence([one], TARGETS, learning_rates=[1])(ROWS)["influence"] for one in (early, late)]
    np.testing.assert_allclose(scorer(ROWS)["influence"], 0.2 * alone[0] + 0.1 * alone[1], rtol=2e-3)
    zero = Influence([early, late], TARGETS, learning_rates=[0, 1])
    np.testing.assert_allclose(zero(ROWS)["influence"], alone[1], rtol=2e-3)


def test_weights_that_were_not_trained_do_not_count(tmp_path):
    folders = [moved(tmp_path / f"{amount}", TINY.git(), amount, names=("layernorm",)) for amount in (0.01, 0.02)]
    both = Influence(folders, TARGETS, learning_rates=[1, 0])
    whole = Influence(folders[:1], TARGETS, learning_rates=[1])
    found = [scorer(ROWS)["influence"] for scorer in (both, whole)]
    assert set(both._at[0].step) < set(whole._at[0].step)
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_provenance_and_cache_key_know_checkpoints_and_targets(tmp_path):
    folder = moved(tmp_path / "checkpoint-1", TINY.git(), 0.0, (0.2,))
    data = Dataset.from_dict(ROWS, KINDS)
    scored = add_scores(data, Influence([folder], TARGETS, reduction="mean"))
    made = read_provenance(scored)["influence"]
    assert (made.easy, made.model, made.arguments["targets"]["rows"]) == ("high", folder, 2)
    keys = [Hasher.hash(Influence([folder], targets)) for targets in (TARGETS, TARGETS, TARGETS.select([0]))]
    assert keys[0] == keys[1] != keys[2]
    (tmp_path / "targets").mkdir()
    TARGETS.save_to_disk(tmp_path / "targets")
    assert Influence([folder], tmp_path / "targets").targets["rows"] == 2
    shutil.rmtree(folder)
    moved(tmp_path / "checkpoint-1", TINY.git(), 0.1, (0.2,))
    assert Hasher.hash(Influence([folder], TARGETS)) != keys[0]


def test_what_cannot_be_scored_is_nan():
    rows = {"image": [IMAGES[0], None, IMAGES[1]], "caption": ["", "a cat", "a dog"], "image_id": list("012")}
    found = Influence([TINY.git()], TARGETS, learning_rates=[1])(rows)["influence"]
    np.testing.assert_array_equal(np.isnan(found), [True, True, False])


def test_checkpoints_and_rates_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no saved model in .*Give the run's folder"):
        Influence(tmp_path, TARGETS)
    with pytest.raises(FileNotFoundError, match="has no saved model in "):
        Influence([], TARGETS)
    with pytest.raises(ValueError, match=r"trainer_state.json logs no learning rate.*`learning_rates=`"):
        Influence([TINY.git()], TARGETS)
    for rates in ([1, 1], [0], [-1], [np.nan]):
        with pytest.raises(ValueError, match="The learning rates of 1 checkpoints are"):
            Influence([TINY.git()], TARGETS, learning_rates=rates)
    new_captioner(TARGETS, 16, 120, hidden_size=32, vision_layers=1, text_layers=1)[0].save_pretrained(
        tmp_path / "other"
    )
    with pytest.raises(ValueError, match="are of models of different sizes"):
        Influence([tmp_path / "other", TINY.git()], TARGETS, learning_rates=[1, 1])(ROWS)
    with pytest.raises(ValueError, match="dtype"):
        Influence([TINY.git()], TARGETS, learning_rates=[1], dtype="bfloat16")


def test_targets_that_say_nothing():
    with pytest.raises(TypeError, match=r"was given a list .* as `targets`.* give `Dataset.from_list"):
        Influence([TINY.git()], [ROWS], learning_rates=[1])
    with pytest.raises(ValueError, match="`Influence` reads targets as it reads rows"):
        Influence([TINY.git()], TARGETS.remove_columns("caption"), learning_rates=[1])
    blank = Dataset.from_dict({**ROWS, "caption": ["", None, " ", ""]}, KINDS)
    with pytest.raises(ValueError, match="None of 4 targets has a text in `caption`"):
        Influence([TINY.git()], blank, learning_rates=[1])
    scorer = Influence([TINY.git()], TARGETS, learning_rates=[1])
    with pytest.raises(ValueError, match="1 of 2 targets are among the rows"):
        scorer({**ROWS, "image": IMAGES, "caption": ["a man rides a bike", *CAPTIONS[1:]]})


def test_gradients_without_a_direction_and_differences_that_are_too_small(tmp_path, monkeypatch):
    broken = moved(tmp_path / "nan", TINY.git(), float("nan"))
    with pytest.raises(ValueError, match="has the length nan, so it has no direction"):
        Influence([broken], TARGETS, learning_rates=[1])(ROWS)
    scorer = Influence([TINY.git()], TARGETS, learning_rates=[1])
    plain = Influence._gradient
    monkeypatch.setattr(Influence, "_gradient", lambda *given: {key: 2 * one for key, one in plain(*given).items()})
    with pytest.raises(ValueError, match=r"give another slope than their gradient, by 50.0%"):
        scorer(ROWS)
