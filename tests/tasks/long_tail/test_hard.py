"""Which images are hard: the thresholds' edges, both rules at once, and what is said of data that do not say."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from datasets import Dataset
from labelled import labelled

from hf_curriculum.tasks.long_tail import mark_hard
from hf_curriculum.tasks.long_tail.hard import hard_counts

P = [0.2, 0.19999, 0.9, 0.2000001, 0.5, 0.8, 0.1, 0.3]


def data(probabilities=P, counts=(4, 3, 1), **columns):
    return labelled(counts, class_probability=np.float32(probabilities), **columns)


def test_exactly_the_threshold_is_not_hard():
    assert mark_hard(data(), below=0.2)["hard"][:] == [False, True, False, False, False, False, True, False]
    assert mark_hard(data(), below=0.2).features["hard"].dtype == "bool"


def test_classes_with_few_images_and_both_rules(caplog):
    caplog.set_level(logging.INFO)
    assert mark_hard(data(), fewer_than=4)["hard"][:] == [False] * 4 + [True] * 4
    assert mark_hard(data(), fewer_than=3)["hard"][:] == [False] * 7 + [True]
    both = mark_hard(data(), below=0.2, fewer_than=3)
    assert both["hard"][:] == [False, True, False, False, False, False, True, True]
    assert hard_counts(both) == [("red", 4, 1), ("green", 3, 1), ("blue", 1, 1)]
    assert "3 of 8 images are hard (class_probability < 0.2 or fewer than 3 images of its class)" in caplog.text
    assert "| green | 3 | 1 |" in caplog.text


def test_a_view_of_the_data_is_marked_in_its_own_order():
    some = data().shuffle(seed=1).select(range(6))
    marked = mark_hard(some, below=0.2)
    assert marked["hard"][:] == [value < np.float32(0.2) for value in np.float32(some["class_probability"][:])]
    assert marked["image_id"][:] == some["image_id"][:]


def test_generated_images_are_not_counted():
    marked = data().add_column("hard", [True] * 8).add_column("guidance", np.float32([1, 1, 1, 0.5, 1, 0.1, 1, 1]))
    assert hard_counts(marked) == [("red", 3, 3), ("green", 2, 2), ("blue", 1, 1)]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {}, "Neither `below` nor `fewer_than` was given"),
        ({}, {"below": 0.05}, r"No image is hard .*nothing to generate. `class_probability` goes from 0.1 to 0.9"),
        ({}, {"below": 2}, "All 8 images are hard .*nothing beside the hard ones"),
        ({}, {"fewer_than": 1}, "No image is hard by the rule fewer than 1 images of its class.*another `fewer_than`"),
        ({"guidance": np.float32([1] * 7 + [0.5])}, {"below": 0.2}, "1 of 8 images have a `guidance` below 1"),
        ({"hard": [True] * 8}, {"below": 0.2}, "already has `hard`"),
    ],
)
def test_what_cannot_be_marked(columns, options, message):
    with pytest.raises(ValueError, match=message):
        mark_hard(data(**columns), **options)


def test_images_without_a_probability():
    with pytest.raises(ValueError, match=r"`class_probability` of 1 of 8 images is NaN \(row 7\)"):
        mark_hard(data([*P[:7], np.nan]), below=0.2)
    with pytest.raises(ValueError, match=r"`class_probability` is not in the data"):
        mark_hard(labelled(), below=0.2)
    with pytest.raises(TypeError, match=r"`mark_hard` was given a list"):
        mark_hard([], below=0.2)
    assert mark_hard(data(hard=[True] * 8), below=0.2, overwrite=True)["hard"][:].count(True) == 2
    assert isinstance(mark_hard(data(), below=0.2), Dataset)
