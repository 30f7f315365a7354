"""A curriculum for the trainers of other libraries: draws equal the plan, decisions are taken, runs resume exactly."""

from __future__ import annotations

import importlib.util
import inspect
import json
import pickle
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import DatasetDict
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.sampler import BatchSamplers
from transformers import HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from hf_curriculum import (
    IID,
    BabySteps,
    ByImage,
    CurriculumTrainer,
    CurriculumTrainingArguments,
    InfoBatch,
    OnlineSelection,
    Phases,
    SelfPaced,
    with_curriculum,
)
from hf_curriculum.training.any_trainer import _arguments_with_curriculum
from hf_curriculum.training.prediction import example_losses
from hf_curriculum.training.setup import validate_sampling

PROGRAM = Path(__file__).with_name("other_trainers.py")
SPEC = importlib.util.spec_from_file_location("other_trainers", PROGRAM)
OTHERS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(OTHERS)

every_trainer = pytest.mark.parametrize("name", OTHERS.TRAINERS)
SHORT = {"curriculum": Phases(2, easy="low"), "save_strategy": "no"}
PROMPTS = Phases(2, easy="low", batches=ByImage(2, image_column="prompt"))


def make_short(name, folder, **settings):
    """A trainer of two phases."""
    return OTHERS.make_trainer(name, folder, **SHORT | ({"curriculum": PROMPTS} if name == "grpo" else {}) | settings)


def drawn(folder, name, processes):
    """The rows of each step, sorted, over all processes."""
    files = [folder / name / f"draws-rank{rank}.jsonl" for rank in range(processes)]
    parts = [[json.loads(line)[1] for line in file.read_text().splitlines()] for file in files]
    return [sorted(row for part in step for row in part) for step in zip(*parts, strict=True)]


def check_run(whole, resumed, rows):
    """What was drawn is what was planned, decisions were taken, and the resumed run is the same to the last bit."""
    assert whole == resumed
    assert rows == [sorted(planned) for planned in whole["planned"]]
    assert whole["steps"] == len(rows) == 24
    assert np.isfinite(whole["losses"]).all()
    assert len(set(whole["losses"])) > 6
    assert {entry["bucket"] for entry in whole["log"]} >= {1, 2}
    assert whole["rounds"] == [entry["round"] + 2 for entry in whole["log"]][: len(whole["rounds"])]


@every_trainer
def test_any_trainer_follows_the_plan_decides_and_resumes(name, tmp_path):
    whole, resumed = OTHERS.run(name, tmp_path)
    check_run(whole, resumed, drawn(tmp_path, name, 1))


@pytest.mark.slow
def test_any_trainer_on_two_processes(launch, tmp_path):
    launch(PROGRAM, tmp_path, processes=2, timeout=600)
    for name in OTHERS.TRAINERS:
        whole, resumed = json.loads((tmp_path / name / "facts.json").read_text())
        check_run(whole, resumed, drawn(tmp_path, name, 2))


CHOOSING = OnlineSelection(2, "loss", then=IID(epochs=4), easy="low")


@pytest.mark.parametrize("name", ["sft", "seq2seq"])
def test_a_trainer_of_the_models_own_loss_chooses_among_candidates(name, tmp_path):
    trainer = OTHERS.make_trainer(name, tmp_path, curriculum=CHOOSING)
    trainer.train()
    whole = OTHERS.facts_of(trainer)
    assert whole["steps"] == 12
    for rows, planned in zip(drawn(tmp_path, name, 1), whole["planned"], strict=True):
        assert len(rows) == 8
        assert set(rows) <= set(planned)
    trainer = OTHERS.make_trainer(name, tmp_path, curriculum=CHOOSING)
    trainer.train(resume_from_checkpoint=str(tmp_path / name / f"checkpoint-{OTHERS.SAVED_AT}"))
    assert OTHERS.facts_of(trainer) == whole


@pytest.mark.parametrize("rule", [SelfPaced(epochs=4, easy="low"), CHOOSING])
def test_a_rule_by_loss_is_refused_where_another_loss_is_trained(rule, tmp_path):
    match = f"loss_type='dft' was given, and {type(rule).__name__} .* by `example_losses`"
    with pytest.raises(ValueError, match=match):
        OTHERS.make_trainer("sft", tmp_path, curriculum=rule, loss_type="dft")


class WithOwnLosses(with_curriculum(SFTTrainer)):
    def example_losses(self, model, inputs):
        return example_losses(model, inputs)


def test_weights_of_examples_need_the_loss_that_is_trained(tmp_path):
    rule = InfoBatch(epochs=3, easy="low")
    with pytest.raises(ValueError, match=r"loss_type='dft' was given, and InfoBatch weighs each example's share"):
        OTHERS.make_trainer("sft", tmp_path, curriculum=rule, loss_type="dft")
    args = OTHERS.make_trainer("sft", tmp_path, **SHORT, logging_steps=1).args
    args.curriculum = rule
    trainer = WithOwnLosses(args=args, train_dataset=OTHERS.make_data("sft"), **OTHERS.sft_parts())
    trainer.train()
    assert trainer.plan.log
    assert trainer.state.global_step == trainer.plan.num_steps


@pytest.mark.parametrize("name", ["reward", "sentence", "grpo"])
def test_a_trainer_of_another_loss_says_that_it_cannot_choose_by_it(name, tmp_path):
    with pytest.raises(ValueError, match=r"compute_loss of its own, and OnlineSelection chooses by `example_losses`"):
        OTHERS.make_trainer(name, tmp_path, curriculum=CHOOSING).train()


@pytest.mark.parametrize("name", ["reward", "sentence", "grpo"])
def test_a_trainer_of_another_loss_says_that_it_cannot_weigh_it(name, tmp_path):
    with pytest.raises(ValueError, match=r"weight_column='length' weighs (each example's share|the loss of each)"):
        make_short(name, tmp_path, weight_column="length")


class HandMadeTrainer(CurriculumTrainer, SFTTrainer):
    """As somebody would write it who adds methods of his own."""


@dataclass
class HandMadeConfig(CurriculumTrainingArguments, SFTConfig):
    own: int = 3


class BareConfig(CurriculumTrainingArguments, SFTConfig):
    """Without @dataclass above it."""


def test_a_class_written_by_hand_is_the_same(tmp_path):
    parts = {**OTHERS.sft_parts(), "train_dataset": OTHERS.make_data("sft")}
    args = HandMadeConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], score_column="length", **SHORT)
    trainer = HandMadeTrainer(args=args, **parts)
    assert args.own == 3
    bare = BareConfig(str(tmp_path), use_cpu=True, bf16=False, max_length=7)
    assert (bare.max_length, bare.logging_steps, bare.num_train_epochs) == (7, 10, -1)
    assert trainer.plan.fingerprint() == OTHERS.make_trainer("sft", tmp_path, **SHORT).plan.fingerprint()


def test_a_curriculum_class_and_its_arguments_are_made_once():
    trainer_class = with_curriculum(SFTTrainer)
    assert trainer_class is with_curriculum(SFTTrainer)
    assert trainer_class.__mro__[:2] == (trainer_class, CurriculumTrainer)
    assert issubclass(trainer_class.args_class, SFTConfig)
    assert issubclass(trainer_class.args_class, CurriculumTrainingArguments)
    assert issubclass(with_curriculum(Trainer).args_class, TrainingArguments)
    assert issubclass(with_curriculum(DPOTrainer).args_class, DPOConfig)
    assert with_curriculum(SFTTrainer, HandMadeConfig).args_class is HandMadeConfig
    assert with_curriculum(HandMadeTrainer) is HandMadeTrainer


@pytest.mark.parametrize("trainer_class", [SFTTrainer, RewardTrainer, Seq2SeqTrainer, SentenceTransformerTrainer])
def test_arguments_have_the_defaults_of_both(trainer_class, tmp_path):
    args_class = with_curriculum(trainer_class).args_class
    usual = next(base for base in args_class.__bases__ if base is not CurriculumTrainingArguments)
    given = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    args, plain = args_class(**given, curriculum=Phases(2)), usual(**given)
    changed = {item.name for item in fields(usual) if getattr(args, item.name) != getattr(plain, item.name)}
    assert changed == {"num_train_epochs"}
    assert args.curriculum == Phases(2)
    flags = ["--output_dir", str(tmp_path), "--use_cpu", "--bf16", "False", "--curriculum", "phases"]
    (parsed,) = HfArgumentParser(args_class).parse_args_into_dataclasses(flags)
    assert (parsed.curriculum, parsed.logging_steps) == (Phases(), plain.logging_steps)
    again = pickle.loads(pickle.dumps(args))
    assert (type(again), again.curriculum, again.learning_rate) == (args_class, Phases(2), plain.learning_rate)


def test_pickled_arguments_are_read_where_the_class_was_not_made(tmp_path):
    args = with_curriculum(SFTTrainer).args_class(str(tmp_path), use_cpu=True, bf16=False, curriculum=Phases(2))
    torch.save(args, tmp_path / "training_args.bin")
    _arguments_with_curriculum.cache_clear()
    again = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert type(again) is not type(args)
    assert (type(again).__name__, again.curriculum) == ("CurriculumSFTConfig", Phases(2))
    with_curriculum.cache_clear()


def test_filtered_rows_take_their_scores_along(tmp_path):
    trainer = OTHERS.make_trainer("reward", tmp_path, max_length=6, **SHORT)
    lengths = [len(ids) - 1 for ids in trainer.train_dataset["chosen_ids"]]  # without [EOS]
    assert len(lengths) < OTHERS.NUM_ROWS
    assert trainer.plan.ranking.num_rows == len(lengths)
    trainer.train()
    steps = drawn(tmp_path, "reward", 1)
    assert max(lengths[row] for row in steps[0]) < max(lengths[row] for row in steps[-1]) == 5


@every_trainer
def test_the_trainers_own_numbers_are_logged_with_the_loss(name, tmp_path):
    trainer = make_short(name, tmp_path)
    trainer.train()
    with_loss = [entry for entry in trainer.state.log_history if "loss" in entry]
    curriculum = [entry for entry in trainer.state.log_history if "curriculum/score_q0" in entry]
    own = {"sft": "mean_token_accuracy", "reward": "margin", "grpo": "reward"}.get(name, "examples")
    assert all(own in entry and "curriculum/repeats" in entry for entry in with_loss)
    assert [entry["curriculum/score_q100"] for entry in curriculum] == [5, 8]


@pytest.mark.parametrize(
    ("name", "metric"), [("sft", "mean_token_accuracy"), ("reward", "accuracy")], ids=["sft", "reward"]
)
def test_a_metric_that_the_trainer_adds_to_its_log_decides_and_is_the_best(name, metric, tmp_path):
    best = {"metric_for_best_model": f"eval_{metric}", "load_best_model_at_end": True, "greater_is_better": True}
    rule = BabySteps(2, patience=1, epochs=2, easy="low", metric=metric)
    trainer = OTHERS.make_trainer(name, tmp_path, curriculum=rule, eval_strategy="steps", eval_steps=5, **best)
    trainer.train()
    logged = [entry[f"eval_{metric}"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert trainer.state.best_metric in logged
    assert trainer.plan.log
    assert all(entry["value"] in logged for entry in trainer.plan.log)


def test_a_preference_trainers_metric_is_the_best(tmp_path):
    parts = OTHERS.sft_parts()
    data = OTHERS.make_rows("prompt", "chosen", "rejected")
    trainer_class = with_curriculum(DPOTrainer)
    settings = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "eval_rewards/accuracies"}
    short = {"save_strategy": "no", "per_device_train_batch_size": 8, "max_steps": 3, "disable_tqdm": True}
    args = trainer_class.args_class(str(tmp_path), use_cpu=True, bf16=False, report_to=[], **settings, **short)
    parts |= {"ref_model": OTHERS.sft_parts()["model"], "train_dataset": data, "eval_dataset": data.select(range(8))}
    trainer = trainer_class(**parts, args=args)
    trainer.train()
    assert "eval_rewards/accuracies" in trainer.evaluate()


@every_trainer
def test_the_card_tells_of_the_curriculum(name, tmp_path):
    trainer = make_short(name, tmp_path)
    trainer.create_model_card(dataset_name="me/texts")
    card = (tmp_path / name / "README.md").read_text()
    assert "Phases" in card
    assert "me/texts" in card


def test_generating_in_evaluation_is_the_other_trainers(tmp_path):
    trainer = OTHERS.make_trainer("seq2seq", tmp_path, predict_with_generate=True, generation_max_length=6, **SHORT)
    shapes = []
    trainer.compute_metrics = lambda outputs: shapes.append(outputs.predictions.shape) or {}
    trainer.evaluate(max_length=5)
    trainer.evaluate()
    assert [rows for rows, _ in shapes] == [12, 12]


def test_sentences_without_the_curriculums_columns_reach_the_model(tmp_path):
    trainer = OTHERS.make_trainer("sentence", tmp_path, **SHORT)
    assert trainer.eval_dataset.column_names == ["anchor", "positive"]
    assert trainer.train_dataset.column_names == ["anchor", "positive", "length"]
    batch = next(iter(trainer.get_train_dataloader()))
    assert {name.partition("_")[0] for name in batch} == {"anchor", "positive", "example"}
    scored = OTHERS.make_data("sentence").select(range(4))
    both = trainer.evaluate(DatasetDict(a=scored, b=scored))
    assert both["eval_a_loss"] == both["eval_b_loss"] == trainer.evaluate(scored)["eval_loss"]
    labelled = OTHERS.make_data("sentence").rename_column("length", "score")
    trainer = OTHERS.make_trainer("sentence", tmp_path, data=labelled, score_column="score", **SHORT)
    assert "label" in next(iter(trainer.get_train_dataloader()))  # a score that is the label too stays


def refused(error, match, name, folder, **given):
    with pytest.raises(error, match=match):
        OTHERS.make_trainer(name, folder, **{**SHORT, **given})


def test_what_changes_rows_or_their_order_is_refused(tmp_path):
    refused(ValueError, "packing=True joins several rows into one", "sft", tmp_path, packing=True)
    given = {"score_column": None, "trainer": {"scores": np.arange(float(OTHERS.NUM_ROWS))}}
    refused(ValueError, "made new rows of train_dataset, which scores= may not", "sft", tmp_path, **given)
    for sampler in ("no_duplicates", BatchSamplers.GROUP_BY_LABEL):
        refused(ValueError, "puts batches together in another way", "sentence", tmp_path, batch_sampler=sampler)
    data = DatasetDict(a=OTHERS.make_data("sentence"), b=OTHERS.make_data("sentence"))
    many = {"train_dataset": data, "eval_dataset": data}
    refused(
        TypeError,
        r"was given a DatasetDict of the splits \['a', 'b'\] as `train_dataset`",
        "sentence",
        tmp_path,
        trainer=many,
    )
    refused(ValueError, "train_sampling_strategy='sequential' orders", "sft", tmp_path,
            train_sampling_strategy="sequential")  # fmt: skip
    with pytest.raises(ValueError, match="KTOTrainer chooses its training examples itself"):
        validate_sampling((KTOTrainer,), None, None)


def test_prompts_are_repeated_as_often_as_their_completions_are_compared(tmp_path):
    trainer = make_short("grpo", tmp_path)
    assert all(len(set(pair)) == 1 for pair in trainer.plan.step_rows(0).reshape(-1, 2).tolist())
    numbers = range(OTHERS.NUM_ROWS)
    data = OTHERS.make_data("grpo").add_column("id", list(numbers)).add_column("topic", [n // 2 for n in numbers])
    for batches in (None, ByImage(4, image_column="prompt"), ByImage(2, image_column="topic")):
        rule = Phases(2, easy="low", batches=batches)
        match = r"needs each prompt num_generations=2 times .* batches=ByImage\(2, image_column"
        refused(ValueError, match, "grpo", tmp_path, curriculum=rule, data=data)
    rule = Phases(2, easy="low", batches=ByImage(2, image_column="id"))
    assert make_short("grpo", tmp_path, data=data, curriculum=rule).plan.num_steps == 18
    for given in ({"steps_per_generation": 2}, {"num_iterations": 2}):
        refused(ValueError, "train on completions of earlier steps", "grpo", tmp_path, curriculum=PROMPTS, **given)


def test_rows_may_be_packed_where_no_score_is_needed(tmp_path):
    given = {"packing": True, "max_length": 16, "curriculum": IID(epochs=1), "score_column": None}
    trainer = OTHERS.make_trainer("sft", tmp_path, save_strategy="no", trainer={"eval_dataset": None}, **given)
    assert trainer.plan.ranking.num_rows == len(trainer.train_dataset) < OTHERS.NUM_ROWS
    assert with_curriculum(SFTTrainer) is type(trainer)


def test_losses_of_examples_decide_where_the_batch_has_labels(tmp_path):
    trainer = OTHERS.make_trainer("sft", tmp_path, save_strategy="no", curriculum=SelfPaced(epochs=4, easy="low"))
    assert trainer.training_losses().shape == (OTHERS.NUM_ROWS,)


def test_a_loader_of_ones_own_may_come_before_the_curriculums():
    class Loads:
        def get_train_dataloader(self):
            return super().get_train_dataloader()

    class Mine(Loads, CurriculumTrainer):
        def get_train_dataloader(self):
            return super().get_train_dataloader()

    assert Mine.__mro__[1:3] == (Loads, CurriculumTrainer)


def test_classes_in_the_wrong_order_and_arguments_of_another_trainer_are_refused(tmp_path):
    with pytest.raises(TypeError, match="Wrong has BaseTrainer before CurriculumTrainer, and its sampler"):
        type("Wrong", (SentenceTransformerTrainer, CurriculumTrainer), {})
    model = OTHERS.sft_parts()["model"]
    with pytest.raises(TypeError, match=r"args is a SFTConfig, which has no .* with_curriculum\(SFTTrainer\).args_cl"):
        HandMadeTrainer(model, SFTConfig(str(tmp_path), use_cpu=True, bf16=False))
    with pytest.raises(TypeError, match="args is None, which has no curriculum"):
        HandMadeTrainer(model)
    with pytest.raises(TypeError, match="args is a RewardConfig, which has no curriculum"):
        with_curriculum(SFTTrainer)(model, RewardConfig(str(tmp_path), use_cpu=True, bf16=False))
    with pytest.raises(TypeError, match="args is a GRPOConfig, which has no curriculum"):
        with_curriculum(SFTTrainer)(model, GRPOConfig(str(tmp_path), use_cpu=True, bf16=False))
    with pytest.raises(TypeError, match="is a CurriculumTrainingArguments, and SFTTrainer reads a SFTConfig"):
        HandMadeTrainer(model, CurriculumTrainingArguments(str(tmp_path), use_cpu=True))
    with pytest.raises(TypeError, match="is not a class of transformers' Trainer"):
        with_curriculum(RewardConfig)
    with pytest.raises(TypeError, match="is not a class of TrainingArguments"):
        with_curriculum(SFTTrainer, dict)
    assert issubclass(with_curriculum(Trainer, Seq2SeqTrainingArguments).args_class, Seq2SeqTrainingArguments)


def test_a_run_without_arguments_or_with_stock_ones_has_no_curriculum(tmp_path, monkeypatch):
    trainer_class, parts, data = with_curriculum(SFTTrainer), OTHERS.sft_parts(), OTHERS.make_data("sft")
    given = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "lr_scheduler_type": "cosine"}
    unlike = CurriculumTrainingArguments(**given, global_batch_size=4, max_grad_norm=0.5)
    for args in (SFTConfig(**given, max_length=7), TrainingArguments(**given, max_steps=12), unlike):
        trainer = trainer_class(args=args, train_dataset=data, **parts)
        assert type(trainer.args) is trainer_class.args_class
        assert all(getattr(trainer.args, one.name) == getattr(args, one.name) for one in fields(args))
        steps = {SFTConfig: 18, TrainingArguments: 12, CurriculumTrainingArguments: 36}[type(args)]
        assert (trainer.plan.curriculum, trainer.plan.num_steps) == (IID(), steps)
    with pytest.raises(ValueError, match="train_sampling_strategy='sequential' orders"):
        trainer_class(parts["model"], TrainingArguments(**given, train_sampling_strategy="sequential"))
    monkeypatch.chdir(tmp_path)  # where the default output folder is
    assert CurriculumTrainer(parts["model"]).args.to_dict() == CurriculumTrainingArguments().to_dict()


def test_a_curriculum_class_takes_what_its_trainer_takes_in_its_order(tmp_path):
    stock = list(inspect.signature(SFTTrainer).parameters)
    assert list(inspect.signature(with_curriculum(SFTTrainer)).parameters) == [*stock, "scores"]
    assert stock.index("compute_loss_func") != list(inspect.signature(Trainer).parameters).index("compute_loss_func")
    trainer_class, parts, data = with_curriculum(SFTTrainer), OTHERS.sft_parts(), OTHERS.make_data("sft")
    args = trainer_class.args_class(
        str(tmp_path), use_cpu=True, bf16=False, report_to=[], score_column="length", **SHORT
    )
    trainer = trainer_class(parts["model"], args, None, data, None, parts["processing_class"], make_short)
    assert (trainer.args, trainer.compute_loss_func) == (args, make_short)
    assert trainer.plan.curriculum == SHORT["curriculum"]
