"""Where the caption file and the images of a folder are."""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from hf_curriculum.config import IMAGE_SUFFIXES, brief
from hf_curriculum.data.identity import bare_name, match_names, normalise_name
from hf_curriculum.data.left_out import LeftOut

logger: logging.Logger = logging.getLogger(__name__)

# In the order they are looked for. The first that is there wins; of the patterns exactly one file may match.
CAPTION_FILES = ("metadata.jsonl", "metadata.csv", "captions.jsonl", "captions.csv", "captions.tsv", "captions.txt")
CAPTION_PATTERNS = ("captions*.json", "captions*.json.gz", "dataset*.json", "dataset*.json.gz", "*.token.txt")
TABLES = (".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz")
JSON = (".json", ".json.gz")
ARROW_SUFFIXES = (".parquet", ".arrow")
TEXTS = (".txt", ".caption")
"""Endings of a caption beside its image, as trainers of LoRA write them."""
IMAGE_FOLDERS = ("images", "Images")
SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}


_CALLED_CAPTIONS = re.compile("|".join(map(fnmatch.translate, (*CAPTION_FILES, *CAPTION_PATTERNS))))
_DATASETS_OWN = "dataset_info"
"""What the names of the files begin with that `datasets` writes about its data."""


def visible_files(folder: Path, endings: tuple[str, ...] = ("",)) -> list[Path]:
    """The files of a folder, not below it, by name, that end in one of these, in capitals or not; none is hidden."""
    with os.scandir(folder) as entries:
        ending = (entry for entry in entries if entry.name[0] != "." and entry.name.lower().endswith(endings))
        return [folder / name for name in sorted(entry.name for entry in ending if entry.is_file())]


def find_files(
    folder: Path,
    endings: tuple[str, ...],
    left_out: LeftOut | None = None,
    others: str | None = None,
    *,
    below: bool = True,
) -> list[Path]:
    """The files below a folder that end in one of these, in capitals or not, by path; hidden ones are never data.

    Hidden are names that begin with a dot, and `__MACOSX`. Folders and files that would be looked at but for that are
    counted, and under the reason `others` files of other endings. `below=False` looks into the folder alone.
    """
    left_out, found = left_out or LeftOut(), []
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = folders if below else ()
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
    found = [path for path in visible_files(folder, (*JSON, *TEXTS)) if _CALLED_CAPTIONS.fullmatch(path.name)]
    found = [path for path in found if not path.name.startswith(_DATASETS_OWN)]
    if len(found) > 1:
        raise ValueError(
            f"{folder} holds several caption files, {[path.name for path in found]}, and it is not known which is "
            "meant. Name one: load_captioned('FOLDER/FILE', images='FOLDER/images')."
        )
    return found[0] if found else None


def find_only_table(folder: Path, endings: tuple[str, ...] = TABLES) -> Path | None:
    """The one table in a folder, whatever it is called, or None; raises if there are several."""
    found = [path for path in visible_files(folder, endings) if not path.name.startswith(_DATASETS_OWN)]
    if len(found) > 1:
        names = [path.name for path in found]
        raise ValueError(
            f"{folder} holds several tables, {names}, and it is not known which one has the captions. Name it: "
            f"load_captioned('{folder / names[0]}')."
        )
    return found[0] if found else None


def find_only_json(folder: Path) -> Path | None:
    """The one file of JSON in a folder, or None; raises if there are several."""
    return find_only_table(folder, JSON)


def count_passed_over(folder: Path, read: Collection[Path], left_out: LeftOut, *, images_too: bool = False) -> None:
    """Counts the files of captions below a folder that are not among those that are read (a folder: its texts).

    `images_too` counts images that are in none of the folders of what is read.
    """
    of_texts = tuple(os.path.join(path, "") for path in read if path.is_dir())
    places = of_texts or tuple(os.path.join(path.parent, "") for path in read)
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        inside = os.path.join(place, "").startswith(places)
        ends = {name: os.path.splitext(name) for name in names if name[0] != "."}
        images = {stem for stem, ending in ends.values() if ending.lower() in IMAGE_SUFFIXES}
        texts = {stem for stem, ending in ends.values() if ending.lower() in TEXTS}
        if images_too and not inside:
            bare = sorted(images - texts)
            left_out.add(
                "images in folders without captions", len(bare), bare and Path(place, bare[0]).relative_to(folder)
            )
        for name in sorted(ends):
            stem, ending = ends[name]
            is_json = name.lower().endswith(JSON) and stem not in images  # beside an image it is of that image
            if is_json or _CALLED_CAPTIONS.fullmatch(name) or name.lower().endswith((*TABLES, *ARROW_SUFFIXES)):
                if Path(place, name) in read or name.startswith(_DATASETS_OWN):
                    continue
                reason = "other files that may hold captions (not read)"
            elif ending.lower() not in TEXTS or (stem in images) == bool(of_texts and inside):
                continue
            elif stem in images:
                reason = "texts beside images (not read)"
            elif of_texts:
                reason = "texts without an image of their name"
            else:
                continue
            left_out.add(reason, 1, Path(place, name).relative_to(folder))


def walk_images(folder: Path, left_out: LeftOut | None = None) -> Iterator[tuple[Path, Path | None]]:
    """Each image of a folder and its folders, and the text beside it or None; hidden ones are counted."""
    called: dict[str, tuple[list[Path], list[Path]]] = {}
    for file in find_files(folder, (*IMAGE_SUFFIXES, *TEXTS), left_out):
        stem, ending = os.path.splitext(file)
        called.setdefault(stem, ([], []))[ending.lower() in TEXTS].append(file)
    for images, texts in called.values():
        if images and len(texts) > 1:
            raise ValueError(
                f"{images[0]} has the texts {[text.name for text in texts]}, and it is not known which is its "
                "caption. Remove one of them."
            )
        if texts and len(images) > 1:
            raise ValueError(
                f"{texts[0]} may be the caption of each of {[image.name for image in images]}, and two pictures would "
                "share it. Remove or rename one of them."
            )
        yield from ((image, next(iter(texts), None)) for image in images)


def find_texts_beside_images(folder: Path) -> Path | None:
    """The folder itself, where an image in it has a text of its name beside it."""
    return folder if any(text is not None for _, text in walk_images(folder)) else None


def find_parquet_beside_images(folder: Path) -> Path | None:
    """The Parquet file beside loose images, which `datasets` would load without it; raises beside other tables."""
    files = visible_files(folder, (".parquet",)) if folder.is_dir() else []
    if not files or (folder / "metadata.parquet").is_file() or find_caption_file(folder) is not None:
        return None
    places = [place for place in (folder, *(folder / name for name in IMAGE_FOLDERS)) if place.is_dir()]
    entries = chain.from_iterable(place.iterdir() for place in places)
    images = (entry for entry in entries if entry.suffix.lower() in IMAGE_SUFFIXES and entry.name[0] != ".")
    if next(islice(images, len(files), None), None) is None:  # no more images than files
        return None
    return find_only_table(folder, (".parquet", *TABLES))


def find_split_folders(folder: Path, find: Callable[[Path], Path | None] = find_caption_file) -> dict[str, Path]:
    """The caption files of splits, in folders called as `datasets` names splits: split -> file."""
    folders = {split: folder / name for name, split in reversed(SPLIT_FOLDERS.items()) if (folder / name).is_dir()}
    files = {split: find(folders[split]) for split in dict.fromkeys(SPLIT_FOLDERS.values()) if split in folders}
    return {split: file for split, file in files.items() if file is not None}


def find_image_folder(caption_file: Path, file_names: Sequence[str]) -> Path | None:
    """The folder of images that belongs to a caption file: the one it is in, or `images/` next to it, or None.

    Raises:
        FileNotFoundError: there are images next to it, called almost as the first that it names.
    """
    parent, names = caption_file.parent, file_names[:100]
    if any(_path_in(parent, layout, name) for layout in _LAYOUTS for name in names):
        return parent
    folder = next((parent / name for name in IMAGE_FOLDERS if (parent / name).is_dir()), None)
    if folder is not None or _matches_below(parent, names):
        return folder or parent
    near = _near_file(parent, names)
    if near:
        raise FileNotFoundError(
            f"None of the images that the rows name is in {parent}, and others are: {near} Correct the names, give "
            "the folder of images as `images=`, or `images=False` for text alone."
        )
    return None


_LAYOUTS = {
    "": lambda name: name,
    "images": lambda name: os.path.join("images", name),
    "without the names' folders": os.path.basename,
}
"""How a name is looked for in a folder of images; the first layout under which any is there counts for all."""


def _path_in(folder: str | Path, layout: str, name: str) -> str | None:
    """The file of a name in a layout, by any spelling of it; None where there is none."""
    spellings = [name, name.replace("\\", "/")] if "\\" in name else [name]
    if not name.isascii():
        spellings += [unicodedata.normalize(form, one) for one in spellings for form in ("NFC", "NFD")]
    paths = (os.path.join(folder, _LAYOUTS[layout](spelling)) for spelling in spellings)
    return next(filter(os.path.isfile, paths), None)


def locate_images(folder: Path, file_names: Sequence[str | None]) -> list[str | None]:
    """The paths of the images in `folder`, by their whole name or without its folders; missing files get one too.

    Raises:
        FileNotFoundError: there is no such folder, or none of the images is in it.
        ValueError: names that differ in their folders alone stand for one file.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The folder of images {folder} does not exist. Give another as `images=`, or `images=False` for text "
            "alone."
        )
    names = [name for name in dict.fromkeys(file_names) if name and "://" not in name]
    root = str(folder.absolute())
    for some in (names[:100], names):  # the first few nearly always decide
        for layout in _LAYOUTS:
            if any(_path_in(root, layout, name) for name in some):
                paths = _paths_in(root, layout, names)
                return [paths.get(name or "", name) for name in file_names]
    if not names:
        return list(file_names)
    if below := _matches_below(folder, names):
        paths = {name: os.path.join(root, below.get(name, name)) for name in names}
        logger.info("%d of %d names are found in folders below %s.", len(below), len(names), root)
        return [paths.get(name or "", name) for name in file_names]
    near, first = _near_file(folder, names[:100]), brief(repr(names[0]), 300)
    raise FileNotFoundError(
        f"None of the {len(names)} images that the caption file names (the first is {first}) is in {folder}. "
        f"Looked in {[os.path.join(root, '') + layout for layout in _LAYOUTS]}. {near}{' ' * bool(near)}Give the "
        "folder that holds them as `images=`, or `images=False` for text alone."
    )


def _matches_below(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Name → the only image below a folder whose path ends in it, or is its end; a `ValueError` where two do."""
    images = find_files(folder, IMAGE_SUFFIXES)
    matches = match_names(names, (image.relative_to(folder).as_posix() for image in images))
    matches.validate(folder)
    plain = {name: f"/{normalise_name(name)}" for name in matches.pairs}
    return {
        name: image
        for name, image in matches.pairs.items()
        if f"/{image}".endswith(plain[name]) or plain[name].endswith(f"/{image}")
    }


def _paths_in(root: str, layout: str, names: list[str]) -> dict[str, str]:
    """Name → path in the layout; a warning where a missing one is called almost as a file."""
    if layout == list(_LAYOUTS)[-1]:
        first: dict[str, str] = {}
        for name in map(normalise_name, names):
            other = first.setdefault(os.path.basename(name).casefold(), name)  # some disks keep no capitals apart
            if other != name:
                raise ValueError(
                    f"{other!r} and {name!r} would both be the image {os.path.basename(other)!r} in {root}, which has "
                    "no such folders: captions of one would stand beside the other. Give the folder that the names "
                    "begin in as `images=`."
                )
    paths = {name: os.path.join(root, _LAYOUTS[layout](name)) for name in names}
    spelled = {name: _path_in(root, layout, name) for name in _not_there(paths)}
    missing = [name for name, path in spelled.items() if path is None]
    below = _matches_below(Path(root), names) if missing else {}
    spelled |= {name: os.path.join(root, below[name]) for name in missing if name in below}
    missing = [name for name in missing if name not in below]
    near = _near_file(root, missing[:100]) if missing else ""
    if near:
        logger.warning("%d of %d images are not in %s. %s", len(missing), len(names), root, near)
    return paths | {name: path for name, path in spelled.items() if path is not None}


def _not_there(paths: dict[str, str]) -> list[str]:
    """The names whose paths lead to no file; a folder is listed, which is quicker than many looks for files."""
    listed: dict[str, set[str]] = {}
    missing = []
    for name, path in paths.items():
        folder, _, last = path.rpartition("/")
        if folder not in listed:
            listed[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if last not in listed[folder]:
            missing.append(name)
    return missing


def _near_file(folder: str | Path, names: Sequence[str]) -> str:
    """A sentence that names a file that differs from one of `names` in folder, ending or capitals alone, or ""."""
    wanted = {_plain(name): name for name in reversed(names)}
    places = [Path(folder), *(Path(folder, name) for name in IMAGE_FOLDERS)]
    places += [Path(folder, os.path.dirname(normalise_name(name))) for name in names[:1]]
    for place in filter(os.path.isdir, dict.fromkeys(places)):
        for entry in sorted(os.listdir(place)):
            if entry.lower().endswith(IMAGE_SUFFIXES) and _plain(entry) in wanted:
                return f"{brief(repr(wanted[_plain(entry)]), 300)} is named, and {entry!r} is in {place}."
    for image in find_files(Path(folder), IMAGE_SUFFIXES)[:100_000]:
        if _plain(image.name) in wanted:
            return f"{brief(repr(wanted[_plain(image.name)]), 300)} is named, and {image.name!r} is in {image.parent}."
    return ""


def _plain(name: str) -> str:
    """A name's last part without its ending, in small letters, a number without the zeros around it: 007 and 7.0."""
    last = os.path.basename(bare_name(normalise_name(name.partition("?")[0]))).casefold()
    return re.sub(r"^0+(?=\d)|\.0+$", "", last) if re.fullmatch(r"\d+(\.0+)?", last) else last
