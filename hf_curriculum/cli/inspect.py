"""`hf-curriculum inspect`: scores at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_curriculum.cli.common import (
    WITHOUT_SPLITS,
    AsJson,
    ScoredFolder,
    Split,
    complete_column,
    in_split,
    lines_of,
    load_split,
    note,
    plainly,
    say,
    suggest,
)
from hf_curriculum.markdown import one_line

if TYPE_CHECKING:
    from hf_curriculum.reporting.inspection import Inspection


@plainly
def inspect_command(
    dataset: ScoredFolder,
    column: Annotated[
        list[str] | None,
        typer.Option(help="A score to look at; all of them, if not given.", autocompletion=complete_column),
    ] = None,
    split: Split = WITHOUT_SPLITS,
    examples: Annotated[int, typer.Option(help="Examples to show of each end.", min=0)] = 5,
    html: Annotated[Path | None, typer.Option(help="Also write a page with images into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at scores: their ranges, how they agree, the easiest and hardest examples."""
    from hf_curriculum.reporting.inspection import inspect_scores

    data = load_split(dataset, split)
    found = inspect_scores(data, column or None, examples=examples)
    say(_text(found), found.to_dict(), as_json)
    if html is not None:
        note(f"page: {found.to_report(data, dataset.name).write(html)}")
    suggest("plan", dataset, "phases", "--score-column", found.scores[0].column, *in_split(split))


def _text(found: Inspection) -> str:
    images = "" if found.num_images is None else f", {found.num_images:,} images"
    names = [score.column for score in found.scores]
    head = ["score", "by", "easy", "scored", "unscored", "min", "25 %", "median", "75 %", "max"]
    rows = [
        [score.column, score.scorer, score.easy, f"{score.scored:,}", f"{score.unscored:,}"]
        + ([f"{value:.4g}" for value in score.quantiles] or ["–"] * 5)
        for score in found.scores
    ]
    parts = [f"{found.num_rows:,} rows{images}\n{lines_of(head, rows, left=3)}"]
    parts += [one_line(line) for line in found.left_out.split("\n") if line]
    if len(names) > 1:
        matrix = [
            [name, *(f"{value:.2f}" for value in row)] for name, row in zip(names, found.correlations, strict=True)
        ]
        parts.append(lines_of(["rank correlation, both from their easy end", *names], matrix))
    for score in found.scores:
        for title, ends in (("easiest", score.easiest), ("hardest", score.hardest)):
            if ends:
                lines = [
                    f"{end['score']:>10.4g}  row {end['row']:<9,}{one_line(end['caption'] or '', 160)}" for end in ends
                ]
                parts.append("\n".join([f"{title} by {one_line(score.column)}", *lines]))
    return "\n\n".join(parts)
