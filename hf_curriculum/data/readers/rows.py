"""Files of rows that a user brings, in any of the usual forms, read strictly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hf_curriculum.config import RepeatedKeyError
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.tables import Records, Reject, read_records
from hf_curriculum.data.text import ending, read_text


def named(path: Path, read: Callable[[], Any]) -> Any:
    """What is read; an error names the file and is in words."""
    try:
        return read()
    except RepeatedKeyError as error:
        raise ValueError(f"{path}: {error}, and it is not known which value is meant. Correct it.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON, nor JSON Lines, an object per line ({error}). Correct it.") from error
    except MemoryError as error:
        raise ValueError(
            f"{path} does not fit into the memory when it is read. Split it, or use a machine with more memory."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        plain = str(error) if isinstance(error, ValueError) else f"A field is missing or of another kind ({error!r})."
        raise ValueError(f"{path}: {plain}") from error


def read_content(
    path: Path, reject: Reject | None = None, left_out: LeftOut | None = None, kind: str | None = None
) -> Any:
    """What a file of JSON, JSON Lines or a table of text holds: `Records` where it has rows.

    `kind` is an ending in place of the file's own. Without `reject` a row that cannot be read is an error.
    """
    suffix = kind or ending(path).lower()
    text = read_text(path, newline="")
    return named(path, lambda: read_records(text, suffix, reject or _refuse, left_out or LeftOut()))


def _refuse(problem: str) -> None:
    raise ValueError(f"{problem} Correct it.")


def read_rows(path: Path, left_out: LeftOut | None = None, kind: str | None = None) -> Records:
    """The rows of such a file, each an object; anything else is a `ValueError`."""
    rows = read_content(path, left_out=left_out, kind=kind)
    if not isinstance(rows, Records):
        raise ValueError(f"{path} holds {rows!r:.80}, and rows are needed: a JSON list, JSON Lines or a table.")
    for row, record in enumerate(rows):
        if not isinstance(record, Mapping):
            raise ValueError(f"{path}: {rows.place(row)} is {record!r:.80}, and an object with fields is needed.")
    return rows
