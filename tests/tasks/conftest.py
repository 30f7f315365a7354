"""A small task for the trainers of tasks."""

from functools import partial

import pytest
from small_task import data
from small_task import make_trainer as make_any_trainer

from hf_curriculum.tasks.captioning import CaptioningTrainer

__all__ = ["data", "make_any_trainer", "make_trainer"]


@pytest.fixture
def make_trainer(make_any_trainer):
    """`make_trainer(curriculum, **arguments)` makes a `CaptioningTrainer`."""
    return partial(make_any_trainer, kind=CaptioningTrainer)
