"""How long a run has trained, over all its restarts, evaluation not counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TrainingClock:
    """A stopwatch that stands still during evaluation and goes on after a resume.

    Args:
        before: seconds trained before a checkpoint that is resumed.
    """

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
    def standing_still(self) -> Iterator[None]:
        """What is done inside does not count."""
        if self._stopped is not None:  # an evaluation inside a pass that stopped the clock already
            yield
            return
        self._stopped = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - self._stopped
            self._stopped = None
