"""The benchmark of scoring runs, at sizes that say nothing about speed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

DOOR = Path(__file__).parents[2] / "recipes" / "benchmarks" / "scoring.py"


def test_sides_that_disagree_are_not_compared():
    spec = importlib.util.spec_from_file_location("scoring_clip", DOOR.with_name("scoring_clip.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.in_turn({"ours": lambda: np.ones(2), "theirs": lambda: np.ones(2)}, 2)) == {"ours", "theirs"}
    with pytest.raises(ValueError, match="'theirs' disagrees with 'ours'"):
        module.in_turn({"ours": lambda: np.ones(2), "theirs": lambda: np.zeros(2)}, 1)


@pytest.mark.slow
def test_the_section_of_clip(launch, tmp_path):
    options = ("--quick", "--sections", "clip", "--json", tmp_path / "rows.json")
    done = launch(DOOR, *options, env={"HF_CURRICULUM_TEST_DATA": None})
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["asked"] for row in rows] == ["≥ 0.95", "≥ 4", "≥ 5", ""]
    assert all(row["ratio"] > 0 and row["section"] == "clip" for row in rows)
    assert done.stdout.count("\n|") >= len(rows) + 1


@pytest.mark.slow
def test_the_section_of_images(launch, tmp_path):
    options = ("--quick", "--sections", "images", "--json", tmp_path / "rows.json")
    launch(DOOR, *options, env={"HF_CURRICULUM_TEST_DATA": None})
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["asked"] for row in rows] == ["≥ 0.7", "≥ 1.5"]
    assert all(row["ratio"] > 0 and row["section"] == "images" for row in rows)


@pytest.mark.slow
def test_the_section_of_chats(launch, tmp_path):
    launch(DOOR, "--quick", "--sections", "chats", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["asked"] for row in rows] == ["≥ 0.9"] * 2
    assert all(row["ratio"] > 0 and row["section"] == "chats" for row in rows)


@pytest.mark.slow
def test_the_section_of_vectors(launch, tmp_path):
    launch(DOOR, "--quick", "--sections", "vectors", "--json", tmp_path / "rows.json")
    (row,) = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert row["what"].startswith("NegCLIPLoss, 2,000 pairs")
    assert row["ours"].endswith(" GB")
    assert row["ratio"] > 0


@pytest.mark.slow
def test_a_section_that_is_not_there_is_named(launch):
    done = launch(DOOR, "--sections", "weather", check=False)
    assert done.returncode == 2
    assert "there is no section 'weather'" in done.stderr
