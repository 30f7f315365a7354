from __future__ import annotations

import numpy as np
import torch

from hf_curriculum.scorers.visual.images import ImageOpener, batches_of_one_size, distinct_images


def test_rows_without_an_id_have_an_image_of_their_own():
    batch = {"image": list("pqrst"), "image_id": ["1", None, "1", None, "0"]}
    found = distinct_images(batch, "image", np.array([True, True, True, True, False]))
    assert found == [("p", [0, 2]), ("q", [1]), ("s", [3])]


def test_whole_numbers_are_ids_too():
    batch = {"image": list("pqr"), "image_id": [1, 0, 1]}
    assert distinct_images(batch, "image", np.ones(3, bool)) == [("p", [0, 2]), ("q", [1])]


def test_images_of_one_size_are_batched():
    tall, wide = torch.zeros(3, 2, 1), torch.zeros(3, 1, 2)
    batches = list(batches_of_one_size([(tall, [0]), (wide, [1, 2]), (tall, [3])], 2))
    assert [[row for row, _ in batch] for batch in batches] == [[1, 2], [0, 3]]
    assert [image.shape for batch in batches for _, image in batch] == [wide.shape] * 2 + [tall.shape] * 2


def test_what_cannot_be_opened_is_kept():
    opener = ImageOpener()
    assert opener(b"no image") is None
    assert len(opener.failed) == 1
