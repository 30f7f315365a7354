"""Files of this package: written whole or not at all, by one process at a time, and compared when they are read back.

A path that the user names may be a link. A name that this package makes, below it or beside it, never is: what
another person has put there under such a name is replaced or refused, and nothing is written through it.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import FileLock, SoftFileLease, Timeout

from hf_curriculum.config import parse_json

if TYPE_CHECKING:
    import numpy as np

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_LEASE = 30.0  # seconds after which a silent process loses a lock, on a disk that has none of its own
_LOOK = 35.0  # seconds that such a lock is looked at: a dead owner on another machine looks alive for a lease
KINDS: Mapping[str, str] = {
    "shards.json": "scores of shards",
    "buckets.json": "buckets",
    "scores.json": "a scored data set",
    "region_store.json": "a region store",
    "vision_features.json": "vision features",
}
"""The file by which a folder of results is known: the first of them, since buckets have `scores.json` too."""
SEAL = "seal"
"""The key of the digest that `write_sealed` puts into JSON."""
_MANY = 1000
_large: set[Path] = set()  # folders of so many files that this process does not look through them each time
_DIGEST_BYTES = 16
_BLOCK = 1 << 18  # bytes that are read at once


# ---- Reading back ----


class DamagedFileError(ValueError):
    """A file of this package holds something else than was written."""


@contextmanager
def reading(path: str | Path, remedy: str) -> Iterator[None]:
    """Turns whatever goes wrong while a file is read and understood into one sentence; a FIFO is not waited for."""
    if (kind := special_file(path)) not in (None, "folder"):
        raise DamagedFileError(f"{path} is a {kind}, not a file: opening it might wait without end. {remedy}")
    try:
        yield
    except DamagedFileError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"it does not exist. {remedy}", str(error.filename or path)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of the disk, not of the content
            if error.filename is None:
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        raise DamagedFileError(f"{path} is damaged ({type(error).__name__}: {error}). {remedy}") from error


def read_json(path: str | Path, remedy: str, needs: Iterable[str] = ()) -> Any:
    """What a JSON file of another program holds; a `DamagedFileError` where it is damaged or lacks one of `needs`."""
    with reading(path, remedy):
        facts = parse_json(Path(path).read_text(encoding="utf-8"))
        for name in needs:
            facts[name]
        return facts


def read_sealed(path: str | Path, remedy: str, needs: Iterable[str] = ()) -> dict[str, Any]:
    """What `write_sealed` wrote; a `DamagedFileError` where it was damaged or changed since."""
    with reading(path, remedy):
        content = Path(path).read_bytes()
    return parse_sealed(content, path, remedy, needs)


def parse_sealed(content: bytes, path: str | Path, remedy: str, needs: Iterable[str] = ()) -> dict[str, Any]:
    """`read_sealed` of what was read from a path or an address."""
    with reading(path, remedy):
        facts = parse_json(content)
        for name in (SEAL, *needs):
            facts[name]
    if facts.pop(SEAL) != _seal(facts):
        raise DamagedFileError(f"{path} was damaged, or changed after it was written. {remedy}")
    return facts


def _seal(facts: Mapping[str, Any]) -> str:
    """A digest of what JSON holds, however it is laid out."""
    from xxhash import xxh3_64_hexdigest

    return xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())


def read_array(path: str | Path, remedy: str, **options: Any) -> np.ndarray:
    """`np.load` of an array of this package; a `DamagedFileError` where it cannot be read."""
    import numpy as np

    with reading(path, remedy):
        return np.load(path, **options)


def file_digest(*files: Path) -> str:
    """XXH3 (128 bits) of what files hold, in hexadecimal digits: it finds damage, and is as fast as a disk."""
    from xxhash import xxh3_128

    state = xxh3_128()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                state.update(block)
    return state.hexdigest()


def validate_digest(path: str | Path, recorded: str, remedy: str) -> None:
    """Raises a `DamagedFileError` for a file that no longer has the `file_digest` it was recorded with."""
    with reading(path, remedy):
        digest = file_digest(Path(path))
    if digest != recorded:
        raise DamagedFileError(
            f"{path} holds something else than was written: its digest is {digest}, and was {recorded}. It was "
            f"damaged or replaced. {remedy}"
        )


def is_intact(path: str | Path) -> bool:
    """Whether a file is there and ends in the digest that `append_digest` gave it."""
    if special_file(path):
        return False
    try:
        with open(path, "rb") as stream:
            digest, tail = _stream_digest(stream, os.fstat(stream.fileno()).st_size - _DIGEST_BYTES), stream.read()
    except FileNotFoundError:
        return False
    return tail == digest


def validate_intact(path: Path, remedy: str = "Start again: it is written anew from its parts.") -> None:
    """Raises a `DamagedFileError` for a file that does not end in the digest that `append_digest` gave it."""
    if not is_intact(path):
        raise DamagedFileError(f"{path} holds something else than was written: it was damaged or replaced. {remedy}")


def _stream_digest(stream: BinaryIO, length: int) -> bytes:
    """XXH3 (128 bits) of so many bytes that follow in a file."""
    from xxhash import xxh3_128

    state = xxh3_128()
    while length > 0 and (block := stream.read(min(length, _BLOCK))):
        state.update(block)
        length -= len(block)
    return state.digest()


def validate_beginnings(folder: str | Path, recorded: Mapping[str, Sequence[Any]], remedy: str) -> None:
    """Compares growing files with what was recorded of them, by name: how many bytes, and the digest of these.

    What was added since, and a file that is missing, as where a checkpoint alone was copied, are passed over.
    """
    for name, (length, digest) in recorded.items():
        path = Path(folder) / name
        refuse_special(path)
        if path.exists():
            with path.open("rb") as stream:
                beginning = _stream_digest(stream, length).hex()
            if beginning != digest:
                raise DamagedFileError(
                    f"{path} no longer begins with the {length:,} bytes that a checkpoint recorded. It was changed, "
                    "or its run began anew or went on from an earlier step: some steps in it would be false or "
                    f"missing. {remedy}"
                )


def refuse_special(path: str | Path) -> None:
    """Raises a `ValueError` for what is neither a regular file nor missing; see `special_file`."""
    if special_file(path):
        raise ValueError(f"{path} is a {special_file(path)}, and a file is written under this name. Remove it.")


def special_file(path: str | Path) -> str | None:
    """What a path is that is neither a regular file nor missing: opening a FIFO or a device may wait without end."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (OSError, ValueError):
        return None
    names = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return names.get(kind, "device" if kind in (stat.S_IFCHR, stat.S_IFBLK) else None)


# ---- Writing ----


def resolved(path: str | Path) -> Path:
    """The place that a path of the user leads to; a `ValueError` for links that lead round in a circle."""
    place = Path(os.path.realpath(path))
    for one in (place, *place.parents):
        if one.is_symlink():
            raise ValueError(
                f"{path} leads to the link {one}, which leads back to itself: nothing can be written there. Remove "
                "the link, or name another place."
            )
    return place


@contextmanager
def new_files(*targets: str | Path, lasting: bool = True) -> Iterator[list[Path]]:
    """Paths to write to; when all are written, each takes the place of its target: all of them, or none.

    Of files that belong together the last names the others by their digests: a process that is killed between two of
    them leaves files that are known not to fit.

    Args:
        *targets: files. A link of that name is replaced; the caller resolves what the user names.
        lasting: whether they outlive a loss of power. What is read back by its digest or made again need not.

    Raises:
        OSError: one cannot be written; those that were there are as they were.
    """
    paths = [Path(target) for target in targets]
    with ExitStack() as stack:
        temporaries = [stack.enter_context(_temporary(path)) for path in paths]
        with explained(paths[-1]):
            yield temporaries
            for temporary in temporaries if lasting else ():
                with temporary.open("rb+") as stream:
                    os.fsync(stream.fileno())
            _replace_all(temporaries, paths)


@contextmanager
def new_file(target: str | Path, *, lasting: bool = True) -> Iterator[Path]:
    """A path to write to, which takes the place of `target` when it is written; see `new_files`."""
    with new_files(target, lasting=lasting) as (path,):
        yield path


def write_atomically(path: str | Path, content: str | bytes, *, keep_existing: bool = False) -> None:
    """Writes a file completely or not at all, also when it is killed or several processes write the same file."""
    path = Path(path)
    with _temporary(path) as temporary, explained(path):
        with temporary.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if keep_existing and not path.is_symlink():
            try:
                os.link(temporary, path)  # unlike `replace`, fails where the file exists
                return
            except FileExistsError:
                return
            except OSError:  # a file system without links: of writers at the same moment the last one decides
                if path.exists():
                    return
        os.replace(temporary, path)


def append_text(path: str | Path, text: str) -> None:
    """Adds to a file whose name this package chose; a `ValueError` for a link of that name."""
    path = Path(path)
    refuse_link(path)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with os.fdopen(number, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(number)  # what is recorded of it later is not to outlive it


def write_sealed(path: str | Path, facts: Mapping[str, Any], *, keep_existing: bool = False) -> None:
    """Writes facts as JSON with a digest of them, atomically; `read_sealed` refuses what was changed since."""
    sealed = {**facts, SEAL: _seal(json.loads(json.dumps(facts)))}
    text = json.dumps(sealed, indent=1, ensure_ascii=False)
    write_atomically(path, text + "\n", keep_existing=keep_existing)


def append_digest(path: Path) -> None:
    """Ends a file with a digest of it, which readers of formats that know their end (.npy, Arrow streams) pass over.

    For files of caches, which `is_intact` compares before they are read: those that are damaged are made again.
    """
    with path.open("rb+") as stream:
        stream.write(_stream_digest(stream, os.fstat(stream.fileno()).st_size))


def growing_file(path: Path) -> BinaryIO:
    """A file to which several calls add, opened for reading and writing and made where it is missing.

    Who adds to it records how much of it counts, with a digest, in a sealed file.
    """
    refuse_link(path)
    refuse_special(path)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")


def write_together(
    folder: str | Path, contents: Mapping[str, str | bytes], manifest: str = "", facts: Mapping[str, Any] | None = None
) -> None:
    """Writes files that belong together into a folder that the user names: all of them, or none.

    Args:
        folder: made if it is not there.
        contents: what each file holds, by name, or by path below the folder.
        manifest: the name of a sealed JSON file, which takes its place last and holds the digests of the others.
        facts: what else it says.
    """
    folder = resolved(folder)
    if manifest:
        refuse_foreign(folder / manifest)
    paths = [folder / name for name in (*contents, *([manifest] if manifest else []))]
    for parent in {path.parent for path in paths if path.parent != folder}:
        own_folder(parent)
    with new_files(*paths) as temporaries:
        for temporary, content in zip(temporaries, contents.values(), strict=False):
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if manifest:
            digests = {name: file_digest(file) for name, file in zip(contents, temporaries, strict=False)}
            write_sealed(temporaries[-1], {**(facts or {}), "files": digests})


def verify_together(manifest: str | Path, remedy: str = "Copy or write all of it again.") -> dict[str, Any]:
    """What a sealed file says; all files beside it that it names, as `write_together` does, are compared too.

    Raises:
        FileNotFoundError: one of them is missing.
        DamagedFileError: one of them was changed since.
    """
    facts = read_sealed(manifest, remedy)
    for name, recorded in facts.get("files", {}).items():
        validate_digest(Path(manifest).parent / name, recorded, remedy)
    return facts


def validate_beside(file: str | Path, manifest: str, remedy: str) -> None:
    """Compares a file with its digest in the manifest that lies beside it; one without a manifest of ours is free.

    Raises:
        DamagedFileError: the file, or the manifest, was changed since.
    """
    about = Path(file).with_name(manifest)
    try:
        sealed = SEAL in read_json(about, remedy)
    except (ValueError, OSError):
        sealed = False  # another program's, or none
    if sealed and (recorded := read_sealed(about, remedy, ["files"])["files"].get(Path(file).name)):
        validate_digest(file, recorded, remedy)


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A new empty file beside another one, of which the name tells who writes it; it is deleted in the end."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent not in _large and remove_dead(path.parent) > _MANY:
            _large.add(path.parent)
        temporary = path.with_name(f"{_writer()}{os.getpid()}-{secrets.token_hex(4)}.{path.name}")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # permissions as the umask says
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _writer() -> str:
    """What the names of this machine's temporary files begin with."""
    return f".{zlib.crc32(platform.node().encode()):08x}-"


def remove_dead(folder: Path) -> int:
    """Removes temporary files that killed processes of this machine have left in a folder; returns its entries."""
    names = os.listdir(folder)
    for name in names:
        pid = name.removeprefix(_writer()).partition("-")[0] if name.startswith(_writer()) else ""
        if pid.isdecimal() and not is_running(int(pid)):
            left = folder / name
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return len(names)


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # another user's, or a system without /proc
        return True


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Names what is written where the system says only that a disk is full or cannot be written."""
    path = Path(path)
    try:
        yield
    except Exception as error:
        of_rust = re.search(r"\(os error (\d+)\)", str(error))  # safetensors and tokenizers raise errors of their own
        number = error.errno if isinstance(error, OSError) else of_rust and int(of_rust[1])
        number = number or ("inline_container" in str(error) and errno.EIO)  # PyTorch says no more of a full disk
        name = getattr(error, "filename", None)
        ours = (
            name is None
            or Path(name) in (path, path.parent)
            or _writer() in str(name)
            or f".{path.name}." in str(name)
        )
        if not number or not ours or isinstance(error, FileExistsError):
            raise
        message = f"{os.strerror(number)}; nothing was replaced, and the same call continues when that is mended"
        raise OSError(number, message, str(path)) from error


def _replace_all(temporaries: list[Path], paths: list[Path]) -> None:
    """Gives files their names; where that fails for one, those before it get their former content back."""
    with ExitStack() as stack:
        former = [stack.enter_context(_former(path)) for path in paths[:-1]]
        for number, (temporary, path) in enumerate(zip(temporaries, paths, strict=True)):
            try:
                os.replace(temporary, path)
            except OSError:
                for changed, backup in zip(paths[:number], former, strict=False):
                    changed.unlink() if backup is None else os.replace(backup, changed)
                raise


@contextmanager
def _former(path: Path) -> Iterator[Path | None]:
    """A second name, or a copy, of a file that is to be replaced; None where none is there."""
    if not os.path.lexists(path):
        yield None
        return
    backup = path.with_name(f"{_writer()}{os.getpid()}-{secrets.token_hex(4)}.{path.name}")
    try:
        os.link(path, backup, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(path, backup, follow_symlinks=False)
    try:
        yield backup
    finally:
        backup.unlink(missing_ok=True)


# ---- Folders ----


@contextmanager
def staged_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder for a library that writes many files, which then take their places in a folder of the user.

    What else lies there stays.

    Args:
        folder: made if it is not there.

    Raises:
        ValueError: a sub-folder of that name is a link.
        OSError: one cannot be written; those that were there are as they were.
    """
    target = resolved(folder)
    staging = target / f"{_writer()}{os.getpid()}-{secrets.token_hex(4)}.staged"
    try:
        with explained(target):
            target.mkdir(parents=True, exist_ok=True)
            remove_dead(target)
            staging.mkdir()
            yield staging
            files = [path for path in staging.rglob("*") if path.is_file()]
            files.sort(key=lambda path: (-len(path.parts), path))  # what lies in sub-folders first
            paths = [target / path.relative_to(staging) for path in files]
            for parent in sorted({path.parent for path in paths if path.parent != target}):
                own_folder(parent)
            for path in files:
                with path.open("rb+") as stream:
                    os.fsync(stream.fileno())
            _replace_all(files, paths)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def refuse_foreign(file: Path, *keys: str) -> None:
    """Raises a `FileExistsError` where JSON of another program stands, which has none of these keys and no seal.

    What is damaged, and no JSON any more, or empty, may be replaced, as a link may: its file stays.
    """
    if not file.is_file() or file.is_symlink():
        return
    try:
        facts = parse_json(file.read_bytes())
    except (OSError, ValueError):
        return
    if facts and not (isinstance(facts, dict) and facts.keys() & {SEAL, *keys}):
        raise FileExistsError(
            f"{file} is there, and this package did not write it, so it is not replaced. Move it, or name "
            "another place."
        )


def refuse_other_kind(folder: Path, marker: str) -> None:
    """Raises a `FileExistsError` where a folder holds another kind of results than that of a marker."""
    there = next((name for name in KINDS if (folder / name).is_file()), marker)
    if there != marker:
        raise FileExistsError(
            f"{folder} holds {KINDS[there]}, and {KINDS[marker]} in the same folder would hide them, or be hidden. "
            "Name another folder."
        )


def own_folder(path: str | Path) -> Path:
    """A folder whose name this package chose, made where it is missing; an error for a link or a file of that name."""
    path = Path(path)
    refuse_link(path)
    refuse_file(path)
    with explained(path):
        resolved(path.parent).mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
    return path


def refuse_file(path: Path) -> None:
    """Raises a `FileExistsError` where a file stands in place of a folder that is to be written."""
    if (place := resolved(path)).exists() and not place.is_dir():
        raise FileExistsError(f"{path} is a file, and a folder is written. Name another place.")


def refuse_link(path: Path) -> None:
    """Raises a `ValueError` for a link where this package writes under a name of its own."""
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link to {os.readlink(path)}. This name is written to here, and what the link leads to would "
            "be changed. Remove the link, or name another place."
        )


@contextmanager
def lock_file(path: str | Path) -> Iterator[str]:
    """A lock that one process has: "" for the one that has it, else who does; it ends with its process.

    Workers do not inherit it. On a disk without locks a file that is touched every ten seconds takes its place.
    """
    path = Path(path)
    with explained(path):
        resolved(path.parent).mkdir(parents=True, exist_ok=True)
    refuse_link(path)
    lock: FileLock | SoftFileLease = FileLock(path, on_acquired=_sign)
    try:
        with explained(path):
            try:
                lock.acquire(timeout=0)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                lock = SoftFileLease(path, lease_duration=_LEASE)
                lock.acquire(timeout=_LOOK)
    except Timeout:
        yield _holder(path)
        return
    try:
        yield ""
    finally:
        try:
            path.unlink(missing_ok=True)  # who waits for it sees that it is gone, and makes another
        finally:
            lock.release()


def _sign(number: int) -> None:
    """Writes into a lock file whose it is."""
    os.ftruncate(number, 0)
    os.pwrite(
        number, f"process {os.getpid()} on {platform.node()}, begun {datetime.now():%Y-%m-%d %H:%M:%S}".encode(), 0
    )


def _holder(path: Path) -> str:
    """Who has a lock, in words."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        text = ""
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return (
        f"process {facts['pid']} on {facts['host']}" if {"pid", "host"} <= facts.keys() else text or "another process"
    )


@contextmanager
def sole_writer(target: str | Path, lock: str | Path, patience: float = 0) -> Iterator[None]:
    """Something that this process alone writes; another one that does so too is waited for `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        with lock_file(lock) as holder:
            if not holder:
                yield
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
    target = resolved(path)
    refuse_file(target)
    with sole_writer(target, target.with_name(f".{target.name}.lock")), explained(target):
        recover_folder(target)
        folder = target.with_name(f".{target.name}.unfinished-{secrets.token_hex(4)}")
        folder.mkdir()
        try:
            yield folder
            take_place(target, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Puts an old folder back whose replacement was interrupted, and deletes what dead runs left beside it."""
    for ending in ("replaced", "unfinished"):
        for left in [*target.parent.glob(f".{glob.escape(target.name)}.{ending}-*")]:
            if left.is_symlink():  # nobody here makes links: what it leads to is another's
                left.unlink()
                continue
            if ending == "replaced" and (left / target.name).exists() and not target.exists():
                os.replace(left / target.name, target)
            shutil.rmtree(left)


def take_place(target: Path, folder: Path) -> None:
    """Gives a folder the name of another one, which is deleted, or stays if that fails."""
    if not target.exists():
        os.replace(folder, target)
        return
    old = target.with_name(f".{target.name}.replaced-{secrets.token_hex(4)}")
    old.mkdir()
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
