"""The command `hf-curriculum`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hf_curriculum import __version__

app = typer.Typer(
    help="Curriculum learning for image-text data: score examples, look at a plan before paying for it.",
    no_args_is_help=True,
    add_completion=True,
)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def score(
    source: Annotated[str, typer.Argument(help="A folder, a file, or a name on the Hub; see `load_captioned`.")],
    output: Annotated[Path, typer.Argument(help="Folder for the scored data set.")],
    scorer: Annotated[list[str], typer.Option(help="Scores to add, by column; may be repeated.")] = ["noun_count"],  # noqa: B006
    per_image: Annotated[
        str | None, typer.Option(help="Aggregate over an image's captions: max, min or mean.")
    ] = None,
    num_proc: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
) -> None:
    """Add score columns to captioned pictures and save them with their provenance."""
    from hf_curriculum.data.loading import load_captioned
    from hf_curriculum.score_files import provenance_markdown, save_scored
    from hf_curriculum.scorers import SCORERS, add_scores

    unknown = [name for name in scorer if name not in SCORERS]
    if unknown:
        raise typer.BadParameter(f"{unknown} are no scorers; there are {sorted(SCORERS)}.")
    scored = add_scores(
        load_captioned(source, num_proc=num_proc),
        [SCORERS[name]() for name in scorer],
        per_image=per_image,
        num_proc=num_proc,
    )
    save_scored(scored, output)
    typer.echo(provenance_markdown(scored))
    typer.echo(f"saved to {output}")


@app.command()
def plan(
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
    from datasets import DatasetDict

    from hf_curriculum.pacing import curriculum_from, make_plan
    from hf_curriculum.score_files import load_scored
    from hf_curriculum.training.ranked import rank_training_data

    loaded = load_scored(dataset)
    data = loaded[split] if isinstance(loaded, DatasetDict) else loaded
    rule = curriculum_from(curriculum)
    ranking = rank_training_data(data, rule, score_column if rule.needs_scores else None, None)
    made = make_plan(rule, ranking, global_batch_size=batch_size, epochs=epochs)
    typer.echo(json.dumps(made.to_dict(), indent=1) if as_json else made.describe())
    if figure is not None:
        from hf_curriculum.hub.figures import plan_growth

        plan_growth(made).savefig(figure)
        typer.echo(f"drawn in {figure}", err=True)


if __name__ == "__main__":
    app()
