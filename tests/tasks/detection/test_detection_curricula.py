"""Curricula of detectors: kept by one score and ordered by another, resumed; paced by the mAP of test detections."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detection_task import NAMES, shapes_collator, shapes_data, shapes_model

from hf_curriculum import BabySteps, CurriculumTrainer, CurriculumTrainingArguments, Filter, Phases
from hf_curriculum.provenance import ScoreProvenance, append_columns
from hf_curriculum.tasks.detection import detection_compute_metrics, detection_metrics


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    values = {name: rng.random(24).astype(np.float32) for name in ("clip_similarity", "caption_length")}
    made = {name: ScoreProvenance(name, "by hand", easy="high") for name in values}
    return append_columns(shapes_data(24), values, made, log=False)


@pytest.fixture
def make_trainer(tmp_path, data):
    def make(curriculum, *, train=None, more=None, **arguments):
        settings = {
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "score_column": "caption_length",
            "dataloader_pin_memory": False,
            **arguments,
        }
        args = CurriculumTrainingArguments(str(tmp_path / "out"), curriculum=curriculum, **settings)
        parts = {"train_dataset": data if train is None else train, "data_collator": shapes_collator(), **(more or {})}
        return CurriculumTrainer(shapes_model(), args, **parts)

    return make


def test_a_run_by_two_scores_goes_on_as_if_it_had_not_stopped(make_trainer, data, tmp_path):
    rule = Filter(0.75, Phases(2), by="clip_similarity")
    whole = make_trainer(rule, save_strategy="steps", save_steps=3)
    whole.train()
    kept = np.argsort(-np.array(data["clip_similarity"][:]), kind="stable")[:18]
    drawn = whole.plan.rows(0, whole.plan.num_samples)
    assert set(drawn.tolist()) == set(kept.tolist())
    assert whole.state.global_step == 7  # 9 + 18 examples
    weights = {name: value.clone() for name, value in whole.model.state_dict().items()}
    again = make_trainer(rule)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert all(torch.equal(value, weights[name]) for name, value in again.model.state_dict().items())
    values = np.array(data["clip_similarity"][:], np.float32)[::-1].copy()
    made = {"clip_similarity": ScoreProvenance("clip_similarity", "by hand", easy="high")}
    other = append_columns(data, {"clip_similarity": values}, made, overwrite=True, log=False)
    changed = make_trainer(rule, train=other)
    with pytest.raises(ValueError, match="columns has changed since it was saved"):
        changed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))


def test_baby_steps_wait_for_the_map_of_detections(make_trainer, data):
    compute = detection_compute_metrics(NAMES, data["objects"])
    rule = BabySteps(2, patience=1, metric="map_50", epochs=4)
    more = {"eval_dataset": data, "compute_metrics": compute}
    trainer = make_trainer(rule, more=more, save_strategy="no", eval_strategy="no")
    trainer.train()
    decisions = trainer.plan.log
    assert decisions
    assert {entry["metric"] for entry in decisions} == {"map_50"}
    logged = [entry["eval_map_50"] for entry in trainer.state.log_history if "eval_map_50" in entry]
    assert [entry["value"] for entry in decisions] == pytest.approx(logged[: len(decisions)])
    detections = trainer.predict(data).predictions
    assert detections.shape == (24, 100, 6)
    direct = detection_metrics(detections, data["objects"], NAMES)
    assert trainer.evaluate()["eval_map_50"] == pytest.approx(direct.values["map_50"])
