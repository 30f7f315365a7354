"""Which shards a source names, on a disk or behind an address; nothing in them is read."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem

from hf_curriculum.config import redact, redacted
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.archives import COMPRESSED, UNPACK
from hf_curriculum.data.readers.outside_files import validate_folder
from hf_curriculum.remote import RemoteFolder, failure, scratch_folder, with_retries
from hf_curriculum.shapes import validate_arguments

Kind = Literal["tar", "parquet", "files"]
STATS = "_stats.json"
"""Ends the name of the record that `img2dataset` writes when a shard is finished."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_TIMES = ("created", "mtime")
_MISSING = "missing"


@dataclass(frozen=True)
class SourceShard:
    """One file of a crawl, or one folder of img2dataset's format "files".

    Args:
        name: its path from the folder that all shards share.
        address: its path, or address of `fsspec`.
        kind: how it is read.
        bytes: its size, of a folder that of its files; None where a server does not tell.
        stamp: changes when it is written again; "" for one that was named and does not exist.
        storage_options: of its file system.
    """

    name: str
    address: str
    kind: Kind
    bytes: int | None
    stamp: str
    storage_options: tuple[tuple[str, Any], ...] = ()

    @property
    def stem(self) -> str:
        """Its name without the ending: what its own files are called by."""
        return self.name if self.kind == "files" else posixpath.splitext(self.name)[0]

    @property
    def shown(self) -> str:
        """Its address as messages have it: without what signs it."""
        return redact(self.address.removeprefix("file://"))

    @property
    def missing(self) -> FileNotFoundError:
        """What says that it does not exist."""
        return FileNotFoundError(f"{self.shown} does not exist. It was named as a shard.")

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return _is_local(_file_system(self.address, dict(self.storage_options))[0])

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Its path on this machine; one behind an address is fetched into a temporary file."""
        if not self.stamp:
            raise self.missing
        fs, path = _file_system(self.address, dict(self.storage_options))
        if _is_local(fs):
            os.stat(path)
            yield Path(path)
            return
        with scratch_folder() as folder:
            parent, _, name = self.address.rpartition("/")
            RemoteFolder(parent, dict(self.storage_options)).download(name, self.bytes, None, folder / name)
            yield folder / name


def _is_local(fs: fsspec.AbstractFileSystem) -> bool:
    return "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))


def _is_web(fs: fsspec.AbstractFileSystem) -> bool:
    return "http" in fs.protocol


def expand_braces(pattern: str) -> list[str]:
    """`{00000..01242}` and `{train,val}` in a pattern, as shells write them, in order."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    ends = braces[1].split("..")
    if len(ends) == 2 and all(end.isdigit() for end in ends):
        choices = [str(number).zfill(len(ends[0])) for number in range(int(ends[0]), int(ends[1]) + 1)]
    else:
        choices = braces[1].split(",")
    rests = expand_braces(pattern[braces.end() :])
    return [f"{pattern[: braces.start()]}{choice}{rest}" for choice in choices for rest in rests]


@redacted()
@validate_arguments
def find_shards(
    source: str | Path | Sequence[str | Path],
    storage_options: Mapping[str, Any] | None = None,
    left_out: LeftOut | None = None,
    allow_missing: bool = False,
) -> list[SourceShard]:
    """The shards that a source names, in order; nothing in them is read.

    A name that exists is never a pattern, nor is a folder in front of one: `set[1]/*.tar` looks into `set[1]`.

    Args:
        source: an archive (.tar), a Parquet file, a folder of either or of img2dataset, a pattern (`*`, `{0..9}`), or
            a list of such; each a path, or an address that `fsspec` opens.
        storage_options: for `fsspec`.
        left_out: counts the files of a folder that are no shards; by default logged.
        allow_missing: shards that are named and do not exist are there without a `stamp`.

    Raises:
        FileNotFoundError: a shard or folder does not exist, or a pattern or folder has no shard.
        ValueError: a file is neither an archive nor a Parquet file, an archive is compressed, or two shards would
            share their name.
    """
    options, counted = dict(storage_options or {}), LeftOut() if left_out is None else left_out
    paths = [source] if isinstance(source, (str, Path)) else list(source)
    by_address: dict[str, tuple[Kind, int | None, str]] = {}
    listed: dict[str, dict[str, dict[str, Any]]] = {}
    for one in map(str, paths):
        fs, path = _file_system(one, options)
        if _is_web(fs) and "?" in one:
            raise ValueError(
                f"{one} has a query, which would be the name of a shard and of its scores. Give what the server asks "
                "for in `storage_options=`, such as headers, or download the shards first."
            )
        fs.invalidate_cache()  # what was listed before may have changed since
        work = partial(_named, fs, path, listed)
        named, others = work() if _is_local(fs) else with_retries(redact(one), work, (ValueError,))
        for reason, count, example in others.items():
            counted.add(reason, count, example)
        for kind, info in named:
            stamp = "" if info.get("type") == _MISSING else _stamp(info)
            by_address[fs.unstrip_protocol(info["name"])] = (kind, info.get("size"), stamp)
    if not by_address:
        raise FileNotFoundError(
            f"{source} names no shard: no .tar, no .parquet and no folder of img2dataset. {counted.describe()}".strip()
        )
    if left_out is None:
        counted.report(f"{source}", [])
    root = posixpath.commonpath([posixpath.dirname(address) for address in by_address])
    tail = tuple(options.items())
    shards = [
        SourceShard(posixpath.relpath(address, root), address, kind, size, stamp, tail)
        for address, (kind, size, stamp) in by_address.items()
    ]
    missing = [shard for shard in shards if not shard.stamp]
    if missing and not (allow_missing and len(missing) < len(shards)):
        raise missing[0].missing
    stems = Counter(shard.stem for shard in shards)
    if twice := [stem for stem, count in stems.items() if count > 1]:
        raise ValueError(f"Two shards are called {twice[0]!r} but for their ending. Name the files of one format.")
    return shards


def _file_system(address: str, options: Mapping[str, Any]) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of an address, and the path there; what exists on this machine is no chain of `::`."""
    local = address.removeprefix("file://")
    parts = [Path(local), *Path(local).parents] if local == address else []
    if local != address or os.path.exists(local) or any(":" in part.name and part.exists() for part in parts):
        return LocalFileSystem(), LocalFileSystem._strip_protocol(os.path.abspath(local))
    return fsspec.url_to_fs(address, **dict(options))


def _existing(fs: fsspec.AbstractFileSystem, path: str) -> str:
    """The longest beginning of a path, up to a slash or its end, that exists although it looks like a pattern."""
    ends = [number for number, sign in enumerate(path) if sign == "/"] + [len(path)]
    odd = [end for end in ends if any(mark in posixpath.basename(path[:end]) for mark in "*?[{")]
    return next((path[:end] for end in reversed(odd) if fs.exists(path[:end])), "")


def _named(
    fs: fsspec.AbstractFileSystem, path: str, listed: dict[str, dict[str, dict[str, Any]]]
) -> tuple[list[tuple[Kind, dict[str, Any]]], LeftOut]:
    """The shards that a path names, and what else is there."""
    others, existing = LeftOut(), _existing(fs, path)
    rests = expand_braces(path[len(existing) :])
    named = [each for rest in rests for each in _named_by(fs, existing, rest, listed, others)]
    untold = [info.get("size") is None and info["type"] == "file" for _, info in named]  # by listings of web servers
    return [
        (kind, _info(fs, info["name"]) if ask else info) for ask, (kind, info) in zip(untold, named, strict=True)
    ], others


def _info(fs: fsspec.AbstractFileSystem, path: str) -> dict[str, Any]:
    """What a file system says of a file, asked for it alone."""
    try:
        return fs.info(path)
    except FileNotFoundError as error:
        if failure(error) is not error:
            raise
        return {"name": path, "type": _MISSING}


def _file(fs: fsspec.AbstractFileSystem, path: str, listed: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """What a file system says of a file that was named, by the listing of its folder where there is one."""
    parent = fs._parent(path)
    if parent not in listed:
        listed[parent] = {}
        with suppress(FileNotFoundError, PermissionError):  # who may not list a folder may read what is in it
            entries = [] if _is_web(fs) else fs.ls(parent, detail=True)
            listed[parent] = {entry["name"]: entry for entry in entries}
    if path not in listed[parent]:
        listed[parent][path] = _info(fs, path)
    return listed[parent][path]


def _named_by(
    fs: fsspec.AbstractFileSystem,
    existing: str,
    rest: str,
    listed: dict[str, dict[str, dict[str, Any]]],
    left_out: LeftOut,
) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """The shards that a path names: `existing` exists, the rest may be a pattern. Parents are listed once."""
    path = existing + rest
    if any(mark in rest for mark in "*?["):
        matches = fs.glob(glob.escape(existing) + rest, detail=True)
        if not matches:
            raise FileNotFoundError(f"Nothing matches {path}. Look at the pattern.")
        for name in sorted(matches):
            yield _kind(name), matches[name]
        return
    if path.endswith((".tar", ".parquet", *COMPRESSED)):
        info = _file(fs, path, listed)
        if info["type"] == _MISSING and path.endswith(COMPRESSED):
            raise FileNotFoundError(f"{path} does not exist. It was named as a shard.")
        if info["type"] != "directory":
            yield _kind(path), info
            return
    if not fs.isdir(path):
        raise FileNotFoundError(f"{path} is neither a folder, an archive (.tar) nor a Parquet file.")
    if _is_local(fs):
        validate_folder(path)
    inside = {
        name: info for name, info in fs.find(path, detail=True, withdirs=True).items() if not _hidden(name, path)
    }
    _count_closed(fs, inside, path, left_out)
    stems = (name.removesuffix(STATS) for name in inside if name.endswith(STATS))
    finished = [stem for stem in stems if fs._parent(stem) == path or posixpath.basename(stem).isdigit()]
    if finished:
        folders: dict[str, dict[str, Any]] = {}
        for name, info in inside.items():  # a text that is written in place changes no date of its folder
            place = name.rpartition("/")[0]
            parent = folders.setdefault(place, {**inside.get(place, {}), "size": 0})
            parent["size"] += int(info.get("size") or 0)
            for time in _TIMES:
                parent[time] = max(filter(None, (parent.get(time), info.get(time))), default=None)
        for stem in sorted(finished):
            shard = next((stem + ending for ending in (".tar", "", ".parquet") if stem + ending in inside), None)
            if shard is None:
                raise FileNotFoundError(f"{stem}{STATS} says that a shard is finished, and its images are not there.")
            yield _kind(shard, folder=shard == stem), folders.get(shard) or inside[shard]
        return
    files = [name for name, info in inside.items() if info["type"] != "directory"]
    tars = [name for name in files if name.endswith(".tar")]
    compressed = next((name for name in files if name.endswith(COMPRESSED)), None)
    if compressed and not tars:
        _kind(compressed)
    shards = sorted(tars or [name for name in files if name.endswith(".parquet")])
    for name in sorted(set(files).difference(shards)):
        left_out.add("files beside the archives (not read)", 1, PurePosixPath(name).name)
    for name in shards:
        yield _kind(name), inside[name]


def _count_closed(
    fs: fsspec.AbstractFileSystem, inside: Mapping[str, Mapping[str, Any]], root: str, left_out: LeftOut
) -> None:
    """Counts the folders on a disk that may not be read, which `find` passes over in silence."""
    for name, info in inside.items():
        if _is_local(fs) and info["type"] == "directory" and not os.access(name, os.R_OK | os.X_OK):
            left_out.add("folders that may not be read", 1, posixpath.relpath(name, root))


def _hidden(name: str, root: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(posixpath.relpath(name, root)).parts)


def _kind(path: str, folder: bool = False) -> Kind:
    if folder:
        return "files"
    ending = posixpath.splitext(path)[1]
    if path.endswith(COMPRESSED):
        raise ValueError(UNPACK.format(path))
    if ending not in (".tar", ".parquet"):
        raise ValueError(
            f"{path} is neither an archive (.tar, not compressed) nor a Parquet file, which are the shards that are "
            "read in place. Load other data with `load_captioned`."
        )
    return "tar" if ending == ".tar" else "parquet"


def _stamp(info: Mapping[str, Any]) -> str:
    """What a file system says of a file's version."""
    tag = next((tag for name in ("ETag", "etag", "blob_id") if (tag := info.get(name))), None)
    # Of a file on a disk `created` is the time of its last change, which nobody can set back, as `mtime` can be.
    times = (*_TIMES, "LastModified", "last_modified", "Last-Modified", "mtimeMs")
    return f"{info.get('size')} {tag or ' '.join(str(info[name]) for name in times if info.get(name))}"
