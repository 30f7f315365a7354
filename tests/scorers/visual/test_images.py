from __future__ import annotations

import numpy as np

from hf_curriculum.scorers.visual.images import distinct_images


def test_rows_without_an_id_have_an_image_of_their_own():
    batch = {"image": list("pqrst"), "image_id": ["1", None, "1", None, "0"]}
    found = distinct_images(batch, "image", np.array([True, True, True, True, False]))
    assert found == [("p", [0, 2]), ("q", [1]), ("s", [3])]


def test_whole_numbers_are_ids_too():
    batch = {"image": list("pqr"), "image_id": [1, 0, 1]}
    assert distinct_images(batch, "image", np.ones(3, bool)) == [("p", [0, 2]), ("q", [1])]
