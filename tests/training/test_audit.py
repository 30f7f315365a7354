"""What proves that training saw the plan's rows: placeholders, processes' parts, and checkpoints written over."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler
from transformers import Trainer

from hf_curriculum import IID, CurriculumSampler, CurriculumTrainer, CurriculumTrainingArguments, Phases, make_plan
from hf_curriculum.rng import PAD_INDEX
from hf_curriculum.training.checkpoints import is_complete
from hf_curriculum.training.sampler import DrawAudit, validate_steps_per_process

PLAN = make_plan(Phases(3, 1, easy="low"), np.arange(30.0), global_batch_size=8)


def test_a_completed_step_is_skipped_without_reading_a_row():
    pairs = list(CurriculumSampler(PLAN, 2, placeholders=True, with_samples=True))
    assert pairs[:16] == [(PAD_INDEX, 0)] * 16
    assert pairs[16:] == list(zip(PLAN.rows(16, PLAN.num_samples).tolist(), range(16, PLAN.num_samples), strict=True))


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
@pytest.mark.parametrize("left", range(1, 8))
def test_every_forward_pass_of_a_pass_own_last_batch_has_an_example(micro, left):
    plan = make_plan(IID(epochs=1, partial_batches="keep"), np.zeros(8 + left), global_batch_size=8)
    parts = plan.rows(8, 16).reshape(-1, micro)
    empty = (parts == PAD_INDEX).all(axis=1).any()
    assert empty == (left < 8 // micro)
    if empty:
        with pytest.raises(ValueError, match=f"leaves {left} examples for the last batch"):
            validate_steps_per_process(plan, micro)
    else:
        validate_steps_per_process(plan, micro)


def dealt(processes: int, micro: int) -> list[list[list[int]]]:
    """The batches of each process, as accelerate deals them."""
    batches = BatchSampler(CurriculumSampler(PLAN), micro, drop_last=False)
    return [list(BatchSamplerShard(batches, processes, rank)) for rank in range(processes)]


@pytest.mark.parametrize(("processes", "micro"), [(2, 4), (2, 2), (4, 2), (4, 1)])
def test_the_audit_knows_which_rows_are_whose(processes, micro, tmp_path):
    per_step = 8 // micro // processes
    shares = dealt(processes, micro)

    def audit(process, share):
        made = DrawAudit(plan=PLAN, process=process, num_processes=processes, micro_batch=micro)
        for number, rows in enumerate(share):
            made.add(number // per_step, torch.tensor(rows))
        made.flush()

    for process in range(processes):
        audit(process, shares[process])
        for other in set(range(processes)) - {process}:
            with pytest.raises(RuntimeError, match="Step 0 trained on rows"):
                audit(process, shares[other])


class Numbers:
    """More rows than 32 bits can number."""

    def __len__(self) -> int:
        return 3 << 32

    def __getitem__(self, row: int) -> dict[str, int]:
        assert 0 <= row < len(self)
        return {"number": row}


class Noting(torch.nn.Module):
    """A model of one weight that notes the rows it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), []

    def forward(self, number: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += number.tolist()
        return {"loss": (self.weight * (number % 7).float()).mean()}


def test_a_run_over_twelve_billion_rows_is_audited_killed_and_resumed(tmp_path):
    def run(resume: bool) -> tuple[CurriculumTrainer, list[int]]:
        trainer = CurriculumTrainer(
            Noting(),
            CurriculumTrainingArguments(
                str(tmp_path),
                curriculum=IID(),
                max_steps=6,
                per_device_train_batch_size=16,
                save_steps=3,
                save_strategy="steps",
                audit_draws=True,
                remove_unused_columns=False,
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=Numbers(),
            data_collator=lambda rows: {"number": torch.tensor([row["number"] for row in rows])},
        )
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3") if resume else None)
        return trainer, trainer.model.seen

    trainer, seen = run(resume=False)
    seen = seen[-96:]  # the first batch is tried before
    assert seen == trainer.plan.rows(0, 96).tolist()
    assert max(seen) > 1 << 33
    assert run(resume=True)[1][-48:] == seen[-48:]


def test_a_checkpoint_is_incomplete_as_soon_as_it_is_written_again(make_trainer, monkeypatch, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    rule = Phases(2, 1, easy="low")
    make_trainer(rule, **settings).train()
    folder = tmp_path / "out" / "checkpoint-4"
    assert is_complete(folder)

    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "save_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(rule, seed=1, **settings).train()
    assert not is_complete(folder)
    assert is_complete(tmp_path / "out" / "checkpoint-8")


def test_processes_that_share_batches_are_not_audited(make_trainer, monkeypatch):
    """As with tensor parallelism: two processes, and both train on the same four rows of a step."""
    trainer = make_trainer(IID(epochs=1))
    monkeypatch.setattr(trainer, "get_total_train_batch_size", lambda args: 4)
    monkeypatch.setattr(CurriculumTrainingArguments, "world_size", property(lambda self: 2))
    assert trainer.train().global_step == 6
    assert trainer._audit is None
