"""A small task for the trainer's tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn

from hf_curriculum import CurriculumTrainer


class Net(nn.Module):
    """A classifier with dropout that accepts nothing but its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make_data() -> Dataset:
    """24 rows with a score from 0 to 5."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 4)).astype(np.float32)
    return Dataset.from_dict(
        {
            "x": x.tolist(),
            "labels": (x.sum(1) > 0).astype(int).tolist(),
            "difficulty": (np.arange(24) % 6).astype(float),
        }
    )


@pytest.fixture
def data() -> Dataset:
    return make_data()


@pytest.fixture
def make_trainer(tmp_path, data):
    """`make_trainer(curriculum, **arguments)`; `trainer={...}` goes to the trainer itself, `kind` is its class."""

    def make(curriculum=None, *, trainer=None, kind=CurriculumTrainer, **arguments):
        settings = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 4,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "score_column": "difficulty",
            **arguments,
        }
        torch.manual_seed(0)
        args = kind.args_class(curriculum=curriculum, **settings)
        return kind(**{"model": Net(), "args": args, "train_dataset": data, **(trainer or {})})

    return make
