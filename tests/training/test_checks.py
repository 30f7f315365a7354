"""What would go wrong silently is said before training."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from torch import nn
from torch.utils.data import IterableDataset
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, default_data_collator
from transformers.data.data_collator import DefaultDataCollator

from hf_curriculum import IID, BabySteps, CurriculumTrainer, Filter, Phases, SelfPaced
from hf_curriculum.training.prediction import validate_decoder_inputs
from hf_curriculum.training.setup import (
    may_be_random,
    open_training_data,
    rank_training_data,
    validate_batch_size,
    validate_evaluation,
    validate_metric,
    validate_own_losses,
    validate_scores,
    validate_shared_images,
)


class Plain(nn.Module):
    def forward(self, pixel_values, **kwargs):
        return pixel_values


class Sharing(nn.Module):
    def forward(self, pixel_values, image_index=None):
        return pixel_values


def test_shared_images_need_a_model_that_is_told_whose_they_are():
    sharing, plain = SimpleNamespace(share_images=True), SimpleNamespace(share_images=False)
    with pytest.raises(ValueError, match="a Plain does not take `image_index`"):
        validate_shared_images(Plain(), sharing, 1)
    with pytest.raises(ValueError, match="spreads each batch over 2 devices"):
        validate_shared_images(Sharing(), sharing, 2)
    adapted = SimpleNamespace(get_base_model=Plain)
    with pytest.raises(ValueError, match="a Plain does not take `image_index`"):
        validate_shared_images(adapted, sharing, 1)
    validate_shared_images(Sharing(), sharing, 1)
    validate_shared_images(Plain(), plain, 2)
    validate_shared_images(Plain(), lambda rows: rows, 2)


def test_the_trainer_asks(make_trainer):
    collator = SimpleNamespace(share_images=True)
    with pytest.raises(ValueError, match="does not take `image_index`"):
        make_trainer(IID(epochs=1), trainer={"data_collator": collator})


def test_decisions_on_evaluations_need_something_to_evaluate_on():
    with pytest.raises(ValueError, match="BabySteps decides on what evaluate"):
        validate_evaluation(BabySteps(), None)
    validate_evaluation(IID(), None)


def passes(check, *args, **kwargs):
    """Whether a check says nothing."""
    try:
        check(*args, **kwargs)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("rule", "column", "scores", "same_rows", "match"),
    [
        (IID(), "s", None, True, None),
        (IID(), None, [1], True, None),
        (None, None, None, True, None),
        (None, None, None, False, None),
        (IID(), None, None, False, None),
        (IID(), "s", None, False, None),
        (IID(), "s", [1], True, r"scores= and score_column='s' were both given"),
        (IID(), None, [1], False, r"scores= were given for the rows of another train_dataset"),
        (None, "s", None, True, r"score_column='s' was given without curriculum="),
        (None, None, [1], True, r"scores= was given without curriculum="),
    ],
)
def test_scores_are_given_once_for_a_curriculum_and_these_rows(rule, column, scores, same_rows, match):
    if match is None:
        validate_scores(rule, column, scores, same_rows)
    else:
        with pytest.raises(ValueError, match=match):
            validate_scores(rule, column, scores, same_rows)


def test_what_a_trainer_can_choose_rows_of():
    class Stream(IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return iter(range(3))

    for data in (None, [1, 2], Dataset.from_dict({"a": [1]})):
        assert open_training_data(data) is data
    for data, match in (
        (Stream(), "is a .*Stream, which is read in its own order"),
        (iter([1]), "which is read in its own order"),
        (
            DatasetDict(b=Dataset.from_dict({"a": [1]})),
            r"was given a DatasetDict of the splits \['b'\] as `train_dataset`",
        ),
        ({"b": [1]}, r"was given a dict of the keys \['b'\] as `train_dataset`"),
    ):
        with pytest.raises(TypeError, match=match):
            open_training_data(data)


def test_the_easy_end_of_scores_that_come_as_an_array():
    data, scores = [0] * 4, np.float32([1, 3, 2, np.nan])
    for rule, order in (
        (Phases(2, unscored="last"), [0, 2, 1, 3]),
        (Phases(2, easy="high", unscored="last"), [1, 2, 0, 3]),
    ):
        ranking = rank_training_data(data, rule, None, scores)
        assert (ranking.order.tolist(), ranking.easy) == (order, rule.easy or "low")
    assert rank_training_data(data, Phases(2, unscored="drop"), None, scores).order.tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match=r"scores has shape \(4,\) but train_dataset has 3 rows"):
        rank_training_data([0] * 3, Phases(2), None, scores)
    with pytest.raises(TypeError, match=r"Scores of the shape \(2, 2\)"):
        rank_training_data([0] * 2, Phases(2), None, scores.reshape(2, 2))


def test_the_batch_size_is_that_of_the_arguments():
    assert [passes(validate_batch_size, given, 8) for given in (None, 8, 4, 16)] == [True, True, False, False]


class Evaluates(CurriculumTrainer):
    def evaluate(self, *args, **kwargs):
        return {}


def trainer_of(rule, kind=CurriculumTrainer, eval_dataset=(), compute_metrics=None, callbacks=()):
    """A trainer that was not made, with what the checks look at."""
    trainer = kind.__new__(kind)
    trainer.args = SimpleNamespace(curriculum=rule, predict_with_generate=False)
    trainer.eval_dataset, trainer.compute_metrics = eval_dataset, compute_metrics
    trainer.callback_handler = SimpleNamespace(callbacks=list(callbacks))
    return trainer


@pytest.mark.parametrize(
    ("metric", "given", "fits"),
    [
        ("loss", {}, True),
        ("eval_loss", {}, True),
        ("cider", {}, False),
        ("cider", {"compute_metrics": len}, True),
        ("cider", {"kind": Evaluates}, True),
        ("loss", {"eval_dataset": {"a": 1, "b": 2}}, False),
        ("b_loss", {"eval_dataset": {"a": 1, "b": 2}}, True),
        ("eval_b_cider", {"eval_dataset": {"a": 1, "b": 2}}, False),
        ("eval_b_cider", {"eval_dataset": {"a": 1, "b": 2}, "compute_metrics": len}, True),
        ("c_loss", {"eval_dataset": {"a": 1, "b": 2}}, False),
        ("c_loss", {"eval_dataset": {"a": 1, "b": 2}, "compute_metrics": len}, False),
    ],
)
def test_metrics_that_an_evaluation_can_return(metric, given, fits):
    decides, none = BabySteps(2, metric=metric), Phases(2)
    assert passes(validate_metric, trainer_of(decides, **given)) is fits
    assert passes(validate_metric, trainer_of(Filter(then=decides, keep=0.5), **given)) is fits
    assert passes(validate_metric, trainer_of(none, **given))


def test_the_loss_that_paces_is_the_one_that_is_trained():
    class Own(CurriculumTrainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    class SFTTrainer(CurriculumTrainer):  # TRL's, by its name
        compute_loss = Own.compute_loss

    class OwnLosses(Own):
        def example_losses(self, *args):
            return super().example_losses(*args)

    def fits(rule=None, kind=CurriculumTrainer, loss=None, smoother=None):
        trainer = trainer_of(rule or SelfPaced(epochs=2), kind)
        trainer.compute_loss_func, trainer.label_smoother = loss, smoother
        return passes(validate_own_losses, trainer)

    assert [fits(kind=kind) for kind in (CurriculumTrainer, SFTTrainer, Own)] == [True, True, False]
    assert [fits(loss=len), fits(smoother=len)] == [False, False]
    assert [fits(kind=OwnLosses), fits(kind=OwnLosses, loss=len), fits(IID(), loss=len)] == [True] * 3


@pytest.mark.parametrize(
    ("collator", "expected"),
    [
        (default_data_collator, False),
        (DefaultDataCollator(), False),
        (DataCollatorWithPadding.__new__(DataCollatorWithPadding), False),
        (DataCollatorForSeq2Seq.__new__(DataCollatorForSeq2Seq), False),
        (type("Mine", (DefaultDataCollator,), {})(), True),
        (partial(default_data_collator, return_tensors="np"), True),
        (SimpleNamespace(is_random=False), False),
        (SimpleNamespace(is_random=True), True),
    ],
)
def test_collators_that_draw_nothing(collator, expected):
    data = Dataset.from_dict({"x": [1]})
    assert may_be_random(data, collator) is expected
    assert may_be_random(data.with_format("numpy"), collator) is expected


class Encoder(nn.Module):
    """An image encoder and a text decoder."""

    def __init__(self, encodes=True):
        super().__init__()
        self.config = SimpleNamespace(is_encoder_decoder=encodes)

    def forward(self, pixel_values=None, labels=None):
        return None


class Prompted(Encoder):
    def forward(self, pixel_values=None, input_ids=None, labels=None):
        return None


def test_caption_tokens_are_no_inputs_of_an_image_encoder():
    batch = {"pixel_values": torch.zeros(1), "input_ids": torch.zeros(1), "labels": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"has \['input_ids', 'labels', 'pixel_values'\], and a Encoder makes its"):
        validate_decoder_inputs(Encoder(), batch)
    for model in (Encoder(encodes=False), Prompted(), Plain()):
        validate_decoder_inputs(model, batch)
    for name in ("pixel_values", "input_ids"):
        validate_decoder_inputs(Encoder(), {key: value for key, value in batch.items() if key != name})


def test_a_transform_s_own_columns_reach_the_collator(make_trainer, data):
    """`Trainer` removes columns of a `Dataset` from its table alone."""
    seen = []

    def collate(rows):
        seen.append(sorted(rows[0]))
        return {"x": torch.zeros(len(rows), 4), "labels": torch.zeros(len(rows), dtype=torch.long)}

    made = data.with_transform(lambda rows: {**rows, "made": rows["x"]})
    for columns in (None, ("x", "labels")):
        collator = partial(collate)
        if columns is not None:
            collator.columns = columns
        trainer = make_trainer(
            IID(epochs=1), score_column=None, trainer={"train_dataset": made, "data_collator": collator}
        )
        next(iter(trainer.get_train_dataloader()))
        assert seen.pop() == ["labels", "made", "x"]
