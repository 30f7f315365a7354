"""Plants one-line faults in the package, one at a time, and counts those that the tests of their room notice.

    python recipes/benchmarks/mutations.py --count 200 --seed 0 --processes 2

Faults are drawn evenly from the rooms in `ROOMS`: comparisons, sums, booleans, numbers and conditions exchanged, an
argument or a statement left out. Messages, annotations and docstrings are left alone. All tests of the rooms run once
without a fault, to see which call which functions and how long they take (`--calls` keeps that). Then each fault
meets the files of tests that call its function, the fastest first, until a test fails, in a process forked from one
that has imported the libraries. What survives is printed, and written as JSON with `--output`. A survivor is a test
that is missing, or a fault that changes nothing. Programs that tests start anew do not have the fault.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hf_curriculum"
ROOMS = {
    "planning": ("planning", "curricula", "training"),
    "curricula": ("curricula", "planning", "training"),
    "training": ("training", "curricula", "streaming"),
    "scoring": ("scoring", "scorers", "test_provenance.py", "test_scored_data.py"),
    "evaluation": ("evaluation", "reporting"),
}
"""The rooms that get faults, and where in `tests/` the tests stand that have to notice them."""

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
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


def written(source: str, part: ast.AST) -> str:
    """The source of a part, with the parentheses that it needs among others."""
    text = ast.get_source_segment(source, part) or ""
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
        if id(child) not in annotations and not isinstance(child, (ast.arguments, ast.Raise, ast.JoinedStr)):
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
    elif isinstance(node, ast.BinOp) and type(node.op) in SUMS:
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
        yield node, "pass"
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None and len(node.keywords) > 1:
                kept = [text(part) for part in node.args]
                kept += [text(other) for other in node.keywords if other is not keyword]
                yield node, f"{text(node.func)}({', '.join(kept)})"


def has_opposite(test: ast.AST) -> bool:
    """Whether a condition is exchanged for its opposite already, as a comparison or a `not`."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot))
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def drawn(count: int, seed: int, rooms: list[str]) -> list[Fault]:
    """Faults drawn evenly from the rooms."""
    chosen: list[Fault] = []
    for number, room in enumerate(rooms):
        there = [fault for path in sorted((PACKAGE / room).rglob("*.py")) for fault in faults(path)]
        share = count // len(rooms) + (number < count % len(rooms))
        chosen += random.Random(f"{seed} {room}").sample(there, min(share, len(there)))
    return chosen


# ---- Running the tests of a fault ----


def test_files(rooms: list[str]) -> list[str]:
    """The files of tests that have to notice the faults of rooms."""
    places = [ROOT / "tests" / place for room in rooms for place in ROOMS[room]]
    files = [file for place in places for file in ([place] if place.suffix == ".py" else place.rglob("test_*.py"))]
    return sorted({str(file) for file in files})


class CallRecorder:
    """A plugin of pytest that writes which functions of the package each test calls, and how long it takes."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.tests: dict[str, dict[str, Any]] = {}
        self.called: set[tuple[str, int]] = set()

    def note(self, frame: Any, event: str, arg: object) -> None:
        """Notes a call; lines are not followed."""
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begins to look at a test."""
        self.called, self.began = set(), time.process_time()
        sys.settrace(self.note)
        threading.settrace(self.note)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Ends it."""
        sys.settrace(None)
        threading.settrace(None)
        self.tests[nodeid] = {"seconds": time.process_time() - self.began, "calls": sorted(self.called)}

    def pytest_sessionfinish(self) -> None:
        """Writes what was seen."""
        self.output.write_text(json.dumps(self.tests), encoding="utf-8")


class CallersOnly:
    """A plugin of pytest that keeps the files whose tests call a function; the fastest files and callers go first."""

    def __init__(self, tests: dict[str, dict[str, Any]], function: tuple[str, int]) -> None:
        self.callers = {name: test["seconds"] for name, test in tests.items() if list(function) in test["calls"]}
        self.files: dict[str, float] = {}
        for name, seconds in self.callers.items():
            file = str(ROOT / name.split("::")[0])
            self.files[file] = self.files.get(file, 0.0) + seconds

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Sorts the tests."""
        items.sort(key=lambda item: (self.files[str(item.path)], self.callers.get(item.nodeid, float("inf"))))


def function_of(fault: Fault) -> tuple[str, int]:
    """The file and the first line of the function that a fault is in."""
    target = str(ROOT / fault.file)
    starts = [
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for node in ast.walk(ast.parse(Path(target).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.lineno <= fault.line <= (node.end_lineno or node.lineno)
    ]
    return target, max(starts)


def pytest_main(arguments: list[str], plugin: object) -> int:
    """Runs tests in this process; pytest's exit status."""
    import pytest

    options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, *arguments], plugins=[plugin]))


def run_tests(fault: Fault, tests: dict[str, dict[str, Any]]) -> int:
    """Runs the tests that call the fault's function with the fault in place, in this process; pytest's exit status."""
    target = str(ROOT / fault.file)
    source = Path(target).read_text(encoding="utf-8")
    code = compile(source[: fault.start] + fault.after + source[fault.stop :], target, "exec")
    stock = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: code if self.path == target else stock(self, name)
    callers = CallersOnly(tests, function_of(fault))
    return pytest_main(["-x", *callers.files], callers) if callers.files else 0


def start(job: Callable[[], int]) -> int:
    """Forks a quiet process that does a job and ends with its status; the process's id."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    status = 1
    try:
        status = job()
    except SyntaxError:
        status = 99
    finally:
        os._exit(status)


def record_calls(rooms: list[str], output: Path) -> None:
    """Runs all tests of rooms without a fault; each has to pass."""
    _, status = os.waitpid(start(lambda: pytest_main(test_files(rooms), CallRecorder(output))), 0)
    if status:
        raise SystemExit("The tests fail without a fault: run pytest first.")


def run(chosen: list[Fault], tests: dict[str, dict[str, Any]], processes: int, limit: float) -> dict[Fault, str]:
    """Each fault's fate: "caught", "survived", "hung" (which counts as caught) or "no fault" (it is no Python)."""
    fates, running_now, waiting = {}, {}, list(chosen)
    while waiting or running_now:
        while waiting and len(running_now) < processes:
            fault = waiting.pop(0)
            running_now[start(partial(run_tests, fault, tests))] = (fault, time.monotonic())
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            fault, _ = running_now.pop(process)
            fates[fault] = {0: "survived", 99: "no fault"}.get(os.waitstatus_to_exitcode(status), "caught")
            said = (
                f"{len(fates)}/{len(chosen)} {fates[fault]}: {fault.file}:{fault.line} {fault.before} → {fault.after}"
            )
            print(said, file=sys.stderr, flush=True)
            continue
        for process, (fault, began) in list(running_now.items()):
            if time.monotonic() - began > limit:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                fates[fault] = "hung"
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
    parser.add_argument("--rooms", default=",".join(ROOMS), help="separated by commas")
    parser.add_argument("--calls", type=Path, help="a JSON file of the functions that tests call, written if missing")
    parser.add_argument("--only", help="numbers of the drawn faults to plant, from 1, separated by commas")
    parser.add_argument("--output", type=Path, help="a JSON file for every fault and its fate")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    began = time.monotonic()
    rooms = options.rooms.split(",")
    import transformers.trainer  # noqa: F401  (imported for the processes that are forked)

    if options.calls is None or not options.calls.exists():
        options.calls = options.calls or Path(tempfile.mkdtemp()) / "calls.json"
        record_calls(rooms, options.calls)
    tests = json.loads(options.calls.read_text(encoding="utf-8"))
    chosen = drawn(options.count, options.seed, rooms)
    if options.only:
        chosen = [chosen[int(number) - 1] for number in options.only.split(",")]
    fates = run(chosen, tests, options.processes, options.limit)
    planted = {fault: fate for fault, fate in fates.items() if fate != "no fault"}
    survivors = [fault for fault, fate in planted.items() if fate == "survived"]
    caught = len(planted) - len(survivors)
    print(f"{caught} of {len(planted)} faults caught ({caught / len(planted):.1%}), {time.monotonic() - began:.0f} s")
    for room in rooms:
        there = [fault for fault in planted if Path(fault.file).parts[1] == room]
        print(f"  {room}: {sum(planted[fault] != 'survived' for fault in there)} of {len(there)}")
    for fault in survivors:
        print(f"survived: {fault.file}:{fault.line}  {fault.before}  →  {fault.after}")
    if options.output:
        rows = [{**asdict(fault), "fate": fate} for fault, fate in planted.items()]
        options.output.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
