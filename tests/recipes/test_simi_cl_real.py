"""Simi-CL's recipe on photographs of Flickr8k, used as a user would: files of captions, regions and scores."""

from __future__ import annotations

import csv
import json

import flickr8k
import numpy as np
import pytest
from simi_cl.arguments import PRESETS

RECIPE = PRESETS.parents[1] / "simi_cl_captioning.py"


@pytest.fixture
def photographs(test_data):
    """The folder of `clip_b32_embeddings`, `flickr8k` and `weights`."""
    (folder,) = {test_data(name).parent for name in ("clip_b32_embeddings", "flickr8k", "weights")}
    return folder


def runs_of(launch, folder, **changed):
    """The runs of the recipe on what was prepared in a folder."""
    given = flickr8k.command(folder) | changed | {"output_dir": folder / "study", "use_cpu": True}
    launch(RECIPE, *flickr8k.options(given))
    return json.loads((folder / "study" / "results.json").read_text())


@pytest.mark.slow
def test_an_embedding_as_one_region(photographs, tmp_path, launch):
    flickr8k.prepare_embeddings(photographs, tmp_path)
    with open(tmp_path / "similarity.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert 0.85 < len(rows) / (984 * 5) < 1
    assert 0.2 < np.mean([float(row["similarity"]) for row in rows]) < 0.3  # CLIP's cosines
    (run,) = runs_of(launch, tmp_path, grid="none", max_steps=250, warmup_steps=20, eval_steps=125)
    assert (run["examples"], len(run["captions"])) == (8000, flickr8k.TEST)
    assert (run["plan"]["score_column"], run["plan"]["easy"]) == ("similarity", "high")
    assert [merge["bucket"] for merge in run["merges"]] == [2, 3]
    (against_dealt,) = run["beside_dealt"]["differences"]
    assert against_dealt["lower"] > 0
    assert run["beside_dealt"]["confidence"] == 0.95


@pytest.mark.slow
def test_regions_found_in_pixels(photographs, tmp_path, launch):
    pytest.importorskip("onnxruntime")
    flickr8k.prepare_pixels(photographs, tmp_path, images=240)
    runs = runs_of(launch, tmp_path, max_steps=12, warmup_steps=2, eval_steps=6, test_images=20, box_values=True)
    assert [run["name"] for run in runs] == ["Transformer", "Bootstrap-CL", "Simi-CL"]
    assert [run["plan"]["score_column"] for run in runs] == [None, "model_loss", "similarity"]
    for run in runs:
        losses = [entry["eval_pairs_loss"] for entry in run["log"] if "eval_pairs_loss" in entry]
        assert losses[-1] < losses[0]
