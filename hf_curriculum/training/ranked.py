"""The training data's order: its scores, and the further columns that a curriculum needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from hf_curriculum.ordering import Ranking, rank_scores, read_columns, read_scores, resolve_easy
from hf_curriculum.pacing import Curriculum


def rank_training_data(data: Any, rule: Curriculum, column: str | None, scores: np.ndarray | None) -> Ranking:
    """The order of the training data that a curriculum begins with.

    Args:
        data: the training data, all columns still there.
        rule: the curriculum.
        column: the score column, if there is one.
        scores: one score per row in its place, shape (n,).

    Raises:
        TypeError: the data has no length.
        ValueError: a score or a column that the curriculum needs is missing or does not fit.
    """
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise TypeError(
            f"train_dataset is a {type(data).__name__}, which is read in its own order: no curriculum can choose "
            "from it. Load it without streaming=True."
        )
    columns = read_columns(data, rule.reads_in_all)
    if scores is None and column is None:
        if rule.needs_scores:
            raise ValueError(
                f"{type(rule).__name__} sorts examples by a score, and neither score_column= nor scores= was "
                "given. Name the column that `add_scores` wrote, such as score_column='noun_count'."
            )
        return replace(Ranking.unordered(len(data)), columns=columns)
    scores = read_scores(data, column) if scores is None else np.asarray(scores, dtype=np.float32)
    if scores.shape != (len(data),):
        raise ValueError(
            f"scores has shape {scores.shape} but train_dataset has {len(data):,} rows: scores would belong to "
            "other examples. Give one number per row, in the data set's order."
        )
    # Where the rule does not go from easy to hard, nothing hangs on which end is easy.
    default = None if rule.needs_easy else "low"
    easy = rule.easy or "low" if column is None else resolve_easy(data, column, rule.easy, default)
    return replace(rank_scores(scores, easy, unscored=rule.unscored, name=column), columns=columns)
