"""Staged data sets: one part of the data after the other, in one run with one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, curriculum_from
from hf_curriculum.planning.groups import Groups, Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import chunks_of
from hf_curriculum.planning.stage import Stage


@dataclass(frozen=True)
class Staged(Curriculum):
    """Trains on the parts of a data set one after the other, each with its own curriculum.

    `Staged({"text": IID(epochs=20), "captions": Phases(4)}, column="source")` shows the rows whose `source` is "text",
    then those whose `source` is "captions": one run, one optimizer, one learning-rate schedule. A part ends with a
    full batch, so that no batch holds rows of two.

    Args:
        parts: name of a part → its curriculum, in the order they are shown. All must be planned beforehand, and have a
            length of their own.
        column: the column that names the part of each row.
        easy: see `Curriculum`; one for all parts.
        unscored: see `Curriculum`; a part whose curriculum needs no score may have none.
        partial_batches: taken from the parts: `"keep"` if one of them keeps its own.

    Raises:
        ValueError: there are no parts, one cannot be used here, or (in a plan) rows are missing or left over.

    Example:
        >>> from hf_curriculum import IID, Phases
        >>> Staged({"text": IID(epochs=20), "captions": Phases(4)}).to_dict()
        {'type': 'staged', 'parts': {'text': {'type': 'iid', 'epochs': 20}, 'captions': {'type': 'phases'}}}
    """

    type: ClassVar[str] = "staged"

    parts: Mapping[str, Curriculum]
    column: str = "source"

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", {name: curriculum_from(rule) for name, rule in dict(self.parts).items()})
        kept = any(rule.partial_batches == "keep" for rule in self.parts.values())
        object.__setattr__(self, "partial_batches", "keep" if kept else "stream")
        super().__post_init__()
        if not self.parts:
            raise ValueError("Staged(parts={}) shows nothing; give at least one part and its curriculum.")
        validate_part_rules("Staged", self.parts)

    @property
    def needs_scores(self) -> bool:
        """Whether any part's curriculum needs scores."""
        return any(rule.needs_scores for rule in self.parts.values())

    @property
    def reads(self) -> Mapping[str, Kind]:
        """The parts' names, and what their curricula read."""
        others = {name: kind for rule in self.parts.values() for name, kind in rule.reads.items()}
        return {self.column: "groups", **others}

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """Part after part, each as its curriculum arranges it, so that a part is a stretch of the order."""
        parts = self._parts(ranking)
        order = np.concatenate([part.order for part in parts.values()])
        starts = np.cumsum([0, *map(len, parts.values())])
        columns = {name: values for part in parts.values() for name, values in part.columns.items()}
        return replace(ranking, order=order, columns={**columns, self.column: Groups(tuple(parts), starts, order)})

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Those of the parts."""
        parts = self._stretches(ranking).items()
        return tuple(f"{name}: {note}" for name, part in parts for note in self.parts[name].notes(part, budget))

    def details(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Those of the parts."""
        parts = self._stretches(ranking).items()
        return tuple(f"{name}: {line}" for name, part in parts for line in self.parts[name].details(part, budget))

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The parts' epochs in epochs of everything."""
        parts = self._stretches(ranking).items()
        return sum(self.parts[name].fitted_epochs(budget, part) * len(part) for name, part in parts) / len(ranking)

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """The stages of the parts, with slices of the order of all parts."""
        stages: list[Stage] = []
        first = 0
        for name, part in self._stretches(ranking).items():
            own = list(self.parts[name].fitted_stages(part, budget))
            short = -sum(stage.num_samples for stage in own) % budget.global_batch_size
            own[-1] = replace(own[-1], num_draws=own[-1].num_draws + short)
            for stage in own:
                slices = tuple((first + start, first + stop) for start, stop in stage.slices)
                number, label = len(stages), f"{name}, {stage.name}"
                stages.append(replace(stage, number=number, name=label, slices=slices))
            first += len(part)
        return tuple(stages)

    def _parts(self, ranking: Ranking) -> dict[str, Ranking]:
        """Each part as its curriculum arranges it."""
        part_of = numbered_parts("Staged", ranking, self.column, tuple(self.parts))
        return {
            name: rule.arrange(part_ranking(ranking, ranking.order[part_of == number]))
            for number, (name, rule) in enumerate(self.parts.items())
        }

    def _stretches(self, ranking: Ranking) -> dict[str, Ranking]:
        """Each part of an order that `arrange` made."""
        groups = ranking.columns[self.column]
        return {name: part_ranking(ranking, groups.rows(number)) for number, name in enumerate(groups.names)}

    def to_dict(self) -> dict[str, Any]:
        """As `Curriculum.to_dict`, with each part's curriculum as a mapping of its own."""
        values = super().to_dict()
        values.pop("partial_batches", None)
        return {**values, "parts": {name: rule.to_dict() for name, rule in self.parts.items()}}


def validate_part_rules(owner: str, rules: Mapping[str, Curriculum]) -> None:
    """Checks that the curricula of a data set's parts are planned beforehand, and share order, batches and draws."""
    for name, rule in rules.items():
        if rule.signal is not None:
            raise ValueError(
                f"{owner} has a {type(rule).__name__} for {name!r}, which decides while training: what the other "
                "parts show would not be known beforehand. Use a planned curriculum there, or a run of its own."
            )
        if rule.easy is not None or rule.unscored != "last":
            raise ValueError(
                f"{owner} has a curriculum with `easy` or `unscored` of its own for {name!r}: one order serves all "
                f"parts. Give them to {owner}."
            )
        if rule.batches is not None:
            raise ValueError(f"{owner} has a curriculum with `batches` for {name!r}; give them to {owner}.")
        if rule.selection is not None:
            raise ValueError(
                f"{owner} has an OnlineSelection for {name!r}, and a step has as many candidates in every part. "
                f"Choose over all of them: OnlineSelection(then={owner}(...))."
            )


def numbered_parts(owner: str, ranking: Ranking, column: str, names: tuple[str, ...]) -> np.ndarray:
    """The number of the part that each example of an order belongs to, int16 or int32 (len(ranking),).

    Raises:
        ValueError: an example names none of the parts or several, or a part has no examples.
    """
    groups = ranking.columns[column]
    codes = np.full(ranking.num_rows, -1, dtype=np.promote_types(np.min_scalar_type(-len(names) - 1), np.int16))
    for number, name in enumerate(groups.names):
        codes[groups.rows(number)] = names.index(name) if name in names else len(names)
    if np.count_nonzero(codes >= 0) < len(groups.members):
        raise ValueError(
            f"`{column}` names several parts for a row: in which of them it is shown would be chance. {owner} takes "
            "one name for each row."
        )
    part_of = codes[ranking.order]
    counts = part_counts(part_of, len(names) + 1, first=-1)  # first those without a name, last those of others
    left = sorted(set(groups.names) - set(names)) if counts[-1] else []
    missing = [name for name, count in zip(names, counts[1:-1].tolist(), strict=True) if not count]
    if left or missing:
        raise ValueError(
            f"{owner} has the parts {list(names)}, and `{column}` names {list(groups.names)}: "
            + (f"nothing would be shown of {left}. " if left else f"there are no rows of {missing}. ")
            + "Name each part once, or filter the data first."
        )
    if counts[0]:
        raise ValueError(
            f"`{column}` names no part for {counts[0]:,} of {len(ranking):,} rows: they would never be shown. "
            "Name their part, or filter them out first."
        )
    return part_of


def part_counts(part_of: np.ndarray, stop: int, first: int = 0) -> np.ndarray:
    """How many examples belong to each of the parts `[first, stop)`, int64."""
    counts = np.zeros(stop - first, dtype=np.int64)
    for start, end in chunks_of(len(part_of)):
        counts += np.bincount(part_of[start:end] - first, minlength=len(counts))
    return counts


def part_ranking(ranking: Ranking, order: np.ndarray) -> Ranking:
    """Some of the examples, in this order."""
    scored = len(order)
    if ranking.scores is not None:
        scored = sum(int(np.isfinite(ranking.scores[order[at:to]]).sum()) for at, to in chunks_of(len(order)))
    return replace(ranking, order=order, num_scored=scored, num_unscored=len(order) - scored)
