"""Where the caption file and the images of a folder are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path

from hf_curriculum.config import IMAGE_SUFFIXES

# In the order they are looked for. The first that is there wins; of the patterns exactly one file may match.
CAPTION_FILES = ("metadata.jsonl", "metadata.csv", "captions.jsonl", "captions.csv", "captions.tsv", "captions.txt")
CAPTION_PATTERNS = ("captions*.json", "captions*.json.gz", "dataset*.json", "dataset*.json.gz", "*.token.txt")
TABLES = (".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz")
IMAGE_FOLDERS = ("images", "Images")
SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}


def find_caption_file(folder: Path) -> Path | None:
    """The caption file in a folder, or None; raises if several files could be it."""
    for name in CAPTION_FILES:
        if (folder / name).is_file():
            return folder / name
    found = sorted({path for pattern in CAPTION_PATTERNS for path in folder.glob(pattern)})
    found = [path for path in found if path.is_file() and not path.name.startswith("dataset_infos")]  # datasets' own
    if len(found) > 1:
        raise ValueError(
            f"{folder} holds several caption files, {[path.name for path in found]}, and it is not known which is "
            "meant. Name one: load_captioned('FOLDER/FILE', images='FOLDER/images')."
        )
    return found[0] if found else None


def find_only_table(folder: Path) -> Path | None:
    """The one table in a folder, whatever it is called, or None; raises if there are several."""
    found = sorted(path for path in folder.iterdir() if path.name.lower().endswith(TABLES) and path.is_file())
    if len(found) > 1:
        names = [path.name for path in found]
        raise ValueError(
            f"{folder} holds several tables, {names}, and it is not known which one has the captions. Name it: "
            f"load_captioned('{folder / names[0]}'), or call it {CAPTION_FILES[3]}."
        )
    return found[0] if found else None


def find_parquet_beside_images(folder: Path) -> Path | None:
    """The Parquet file beside loose images, which `datasets` would load without it; raises if there are several."""
    files = sorted(folder.glob("*.parquet"))
    if not files or (folder / "metadata.parquet").is_file() or find_caption_file(folder) is not None:
        return None
    places = [place for place in (folder, *(folder / name for name in IMAGE_FOLDERS)) if place.is_dir()]
    entries = chain.from_iterable(place.iterdir() for place in places)
    loose = islice((entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES), len(files) + 1)
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
