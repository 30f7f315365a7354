"""Callbacks: the plan followed during training, a diverged run stopped; and a clock of training time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_curriculum.planning.stage import Stage
from hf_curriculum.training.sampler import drawn_quantiles

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
    """Ends a run whose logged loss is NaN or infinite.

    `Trainer` hides such training losses unless `logging_nan_inf_filter=False`; the validation loss always shows.

    Raises:
        Diverged: (from training) a loss is not finite.

    Example:
        >>> trainer.add_callback(StopWhenDiverged())  # doctest: +SKIP
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Looks at the losses."""
        for name in LOSSES:
            value = (logs or {}).get(name)
            if isinstance(value, float) and not math.isfinite(value):
                raise Diverged(state.global_step, f"{name} is {value}")


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


class PacingCallback(TrainerCallback):
    """Follows the plan during training; it is stateless: everything is read from the plan and the step.

    - Strategies of `"epoch"` (evaluate, save, log) mean the end of a pass over the pool: `Trainer` itself sees the
      run as one epoch.
    - When a stage ends it logs `curriculum/phase` (from 1), `curriculum/pool_size`, and quantiles of the scores drawn,
      `curriculum/score_q0`, `_q25`, `_q50`, `_q75`, `_q100`.
    - When a round ends, the curriculum's decision is taken before anything is saved; logged are `curriculum/round`
      (from 2), `curriculum/next_pool_size`, and the numbers of the log of decisions: `curriculum/decision_value`, …
      With `load_best_model_at_end` the model that was evaluated is saved too: it may be the best one.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Takes a decision that is due before the first step."""
        if self.trainer.decision_is_due():
            self.trainer.reach_decision()
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Requests what is due at the end of a pass, logs a completed stage, and requests a decision that is due."""
        trainer, plan, step = self.trainer, self.trainer.plan, state.global_step
        # At the run's last step Trainer's own epoch ends too, and asks by itself.
        if step in plan.pass_ends and step < state.max_steps:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH
            control.should_save |= args.save_strategy == SaveStrategy.EPOCH
            control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        if step in plan.stage_ends:
            self._log_stage(plan.stage_ends[step])
        if trainer.decision_is_due():
            if plan.curriculum.signal == "metrics":
                control.should_evaluate = True
                # Its metrics may be the best, and `Trainer` can come back to a best model only if it was saved.
                control.should_save |= args.load_best_model_at_end and args.save_strategy != SaveStrategy.NO
            else:
                trainer.reach_decision()
        elif step == plan.known_steps < state.max_steps or trainer.time_is_up():
            trainer.end_early()
        return control

    def _log_stage(self, stage: Stage) -> None:
        trainer = self.trainer
        trainer.check_draws()
        facts = {"phase": stage.number + 1, "pool_size": stage.pool_size}
        facts.update({f"score_{name}": value for name, value in drawn_quantiles(trainer.plan, stage.number).items()})
        trainer.log_curriculum(facts)
