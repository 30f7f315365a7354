"""The callback that carries what training and evaluation say to the plan, and what the plan says to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_curriculum.training.audit import drawn_quantiles

if TYPE_CHECKING:
    from hf_curriculum.training.trainer import CurriculumTrainer


class PacingCallback(TrainerCallback):
    """Follows the plan during training. It holds no state: everything it says is read from the plan and the step.

    - Strategies of `"epoch"` (evaluate, save, log) mean the end of a pass over the pool: `Trainer` itself sees the
      whole run as one epoch.
    - When a stage ends it logs the stage, the pool's size and the quantiles of the scores that were drawn.

    Args:
        trainer: the trainer whose plan is followed.
    """

    def __init__(self, trainer: CurriculumTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks up, once, at which steps something ends."""
        plan = self.trainer.plan
        self._pass_ends = frozenset(plan.pass_end_steps())
        self._stage_ends = plan.stage_end_steps()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Asks for what the strategies want at the end of a pass, and logs a stage that has ended."""
        step = state.global_step
        # At the run's last step Trainer's own epoch ends too, and asks by itself.
        if step in self._pass_ends and step < state.max_steps:
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH
            control.should_save |= args.save_strategy == SaveStrategy.EPOCH
            control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
        if step in self._stage_ends:
            self._log_stage(step)
        return control

    def _log_stage(self, step: int) -> None:
        trainer = self.trainer
        trainer.check_draws()
        stage = self._stage_ends[step]
        facts = {"phase": stage.number + 1, "pool_size": stage.pool_size}
        facts.update({f"score_{name}": value for name, value in drawn_quantiles(trainer.plan, stage.number).items()})
        # Logging takes back the request to log this step's loss, which is still to be served.
        wanted = trainer.control.should_log
        trainer.log({f"curriculum/{name}": value for name, value in facts.items()})
        trainer.control.should_log = wanted
