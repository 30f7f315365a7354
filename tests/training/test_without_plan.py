"""Runs without a curriculum whose data or sampler no plan can order: they are the stock class's, to the last bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from hf_curriculum import IID, CurriculumTrainer, CurriculumTrainingArguments, Phases, with_curriculum
from hf_curriculum.training.report import training_report
from hf_curriculum.training.setup import reason_without_plan, stock_epochs

SPEC = importlib.util.spec_from_file_location("other_trainers", Path(__file__).with_name("other_trainers.py"))
OTHERS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(OTHERS)

PLAIN = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "logging_steps": 1}
PLAIN |= {"per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": 3, "dataloader_pin_memory": False}


class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            x = torch.randn(4, generator=generator)
            yield {"x": x, "labels": (x.sum() > 0).long()}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.2))

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Seen(TrainerCallback):
    """Looks at the trainer's numbers at each step, as a user's callback may."""

    def on_step_end(self, args, state, control, **kwargs):
        assert state.global_step <= state.max_steps


def facts(trainer) -> tuple[list[float], list[torch.Tensor]]:
    history = trainer.state.log_history
    return [entry["loss"] for entry in history if "loss" in entry], [
        one.detach() for one in trainer.model.parameters()
    ]


def check_same(ours, stock) -> None:
    (our_losses, our_weights), (losses, weights) = facts(ours), facts(stock)
    assert our_losses == losses
    assert len(losses) == ours.state.global_step == stock.state.global_step > 3
    assert all(torch.equal(*pair) for pair in zip(our_weights, weights, strict=True))
    names = [{name for entry in one.state.log_history for name in entry} for one in (ours, stock)]
    assert names[0] == names[1]


def trained(trainer):
    """Trained before the next one is made: its random numbers are the program's."""
    trainer.train()
    return trainer


def iterable(kind, args_class, folder):
    torch.manual_seed(0)
    args = args_class(str(folder), max_steps=7, eval_strategy="steps", eval_steps=3, **PLAIN)
    data = {"train_dataset": Numbers(), "eval_dataset": [row for row, _ in zip(Numbers(), range(8), strict=False)]}
    return kind(Net(), args, callbacks=[Seen()], **data)


@pytest.mark.parametrize("args_class", [CurriculumTrainingArguments, TrainingArguments])
def test_iterable_data_is_trained_on_as_the_stock_class_does_and_resumes_so(args_class, tmp_path):
    ours = trained(iterable(CurriculumTrainer, args_class, tmp_path))
    stock = trained(iterable(Trainer, TrainingArguments, tmp_path / "stock"))
    check_same(ours, stock)
    with pytest.raises(ValueError, match=r"The run has no plan: train_dataset is a Numbers.*Pass curriculum="):
        ours.plan  # noqa: B018
    assert not list(tmp_path.rglob("curriculum.json"))
    again = iterable(CurriculumTrainer, args_class, tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert facts(again)[0] == facts(stock)[0]
    assert all(torch.equal(*pair) for pair in zip(facts(again)[1], facts(stock)[1], strict=True))
    with pytest.raises(ValueError, match=r"is incomplete"):
        training_report(tmp_path)


def sentences(trainer_class, args_class, folder, data, losses=False, **settings):
    OTHERS.set_seed(0)
    parts = OTHERS.sentence_parts(folder)
    if losses:
        parts["loss"] = dict.fromkeys(data, parts["loss"])
    args = args_class(str(folder / "out"), num_train_epochs=1, **PLAIN, **settings)
    return trainer_class(**parts, args=args, train_dataset=data, eval_dataset=data)


def pairs() -> Dataset:
    return OTHERS.make_data("sentence").remove_columns("length")


@pytest.mark.parametrize("kind", ["dictionary", "no_duplicates"])
def test_sentence_transformers_own_batches_are_its_own(kind, tmp_path):
    data = DatasetDict(a=pairs(), b=pairs().select(range(12))) if kind == "dictionary" else pairs()
    settings = {} if kind == "dictionary" else {"batch_sampler": "no_duplicates"}
    classes = with_curriculum(SentenceTransformerTrainer)
    made = [
        trained(sentences(one, args_class, tmp_path / one.__name__, data, kind == "dictionary", **settings))
        for one, args_class in (
            (classes, classes.args_class),
            (SentenceTransformerTrainer, SentenceTransformerTrainingArguments),
        )
    ]
    check_same(*made)
    assert made[0].evaluate().keys() == made[1].evaluate().keys()
    with pytest.raises(
        ValueError, match=r"The run has no plan: (train_dataset is a DatasetDict of|.* batches together)"
    ):
        made[0].plan  # noqa: B018


def streamed(trainer_class, args_class, folder):
    OTHERS.set_seed(0)
    args = args_class(str(folder), max_steps=5, **PLAIN)
    data = OTHERS.make_rows("text").to_iterable_dataset()
    return trainer_class(args=args, train_dataset=data, **OTHERS.sft_parts())


def test_a_stream_of_texts_is_trained_on_as_trl_does(tmp_path):
    classes = with_curriculum(SFTTrainer)
    made = [
        trained(streamed(classes, classes.args_class, tmp_path / "ours")),
        trained(streamed(SFTTrainer, SFTConfig, tmp_path / "stock")),
    ]
    check_same(*made)
    made[0].create_model_card(model_name="mine")
    assert "mine" in (tmp_path / "ours" / "README.md").read_text()


def test_prompts_are_repeated_by_grpo_itself(tmp_path):
    classes = with_curriculum(GRPOTrainer)

    def make(trainer_class, args_class, folder):
        OTHERS.set_seed(0)
        sizes = {"num_generations": 2, "max_completion_length": 4, "max_steps": 4}
        args = args_class(str(folder), **PLAIN, **sizes)
        return trainer_class(args=args, train_dataset=OTHERS.make_data("grpo"), **OTHERS.grpo_parts())

    stock = trained(make(GRPOTrainer, GRPOConfig, tmp_path / "stock"))
    for args_class in (classes.args_class, GRPOConfig):
        ours = trained(make(classes, args_class, tmp_path / args_class.__name__))
        check_same(ours, stock)
        assert type(ours.args) is classes.args_class
    plain = GRPOConfig(str(tmp_path), **PLAIN, num_generations=4, generation_batch_size=16)
    taken = classes(args=plain, train_dataset=OTHERS.make_data("grpo"), **OTHERS.grpo_parts()).args
    assert (taken.generation_batch_size, taken.steps_per_generation) == (16, 4)


def test_data_that_can_be_ordered_keeps_its_plan_and_its_exact_resuming(tmp_path):
    classes = with_curriculum(SentenceTransformerTrainer)
    trainer = sentences(classes, classes.args_class, tmp_path, pairs())
    assert trainer.plan.curriculum == IID()
    args = SFTConfig(str(tmp_path), use_cpu=True, bf16=False)
    assert stock_epochs(with_curriculum(SFTTrainer).args_class) == args.num_train_epochs == 3


@pytest.mark.parametrize("given", [{"curriculum": IID()}, {"curriculum": Phases(2), "score_column": "n"}])
def test_with_a_curriculum_it_is_refused_as_before(given, tmp_path):
    args = CurriculumTrainingArguments(str(tmp_path), max_steps=3, **PLAIN, **given)
    with pytest.raises(TypeError, match="which is read in its own order: no curriculum can choose from it"):
        CurriculumTrainer(Net(), args, train_dataset=Numbers())
    assert reason_without_plan((), args, Numbers()) is None


def test_what_only_a_plan_follows_is_refused(tmp_path):
    args = CurriculumTrainingArguments(str(tmp_path), max_steps=3, max_seconds=5, audit_draws=True, **PLAIN)
    with pytest.raises(ValueError, match=r"max_seconds=5, audit_draws=True was given, and train_dataset is a Numbers"):
        CurriculumTrainer(Net(), args, train_dataset=Numbers())
