"""A plan: a curriculum bound to one data set, batch size and seed, which gives the rows of every step."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.config import digest
from hf_curriculum.planning.batches import Layout
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, curriculum_from
from hf_curriculum.planning.deciding import Observed, Selection
from hf_curriculum.planning.export import export_order, validate_order
from hf_curriculum.planning.exposure import TRAINED, Exposure, cut_line, describe, exposure_of, small_pools
from hf_curriculum.planning.groups import Groups
from hf_curriculum.planning.ranking import Ranking, easy_of_numbers, rank_dataset, rank_scores
from hf_curriculum.planning.stage import Stage
from hf_curriculum.provenance import DATASET_TYPES
from hf_curriculum.rng import PAD_INDEX, mix64
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from datasets import Dataset

logger: logging.Logger = logging.getLogger(__name__)

_CHUNK = 1 << 15
_ROUND = 0x40D
"""Keys what a round's order has by chance apart from its draws."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The row of every draw of a run, as a pure function of (plan, sample position).

    A sample position counts the draws of the whole run; positions `step · samples_per_step …` make one optimizer
    step, on any number of processes. Made by `make_plan`. The plan of a signal-paced curriculum is known up to the
    next decision; `decided` gives the plan after it.

    Args:
        curriculum: the rule.
        ranking: the data set in order, with its scores.
        order: the order that the stages' positions refer to: the same, unless images or only a part of the rows are
            drawn, or losses give the order.
        digests: digests of the columns that the rule reads, by column.
        stages: the stages, one after the other, up to the next decision.
        global_batch_size: examples per optimizer step, over all processes and accumulated batches.
        seed: the run's data seed.
        num_filled: examples drawn beyond the rule to fill the last batch.
        nominal_epochs: the epochs of this run's i.i.d. control.
        budget: the length in the training arguments.
        layout: how draws become rows; a draw fills `layout.unit` sample positions.
        declared_steps: the most steps a signal-paced run takes; None where the stages are known beforehand.
        log: the decisions taken so far.
        losses: the rows' losses at the last decision, for a rule that orders by them.
        arrays: metrics of the last decision that are arrays, for a rule that compares them with the next ones.
        uncut: the plan that `max_steps` cuts short; None: this is the complete plan.
        amended: of a plan for the rest of a run, the part before: `step`, the steps taken; `examples` trained on and
            `scored` in them; and a `description`. Sample positions are counted from the run's beginning.
        stage_starts: first sample position of each stage, and the end of the last stage.

    Example:
        >>> from hf_curriculum import Phases
        >>> plan = make_plan(Phases(2, easy="low"), np.array([3.0, 1, 2, 4]), global_batch_size=2)
        >>> plan.num_steps, plan.rows(0, 4).tolist()
        (3, [2, 1, 3, 2])
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
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    uncut: Plan | None = None
    amended: Mapping[str, Any] | None = None
    stage_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes, first = (stage.num_samples * self.layout.unit for stage in self.stages), self.first_step
        starts = accumulate(sizes, initial=first * self.samples_per_step)
        object.__setattr__(self, "stage_starts", tuple(starts))
        object.__setattr__(self, "_key", mix64(self.seed, first) if first else mix64(self.seed))

    @property
    def unit_budget(self) -> Budget:
        """The budget with the batch size counted in draws.

        Raises:
            ValueError: a step cannot be made of whole draws.
        """
        total, unit = self.samples_per_step, self.layout.unit
        if self.global_batch_size % unit:
            raise ValueError(
                f"A step of {self.global_batch_size} examples cannot be made of images with {unit} captions each. Use "
                f"a global batch size that is a multiple of {unit}, or set ByImage(captions_per_image=...)."
            )
        return replace(self.budget, global_batch_size=total // unit)

    @property
    def selection(self) -> Selection | None:
        """The rule that chooses among draws while training; None where every draw is trained on."""
        return self.curriculum.selection

    @property
    def candidates(self) -> int:
        """Draws for every example trained on: 1, unless a rule chooses among several while training."""
        return 1 if self.selection is None else self.selection.candidates

    @property
    def samples_per_step(self) -> int:
        """Sample positions of an optimizer step: the candidates of each of its examples."""
        return self.global_batch_size * self.candidates

    @property
    def first_step(self) -> int:
        """Optimizer steps of the run before this plan's: 0, unless it is the rest of an amended run."""
        return 0 if self.amended is None else self.amended["step"]

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
        return self.known_samples // self.samples_per_step

    @property
    def num_samples(self) -> int:
        """Sample positions, a multiple of the global batch size; at most, while decisions are still to come."""
        return self.declared_steps * self.samples_per_step if self.undecided else self.known_samples

    @property
    def num_draws(self) -> int:
        """Examples drawn, those that fill the last batch included; at most, while decisions are still to come."""
        return self.num_samples if self.undecided else self.layout.unit * sum(stage.num_draws for stage in self.stages)

    @property
    def num_examples(self) -> int:
        """Examples trained on; at most, while decisions are still to come."""
        return self.num_draws // self.candidates

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the run, exactly; the declared maximum, while decisions are still to come."""
        return self.num_samples // self.samples_per_step

    @property
    def max_steps(self) -> int:
        """Optimizer steps that the learning-rate schedule is made for, which no decision changes."""
        return self.num_steps if self.declared_steps is None else self.declared_steps

    @property
    def control_draws(self) -> int:
        """Examples that an i.i.d. run of the same number of epochs draws."""
        return max(1, round(self.nominal_epochs * len(self.ranking)))

    @property
    def cost_ratio(self) -> float:
        """The cost relative to an i.i.d. control of the same number of epochs; scoring candidates counts."""
        draws = self.num_draws - self.num_filled
        scored = 0 if self.candidates == 1 else self.selection.forwards / TRAINED
        return draws * (1 / self.candidates + scored) / self.control_draws

    def decided(self, observed: Observed) -> Plan:
        """The plan after the next decision, which is taken on the observed values and appended to the log.

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
        losses = self.layout.losses(observed.losses)
        observed_units = replace(observed, losses=losses, before=self.arrays)
        entry.update(self.curriculum.decide(self.order, self.unit_budget, self.log, observed_units))
        return self.with_log((*self.log, entry), observed.losses, observed.arrays)

    def with_log(
        self, log: Log, losses: np.ndarray | None = None, arrays: Mapping[str, np.ndarray] | None = None
    ) -> Plan:
        """The plan after these decisions.

        Args:
            log: all decisions, from the run's first.
            losses: the rows' losses at the last of them, if the rule orders by losses.
            arrays: the metrics at the last of them that are arrays.

        Raises:
            ValueError: the rule orders by losses, and they are not given.
        """
        if log and losses is None and self.curriculum.signal == "losses":
            raise ValueError(
                f"{type(self.curriculum).__name__} orders by the losses of the last decision, and they were not given."
            )
        order = self.order
        if self.curriculum.signal == "losses":
            units, of_units = self.layout.units(self.ranking), self.layout.losses(losses)
            order = self.curriculum.arrange_round(units, of_units, mix64(self.seed, _ROUND, len(log)))
        return replace(_resolve(self, order, tuple(log), losses), arrays=arrays or {})

    def positions(self, start: int, stop: int) -> np.ndarray:
        """Positions in the order (0 = easiest) of the draws `[start, stop)`; int64, `PAD_INDEX` where there is none.

        A draw is a sample position, unless it fills several (`layout.unit`).

        Raises:
            IndexError: the sample positions are not in the run, or a decision must be taken before they are known.
        """
        unit = self.layout.unit
        forgotten = self.log[-1]["step"] * self.samples_per_step // unit if self.losses is not None else 0
        if start < min(stop, forgotten):
            raise IndexError(
                f"Positions {start} to {stop} were asked for; {type(self.curriculum).__name__} orders by the last "
                f"losses, and those that positions before {forgotten} were drawn by are not kept."
            )
        if start < min(stop, self.stage_starts[0] // unit):
            raise IndexError(
                f"Positions {start} to {stop} were asked for, and the run was amended after step {self.first_step}: "
                "what earlier steps drew was another plan's. `curriculum.json` of an earlier checkpoint has it."
            )
        if not 0 <= start <= stop <= self.known_samples // unit:
            more = " before the next decision" if self.undecided else ""
            raise IndexError(
                f"Positions {start} to {stop} were asked for; the plan has {self.known_samples} positions{more}."
            )
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            number = self._stage_number(start * unit)
            first, end = self.stage_starts[number] // unit, min(stop, self.stage_starts[number + 1] // unit)
            parts.append(self.stages[number].positions(start - first, end - first, self._key))
            start = end
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _stage_number(self, sample: int) -> int:
        """The number of the stage that holds a sample position."""
        return bisect_right(self.stage_starts, sample) - 1

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Row numbers drawn at the sample positions `[start, stop)`; `PAD_INDEX` where there is none.

        Raises:
            IndexError: the sample positions are not in the run, or a decision must be taken before they are known.
        """
        if self.uncut is not None and stop > self.known_samples:
            raise IndexError(
                f"Positions {start} to {stop} were asked for; the plan ends after {self.known_samples}, because of "
                f"max_steps={self.budget.steps}."
            )
        # Windows of batches may reach beyond the end.
        return self.layout.rows(self.uncut or self, start, stop)

    def drawn_scores(self, start: int, stop: int) -> np.ndarray:
        """Scores of the examples drawn at positions `[start, stop)`, padding left out; float32."""
        rows = self.rows(start, stop)
        return self.ranking.scores[rows[rows != PAD_INDEX]]

    def step_rows(self, step: int) -> np.ndarray:
        """Row numbers that optimizer step `step` (from 0) draws, at most `samples_per_step` of them."""
        rows = self.rows(step * self.samples_per_step, (step + 1) * self.samples_per_step)
        return rows[rows != PAD_INDEX]

    def chunks(self, start: int = 0) -> Iterator[np.ndarray]:
        """The rows of the run from sample position `start` up to the next decision, a few thousand at a time."""
        for first in range(start, self.known_samples, _CHUNK):
            yield self.rows(first, min(first + _CHUNK, self.known_samples))

    @property
    def pads_batches(self) -> bool:
        """Whether passes end with smaller batches, whose free sample positions hold `PAD_INDEX`."""
        return self.curriculum.partial_batches == "keep"

    @validate_arguments
    def export(
        self,
        file: str | Path,
        dataset: Dataset | None = None,
        *,
        id_column: str | None = None,
        datacomp: bool = False,
        up_to_decision: bool = False,
    ) -> Path:
        """Writes the row of every draw to a file, for a program that trains in its own way.

        `order.npy` holds row numbers (int32; int64 above 2^31 rows), `order.txt` a line per draw, `order.parquet` the
        columns `step`, `row` and `id`. `order.npy.json` describes the plan and the data.
        `CurriculumSampler.from_export` reads both back.

        Args:
            file: what to write; its suffix says how.
            dataset: the data that the plan was made for; ids are read from it, and its fingerprint is written too.
            id_column: ids of the rows, texts or whole numbers, in place of row numbers.
            datacomp: write the uids of `id_column` as DataComp's `resharder.py` reads them: sorted pairs of 64-bit
                numbers, each as often as it is drawn, without their order.
            up_to_decision: of a plan that decides while training, write the steps that are known.

        Returns:
            `file`.

        Raises:
            ValueError: the order is not known beforehand, passes end with smaller batches, the data is not the plan's,
                an id is missing or impossible, or the suffix is unknown.
            RuntimeError: another process has been writing the file for ten minutes.

        Example:
            >>> from hf_curriculum import IID
            >>> import tempfile
            >>> plan = make_plan(IID(epochs=1), np.zeros(4), global_batch_size=2)
            >>> file = plan.export(f"{tempfile.mkdtemp()}/order.npy")
            >>> np.load(file).dtype, sorted(np.load(file).tolist())
            (dtype('int32'), [0, 1, 2, 3])
        """
        return export_order(self, file, dataset, id_column, datacomp, up_to_decision)

    def draws_after(self, step: int) -> int:
        """Examples drawn in the first `step` optimizer steps, candidates that are not chosen too, without padding."""
        sample, unit = step * self.samples_per_step, self.layout.unit
        before = 0 if self.amended is None else self.amended["examples"] * self.candidates
        return before + unit * sum(
            stage.draws_within(min((sample - start) // unit, stage.num_samples))
            for start, stage in zip(self.stage_starts, self.stages, strict=False)
            if sample > start
        )

    def examples_after(self, step: int) -> int:
        """Examples trained on in the first `step` optimizer steps."""
        return self.draws_after(step) // self.candidates

    def scored_after(self, step: int) -> int:
        """Forward passes of one example, other than training, in the first `step` optimizer steps.

        One for each candidate and, where losses decide, one for each row at every decision so far.
        """
        chosen = 0 if self.candidates == 1 else self.draws_after(step) * self.selection.forwards
        scored = self.curriculum.signal == "losses" and not self.curriculum.losses_of_training
        passes = sum(entry["step"] < step for entry in self.log) if scored else 0
        before = 0 if self.amended is None else self.amended["scored"]
        return before + chosen + passes * self.ranking.num_rows

    def compute_after(self, step: int) -> int:
        """Compute of the first `step` optimizer steps: 1 for a forward pass of an example, 3 to train on one."""
        return TRAINED * self.examples_after(step) + self.scored_after(step)

    def stage_at(self, step: int) -> Stage:
        """The stage that optimizer step `step` (from 0) begins in."""
        return self.stages[self._stage_number(step * self.samples_per_step)]

    def phase_name(self, number: int) -> str:
        """Which stage it is, of how many where that is known: "phase 2 of 4"."""
        name, total = self.stages[number].name, len(self.stages)
        return f"{name} of {total}" if not self.undecided and name == f"phase {number + 1}" else name

    def weights_at(self, step: int) -> np.ndarray | None:
        """The weight of each row in the loss of optimizer step `step` (from 0), if it is drawn there.

        Args:
            step: since the last decision.

        Returns:
            float32, shape (num_rows,); None where all are 1.
        """
        # Made once per stage: the trainer keeps the array on its device for as long as this is the same object.
        return self._weights.get(self.stage_at(step).number)

    @cached_property
    def _weights(self) -> dict[int, np.ndarray]:
        """By stage the weight of each row, float32, shape (num_rows,), where not all are 1."""
        found = {}
        for stage in self.stages:
            if parts := self.curriculum.weights(stage, self.log):
                found[stage.number] = np.ones(self.ranking.num_rows, np.float32)
                for start, stop, weight in parts:
                    found[stage.number][self.layout.members(self.order.order[start:stop])] = weight
        return found

    @cached_property
    def stage_ends(self) -> dict[int, Stage]:
        """Each stage by the number of optimizer steps after which its last example has been trained on."""
        ends = (-(-end // self.samples_per_step) for end in self.stage_starts[1:])
        return dict(zip(ends, self.stages, strict=True))

    @cached_property
    def pass_ends(self) -> frozenset[int]:
        """Numbers of optimizer steps after which a pass over a pool is complete, for `"epoch"` strategies."""
        return frozenset(
            -(-(start + end * self.layout.unit) // self.samples_per_step)
            for start, stage in zip(self.stage_starts, self.stages, strict=False)
            for end in stage.pass_ends()
        )

    def fingerprint(self) -> dict[str, Any]:
        """The values that must be equal for a checkpoint to be resumed, JSON-able."""
        scores = self.ranking.scores
        return {
            "curriculum": self.curriculum.to_dict(),
            "score_column": self.ranking.score_column,
            "easy": self.ranking.easy,
            "num_rows": self.ranking.num_rows,
            "scores": None if scores is None else digest_of(scores),
            **({"columns": dict(sorted(self.digests.items()))} if self.digests else {}),
            **({"easy_ends": dict(sorted(ends.items()))} if (ends := self.ranking.easy_ends) else {}),
            "global_batch_size": self.global_batch_size,
            **({"candidates": self.candidates} if self.candidates > 1 else {}),
            "seed": self.seed,
            "num_steps": self.max_steps,
            **({} if self.amended is None else {"amended": dict(self.amended)}),
        }

    def to_dict(self) -> dict[str, Any]:
        """The plan as a JSON-able mapping: its fingerprint and its stages.

        Sample positions are counted over the run; `last_sample`, and the pools' ends, are inclusive.
        """
        unit = self.layout.unit
        rows = [
            {
                "name": stage.name,
                "rule": stage.rule,
                "pool": stage.pool_size,
                "new": new,
                "epochs": stage.epochs,
                "draws": stage.num_draws * unit,
                "first_sample": start,
                "last_sample": start + stage.num_samples * unit - 1,
                "pools": [
                    (start + first * unit, start + (last + 1) * unit - 1, pool) for first, last, pool in stage.pools()
                ],
            }
            for stage, start, new in zip(self.stages, self.stage_starts, self.new_examples(), strict=False)
        ]
        totals = {"num_filled": self.num_filled, "num_draws": self.num_draws}
        if self.candidates > 1:
            totals |= {"num_examples": self.num_examples, "forwards": self.selection.forwards}
        return {**self.fingerprint(), **totals, "stages": rows}

    def new_examples(self) -> list[int]:
        """Examples of each stage's pool that no earlier stage could draw."""
        seen: list[tuple[int, int]] = []
        sizes = [0]
        for stage in self.stages:
            seen.extend(stage.slices)
            sizes.append(_covered(seen))
        return np.diff(sizes).tolist()

    def pending_decisions(self) -> tuple[str, ...]:
        """A description of the rounds that are still to be decided."""
        return self.curriculum.pending_decisions(self.order, self.unit_budget)

    def scenarios(self) -> dict[str, Plan]:
        """The plans that the scenarios of a signal-paced curriculum lead to; empty for any other."""
        plans = {}
        for name, metrics in self.curriculum.scenarios().items():
            plan = self
            while plan.undecided:
                plan = plan.decided(Observed(plan.known_steps, metrics(len(plan.log))))
            plans[name] = plan
        return plans

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What to know before training by this plan: pools smaller than a step, and buckets that ties make uneven."""
        of_rows = () if self.selection is None else self.selection.row_notes(self.ranking)
        return (*small_pools(self), *self.curriculum.notes(self.order, self.unit_budget), *of_rows)

    def exposure(self) -> Exposure:
        """How often the known stages show the examples: up to the next decision, if any.

        Exact where examples are drawn in shuffled passes. An expectation where they are drawn by chance: `Growing`,
        `Weighted`, `NodeSampling`, `ByNode`, the captions of `ByImage` and passes that are not complete.

        Raises:
            ValueError: nothing is known before the first decision.

        Example:
            >>> from hf_curriculum import Filter, Phases
            >>> plan = make_plan(Filter(0.5, Phases(2), easy="low"), np.arange(100.0), global_batch_size=5)
            >>> plan.exposure().never_shown, plan.exposure().easiest_tenth
            (50.0, 2.0)
        """
        if not self.stages:
            raise ValueError(
                f"{type(self.curriculum).__name__} decides before its first step, so no draw is known yet. Ask again "
                "after that decision."
            )
        return self._exposure

    @cached_property
    def _exposure(self) -> Exposure:
        return exposure_of(self)

    def after(self, before: Mapping[str, Any]) -> Plan:
        """This plan for the rest of a run, after `before["step"]` steps by another one; see `amended`.

        Raises:
            ValueError: the plan decides or chooses while training, or ends passes with smaller batches.
        """
        validate_order(self)
        return replace(self, amended=before)

    @property
    def key(self) -> int:
        """The 64-bit key of every draw."""
        return self._key

    def describe(self) -> str:
        """The stages as a table (phase, rule, pool, new, epochs, steps, share), totals, cost, exposure and notes."""
        return describe(self)

    def _repr_html_(self) -> str:
        from hf_curriculum.planning.plan_html import plan_html

        return plan_html(self)


@validate_arguments
def make_plan(
    curriculum: Curriculum | Mapping[str, Any] | str | Path,
    ranking: Dataset | Ranking | np.ndarray,
    *,
    score_column: str | None = None,
    global_batch_size: int,
    seed: int = 0,
    epochs: float | None = None,
    max_steps: int | None = None,
) -> Plan:
    """Binds a curriculum to a scored data set and returns the plan of the run.

    The score's provenance says which end is easy. More draws from the last pool fill the last global batch.

    Args:
        curriculum: the rule, or its name, mapping or file.
        ranking: the data set, an order of examples, or one score per example; low is easy unless the rule says `easy`.
        score_column: the data set's score.
        global_batch_size: examples per optimizer step.
        seed: key of every draw.
        epochs: `num_train_epochs`, if given: the length of a curriculum that has none of its own.
        max_steps: `max_steps`, if given: that length in steps, in place of `epochs`, as in `Trainer`. A longer
            curriculum is cut short after its first `max_steps` steps.

    Raises:
        TypeError: splits, an iterable data set, or a class in place of a curriculum.
        ValueError: the score is missing, its easy end is unknown (a `Filter` over an array
            names it), or `score_column` is given without a data set. Or a
            pool is empty, `max_steps` exceeds the curriculum's own length, or `epochs` contradicts it.

    Example:
        >>> from hf_curriculum import Phases
        >>> plan = make_plan(Phases(2, easy="low"), np.array([1.0, 2, 3, 4]), global_batch_size=2)
        >>> plan.num_steps, [stage.pool_size for stage in plan.stages]
        (3, [2, 4])
    """
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size={global_batch_size} was given; a step needs at least 1 example.")
    curriculum = curriculum_from(curriculum)
    if isinstance(ranking, DATASET_TYPES):
        ranking = rank_dataset(ranking, curriculum, score_column)
    elif score_column is not None:
        raise ValueError(
            f"score_column={score_column!r} names a column of a data set, and a {type(ranking).__name__} was given. "
            "Give the data set, or leave score_column out."
        )
    if not isinstance(ranking, Ranking):
        ranking = rank_scores(ranking, easy_of_numbers(curriculum), unscored=curriculum.unscored)
    if not len(ranking):
        raise ValueError("There is no example to plan for: the data set is empty, or every row was dropped.")
    plan = bind(curriculum, ranking, Budget(epochs, max_steps, global_batch_size), seed)
    _validate_length(plan)
    for line in (*([cut_line(plan)] if plan.uncut is not None else []), *plan.notes):
        logger.warning(line)
    return plan


def bind(curriculum: Curriculum, ranking: Ranking, budget: Budget, seed: int) -> Plan:
    """`make_plan` without checking the plan's length against the budget, and without warnings."""
    missing = [f"`{name}`" for name in curriculum.reads_in_all if name not in ranking.columns]
    if missing:
        raise ValueError(
            f"{type(curriculum).__name__} reads {', '.join(missing)} of each row, and was given scores without "
            "columns: which rows belong together is unknown. Plan for the data set itself: "
            "`make_plan(curriculum, dataset, ...)`."
        )
    layout = curriculum.batches.layout(ranking) if curriculum.batches else Layout()
    units = layout.units(ranking)
    if units is not ranking and curriculum.reads:
        raise ValueError(
            f"{type(curriculum).__name__} reads {sorted(curriculum.reads)} of each row, and its draws would be "
            f"images: the two cannot be combined. Leave out batches={curriculum.batches}."
        )
    digests = {name: digest_of(values) for name, values in ranking.columns.items()}
    order = curriculum.arrange(units)
    if units is ranking and curriculum.signal != "losses" and len(order) == len(ranking):
        ranking = order  # the order that it was made from is not needed again
    bare = Plan(curriculum, ranking, order, digests, (), budget.global_batch_size, seed, 0, 0.0, budget, layout)
    return _resolve(bare, order, (), None)


def _resolve(plan: Plan, order: Ranking, log: tuple[Mapping[str, Any], ...], losses: np.ndarray | None) -> Plan:
    """The plan with the stages that follow from some decisions."""
    curriculum, layout, budget = plan.curriculum, plan.layout, plan.unit_budget
    stages = curriculum.fitted_stages(order, budget, log)
    for stage in stages:
        if stage.slices and stage.slices[-1][1] > len(order):
            raise ValueError(
                f"{stage.name.capitalize()} has the pool {stage.slices}, and there are {len(order):,} examples: "
                f"{type(curriculum).__name__}.stages reaches beyond them. Pools end at len(ranking) at the latest."
            )
    batch = budget.global_batch_size
    if layout.whole_stages:
        stages = (*(_filled(stage, -stage.num_samples % batch) for stage in stages[:-1]), *stages[-1:])
    short = -sum(stage.num_samples for stage in stages) % batch
    if short:
        stages = (*stages[:-1], _filled(stages[-1], short))
    resolved = replace(
        plan,
        order=order,
        stages=layout.stages(stages, order, batch),
        num_filled=short * layout.unit,
        nominal_epochs=curriculum.fitted_epochs(budget, order),
        declared_steps=curriculum.declared_steps(order, budget),
        log=log,
        losses=losses,
        uncut=None,
    )
    return resolved if budget.steps is None or budget.steps >= resolved.max_steps else _cut(resolved, budget.steps)


def _cut(plan: Plan, steps: int) -> Plan:
    """The plan up to `steps`, which are fewer than it has."""
    end, unit = steps * plan.samples_per_step, plan.layout.unit
    stages = tuple(
        stage if stop < end or (stop == end and not stage.decides) else stage.cut((end - start) // unit)
        for stage, start, stop in zip(plan.stages, plan.stage_starts, plan.stage_starts[1:], strict=False)
        if start < end
    )
    filled = plan.num_filled if plan.known_steps <= steps else 0
    return replace(plan, stages=stages, num_filled=filled, declared_steps=plan.declared_steps and steps, uncut=plan)


def _filled(stage: Stage, short: int) -> Stage:
    return replace(stage, num_draws=stage.num_draws + short) if short else stage


def _validate_length(plan: Plan) -> None:
    name, budget = type(plan.curriculum).__name__, plan.budget
    if budget.steps is not None and budget.steps > plan.max_steps:
        raise ValueError(
            f"max_steps={budget.steps} was given, but the plan of {name} has {plan.max_steps:,} steps of "
            f"{plan.global_batch_size}: after them there is nothing more to show. Drop max_steps, or make the "
            f"curriculum as long: `curriculum.fit_to(steps={budget.steps})`."
        )
    if budget.steps is None and budget.epochs is not None and abs(budget.epochs - plan.nominal_epochs) > 1e-9:
        raise ValueError(
            f"num_train_epochs={budget.epochs:g} was given, but {name} runs for {plan.nominal_epochs:g} epochs of its "
            "pools. Only one of the two can be followed. Drop num_train_epochs, or change the curriculum's own length."
        )


def digest_of(values: np.ndarray | Groups) -> str:
    """A digest of the content of an array or of groups."""
    arrays = (values.starts, values.members) if isinstance(values, Groups) else (values,)
    names = values.names if isinstance(values, Groups) and values.names is not None else ()
    return digest(*map(np.ascontiguousarray, arrays), "\0".join(names), size=16)


def _covered(slices: list[tuple[int, int]]) -> int:
    """How many positions are in at least one of the slices."""
    total, end = 0, 0
    for start, stop in sorted(slices):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
