"""Reading the benchmarks' files, with errors that say which line lacks what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_curriculum.config import IMAGE_SUFFIXES
from hf_curriculum.data.readers.folder import visible_files
from hf_curriculum.data.readers.outside_files import load_saved, validate_inside
from hf_curriculum.data.readers.rows import read_rows
from hf_curriculum.data.request import Request, is_saved

if TYPE_CHECKING:
    from datasets import Dataset


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
    rows = read_rows(file, kind=".jsonl")
    for row, number in zip(rows, rows.lines, strict=True):
        validate_fields(row, fields, f"{file}, line {number}")
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
    """Rows of a CSV file with a heading; None where a cell is empty."""
    return not_empty([{name: cell or None for name, cell in row.items()} for row in read_rows(file)], file)


def files_by_stem(folder: Path, ending: str, order: Sequence[str], *, task: str) -> dict[str, Path]:
    """The folder's files by their names without the ending: those in `order` first, then by alphabet."""
    there = visible_files(existing_folder(folder, task=task))
    found = {path.name.removesuffix(ending): path for path in there if path.name.endswith(ending)}
    if not found:
        raise FileNotFoundError(
            f"`{task}` reads {folder}/*{ending}, but there is no such file. Unpack the challenge's data there."
        )
    names = [name for name in order if name in found]
    return {name: found[name] for name in [*names, *(name for name in found if name not in order)]}


def find_images(folder: Path, names: Sequence[str], *, task: str) -> list[Path]:
    """Paths of images in a folder, also where a copy has another format than the list says."""
    paths = [_find_image(folder / name) for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    if missing:
        raise FileNotFoundError(
            f"`{task}`: {len(missing):,} of {len(names):,} images are not in {folder}, the first is {missing[0]!r}. "
            "A trial without its images cannot be scored. Add them, or leave this task out with `tasks=`."
        )
    found = [path for path in paths if path is not None]
    validate_inside(map(str, found), [folder], folder)
    return found


def _find_image(path: Path) -> Path | None:
    """The file, or the only one that is called so in another format."""
    if path.is_file():
        return path
    stem = path.with_suffix("") if path.suffix.lower() in IMAGE_SUFFIXES else path
    found = [file for ending in IMAGE_SUFFIXES for file in map(Path, (f"{stem}{ending}", f"{stem}{ending.upper()}"))]
    found = [file for file in found if file.is_file()]
    if len(found) > 1 and not found[0].samefile(found[1]):
        raise ValueError(
            f"There is no {path}, and both {found[0].name} and {found[1].name} could be it. Remove the wrong one."
        )
    return found[0] if found else None


def load_benchmark_split(source: str, split: str, config: str | None = None) -> Dataset:
    """One split of a repository of the Hub, of a folder saved by `save_to_disk`, or of one with data files."""
    from datasets import Dataset, load_dataset

    options = {} if config is None else {"name": config}
    if is_saved(Path(source)):
        found = load_saved(source)
    elif Path(source).is_dir():
        request = Request("evaluate_suite", source, options=options)
        found = request.load(None)
        request.validate_named_files(found)
    else:
        found = load_dataset(source, config)
    if not isinstance(found, Dataset) and split not in found:
        raise ValueError(f"{source!r} has no split {split!r}; it has {list(found)}. Name the data set the task is of.")
    return found if isinstance(found, Dataset) else found[split]


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
