"""A table of BabyLM's paper: columns by model, curriculum and variant, ours and the paper's in blocks of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hf_curriculum.reporting.html import number

SYSTEMS = ("GIT", "Flamingo")
VARIANTS = ("C", "T+C", "T&C")
"""Captions alone; text, then captions; both at once, which the paper has not."""
DASH = "–"
MARK = "▲"
"""Stands before a winner."""
RULE = (
    f"{MARK} marks a curriculum (CL) above the baseline of the same model and variant, as green does in the paper: "
    "numbers are compared as they are printed, so a tie marks neither, and without a baseline there is no mark. "
    f"The paper's numbers are marked by the same rule. {DASH} is a number that is not there."
)


@dataclass(frozen=True)
class Column:
    """What one column is about.

    Args:
        system: "GIT" or "Flamingo".
        curriculum: whether it was trained by a curriculum.
        variant: one of `VARIANTS`.
    """

    system: str
    curriculum: bool
    variant: str

    @property
    def group(self) -> str:
        """Such as "GIT CL"."""
        return f"{self.system} CL" if self.curriculum else self.system

    @property
    def label(self) -> str:
        """Such as "GIT CL T+C"."""
        return f"{self.group} {self.variant}"

    @property
    def baseline(self) -> Column | None:
        """The column that a curriculum is compared with."""
        return Column(self.system, False, self.variant) if self.curriculum else None


ALL_COLUMNS = tuple(
    Column(system, curriculum, variant) for system in SYSTEMS for curriculum in (False, True) for variant in VARIANTS
)
"""Every column there can be, in the paper's order."""
PAPER_COLUMNS = tuple(column for column in ALL_COLUMNS if column.variant != "T&C")
"""The paper's eight."""

Values = Mapping[Column, float]
"""A row's numbers; a column that is not in it has none."""


def winners(values: Values, digits: int = 2) -> frozenset[Column]:
    """The curricula whose number is above their baseline's as both are printed."""
    printed = {column: float(f"{value:.{digits}f}") for column, value in values.items()}
    return frozenset(
        column for column, value in printed.items() if column.baseline in printed and value > printed[column.baseline]
    )


@dataclass(frozen=True)
class Block:
    """The numbers of one source.

    Args:
        title: whose they are.
        columns: in order.
        rows: label → numbers.
        note: what a reader of these numbers must know.
        spread: label → standard deviations over seeds, where there are any.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Values]
    note: str = ""
    spread: Mapping[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Args:
        number: of the table, or of several: "Tables 11 to 14".
        title: what it shows.
        blocks: ours, and the paper's.
        note: of all blocks.
        digits: decimals; None for three significant digits.
        marked: whether winners are marked.
    """

    number: str
    title: str
    blocks: tuple[Block, ...]
    note: str = ""
    digits: int | None = 2
    marked: bool = True

    def winners(self, block: Block, label: str) -> frozenset[Column]:
        """Those of a row, none where the paper marks none."""
        return winners(block.rows[label], self.digits) if self.marked and self.digits is not None else frozenset()

    def cells(self, block: Block) -> list[list[str]]:
        """The rows of a block as text: label, then a cell per column."""
        return [
            [label, *(self._cell(block, label, column, self.winners(block, label)) for column in block.columns)]
            for label in block.rows
        ]

    def _cell(self, block: Block, label: str, column: Column, won: frozenset[Column]) -> str:
        value = block.rows[label].get(column)
        if value is None:
            return DASH
        spread = block.spread.get(label, {}).get(column)
        text = self._text(value) if spread is None else f"{self._text(value)} ± {self._text(spread)}"
        return f"{MARK} {text}" if column in won else text

    def _text(self, value: float) -> str:
        return number(value) if self.digits is None else f"{value:.{self.digits}f}"
