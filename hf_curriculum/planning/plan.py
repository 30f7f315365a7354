"""A plan: a curriculum bound to one data set, batch size and seed. It says what is drawn where in the run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hf_curriculum.planning.batches import Layout
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, Observed
from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.ranking import Ranking, rank_scores
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import PAD_INDEX, mix64

_CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class Plan:
    """What is trained on, as a pure function of (plan, sample position).

    A sample position counts the examples of the whole run; positions `step · global_batch_size …` make one optimizer
    step, on any number of processes. Made by `make_plan`. The plan of a signal-paced curriculum is known up to the
    next decision; `decided` gives the plan after it.

    Args:
        curriculum: the rule.
        ranking: the data set in order, with its scores.
        order: the order that the stages' ranks stand for: mostly the same. It is another one where images are drawn,
            where only a part is, and where losses say the order.
        digests: short names for the content of the columns that the rule reads, by column.
        stages: the stages, one after the other, that the log settles.
        global_batch_size: examples per optimizer step, over all processes and accumulated batches.
        seed: the run's data seed.
        num_filled: examples drawn beyond the rule to fill the last batch.
        nominal_epochs: the epochs a person would call this run, and its i.i.d. control.
        budget: what the training arguments gave.
        layout: how draws become rows; a draw fills `layout.unit` sample positions.
        declared_steps: the most steps a signal-paced run takes; None where the stages say it.
        log: the decisions taken so far.
        losses: the rows' losses at the last decision, for a rule that orders by them.
    """

    curriculum: Curriculum
    ranking: Ranking
    order: Ranking
    digests: Mapping[str, str]
    stages: tuple[Stage, ...]
    global_batch_size: int
    seed: int
    num_filled: int
    nominal_epochs: float
    budget: Budget
    layout: Layout
    declared_steps: int | None = None
    log: tuple[Mapping[str, Any], ...] = ()
    losses: np.ndarray | None = None

    def __post_init__(self) -> None:
        starts = np.cumsum([0, *(stage.num_samples * self.layout.unit for stage in self.stages)])
        object.__setattr__(self, "stage_starts", tuple(int(start) for start in starts))
        object.__setattr__(self, "_key", mix64(self.seed))

    stage_starts: tuple[int, ...] = ()
    """First sample position of each stage, and the sample position behind the last stage."""

    @property
    def undecided(self) -> bool:
        """Whether a decision is still to be taken before the run's end."""
        return self.declared_steps is not None and (not self.stages or self.stages[-1].decides)

    @property
    def known_samples(self) -> int:
        """Sample positions up to the next decision, a multiple of the global batch size."""
        return self.stage_starts[-1]

    @property
    def known_steps(self) -> int:
        """Optimizer steps up to the next decision."""
        return self.known_samples // self.global_batch_size

    @property
    def num_samples(self) -> int:
        """Places in the stream, a multiple of the global batch size; at most, while decisions are still to come."""
        return self.declared_steps * self.global_batch_size if self.undecided else self.known_samples

    @property
    def num_draws(self) -> int:
        """Examples drawn, those that fill the last batch included; at most, while decisions are still to come."""
        return self.num_samples if self.undecided else self.layout.unit * sum(stage.num_draws for stage in self.stages)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the run, exactly; the declared maximum, while decisions are still to come."""
        return self.num_samples // self.global_batch_size

    @property
    def max_steps(self) -> int:
        """Optimizer steps that the learning-rate schedule is made for, which no decision changes."""
        return self.num_steps if self.declared_steps is None else self.declared_steps

    @property
    def control_draws(self) -> int:
        """Examples that an i.i.d. run of as many epochs draws."""
        return round(self.nominal_epochs * len(self.ranking))

    @property
    def cost_ratio(self) -> float:
        """Examples of the rule relative to its i.i.d. control of as many epochs."""
        return (self.num_draws - self.num_filled) / self.control_draws

    def decided(self, observed: Observed) -> Plan:
        """The plan after the next decision, which is taken on what was observed and appended to the log.

        Raises:
            RuntimeError: no decision is due at that step.
        """
        if not self.undecided or observed.step != self.known_steps:
            due = f"after step {self.known_steps}" if self.undecided else "no more"
            raise RuntimeError(
                f"A decision was asked for after step {observed.step}, but one is due {due}: the plan and the run "
                "have come apart."
            )
        entry = {"round": len(self.log), "step": observed.step}
        budget, losses = _unit_budget(self.budget, self.layout), self.layout.losses(observed.losses)
        entry.update(self.curriculum.decide(self.order, budget, self.log, replace(observed, losses=losses)))
        return self.with_log((*self.log, entry), observed.losses)

    def with_log(self, log: Log, losses: np.ndarray | None = None) -> Plan:
        """The plan that these decisions make.

        Args:
            log: all decisions, from the run's first.
            losses: the rows' losses at the last of them, if the rule orders by losses.

        Raises:
            ValueError: the rule orders by losses, and they are not given.
        """
        if log and losses is None and self.curriculum.signal == "losses":
            raise ValueError(
                f"{type(self.curriculum).__name__} orders by the losses of the last decision, and they were not given."
            )
        order = self.order
        if self.curriculum.signal == "losses":
            order = self.curriculum.arrange(self.layout.units(self.ranking), self.layout.losses(losses))
        return _resolve(self, order, tuple(log), losses)

    def ranks(self, start: int, stop: int) -> np.ndarray:
        """Ranks (0 = easiest) of draws `start … stop − 1`; int64, `PAD_INDEX` where there is none.

        A draw is a sample position, unless it fills several (`layout.unit`).

        Raises:
            IndexError: the sample positions are not in the run, or a decision must be taken before they are known.
        """
        unit = self.layout.unit
        forgotten = self.log[-1]["step"] * self.global_batch_size // unit if self.losses is not None else 0
        if start < min(stop, forgotten):
            raise IndexError(
                f"Positions {start} to {stop} were asked for; {type(self.curriculum).__name__} orders by the last "
                f"losses, and those that positions before {forgotten} were drawn by are not kept."
            )
        if not 0 <= start <= stop <= self.known_samples // unit:
            more = " before the next decision" if self.undecided else ""
            raise IndexError(
                f"Positions {start} to {stop} were asked for; the plan has {self.known_samples} positions{more}."
            )
        parts = []
        number = int(np.searchsorted(self.stage_starts, start * unit, side="right")) - 1
        while start < stop:
            first = self.stage_starts[number] // unit
            behind = min(stop, self.stage_starts[number + 1] // unit)
            parts.append(self.stages[number].ranks(start - first, behind - first, self._key))
            start, number = behind, number + 1
        if not parts:
            return np.empty(0, dtype=np.int64)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers of the data set drawn at positions `[start, stop)`; int64, `PAD_INDEX` where there is none."""
        return self.layout.rows(self, start, stop)

    def drawn_scores(self, start: int, stop: int) -> np.ndarray:
        """Scores of the examples drawn at positions `[start, stop)`, padding left out; float32."""
        rows = self.rows(start, stop)
        return self.ranking.scores[rows[rows != PAD_INDEX]]

    def step_rows(self, step: int) -> np.ndarray:
        """Row numbers that optimizer step `step` (from 0) trains on, at most `global_batch_size` of them."""
        rows = self.rows(step * self.global_batch_size, (step + 1) * self.global_batch_size)
        return rows[rows != PAD_INDEX]

    def chunks(self, start: int = 0) -> Iterator[np.ndarray]:
        """The rows of the run from sample position `start` up to the next decision, a few thousand at a time."""
        for first in range(start, self.known_samples, _CHUNK):
            yield self.rows(first, min(first + _CHUNK, self.known_samples))

    def draws_after(self, step: int) -> int:
        """Examples drawn in the first `step` optimizer steps; holes do not count."""
        sample = step * self.global_batch_size
        spans = zip(self.stage_starts, self.stages, strict=False)
        unit = self.layout.unit
        return unit * sum(
            stage.draws_within(min((sample - start) // unit, stage.num_samples))
            for start, stage in spans
            if sample > start
        )

    def stage_at(self, step: int) -> Stage:
        """The stage that optimizer step `step` (from 0) begins in."""
        return self.stages[int(np.searchsorted(self.stage_starts, step * self.global_batch_size, side="right")) - 1]

    @cached_property
    def stage_ends(self) -> dict[int, Stage]:
        """Each stage by the number of optimizer steps after which its last example has been trained on."""
        ends = self.stage_starts[1:]
        return {-(-end // self.global_batch_size): stage for end, stage in zip(ends, self.stages, strict=True)}

    @cached_property
    def pass_ends(self) -> frozenset[int]:
        """Numbers of optimizer steps after which a pass over a pool is complete: what `"epoch"` strategies follow."""
        return frozenset(
            -(-(start + end * self.layout.unit) // self.global_batch_size)
            for start, stage in zip(self.stage_starts, self.stages, strict=False)
            for end in stage.pass_ends()
        )

    def fingerprint(self) -> dict[str, Any]:
        """What has to be the same for a checkpoint to be resumed, JSON-able."""
        return fingerprint_of(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as a JSON-able mapping: its fingerprint and its table of stages."""
        return facts_of(self)

    def new_examples(self) -> list[int]:
        """Examples of each stage's pool that no earlier stage could draw."""
        return new_examples_of(self.stages)

    def pending_decisions(self) -> tuple[str, ...]:
        """What is certain about the rounds still to be decided, in words."""
        return self.curriculum.pending_decisions(self.order, _unit_budget(self.budget, self.layout))

    def scenarios(self) -> dict[str, Plan]:
        """The runs at both ends of what a signal-paced curriculum's metrics can bring; empty for any other."""
        plans = {}
        for name, metrics in self.curriculum.scenarios().items():
            plan = self
            while plan.undecided:
                plan = plan.decided(Observed(plan.known_steps, metrics(len(plan.log))))
            plans[name] = plan
        return plans

    def describe(self) -> str:
        """The plan as a table: phase · rule · pool · new · epochs · steps · share of the run."""
        return describe_plan(self)


def make_plan(
    curriculum: Curriculum,
    ranking: Ranking | np.ndarray,
    *,
    global_batch_size: int,
    seed: int = 0,
    epochs: float | None = None,
    max_steps: int | None = None,
) -> Plan:
    """Binds a curriculum to ranked examples (or their scores, low = easy unless the curriculum says otherwise).

    The stream is rounded up to a whole global batch by further draws from the last pool.

    Args:
        curriculum: the rule.
        ranking: the order of the examples, or one score per example.
        global_batch_size: examples per optimizer step.
        seed: key of every draw.
        epochs: `num_train_epochs` if somebody gave it: the length of a curriculum that has none of its own.
        max_steps: `max_steps` if somebody gave it, likewise.

    Raises:
        ValueError: a pool is empty, or `epochs` or `max_steps` contradict the curriculum's own length.

    Example:
        >>> from hf_curriculum import Phases
        >>> plan = make_plan(Phases(num_phases=2), np.array([1.0, 2, 3, 4]), global_batch_size=2)
        >>> plan.num_steps, [stage.pool_size for stage in plan.stages]
        (3, [2, 4])
    """
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size={global_batch_size} was given; a step needs at least 1 example.")
    if not isinstance(ranking, Ranking):
        ranking = rank_scores(np.asarray(ranking), curriculum.easy or "low", unscored=curriculum.unscored)
    if not len(ranking):
        raise ValueError("There is no example to plan for: the data set is empty, or every row was dropped.")
    budget = Budget(epochs, max_steps, global_batch_size)
    plan = bind(curriculum, ranking, budget, seed)
    _validate_length(plan, budget)
    return plan


def bind(curriculum: Curriculum, ranking: Ranking, budget: Budget, seed: int) -> Plan:
    """The plan of a rule and some examples, before any decision; `make_plan` also looks whether the budget agrees."""
    layout = Layout() if curriculum.batches is None else curriculum.batches.layout(ranking)
    if layout.unit > 1 and curriculum.reads:
        raise ValueError(
            f"{type(curriculum).__name__} reads {sorted(curriculum.reads)} of each row, and its draws would be "
            f"images: the two cannot be combined. Leave out batches={curriculum.batches}."
        )
    digests = {name: digest_of(values) for name, values in ranking.columns.items()}
    units = layout.units(ranking)
    order = curriculum.arrange(units)
    if units is ranking and curriculum.signal != "losses" and len(order) == len(ranking):
        # Nothing asks for the order that it was made from again.
        ranking = order
    bare = Plan(curriculum, ranking, order, digests, (), budget.global_batch_size, seed, 0, 0.0, budget, layout)
    return _resolve(bare, order, (), None)


def _resolve(plan: Plan, order: Ranking, log: tuple[Mapping[str, Any], ...], losses: np.ndarray | None) -> Plan:
    """The plan with the stages that some decisions settle."""
    curriculum, layout, budget = plan.curriculum, plan.layout, _unit_budget(plan.budget, plan.layout)
    stages = curriculum.stages(order, budget, log)
    declared = curriculum.declared_steps(order, budget)
    batch = budget.global_batch_size
    if layout.whole_stages:
        stages = (*(_filled(stage, -stage.num_samples % batch) for stage in stages[:-1]), *stages[-1:])
    short = -sum(stage.num_samples for stage in stages) % batch
    if short:
        stages = (*stages[:-1], _filled(stages[-1], short))
    return replace(
        plan,
        order=order,
        stages=layout.stages(stages, order, batch),
        num_filled=short * layout.unit,
        nominal_epochs=curriculum.nominal_epochs(budget, order),
        declared_steps=declared,
        log=log,
        losses=losses,
    )


def _filled(stage: Stage, short: int) -> Stage:
    """The stage with so many draws more."""
    return replace(stage, num_draws=stage.num_draws + short) if short else stage


def _unit_budget(budget: Budget, layout: Layout) -> Budget:
    """The budget in what the curriculum draws."""
    size, rest = divmod(budget.global_batch_size, layout.unit)
    if rest:
        raise ValueError(
            f"A step of {budget.global_batch_size} examples cannot be made of images with {layout.unit} captions "
            f"each. Use a global batch size that is a multiple of {layout.unit}, or set "
            "ByImage(captions_per_image=...)."
        )
    return replace(budget, global_batch_size=size)


def _validate_length(plan: Plan, budget: Budget) -> None:
    name = type(plan.curriculum).__name__
    if budget.steps is not None and budget.steps != plan.num_steps:
        raise ValueError(
            f"max_steps={budget.steps} was given, but the plan of {name} has {plan.num_steps:,} steps of "
            f"{plan.global_batch_size}. Fewer steps would never show the hardest examples, more would have none to "
            "show. Drop max_steps, or change the curriculum's own length."
        )
    if budget.epochs is not None and abs(budget.epochs - plan.nominal_epochs) > 1e-9:
        raise ValueError(
            f"num_train_epochs={budget.epochs:g} was given, but {name} runs for {plan.nominal_epochs:g} epochs of its "
            "pools. Only one of the two can be followed. Drop num_train_epochs, or change the curriculum's own length."
        )


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
        share = f"{100 * (behind - first) / plan.num_samples:.1f} %"
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
        lines.extend(f"  {line}" for line in plan.pending_decisions())
    if plan.control_draws != ruled or plan.curriculum.needs_scores:
        most = "at most " if plan.undecided else ""
        lines.append(
            f"{most}{plan.cost_ratio:.3f} of the cost of {plan.nominal_epochs:g} i.i.d. epochs "
            f"({plan.control_draws:,} examples)"
        )
    return lines


def fingerprint_of(plan: Plan) -> dict[str, Any]:
    """What has to be the same for a checkpoint to be resumed."""
    scores = plan.ranking.scores
    columns = dict(sorted(plan.digests.items()))
    return {
        "curriculum": plan.curriculum.to_dict(),
        "score_column": plan.ranking.name,
        "easy": plan.ranking.easy,
        "num_rows": plan.ranking.num_rows,
        "scores": None if scores is None else digest_of(scores),
        **({"columns": columns} if columns else {}),
        "global_batch_size": plan.global_batch_size,
        "seed": plan.seed,
        "num_steps": plan.max_steps,
    }


def facts_of(plan: Plan) -> dict[str, Any]:
    """The fingerprint and the table of stages; positions are counted over the run, `last_slot` and pools inclusive."""
    unit = plan.layout.unit
    rows = [
        {
            "name": stage.name,
            "rule": stage.rule,
            "pool": stage.pool_size,
            "new": new,
            "epochs": stage.epochs,
            "draws": stage.num_draws * unit,
            "first_slot": start,
            "last_slot": start + stage.num_samples * unit - 1,
            "pools": [
                (start + first * unit, start + (last + 1) * unit - 1, pool) for first, last, pool in stage.pools()
            ],
        }
        for stage, start, new in zip(plan.stages, plan.stage_starts, plan.new_examples(), strict=False)
    ]
    return {**plan.fingerprint(), "num_filled": plan.num_filled, "num_draws": plan.num_draws, "stages": rows}


def new_examples_of(stages: Sequence[Stage]) -> list[int]:
    """Examples of each stage's pool that no earlier stage could draw."""
    seen: list[tuple[int, int]] = []
    fresh = []
    for stage in stages:
        before = _covered(seen)
        seen.extend(stage.slices)
        fresh.append(_covered(seen) - before)
    return fresh


def digest_of(values: np.ndarray | Groups) -> str:
    """A short name for the content of an array or of groups."""
    arrays = (values.starts, values.members) if isinstance(values, Groups) else (values,)
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    if isinstance(values, Groups) and values.names is not None:
        digest.update("\0".join(values.names).encode())
    return digest.hexdigest()


def _covered(slices: list[tuple[int, int]]) -> int:
    """How many ranks are in at least one of the slices."""
    total, behind = 0, 0
    for start, stop in sorted(slices):
        total += max(0, stop - max(start, behind))
        behind = max(behind, stop)
    return total
