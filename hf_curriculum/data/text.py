"""Text without images: corpora of lines, read from files or made from scenes, as Arrow files that are read again."""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TextIO

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import CAPTION, require_columns
from hf_curriculum.config import digest
from hf_curriculum.files import append_digest, is_intact, new_file
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

SOURCE = "source"
"""The column that names the file a line comes from."""
_ROWS = 8192
_SCHEMA = pa.schema({CAPTION: pa.string(), SOURCE: pa.string()})


@validate_arguments
def load_text(source: str | Path, *, split: str | None = None) -> Dataset | DatasetDict:
    """A text corpus, one row per line that is not blank, never held in memory.

    Columns: `caption` (the line: scorers, tokenizer and `CaptionCollator(tokenizer, None)` read it as they read
    captions) and `source` (the file it is from, with its folder where two are called alike, for
    `Staged(..., column="source")`). There are no images. The lines
    are written once to the cache of `datasets` and memory-mapped: what was read stays in memory only while the
    operating system has room for it.

    Args:
        source: a file, or a folder of the challenge's files: `*.train`, `*.dev` and `*.test` (or `*.txt`), also as
            .gz. Hidden files are passed over, and counted as others are.
        split: "train", "validation" (`*.dev`) or "test" alone.

    Returns:
        A `DatasetDict` where the folder has several splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: no text is found, there is no such split, all lines are blank, a file is not UTF-8 or truncated, or
            one of the same name is beside it, such as its .gz.

    Example:
        >>> text = load_text("train_50M")                           # doctest: +SKIP
        >>> validate_word_limit({"text": text})                        # doctest: +SKIP
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
    sources = corpus_names(files)
    dataset = cached_arrow(["lines", 2, *stamps, *sources], lambda: _batches(files, sources), _SCHEMA)
    if not len(dataset):
        raise ValueError(f"All lines of {[str(file) for file in files]} are blank: there is no text to learn from.")
    names = ", ".join(file.name for file in files)
    logger.info("%s lines of text from %s", f"{len(dataset):,}", names)
    return dataset


def _batches(files: Sequence[Path], sources: Sequence[str]) -> Iterator[pa.RecordBatch]:
    blank = 0
    for file, name in zip(files, sources, strict=True):
        for lines in read_lines(file, _ROWS):
            kept = list(filter(None, lines))
            blank += len(lines) - len(kept)
            yield pa.record_batch(
                [pa.array(kept, pa.string()), pa.array([name] * len(kept), pa.string())], schema=_SCHEMA
            )
    if blank:
        logger.info("%s blank lines are left out.", f"{blank:,}")


class Texts:
    """The texts of several data sets, one after the other, any number of times.

    For `train_wordpiece(Texts(captions, text))`, and for other estimators that read all text.

    Args:
        datasets: with a column of texts each.
        column: its name.

    Raises:
        ValueError: a data set has no such column.

    Example:
        >>> list(Texts(Dataset.from_dict({"caption": ["a dog"]}), Dataset.from_dict({"caption": ["a line"]})))
        ['a dog', 'a line']
    """

    @validate_arguments
    def __init__(self, *datasets: Dataset, column: str = CAPTION) -> None:
        for dataset in datasets:
            require_columns(
                dataset.column_names, [column], reader="Texts reads it.", remedy="Name another with `column=`."
            )
        self.datasets = datasets
        self.column = column

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    def __iter__(self) -> Iterator[str]:
        for dataset in self.datasets:
            for batch in dataset.select_columns([self.column]).iter(1000):
                yield from batch[self.column]


ENDINGS = {".train": "train", ".dev": "validation", ".valid": "validation", ".test": "test", ".txt": "train"}
"""Which split a file belongs to, as the challenge names its files."""


def find_text_files(source: Path) -> dict[str, list[Path]]:
    """Split -> its text files by path; of a folder those with one of `ENDINGS`, `.txt` only without any other."""
    from hf_curriculum.data.left_out import LeftOut
    from hf_curriculum.data.readers.folder import find_files

    if not source.exists():
        raise FileNotFoundError(
            f"There is no file or folder {source}. Give a text corpus: a file, or a folder of them."
        )
    if source.is_file():
        return {ENDINGS.get(ending(source).lower(), "train"): [source]}
    left_out = LeftOut()
    endings = (*ENDINGS, *(f"{name}.gz" for name in ENDINGS))
    files = find_files(source, endings, left_out, f"files that do not end in one of {sorted(ENDINGS)}")
    kinds = {file: ENDINGS[ending(file).lower()] for file in files}
    proper = [file for file in files if ending(file).lower() != ".txt"]
    if proper:
        left_out.add("files in .txt beside those of a corpus", len(files) - len(proper))
    left_out.report(source, ())
    if not files:
        names = sorted(entry.name for entry in source.iterdir())[:10]
        raise ValueError(
            f"{source} holds no text: {names}. The files of a corpus end in one of {sorted(ENDINGS)}, compressed "
            "(.gz) or not. Name a file that is called otherwise by itself."
        )
    splits: dict[str, list[Path]] = {}
    for file in proper or files:
        splits.setdefault(kinds[file], []).append(file)
    return {split: splits[split] for split in ("train", "validation", "test") if split in splits}


def ending(file: Path) -> str:
    """The ending of a file's name, without `.gz`."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def corpus_names(files: Sequence[Path]) -> list[str]:
    """The value of `source` in each file's rows: its name without endings, with its folder where two are called so."""
    names = [(name := file.name.removesuffix(".gz")).removesuffix(ending(file)) or name for file in files]
    root = os.path.commonpath([file.parent for file in files])
    whole = [
        Path(os.path.relpath(file.parent, root), name).as_posix() for file, name in zip(files, names, strict=True)
    ]
    counts = Counter(names)
    names = [one if counts[one] == 1 else longer for one, longer in zip(names, whole, strict=True)]
    counts = Counter(names)
    twice = [str(file) for file, name in zip(files, names, strict=True) if counts[name] > 1]
    if twice:
        raise ValueError(
            f"{twice[0]} and {twice[1]} are called alike, so lines would be read twice, or two sources count as one. "
            "Remove or rename one of them."
        )
    return names


_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte-order marks, and the encoding that each stands for."""


@contextmanager
def open_text(file: Path, newline: str | None = None) -> Iterator[TextIO]:
    """A text file, compressed (.gz) or not, opened for reading: UTF-8, or what its byte-order mark says.

    A `ValueError` names the file and the line where it is no text of that encoding.
    """
    from hf_curriculum.data.limits import BoundedGzip  # which imports Parquet's reader

    opened = BoundedGzip if file.suffix == ".gz" else partial(open, mode="rb")
    try:
        with opened(file) as start:
            head = start.read(64)
        encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8-sig")
        if encoding == "utf-8-sig" and b"\0" in head:
            raise ValueError(
                f"{file} is not UTF-8: it holds zero bytes near its beginning, as UTF-16 without a byte-order mark "
                f"does, or what is no text. UTF-16 is converted by `iconv -f utf-16le -t utf-8 {file.name} > NEW`."
            )
        with io.TextIOWrapper(opened(file), encoding, newline=newline) as text:
            yield text
    except UnicodeDecodeError as error:
        with opened(file) as content:
            raise _undecodable(file, content, encoding) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is no gzip file, or a truncated one ({error}). Copy it again.") from error


def read_text(file: Path, newline: str | None = None) -> str:
    """All of a text file, see `open_text`; a `ValueError` for one that is too large to become objects."""
    from hf_curriculum.data.limits import MOST_TEXT

    if (size := file.stat().st_size) > MOST_TEXT:
        raise ValueError(
            f"{file} has {size:,} bytes, and a text is read as a whole, into objects that take several times as much: "
            f"at most {MOST_TEXT:,}. Split it, or write it as Parquet, which is read part by part."
        )
    with open_text(file, newline) as text:
        return text.read()


def _undecodable(file: Path, content: Iterable[bytes], encoding: str) -> ValueError:
    """The error that names the first line which cannot be decoded, as Windows would show it."""
    if encoding != "utf-8-sig":
        return ValueError(
            f"{file} has the byte-order mark of {encoding} and cannot be read as that. Save it as UTF-8."
        )
    for number, line in enumerate(content, 1):
        try:
            line.decode(encoding)
        except UnicodeDecodeError as error:
            part = line[max(0, error.start - 20) : error.end + 20].strip()
            shown = {}
            for name in ("cp1252", "cp932", "gb18030"):
                with suppress(UnicodeDecodeError):
                    at = len(line[: error.start].decode(name, "replace"))
                    shown[name] = line.decode(name)[max(0, at - 20) : at + 20].strip()
            readings = ", ".join(f"{text!r} in {name}" for name, text in shown.items()) or "no text in usual encodings"
            command = f"iconv -f {next(iter(shown), 'ENCODING')} -t utf-8 {file.name} > NEW"
            return ValueError(
                f"{file} is not UTF-8: line {number} has the bytes {part!r}, and would be {readings}. Convert the "
                f"file from the encoding that is right: `{command}`, for example."
            )
    return ValueError(f"{file} is not UTF-8: it ends within a letter, so it is cut short. Copy it again.")


def read_lines(file: Path, size: int) -> Iterator[list[str]]:
    """The stripped lines of a text file, `size` at a time; blank ones are empty strings."""
    with open_text(file) as text:
        while lines := [line.strip() for line in islice(text, size)]:
            yield lines


def cached_arrow(
    facts: Iterable[object], batches: Callable[[], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> Dataset:
    """The data set of these batches, memory-mapped; written unless the file of these `facts` is there and intact."""
    name = f"{digest(repr(list(facts)), size=12)}.arrow"
    file = Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", "text", name)
    if not is_intact(file):
        write_arrow(file, batches(), schema)
    return Dataset.from_file(str(file))


def write_arrow(file: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Writes a file for `is_intact`, completely or not at all; several processes may write the same one."""
    with new_file(file) as temporary:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        append_digest(temporary)
