"""A callback that stops a diverged run, and a clock of training time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

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
