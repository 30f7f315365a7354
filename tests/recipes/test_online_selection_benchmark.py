"""The benchmark of choosing among candidates measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "recipes" / "benchmarks" / "online_selection.py"


@pytest.mark.slow
def test_it_says_what_a_step_costs(launch, tmp_path):
    done = launch(BENCHMARK, "--repeats", 1, "--steps", 5, "--json", tmp_path / "facts.json")
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["step_4_to_plain"] > facts["step_2_to_plain"] > 1
    assert all(value > 0 for value in facts.values())
    assert "4 candidates / (scoring them + a plain step)" in done.stdout
