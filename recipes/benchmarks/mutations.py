"""Plants one-line faults in the package, one at a time, and counts those that the tests of their folder notice.

    python recipes/benchmarks/mutations.py --count 210 --seed 0 --processes 2

Faults are drawn evenly from the folders in `FOLDERS` and the files in them: comparisons, sums, booleans, numbers and
conditions exchanged, an argument or a statement left out. Messages, annotations and docstrings are left alone, and
what can show nowhere (`UNSEEN`) or stops every call (strings and paths put together). All tests of the folders are
collected once, and run once without a fault, to see which call which functions and how long they take (`--calls` keeps
that for one state of the package, and adds tests that are new). Then each fault meets the files of tests that call its
function, the fastest first, until a test fails: in a process of its own, where the function has the code with the
fault. What survives is printed, and written as JSON with `--output`. A survivor is a test that is missing, or a fault
that changes nothing. Programs that tests start anew, and what modules do when they are imported, have no fault.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import itertools
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hf_curriculum"
FOLDERS = {
    "planning": ("planning", "curricula", "training"),
    "curricula": ("curricula", "planning", "training"),
    "training": ("training", "curricula", "streaming", "hub", "studies", "reporting"),
    "scoring": ("scoring", "scorers", "test_provenance.py", "test_scored_data.py"),
    "evaluation": ("evaluation", "reporting", "tasks/captioning"),
    "scorers": ("scorers", "scoring"),
    "models": ("models", "training"),
    "data": ("data", "scoring", "streaming", "tasks/detection", "test_security.py", "test_ways_in.py"),
    "streaming": ("streaming", "data"),
    "hub": ("hub", "reporting"),
    "reporting": ("reporting", "studies", "hub"),
    "studies": ("studies", "reporting", "recipes"),
    "scenes": ("scenes", "models"),
    "cli": ("cli",),
    "tasks/captioning": ("tasks/captioning", "cli", "training"),
    "tasks/alignment": ("tasks/alignment", "reporting", "cli"),
    "tasks/detection": ("tasks/detection", "reporting", "cli"),
    "tasks/long_tail": ("tasks/long_tail", "cli"),
    "tasks/babylm": ("tasks/babylm",),
    ".": ("test_files.py", "test_verify.py", "test_written_results.py", "test_hostile.py", "test_scored_data.py",
          "test_claims.py", "test_config.py", "test_fingerprint.py", "test_words.py", "test_rng.py", "scoring",
          "streaming"),
}  # fmt: skip
"""The folders that get faults, and where in `tests/` the tests stand that have to notice them; ".": the files beside
the folders alone."""

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
UNSEEN = ("strict", "encoding")
"""Arguments whose absence no test can see: `strict` checks what holds, and UTF-8 is the encoding where tests run."""

SUMS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "//", ast.BitXor: "|"}


@dataclass(frozen=True)
class Fault:
    """A stretch `[start, stop)` of a file's characters, and what is put in its place."""

    file: str
    line: int
    before: str
    after: str
    start: int
    stop: int


# ---- The faults of a file ----


def faults(path: Path) -> list[Fault]:
    """All one-line faults of a file."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, after in exchanges(ast.parse(source), source):
        if node.lineno != node.end_lineno:
            continue
        line = source[starts[node.lineno - 1] : starts[node.lineno]]
        start, stop = (
            starts[node.lineno - 1] + len(line.encode()[:column].decode())
            for column in (node.col_offset, node.end_col_offset)
        )
        before = source[start:stop]
        if before != after:
            found.append(Fault(str(path.relative_to(ROOT)), node.lineno, before, after, start, stop))
    return found


def exchanges(tree: ast.AST, source: str) -> Iterator[tuple[Any, str]]:
    """(node, what stands in its place) of everything that runs and is no message."""
    for node in running(tree):
        yield from exchanges_of(node, partial(written, source))


@cache
def lines_of(source: str) -> list[bytes]:
    """The lines of a source; `ast.get_source_segment` divides the source anew for every part."""
    return source.encode().splitlines(keepends=True)


def written(source: str, part: ast.AST) -> str:
    """The source of a part, with the parentheses that it needs among others."""
    lines = lines_of(source)[part.lineno - 1 : part.end_lineno] if hasattr(part, "lineno") else []
    if lines:
        lines[-1] = lines[-1][: part.end_col_offset]
        lines[0] = lines[0][part.col_offset :]
    text = b"".join(lines).decode()
    return f"({text})" if isinstance(part, (ast.NamedExpr, ast.IfExp, ast.Lambda, ast.Compare, ast.BoolOp)) else text


def running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside functions, without messages, annotations, defaults and docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            for statement in child.body:
                yield statement
                yield from within(statement)
        else:
            yield from running(child)


def within(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without messages, annotations and nested docstrings."""
    if isinstance(node, (ast.Raise, ast.JoinedStr)) or is_message(node):
        return
    annotations = {id(part) for part in (getattr(node, "annotation", None), getattr(node, "returns", None))}
    for child in ast.iter_child_nodes(node):
        if id(child) in annotations or (isinstance(child, ast.keyword) and child.arg in UNSEEN):
            continue
        if not isinstance(child, (ast.arguments, ast.Raise, ast.JoinedStr)):
            yield child
            yield from within(child)


def is_message(node: ast.AST) -> bool:
    """Whether a statement is a docstring, or a line of the log."""
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    called = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Attribute) and getattr(called.value, "id", "") in ("logger", "warnings")


def exchanges_of(node: ast.AST, text: Any) -> Iterator[tuple[ast.AST, str]]:
    """What may stand in place of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, f"{text(node.left)} {COMPARISONS[type(node.ops[0])]} {text(node.comparators[0])}"
    elif isinstance(node, ast.BinOp) and type(node.op) in SUMS and not (is_text(node.left) or is_text(node.right)):
        yield node, f"({text(node.left)}) {SUMS[type(node.op)]} ({text(node.right)})"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, word.join(f"({text(part)})" for part in node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({text(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and not has_opposite(node.test):
        yield node.test, f"not ({text(node.test)})"
    elif (isinstance(node, ast.Expr) and not is_message(node)) or isinstance(node, ast.AugAssign):
        # A method that does without `super()` keeps its cell, and so can take the place of the one that is there.
        yield node, "__class__" if any(getattr(part, "id", "") == "super" for part in ast.walk(node)) else "pass"
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg not in (None, *UNSEEN) and len(node.keywords) > 1:
                kept = [text(part) for part in node.args]
                kept += [text(other) for other in node.keywords if other is not keyword]
                yield node, f"{text(node.func)}({', '.join(kept)})"


def is_text(node: ast.AST) -> bool:
    """Whether a part is a string as it stands: a sum of it, or a path of it, is no number."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def has_opposite(test: ast.AST) -> bool:
    """Whether a condition is exchanged for its opposite already, as a comparison or a `not`."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot))
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def drawn(count: int, seed: int, folders: list[str]) -> list[Fault]:
    """Faults drawn evenly from the folders, and in a folder from its files."""
    chosen: list[Fault] = []
    for number, folder in enumerate(folders):
        random_order = random.Random(f"{seed} {folder}")
        files = [faults(path) for path in files_of(folder)]
        for there in (files, *files):
            random_order.shuffle(there)
        turns = [fault for turn in itertools.zip_longest(*files) for fault in turn if fault is not None]
        chosen += turns[: count // len(folders) + (number < count % len(folders))]
    return chosen


# ---- Running the tests of a fault ----


def files_of(folder: str) -> list[Path]:
    """The files of the package that a folder names: all below it, or a file itself."""
    path = PACKAGE / folder
    return [path] if path.is_file() else sorted(path.glob("*.py") if folder == "." else path.rglob("*.py"))


def is_in(folder: str, fault: Fault) -> bool:
    """Whether a fault is in one of `FOLDERS`."""
    return ROOT / fault.file in files_of(folder)


def test_files(folders: list[str], named: Sequence[str]) -> list[str]:
    """The files of tests that are named, or else have to notice the faults of folders."""
    rows = [next(row for row in (Path(folder), *Path(folder).parents) if str(row) in FOLDERS) for folder in folders]
    places = [ROOT / "tests" / place for place in named or [place for row in rows for place in FOLDERS[str(row)]]]
    files = [file for place in places for file in ([place] if place.suffix == ".py" else place.rglob("test_*.py"))]
    return sorted({str(file) for file in files})


def digest_of_package() -> str:
    """A digest of the package's files: functions are known by their lines, which a change moves."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()


class CallRecorder:
    """A plugin of pytest that notes which functions of the package each test calls, and how long it takes."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.called: set[tuple[str, int]] = set()
        self.failed: set[str] = set()

    def note(self, frame: Any, event: str, arg: object) -> None:
        """Notes a call; lines are not followed."""
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begins to look at a test."""
        self.called, self.began = set(), time.process_time()
        sys.settrace(self.note)
        threading.settrace(self.note)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remembers a test that fails without a fault."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Keeps what was seen of a test that passes."""
        sys.settrace(None)
        threading.settrace(None)
        if nodeid not in self.failed:
            calls = sorted((str(Path(file).relative_to(ROOT)), line) for file, line in self.called)
            self.tests[nodeid] = {"seconds": time.process_time() - self.began, "calls": calls}


def function_of(fault: Fault) -> tuple[str, int]:
    """The file and the first line of the function that a fault is in."""
    target = str(ROOT / fault.file)
    starts = [
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for node in ast.walk(ast.parse(Path(target).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.lineno <= fault.line <= (node.end_lineno or node.lineno)
    ]
    return fault.file, max(starts)


def plant(fault: Fault) -> None:
    """Gives the functions that a fault is in, as they are in this process, their code with the fault."""
    target = str(ROOT / fault.file)
    importlib.import_module(".".join(Path(fault.file).with_suffix("").parts))  # before that it has no functions
    source = Path(target).read_text(encoding="utf-8")
    waiting = [compile(source[: fault.start] + fault.after + source[fault.stop :], target, "exec")]
    codes = {}
    while waiting:
        code = waiting.pop()
        codes[code.co_name, code.co_firstlineno] = code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == target:
            code = codes.get((one.__code__.co_name, one.__code__.co_firstlineno))
            if code is not None:
                try:
                    one.__code__ = code
                except ValueError as error:
                    raise SyntaxError("The fault changes which variables of its surroundings it reads.") from error


class Planter:
    """A plugin of pytest that collects the tests once, and runs those of each fault in a process of its own.

    Args:
        chosen: the faults.
        calls: file of what the tests call, written if missing.
        processes: how many faults at once.
        limit: seconds after which a fault counts as caught.
        most: processor seconds of tests after which one counts as survived.
    """

    def __init__(self, chosen: list[Fault], calls: Path, processes: int, limit: float, most: float) -> None:
        self.chosen, self.calls, self.processes, self.limit, self.most = chosen, calls, processes, limit, most
        self.tests: dict[str, dict[str, Any]] = {}
        self.fates: dict[Fault, str] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        """In place of pytest's own loop."""
        os.waitpid(start(lambda: self.record(session)), 0)
        self.tests = json.loads(self.calls.read_text(encoding="utf-8"))["tests"]
        failing = [item.nodeid for item in session.items if item.nodeid not in self.tests]
        print("Left out, because they fail without a fault:", *failing, sep="\n", file=sys.stderr, flush=True)
        self.fates = run(self.chosen, partial(self.run_tests, session), self.processes, self.limit)
        return True

    def record(self, session: Any) -> int:
        """Writes what those tests call of which that is not known; leaves out those that fail."""
        package = digest_of_package()
        before = json.loads(self.calls.read_text(encoding="utf-8")) if self.calls.exists() else {}
        known = before["tests"] if before.get("package") == package else {}
        recorder = CallRecorder()
        session.config.pluginmanager.register(recorder)
        run_items([item for item in session.items if item.nodeid not in known], stop=lambda: False)
        self.calls.write_text(json.dumps({"package": package, "tests": known | recorder.tests}), encoding="utf-8")
        return 0

    def run_tests(self, session: Any, fault: Fault, says: Path) -> int:
        """Plants the fault and runs the files of tests that call its function, until one fails: 1, else 0."""
        plant(fault)
        function = list(function_of(fault))
        callers = {name: test["seconds"] for name, test in self.tests.items() if function in test["calls"]}
        files: dict[str, float] = {}
        for name, seconds in callers.items():
            files[name.split("::")[0]] = files.get(name.split("::")[0], 0.0) + seconds
        places = {
            item: (files[item.nodeid.split("::")[0]], callers.get(item.nodeid, math.inf))
            for item in session.items
            if item.nodeid in self.tests and item.nodeid.split("::")[0] in files
        }
        end = time.process_time() + self.most
        last = run_items(
            sorted(places, key=places.__getitem__), stop=lambda: session.testsfailed or time.process_time() > end
        )
        if session.testsfailed:
            says.write_text(last, encoding="utf-8")
        return int(session.testsfailed > 0)


def run_items(items: list[Any], stop: Callable[[], bool]) -> str:
    """Runs tests until one says to stop; the name of the last."""
    name = ""
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        name = item.nodeid
        if stop():
            break
    return name


def start(job: Callable[[], int]) -> int:
    """Forks a quiet process that does a job and ends with its status; the process's id."""
    process = os.fork()
    os.setpgid(process, process)  # by both, so that neither comes too late; 0 is the process itself
    if process:
        return process
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    status = 1
    try:
        status = int(job() or 0)
    except SyntaxError:
        status = 99
    finally:
        os._exit(status)


def run(
    chosen: list[Fault], run_tests: Callable[[Fault, Path], int], processes: int, limit: float
) -> dict[Fault, str]:
    """Each fault's fate: "caught", "survived", "hung" (which counts as caught) or "no fault" (it is no Python)."""
    fates, running_now, waiting = {}, {}, list(chosen)
    says = Path(tempfile.mkdtemp())

    def tell(fault: Fault, by: Path) -> None:
        noticed = f" by {by.read_text(encoding='utf-8')}" if by.exists() else ""
        said = f"{len(fates)}/{len(chosen)} {fates[fault]}{noticed}: {fault.file}:{fault.line}"
        print(f"{said} {fault.before} → {fault.after}", file=sys.stderr, flush=True)

    while waiting or running_now:
        while waiting and len(running_now) < processes:
            fault = waiting.pop(0)
            by = says / str(len(waiting))
            running_now[start(partial(run_tests, fault, by))] = (fault, by, time.monotonic())
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            fault, by, _ = running_now.pop(process)
            fates[fault] = {0: "survived", 99: "no fault"}.get(os.waitstatus_to_exitcode(status), "caught")
            tell(fault, by)
            continue
        for process, (fault, by, began) in list(running_now.items()):
            if time.monotonic() - began > limit:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                fates[fault] = "hung"
                tell(fault, by)
                del running_now[process]
        time.sleep(0.05)
    return fates


def main() -> None:
    """Draws faults, runs the tests of each, prints what survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a fault counts as caught")
    parser.add_argument("--most", type=float, default=200, help="processor seconds of tests for a fault")
    parser.add_argument("--folders", default=",".join(FOLDERS), help="of `FOLDERS`, or folders and files in one")
    parser.add_argument("--tests", help="files or folders in `tests/`, instead of those of `FOLDERS`")
    parser.add_argument("--calls", type=Path, help="a JSON file of the functions that tests call, written if missing")
    parser.add_argument("--only", help="numbers of the drawn faults to plant, from 1, separated by commas")
    parser.add_argument("--output", type=Path, help="a JSON file for every fault and its fate")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    began = time.monotonic()
    folders = options.folders.split(",")
    chosen = drawn(options.count, options.seed, folders)
    if options.only:
        chosen = [chosen[int(number) - 1] for number in options.only.split(",")]
    calls = options.calls or Path(tempfile.mkdtemp()) / "calls.json"
    import pytest

    planter = Planter(chosen, calls, options.processes, options.limit, options.most)
    arguments = ["-q", "--no-header", "--no-summary", "--tb=no", "--capture=no", "-p", "no:cacheprovider"]
    touched = [folder for folder in folders if any(is_in(folder, fault) for fault in chosen)]
    tests = test_files(touched, options.tests.split(",") if options.tests else ())
    pytest.main([*arguments, *tests], plugins=[planter])
    fates = planter.fates
    planted = {fault: fate for fault, fate in fates.items() if fate != "no fault"}
    survivors = [fault for fault, fate in planted.items() if fate == "survived"]
    caught = len(planted) - len(survivors)
    print(f"{caught} of {len(planted)} faults caught ({caught / len(planted):.1%}), {time.monotonic() - began:.0f} s")
    for folder in folders:
        there = [fault for fault in planted if is_in(folder, fault)]
        print(f"  {folder}: {sum(planted[fault] != 'survived' for fault in there)} of {len(there)}")
    for fault in survivors:
        print(f"survived: {fault.file}:{fault.line}  {fault.before}  →  {fault.after}")
    if options.output:
        rows = [{**asdict(fault), "fate": fate} for fault, fate in planted.items()]
        options.output.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
