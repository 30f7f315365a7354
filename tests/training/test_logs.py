"""What `evaluate()`, `train()` and callbacks get: what `Trainer` gives them, and what a trainer's own log adds."""

from __future__ import annotations

import pytest
from small_task import Net
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_curriculum import IID, BabySteps, CurriculumTrainer


class Counting(CurriculumTrainer):
    """Adds a number to what it evaluates."""

    calls = 0

    def log(self, logs, *args, **kwargs):
        if "eval_loss" in logs:
            self.calls += 1
            logs["eval_calls"] = self.calls
        super().log(logs, *args, **kwargs)


class Noting(TrainerCallback):
    def __init__(self):
        self.found = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.found.append(set(metrics))


def names_of(trainer):
    """The names that `train()`, `evaluate()` afterwards, and `on_evaluate` are given."""
    callback = Noting()
    trainer.add_callback(callback)
    return set(trainer.train().metrics), set(trainer.evaluate()), callback.found


@pytest.mark.parametrize("quiet", [True, False])
def test_metrics_have_the_names_that_trainers_have(make_trainer, data, tmp_path, quiet, capsys):
    rows = data.remove_columns("difficulty")
    settings = {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 1, "max_steps": 6, "disable_tqdm": quiet}
    parts = {"train_dataset": rows, "eval_dataset": rows}
    stock = TrainingArguments(str(tmp_path / "stock"), report_to=[], use_cpu=True, save_strategy="no", **settings)
    ours = make_trainer(IID(), trainer={"eval_dataset": rows, "train_dataset": rows}, score_column=None, **settings)
    wanted = names_of(Trainer(Net(), stock, **parts))
    assert names_of(ours) == wanted
    assert "epoch" in wanted[0]
    logged = [entry for entry in ours.state.log_history if "eval_loss" in entry or "train_loss" in entry]
    assert all("examples" in entry for entry in logged[:-1])


def test_a_metric_of_a_trainers_own_log_decides_and_is_the_best(make_trainer, data):
    rule = BabySteps(2, patience=1, epochs=2, easy="low", metric="calls")
    best = {"metric_for_best_model": "eval_calls", "greater_is_better": True, "save_strategy": "epoch"}
    made = make_trainer(
        rule, trainer={"eval_dataset": data}, eval_strategy="epoch", load_best_model_at_end=True, **best
    )
    made.__class__ = Counting
    made.train()
    assert [entry["value"] for entry in made.plan.log] == list(range(1, len(made.plan.log) + 1))
    assert made.state.best_metric == made.calls
