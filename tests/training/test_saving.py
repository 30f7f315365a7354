"""What is saved of a run, and what can be gone on from: the best model, and models alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from transformers import AutoImageProcessor, default_data_collator

from hf_curriculum import BabySteps, CurriculumTrainer, Phases, make_image_processor

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


def test_the_collators_tokenizer_and_image_processor_are_saved_with_the_model(make_trainer, tmp_path):
    class Collator:
        tokenizer, image_processor = tiny_models.tokenizer(), make_image_processor(8)

        def __call__(self, rows):
            return default_data_collator(rows)

    trainer = make_trainer(Phases(2, easy="low"), trainer={"data_collator": Collator()})
    trainer.save_model(str(tmp_path / "model"))
    assert AutoImageProcessor.from_pretrained(tmp_path / "model").size == Collator.image_processor.size
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert not (tmp_path / "out" / "preprocessor_config.json").exists()
    trainer._save()
    assert AutoImageProcessor.from_pretrained(tmp_path / "out").size == Collator.image_processor.size
    trainer.processing_class = Collator.image_processor  # the model's own, which `Trainer` saves
    trainer.save_model(str(tmp_path / "own"))
    assert (tmp_path / "own" / "preprocessor_config.json").is_file()
    assert not (tmp_path / "own" / "tokenizer.json").exists()
