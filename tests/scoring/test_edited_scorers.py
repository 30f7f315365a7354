"""Scorers of one's own whose source is edited between two calls."""

from __future__ import annotations

import importlib
import sys

import pytest
from datasets import Dataset, load_from_disk

from hf_curriculum import CaptionLength, Combine, NounCount, add_scores, add_scores_sharded

MODULE = """
from hf_curriculum import Scorer
from hf_curriculum.scorers.text.taggers import Tagger
EXTRA = 0

def length(text):
    return len(text)

def tags(sentences):
    return [["NN"] * 1 for _ in sentences]

class Own(Scorer):
    columns, name, easy = ("caption",), "own", "low"

    def score(self, batch, rank):
        return [length(text) + EXTRA for text in batch["caption"]]
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module of scorers and imports it afresh, as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text):
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / "own_scorers.py").write_text(text)
        sys.modules.pop("own_scorers", None)
        importlib.invalidate_caches()
        return importlib.import_module("own_scorers")

    yield write
    sys.modules.pop("own_scorers", None)


@pytest.mark.parametrize("options", [{}, {"resume_every": 2}, {"num_proc": 2}], ids=str)
@pytest.mark.parametrize(
    ("before", "after", "added"),
    [("+ EXTRA", "+ 100", 100), ("EXTRA = 0", "EXTRA = 7", 7), ("return len(text)", "return len(text) + 1", 1)],
)
def test_an_edited_scorer_scores_again(tmp_path, own_module, options, before, after, added):
    Dataset.from_dict({"caption": ["a", "bb", "ccc"]}).save_to_disk(str(tmp_path / "data"))
    data = load_from_disk(str(tmp_path / "data"))
    first = add_scores(data, own_module(MODULE).Own(), **options)
    assert first["own"][:] == [1, 2, 3]
    again = add_scores(data, own_module(MODULE.replace(before, after)).Own(), **options)
    assert again["own"][:] == [1 + added, 2 + added, 3 + added]
    plain = data.map(sys.modules["own_scorers"].Own(), batched=True)
    assert plain["own"][:] == again["own"][:]


@pytest.mark.parametrize(
    ("line", "helper", "edited"),
    [
        ("from helpers import answer_of as length", "helpers.py", "helpers.py"),
        ("from parts.texts import answer_of as length", "parts/texts.py", "parts/texts.py"),
        (
            "def length(text):\n    import parts\n    return parts.answer_of(text)",
            "parts/texts.py",
            "parts/__init__.py",
        ),
        ("from parts import answer_of as length", "parts/texts.py", "parts/texts.py"),
    ],
)
def test_an_edited_helper_beside_the_scorer_scores_again(tmp_path, own_module, line, helper, edited):
    code = tmp_path / "code"
    (code / "parts").mkdir(parents=True)
    (code / "parts" / "__init__.py").write_text("from .texts import answer_of  # 0\n" if "parts" in helper else "")
    (code / helper).write_text("def answer_of(text):\n    return 0 + len(text)\n")
    data = Dataset.from_dict({"caption": ["a", "bb", "ccc"]})
    module = line + MODULE.replace("def length(text):\n    return len(text)\n", "")

    def key(text):
        for name in ("helpers", "parts", "parts.texts"):
            sys.modules.pop(name, None)
        return own_module(text).Own().source_digest()

    first, scored = key(module), add_scores(data, sys.modules["own_scorers"].Own())["own"][:]
    (code / edited).write_text((code / edited).read_text().replace("0", "10"))
    assert first not in (key(module), None)
    (code / "other.py").write_text("OTHER = 1")
    assert key(module) == sys.modules["own_scorers"].Own().source_digest()
    again = add_scores(data, sys.modules["own_scorers"].Own())["own"][:]
    assert (scored, again) == ([1, 2, 3], [11, 12, 13] if edited == helper else [1, 2, 3])


def test_an_edited_tagger_function_counts_again(tmp_path, own_module):
    Dataset.from_dict({"caption": ["a", "bb"]}).save_to_disk(str(tmp_path / "data"))
    data = load_from_disk(str(tmp_path / "data"))
    assert add_scores(data, NounCount(own_module(MODULE).tags))["noun_count"][:] == [1, 1]
    edited = own_module(MODULE.replace('["NN"] * 1', '["NN"] * 3'))
    assert add_scores(data, NounCount(edited.tags))["noun_count"][:] == [3, 3]


def test_parts_of_an_edited_scorer_are_not_mixed_with_others(tmp_path, own_module):
    data, folder = Dataset.from_dict({"caption": ["a", "bb"]}), tmp_path / "parts"
    add_scores_sharded(data, own_module(MODULE).Own(), folder)
    with pytest.raises(ValueError, match=r"parts of another run: .*source"):
        add_scores_sharded(data, own_module(MODULE.replace("EXTRA = 0", "EXTRA = 7")).Own(), folder)


def test_a_module_without_source_is_known_by_its_bytecode(own_module, monkeypatch):
    def no_source(module):
        raise OSError

    monkeypatch.setattr("inspect.getsource", no_source)
    keys = [own_module(text).Own().source_digest() for text in (MODULE, MODULE.replace("+ EXTRA", "+ 1"), MODULE)]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


def test_the_librarys_own_scorers_are_known_by_their_version():
    assert [scorer.source_digest() for scorer in (CaptionLength(), NounCount(), Combine({"a": 1.0}))] == [None] * 3
