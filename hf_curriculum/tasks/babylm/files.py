"""Reading the benchmarks' files, with errors that say which line lacks what."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_curriculum.config import parse_json

if TYPE_CHECKING:
    from datasets import Dataset


_PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".PNG", ".JPG", ".JPEG")


def existing_folder(folder: Path, *, task: str) -> Path:
    """The folder; an error says what is beside it, where it is missing."""
    if not folder.is_dir():
        beside = sorted(path.name for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
        raise FileNotFoundError(
            f"`{task}` needs the folder {folder}, which does not exist; next to it there are {beside[:12]}. Get the "
            "challenge's `evaluation_data` (see its README), or make small ones with `make_miniature_benchmarks`."
        )
    return folder


def read_jsonl(file: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file, each an object with these fields; blank lines are skipped."""
    rows = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{file}, line {number} is no JSON ({error}). Each line is one item; get the file again."
                ) from error
            validate_fields(row, fields, f"{file}, line {number}")
            rows.append(row)
    return not_empty(rows, file)


def validate_fields(row: Any, fields: Sequence[str], where: str) -> None:
    """Checks that `row` is an object with these fields."""
    missing = [name for name in fields if not isinstance(row, dict) or row.get(name) is None]
    if missing:
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(
            f"{where} has no {missing}; it has {found}. The item cannot be scored without. Check that the file is the "
            "challenge's."
        )


def not_empty(rows: list[Any], file: Path) -> list[Any]:
    """The rows, of which there must be one."""
    if not rows:
        raise ValueError(f"{file} has no items, so there is nothing to score. Get the file again, or remove it.")
    return rows


def read_csv(file: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file with a heading, with or without a byte order mark; None where a cell is empty."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for number, row in enumerate(rows, start=1):
        if any(row.pop(None, ())):
            raise ValueError(
                f"{file}, row {number} has more cells than the heading has names ({list(row)}). Which is which is not "
                "known: quote texts that hold commas, or get the file again."
            )
    return not_empty([{name: cell or None for name, cell in row.items()} for row in rows], file)


def files_by_stem(folder: Path, ending: str, order: Sequence[str], *, task: str) -> dict[str, Path]:
    """The folder's files by their names without the ending: those in `order` first, then by alphabet."""
    found = {
        path.name.removesuffix(ending): path for path in sorted(existing_folder(folder, task=task).glob(f"*{ending}"))
    }
    if not found:
        raise FileNotFoundError(
            f"`{task}` reads {folder}/*{ending}, but there is no such file. Unpack the challenge's data there."
        )
    names = [name for name in order if name in found]
    return {name: found[name] for name in [*names, *(name for name in found if name not in order)]}


def find_images(folder: Path, names: Sequence[str], *, task: str) -> list[Path]:
    """Paths of images in a folder, also where a copy has another format than the list says."""
    from hf_curriculum.data.readers.outside_files import validate_inside

    paths = [next(_candidates(folder / name), None) for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    if missing:
        raise FileNotFoundError(
            f"`{task}`: {len(missing):,} of {len(names):,} images are not in {folder}, the first is {missing[0]!r}. "
            "A trial without its images cannot be scored. Add them, or leave this task out with `tasks=`."
        )
    found = [path for path in paths if path is not None]
    validate_inside(map(str, found), [folder], folder)
    return found


def _candidates(path: Path) -> Iterator[Path]:
    for candidate in (path, *(path.with_suffix(ending) for ending in _PICTURE_ENDINGS)):
        if candidate.is_file():
            yield candidate


def load_benchmark_split(source: str, split: str, config: str | None = None) -> Dataset:
    """One split of a repository of the Hub, of a folder saved by `save_to_disk`, or of one with data files."""
    from datasets import DatasetDict, load_dataset

    from hf_curriculum.data.readers.outside_files import load_saved, named_files, validate_files, validate_folder

    saved = Path(source) / "dataset_dict.json"
    single = Path(source) / "state.json"
    on_disk = single.is_file() or saved.is_file()
    in_folder = Path(source).is_dir() and not on_disk
    if in_folder:
        validate_folder(source)
    found = load_saved(source) if on_disk else load_dataset(source, config)
    if not single.is_file() and (not isinstance(found, DatasetDict) or split not in found):
        raise ValueError(f"{source!r} has no split {split!r}; it has {list(found)}. Name the data set the task is of.")
    rows = found if single.is_file() else found[split]
    if in_folder:
        validate_files(named_files(rows), [source], source)
    return rows


class RowImage:
    """An image of a data set, decoded when it is called."""

    def __init__(self, rows: Dataset, row: int, column: str) -> None:
        if not 0 <= row < len(rows) or column not in rows.column_names:
            raise ValueError(
                f"Row {row}, column {column!r} was asked for, but the data set has {len(rows):,} rows with "
                f"{rows.column_names}. It is not the one that the items' numbers count: check `sources`."
            )
        self.rows = rows
        self.row = row
        self.column = column

    def __call__(self) -> Any:
        return self.rows[self.row][self.column]


def image_reader(source: str, split: str) -> Callable[[int, str], RowImage]:
    """A function from a row's number and a column to its image."""
    rows = load_benchmark_split(source, split)
    return lambda row, column: RowImage(rows, row, column)
