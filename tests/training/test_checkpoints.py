"""Which checkpoints are whole."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import ViTConfig, ViTForImageClassification

from hf_curriculum import IID, Observed, SelfPaced, make_plan
from hf_curriculum.training.checkpoints import (
    invalidate,
    is_complete,
    last_complete_checkpoint,
    load_renamed_weights,
    read_curriculum,
    read_losses,
    require_complete,
    write_curriculum,
)


def checkpoint(root, step, state='{"global_step": 1}'):
    folder = root / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder


def test_the_newest_whole_checkpoint_is_taken_and_broken_ones_are_named(tmp_path, caplog):
    checkpoint(tmp_path, 9)
    checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 100, state='{"global_')
    checkpoint(tmp_path, 101, state=None)
    (tmp_path / "checkpoint-best").mkdir()
    with caplog.at_level(logging.WARNING):
        assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    assert "checkpoint-101, checkpoint-100 in" in caplog.text
    assert "Resuming from checkpoint-10" in caplog.text


def test_no_whole_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"found none\. Start a new run"):
        last_complete_checkpoint(tmp_path / "nowhere")
    checkpoint(tmp_path, 3, state="[]")
    with pytest.raises(ValueError, match="found only incomplete ones: checkpoint-3"):
        last_complete_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"is incomplete: its trainer_state\.json"):
        require_complete(tmp_path / "checkpoint-3")


def test_a_checkpoint_written_again_is_not_whole_until_it_is(tmp_path):
    folder = checkpoint(tmp_path, 3)
    assert is_complete(folder)
    invalidate(folder)
    invalidate(folder)
    assert not is_complete(folder)


def test_the_curriculum_is_written_in_one_piece(tmp_path):
    plan = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2)
    write_curriculum(tmp_path / "new", plan, 1.5)
    saved = read_curriculum(tmp_path / "new")
    assert (saved["version"], saved["seconds"], saved["log"]) == (1, 1.5, [])
    assert saved["plan"]["num_steps"] == 2
    assert saved["description"] == plan.describe()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["curriculum.json"]
    assert read_losses(tmp_path / "new") is None


def test_losses_that_a_plan_orders_by_are_kept_beside_it(tmp_path):
    plan = make_plan(SelfPaced(epochs=2, warmup_epochs=0), np.zeros(4), global_batch_size=2)
    losses = np.array([3, 1, np.nan, 2], np.float32)
    write_curriculum(tmp_path, plan.decided(Observed(0, {}, losses)), 0.0)
    assert np.array_equal(read_losses(tmp_path), losses, equal_nan=True)
    assert read_curriculum(tmp_path)["log"][0]["pool"] == 2
    # A later run writes the same folder before its own first decision.
    write_curriculum(tmp_path, plan, 0.0)
    assert read_losses(tmp_path) is None


def small_vit(seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))


def load_as_trainer_does(model, folder):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    load_renamed_weights(model, folder, model.load_state_dict(weights, strict=False))


def test_weights_saved_under_older_names_come_back(tmp_path):
    saved, other = small_vit(0), small_vit(1)
    saved.save_pretrained(tmp_path)
    assert set(safetensors.torch.load_file(tmp_path / "model.safetensors")) != set(saved.state_dict())
    load_as_trainer_does(other, tmp_path)
    for name, weight in saved.state_dict().items():
        assert torch.equal(other.state_dict()[name], weight), name


def test_weights_that_are_not_there_are_an_error(tmp_path):
    small_vit(0).vit.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks 2 weights of a ViTForImageClassification \(\['classifier.bias'"):
        load_as_trainer_does(small_vit(1), tmp_path)
    plain = torch.nn.Linear(2, 2)
    result = plain.load_state_dict({"weight": plain.weight}, strict=False)
    with pytest.raises(ValueError, match=r"it lacks 1 weights \(\['bias'\] …\) and has 0 others"):
        load_renamed_weights(plain, tmp_path, result)
