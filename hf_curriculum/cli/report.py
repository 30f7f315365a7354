"""`hf-curriculum report`: a page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.cli.common import WITHOUT_SPLITS, AsJson, Split, load_split, named_paths, plainly, say, suggest


@plainly
def report_command(
    run: Annotated[
        Path, typer.Argument(exists=True, help="The folder that a run was trained into, or one checkpoint.")
    ],
    output: Annotated[Path | None, typer.Argument(help="Folder for the page; RUN/report, if not given.")] = None,
    control: Annotated[
        list[str] | None, typer.Option(help="A run to compare with, as FOLDER or NAME=FOLDER. May be repeated.")
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(help="The scored data it was trained on: adds its scores, their ends, and what was chosen from."),
    ] = None,
    split: Split = WITHOUT_SPLITS,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "A training run",
    as_json: AsJson = False,
) -> None:
    """Write a page about a run: plan, decisions, validation curves compared with controls."""
    from hf_curriculum.training.report import training_report

    controls = named_paths(control or (), "--control")
    data = None if dataset is None else load_split(dataset, split)
    page = training_report(run, controls=controls, dataset=data, title=title).write(output or run / "report")
    say(f"page: {page}", {"page": str(page)}, as_json)
    if (run / "model").is_dir():
        suggest("evaluate", run / "model")
