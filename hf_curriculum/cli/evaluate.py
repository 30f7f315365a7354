"""`hf-curriculum evaluate`: a trained model on benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum.cli.common import AsJson, model_of, note, plainly


@plainly
def evaluate_command(
    model: Annotated[
        str, typer.Argument(help="Folder or Hub name of a model with its tokenizer, or the folder of a run.")
    ],
    suite: Annotated[str, typer.Option(help="Which benchmarks: `babylm`.")] = "babylm",
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the benchmarks' official files; without it, miniatures made from scenes."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for tables and predictions.")] = Path("evaluation"),
    task: Annotated[
        list[str] | None,
        typer.Option(help="A benchmark or task, such as blimp or devbench/lex-lwl. May be repeated."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts that run through the model at once.")] = 64,
    limit: Annotated[int | None, typer.Option(help="Most items of each task: for a quick look only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run benchmarks, write tables as Markdown and JSON, and the challenge's prediction file."""
    from hf_curriculum.evaluation.babylm.load import evaluate_pretrained

    result = evaluate_pretrained(
        model_of(model),
        suite,
        output_dir=output,
        data_dir=data,
        tasks=task or None,
        batch_size=batch_size,
        limit=limit,
        progress=not as_json,
    )
    typer.echo((output / "results.json").read_text(encoding="utf-8") if as_json else result.table)
    note(f"tables and predictions in {output}")
