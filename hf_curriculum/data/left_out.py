"""What reading a source leaves out, counted by reason and reported once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from datasets import Dataset

from hf_curriculum.config import brief, redact

logger: logging.Logger = logging.getLogger(__name__)


LEFT_OUT = ", left out: "
"""Stands between a source and what was left out of it."""


def left_out_of(dataset: Dataset) -> str:
    """What reading left out of a data set, from its description; "" where that was nothing."""
    return "\n".join(line for line in (dataset.info.description or "").split("\n") if LEFT_OUT in line)


def note_left_out(dataset: Dataset, text: str) -> None:
    """Writes what was left out into a data set's description."""
    dataset.info.description = "\n".join(filter(None, [dataset.info.description, text]))


class LeftOut:
    """Counts of what a reader leaves out of a source: rows, fields, files, marks.

    The report is one warning, and stands in `dataset.info.description` of each loaded data set, which `datasets` saves
    and `hf-curriculum inspect` shows. There is none where nothing was left out.

    Example:
        >>> left_out = LeftOut()
        >>> left_out.add("rows without a file name", 2, "row 7")
        >>> left_out.describe()
        'rows without a file name: 2 (row 7, for example)'
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, object] = {}

    def add(self, reason: str, count: int = 1, example: object = None) -> None:
        """Counts something, by a plural that names it and says why; the first example is shown."""
        if count:
            self.counts[reason] += count
            self._examples.setdefault(reason, example)

    def items(self) -> list[tuple[str, int, object]]:
        """The reasons, with their count and first example."""
        return [(reason, count, self._examples[reason]) for reason, count in self.counts.items()]

    def describe(self) -> str:
        """One line, "" where nothing was left out."""
        examples = {reason: example for reason, example in self._examples.items() if example is not None}
        return "; ".join(
            f"{reason}: {count:,}" + (f" ({brief(examples[reason])}, for example)" if reason in examples else "")
            for reason, count in self.counts.items()
        )

    def report(self, source: str | Path, datasets: Iterable[Dataset]) -> None:
        """Logs what was left out of a source, and writes it into the descriptions of what was loaded."""
        if self.counts:
            text = f"{redact(str(source))}{LEFT_OUT}{self.describe()}."
            logger.warning(text)
            for dataset in datasets:
                note_left_out(dataset, text)
