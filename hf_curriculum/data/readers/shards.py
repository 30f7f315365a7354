"""Shards of a crawl, read where they lie: WebDataset archives, Parquet files and folders of img2dataset."""

from __future__ import annotations

import logging
import posixpath
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Features, Image, Value

from hf_curriculum.columns import CAPTION, IMAGE, require_columns
from hf_curriculum.config import digest, file_digest, parse_json, reading
from hf_curriculum.data.readers.archives import archive_members
from hf_curriculum.data.readers.img2dataset import STATS
from hf_curriculum.data.readers.outside_files import validate_folder, validate_inside
from hf_curriculum.remote import RemoteFolder
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

Kind = Literal["tar", "parquet", "files"]
KEY = "key"
"""Names a pair within its shard."""
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_KEYS = (KEY, "uid", "__key__")
_REMEDY = "Download it again, or leave it out."
_BRACES = re.compile(r"\{([^{}]*)\}")
_FIRST = 100  # pairs of an archive whose JSON says which columns there are


@dataclass(frozen=True)
class SourceShard:
    """One file of a crawl, or one folder of img2dataset's format "files".

    Args:
        name: its path from the folder that all shards share.
        address: its path, or address of `fsspec`.
        kind: how it is read.
        bytes: its size, 0 for a folder.
        stamp: changes when it is written again.
        storage_options: of its file system.
    """

    name: str
    address: str
    kind: Kind
    bytes: int
    stamp: str
    storage_options: tuple[tuple[str, Any], ...] = ()

    @property
    def stem(self) -> str:
        """Its name without the ending: what its own files are called by."""
        return self.name if self.kind == "files" else posixpath.splitext(self.name)[0]

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return _is_local(fsspec.url_to_fs(self.address, **dict(self.storage_options))[0])

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Its path on this machine; one behind an address is fetched into a temporary file."""
        fs, path = fsspec.url_to_fs(self.address, **dict(self.storage_options))
        if _is_local(fs):
            yield Path(path)
            return
        with tempfile.TemporaryDirectory(prefix="hf_curriculum-shard-") as folder:
            parent, _, name = self.address.rpartition("/")
            RemoteFolder(parent, dict(self.storage_options)).download(name, self.bytes, None, Path(folder, name))
            yield Path(folder, name)


def _is_local(fs: fsspec.AbstractFileSystem) -> bool:
    return "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))


def expand_braces(pattern: str) -> list[str]:
    """`{00000..01242}` and `{train,val}` in a pattern, as shells write them, in order."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    ends = found[1].split("..")
    if len(ends) == 2 and all(end.isdigit() for end in ends):
        width = len(ends[0]) if len(ends[0]) == len(ends[1]) or ends[0].startswith("0") else 0
        choices = [f"{number:0{width}d}" for number in range(int(ends[0]), int(ends[1]) + 1)]
    else:
        choices = found[1].split(",")
    rests = expand_braces(pattern[found.end() :])
    return [f"{pattern[: found.start()]}{choice}{rest}" for choice in choices for rest in rests]


@validate_arguments
def find_shards(
    source: str | Path | Sequence[str | Path], storage_options: Mapping[str, Any] | None = None
) -> list[SourceShard]:
    """The shards that a source names, in order; nothing in them is read.

    Args:
        source: an archive (.tar), a Parquet file, a folder of either or of img2dataset, a pattern (`*`, `{0..9}`), or
            a list of such; each a path, or an address that `fsspec` opens.
        storage_options: for `fsspec`.

    Raises:
        FileNotFoundError: a shard or folder does not exist, or a pattern or folder has no shard.
        ValueError: a file is neither an archive nor a Parquet file, or two shards would share their name.
    """
    options = dict(storage_options or {})
    given = [source] if isinstance(source, (str, Path)) else list(source)
    found: dict[str, tuple[Kind, int, str]] = {}
    listed: dict[str, dict[str, dict[str, Any]]] = {}
    for pattern in (each for one in given for each in expand_braces(str(one))):
        fs, path = fsspec.url_to_fs(pattern, **options)
        for kind, info in _named_by(fs, path, listed):
            found[fs.unstrip_protocol(info["name"])] = (kind, int(info.get("size") or 0), _stamp(info))
    if not found:
        raise FileNotFoundError(f"{source} names no shard: no .tar, no .parquet and no folder of img2dataset.")
    root = posixpath.commonpath([posixpath.dirname(address) for address in found])
    tail = tuple(options.items())
    shards = [
        SourceShard(posixpath.relpath(address, root), address, kind, size, stamp, tail)
        for address, (kind, size, stamp) in found.items()
    ]
    stems = Counter(shard.stem for shard in shards)
    if twice := [stem for stem, count in stems.items() if count > 1]:
        raise ValueError(f"Two shards are called {twice[0]!r} but for their ending. Name the files of one format.")
    return shards


def _named_by(
    fs: fsspec.AbstractFileSystem, path: str, listed: dict[str, dict[str, dict[str, Any]]]
) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """The shards that one pattern, folder or file names; each parent folder is listed once."""
    if any(mark in path for mark in "*?["):
        matches = fs.glob(path, detail=True)
        if not matches:
            raise FileNotFoundError(f"Nothing matches {path}. Look at the pattern.")
        for name in sorted(matches):
            yield _kind(name), matches[name]
        return
    if path.endswith((".tar", ".parquet")):
        parent = fs._parent(path)
        if parent not in listed:
            entries = fs.ls(parent, detail=True) if fs.exists(parent) else []
            listed[parent] = {entry["name"]: entry for entry in entries}
        if path not in listed[parent]:
            raise FileNotFoundError(f"{path} does not exist. It was named as a shard.")
        yield _kind(path), listed[parent][path]
        return
    if not fs.isdir(path):
        raise FileNotFoundError(f"{path} is neither a folder, an archive (.tar) nor a Parquet file.")
    if _is_local(fs):
        validate_folder(path)
    inside = {
        name: info for name, info in fs.find(path, detail=True, withdirs=True).items() if not _hidden(name, path)
    }
    finished = [name.removesuffix(STATS) for name in inside if name.endswith(STATS)]
    if finished:
        for stem in sorted(finished):
            shard = next((stem + ending for ending in (".tar", "", ".parquet") if stem + ending in inside), None)
            if shard is None:
                raise FileNotFoundError(f"{stem}{STATS} says that a shard is finished, and its images are not there.")
            yield _kind(shard, folder=shard == stem), inside[shard]
        return
    tars = [name for name in inside if name.endswith(".tar")]
    for name in sorted(tars or [name for name in inside if name.endswith(".parquet")]):
        yield _kind(name), inside[name]


def _hidden(name: str, root: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(posixpath.relpath(name, root)).parts)


def _kind(path: str, folder: bool = False) -> Kind:
    if folder:
        return "files"
    ending = posixpath.splitext(path)[1]
    if ending not in (".tar", ".parquet"):
        raise ValueError(
            f"{path} is neither an archive (.tar, not compressed) nor a Parquet file, which are the shards that are "
            "read in place. Load other data with `load_captioned`."
        )
    return "tar" if ending == ".tar" else "parquet"


def _stamp(info: Mapping[str, Any]) -> str:
    """What a file system says of a file's version."""
    marks = (info.get(name) for name in ("ETag", "etag", "mtime", "LastModified", "last_modified", "mtimeMs"))
    return f"{info.get('size')} {next((mark for mark in marks if mark), '')}"


class DamagedShardError(ValueError):
    """A shard that cannot be read to its end."""


class ShardReader:
    """The pairs of one shard on this machine, front to back.

    Args:
        path: the archive, the Parquet file, or the folder.
        kind: which of them.
        columns: our names to those in the shard, such as `{"caption": "text"}`.
    """

    def __init__(self, path: Path, kind: Kind, columns: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.kind = kind
        self.theirs = dict(columns or {})

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
            yield from self._batches(list(dict.fromkeys([KEY, *wanted])), size)
        except ValueError as error:
            raise DamagedShardError(str(error)) from error

    def _batches(self, names: Sequence[str], size: int) -> Iterator[dict[str, list[Any]]]:
        if self.kind == "parquet":
            yield from self._parquet(names, size)
            return
        rows: list[dict[str, Any]] = []
        read = self._tar if self.kind == "tar" else self._files
        for row in read(IMAGE in names):
            rows.append(row)
            if len(rows) == size:
                yield {name: [row.get(name) for row in rows] for name in names}
                rows = []
        if rows:
            yield {name: [row.get(name) for row in rows] for name in names}

    def _parquet(self, names: Sequence[str], size: int) -> Iterator[dict[str, list[Any]]]:
        with reading(self.path, _REMEDY):
            file = pq.ParquetFile(self.path)
        found = file.schema_arrow.names
        columns = {name: place for name in names if (place := self._place(name, found)) is not None}
        start = 0
        with reading(self.path, _REMEDY):
            for batch in file.iter_batches(size, columns=list(dict.fromkeys(columns.values()))):
                values = {name: batch.column(place).to_pylist() for name, place in columns.items()}
                keys = values.get(KEY) or range(start, start + len(batch))
                values[KEY] = [str(key) for key in keys]
                if IMAGE in values:
                    values[IMAGE] = [
                        {"bytes": cell, "path": None} if isinstance(cell, bytes) else cell for cell in values[IMAGE]
                    ]
                    _validate_embedded(values[IMAGE])
                start += len(batch)
                yield {name: values.get(name, [None] * len(batch)) for name in names}

    def _place(self, name: str, found: Sequence[str]) -> str | None:
        """What a column is called in a Parquet file."""
        other = {KEY: _KEYS, CAPTION: (CAPTION, "txt", "text"), IMAGE: (IMAGE, *(end[1:] for end in _IMAGES))}
        places = [self.theirs[name]] if name in self.theirs else other.get(name, (name,))
        return next((place for place in places if place in found), None)

    def _tar(self, images: bool) -> Iterator[dict[str, Any]]:
        """The samples of an archive: neighbouring files whose names differ behind their first dot alone."""
        key, sample, done = None, {}, 0
        try:
            with self.path.open("rb") as archive:
                for member, offset, size in archive_members(self.path):
                    folder, slash, name = member.rpartition("/")
                    stem, _, ending = name.partition(".")
                    stem, ending = folder + slash + stem, f".{ending.lower()}"
                    if key is not None and stem != key:
                        yield self._sample(key, sample)
                        sample, done = {}, done + 1
                    key = stem
                    if ending in (".txt", ".json") or (ending in _IMAGES and images):
                        archive.seek(offset)
                        sample[ending] = archive.read(size)
        except (tarfile.ReadError, EOFError) as error:
            raise ValueError(f"{self.path} cannot be read behind sample {done:,} ({error}). {_REMEDY}") from error
        if key is not None:
            yield self._sample(key, sample)

    def _files(self, images: bool) -> Iterator[dict[str, Any]]:
        stems: dict[str, dict[str, Path]] = {}
        validate_inside([str(file.absolute()) for file in self.path.iterdir()], [self.path], self.path)
        for file in sorted(self.path.iterdir()):
            stems.setdefault(file.stem, {})[file.suffix.lower()] = file
        for stem, files in stems.items():
            endings = [end for end in files if end in (".txt", ".json") or (end in _IMAGES and images)]
            yield self._sample(stem, {ending: files[ending].read_bytes() for ending in endings})

    def _sample(self, key: str, sample: Mapping[str, bytes]) -> dict[str, Any]:
        """The columns of a sample: its image, its text, and what its JSON says."""
        row: dict[str, Any] = {}
        if ".json" in sample:
            with reading(f"{self.path}: the record of sample {key!r}", _REMEDY):
                row.update(parse_json(sample[".json"]))
        image = next((sample[ending] for ending in _IMAGES if ending in sample), None)
        row[IMAGE] = None if image is None else {"bytes": image, "path": None}
        if ".txt" in sample:
            row[CAPTION] = sample[".txt"].decode("utf-8", "replace")
        for ours, theirs in self.theirs.items():
            row[ours] = row.get(theirs)
        row[KEY] = key
        return row

    def features(self, keep: Sequence[str] | None = None) -> Features:
        """The columns of its pairs and their types, under our names: of an archive by its first pairs.

        Values of several types in one column of JSON are texts.
        """
        if self.kind == "parquet":
            with reading(self.path, _REMEDY):
                schema = pq.read_schema(self.path)
            theirs = Features.from_arrow_schema(schema)
            places = {name: self._place(name, schema.names) for name in (KEY, IMAGE, CAPTION, *self.theirs)}
            found = {name: theirs[place] for name, place in places.items() if place}
            found |= {name: theirs[name] for name in schema.names if name not in places.values()}
        else:
            read = self._tar if self.kind == "tar" else self._files
            rows = list(islice(read(True), _FIRST))
            names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
            values = {name: _array([row.get(name) for row in rows]) for name in names if name != IMAGE}
            found = dict(Features.from_arrow_schema(pa.table(values).schema))
            found |= {IMAGE: Image()} if IMAGE in names else {}
        if IMAGE in found:
            found[IMAGE] = Image()
        wanted = [name for name in (found if keep is None else keep) if name != KEY]
        require_columns(found, wanted, reader=f"They are read of {self.path.name}.", remedy="Name what is there.")
        return Features({KEY: Value("string"), **{name: found[name] for name in wanted}})

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
                    yield pa.table({field.name: _array(batch[field.name], field.type) for field in schema}, schema)
                return
            with reading(self.path, _REMEDY):
                file = pq.ParquetFile(self.path)
            places = {name: self._place(name, file.schema_arrow.names) for name in features}
            with reading(self.path, _REMEDY):
                for batch in file.iter_batches(size * 16, columns=list(filter(None, places.values()))):
                    columns = {name: batch.column(place) for name, place in places.items() if place}
                    columns.setdefault(KEY, pa.array(map(str, range(start, start + len(batch)))))
                    if IMAGE in columns and not pa.types.is_struct(columns[IMAGE].type):
                        paths = pa.nulls(len(batch), pa.string())
                        content = columns[IMAGE].cast(pa.binary())
                        columns[IMAGE] = pa.StructArray.from_arrays([content, paths], ["bytes", "path"])
                    if IMAGE in columns and pc.struct_field(columns[IMAGE], "bytes").null_count:
                        _validate_embedded(columns[IMAGE].to_pylist())
                    start += len(batch)
                    yield pa.table([columns[name].cast(schema.field(name).type) for name in features], schema=schema)
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise DamagedShardError(f"{self.path} behind row {start:,}: {error}") from error


def _array(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Values of JSON as a column; texts where they are to be, and where they have several types."""
    try:
        return pa.array(values, kind)
    except pa.ArrowException:
        if kind not in (None, pa.string()):
            raise
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _validate_embedded(images: Sequence[Any]) -> None:
    """Raises a `ValueError` where rows name images in place of holding them."""
    named = [cell for cell in images if not (cell is None or (isinstance(cell, dict) and "bytes" in cell))]
    named += [cell for cell in images if isinstance(cell, dict) and cell.get("bytes") is None and cell.get("path")]
    if named:
        raise ValueError(
            f"{len(named)} rows name images in place of holding their bytes, such as {named[0]!r:.80}. Such files are "
            "not opened: write the bytes into the shard, or load the data with `load_captioned`."
        )
