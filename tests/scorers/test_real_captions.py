"""The text scorers on the 25,014 official COCO validation captions, where they are at hand."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from hf_curriculum import CaptionLength, NounCount
from hf_curriculum.scorers.text.taggers import sentence_case

FOLDER = Path(os.environ.get("HF_CURRICULUM_TEST_DATA", "/nonexistent"))
FILE = FOLDER / "coco_captions_val2017" / "captions_val2017.json.gz"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="HF_CURRICULUM_TEST_DATA has no coco_captions_val2017")


@pytest.fixture(scope="module")
def captions():
    with gzip.open(FILE, "rt", encoding="utf-8") as stream:
        return [entry["caption"] for entry in json.load(stream)["annotations"]]


def test_caption_length(captions):
    scores = CaptionLength()({"caption": captions})["caption_length"]
    assert len(scores) == 25_014
    assert np.quantile(scores, [0, 0.25, 0.5, 0.75, 1]).tolist() == [7, 9, 10, 11, 50]
    assert scores.tolist() == [len(caption.split()) for caption in captions]


def test_noun_count(captions):
    scores = NounCount()({"caption": captions})["noun_count"]
    assert not np.isnan(scores).any()
    # 174 captions are in capitals alone; read as names, word by word, they made the median 4
    assert np.quantile(scores, [0.25, 0.5, 0.75]).tolist() == [3, 3, 4]
    capitals = np.array([sentence_case(caption) != caption for caption in captions])
    assert capitals.sum() == 174
    small = NounCount()({"caption": [caption.lower() for caption in captions if sentence_case(caption) != caption]})
    assert scores[capitals].tolist() == small["noun_count"].tolist()
    released = NounCount(tags=("NN", "NNP"))({"caption": captions})["noun_count"]
    assert np.quantile(released, [0.25, 0.5, 0.75]).tolist() == [2, 3, 4]
    assert (released <= scores).all()


def test_nltk_agrees_with_pattern_on_most(captions, monkeypatch):
    nltk = pytest.importorskip("nltk")
    if not (FOLDER / "nltk_data").is_dir():
        pytest.skip("HF_CURRICULUM_TEST_DATA has no nltk_data")
    monkeypatch.setattr(nltk.data, "path", [str(FOLDER / "nltk_data")])
    sample = captions[:600]
    one, other = NounCount()({"caption": sample})["noun_count"], NounCount("nltk")({"caption": sample})["noun_count"]
    assert np.mean(np.abs(one - other) <= 1) >= 0.9
    assert np.corrcoef(one, other)[0, 1] >= 0.7
