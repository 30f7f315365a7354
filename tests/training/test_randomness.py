from __future__ import annotations

import pytest
from datasets import Dataset
from transformers.trainer_utils import seed_worker

from hf_curriculum import IID
from hf_curriculum.training.setup import may_be_random


def plain(rows):
    return rows


class Certain:
    """A transform that says it draws nothing."""

    is_random = False

    def __call__(self, rows):
        return rows


class Uncertain(Certain):
    """A transform that says it draws."""

    is_random = True


class Collator:
    """A collator that says it draws nothing."""

    is_random = False


@pytest.mark.parametrize(
    ("transform", "expected"), [(None, False), (plain, True), (Certain(), False), (Uncertain(), True)]
)
def test_a_transform_may_say_that_it_draws_nothing(transform, expected):
    data = Dataset.from_dict({"x": [1, 2]})
    if transform is not None:
        data.set_transform(transform)
    assert may_be_random(data, Collator()) is expected
    assert may_be_random(data, Uncertain()) is True
    assert may_be_random(data, plain) is True  # a collator that does not say


def test_other_data_sets_are_not_certain():
    assert may_be_random([{"x": 1}], Collator())


def test_workers_of_the_training_data_are_seeded_as_trainer_seeds_them(make_trainer, data):
    trainer = make_trainer(IID(), dataloader_num_workers=2, trainer={"eval_dataset": data})
    seeding = trainer.get_train_dataloader().worker_init_fn
    assert (seeding.func, seeding.keywords) == (seed_worker, {"num_workers": 2, "rank": 0})
    assert trainer.get_eval_dataloader().worker_init_fn is None
