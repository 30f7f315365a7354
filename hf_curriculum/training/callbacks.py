"""Callbacks: the plan followed during training, a diverged run stopped; and a clock of training time."""

from __future__ import annotations

import logging
import math
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_curriculum.planning.batches import Layout
from hf_curriculum.planning.deciding import Observed
from hf_curriculum.planning.plan import Plan
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.rows import chunks_of
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import PAD_INDEX
from hf_curriculum.streaming.plan import StreamPlan
from hf_curriculum.training.sampler import drawn_quantiles
from hf_curriculum.training.setup import validate_captions

logger: logging.Logger = logging.getLogger(__name__)

LOSSES = ("loss", "train_loss", "eval_loss")
"""Numbers that are NaN or infinite only where a run has diverged."""


class Diverged(ArithmeticError):
    """A run's loss is no longer finite.

    Args:
        step: the optimizer step at which it was seen.
        what: what was seen.

    Example:
        >>> str(Diverged(120, "eval_loss is nan"))
        'diverged at step 120: eval_loss is nan'
    """

    def __init__(self, step: int | None, what: str) -> None:
        super().__init__(f"diverged at step {step}: {what}")
        self.step = step
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.what)


class StopWhenDiverged(TrainerCallback):
    """Ends a run whose logged loss is NaN or infinite, or whose final loss shows that nothing was learned.

    `Trainer` hides such training losses unless `logging_nan_inf_filter=False`; the validation loss always shows. A
    clamped loss, as of detectors, stays finite when a run fails: it is compared with constant predictions' loss.

    Args:
        constant_loss: the final training loss, averaged over the last tenth of the steps, must be below it:
            `hf_curriculum.tasks.detection.constant_loss(train)` for detectors. By default it is not checked.

    Raises:
        Diverged: (from training) a loss is not finite, or the final training loss is not below `constant_loss`.

    Source: Nebbia & Kovashka 2024 (WSOD), Table 1: a run that failed is "n/a".

    Example:
        >>> trainer.add_callback(StopWhenDiverged())  # doctest: +SKIP
    """

    def __init__(self, constant_loss: float | None = None) -> None:
        self.constant_loss = constant_loss

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Checks the logged losses."""
        for name in LOSSES:
            value = (logs or {}).get(name)
            if isinstance(value, float) and not math.isfinite(value):
                raise Diverged(state.global_step, f"{name} is {value}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compares the final training loss with the loss of constant predictions."""
        if self.constant_loss is None:
            return
        logged = [(entry["step"], entry["loss"]) for entry in state.log_history if "loss" in entry]
        last = [loss for step, loss in logged if step > 0.9 * state.global_step] or [loss for _, loss in logged[-1:]]
        # Where nothing was logged on the way, the average over the run.
        last = last or [entry["train_loss"] for entry in state.log_history if "train_loss" in entry]
        if last and not np.mean(last) < self.constant_loss:
            raise Diverged(
                state.global_step,
                f"the final training loss, {np.mean(last):.4g}, is not below {self.constant_loss:.4g}, that of "
                "constant predictions at the label frequencies",
            )


class TrainingClock:
    """Seconds of training, paused during evaluation and continued after a resume (`before`)."""

    def __init__(self, before: float = 0.0) -> None:
        self._before = before
        self._since = time.perf_counter()
        self._paused = 0.0
        self._stopped: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of training so far, the same all through an evaluation."""
        now = time.perf_counter() if self._stopped is None else self._stopped
        return self._before + now - self._since - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside does not count."""
        if self._stopped is not None:  # paused already
            yield
            return
        self._stopped = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - self._stopped
            self._stopped = None


_MOST_BUCKETS = 8
_CHUNK = 1 << 20


class DrawLog:
    """What was drawn since the last log, as numbers for trackers; the same after a resume.

    - `phase` (from 1) and `pool_size`: of the last step.
    - `score_mean`, `score_std`: of the scores of the examples drawn; the rows without a score are left out.
    - `bucket_1` … : the share of the draws that came from each bucket, the easiest first, if the curriculum cuts the
      data into 2 to 8 and all are known beforehand; otherwise `quartile_1` … `quartile_4` of the rows by score.
    - `repeats`: the share of the draws whose row had been drawn before in the same phase.
    """

    def __init__(self) -> None:
        self._ranking: Ranking | None = None
        self._bucket_of: np.ndarray | None = None
        self._names: tuple[str, ...] = ()
        self._edges = np.empty(0, dtype=np.int64)
        self._seen: tuple[Stage, int, np.ndarray] | None = None
        self._noted: tuple[int, dict[str, float]] = 0, {}

    def note(self, plan: Plan, state: TrainerState) -> Mapping[str, float]:
        """The numbers since the last entry with a loss, and quantiles of a stage that ends here; once a step."""
        step = state.global_step
        if self._noted[0] != step:
            last = next((entry["step"] for entry in reversed(state.log_history) if "loss" in entry), 0)
            facts = self.since(plan, min(last, step - 1), step)
            if step in plan.stage_ends:
                quantiles = drawn_quantiles(plan, plan.stage_ends[step].number)
                facts |= {f"score_{name}": value for name, value in quantiles.items()}
            self._noted = step, facts
        return self._noted[1]

    def since(self, plan: Plan, first: int, step: int) -> dict[str, float]:
        """The numbers of the optimizer steps `[first, step)`."""
        stage = plan.stage_at(step - 1)
        # Of an amended run the steps before are another plan's.
        start, stop = max(first, plan.first_step) * plan.samples_per_step, step * plan.samples_per_step
        sample = min(stop, plan.stage_starts[stage.number + 1]) - 1 - plan.stage_starts[stage.number]
        pools = stage.pools()
        place = bisect_right([part[0] * plan.layout.unit for part in pools], sample) - 1
        facts: dict[str, float] = {"phase": stage.number + 1, "pool_size": pools[place][2]}
        if plan.losses is not None:  # the order of earlier steps is not kept
            start = max(start, plan.log[-1]["step"] * plan.samples_per_step)
        if start < stop:
            facts |= self._drawn(plan, start, stop)
        return facts

    def _drawn(self, plan: Plan, start: int, stop: int) -> dict[str, float]:
        self._cut(plan)
        moments, counts, drawn, repeats = np.zeros(3), np.zeros(len(self._names)), 0, 0
        for number, part_start, part_stop in _parts(plan, start, stop):
            rows = plan.rows(part_start, part_stop)
            rows = rows[rows != PAD_INDEX]
            drawn += len(rows)
            repeats += self._repeated(plan, number, part_start, part_stop, rows)
            if plan.ranking.scores is not None:
                scores = plan.ranking.scores[rows]
                scores = scores[np.isfinite(scores)].astype(np.float64)
                moments += len(scores), scores.sum(), (scores**2).sum()
            if self._names:
                counts += np.bincount(self._buckets(rows), minlength=len(counts))
        facts = dict(zip(self._names, (counts / drawn).tolist(), strict=True))
        if moments[0]:
            mean = moments[1] / moments[0]
            facts["score_mean"] = float(mean)
            facts["score_std"] = float(np.sqrt(max(0.0, moments[2] / moments[0] - mean**2)))
        return {**facts, "repeats": repeats / drawn}

    def _cut(self, plan: Plan) -> None:
        """Says of each row which bucket it is in, once per ranking."""
        ranking = plan.ranking
        if self._ranking is ranking:
            return
        self._ranking, self._names, self._bucket_of = ranking, (), None
        edges = sorted({end for stage in plan.stages for part in stage.slices for end in part} - {0})
        known = plan.declared_steps is None and plan.layout.unit == 1 and 2 <= len(edges) <= _MOST_BUCKETS
        if not known and ranking.scores is None:
            return
        name = "bucket" if known else "quartile"
        self._edges = np.array(edges if known else [len(ranking) * part // 4 for part in (1, 2, 3, 4)])
        self._names = tuple(f"{name}_{number + 1}" for number in range(len(self._edges)))
        if not isinstance(plan, StreamPlan):
            order = plan.order.order if known else ranking.order
            self._bucket_of = np.zeros(ranking.num_rows, dtype=np.uint8)
            for start, stop in chunks_of(len(order)):
                self._bucket_of[order[start:stop]] = self._numbers(np.arange(start, stop))

    def _numbers(self, positions: np.ndarray) -> np.ndarray:
        return np.minimum(np.searchsorted(self._edges, positions, side="right"), len(self._edges) - 1)

    def _buckets(self, rows: np.ndarray) -> np.ndarray:
        # The rows of a stream are numbered in its order.
        return self._numbers(rows) if self._bucket_of is None else self._bucket_of[rows]

    def _repeated(self, plan: Plan, number: int, start: int, stop: int, rows: np.ndarray) -> int:
        """How many of the rows drawn at `[start, stop)` had been drawn before in their stage."""
        stage, begin = plan.stages[number], plan.stage_starts[number]
        if (
            type(stage) is Stage and type(plan.layout) is Layout
        ):  # complete passes: what comes after the first is known
            before, after = stage.draws_within(start - begin), stage.draws_within(stop - begin)
            return max(0, after - max(before, stage.pool_size))
        if self._seen is None or self._seen[0] is not stage or self._seen[1] != start:
            seen = np.zeros(plan.ranking.num_rows, dtype=bool)
            for _, part_start, part_stop in _parts(plan, begin, start):
                seen[plan.rows(part_start, part_stop)] = True
        else:
            seen = self._seen[2]
        fresh = np.unique(rows[~seen[rows]])
        seen[fresh] = True
        self._seen = stage, stop, seen
        return len(rows) - len(fresh)


def _parts(plan: Plan, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(stage, start, stop) of parts of the sample positions, each within a stage and not too long for memory."""
    while start < stop:
        number = bisect_right(plan.stage_starts, start) - 1
        end = min(stop, plan.stage_starts[number + 1], start + _CHUNK)
        yield number, start, end
        start = end


def phase_line(plan: Plan, number: int) -> str:
    """What begins: "phase 2 of 4: noun_count ≤ 3, pool 1,510,443 (668,536 new), 94,402 steps"."""
    stage = plan.stages[number]
    start, end = plan.stage_starts[number : number + 2]
    steps = -(-end // plan.samples_per_step) - -(-start // plan.samples_per_step)
    new = plan.new_examples()[number]
    return f"{plan.phase_name(number)}: {stage.rule}, pool {stage.pool_size:,} ({new:,} new), {steps:,} steps"


class PacingCallback(TrainerCallback):
    """Follows the plan during training; what it logs is read from the plan and the step.

    - Strategies of `"epoch"` (evaluate, save, log) mean the end of a pass over the pool: `Trainer` itself sees the
      run as one epoch.
    - A log entry with a loss tells what was drawn since the one before, as `curriculum/…`: see `DrawLog`. When a stage
      ends there is one, the last stage's before the last checkpoint, which also has quantiles of the scores that the
      stage drew, `curriculum/score_q0`, `_q25`, `_q50`, `_q75`, `_q100`.
    - When a stage begins a line says so, as `logging.INFO`.
    - When a round ends, the curriculum's decision is taken before anything is saved; logged are `curriculum/round`
      (from 2), `curriculum/next_pool_size`, and the numbers of the log of decisions: `curriculum/decision_value`, …
      With `load_best_model_at_end` the model that was evaluated is saved too: it may be the best one.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._announced: tuple[Any, int] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Looks at the data's captions, tries the first batch, takes a decision that is due before the first step."""
        self._announced = None
        if "transformers.utils.notebook" in sys.modules:
            from hf_curriculum.training.notebook import show_phases

            show_phases(self.trainer)
        validate_captions(self.trainer)
        self.trainer.try_first_batch()
        self.trainer.begin_amendment()
        if self.trainer.decision_is_due():
            self.trainer.reach_decision()
        return control

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Announces a stage that begins."""
        plan, step = self.trainer.plan, state.global_step
        number = plan.stage_at(step).number
        if self._announced != (len(plan.log), number):
            self._announced = len(plan.log), number
            if state.is_world_process_zero:
                logger.info(f"Step {step}, {phase_line(plan, number)}")
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Requests what is due at the end of a pass or stage, and requests a decision that is due."""
        trainer, plan, step = self.trainer, self.trainer.plan, state.global_step
        # `Trainer` has just set the share of the run; logs and checkpoints count passes over the data, as stock's do.
        state.epoch = plan.examples_after(step) / plan.ranking.num_rows
        # At the run's last step Trainer's own epoch ends too, and asks by itself.
        if step in plan.pass_ends and step < state.max_steps:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH
            control.should_save |= args.save_strategy == SaveStrategy.EPOCH
            control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        if step in plan.stage_ends:
            trainer.validate_draws()
            # The last checkpoint holds the last stage's entry; without a curriculum the log is Trainer's own.
            control.should_log |= step < state.max_steps or args.curriculum is not None
        due = trainer.decision_is_due()
        if due or control.should_log:
            trainer.note_draws()  # a decision may change the order that this step was drawn by
        if due:
            if plan.curriculum.signal == "metrics":
                control.should_evaluate = True
                # Its metrics may be the best, and `Trainer` can come back to a best model only if it was saved.
                control.should_save |= args.load_best_model_at_end and args.save_strategy != SaveStrategy.NO
            else:
                trainer.reach_decision()
        elif step == plan.known_steps < state.max_steps or trainer.time_is_up():
            trainer.end_early()
        return control


@contextmanager
def paced(trainer: Any, speed: TrainerCallback) -> Iterator[None]:
    """A run that a `PacingCallback` follows; it comes after the user's callbacks, and `speed` before all others."""
    callback = PacingCallback(trainer)
    trainer.add_callback(callback)
    trainer.callback_handler.callbacks.insert(0, speed)
    try:
        yield
    finally:
        trainer.remove_callback(callback)
        trainer.remove_callback(speed)
        if trainer._reader is not None and not trainer.args.dataloader_persistent_workers:
            trainer._reader.close()  # workers that a user asked for stay, as `Trainer`'s do


def broadcast_decision(plan: Plan, observed: Observed) -> Plan:
    """The plan after the next decision: the main process's, on every process."""
    plan = plan.decided(observed)
    shared = [plan.log, plan.losses, plan.arrays]
    broadcast_object_list(shared)
    return plan.with_log(*shared)


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float, np.number))}


def round_facts(plan: Plan, step: int) -> dict[str, float]:
    """What is logged when a decision begins a round: its number from 1, its pool, and what decided."""
    stage = plan.stage_at(step)
    return {"round": stage.number + 1, "next_pool_size": stage.pool_size, **decision_numbers(plan.log[-1])}


def decision_numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry of the log of decisions, mappings flattened: `decision_value`, `decision_best`, …"""
    flat: dict[str, Any] = {}
    for name, value in entry.items():
        flat |= {f"{name}_{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
    return {f"decision_{name}": value for name, value in numbers_of(flat).items() if name not in ("round", "step")}
