"""`hf-curriculum advise`: what to expect of a filter, before a training run is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hf_curriculum.cli.common import (
    WITHOUT_SPLITS,
    AsJson,
    ScoreColumn,
    ScoredFolder,
    Split,
    above_zero,
    hide_bars_unless_watched,
    in_split,
    load_split,
    plainly,
    say,
    suggest,
)

if TYPE_CHECKING:
    from hf_curriculum.studies.advise import Advice

_Features = Annotated[
    Path | None,
    typer.Option(help="Stored features of the images, as `hf-curriculum features` writes them: photographs need it."),
]
_Minutes = Annotated[
    float, typer.Option(help="Time limit on this machine; fewer than 3 rarely do.", callback=above_zero)
]
_Easy = Annotated[Literal["low", "high"] | None, typer.Option(help="Which end is good, if not as recorded.")]


@plainly
def advise_command(
    dataset: ScoredFolder,
    score_column: ScoreColumn = None,
    features: _Features = None,
    model: Annotated[Literal["small"], typer.Option(help="The model to train.")] = "small",
    minutes: _Minutes = 10,
    split: Split = WITHOUT_SPLITS,
    seed: Annotated[int, typer.Option(help="Of the sample, what is held out, and the runs.", min=0)] = 0,
    easy: _Easy = None,
    as_json: AsJson = False,
) -> None:
    """Check on a sample whether filtering by a score may help, before you pay for a long run.

    Gives a part of the captions to other images, measures whether the score finds them, and trains small models with
    and without the filter. The verdict is `filter`, `nothing to win` or `nothing can be told`, for small models on
    this sample: no promise for yours.
    """
    from hf_curriculum.studies.advise import advise

    hide_bars_unless_watched()
    data = load_split(dataset, split)
    options = {"features": features, "minutes": minutes, "model": model, "seed": seed, "easy": easy}
    found = advise(data, score_column, **options)
    say(str(found), found.to_dict(), as_json)
    _suggest(found, dataset, split, minutes)


def _suggest(found: Advice, dataset: Path, split: str, minutes: float) -> None:
    """The next command by the answer."""
    from hf_curriculum.studies.advise import MIN_AUC

    better = ("recipe", "reference_model", "--help")  # makes cross-fitted scores of all of the data
    if found.verdict != "filter" and found.auc.value < MIN_AUC:
        suggest(*better)
    elif found.verdict == "nothing can be told":
        suggest("advise", dataset, "--score-column", found.column, "--minutes", f"{3 * minutes:g}", *in_split(split))
    elif found.verdict == "nothing to win":
        suggest("train", dataset, "run", "--curriculum", "iid", "--epochs", "10", *in_split(split))
    elif found.cross_fitted:
        suggest(*better)
    else:
        rule = f"{{type: filter, keep: {found.own.keep:.2f}}}"
        options = ("--epochs", "10", "--score-column", found.column)
        suggest("train", dataset, "run", "--curriculum", rule, *options, *in_split(split))
