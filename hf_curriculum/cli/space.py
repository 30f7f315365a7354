"""`hf-curriculum space`: scored data as a page on which visitors move the thresholds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.cli.common import (
    WITHOUT_SPLITS,
    AsJson,
    ScoredFolder,
    Split,
    complete_column,
    load_split,
    note,
    plainly,
    say,
)


@plainly
def space_command(
    dataset: ScoredFolder,
    output: Annotated[Path, typer.Argument(help="Folder for the files of the Space.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="A score to choose from; all of them, if not given.", autocompletion=complete_column),
    ] = None,
    split: Split = WITHOUT_SPLITS,
    examples: Annotated[int, typer.Option(help="Examples to show at most; counts are of all rows.", min=0)] = 2000,
    thumbnails: Annotated[bool, typer.Option(help="Show small images.")] = True,
    title: Annotated[str | None, typer.Option(help="Title of the page; the data's folder, if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a static Hugging Face Space: visitors move a score's thresholds and see what each phase holds."""
    from hf_curriculum.hub.space import write_space

    data = load_split(dataset, split)
    name = title or dataset.resolve().name
    made = write_space(data, output, column or None, title=name, examples=examples, thumbnails=thumbnails)
    shown = f"{made['examples']:,} examples shown, {made['thumbnails']:,} thumbnails"
    text = (
        f"{output}: README.md, index.html, data.json; {made['bytes'] / 1e6:.1f} MB\n"
        f"{made['rows']:,} rows counted by {', '.join(made['scores'])}; {shown}"
    )
    say(text, {"output": str(output), **made}, as_json)
    note(f"look at it: {shlex.join(['python', '-m', 'http.server', '-d', str(output)])}, then http://localhost:8000")
    note(f"upload: {shlex.join(['hf', 'upload', 'me/name', str(output), '--repo-type', 'space'])}")
