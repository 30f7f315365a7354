"""The proof that what was chosen is one of the candidates of its place, and the best of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from hf_curriculum.training.sampler import DrawAudit
from hf_curriculum.training.steps.candidates import choice_key, choose


@dataclass(kw_only=True)
class SelectionAudit(DrawAudit):
    """Compares the candidates with the plan's, and the rows trained on with the best of them.

    A line of `file` also has the chosen rows' values: `[step, [rows], [values]]`, with null for a row without one.
    """

    _choices: dict[int, list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    _values: dict[int, np.ndarray] = field(default_factory=dict)

    def note(self, step: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Records the candidates of a batch of optimizer step `step` (from 0).

        Args:
            step: the optimizer step.
            rows: of the training data, int64, shape (places · candidates · rows of one,).
            values: float64, shape (places, candidates).
        """
        self._choices.setdefault(step, []).append((rows, values))

    def _check(self, step: int, rows: np.ndarray, planned: np.ndarray) -> None:
        plan = self.plan
        seen = self._choices[step]
        super()._check(step, np.concatenate([part for part, _ in seen]), planned)
        values = np.concatenate([part for _, part in seen])
        candidates = planned.reshape(*values.shape, -1)  # (places, candidates, rows of one)
        trained = rows.reshape(len(values), -1)
        own = (candidates == trained[:, None]).all(2)
        best = choose(plan.selection, values, candidates[:, :, 0], choice_key(plan, step))
        right = own[np.arange(len(own)), best]
        if not right.all():
            place = int(np.flatnonzero(~right)[0])
            raise RuntimeError(
                f"Step {step} trained on rows {trained[place].tolist()} at place {place}, whose candidates are "
                f"{candidates[place].tolist()} with the values {values[place].tolist()}: another one is "
                f"{plan.selection.choice}. Something between the choice and the model changes the batch."
            )
        self._values[step] = values[np.arange(len(values)), best]

    def _line(self, step: int, rows: np.ndarray) -> str:
        del self._choices[step]
        values = [float(f"{value:.7g}") if np.isfinite(value) else None for value in self._values.pop(step)]
        return json.dumps([step, rows.tolist(), values])
