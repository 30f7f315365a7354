"""Accuracy by the size of a class, macro F1 and confusion: by hand, beside scikit-learn, and of odd input."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_curriculum.tasks.long_tail import LogitAdjustment, class_report, long_tail_metrics
from hf_curriculum.tasks.long_tail.metrics import class_groups, true_probabilities

COUNTS = [300, 100, 99, 20, 19, 1]
LABELS = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
TAKEN = np.array([0, 1, 1, 1, 2, 0, 3, 3, 4, 0, 0, 1])


def one_hot(taken, size=6):
    return 5.0 * np.eye(size)[taken]


def test_groups_and_their_edges():
    assert class_groups(COUNTS).tolist() == [0, 0, 1, 1, 2, 2]
    assert class_groups([12, 11, 3, 2], (3, 12)).tolist() == [0, 1, 1, 2]
    with pytest.raises(ValueError, match=r"edges=\(100, 20\) was given"):
        class_groups(COUNTS, (100, 20))


def test_metrics_by_hand():
    found = long_tail_metrics(COUNTS)(EvalPrediction(one_hot(TAKEN), LABELS))
    assert found["accuracy"] == pytest.approx(7 / 12)
    assert found["accuracy_many"] == pytest.approx((0.5 + 1) / 2)
    assert found["accuracy_medium"] == pytest.approx((0.5 + 1) / 2)
    assert found["accuracy_few"] == pytest.approx((0.5 + 0) / 2)
    # 2 tp / (2 tp + fp + fn) of each class.
    expected = [2 / (2 + 3 + 1), 4 / (4 + 2), 2 / 3, 1, 2 / 3, 0]
    assert found["macro_f1"] == pytest.approx(np.mean(expected))
    right = np.exp(5) / (np.exp(5) + 5)
    assert found["probability"] == pytest.approx((7 * right + 5 / (np.exp(5) + 5)) / 12)
    json.dumps(found)  # as a log is
    assert "probability_each" not in found


def test_f1_of_classes_that_occur_as_wilds_has_it():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    labels, taken = rng.choice([0, 2, 3, 5], 60), rng.integers(0, 6, 60)
    found = long_tail_metrics(COUNTS)(EvalPrediction(one_hot(taken), labels))
    expected = metrics.f1_score(labels, taken, average="macro", labels=np.unique(labels))
    assert found["macro_f1"] == pytest.approx(expected)
    report = class_report(taken, labels, COUNTS)
    np.testing.assert_array_equal(report.confusion, metrics.confusion_matrix(labels, taken, labels=range(6)))
    assert report.macro_f1 == pytest.approx(expected)


def test_a_group_without_test_images_is_left_out():
    found = long_tail_metrics(COUNTS)(EvalPrediction(one_hot(TAKEN[:4]), LABELS[:4]))
    assert set(found) == {"accuracy", "accuracy_many", "macro_f1", "probability"}


def test_the_probability_of_each_image():
    logits = np.random.default_rng(0).normal(size=(12, 6)) * 3
    metrics = long_tail_metrics(COUNTS, per_image=True)
    found = pickle.loads(pickle.dumps(metrics))(EvalPrediction((logits, np.zeros(3)), LABELS))
    expected = [np.exp(row[label]) / np.exp(row).sum() for row, label in zip(logits, LABELS, strict=True)]
    np.testing.assert_allclose(found["probability_each"], expected)
    assert found["probability"] == pytest.approx(np.mean(expected))
    np.testing.assert_array_equal(true_probabilities(np.array([[1e4, 0.0]]), np.array([0])), [1.0])  # no overflow


def test_adjusted_after_training():
    logits = np.random.default_rng(0).normal(size=(12, 6))
    by_loss = LogitAdjustment(COUNTS, tau=1.5).adjust(torch.from_numpy(logits)).numpy()
    one = long_tail_metrics(COUNTS, adjust=1.5)(EvalPrediction(logits, LABELS))
    two = long_tail_metrics(COUNTS)(EvalPrediction(by_loss, LABELS))
    assert one == pytest.approx(two)
    with pytest.raises(ValueError, match=r"adjust=1 was given, and class 1 has no real image"):
        long_tail_metrics([5, 0], adjust=1)


def test_the_report_of_each_class():
    report = class_report(one_hot(TAKEN), LABELS, COUNTS, class_names=list("abcdef"))
    assert report.confused() == [("e", "a", 1, 0.5), ("f", "a", 1, 0.5), ("f", "b", 1, 0.5)]
    assert report.confused("many", most=1) == [("a", "b", 1, 0.5)]
    lines = report.table().splitlines()
    assert lines[2] == "| a | 300 | many | 2 | 0.500 | 0.250 | 0.333 |"
    assert lines[-1] == "| f | 1 | few | 2 | 0.000 | – | 0.000 |"
    assert len(lines) == 8
    with pytest.raises(ValueError, match=r"group='tail' was given; the groups are many, medium, few"):
        report.confused("tail")


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (one_hot(TAKEN, 7), LABELS, r"shape \(12, 7\) for \(12,\) labels, 6 classes"),
        (one_hot(TAKEN[:4]), LABELS, r"shape \(4, 6\) for \(12,\) labels"),
        (TAKEN[:0], LABELS[:0], r"shape \(0,\) for \(0,\) labels"),
        (one_hot(TAKEN) * np.nan, LABELS, "12 of 12 images have scores that are not finite"),
        (TAKEN, LABELS + 1, r"2 of 12 images have a label .* outside of the 6 classes \(image 10: label 6"),
        (TAKEN, LABELS - 1, r"image 0: label -1"),
    ],
)
def test_predictions_that_do_not_fit(predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        class_report(predictions, labels, COUNTS)
