"""A plan in words: what it draws, its stages as a table, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hf_curriculum.planning.exposure import Shown, cut_line, exposure_lines

TRAINED = 3
"""Compute of an example that is trained on, in forward passes: its own, and a backward pass of twice as much."""


class Described(Shown, Protocol):
    """What is read of a plan."""

    seed: int
    log: Sequence[Mapping[str, Any]]
    stage_starts: Sequence[int]
    unit_budget: Any
    known_steps: int
    num_steps: int
    num_samples: int
    num_draws: int
    num_examples: int
    selection: Any
    num_filled: int
    control_draws: int
    cost_ratio: float
    nominal_epochs: float
    notes: Sequence[str]

    def new_examples(self) -> Sequence[int]:
        """Examples of each stage's pool that no earlier stage could draw."""

    def pending_decisions(self) -> Sequence[str]:
        """What is known beforehand of the rounds that are still to be decided."""


def describe(plan: Described) -> str:
    """The stages as a table (phase, rule, pool, new, epochs, steps, share), totals, cost, exposure and notes."""
    return "\n".join([_headline(plan), *_table(plan), *_totals(plan)])


_HEADER = ("phase", "rule", "pool", "new", "epochs", "steps", "share")
_LEFT = ("phase", "rule")


def _headline(plan: Described) -> str:
    ranking = plan.ranking
    given = {name: value for name, value in plan.curriculum.to_dict().items() if name != "type" and value is not None}
    settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
    score = f" by {ranking.name or 'score'} ({ranking.easy} = easy)" if ranking.scores is not None else ""
    unit = plan.layout.unit
    drawn = f", drawn as images of {unit} captions" if unit > 1 else ""
    missing = ""
    if ranking.num_unscored:
        fate = "left out" if plan.curriculum.unscored == "drop" else "ranked last"
        missing = f", {ranking.num_unscored:,} without a score {fate}"
    return (
        f"{type(plan.curriculum).__name__}({settings}){score}: {len(ranking):,} examples{missing}{drawn}; "
        f"{plan.global_batch_size} per step, seed {plan.seed}"
    )


def _table(plan: Described) -> list[str]:
    rows = [_HEADER]
    for number, (stage, new) in enumerate(zip(plan.stages, plan.new_examples(), strict=True)):
        first, end = plan.stage_starts[number : number + 2]
        steps = -(-end // plan.samples_per_step) - -(-first // plan.samples_per_step)
        ruled = stage.num_draws - (plan.num_filled // plan.layout.unit if number == len(plan.stages) - 1 else 0)
        epochs = f"{ruled / stage.pool_size:.6g}"
        share = f"{100 * (end - first) / plan.num_samples:.1f} %"
        within = f"{steps:,}" if steps else "< 1"  # it begins and ends within one step
        rows.append((stage.name, stage.rule, f"{stage.pool_size:,}", f"{new:,}", epochs, within, share))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for cell, width, name in zip(row, widths, _HEADER, strict=True)
        ).rstrip()
        for row in rows
    ]


def _scoring_line(plan: Described) -> str:
    """What a rule that orders by losses costs beside its draws."""
    if plan.curriculum.losses_of_training:
        return "+ no round of scoring: the losses are those of training"
    most = plan.curriculum.most_decisions(plan.order, plan.unit_budget)
    taken, rows = len(plan.log), f"of scoring all {plan.ranking.num_rows:,} rows (forward only)"
    if not plan.undecided:
        return f"+ {taken:,} {'round' if taken == 1 else 'rounds'} {rows}"
    return f"+ {'a number of' if most is None else f'at most {most:,}'} rounds {rows}"


def _selection_line(plan: Described) -> str:
    """How many examples are trained on, of how many candidates, and what scoring them costs."""
    cost = plan.candidates * plan.selection.forwards / TRAINED
    most = "at most " if plan.undecided else ""
    return (
        f"{most}{plan.num_examples:,} examples trained on, {plan.selection.choice} of {plan.num_draws:,} candidates; "
        f"scoring them is {cost:.2f} × the training compute"
    )


def _totals(plan: Described) -> list[str]:
    ruled = plan.num_draws - plan.num_filled
    filled = f" + {plan.num_filled:,} to fill the last batch" if plan.num_filled else ""
    passes = f"{ruled / len(plan.ranking):.4g} × the data"
    what = "examples" if plan.candidates == 1 else "candidates"
    lines = [f"{ruled:,} {what} drawn{filled}: {passes} in {plan.num_steps:,} steps of {plan.global_batch_size}"]
    if plan.undecided:
        lines[0] = f"at most {lines[0]}, of which {plan.known_steps:,} are settled"
        lines.extend(f"  {line}" for line in plan.pending_decisions())
    if plan.candidates > 1:
        lines.append(_selection_line(plan))
    if plan.control_draws != ruled or plan.curriculum.needs_scores:
        most = "at most " if plan.undecided else ""
        lines.append(
            f"{most}{plan.cost_ratio:.3f} of the cost of {plan.nominal_epochs:g} i.i.d. epochs "
            f"({plan.control_draws:,} examples)"
        )
    lines.extend(exposure_lines(plan))
    if plan.curriculum.signal == "losses":
        lines.append(_scoring_line(plan))
    if plan.uncut is not None:
        lines.append(cut_line(plan))
    lines.extend(f"note: {note}" for note in plan.notes)
    return lines
