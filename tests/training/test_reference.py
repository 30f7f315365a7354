"""A reference's losses as a column: what they have cost, and a warning of those that were memorised."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from datasets import Dataset
from selection_task import captioned, captions_trainer

from hf_curriculum import IID, OnlineSelection, make_plan
from hf_curriculum.fingerprint import sketch_texts
from hf_curriculum.provenance import ScoreProvenance, append_columns
from hf_curriculum.training.facts import gather_facts, scoring_cost
from hf_curriculum.training.setup import reference_compute

RULE = OnlineSelection(2, "reducible_loss", "reference_loss", then=IID(epochs=2))


def rows(first=0, count=300):
    return Dataset.from_dict({"caption": [f"caption number {row}" for row in range(first, first + count)]})


def scored_by(trained_on, data):
    made = ScoreProvenance("reference_loss", "ModelLoss", {}, "a/model", trained_on=trained_on)
    return append_columns(data, {"reference_loss": np.ones(len(data), np.float32)}, {"reference_loss": made})


def cost(data, rule=RULE):
    return reference_compute(make_plan(rule, data, global_batch_size=10), data)


def test_its_training_and_one_pass_over_the_data_are_counted_once():
    data = rows()
    seen = {"examples": 1000, "captions": sketch_texts(rows(first=1000))}
    assert cost(scored_by(seen, data)) == 3 * 1000 + 300
    assert cost(scored_by({}, data)) == 300  # a model that does not say what it was trained on
    assert cost(data.add_column("reference_loss", [1.0] * 300)) == 0  # losses of no recorded model
    assert cost(data, OnlineSelection(2, "loss", then=IID(epochs=2))) == 0


@pytest.mark.parametrize(("first", "warns"), [(0, True), (100, True), (250, False), (1000, False)])
def test_a_reference_that_was_trained_on_the_rows_it_scored_is_warned_of(first, warns, caplog):
    data = scored_by({"examples": 10, "captions": sketch_texts(rows(first))}, rows())
    with caplog.at_level(logging.WARNING, "hf_curriculum.training.setup"):
        cost(data)
    assert ("memorised losses select noise" in caplog.text) is warns
    assert ("`reference_loss` holds the losses of a/model" in caplog.text) is warns


def test_halves_that_score_each_other_are_not_memorised(caplog):
    cost(scored_by({"examples": 10, "cross_fitted": True}, rows()))
    assert not caplog.text


def test_what_the_reference_cost_is_in_every_account_of_the_run(tmp_path):
    data = captioned()[0]
    seen = {"examples": 1000, "captions": sketch_texts(rows(first=1000))}
    trainer = captions_trainer(RULE, tmp_path, max_steps=2, trainer={"train_dataset": scored_by(seen, data)})
    assert trainer.costs()["compute"] == 0
    trainer.train()
    whole = 3 * 1000 + len(data) + 3 * 8 + 16
    assert trainer.costs()["compute"] == trainer.state.log_history[-1]["compute"] == whole
    assert gather_facts(trainer)["cost"]["compute"] == whole
    assert scoring_cost(trainer) == {"examples_scored": 16, "compute": whole}
