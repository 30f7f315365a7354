from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_curriculum import CaptionLength, add_scores, shuffle_scores
from hf_curriculum.data.captions import group_codes
from hf_curriculum.scorers.visual.images import distinct_images
from hf_curriculum.scoring.add_scores import aggregate_per_image

NAN = np.nan


@pytest.mark.parametrize(
    ("how", "expected"), [("max", [3, 3, 3, NAN, -1]), ("min", [1, 1, 1, NAN, -1]), ("mean", [2, 2, 2, NAN, -1])]
)
def test_by_hand(how, expected):
    scores = np.float32([1, 3, NAN, NAN, -1])
    images = np.array([0, 0, 0, 1, 2])
    out = aggregate_per_image(scores, images, how)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.float32(expected))


rows = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([NAN, -np.inf, -2.5, 0.0, 1.0, 7.25, np.inf])), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(rows=rows, how=st.sampled_from(["max", "min", "mean"]))
def test_equals_a_plain_loop(rows, how):
    images = np.array([image for image, _ in rows], dtype=np.int64)
    scores = np.array([score for _, score in rows], dtype=np.float32)
    expected = []
    with np.errstate(invalid="ignore"):
        for image in images:
            mine = [score for other, score in zip(images, scores, strict=True) if other == image]
            mine = np.array([score for score in mine if not np.isnan(score)])
            expected.append(getattr(np, how)(mine) if len(mine) else NAN)
        np.testing.assert_allclose(aggregate_per_image(scores, images, how), np.float32(expected), rtol=1e-6)


def test_unknown_aggregate():
    with pytest.raises(ValueError, match="`per_image` is 'median'"):
        aggregate_per_image(np.float32([1]), np.array([0]), "median")


def test_codes_number_values_by_first_appearance():
    values = pa.array(["b", "a", "a", "c", "b"])
    assert group_codes(values).tolist() == [0, 1, 1, 2, 0]
    assert group_codes(pa.array([5, 5, 3])).tolist() == [0, 0, 1]


def test_a_missing_value_is_an_error():
    with pytest.raises(ValueError, match="`image_id` is missing in 1 of 3 rows, first in row 1"):
        group_codes(pa.array(["a", None, "b"]))


@pytest.mark.parametrize(
    ("values", "missing", "first"),
    [
        (pa.array(["", "", "a"]), 2, 0),
        (pa.array(["a", " \t", None]), 2, 1),
        (pa.array(["a", ""], pa.large_string()), 1, 1),
        (pa.array([1.0, float("nan"), None, 2.0]), 2, 1),
        (pa.array([1, None]), 1, 1),
    ],
)
def test_empty_text_and_nan_are_missing_ids(values, missing, first):
    with pytest.raises(
        ValueError, match=f"`image_id` is missing in {missing} of {len(values)} rows, first in row {first}"
    ):
        group_codes(values)
    data = Dataset(pa.table({"image_id": values, "caption": pa.array(["a", "a b", "a b c", "a"][: len(values)])}))
    with pytest.raises(ValueError, match="`image_id` is missing in"):
        add_scores(data, CaptionLength(), per_image="max")
    with pytest.raises(ValueError, match="`image_id` is missing in"):
        shuffle_scores(add_scores(data, CaptionLength()), "caption_length", group_by="image_id")


def test_images_without_an_id_are_not_taken_for_one_image():
    rows = {"image": ["one", "two", "three", "four", "five"], "image_id": ["", "", float("nan"), None, "x"]}
    assert distinct_images(rows, "image", np.ones(5, bool)) == [
        (name, [row]) for row, name in enumerate(rows["image"])
    ]
