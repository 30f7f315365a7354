"""`hf-curriculum inspect`: scores at a glance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_curriculum.commands.common import load_split, plainly

if TYPE_CHECKING:
    from hf_curriculum.hub.inspection import Inspection


@plainly
def inspect_command(
    dataset: Annotated[Path, typer.Argument(help="A data set saved by `hf-curriculum score`.")],
    column: Annotated[list[str] | None, typer.Option(help="A score to look at; all of them, if not given.")] = None,
    split: Annotated[str, typer.Option(help="The split to look at, where there are several.")] = "train",
    examples: Annotated[int, typer.Option(help="Examples to show of each end.")] = 5,
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at scores: their ranges, how they agree, the easiest and hardest examples."""
    from hf_curriculum.hub.inspection import inspect_scores

    data = load_split(dataset, split)
    found = inspect_scores(data, column or None, examples=examples)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    else:
        _print(found)
    if html is not None:
        typer.echo(f"page: {found.to_report(data, dataset.name).write(html)}", err=True)


def _print(found: Inspection) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    images = "" if found.num_images is None else f", {found.num_images:,} images"
    console.print(f"{found.num_rows:,} rows{images}")
    table = Table("score", "by", "easy")
    for name in ("scored", "unscored", "min", "25 %", "median", "75 %", "max"):
        table.add_column(name, justify="right")
    for score in found.scores:
        numbers = [f"{value:.4g}" for value in score.quantiles] or ["–"] * 5
        table.add_row(score.column, score.scorer, score.easy, f"{score.scored:,}", f"{score.unscored:,}", *numbers)
    console.print(table)
    if len(found.scores) > 1:
        names = [score.column for score in found.scores]
        agreement = Table("rank correlation", *names, title="Agreement, both from their easy end")
        for name, row in zip(names, found.correlations, strict=True):
            agreement.add_row(name, *(f"{value:.2f}" for value in row))
        console.print(agreement)
    for score in found.scores:
        for title, ends in (("easiest", score.easiest), ("hardest", score.hardest)):
            if not ends:
                continue
            shown = Table("row", score.column, "caption", title=f"{title} by {score.column}")
            for end in ends:
                caption = end["caption"] or ""
                shown.add_row(str(end["row"]), f"{end['score']:.4g}", escape(caption[:160]))
            console.print(shown)
