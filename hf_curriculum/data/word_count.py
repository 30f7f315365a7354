"""How many words a corpus has, and whether that is allowed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_curriculum.columns import CAPTION, require_columns
from hf_curriculum.data.text_pages import release_pages

logger = logging.getLogger(__name__)

WORD_LIMIT = 50_000_000
"""Words of text, and as many of captions, that the challenge's multimodal track allows (Saha et al. 2024, §3)."""


def count_words(dataset: Dataset, column: str = CAPTION) -> int:
    """The words of a column of texts: what white space separates, as the challenge counts.

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
    files = [file["filename"] for file in dataset.cache_files]
    total = 0
    for number, table in enumerate(dataset.select_columns([column]).with_format("arrow").iter(10_000)):
        texts = pc.utf8_trim_whitespace(table[column].cast(pa.large_string()))
        words = pc.sum(pc.list_value_length(pc.utf8_split_whitespace(texts))).as_py() or 0
        empty = pc.sum(pc.equal(pc.utf8_length(texts), 0)).as_py() or 0  # "" splits into one empty word
        total += words - empty
        if number % 10 == 9:
            release_pages(files)
    return total


def check_word_limit(
    parts: Mapping[str, Dataset],
    limit: int | None = WORD_LIMIT,
    *,
    beyond: Literal["warn", "error"] = "warn",
    column: str = CAPTION,
) -> dict[str, int]:
    """Counts the words of each part of the training data, and says how they stand to the limit.

    Args:
        parts: name -> data set, such as `{"captions": pairs, "text": lines}`.
        limit: words that each part may have; None counts only.
        beyond: whether a part beyond the limit is warned of or refused.
        column: the column of texts.

    Returns:
        Name -> words.

    Raises:
        ValueError: a part is beyond the limit and `beyond="error"`, or `beyond` is unknown.

    Source: the BabyLM challenge 2024, multimodal track: 100M words, half of them text, half captions.

    Example:
        >>> check_word_limit({"captions": Dataset.from_dict({"caption": ["a dog"]})})
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
