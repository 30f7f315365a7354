"""Tables for a terminal or a file: plain lines, whole names, one line per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_curriculum.hub.markdown import one_line


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table whose columns stand under each other.

    Args:
        head: names of the columns.
        rows: cells; control characters become spaces, so that a caption cannot write over the terminal.
        left: so many columns stand to the left, the others to the right; a last column beyond is text.

    Example:
        >>> print(lines_of(["score", "min"], [["noun_count", "3"]]))
        score       min
        noun_count    3
    """
    table = [[one_line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def score_table(splits: Mapping[str, Any]) -> str:
    """Every score of every split in a line.

    Args:
        splits: `describe_scores(dataset)["splits"]`.
    """
    several = len(splits) > 1
    head = (["split"] if several else []) + ["score", "by", "easy"]
    numbers = ["scored", "unscored", "min", "25 %", "median", "75 %", "max"]
    rows = []
    for split, told in splits.items():
        for column, facts in told["scores"].items():
            made = facts["provenance"]
            per_image = f", {made['per_image']} per image" if made["per_image"] else ""
            marks = [facts[name] for name in ("min", "q25", "median", "q75", "max")]
            rows.append(
                ([split] if several else [])
                + [column, f"{made['scorer']}{per_image}", made["easy"]]
                + [f"{facts['rows'] - facts['unscored']:,}", f"{facts['unscored']:,}"]
                + ["–" if mark is None else f"{mark:.4g}" for mark in marks]
            )
    return lines_of(head + numbers, rows, left=len(head))
