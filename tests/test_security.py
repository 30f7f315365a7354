"""What an archive of data may hold to harm whoever loads it: pickles, names of other files, devices, huge images."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

import hf_curriculum
from hf_curriculum import add_scores, add_scores_sharded, open_regions
from hf_curriculum.scorers.text.rarity import WordRarity


class Exploit:
    """Leaves a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "code was run"


@pytest.fixture
def crafted(mark):
    return pickle.dumps(Exploit(mark))


def test_the_crafted_pickle_would_run_code(mark, crafted):
    pickle.loads(crafted)
    assert mark.exists()


@pytest.fixture
def captions():
    return Dataset.from_dict({"caption": ["a dog", "a cat", "a dog runs"]})


class TestFittedScorers:
    def test_a_pickle_of_version_0_1_is_not_read(self, captions, tmp_path, mark, crafted, caplog):
        folder = tmp_path / "parts" / ".fitted" / "word_rarity"
        folder.mkdir(parents=True)
        (folder / "learnt.pickle").write_bytes(crafted)
        found = add_scores_sharded(captions, WordRarity(), tmp_path / "parts", rank=0, world_size=1)
        assert found["word_rarity"][:] == add_scores(captions, WordRarity().fit(captions))["word_rarity"][:]
        assert "learnt.pickle is not read: it is a pickle" in caplog.text
        assert "fitted again" in caplog.text
        assert not mark.exists()

    @pytest.mark.parametrize("name", ["fitted.json", "learnt.pickle", "fitted.pickle", "fitted.npz"])
    def test_a_pickle_of_any_name_is_not_run(self, captions, tmp_path, mark, crafted, name):
        parts = tmp_path / "parts"
        add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        for folder in (parts, *(path for path in parts.rglob("*") if path.is_dir())):
            (folder / name).write_bytes(crafted)
        if name == "fitted.json":
            with pytest.raises(ValueError, match=r"fitted\.json cannot be read"):
                add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        else:
            assert len(add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)) == 3
        assert not mark.exists()

    def test_in_the_place_of_a_part(self, captions, tmp_path, mark, crafted):
        parts = tmp_path / "parts"
        add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        for file in parts.rglob("part-*"):
            file.write_bytes(crafted)
        with pytest.raises(ValueError, match="cannot be read"):
            add_scores_sharded(captions, WordRarity(), parts, rank=0, world_size=1)
        assert not mark.exists()


class TestArrays:
    @pytest.mark.parametrize("name", ["boxes.npz", "folder/1.npy"])
    def test_objects_in_files_of_regions(self, tmp_path, mark, name):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        objects = np.array([Exploit(mark)], dtype=object)
        if name.endswith(".npz"):
            np.savez(file, **{"1": objects})
        else:
            np.save(file, objects, allow_pickle=True)
        regions = open_regions(file if name.endswith(".npz") else file.parent)
        with pytest.raises(ValueError, match=r"allow_pickle=False|Python objects in dtype"):
            regions["1"]
        assert not mark.exists()


def test_no_module_reads_pickles():
    """The calls by which Python's libraries read them, in the whole package and its recipes."""
    root = Path(hf_curriculum.__file__).parent
    files = [*root.rglob("*.py"), *(root.parent / "recipes").rglob("*.py")]
    found = {}
    for file in files:
        text = file.read_text(encoding="utf-8")
        calls = re.findall(r"pickle\.loads?\(|Unpickler|allow_pickle=True|\b(?:dill|joblib|marshal)\b[.\n]", text)
        calls += [call for call in re.findall(r"torch\.load\([^)]*\)", text) if "weights_only=True" not in call]
        calls += re.findall(r"yaml\.(?:unsafe_load|full_load)\(|UnsafeLoader|FullLoader|yaml\.Loader", text)
        if calls:
            found[file.name] = calls
    assert len(files) > 150
    assert found == {}
