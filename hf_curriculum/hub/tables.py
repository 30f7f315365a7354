"""A table of numbers and text as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from hf_curriculum.hub.markup import cell, escape, reads_as_number

LONGEST_CELL = 600
"""Characters of a cell that are written; the page shows six lines of it."""
SHORT = 28
"""Characters that stay on one line; longer text wraps."""
_CLASSES = {"l": "", "r": ' class="r"', "c": ' class="c"'}


def table_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], align: str | None = None) -> str:
    """The table in a box of its own, in which it scrolls where the screen is too narrow.

    Args:
        title: what it shows, for readers that hear the page, and for errors.
        columns: names of the columns.
        rows: cells; numbers get thousands separators and four digits, `None` and NaN a dash.
        align: a letter per column, `l`, `r` or `c`; by default columns of numbers go to the right.

    Raises:
        ValueError: a row or `align` does not fit the columns.

    Example:
        >>> "1,000" in table_html("Pools", ["phase", "pool"], [["all", 1000]])
        True
    """
    for index, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(
                f"Row {index} of the table {title!r} has {len(row)} cells for the {len(columns)} columns "
                f"{list(columns)}. Its values would stand under the wrong names. Give one cell per column."
            )
    if align is None:
        numbers = [rows and all(reads_as_number(row[index]) for row in rows) for index in range(len(columns))]
        align = "".join("r" if right else "l" for right in numbers)
    if len(align) != len(columns) or set(align) - set(_CLASSES):
        raise ValueError(f"`align` is {align!r} for {len(columns)} columns. Give one of l, r, c for each of them.")
    kinds = [_CLASSES[letter] for letter in align]
    head = "".join(
        f'<th scope="col" dir="auto"{kind}>{_text(name)}</th>' for kind, name in zip(kinds, columns, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell(value, kind) for kind, value in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _cell(value: object, kind: str) -> str:
    return f'<td dir="auto"{kind}>{_text(cell(value))}</td>'


def _text(text: str) -> str:
    escaped = escape(text, LONGEST_CELL)
    return escaped if len(text) <= SHORT else f'<div class="clip">{escaped}</div>'
