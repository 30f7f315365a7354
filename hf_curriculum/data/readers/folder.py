"""Where the caption file and the images of a folder are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from hf_curriculum.data.left_out import LeftOut

# In the order they are looked for. The first that is there wins; of the patterns exactly one file may match.
CAPTION_FILES = ("metadata.jsonl", "metadata.csv", "captions.jsonl", "captions.csv", "captions.tsv", "captions.txt")
CAPTION_PATTERNS = ("captions*.json", "captions*.json.gz", "dataset*.json", "dataset*.json.gz", "*.token.txt")
TABLES = (".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz")
JSON = (".json", ".json.gz")
TEXTS = (".txt", ".caption")
"""Endings of a caption beside its image, as trainers of LoRA write them."""
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
IMAGE_FOLDERS = ("images", "Images")
SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}


def visible_files(folder: Path) -> list[Path]:
    """The files of a folder by name, without hidden ones (`._a.csv`, `.DS_Store`), which are never data."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())


def find_files(
    folder: Path, endings: tuple[str, ...], left_out: LeftOut | None = None, others: str | None = None
) -> list[Path]:
    """The files below a folder that end in one of these, in capitals or not, by path; hidden ones are never data.

    Hidden are names that begin with a dot, and `__MACOSX`. Folders and files that would be looked at but for that are
    counted, and under the reason `others` files of other endings.
    """
    left_out, found = left_out or LeftOut(), []
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        hidden = [name for name in folders if name[0] == "." or name == "__MACOSX"]
        folders[:] = [name for name in folders if name not in hidden]
        for name in names:
            if not name.lower().endswith(endings):
                if others is not None and name[0] not in "._":
                    left_out.add(others, 1, inside / name)
            elif name[0] == ".":
                hidden.append(name)
            else:
                found.append(os.path.join(place, name))
        left_out.add("hidden files and folders", len(hidden), hidden and inside / hidden[0])
    return [Path(file) for file in sorted(found, key=lambda file: file.split(os.sep))]


def find_caption_file(folder: Path) -> Path | None:
    """The caption file in a folder, or None; raises if several files could be it."""
    for name in CAPTION_FILES:
        if (folder / name).is_file():
            return folder / name
    found = [path for path in visible_files(folder) if any(map(path.match, CAPTION_PATTERNS))]
    found = [path for path in found if not path.name.startswith("dataset_infos")]  # datasets' own
    if len(found) > 1:
        raise ValueError(
            f"{folder} holds several caption files, {[path.name for path in found]}, and it is not known which is "
            "meant. Name one: load_captioned('FOLDER/FILE', images='FOLDER/images')."
        )
    return found[0] if found else None


def find_only_table(folder: Path, endings: tuple[str, ...] = TABLES) -> Path | None:
    """The one table in a folder, whatever it is called, or None; raises if there are several."""
    found = [path for path in visible_files(folder) if path.name.lower().endswith(endings)]
    found = [path for path in found if not path.name.startswith("dataset_info")]  # datasets' own
    if len(found) > 1:
        names = [path.name for path in found]
        raise ValueError(
            f"{folder} holds several tables, {names}, and it is not known which one has the captions. Name it: "
            f"load_captioned('{folder / names[0]}'), or call it {CAPTION_FILES[3]}."
        )
    return found[0] if found else None


def find_only_json(folder: Path) -> Path | None:
    """The one file of JSON in a folder, or None; raises if there are several."""
    return find_only_table(folder, JSON)


def count_hidden(folder: Path, endings: tuple[str, ...], left_out: LeftOut) -> None:
    """Counts the hidden files of a folder that would be read if they were not hidden."""
    hidden = [name for name in os.listdir(folder) if name.startswith(".") and name.lower().endswith(endings)]
    left_out.add("hidden files (never read)", len(hidden), hidden and hidden[0])


def walk_images(folder: Path, left_out: LeftOut | None = None) -> Iterator[tuple[Path, Path | None]]:
    """Each image of a folder and its folders, and the text beside it or None; hidden ones are counted."""
    for place, folders, names in os.walk(folder):
        if left_out is not None:
            count_hidden(Path(place), IMAGE_SUFFIXES, left_out)
            hidden = [name for name in folders if name.startswith(".")]
            left_out.add("hidden folders (never read)", len(hidden), hidden and hidden[0])
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        there = set(names)
        for name in sorted(names):
            stem, ending = os.path.splitext(name)
            if ending.lower() in IMAGE_SUFFIXES and not name.startswith("."):
                beside = [stem + text for text in TEXTS if stem + text in there]
                if len(beside) > 1:
                    raise ValueError(
                        f"{os.path.join(place, name)} has the texts {beside}, and it is not known which is its "
                        "caption. Remove one of them."
                    )
                yield Path(place, name), Path(place, beside[0]) if beside else None


def find_texts_beside_images(folder: Path) -> Path | None:
    """The folder itself, where an image in it has a text of its name beside it."""
    return folder if any(text is not None for _, text in walk_images(folder)) else None


def find_parquet_beside_images(folder: Path) -> Path | None:
    """The Parquet file beside loose images, which `datasets` would load without it; raises if there are several."""
    files = [path for path in visible_files(folder) if path.suffix == ".parquet"] if folder.is_dir() else []
    if not files or (folder / "metadata.parquet").is_file() or find_caption_file(folder) is not None:
        return None
    places = [place for place in (folder, *(folder / name for name in IMAGE_FOLDERS)) if place.is_dir()]
    entries = chain.from_iterable(place.iterdir() for place in places)
    images = (entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES and entry.name[0] != ".")
    loose = islice(images, len(files) + 1)
    if sum(1 for _ in loose) <= len(files):
        return None
    if len(files) > 1:
        raise ValueError(
            f"{folder} holds images and several Parquet files, {[file.name for file in files]}, and it is not known "
            f"which one has the captions. Name one: load_captioned('{files[0]}')."
        )
    return files[0]


def find_split_folders(folder: Path, find: Callable[[Path], Path | None] = find_caption_file) -> dict[str, Path]:
    """The caption files of splits, in folders called as `datasets` names splits: split -> file."""
    folders = {split: folder / name for name, split in reversed(SPLIT_FOLDERS.items()) if (folder / name).is_dir()}
    files = {split: find(folders[split]) for split in dict.fromkeys(SPLIT_FOLDERS.values()) if split in folders}
    return {split: file for split, file in files.items() if file is not None}


def find_image_folder(caption_file: Path, file_names: Sequence[str]) -> Path | None:
    """The folder of images that belongs to a caption file: the one it is in, or `images/` next to it, or None."""
    parent = caption_file.parent
    if any((parent / name).is_file() for name in file_names[:100]):
        return parent
    return next((parent / name for name in IMAGE_FOLDERS if (parent / name).is_dir()), None)


def locate_images(folder: Path, file_names: Sequence[str]) -> list[str]:
    """The paths of the images in `folder`, by their whole name or without its folders; missing files get one too."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The folder of images {folder} does not exist. Give another as `images=`, or `images=False` for text "
            "alone."
        )
    root = str(folder.absolute())
    layouts = {
        os.path.join(root, ""): lambda name: os.path.join(root, name),
        os.path.join(root, "images", ""): lambda name: os.path.join(root, "images", name),
        os.path.join(root, "") + " without the names' folders": lambda name: os.path.join(
            root, os.path.basename(name)
        ),
    }
    for names in (file_names[:100], file_names):  # the first few nearly always decide
        for layout in layouts.values():
            if any(os.path.isfile(layout(name)) for name in names):
                return [layout(name) for name in file_names]
    raise FileNotFoundError(
        f"None of the {len(set(file_names))} images that the caption file names (the first is {file_names[0]!r}) is "
        f"in {folder}. Looked in {list(layouts)}. Give the folder that holds them as `images=`, or `images=False` for "
        "text alone."
    )
