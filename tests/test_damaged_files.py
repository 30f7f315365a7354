"""A damaged file is told in one sentence that names it, or read as what was written."""

import json

import numpy as np
import pytest
from datasets import Dataset

from hf_curriculum import BucketIndex, ScoreProvenance, attach_provenance, load_scored, save_bucketed, save_scored
from hf_curriculum.data.regions.store import FACTS, read_facts
from hf_curriculum.parts import PartFolder
from hf_curriculum.studies.study import RESULT_FILE, _read


def readers(folder):
    """Each JSON file, and what reads it."""
    data = Dataset.from_dict({"text": ["a", "b"], "score": [0.0, 1.0]})
    data = attach_provenance(data, {"score": ScoreProvenance("score", "CaptionLength", {}, easy="low")})
    save_scored(data, folder / "set")
    save_bucketed(data, folder / "buckets", 2, score_column="score")
    PartFolder(folder / "parts", {"scorer": "x"}, rows=2, step=1)
    keys = ("format", "complete", "images", "dims", "dtype", "standardise", "made_by", "sources", "arrays", "classes")
    (folder / FACTS).write_text(json.dumps({**dict.fromkeys(keys), "format": 1}))
    (folder / RESULT_FILE).write_text(json.dumps(dict.fromkeys(("key", "status", "result", "step", "error"))))
    return {
        folder / "set" / "scores.json": lambda: load_scored(folder / "set"),
        folder / "buckets" / "buckets.json": lambda: BucketIndex.read(folder / "buckets"),
        folder / "parts" / "run.json": lambda: PartFolder(folder / "parts", {"scorer": "x"}, rows=2, step=1),
        folder / FACTS: lambda: read_facts(folder),
        folder / RESULT_FILE: lambda: _read(folder),
    }


def test_json_files_cut_off_or_of_another_kind(tmp_path):
    for file, read in readers(tmp_path).items():
        whole = file.read_bytes()
        read()
        for damaged in (b"", whole[: len(whole) // 2], b"\xff" + whole[1:], b"[]", b"[" * 100_000):
            file.write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"{file.name} is (damaged \(|not a)"):
                read()
        file.write_bytes(whole)


def test_keys_that_a_json_file_lacks(tmp_path):
    found = readers(tmp_path)
    for name, key in (("scores.json", "splits"), ("buckets.json", "buckets"), (FACTS, "arrays"), (RESULT_FILE, "key")):
        file = next(file for file in found if file.name == name)
        content = json.loads(file.read_text())
        del content[key]
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=rf"{name} is damaged \(KeyError: '{key}'\)"):
            found[file]()


@pytest.mark.slow
def test_flipped_bits_of_json_files(tmp_path):
    random = np.random.default_rng(8)
    for file, read in readers(tmp_path).items():
        whole = bytearray(file.read_bytes())
        for place in random.integers(8 * len(whole), size=200):
            damaged = whole.copy()
            damaged[place // 8] ^= 1 << (place % 8)
            file.write_bytes(damaged)
            error = None
            try:
                read()
            except (ValueError, OSError) as raised:
                error = raised
            assert not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)), (file.name, place, error)
        file.write_bytes(whole)
