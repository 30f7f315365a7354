"""The time-to-quality benchmark: how censored runs are counted, which arms there are, and a tiny run of it."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_curriculum import curriculum_from, make_plan, rank_scores
from hf_curriculum.studies.study import StudyRun

FILE = Path(__file__).parents[2] / "recipes" / "benchmarks" / "time_to_quality.py"


@pytest.fixture(scope="module")
def benchmark_module():
    spec = importlib.util.spec_from_file_location("time_to_quality", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["time_to_quality"] = module
    spec.loader.exec_module(module)
    return module


def finished(arm, seed, *losses):
    curve = [[32 * place, loss] for place, loss in enumerate(losses)]
    return StudyRun(arm, seed, {}, "", Path(), "finished", {"curve": curve, "eval_loss": losses[-1]})


def test_examples_until_the_controls_final_loss(benchmark_module):
    runs = [
        finished("i.i.d.", 0, 5.0, 3.0, 2.0),
        finished("i.i.d.", 1, 5.0, 1.0, 1.5),  # as good as its end long before it
        finished("fast", 0, 5.0, 2.0, 1.9),
        finished("fast", 1, 5.0, 1.6, 1.5),
        finished("slow", 0, 5.0, 4.0, 3.0),
        finished("slow", 1, 5.0, 4.0, 1.4),
        StudyRun("slow", 2, {}, "", Path(), "diverged"),
    ]
    found = {row.arm: row for row in benchmark_module.reached(runs)}
    assert found["i.i.d."].examples == {0: 64, 1: 32}
    assert found["fast"].examples == {0: 32, 1: 64}
    assert found["fast"].ratio.value == np.median([0.5, 2.0])
    assert found["slow"].examples == {0: math.inf, 1: 64}
    assert math.isinf(found["slow"].median.value)
    assert (found["slow"].lost, found["slow"].note) == (1, "1 of 2 never, 1 lost")
    lines = benchmark_module.table(list(found.values()), runs, 64).splitlines()
    assert lines[3].startswith("| fast | 2 of 2 | 48.00 [32.00, 64.00] | 1.25 [0.50, 2.00] |")
    assert lines[4].startswith("| slow | 1 of 2 (1 lost) | > 64 [64.00, > 64] | never [2.00, never] |")


def test_arms_are_the_controls_and_every_curriculum_by_every_score(benchmark_module):
    base = benchmark_module.Setting({})
    arms = benchmark_module.arms(base, ["noun_count", "difficulty"], None)
    assert next(iter(arms)) == "i.i.d."
    assert {"random order", "noun_count: hard first", "difficulty: phases by value"} <= set(arms)
    assert len(benchmark_module.RULES) >= 6
    assert len(arms) == len(benchmark_module.UNSORTED) + 1 + 2 * (1 + len(benchmark_module.RULES))
    kept = benchmark_module.arms(base, ["noun_count"], ["phases by rank"])
    assert list(kept) == ["i.i.d.", "noun_count: phases by rank"]
    with pytest.raises(ValueError, match="'spirals' is no curriculum of this benchmark"):
        benchmark_module.arms(base, ["noun_count"], ["spirals"])


def test_every_arm_draws_as_many_examples(benchmark_module):
    scores = rank_scores(np.random.default_rng(0).integers(1, 9, size=1440).astype(np.float32))
    base = benchmark_module.Setting({}, num_steps=322)
    for name, setting in benchmark_module.arms(base, ["noun_count"], None).items():
        plan = make_plan(curriculum_from(setting["curriculum"]), scores, global_batch_size=base.batch_size)
        assert plan.num_steps == 322, name


def test_unknown_scores_are_refused(benchmark_module, monkeypatch):
    monkeypatch.setattr(benchmark_module, "load", lambda *data: (None,))
    with pytest.raises(ValueError, match="The score 'beauty' is none of"):
        benchmark_module.score(10, 0.0, 36, "beauty")


@pytest.mark.slow
def test_a_tiny_run_of_it(benchmark_module, tmp_path, capsys):
    options = [
        "--seeds",
        "1",
        "--num_steps",
        "32",
        "--num_pairs",
        "120",
        "--mismatched",
        "0.3",
        "--scores",
        "difficulty",
    ]
    options += ["--curricula", "phases by rank", "hard first", "random order", "--output_dir", str(tmp_path)]
    benchmark_module.main([*options, "--limit", "2"])
    assert len(list(tmp_path.glob("mismatched-30/*/result.json"))) == 2
    benchmark_module.main(options)
    text = (tmp_path / "time_to_quality_30.md").read_text()
    assert text in capsys.readouterr().out
    assert "| i.i.d. | 1 of 1 |" in text
    facts = json.loads((tmp_path / "time_to_quality_30.json").read_text())
    assert facts["budget"] == 1024
    assert [arm["arm"] for arm in facts["arms"]] == [
        *("i.i.d.", "random order", "difficulty: hard first", "difficulty: phases by rank")
    ]
    results = [json.loads(file.read_text()) for file in tmp_path.glob("mismatched-30/*/result.json")]
    assert len(results) == 4
    for result in results:
        curve = result["result"]["curve"]
        assert [examples for examples, _ in curve] == [0, 512, 1024]
        assert curve[-1][1] < curve[0][1]
    for name in ("time_to_quality_30.png", "time_to_quality_30_dark.png", "mismatched-30/study.csv"):
        assert (tmp_path / name).stat().st_size > 100
