"""The benchmark of stored features runs, at a size that says nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DOOR = Path(__file__).parents[3] / "recipes" / "benchmarks" / "flamingo_features.py"


@pytest.mark.slow
def test_both_ways_are_measured(launch, tmp_path):
    out, page = tmp_path / "facts.json", tmp_path / "facts.md"
    options = ("--batch", 4, "--pairs", 1, "--json", out, "--markdown", page)
    printed = launch(DOOR, *options, env={"HF_CURRICULUM_TEST_DATA": None}).stdout
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row["captions"] for row in rows] == ["drawn", "full"]
    for row in rows:
        assert row["ratio"] > 0
        assert row["features_ms"] > 0
        assert row["padded_to"] >= row["tokens_per_text"] > 3
        assert row["exact_difference"] <= 1e-4
    assert rows[1]["tokens_per_text"] == rows[1]["padded_to"] == 50
    assert page.read_text(encoding="utf-8") == printed
