"""What is saved of a run, and what can be gone on from: the best model, and models alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hf_curriculum import BabySteps, CurriculumTrainer, Phases

EVERY_FIVE = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "steps", "eval_steps": 5}


class BestAtThree(CurriculumTrainer):
    """Its metric is best after the third step, where a round ends and nobody asked for a checkpoint."""

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        output.metrics["eval_m"] = 1.0 if self.state.global_step == 3 else 0.5
        return output


@pytest.mark.parametrize("best", [True, False])
def test_the_best_model_may_be_one_that_a_round_ended_with(make_trainer, data, best):
    made = make_trainer(
        BabySteps(2, patience=2, epochs=6, metric="m", easy="low"),
        trainer={"eval_dataset": data},
        load_best_model_at_end=best,
        metric_for_best_model="m",
        greater_is_better=True,
        **EVERY_FIVE,
    )
    trainer = BestAtThree(model=made.model, args=made.args, train_dataset=data, eval_dataset=data)
    trainer.train()
    saved = Path(made.args.output_dir, "checkpoint-3")
    assert saved.is_dir() == best
    assert trainer.state.best_model_checkpoint == (str(saved) if best else None)


def test_a_checkpoint_of_the_model_alone_is_not_resumed(make_trainer):
    settings = {"save_strategy": "steps", "save_steps": 4, "save_only_model": True}
    make_trainer(Phases(2, 2, easy="low"), **settings).train()
    for name in (True, "checkpoint-4"):
        trainer = make_trainer(Phases(2, 2, easy="low"), **settings)
        with pytest.raises(ValueError, match=r"holds the model alone.*save_only_model=True"):
            trainer.train(resume_from_checkpoint=name if name is True else f"{trainer.args.output_dir}/{name}")


def test_a_checkpoint_has_the_state_of_the_generators(make_trainer):
    trainer = make_trainer(Phases(2, 1, easy="low"), save_strategy="steps", save_steps=4)
    trainer.train()
    expected = torch.get_rng_state()
    saved = torch.load(
        Path(trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}", "rng_state.pth"), weights_only=False
    )
    torch.testing.assert_close(saved["cpu"], expected, rtol=0, atol=0)
