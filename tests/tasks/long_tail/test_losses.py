"""Losses of long tails: published values, the slow way, what `Trainer` makes of them, and bad counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labelled import labelled, tiny_resnet
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainerState, TrainingArguments

from hf_curriculum import make_image_processor
from hf_curriculum.tasks.long_tail import (
    LDAM,
    BalancedSoftmax,
    ClassBalanced,
    CrossEntropy,
    Focal,
    LabelCollator,
    LogitAdjustment,
    class_counts,
)
from hf_curriculum.tasks.long_tail.losses import LOSSES, ClassificationLoss

COUNTS = [100, 10, 1]
LOGITS = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
GOLDEN = {
    "cross_entropy": (CrossEntropy(), 0.407606, 2.407606),
    "balanced_softmax": (BalancedSoftmax(COUNTS), 0.037432, 6.642602),
    "logit_adjustment": (LogitAdjustment(COUNTS), 0.037432, 6.642602),
    "class_balanced": (ClassBalanced(COUNTS), 0.011070, 6.506489),
    "focal": (Focal(), 0.045678, 1.993604),
    "ldam": (LDAM(COUNTS), 0.0, 75.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_published_values_of_the_first_and_the_last_class(name):
    loss, *expected = GOLDEN[name]
    assert type(loss) is LOSSES[name]
    found = loss.each(LOGITS, torch.tensor([0, 2]))
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
    assert loss({"logits": LOGITS}, torch.tensor([0, 2])).item() == pytest.approx(sum(expected) / 2, abs=1e-4)


def naive(name, logits, label):
    """The loss of one image, written out."""
    n, z = np.array(COUNTS, float), np.array(logits, float)
    effective = (1 - 0.9999**n) / (1 - 0.9999)
    weights = (1 / effective) / (1 / effective).sum() * 3
    if name == "ldam":
        margin = 0.5 * n[label] ** -0.25 / (n**-0.25).max()
        z = 30 * (z - margin * (np.arange(3) == label))
    if name in ("balanced_softmax", "logit_adjustment"):
        z = z + np.log(n)
    p = np.exp(z[label] - z.max()) / np.exp(z - z.max()).sum()
    factor = {"class_balanced": weights[label], "focal": (1 - p) ** 2}.get(name, 1.0)
    return -factor * np.log(p)


@pytest.mark.parametrize("name", LOSSES)
def test_the_slow_way(name):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(20, 3)), rng.integers(0, 3, 20)
    found = GOLDEN[name][0].each(torch.from_numpy(logits), torch.from_numpy(labels))
    expected = [naive(name, row, label) for row, label in zip(logits, labels, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_weights_and_margins():
    weights = ClassBalanced(COUNTS).weights.numpy()
    np.testing.assert_allclose(weights, [0.027159, 0.270369, 2.702472], atol=1e-6)
    assert weights.sum() == pytest.approx(3)
    np.testing.assert_allclose(LDAM(COUNTS).margins.numpy(), 0.5 * np.array(COUNTS) ** -0.25)
    smooth = torch.nn.functional.cross_entropy(LOGITS, torch.tensor([0, 2]), label_smoothing=0.1)
    assert CrossEntropy(0.1)((LOGITS,), torch.tensor([0, 2])).item() == pytest.approx(smooth.item())
    assert repr(LDAM(COUNTS, reweight_from=0.8)) == "LDAM(margin=0.5, scale=30.0, reweight_from=0.8, beta=0.9999)"


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_of_a_sure_image_has_hardly_a_slope(gamma):
    logits = torch.tensor([[60.0, 0.0, 0.0]], requires_grad=True)
    Focal(gamma)((logits,), torch.tensor([0])).backward()
    assert logits.grad.abs().max() < 1e-6  # and is no NaN


def test_adjusting_after_training_undoes_the_prior():
    loss = LogitAdjustment(COUNTS, tau=2.0)
    adjusted = loss.adjust((LOGITS, "hidden"))
    expected = LOGITS - 2 * torch.log(torch.tensor(COUNTS) / 111.0)
    torch.testing.assert_close(adjusted, expected.double(), check_dtype=False)
    # Trained with the prior added, the same logits are those that plain training would have found.
    raw = loss.each(adjusted, torch.tensor([0, 2]))
    torch.testing.assert_close(raw, CrossEntropy().each(LOGITS, torch.tensor([0, 2])))


def test_deferred_weights_are_a_function_of_the_step():
    loss = LDAM(COUNTS, reweight_from=0.8)
    assert [loss.weights_at(step, 200) is None for step in (0, 159, 160, 199)] == [True, True, False, False]
    assert [LDAM(COUNTS, reweight_from=7).weights_at(step, 200) is None for step in (6, 7)] == [True, False]
    assert [LDAM(COUNTS, reweight_from=1).weights_at(step, 200) is None for step in (0, 1)] == [True, False]
    assert [LDAM(COUNTS, reweight_from=0).weights_at(step, 200) is None for step in (0, 1)] == [False, False]
    assert LDAM(COUNTS).weights_at(10**6, 1) is None
    assert loss.weights_at(0, 0) is not None  # a run without an end is past its share


# ---- In a trainer ----


def trainer(loss, tmp_path, **options):
    data = labelled((6, 4, 2))
    args = TrainingArguments(
        str(tmp_path), max_steps=4, learning_rate=0.1, report_to=[], use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, lr_scheduler_type="constant",
        **{"per_device_train_batch_size": 4, "save_strategy": "no", **options},
    )  # fmt: skip
    return Trainer(
        tiny_resnet(), args, LabelCollator(make_image_processor(16)), data, data, compute_loss_func=loss,
        callbacks=[loss] if isinstance(loss, LDAM) else None,
    )  # fmt: skip


def weights(run):
    return torch.cat([value.flatten() for value in run.model.state_dict().values() if value.is_floating_point()])


def test_accumulated_batches_weigh_every_image_alike(tmp_path):
    """With batch norm in evaluation mode two batches of 4 make the step of one of 8."""

    steps = []
    for size, accumulated in ((8, 1), (4, 2)):
        run = trainer(
            BalancedSoftmax([6, 4, 2]), tmp_path, per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulated, max_grad_norm=0, optim="sgd",
        )  # fmt: skip
        run.args.max_steps = 1
        for module in run.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.0
                module.forward = lambda x, m=module: torch.nn.functional.batch_norm(
                    x, m.running_mean, m.running_var, m.weight, m.bias, False, 0.0, m.eps
                )
        run.train()
        steps.append(weights(run))
    torch.testing.assert_close(*steps, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_is_reweighted_like_one_that_never_ended(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "optim": "sgd", "max_grad_norm": 0}
    whole = trainer(LDAM([6, 4, 2], reweight_from=3), tmp_path, **settings)
    whole.train()
    resumed = trainer(LDAM([6, 4, 2], reweight_from=3), tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)
    never = trainer(LDAM([6, 4, 2]), tmp_path / "other", **settings)
    never.train()
    assert not torch.equal(weights(never), weights(whole))


def test_a_loss_that_must_hear_of_steps_says_so(tmp_path):
    run = trainer(BalancedSoftmax([6, 4, 2]), tmp_path)
    run.compute_loss_func = LDAM([6, 4, 2], reweight_from=0.5)
    with pytest.raises(RuntimeError, match=r"LDAM\(reweight_from=0.5\) does not know at which step.*callbacks=\[loss"):
        run.train()


def test_the_loss_decides_what_is_learnt(tmp_path):
    """The prior moves the classifier's bias towards the classes with few images."""
    plain, balanced = (trainer(loss, tmp_path) for loss in (CrossEntropy(), BalancedSoftmax([600, 40, 2])))
    plain.train()
    balanced.train()
    assert "eval_loss" in balanced.evaluate()
    bias = [run.model.classifier[-1].bias.detach() for run in (plain, balanced)]
    assert bias[1][2] - bias[1][0] > bias[0][2] - bias[0][0]


# ---- What cannot be ----


@pytest.mark.parametrize(
    ("make", "last", "beyond", "message"),
    [
        (Focal, 0, -0.01, "gamma is a number from 0"),
        (CrossEntropy, 0, -0.01, r"it is in \[0, 1\)"),
        (CrossEntropy, 0.99, 1, r"it is in \[0, 1\)"),
        (lambda tau: LogitAdjustment(COUNTS, tau=tau), 0.01, 0, "tau is a number more than 0"),
        (lambda beta: ClassBalanced(COUNTS, beta=beta), 0, -0.01, "beta is in"),
        (lambda beta: LDAM(COUNTS, beta=beta), 0.99, 1, "beta is in"),
        (lambda margin: LDAM(COUNTS, margin=margin), 0, -0.01, "is not possible; neither is negative"),
        (lambda scale: LDAM(COUNTS, scale=scale), 0.01, 0, "is not possible; neither is negative"),
        (lambda step: LDAM(COUNTS, reweight_from=step), 0, -0.01, "a share of the run below 1, or a step"),
        (BalancedSoftmax, [1, 1], [1, 0], r"1 of 2 classes without a real image \(the first is number 1\)"),
        (BalancedSoftmax, [3, 2], [3], "at least two classes"),
        (lambda label: CrossEntropy()((LOGITS,), torch.tensor([label, label])), 0, -1, "labels from -1 to -1"),
        (lambda label: CrossEntropy()((LOGITS,), torch.tensor([label, label])), 2, 3, "labels from 3 to 3"),
    ],
)
def test_edges_of_what_a_loss_takes(make, last, beyond, message):
    make(last)
    with pytest.raises(ValueError, match=message):
        make(beyond)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BalancedSoftmax([5, 0, 2]), r"1 of 3 classes without a real image \(the first is number 1\).*log"),
        (lambda: ClassBalanced([5.5, 1]), "counts are whole numbers"),
        (lambda: LDAM([5]), "at least two classes"),
        (lambda: LDAM([[5, 2]]), "counts are whole numbers"),
        (lambda: ClassBalanced(COUNTS, beta=1), "beta is in"),
        (lambda: Focal(-1), "gamma is a number from 0"),
        (lambda: LogitAdjustment(COUNTS, tau=0), "tau is a number more than 0"),
        (lambda: LDAM(COUNTS, scale=0), "is not possible"),
        (lambda: LDAM(COUNTS, reweight_from=-1), "a share of the run below 1, or a step"),
        (lambda: CrossEntropy(1.0), r"it is in \[0, 1\)"),
        (lambda: BalancedSoftmax([4, 4])((LOGITS,), torch.tensor([0, 1])), "counts of 2 classes, and the model has 3"),
        (lambda: CrossEntropy()((LOGITS,), torch.tensor([0, 3])), "labels from 0 to 3, and the model has 3 classes"),
        (lambda: CrossEntropy()((LOGITS,), torch.tensor([0, -1])), "labels from -1 to 0"),
    ],
)
def test_what_a_loss_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_loss_defines_each():
    with pytest.raises(NotImplementedError, match=r"ClassificationLoss does not define `each`"):
        ClassificationLoss()((LOGITS,), torch.tensor([0, 1]))


def test_counts_come_from_real_images():
    data = labelled((3, 2)).add_column("guidance", np.float32([1, 1, 0.1, 1, 1]))
    assert BalancedSoftmax(class_counts(data)).counts.tolist() == [2, 2]


@pytest.mark.parametrize(("classes", "parameters"), [(1000, 5_418_792), (182, 4_999_158), (10, 4_910_922)])
def test_resnet_10_has_the_papers_size(classes, parameters):
    config = ResNetConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=classes
    )
    with torch.device("meta"):
        model = ResNetForImageClassification(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_deferred_weights_make_a_weighted_mean():
    """As `F.cross_entropy(weight=)` of logits with margins: the authors' loss."""
    loss, labels = LDAM(COUNTS, reweight_from=0.5), torch.tensor([0, 0, 0, 1, 0, 2])
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    loss.on_step_begin(None, TrainerState(global_step=60, max_steps=100), None)
    lowered = logits - torch.nn.functional.one_hot(labels, 3) * loss.margins.float()
    weights = ClassBalanced(COUNTS).weights.float()
    expected = torch.nn.functional.cross_entropy(30 * lowered, labels, weight=weights)
    torch.testing.assert_close(loss((logits,), labels), expected)
    parts = [loss((logits[rows],), labels[rows], 6) for rows in (slice(0, 4), slice(4, 6))]
    means = [torch.nn.functional.cross_entropy(30 * lowered[rows], labels[rows], weight=weights)
             for rows in (slice(0, 4), slice(4, 6))]  # fmt: skip
    torch.testing.assert_close(sum(parts), (4 * means[0] + 2 * means[1]) / 6)
