"""Weights in the loss of TRL's `SFTTrainer`, of texts and of dialogues with images: against loops written by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import MethodType

import numpy as np
import pytest
import torch
from tiny_vlm import make_vlm_trainer
from torch import nn

from hf_curriculum import InfoBatch

SPEC = importlib.util.spec_from_file_location("other_trainers", Path(__file__).with_name("other_trainers.py"))
OTHERS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(OTHERS)

RATE = 0.01
SCHEDULE = {"optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
RULE = InfoBatch(epochs=4)


def make(kind, folder, curriculum, **arguments):
    given = {"curriculum": curriculum, "score_column": None, **SCHEDULE, **arguments}
    if kind == "text":
        return OTHERS.make_trainer("sft", folder, **given)
    return make_vlm_trainer(folder, given.pop("curriculum"), **given)


def noted(trainer) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Trains, and returns the step, the rows and the rule's weights of each forward pass."""
    seen = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if model.training:
            step, rows = self.state.global_step, self._rows_of_batch.numpy().copy()
            rule = self.plan.weights_at(step)
            seen.append((step, rows, np.ones(len(rows)) if rule is None else rule[rows]))
        return type(self).compute_loss(self, model, inputs, return_outputs, num_items_in_batch)

    trainer.compute_loss = MethodType(compute_loss, trainer)
    trainer.train()
    return seen


def by_hand(trainer, seen) -> tuple[list[float], nn.Module, dict[int, float]]:
    """Losses, model and the threshold of each decision, one row's own forward pass through all logits at a time."""
    model, latest, losses, thresholds = trainer.model.eval(), {}, [], {}
    data = trainer.train_dataset
    for step in range(1 + seen[-1][0]):
        thresholds[step] = float(np.mean(list(latest.values()))) if latest else np.nan
        loss, count = 0.0, 0
        for _, rows, weights in (one for one in seen if one[0] == step):
            for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
                batch = trainer.data_collator([data[row]])
                labels = batch.pop("labels")[:, 1:]
                logits = model(**batch).logits[0, :-1]
                each = nn.functional.cross_entropy(logits, labels[0], reduction="sum")
                tokens = int((labels != -100).sum())
                latest[row] = float(each.detach()) / tokens
                loss, count = loss + weight * each, count + tokens
        loss = loss / count
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for value in model.parameters():
                if value.grad is not None:
                    value -= RATE * value.grad
        losses.append(float(loss.detach()))
    return losses, model, thresholds


@pytest.mark.parametrize("more", [{}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}])
@pytest.mark.parametrize("rule", [RULE, None], ids=["info_batch", "column"])
@pytest.mark.parametrize("kind", ["text", "images"])
def test_losses_and_weights_are_those_of_a_loop_written_by_hand(kind, rule, more, tmp_path):
    column = {"text": "length", "images": "words"}[kind]
    more = {**more, "save_strategy": "no", "weight_column": None if rule else column, "num_train_epochs": 4}
    trainer = make(kind, tmp_path, rule, **more)
    copied = make(kind, tmp_path / "copy", None, **more)  # the same model before training
    seen = noted(trainer)
    if rule is None:
        numbers = trainer.train_dataset[column]
        seen = [(step, rows, np.array([numbers[row] for row in rows])) for step, rows, _ in seen]
    losses, model, thresholds = by_hand(copied, seen)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert len(trainer.plan.log) > 2 or rule is None
    assert any((weights != 1).any() for *_, weights in seen)
    for entry in trainer.plan.log:
        assert entry["threshold"] == pytest.approx(thresholds[entry["step"]], rel=1e-5)


@pytest.mark.parametrize("kind", ["text", "images"])
def test_it_resumes_bit_for_bit(kind, tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 7}
    whole, again = make(kind, tmp_path, RULE, **saved), make(kind, tmp_path, RULE, **saved)
    whole.train()
    place = next(tmp_path.rglob("checkpoint-7"))
    again.train(resume_from_checkpoint=str(place))
    assert again.plan.log == whole.plan.log
    assert len(whole.plan.log) > 2
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_step_makes_one_forward_pass(tmp_path):
    trainer = make("text", tmp_path, RULE, save_strategy="no")
    passes = []
    trainer.model.register_forward_hook(lambda module, inputs, outputs: passes.append(module.training))
    trainer.train()
    assert passes.count(True) == trainer.state.global_step
    assert passes.count(False) == 2  # before the first step


def test_rows_that_are_joined_are_refused_before_the_first_step(tmp_path):
    trainer = make(
        "text", tmp_path, None, weight_column="length", padding_free=True, max_length=None, save_strategy="no"
    )
    with pytest.raises(ValueError, match=r"The batch of 8 rows has the labels of 1 sequences, and weight_column="):
        trainer.train()
    assert trainer.state.global_step == 0
