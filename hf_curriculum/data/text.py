"""Text corpora, a row per line, read from disk as they are needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import CAPTION, require_columns
from hf_curriculum.data.text_cache import cached_arrow
from hf_curriculum.data.text_files import corpus_name, find_text_files, read_lines

logger = logging.getLogger(__name__)

SOURCE = "source"
"""The column that names the file a line comes from."""
_ROWS = 8192
_SCHEMA = pa.schema({CAPTION: pa.string(), SOURCE: pa.string()})


def load_text(source: str | Path, *, split: str | None = None) -> Dataset | DatasetDict:
    """A text corpus, one row per line that is not blank, never held in memory.

    Columns: `caption` (the line: scorers, tokenizer and `CaptionCollator(tokenizer, None)` read it as they read
    captions) and `source` (the file it is from, for `Staged(..., column="source")`). There are no pictures. The lines
    are written once to the cache of `datasets` and memory-mapped; reading all of a corpus of 100M words in random
    order takes a few tens of megabytes (`text_pages.Releasing`).

    Args:
        source: a file, or a folder of the challenge's files: `*.train`, `*.dev` and `*.test` (or `*.txt`), compressed
            (.gz) or not.
        split: "train", "validation" (`*.dev`) or "test" alone.

    Returns:
        A `DatasetDict` where the folder has several splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: no text is found, there is no such split, all lines are blank, or a file is not UTF-8.

    Example:
        >>> text = load_text("train_50M")                           # doctest: +SKIP
        >>> check_word_limit({"text": text})                        # doctest: +SKIP
        {'text': 49123456}
    """
    splits = find_text_files(Path(source))
    if split is not None:
        if split not in splits:
            raise ValueError(f"`split={split!r}` was given, but {source} has {list(splits)}. Name one of them.")
        splits = {split: splits[split]}
    loaded = {name: _load(files) for name, files in splits.items()}
    return DatasetDict(loaded) if len(loaded) > 1 else next(iter(loaded.values()))


def _load(files: Sequence[Path]) -> Dataset:
    """The lines of some files."""
    stamps = [(os.path.realpath(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in files]
    dataset = cached_arrow(["lines", 1, *stamps], lambda: _batches(files), _SCHEMA)
    if not len(dataset):
        raise ValueError(f"All lines of {[str(file) for file in files]} are blank: there is no text to learn from.")
    names = ", ".join(file.name for file in files)
    logger.info("%s lines of text from %s", f"{len(dataset):,}", names)
    return dataset


def _batches(files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    blank = 0
    for file in files:
        name = corpus_name(file)
        for lines in read_lines(file, _ROWS):
            kept = list(filter(None, lines))
            blank += len(lines) - len(kept)
            yield pa.record_batch(
                [pa.array(kept, pa.string()), pa.array([name] * len(kept), pa.string())], schema=_SCHEMA
            )
    if blank:
        logger.info("%s blank lines are left out.", f"{blank:,}")


class Texts:
    """The texts of several data sets, one after the other, as often as they are asked for.

    For `train_wordpiece(Texts(captions, text))`, and for whoever else learns from all the text there is.

    Args:
        datasets: with a column of texts each.
        column: its name.

    Raises:
        ValueError: a data set has no such column.

    Example:
        >>> list(Texts(Dataset.from_dict({"caption": ["a dog"]}), Dataset.from_dict({"caption": ["a line"]})))
        ['a dog', 'a line']
    """

    def __init__(self, *datasets: Dataset, column: str = CAPTION) -> None:
        for dataset in datasets:
            require_columns(
                dataset.column_names, [column], reader="Texts reads it.", remedy="Name another with `column=`."
            )
        self.datasets, self.column = datasets, column

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    def __iter__(self) -> Iterator[str]:
        for dataset in self.datasets:
            for batch in dataset.select_columns([self.column]).iter(1000):
                yield from batch[self.column]
