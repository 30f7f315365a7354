"""Tables of file names and captions: JSON Lines, JSON lists, CSV and its relatives, Flickr8k's own text files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import pyarrow as pa

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.config import IMAGE_SUFFIXES, RepeatedKeyError, parse_json
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.limits import validate_columns

FILE_NAME = "file_name"
"""The column of an image's name as its caption file gives it."""
# What the fields are called in files that are around: imagefolder, Flickr8k's and Flickr30k's CSVs, BLIP's lists, TRL.
FILE_FIELDS = (
    *("file_name", "filename", "image", "image_name", "image_path", "img", "image_url", "img_url", "url"),
    *("filepath", "images"),
)
CAPTION_FIELDS = ("caption", "captions", "text", "sentences", "txt", "sentence", "comment")
_TITLED = "filepath"
"""Beside this field a `title` is a caption, in open_clip's tables; elsewhere it is a title."""
Reject = Callable[[str], None]
"""Raises for a row that cannot be read, named in a sentence, or counts it: `Request.reject`."""
_TOKEN_LINE = re.compile(rf"[^\t]*(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))})#\d+\t", re.IGNORECASE)


class Records(list[Any]):
    """The rows of a file, and the line of each where it has lines, and its header where it has one."""

    def __init__(self, rows: Iterable[Any] = (), header: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.lines: list[int] = []
        self.header: list[str] = list(header)

    def place(self, row: int) -> str:
        """Where a row is, as an error names it."""
        return f"Line {self.lines[row]}" if self.lines else f"Row {row + 1}"


def read_records(text: str, suffix: str, reject: Reject, left_out: LeftOut) -> Any:
    """What a file holds, of ".jsonl", ".json", ".csv", ".tsv" or ".txt": `Records`, or another value of JSON."""
    if "\0" in text and suffix not in (".json", ".jsonl"):
        line = text[: text.index("\0")].count("\n") + 1
        raise ValueError(f"Line {line} holds a zero byte, as no text does. The file is damaged: copy it again.")
    if suffix == ".json":
        try:
            found = parse_json(text)
            return _with_characters(Records(found) if isinstance(found, list) else found, text, reject)
        except json.JSONDecodeError as error:
            first, _, rest = text.strip().partition("\n")
            if not (error.msg == "Extra data" and rest and _is_object(first)):
                raise
            suffix = ".jsonl"
    lines = list(io.StringIO(text, newline=""))  # splitlines() splits captions at U+2028 too
    if suffix == ".jsonl":
        return _with_characters(_parsed(lines, _parse_line, reject), text, reject)
    token_line = re.match(r"[^\t#]*#[^\t]*\t|\S+\.\w+#\d+\s", "".join(lines[:1]))
    if token_line or any(map(_TOKEN_LINE.match, lines[1:2])):  # the first line may be a header that is in the way
        return _parsed(lines, _parse_token_line, reject)
    return _read_cells(lines, reject, left_out)


def _parsed(lines: Sequence[str], parse: Callable[[str], Any], reject: Reject) -> Records:
    """The lines that are not blank, each a row."""
    found = Records()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = parse(line.rstrip("\r\n"))
            except ValueError as error:
                reject(f"Line {number} is {error}: {line.strip()[:80]!r}.")
                continue
            found.append(row)
            found.lines.append(number)
    return found


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except json.JSONDecodeError:
        return False


def _parse_line(line: str) -> Any:
    try:
        return parse_json(line)
    except RepeatedKeyError as error:
        raise ValueError(f"not clear: {error}") from error
    except json.JSONDecodeError as error:
        if line[error.pos :].strip() == ",":
            raise ValueError("an object with a comma behind it, and JSON Lines have none: remove these") from error
        raise ValueError(f"not JSON, one object per line ({error.msg}, character {error.pos + 1})") from error


def _parse_token_line(line: str) -> dict[str, Any]:
    name, tab, caption = line.partition("\t")
    file_name, mark, index = name.rpartition("#")
    if not (tab and mark and index.isdigit()):
        raise ValueError("not of the form name.jpg#0<tab>caption of a *.token.txt. A tab stands between them")
    return {FILE_NAME: file_name, CAPTION: caption}


def _with_characters(content: Any, text: str, reject: Reject) -> Any:
    """Parsed JSON without rows that hold half a character (a lone surrogate), which no file can store."""
    if not re.search(r"\\u[dD][89a-fA-F]", text) or _is_text(content):
        return content
    if isinstance(content, dict):
        return {
            name: _with_characters(Records(value) if isinstance(value, list) else value, text, reject)
            for name, value in content.items()
        }
    if not isinstance(content, Records):
        raise ValueError(f"{content!r:.80} holds half a character, a lone surrogate. Correct it.")
    found = Records()
    for row, record in enumerate(content):
        if not _is_text(record):
            reject(f"{content.place(row)} holds half a character, a lone surrogate: {record!r:.200}.")
            continue
        found.append(record)
        found.lines += content.lines[row : row + 1]
    return found


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_cells(lines: list[str], reject: Reject, left_out: LeftOut) -> Records:
    """The rows of a table of text with a header, as the strict mode of `csv` reads it."""
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    if first == len(lines):
        return Records()
    excel = re.fullmatch(r'"?sep=([,\t|;])"?[\r\n]*', lines[first])
    if excel:  # Excel's own first line
        first = next((number for number, line in enumerate(lines) if number > first and line.strip()), first)
    marks = excel[1] if excel else ",\t|;"
    delimiter = min(marks, key=lambda mark: lines[first].find(mark) if mark in lines[first] else len(lines[first]))
    spaced = lines[first].count(delimiter) == lines[first].count(f"{delimiter} ") > 0
    dialect: dict[str, Any] = {"delimiter": delimiter, "skipinitialspace": spaced, "strict": True}
    if delimiter == "|" and spaced:  # Flickr30k's, which knows no quotation
        dialect["quoting"] = csv.QUOTE_NONE
    rows = _rows(lines, first, dialect, reject)
    number, cells = next(rows, (0, []))
    if number != first + 1:
        raise ValueError(f"The header, line {first + 1}, cannot be read: {lines[first][:80]!r}. Correct it.")
    validate_columns(len(cells), "The header")
    header = [cell.strip() for cell in cells]
    twice = sorted(name for name, count in Counter(header).items() if name and count > 1)
    if twice:
        raise ValueError(
            f"The header has {twice} twice, and it is not known which column is meant: {header}. Rename one of them."
        )
    named = [(name, place) for place, name in enumerate(header) if name]
    nameless = [place for place, name in enumerate(header) if not name]
    found, unnamed = Records(header=[name for name, _ in named]), False
    rows = list(rows)
    surplus = {len(cells) - len(header) for _, cells in rows}
    if (
        len(rows) > 1
        and len(surplus) == 1
        and max(surplus) > 0
        and not any(any(row[len(header) :]) for _, row in rows)
    ):
        left_out.add("rows with empty cells behind the header's last column", len(rows))
        rows = [(number, cells[: len(header)]) for number, cells in rows]
    for number, cells in rows:
        if not any(map(str.strip, cells)):
            left_out.add("rows of empty cells", len(cells) > 1, f"line {number}")
        elif len(cells) != len(header):
            few = "fewer" if len(cells) < len(header) else "more"
            reject(
                f"Line {number} has {few} cells than the header {header}, which is separated by {delimiter!r}: "
                f"{cells}. A caption that holds {delimiter!r} must stand in double quotes (CSV), or the file be JSON "
                "Lines."
            )
        else:
            unnamed = unnamed or any(cells[place] for place in nameless)
            found.append({name: cells[place] for name, place in named})
            found.lines.append(number)
    if unnamed:
        left_out.add("columns without a name in the header", len(nameless))
    return found


def _rows(lines: list[str], first: int, dialect: Mapping[str, Any], reject: Reject) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row that is not blank; after what cannot be read comes the next line."""
    doubt = first  # lines before this one may be inside a cell that was not read
    unquoted = f"`pandas.read_csv(FILE, sep={dialect['delimiter']!r}, quoting=3).to_csv(NEW, index=False)`."
    while first < len(lines):
        start, reader = first, csv.reader(map(lines.__getitem__, range(first, len(lines))), **dialect)
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                first, doubt = start + 1, max(doubt, first + reader.line_num)
                problem = f"opens a cell and does not close it at its end ({error})"
                if "limit" in str(error) and '"' not in lines[start]:
                    reject(
                        f"Line {first} has a cell of more than {csv.field_size_limit():,} characters, as a picture in "
                        "base64 has and no caption. Store pictures as files."
                    )
                    break
            else:
                if cells is None:
                    return
                end = first + reader.line_num
                if end > start + 1 and _takes_rows(lines[start:end], cells, dialect):
                    reject(
                        f"Lines {start + 1} to {end} are in one pair of quotation marks, and look like rows: "
                        f"{lines[start][:80]!r}. If they are one row, take the line breaks out of its cell. If the "
                        f"marks belong to captions, the file knows no quotation, so rewrite it: {unquoted}"
                    )
                    first = end
                    break
                if start >= doubt or lines[start].count('"') % 2 == 0:
                    if cells:
                        yield start + 1, cells
                    start = end
                    continue
                first, problem = start + 1, "may be the end of a cell above"
            reject(
                f"In line {first} a quotation mark {problem}: {lines[first - 1][:80]!r}. "
                "Within quotation marks each one is written twice, as Excel and pandas do: "
                f'"He said ""Hi""". If the file knows no quotation, rewrite it: {unquoted}'
            )
            break


def _takes_rows(lines: Sequence[str], cells: Sequence[str], dialect: Mapping[str, Any]) -> bool:
    """Whether a row of several lines has taken in other rows: cells of its lines are of the kind of its own."""
    at = next((place for place, cell in enumerate(cells) if "\n" in cell or "\r" in cell), len(cells))
    split = [line.rstrip("\r\n").split(dialect["delimiter"]) for line in lines]
    split = [parts if len(parts) >= len(cells) else [] for parts in split]
    before = [(parts[place], cells[place]) for parts in split[1:] if parts for place in range(at)]
    behind = [(parts[place], cells[place]) for parts in split[:-1] if parts for place in range(at + 1 - len(cells), 0)]
    return any(_kind(part) == _kind(cell) for part, cell in before + behind if _kind(cell))


def _kind(cell: str) -> str:
    """What names of files, numbers and names with numbers look like; "" for a text."""
    cell = cell.strip(' "')
    ending = re.search(r"\.[A-Za-z]\w{0,4}$", cell)
    if " " in cell or not (ending or re.search(r"\d", cell)):
        return ""
    return ending[0].lower() if ending else re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", "a", cell))


def table_fields(
    fields: Iterable[str], columns: Mapping[str, Any] | None = None, *, text_alone: bool = False
) -> dict[str, list[str]] | None:
    """Our name -> the fields that hold it; None where a caption, or unless `text_alone` a file, is named by none."""
    fields = list(fields)
    usual = {IMAGE: FILE_FIELDS, CAPTION: (), IMAGE_ID: (IMAGE_ID,)}
    found = {}
    for name, aliases in usual.items():
        if columns and name in columns:
            named = [columns[name]] if isinstance(columns[name], str) else list(columns[name])
            if not set(named) <= set(fields):
                return None
            found[name] = named
        else:
            found[name] = caption_fields(tuple(fields)) if name == CAPTION else find_alias(fields, aliases)
    return found if found[CAPTION] and (found[IMAGE] or text_alone) else None


def find_alias(fields: Sequence[str], aliases: Sequence[str]) -> list[str]:
    """The field of the first alias that there is, in capitals or not: one or none."""
    exact = [alias for alias in aliases if alias in fields]
    return exact[:1] or [field for alias in aliases for field in fields if field.lower() == alias][:1]


@lru_cache(maxsize=256)
def caption_fields(fields: tuple[str, ...], aliases: tuple[str, ...] = CAPTION_FIELDS) -> list[str]:
    """The fields that hold captions, by their usual names: one, and those that are numbered; or none.

    Numbered are `caption0`, `caption_1`, `Sentence 2`, in the order of their numbers; beside `caption` from 2 on.
    """
    first = find_alias(fields, (*aliases, "title") if find_alias(fields, [_TITLED]) else aliases)
    stems = [field.lower() for field in first] or CAPTION_FIELDS
    found = {field: re.fullmatch(r"([a-z]+)[ _.-]?(\d+)", field.lower()) for field in fields}
    numbered = {field: int(match[2]) for field, match in found.items() if match and match[1] in stems}
    if first and min(numbered.values(), default=2) < 2:
        return first
    return first + sorted(numbered, key=numbered.__getitem__)


def read_caption_table(
    records: Records, fields: Mapping[str, list[str]], reject: Reject, left_out: LeftOut
) -> dict[str, Any]:
    """The columns of a table of file names and captions, one row per caption, in the table's order."""
    table: dict[str, Any] = {FILE_NAME: [], CAPTION: [], IMAGE_ID: []}
    rows = []
    for number, record in enumerate(records):
        try:
            file_name, image_id = _names(record, fields)
            captions = _captions(record, fields[CAPTION])
        except ValueError as error:
            reject(f"{records.place(number)} {error}")
            continue
        for caption in captions:
            table[FILE_NAME].append(file_name)
            table[CAPTION].append(caption)
            table[IMAGE_ID].append(image_id)
            rows.append(record)
    if not fields[IMAGE]:
        table.pop(FILE_NAME)
        if not fields[IMAGE_ID]:
            table.pop(IMAGE_ID)
    table[CAPTION] = pa.array(table[CAPTION], pa.string())
    used = {field for named in fields.values() for field in named}
    for name in {FILE_NAME, CAPTION, IMAGE_ID, IMAGE} - used:
        left_out.add(f"field `{name}` (the name of a column of ours)", sum(name in row for row in rows))
    return table | shared_scalars(rows, without={*used, *table, IMAGE}, left_out=left_out)


def _names(record: Any, fields: Mapping[str, list[str]]) -> tuple[str | None, str | None]:
    """The file and the image id of a row; a `ValueError` says what is wrong with it."""
    if not isinstance(record, Mapping):
        raise ValueError(f"is {record!r:.100}, and an object with the fields of the other rows is needed.")
    image_id = next((str(record[field]) for field in fields[IMAGE_ID] if record.get(field) not in (None, "")), None)
    if not fields[IMAGE]:
        if fields[IMAGE_ID] and image_id is None:
            raise ValueError(f"has no `{fields[IMAGE_ID][0]}`, which says whose caption it is: {dict(record)!r:.120}.")
        return None, image_id
    field, file_name = fields[IMAGE][0], record.get(fields[IMAGE][0])
    if isinstance(file_name, list) and len(file_name) == 1:
        file_name = file_name[0]
    if not file_name or not isinstance(file_name, str):
        several = " `load_conversations` reads rows of several images." if isinstance(file_name, list) else ""
        raise ValueError(
            f"has the `{field}` {file_name!r:.80}, and a file name is needed to find its image: "
            f"{dict(record)!r:.120}.{several}"
        )
    return file_name, file_name if image_id is None else image_id


def _captions(record: Mapping[str, Any], fields: list[str]) -> list[str | None]:
    """The captions of a row: of a list, or of one field each; NaN, as pandas writes it, and no caption are null."""
    cells = [record.get(field) for field in fields]
    if len(cells) > 1:
        cells = [cell for cell in cells if cell]
    captions = [caption for cell in cells for caption in (cell if isinstance(cell, list) else [cell])]
    captions = [None if caption != caption else caption for caption in captions]
    for caption in captions:
        if not isinstance(caption, (str, type(None))):
            raise ValueError(
                f"has the caption {caption!r:.100} in {fields}, and a text or a list of texts is needed. Another "
                "field is named by columns={'caption': ...} (hf-curriculum score: --column caption=...)."
            )
    return captions or [None]


def shared_scalars(
    records: Sequence[Mapping[str, Any]], *, without: Iterable[str | None], left_out: LeftOut | None = None
) -> dict[str, pa.Array]:
    """The further fields of records as columns, null where a record lacks one.

    Integers among floats become floats. Values of several types, or that Arrow cannot hold, are counted in `left_out`.
    """
    distinct = {id(record): record for record in records}.values()  # one of several captions stands here several times
    names = dict.fromkeys(chain.from_iterable(distinct))
    validate_columns(len(names), "The rows together")
    if len(names) * len(records) > max(1 << 24, _MOST_EMPTY * sum(map(len, records))):
        raise ValueError(
            f"{len(records):,} rows have {len(names):,} fields together, nearly all of them empty in each row: as "
            "columns they would fill the memory. Give the rows the same fields, such as a list of names and values."
        )
    columns = {}
    for name in filter({*names}.difference(without).__contains__, names):
        values = [record.get(name) for record in records]
        try:
            nested = {dict, list} & set(map(type, values))
            if nested and len({key for value in values for key in _keys(value)}) > _MOST_KEYS:
                raise TypeError
            columns[name] = pa.array(values)
            if pa.types.is_null(columns[name].type):
                why = "no value in any row"
            elif _has_empty_struct(columns[name].type):
                why = "objects without fields"
            else:
                continue
        except OverflowError:
            why = "numbers of more than 64 bits"
        except (pa.ArrowException, TypeError, ValueError, RecursionError):
            why = "values of several types, or objects of many keys"
        columns.pop(name, None)
        if left_out is not None:
            rows = sum(name in record for record in records)
            left_out.add(f"field `{name}` ({why})", rows, next((value for value in values if value is not None), None))
    return columns


_MOST_EMPTY = 256
"""Cells of a table for each value in it, from which on objects with fields of their own are no rows of a table."""
_MOST_KEYS = 256
"""Keys of a field's objects that become columns of Arrow; with more, the objects are tables themselves."""


def _keys(value: Any) -> Iterator[str]:
    """The keys of the objects in a value, at any depth."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list) and {dict, list} & set(map(type, value)):
        for inner in value:
            yield from _keys(inner)


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Whether a type has objects without fields in it, which Parquet cannot hold."""
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_has_empty_struct(field.type) for field in kind)
    return pa.types.is_list(kind) and _has_empty_struct(kind.value_type)


def validate_names(names: Iterable[str | None], source: object) -> None:
    """A `ValueError` where images stand as base64 in place of their names."""
    first = next(filter(None, names), "")
    known = len(first) > 1000 or first.startswith(("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "SUkq", "TU0A"))
    if first.startswith("data:image/") or (known and re.fullmatch(r"[\w+/=\s-]{40,}", first)):
        raise ValueError(
            f"{source} holds images as base64, {first[:30]!r}..., and names of files or bytes are read. Decode them: "
            "load it with `datasets`, dataset.map(lambda row: {'image': base64.b64decode("
            "row['image'].rpartition(',')[2])}), and pass that."
        )
