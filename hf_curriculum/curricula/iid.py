"""The controls: every example at any time, and what is as long as a curriculum."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hf_curriculum.curricula.filter import Filter
from hf_curriculum.curricula.online_selection import OnlineSelection
from hf_curriculum.curricula.phases import Phases
from hf_curriculum.curricula.weighted import Weighted
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, SizedCurriculum, WrappingCurriculum
from hf_curriculum.planning.plan import Plan, bind
from hf_curriculum.planning.ranking import Ranking, rank_scores
from hf_curriculum.planning.stage import Stage
from hf_curriculum.shapes import validate_arguments


@dataclass(frozen=True)
class IID(SizedCurriculum):
    """Independent and identically distributed training: shuffled passes over all examples.

    Without a length of its own it takes `num_train_epochs` or `max_steps`.

    Args:
        epochs: passes over the data set.
        examples: examples to draw, in place of `epochs`: a control at equal cost.
        easy: see `Curriculum`.
        unscored: see `Curriculum`.
        partial_batches: see `Curriculum`.

    Raises:
        ValueError: both lengths are given, or one is not positive.

    Example:
        >>> IID(epochs=8).to_dict()
        {'type': 'iid', 'epochs': 8}
    """

    type: ClassVar[str] = "iid"
    needs_scores: ClassVar[bool] = False

    epochs: float | None = None
    examples: int | None = None

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage."""
        size = len(ranking)
        draws = self.num_draws(budget, size)
        return (Stage(0, "i.i.d.", "all", ((0, size),), draws, self.batch_multiple(budget)),)


@validate_arguments
def control_of(plan: Plan, kind: Literal["iid", "hard_first"]) -> Curriculum:
    """A control of a plan: the same number of examples trained on and of optimizer steps.

    Where a plan chooses among candidates, `"iid"` trains on the same number, chooses none and takes less compute;
    `"hard_first"` chooses too. Two more controls are the same curriculum over the columns that `shuffle_scores` adds:
    an order at random, and one matched for length.

    Args:
        plan: the plan to compare with; of a signal-paced curriculum, before or after its decisions.
        kind: `"iid"`: shuffled passes over everything; `"hard_first"`: the same rule with the hard end called easy.

    Raises:
        ValueError: the kind is unknown, or the rule has no hard end or another length from there.

    Example:
        >>> import numpy as np
        >>> plan = make_plan(Phases(2, easy="low"), np.arange(8), global_batch_size=4)
        >>> control_of(plan, "iid").to_dict()
        {'type': 'iid', 'examples': 12}
    """
    rule = plan.curriculum
    if kind == "iid":
        same = {"unscored": rule.unscored, "batches": rule.batches, "partial_batches": rule.partial_batches}
        draws = (plan.num_draws - plan.num_filled) // plan.layout.unit
        return IID(examples=-(-draws // plan.candidates), **same)
    if kind != "hard_first":
        raise ValueError(f"The control {kind!r} was asked for; there are 'iid' and 'hard_first'.")
    drawing = rule.then if isinstance(rule, OnlineSelection) else rule
    if not rule.needs_easy or isinstance(drawing, Weighted):
        raise ValueError(
            f"{type(rule).__name__} has no hard end to begin with: it does not go from easy to hard by a score. "
            "Compare it with 'iid'."
        )
    easy = "high" if plan.ranking.easy == "low" else "low"
    flipped, ranking = replace(_turned(rule, plan.ranking), easy=easy), plan.ranking
    turned = rank_scores(ranking.scores, easy, unscored=rule.unscored, score_column=ranking.score_column)
    turned = replace(turned, columns=ranking.columns, easy_ends=ranking.easy_ends)
    steps = bind(flipped, turned, plan.budget, plan.seed).max_steps
    if steps == plan.max_steps:
        return flipped
    if not isinstance(drawing, Phases):
        raise ValueError(
            f"{type(rule).__name__} takes {plan.max_steps:,} steps, and with the hard end first {steps:,}: buckets by "
            "value are not the same from both ends. Use cut='rank'."
        )
    # By value the buckets are others from the other end, so each phase gets the steps that it has in the plan.
    ends = [-(-end // plan.samples_per_step) for end in (plan.uncut or plan).stage_starts]
    lengths = tuple(end - first for first, end in itertools.pairwise(ends))
    return _with_steps(flipped, lengths)


def _with_steps(rule: Curriculum, lengths: tuple[int, ...]) -> Curriculum:
    """Phases of so many steps each, as they are or drawing candidates."""
    if isinstance(rule, OnlineSelection):
        return replace(rule, then=_with_steps(rule.then, lengths))
    return replace(rule, epochs_per_phase=1, steps_per_phase=lengths)


def _turned(rule: Curriculum, ranking: Ranking) -> Curriculum:
    """The rule with its thresholds in the order of the other end, and a filter's share as this end has it."""
    if isinstance(rule, Filter):
        rule = rule.with_share(ranking)
    if isinstance(rule, WrappingCurriculum):
        return replace(rule, then=_turned(rule.then, ranking))
    thresholds = getattr(rule, "thresholds", None)
    return rule if thresholds is None else replace(rule, thresholds=thresholds[::-1])
