"""Text in blocks of equally many tokens, and text beside captions."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import ClassVar

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from PIL import Image

from hf_curriculum import CaptionCollator, make_image_processor, train_wordpiece
from hf_curriculum.data.text_blocks import BlockCollator, JointText, _block_batches, text_blocks

LINES = [f"a {colour} {thing} on the table" for colour in ("red", "blue") for thing in ("ball", "cube", "cone")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(LINES * 2, 60)


@pytest.mark.parametrize("size", [2, 7, 16])
@pytest.mark.parametrize("count", [6, 2600])
def test_blocks_are_the_sequence_split(tokenizer, size, count):
    lines = [LINES[number % 6] for number in range(count)]
    chain = [token for line in lines for token in tokenizer(line)["input_ids"]]
    blocks = text_blocks(Dataset.from_dict({"caption": lines}), tokenizer, size)
    assert len(blocks) == len(chain) // size
    assert np.concatenate(blocks["input_ids"][:]).tolist() == chain[: len(blocks) * size]
    assert blocks.features["input_ids"].feature.dtype == "uint16"


def test_tokens_left_by_one_batch_of_blocks_begin_the_next(tokenizer, monkeypatch):
    monkeypatch.setattr("hf_curriculum.data.text_blocks._LINES", 2)
    monkeypatch.setattr("hf_curriculum.data.text_blocks._BLOCKS", 1)
    chain = [token for line in LINES for token in tokenizer(line)["input_ids"]]
    blocks = text_blocks(Dataset.from_dict({"caption": LINES}), tokenizer, 5)
    assert np.concatenate(blocks["input_ids"][:]).tolist() == chain[: len(chain) // 5 * 5]


def test_another_tokenizer_or_text_makes_other_blocks(tokenizer):
    text = Dataset.from_dict({"caption": LINES})
    first = text_blocks(text, tokenizer, 8)
    assert text_blocks(text, tokenizer, 8).cache_files == first.cache_files
    assert text_blocks(text, train_wordpiece(LINES, 45), 8).cache_files != first.cache_files
    assert text_blocks(text.select(range(5)), tokenizer, 8).cache_files != first.cache_files


def test_batches_of_blocks(tokenizer):
    collator = BlockCollator()
    batch = collator([{"input_ids": [2, 7, 3]}, {"input_ids": [5, 6, 4]}])
    assert batch["input_ids"].tolist() == batch["labels"].tolist() == [[2, 7, 3], [5, 6, 4]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch["labels"].dtype == torch.int64
    with pytest.raises(ValueError, match=r"have \[2, 3\] tokens"):
        collator([{"input_ids": [2, 7, 3]}, {"input_ids": [5, 6]}])
    with pytest.raises(ValueError, match="`input_ids` is not in the data"):
        collator([{"caption": "a"}])


def test_what_makes_no_blocks(tokenizer):
    text = Dataset.from_dict({"caption": LINES})
    with pytest.raises(ValueError, match="needs 2 tokens"):
        text_blocks(text, tokenizer, 1)
    with pytest.raises(ValueError, match="fewer than 1000 tokens in all"):
        text_blocks(text, tokenizer, 1000)
    with pytest.raises(ValueError, match="`text` is not in the data"):
        text_blocks(text, tokenizer, column="text")


class TestBeside:
    @pytest.fixture
    def collator(self, tokenizer):
        text = Dataset.from_dict({"caption": LINES})
        captions = CaptionCollator(tokenizer, make_image_processor(8), max_length=12)
        return JointText(captions, text, CaptionCollator(tokenizer, None, max_length=12))

    def test_a_text_for_every_example(self, collator):
        example = {"image": Image.new("RGB", (9, 9)), "caption": "a red ball"}
        random.seed(3)
        batch = collator([example] * 4)
        assert set(batch) == {
            *("pixel_values", "input_ids", "attention_mask", "labels"),
            *("text_input_ids", "text_attention_mask", "text_labels"),
        }
        random.seed(3)
        rows = [random.getrandbits(64) * len(LINES) >> 64 for _ in range(4)]
        decoded = collator.collator.tokenizer.batch_decode(batch["text_input_ids"], skip_special_tokens=True)
        assert decoded == [LINES[row] for row in rows]
        assert len(set(rows)) > 1

    def test_every_text_is_as_likely(self, collator):
        example = {"image": Image.new("RGB", (9, 9)), "caption": "a red ball"}
        random.seed(0)
        found = [LINES.index(collator.prepare(example)["text"]["caption"]) for _ in range(600)]
        counts = np.bincount(found, minlength=6)
        assert counts.min() > 70
        assert counts.max() < 130

    def test_evaluation_has_captions_alone(self, collator):
        assert collator.is_random
        assert collator.columns == ("image", "caption")
        assert isinstance(collator.without_augmentation(), CaptionCollator)

    def test_no_text(self, collator):
        with pytest.raises(ValueError, match="There is no text"):
            JointText(collator.collator, collator.text.select([]), collator.text_collator)


class Plain:
    """A tokenizer whose tokens are numbers, with as many as it says; 0 is the end of a text."""

    truncation_side = "right"
    added_tokens_decoder: ClassVar[dict] = {}
    all_special_tokens = all_special_ids = ()

    def __init__(self, count):
        self.count = count
        self.backend_tokenizer = SimpleNamespace(to_str=lambda: str(count))

    def __len__(self):
        return self.count

    def __call__(self, texts, **options):
        if isinstance(texts, str):  # one word, to look at what is written around it
            return {"input_ids": [1, 0] if options["add_special_tokens"] else [1]}
        return {"input_ids": [[int(one) for one in text.split()] for text in texts]}


@pytest.mark.parametrize(("count", "kind"), [(65_536, "uint16"), (65_537, "int32")])
def test_tokens_are_as_wide_as_the_vocabulary_needs(count, kind):
    words = Plain(count)
    blocks = text_blocks(Dataset.from_dict({"caption": [f"{count - 1}"]}), words, 2)
    assert (blocks["input_ids"][:], blocks.features["input_ids"].feature.dtype) == ([[count - 1, 0]], kind)


def test_blocks_are_written_as_soon_as_there_are_enough(monkeypatch):
    monkeypatch.setattr("hf_curriculum.data.text_blocks._LINES", 1)
    monkeypatch.setattr("hf_curriculum.data.text_blocks._BLOCKS", 2)
    text = Dataset.from_dict({"caption": ["1 2", "", "4 5 6", "7 8", "9"]})
    found = [batch.column(0).to_pylist() for batch in _block_batches(text, Plain(99), 2, "caption", pa.uint16())]
    assert found == [[[1, 2], [0, 0]], [[4, 5], [6, 0]], [[7, 8], [0, 9]]]
