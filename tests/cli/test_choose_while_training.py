"""A rule that chooses while training, from the shell: its plan, its run, and the page about it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset
from typer.testing import CliRunner

from hf_curriculum import (
    CurriculumTrainer,
    CurriculumTrainingArguments,
    Filter,
    OnlineSelection,
    make_scenes,
    save_scored,
)
from hf_curriculum.cli import app
from hf_curriculum.provenance import ScoreProvenance, attach_provenance
from hf_curriculum.reporting.figures.canvas import to_png
from hf_curriculum.reporting.figures.growth import chosen_counts

RULE = (
    "{type: filter, keep: 0.7, then: "
    "{type: online_selection, candidates: 2, value: reducible_loss, reference: reference_loss}}"
)


def typed(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def scored(data):
    """Rows with a similarity, and a column with the loss of a reference model."""
    rng = np.random.default_rng(0)
    columns = {name: rng.random(len(data)).astype(np.float32) for name in ("clip_similarity", "reference_loss")}
    for name, values in columns.items():
        data = data.add_column(name, values)
    ends = {"clip_similarity": "high", "reference_loss": "low"}
    return attach_provenance(data, {name: ScoreProvenance(name, "by hand", easy=end) for name, end in ends.items()})


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scored"
    save_scored(scored(make_scenes(40, image_size=32, validation=0.0, test=0.0)["train"]), folder)
    return folder


def test_the_plan_of_a_long_run(tmp_path):
    from small_task import Net

    train = scored(Dataset.from_dict({"x": [[1.0] * 4] * 1000, "labels": [0, 1] * 500}))
    rule = Filter(0.7, OnlineSelection(candidates=2, value="reducible_loss", reference="reference_loss"))
    args = CurriculumTrainingArguments(
        str(tmp_path), curriculum=rule, score_column="clip_similarity", per_device_train_batch_size=32,
        max_steps=10_000, report_to=[], use_cpu=True,
    )  # fmt: skip
    text = CurriculumTrainer(model=Net(), args=args, train_dataset=train).plan.describe()
    assert (
        "320,000 examples trained on, the best of 640,000 candidates; scoring them is 0.67 × the training compute"
    ) in text.splitlines()


def test_a_plan_tells_candidates(scenes):
    words = ("plan", scenes, RULE, "--score-column", "clip_similarity", "--batch-size", "4", "--epochs", "2")
    assert "examples trained on, the best of 56 candidates" in typed(*words)
    facts = json.loads(typed(*words, "--json"))
    assert (facts["candidates"], facts["num_examples"], facts["num_draws"]) == (2, 28, 56)


def test_a_run_and_its_page(scenes, tmp_path, monkeypatch):
    png = to_png(chosen_counts([1.0]))
    monkeypatch.setattr("hf_curriculum.reporting.report.to_png", lambda figure: png)  # drawing takes seconds
    words = ("--curriculum", RULE, "--score-column", "clip_similarity", "--batch-size", "4", "--image-size", "32")
    text = typed("train", scenes, tmp_path / "run", *words, "--max_steps", "5", "--validation", "0.2")
    assert "20 examples trained on, the best of 40 candidates; scoring them is 0.67 × the training compute" in text
    assert "after 20 examples (40 scored besides: compute 100)" in text
    chosen = json.loads((tmp_path / "run" / "chosen.json").read_text())
    chosen = chosen["chosen"]
    assert (chosen["trained"], chosen["candidates"], chosen["steps"]) == (20, 40, 5)
    assert set(chosen["columns"]) == {"clip_similarity", "reference_loss"}
    typed("report", tmp_path / "run", "--dataset", scenes)
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Trained on 20 examples, the best of 40 candidates; " in page
    assert "clip_similarity of all candidates" in page


def test_baby_steps_decides_on_captions_that_are_generated(scenes, tmp_path):
    rule = "{type: baby_steps, num_buckets: 2, min_epochs: 0.5, metric: images_cider}"
    words = ("--curriculum", rule, "--batch-size", "16", "--image-size", "32", "--epochs", "1", "--validation", "0.2")
    refused = CliRunner().invoke(app, ["train", str(scenes), str(tmp_path / "run"), *words])
    assert refused.exit_code == 1
    assert "Give predict_with_generate=True, in a shell --predict_with_generate, which names it images_cider" in (
        " ".join(refused.output.split())
    )
    facts = json.loads(typed("train", scenes, tmp_path / "run", *words, "--predict_with_generate", "--json"))
    assert facts["loss"] < facts["loss_before"]
    logged = json.loads((tmp_path / "run" / f"checkpoint-{facts['steps']}" / "trainer_state.json").read_text())
    assert any("eval_images_cider" in entry for entry in logged["log_history"])
    assert (tmp_path / "run" / "held_out" / "captions.json").is_file()
