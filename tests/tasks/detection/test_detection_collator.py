"""`DetectionCollator`: what a batch holds, and that pictures, boxes and labels stay together."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.seeding import IndexedCollator, IndexedExample
from hf_curriculum.tasks.detection import DetectionCollator, WsddnImageProcessor

NAMES = ["ball", "boat", "cup"]
PLAIN = {"image_mean": (0, 0, 0), "image_std": (1, 1, 1), "resample": 0}
BOX = [20, 10, 50, 30]


def processor(**options):
    return WsddnImageProcessor(NAMES, {"longest_edge": 80}, **{**PLAIN, **options})


def row(number=0, boxes=(BOX, [0, 0, 80, 40]), labels=(2, 0), size=(80, 40)):
    """Black, with a white rectangle where the first box is."""
    image = Image.new("RGB", size)
    for box in boxes[:1]:
        image.paste((255, 255, 255), tuple(box))
    return {"image": image, "proposals": list(boxes), "labels": list(labels), "image_id": str(number)}


def white(picture):
    """The edges of what is white in a picture."""
    columns, rows = (picture[0].sum(0) > 0).nonzero()[:, 0], (picture[0].sum(1) > 0).nonzero()[:, 0]
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


def test_a_batch():
    batch = DetectionCollator(processor())([row(), row(1, [[5, 5, 10, 35]], [], (40, 80))])
    assert list(batch) == ["labels", "proposals", "proposal_counts", "pixel_values"]
    assert batch["labels"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert batch["labels"].dtype == torch.float32
    assert batch["proposal_counts"].tolist() == [2, 1]
    assert batch["proposals"].tolist() == [[BOX, [0, 0, 80, 40]], [[5, 5, 10, 35], [0, 0, 0, 0]]]
    assert [tuple(picture.shape) for picture in batch["pixel_values"]] == [(3, 40, 80), (3, 80, 40)]


def test_a_draw_decides_on_size_and_mirror():
    collator = DetectionCollator(processor(), sizes=[64, 80, 160], flip=True)
    assert collator.is_random
    indexed = IndexedCollator(collator, seed=3, seeded=True)
    seen = set()
    flips = 0
    for draw in range(40):
        batch = indexed([IndexedExample(row(), 0, draw)])
        width, box = batch["pixel_values"][0].shape[2], batch["proposals"][0, 0].tolist()
        scale = width / 80
        mirrored = box[0] != pytest.approx(20 * scale)
        expected = [30 * scale, 10 * scale, 60 * scale, 30 * scale] if mirrored else [edge * scale for edge in BOX]
        assert box == pytest.approx(expected)
        assert np.allclose(white(batch["pixel_values"][0]), box, atol=1)
        seen.add((width, mirrored))
        flips += mirrored
        # The same draw beside another example: the same picture and boxes.
        again = indexed([IndexedExample(row(), 5, draw + 1), IndexedExample(row(), 0, draw)])
        assert torch.equal(again["pixel_values"][1], batch["pixel_values"][0])
        assert torch.equal(again["proposals"][1], batch["proposals"][0])
        assert again["example_index"].tolist() == [5, 0]
    assert 12 <= flips <= 28  # half of them, within two and a half standard deviations
    assert seen == {(width, mirrored) for width in (64, 80, 160) for mirrored in (False, True)}


def test_mirroring_alone_or_sizes_alone_are_random():
    found = [
        DetectionCollator(processor(), **options).is_random for options in ({}, {"flip": True}, {"sizes": [64, 80]})
    ]
    assert found == [False, True, True]


def test_a_single_class_is_refused():
    with pytest.raises(ValueError, match=r"has 1 class: .* Add a second class"):
        DetectionCollator(WsddnImageProcessor(["dog"]))
    assert DetectionCollator(WsddnImageProcessor(["dog"]), labels_column=None).labels_column is None


def test_evaluation_reads_images_as_in_tests():
    collator = DetectionCollator(processor(test_sizes=[160], test_flip=True), sizes=[64, 80], flip=True)
    plain = collator.without_augmentation()
    assert not plain.is_random
    assert collator.is_random
    batch = plain([row(), row(1, [[5, 5, 10, 35]], [1], (40, 80))])
    assert batch["image_sizes"].tolist() == [[40, 80], [80, 40]]
    assert batch["view_index"].tolist() == [0] * 4 + [1] * 4
    assert [picture.shape[2] for picture in batch["pixel_values"][:4]] == [80, 80, 160, 160]
    assert batch["proposals"][1, 0].tolist() == [30, 10, 60, 30]
    assert next(iter(batch)) == "labels"
    assert "image_sizes" not in collator([row()])


def test_objectness_and_other_columns():
    columns = {"image_column": "photo", "proposals_column": "boxes", "objectness_column": "scores"}
    collator = DetectionCollator(processor(), labels_column=None, **columns)
    assert collator.columns == ("photo", "boxes", "scores")
    example = {"photo": row()["image"], "boxes": [BOX], "scores": [0.5]}
    batch = collator([example, {**example, "boxes": [BOX, BOX], "scores": [1, 2]}])
    assert batch["objectness"].tolist() == [[0.5, 0], [1, 2]]
    assert "labels" not in batch
    with pytest.raises(ValueError, match="`scores` of image '' has 2 scores for 1 proposals"):
        collator([{**example, "scores": [1, 2]}])
    with pytest.raises(ValueError, match="`scores` of image '' has 0 scores for 1 proposals"):
        collator([{**example, "scores": None}])
    with pytest.raises(ValueError, match="`scores` of image '' has a score that is not finite: its file has scores"):
        collator([{**example, "scores": [float("nan")]}])


def test_images_without_proposals_are_counted(caplog):
    collator = DetectionCollator(processor())
    with caplog.at_level(logging.WARNING, "hf_curriculum"):
        batch = collator([row(boxes=()), row(), row(boxes=())])
        collator([row(boxes=())])
    assert batch["proposal_counts"].tolist() == [0, 2, 0]
    assert collator.num_without_proposals == 3
    assert caplog.text.count("An image has no region proposals") == 1
    assert collator([row(boxes=())])["proposals"].shape == (1, 1, 4)


def test_an_image_of_one_pixel():
    batch = DetectionCollator(processor())([row(boxes=[[0, 0, 1, 1]], size=(1, 1)), row(boxes=(), size=(200, 1))])
    assert [tuple(picture.shape) for picture in batch["pixel_values"]] == [(3, 80, 80), (3, 32, 80)]
    assert batch["proposals"][0].tolist() == [[0, 0, 80, 80]]


def test_it_travels_to_a_worker():
    collator = DetectionCollator(processor(), sizes=[64], flip=False)
    copied = pickle.loads(pickle.dumps(collator))
    assert torch.equal(copied([row()])["pixel_values"][0], collator([row()])["pixel_values"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [3]}, r"`labels` of image '0' has the class 3, .* 3 classes are numbered from 0: ball, boat, cup"),
        ({"labels": [-1]}, "has the class -1"),
        ({"labels": None}, r"has no list of classes \(None\)"),
        ({"proposals": [[70, 10, 95, 20]]}, r"image '0' in the data reach to 95, 20"),
        ({"proposals": [[50, 10, 20, 20]]}, "ends before it begins"),
        ({"proposals": None}, r"`proposals` of image '0' is None"),
    ],
)
def test_rows_that_cannot_be_read(change, message):
    with pytest.raises(ValueError, match=message):
        DetectionCollator(processor())([{**row(), **change}])


def test_what_is_missing_is_named():
    example = row()
    del example["proposals"]
    with pytest.raises(ValueError, match=r"`proposals` is not in the data, .*Make proposals with `add_proposals`"):
        DetectionCollator(processor())([example])
    with pytest.raises(UnreadableImageError, match="The image `0`: "):
        DetectionCollator(processor())([{**row(), "image": {"bytes": b"none", "path": None}}])


def test_options_out_of_range():
    with pytest.raises(ValueError, match="has no `class_names`"):
        DetectionCollator(WsddnImageProcessor())
    with pytest.raises(ValueError, match=r"`sizes=\[\]` was given"):
        DetectionCollator(processor(), sizes=[])
    assert DetectionCollator(processor(), sizes=[32]).sizes == [32]
    with pytest.raises(ValueError, match="at least 32"):
        DetectionCollator(processor(), sizes=[31])
    with pytest.raises(ValueError, match="at least 32"):
        DetectionCollator(processor(), sizes=[480, 31])
    assert DetectionCollator(processor(), sizes=[32]).sizes == [32]
