"""What is in the shards of a crawl, read where they lie: WebDataset archives, Parquet files, img2dataset's folders."""

from __future__ import annotations

import difflib
import json
import logging
import math
import re
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Features, Image, Json, Value

from hf_curriculum.columns import CAPTION, IMAGE, require_columns
from hf_curriculum.config import brief, digest, parse_json
from hf_curriculum.data.chat_forms import json_content
from hf_curriculum.data.conversations import is_conversation
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.archives import archive_members
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.samples import IMAGES, RECORDS, TEXTS, Sample, group_samples
from hf_curriculum.data.readers.source_shards import Kind
from hf_curriculum.data.readers.tables import CAPTION_FIELDS, caption_fields, find_alias
from hf_curriculum.files import file_digest, reading, special_file

logger: logging.Logger = logging.getLogger(__name__)

KEY = "key"
"""Names a pair within its shard."""
_KEYS = (KEY, "uid", "__key__")
AGAIN = "Download it again (with img2dataset, delete its files first), or leave it out."
"""What to do about a damaged shard."""
_OURS = frozenset((KEY, IMAGE, CAPTION))
FAULT = object()
"""The key, in a row, of why it cannot be read; no column can be called so."""
FIRST = 10_000
"""Pairs that say which columns there are, and of which types."""


class DamagedShardError(ValueError):
    """A shard that cannot be read to its end."""


class ShardReader:
    """The pairs of one shard on this machine, front to back.

    A caption is a text, a list of one text, or a conversation; of a sample of several files `group_samples` says which
    belong to it. What is not so is counted in `left_out`, and is None in its row. Without a `.txt` the caption is the
    field of its `.json` that is called as captions are in tables.

    Args:
        path: the archive, the Parquet file, or the folder.
        kind: which of them.
        columns: our names to those in the shard, such as `{"caption": "text"}`: fields of an archive's JSON, or
            endings of its files, such as `{"image": "left.jpg"}`.
        texts: the columns that hold texts.
        paths: give the images of a folder as their paths.
        allow_outside: follow the links of a folder out of it.
        known: the columns that are kept; values of others are counted. None counts nothing.
        named: fields that stay columns of their own where a caption is taken of them.
        address: what errors call the shard, where it was fetched.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        columns: Mapping[str, str] | None = None,
        texts: Sequence[str] = (CAPTION,),
        *,
        paths: bool = False,
        allow_outside: bool = False,
        known: Collection[str] | None = None,
        named: Collection[str] = (),
        address: str | None = None,
    ) -> None:
        self.path = path
        self.address: str = address or str(path)
        self.kind = kind
        self.theirs = dict(columns or {})
        self.texts = texts
        self.paths: bool = paths and kind == "files"
        self.allow_outside = allow_outside
        self.known = known
        self.named = named
        self.left_out: LeftOut = LeftOut()
        self.first_left_out: LeftOut = LeftOut()
        """What is left out of the pairs that `first_features` reads."""
        self.taken: dict[str, None] = {}
        """The fields that captions are taken of, in place of a `caption`."""

    @cached_property
    def digest(self) -> str:
        """`file_digest` of the content; of a folder, of its files and their names."""
        if self.kind != "files":
            return file_digest(self.path)
        files = sorted(file for file in self.path.iterdir() if file.is_file())
        return digest(*(f"{file.name} {file_digest(file)}\n" for file in files), size=16)

    def batches(self, wanted: Sequence[str], size: int) -> Iterator[dict[str, list[Any]]]:
        """Column → values of at most `size` pairs at a time, `key` always; images as `{"bytes", "path"}`.

        A column that a pair lacks is None in it.
        """
        try:
            for batch in self._batches(list(dict.fromkeys([KEY, *wanted])), size):
                for name in self.texts:
                    if name in batch:
                        batch[name] = self._one_text(name, batch[name], batch[KEY])
                for name in dict.fromkeys([*self.texts, IMAGE]):
                    for key, value in zip(batch[KEY], batch.get(name, ()), strict=False):
                        if value is None or (isinstance(value, str) and not value.strip()):
                            self.left_out.add(f"pairs without `{name}`", 1, key)
                yield batch
        except (OSError, ValueError, TypeError, LookupError, AttributeError, pa.ArrowException) as error:
            plain = str(error) if isinstance(error, (OSError, ValueError)) else repr(error)
            raise DamagedShardError(f"{'' if self.address in plain else f'{self.address}: '}{plain}") from error

    def _one_text(self, name: str, values: Sequence[Any], keys: Sequence[str]) -> list[Any]:
        """Texts and conversations; anything else is counted, and None."""
        found = [value if value is None or isinstance(value, str) else as_texts(value) for value in values]
        for row, value in enumerate(found):
            if isinstance(value, list) and value and isinstance(value[0], str):
                found[row] = value[0] if len(value) == 1 else None
                several = "lists of several texts (`load_captioned` makes a row of each)"
                self.left_out.add(f"`{name}` that are {several}", len(value) > 1, keys[row])
            elif value is None and not is_missing(values[row]):
                self.left_out.add(f"`{name}` that are no text", 1, f"{keys[row]}: {values[row]!r}")
        return found

    def _batches(self, names: Sequence[str], size: int) -> Iterator[dict[str, list[Any]]]:
        if self.kind == "parquet":
            yield from self._parquet(names, size)
            return
        rows: list[dict[str, Any]] = []
        for row in self.samples(IMAGE in names):
            if FAULT in row:
                self.left_out.add("records that are no JSON objects", 1, row[FAULT])
            rows.append(row)
            if len(rows) == size:
                yield {name: [row.get(name) for row in rows] for name in names}
                rows = []
        if rows:
            yield {name: [row.get(name) for row in rows] for name in names}

    def _parquet(self, names: Sequence[str], size: int) -> Iterator[dict[str, list[Any]]]:
        start = 0
        for batch, places in self._record_batches(names, size):
            columns = {name: batch.column(place) for name, place in places.items()}
            if IMAGE in columns:
                columns[IMAGE] = self._embedded(columns[IMAGE])
            values = {name: self._cells(name, column) for name, column in columns.items()}
            values[KEY] = _keys(values.get(KEY, [None] * len(batch)), start)
            start += len(batch)
            yield {name: values.get(name, [None] * len(batch)) for name in names}

    def _cells(self, name: str, column: pa.Array) -> list[Any]:
        """A column's values; of `Json` what it says, as text where the column is of texts."""
        cells = column.to_pylist()
        if not isinstance(column.type, pa.JsonType):
            return cells
        values = [None if cell is None else json_content(cell) for cell in cells]
        if name in (CAPTION, *self.texts):
            return values
        return [cell if isinstance(value, (list, dict)) else value for cell, value in zip(cells, values, strict=True)]

    def _record_batches(self, names: Sequence[str], size: int) -> Iterator[tuple[pa.RecordBatch, dict[str, str]]]:
        """The rows of a Parquet file, and what the columns are called in it that it has."""
        with reading(self.address, AGAIN):
            file = pq.ParquetFile(self.path.absolute())
            found = file.schema_arrow.names
            places = {name: place for name in names if (place := self._place(name, found)) is not None}
            for name in found if self.known is not None else ():
                if name not in places.values():
                    self._count_unkept(name, file.metadata.num_rows, self.path.name)
            for batch in file.iter_batches(size, columns=list(dict.fromkeys(places.values()))):
                yield batch, places

    def _embedded(self, images: pa.Array) -> pa.Array:
        """Images as structs of their bytes and a path; names of files are not opened, and None."""
        images = images.cast(pa.string()) if images.type == pa.string_view() else images
        kind, paths = images.type, pa.nulls(len(images), pa.string())
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            content = pc.struct_field(images, "bytes")
            if kind.get_field_index("path") >= 0:
                paths = pc.struct_field(images, "path").cast(pa.string())
            named = pc.and_(pc.is_null(content), pc.is_valid(paths))
        else:
            texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
            content, named = images, pc.is_valid(images)
            if not texts:
                content, named = images.cast(pa.binary()), pa.repeat(False, len(images))
        count = pc.sum(named).as_py() or 0
        if count:
            first = images.filter(named)[0].as_py()
            if count == len(images) - images.null_count:
                raise ValueError(
                    f"{count} rows name images in place of holding their bytes, such as {brief(repr(first))}. Such "
                    "files are not opened: write the bytes into the shard, or load the data with `load_captioned`."
                )
            self.left_out.add("images that are names of files (not opened)", count, first)
        there = pc.and_(pc.is_valid(images), pc.invert(named))
        return pa.StructArray.from_arrays([content.cast(pa.binary()), paths], ["bytes", "path"], mask=pc.invert(there))

    def _place(self, name: str, found: Sequence[str]) -> str | None:
        """What a column is called in a Parquet file."""
        if name == CAPTION and name not in self.theirs:
            place = next(iter(find_alias(found, CAPTION_FIELDS)), None)
            self.taken |= {} if place in (None, CAPTION) else {place: None}
            return place
        other = {KEY: _KEYS, IMAGE: (IMAGE, *(end[1:] for end in IMAGES))}
        places = [self.theirs[name]] if name in self.theirs else other.get(name, (name,))
        return next((place for place in places if place in found), None)

    @contextmanager
    def _files(self) -> Iterator[tuple[list[str], Callable[[int], bytes]]]:
        """The names of the files of an archive or folder, and what reads one by its number."""
        if self.kind == "files":
            kinds = {file: special_file(file) for file in sorted(self.path.iterdir())}
            files = [file for file, kind in kinds.items() if kind is None]
            for file, kind in kinds.items():
                self.left_out.add("FIFOs, sockets and devices (not opened)", kind not in (None, "folder"), file.name)
            if not self.allow_outside:
                validate_inside([str(file.absolute()) for file in files], [self.path], self.path)
            yield [file.name for file in files], lambda number: files[number].read_bytes()
            return
        try:
            members = list(archive_members(self.path, self.left_out))
        except (tarfile.ReadError, EOFError) as error:
            raise ValueError(f"{self.address} cannot be read to its end ({error}). {AGAIN}") from error
        self.left_out.add("archives that hold no file", not members, self.path.name)
        with self.path.open("rb") as archive:

            def read(number: int) -> bytes:
                archive.seek(members[number][1])
                return archive.read(members[number][2])

            yield [name for name, _, _ in members], read

    def samples(self, images: bool = True) -> Iterator[dict[str, Any]]:
        """The samples of an archive or folder as rows, with all that their records say."""
        with self._files() as (names, read):
            for sample in group_samples(names, self.left_out):
                row = self._row(sample, names, read, images)
                for name in row if self.known is not None else ():
                    if row[name] is not None and name is not FAULT:
                        self._count_unkept(name, 1, sample.key)
                yield row

    def _count_unkept(self, name: str, count: int, example: str) -> None:
        if name not in self.known:
            self.left_out.add(f"fields `{name}` (not kept: none of the first pairs has one)", count, example)

    def _row(self, sample: Sample, names: Sequence[str], read: Callable[[int], bytes], images: bool) -> dict[str, Any]:
        """The columns of a sample: its image, its text, and what its JSON says."""
        key, files = storable(sample.key), sample.files
        chosen = {ours: f".{theirs}" for ours, theirs in self.theirs.items() if f".{theirs}" in files}
        record, image = next((ending for ending in RECORDS if ending in files), None), chosen.pop(IMAGE, None)
        row = {} if record is None else self._record(key, read(files[record]))
        told = (
            {}
            if _OURS.isdisjoint(row)
            else {name: row[name] for name in (KEY, IMAGE, CAPTION) if row.get(name) is not None}
        )
        for ours, theirs in self.theirs.items():
            row[ours] = row.get(theirs)
        if IMAGE not in self.theirs:
            image = self._only(sample, IMAGES)
        if CAPTION not in self.theirs:
            text = self._only(sample, TEXTS)
            fields = [] if text in TEXTS or FAULT in row else caption_fields(tuple(row))
            if text and not fields:
                chosen[CAPTION] = text
            elif fields and [*fields] != [CAPTION]:
                row[CAPTION] = self._take(row, fields)
        row[IMAGE] = {"bytes": None, "path": None} if image else None
        if image and images:
            path = str(self.path.absolute() / names[files[image]])
            path = path if self.paths and storable(path) == path else None
            row[IMAGE] = {"bytes": None if path else read(files[image]), "path": path}
        for ours, ending in chosen.items():
            row[ours] = self._text(key, read(files[ending]))
        row[KEY] = key
        for name, value in told.items():
            self.count_covered(name, value, row[name], key)
        unread = [ending for ending in files if ending not in (image, record, *chosen.values())]
        if len(unread) == len(files):
            self.left_out.add("samples none of whose files is read", 1, f"{key}: {', '.join(files)}")
            return row
        for ending in unread:
            if not (ending in TEXTS and CAPTION in self.theirs) and not (ending in IMAGES and IMAGE in self.theirs):
                self.left_out.add(f"files `{ending}` of samples (not read)", 1, key)
        return row

    def _take(self, row: dict[str, Any], fields: Sequence[str]) -> Any:
        """The caption of a record that has it under other names: of several fields, a list."""
        self.taken |= dict.fromkeys(fields)
        values = [row[field] if field in self.named else row.pop(field) for field in fields]
        return values[0] if len(fields) == 1 else [value for value in values if value]

    def count_covered(self, name: str, theirs: Any, ours: Any, key: str) -> None:
        """Counts a field of a record in whose place a column of ours says something else."""
        if theirs is not None and name not in self.theirs and str(theirs).strip() != str(ours).strip():
            reason = f"fields `{name}` of records (our column has the name)"
            if name == CAPTION:
                reason = "captions of JSON beside another .txt (columns={'caption': 'caption'} takes them)"
            self.left_out.add(reason, 1, f"{key}: {theirs!r}")

    def _only(self, sample: Sample, kind: Sequence[str]) -> str | None:
        """The ending of a sample's file of one kind; None where there is none, or it is not known which."""
        endings = sample.candidates(kind)
        if len(endings) > 1:
            name = IMAGE if kind is IMAGES else CAPTION
            reason = f"samples of which it is not known which file is the {name} (columns={{'{name}': ...}} names it)"
            self.left_out.add(reason, 1, f"{sample.key}: {', '.join(endings)}")
            return None
        return endings[0] if endings else None

    def _text(self, key: str, content: bytes) -> str:
        text = content.decode("utf-8-sig", "replace")
        if "\ufffd" in text:
            self.left_out.add("texts that are not UTF-8 (what cannot be read is replaced)", 1, key)
        return text.strip()  # as of a text beside an image in a folder

    def _record(self, key: str, content: bytes) -> dict[str, Any]:
        """The record of a sample, from JSON; a damaged one is a fault of its row."""
        try:
            record = parse_json(content)
            if not isinstance(record, dict):
                raise ValueError(f"it is no object: {record!r:.80}")
        except ValueError as error:
            return {FAULT: f"the record of sample {key!r} is damaged ({error})"}
        if b"\\ud" in content.lower():
            text = json.dumps(record, ensure_ascii=False)
            if (whole := storable(text, "replace")) != text:
                self.left_out.add("texts with half of a character (replaced by \ufffd)", 1, key)
                record = parse_json(whole)
        return record

    def features(self, keep: Sequence[str] | None = None) -> Features:
        """The columns of its pairs and their types, under our names; of an archive as `first_features` has them."""
        found, _ = self.first_features()
        wanted = [name for name in (found if keep is None else keep) if name != KEY]
        require_columns(found, wanted, reader=f"They are read of {self.path.name}.", remedy="Name what is there.")
        return Features({KEY: Value("string"), **{name: found[name] for name in wanted}})

    def first_features(self, most: int = FIRST) -> tuple[Features, int]:
        """The columns of at most so many pairs and their types, and how many pairs these are: all in Parquet files.

        Values of several types in one column of JSON are texts.
        """
        if self.kind != "parquet":
            options = {"allow_outside": self.allow_outside, "named": self.named, "address": self.address}
            reader = ShardReader(self.path, self.kind, self.theirs, **options)
            rows = list(islice(reader.samples(images=False), most))
            self.first_left_out, self.taken = reader.left_out, reader.taken
            names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
            names.pop(FAULT, None)
            values = {name: _array([row.get(name) for row in rows]) for name in names if name != IMAGE}
            found = dict(Features.from_arrow_schema(pa.table(values).schema))
            return Features(found | ({IMAGE: Image()} if IMAGE in names else {})), len(rows)
        with reading(self.address, AGAIN):
            file = pq.ParquetFile(self.path.absolute())
            schema, count = file.schema_arrow, file.metadata.num_rows
        theirs = Features.from_arrow_schema(schema)
        places = {name: self._place(name, schema.names) for name in (KEY, IMAGE, CAPTION, *self.theirs)}
        found = {name: theirs[place] for name, place in places.items() if place}
        found |= {name: theirs[name] for name in schema.names if name in self.named or name not in places.values()}
        views = {"string_view": "string", "binary_view": "binary"}  # which pyarrow cannot take rows of
        for name, kind in found.items():
            if isinstance(kind, Value) and kind.dtype in views:
                found[name] = Value(views[kind.dtype])
            elif isinstance(kind, Json):
                found[name] = Value("string")
        return Features(found | ({IMAGE: Image()} if IMAGE in found else {})), count

    def tables(self, features: Features, size: int = 256) -> Iterator[pa.Table]:
        """The pairs front to back, at most `size` at a time, as tables of these columns.

        Raises:
            DamagedShardError: it cannot be read, or a column holds values of another type.
        """
        schema = features.arrow_schema
        start = 0
        try:
            if self.kind != "parquet":
                for batch in self._batches(list(features), size):
                    for field in schema:
                        if field.name in self.texts and pa.types.is_string(field.type):
                            batch[field.name] = self._one_text(field.name, batch[field.name], batch[KEY])
                    columns = {field.name: self._column(field, batch[field.name]) for field in schema}
                    yield pa.table(columns, schema)
                return
            for batch, places in self._record_batches(list(features), size * 16):
                columns = {name: batch.column(place) for name, place in places.items()}
                keys = columns[KEY].to_pylist() if KEY in columns else [None] * len(batch)
                columns[KEY] = pa.array(_keys(keys, start), pa.string())
                if IMAGE in columns:
                    columns[IMAGE] = self._embedded(columns[IMAGE])
                start += len(batch)
                yield pa.table([columns[name].cast(schema.field(name).type) for name in features], schema=schema)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise DamagedShardError(f"{self.address} behind row {start:,}: {error}") from error

    def _column(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        """Values of JSON as a column of a known type; those of another type are counted, and null."""
        try:
            cuts = pa.types.is_integer(field.type) and any(isinstance(value, float) for value in values)
            if cuts or pa.types.is_nested(field.type):
                raise TypeError(f"pyarrow makes {field.type} of anything, without fractions and unknown fields")
            return _array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            counted = LeftOut()
            found = [self.fitted(field.name, value, field.type, counted) for value in values]
            if found.count(None) == len(found) > values.count(None) + 1:
                raise error
            for reason, count, example in counted.items():
                self.left_out.add(reason, count, example)
            return pa.array(found, field.type)

    def fitted(self, name: str, value: Any, kind: pa.DataType, left_out: LeftOut | None = None) -> Any:
        """A value of JSON as one of a column's type; what is lost by that is counted."""
        try:
            fit = pa.array([value], kind)[0].as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            fit = json_text(value) if pa.types.is_string(kind) else None
        if not _holds(fit, value):
            fit = fit if pa.types.is_nested(kind) else None
            reason = f"that are no {kind}" if fit is None else "with fields or values that are not kept"
            (left_out or self.left_out).add(f"values of `{name}` {reason}", 1, repr(value))
        return fit


def _keys(keys: Sequence[Any], start: int) -> list[str]:
    """The keys of rows as texts, their number where they have none."""
    return [str(start + row if key is None else key) for row, key in enumerate(keys)]


def _holds(fit: Any, value: Any) -> bool:
    """Whether all that a value of JSON has is in one of a column's type."""
    if isinstance(fit, dict) and isinstance(value, dict):
        return all(_holds(fit.get(name), inner) for name, inner in value.items())
    if isinstance(fit, list) and isinstance(value, list):
        return len(fit) == len(value) and all(map(_holds, fit, value))
    if isinstance(value, float) and isinstance(fit, int):
        return fit == value  # pyarrow cuts fractions
    return fit is not None or value is None


def widest(one: Any, other: Any) -> Any:
    """The type that holds values of two: texts where none does."""
    if one == other:
        return one
    schemas = [Features({"values": kind}).arrow_schema.remove_metadata() for kind in (one, other)]
    try:
        return Features.from_arrow_schema(pa.unify_schemas(schemas, promote_options="permissive"))["values"]
    except pa.ArrowException:
        return Value("string")


def _array(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Values of JSON as a column; texts where they are to be, and where they have several types."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if kind not in (None, pa.string()):
            raise
        return pa.array([None if value is None else json_text(value) for value in values], pa.string())


def json_text(value: Any) -> str:
    """A value of JSON as a text: one that is none, as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def how_to_name(name: str, found: Mapping[str, Any], left_out: LeftOut, besides: Collection[str] = ()) -> str:
    """What of the fields and files of samples `columns` may name as a column that is missing."""
    fields = [field for field in found if field not in (KEY, IMAGE, name, *besides)]
    endings = re.findall(r"files `\.(\S+)` of samples", " ".join(left_out.counts))
    texts = [field for field in fields if found[field] == Value("string") and field not in ("url", *_KEYS)]
    choices = [*texts, *endings, *fields]
    if not choices:
        return f"There is no other field or file. {left_out.describe()}".strip()
    choice = (difflib.get_close_matches(name, choices) or choices)[0]
    return (
        f"There are the fields {fields} and the files {endings}. Name one of them: columns={{{name!r}: {choice!r}}} "
        f"(hf-curriculum score: --column {name}={choice})."
    )


def as_texts(value: Any) -> Any:
    """A list of texts, or a conversation; None for anything else, and for an empty list."""
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return list(value) or None
    return value if is_conversation(value) else None


def is_missing(value: Any) -> bool:
    """Whether a value of JSON stands for none."""
    return value is None or value == [] or (isinstance(value, float) and math.isnan(value))


def storable(text: str, errors: str = "backslashreplace") -> str:
    """A text that UTF-8 can hold: bytes of names that are none, and halves of characters, are replaced."""
    if text.isascii():
        return text
    if errors == "replace":
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.encode("utf-8", "surrogateescape").decode("utf-8", errors)
