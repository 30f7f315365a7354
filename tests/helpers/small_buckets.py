"""Buckets of a few captions, written as a user would, or stopped on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import bucket_shards, save_bucketed
from hf_curriculum.streaming import bucketing


def table(size: int) -> Dataset:
    scores = (np.arange(size) * 37 % 20).astype(np.float32)
    return Dataset.from_dict({"id": range(size), "caption": [f"caption {n}" for n in range(size)], "s": scores})


def written(path: Path, size: int = 60, num_buckets: int = 3, **options) -> Path:
    options = {"score_column": "s", "easy": "low", "shard_size": 7, **options}
    save_bucketed(table(size), path, num_buckets, **options)
    return path


def stopped(args, monkeypatch, verb="shard", after=0, **options):
    """Begins buckets, and is stopped when so many pieces or shards are made."""
    write = getattr(bucketing.Bucketing, f"_write_{verb}")
    made = []

    def stopping(self, number):
        if len(made) == after:
            raise KeyboardInterrupt
        write(self, number)
        made.append(number)

    with monkeypatch.context() as patch:
        patch.setattr(bucketing.Bucketing, f"_write_{verb}", stopping)
        with pytest.raises(KeyboardInterrupt):
            bucket_shards(*args, **options)
