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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a curriculum would show when, and what it costs beside its i.i.d. control."""
    from datasets import DatasetDict

    from hf_curriculum.ordering import rank_scores, read_scores, resolve_easy
    from hf_curriculum.pacing import curriculum_from, make_plan
    from hf_curriculum.score_files import load_scored

    loaded = load_scored(dataset)
    data = loaded[split] if isinstance(loaded, DatasetDict) else loaded
    rule = curriculum_from(curriculum)
    easy = resolve_easy(data, score_column, rule.easy)
    ranking = rank_scores(read_scores(data, score_column), easy, unscored=rule.unscored, name=score_column)
    made = make_plan(rule, ranking, global_batch_size=batch_size)
    typer.echo(json.dumps(made.to_dict(), indent=1) if as_json else made.describe())


if __name__ == "__main__":
    app()
