"""`hf-curriculum plan`: what will be shown when."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.cli.common import (
    BATCH_SIZE,
    WITHOUT_SPLITS,
    AsJson,
    Epochs,
    ScoreColumn,
    ScoredFolder,
    Split,
    complete_curriculum,
    in_split,
    load_split,
    named_curriculum,
    note,
    plainly,
    say,
    score_for,
    suggest,
)
from hf_curriculum.columns import CAPTION
from hf_curriculum.files import new_file, resolved


@contextmanager
def _without_warnings(module: str) -> Iterator[None]:
    """Keeps a module from logging what is printed anyway."""
    log = logging.getLogger(module)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@plainly
def plan_command(
    dataset: ScoredFolder,
    curriculum: Annotated[
        str, typer.Argument(help="Name, file, JSON or YAML of a curriculum.", autocompletion=complete_curriculum)
    ] = "phases",
    score_column: ScoreColumn = None,
    batch_size: Annotated[int, typer.Option(help="Examples per optimizer step of all processes.", min=1)] = BATCH_SIZE,
    split: Split = WITHOUT_SPLITS,
    epochs: Epochs = None,
    steps: Annotated[
        int | None, typer.Option(help="Stretch or shorten the curriculum to this number of optimizer steps.", min=1)
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw the pool's growth into this PNG or SVG file.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Also write the row of every draw into this .npy, .txt or .parquet file.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Export the ids in this column, not row numbers.")] = None,
    datacomp: Annotated[bool, typer.Option(help="Export --id-column as DataComp's sorted 128-bit uids.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the plan of a curriculum, and its cost compared with an i.i.d. control.

    `train` holds out a part for validation first, so its own plan has fewer examples.
    """
    from hf_curriculum.planning.plan import make_plan
    from hf_curriculum.planning.ranking import rank_dataset

    rule = named_curriculum(curriculum, "CURRICULUM")
    if steps is not None:
        if epochs is not None:
            raise typer.BadParameter(
                "--epochs was given too, and a run has one length. Drop one.", param_hint="--steps"
            )
        rule = rule.fit_to(steps=steps)
        curriculum = json.dumps(rule.to_dict())
    if export is None and (id_column is not None or datacomp):
        raise typer.BadParameter("There is no --export that it could change.", param_hint="--id-column, --datacomp")
    data = load_split(dataset, split)
    ranking = rank_dataset(data, rule, score_for(rule, data, score_column))
    with _without_warnings(make_plan.__module__):  # the plan prints its notes
        made = make_plan(rule, ranking, global_batch_size=batch_size, epochs=epochs)
    shown = asdict(made.exposure()) if made.stages else None
    say(made.describe(), {**made.to_dict(), "exposure": shown, "notes": list(made.notes)}, as_json)
    if figure is not None:
        from hf_curriculum.reporting.figures.growth import plan_growth

        with new_file(resolved(figure)) as temporary:
            plan_growth(made).savefig(temporary, format=figure.suffix[1:] or "png")
        note(f"drawn in {figure}")
    if export is not None:
        made.export(export, data, id_column=id_column, datacomp=datacomp)
        note(f"order of {made.known_samples:,} draws in {export}, and what it was made of in {export.name}.json")
    named = {"--score-column": score_column, "--epochs": None if epochs is None else f"{epochs:g}"}
    named["--batch-size"] = None if batch_size == BATCH_SIZE else str(batch_size)
    given = [word for option, value in named.items() if value is not None for word in (option, value)]
    if CAPTION in data.column_names:  # what `train` reads
        suggest("train", dataset, "run", "--curriculum", curriculum, *given, *in_split(split))
