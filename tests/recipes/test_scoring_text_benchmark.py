"""The benchmark's sections on words, concreteness and vectors run, at sizes that say nothing about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DOOR = Path(__file__).parents[2] / "recipes" / "benchmarks" / "scoring.py"


@pytest.mark.slow
def test_the_sections_of_words_of_concreteness_and_of_vectors(launch, tmp_path):
    pytest.importorskip("faiss")
    options = ("--quick", "--sections", "text,concreteness,vectors", "--json", tmp_path / "rows.json")
    launch(DOOR, *options, env={"HF_CURRICULUM_TEST_DATA": None})
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["section"] for row in rows] == ["text"] * 5 + ["concreteness"] * 2 + ["vectors"]
    assert all(row["ratio"] > 0 and row["asked"] for row in rows)
    assert rows[4]["ours"] == "0 scores, 0 lists of tokens differ"
    assert "recall 1.000" in rows[6]["ours"]
