"""The benchmark of generation runs, at sizes that say nothing about speed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

DOOR = Path(__file__).parents[2] / "recipes" / "benchmarks" / "generation.py"


def test_sides_that_draw_other_images_are_not_compared():
    spec = importlib.util.spec_from_file_location("generation", DOOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    grey, white = [np.zeros((2, 2), np.uint8)], [np.full((2, 2), 2, np.uint8)]
    assert set(module.measure({"ours": lambda: grey, "theirs": lambda: grey}, 1, "cpu")) == {"ours", "theirs"}
    with pytest.raises(ValueError, match="'theirs' draws other images, by 2 grey levels"):
        module.measure({"ours": lambda: grey, "theirs": lambda: white}, 1, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["scenes_diffusion", "stable_diffusion"])
def test_the_benchmark_runs(launch, tmp_path, pipeline):
    launch(DOOR, "--quick", "--pipeline", pipeline, "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["asked"] for row in rows] == [0.95, 1.5]
    assert all(row["ratio"] > 0 for row in rows)
