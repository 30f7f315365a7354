"""Writes the rows of scores and curricula into README.md, from the tables of `hf_curriculum` and their docstrings.

python docs/update_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

from hf_curriculum import BATCHES, CURRICULA, SCORERS

README = Path(__file__).parents[1] / "README.md"


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
    """The README with the rows as they are now."""
    for name, rows in (("scores", score_rows()), ("curricula", curriculum_rows())):
        between = re.compile(rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = between.sub(lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
