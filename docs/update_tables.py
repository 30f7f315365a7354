"""Writes what follows from `hf_curriculum.names`: the tables of docs/scores.md and docs/curricula.md, and the
`__init__.pyi` of `hf_curriculum` and of its tasks, by which type checkers and editors know names loaded on first use.

python docs/update_tables.py
"""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from pathlib import Path

from hf_curriculum import tasks
from hf_curriculum.names import BATCHES, CURRICULA, PUBLIC, SCORERS, homes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "scores.md", ROOT / "docs" / "curricula.md"]


def first_line(kind: type) -> str:
    """What a class is, in one line; a bar would end a table's cell."""
    return (kind.__doc__ or "").splitlines()[0].replace("|", "\\|")


def score_rows() -> str:
    """A line per scorer."""
    rows = [f"| `{kind.__name__}` | `{name}` | {kind.easy} | {first_line(kind)} |" for name, kind in SCORERS.items()]
    return "\n".join(["| score | column | easy | what it measures |", "|---|---|---|---|", *rows])


def curriculum_rows() -> str:
    """A line per curriculum and per structure of batches."""
    rows = [f"| `{kind.__name__}` | {first_line(kind)} |" for kind in (*CURRICULA.values(), *BATCHES.values())]
    return "\n".join(["| curriculum, batches | what is drawn |", "|---|---|", *rows])


def updated(text: str) -> str:
    """A page with the rows as they are now."""
    for name, rows in (("scores", score_rows()), ("curricula", curriculum_rows())):
        between = re.compile(rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = between.sub(lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text)
    return text


def stubs() -> dict[Path, str]:
    """What `hf_curriculum` and the package of each task offer, whose names are loaded on first use."""
    found, offered = {}, {"hf_curriculum": PUBLIC}
    for task in pkgutil.iter_modules(tasks.__path__, "hf_curriculum.tasks."):
        offered[task.name] = import_module(task.name).NAMES
    for package, modules in offered.items():
        path = ROOT.joinpath(*package.split("."), "__init__.py")
        lines = [f"from {home} import {name} as {name}" for name, home in sorted(homes(package, modules).items())]
        if package == "hf_curriculum":
            lines.append("__version__: str")
        found[path.with_suffix(".pyi")] = "\n".join(["# Made by docs/update_tables.py.", *lines, ""])
    return found


if __name__ == "__main__":
    for file, content in stubs().items():
        file.write_text(content, encoding="utf-8")
    for page in PAGES:
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
