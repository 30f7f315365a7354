"""Whatever comes between the choice and the model is noticed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from selection_task import captioned, captions_collator, captions_trainer, recorded

from hf_curriculum import CurriculumTrainer, OnlineSelection, make_plan
from hf_curriculum.training.selection import SelectionAudit, Selector

RULE = OnlineSelection(3, "loss")


class Replaced(CurriculumTrainer):
    """Trains on other rows than were chosen."""

    def training_step(self, model, inputs, *args, **kwargs):
        other = self.data_collator([self.train_dataset[row] for row in (0, 1, 2, 3)])
        return super().training_step(model, {**other, "example_index": torch.arange(4)}, *args, **kwargs)


class Renumbered(CurriculumTrainer):
    """Says of each place that another of its candidates was trained on."""

    def training_step(self, model, inputs, *args, **kwargs):
        step, chosen = self.state.global_step, inputs["example_index"].tolist()
        places = self.plan.step_rows(step).reshape(4, 3).tolist()
        other = [next(row for row in place if row != own) for place, own in zip(places, chosen, strict=True)]
        return super().training_step(model, {**inputs, "example_index": torch.tensor(other)}, *args, **kwargs)


@pytest.mark.parametrize("kind", [Replaced, Renumbered])
def test_other_rows_than_were_chosen_end_the_run(kind, tmp_path):
    trainer = captions_trainer(RULE, tmp_path, kind=kind, max_steps=2)
    with pytest.raises(
        RuntimeError, match=r"Step 0 trained on rows \[\d+\] at place 0, .* another one is the best\. S"
    ):
        trainer.train()


def test_candidates_that_are_not_the_plans_end_the_run(tmp_path, monkeypatch):
    read = Selector.read

    def elsewhere(self, iterator, num_batches):
        data = captioned()[0]
        rows = range(12)
        for _ in range(num_batches):
            next(iterator)
        batch = captions_collator()([data[row] for row in rows])
        return read(self, iter([{**batch, "example_index": torch.tensor(rows)}]), num_batches)

    monkeypatch.setattr(Selector, "read", elsewhere)
    trainer = captions_trainer(RULE, tmp_path, max_steps=2)
    with pytest.raises(RuntimeError, match=r"Step 0 trained on rows \[0, 1, 2, 3, 4, 5, 6, 7\] … but the plan says"):
        trainer.train()


def test_the_file_says_what_was_chosen_and_its_value(tmp_path):
    trainer = captions_trainer(OnlineSelection(3, "reducible_loss", "reference"), tmp_path, max_steps=3)
    trainer.train()
    lines = recorded(tmp_path)
    assert [step for step, _, _ in lines] == [0, 1, 2]
    for step, rows, values in lines:
        places = trainer.plan.step_rows(step).reshape(4, 3)
        assert all(row in place for row, place in zip(rows, places, strict=True))
        assert len(values) == 4
        assert all(isinstance(value, float) for value in values)


def audit_of(folder, **more):
    plan = make_plan(OnlineSelection(2, "loss", **more), np.arange(12.0), global_batch_size=2)
    return plan, SelectionAudit(plan=plan, process=0, num_processes=1, micro_batch=4, file=folder / "draws.jsonl")


def test_a_row_without_a_value_is_written_as_null(tmp_path):
    plan, audit = audit_of(tmp_path)
    for step in range(2):
        rows = plan.step_rows(step)
        audit.note(step, rows, np.array([[1.0, 2.0], [np.nan, np.nan]]))
        audit.add(step, torch.tensor(rows[[1, 2]]))
    audit.flush()
    lines = [json.loads(line) for line in (tmp_path / "draws.jsonl").read_text().splitlines()]
    assert lines == [[step, plan.step_rows(step)[[1, 2]].tolist(), [2.0, None]] for step in range(2)]
    audit.resume(1)
    audit.note(1, rows, np.array([[1.0, 2.0], [np.nan, np.nan]]))
    audit.add(1, torch.tensor(rows[[1, 2]]))
    audit.flush()
    assert [json.loads(line) for line in (tmp_path / "draws.jsonl").read_text().splitlines()] == lines
    rows = plan.step_rows(2)
    audit.note(2, rows, np.full((2, 2), np.nan))
    audit.add(2, torch.tensor(rows[[0, 3]]))
    with pytest.raises(RuntimeError, match="at place 1, whose candidates are"):
        audit.flush()


def test_with_a_temperature_the_draw_is_made_again(tmp_path):
    plan, audit = audit_of(tmp_path, temperature=1.0)
    rows = plan.step_rows(0)
    audit.note(0, rows, np.zeros((2, 2)))
    audit.add(0, torch.tensor(rows[[0, 2]]))
    try:
        audit.flush()
        other = rows[[1, 3]]
    except RuntimeError:
        other = rows[[0, 2]]
    again = audit_of(tmp_path, temperature=1.0)[1]
    again.note(0, rows, np.zeros((2, 2)))
    again.add(0, torch.tensor(other))
    with pytest.raises(RuntimeError, match=r"another one is one by exp\(value / 1\)"):
        again.flush()
