"""What is trained on is what a loop by hand chooses, and nothing but the choice is different from a plain run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from selection_task import (
    PLAIN,
    First,
    ShortCaptions,
    captioned,
    captions_collator,
    captions_trainer,
    recorded,
    small_git,
    weights_of,
)
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    ByLength,
    CurriculumTrainer,
    Filter,
    OnlineSelection,
    Phases,
    SelfPaced,
    make_plan,
)
from hf_curriculum.rng import hash64
from hf_curriculum.training.selection import SelectionAudit, choice_key

BATCH, STEPS, RATE = 4, 6, 0.01


# ---- A loop by hand ----


def loss_by_hand(model, row, image=None):
    """−log p of each token after the first, their mean, of one example alone."""
    example = captioned()[0][int(row)]
    if image is not None:
        example = {**example, "image": captioned()[0][int(image)]["image"]}
    batch = captions_collator()([example])
    with torch.no_grad():
        logits = model(pixel_values=batch["pixel_values"], input_ids=batch["input_ids"]).logits[0].double()
    ids = batch["input_ids"][0]
    kept = logits[-len(ids) :]
    return -np.mean([kept[place].log_softmax(0)[token].item() for place, token in enumerate(ids[1:])])


def values_by_hand(rule, model, place):
    """The value of each candidate of one place."""
    losses = np.array([loss_by_hand(model, row) for row in place])
    if isinstance(rule, ShortCaptions):
        return np.array([-captions_collator()([captioned()[0][int(row)]])["input_ids"].shape[1] for row in place])
    if rule.value == "grounding":
        others = [*place[1:], place[0]]
        return np.array([loss_by_hand(model, *pair) for pair in zip(place, others, strict=True)]) - losses
    if rule.value == "reducible_loss":
        return losses - np.array(captioned()[0]["reference"], dtype=np.float64)[place]
    return -losses if rule.value == "-loss" else losses


def choice_by_hand(rule, values, place, key):
    """The number of the candidate that is trained on, one comparison after the other."""
    best, largest = 0, -np.inf
    for number, (value, row) in enumerate(zip(values, place, strict=True)):
        if rule.temperature is not None and np.isfinite(value):
            again = list(place[:number]).count(row)
            evenly = (int(hash64(np.array([row + again * 2**32]), key)[0]) // 2**11 + 0.5) / 2**53
            value = value / rule.temperature - np.log(-np.log(evenly))
        if np.isfinite(value) and value > largest:
            best, largest = number, value
    return place[best]


def train_by_hand(rule, plan):
    """(the rows of each step, the weights at the end)."""
    model, steps = small_git(), []
    for step in range(STEPS):
        places = plan.step_rows(step).reshape(BATCH, rule.candidates)
        model.eval()
        valued = [values_by_hand(rule, model, place) for place in places]
        key = choice_key(plan, step)
        rows = [int(choice_by_hand(rule, *pair, key)) for pair in zip(valued, places, strict=True)]
        model.train()
        model.zero_grad()
        model(**captions_collator()([captioned()[0][row] for row in rows])).loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= RATE * weight.grad
        steps.append(rows)
    return steps, torch.cat([weight.detach().flatten() for weight in model.parameters()])


RULES = {
    "loss": OnlineSelection(3, "loss"),
    "-loss": OnlineSelection(2, "-loss", then=Phases(2, 2), easy="low"),
    "grounding": OnlineSelection(3, "grounding"),
    "reducible loss": OnlineSelection(3, "reducible_loss", "reference"),
    "a value of one's own": ShortCaptions(3),
    "temperature": OnlineSelection(3, "loss", temperature=0.3),
}


def test_what_a_value_costs_in_forward_passes():
    found = {name: rule.forwards for name, rule in RULES.items()}
    assert found == dict.fromkeys(RULES, 1) | {"grounding": 2}


@pytest.mark.parametrize("name", RULES)
def test_it_trains_on_what_a_loop_by_hand_chooses(name, tmp_path):
    rule = RULES[name]
    trainer = captions_trainer(rule, tmp_path, max_steps=STEPS, learning_rate=RATE)
    expected, weights = train_by_hand(rule, trainer.plan)
    trainer.train()
    assert [rows for _, rows, _ in recorded(tmp_path)] == expected
    torch.testing.assert_close(weights_of(trainer), weights, rtol=1e-4, atol=2e-5)
    first = [trainer.plan.step_rows(step).reshape(BATCH, -1)[:, 0].tolist() for step in range(STEPS)]
    assert first != expected


def test_with_images_a_candidate_is_an_image_and_its_value_the_mean_of_its_captions(tmp_path):
    """Rows 5 and 11 have no reference: then that of the other caption of their images counts."""
    rule = OnlineSelection(3, "reducible_loss", "reference", then=IID(epochs=4), batches=ByImage(2))
    trainer = captions_trainer(rule, tmp_path, learning_rate=0.0)
    model, alone = small_git().eval(), 0
    trainer.train()
    for step, rows, found in recorded(tmp_path):
        places = trainer.plan.step_rows(step).reshape(2, 3, 2)
        expected, numbers = [], []
        for place in places:
            assert all(len({row // 2 for row in image}) == 1 for image in place)
            values = np.array([values_by_hand(rule, model, image) for image in place])
            alone += np.isnan(values).sum()
            means = np.nanmean(values, axis=1)
            expected += place[means.argmax()].tolist()
            numbers.append(means.max())
        assert rows == expected
        assert found == pytest.approx(numbers, rel=1e-4)
    assert alone > 0
    assert len(recorded(tmp_path)) == trainer.plan.num_steps == 8


def test_batches_by_length_have_candidates_of_a_length():
    data = Dataset.from_dict({"caption_length": np.random.default_rng(0).permutation(48).tolist()})
    plan = make_plan(
        OnlineSelection(3, "loss", then=IID(epochs=1), batches=ByLength(window=2)), data, global_batch_size=4
    )
    lengths = np.array(data["caption_length"])
    for step in range(0, plan.num_steps, 2):
        one, other = sorted(([*lengths[plan.step_rows(number)]] for number in (step, step + 1)), key=min)
        assert max(one) < min(other)
        assert len(one) == len(other) == 12


# ---- Nothing else differs ----


def logged(trainer):
    unsteady = ("runtime", "per_second", "seconds")
    return [
        {name: value for name, value in entry.items() if not name.endswith(unsteady)}
        for entry in trainer.state.log_history
    ]


ALONE = {
    "iid": {"then": IID(epochs=2)},
    "phases by image": {"then": Phases(2, 1), "batches": ByImage(2)},
    "self-paced": {"then": SelfPaced(initial=0.4, epochs=3)},
    "baby steps": {"then": BabySteps(2, patience=1, epochs=3)},
}


@pytest.mark.parametrize("name", ALONE)
def test_with_one_candidate_it_is_the_curriculum_that_draws(name, tmp_path):
    then, batches = ALONE[name]["then"], ALONE[name].get("batches")
    rules = {"plain": replace(then, easy="low", batches=batches)}
    rules["wrapped"] = OnlineSelection(1, "grounding", score_every=2, easy="low", **ALONE[name])
    trainers = {}
    for place, rule in rules.items():
        settings = {"save_strategy": "steps", "save_steps": 4, "optim": "adamw_torch", "audit_draws": True}
        given = {"model": small_git(dropout=0.2), "eval_dataset": captioned()[0].select(range(4))}
        trainers[place] = captions_trainer(rule, tmp_path / place, trainer=given, **settings)
        trainers[place].train()
    plain, wrapped = trainers.values()
    assert torch.equal(weights_of(plain), weights_of(wrapped))
    assert logged(plain) == logged(wrapped)
    folders = [Path(trainer.args.output_dir) / "checkpoint-4" for trainer in trainers.values()]
    assert [path.name for path in sorted(folders[0].iterdir())] == [path.name for path in sorted(folders[1].iterdir())]
    held = [json.loads((folder / "curriculum.json").read_text()) for folder in folders]
    for one in held:
        one["plan"].pop("curriculum")
        for name in ("description", "seconds", "run", "seal"):
            one.pop(name)
        for name in ("trainer_state.json", "training_args.bin"):  # the time, and the rule
            one["files"].pop(name)
    assert held[0] == held[1]
    audits = [(folder.parent / "draws-rank0.jsonl").read_text() for folder in folders]
    assert audits[0] == audits[1]


class InOrder(Trainer):
    """Trains on the rows of its data set, one after the other."""

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_random_streams_are_those_of_a_plain_run_on_the_chosen_rows(tmp_path, every, accumulation):
    settings = {"per_device_train_batch_size": BATCH // accumulation, "gradient_accumulation_steps": accumulation}
    settings |= {"max_steps": STEPS, "optim": "adamw_torch", "learning_rate": 1e-2}
    chooser = captions_trainer(
        First(3, score_every=every), tmp_path / "one", trainer={"model": small_git(dropout=0.3)}, **settings
    )
    chooser.train()
    rows = [rows for _, rows, _ in recorded(tmp_path / "one")]
    assert rows == [chooser.plan.step_rows(step).reshape(BATCH, 3)[:, 0].tolist() for step in range(STEPS)]
    own = {name: value for name, value in PLAIN.items() if name != "score_column"}
    args = TrainingArguments(str(tmp_path / "two"), remove_unused_columns=False, **{**own, **settings})
    data = captioned()[0].select([row for step in rows for row in step])
    plain = InOrder(small_git(dropout=0.3), args, captions_collator(), data)
    plain.train()
    assert torch.equal(weights_of(chooser), weights_of(plain))
    losses = [[entry["loss"] for entry in one.state.log_history if "loss" in entry] for one in (chooser, plain)]
    assert losses[0] == losses[1]


def test_the_model_values_without_dropout_and_gradients_and_is_trained_with_them(tmp_path):
    seen = []

    class Noting(CurriculumTrainer):
        def example_losses(self, model, inputs):
            seen.append((model.training, torch.is_grad_enabled(), len(inputs["labels"])))
            return super().example_losses(model, inputs)

        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append((model.training, torch.is_grad_enabled(), len(inputs["labels"])))
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = captions_trainer(OnlineSelection(2, "loss"), tmp_path, kind=Noting, max_steps=2)
    trainer.train()
    assert seen == [(False, False, 8), *[(False, False, 8), (True, True, 4)] * 2]


# ---- Candidates that are valued together ----


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_with_score_every_the_model_before_the_first_of_the_steps_chooses(tmp_path, monkeypatch, every, accumulation):
    """Steps of a round: those of the next one are not known before it begins."""
    rule = OnlineSelection(3, "loss", then=SelfPaced(initial=0.4, epochs=7, warmup_epochs=1), score_every=every)
    valued = []

    class Noting(CurriculumTrainer):
        def example_losses(self, model, inputs):
            losses = super().example_losses(model, inputs)
            valued.append((self.state.global_step, weights_of(self).sum().item()))
            return losses

        def training_losses(self):
            found = super().training_losses()
            valued.clear()
            return found

    size = {"per_device_train_batch_size": BATCH // accumulation, "gradient_accumulation_steps": accumulation}
    trainer = captions_trainer(rule, tmp_path, kind=Noting, **size)
    seen = []
    note = SelectionAudit.note

    def noted(audit, step, rows, values):
        seen.append((trainer.state.global_step, step))
        note(audit, step, rows, values)

    monkeypatch.setattr(SelectionAudit, "note", noted)
    trainer.train()
    begins = [entry["step"] for entry in trainer.plan.log]
    expected, first = [], 0
    for step in range(trainer.state.global_step):
        if step in begins or step % every == 0:
            first = step
        expected += [(first, step)] * accumulation
    assert seen == expected
    assert any(begin % every for begin in begins)
    assert {step for step, _, _ in recorded(tmp_path)} == set(range(trainer.state.global_step))


def test_a_filter_over_it_and_one_within(tmp_path):
    for number, rule in enumerate(
        [
            Filter(0.5, OnlineSelection(2, "loss", then=Phases(2, 1)), easy="low"),
            OnlineSelection(2, "loss", then=Filter(0.5, IID(epochs=2)), easy="low"),
        ]
    ):
        trainer = captions_trainer(rule, tmp_path / str(number))
        trainer.train()
        kept = {row for step in range(trainer.plan.num_steps) for row in trainer.plan.step_rows(step).tolist()}
        assert kept == set(trainer.plan.order.order.tolist())
        assert len(kept) == 12
        assert len(recorded(tmp_path / str(number))) == trainer.plan.num_steps


# ---- Checkpoints ----


def test_a_checkpoint_is_hardly_larger(tmp_path):
    sizes = []
    for place, rule in {"plain": IID(), "chosen": OnlineSelection(4, "loss", then=IID())}.items():
        trainer = captions_trainer(rule, tmp_path / place, max_steps=2, save_strategy="steps", save_steps=2)
        trainer.train()
        folder = tmp_path / place / "checkpoint-2"
        assert not list(folder.glob("selection_*"))
        held = json.loads((folder / "curriculum.json").read_text())
        for name in ("curriculum", "num_draws"):  # the rule's own text; and as many digits as there are draws
            held["plan"].pop(name, None)
        held.pop("description"), held.pop("draws")  # the digest of a record beside it
        held["seconds"] = 0
        sizes.append(len(json.dumps(held)))
    assert abs(sizes[1] - sizes[0]) <= 64


def test_a_file_that_another_run_left_is_not_read(tmp_path):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1}
    captions_trainer(OnlineSelection(3, "loss", score_every=4), tmp_path, **settings).train()
    left = tmp_path / "checkpoint-2" / "selection_0.npz"
    assert left.is_file()
    (tmp_path / "checkpoint-2" / "selection_1.npz").write_bytes(left.read_bytes())
    for rule in (OnlineSelection(3, "loss"), OnlineSelection(3, "loss", score_every=2), IID()):
        whole = captions_trainer(rule, tmp_path, **settings)
        whole.train()
        again = captions_trainer(rule, tmp_path, **settings)
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert torch.equal(weights_of(whole), weights_of(again))


def test_a_plan_counts_what_is_scored():
    plan = make_plan(OnlineSelection(4, "grounding", then=IID(epochs=2)), np.arange(40.0), global_batch_size=5)
    assert (plan.num_steps, plan.samples_per_step, plan.num_draws, plan.num_examples) == (4, 20, 80, 20)
    assert (plan.examples_after(3), plan.scored_after(3), plan.compute_after(3)) == (15, 120, 165)
    assert plan.cost_ratio == pytest.approx((20 + 80 * 2 / 3) / 80)
    text = plan.describe()
    assert "80 candidates drawn: 2 × the data in 4 steps of 5" in text
    assert "20 examples trained on, the best of 80 candidates; scoring them is 2.67 × the training compute" in text
    alone = make_plan(OnlineSelection(1, "loss"), np.arange(40.0), global_batch_size=5)
    assert alone.scored_after(3) == 0
    assert "candidates" not in alone.describe().splitlines()[-1]
