"""`hf-curriculum plan`: what will be shown when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.commands.common import load_split, plainly


@plainly
def plan_command(
    dataset: Annotated[Path, typer.Argument(help="A data set saved by `hf-curriculum score`.")],
    curriculum: Annotated[str, typer.Argument(help="Name, file, JSON or YAML of a curriculum.")] = "phases",
    score_column: Annotated[str, typer.Option(help="The column of scores.")] = "noun_count",
    batch_size: Annotated[int, typer.Option(help="Examples per optimizer step, over all processes.")] = 32,
    split: Annotated[str, typer.Option(help="The split to plan for, where there are several.")] = "train",
    epochs: Annotated[
        float | None, typer.Option(help="Epochs, for a curriculum that has no length of its own.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw the pool's growth into this PNG or SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a curriculum would show when, and what it costs beside its i.i.d. control."""
    from hf_curriculum.pacing import curriculum_from, make_plan
    from hf_curriculum.training.ranked import rank_training_data

    data = load_split(dataset, split)
    rule = curriculum_from(curriculum)
    ranking = rank_training_data(data, rule, score_column if rule.needs_scores else None, None)
    made = make_plan(rule, ranking, global_batch_size=batch_size, epochs=epochs)
    typer.echo(json.dumps(made.to_dict(), indent=1) if as_json else made.describe())
    if figure is not None:
        from hf_curriculum.hub.figures import plan_growth

        plan_growth(made).savefig(figure)
        typer.echo(f"drawn in {figure}", err=True)
