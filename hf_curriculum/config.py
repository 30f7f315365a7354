"""Reads what a person gives as a name, a mapping, JSON, YAML or a file; digests, atomic writes."""

from __future__ import annotations

import difflib
import errno
import gc
import glob
import hashlib
import json
import math
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from functools import cache
from itertools import accumulate
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, ClassVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np

_DEEPEST = 100
_LOCKED = (errno.EACCES, errno.EAGAIN)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+\Z")  # PyYAML takes 1e-5 for a word, as YAML 1.1 does


def read_config(value: str | Path | Mapping[str, Any], what: str, names: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a curriculum, a scorer, a preset or another mapping, however they were given."""
    names = sorted(names)
    if isinstance(value, type):
        raise TypeError(f"The {what} {value.__name__} is a class. Give one made of it: {value.__name__}(...).")
    parsed = value if isinstance(value, Mapping) else _read(value, what, names)
    _validate_depth(parsed, what)
    if isinstance(parsed, str) and names:
        parsed = {"type": parsed}
    if not isinstance(parsed, Mapping):
        kinds = f"a name of {names}, nor a mapping with a `type`" if names else "a mapping, nor a file that holds one"
        raise ValueError(f"The {what} {str(value)!r} is neither {kinds}.")
    if names and parsed.get("type") not in names:
        given = parsed.get("type")
        within = "" if given == value else f" in {value if isinstance(value, Mapping) else str(value)!r}"
        near = "".join(f" Did you mean {name!r}?" for name in difflib.get_close_matches(str(given).lower(), names, 1))
        raise ValueError(f"There is no {what} {given!r}{within}. The types are {names}.{near}")
    return dict(parsed)


def _read(value: str | Path, what: str, names: list[str]) -> Any:
    """What a name, a text or a file holds."""
    import yaml

    text, name = str(value), str(value).strip()
    if name in names:
        return name
    if isinstance(value, Path) or name.endswith((".yaml", ".yml", ".json")):
        if not Path(name).is_file():
            raise ValueError(f"The {what} file {name!r} does not exist.")
        try:
            text = Path(name).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"The {what} file {name!r} is not UTF-8 ({error}). Save it as UTF-8.") from error
    try:
        return parse_json(text)  # first: its tabs are no YAML
    except RepeatedKeyError as error:
        raise ValueError(f"The {what} {str(value)!r} is not clear: {error}. Remove one of them.") from error
    except ValueError:
        try:
            return read_yaml(text)
        except (yaml.YAMLError, ValueError) as error:
            known = f"a name of {names}, " if names else ""
            raise ValueError(f"The {what} {str(value)!r} is neither {known}a file, JSON nor YAML: {error}") from error


def _validate_depth(value: Any, what: str) -> None:
    """Checks that mappings and lists are not nested so deep that reading them would exhaust Python's stack."""
    level = [value]
    for _ in range(_DEEPEST):
        # each object once: a YAML alias names one any number of times
        level = list({id(part): part for whole in level for part in _parts(whole)}.values())
        if not level:
            return
    raise ValueError(f"The {what} is nested more than {_DEEPEST} levels deep, and no {what} is. Look at its brackets.")


def _parts(value: Any) -> Iterable[Any]:
    """What a mapping or a list holds."""
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()


class Configured:
    """A dataclass that is written as a mapping of its `type` and its fields, and read back."""

    type: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON-able mapping, `{"type": "phases", ...}`; fields that hold their default are left out."""
        values: dict[str, Any] = {"type": self.type}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                value = value.to_dict() if isinstance(value, Configured) else value
                values[item.name] = list(value) if isinstance(value, tuple) else value
        return values

    def __str__(self) -> str:
        """As it would be written: the fields that hold their default are left out."""
        written = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                written.append(f"{item.name}={value if isinstance(value, Configured) else repr(value)}")
        return f"{type(self).__name__}({', '.join(written)})"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """What `to_dict` wrote."""
        known = [item.name for item in fields(cls)]
        given = {name: value for name, value in values.items() if name != "type"}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(
                f"{cls.type!r} has no field {', '.join(map(repr, unknown))}; its fields are {known}. A misspelt field "
                "would leave the default in its place."
            )
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(
                f"{dict(values)!r} cannot be made: {error}. A field is missing, or holds a value of another kind than "
                "its own, such as a number in quotes."
            ) from error


def kind_of(value: object) -> str:
    """The type of a value with its article, for messages."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def at_least(owner: str, **limits: tuple[float, float]) -> None:
    """Checks that numbers are finite and not below their limits."""
    for name, (value, limit) in limits.items():
        if not limit <= value < math.inf:
            raise ValueError(f"{owner}({name}={value}) is not possible; {name} is at least {limit:g}.")


def read_yaml(text: str) -> Any:
    """What a YAML text holds, numbers with an exponent as YAML 1.2 and JSON have them."""
    import yaml

    depth = accumulate(1 if mark[0] in "[{" else -1 for mark in re.finditer(r"[][{}]", text))
    try:
        if max(depth, default=0) > _DEEPEST:  # PyYAML takes seconds to give up
            raise RecursionError
        return yaml.load(text, _loader())
    except RecursionError as error:
        raise yaml.YAMLError("its lists and mappings are nested too deep") from error


def _construct_mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
    """As PyYAML makes a mapping, but a key that stands twice is an error."""
    import yaml

    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise yaml.YAMLError(f"the key {twice!r} stands twice in the mapping of line {node.start_mark.line + 1}")
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


@cache
def _loader() -> type:
    import yaml

    loader = type("Loader", (yaml.SafeLoader,), {})  # the resolver is added to this class alone
    loader.construct_mapping = _construct_mapping
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    return loader


def digest(*content: str | bytes | memoryview | np.ndarray | Path, size: int = 8) -> str:
    """BLAKE2b of all contents, one after the other, in hexadecimal digits."""
    state = hashlib.blake2b(digest_size=size)
    for part in content:
        if isinstance(part, Path):
            with part.open("rb") as stream:
                while block := stream.read(1 << 20):
                    state.update(block)
        else:
            state.update(part.encode() if isinstance(part, str) else part)
    return state.hexdigest()


def file_digest(*files: Path) -> str:
    """XXH3 (128 bits) of what files hold, in hexadecimal digits: it finds damage, and is as fast as a disk."""
    from xxhash import xxh3_128

    state = xxh3_128()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                state.update(block)
    return state.hexdigest()


IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".heic", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pjpeg", ".png"),
    *(".ppm", ".tif", ".tiff", ".webp"),
)
"""The endings, in lower case, of files in a folder that are taken for images; a file that is named is always read."""


def special_file(path: str | Path) -> str | None:
    """What a path is that is neither a regular file nor missing: opening a FIFO or a device may wait without end."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (OSError, ValueError):
        return None
    names = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return names.get(kind, "device" if kind in (stat.S_IFCHR, stat.S_IFBLK) else None)


@contextmanager
def reading(path: str | Path, remedy: str) -> Iterator[None]:
    """Turns what goes wrong while a file of this package is read and understood into one sentence."""
    import pyarrow as pa

    broken = (json.JSONDecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError)
    try:
        yield
    except (*broken, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; pyarrow's own has no number
            raise
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}). {remedy}") from error


class RepeatedKeyError(json.JSONDecodeError):
    """An object of JSON has a key twice: other readers take the last value, without a word."""

    def __str__(self) -> str:
        return self.msg


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise RepeatedKeyError(f"The key {twice!r} stands twice in one object, {pairs[:3]!r:.120}", "", 0)
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct)


def parse_json(text: str | bytes) -> Any:
    """What JSON holds; a `JSONDecodeError` also where it has a key twice, or is nested too deeply to be read."""
    collected = gc.isenabled()
    gc.disable()  # the pairs of each object would have it look through all of the program's objects again and again
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except RecursionError as error:
        raise json.JSONDecodeError("It is nested too deeply", str(text[:80]), 0) from error
    finally:
        if collected:
            gc.enable()


def read_json(path: str | Path, remedy: str, needs: Iterable[str] = ()) -> Any:
    """What a JSON file of this package holds; a `ValueError` where it is damaged or lacks one of `needs`."""
    with reading(path, remedy):
        found = parse_json(Path(path).read_text(encoding="utf-8"))
        for name in needs:
            found[name]
        return found


def read_array(path: str | Path, remedy: str, **options: Any) -> np.ndarray:
    """`np.load` of an array of this package; a `ValueError` where it is damaged."""
    import numpy as np

    broken = (OSError, ValueError, EOFError, SyntaxError, TokenError, LookupError, TypeError, MemoryError)
    try:
        return np.load(path, **options)
    except broken as error:  # a damaged header is read as Python
        raise ValueError(f"{path} cannot be read ({error}): it is missing, truncated or damaged. {remedy}") from error


def write_atomically(path: str | Path, content: str | bytes, *, keep_existing: bool = False) -> None:
    """Writes a file completely or not at all, also when it is killed or several processes write the same file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if keep_existing:
            try:
                os.link(temporary, path)  # unlike `replace`, fails where the file exists
                return
            except FileExistsError:
                return
            except OSError:  # a file system without links: of writers at the same moment the last one decides
                if path.exists():
                    return
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def lock_file(path: str | Path) -> Iterator[str | None]:
    """A file that this process alone has; the system takes it back however the process ends, and workers lack it."""
    path, file, holder = Path(path), None, None
    while fcntl is not None and file is None and not holder:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # a file system without locks has others
            file.close()
            if error.errno not in _LOCKED:
                break
            try:
                holder = path.read_text(encoding="utf-8") or "another process"
            except FileNotFoundError:  # who had it has given it back since
                file = None
        else:
            try:
                is_there = os.fstat(file.fileno()).st_ino == path.stat().st_ino
            except FileNotFoundError:
                is_there = False
            if not is_there:
                file.close()  # who had it has deleted it
                file = None
    try:
        if holder or file is None or file.closed:
            yield holder
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, begun {datetime.now():%Y-%m-%d %H:%M:%S}")
        file.flush()
        yield ""
    finally:
        if file is not None and not file.closed:
            path.unlink(missing_ok=True)
            file.close()


@contextmanager
def sole_writer(target: str | Path, lock: str | Path, patience: float = 0) -> Iterator[bool]:
    """Something that this process alone writes; another one that does so too is waited for `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        with lock_file(lock) as holder:
            if not holder:
                yield holder is not None
                return
        if time.monotonic() >= end:
            break
        time.sleep(0.1)
    raise RuntimeError(
        f"Another process writes {target} ({holder}): of what two write at once one part is lost, or both are mixed. "
        "Wait for it or end it, or name another place."
    )


@contextmanager
def complete_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `path` when everything in it is written; the old one stays till then.

    An old one whose replacement was interrupted is put back first, and what dead runs left beside it is deleted.
    """
    target = Path(path).resolve()
    with sole_writer(target, target.with_name(f".{target.name}.lock")) as alone:
        if alone:
            recover_folder(target)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.unfinished-", dir=target.parent))
        try:
            folder.chmod(0o755)  # a temporary folder is readable by its owner alone
            yield folder
            take_place(target, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Puts an old folder back whose replacement was interrupted, and deletes what dead runs left beside it."""
    for left in [*target.parent.glob(f".{glob.escape(target.name)}.replaced-*")]:
        if (left / target.name).exists() and not target.exists():
            os.replace(left / target.name, target)
        shutil.rmtree(left)
    for left in [*target.parent.glob(f".{glob.escape(target.name)}.unfinished-*")]:
        shutil.rmtree(left)


def take_place(target: Path, folder: Path) -> None:
    """Gives a folder the name of another one, which is deleted, or stays if that fails."""
    if not target.exists():
        os.replace(folder, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.replaced-", dir=target.parent))
    try:
        os.replace(target, old / target.name)
        os.replace(folder, target)
    except OSError as error:
        if not target.exists():
            try:
                os.replace(old / target.name, target)
            except OSError:
                raise OSError(
                    f"{target} could not be replaced ({error}). The old one is {old / target.name}."
                ) from error
        old.rmdir()
        raise
    shutil.rmtree(old)


def without_nan(value: Any) -> Any:
    """The same mappings, lists and values with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
