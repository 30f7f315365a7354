"""What commands share: scored data sets as they name them, and errors as people read them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from datasets import Dataset


def load_split(path: Path, split: str) -> Dataset:
    """One split of a data set that `hf-curriculum score` saved.

    Raises:
        typer.BadParameter: there is no such folder or split.
    """
    from datasets import DatasetDict

    from hf_curriculum.score_files import load_scored

    if not path.is_dir():
        raise typer.BadParameter(f"{path} is no folder. Score a data set first: hf-curriculum score SOURCE {path}")
    loaded = load_scored(path)
    if not isinstance(loaded, DatasetDict):
        return loaded
    if split not in loaded:
        raise typer.BadParameter(f"{path} has the splits {list(loaded)}, and not {split!r}. Pass --split.")
    return loaded[split]


def plainly(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are said in a line, with exit status 1, and without a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError, ImportError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error

    return run
