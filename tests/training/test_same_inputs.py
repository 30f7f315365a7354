"""What rows are collated into is compared when a run is resumed: pixels, tokens and transforms, not names alone."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from selection_task import SIZE, captioned, captions_collator, captions_trainer, weights_of
from tiny_vlm import TEMPLATE, make_processor, make_vlm_trainer

from hf_curriculum import IID, BucketedStream, CaptionCollator, Phases, SelfPaced, make_image_processor, save_bucketed
from hf_curriculum.data.collators import Augment
from hf_curriculum.training.checkpoints import read_curriculum
from hf_curriculum.training.prediction import _contents, input_digests

SAVING = {"save_strategy": "steps", "save_steps": 2}
RULE = Phases(2, easy="low")


class Prefixed:
    """A collator that writes a number before each row's."""

    def __init__(self, prefix):
        self.prefix = prefix

    def __call__(self, rows):
        x = torch.tensor([[self.prefix, *row["x"][1:]] for row in rows])
        return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}


def flipping(sign):
    def transform(rows):
        return {"x": [[sign * value for value in row] for row in rows["x"]], "labels": rows["labels"]}

    return transform


def other_pixels():
    processor = make_image_processor(SIZE)
    processor.image_mean = [0.1, 0.1, 0.1]
    return CaptionCollator(captioned()[1], processor, max_length=14)


def refused(trainer, folder, name):
    with pytest.raises(ValueError, match=rf"other data: the same rows are collated into another .*`{name}`.* version"):
        trainer.train(resume_from_checkpoint=str(folder))
    assert trainer.state.global_step in (0, 2, 3)  # no step was trained


def test_pixels_of_another_processor_are_refused_unless_asked_for(tmp_path, caplog):
    captions_trainer(RULE, tmp_path, **SAVING).train()
    other = {"trainer": {"data_collator": other_pixels()}}
    refused(captions_trainer(RULE, tmp_path, **other), tmp_path / "checkpoint-2", "pixel_values")
    asked = {**other, "resume_on_other_data": True}
    trainer = captions_trainer(RULE, tmp_path, **asked)
    with caplog.at_level(logging.WARNING):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.state.global_step == trainer.plan.num_steps
    assert "another `pixel_values` (its processor" in caplog.text


def test_collators_and_transforms_of_one_name_are_told_apart(make_trainer, data, tmp_path):
    own = {"remove_unused_columns": False, **SAVING}
    make_trainer(RULE, trainer={"data_collator": Prefixed(1.0)}, **own).train()
    again = make_trainer(RULE, trainer={"data_collator": Prefixed(2.0)}, **own)
    refused(again, tmp_path / "out" / "checkpoint-2", "x")
    make_trainer(RULE, trainer={"train_dataset": data.with_transform(flipping(1))}, output_dir=str(tmp_path / "b"),
                 **own).train()  # fmt: skip
    flipped = make_trainer(RULE, trainer={"train_dataset": data.with_transform(flipping(-1))}, **own)
    refused(flipped, tmp_path / "b" / "checkpoint-2", "x")


@pytest.fixture(scope="module")
def dialogue_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vlm")
    make_vlm_trainer(folder / "whole", RULE).train()
    return folder / "whole" / "checkpoint-3"


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"processor": lambda: make_processor(TEMPLATE.replace(" [EOS]", " w1 [EOS]"))}, "input_ids"),
        ({"processor": lambda: make_processor(max_pixels=84 * 84)}, "pixel_values"),
        ({"max_length": 40}, "input_ids"),
    ],
    ids=["chat template", "max_pixels", "max_length"],
)
def test_another_template_size_or_length_of_a_dialogue_is_refused(dialogue_run, tmp_path, changed, name):
    given = {key: value() if callable(value) else value for key, value in changed.items()}
    refused(make_vlm_trainer(tmp_path, RULE, **given), dialogue_run, name)


def test_a_dialogue_of_the_same_processor_is_resumed(dialogue_run, tmp_path):
    trainer = make_vlm_trainer(tmp_path, RULE, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(dialogue_run))
    assert trainer.state.global_step == trainer.plan.num_steps
    assert {"pixel_values", "input_ids"} <= set(read_curriculum(dialogue_run)["data"]["inputs"])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_seeded_augmentation_is_compared_and_leaves_the_run_as_it_is(tmp_path, workers, monkeypatch):
    parts = {"data_collator": captions_collator(augment=Augment())}
    settings = {"trainer": parts, "dataloader_num_workers": workers, **SAVING}
    whole = captions_trainer(RULE, tmp_path / "whole", **settings)
    whole.train()
    assert "pixel_values" in read_curriculum(tmp_path / "whole" / "checkpoint-2")["data"]["inputs"]
    resumed = captions_trainer(RULE, tmp_path / "again", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    monkeypatch.setattr("hf_curriculum.training.trainer.input_digests", lambda trainer: {})
    without = captions_trainer(RULE, tmp_path / "without", **settings)
    without.train()
    assert torch.equal(weights_of(whole), weights_of(resumed))
    assert torch.equal(weights_of(whole), weights_of(without))


def test_what_cannot_be_seeded_is_left_out(make_trainer):
    counts = itertools.count()

    def numbered(rows):
        return {**Prefixed(1.0)(rows), "turn": torch.full((len(rows),), next(counts))}

    trainer = make_trainer(RULE, trainer={"data_collator": numbered}, remove_unused_columns=False)
    assert set(input_digests(trainer)) == {"x", "labels"}


def test_rows_are_of_all_difficulties_and_do_not_depend_on_the_batch(make_trainer):
    found = []
    trainer = make_trainer(RULE, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    trainer.data_collator = lambda rows: found.append([row["x"] for row in rows]) or Prefixed(1.0)(rows)
    trainer.args.remove_unused_columns = False
    digests = input_digests(trainer)
    assert len(found[0]) == 16
    hardest = [trainer.train_dataset[row]["x"] for row in range(24) if trainer.train_dataset[row]["difficulty"] == 5]
    assert any(x in hardest for x in found[0])
    other = make_trainer(RULE, trainer={"data_collator": Prefixed(1.0)}, remove_unused_columns=False)
    assert input_digests(other) == digests
    paced = make_trainer(SelfPaced(epochs=2, warmup_epochs=0), remove_unused_columns=False)
    assert paced.plan.known_steps == 0
    assert set(input_digests(paced)) >= {"x", "labels"}


def test_a_stream_is_compared_by_its_first_rows(tmp_path):
    save_bucketed(captioned()[0], tmp_path / "buckets", num_buckets=2, score_column="difficulty", easy="low")
    settings = {"score_column": None, **SAVING}
    stream = {"train_dataset": BucketedStream(tmp_path / "buckets")}
    whole = captions_trainer(IID(epochs=1), tmp_path / "run", trainer=stream, **settings)
    whole.train()
    again = captions_trainer(IID(epochs=1), tmp_path / "again", trainer=stream, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert torch.equal(weights_of(again), weights_of(whole))
    parts = {**stream, "data_collator": other_pixels()}
    trainer = captions_trainer(IID(epochs=1), tmp_path / "other", trainer=parts, **settings)
    refused(trainer, tmp_path / "run" / "checkpoint-2", "pixel_values")


def test_values_of_all_kinds_are_compared_by_content():
    picture, other = (Picture.fromarray(np.full((2, 3), value, np.uint8)) for value in (1, 2))
    values = [
        torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64), torch.ones(4), torch.tensor(True),
        torch.ones(4, dtype=torch.bfloat16), np.zeros(4), picture, other, "0", 0, None, [0], [[0]], (0,), {"a": 0},
        {"a": 1}, {"b": 0}, object(),
    ]  # fmt: skip
    contents = [b"|".join(_contents(value)) for value in values]
    assert len(set(contents)) == len(values)
    assert contents[-1] == b"|".join(_contents(object()))  # no address
