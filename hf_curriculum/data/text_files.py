"""Where the files of a text corpus are, and their lines."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

ENDINGS = {
    ".train": "train",
    ".dev": "validation",
    ".valid": "validation",
    ".test": "test",
    ".txt": "train",
}
"""Which split a file belongs to, as the challenge names its files."""


def find_text_files(source: Path) -> dict[str, list[Path]]:
    """Split -> its text files, in the order of their paths.

    Of a folder, subfolders included, all files with one of `ENDINGS` are taken, `.txt` only where there is nothing
    else: beside a corpus those are notes. A file that is named is taken whatever it is called.

    Args:
        source: a file or a folder.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: the folder holds no text file.
    """
    if not source.exists():
        raise FileNotFoundError(
            f"There is no file or folder {source}. Give a text corpus: a file, or a folder of them."
        )
    if source.is_file():
        return {ENDINGS.get(ending(source), "train"): [source]}
    files = sorted(file for file in source.rglob("*") if file.is_file() and ending(file) in ENDINGS)
    proper = [file for file in files if ending(file) != ".txt"]
    if not files:
        names = sorted(entry.name for entry in source.iterdir())[:10]
        raise ValueError(
            f"{source} holds no text: {names}. The files of a corpus end in one of {sorted(ENDINGS)}, compressed "
            "(.gz) or not. Name a file that is called otherwise by itself."
        )
    splits: dict[str, list[Path]] = {}
    for file in proper or files:
        splits.setdefault(ENDINGS[ending(file)], []).append(file)
    return {split: splits[split] for split in ("train", "validation", "test") if split in splits}


def ending(file: Path) -> str:
    """The ending of a file's name, that of its content if it is compressed."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def corpus_name(file: Path) -> str:
    """What a file's rows name as their source: the file's name without endings."""
    name = file.name.removesuffix(".gz")
    return name.removesuffix(ending(file)) or name


def read_lines(file: Path, size: int) -> Iterator[list[str]]:
    """The lines of a text file, so many at a time, without white space around them; blank ones are empty strings.

    Raises:
        ValueError: the file is not UTF-8.
    """
    open_file = gzip.open if file.suffix == ".gz" else open
    with open_file(file, "rt", encoding="utf-8-sig", newline="\n") as text:
        try:
            while lines := [line.strip() for line in islice(text, size)]:
                yield lines
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file} is not UTF-8 ({error}), so its lines cannot be read. Convert it first: "
                f"`iconv -f latin1 -t utf-8 {file.name}`, if it is Latin-1."
            ) from error
