"""What `CurriculumTrainer` does about the batches of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_curriculum.planning.plan import Plan
from hf_curriculum.training.captioning.scheduled_sampling import SchedulingTrainer
from hf_curriculum.training.sampler import DrawAudit
from hf_curriculum.training.steps.audit import SelectionAudit
from hf_curriculum.training.steps.candidates import Selector


class SelectingTrainer(SchedulingTrainer):
    """What `CurriculumTrainer` does about the batches of a step, and nothing else.

    Where the rule chooses while training, the chosen candidates are cut out of each batch before `Trainer` counts the
    step's tokens. The rows that are trained on are compared with the plan, and recorded with `audit_draws`.
    """

    plan: Plan
    _audit: DrawAudit | None = None
    _selector: Selector | None = None

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """`Trainer.get_batch_samples`, of what is chosen among the candidates."""
        if self.plan.candidates > 1:
            epoch_iterator = self.selector.read(epoch_iterator, num_batches)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    @property
    def selector(self) -> Selector:
        """Chooses among candidates."""
        if self._selector is None:
            self._selector = Selector(self)
        return self._selector

    def note_choice(self, step: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Notes the candidates of a batch of a step and their values, for the audit.

        Args:
            step: the optimizer step, from 0.
            rows: of the training data, int64, shape (candidates of all places,).
            values: float64, shape (places, candidates).
        """
        if isinstance(self._audit, SelectionAudit):
            self._audit.note(step, rows, values)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """`Trainer.training_step`; the rows that the batch was made of are noted and never reach the model."""
        if isinstance(inputs, list):
            rows = torch.tensor([example.pop("example_index") for example in inputs])
        else:
            rows = inputs.pop("example_index", None) if hasattr(inputs, "pop") else None
        if rows is not None and self._audit is not None:
            self._audit.add(self.state.global_step, rows)
        self._rows_of_batch = rows
        return super().training_step(model, inputs, num_items_in_batch)

    def check_draws(self) -> None:
        """Compares the rows trained on since the last check with the plan, and records them with `audit_draws`.

        Raises:
            RuntimeError: a step trained on other rows, or on a candidate that was not chosen.
        """
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
        self.selector.save(output_dir)
        super()._save_rng_state(output_dir)
