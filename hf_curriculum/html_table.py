"""A table for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from markupsafe import Markup

from hf_curriculum.markdown import one_line


def html_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: Collection[str] = (),
    above: str = "",
    below: Iterable[str] = (),
) -> Markup:
    """A table in the colours and the font of the page that it stands on, light or dark; every text in it is escaped.

    Args:
        columns: names of the columns.
        rows: cells; None becomes a dash.
        left: the columns of text. The others stand on the right, as numbers do.
        above: a line above the table.
        below: lines below it; those that begin with a space are indented.
    """
    sides = ["left" if name in left else "right" for name in columns]

    def row(tag: str, cells: Sequence[object]) -> Markup:
        cell = Markup('<{0} dir="auto" style="text-align: {1}">{2}</{0}>')
        texts = ["–" if one is None else one_line(one, 300) for one in cells]
        shown = [cell.format(tag, side, text) for side, text in zip(sides, texts, strict=True)]
        return Markup("<tr>{}</tr>\n").format(Markup("").join(shown))

    body = Markup("").join(row("td", cells) for cells in rows)
    lines = "\n".join("  " * line.startswith(" ") + one_line(line) for line in below)
    parts = [
        Markup('<div dir="auto">{}</div>\n').format(one_line(above)) if above else "",
        Markup("<table>\n<thead>{}</thead>\n<tbody>{}</tbody>\n</table>\n").format(row("th", columns), body),
        Markup('<div dir="auto" style="white-space: pre-wrap">{}</div>\n').format(lines) if lines else "",
    ]
    return Markup("").join(parts)
