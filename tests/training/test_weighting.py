"""Weights in the loss, and the losses of training: beside naive loops, and the same after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from detection_task import shapes_collator, shapes_data, shapes_model
from torch import nn
from transformers import Trainer

from hf_curriculum import (
    IID,
    CaptionCollator,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Filter,
    InfoBatch,
    make_image_processor,
    make_scenes,
    train_wordpiece,
)
from hf_curriculum.models.git.build import add_lora, git_from_config, small_git_config
from hf_curriculum.training.checkpoints import read_training_losses
from hf_curriculum.training.prediction import preserve_rng_state
from hf_curriculum.training.selection import select_rows
from hf_curriculum.training.weighting import TrainingLosses, reweighted, validate_weighting

RULE = InfoBatch(epochs=4)


@pytest.fixture(scope="module")
def scenes():
    data = make_scenes(24, image_size=32, validation=0.0, test=0.0)["train"]
    return data, train_wordpiece(data, 200)


@pytest.fixture
def make_captioner(scenes, tmp_path):
    """`make_captioner(**arguments)`: a small GIT without dropout on 24 captions."""
    data, tokenizer = scenes

    def make(curriculum=RULE, model=None, share_images=False, **arguments):
        torch.manual_seed(0)
        if model is None:
            still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            size = {"image_size": 32, "hidden_size": 16, "vision_layers": 1, "text_layers": 1}
            model = git_from_config(small_git_config(len(tokenizer), tokenizer=tokenizer, **size, **still))
        settings = {"per_device_train_batch_size": 8, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        settings |= {"save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-3, **arguments}
        args = CurriculumTrainingArguments(str(tmp_path / "out"), curriculum=curriculum, **settings)
        collator = CaptionCollator(tokenizer, make_image_processor(32), max_length=12, share_images=share_images)
        return CurriculumTrainer(model, args, data_collator=collator, train_dataset=data)

    return make


@pytest.fixture
def make(make_trainer):
    """`make(**arguments)`: a classifier with dropout on 24 rows."""

    def build(curriculum=RULE, **arguments):
        return make_trainer(curriculum, **{"score_column": None, "learning_rate": 1e-2, **arguments})

    return build


def compare(trainer, naive):
    """Trains, and returns for each forward pass (step, its loss, that of `Trainer`, that of `naive`, weights)."""
    seen = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with preserve_rng_state():
            plain = Trainer.compute_loss(self, model, dict(inputs), False, num_items_in_batch).detach()
        weights = self.plan.weights_at(self.state.global_step)
        own = np.ones(len(self._rows_of_batch)) if weights is None else weights[self._rows_of_batch.numpy()]
        with preserve_rng_state():
            wanted = naive(model, inputs, own, num_items_in_batch)
        loss = type(self).compute_loss(self, model, inputs, return_outputs, num_items_in_batch)
        seen.append((self.state.global_step, loss.item(), plain.item(), float(wanted), own))
        return loss

    trainer.compute_loss = MethodType(compute_loss, trainer)
    trainer.train()
    return seen


def each_caption(model, inputs, weights, num_items):
    """The weighted sum of tokens' losses, caption by caption, through the model itself."""
    total = 0.0
    with torch.no_grad():
        for number, weight in enumerate(weights):
            one = select_rows(inputs, np.array([number]), size=len(weights))
            total += weight * float(model(**one)["loss"]) * int((one["labels"][:, 1:] != -100).sum())
    return total / int(num_items)


@pytest.mark.parametrize("more", [{}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}])
def test_the_loss_of_captions_is_the_weighted_sum_over_all_tokens_of_the_step(make_captioner, more):
    trainer = make_captioner(**more)
    seen = compare(trainer, each_caption)
    weighted = [entry for entry in seen if (entry[4] != 1).any()]
    assert len(weighted) > 2
    assert {float(weight) for *_, weights in weighted for weight in weights} > {1.0}
    for step, loss, plain, naive, weights in seen:
        assert loss == pytest.approx(naive, rel=2e-6)
        if (weights == 1).all() and trainer.plan.stage_at(step).name in ("first pass", "everything"):
            assert loss == pytest.approx(plain, rel=1e-6)


def test_images_that_captions_share_are_read_once(make_captioner):
    for _, loss, _, naive, _ in compare(make_captioner(share_images=True), each_caption):
        assert loss == pytest.approx(naive, rel=2e-6)


def test_the_gradient_is_that_of_the_weighted_loss(make_captioner):
    trainer = make_captioner(IID(epochs=1))
    trainer._weighting.seen, trainer.is_in_train = TrainingLosses(24), True
    weights = np.linspace(0.5, 3, 24).astype(np.float32)
    trainer._weighting._of = lambda rows: torch.from_numpy(weights)[rows]
    batch = dict(next(iter(trainer.get_train_dataloader())))
    trainer._rows_of_batch = rows = batch.pop("example_index")
    model, num_items = trainer.model.train(), torch.tensor(77)

    def gradients(loss):
        model.zero_grad()
        loss.backward()
        return [one.grad.clone() for one in model.parameters() if one.grad is not None]

    found = gradients(trainer.compute_loss(model, batch, num_items_in_batch=num_items))
    parts = [select_rows(batch, np.array([number]), size=8) for number in range(8)]
    wanted = sum(
        float(weights[row]) * model(**one, num_items_in_batch=num_items)["loss"]
        for row, one in zip(rows, parts, strict=True)
    )
    for ours, theirs in zip(found, gradients(wanted), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def each_class(model, inputs, weights, num_items):
    scores = model(inputs["x"], inputs["labels"])["logits"].log_softmax(1)
    rows = enumerate(inputs["labels"].tolist())
    return sum(-scores[row, label].item() * weights[row] for row, label in rows) / len(weights)


def test_the_loss_of_classes_is_the_weighted_mean(make):
    seen = compare(make(per_device_train_batch_size=8), each_class)
    assert len(seen) == 12
    assert sum((weights != 1).any() for *_, weights in seen) > 3
    for step, loss, plain, naive, weights in seen:
        assert loss == pytest.approx(naive, rel=2e-6)
        if (weights == 1).all():
            assert loss == pytest.approx(plain, rel=1e-6), step


class Told(nn.Module):
    """Divides the sum of its losses by what it is told."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.layer(x)
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": total / (num_items_in_batch or len(labels)), "logits": logits}


def test_a_classifier_that_is_told_the_examples_of_the_step(make, data):
    def naive(model, inputs, weights, num_items):
        assert int(num_items) == 8
        scores = model(inputs["x"], inputs["labels"])["logits"].log_softmax(1)
        return -(scores[torch.arange(4), inputs["labels"]] * torch.from_numpy(weights)).sum().item() / 8

    args = make(gradient_accumulation_steps=2).args
    seen = compare(CurriculumTrainer(Told(), args, train_dataset=data), naive)
    assert len(seen) == 24
    assert any((weights != 1).any() for *_, weights in seen)
    for _, loss, _, wanted, _ in seen:
        assert loss == pytest.approx(wanted, rel=2e-6)


def test_detectors_have_a_loss_per_image(tmp_path):
    def naive(model, inputs, weights, num_items):
        each = model(**inputs)["losses"].double()
        return (each.nan_to_num() * torch.from_numpy(weights)).sum().item() / len(weights)

    args = CurriculumTrainingArguments(
        str(tmp_path),
        curriculum=RULE,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = CurriculumTrainer(shapes_model(), args, data_collator=shapes_collator(), train_dataset=shapes_data())
    before = [weight.clone() for weight in trainer.model.parameters()]
    seen = compare(trainer, naive)
    assert sum((weights != 1).any() for *_, weights in seen) > 3
    for _, loss, _, wanted, _ in seen:
        assert loss == pytest.approx(wanted, rel=1e-5)
    assert not any(torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))


def test_the_losses_that_decide_are_those_of_the_forward_passes_that_trained(make):
    trainer, latest, decided = make(per_device_train_batch_size=8), {}, []

    def naive(model, inputs, weights, num_items):
        scores = model(inputs["x"], inputs["labels"])["logits"].log_softmax(1)
        for place, row in enumerate(trainer._rows_of_batch.tolist()):
            latest[row] = -float(scores[place, inputs["labels"][place]])
        return 0.0

    def decide(self, metrics, losses=None):
        decided.append((dict(latest), losses))
        type(self)._decide(self, metrics, losses)

    trainer._decide = MethodType(decide, trainer)
    compare(trainer, naive)
    assert len(decided) == len(trainer.plan.log) > 1
    for known, losses in decided:
        assert (losses.dtype, losses.shape) == (np.float32, (24,))
        assert sorted(known) == list(range(24))
        assert losses == pytest.approx([known[row] for row in range(24)], rel=1e-6)
    assert [entry["examples_scored"] for entry in trainer.state.log_history] == [0] * len(trainer.state.log_history)


def test_what_was_not_trained_on_has_no_loss(make):
    trainer = make(Filter(0.5, RULE, easy="low"), score_column="difficulty")
    trainer.train()
    kept = np.isfinite(trainer.plan.losses)
    assert kept.sum() == 12
    assert sorted(np.flatnonzero(kept)) == sorted(trainer.plan.order.order)


def losses_of(trainer):
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def test_it_resumes_bit_for_bit_from_every_step(make, tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 2, "audit_draws": True}
    whole = make(**saved)
    whole.train()
    assert whole.state.global_step == 12
    assert len(whole.plan.log) > 2
    rows = (tmp_path / "out" / "draws-rank0.jsonl").read_text()
    for step in range(1, 12):
        resumed = make(**saved)
        resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{step}"))
        assert list(resumed.plan.log) == list(whole.plan.log)
        assert losses_of(resumed) == losses_of(whole)
        assert (tmp_path / "out" / "draws-rank0.jsonl").read_text() == rows
        assert np.array_equal(resumed._weighting.seen.packed, whole._weighting.seen.packed)
        for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_checkpoint_without_the_losses_of_training_is_damaged(make, tmp_path):
    make(save_strategy="steps", save_steps=5).train()
    file = tmp_path / "out" / "checkpoint-5" / "curriculum_training_losses.npy"
    assert (np.load(file) != 0).sum() == 20  # five batches of four
    np.save(file, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"training_losses\.npy holds something else than was written"):
        read_training_losses(file.parent)
    file.unlink()
    with pytest.raises(ValueError, match=r"curriculum_training_losses.npy is missing"):
        make().train(resume_from_checkpoint=str(file.parent))


def test_a_run_that_had_ended_reads_no_batch(make, monkeypatch):
    trainer = make(IID(epochs=1))
    monkeypatch.setattr(Trainer, "get_batch_samples", lambda self, iterator, number, device: number)
    for step, batches in ((trainer.plan.known_steps - 1, 2), (trainer.plan.known_steps, 0)):
        trainer.state.global_step = step
        trainer._reader = SimpleNamespace(iterator=iter(()), is_current=lambda plan: True)
        assert trainer.get_batch_samples(iter(()), 2, "cpu") == batches


def test_other_runs_are_left_alone(make, tmp_path):
    trainer = make(IID(epochs=1), save_strategy="steps", save_steps=3)
    for _, loss, plain, _, _ in compare(trainer, lambda *given: 0.0):
        assert loss == plain
    assert trainer._weighting.seen is None
    assert not (tmp_path / "out" / "checkpoint-3" / "curriculum_training_losses.npy").exists()


@pytest.mark.parametrize("kind", ["bf16", "lora"])
def test_half_precision_and_adapters(make_captioner, kind):
    model = add_lora(make_captioner().model) if kind == "lora" else None
    trainer = make_captioner(model=model, bf16=kind == "bf16")
    seen = compare(trainer, each_caption)
    assert trainer.state.global_step == trainer.plan.num_steps
    assert len(trainer.plan.log) > 1
    for _, loss, _, naive, _ in seen:
        assert loss == pytest.approx(naive, rel=2e-2 if kind == "bf16" else 2e-6)


def test_losses_of_many_batches_are_packed_on_the_way():
    seen = TrainingLosses(4)
    for step in range(255):
        seen.add(step, torch.tensor([step % 3]), torch.tensor([float(step)]))
    assert not seen.packed.any()  # no step waits for its device
    seen.add(255, torch.tensor([0, 0]), torch.tensor([7.0, 5.0]))
    assert seen.packed[:3].all()
    found = seen.losses(SimpleNamespace(num_processes=1))
    assert found[:3].tolist() == [7.0, 253.0, 254.0]
    assert np.isnan(found[3])


class Hinge(CurriculumTrainer):
    """Trains on a loss of its own."""

    def example_losses(self, model, inputs):
        logits = model(**inputs)["logits"]
        return (1 - (2 * inputs["labels"] - 1) * (logits[:, 1] - logits[:, 0])).clamp(min=0)


def test_a_loss_of_ones_own_is_trained_by_its_weighted_mean(make, data):
    made = make(per_device_train_batch_size=8)

    def naive(model, inputs, weights, num_items):
        logits = model(**inputs)["logits"]
        each = (1 - (2 * inputs["labels"] - 1) * (logits[:, 1] - logits[:, 0])).clamp(min=0)
        return sum(float(one) * weight for one, weight in zip(each, weights, strict=True)) / len(each)

    seen = compare(Hinge(made.model, made.args, train_dataset=data), naive)
    assert any((weights != 1).any() for *_, weights in seen)
    for _, loss, _, wanted, _ in seen:
        assert loss == pytest.approx(wanted, rel=2e-6)


def test_a_loss_of_ones_own_is_divided_by_the_batches_where_trainer_does_not(make, data):
    trainer = Hinge(make().model, make().args, train_dataset=data)
    trainer._weighting.seen, trainer._rows_of_batch = TrainingLosses(24), torch.tensor([3, 1])
    trainer.current_gradient_accumulation_steps = 4
    given = torch.tensor([6.0, torch.nan])
    trainer.example_losses = lambda model, inputs: given
    found = {
        (accepts, items): trainer._weighting._mean_of_own_losses(trainer.model, {}, weights, items).item()
        for accepts, items, weights in (
            (True, None, None), (True, 7, None), (False, 7, None), (False, None, torch.tensor([2.0, 5.0])),
        )
        if setattr(trainer, "model_accepts_loss_kwargs", accepts) is None
    }  # fmt: skip
    assert found == {(True, None): 3.0, (True, 7): 0.75, (False, 7): 3.0, (False, None): 6.0}
    losses = trainer._weighting.seen.losses(SimpleNamespace(num_processes=1))
    assert losses[3] == 6.0
    assert np.isnan(losses[1])


class AsTuple(nn.Module):
    """Returns the loss and the logits as a tuple, as `return_dict=False` has it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels=None):
        found = self.model(x=x, labels=labels)
        return found["loss"], found["logits"]


def test_a_model_that_returns_a_tuple_is_trained_alike(make, data):
    def losses(wrap):
        made = make()
        trainer = CurriculumTrainer(wrap(made.model), made.args, train_dataset=data)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    assert losses(AsTuple) == losses(lambda model: model)


class WithPenalty(nn.Module):
    """Its loss has a part that belongs to no example."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        penalty = self.layer.weight.square().sum()
        return {"loss": nn.functional.cross_entropy(logits, labels) + penalty, "logits": logits}


def test_a_loss_with_another_part_is_refused_before_the_first_step(make, data):
    made = make()
    trainer = CurriculumTrainer(WithPenalty(), made.args, train_dataset=data)
    with pytest.raises(ValueError, match=r"The loss of a WithPenalty is .* for a batch whose examples have the mean"):
        trainer.train()
    assert trainer.state.global_step == 0


class Scaled(CurriculumTrainer):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


def test_a_loss_that_is_computed_elsewhere_is_refused(make, make_captioner, data):
    made = make(IID(epochs=4))
    made.args.curriculum = RULE
    given = {"model": made.model, "args": made.args, "train_dataset": data}
    with pytest.raises(ValueError, match=r"compute_loss_func= was given, and InfoBatch weighs each example's share"):
        CurriculumTrainer(**given, compute_loss_func=lambda *given, **more: 0)
    with pytest.raises(ValueError, match=r"Scaled has a compute_loss of its own, and InfoBatch weighs"):
        Scaled(**given)
    with pytest.raises(ValueError, match=r"label_smoothing_factor= was given, and InfoBatch weighs"):
        make_captioner(label_smoothing_factor=0.1)
    completions = SimpleNamespace(curriculum=RULE, args=SimpleNamespace(num_generations=4, weight_column=None))
    with pytest.raises(ValueError, match=r"InfoBatch weighs the loss of each example, and .* num_generations=4"):
        validate_weighting(completions)


def test_sums_are_divided_by_what_the_loss_divides_them_by():
    sums = torch.tensor([2.0, torch.nan, 4.0], requires_grad=True)
    loss = reweighted(torch.tensor(6 / 7), sums, torch.tensor([1.0, 5.0, 3.0]))
    assert float(loss.detach()) == pytest.approx(14 / 7)
    loss.backward()
    assert sums.grad.tolist() == pytest.approx([1 / 7, 0, 3 / 7])
    nothing = torch.zeros(2, requires_grad=True)
    assert float(reweighted(torch.tensor(torch.nan), nothing, torch.ones(2)).detach()) == 0
    assert reweighted(torch.tensor(torch.inf), torch.tensor([torch.inf]), torch.ones(1)).isnan()


def test_the_latest_loss_stays_whichever_process_saw_it():
    own, other = TrainingLosses(4), TrainingLosses(4)
    own.add(0, torch.tensor([0, 1]), torch.tensor([3.0, 0.5]))
    own.add(2, torch.tensor([1, 1]), torch.tensor([0.25, 0.125]))  # twice in a step: the larger one
    other.add(1, torch.tensor([0]), torch.tensor([2.0]))
    other.add(1, torch.tensor([1]), torch.tensor([torch.nan]))

    def gather(packed):
        return torch.cat([packed, torch.from_numpy(other.packed)])

    other.gather(SimpleNamespace(num_processes=1))
    together = SimpleNamespace(num_processes=2, device="cpu", gather=gather)
    for _ in range(2):  # gathering again changes nothing
        assert np.array_equal(own.losses(together), np.float32([2, 0.25, np.nan, np.nan]), equal_nan=True)
    for step in range(300):  # more than are held back
        own.add(step + 3, torch.tensor([3]), torch.tensor([step / 4]))
    assert own.losses(together)[3] == 299 / 4


@pytest.mark.slow
def test_two_processes_decide_alike_and_resume_bit_for_bit(launch, tmp_path):
    program = Path(__file__).with_name("weighting_runs.py")
    launch(program, tmp_path, processes=2)
    facts = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert facts[0]["losses"] == facts[1]["losses"]
    for one in facts:
        assert one["decisions"] > 2
        assert one["resumed"] == [True] * len(one["resumed"])
        assert len(one["resumed"]) == 11
    launch(program, tmp_path / "alone")
    alone = json.loads((tmp_path / "alone" / "rank0.json").read_text())
    assert facts[0]["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-5)
    assert facts[0]["logged"] == pytest.approx(alone["logged"], rel=1e-3)
