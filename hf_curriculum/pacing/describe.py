"""A plan in words and figures, before it is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_curriculum.pacing.plan import Plan

_HEADER = ("phase", "rule", "pool", "new", "epochs", "steps", "share")
_LEFT = ("phase", "rule")


def describe_plan(plan: Plan) -> str:
    """The table of stages, the totals, and the cost relative to the i.i.d. control."""
    lines = [_headline(plan), *_table(plan), *_totals(plan)]
    return "\n".join(lines)


def _headline(plan: Plan) -> str:
    ranking = plan.ranking
    settings = ", ".join(f"{name}={value!r}" for name, value in plan.curriculum.to_dict().items() if name != "type")
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


def _table(plan: Plan) -> list[str]:
    rows = [_HEADER]
    for number, (stage, new) in enumerate(zip(plan.stages, plan.new_examples(), strict=True)):
        first, behind = plan.stage_starts[number], plan.stage_starts[number + 1]
        steps = -(-behind // plan.global_batch_size) - -(-first // plan.global_batch_size)
        ruled = stage.num_draws - (plan.num_filled // plan.layout.unit if number == len(plan.stages) - 1 else 0)
        epochs = f"{ruled / stage.pool_size:.6g}"
        share = f"{100 * (behind - first) / plan.num_slots:.1f} %"
        rows.append((stage.name, stage.rule, f"{stage.pool_size:,}", f"{new:,}", epochs, f"{steps:,}", share))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for cell, width, name in zip(row, widths, _HEADER, strict=True)
        ).rstrip()
        for row in rows
    ]


def _totals(plan: Plan) -> list[str]:
    ruled = plan.num_draws - plan.num_filled
    filled = f" + {plan.num_filled:,} to fill the last batch" if plan.num_filled else ""
    lines = [f"{ruled:,} examples drawn{filled}: {plan.num_steps:,} steps of {plan.global_batch_size}"]
    if plan.undecided:
        lines[0] = f"at most {lines[0]}, of which {plan.known_steps:,} are settled"
        lines.extend(f"  {line}" for line in plan.outlook())
    if plan.control_draws != ruled or plan.curriculum.needs_scores:
        most = "at most " if plan.undecided else ""
        lines.append(
            f"{most}{plan.cost_ratio:.3f} of the cost of {plan.nominal_epochs:g} i.i.d. epochs "
            f"({plan.control_draws:,} examples)"
        )
    return lines
