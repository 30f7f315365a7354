"""How large the house is: files, lines, names, what importing the trainer loads; of this checkout and of a commit.

    python recipes/benchmarks/house.py [COMMIT]

Static numbers are read from the source. Seconds and calls are measured in a process of their own, with the checkout's
package first on the path.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAINER = "hf_curriculum.training.trainer"
MEASURE = """
import json, sys, tempfile, time
from pathlib import Path
import torch, transformers, datasets

started = time.perf_counter()
import hf_curriculum
seconds = time.perf_counter() - started
from hf_curriculum import CaptionCollator, CurriculumTrainer, load_captioned, make_image_processor, train_wordpiece

found = {
    "import hf_curriculum, seconds beyond its libraries": round(seconds, 2),
    "classes of ours in the trainer's resolution": sum(
        one.__module__.startswith("hf_curriculum.") for one in CurriculumTrainer.__mro__
    ),
    "names at the top": len(hf_curriculum.__all__),
    "modules of ours that CurriculumTrainer loads": sum(name.startswith("hf_curriculum.") for name in sys.modules),
}
from PIL import Image

calls = []


def note(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("hf_curriculum.") and not frame.f_code.co_name.startswith("<"):
        calls.append((name, frame.f_code.co_name))


datasets.disable_progress_bars()
with tempfile.TemporaryDirectory() as folder:
    datasets.config.HF_DATASETS_CACHE = Path(folder, "cache")
    photos = Path(folder, "photos")
    photos.mkdir()
    Image.new("RGB", (8, 8)).save(photos / "0.png")
    (photos / "captions.csv").write_text("file_name,caption\\n0.png,a dog\\n")
    tokenizer = train_wordpiece(["a dog"], 30)
    processor = make_image_processor(8)
    sys.setprofile(note)
    rows = load_captioned(photos)
    CaptionCollator(tokenizer, processor)([rows[0]])
    sys.setprofile(None)
found["functions from load_captioned to a batch"] = len(set(calls))
modules = [name for name, _ in calls]
changes = [now for before, now in zip(modules, modules[1:]) if before != now]
found["returns to a module on that way"] = len(changes) - len(set(changes))
print(json.dumps(found))
"""


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package."""
    package = root / "hf_curriculum"
    return {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }


def imported(path: Path, known: dict[str, Path], *, late: bool) -> set[str]:
    """The modules of the package that a file imports; with `late` those inside functions and for types too."""

    def statements(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            yield child
            is_block = isinstance(child, (ast.If, ast.Try, ast.With)) and "TYPE_CHECKING" not in ast.unparse(child)
            if late or is_block:
                yield from statements(child)

    found = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & set(known) or {node.module}
    return found & set(known)


def lines(paths: object) -> int:
    """The lines of files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def task(module: str) -> str:
    """The task that a module is of; empty for the spine."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["tasks"] and len(parts) > 2 else ""


def measure(root: Path) -> dict[str, float]:
    """All numbers of a checkout."""
    known = modules(root)
    core, left = {TRAINER}, [TRAINER]
    while left:
        new = imported(known[left.pop()], known, late=False) - core
        core |= new
        left += new
    pairs = [(module, other) for module, path in known.items() for other in imported(path, known, late=True)]
    found = {
        "package, files": len(known),
        "package, lines": lines(known.values()),
        "closure of the trainer, files": len(core),
        "closure of the trainer, lines": lines(known[module] for module in core),
        "imports from spine to task": sum(not task(one) and bool(task(other)) for one, other in pairs),
        "imports between tasks": sum(
            bool(task(one)) and bool(task(other)) and task(one) != task(other) for one, other in pairs
        ),
        "recipes, lines": lines((root / "recipes").rglob("*.py")),
        "tests, lines": lines((root / "tests").rglob("*.py")),
    }
    environment = {**os.environ, "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"}
    told = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    return {**found, **json.loads(told.stdout.splitlines()[-1])}


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="also of this commit")
    commit = parser.parse_args().commit
    now = measure(ROOT)
    if commit is None:
        print("\n".join(["| | here |", "|---|---|", *(f"| {name} | {value:,} |" for name, value in now.items())]))
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "before")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", place, commit], check=True)
        try:
            before = measure(place)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", place], check=True)
    rows = [f"| {name} | {before.get(name, '–'):,} | {value:,} |" for name, value in now.items()]
    print("\n".join([f"| | {commit} | here |", "|---|---|---|", *rows]))


if __name__ == "__main__":
    main()
