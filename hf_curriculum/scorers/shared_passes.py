"""Scorers of one chat model over the same forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.config import digest
from hf_curriculum.provenance import ScoreProvenance
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.chat_losses import ChatPasses
from hf_curriculum.scorers.model_loss import ModelLoss

if TYPE_CHECKING:
    from datasets import Dataset


class SharedPasses(Scorer):
    """Several scores from the passes of one chat model, each run once: `add_scores` makes it of what it is given."""

    def __init__(self, scorers: Sequence[ModelLoss]) -> None:
        self.scorers: list[ModelLoss] = list(scorers)
        first = self.scorers[0]
        self._set_columns(first.columns, first.name, first.easy, first.decode_false)
        self.fitted_attributes = ("fitted_",) if any(scorer.fitted_attributes for scorer in scorers) else ()

    @property
    def outputs(self) -> dict[str, str]:
        return {name: easy for scorer in self.scorers for name, easy in scorer.outputs.items()}

    @property
    def needs_fit(self) -> bool:
        return any(scorer.needs_fit for scorer in self.scorers)

    def validate_fitted(self) -> None:
        for scorer in self.scorers:
            scorer.validate_fitted()

    def fit(self, dataset: Dataset) -> SharedPasses:
        for scorer in self.scorers:
            if scorer.needs_fit:
                scorer.fit(dataset)
        return self

    @property
    def fitted_(self) -> dict[str, dict[str, Any]]:
        """Column → the fitted attributes of its scorer."""
        return {each.name: {name: getattr(each, name) for name in each.fitted_attributes} for each in self.scorers}

    @fitted_.setter
    def fitted_(self, fitted: dict[str, dict[str, Any]]) -> None:
        for scorer in self.scorers:
            for name, value in fitted[scorer.name].items():
                setattr(scorer, name, value)

    def source_digest(self) -> str | None:
        found = [scorer.source_digest() for scorer in self.scorers]
        return digest(*(each for each in found if each), size=16) if any(found) else None

    def describe(self, column: str | None = None) -> ScoreProvenance:
        writer = next(scorer for scorer in self.scorers if column in (None, scorer.name))
        return writer.describe(column)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> dict[str, np.ndarray]:
        passes = ChatPasses(self.scorers[0], batch, rank)
        scores = {scorer.name: scorer.chat_scores(passes) for scorer in self.scorers}
        passes.report()
        return scores


def share_passes(scorers: Sequence[Scorer]) -> list[Scorer]:
    """The scorers, those of one chat model that read the same put together where the first of them stood."""
    groups: dict[Any, list[Scorer]] = {}
    for number, scorer in enumerate(scorers):
        # one with a `score` of its own may do anything
        shares = isinstance(scorer, ModelLoss) and scorer.reads_chats and type(scorer).score is ModelLoss.score
        groups.setdefault(scorer.pass_key() if shares else number, []).append(scorer)
    return [group[0] if len(group) == 1 else SharedPasses(group) for group in groups.values()]
