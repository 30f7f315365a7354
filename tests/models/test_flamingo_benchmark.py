"""The benchmark of stored features runs, at a size that says nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DOOR = Path(__file__).parents[2] / "recipes" / "benchmarks" / "flamingo_features.py"


@pytest.mark.slow
def test_both_ways_are_measured(tmp_path):
    out = tmp_path / "facts.json"
    command = [sys.executable, str(DOOR), "--batch", "4", "--pairs", "1", "--json", str(out)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    facts = json.loads(out.read_text(encoding="utf-8"))
    assert facts["ratio"] > 0
    assert facts["features_model_ms"] > 0
    assert facts["padded_to"] >= facts["tokens_per_text"] > 3
    assert "padded to" in printed
