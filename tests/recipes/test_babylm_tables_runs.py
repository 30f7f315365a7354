"""Which runs the tables of BabyLM read from the folders of studies, and what they say of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from babylm.tables import Column
from babylm.tables_evaluate import benchmark_folder
from babylm.tables_runs import block_name, find_studies, read_studies

from hf_curriculum.studies.recipe import read_preset

PRESETS = Path(__file__).parents[2] / "recipes" / "presets" / "babylm_git"
C, TC = Column("GIT", False, "C"), Column("GIT", False, "T+C")
CL_C, FLAMINGO = Column("GIT", True, "C"), Column("Flamingo", True, "C")


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("embedded", "embedded"),
        ("embedded-control", "embedded"),
        ("embedded-text-control", "embedded"),
        ("my-texts", "my-texts"),
    ],
)
def test_studies_of_one_preset_share_a_block(name, block):
    assert block_name(Path("outputs") / name) == block


def test_blocks(study):
    folders = [
        study("git/small-text", (TC, 0, {})),
        study("flamingo/small", (FLAMINGO, 0, {})),
        study("big", (C, 0, {})),
    ]
    assert [run.study for run in read_studies(folders, separate=True)[0]] == ["small", "small", "big"]
    assert {run.study for run in read_studies(folders)[0]} == {"small + big"}
    folders.append(study("other", (C, 1, {})))
    assert {run.study for run in read_studies(folders)[0]} == {"3 studies"}


def test_runs_that_did_not_finish_are_listed(study):
    folder = study("a", (C, 0, {}))
    for name, facts in (
        ("lost", {"status": "diverged", "error": "seen\nloss is nan at step 7"}),
        ("killed", {"status": "running", "error": None}),
        ("older", {"status": "finished", "error": None}),
    ):
        (folder / name).mkdir()
        record = {"key": name, "arm": name, "seed": 3, "settings": {"of": "another version"}, **facts}
        (folder / name / "result.json").write_text(json.dumps(record))
    _, lost = read_studies([folder])
    assert [item.what for item in lost] == [
        f"{folder}: killed, seed 3, was killed, or is still running",
        f"{folder}: lost, seed 3, diverged: loss is nan at step 7",
        f"{folder}: older, seed 3, finished in an earlier start of the recipe and is not in results.json",
    ]
    (folder / "results.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"No run in .* has finished \(.*loss is nan at step 7"):
        read_studies([folder])


def test_a_lost_run_is_listed_with_its_column(study):
    folder = study("a", (C, 0, {}))
    preset = read_preset("smoke", PRESETS)
    (folder / "lost").mkdir()
    record = {"arm": "curriculum", "seed": 0, "status": "crashed", "error": "OSError: disk", "settings": preset}
    (folder / "lost" / "result.json").write_text(json.dumps(record))
    (lost,) = read_studies([folder])[1]
    assert lost.column == CL_C
    assert lost.what == f"{folder}: GIT CL C (curriculum), seed 0, crashed: OSError: disk"
    record["settings"] = {name: value for name, value in preset.items() if name != "text_weight"}  # another version's
    (folder / "lost" / "result.json").write_text(json.dumps(record))
    assert read_studies([folder])[1][0].column is None


def test_a_run_trained_twice_is_shown_once(study):
    same = {"record": {"key": "same"}}
    folders = [study("a", (C, 0, same)), study("a-control", (C, 0, same))]
    runs, lost = read_studies(folders)
    assert [run.folder for run in runs] == [folders[0] / "run0"]
    assert "has the settings of" in lost[0].what
    with pytest.raises(ValueError, match=r"are both GIT C of seed 0, with different settings"):
        read_studies([folders[0], study("b", (C, 0, {"name": "other"}))])
    assert len(read_studies([folders[0], folders[0].with_name("b")], ["other"])[0]) == 1


@pytest.mark.parametrize(
    ("facts", "error", "message"),
    [
        ({"system": ..., "folder": ...}, ValueError, r"has no \['system', 'folder'\]"),
        ({"system": "CLIP"}, ValueError, r"has the system 'CLIP', for which the paper's tables have no column"),
        ({"variant": "C+T"}, ValueError, r"has the variant 'C\+T', for which"),
        ({"folder": "gone"}, FileNotFoundError, r"should have its model in .*gone/model, where there is none"),
    ],
)
def test_results_that_cannot_be_shown(study, facts, error, message):
    with pytest.raises(error, match=message):
        read_studies([study("a", (C, 0, facts))])


def test_folders_that_are_no_studies(study, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"has no results\.json and no run \(found: nothing: it does not exist"
    ):
        read_studies([tmp_path / "nothing"])
    with pytest.raises(FileNotFoundError, match="so there is nothing to put into tables"):
        find_studies(tmp_path)
    folder = study("babylm_git/smoke", (C, 0, {}))
    (tmp_path / "babylm_flamingo" / "killed before its first run").mkdir(parents=True)
    assert find_studies(tmp_path) == [folder]
    with pytest.raises(ValueError, match=r"No finished run is called \['b'\]; there are \['control'\]"):
        read_studies([folder], ["b"])
    (folder / "results.json").write_text("[")
    with pytest.raises(ValueError, match=r"results\.json is no JSON"):
        read_studies([folder])
    with pytest.raises(FileNotFoundError, match="with the benchmarks' files does not exist"):
        benchmark_folder(tmp_path / "nothing", tmp_path, 4)
    with pytest.raises(ValueError, match="`size` is even and at least 4"):
        benchmark_folder(None, tmp_path, 3)
