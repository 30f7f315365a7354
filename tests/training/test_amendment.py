"""A run that goes on from a checkpoint with another rule or other data: exactly, and without being told twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from hf_curriculum import IID, Amendment, BabySteps, OnlineSelection, Phases, save_bucketed
from hf_curriculum.training.amendment import AMENDMENTS_FILE
from hf_curriculum.training.checkpoints import read_amendments, read_curriculum

EASY = {"easy": "low"}
SAVED = {"save_strategy": "steps", "save_steps": 2, "audit_draws": True}
FIRST = Phases(3, 2, **EASY)  # 24 rows in batches of 4: 24 steps
OTHER = Phases(2, **EASY)


@pytest.fixture
def harder() -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    labels = (x.sum(1) > 0).astype(int).tolist()
    return Dataset.from_dict({"x": x.tolist(), "labels": labels, "difficulty": np.arange(40.0) % 7})


def drawn(folder: Path) -> dict[int, list[int]]:
    """Step → rows, each step once."""
    lines = [json.loads(line) for line in (folder / "draws-rank0.jsonl").read_text().splitlines()]
    assert len({step for step, _ in lines}) == len(lines)
    return dict(lines)


def logged(trainer, name: str) -> list[tuple[int, float]]:
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


def weights(trainer) -> list[torch.Tensor]:
    return [value.detach().clone() for value in trainer.model.parameters()]


def same_weights(one, other) -> bool:
    return all(map(torch.equal, weights(one), weights(other)))


@pytest.fixture
def amended(make_trainer, harder, tmp_path):
    """A run of 24 steps, and the same one amended after 8 steps, by a rule and other data."""
    whole = make_trainer(FIRST, output_dir=str(tmp_path / "whole"), **SAVED)
    whole.train()
    run = make_trainer(FIRST, **SAVED)
    run.train()
    other = make_trainer(FIRST, **SAVED)
    change = Amendment(OTHER, harder)
    other.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=change)
    return whole, other, change


def test_the_steps_before_stay_and_the_rest_is_the_new_plans(amended, tmp_path):
    whole, other, _ = amended
    before, after = drawn(tmp_path / "whole"), drawn(tmp_path / "out")
    assert sorted(after) == list(range(24))
    assert {step: after[step] for step in range(8)} == {step: before[step] for step in range(8)}
    assert {step: after[step] for step in range(8, 24)} == {
        step: other.plan.step_rows(step).tolist() for step in range(8, 24)
    }
    assert other.state.global_step == other.plan.num_steps == whole.plan.num_steps == 24
    assert max(max(after[step]) for step in range(8, 24)) > 24  # rows of the other data
    # One schedule: the learning rate is that of the run that was not amended, on both sides of the seam.
    assert logged(other, "learning_rate") == logged(whole, "learning_rate")
    assert logged(other, "loss")[:8] == logged(whole, "loss")[:8]
    assert logged(other, "loss")[8:] != logged(whole, "loss")[8:]


def test_it_is_said_in_the_log_the_plan_the_card_and_the_report(amended, tmp_path):
    from hf_curriculum.training.facts import gather_facts
    from hf_curriculum.training.report import training_report

    _, other, _ = amended
    assert logged(other, "curriculum/amended_after_step") == [(8, 8)]
    first, second = other.plan.describe().splitlines()[:2]
    assert first.startswith("amended after step 8: Phases(easy='low', num_phases=3, epochs_per_phase=2) by ")
    assert second.startswith("Phases(easy='low', fit_steps=16, num_phases=2) by ")
    saved = read_curriculum(tmp_path / "out" / "checkpoint-24")
    assert saved["description"] == other.plan.describe()
    assert saved["plan"]["amended"]["before"]["plan"]["curriculum"]["num_phases"] == 3
    assert "amended after step 8" in gather_facts(other)["describe"]
    page = training_report(tmp_path / "out").write(tmp_path / "report")
    assert "amended after step 8" in Path(page).read_text()


def test_a_log_entry_that_spans_it_is_of_the_steps_after_it(make_trainer, harder, tmp_path):
    """The plan of the rest of the run does not know what was drawn before."""
    make_trainer(FIRST, logging_steps=5, **SAVED).train()
    other = make_trainer(FIRST, logging_steps=5, **SAVED)
    other.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=Amendment(OTHER, harder))
    rows = drawn(tmp_path / "out")
    means = dict(logged(other, "curriculum/score_mean"))
    assert means[10] == pytest.approx(np.mean([harder["difficulty"][row] for step in (8, 9) for row in rows[step]]))


def test_examples_are_counted_through(amended):
    _, other, _ = amended
    assert dict(logged(other, "examples")) == {step: 4 * step for step in range(1, 25)}
    assert other.examples_seen() == 24 * 4


@pytest.mark.parametrize("at", [10, 16, 22])
def test_a_run_that_is_resumed_later_repeats_it(amended, make_trainer, tmp_path, at, harder):
    _, other, change = amended
    for step in range(at + 2, 25, 2):
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{step}")
    again = make_trainer(FIRST, trainer={"train_dataset": harder}, **SAVED)
    again.train(resume_from_checkpoint=True)
    assert same_weights(again, other)
    assert logged(again, "loss") == logged(other, "loss")
    assert drawn(tmp_path / "out")[20] == other.plan.step_rows(20).tolist()
    # A script that always gives it amends once.
    shutil.rmtree(tmp_path / "out" / "checkpoint-24")
    third = make_trainer(FIRST, **SAVED)
    third.train(resume_from_checkpoint=True, amend=change)
    assert same_weights(third, other)
    assert third.plan.first_step == 8


def test_a_run_killed_before_its_next_checkpoint_repeats_it_too(amended, make_trainer, tmp_path, harder, caplog):
    _, other, _ = amended
    for step in range(10, 25, 2):
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{step}")
    again = make_trainer(FIRST, trainer={"train_dataset": harder}, **SAVED)
    with caplog.at_level("WARNING"):
        again.train(resume_from_checkpoint=True)
    assert "amended after step 8" in caplog.text
    assert same_weights(again, other)
    for step in range(10, 25, 2):
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{step}")
    (tmp_path / "out" / AMENDMENTS_FILE).unlink()  # and goes on as it was without it
    plain = make_trainer(FIRST, **SAVED)
    plain.train(resume_from_checkpoint=True)
    assert plain.plan.amended is None
    assert same_weights(plain, amended[0])


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


def test_checkpoints_of_the_run_before_are_passed_over(make_trainer, tmp_path, caplog):
    make_trainer(FIRST, **SAVED).train()
    run = make_trainer(FIRST, trainer={"callbacks": [KillAt(9)]}, **SAVED)
    with pytest.raises(Killed):
        run.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=Amendment(OTHER))
    old = make_trainer(FIRST, **SAVED)
    with pytest.raises(ValueError, match=r"checkpoint-16 is of the run before it was amended at an earlier step"):
        old.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-16"))
    again = make_trainer(FIRST, **SAVED)
    with caplog.at_level("WARNING"):
        again.train(resume_from_checkpoint=True)
    assert "checkpoint-24 is of the run before it was amended after step 8" in caplog.text
    assert again.plan.first_step == 8
    assert sorted(drawn(tmp_path / "out")) == list(range(24))
    other = make_trainer(FIRST, output_dir=str(tmp_path / "other"), **SAVED)
    other.train()
    other = make_trainer(FIRST, output_dir=str(tmp_path / "other"), **SAVED)
    other.train(resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-8"), amend=Amendment(OTHER))
    assert same_weights(again, other)


def test_of_two_amendments_of_one_checkpoint_the_later_is_repeated(make_trainer, tmp_path):
    """Each is killed before its first checkpoint, and the user has thought better of the first."""
    make_trainer(FIRST, **SAVED).train()
    for step in range(10, 25, 2):
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{step}")
    for rule in (OTHER, IID(**EASY)):
        run = make_trainer(FIRST, trainer={"callbacks": [KillAt(9)]}, **SAVED)
        with pytest.raises(Killed):
            run.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=Amendment(rule))
    again = make_trainer(FIRST, trainer={"callbacks": [KillAt(9)]}, **SAVED)
    with pytest.raises(Killed):
        again.train(resume_from_checkpoint=True)
    assert again.curriculum == IID(**EASY)
    assert len(read_amendments(tmp_path / "out")) == 1


def test_other_data_is_asked_for_again(amended, make_trainer, tmp_path):
    for step in (8, 16):
        with pytest.raises(ValueError, match=r"amended with other data, 40 rows of .* which no checkpoint holds"):
            make_trainer(FIRST, **SAVED).train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{step}"))


def test_a_rule_alone_is_repeated_without_anything(make_trainer, tmp_path):
    make_trainer(FIRST, **SAVED).train()
    run = make_trainer(FIRST, **SAVED)
    run.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=Amendment(OTHER))
    shutil.rmtree(tmp_path / "out" / "checkpoint-24")
    again = make_trainer(FIRST, **SAVED)
    again.train(resume_from_checkpoint=True)
    assert same_weights(again, run)
    assert again.curriculum == OTHER


def test_the_first_passes_are_not_those_of_the_run_before(make_trainer, tmp_path):
    make_trainer(IID(epochs=4, **EASY), **SAVED).train()
    run = make_trainer(IID(epochs=4, **EASY), **SAVED)
    run.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"), amend=Amendment(IID(**EASY)))
    rows = drawn(tmp_path / "out")
    assert [rows[step] for step in range(6, 12)] != [rows[step] for step in range(6)]
    assert sorted(row for step in range(6, 12) for row in rows[step]) == list(range(24))


def test_a_run_is_amended_twice(make_trainer, tmp_path, harder):
    make_trainer(FIRST, **SAVED).train()
    once = make_trainer(FIRST, **SAVED)
    once.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=Amendment(OTHER))
    twice = make_trainer(FIRST, **SAVED)
    second = Amendment(IID(**EASY), harder)
    twice.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-16"), amend=second)
    rows = drawn(tmp_path / "out")
    assert [rows[step] for step in range(8, 16)] == [once.plan.step_rows(step).tolist() for step in range(8, 16)]
    assert [rows[step] for step in range(16, 24)] == [twice.plan.step_rows(step).tolist() for step in range(16, 24)]
    assert twice.plan.describe().startswith("amended after step 16: Phases(easy='low', fit_steps=16, num_phases=2)")
    assert twice.plan.amended["before"]["plan"]["amended"]["step"] == 8
    for step in range(10, 25, 2):  # killed at once, and started again from before both: the first one holds
        shutil.rmtree(tmp_path / "out" / f"checkpoint-{step}")
    again = make_trainer(FIRST, **SAVED)
    again.train(resume_from_checkpoint=True)
    assert same_weights(again, once)


def test_a_run_that_decided_is_amended(make_trainer, tmp_path):
    rule = BabySteps(2, patience=1, epochs=4, **EASY)
    data = make_trainer(FIRST).train_dataset
    decided = {"trainer": {"eval_dataset": data.select(range(8))}}
    make_trainer(rule, **decided, **SAVED).train()
    run = make_trainer(rule, **decided, **SAVED)
    checkpoint = tmp_path / "out" / "checkpoint-10"
    log = read_curriculum(checkpoint)["log"]
    assert log
    run.train(resume_from_checkpoint=str(checkpoint), amend=Amendment(OTHER))
    assert run.plan.amended["before"]["log"] == log
    assert run.plan.log == ()
    assert run.state.global_step == run.plan.num_steps


def test_the_run_becomes_longer(make_trainer, tmp_path, caplog):
    make_trainer(FIRST, **SAVED).train()
    run = make_trainer(FIRST, **SAVED)
    with caplog.at_level("WARNING"):
        run.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-24"), amend=Amendment(OTHER, max_steps=30))
    assert "had 24 steps, and has 30 as amended: the learning-rate schedule continues as one made for" in caplog.text
    assert run.state.global_step == 30
    assert sorted(drawn(tmp_path / "out")) == list(range(30))


@pytest.mark.parametrize(
    ("change", "settings", "said"),
    [
        (Amendment(), {}, r"Amendment\(\) changes nothing"),
        (Amendment(BabySteps(2, epochs=3)), {}, "BabySteps decides while training, from its first step on"),
        (Amendment(OnlineSelection(2, "loss", then=IID())), {}, "OnlineSelection decides while training"),
        (Amendment(OTHER, max_steps=20), {}, "has 24 steps, of which 8 are taken; amended it would have 20"),
        (Amendment(OTHER), {"per_device_train_batch_size": 8}, "takes 4 examples, and now 8"),
        (Amendment(Phases(20, **EASY)), {}, "16 steps cannot hold 20 stages"),
        (Amendment(score_column="nothing"), {}, "nothing"),
        (Amendment("nothing"), {}, "nothing"),
    ],
)
def test_what_cannot_be_exact_is_refused(make_trainer, tmp_path, change, settings, said):
    make_trainer(FIRST, **SAVED).train()
    with pytest.raises(ValueError, match=said):
        make_trainer(FIRST, **{**SAVED, **settings}).train(
            resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=change
        )
    assert not (tmp_path / "out" / AMENDMENTS_FILE).exists()


def test_what_is_no_amendment_of_a_run_is_refused(make_trainer, tmp_path):
    with pytest.raises(ValueError, match="resume_from_checkpoint= names none"):
        make_trainer(FIRST, **SAVED).train(amend=Amendment(OTHER))
    make_trainer(FIRST, **SAVED).train()
    with pytest.raises(TypeError, match="amend is a Phases"):
        make_trainer(FIRST, **SAVED).train(resume_from_checkpoint=True, amend=OTHER)
    with pytest.raises(ValueError, match=r"The run of .* has 24 steps, of which 24 are taken"):
        make_trainer(FIRST, **SAVED).train(resume_from_checkpoint=True, amend=Amendment(OTHER))
    (tmp_path / "out" / AMENDMENTS_FILE).write_text("[{}]")
    with pytest.raises(ValueError, match=r"amendments\.json is damaged"):
        make_trainer(FIRST, **SAVED).train(resume_from_checkpoint=True)


def test_buckets_are_not_amended(make_trainer, tmp_path, data):
    folder = tmp_path / "buckets"
    save_bucketed(data, folder, score_column="difficulty", easy="low", num_buckets=2)
    make_trainer(FIRST, **SAVED).train()
    with pytest.raises(ValueError, match="is read from buckets"):
        make_trainer(FIRST, **SAVED).train(
            resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-8"), amend=Amendment(OTHER, str(folder))
        )


def test_a_run_without_a_plan_is_not_amended(make_trainer, data):
    stream = {"train_dataset": data.remove_columns("difficulty").to_iterable_dataset()}
    with pytest.raises(ValueError, match="amend= changes a plan, and this run has none"):
        make_trainer(None, trainer=stream, max_steps=2, score_column=None).train(
            resume_from_checkpoint="nowhere", amend=Amendment(OTHER)
        )
