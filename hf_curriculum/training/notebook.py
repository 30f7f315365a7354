"""The progress table that `Trainer` shows in a notebook, with the curriculum's phase."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker


class PhaseTracker(NotebookTrainingTracker):
    """A table whose lines begin with the step and its phase, and a progress bar that says what the phase draws.

    The stock table begins with the epoch in whole numbers where a run is evaluated once an epoch. Passes over small
    pools are less than that, and their lines would replace each other.
    """

    def __init__(self, trainer: Any, metrics: list[str]) -> None:
        super().__init__(trainer.state.max_steps, ["Step", "Phase", *metrics])
        self.trainer = trainer

    def update(self, value: int, force_update: bool = False, comment: str | None = None) -> None:
        """Moves the bar."""
        super().update(value, force_update, " · ".join(self._phase()))

    def write_line(self, values: Mapping[str, Any]) -> None:
        """Adds a line to the table."""
        metrics = {name: value for name, value in values.items() if name not in ("Epoch", "Step")}
        phase = self._phase()[0].removeprefix("phase ")
        super().write_line({"Step": self.trainer.state.global_step, "Phase": phase, **metrics})

    def _phase(self) -> tuple[str, ...]:
        """The name and the rule of the phase that the last step was in, as HTML."""
        plan = self.trainer.plan
        if not plan.stages:  # the curriculum decides before the first step
            return ("–",)
        stage = plan.stage_at(max(self.trainer.state.global_step - 1, plan.first_step))
        return escape(plan.phase_name(stage.number)), escape(stage.rule)


def show_phases(trainer: Any) -> None:
    """Puts the phase into the progress table, where there is one and a curriculum was given."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, NotebookProgressCallback) and trainer.args.curriculum is not None:
            metrics = callback.training_tracker.inner_table[0][1:]
            callback.training_tracker = PhaseTracker(trainer, metrics)
