"""The examples: short programs without the recipes' machinery, run as a user would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[2] / "recipes" / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_read_in_a_minute(file):
    assert len(file.read_text().splitlines()) <= 60


@pytest.mark.slow
def test_the_own_loop_goes_on_bit_for_bit_and_two_processes_train_alike(launch, tmp_path):
    whole = launch(EXAMPLES / "own_loop.py", tmp_path / "one")
    losses = re.findall(r"step (\d+) of 22: loss (\S+)", whole.stdout)
    assert [step for step, _ in losses] == ["10", "20", "22"]
    weights = [tmp_path / "one" / f"state-{step}" / "model.safetensors" for step in (10, 20, 22)]
    before = [file.read_bytes() for file in weights]
    for file in weights[1:]:
        file.unlink()
    (tmp_path / "one" / "step").write_text("10")
    resumed = launch(EXAMPLES / "own_loop.py", tmp_path / "one")
    assert re.findall(r"step (\d+) of 22: loss (\S+)", resumed.stdout) == losses[1:]
    assert [file.read_bytes() for file in weights] == before
    launch(EXAMPLES / "own_loop.py", tmp_path / "two", processes=2, env={"ACCELERATE_USE_CPU": "1"})
    ours, theirs = load_file(weights[-1]), load_file(tmp_path / "two" / "state-22" / "model.safetensors")
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) < 1e-4
