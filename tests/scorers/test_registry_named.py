"""Scorers and curricula of other people: `module:Class` from a command line, and entry points of packages."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
from typer.testing import CliRunner

from hf_curriculum import Curriculum, Scorer, curriculum_from, load_scored
from hf_curriculum.cli import app
from hf_curriculum.names import CURRICULA, SCORERS, LazyTable
from hf_curriculum.scorers.registry import import_named, scorer_from

OWN = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hf_curriculum import Phases, Scorer


class Clauses(Scorer):
    name, easy, columns = "clauses", "low", ("caption",)

    def __init__(self, words=("and",)):
        self.words = tuple(words)

    def score(self, batch, rank):
        return np.array([float(sum(word in self.words for word in text.split())) for text in batch["caption"]])


@dataclass(frozen=True)
class Halves(Phases):
    type: ClassVar[str] = "halves"
    num_phases: int = 2


@dataclass(frozen=True)
class Nameless(Phases):
    pass


class Other:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with `my_rules.py`, and what it adds to tables and modules taken back."""
    (tmp_path / "my_rules.py").write_text(OWN)
    (tmp_path / "broken_rules.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = [(table, dict(table.items())) for table in (SCORERS, CURRICULA)]
    yield tmp_path
    for table, entries in before:
        for name in set(table) - set(entries):
            del table[name]
    for name in ("my_rules", "broken_rules"):
        sys.modules.pop(name, None)


def result(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def said(done):
    return " ".join(done.output.replace("│", " ").split())


def test_a_scorer_and_a_curriculum_of_ones_own_from_the_shell(folder):
    texts = ["a", "a and b", "b or c and d"]
    lines = [f"{number}.jpg,{text}" for number, text in enumerate(texts)]
    (folder / "captions.csv").write_text("\n".join(["file_name,caption", *lines]))
    for given, scores in (
        ("my_rules:Clauses", [0, 1, 1]),
        ('{"type": "my_rules:Clauses", "words": ["or"]}', [0, 0, 1]),
    ):
        done = result("score", "captions.csv", "out", "--scorer", given, "--images", "none", "--overwrite")
        assert done.exit_code == 0, done.output
        assert load_scored(folder / "out")["clauses"][:] == scores
    done = result("plan", "out", "my_rules:Halves", "--batch-size", "1")
    assert done.stdout.startswith("Halves() by clauses")
    done = result("plan", "out", "{type: my_rules:Halves, num_phases: 1}", "--batch-size", "1")
    assert done.stdout.startswith("Halves(num_phases=1) by clauses")
    import_named("my_rules:Halves", CURRICULA, Curriculum)  # twice is once
    assert curriculum_from({"type": "halves"}) == curriculum_from("my_rules:Halves")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("score", "x", "out", "--scorer", "my_rules:Nothing"), "my_rules.py has no 'Nothing'. It has ['Clauses']"),
        (("score", "x", "out", "--scorer", "my_rules:Other"), "is needed. It has ['Clauses']"),
        (("score", "x", "out", "--scorer", "my_rules:Halves"), "`hf_curriculum.Scorer` is needed"),
        (("score", "x", "out", "--scorer", "no_such:Clauses"), "names the module 'no_such', which cannot be imported"),
        (("score", "x", "out", "--scorer", "broken_rules:A"), "No module named 'no_such_package'"),
        (("score", "x", "out", "--scorer", '{"type": "my_rules:Clauses", "wrds": []}'), "`wrds` is no argument of"),
        (("score", "x", "out", "--scorer", "my_rules"), "There is no scorer 'my_rules'"),
    ],
)
def test_what_is_no_scorer_is_refused_in_words(folder, words, message):
    done = result(*words)
    assert done.exit_code == 2, done.output
    assert message.replace(" ", "") in said(done).replace(" ", "")


def test_a_type_that_is_another_rules_is_refused(folder):
    with pytest.raises(ValueError, match="has the type 'phases', which is Phases's"):
        import_named("my_rules:Nameless", CURRICULA, Curriculum)


def test_a_name_in_a_file_that_was_downloaded_imports_nothing(folder):
    with pytest.raises(ValueError, match="There is no curriculum 'my_rules:Halves'"):
        curriculum_from({"type": "my_rules:Halves"})
    with pytest.raises(ValueError, match="There is no scorer 'my_rules:Clauses'"):
        scorer_from({"type": "my_rules:Clauses"})
    assert "my_rules" not in sys.modules


def test_entry_points_of_packages(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    package = folder / "my_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[hf_curriculum.scorers]\nclauses = my_rules:Clauses\ncaption_length = my_rules:Clauses\n"
        "wrong = my_rules:Other\n[hf_curriculum.curricula]\nhalves = my_rules:Halves\n"
    )
    assert importlib.metadata.entry_points(group="hf_curriculum.curricula", name="halves")
    scorers = LazyTable({"caption_length": "scorers.text.length:CaptionLength"}, group="hf_curriculum.scorers")
    assert list(scorers) == ["caption_length", "clauses", "wrong"]
    assert "my_rules" not in sys.modules  # a table of names loads nothing
    assert scorers["caption_length"].__name__ == "CaptionLength"  # the library's own name stays its own
    monkeypatch.setattr("hf_curriculum.names.SCORERS", scorers)
    assert isinstance(scorer_from('{"type": "clauses", "words": ["or"]}'), Scorer)
    with pytest.raises(ValueError, match=r"a subclass of `hf_curriculum\.Scorer` is needed"):
        scorer_from("wrong")
    monkeypatch.setattr("hf_curriculum.planning.curriculum.CURRICULA", LazyTable({}, group="hf_curriculum.curricula"))
    assert curriculum_from("halves").num_phases == 2
