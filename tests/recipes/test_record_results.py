"""Records of studies, and the pages that show their numbers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MADE = SimpleNamespace(**runpy.run_path(str(ROOT / "recipes" / "record_results.py")))
RECORDS = {
    name: json.loads(file.read_text()) for name in MADE.TABLES if (file := MADE.RESULTS / f"{name}.json").is_file()
}


def test_the_tables_are_those_of_the_records_digit_by_digit():
    page = MADE.PAGE.read_text(encoding="utf-8")
    assert MADE.updated(page) == page, "run `python recipes/record_results.py`"
    for name, made in RECORDS.items():
        assert f"<!-- record {name}: " in page
        assert MADE.tables(made) in page
    assert {"babylm_git", "simi_cl_captioning"} <= set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_how_it_was_made(name):
    made = RECORDS[name]
    assert len(made["commit"]) == 40
    assert {"python", "torch", "transformers", "hf-curriculum"} <= set(made["versions"])
    assert f"recipes/{name}.py" in made["command"]
    assert {(run["name"], run["seed"]) for run in made["runs"]} == {
        (arm, seed) for arm in {row["arm"] for row in made["summary"]} for seed in made["seeds"]
    }
    assert all(row["p_t"] is None or row["p_t"] > 0 for row in made["summary"])


def shown(name, metric, arm, control, digits):
    rows = {row["arm"]: row for row in RECORDS[name]["summary"] if row["metric"] == metric}
    return f"{rows[arm]['mean']:{digits}} ({rows[control]['mean']:{digits}})"


@pytest.mark.parametrize(
    ("name", "metric", "arms", "before"),
    [
        ("babylm_git", "noun_recall", ("curriculum", "control"), "noun recall "),
        ("babylm_git", "eval_loss", ("curriculum", "control"), "loss "),
        ("simi_cl_captioning", "cider", ("Simi-CL", "Transformer"), "CIDEr "),
    ],
)
def test_what_the_readme_shows_of_a_system_is_its_record(name, metric, arms, before):
    (line,) = [line for line in README.splitlines() if line.startswith("|") and f"`{name}`" in line]
    assert before + shown(name, metric, *arms, ".3f") in line


@pytest.mark.parametrize("card", ["babylm_git_tc", "babylm_flamingo_tc"])
def test_what_the_page_says_of_runs_with_text_stands_in_their_cards(card):
    facts = json.loads((ROOT / "model_cards" / f"{card}.json").read_text(encoding="utf-8"))
    own, dealt = (one["value"] for one in facts["results"] if one["metric"].startswith("noun recall"))
    said = " ".join(MADE.PAGE.read_text(encoding="utf-8").split()).partition("(T+C, seed 0)")[2].partition(").")[0]
    assert f"{own:.3f}" in said
    assert f"{dealt:.3f}" in said


def study(folder, *commits):
    """The folder of a study with a run for each commit."""
    runs = [
        {"name": "a", "seed": seed, "loss": 0.5, "log": [{}], "recall": {"recall": 1.0}}
        for seed in range(len(commits))
    ]
    for seed, commit in enumerate(commits):
        versions = {"torch": "2"} | ({} if commit is None else {"commit": commit})
        (folder / f"a-seed{seed}").mkdir(parents=True)
        facts = {"versions": versions, "hardware": {"device": "a core"}}
        (folder / f"a-seed{seed}" / "training_facts.json").write_text(json.dumps(facts))
    (folder / "results.json").write_text(json.dumps(runs))
    (folder / "study.json").write_text(json.dumps({"summary": [{"arm": "a", "mean": 0.5, "values": {"0": 0.5}}]}))
    return folder


def test_a_record_has_the_numbers_of_runs_and_their_commit(tmp_path):
    made = MADE.record("babylm_git", study(tmp_path / "a", "c1", "c1"), "python it")
    assert made == {
        "recipe": "babylm_git",
        "command": "python it",
        "commit": "c1",
        "versions": {"torch": "2"},
        "device": "a core",
        "seeds": [0, 1],
        "runs": [{"name": "a", "seed": seed, "loss": 0.5, "recall": {"recall": 1.0}} for seed in (0, 1)],
        "summary": [{"arm": "a", "mean": 0.5}],
    }
    assert MADE.record("babylm_git", study(tmp_path / "b", None), "python it", "c2")["commit"] == "c2"


@pytest.mark.parametrize("commits", [("c1", "c2"), (None,)])
def test_a_record_is_of_one_commit(tmp_path, commits):
    with pytest.raises(ValueError, match=r"are of the commits \[.*\]\. A record is of one commit"):
        MADE.record("babylm_git", study(tmp_path / "a", *commits), "python it")


def test_p_values_are_never_zero():
    row = {"arm": "a", "mean": 1.0, "lower": 0.5, "upper": 1.5, "difference": 0.25, "p_t": 1e-9, "p_sign_flip": 0.25}
    row |= {"difference_lower": 0.0, "difference_upper": 0.5}
    cells = ("m", "a", "1.000 [0.500, 1.500]", "+0.250 [+0.000, +0.500]", "< 0.001", "0.250")
    assert MADE._mean_row(row, "m", ".3f") == cells
    shares = ("m", "a", "100.0 [50.0, 150.0]", "+25.0 [+0.0, +50.0]", "< 0.001", "0.250")
    assert MADE._mean_row(row, "m", ".1f") == shares
