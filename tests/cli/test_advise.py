"""`hf-curriculum advise`: what is passed on, printed and suggested."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from datasets import Dataset
from typed_commands import done, result, said

from hf_curriculum import CaptionLength, add_scores, save_scored
from hf_curriculum.studies.advise import Advice, Gain
from hf_curriculum.studies.statistics import Interval

ADVICE = Advice(
    verdict="filter",
    reason="it wins.",
    column="caption_length",
    judged_by="`caption_length`, scored anew by CaptionLength",
    cross_fitted=False,
    measured="ranks",
    unit="images",
    auc=Interval(0.8, 0.7, 0.9, 9),
    own=Gain(0.62, 0.31, 0.35, Interval(0.04, 0.02, 0.06, 9)),
    dealt=Gain(0.4, 0.22, 0.30, Interval(0.08, 0.06, 0.1, 9)),
    units=(738, 246),
    rows=3690,
    seeds=6,
    lengths=(50, 100, 200),
    seconds=522.0,
)


@pytest.fixture
def folder(tmp_path):
    rows = add_scores(Dataset.from_dict({"caption": ["a", "a b"], "image_id": ["0", "1"]}), CaptionLength())
    save_scored(rows, tmp_path / "scored")
    return tmp_path / "scored"


def test_every_option_is_passed_on_and_the_answer_is_printed(folder, replaced):
    asked = replaced("studies.advise", "advise", ADVICE)
    words = ["--score-column", "caption_length", "--features", "store", "--model", "small", "--minutes", 3]
    found = done("advise", folder, *words, "--seed", 4, "--easy", "high")
    [(given, named)] = asked.calls
    assert (given[0]["caption"][:], given[1]) == (["a", "a b"], "caption_length")
    assert {**named, "features": str(named["features"])} == {
        "features": "store", "minutes": 3, "model": "small", "seed": 4, "easy": "high",
    }  # fmt: skip
    assert found.stdout == str(ADVICE) + "\n"
    assert len(found.stdout.splitlines()) <= 15
    assert "| as it is | 31.0 | 35.0 | 62% | +4.0 [+2.0, +6.0] |" in found.stdout


def test_it_prints_json(folder, replaced):
    replaced("studies.advise", "advise", ADVICE)
    found = json.loads(done("advise", folder, "--json").stdout)
    assert (found["verdict"], found["own"]["gain"]["lower"], found["lengths"]) == ("filter", 0.02, [50, 100, 200])


@pytest.mark.parametrize(("changed", "next_"), [
    ({}, "train {} run --curriculum '{{type: filter, keep: 0.62}}' --epochs 10 --score-column caption_length"),
    ({"cross_fitted": True}, "recipe reference_model --help"),
    ({"verdict": "nothing to win"}, "train {} run --curriculum iid --epochs 10"),
    ({"verdict": "nothing can be told"}, "advise {} --score-column caption_length --minutes 30"),
    *(({"verdict": told, "auc": Interval(0.52, 0.5, 0.55, 9)}, "recipe reference_model --help")
      for told in ("nothing can be told", "nothing to win")),
])  # fmt: skip
def test_the_next_command_is_named(folder, replaced, changed, next_):
    replaced("studies.advise", "advise", replace(ADVICE, **changed))
    assert f"next: hf-curriculum {next_.format(folder)}" in done("advise", folder).stderr


def test_what_cannot_work_is_said_in_a_line(folder):
    assert "2 texts with a caption" in said(result("advise", folder))
    assert result("advise", folder).exit_code == 1
    assert result("advise", folder, "--minutes", 0).exit_code == 2
    assert result("advise", folder, "--model", "large").exit_code == 2
    assert "no such" in said(result("advise", folder, "--features", folder / "none")).lower()
