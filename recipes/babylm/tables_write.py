"""The tables in a terminal, as Markdown, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from babylm.tables import Block, PaperTable
from babylm.tables_page import Page
from babylm.tables_training import curves

from hf_curriculum import markdown
from hf_curriculum.reporting.figures.curves import validation_curves
from hf_curriculum.reporting.html import cell
from hf_curriculum.reporting.report import Report

TITLE = "BabyLM: the paper's tables, ours beside the paper's"
_WIDTH = 100


def write_page(page: Page, folder: Path) -> dict[str, Path]:
    """Writes `tables.md`, `tables.json`, `report.html` and its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"md": folder / "tables.md", "json": folder / "tables.json"}
    files["md"].write_text(to_markdown(page), encoding="utf-8")
    encoded = json.dumps(to_dict(page), indent=1, ensure_ascii=False, allow_nan=False)
    files["json"].write_text(encoded + "\n", encoding="utf-8")
    files["html"] = to_report(page).write(folder)
    return files


def to_text(page: Page) -> str:
    """As a terminal shows it: columns under two lines of heading, as the paper has them."""
    parts = [TITLE, *(textwrap.fill(note, _WIDTH) for note in page.notes)]
    for table in page.tables:
        heading = f"{table.number}. {table.title}"
        parts.append(f"{heading}\n{'=' * len(heading)}")
        parts += [textwrap.fill(table.note, _WIDTH)] if table.note else []
        parts += [_block_text(table, block) for block in table.blocks]
    return "\n\n".join(parts) + "\n"


def to_markdown(page: Page) -> str:
    """One file, every table under its own heading."""
    parts = [f"# {TITLE}", *map(markdown.plain, page.notes)]
    for title, (heading, rows) in (("Runs", page.runs), ("Benchmarks", page.benchmarks)):
        parts += [f"## {title}", markdown.table(heading, [[cell(value) for value in row] for row in rows])]
    for table in page.tables:
        parts += [f"## {table.number}. {table.title}", *([markdown.plain(table.note)] if table.note else [])]
        for block in table.blocks:
            columns = ["", *(column.label for column in block.columns)]
            parts += [f"**{markdown.plain(block.title)}**", markdown.table(columns, table.cells(block))]
            parts += [markdown.plain(block.note)] if block.note else []
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def to_dict(page: Page) -> dict[str, Any]:
    """As JSON has it: numbers in full, null where there is none."""
    return {
        "source": page.source,
        "notes": list(page.notes),
        "runs": _records(*page.runs),
        "benchmarks": _records(*page.benchmarks),
        "tables": [
            {
                "number": table.number,
                "title": table.title,
                "note": table.note,
                "blocks": [_block_dict(table, block) for block in table.blocks],
            }
            for table in page.tables
        ],
    }


def to_report(page: Page) -> Report:
    """As a page that needs no network."""
    report = Report(TITLE, page.source)
    report.add_text("How to read this", "\n\n".join(page.notes))
    report.add_table("Runs", *page.runs)
    report.add_table("Benchmarks", *page.benchmarks)
    for table in page.tables:
        report.add_text(f"{table.number}. {table.title}", table.note)
        for block in table.blocks:
            columns = ["", *(column.label for column in block.columns)]
            report.add_text(None, f"**{block.title}**")
            report.add_table(None, columns, table.cells(block), note=block.note, align="l" + "r" * len(block.columns))
    for text, stage in ((False, "captions"), (True, "the text stage")):
        _add_curves(report, page, stage, text=text)
    return report


def _add_curves(report: Report, page: Page, stage: str, *, text: bool) -> None:
    title: str | None = f"Appendix B. Curves of {stage}"
    for place, group in enumerate(page.groups):
        for system, lines in curves(group, text=text).items():
            report.add_figure(
                title,
                partial(validation_curves, lines),
                f"{group.name}, {system}, seed {group.seed}: validation loss of {stage}, from before the first step.",
                name=re.sub(r"\W+", "_", f"loss_{'text' if text else 'captions'}_{place}_{group.name}_{system}"),
            )
            title = None


def _block_text(table: PaperTable, block: Block) -> str:
    """Title, columns and note; numbers to the right, the name of a model over its first column."""
    body = [["", *(column.variant for column in block.columns)], *table.cells(block)]
    widths = [max(len(row[place]) for row in body) for place in range(len(body[0]))]
    groups = [column.group for column in block.columns]
    firsts = [name if place == 0 or groups[place - 1] != name else "" for place, name in enumerate(groups)]
    members = [max(1, groups.count(name)) for name in groups]
    widths[1:] = [
        max(width, -(-len(name) // count)) for width, name, count in zip(widths[1:], groups, members, strict=True)
    ]
    top = " " * widths[0]
    for place, first in enumerate(firsts):
        if first:
            top = top.ljust(widths[0] + sum(width + 2 for width in widths[1 : place + 1])) + "  " + first
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in body
    ]
    notes = textwrap.wrap(block.note, _WIDTH)
    return "\n".join([block.title, top, *lines, *notes])


def _block_dict(table: PaperTable, block: Block) -> dict[str, Any]:
    rows = []
    for label, values in block.rows.items():
        won, spread = table.winners(block, label), block.spread.get(label, {})
        row: dict[str, Any] = {"label": label, "values": {c.label: values.get(c) for c in block.columns}}
        row["winners"] = [column.label for column in block.columns if column in won]
        if spread:
            row["deviations"] = {column.label: value for column, value in spread.items()}
        rows.append(row)
    columns = [{"label": column.label, **dataclasses.asdict(column)} for column in block.columns]
    return {"title": block.title, "note": block.note, "columns": columns, "rows": rows}


def _records(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(heading, row, strict=True)) for row in rows]
