"""`hf-curriculum push`: scored data on the Hub."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import typer

from hf_curriculum.cli.common import AsJson, ScoreColumn, ScoredFolder, load_complete, plainly, say


@plainly
def push_command(
    dataset: ScoredFolder,
    repo_id: Annotated[str, typer.Argument(help="Where to, as me/name.")],
    num_buckets: Annotated[
        int | None,
        typer.Option(help="Also write this number of buckets, easiest first, each a configuration to stream."),
    ] = None,
    score_column: ScoreColumn = None,
    cut: Annotated[
        Literal["rank", "value"], typer.Option(help="Buckets of equal size, or equal scores in one bucket.")
    ] = "rank",
    private: Annotated[bool, typer.Option(help="Make a new repository private.")] = False,
    license: Annotated[str | None, typer.Option(help="Of the data, for the card, such as cc-by-4.0.")] = None,
    thumbnails: Annotated[bool, typer.Option(help="Show small images on the card.")] = False,
    on: Annotated[
        list[str] | None,
        typer.Option(
            help="Push the scores alone, of `score --in-place` or --side-file, found by this column (`url`, `uid`, "
            "`key`). May be repeated."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be sent, and send nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Push data, scores, their provenance and a card to the Hub, with the token of `hf auth login` or HF_TOKEN."""
    from hf_curriculum.hub.push import push_scored
    from hf_curriculum.hub.push_scores import push_scores

    told = {"dry_run": True} if dry_run else {"tell": partial(typer.echo, err=True)}
    told |= {"private": private or None, "license": license}
    options = {"num_buckets": num_buckets, "score_column": score_column, "cut": cut, "thumbnails": thumbnails}
    if on and any(value not in (None, "rank", False) for value in options.values()):
        raise typer.BadParameter("Buckets and images need the data, and scores alone are pushed.", param_hint="--on")
    data = None if on else load_complete(dataset)
    made = push_scores(repo_id, dataset, on=on, **told) if on else push_scored(data, repo_id, **options, **told)
    if dry_run:
        say(f"nothing was sent; this would be:\n{made.describe()}", asdict(made), as_json)
        return
    say(f"pushed: {made.repo_url}", {"repository": str(made.repo_url), "commit": made.oid}, as_json)
