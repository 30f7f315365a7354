"""Makes everything that writes fail, die, or meet planted links, and says what is left of the results.

    python recipes/benchmarks/faults.py                        # all, half an hour on two cores; needs cc
    python recipes/benchmarks/faults.py --only 'bucket|plan' --output faults.json

Each writer of `written.py` writes a result over an earlier one, where it may. Faults meet the n-th file operation:
a disk that is full from there on, an I/O error, SIGKILL; besides a read-only folder, a small disk (tmpfs, as root
alone), links planted at each name that the writer chooses itself, and links that the user names. Afterwards the
earlier result or the new one must be readable, and the same command must end equal to an undisturbed one.

A cell counts what came of them:

    ok       done, or killed; the result is the earlier or the new one, and the same command ends equal
    refused  an error in words: it names a file and says what to do
    bare     an error of the system that says no more than a file's name, or not even that
    raw      another library's error, a hang, or an end by a signal that was not sent
    away     after a kill nothing can be read until the same command ran again
    lost     the earlier result can no longer be read         mixed   what is read is neither of both
    stuck    the same command does not end equal              left    something is left behind, and never deleted
    through  a planted link was followed: what it leads to has changed
    replaced a link that the user named is a file or folder of its own now
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import written

SOURCE = Path(__file__).with_suffix(".c")
COUNT, FULL, ONCE, READ_ONLY, KILL, SLOW = range(6)
KINDS = {"full disk": FULL, "I/O error": ONCE, "kill": KILL}
COLUMNS = (*KINDS, "read-only", "small disk", "planted links", "user's links")
ORDER = ("lost", "mixed", "through", "stuck", "left", "raw", "away", "bare", "replaced", "refused", "ok")
LIMIT = 60
_SYSTEM = re.compile(r"\[Errno -?\d+\]|" + "|".join(re.escape(os.strerror(code)) for code in errno.errorcode))


@dataclass(frozen=True)
class Answer:
    """What came of a call in a process of its own: a value's digest, or an error."""

    value: str | None = None
    error: str = ""
    text: str = ""

    def quality(self, *folders: Path) -> str:
        """How an error is worded."""
        if self.error in ("signal", "hang"):
            return "raw"
        theirs = self.error.partition(".")[0] not in ("builtins", "hf_curriculum", "written")
        if theirs or self.error.partition(".")[2] in RAW:
            return "raw"
        names = any(str(folder) in self.text for folder in folders)
        words = _SYSTEM.sub("", re.sub(r"\S*/\S*", "", self.text)).split()
        return "refused" if names and len(words) > 6 else "bare"


RAW = {
    "KeyError", "TypeError", "AttributeError", "IndexError", "EOFError", "UnicodeDecodeError", "UnicodeEncodeError",
    "AssertionError", "ZeroDivisionError", "OverflowError", "StopIteration", "SyntaxError", "NameError", "MemoryError",
    "RecursionError", "LookupError",
}  # fmt: skip
"""Errors of Python itself that are never meant for a user."""


def outcome(work: Callable[[], Any]) -> Answer:
    """What comes of a call."""
    try:
        return Answer(hashlib.sha256(repr(work()).encode()).hexdigest())
    except BaseException as error:
        kind = type(error)
        return Answer(None, f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}", str(error)[:2000])


def forked(work: Callable[[], Any], limit: int = LIMIT) -> Answer:
    """Calls something in a process of its own, silently."""
    there, told = os.pipe()
    process = os.fork()
    if process == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.setsid()
        os.write(told, json.dumps(asdict(outcome(work))).encode())
        os._exit(0)
    os.close(told)
    with os.fdopen(there, "rb") as pipe:
        hangs = not select.select([pipe], [], [], limit)[0]
        if hangs:
            os.killpg(process, signal.SIGKILL)
        content = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if content:
        return Answer(**json.loads(content))
    return Answer(None, "hang" if hangs else "signal", str(status))


@dataclass(frozen=True)
class Trial:
    """One fault, and what came of it."""

    name: str
    kind: str
    where: str
    label: str
    text: str = ""


class Bench:
    """A folder in which writers are disturbed, one after the other.

    Args:
        root: a folder; what is written goes to `out` in it, and links lead to `outside`.
        most: of how many operations the n-th fails at most.
    """

    def __init__(self, root: Path, most: int) -> None:
        self.root, self.most = root, most
        self.out, self.outside, self.former = root / "out", root / "outside", root / "former"
        self.journal = root / "journal"
        self.library = ctypes.CDLL(None)

    def reset(self, former: bool) -> None:
        """Empties the folders; what was written before is put back."""
        for folder in (self.out, self.outside):
            if folder.is_symlink():
                folder.unlink()
            folder.mkdir(exist_ok=True)
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        if former:
            shutil.copytree(self.former, self.out, symlinks=True, dirs_exist_ok=True)

    def write(self, writer: written.Writer, version: int, mode: int = COUNT, at: int = -1) -> Answer:
        """Writes, disturbed; the journal then holds a line for each operation."""

        def work() -> None:
            log = os.open(self.journal, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            self.library.faults_arm(f"{self.out}/".encode(), mode, ctypes.c_long(at), log)
            try:
                writer.write(self.out, version)
            finally:
                self.library.faults_done()

        return forked(work)

    def read(self, writer: written.Writer) -> Answer:
        """What a reader gets."""
        return forked(lambda: writer.read(self.out))

    def afterwards(self, writer: written.Writer) -> tuple[Answer, Answer, bool]:
        """What is read, what the same command undisturbed says, and whether its result is the one that was wanted."""
        notes = self.root / "afterwards"

        def work() -> Any:
            notes.write_text(json.dumps([asdict(outcome(partial(writer.read, self.out)))]))
            again = outcome(partial(writer.write, self.out, 1))
            notes.write_text(json.dumps([*json.loads(notes.read_text()), asdict(again)]))
            return writer.read(self.out)

        notes.unlink(missing_ok=True)
        last = forked(work)
        answers = [Answer(**each) for each in json.loads(notes.read_text())] if notes.exists() else []
        after, again = [*answers, last, last][:2]
        return after, again, last.value == self.wanted

    def names(self) -> set[str]:
        """All names in the folder."""
        return {str(path.relative_to(self.out)) for path in self.out.rglob("*")}

    def trials(self, writer: written.Writer) -> Iterator[Trial]:
        """All faults of a writer."""
        shutil.rmtree(self.former, ignore_errors=True)
        self.reset(False)
        old = None
        if writer.former:
            if (failed := self.write(writer, 0)).error:
                raise RuntimeError(f"{writer.name} fails undisturbed: {failed}")
            old = self.read(writer).value
            shutil.copytree(self.out, self.former, symlinks=True)
        names, journal = [], []
        for _ in range(2):
            self.reset(writer.former)
            if (failed := self.write(writer, 1)).error:
                raise RuntimeError(f"{writer.name} fails undisturbed: {failed}")
            journal.append([line.split(" ", 1) for line in self.journal.read_text().splitlines()])
            names.append(self.names())
        answer = self.read(writer)
        if answer.value is None or answer.value == old:
            raise RuntimeError(f"{writer.name} cannot be read, or its versions are equal: {answer}")
        self.wanted, self.old, self.whole = answer.value, old, names[0] | names[1]
        for kind, mode in KINDS.items():
            spots = [n for n, (what, _) in enumerate(journal[1]) if mode == KILL or what != "5"]
            yield from self.interrupted(writer, kind, mode, spots)
        yield self.judged(writer, "read-only", "", READ_ONLY, 0)
        yield from self.small(writer)
        chosen = [{path for _, path in each} for each in journal]
        yield from self.planted(writer, chosen[0] & chosen[1])
        yield from self.users_links(writer)

    def interrupted(self, writer: written.Writer, kind: str, mode: int, spots: list[int]) -> Iterator[Trial]:
        """A fault at some of the operations."""
        few = np.linspace(0, len(spots) - 1, min(len(spots), writer.most, self.most)).round().astype(int)
        for n in dict.fromkeys(few.tolist()):
            yield self.judged(writer, kind, f"operation {spots[n] + 1} of {spots[-1] + 1}", mode, spots[n])

    def judged(self, writer: written.Writer, kind: str, where: str, mode: int, at: int) -> Trial:
        """One fault: what is read afterwards, and after the same command undisturbed."""
        self.reset(writer.former)
        answer = self.write(writer, 1, mode, at)
        where += " ".join(self.journal.read_text().splitlines()[at : at + 1]).replace(f"{self.out}/", ": ")[1:]
        return Trial(writer.name, kind, where, self.label(writer, answer, mode == KILL), answer.text)

    def label(self, writer: written.Writer, answer: Answer, killed: bool, planted: str = "/") -> str:
        """What came of a write that was disturbed."""
        stored = (
            {path.read_bytes() for path in self.out.rglob("*") if path.is_file()} if killed and self.old else set()
        )
        after, again, finished = self.afterwards(writer)
        ended_by_us = killed and answer.error == "signal" and answer.text == str(-signal.SIGKILL)
        if after.value not in (None, self.wanted, self.old) or (not answer.error and after.value != self.wanted):
            return "mixed"
        if self.old and after.value is None:
            former = {path.read_bytes() for path in self.former.rglob("*") if path.is_file()}
            if not (ended_by_us and finished and former <= stored):
                return "lost"
        if not finished or (again.error and after.value != self.wanted):
            return "stuck"
        if {name for name in self.names() - self.whole if not name.startswith(planted)}:
            return "left"
        if ended_by_us:
            return "away" if self.old and after.value is None else "ok"
        return answer.quality(self.root) if answer.error else "ok"

    def small(self, writer: written.Writer) -> Iterator[Trial]:
        """A disk with too little room, of several sizes; nothing where one cannot be mounted."""
        self.reset(False)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.run(["mount", "-t", "tmpfs", "none", self.out], **quiet, check=False).returncode:
            return
        try:
            for pages in (1, 2, 4, 8, 16, 32, 64, 128, 256):
                self.resize("1g")
                self.reset(writer.former)
                used = os.statvfs(self.out)
                self.resize(f"{(used.f_blocks - used.f_bfree) * used.f_frsize // 1024 + 4 * pages}k")
                answer = self.write(writer, 1)
                if not answer.error:
                    break
                self.resize("1g")
                yield Trial(writer.name, "small disk", f"{pages} pages", self.label(writer, answer, False),
                            answer.text)  # fmt: skip
        finally:
            subprocess.run(["umount", self.out], check=True)

    def resize(self, size: str) -> None:
        """Gives the small disk another size."""
        subprocess.run(["mount", "-o", f"remount,size={size}", self.out], check=True)

    def planted(self, writer: written.Writer, paths: set[str]) -> Iterator[Trial]:
        """A link at each name that the writer chooses itself."""
        names = {str(Path(path).relative_to(self.out)) for path in paths if not path.endswith("/out")}
        every = {str(parent) for name in names for parent in Path(name).parents} - {"."} | names
        for name in sorted(every - {writer.target}):
            is_folder = any(other.startswith(f"{name}/") for other in every)
            for state in ("new", *["dangling"] * (not is_folder), *["former"] * writer.former):
                self.reset(state == "former")
                link, victim = self.out / name, self.outside / "thesis"
                if state == "former" and link.exists():
                    shutil.move(link, victim)
                elif is_folder:
                    victim.mkdir()
                    (victim / "chapter.txt").write_text("years of work")
                elif state != "dangling":
                    victim.write_text("years of work")
                if state == "former" and not link.parent.is_dir():
                    continue
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(victim)
                before = self.state_outside()
                answer = self.write(writer, 1)
                through = self.state_outside() != before
                label = "through" if through else self.label(writer, answer, False, name) if not answer.error else (
                    answer.quality(self.root))  # fmt: skip
                yield Trial(writer.name, "planted links", f"{name} ({state})", label, answer.text)

    def state_outside(self) -> str:
        """All that links lead to."""
        entries = sorted(self.outside.rglob("*"))
        return repr([(path, path.is_symlink(), path.is_file() and path.read_bytes()) for path in entries])

    def users_links(self, writer: written.Writer) -> Iterator[Trial]:
        """The user's own links: the result itself is one, or the folder that it is in."""
        for where in ("target", "folder"):
            self.reset(writer.former)
            if where == "folder":
                shutil.rmtree(self.outside)
                self.out.rename(self.outside)
                self.out.symlink_to(self.outside)
            else:
                link, there = self.out / writer.target, self.outside / "scratch"
                if link.exists():
                    shutil.move(link, there)
                elif not Path(writer.target).suffix:
                    there.mkdir()
                link.symlink_to(there)
            answer = self.write(writer, 1)
            value = self.read(writer).value
            label = "ok" if value == self.wanted else "mixed"
            if answer.error:
                label = answer.quality(self.root)
            elif where == "target" and not (self.out / writer.target).is_symlink():
                label = "replaced"
            yield Trial(writer.name, "user's links", where, label, answer.text)


def work(root: Path, options: argparse.Namespace) -> tuple[list[str], Callable[[int], list[Trial]]]:
    """The names of the writers, and what tries one."""
    written.quiet()
    forked(partial(written.prepare, root / "given"), 600)
    every = written.writers(root / "given")
    bench = Bench(root, options.most)
    gc.collect()
    gc.freeze()
    return [writer.name for writer in every], lambda n: [*bench.trials(every[n])]


def dealt(
    work: Callable[[Path, argparse.Namespace], tuple[list[str], Callable[[int], list[Trial]]]],
    options: argparse.Namespace,
    columns: Sequence[str],
    order: Sequence[str],
    well: Sequence[str],
) -> None:
    """Deals what is to be tried to processes, one by one, and prints tables of all that came of it.

    Args:
        work: given a folder, the names of what there is, and what tries the n-th.
        options: `only`, `processes` and `output`.
        columns: of the table: kinds of trials.
        order: of labels, the worst first.
        well: labels of which no example is printed.
    """
    turns, numbers = os.pipe()
    os.write(numbers, bytes(range(100)))
    os.close(numbers)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/results", "a+") as results:
        processes = []
        for number in range(options.processes):
            processes.append(os.fork())
            if processes[-1] == 0:
                root = Path(folder, str(number))
                (root / "given").mkdir(parents=True)
                _take_turns(*work(root, options), options.only, turns, results.fileno())
                os._exit(0)
        ends = [os.waitpid(process, 0)[1] for process in processes]
        results.seek(0)
        answers = sorted(map(json.loads, results), key=lambda each: each["number"])
    trials = [trial for answer in answers for trial in answer["trials"]]
    print(table(trials, columns, order), details(trials, order, well), sep="\n")
    print(f"{len(trials):,} trials. Seconds: " + ", ".join(f"{a['name']} {a['seconds']:.0f}" for a in answers))
    if options.output:
        options.output.write_text(json.dumps(trials, indent=1), encoding="utf-8")
    sys.exit(any(ends))


def _take_turns(names: list[str], tried: Callable[[int], list[Trial]], only: str, turns: int, results: int) -> None:
    """Tries what the pipe says, until it is empty."""
    while turn := os.read(turns, 1):
        number = turn[0]
        if number >= len(names) or not re.search(only, names[number]):
            continue
        begin = time.monotonic()
        try:
            trials = tried(number)
        except Exception as error:
            trials = [Trial(names[number], "undisturbed", "", "failed", repr(error))]
        print(f"{names[number]}: {len(trials)} trials", file=sys.stderr, flush=True)
        answer = {"number": number, "name": names[number], "trials": [*map(asdict, trials)]}
        with os.fdopen(os.dup(results), "a") as file:
            file.write(json.dumps({**answer, "seconds": time.monotonic() - begin}) + "\n")


def table(trials: list[dict[str, str]], columns: Sequence[str], order: Sequence[str]) -> str:
    """What was tried × how, as Markdown."""
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    sums: dict[str, Counter[str]] = {column: Counter() for column in columns}
    for name in dict.fromkeys(trial["name"] for trial in trials):
        cells = []
        for column in columns:
            counts = Counter(t["label"] for t in trials if (t["name"], t["kind"]) == (name, column))
            sums[column] += counts
            cells.append(counted(counts, order))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("| **all** | " + " | ".join(counted(sums[column], order) for column in columns) + " |")
    return "\n".join(lines) + "\n"


def counted(counts: Counter[str], order: Sequence[str]) -> str:
    """The cell of a table."""
    return ", ".join(f"{counts[label]} {label}" for label in order if counts[label]) or "–"


def details(trials: list[dict[str, str]], order: Sequence[str], well: Sequence[str]) -> str:
    """An example of all that is not well, by outcome, name and kind."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for trial in trials:
        if trial["label"] not in well:
            groups.setdefault((trial["label"], trial["name"], trial["kind"]), []).append(trial)
    rank = ["failed", *order].index
    return "".join(
        f"{label} ×{len(same)} · {name} · {kind} · {same[0]['where']} · {' '.join(same[0]['text'].split())[:300]}\n"
        for (label, name, kind), same in sorted(groups.items(), key=lambda item: (rank(item[0][0]), item[0]))
    )


def with_library() -> None:
    """Starts this program again with `faults.c` loaded, unless it is."""
    if "HF_CURRICULUM_FAULTS" in os.environ:
        shutil.rmtree(os.environ.pop("HF_CURRICULUM_FAULTS"))
        del os.environ["LD_PRELOAD"]  # programs that are started are left alone
        return
    folder = tempfile.mkdtemp(prefix="faults-")
    library = f"{folder}/faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, str(SOURCE), "-ldl"], check=True)
    environment = {
        "LD_PRELOAD": library,
        "HF_CURRICULUM_FAULTS": folder,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})


def main() -> None:
    """Runs the processes and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression of writers' names")
    parser.add_argument("--most", type=int, default=12, help="of how many operations the n-th fails, at most")
    parser.add_argument("--processes", type=int, default=2, help="that work at once")
    parser.add_argument("--output", type=Path, help="write every trial there, as JSON")
    options = parser.parse_args()
    with_library()
    dealt(work, options, COLUMNS, ORDER, ("ok", "refused"))


if __name__ == "__main__":
    main()
