"""The pages are in plain English: short sentences, and none of the words that make them read like a translation."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parent.parent
OTHERS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "model_cards/README.md",
    "recipes/benchmarks/results/README.md",
)
PAGES = [*sorted((ROOT / "docs").glob("**/*.md")), *(ROOT / name for name in OTHERS)]
_WORDS = "beside|whoever|nobody|dealt|told|likewise|dear|dearer|learnt of|as many|that of|a share of|goes on"
ODD = re.compile(rf"\b({_WORDS})\b", re.I)
_HIDDEN = re.compile(r"```.*?^\s*```|<!--.*?-->", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")  # paragraphs, and the items of lists
_END = re.compile(r"(?<!\bal)(?<!\b[Aa]lg)(?<!\b[Ff]ig)(?<!\be\.g)(?<!\bi\.e)[.!?][)\"*_]*\s+")


def prose(text: str) -> str:
    """A page without code, comments, headings and rows of tables; code in a line is one word, a link is its text."""
    lines = _HIDDEN.sub("\n", text).splitlines()
    text = "\n".join("" if line.lstrip().startswith(("|", "#")) else line for line in lines)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "CODE", text))


def sentences(text: str) -> list[str]:
    """Its sentences; an item of a list is one at least, and a colon or semicolon ends none."""
    parts = [" ".join(part.split()) for part in _ITEM.split(prose(text))]
    return [one for part in parts for one in _END.split(part) if count(one)]


def count(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_its_sentences_are_short_and_plain(page):
    found = sentences(page.read_text(encoding="utf-8"))
    assert [one for one in found if count(one) > 30 or ODD.search(one)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_its_headings_are_in_order_and_its_images_described(page):
    text = _HIDDEN.sub("", page.read_text(encoding="utf-8"))
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels.count(1) == 1 == levels[0]
    assert all(level <= before + 1 for before, level in pairwise(levels))
    assert all(len(alt.split()) >= 3 for alt in re.findall(r"!\[([^]]*)\]", text))


def test_a_long_sentence_and_a_give_away_are_found():
    page = "# Told\n\nAn `a b c` of [two words](x.md), e.g. 3 × 4: it ends. Next\n\n- one\n- nobody\n\n| dealt | x |\n"
    assert sentences(page) == ["An CODE of two words, e.g. 3 × 4: it ends", "Next", "- one", "- nobody"]
    assert [count(one) for one in sentences(page)] == [10, 1, 1, 1]
    assert [bool(ODD.search(one)) for one in sentences(page)] == [False, False, False, True]
    assert count(sentences("a " * 29 + "b;\nc.")[0]) == 31
