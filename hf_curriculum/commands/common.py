"""What commands share: data and curricula as people name them, results, notes, and errors in a line.

Results go to standard output, and with `--json` they are all that stands there; notes, progress and errors go to
standard error. A command ends with 0, with 1 where the work failed, with 2 where it was called in a way that cannot
work, and with 130 on Ctrl-C.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from hf_curriculum.pacing import Curriculum

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]


def load_whole(path: Path) -> Dataset | DatasetDict:
    """A data set that `hf-curriculum score` saved.

    Raises:
        typer.BadParameter: there is no such folder.
    """
    from hf_curriculum.score_files import load_scored

    if not path.is_dir():
        raise typer.BadParameter(f"{path} is no folder. Score a data set first: hf-curriculum score SOURCE {path}")
    return load_scored(path)


def load_split(path: Path, split: str) -> Dataset:
    """One split of a data set that `hf-curriculum score` saved.

    Raises:
        typer.BadParameter: there is no such folder or split.
    """
    from datasets import DatasetDict

    loaded = load_whole(path)
    if not isinstance(loaded, DatasetDict):
        return loaded
    if split not in loaded:
        raise typer.BadParameter(f"{path} has the splits {list(loaded)}, and not {split!r}. Pass --split.")
    return loaded[split]


def named_curriculum(given: str, option: str) -> Curriculum:
    """A curriculum from its name, file, JSON or YAML.

    Raises:
        typer.BadParameter: it is none of these.
    """
    from hf_curriculum.pacing import curriculum_from

    try:
        return curriculum_from(given)
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def score_for(rule: Curriculum, data: Dataset, named: str | None) -> str | None:
    """The score column that a curriculum goes by: the one named, or else the first one of the data.

    Raises:
        typer.BadParameter: the column is not in the data, or the data has no score.
    """
    from hf_curriculum.provenance import read_provenance

    known = list(read_provenance(data))
    if named is not None and named not in data.column_names:
        raise typer.BadParameter(
            f"The data has no column {named!r}. Its scores are {known}.", param_hint="--score-column"
        )
    if not rule.needs_scores:
        return None
    if named is None and not known:
        raise typer.BadParameter(
            f"None of {data.column_names} is recorded as a score. Name the column of numbers that it goes by.",
            param_hint="--score-column",
        )
    return known[0] if named is None else named


def say(result: str, facts: Any, as_json: bool) -> None:
    """The result of a command on standard output: for people, or as JSON."""
    typer.echo(json.dumps(facts, indent=1, ensure_ascii=False) if as_json else result)


def note(text: str) -> None:
    """A line beside the result, on standard error."""
    typer.echo(text, err=True)


def suggest(*words: str | Path) -> None:
    """Says which command comes next, as it can be typed."""
    note("next: " + " ".join(["hf-curriculum", *(shlex.quote(str(word)) for word in words)]))


def plainly(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are said in a line, with exit status 1, and without a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:  # whoever reads our output, such as `head`, has seen enough: typer ends quietly
            raise
        except (ValueError, OSError, ImportError) as error:
            fail(error)

    return run


def fail(error: Exception) -> NoReturn:
    """Says an error in a line and ends with exit status 1."""
    note(f"Error: {error}")
    raise typer.Exit(1) from error
