"""A folder in object storage, or at any other address that `fsspec` opens, read completely or not at all."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from fsspec.core import url_to_fs
from fsspec.registry import known_implementations

from hf_curriculum.config import redact
from hf_curriculum.files import file_digest, lock_file

T = TypeVar("T")

ATTEMPTS = 5
"""How often a request is made before the run ends."""
BACKOFF = 0.5
"""Seconds before the second attempt; twice as long before each further one."""

_REMEDY = "Copy it there again, or make it again."
_SCRATCH, _LOCK = "hf_curriculum-shard-", ".lock"
_kept: list[Any] = []  # file systems: one without references closes its connections, in a forked process too
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
)  # of botocore and Google


@contextmanager
def scratch_folder(below: str | Path | None = None) -> Iterator[Path]:
    """A temporary folder for what is fetched or sent; those that killed processes have left are removed first.

    Beside each lies a lock, which exists before the folder does and is free when its process has ended.
    """
    root = Path(below or tempfile.gettempdir())
    for name in {left.name.removesuffix(_LOCK) for left in root.glob(f"{_SCRATCH}*")}:
        with suppress(OSError, ValueError), lock_file(root / f"{name}{_LOCK}") as holder:  # another user's, or a link
            if not holder:
                shutil.rmtree(root / name, ignore_errors=True)
    folder = root / f"{_SCRATCH}{secrets.token_hex(8)}"
    with lock_file(root / f"{folder.name}{_LOCK}"):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def with_retries(where: str, work: Callable[[], T], passed: tuple[type[Exception], ...] = ()) -> T:
    """What `work` gives, made again where the network failed.

    Args:
        where: the address, as messages have it.
        work: asks a file system of `fsspec`.
        passed: errors that are raised at once, as they are, besides those of what is missing.

    Raises:
        ValueError: what came is not what it has to be, at every attempt.
        PermissionError: access is denied.
        ConnectionError: something else failed at every attempt.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return work()
        except (ImportError, *passed):
            raise
        except Exception as raised:  # each implementation of fsspec has errors of its own
            error = failure(raised)
            if isinstance(error, FileNotFoundError):
                raise
            said = redact(str(error))
            denied = isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403)
            if denied or type(error).__name__ in _NO_CREDENTIALS:
                raise PermissionError(
                    f"{where} cannot be read: access is denied ({said}). Look at the credentials, which the file "
                    "system finds by itself or takes from `storage_options=`, and at what they allow."
                ) from error
            if isinstance(error, OSError) and error.errno in _FULL:
                raise OSError(
                    error.errno,
                    f"There is no space left for {where}. Give `cache_limit=`, or another `cache=`.",
                    where,
                ) from error
            if attempt == ATTEMPTS and isinstance(error, ValueError):
                raise
            if attempt == ATTEMPTS:
                raise ConnectionError(
                    f"{where} could not be read in {ATTEMPTS} attempts ({type(error).__name__}: {said}). Look at "
                    "the address and the network. A run resumes where it was."
                ) from error
        time.sleep(BACKOFF * 2 ** (attempt - 1))


def failure(error: Exception) -> BaseException:
    """What failed: the file system of HTTP calls whatever fails "not found" where it asks for a size."""
    cause, missing = error.__cause__, isinstance(error, FileNotFoundError)
    of_network = isinstance(cause, TimeoutError) or type(cause).__module__.startswith("aiohttp")
    return cause if cause and missing and of_network and getattr(cause, "status", 0) not in (404, 410) else error


class RemoteFolder:
    """A folder at an address. Each process makes its own file system, because one with connections cannot be forked.

    Args:
        address: of `fsspec`, such as `"s3://bucket/folder"`.
        storage_options: what `fsspec` passes to the file system, such as credentials.
    """

    def __init__(self, address: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._target = address.rstrip("/")
        self.address: str = redact(self._target)  # as messages, records and names of caches have it
        self.storage_options: dict[str, Any] = dict(storage_options or {})
        self._opened: tuple[int, Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def place(self, name: str) -> str:
        """A file's address as messages have it, without the passwords and signatures that an address may hold."""
        return redact(f"{self._target}/{name}".rstrip("/"))

    def read(self, name: str, size: int | None = None) -> bytes | None:
        """A file's content, which has `size` bytes if that is known; None if there is no such file."""

        def read(files: Any, root: str) -> bytes:
            content = files.cat_file(f"{root}/{name}")
            if size not in (None, len(content)):
                raise ValueError(f"{self.place(name)} has {size:,} bytes, but {len(content):,} came. {_REMEDY}")
            return content

        try:
            return self._attempt(name, read)
        except FileNotFoundError:
            return None

    def sizes(self) -> dict[str, int | None]:
        """The bytes of every file below the folder by its path from there, None where a server does not tell.

        Empty where the folder may not be listed, although its files may be read.
        """
        try:
            found = self._attempt("", lambda files, root: (root, files.find(root, detail=True)))
        except (FileNotFoundError, PermissionError):
            return {}
        root, files = found
        return {name.removeprefix(f"{root}/"): about.get("size") for name, about in files.items()}

    def verify(self, name: str, size: int, checksum: str) -> None:
        """Reads a file, as `download` does, and keeps nothing of it."""
        with scratch_folder() as folder:
            self.download(name, size, checksum, folder / "file")

    def download(self, name: str, size: int | None, checksum: str | None, target: Path) -> None:
        """Copies a file, and compares it with its size, if it is known, and its `file_digest` or the store's checksum.

        Raises:
            FileNotFoundError: it is missing.
            ValueError: it has another size or content, at every attempt.
            PermissionError: access is denied.
            ConnectionError: something else failed at every attempt.
        """

        def copy(files: Any, root: str) -> None:
            files.get_file(f"{root}/{name}", str(target))
            came = target.stat().st_size
            if size not in (None, came):
                raise ValueError(
                    f"{self.place(name)} came with {came:,} bytes, and has to have {size:,}, {ATTEMPTS} times: "
                    f"it was truncated or replaced since it was listed. {_REMEDY}"
                )
            algorithm, expected = ("xxh3", checksum) if checksum else _store_checksum(files, f"{root}/{name}")
            digest = _hashed(target, algorithm) if expected else ""
            if digest != expected:
                raise ValueError(
                    f"{self.place(name)} came with the right size, but another content (digest "
                    f"{digest}, not {expected}), {ATTEMPTS} times. {_REMEDY}"
                )

        try:
            self._attempt(name, copy)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.place(name)} was there when the folder was listed, and is no longer. {_REMEDY}"
            ) from error

    def _attempt(self, name: str, work: Callable[[Any, str], T]) -> T:
        """What `work` gives for the file system and the folder's path there; made again where the network failed."""
        self._open()  # an address that cannot be one is an error at once
        return with_retries(self.place(name), lambda: work(*self._open()))

    def _open(self) -> tuple[Any, str]:
        """The file system in this process, and the folder's path in it."""
        process = os.getpid()
        if self._opened is None or self._opened[0] != process:
            try:
                files, root = url_to_fs(self._target, **self.storage_options)
            except ImportError as error:
                made_by = known_implementations.get(self._target.partition("://")[0], {}).get("class", "fsspec.")
                package = made_by.partition(".")[0]
                remedy = "" if package == "fsspec" else f": pip install {package}"
                raise ImportError(
                    f"{self.address} needs a file system of `fsspec` that is not installed. {error}{remedy}"
                ) from error
            files.invalidate_cache()  # what another stream listed may have changed since
            _kept.append(files)
            self._opened = process, files, root.rstrip("/")
        return self._opened[1:]


def _store_checksum(files: Any, path: str) -> tuple[str, str]:
    """An algorithm, and the digest that a store has of an object by it in hexadecimal digits; "" where it has none."""
    if "s3" in files.protocol:  # what lists objects does not tell how they are encrypted
        bucket, key, _ = files.split_path(path)
        head = files.call_s3("head_object", Bucket=bucket, Key=key)
        tag = head.get("ETag", "").strip('"')
        of_content = head.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in head
        return ("md5", tag if of_content and len(tag) == 32 and not bucket.endswith("--x-s3") else "")
    about = files.info(path)
    if lfs := about.get("lfs"):  # of the Hub
        return "sha256", lfs["sha256"]
    settings = about.get("content_settings") or {}
    md5 = about.get("md5Hash") or about.get("Content-MD5") or settings.get("content_md5") or b""
    return "md5", (base64.b64decode(md5) if isinstance(md5, str) else bytes(md5)).hex()


def _hashed(file: Path, algorithm: str) -> str:
    if algorithm == "xxh3":
        return file_digest(file)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()
