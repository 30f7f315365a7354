"""The trainer, on one process and without kills: what it trains on, logs, refuses and leaves alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from small_task import Net
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_curriculum import IID, CurriculumTrainer, Phases, add_scores
from hf_curriculum.data.seeding import IndexedDataset
from hf_curriculum.names import SCORERS

EASY = {"easy": "low"}


def trained_rows(folder) -> list[list[int]]:
    lines = (folder / "out" / "draws-rank0.jsonl").read_text().splitlines()
    return [rows for _, rows in sorted(map(json.loads, lines))]


def test_training_follows_the_plan_row_by_row(make_trainer, tmp_path):
    trainer = make_trainer(Phases(3, 2, **EASY), audit_draws=True)
    assert trainer.train().global_step == trainer.plan.num_steps == 24
    assert trained_rows(tmp_path) == [trainer.plan.step_rows(step).tolist() for step in range(24)]


def test_passes_may_keep_their_own_last_batch(make_trainer, tmp_path):
    trainer = make_trainer(
        Phases(3, 1, partial_batches="keep", **EASY), audit_draws=True, per_device_train_batch_size=5
    )
    trainer.train()
    assert [len(rows) for rows in trained_rows(tmp_path)] == [5, 3, 5, 5, 5, 1, 5, 5, 5, 5, 4]


def test_the_last_batch_of_a_pass_needs_something_for_every_forward_pass(make_trainer):
    trainer = make_trainer(
        Phases(3, 1, partial_batches="keep", **EASY), per_device_train_batch_size=1, gradient_accumulation_steps=7
    )
    with pytest.raises(ValueError, match=r"leaves 1 examples for .* 7 forward passes"):
        trainer.train()


def test_without_a_curriculum_it_is_a_trainer(make_trainer, tmp_path):
    trainer = make_trainer(score_column=None, audit_draws=True, num_train_epochs=2)
    assert isinstance(trainer.curriculum, IID)
    trainer.train()
    rows = [row for step in trained_rows(tmp_path) for row in step]
    assert sorted(rows) == sorted([*range(24), *range(24)])


def test_its_callbacks_are_those_of_a_trainer_before_and_after_training(make_trainer, data):
    trainer = make_trainer(score_column=None, num_train_epochs=1)
    theirs = [type(one) for one in Trainer(model=Net(), args=trainer.args).callback_handler.callbacks]

    def listed():
        return [type(one) for one in trainer.callback_handler.callbacks]

    assert listed() == theirs
    trainer.train()
    assert listed() == theirs
    trainer.add_callback(BreakAt(2))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert listed() == [*theirs, BreakAt]


def test_each_phase_logs_what_was_drawn_beside_the_loss(make_trainer):
    trainer = make_trainer(Phases(3, 1, cut="value", **EASY))
    trainer.train()
    phases = [entry for entry in trainer.state.log_history if "curriculum/score_q0" in entry]
    assert [entry["curriculum/phase"] for entry in phases] == [1, 2, 3]
    assert [entry["curriculum/pool_size"] for entry in phases] == [8, 16, 24]
    assert [entry["curriculum/score_q100"] for entry in phases] == [1, 3, 5]
    assert [entry["step"] for entry in phases] == [2, 6, 12]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == list(range(1, 13))


def test_epoch_strategies_follow_passes_over_the_pool(make_trainer, data, tmp_path):
    trainer = make_trainer(
        Phases(3, 2, **EASY),
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        trainer={"eval_dataset": data.select(range(4))},
    )
    trainer.train()
    ends = [2, 4, 8, 12, 18, 24]
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == ends
    assert sorted(int(path.name.split("-")[1]) for path in (tmp_path / "out").glob("checkpoint-*")) == ends


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


DISPATCHED = {"accelerator_config": {"dispatch_batches": True, "split_batches": True}}


class BreakAt(StopAt):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("stop", "more"), [(1, {}), (4, {}), (7, {}), (4, DISPATCHED)])
def test_a_stopped_run_resumes_exactly(make_trainer, stop, more, tmp_path):
    whole = make_trainer(Phases(2, 1, **EASY))
    whole.train()
    settings = {"save_strategy": "steps", "save_steps": 1, **more}
    make_trainer(Phases(2, 1, **EASY), trainer={"callbacks": [StopAt(stop)]}, **settings).train()
    resumed = make_trainer(Phases(2, 1, **EASY), **settings)
    resumed.train(resume_from_checkpoint=True)

    def losses(trainer):
        return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]

    assert losses(resumed) == losses(whole)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_changed_plan_is_not_resumed(make_trainer, data, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2}
    make_trainer(Phases(2, 1, **EASY), **settings).train()
    last = str(tmp_path / "out" / "checkpoint-8")

    def resume(curriculum, **arguments):
        make_trainer(curriculum, **{**settings, **arguments}).train(resume_from_checkpoint=last)

    fewer = {"trainer": {"train_dataset": data.select(range(20))}}
    with pytest.raises(ValueError, match=r"made for 24 rows but train_dataset has 20: row numbers would point"):
        resume(Phases(2, 1, **EASY), **fewer)
    other = data.remove_columns("difficulty").add_column("difficulty", np.arange(24.0)[::-1].copy())
    with pytest.raises(ValueError, match=r"scores has changed since it was saved \(the scores themselves differ\)"):
        resume(Phases(2, 1, **EASY), trainer={"train_dataset": other})
    with pytest.raises(ValueError, match=r"curriculum has changed since it was saved \(was .*'num_phases': 2"):
        resume(Phases(3, 1, **EASY))
    with pytest.raises(ValueError, match="seed has changed"):
        resume(Phases(2, 1, **EASY), seed=1)
    with pytest.raises(ValueError, match="global_batch_size has changed"):
        resume(Phases(2, 1, **EASY), per_device_train_batch_size=2)


def test_a_checkpoint_of_another_trainer_is_refused(make_trainer, tmp_path):
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 3}')
    with pytest.raises(ValueError, match=r"has no curriculum.json, so it was not saved by CurriculumTrainer"):
        make_trainer(Phases(2, 1, **EASY)).train(resume_from_checkpoint=str(folder))


def test_mistakes_are_said_before_training(make_trainer, data):
    with pytest.raises(
        ValueError, match=r"`clip_similarity` is not in the data, which has the columns \['x', 'labels'"
    ):
        make_trainer(Phases(2), score_column="clip_similarity")
    with pytest.raises(ValueError, match="Phases sorts examples by a score, and neither score_column= nor scores="):
        make_trainer(Phases(2), score_column=None)
    with pytest.raises(ValueError, match="Whether a low or a high `difficulty` is easy is not recorded"):
        make_trainer(Phases(2))
    with pytest.raises(ValueError, match="max_steps=50 was given, but the plan of Phases has 9 steps"):
        make_trainer(Phases(2, 1, **EASY), max_steps=50)
    with pytest.raises(ValueError, match="num_train_epochs=7 was given, but Phases runs for 2 epochs"):
        make_trainer(Phases(2, 1, **EASY), num_train_epochs=7)
    with pytest.raises(TypeError, match="IterableDataset, which is read in its own order"):
        make_trainer(Phases(2, 1, **EASY), max_steps=5, trainer={"train_dataset": data.to_iterable_dataset()})
    with pytest.raises(ValueError, match=r"scores has shape \(3,\) but train_dataset has 24 rows"):
        make_trainer(Phases(2, 1, **EASY), score_column=None, trainer={"scores": np.zeros(3)})
    with pytest.raises(ValueError, match="All 24 scored rows have the same"):
        make_trainer(Phases(2, 1, **EASY), score_column=None, trainer={"scores": np.zeros(24)})
    with pytest.raises(ValueError, match="no train_dataset, so there is nothing to plan"):
        _ = make_trainer(score_column=None, trainer={"train_dataset": None}).plan


def test_plain_training_arguments_train_without_a_curriculum(make_trainer, tmp_path):
    plain = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], save_strategy="no", num_train_epochs=2)
    without = make_trainer(score_column=None, curriculum=None, global_batch_size=8, num_train_epochs=2)
    trainer = make_trainer(trainer={"args": plain})
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.plan.fingerprint() == without.plan.fingerprint()
    with pytest.raises(ValueError, match="scores= was given without curriculum="):
        make_trainer(trainer={"args": plain, "scores": np.zeros(24)})


def test_scores_made_by_a_scorer_need_no_direction(make_trainer, data):
    captions = data.add_column("caption", ["a dog" + " and a cat" * (row % 5) for row in range(24)])
    scored = add_scores(captions, SCORERS["caption_length"]())
    trainer = make_trainer(Phases(2, 1), score_column="caption_length", trainer={"train_dataset": scored})
    assert trainer.plan.ranking.easy == "low"
    mapped = captions.map(SCORERS["caption_length"](), batched=True)
    again = make_trainer(Phases(2, 1), score_column="caption_length", trainer={"train_dataset": mapped})
    assert again.plan.fingerprint() == trainer.plan.fingerprint()


def test_evaluation_leaves_the_random_streams_alone(make_trainer, data):
    plain = make_trainer(Phases(2, 1, **EASY))
    plain.train()
    watched = make_trainer(
        Phases(2, 1, **EASY), eval_strategy="steps", eval_steps=1, trainer={"eval_dataset": data.select(range(4))}
    )
    watched.train()
    for ours, theirs in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_loader_that_deals_other_rows_is_caught(make_trainer):
    class Tampered(CurriculumTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            if self.state.global_step == 2:
                inputs["example_index"] = inputs["example_index"].flip(0)
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = make_trainer(Phases(2, 1, **EASY))
    trainer.__class__ = Tampered
    with pytest.raises(RuntimeError, match="Step 2 trained on rows"):
        trainer.train()


def test_data_sets_without_columns_train_with_scores_given(make_trainer, data, tmp_path):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return {"x": torch.full((4,), float(index)), "labels": index % 2, "unused": "text"}

    trainer = make_trainer(
        Phases(2, 1), score_column=None, audit_draws=True, trainer={"train_dataset": Rows(), "scores": np.arange(24)}
    )
    trainer.train()
    assert sorted(row for step in trained_rows(tmp_path)[:3] for row in step) == list(range(12))


def test_random_transforms_depend_on_seed_and_draw_alone(make_trainer, data):
    def noisy(batch):
        return {"x": [torch.tensor(row) + torch.randn(4) for row in batch["x"]], "labels": batch["labels"]}

    def inputs(**arguments):
        trainer = make_trainer(
            Phases(2, 1, **EASY),
            remove_unused_columns=False,
            trainer={"train_dataset": data.with_transform(noisy)},
            **arguments,
        )
        assert isinstance(trainer.get_train_dataloader().dataset, IndexedDataset)
        return torch.cat([batch["x"] for batch in trainer.get_train_dataloader()])

    first = inputs()
    torch.manual_seed(99)
    assert torch.equal(inputs(per_device_train_batch_size=2), first)
    assert not torch.equal(inputs(seed=1), first)
    with_chance = inputs(seed_examples=False)
    assert not torch.equal(with_chance, first)


def test_a_data_set_whose_collator_names_its_columns_keeps_them(make_trainer, data):
    class Collator:
        columns = ("difficulty",)
        is_random = False

        def __call__(self, rows):
            assert {"difficulty"} <= set(rows[0])
            x = torch.tensor([[row["difficulty"]] * 4 for row in rows])
            return {"x": x, "labels": torch.zeros(len(rows), dtype=torch.long)}

    trainer = make_trainer(Phases(2, 1, **EASY), trainer={"data_collator": Collator()})
    assert trainer.train().global_step == 9


def test_one_example_trains(make_trainer, data):
    trainer = make_trainer(Phases(1, 5, **EASY), trainer={"train_dataset": data.select([3])})
    assert trainer.train().global_step == 2


def test_unscored_rows_follow_the_curriculums_word(make_trainer, data):
    holed = data.remove_columns("difficulty").add_column("difficulty", [float("nan"), None, *np.arange(22.0)])
    last = make_trainer(Phases(2, 1, **EASY), trainer={"train_dataset": holed})
    assert set(last.plan.ranking.order[-2:].tolist()) == {0, 1}
    dropped = make_trainer(Phases(2, 1, unscored="drop", **EASY), trainer={"train_dataset": holed})
    assert len(dropped.plan.ranking) == 22
    with pytest.raises(ValueError, match="2 of 24 rows have no finite `difficulty`"):
        make_trainer(Phases(2, 1, unscored="error", **EASY), trainer={"train_dataset": holed})


def test_the_private_hooks_of_transformers_are_still_what_they_were():
    """These are overridden, so a change of their signature must be noticed here and not in a resumed run."""
    import inspect

    from transformers import Trainer

    expected = {
        "_init_training_state": [
            "self", "max_steps", "num_update_steps_per_epoch", "num_train_epochs", "resume_from_checkpoint", "trial",
        ],
        "_save_checkpoint": ["self", "model", "trial"],
        "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
        "_load_best_model": ["self"],
        "_issue_warnings_after_load": ["self", "load_result"],
        "_save_rng_state": ["self", "output_dir"],
        "_get_train_sampler": ["self", "train_dataset"],
        "_get_collator_with_removed_columns": ["self", "data_collator", "description"],
        "_set_signature_columns_if_needed": ["self"],
        "set_initial_training_values": ["self", "args", "dataloader"],
        "training_step": ["self", "model", "inputs", "num_items_in_batch"],
        "prediction_step": ["self", "model", "inputs", "prediction_loss_only", "ignore_keys"],
    }  # fmt: skip
    found = {name: list(inspect.signature(getattr(Trainer, name)).parameters) for name in expected}
    assert found == expected
    for name in ("_load_from_checkpoint", "_load_best_model"):
        assert "self._issue_warnings_after_load(" in inspect.getsource(getattr(Trainer, name))
    order = inspect.getsource(Trainer._save_checkpoint)
    assert order.index("_save_rng_state") < order.index("TRAINER_STATE_NAME") < order.index("rotate_checkpoints")


def test_a_global_batch_size_makes_the_same_plan_and_has_to_be_what_a_step_takes(make_trainer):
    def prints(**given):
        return make_trainer(Phases(3, **EASY), **given).plan.fingerprint()

    usual = prints(per_device_train_batch_size=4)
    assert prints(global_batch_size=4, per_device_train_batch_size=None) == usual
    assert prints(global_batch_size=4, per_device_train_batch_size=2) == usual
    trainer = make_trainer(Phases(3, **EASY), global_batch_size=4, per_device_train_batch_size=2)
    trainer.args.gradient_accumulation_steps = 3
    with pytest.raises(ValueError, match=r"global_batch_size=4 was .* step takes 6 examples: a search changed"):
        trainer.train()
