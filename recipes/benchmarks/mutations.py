"""Plants one-line faults in the package, one at a time, and counts those that the tests of their room notice.

    python recipes/benchmarks/mutations.py --count 200 --seed 0 --processes 2

Faults are drawn evenly from the rooms in `ROOMS`: comparisons, sums, booleans, numbers and conditions exchanged, an
argument or a statement left out. Messages, annotations and docstrings are left alone. The tests that name the fault's
module run first, then the rest of its room and of the rooms beside it; a run ends with the first test that fails. The
libraries are imported once: each fault runs in a process forked from one that has them. What survives is printed, and
written as JSON with `--output`. A survivor is a test that is missing, or a fault that changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
        yield from exchanges_of(node, lambda part: ast.get_source_segment(source, part) or "")


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
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"not ({text(node.test)})"
    elif (isinstance(node, ast.Expr) and not is_message(node)) or isinstance(node, ast.AugAssign):
        yield node, "pass"
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None and len(node.keywords) > 1:
                kept = [text(part) for part in node.args]
                kept += [text(other) for other in node.keywords if other is not keyword]
                yield node, f"{text(node.func)}({', '.join(kept)})"


def drawn(count: int, seed: int, rooms: list[str]) -> list[Fault]:
    """Faults drawn evenly from the rooms."""
    chosen: list[Fault] = []
    for number, room in enumerate(rooms):
        there = [fault for path in sorted((PACKAGE / room).rglob("*.py")) for fault in faults(path)]
        share = count // len(rooms) + (number < count % len(rooms))
        chosen += random.Random(f"{seed} {room}").sample(there, min(share, len(there)))
    return chosen


# ---- Running the tests of a fault ----


def tests_of(fault: Fault) -> list[str]:
    """The files of tests that have to notice a fault, those that name its module first."""
    path = Path(fault.file)
    module, rooms = path.stem, ROOMS[path.parts[1]]
    files = []
    for room in rooms:
        place = ROOT / "tests" / room
        files += [place] if place.suffix == ".py" else sorted(place.rglob("test_*.py"))
    named = re.compile(rf"\b{module}\b")
    order = [(module not in file.stem, named.search(file.read_text(encoding="utf-8")) is None) for file in files]
    return [str(file) for _, file in sorted(zip(order, files, strict=True), key=lambda pair: pair[0])]


def run_tests(fault: Fault) -> int:
    """Runs the tests with the fault in place, in this process; pytest's exit status."""
    import pytest

    target = str(ROOT / fault.file)
    source = Path(target).read_text(encoding="utf-8")
    code = compile(source[: fault.start] + fault.after + source[fault.stop :], target, "exec")
    stock = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: code if self.path == target else stock(self, name)
    return pytest.main(["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *tests_of(fault)])


def start(fault: Fault) -> int:
    """Forks a process for a fault; its id."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    status = 1
    try:
        status = int(run_tests(fault))
    except SyntaxError:
        status = 99
    finally:
        os._exit(status)


def run(chosen: list[Fault], processes: int, limit: float) -> dict[Fault, str]:
    """Each fault's fate: "caught", "survived", "hung" (which counts as caught) or "no fault" (it is no Python)."""
    import transformers
    import transformers.trainer  # noqa: F401  (imported for the processes that are forked)

    fates, running_now, waiting = {}, {}, list(chosen)
    while waiting or running_now:
        while waiting and len(running_now) < processes:
            running_now[start(waiting[0])] = (waiting.pop(0), time.monotonic())
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
    parser.add_argument("--output", type=Path, help="a JSON file for every fault and its fate")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    began = time.monotonic()
    fates = run(drawn(options.count, options.seed, options.rooms.split(",")), options.processes, options.limit)
    planted = {fault: fate for fault, fate in fates.items() if fate != "no fault"}
    survivors = [fault for fault, fate in planted.items() if fate == "survived"]
    caught = len(planted) - len(survivors)
    print(f"{caught} of {len(planted)} faults caught ({caught / len(planted):.1%}), {time.monotonic() - began:.0f} s")
    for room in options.rooms.split(","):
        there = [fault for fault in planted if Path(fault.file).parts[1] == room]
        print(f"  {room}: {sum(planted[fault] != 'survived' for fault in there)} of {len(there)}")
    for fault in survivors:
        print(f"survived: {fault.file}:{fault.line}  {fault.before}  →  {fault.after}")
    if options.output:
        rows = [{**asdict(fault), "fate": fate} for fault, fate in planted.items()]
        options.output.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
