"""Text that is trained on with captions: blocks of whole sentences, counted words, a text beside each caption."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset

from hf_curriculum.columns import CAPTION, require_columns
from hf_curriculum.config import digest
from hf_curriculum.data.caption_encoder import CaptionEncoder
from hf_curriculum.data.text import cached_arrow

logger: logging.Logger = logging.getLogger(__name__)

INPUT_IDS = "input_ids"
_LINES, _BLOCKS = 1000, 512


def text_blocks(dataset: Dataset, tokenizer: Any, size: int = 128, *, column: str = CAPTION) -> Dataset:
    """All texts as one sequence of tokens, split into blocks of `size`; an incomplete last block is dropped.

    Every text has its special tokens (`[CLS] text [SEP]`), so a model sees where one ends. The blocks are written
    once to the cache of `datasets`, two bytes a token for vocabularies up to 65,536, and memory-mapped.

    Args:
        dataset: rows of text, such as `load_text` returns.
        tokenizer: of `transformers`, a fast one.
        size: tokens of a block.
        column: the column of texts.

    Returns:
        One row per block, column `input_ids` (a list of `size` integers), for `BlockCollator`.

    Raises:
        ValueError: there is no such column, `size` is below 2, or the text does not fill one block.

    Source: the challenge's baseline, which trains on blocks of 128 tokens of its text.

    Example:
        >>> blocks = text_blocks(load_text("train_50M"), tokenizer, 128)  # doctest: +SKIP
    """
    if size < 2:
        raise ValueError(f"`size={size}` was given. A block needs 2 tokens at least: one to see, one to predict.")
    require_columns(dataset.column_names, [column], reader="Blocks are made of it.", remedy="Pass `column=`.")
    kind = pa.uint16() if len(tokenizer) <= 1 << 16 else pa.int32()
    schema = pa.schema({INPUT_IDS: pa.list_(kind)})
    vocabulary = digest(tokenizer.backend_tokenizer.to_str(), size=12)
    facts = ["blocks", 2, dataset._fingerprint, column, vocabulary, size]
    blocks = cached_arrow(facts, lambda: _block_batches(dataset, tokenizer, size, column, kind), schema)
    if not len(blocks):
        raise ValueError(
            f"The {len(dataset):,} texts have fewer than {size} tokens in all, so they fill no block. Give more "
            "text or a smaller `size`."
        )
    return blocks


def _block_batches(
    dataset: Dataset, tokenizer: Any, size: int, column: str, kind: pa.DataType
) -> Iterator[pa.RecordBatch]:
    encoder, pending, held = CaptionEncoder(tokenizer, begins=False), [], 0
    for batch in dataset.select_columns([column]).iter(_LINES):
        ids, _ = encoder(batch[column])
        pending += [np.asarray(line, dtype=np.int32) for line in ids]
        held += sum(map(len, ids))
        if held >= size * _BLOCKS:
            tokens = np.concatenate(pending)
            end = len(tokens) // size * size
            yield _record(tokens[:end], size, kind)
            pending, held = [tokens[end:]], len(tokens) - end
    tokens = np.concatenate(pending) if pending else np.empty(0, np.int32)
    end = len(tokens) // size * size
    if end:
        yield _record(tokens[:end], size, kind)
    logger.info("The last %d tokens fill no block of %d and are left out.", len(tokens) - end, size)


def _record(tokens: np.ndarray, size: int, kind: pa.DataType) -> pa.RecordBatch:
    starts = pa.array(np.arange(0, len(tokens) + 1, size, dtype=np.int32))
    lists = pa.ListArray.from_arrays(starts, pa.array(tokens.astype(kind.to_pandas_dtype())))
    return pa.record_batch([lists], names=[INPUT_IDS])


class BlockCollator:
    """Batches of the rows that `text_blocks` makes: every token is seen and predicted.

    Shapes: `input_ids`, `attention_mask`, `labels` (B, size) int64.

    Raises:
        ValueError: there is no column `input_ids`, or the blocks differ in length.

    Example:
        >>> BlockCollator()([{"input_ids": [2, 7, 3]}])["labels"]
        tensor([[2, 7, 3]])
    """

    columns: tuple[str, ...] = (INPUT_IDS,)
    is_random = False

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> np.ndarray:
        """One block."""
        require_columns(
            example, self.columns, reader="The collator reads it.", remedy="Make blocks of text with `text_blocks`."
        )
        return np.asarray(example[INPUT_IDS], dtype=np.int64)

    def collate(self, prepared: list[np.ndarray]) -> dict[str, torch.Tensor]:
        """The batch of prepared blocks."""
        sizes = sorted({len(block) for block in prepared})
        if len(sizes) > 1:
            raise ValueError(
                f"The blocks of a batch have {sizes} tokens, and they must have equally many: nothing is padded. Make "
                "them with `text_blocks`, or give lines of text to `CaptionCollator(tokenizer, None)`."
            )
        ids = torch.from_numpy(np.stack(prepared))
        return {INPUT_IDS: ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


WORD_LIMIT = 50_000_000
"""Words of text, and as many of captions, that the challenge's multimodal track allows (Saha et al. 2024, §3)."""


def count_words(dataset: Dataset, column: str = CAPTION) -> int:
    """The number of words, separated by white space, in a column of texts, as the challenge counts.

    Args:
        dataset: rows of text; rows without one count nothing. It is read a few thousand rows at a time.
        column: the column.

    Raises:
        ValueError: there is no such column.

    Example:
        >>> count_words(Dataset.from_dict({"caption": ["a  red ball ", None, "it's here"]}))
        5
    """
    require_columns(dataset.column_names, [column], reader="Its words are counted.", remedy="Name another column.")
    total = 0
    for table in dataset.select_columns([column]).with_format("arrow").iter(10_000):
        texts = pc.utf8_trim_whitespace(table[column].cast(pa.large_string()))
        words = pc.sum(pc.list_value_length(pc.utf8_split_whitespace(texts))).as_py() or 0
        empty = pc.sum(pc.equal(pc.utf8_length(texts), 0)).as_py() or 0  # "" splits into one empty word
        total += words - empty
    return total


def validate_word_limit(
    parts: Mapping[str, Dataset],
    limit: int | None = WORD_LIMIT,
    *,
    beyond: Literal["warn", "error"] = "warn",
    column: str = CAPTION,
) -> dict[str, int]:
    """Counts the words of each part of the training data and compares them with the limit.

    Args:
        parts: name -> data set, such as `{"captions": pairs, "text": lines}`.
        limit: words that each part may have; None counts only.
        beyond: whether a part beyond the limit is a warning or an error.
        column: the column of texts.

    Returns:
        Name -> words.

    Raises:
        ValueError: a part is beyond the limit and `beyond="error"`, or `beyond` is unknown.

    Source: the BabyLM challenge 2024, multimodal track: 100M words, half of them text, half captions.

    Example:
        >>> validate_word_limit({"captions": Dataset.from_dict({"caption": ["a dog"]})})
        {'captions': 2}
    """
    if beyond not in ("warn", "error"):
        raise ValueError(f"`beyond={beyond!r}` was given. Too many words are a reason to 'warn' or an 'error'.")
    counts = {name: count_words(dataset, column) for name, dataset in parts.items()}
    for name, count in counts.items():
        said = f"{name}: {count:,} words" if limit is None else f"{name}: {count:,} of {limit:,} words"
        if limit is None or count <= limit:
            logger.info(said)
            continue
        message = (
            f"{said}, {count - limit:,} too many: what is trained on them is outside of the challenge's limit. Use "
            "fewer rows, or raise the limit if it is not yours."
        )
        if beyond == "error":
            raise ValueError(message)
        logger.warning(message)
    return counts


BESIDE = "text_"
"""Prefix of the names of a text batch's inputs."""


class JointText:
    """Joint batches: those of a collator of captioned images, each with a batch of text.

    Every example brings one text along, drawn at random with replacement. `IndexedCollator` seeds each example by its
    draw, so which text comes with it does not depend on workers, processes or resuming.

    Args:
        collator: of captioned images, such as `CaptionCollator`.
        text: rows of text or of blocks.
        text_collator: what makes a batch of them, such as `CaptionCollator(tokenizer, None)` or `BlockCollator()`.

    Shapes: those of both collators; the names of the text's begin with `text_`.

    Raises:
        ValueError: there is no text.

    Source: the BabyLM challenge's baseline, which trains on captions and text in one run.

    Example:
        >>> collator = JointText(CaptionCollator(tokenizer, processor), lines, CaptionCollator(tokenizer, None))
        ... # doctest: +SKIP
    """

    is_random = True

    def __init__(self, collator: Any, text: Dataset, text_collator: Any) -> None:
        if not len(text):
            raise ValueError("There is no text to join to the captions. Leave it out, or give some.")
        self.collator = collator
        self.text = text
        self.text_collator = text_collator

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the captioned images that are read."""
        return self.collator.columns

    def without_augmentation(self) -> Any:
        """The collator for evaluation: captioned images alone."""
        return self.collator.without_augmentation()

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collate([self.prepare(example) for example in examples])

    def prepare(self, example: dict[str, Any]) -> dict[str, Any]:
        """One example, and the text that comes with it."""
        # Bits as they come from the generator: how `random` makes other numbers of them may change.
        row = random.getrandbits(64) * len(self.text) >> 64
        return {"text": self.text_collator.prepare(self.text[row]), "example": self.collator.prepare(example)}

    def collate(self, prepared: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of prepared examples."""
        batch = self.collator.collate([item["example"] for item in prepared])
        text = self.text_collator.collate([item["text"] for item in prepared])
        return {**batch, **{BESIDE + name: values for name, values in text.items()}}
