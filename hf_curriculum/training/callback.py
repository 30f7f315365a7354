"""The callback that carries what training and evaluation say to the plan, and what the plan says to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_curriculum.pacing import Stage
from hf_curriculum.training.audit import drawn_quantiles

if TYPE_CHECKING:
    from hf_curriculum.training.trainer import CurriculumTrainer


class PacingCallback(TrainerCallback):
    """Follows the plan during training. It holds no state: everything it says is read from the plan and the step.

    - Strategies of `"epoch"` (evaluate, save, log) mean the end of a pass over the pool: `Trainer` itself sees the
      whole run as one epoch.
    - When a stage ends it logs the stage, the pool's size and the quantiles of the scores that were drawn.
    - When a round ends it sees to it that the curriculum's decision is taken, before anything is saved. With
      `load_best_model_at_end` the model that was evaluated for it is saved too: it may be the best one.

    `logs`, and so whatever `report_to` names, then hold beside what `Trainer` logs:

    - always: `examples` and `seconds` of training so far;
    - when a stage has ended: `curriculum/phase` (from 1), `curriculum/pool_size`, and quantiles of the scores drawn,
      `curriculum/score_q0`, `_q25`, `_q50`, `_q75`, `_q100`;
    - when a round begins: `curriculum/round` (from 2), `curriculum/next_pool_size`, and every number that the decision
      was taken on, as the log of decisions names it: `curriculum/decision_value`, `curriculum/decision_best`, …

    Args:
        trainer: the trainer whose plan is followed.
    """

    def __init__(self, trainer: CurriculumTrainer) -> None:
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
        """Asks for what the strategies want at the end of a pass, logs a stage that has ended, and has it decided."""
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
