"""The record of `advise`: each answer is asked for once, and counted as it is known to be."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from photos.data import read_photographs

import hf_curriculum
from hf_curriculum.studies.advise import Advice, Gain
from hf_curriculum.studies.statistics import Interval

SCRIPT = Path(hf_curriculum.__file__).parent.parent / "recipes" / "benchmarks" / "advise.py"
GAIN = Gain(0.62, 0.31, 0.35, Interval(0.04, 0.02, 0.06, 9))
ANSWER = Advice(
    *("nothing to win", "why.", "names", "judged", True, "ranks", "images", Interval(0.8, 0.7, 0.9, 9), GAIN, GAIN),
    *((75, 25), 150, 5, (50, 100), 60.0),
)


@pytest.fixture
def made():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_the_record_counts_right_answers_and_asks_once(made, tmp_path, monkeypatch, capsys):
    asked = []

    def answer(wrong, seed):
        asked.append((wrong, seed))
        return replace(ANSWER, verdict="filter" if wrong and seed else "nothing to win")

    monkeypatch.setitem(made.main.__globals__, "ANSWERS", {"scenes": answer})
    monkeypatch.setattr(sys, "argv", ["advise.py", "--parts", "scenes", "--folder", str(tmp_path)])
    made.main()
    record = capsys.readouterr().out
    made.main()
    assert capsys.readouterr().out == record
    assert asked == [(0.5, 0), (0.5, 1), (0.5, 2), (0.0, 0), (0.0, 1), (0.0, 2)]
    assert "5 of 6 are right." in record
    gain = r"31.0 → 35.0, +4.0 \[+2.0, +6.0\]"
    cells = f"| 0.800 | 62% | {gain} | {gain} | nothing to win |"
    assert f"| scenes | 50% | 0 {cells} no |" in record
    assert f"| scenes | 0% | 2 {cells} yes |" in record


@pytest.mark.parametrize("part", ["scenes", "photographs"])
def test_the_captions_of_a_case_are_wrong_as_it_says(made, part, monkeypatch):
    given = []
    monkeypatch.setitem(made.main.__globals__, "advise", lambda rows, *names, **options: given.append((rows, options)))
    if part == "scenes":
        scenes = made.make_scenes
        monkeypatch.setitem(
            made.main.__globals__, "make_scenes", lambda count, **options: scenes(60, **{**options, "image_size": 32})
        )
        made.on_scenes(0.5, 1)
        ((rows, options),) = given
        assert sum(rows["mismatched"]) == 30
        assert rows.column_names[-1] == "clip_similarity"
    else:
        try:
            read_photographs(100, 150, 0)
        except FileNotFoundError:
            pytest.skip("no photographs")
        for wrong in (0.0, 0.4):
            made.on_photographs(wrong, 1)
        (clean, _), (rows, options) = given
        of = dict(zip(clean["caption"], clean["image_id"], strict=True))
        same = [of[row["caption"]] == row["image_id"] for row in rows.select_columns(["caption", "image_id"])]
        assert sum(same) / len(same) == pytest.approx(0.6, abs=0.02)
        assert {"features", "easy"} < set(options)
    assert options["seed"] == 1
    assert {name: options[name] for name in made.RUNS} == made.RUNS
