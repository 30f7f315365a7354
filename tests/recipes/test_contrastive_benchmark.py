"""The benchmark of contrastive scores runs, at sizes that say nothing about speed, and compares equal losses."""

from __future__ import annotations

import pytest
import torch
from benchmarks import contrastive
from benchmarks.contrastive import Task, Training, compare, on_gpu, plan_cost, timed


def test_every_side_is_timed_and_the_same():
    task = Task.make(6, 48)
    seconds = timed(task, 1)
    assert list(seconds) == ["a loop over images", "ours", "ours, computed once more", "a loop over pairs"]
    assert all(value > 0 for taken in seconds.values() for value in taken.values())
    with torch.no_grad():
        assert torch.allclose(task.over_pairs(36).view(6, 6), task.ours(), atol=1e-4)


def test_another_loss_is_no_comparison():
    one = torch.ones(3)
    compare("same", (1.0, [one]), (1.0, [one]))
    for loss, gradient in ((1.1, one), (1.0, 2 * one), (float("nan"), one)):
        with pytest.raises(ValueError, match=r"'other' has the loss .* The comparison means nothing"):
            compare("other", (loss, [gradient]), (1.0, [one]))


def test_ratios_and_memory(monkeypatch):
    monkeypatch.setattr(contrastive, "growth_mb", contrastive.own_growth_mb)  # spares three interpreters
    found = contrastive.on_cpu(12, 48, 1)
    assert len(found["ratios"]) == 5
    assert found["growth in MB"].keys() == {"a loop over images", "ours", "ours, computed once more"}


def test_the_plan_of_triplets():
    found = plan_cost(20_000, 8, 3, 1)
    assert (found["triplets"], found["nodes"], found["batch"]) == (20_000, 8, 256)
    assert 8 <= found["bytes a triplet (8 allowed)"] < 9
    assert found["milliseconds a step (0.1 allowed)"] > 0


def test_the_training_that_is_timed_on_a_gpu_runs():
    text = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 32}
    found = on_gpu(Training(4, 8, 8, (40, 4), 3, text), steps=2, chunk_size=2)
    assert list(found) == ["all at once", "chunks of 2"]
    for measured in found.values():
        assert measured["milliseconds a step"] > 0
        assert len(measured) == 4
