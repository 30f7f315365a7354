"""The benchmark of the data's stages, small."""

import sys
from pathlib import Path

import datasets
import pytest

from hf_curriculum import load_captioned

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "benchmarks"))
import paper_scale


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(paper_scale, "SHARD", 10)
    paper_scale.make(tmp_path / "data", 25)
    yield tmp_path
    datasets.enable_progress_bars()


def test_the_stages(folder):
    found = {name: paper_scale.stage(name, folder, num_proc=1) for name, _ in paper_scale.STAGES}
    assert found["second"]["written"] == 0
    # a digest and an id per row; of each of the three files the head of its ids, and the verdicts
    assert 16 * 25 <= found["first"]["written"] <= 64 * 25 + 3 * 512
    assert found["side_file"]["written"] > 0
    assert len(load_captioned(folder / "data")["train"]) == 25
    assert len(set(load_captioned(folder / "data")["train"]["image_id"])) == 25


def test_the_table():
    few = {name: {"cpu": 1.0, "written": 100, "memory": 5.0} for name, _ in paper_scale.STAGES}
    many = {name: {"cpu": 1.9, "written": 1000, "memory": 7.0} for name, _ in paper_scale.STAGES}
    many["second"]["cpu"] = 1.0 + 9e-6
    lines = paper_scale.table(few, many, 1000).splitlines()
    assert lines[3] == "| first load: ids, every image decoded | 1,000.0 | 1 | 2,222 | 48.2 min of CPU |"
    assert lines[4] == "| every later start, resume and process | 0.0 | 1 | 2,222 | 0 s of CPU |"
