"""Commands typed in this process, and functions that take the place of slow ones."""

from __future__ import annotations

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from hf_curriculum.cli import app


class StandIn:
    """Takes a function's place, keeps what it is called with, and gives a result or raises it."""

    def __init__(self, gives: Any = None) -> None:
        self.gives, self.calls = gives, []

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Keeps the call."""
        self.calls.append((given, named))
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives


def result(*words: Any) -> Result:
    """What comes of a command."""
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: Any) -> Result:
    """What comes of a command that has to succeed."""
    found = result(*words)
    assert found.exit_code == 0, found.output
    return found


def said(found: Result) -> str:
    """All that a command printed, on one line."""
    return " ".join(found.output.replace("│", " ").split())
