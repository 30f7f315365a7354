"""Detectors in `CurriculumTrainer`: curricula, evaluation, saving, and runs that fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from detection_task import NAMES, shapes_collator, shapes_data, shapes_model
from torch import nn
from transformers import AutoImageProcessor, AutoModelForObjectDetection

from hf_curriculum import (
    BabySteps,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Phases,
    SelfPaced,
    StopWhenDiverged,
    Study,
)
from hf_curriculum.hub.model_card import _code
from hf_curriculum.tasks.detection import constant_loss
from hf_curriculum.training.callbacks import Diverged
from hf_curriculum.training.prediction import example_losses


@pytest.fixture(scope="module")
def data():
    return shapes_data(24)


@pytest.fixture
def make_trainer(tmp_path, data):
    def make(curriculum=None, *, model=None, trainer=None, **arguments):
        settings = {
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 2,
            "save_strategy": "no",
            "score_column": None if curriculum is None else "difficulty",
            "dataloader_pin_memory": False,
            **arguments,
        }
        args = CurriculumTrainingArguments(str(tmp_path / "out"), curriculum=curriculum, **settings)
        given = {"model": model or shapes_model(), "args": args, "train_dataset": data, **(trainer or {})}
        return CurriculumTrainer(**{"data_collator": shapes_collator(), **given})

    return make


class Metrics:
    """What `compute_metrics` is given, and how often the best box of the image's largest class is right."""

    def __init__(self, data):
        self.truths, self.seen = data["objects"], []

    def __call__(self, prediction):
        self.seen.append(prediction)
        right = []
        for rows, objects in zip(prediction.predictions, self.truths, strict=True):
            for item in objects:
                own = rows[rows[:, 0] == NAMES.index(item["name"])]
                right.append(len(own) and np.abs(own[0, 2:] - item["box"]).max() < 1)
        return {"found": float(np.mean(right))}


def test_phases_train_and_evaluation_has_one_form(make_trainer, data, tmp_path):
    metrics, held_out = Metrics(shapes_data(10, seed=1)), shapes_data(10, seed=1)
    trainer = make_trainer(
        Phases(2, easy="low", epochs_per_phase=14),
        trainer={"eval_dataset": held_out, "compute_metrics": metrics},
        per_device_eval_batch_size=4,
        eval_strategy="no",
    )
    before, result = trainer.evaluate(), trainer.train()
    after = trainer.evaluate()
    assert result.global_step == trainer.plan.num_steps
    for prediction in metrics.seen:
        assert prediction.predictions.shape == (10, 100, 6)
        assert prediction.label_ids.tolist() == [
            [float(number in labels) for number in range(3)] for labels in held_out["labels"]
        ]
    assert after["eval_loss"] < 0.7 * before["eval_loss"]
    assert after["eval_found"] > 0.6
    # In pixels of the stored image: each box is one of its proposals.
    for rows, proposals in zip(metrics.seen[-1].predictions, held_out["proposals"], strict=True):
        distances = np.abs(rows[rows[:, 0] >= 0][:, None, 2:] - np.float32(proposals)).max(-1)
        assert distances.min(1).max() < 1e-3
    trainer.save_model(str(tmp_path / "model"))
    assert AutoImageProcessor.from_pretrained(tmp_path / "model").class_names == NAMES
    assert AutoModelForObjectDetection.from_pretrained(tmp_path / "model").config.id2label == dict(enumerate(NAMES))


def test_the_card_s_snippet_runs(make_trainer, tmp_path, data, capsys, monkeypatch):
    trainer = make_trainer(model=shapes_model(initializer_range=2.0), max_steps=1)
    trainer.save_model(str(tmp_path / "model"))
    data[0]["image"].save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    facts = {"repo_id": "model", "auto": "AutoModelForObjectDetection", "processor": "AutoImageProcessor"}
    code = _code({**facts, "is_ours": True, "is_adapter": False}, None)
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.split()[0] in NAMES for line in lines)


def test_self_paced_reads_the_loss_of_each_image(make_trainer, data):
    rule = SelfPaced(initial=0.5, growth=1.5, warmup_epochs=1, final_epochs=1, easy="low")
    trainer = make_trainer(rule)
    losses = trainer.training_losses()
    trainer.model.eval()
    plain = shapes_collator().without_augmentation()
    with torch.no_grad():
        alone = [float(trainer.model(**plain([row])).loss) for row in data]
    assert losses == pytest.approx(alone, rel=1e-4)
    trainer.train()
    assert len(trainer.plan.log) > 1


def test_baby_steps_wait_for_a_metric(make_trainer, data):
    rule = BabySteps(2, patience=1, epochs=4, metric="found", greater_is_better=True, easy="low")
    trainer = make_trainer(rule, trainer={"eval_dataset": data, "compute_metrics": Metrics(data)})
    trainer.train()
    assert {"decision", "value"} <= set(trainer.plan.log[0])
    assert 0 <= trainer.plan.log[0]["value"] <= 1


def test_accumulated_gradients_are_those_of_one_batch(make_trainer):
    weights = []
    for size, accumulation in ((8, 1), (2, 4)):
        model = shapes_model(dropout=0.0)
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        make_trainer(model=model, optim="sgd", max_steps=3, **settings).train()
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.allclose(*weights, atol=1e-6)
    assert not torch.allclose(weights[0], torch.cat([w.detach().flatten() for w in shapes_model().parameters()]))


def test_half_precision_trains(make_trainer):
    trainer = make_trainer(bf16=True, num_train_epochs=4)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}


def test_several_devices_in_one_process_are_refused(make_trainer, monkeypatch):
    monkeypatch.setattr(CurriculumTrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(ValueError, match=r"A DetectionCollator makes batches of pictures .* Launch one process per"):
        make_trainer()


def test_losses_of_several_classes_at_once():
    class Classifier(nn.Module):
        def forward(self, x, labels=None):
            return {"logits": x}

    x, labels = torch.randn(3, 4), (torch.rand(3, 4) < 0.5).float()
    expected = nn.functional.binary_cross_entropy_with_logits(x, labels, reduction="none").mean(1)
    assert torch.equal(example_losses(Classifier(), {"x": x, "labels": labels}), expected)
    with pytest.raises(ValueError, match=r"logits of shape \(3, 4\) for labels of shape \(3, 4\)"):
        example_losses(Classifier(), {"x": x, "labels": labels.long()})


def test_a_run_that_learns_nothing_is_not_available(make_trainer, data, tmp_path):
    """A learning rate of 10: the loss stays finite, and the run is n/a with its step."""
    constant = constant_loss(data)

    def run(given):
        rate = given["rate"]
        trainer = make_trainer(learning_rate=rate, num_train_epochs=8, trainer={"eval_dataset": data})
        trainer.add_callback(StopWhenDiverged(constant))
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert np.mean(losses[-3:]) < constant
        return {"loss": trainer.evaluate()["eval_loss"]}

    study = Study(run, {"good": {"rate": 1e-2}, "failed": {"rate": 10.0}}, [0], tmp_path / "study")
    study.run()
    good, failed = study.runs
    assert (good.status, failed.status) == ("finished", "diverged")
    assert failed.step == 48
    assert f"is not below {constant:.4g}, that of constant predictions at the label frequencies" in failed.error
    finite = float(failed.error.split("loss, ")[1].split(",")[0])
    assert math.isfinite(finite)
    assert finite > constant


def test_weights_that_overflow_make_a_run_not_available(make_trainer):
    trainer = make_trainer(learning_rate=1e30, logging_steps=1, logging_nan_inf_filter=False)
    trainer.add_callback(StopWhenDiverged())
    with pytest.raises(Diverged, match="diverged at step 2: loss is nan"):
        trainer.train()


def test_the_final_loss_is_that_of_the_last_tenth(make_trainer):
    class State:
        global_step = 100
        log_history = ()

    def ends(history, constant):
        state = State()
        state.log_history = history
        StopWhenDiverged(constant).on_train_end(None, state, None)

    history = [{"step": step, "loss": 9.0 if step <= 90 else 1.0} for step in range(10, 101, 5)]
    ends(history, 1.01)
    with pytest.raises(Diverged, match="diverged at step 100: the final training loss, 1, is not below 1,"):
        ends(history, 1.0)
    with pytest.raises(Diverged, match="loss, 9,"):
        ends(history[:4], 5.0)  # nothing was logged in the last tenth: the last entry
    with pytest.raises(Diverged, match="loss, 7,"):
        ends([{"step": 100, "train_loss": 7.0}], 5.0)
    with pytest.raises(Diverged, match="loss, nan,"):
        ends([{"step": 100, "loss": math.nan}], 5.0)
    ends([{"step": 100, "loss": 9.0}], None)


def labelled(rows, names=("a", "b", "c")):
    features = Features({"labels": List(ClassLabel(names=list(names)))})
    return Dataset.from_dict({"labels": rows}, features=features)


def test_the_loss_of_constant_predictions():
    data = labelled([[0], [0, 1], [0], [0, 1, 2]] * 5)
    expected = 0.0
    for share in (1.0, 0.5, 0.25):
        expected += min(
            -(share * math.log(p) + (1 - share) * math.log(1 - p)) for p in np.linspace(1e-9, 1 - 1e-9, 100_001)
        )
    assert constant_loss(data) == pytest.approx(expected, abs=1e-5)
    assert constant_loss(data.shuffle(0).select(range(7)).select([2, 4])) != pytest.approx(expected, abs=1e-2)


def test_what_constant_loss_cannot_read():
    with pytest.raises(ValueError, match="`labels` is not in the data"):
        constant_loss(Dataset.from_dict({"x": [1]}))
    with pytest.raises(ValueError, match="labels of images are lists of classes"):
        constant_loss(Dataset.from_dict({"labels": [[1], [2]]}, features=Features({"labels": List(Value("int64"))})))
    with pytest.raises(ValueError, match="None of the 2 rows has a class"):
        constant_loss(labelled([[], []]))
