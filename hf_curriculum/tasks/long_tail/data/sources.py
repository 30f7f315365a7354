"""Files of labelled images: folders of classes, lists of names and numbers, tables, and iWildCam's metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_curriculum.columns import GUIDANCE, IMAGE, IMAGE_ID, LABEL
from hf_curriculum.config import IMAGE_SUFFIXES
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.folder import SPLIT_FOLDERS, find_files, find_only_table, visible_files
from hf_curriculum.data.readers.rows import read_rows
from hf_curriculum.data.readers.tables import FILE_FIELDS, find_alias, shared_scalars
from hf_curriculum.data.request import UNSPLIT
from hf_curriculum.data.text import ending, open_text

FILE_ALIASES = ("image", "img", *FILE_FIELDS, "filepath", "file_path", "path")
LABEL_ALIASES = (
    *("label", "labels", "fine_label", "class", "category", "target", "y", "label_id", "label id"),
    *("classname", "class_name", "label_name", "label name"),
)
NAME_ALIASES = ("classname", "class_name", "label_name", "label name")
"""Names of the classes beside a column of their numbers."""
_ENDINGS = ", ".join(IMAGE_SUFFIXES)
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
_LISTS = re.compile(r".*[_-](?P<split>train|val|validation|test)\.txt", re.IGNORECASE)
RULES = f"""It recognises:
- a Dataset or DatasetDict, the name of a data set on the Hub, a folder written by save_to_disk, *.parquet, *.arrow;
- a folder with one folder of images for each class, or with such folders called {", ".join(SPLIT_FOLDERS)};
- lists as ImageNet-LT's: `train/n01440764/x.JPEG 0` in each line, and as many numbers as the released four columns;
- a .csv, .tsv or .jsonl with a file name ({", ".join(FILE_ALIASES)})
  and a class ({", ".join(LABEL_ALIASES)});
- iWildCam-WILDS v2: a folder with metadata.csv, categories.csv and the images in train/."""


@dataclass(frozen=True)
class LabelledFiles:
    """Files of images with their classes.

    Args:
        splits: split → column → values: `file_name`, `label` (a number or name), and what else the source holds.
        folder: where file names begin, if the source says so.
        names: class number → name, as far as the source has them.
    """

    splits: Mapping[str, Mapping[str, Sequence[Any]]]
    folder: Path
    names: Mapping[int, str] = field(default_factory=dict)


def read_files(path: Path, columns: Mapping[str, str] | None, left_out: LeftOut) -> LabelledFiles:
    """What a file or a folder of labelled images holds."""
    if path.is_file():
        return read_list(path) if ending(path) == ".txt" else read_table(path, columns, left_out)
    if is_iwildcam(path):
        return read_iwildcam(path)
    named = {file: found["split"] for file in visible_files(path) if (found := _LISTS.fullmatch(file.name))}
    if named:
        return _join({split: read_list(file) for split, file in _by_split(named, path).items()}, path)
    folders = class_folders(path, left_out)
    if folders:
        return LabelledFiles(folders, path)
    table = find_only_table(path)
    if table is not None:
        return read_table(table, columns, left_out)
    held = sorted(entry.name for entry in path.iterdir())
    raise ValueError(f"load_labelled recognises nothing in {path}, which holds {held[:10]}. {RULES}")


def class_folders(path: Path, left_out: LeftOut | None = None) -> dict[str, dict[str, list[str]]]:
    """Split → file names and classes of a folder of class folders; empty where it is none."""
    entries = _folders(path)
    splits = {UNSPLIT: path}
    named = {entry: entry.name for entry in entries if entry.name.lower() in SPLIT_FOLDERS}
    if entries and len(named) == len(entries):
        splits = _by_split(named, path)
    elif any(inner.is_dir() for entry in named for inner in entry.iterdir()):
        others = [entry.name for entry in entries if entry not in named]
        raise ValueError(
            f"{path} has the folders {[entry.name for entry in named]}, with folders of their own as splits have, "
            f"beside {others[:5]}: whether all of them are classes is not known. Move the others out, or load the "
            f"splits one by one: load_labelled({str(next(iter(named)))!r})."
        )
    found: dict[str, dict[str, list[str]]] = {}
    sizes: dict[str, int] = {}
    for split, folder in splits.items():
        files, labels = [], []
        for name in (entry.name for entry in _folders(folder)):
            own = find_files(folder / name, IMAGE_SUFFIXES, left_out, f"files that do not end in {_ENDINGS}")
            sizes[name] = sizes.get(name, 0) + len(own)
            files += [file.relative_to(path).as_posix() for file in own]
            labels += [name] * len(own)
        found[split] = {"file_name": files, LABEL: labels}
        loose = visible_files(folder, IMAGE_SUFFIXES)
        if left_out is not None and files:
            left_out.add("images outside of the folders of classes", len(loose), loose and loose[0].name)
    empty = [name for name, size in sizes.items() if not size]
    if not any(sizes.values()):
        return {}
    if empty:
        raise ValueError(
            f"{path} has {len(empty)} class folders without an image ({', '.join(map(repr, empty[:3]))}): a class "
            "with none cannot be learnt, and its prior would be log 0. Add images, or remove the folders."
        )
    if len(sizes) == 1 and len(inner := _folders(next(iter(splits.values())) / next(iter(sizes)))) > 1:
        raise ValueError(
            f"{path} has one folder of images, {next(iter(sizes))!r}, which holds folders itself "
            f"({', '.join(entry.name for entry in inner[:3])}): all images would be of one class. Where those are the "
            f"classes, name the folder that holds them: {str(inner[0].parent)!r}. Otherwise move the images out of "
            "them."
        )
    return found


def read_list(path: Path) -> LabelledFiles:
    """A list as ImageNet-LT's: a file and a class number in each line, or also a guidance and a count."""
    rows, widths = [], set()
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = _parse_line(line)
            widths.add(row and len(row))
            if row is None or len(widths) > 1:
                raise ValueError(
                    f"Line {number} of {path} is {line.strip()[:80]!r}. A list of labelled images has a file and a "
                    "class number in each line, `train/n01440764/n01440764_190.JPEG 0`, or in each also a guidance "
                    "and a count. Correct the line."
                )
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} is empty: there is nothing to train on. Name another file.")
    names = ("file_name", LABEL, GUIDANCE, "train_cnt")[: len(rows[0])]
    table: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if GUIDANCE in table:
        table[GUIDANCE] = [value / 100 for value in table[GUIDANCE]]
    return LabelledFiles({UNSPLIT: table}, path.parent, _names_of_folders(table["file_name"], table[LABEL]))


def _parse_line(line: str) -> tuple[str, *tuple[int, ...]] | None:
    """File and numbers of a list's line: one to three, as many as it ends with; the first may be below zero."""
    for count in (3, 2, 1):
        name, *numbers = line.rsplit(None, count)
        digits = [text.removeprefix("-" if place == 0 else "") for place, text in enumerate(numbers)]
        if len(numbers) == count and all(text.isdecimal() and len(text) < 19 for text in digits):
            return name.lstrip(), *map(int, numbers)
    return None


def read_table(path: Path, columns: Mapping[str, str] | None, left_out: LeftOut) -> LabelledFiles:
    """A .csv, .tsv or .jsonl with a file name and a class in each row."""
    if ending(path) not in TABLE_SUFFIXES:
        raise ValueError(f"load_labelled does not read {path}. {RULES}")
    rows = read_rows(path, left_out)
    found = list(dict.fromkeys([*rows.header, *(field for row in rows for field in row)]))
    theirs = {name: find_column(found, name, columns) for name in (IMAGE, LABEL, IMAGE_ID)}
    missing = [name for name in (IMAGE, LABEL) if theirs[name] is None]
    if missing or not rows:
        raise ValueError(
            f"{path} has the columns {found} and {len(rows):,} rows; which of them holds "
            f"{' and '.join(f'`{name}`' for name in missing) or 'an image'} is not known. Name it: "
            "columns={'image': ..., 'label': ...}."
        )
    used = [name for name in theirs.values() if name is not None]
    for number, row in enumerate(rows):
        if empty := [name for name in used if row.get(name) in (None, "")]:
            raise ValueError(
                f"{rows.place(number)} of {path} has no {empty[0]!r}: {row!r:.120}. Fill it, or remove it."
            )
    table = {"file_name": [row[theirs[IMAGE]] for row in rows], LABEL: _numbers([row[theirs[LABEL]] for row in rows])}
    if theirs[IMAGE_ID] is not None:
        table[IMAGE_ID] = [str(row[theirs[IMAGE_ID]]) for row in rows]
    others = shared_scalars(rows, without={*used, *table}, left_out=left_out)
    for name in set(found) & table.keys() - set(used):
        left_out.add(f"field `{name}` (the name of a column of ours)", len(rows))
    table |= {name: _numbers(values.to_pylist()) for name, values in others.items()}
    names = next(iter(find_alias(list(others), NAME_ALIASES)), None)
    known = _names_of_numbers(path, table[LABEL], table[names]) if names is not None else {}
    return LabelledFiles({UNSPLIT: table}, path.parent, known)


def _names_of_numbers(path: Path, numbers: Sequence[Any], names: Sequence[Any]) -> dict[Any, str]:
    """Class number → its name, of rows that agree."""
    known: dict[Any, str] = {}
    for number, name in zip(numbers, names, strict=True):
        if known.setdefault(number, str(name)) != str(name):
            raise ValueError(
                f"{path} calls class {number} both {known[number]!r} and {str(name)!r}, and a class has one name. "
                "Correct it, or remove the column of names."
            )
    return known


def is_iwildcam(path: Path) -> bool:
    """Whether a folder holds iWildCam-WILDS v2."""
    file = path / "metadata.csv"
    if not file.is_file():
        return False
    with open_text(file) as text:
        return {"split", "filename", "y"} <= set(text.readline().strip().split(","))


def read_iwildcam(path: Path) -> LabelledFiles:
    """iWildCam-WILDS v2: the splits train, val, test, id_val and id_test, all with their images in `train/`."""
    rows, file = read_rows(path / "metadata.csv"), path / "metadata.csv"
    kept = [name for name in ("location_remapped", "sequence_remapped", "datetime") if rows and name in rows[0]]
    own: dict[str, list[dict[str, str]]] = {}
    for number, row in enumerate(rows):
        if not (row["split"] and row["filename"] and row["y"].isdecimal()):
            raise ValueError(
                f"{rows.place(number)} of {file} lacks split, filename or class: {row!r:.120}. Remove it."
            )
        own.setdefault(row["split"], []).append(row)
    columns = {name: _numbers([row[name] for row in rows]) for name in kept}
    number, splits = {id(row): place for place, row in enumerate(rows)}, {}
    for split, some in own.items():
        table = {"file_name": [row["filename"] for row in some], LABEL: [int(row["y"]) for row in some]}
        splits[split] = table | {name: [columns[name][number[id(row)]] for row in some] for name in kept}
    names = {}
    if (path / "categories.csv").is_file():
        last = max(int(row["y"]) for row in rows)
        categories = [row for row in read_rows(path / "categories.csv") if int(row["y"]) <= last]
        names = _names_of_numbers(
            path / "categories.csv", [int(row["y"]) for row in categories], [row["name"] for row in categories]
        )
    return LabelledFiles(splits, path / "train", names)


def find_column(found: Iterable[Any], name: str, columns: Mapping[str, str] | None) -> str | None:
    """Which of the columns that were found holds our `image`, `label` or `image_id`; None if none does."""
    found = [str(column) for column in found]
    if columns and name in columns:
        return columns[name] if columns[name] in found else None
    aliases = {IMAGE: FILE_ALIASES, LABEL: LABEL_ALIASES, IMAGE_ID: (IMAGE_ID,)}[name]
    return next(iter(find_alias(found, aliases)), None)


def _by_split(named: Mapping[Path, str], path: Path) -> dict[str, Path]:
    """Split → the file or folder that is called like it; a `ValueError` for two of one split."""
    found: dict[str, Path] = {}
    for entry, name in named.items():
        first = found.setdefault(SPLIT_FOLDERS[name.lower()], entry)
        if first is not entry:
            raise ValueError(
                f"{path} has {first.name} and {entry.name}, both of the split {SPLIT_FOLDERS[name.lower()]!r}: images "
                "of one of them would be lost. Move one out, or load them one by one."
            )
    return found


_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?<=[0-9.])")


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Texts as whole numbers or as numbers where all are written as such ("007" is a name), or else as they are."""
    for written, read in ((_WHOLE, int), (_DECIMAL, float)):
        if all(isinstance(value, str) and written.fullmatch(value) and value != "." for value in values):
            return [read(value) for value in values]
    return list(values)


def _folders(path: Path) -> list[Path]:
    """The folders in a folder, by name, but hidden ones."""
    return sorted(
        entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != "." and entry.name != "__MACOSX"
    )


def _names_of_folders(files: Sequence[str], labels: Sequence[int]) -> dict[int, str]:
    """Class number → folder, where each class has a folder of its own: of ImageNet, the synset."""
    folders = {label: Path(file).parent.name for label, file in zip(labels, files, strict=True)}
    alike = all(folders[label] == Path(file).parent.name for label, file in zip(labels, files, strict=True))
    return folders if alike and len(set(folders.values())) == len(folders) and "" not in folders.values() else {}


def _join(parts: Mapping[str, LabelledFiles], folder: Path) -> LabelledFiles:
    """The lists of several splits; the training data's folders name the classes."""
    names = parts["train"].names if "train" in parts else {}
    return LabelledFiles({name: part.splits[UNSPLIT] for name, part in parts.items()}, folder, names)
