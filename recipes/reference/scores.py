"""Columns of scores by references, of which none scores rows that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset
from reference.arguments import DataArguments, ReferenceArguments
from scenes_clip import auc

from hf_curriculum import Grounding, ModelLoss, Scorer, add_scores, read_provenance
from hf_curriculum.provenance import ScoreProvenance, append_columns, score_values

LOSS, GROUNDING = "reference_loss", "grounding"


def make_scorers(folder: str, rows: Dataset, data_args: DataArguments, args: ReferenceArguments) -> list[Scorer]:
    """The scorers by one model, the images that captions are compared with drawn from the rows that it scores."""
    options = {"regions": data_args.features, "max_length": args.max_length}
    scorers: list[Scorer] = [ModelLoss(folder, reduction="mean", name=LOSS, **options)]
    if args.grounding:
        scorers.append(Grounding(folder, k=args.k, name=GROUNDING, **options).fit(rows))
    return scorers


def add_columns(
    train: Dataset,
    models: Sequence[str],
    parts: Sequence[np.ndarray],
    data_args: DataArguments,
    args: ReferenceArguments,
) -> Dataset:
    """The training rows with their scores, each part scored by its model."""
    values: dict[str, np.ndarray] = {}
    made: dict[str, list[ScoreProvenance]] = {}
    read: dict[str, tuple[str, ...]] = {}
    for folder, part in zip(models, parts, strict=True):
        rows = train.select(part)
        for scorer in make_scorers(folder, rows, data_args, args):
            scored = add_scores(rows, scorer)
            column = values.setdefault(scorer.name, np.full(len(train), np.nan, np.float32))
            column[part] = score_values(scored, scorer.name)
            made.setdefault(scorer.name, []).append(read_provenance(scored)[scorer.name])
            read[scorer.name] = scorer.columns
    provenance = {name: ways[0] if len(ways) == 1 else cross_fitted(ways) for name, ways in made.items()}
    return append_columns(train, values, provenance, read=read)


def cross_fitted(ways: Sequence[ScoreProvenance]) -> ScoreProvenance:
    """One provenance of a column that several models have scored, none of them rows that it was trained on."""
    first = ways[0]
    arguments = {name: _all_of([one.arguments.get(name) for one in ways]) for name in first.arguments}
    return replace(
        first,
        arguments=arguments,
        model=", ".join(str(one.model) for one in ways),
        revision=", ".join(str(one.revision) for one in ways),
        trained_on={"cross_fitted": True, "examples": sum(one.trained_on.get("examples", 0) for one in ways)},
    )


def _all_of(values: list[Any]) -> Any:
    """The one value there is, or all of them."""
    return values[0] if all(value == values[0] for value in values) else values


def mismatch_auc(scored: Dataset, column: str) -> float | None:
    """The chance that a score tells a mismatched caption from a matched one; None where no caption is mismatched."""
    scores, false = score_values(scored, column), np.array(scored["mismatched"][:])
    keep = np.isfinite(scores)
    true, wrong = scores[keep & ~false], scores[keep & false]
    if not len(true) or not len(wrong):
        return None
    easy_is_high = read_provenance(scored)[column].easy == "high"
    return auc(true, wrong) if easy_is_high else auc(wrong, true)
