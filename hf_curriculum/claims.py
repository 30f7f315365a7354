"""Pieces of work that any number of processes share: whoever asks first has one, and those of the dead are free."""

from __future__ import annotations

import json
import os
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_curriculum.config import parse_json
from hf_curriculum.files import explained, is_running, own_folder, refuse_link

_ENDING = ".claim"
_WRITING = 2.0  # seconds that it may take to write a claim


@dataclass(frozen=True)
class Claim:
    """Who works on a piece.

    Args:
        name: of the piece.
        owner: host, process and time of its beginning.
        age: seconds since the owner was last alive.
    """

    name: str
    owner: str
    age: float


class Claims:
    """Files in a folder that every process sees: one for each piece that somebody works on.

    The owner touches its files as long as it lives. A file that was not touched for `lease` seconds, or whose process
    is known to be gone, belongs to nobody. Ages are told by the clock of the folder's file system. In the worst case
    two processes do one piece: each result has to be written atomically, and be the same.

    Args:
        folder: where the files are; the folder that it is in exists.
        lease: seconds.
    """

    def __init__(self, folder: Path, lease: float) -> None:
        self.folder = folder
        self.lease = lease
        self.owner: str = f"process {os.getpid()} on {platform.node()}"
        self._token = secrets.token_hex(8)
        self._held: set[Path] = set()
        self._stop = threading.Event()

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Touches the files of this process meanwhile, and gives back what it still holds at the end."""
        refuse_link(self.folder)
        self._stop.clear()
        thread = threading.Thread(target=self._touch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            for file in list(self._held):
                self._release(file)
            with suppress(OSError):  # others are in it
                self.folder.rmdir()

    def _touch(self) -> None:
        while not self._stop.wait(self.lease / 6):
            for file in list(self._held):
                with suppress(OSError):  # given back, or the disk is away for a moment
                    if self._is_own(file):
                        os.utime(file, follow_symlinks=False)

    def take(self, name: str) -> bool:
        """Claims a piece, unless another process that lives has it."""
        with explained(self._file(name)):
            return self._take(name, self._file(name))

    def _take(self, name: str, file: Path) -> bool:
        while True:
            try:
                number = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                refuse_link(file)
                if not self._is_dead(file):
                    return False
                file.unlink(missing_ok=True)
            except FileNotFoundError:  # nobody was here yet, or who was last has removed it, and maybe all around it
                if not self.folder.parent.is_dir():
                    return False
                own_folder(self.folder)
            else:
                facts = {"name": name, "owner": self.owner, "begun": time.strftime("%Y-%m-%d %H:%M:%S")}
                facts |= {"host": platform.node(), "pid": os.getpid(), "pids": _pids(), "token": self._token}
                try:
                    os.write(number, json.dumps(facts).encode())
                except OSError:
                    file.unlink(missing_ok=True)
                    raise
                finally:
                    os.close(number)
                self._held.add(file)
                return True

    def holds(self, name: str) -> bool:
        """Whether this process has a piece."""
        return self._file(name) in self._held

    def give_back(self, name: str) -> None:
        """Ends the claim on a piece."""
        self._release(self._file(name))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '%2F')}{_ENDING}"

    def _release(self, file: Path) -> None:
        self._held.discard(file)
        with suppress(FileNotFoundError):
            if self._is_own(file):
                file.unlink()

    def _is_own(self, file: Path) -> bool:
        """Whether a claim still is this process's: who was silent for too long has lost it to another one."""
        try:
            return _read(file).get("token") == self._token
        except ValueError:
            return False

    def _is_dead(self, file: Path) -> bool:
        try:
            facts = _read(file)
            here = facts["host"] == platform.node() and facts.get("pids", _pids()) == _pids()
            if here and not is_running(int(facts["pid"])):
                return True
        except FileNotFoundError:
            return True
        except (ValueError, KeyError, TypeError):  # it is being written, or its process was killed at that
            return self._age(file) > _WRITING
        return self._age(file) > self.lease

    def _age(self, file: Path) -> float:
        """Seconds between now and when a file was touched, also where the clock of its file system was set back."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as now:
                now.write(b"\0")
                now.flush()
                return abs(os.fstat(now.fileno()).st_mtime - file.lstat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def living(self) -> list[Claim]:
        """The claims there are, of processes that live."""
        claims = []
        for file in sorted(self.folder.glob(f"*{_ENDING}")):
            try:
                facts = _read(file)
                if not self._is_dead(file):
                    claims.append(Claim(facts["name"], f"{facts['owner']}, begun {facts['begun']}", self._age(file)))
            except (OSError, ValueError, KeyError):
                continue
        return claims


def _read(file: Path) -> dict[str, Any]:
    """What a claim says; a link is not followed, and a FIFO not waited for."""
    number = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = parse_json(os.read(number, 1 << 16))
    finally:
        os.close(number)
    if not isinstance(facts, dict):
        raise ValueError(f"{file} holds no claim.")
    return facts


def _pids() -> str:
    """Which processes the numbers of this one count: containers of one host's name may have numbers of their own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
