"""The command line, as typed."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from hf_curriculum import Phases
from hf_curriculum.cli import app


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(8):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(folder / "images" / f"{number}.png")
        captions = ["a dog" + " and a cat" * (number % 4), "a dog"]
        lines.append(json.dumps({"file_name": f"{number}.png", "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def typed(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_score_then_plan(photos, tmp_path):
    output = typed("score", photos, tmp_path / "scored", "--per-image", "max")
    assert "noun_count" in output
    assert "saved to" in output
    text = typed("plan", tmp_path / "scored", '{"type": "phases", "num_phases": 2}', "--batch-size", "4")
    assert "phase 1  easiest 50 %" in text
    facts = json.loads(
        typed("plan", tmp_path / "scored", json.dumps(Phases(2).to_dict()), "--batch-size", "4", "--json")
    )
    assert [stage["pool"] for stage in facts["stages"]] == [8, 16]


def test_a_plan_is_drawn_and_one_that_decides_says_what_is_certain(photos, tmp_path):
    typed("score", photos, tmp_path / "scored")
    figure = tmp_path / "plan.png"
    text = typed("plan", tmp_path / "scored", "baby_steps", "--epochs", "12", "--batch-size", "4", "--figure", figure)
    assert "forced in at the latest: bucket 2 after step" in text
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_mistakes_end_with_a_status(photos, tmp_path):
    result = CliRunner().invoke(app, ["score", str(photos), str(tmp_path / "x"), "--scorer", "beauty"])
    assert result.exit_code == 2
    assert "beauty" in result.output


def test_version():
    import hf_curriculum

    assert typed("version").strip() == hf_curriculum.__version__
