"""Text and data in Markdown files that stay inside their place, whatever they hold."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import yaml

TAGS = ("curriculum-learning", "hf_curriculum")
"""What every card is found by."""
START, END = "<!-- hf_curriculum: start -->", "<!-- hf_curriculum: end -->"
"""What stands between them is written again by every push."""
_SPECIAL = re.compile(
    r"[\\`*_\[\]#|~$@^!]"  # markup, wherever they stand
    r"|\A[-+=]|(?<=\A\d)[.)](?!\S)|(?<=\A\d\d)[.)](?!\S)"  # lists and headings, at the beginning of a line
    r"|(?<!\d)\.(?=\w)|\.(?=[^\W\d])|:(?=\S)"  # links and pictograms
)
_RUN = ("=", "+", "-", "@", "\t", "\r", "\n", "'", "＝", "＋", "－", "＠")  # how cells begin that spreadsheets run
_JOINERS = "\u200c\u200d"  # they hold letters apart and an emoji together, and do nothing else
_FRONT = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def one_line(text: object, limit: int | None = None) -> str:
    """Text without line breaks, control characters or marks that turn the direction of writing; perhaps shortened."""
    plain = "".join(
        char if char in _JOINERS or unicodedata.category(char)[0] not in "CZ" else " " for char in str(text)
    ).strip()
    plain = re.sub(r" {2,}", " ", plain)
    return plain if limit is None or len(plain) <= limit else plain[: limit - 1].rstrip() + "…"


def csv_cell(value: Any) -> Any:
    """A cell of CSV that a spreadsheet shows and does not run: a text that could be a formula gets a `'` before it.

    One that begins with `'` gets another, so that `csv_text` tells them apart; numbers stay numbers.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_RUN) else value


def csv_text(cell: str) -> str:
    """The text that `csv_cell` wrote."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_RUN) else cell


def plain(text: object, limit: int | None = None) -> str:
    """Text that Markdown shows as it is: no markup, HTML, link or table can begin in it."""
    shown = _SPECIAL.sub(r"\\\g<0>", one_line(text, limit))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], limit: int | None = 300, *, for_terminals: bool = False
) -> str:
    """A Markdown table; every cell is escaped, None and empty text become a dash."""

    def shown(cell: object, limit: int | None = limit) -> str:
        if cell is None:
            return "–"
        return one_line(cell).replace("|", "\\|") if for_terminals else plain(cell, limit) or "–"

    lines = [[shown(name, 80) for name in columns], ["---"] * len(columns), *(map(shown, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def front_matter(content: Mapping[str, Any]) -> str:
    """A card's YAML header, marks included. Every text in it stands on one line, so none can end the header."""
    text = yaml.safe_dump(_on_one_line(content), sort_keys=False, allow_unicode=True, width=float("inf"))
    return f"---\n{text}---\n"


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The YAML header and the body of a card; a ValueError where the header is no mapping."""
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    try:
        content = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise ValueError(f"The YAML header of the card cannot be read ({error}). Repair it, or remove it.") from error
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"The YAML header of the card is a {type(content).__name__}, not a mapping. Repair it.")
    return content or {}, text[found.end() :]


def renewed(body: str, section: str) -> str:
    """The body of a card with our section, between `START` and `END`, written again; the rest stays."""
    section = section.replace(START, START[1:]).replace(END, END[1:])
    before, start, rest = body.partition(START)
    if not start:
        before = body.rstrip("\n") + "\n\n"
    return f"{before}{START}\n{section.strip(chr(10))}\n{END}{rest.partition(END)[2] or chr(10)}"


def filled(template: str, **parts: str) -> str:
    """A template of cards with its parts in it; those that are empty leave no hole."""
    text = (files("hf_curriculum.hub") / "templates" / template).read_text("utf-8")
    return re.sub(r"\n{3,}", "\n\n", Template(text).substitute(parts))


def merged_tags(old: object, *new: str | None) -> list[str]:
    """The tags of a header, which may be one or several, and ours behind them, each once."""
    tags = [old] if isinstance(old, str) else old or []
    return [tag for tag in dict.fromkeys([*tags, *new]) if tag]


def _on_one_line(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {one_line(name): _on_one_line(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_on_one_line(item) for item in value]
    return one_line(value) if isinstance(value, str) else value


def titled_tables(tables: Iterable[tuple[str, Any, Any, Iterable[str]]], *, for_terminals: bool = False) -> str:
    """Several tables one after the other: title (none if empty), columns, rows and notes of each."""
    return "\n".join(
        (f"### {title}\n\n" if title else "")
        + table(columns, rows, for_terminals=for_terminals)
        + "".join(f"\n{note}\n" for note in notes)
        for title, columns, rows, notes in tables
    )
