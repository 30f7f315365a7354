"""The tables that the paper prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from babylm.tables import ALL_COLUMNS, Block, Column

FILE = Path(__file__).parent / "paper_tables.yaml"
_COLUMNS = {column.label: column for column in ALL_COLUMNS}


@dataclass(frozen=True)
class Printed:
    """One table of the paper.

    Args:
        number: of the table.
        title: what it shows.
        note: units, and misprints.
        columns: in order.
        rows: label → numbers.
    """

    number: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Mapping[Column, float]]

    def block(self) -> Block:
        """As a block beside ours."""
        return Block(f"paper: Saha et al. 2024, Table {self.number}", self.columns, self.rows, self.note)


@dataclass(frozen=True)
class Paper:
    """All tables of the paper.

    Args:
        source: the paper.
        tables: by number.
    """

    source: str
    tables: Mapping[str, Printed]


def read_paper_tables(file: str | Path = FILE) -> Paper:
    """The paper's tables."""
    content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    tables = {
        number: _table(number, {"columns": content["columns"], **table}, file)
        for number, table in content["tables"].items()
    }
    return Paper(content["source"], tables)


def _table(number: str, table: Mapping[str, Any], file: str | Path) -> Printed:
    unknown = [label for label in table["columns"] if label not in _COLUMNS]
    if unknown:
        raise ValueError(
            f"{file}: Table {number} has the columns {unknown}, which are none of {list(_COLUMNS)}. Their numbers "
            "could be compared with nothing. Name each by model, CL for a curriculum, and variant."
        )
    columns = tuple(_COLUMNS[label] for label in table["columns"])
    for label, values in table["rows"].items():
        if len(values) != len(columns):
            raise ValueError(
                f"{file}: Table {number}, row {label!r} has {len(values)} numbers for {len(columns)} columns, so some "
                "would stand under the wrong name. Give one per column, null for none."
            )
    rows = {
        label: {column: float(value) for column, value in zip(columns, values, strict=True) if value is not None}
        for label, values in table["rows"].items()
    }
    return Printed(number, table["title"], table["note"], columns, rows)
