"""The plan is that of the arguments and the data as they are when training begins."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_task import Net
from transformers import TrainerCallback
from transformers.trainer_utils import HPSearchBackend

from hf_curriculum import IID, CurriculumTrainer, CurriculumTrainingArguments, Growing, Phases
from hf_curriculum.training import setup

RULE = Phases(2, 1, easy="low")


def fresh_plan(make_trainer, curriculum, **arguments):
    return make_trainer(curriculum, **arguments).plan


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 7},
        {"data_seed": 7},
        {"num_train_epochs": 5},
        {"max_steps": 3},
        {"gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 6},
        {"curriculum": IID(epochs=3), "num_train_epochs": -1},
        {"curriculum": "iid", "score_column": None},
        {"score_column": "labels"},
    ],
    ids=str,
)
def test_arguments_set_after_construction_are_followed(make_trainer, changed):
    trainer = make_trainer(IID(), num_train_epochs=2)
    before = trainer.plan
    for name, value in changed.items():
        setattr(trainer.args, name, value)
    wanted = fresh_plan(make_trainer, **{"curriculum": IID(), "num_train_epochs": 2, **changed})
    assert trainer.plan.fingerprint() == wanted.fingerprint() != before.fingerprint()
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == wanted.num_steps


def test_what_did_not_change_is_not_ranked_again(make_trainer, monkeypatch):
    calls = []
    ranked = setup.rank_training_data
    monkeypatch.setattr(
        "hf_curriculum.training.trainer.rank_training_data", lambda *given: calls.append(1) or ranked(*given)
    )
    trainer = make_trainer(RULE)
    assert trainer.plan is trainer.plan
    trainer.args.seed = 3
    assert trainer.plan.seed == 3
    trainer.train()
    assert len(calls) == 1
    trainer.args.score_column = "labels"
    _ = trainer.plan
    assert len(calls) == 2


def test_other_training_data_is_planned_anew(make_trainer, data, tmp_path):
    trainer = make_trainer(RULE, audit_draws=True)
    trainer.train_dataset = data.select(range(23, 11, -1))
    wanted = fresh_plan(make_trainer, RULE, trainer={"train_dataset": data.select(range(23, 11, -1))})
    assert trainer.plan.fingerprint() == wanted.fingerprint()
    trainer.train()
    assert trainer.state.global_step == wanted.num_steps < 9
    trainer.train_dataset = data.to_iterable_dataset()
    with pytest.raises(TypeError, match="IterableDataset, which is read in its own order"):
        trainer.train()


def test_scores_do_not_go_with_other_data(make_trainer, data):
    trainer = make_trainer(RULE, score_column=None, trainer={"scores": np.arange(24.0)})
    trainer.train_dataset = data.select(range(23, -1, -1))
    with pytest.raises(ValueError, match=r"scores= were given for the rows of another train_dataset.*score_column"):
        trainer.train()


def test_a_run_in_progress_keeps_its_plan(make_trainer):
    class Changes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            args.seed = 99

    trainer = make_trainer(RULE, trainer={"callbacks": [Changes()]}, audit_draws=True)
    trainer.train()  # the audit compares each step with the plan
    assert trainer.state.global_step == 9


class Trial:
    """What a backend hands to the trainer, with no package of its own."""

    def __init__(self, **params):
        self.params = params
        self.number = 0


def test_a_hyperparameter_search_trains_what_it_says(tmp_path, data, monkeypatch):
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)
    args = CurriculumTrainingArguments(
        str(tmp_path), curriculum=IID(), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=4, num_train_epochs=2, audit_draws=True,
    )  # fmt: skip
    trainer = CurriculumTrainer(args=args, model_init=Net, train_dataset=data)
    trainer.hp_search_backend = HPSearchBackend.OPTUNA
    trainer.hp_space = lambda trial: trial.params
    trainer.hp_name = None
    found = []
    for params in (
        {"num_train_epochs": 1.0},
        {"num_train_epochs": 3.0, "per_device_train_batch_size": 8},
        {"max_steps": 11},
        {"seed": 7, "max_steps": 2},
    ):
        trainer.train(trial=Trial(**params))
        plan = trainer.plan
        found.append((trainer.state.global_step, plan.num_steps, plan.global_batch_size, plan.seed))
    assert found == [(6, 6, 4, 42), (9, 9, 8, 42), (11, 11, 8, 42), (2, 2, 8, 7)]


def saved_with(make_trainer, batch_size, monkeypatch):
    """A run whose device has room for so many examples and no more, with a checkpoint after each step."""
    step = CurriculumTrainer.training_step

    def training_step(self, model, inputs, num_items_in_batch=None):
        if len(inputs["x"]) > batch_size:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(self, model, inputs, num_items_in_batch)

    monkeypatch.setattr(CurriculumTrainer, "training_step", training_step)


FOUND = {"auto_find_batch_size": True, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 8}


def test_a_found_batch_size_is_resumed_by_the_same_script(make_trainer, monkeypatch, tmp_path):
    saved_with(make_trainer, 7, monkeypatch)
    whole = make_trainer(RULE, **FOUND)
    whole.train()
    assert whole.plan.global_batch_size == 7
    resumed = make_trainer(RULE, **FOUND)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert resumed.plan.fingerprint() == whole.plan.fingerprint()
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_resumed_run_finds_no_smaller_batch_size(make_trainer, monkeypatch, tmp_path):
    make_trainer(RULE, **FOUND).train()
    saved_with(make_trainer, 7, monkeypatch)
    with pytest.raises(ValueError, match=r"batches of 8, and now memory ran out.*a step number would stand for other"):
        make_trainer(RULE, **FOUND).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))


def test_max_steps_wins_over_epochs(make_trainer):
    trainer = make_trainer(IID(), max_steps=4, num_train_epochs=3)
    assert trainer.plan.num_steps == 4
    assert trainer.train().global_step == 4
    assert make_trainer(Growing(easy="low"), max_steps=4, num_train_epochs=3).plan.num_steps == 4


def test_max_steps_makes_a_trial_of_a_curriculum(make_trainer, caplog, tmp_path):
    whole = make_trainer(RULE)
    with caplog.at_level(logging.WARNING, "hf_curriculum"):
        trainer = make_trainer(RULE, max_steps=2, audit_draws=True)
        trainer.train()
    assert len([one for one in caplog.records if "max_steps=2 ends the run" in one.message]) == 1
    assert trainer.state.global_step == trainer.state.max_steps == 2
    rows = [trainer.plan.step_rows(step).tolist() for step in range(2)]
    assert rows == [whole.plan.step_rows(step).tolist() for step in range(2)]
    with pytest.raises(ValueError, match=r"max_steps=10 was given, but the plan of Phases has 9 steps.*fit_to\("):
        make_trainer(RULE, max_steps=10)


@pytest.mark.parametrize("longer", [{"max_steps": 18}, {"num_train_epochs": 3}], ids=str)
def test_a_finished_run_without_a_length_of_its_own_may_be_prolonged(make_trainer, longer, tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 6, "audit_draws": True}
    make_trainer(IID(), num_train_epochs=1, **settings).train()
    trainer = make_trainer(IID(), **longer, **settings)
    with caplog.at_level(logging.WARNING, "hf_curriculum"):
        trainer.train(resume_from_checkpoint=True)
    assert "6 steps before, 18 now: the learning-rate schedule" in caplog.text
    assert trainer.state.global_step == 18
    lines = (tmp_path / "out" / "draws-rank0.jsonl").read_text().splitlines()
    assert len(lines) == 18
    # Every pass shows every row once, the first one too, which an earlier run made.
    passes = np.array([eval(line)[1] for line in lines]).reshape(3, 24)
    assert (np.sort(passes, axis=1) == np.arange(24)).all()


@pytest.mark.parametrize(
    "rule", [RULE, Growing(easy="low"), IID(partial_batches="keep")], ids=["own", "grows", "keep"]
)
def test_what_would_have_begun_otherwise_is_not_prolonged(make_trainer, rule):
    settings = {"save_strategy": "steps", "save_steps": 2}
    make_trainer(rule, max_steps=4, **settings).train()
    with pytest.raises(ValueError, match="num_steps has changed"):
        make_trainer(rule, max_steps=6, **settings).train(resume_from_checkpoint=True)


def test_a_run_as_long_as_before_is_not_called_prolonged(make_trainer, caplog):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    make_trainer(IID(), **settings).train()
    with caplog.at_level(logging.WARNING, "hf_curriculum"):
        make_trainer(IID(), **settings).train(resume_from_checkpoint=True)
    assert "steps before" not in caplog.text


def test_the_data_seed_draws_and_the_seed_does_not(make_trainer):
    def rows(**seeds):
        return make_trainer(RULE, **seeds).plan.step_rows(0).tolist()

    assert rows(seed=1, data_seed=5) == rows(seed=2, data_seed=5) == rows(seed=5)
    assert rows(seed=1, data_seed=5) != rows(seed=1)


def test_two_answers_to_which_scores_are_refused(make_trainer, data):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return {"x": torch.zeros(4), "labels": 0}

    for train_dataset in (data, Rows()):
        with pytest.raises(ValueError, match=r"scores= and score_column='difficulty' were both given.*column=None"):
            make_trainer(RULE, trainer={"scores": np.arange(24.0), "train_dataset": train_dataset})


def test_scores_may_be_tensors(make_trainer):
    for scores in (torch.arange(24.0, requires_grad=True), torch.arange(24, dtype=torch.bfloat16)):
        plan = make_trainer(RULE, score_column=None, trainer={"scores": scores}).plan
        assert plan.ranking.order.tolist() == list(range(24))


def test_scores_without_a_curriculum_are_refused(make_trainer):
    with pytest.raises(ValueError, match=r"score_column='difficulty' was given without curriculum=.*curriculum=IID"):
        make_trainer()
    with pytest.raises(ValueError, match=r"scores= was given without curriculum="):
        make_trainer(score_column=None, trainer={"scores": np.arange(24.0)})


def test_streamed_data_is_refused_in_our_words(make_trainer, data):
    given = SimpleNamespace(**vars(make_trainer(RULE)))
    stream = data.to_iterable_dataset()
    with pytest.raises(TypeError, match="IterableDataset, which is read in its own order"):
        CurriculumTrainer(given.model, given.args, None, stream)
    with pytest.raises(TypeError, match="IterableDataset, which is read in its own order"):
        CurriculumTrainer(given.model, given.args, train_dataset=stream)
