"""Rows cut out of a batch are what the collator makes of them alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from selection_task import captioned, captions_collator
from tiny_models import region_store

from hf_curriculum import CaptionCollator, train_wordpiece
from hf_curriculum.data.image_inputs import RegionInputs
from hf_curriculum.data.text_blocks import JointText
from hf_curriculum.training.selection import is_image, select_rows

KEPT = np.array([5, 0, 3])


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name
        assert found[name].is_contiguous(), name


def padded_left(**options):
    tokenizer = train_wordpiece(captioned()[0], 200)
    tokenizer.padding_side = "left"
    return CaptionCollator(tokenizer, None, max_length=14, **options)


def features():
    rng = np.random.default_rng(0)
    return {f"image {number}": rng.normal(size=(3, 5)).astype(np.float32) for number in range(12)}


def regions():
    return {f"image {number}": found for number in range(12) for found in [region_store()[str(number % 3)]]}


COLLATORS = {
    "pixels": captions_collator,
    "pixels, shared": lambda: captions_collator(share_images=True),
    "padded to eights, 14 at most": lambda: captions_collator(pad_to_multiple_of=8),
    "padding that is trained on": lambda: captions_collator(ignore_padding=False),
    "labels alone": lambda: captions_collator(encoder_decoder=True),
    "text": lambda: CaptionCollator(captioned()[1], None, max_length=14),
    "text, padded on the left": padded_left,
    "features": lambda: CaptionCollator(captioned()[1], None, vision_features=features(), max_length=14),
    "regions": lambda: CaptionCollator(captioned()[1], regions=RegionInputs(regions()), max_length=14),
    "regions, shared": lambda: CaptionCollator(
        captioned()[1], regions=RegionInputs(regions()), max_length=14, share_images=True
    ),
}


@pytest.mark.parametrize("name", COLLATORS)
@pytest.mark.parametrize("rows", [KEPT, np.array([1]), np.array([4, 5, 1, 0])], ids=str)
def test_they_are_what_the_collator_makes_of_them(name, rows):
    collator, data = COLLATORS[name](), captioned()[0]
    prepared = [collator.prepare(data[row]) for row in range(6)]
    whole = collator.collate(prepared)
    if "text" not in name:
        shortest = min(len(caption.split()) for caption in data["caption"][:6])
        assert shortest < max(len(caption.split()) for caption in data["caption"][:6])
    expected = collator.collate([prepared[row] for row in rows])
    found = select_rows(whole, rows, size=6, multiple=collator.pad_to_multiple_of)
    for batch in (found, expected):
        batch["labels"][
            :, 0
        ] = -100  # nothing predicts the first token, which is a label only without padding before it
    assert_same(found, expected)


def test_the_text_beside_captions_is_cut_with_them():
    data, tokenizer = captioned()
    text = Dataset.from_dict({"caption": ["a b", "a small ball beside a small ball", "the cat", "a dog on a mat"] * 3})
    collator = JointText(captions_collator(), text, CaptionCollator(tokenizer, None, max_length=9))
    random.seed(0)
    prepared = [collator.prepare(data[row]) for row in range(6)]
    whole = collator.collate(prepared)
    assert whole["text_input_ids"].shape != whole["input_ids"].shape
    found = select_rows(whole, KEPT, size=6, multiple=captions_collator().pad_to_multiple_of)
    assert_same(found, collator.collate([prepared[row] for row in KEPT]))
    assert [name for name in whole if is_image(name)] == ["pixel_values"]


def test_padding_to_a_multiple_stays_one():
    tokenizer = captioned()[1]
    for side, first in (("right", 0), ("left", 8)):
        ids = torch.tensor([[1] * length + [0] * (16 - length) for length in (9, 4, 3)])
        ids = ids if side == "right" else ids.flip(1)
        batch = {"input_ids": ids, "attention_mask": ids.clone(), "labels": ids - 100 * (ids == 0)}
        found = select_rows(batch, np.array([2, 1]), size=3, multiple=8)
        assert_same(found, {name: value[[2, 1]][:, first : first + 8] for name, value in batch.items()})
    assert tokenizer.pad_token_id == 0


def test_padding_to_a_fixed_length_is_left_alone():
    ids = torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).int(), "labels": ids.masked_fill(ids == 0, -100)}
    assert_same(select_rows(batch, np.array([1]), size=2), {name: value[[1]] for name, value in batch.items()})
    alone = {"labels": batch["labels"]}
    assert_same(select_rows(alone, np.array([1]), size=2), {"labels": batch["labels"][[1]]})


def test_labels_of_a_decoder_keep_their_length_where_sources_happen_to_be_as_long():
    source = torch.tensor([[5, 6, 7], [8, 0, 0]])
    batch = {
        "input_ids": source,
        "attention_mask": (source > 0).int(),
        "labels": torch.tensor([[9, -100, -100], [4, 3, 2]]),
    }
    found = select_rows(batch, np.array([1]), size=2)
    assert found["input_ids"].tolist() == [[8]]
    assert found["labels"].tolist() == [[4, 3, 2]]
    batch["decoder_input_ids"] = torch.tensor([[0, 9, -1], [0, 4, 3]])
    found = select_rows(batch, np.array([1]), size=2)
    assert found["labels"].shape == found["decoder_input_ids"].shape == (1, 3)
    assert not is_image("decoder_input_ids")


def test_what_is_the_same_for_all_rows_stays_and_lists_are_cut():
    batch = {
        "pixels": [torch.ones(3, 2, 4), torch.ones(3, 5, 6)],
        "names": ("a", "b"),
        "areas": np.array([8, 30]),
        "flag": True,
        "word": "ab",
        "scale": torch.tensor(2.0),
        "none": None,
        "labels": torch.tensor([1, 0]),
    }
    found = select_rows(batch, np.array([1]), size=2)
    assert [tuple(one.shape) for one in found["pixels"]] == [(3, 5, 6)]
    assert (found["names"], found["areas"].tolist(), found["flag"], found["word"]) == (("b",), [30], True, "ab")
    assert (found["scale"].item(), found["none"], found["labels"].tolist()) == (2.0, None, [0])


@pytest.mark.parametrize("value", [torch.ones(5, 2), [1, 2, 3], np.ones(1)], ids=["tensor", "list", "array"])
def test_what_is_not_by_row_cannot_be_cut(value):
    with pytest.raises(
        ValueError, match=r"`packed` of the collator's batch has \d entries for 2 rows, so what belongs"
    ):
        select_rows({"packed": value, "labels": torch.tensor([1, 0])}, np.array([1]), size=2)
