"""TOnICS on photographs of Flickr8k: an embedding as the one region of each, three names as its objects."""

from __future__ import annotations

import json

import flickr8k
import numpy as np
import pytest
from tonics.arguments import PRESETS

from hf_curriculum.tasks.alignment.retrieval.suite import read_ranks

RECIPE = PRESETS.parents[1] / "tonics_alignment.py"


@pytest.mark.slow
def test_an_embedding_as_one_region(test_data, tmp_path, launch):
    (data,) = {test_data(name).parent for name in ("clip_b32_embeddings", "flickr8k")}
    flickr8k.prepare_embeddings(data, tmp_path)
    flickr8k.write_nearest(data, tmp_path)
    given = {
        "preset": "photographs",
        "data": tmp_path / "captions.json",
        "features": tmp_path / "store",
        "objects": tmp_path / "instances.json",
        "output_dir": tmp_path / "study",
        "use_cpu": True,
        "max_steps": 15,
        "eval_steps": 15,
        "warmup_steps": 4,
    }
    launch(RECIPE, *flickr8k.options(given))
    runs = json.loads((tmp_path / "study" / "results.json").read_text())
    assert [run["name"] for run in runs] == ["Random", "TOnICS"]
    stages = {count["stage"]: count for count in runs[0]["counts"]}
    assert (stages["pairs"]["pairs"], stages["pairs"]["images"]) == (750 * 5, 750)
    assert stages["triplets"]["classes"] >= 5
    for run in runs:
        assert run["examples"] == 15 * 64
        ranks = read_ranks(tmp_path / "study" / run["folder"] / "retrieval" / "test")
        assert len(ranks.text) == flickr8k.TEST
        # Captions' own photographs stand before the middle more often than chance has it, by six deviations.
        share = np.mean(ranks.image <= flickr8k.TEST / 2)
        assert share > 0.5 + 6 * 0.5 / np.sqrt(len(ranks.image))
