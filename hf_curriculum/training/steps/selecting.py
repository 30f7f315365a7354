"""What `CurriculumTrainer` does about the batches of a step, and the proof that the best candidate was trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_curriculum.planning.plan import Plan
from hf_curriculum.training.sampler import DrawAudit
from hf_curriculum.training.steps.candidates import Selector, choice_key, choose
from hf_curriculum.training.steps.weighting import WeightingTrainer


@dataclass(kw_only=True)
class SelectionAudit(DrawAudit):
    """Compares the candidates with the plan's, and the rows trained on with the best of them.

    A line of `file` also has the chosen rows' values: `[step, [rows], [values]]`, with null for a row without one.
    """

    _choices: dict[int, list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    _values: dict[int, np.ndarray] = field(default_factory=dict)

    def note(self, step: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Records the candidates of a batch of optimizer step `step` (from 0)."""
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


class SelectingTrainer(WeightingTrainer):
    """What `CurriculumTrainer` does about the batches of a step, and nothing else.

    Where the rule chooses while training, the chosen candidates are cut out of each batch before `Trainer` counts the
    step's tokens. The rows that are trained on are compared with the plan, and recorded with `audit_draws`.
    """

    plan: Plan
    _audit: DrawAudit | None = None
    _selector: Selector | None = None

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """`Trainer.get_batch_samples`, of what is chosen among the candidates."""
        if self.state.global_step >= self.plan.known_steps:
            num_batches = 0  # a run that had ended was resumed: accelerate 1.4 yields None of an empty loader
        elif self.plan.candidates > 1:
            epoch_iterator = self.selector.read(epoch_iterator, num_batches)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    @property
    def selector(self) -> Selector:
        """Chooses among candidates."""
        if self._selector is None:
            self._selector = Selector(self)
        return self._selector

    def note_choice(self, step: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Notes the candidates of a batch of a step and their values, for the audit."""
        if isinstance(self._audit, SelectionAudit):
            self._audit.note(step, rows, values)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """`Trainer.training_step`; the rows that the batch was made of are noted and never reach the model."""
        if isinstance(inputs, list):
            rows = torch.tensor([example.pop("example_index") for example in inputs])
        else:
            rows = inputs.pop("example_index", None) if hasattr(inputs, "pop") else None
        if rows is not None:
            rows = rows.clone()  # what a worker sent keeps a file open as long as it is noted
        if rows is not None and self._audit is not None:
            self._audit.add(self.state.global_step, rows)
        self._rows_of_batch = rows
        return super().training_step(model, inputs, num_items_in_batch)

    def check_draws(self) -> None:
        """Compares the rows trained on since the last check with the plan, and records them with `audit_draws`."""
        if self._audit is not None:
            self._audit.flush()

    def _start_audit(self) -> DrawAudit | None:
        args, plan = self.args, self.plan
        if self._train_batch_size * args.gradient_accumulation_steps * args.world_size != plan.global_batch_size:
            # Model-parallel processes share batches: then the plan alone does not say who holds which row.
            return None
        # What was chosen is nowhere else, so a rule that chooses always has a record.
        records = args.audit_draws or plan.candidates > 1
        return (DrawAudit if plan.candidates == 1 else SelectionAudit)(
            plan=plan,
            process=args.process_index,
            num_processes=args.world_size,
            micro_batch=self._train_batch_size * plan.candidates,
            file=Path(args.output_dir) / f"draws-rank{args.process_index}.jsonl" if records else None,
        )

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.selector.save(output_dir)
