"""The benchmark's sections on words and on concreteness run, at sizes that say nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DOOR = Path(__file__).parents[2] / "recipes" / "benchmarks" / "scoring.py"


@pytest.mark.slow
def test_the_sections_of_words_and_of_concreteness(tmp_path):
    pytest.importorskip("faiss")
    command = [sys.executable, DOOR, "--quick", "--sections", "text,concreteness", "--json", tmp_path / "rows.json"]
    environment = {**os.environ, "HF_CURRICULUM_TEST_DATA": ""}
    subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, env=environment)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [row["section"] for row in rows] == ["text"] * 5 + ["concreteness"] * 2
    assert all(row["ratio"] > 0 and row["asked"] for row in rows)
    assert rows[4]["ours"] == "0 scores, 0 lists of tokens differ"
    assert "recall 1.000" in rows[6]["ours"]
