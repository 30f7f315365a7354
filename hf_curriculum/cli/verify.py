"""`hf-curriculum verify`: whether files are still as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.cli.common import AsJson, plainly, say


@plainly
def verify_command(
    path: Annotated[Path, typer.Argument(help="A file or a folder that hf-curriculum wrote, with all below it.")],
    as_json: AsJson = False,
) -> None:
    """Compare everything at a path with what was recorded when it was written, images and weights too."""
    from hf_curriculum.verify import verify

    compared = verify(path)
    damaged = sum(each.error is not None for each in compared)
    lines = [f"{each.path}: {each.kind}, {each.error or 'as it was written'}" for each in compared]
    lines.append(f"{len(compared):,} compared, {damaged or 'none'} damaged.")
    facts = [{"path": str(each.path), "kind": each.kind, "error": each.error} for each in compared]
    say("\n".join(lines), facts, as_json)
    if damaged:
        raise typer.Exit(1)
