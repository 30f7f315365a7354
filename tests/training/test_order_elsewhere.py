"""Programs that read an order from front to back train on the rows of each step of its plan."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import DataLoader, SequentialSampler
from transformers import Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from hf_curriculum import CurriculumSampler, Phases, Plan, as_planned, make_plan

SPEC = importlib.util.spec_from_file_location("other_trainers", Path(__file__).with_name("other_trainers.py"))
other_trainers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(other_trainers)

SETTINGS: dict[str, Any] = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "report_to": [], "use_cpu": True}
SETTINGS |= {"save_strategy": "no", "disable_tqdm": True}


class Noting:
    """A collator that notes the rows of each batch, and makes it by another one."""

    def __init__(self, collator: Any) -> None:
        self.collator, self.rows = collator, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.collator, name)

    def __call__(self, examples: list[dict[str, Any]]) -> Any:
        self.rows.append([example.pop("row") for example in examples])
        return self.collator(examples)


def planned(*columns: str) -> tuple[Dataset, Plan]:
    data = other_trainers.make_rows(*columns)
    data = data.add_column("row", list(range(len(data))))
    return data, make_plan(Phases(3, easy="low"), data, score_column="length", global_batch_size=8, seed=2)


def assert_as_planned(plan: Plan, batches: list[list[int]]) -> None:
    assert len(batches) == plan.num_steps > 6
    assert batches == [plan.step_rows(step).tolist() for step in range(plan.num_steps)]


def test_trl(tmp_path):
    data, plan = planned("text")
    args = SFTConfig(str(tmp_path), **SETTINGS, train_sampling_strategy="sequential", remove_unused_columns=False)
    trainer = SFTTrainer(args=args, train_dataset=as_planned(data, plan), **other_trainers.sft_parts())
    trainer.data_collator = seen = Noting(trainer.data_collator)
    trainer.train()
    assert_as_planned(plan, seen.rows)


def test_transformers(tmp_path):
    data, plan = planned("text")
    tokenizer = other_trainers.make_tokenizer()
    tokenised = data.map(lambda row: tokenizer(row["text"], max_length=9, padding="max_length"))
    tokenised = tokenised.add_column("labels", tokenised["input_ids"][:]).remove_columns(["text", "length"])

    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([example[name] for example in examples]) for name in ("input_ids", "labels")}

    args = TrainingArguments(
        str(tmp_path), **SETTINGS, train_sampling_strategy="sequential", remove_unused_columns=False
    )
    seen = Noting(collate)
    model = other_trainers.sft_parts()["model"]
    Trainer(model, args, seen, as_planned(tokenised, plan)).train()
    assert_as_planned(plan, seen.rows)


def in_turn(dataset: Any, batch_size: int, drop_last: bool, **others: Any) -> DefaultBatchSampler:
    """Sentence Transformers' batches of rows one after the other."""
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)


def test_sentence_transformers(tmp_path):
    data, plan = planned("anchor", "positive")
    parts = other_trainers.sentence_parts(tmp_path)
    args = SentenceTransformerTrainingArguments(str(tmp_path), **SETTINGS, batch_sampler=in_turn)
    view = as_planned(data.remove_columns("length"), plan)
    trainer = SentenceTransformerTrainer(args=args, train_dataset=view, **parts)
    trainer.data_collator = seen = Noting(trainer.data_collator)
    trainer.train()
    assert_as_planned(plan, seen.rows)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_reads_the_view_or_the_file(tmp_path: Path, workers):
    data, plan = planned("text")
    view = DataLoader(as_planned(data, plan), batch_size=8, num_workers=workers)
    assert_as_planned(plan, [batch["row"].tolist() for batch in view])
    file = plan.export(tmp_path / "order.npy", data)
    loader = DataLoader(data, batch_size=8, sampler=CurriculumSampler.from_export(file, data), num_workers=workers)
    assert_as_planned(plan, [batch["row"].tolist() for batch in loader])


def test_accelerate(tmp_path):
    data, plan = planned("text")
    loader = Accelerator(cpu=True).prepare(DataLoader(as_planned(data, plan), batch_size=8, shuffle=False))
    assert_as_planned(plan, [batch["row"].tolist() for batch in loader])


def test_lightning_fabric():
    fabric_module = pytest.importorskip("lightning_fabric", reason="Lightning is not installed")
    data, plan = planned("text")
    fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    sampler = CurriculumSampler(plan)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8, sampler=sampler), use_distributed_sampler=False)
    assert_as_planned(plan, [batch["row"].tolist() for batch in loader])
