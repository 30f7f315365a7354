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

from hf_curriculum.config import parse_json

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
        self._held: set[Path] = set()
        self._stop = threading.Event()

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Touches the files of this process meanwhile, and gives back what it still holds at the end."""
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
                    os.utime(file)

    def take(self, name: str) -> bool:
        """Claims a piece, unless another process that lives has it."""
        file = self.folder / f"{name.replace('/', '%2F')}{_ENDING}"
        while True:
            try:
                number = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                if not self._is_dead(file):
                    return False
                grave = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
                with suppress(FileNotFoundError):  # of several that see it dead one moves it away
                    os.replace(file, grave)
                    grave.unlink()
            except FileNotFoundError:  # nobody was here yet, or who was last has removed it, and maybe all around it
                if not self.folder.parent.is_dir():
                    return False
                self.folder.mkdir(exist_ok=True)
            else:
                self._held.add(file)
                with os.fdopen(number, "w", encoding="utf-8") as stream:
                    facts = {"name": name, "owner": self.owner, "host": platform.node(), "pid": os.getpid()}
                    json.dump({**facts, "begun": time.strftime("%Y-%m-%d %H:%M:%S")}, stream)
                return True

    def give_back(self, name: str) -> None:
        """Ends the claim on a piece."""
        self._release(self.folder / f"{name.replace('/', '%2F')}{_ENDING}")

    def _release(self, file: Path) -> None:
        self._held.discard(file)
        file.unlink(missing_ok=True)

    def _is_dead(self, file: Path) -> bool:
        try:
            facts = parse_json(file.read_bytes())
            here = facts["host"] == platform.node()
            if here and file not in self._held and not _runs(int(facts["pid"])):
                return True
        except FileNotFoundError:
            return True
        except (ValueError, KeyError, TypeError):  # it is being written, or its process was killed at that
            return self._age(file) > _WRITING
        return self._age(file) > self.lease

    def _age(self, file: Path) -> float:
        """Seconds since a file was touched, by the clock of its file system."""
        try:
            with tempfile.TemporaryFile(dir=self.folder) as now:
                now.write(b"\0")
                now.flush()
                return os.fstat(now.fileno()).st_mtime - file.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def living(self) -> list[Claim]:
        """The claims there are, of processes that live."""
        found = []
        for file in sorted(self.folder.glob(f"*{_ENDING}")):
            try:
                facts = parse_json(file.read_bytes())
                if not self._is_dead(file):
                    found.append(Claim(facts["name"], f"{facts['owner']}, begun {facts['begun']}", self._age(file)))
            except (OSError, ValueError, KeyError):
                continue
        return found


def _runs(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # another user's, or a system without /proc
        return True
