"""Tables of file names and captions: JSON Lines, JSON lists, CSV and its relatives, Flickr8k's own text files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import parse_json

FILE_NAME = "file_name"
"""The column of an image's name as its caption file gives it."""
# What the fields are called in files that are around: imagefolder, Flickr8k's and Flickr30k's CSVs, BLIP's lists.
FILE_FIELDS = ("file_name", "filename", "image", "image_name", "image_path", "img", "image_url", "img_url", "url")
CAPTION_FIELDS = ("caption", "captions", "text", "sentences", "sentence", "comment")
SCALARS: set[type] = {str, bool, int, float}


def read_records(text: str, suffix: str) -> list[dict[str, Any]]:
    """The rows of a text file whose `suffix` is ".jsonl", ".json" (a list of objects), ".csv", ".tsv" or ".txt"."""
    if suffix == ".json":
        try:
            return parse_json(text)
        except json.JSONDecodeError as error:
            first, _, rest = text.strip().partition("\n")
            if not (error.msg == "Extra data" and rest and _is_object(first)):
                raise
            suffix = ".jsonl"
    if suffix == ".jsonl":
        return [_parse_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    lines = text.split("\n")  # not splitlines(), which also splits captions at U+2028 and its like
    header = lines[0]
    if ("#" in header.partition("\t")[0] and "\t" in header) or re.match(r"\S+\.\w+#\d+\s", header):
        return [_parse_token_line(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    delimiter = min(",\t|;", key=lambda mark: header.find(mark) if mark in header else len(header))
    quoting = csv.QUOTE_MINIMAL if delimiter in ",;" else csv.QUOTE_NONE
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, skipinitialspace=True)
    rows = []
    for row in reader:
        if None in row:
            raise ValueError(
                f"Line {reader.line_num} has more cells than the header {reader.fieldnames}, which is separated by "
                f"{delimiter!r}: {list(row.values())}. A caption that holds {delimiter!r} must stand in double quotes "
                "(CSV), or the file be JSON Lines."
            )
        rows.append({field.strip(): cell for field, cell in row.items()})
    return rows


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except json.JSONDecodeError:
        return False


def _parse_line(line: str, number: int) -> dict[str, Any]:
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"Line {number} is not JSON ({error}): {line[:80]!r}. JSON Lines have one object per line."
        ) from error


def _parse_token_line(line: str, number: int) -> dict[str, Any]:
    name, tab, caption = line.rstrip("\r\n").partition("\t")
    file_name, mark, index = name.rpartition("#")
    if not (tab and mark and index.isdigit()):
        raise ValueError(
            f"Line {number} is not of the form name.jpg#0<tab>caption of a *.token.txt: {line[:80]!r}. A tab stands "
            "between name and caption; correct the line."
        )
    return {FILE_NAME: file_name, CAPTION: caption}


def table_fields(fields: Iterable[str], columns: Mapping[str, Any] | None = None) -> dict[str, list[str]] | None:
    """Our name -> the fields that hold it, or None where a table's fields do not name both a file and a caption."""
    fields = list(fields)
    usual = {IMAGE: FILE_FIELDS, CAPTION: CAPTION_FIELDS, IMAGE_ID: (IMAGE_ID,)}
    found = {}
    for name, aliases in usual.items():
        if columns and name in columns:
            named = [columns[name]] if isinstance(columns[name], str) else list(columns[name])
            if not set(named) <= set(fields):
                return None
            found[name] = named
        else:
            found[name] = find_alias(fields, aliases)
            if name == CAPTION and not found[name]:
                found[name] = numbered_captions(fields)
    return found if found[IMAGE] and found[CAPTION] else None


def find_alias(fields: Sequence[str], aliases: Sequence[str]) -> list[str]:
    """The field of the first alias that there is, in capitals or not: one or none."""
    exact = [alias for alias in aliases if alias in fields]
    return exact[:1] or [field for alias in aliases for field in fields if field.lower() == alias][:1]


def numbered_captions(fields: Sequence[str]) -> list[str]:
    """Fields called `caption0`, `caption_1`, `Sentence 2`, in the order of their numbers."""
    found = {field: re.fullmatch(r"([a-z]+)[ _.-]?(\d+)", field.lower()) for field in fields}
    numbered = {field: int(match[2]) for field, match in found.items() if match and match[1] in CAPTION_FIELDS}
    return sorted(numbered, key=numbered.__getitem__)


def read_caption_table(records: Sequence[Mapping[str, Any]], fields: Mapping[str, list[str]]) -> dict[str, list[Any]]:
    """The columns of a table of file names and captions, one row per caption, in the table's order."""
    table: dict[str, list[Any]] = {FILE_NAME: [], CAPTION: [], IMAGE_ID: []}
    rows = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            raise ValueError(
                f"Row {number} of the caption table is {record!r:.100}, and an object with the fields of the first "
                "row is needed. Correct the file."
            )
        file_name = record.get(fields[IMAGE][0])
        if not file_name or not isinstance(file_name, str):
            raise ValueError(
                f"Row {number} of the caption table has the `{fields[IMAGE][0]}` {file_name!r}, and a file name is "
                f"needed to find its image: {dict(record)!r:.120}."
            )
        image_id = next((record[field] for field in fields[IMAGE_ID] if record.get(field) is not None), file_name)
        for caption in _captions(record, fields[CAPTION], number):
            table[FILE_NAME].append(file_name)
            table[CAPTION].append(caption)
            table[IMAGE_ID].append(str(image_id))
            rows.append(record)
    used = {field for named in fields.values() for field in named}
    return table | shared_scalars(rows, without={*used, *table, IMAGE})


def _captions(record: Mapping[str, Any], fields: list[str], number: int) -> list[str | None]:
    """The captions of a row: of a list, or of one field each."""
    cells = [record.get(field) for field in fields]
    if len(cells) > 1:
        cells = [cell for cell in cells if cell]
    captions = [caption for cell in cells for caption in (cell if isinstance(cell, list) else [cell])]
    for caption in captions:
        if not isinstance(caption, (str, type(None))):
            raise ValueError(
                f"Row {number} of the caption table has the caption {caption!r:.100} in {fields}, and a text or a "
                "list of texts is needed. Name another field with columns={'caption': ...}."
            )
    return captions


def shared_scalars(records: Sequence[Mapping[str, Any]], *, without: Iterable[str | None]) -> dict[str, list[Any]]:
    """The fields that every record has, with a text, number or truth value of one type in all of them, as columns."""
    without = set(without)
    columns = {}
    for name in records[0] if records else ():
        if name in without:
            continue
        kinds = {type(record.get(name)) for record in records}
        if len(kinds) == 1 and kinds <= SCALARS:
            column = [record[name] for record in records]
            if kinds != {int} or -(2**63) <= min(column) <= max(column) < 2**63:  # what Arrow can hold
                columns[name] = column
    return columns
