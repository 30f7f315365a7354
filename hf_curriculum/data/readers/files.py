"""Caption files of every kind, and folders of them, as data sets with the images as paths."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset, Image

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.data.identity import ids_of_files, match_names
from hf_curriculum.data.images import image_frame
from hf_curriculum.data.limits import validate_columns
from hf_curriculum.data.readers.coco import OBJECTS, is_coco, is_karpathy, read_coco, read_karpathy
from hf_curriculum.data.readers.columns import downloaded
from hf_curriculum.data.readers.folder import (
    CAPTION_FILES,
    CAPTION_PATTERNS,
    IMAGE_FOLDERS,
    IMAGE_SUFFIXES,
    JSON,
    TABLES,
    count_passed_over,
    find_caption_file,
    find_files,
    find_image_folder,
    find_only_json,
    find_only_table,
    find_split_folders,
    find_texts_beside_images,
    locate_images,
    walk_images,
)
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.rows import named, read_content
from hf_curriculum.data.readers.tables import (
    CAPTION_FIELDS,
    FILE_FIELDS,
    FILE_NAME,
    Records,
    find_alias,
    read_caption_table,
    table_fields,
    validate_names,
)
from hf_curriculum.data.readers.url_lists import download_images, is_address, without_secrets
from hf_curriculum.data.request import UNSPLIT, Request, choose_split, validate_unused
from hf_curriculum.data.text import ending, read_text

logger: logging.Logger = logging.getLogger(__name__)


SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
RULES = f"""It recognises:
- a Dataset or DatasetDict, the name of a data set on the Hub, a folder written by save_to_disk, *.parquet, *.arrow;
- COCO's caption file: a JSON object with the lists `images` and `annotations`;
- Karpathy's dataset_*.json: a JSON object with a list `images`, each with `sentences`;
- a table with a file name ({", ".join(FILE_FIELDS)})
  and a caption, a list of captions ({", ".join(CAPTION_FIELDS)}, or `title` beside `filepath`)
  or captions numbered from column to column (caption0, caption1, ..., or caption, caption2, ...), in capitals or not:
  .jsonl, a .json list, .csv, .tsv, .txt with a header, or Flickr8k's *.token.txt; without file names for images=False;
- a JSON object of names: {{"a.jpg": "A dog."}}, {{"a.jpg": ["A dog.", "A pet."]}} or {{"a": {{"caption": "A dog."}}}};
- images with a .txt or .caption of the same name beside each, in folders below too;
- the output folder of img2dataset; Conceptual Captions' TSV (caption and address), a table of captions and addresses,
  and Localized Narratives' .jsonl with such a folder as `images=`;
- WebDataset: a .tar, or a folder of some, each sample with an image and a .txt, .caption or .json;
- RedCaps: annotations/<subreddit>_<year>.json with images/<subreddit>/<image_id>.jpg, or an img2dataset folder;
- any of these files compressed (.gz);
- a folder with one of {", ".join((*CAPTION_FILES, *CAPTION_PATTERNS))},
  or with one .csv, .tsv, .jsonl or else .json of any name, or one .parquet next to its images,
  or with such folders called train, validation (valid, val, dev) and test."""


def read_caption_files(request: Request) -> dict[str, Dataset]:
    """Split -> data set of a caption file, or of a folder that holds one or one for each split."""
    request.validate_options()
    tables: dict[str, tuple[dict[str, Any], Path]] = {}
    files = _caption_files(request.path)
    if request.path.is_dir():
        count_passed_over(request.path, files.values(), request.left_out, images_too=request.images is None)
    for folder_split, file in files.items():
        if request.path.is_dir() and file.is_file():
            find_files(file.parent, (*TABLES, *JSON), request.left_out, below=False)
        if not request.allow_outside and file != request.path:
            validate_inside([str(file)], [request.path], request.path)
        for file_split, table in _parse(file, request).items():
            tables[folder_split if file_split == UNSPLIT else file_split] = (table, file)
    chosen = choose_split(tables, request.split)
    return {name: _with_images(table, file, request) for name, (table, file) in chosen.items()}


def _caption_files(path: Path) -> dict[str, Path]:
    """Split -> caption file, or folder of images with their texts."""
    if path.is_file():
        return {UNSPLIT: path}
    for find in (find_caption_file, find_only_table, find_texts_beside_images, find_only_json):
        splits = find_split_folders(path, find)
        file = None if splits and find is find_texts_beside_images else find(path)  # it looks into folders itself
        if file is not None or splits:
            return splits if file is None else {UNSPLIT: file}
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    raise ValueError(f"load_captioned recognises nothing in {path}, which holds {names[:10]}{more}. {RULES}")


def _parse(path: Path, request: Request) -> dict[str, dict[str, Any]]:
    """Split -> columns of a caption file."""
    columns, restval = request.columns, request.restval
    content = _texts_beside_images(path, request) if path.is_dir() else content_of(path, request)
    if is_karpathy(content):
        validate_unused({"columns": columns} if columns else {}, f"{path} is a Karpathy file, whose fields are fixed")
        return named(path, lambda: read_karpathy(content, request.reject, request.left_out, restval=restval))
    validate_unused(
        {} if restval == "train" else {"restval": restval}, f"{path} is no Karpathy file, so has no such split"
    )
    if is_coco(content):
        validate_unused({"columns": columns} if columns else {}, f"{path} is a COCO file, whose fields are fixed")
        return {UNSPLIT: named(path, lambda: read_coco(content, request.reject, request.left_out))}
    records = named(path, lambda: _rows_by_name(content, request)) if isinstance(content, Mapping) else content
    if isinstance(records, Records) and len(records) == 1 and isinstance(records[0], list):
        records = Records(records[0])  # a list of JSON on one line
    rows = [row for row in records if isinstance(row, Mapping)] if isinstance(records, Records) else []
    rejected = request.left_out.describe() if request.bad_rows == "drop" else ""
    if isinstance(records, Records) and not rows and (records.header or rejected):
        head = f"has the header {records.header} and " if records.header else "holds "
        raise ValueError(f"{path} {head}no row that can be read. Look at the file. {rejected}".rstrip())
    found = dict.fromkeys(chain.from_iterable(rows))
    validate_columns(len(found), path)
    fields = table_fields(found, columns, text_alone=request.images is False) if rows else None
    if fields is None:
        raise _unrecognised(path, request, list(found) if rows or content == [] else content)
    request.taken.update({ours: ", ".join(theirs) for ours, theirs in fields.items() if theirs})
    return {UNSPLIT: named(path, lambda: read_caption_table(records, fields, request.reject, request.left_out))}


def _rows_by_name(content: Mapping[str, Any], request: Request) -> Records | None:
    """The rows of an object of JSON: itself, or for each name of an image captions or an object with them."""
    if find_alias(list(content), (*FILE_FIELDS, *CAPTION_FIELDS)):
        return Records([content])
    values, named = list(content.values()), all(name.lower().endswith(IMAGE_SUFFIXES) for name in content)
    rows = [isinstance(value, Mapping) and bool(table_fields(value, text_alone=True)) for value in values]
    texts = [not row and _is_captions(value) for row, value in zip(rows, values, strict=True)]
    if not (any(rows + texts) if named else all(rows) or (all(texts) and request.images)):
        return None  # any object of texts looks so
    values = [dict(value) if row else {CAPTION: value} for row, value in zip(rows, values, strict=True)]
    files = match_names(content, [] if named or request.images is False else _image_names(request))
    for name, value in zip(content, values, strict=True):
        if name in files.ambiguous:
            end, *several = files.ambiguous[name]
            raise ValueError(f"{end!r} is the name of {several}, and it is not known which is meant. Correct it.")
        value |= {FILE_NAME: files.pairs.get(name, name), IMAGE_ID: value.get(IMAGE_ID, name)}
    return Records(values)


def _is_captions(value: Any) -> bool:
    return all(isinstance(one, str) for one in (value if isinstance(value, list) else [value]))


def _image_names(request: Request) -> list[str]:
    """Names of images, from the folder that they are looked for in."""
    beside = request.path if request.path.is_dir() else request.path.parent
    places = [Path(request.images)] if request.images else [*(beside / name for name in IMAGE_FOLDERS), beside]
    folder = next(place for place in (*places, beside) if place.is_dir())
    return [image.relative_to(folder).as_posix() for image in find_files(folder, IMAGE_SUFFIXES)]


def _unrecognised(path: Path, request: Request, found: Any) -> ValueError:
    """The error for content that is no captions, with the fields that its rows have, or what it holds."""
    fields = [field for field in found if isinstance(field, str)] if isinstance(found, list) else []
    if {"conversations", "messages"} & set(fields):
        return ValueError(
            f"{path} holds conversations, and load_captioned reads captions. Read it by "
            f"`load_conversations({str(path)!r}, images=...)`; `hf-curriculum score` does so by itself."
        )
    advice = (
        "Name the fields of the image's file and of the caption, columns={'image': ..., 'caption': ...} "
        "(hf-curriculum score: --column caption=...), or convert the file."
    )
    if any(str(field).lower().endswith(IMAGE_SUFFIXES) for field in fields):
        advice = (
            "The first line is no header, but a row. Write the names of the columns above it: `file_name,caption`."
        )
    elif request.images is not False and table_fields(fields, request.columns, text_alone=True):
        advice = f"No field names the image's file: {advice} images=False (--images none) loads the captions alone."
    kind = "Its object has the fields" if isinstance(found, Mapping) else "It holds"
    kind = "Its rows have the fields" if fields or found == [] else kind
    shown = list(found) if isinstance(found, Mapping) else found
    return ValueError(
        f"load_captioned does not recognise {path}. {kind} {shown!r:.300}, and `columns={request.columns}` was given. "
        f"{advice} {RULES}"
    )


def _texts_beside_images(folder: Path, request: Request) -> Records:
    """A row for each image with a text beside it."""
    validate_unused({"images": request.images} if request.images else {}, "the images lie beside their texts")
    rows, alone = Records(), []
    for image, text in walk_images(folder, request.left_out):
        name = image.relative_to(folder).as_posix()
        if text is None:
            alone.append(name)
            continue
        if not request.allow_outside:
            validate_inside([str(text)], [folder], folder)
        caption = read_text(text).strip()
        if re.fullmatch(r"[\d.\s-]+", caption):
            raise ValueError(
                f"{text} holds numbers, {caption[:40]!r}, as YOLO's boxes do, and a caption is needed. Move such "
                "files elsewhere, or name the file of captions itself."
            )
        rows.append({FILE_NAME: name, CAPTION: caption})
    request.left_out.add("images without a text of their name", len(alone), next(iter(alone), None))
    return rows


def content_of(path: Path, request: Request) -> Any:
    """What a file of JSON, JSON Lines, or a table of text holds: `Records` where it has rows."""
    suffix = ending(path).lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"load_captioned does not recognise {path} by its ending {suffix!r}. {RULES}")
    return read_content(path, request.reject, request.left_out)


def _with_images(table: dict[str, Any], source: Path, request: Request) -> Dataset:
    """The data set of a caption file's columns, with the images as paths."""
    table = {name: table[name] for name in (CAPTION, IMAGE_ID) if name in table} | table  # ours first
    names, folder = table.get(FILE_NAME, []), request.images
    shown = without_secrets(names)
    if shown != names:
        for column in (FILE_NAME, IMAGE_ID):
            cells = zip(table[column], names, shown, strict=True)
            table[column] = [text if cell == name else cell for cell, name, text in cells]
    caption_file = source / "_" if source.is_dir() else source
    if request.download or (folder is None and names and is_address(names[0])):
        return download_images(Dataset.from_dict({IMAGE: names, **table}), caption_file, request.download)
    if folder and names and is_address(names[0]):
        return downloaded(Dataset.from_dict({IMAGE: names, **table}), caption_file, request)
    if folder is not False:
        validate_names(names, source)
    if folder is None:
        folder = find_image_folder(caption_file, names)
        if folder is None:
            first = f"none of the {len(names):,} that it names, {names[0]!r} for example" if names else "it names none"
            logger.warning(
                "No images next to %s (%s): loaded as text alone. `images=` names their folder.", caption_file, first
            )
    paths = [None] * len(names) if folder is None or folder is False else locate_images(Path(folder), names)
    if IMAGE_ID in table:
        table[IMAGE_ID] = ids_of_files(table[IMAGE_ID], names, paths)
    if folder is None or folder is False:
        return Dataset.from_dict(table)
    if not request.allow_outside:
        validate_inside(paths, list(dict.fromkeys([caption_file.parent, Path(folder)])), caption_file)
    if OBJECTS in table:
        _warn_of_turned(table[OBJECTS].to_pylist(), paths, caption_file)
    return Dataset.from_dict({IMAGE: paths, **table}).cast_column(IMAGE, Image())


def _warn_of_turned(objects: Sequence[Any], paths: Sequence[str | None], source: Path) -> None:
    """Warns of objects whose images EXIF turns: a table does not say whether they were drawn before or after."""
    shown = dict.fromkeys(path for path, found in zip(paths, objects, strict=True) if found and path)
    turned = [path for path in shown if os.path.isfile(path) and image_frame({"path": path, "bytes": None})[1] != 1]
    if turned:
        logger.warning(
            "%s: EXIF turns %d of %d images with `%s` (%s, for example), and their boxes are read as they stand, as "
            "drawn on the turned image. Where they are not, give them as COCO's or VOC's file (`objects=`), which has "
            "the sizes, or store the images upright (PIL.ImageOps.exif_transpose).",
            *(source, len(turned), len(shown), OBJECTS, turned[0]),
        )
