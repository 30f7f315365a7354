"""What a scorer is mapped over: its columns alone, each row once, in the order in which it is read fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets.fingerprint import Hasher

from hf_curriculum.provenance import read_column
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.per_image import group_codes


def scorer_view(dataset: Dataset, scorer: Scorer) -> tuple[Dataset, np.ndarray | None]:
    """What a scorer is mapped over, and where in it each row of the data set is (None: in the same place).

    It has the scorer's columns only. Rows stand in the order of the table, each once, even if the data set is
    shuffled: a table is read several times faster in its own order. Rows of a group stand side by side.
    """
    columns, group = list(scorer.columns), scorer.group_by
    if group is not None and group in dataset.column_names and group not in columns:
        columns.append(group)
    view, place = dataset.with_format(None).select_columns(columns), None
    if dataset._indices is not None and len(dataset):
        rows, place = np.unique(dataset._indices.column(0).to_numpy(), return_inverse=True)
        fingerprint = Hasher.hash([view._fingerprint, "in the order of its table"])
        table = Dataset(view.data, info=view.info, split=view.split, fingerprint=fingerprint)
        view = table if len(rows) == len(table) else table.select(rows)
    for column in scorer.undecoded:
        if getattr(view.features.get(column), "decode", False):
            view = view.cast_column(column, replace(view.features[column], decode=False))
    if group not in columns or len(view) == 0:
        return view, place
    codes = group_codes(read_column(view, group), group)
    if np.all(np.diff(codes) >= 0):  # numbered by first appearance: sorted means every group is in one piece
        return view, place
    order = np.argsort(codes, kind="stable")
    ordered = np.empty_like(order)
    ordered[order] = np.arange(len(order))
    return view.select(order), ordered if place is None else ordered[place]


def score_features(scorer: Scorer) -> Features:
    """The columns that a scorer writes, with their provenance.

    Typed, so that a first batch of NaN alone is no trouble; the provenance makes the cache key know the versions too.
    """
    return Features({name: Value("float32", id=scorer.describe(name).to_json()) for name in scorer.outputs})


def map_scorer(part: Dataset, scorer: Scorer, features: Features, which: str = "", **options: Any) -> Dataset:
    """The scores of a view, or a part of it, and nothing else.

    Args:
        part: (a part of) what `scorer_view` returned.
        scorer: what scores it.
        features: what `score_features` returned.
        which: what to call the part on the progress bar.
        options: of `datasets.Dataset.map`.
    """
    return part.map(
        scorer,
        batched=True,
        with_rank=True,
        remove_columns=part.column_names,
        features=features,
        desc=f"Scoring {', '.join(scorer.outputs)}{which}",
        **options,
    )
