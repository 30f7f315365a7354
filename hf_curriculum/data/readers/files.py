"""Caption files of every kind, and folders of them, as data sets with the images as paths."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, Image

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.data.readers.coco import is_coco, is_karpathy, read_coco, read_karpathy
from hf_curriculum.data.readers.columns import Columns
from hf_curriculum.data.readers.folder import (
    CAPTION_FILES,
    CAPTION_PATTERNS,
    find_caption_file,
    find_image_folder,
    find_only_table,
    find_split_folders,
    locate_images,
)
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.tables import (
    CAPTION_FIELDS,
    FILE_FIELDS,
    FILE_NAME,
    read_caption_table,
    read_records,
    table_fields,
)
from hf_curriculum.data.readers.url_lists import download_images, is_address
from hf_curriculum.data.request import UNSPLIT, Request, choose_split, validate_unused
from hf_curriculum.data.text import ending, open_text

logger: logging.Logger = logging.getLogger(__name__)


SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
RULES = f"""It recognises:
- a Dataset or DatasetDict, the name of a data set on the Hub, a folder written by save_to_disk, *.parquet, *.arrow;
- COCO's caption file: a JSON object with the lists `images` and `annotations`;
- Karpathy's dataset_*.json: a JSON object with a list `images`, each with `sentences`;
- a table with a file name ({", ".join(FILE_FIELDS)})
  and a caption, a list of captions ({", ".join(CAPTION_FIELDS)})
  or captions numbered from column to column (caption0, caption1, ...), in capitals or not:
  .jsonl, a .json list, .csv, .tsv, .txt with a header, or Flickr8k's *.token.txt;
- the output folder of img2dataset; Conceptual Captions' TSV (caption and address) and Localized Narratives' .jsonl
  with such a folder as `images=`;
- WebDataset: a .tar, or a folder of some, each sample with an image and a .txt, .caption or .json;
- RedCaps: annotations/<subreddit>_<year>.json with images/<subreddit>/<image_id>.jpg, or an img2dataset folder;
- any of these files compressed (.gz);
- a folder with one of {", ".join((*CAPTION_FILES, *CAPTION_PATTERNS))},
  or with one .csv, .tsv or .jsonl of any name, or one .parquet next to its images,
  or with such folders called train, validation (valid, val, dev) and test."""


def read_caption_files(request: Request) -> dict[str, Dataset]:
    """Split -> data set of a caption file, or of a folder that holds one or one for each split."""
    request.validate_options()
    tables: dict[str, tuple[dict[str, list], Path]] = {}
    for folder_split, file in _caption_files(request.path).items():
        if not request.allow_outside and file != request.path:
            validate_inside([str(file)], [request.path], request.path)
        for file_split, table in _parse(file, request.columns, request.restval).items():
            tables[folder_split if file_split == UNSPLIT else file_split] = (table, file)
    chosen = choose_split(tables, request.split)
    return {name: _with_images(table, file, request) for name, (table, file) in chosen.items()}


def _caption_files(path: Path) -> dict[str, Path]:
    """Split -> caption file."""
    if path.is_file():
        return {UNSPLIT: path}
    file = find_caption_file(path)
    if file is not None:
        return {UNSPLIT: file}
    splits = find_split_folders(path)
    if splits:
        return splits
    file = find_only_table(path)
    if file is not None:
        return {UNSPLIT: file}
    splits = find_split_folders(path, find_only_table)
    if splits:
        return splits
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    raise ValueError(f"load_captioned recognises nothing in {path}, which holds {names[:10]}{more}. {RULES}")


def _parse(path: Path, columns: Columns | None, restval: str) -> dict[str, dict[str, list]]:
    """Split -> columns of a caption file."""
    content = content_of(path)
    if is_karpathy(content):
        validate_unused({"columns": columns} if columns else {}, f"{path} is a Karpathy file, whose fields are fixed")
        return _named(path, lambda: read_karpathy(content, restval=restval))
    validate_unused(
        {} if restval == "train" else {"restval": restval}, f"{path} is no Karpathy file, so has no such split"
    )
    if is_coco(content):
        validate_unused({"columns": columns} if columns else {}, f"{path} is a COCO file, whose fields are fixed")
        return {UNSPLIT: _named(path, lambda: read_coco(content))}
    first = content[0] if isinstance(content, list) and content else content
    found = list(first) if isinstance(first, Mapping) else first
    if isinstance(content, list) and isinstance(first, Mapping):
        fields = table_fields(found, columns)
        if fields is not None:
            return {UNSPLIT: read_caption_table(content, fields)}
    if isinstance(first, Mapping) and {"conversations", "messages"} & {*first}:
        raise ValueError(
            f"{path} holds conversations, and load_captioned reads captions. Read it by "
            f"`load_conversations({str(path)!r}, images=...)`; `hf-curriculum score` does so by itself."
        )
    raise ValueError(
        f"load_captioned does not recognise {path}. Its {'rows have' if isinstance(content, list) else 'object has'} "
        f"the fields {found!r:.300}, and `columns={columns}` was given. Name the fields of the image's file and of "
        f"the caption, columns={{'image': ..., 'caption': ...}} (hf-curriculum score: --column caption=...), or "
        f"convert the file. {RULES}"
    )


def _named(path: Path, read: Callable[[], Any]) -> Any:
    """What is read; an error names the file and is in words."""
    try:
        return read()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        plain = str(error) if isinstance(error, ValueError) else f"A field is missing or of another kind ({error!r})."
        raise ValueError(f"{path}: {plain}") from error


def content_of(path: Path) -> Any:
    """What a file of JSON, JSON Lines, or a table of text holds."""
    suffix = ending(path).lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"load_captioned does not recognise {path} by its ending {suffix!r}. {RULES}")
    try:
        with open_text(path, newline="") as file:
            return read_records(file.read(), suffix)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}), so its text cannot be read. Convert it first.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON, nor JSON Lines, an object per line ({error}). Correct it.") from error


def _with_images(table: dict[str, list], caption_file: Path, request: Request) -> Dataset:
    """The data set of a caption file's columns, with the images as paths."""
    names, folder = table[FILE_NAME], request.images
    table = {CAPTION: table[CAPTION], IMAGE_ID: table[IMAGE_ID], **table}  # ours first
    if request.download or (folder is None and names and is_address(names[0])):
        return download_images(Dataset.from_dict({IMAGE: names, **table}), caption_file, request.download)
    if folder is None:
        folder = find_image_folder(caption_file, names)
        if folder is None:
            logger.warning("No images next to %s: loaded as text alone. `images=` names their folder.", caption_file)
    if folder is None or folder is False:
        return Dataset.from_dict(table)
    paths = locate_images(Path(folder), names)
    if not request.allow_outside:
        validate_inside(paths, list(dict.fromkeys([caption_file.parent, Path(folder)])), caption_file)
    return Dataset.from_dict({IMAGE: paths, **table}).cast_column(IMAGE, Image())
