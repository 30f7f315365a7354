"""Batches in which rows of one image share its image."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil

from hf_curriculum import CaptionCollator, make_image_processor, train_wordpiece
from hf_curriculum.data.collators import Augment
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.seeding import IndexedCollator, IndexedExample

TOKENIZER = train_wordpiece(["a dog runs fast"] * 2, 60)


def image(number):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (12, 20, 3), dtype=np.uint8))


def rows(*ids):
    """One row per image id, each with a caption of its own length."""
    return [
        {"image": image(int(name)), "caption": " ".join(["dog"] * (place + 1)), "image_id": name}
        for place, name in enumerate(ids)
    ]


def collator(**options):
    return CaptionCollator(TOKENIZER, make_image_processor(8), share_images=True, **options)


def apart(**options):
    return CaptionCollator(TOKENIZER, make_image_processor(8), **options)


@pytest.mark.parametrize("ids", [("7", "7", "7", "4", "4"), ("4", "7", "4"), ("1", "2", "3"), ("1", "1")])
def test_rows_find_their_image_and_text_is_as_ever(ids):
    shared, expected = collator()(rows(*ids)), apart()(rows(*ids))
    assert set(shared) == {*expected, "image_index"}
    assert len(shared["pixel_values"]) == len(set(ids))
    assert shared["image_index"].dtype == torch.int64
    assert torch.equal(shared["pixel_values"][shared["image_index"]], expected["pixel_values"])
    for name in ("input_ids", "attention_mask", "labels"):
        assert torch.equal(shared[name], expected[name])


def test_images_stand_in_the_order_of_first_rows():
    assert collator()(rows("7", "4", "7", "1"))["image_index"].tolist() == [0, 1, 0, 2]


def test_the_text_comes_first_so_that_a_batch_has_the_length_of_its_rows():
    assert len(next(iter(collator()(rows("7", "7")).values()))) == 2


def test_only_the_first_image_of_an_image_is_processed(monkeypatch):
    processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 6, "width": 6})
    seen = []
    resize = processor.resize
    monkeypatch.setattr(processor, "resize", lambda *args, **kwargs: seen.append(0) or resize(*args, **kwargs))
    shared = CaptionCollator(TOKENIZER, processor, share_images=True)(rows("7", "7", "4", "7"))
    assert len(seen) == 2
    assert shared["pixel_values"].shape == (2, 3, 6, 6)


def test_columns_and_workers():
    assert collator().columns == ("image_id", "image", "caption")
    copy = pickle.loads(pickle.dumps(collator()))
    assert torch.equal(copy(rows("1", "1"))["pixel_values"], collator()(rows("1", "1"))["pixel_values"])


def test_stored_features_are_read_once_per_image():
    class Counted(dict):
        reads = 0

        def __getitem__(self, name):
            type(self).reads += 1
            return super().__getitem__(name)

    stored = Counted({name: np.full((3, 2), int(name), np.float32) for name in "47"})
    shared = CaptionCollator(TOKENIZER, None, vision_features=stored, share_images=True)
    assert shared.columns == ("image_id", "caption")
    batch = shared(rows("4", "7", "7"))
    assert batch["image_features"][:, 0, 0].tolist() == [4, 7]
    assert batch["image_index"].tolist() == [0, 1, 1]
    assert Counted.reads == 2


class TestAugment:
    def test_the_first_row_decides_as_it_would_alone(self):
        def drawn(ids, first=0):
            return [IndexedExample(row, 0, draw) for draw, row in enumerate(rows(*ids), first)]

        augment = Augment(crop=(0.2, 0.9))
        shared = IndexedCollator(collator(augment=augment), 0, True)(drawn(("7", "7", "4")))
        alone = IndexedCollator(apart(augment=augment), 0, True)(drawn(("7", "7", "4")))
        assert torch.equal(shared["pixel_values"], alone["pixel_values"][[0, 2]])
        later = IndexedCollator(collator(augment=augment), 0, True)(drawn(("7",), first=1))
        assert torch.equal(later["pixel_values"][0], alone["pixel_values"][1])
        assert not torch.equal(later["pixel_values"][0], shared["pixel_values"][0])

    def test_evaluation_shares_without_it(self):
        random.seed(0)
        plain = collator(augment=Augment(crop=(0.2, 0.5))).without_augmentation()
        batch = plain(rows("7", "7"))
        assert torch.equal(batch["pixel_values"], collator()(rows("7", "7"))["pixel_values"])
        assert batch["image_index"].tolist() == [0, 0]


class TestErrors:
    @pytest.mark.parametrize("missing", [None, ""])
    def test_a_row_without_an_id(self, missing):
        with pytest.raises(ValueError, match=r"Row 0: `image_id` is .*different images would be taken for one"):
            IndexedCollator(collator(), 0, False)([IndexedExample({**rows("1")[0], "image_id": missing}, 0, 0)])

    def test_no_column_of_ids(self):
        row = rows("1")[0]
        del row["image_id"]
        with pytest.raises(ValueError, match=r"`image_id` is not in the data"):
            collator()([row])

    def test_text_alone_has_nothing_to_share(self):
        with pytest.raises(ValueError, match=r"neither an `image_processor` nor `vision_features`"):
            CaptionCollator(TOKENIZER, None, share_images=True)

    def test_an_unreadable_image_is_named(self):
        with pytest.raises(UnreadableImageError, match=r"The image `x7`: .*cannot be decoded"):
            collator()([{"image": b"nonsense", "caption": "dog", "image_id": "x7"}])


@pytest.mark.parametrize("make", [collator, apart])
def test_a_batch_without_examples_is_refused(make):
    with pytest.raises(ValueError, match="The batch has no examples"):
        make()([])
