"""Batches of images and classes: keyed augmentation, what evaluation sees, and what is said of bad rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from labelled import labelled, picture
from PIL import Image

from hf_curriculum import make_image_processor
from hf_curriculum.data.collators import Augment
from hf_curriculum.data.seeding import IndexedCollator, IndexedDataset
from hf_curriculum.tasks.long_tail import LabelCollator
from hf_curriculum.tasks.long_tail.data.collator import CentreCrop

PROCESSOR = make_image_processor(12)


def test_a_batch():
    data = labelled((2, 1, 1))
    batch = LabelCollator(PROCESSOR)([data[row] for row in range(4)])
    assert batch["labels"].tolist() == [0, 0, 1, 2]
    assert batch["labels"].dtype == torch.int64
    expected = PROCESSOR([data[row]["image"] for row in range(4)], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch["pixel_values"], expected, rtol=0, atol=0)
    assert LabelCollator(PROCESSOR, image_column="x", label_column="y").columns == ("x", "y")
    assert LabelCollator(PROCESSOR).image_processor is PROCESSOR


def test_augmentation_is_keyed_by_the_draw_and_not_by_the_batch():
    data, collator = labelled((4,)), LabelCollator(PROCESSOR, augment=Augment((0.1, 0.5), flip=True, jitter=0.4))
    assert collator.is_random
    whole = IndexedCollator(collator, 7, True)

    def batch(*draws):
        return whole(IndexedDataset(data, 7, False).__getitems__([(draw % 4, draw) for draw in draws]))["pixel_values"]

    four = batch(0, 1, 2, 3)
    torch.testing.assert_close(four[2:], batch(2, 3), rtol=0, atol=0)
    assert not torch.equal(four[0], batch(4)[0])  # the same row, drawn again


def test_evaluation_sees_whole_images_or_their_middle():
    data = labelled((1,))
    collator = LabelCollator(PROCESSOR, augment=Augment((0.1, 0.2)))
    plain = collator.without_augmentation()
    assert not plain.is_random
    whole = LabelCollator(PROCESSOR)([data[0]])["pixel_values"]
    torch.testing.assert_close(plain([data[0]])["pixel_values"], whole, rtol=0, atol=0)
    middle = LabelCollator(make_image_processor(4), evaluation_crop=0.5).without_augmentation()
    wide = Image.new("RGB", (16, 8))
    wide.paste((255, 255, 255), (6, 2, 10, 6))  # the middle square with half of the shorter edge
    assert (middle([{"image": wide, "label": 0}])["pixel_values"] > 2).all()


@pytest.mark.parametrize("label", [None, -1, 1.0, "red", True])
def test_a_row_without_a_class(label):
    with pytest.raises(ValueError, match=f"`label` of the image 'x' is {label!r}, and a class number from 0"):
        LabelCollator(PROCESSOR)([{"image": picture(0, 0), "label": label, "image_id": "x"}])


def test_rows_that_cannot_be_read():
    with pytest.raises(ValueError, match=r"`label` is not in the data"):
        LabelCollator(PROCESSOR)([{"image": picture(0, 0)}])
    with pytest.raises(ValueError, match=r"`evaluation_crop=1.5` was given"):
        LabelCollator(PROCESSOR, evaluation_crop=1.5)
    with pytest.raises(ValueError, match=r"The image `9`: .* cannot be decoded"):
        LabelCollator(PROCESSOR)([{"image": {"bytes": b"x", "path": None}, "label": 0, "image_id": "9"}])


def test_crops_of_a_square_shape_have_torchvisions_sizes():
    random.seed(0)
    augment = Augment((0.08, 1.0), square=True, flip=True)
    image = Image.new("RGB", (200, 100))
    sizes = np.array([augment(image).size for _ in range(400)])
    ratio, area = sizes[:, 0] / sizes[:, 1], sizes.prod(1) / 20000
    assert 0.7 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.4  # whatever the image's
    assert area.min() > 0.07
    assert area.max() < 0.68  # what is larger does not fit: 100 high and at most 133 wide
    # A crop that never fits is cut off.
    assert Augment((1, 1), (1, 1), square=True)(image).size == (141, 100)


def test_jitter_changes_colours_within_its_range():
    random.seed(0)
    image = Image.new("RGB", (8, 8), (100, 100, 100))
    seen = {Augment((1, 1), (1, 1), jitter=0.4)(image).getpixel((0, 0)) for _ in range(200)}
    values = np.array(sorted(seen))[:, 0]  # of a grey image brightness alone changes
    assert values.min() >= 60
    assert values.max() <= 140
    assert len(seen) > 50
    with pytest.raises(ValueError, match=r"`jitter=2` was given"):
        Augment(jitter=2)
    assert repr(Augment(jitter=0.4, square=True)).endswith("jitter=0.4, square=True)")


@pytest.mark.parametrize(("share", "size", "box"), [(0.01, (9, 7), (4, 3, 5, 4)), (1, (9, 4), (2, 0, 6, 4))])
def test_the_middle_of_an_image(share, size, box):
    image = Image.fromarray(np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[::-1]))
    np.testing.assert_array_equal(CentreCrop(share)(image), image.crop(box))
