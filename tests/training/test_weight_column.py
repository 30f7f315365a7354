"""A column of weights in the loss: against loops written by hand, with or without a curriculum, after a resume."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from hf_curriculum import (
    IID,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    InfoBatch,
    OnlineSelection,
    Phases,
    save_bucketed,
)
from hf_curriculum.models.git.build import git_from_config, small_git_config
from hf_curriculum.training.prediction import try_first_batch
from hf_curriculum.training.weighting import read_weights, validate_weighting

ROWS = 24
WEIGHTS = np.linspace(0, 2, ROWS).astype(np.float32)
SCHEDULE = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def texts() -> dict:
    """Rows of 2 to 7 labelled tokens, padded to 8."""
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(5, 50, (ROWS, 8)), 2 + np.arange(ROWS) % 6
    real = np.arange(8) <= lengths[:, None]
    return {
        "input_ids": ids.tolist(),
        "attention_mask": real.astype(int).tolist(),
        "labels": np.where(real, ids, -100).tolist(),
    }


def images() -> dict:
    rng = np.random.default_rng(1)
    pixels = rng.normal(size=(ROWS, 3, 8, 8)).astype(np.float32)
    return {"pixel_values": pixels.tolist(), "labels": (pixels.mean((1, 2, 3)) > 0).astype(int).tolist()}


def git() -> nn.Module:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "image_size": 32}
    return git_from_config(small_git_config(text_layers=1, vision_layers=1, **size, **still))


def llama() -> nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))


def vit() -> nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=2, **sizes))


KINDS = {"git": (git, texts), "llama": (llama, texts), "vit": (vit, images)}


def make(kind, folder, curriculum=None, *, weights=WEIGHTS, column="weight", **arguments) -> CurriculumTrainer:
    torch.manual_seed(0)
    build, rows = KINDS[kind]
    data = Dataset.from_dict({**rows(), "weight": weights, "hard": np.arange(ROWS, dtype=np.float32)})
    settings = {"per_device_train_batch_size": 8, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    settings |= {"save_strategy": "no", "logging_steps": 1, **SCHEDULE, **arguments}
    args = CurriculumTrainingArguments(str(folder), curriculum=curriculum, weight_column=column, **settings)
    return CurriculumTrainer(build(), args, train_dataset=data)


def by_hand(trainer: CurriculumTrainer, weights: np.ndarray, divisor) -> tuple[list[float], nn.Module]:
    """The losses of all steps and the model after them, one example's own forward pass at a time."""
    model, losses = copy.deepcopy(trainer.model).eval(), []  # no part of it drops anything
    data = trainer.train_dataset.with_format("torch")
    names = [name for name in data.column_names if name not in ("weight", "hard", "labels")]
    for step in range(trainer.plan.num_steps):
        rows, loss = trainer.plan.step_rows(step).tolist(), 0.0
        for row in rows:
            example = data[row]
            logits = model(**{name: example[name][None] for name in names})["logits"][0].double()
            labels = example["labels"]
            if logits.ndim == 2:
                logits, labels = logits[-len(labels) :][:-1], labels[1:]
            each = nn.functional.cross_entropy(logits, labels, reduction="sum")
            loss = loss + float(weights[row]) * each
        loss = loss / divisor(data, rows)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= SCHEDULE["learning_rate"] * weight.grad
        losses.append(float(loss.detach()))
    return losses, model


def tokens(data, rows) -> int:
    return sum(int((data[row]["labels"][1:] != -100).sum()) for row in rows)


def examples(data, rows) -> int:
    return len(rows)


def logged(trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def same_weights(one, other, **tolerance) -> bool:
    return all(torch.allclose(*pair, **tolerance) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("rule", [None, Phases(2, easy="low")], ids=["control", "phases"])
@pytest.mark.parametrize(("kind", "divisor"), [("git", tokens), ("llama", tokens), ("vit", examples)])
def test_losses_and_weights_are_those_of_a_loop_written_by_hand(kind, divisor, rule, tmp_path):
    trainer = make(kind, tmp_path, rule, score_column=None if rule is None else "hard")
    losses, model = by_hand(trainer, WEIGHTS, divisor)
    start = copy.deepcopy(trainer.model)
    trainer.train()
    assert logged(trainer) == pytest.approx(losses, rel=1e-6)
    assert same_weights(trainer.model, model, atol=1e-6, rtol=1e-6)
    assert not same_weights(trainer.model, start, atol=1e-3)


@pytest.mark.parametrize(("kind", "divisor"), [("git", tokens), ("llama", tokens)])
def test_accumulated_batches_are_divided_by_the_tokens_of_the_step(kind, divisor, tmp_path):
    trainer = make(kind, tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    losses, model = by_hand(trainer, WEIGHTS, divisor)
    trainer.train()
    assert logged(trainer) == pytest.approx(losses, rel=1e-6)
    assert same_weights(trainer.model, model, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}])
def test_weights_of_1_are_a_run_without_weights(kind, more, tmp_path):
    plain, ones = make(kind, tmp_path, column=None, **more), make(kind, tmp_path, weights=np.ones(ROWS, int), **more)
    plain.train()
    ones.train()
    assert logged(ones) == pytest.approx(logged(plain), rel=1e-6)
    assert same_weights(ones.model, plain.model, atol=1e-6, rtol=1e-6)


def test_a_weight_of_0_leaves_a_row_out_of_the_loss(tmp_path):
    few = make("vit", tmp_path, weights=np.arange(ROWS) < 12)
    flipped = [1 - label if row >= 12 else label for row, label in enumerate(few.train_dataset["labels"])]
    few.train_dataset = few.train_dataset.remove_columns("labels").add_column("labels", flipped)
    right = make("vit", tmp_path, weights=np.arange(ROWS) < 12)
    for trainer in (few, right):
        trainer.train()
    assert same_weights(few.model, right.model, atol=1e-5, rtol=1e-5)


def test_the_weights_of_info_batch_multiply_those_of_the_column(tmp_path):
    trainer = make("llama", tmp_path, InfoBatch(epochs=4))
    seen = []

    def compute(model, inputs, return_outputs=False, num_items_in_batch=None):
        rule, rows = trainer.plan.weights_at(trainer.state.global_step), trainer._rows_of_batch.numpy()
        wanted = WEIGHTS[rows] * (1 if rule is None else rule[rows])
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        targets = inputs["labels"][:, 1:]
        each = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none").sum(1)
        loss = CurriculumTrainer.compute_loss(trainer, model, inputs, return_outputs, num_items_in_batch)
        seen.append(
            (float(loss.detach()), float((torch.from_numpy(wanted) * each).sum() / num_items_in_batch), rule is None)
        )
        return loss

    trainer.compute_loss = compute
    trainer.train()
    assert {unruled for *_, unruled in seen} == {True, False}
    assert [loss for loss, *_ in seen] == pytest.approx([wanted for _, wanted, _ in seen], rel=1e-6)
    assert trainer._weighting.losses()[0] > 0  # row 0 weighs 0, and the rule knows its own loss


def test_chosen_rows_take_their_weights_along(tmp_path):
    trainer = make("llama", tmp_path, OnlineSelection(2, "loss", then=IID(epochs=2), easy="low"))
    trainer.train()
    rows = [json.loads(line)[1] for line in (tmp_path / "draws-rank0.jsonl").read_text().splitlines()]
    fixed = SimpleNamespace(step_rows=lambda step: np.array(rows[step]), num_steps=len(rows))
    start = make("llama", tmp_path)
    losses, model = by_hand(
        SimpleNamespace(model=start.model, train_dataset=start.train_dataset, plan=fixed), WEIGHTS, tokens
    )
    assert logged(trainer) == pytest.approx(losses, rel=1e-6)
    assert same_weights(trainer.model, model, atol=1e-6, rtol=1e-6)


def test_evaluation_is_without_weights(tmp_path):
    trainer, plain = make("llama", tmp_path), make("llama", tmp_path, column=None)
    assert trainer.evaluate(trainer.train_dataset)["eval_loss"] == plain.evaluate(plain.train_dataset)["eval_loss"]


class Hinge(CurriculumTrainer):
    """Trains on a loss of its own."""

    def example_losses(self, model, inputs):
        logits = model(pixel_values=inputs["pixel_values"])["logits"]
        return (1 - (2 * inputs["labels"] - 1) * (logits[:, 1] - logits[:, 0])).clamp(min=0)


def test_a_loss_of_ones_own_is_weighted(tmp_path):
    made = make("vit", tmp_path, learning_rate=1e-9)
    trainer = Hinge(made.model, made.args, train_dataset=made.train_dataset)
    data, model = made.train_dataset.with_format("torch"), copy.deepcopy(made.model).eval()
    wanted = []
    for step in range(trainer.plan.num_steps):
        rows = trainer.plan.step_rows(step)
        with torch.no_grad():
            each = trainer.example_losses(model, data[rows])
        wanted.append(float((each * torch.from_numpy(WEIGHTS[rows])).mean()))
    trainer.train()
    assert logged(trainer) == pytest.approx(wanted, rel=1e-5)


def test_it_resumes_bit_for_bit_with_the_same_weights_alone(tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 4}
    whole = make("git", tmp_path, per_device_train_batch_size=4, **{**saved, "gradient_accumulation_steps": 2})
    whole.train()
    place = str(tmp_path / "checkpoint-2")
    again = make("git", tmp_path, per_device_train_batch_size=4, **saved)
    again.train(resume_from_checkpoint=place)
    assert logged(again) == logged(whole)
    assert same_weights(again.model, whole.model, atol=0, rtol=0)
    other = WEIGHTS.copy()
    other[3] += 1
    given = {**saved, "per_device_train_batch_size": 4}
    with pytest.raises(ValueError, match=r"`weight` of 1 differs \(first: row 3\)"):
        make("git", tmp_path, weights=other, **given).train(resume_from_checkpoint=place)
    with pytest.raises(ValueError, match=r"weights of the examples have changed .* \(there were other numbers\)"):
        make("git", tmp_path, weights=other, resume_on_other_data=True, **given).train(resume_from_checkpoint=place)
    with pytest.raises(
        ValueError, match=r"weights of the examples have changed .* \(there were weights, and none now"
    ):
        make("git", tmp_path, column=None, **given).train(resume_from_checkpoint=place)
    make("git", tmp_path / "plain", column=None, **given).train()
    with pytest.raises(ValueError, match=r"weights of the examples have changed .* \(there were none\)"):
        make("git", tmp_path / "plain", **given).train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-2"))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.where(np.arange(ROWS) == 5, np.nan, 1.0), r"holds nan in row 5, and no weight in 1 of 24 rows"),
        ([1.0, None] * 12, r"holds None in row 1, and no weight in 12 of 24 rows"),
        ([1, None] * 12, r"holds None in row 1"),
        ([True, None] * 12, r"holds None in row 1"),
        (np.where(np.arange(ROWS) == 7, -0.5, 1.0), r"holds -0.5 in row 7"),
        (np.where(np.arange(ROWS) == 2, 1e300, 1.0), r"holds 1e\+300 in row 2"),
        (np.zeros(ROWS), r"is 0 in all 24 rows \(0 to 23\): nothing would be trained"),
        (["a"] * ROWS, r"weight_column='weight' holds Value\('string'\).*Name a column of numbers"),
    ],
)
def test_weights_that_are_none_are_refused_before_the_first_step(bad, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        make("vit", tmp_path, weights=bad)


def test_where_there_are_no_weights_it_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"`wieght` is not in the data.*weight_column= names it"):
        make("vit", tmp_path, column="wieght")
    made = make("vit", tmp_path)
    with pytest.raises(ValueError, match=r"weight_column='weight' was given, and the training data is a list"):
        CurriculumTrainer(made.model, made.args, train_dataset=list(made.train_dataset))
    save_bucketed(made.train_dataset, tmp_path / "buckets", num_buckets=2, score_column="hard", easy="low")
    with pytest.raises(ValueError, match=r"weight_column='weight' was given, and the training data is a BucketedStr"):
        CurriculumTrainer(made.model, made.args, train_dataset=str(tmp_path / "buckets"))
    assert read_weights(made.train_dataset, None) is None


class Scaled(CurriculumTrainer):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


def test_losses_that_cannot_be_weighted_are_refused_before_the_first_step(tmp_path):
    made = make("vit", tmp_path)
    given = {"model": made.model, "args": made.args, "train_dataset": made.train_dataset}
    with pytest.raises(ValueError, match=r"compute_loss_func= was given, and weight_column='weight' weighs each"):
        CurriculumTrainer(**given, compute_loss_func=lambda *given, **more: 0)
    completions = SimpleNamespace(curriculum=IID(), args=SimpleNamespace(num_generations=4, weight_column="weight"))
    with pytest.raises(ValueError, match=r"weight_column='weight' weighs the loss of each .* num_generations=4"):
        validate_weighting(completions)
    with pytest.raises(ValueError, match=r"Scaled has a compute_loss of its own, and weight_column='weight' weighs"):
        Scaled(**given)


def test_batches_that_cannot_be_weighted_are_refused_before_the_first_step(tmp_path):
    trainer = make("vit", tmp_path)
    trainer.data_collator = lambda rows: [rows]
    with pytest.raises(TypeError, match=r"The collator's batch is a list, and weight_column= weighs the rows of a"):
        try_first_batch(trainer)
    trainer.data_collator = lambda rows: {"pixel_values": torch.zeros(len(rows), 3, 8, 8)}
    with pytest.raises(ValueError, match=r"and no `labels`, and weight_column='weight' weighs the loss of each"):
        try_first_batch(trainer)
    trainer = make("llama", tmp_path)
    trainer.data_collator = lambda rows: {
        "input_ids": torch.ones(1, 30, dtype=int),
        "labels": torch.ones(1, 30, dtype=int),
    }
    with pytest.raises(ValueError, match=r"batch of 8 rows has the labels of 1 sequences, and weight_column='weight'"):
        try_first_batch(trainer)


@pytest.mark.slow
def test_two_processes_train_as_one_does(launch, tmp_path):
    program = Path(__file__).with_name("weighting_runs.py")
    launch(program, tmp_path, "weights", processes=2)
    launch(program, tmp_path / "alone", "weights")
    facts = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    alone = json.loads((tmp_path / "alone" / "rank0.json").read_text())
    for one in facts:
        assert one["resumed"] == [True] * 11
        assert one["logged"] == pytest.approx(alone["logged"], rel=1e-5)
    plain = tmp_path / "plain"
    launch(program, plain, "control")
    assert json.loads((plain / "rank0.json").read_text())["logged"] != pytest.approx(alone["logged"], rel=1e-2)
