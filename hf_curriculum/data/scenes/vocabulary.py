"""The words of the embedded scenes: nouns, colours, sizes, textures, and how they are inflected."""

from __future__ import annotations

import re
from typing import NamedTuple

NOUNS = [
    "apple",
    "ball",
    "boat",
    "box",
    "car",
    "cup",
    "fish",
    "flower",
    "hat",
    "heart",
    "house",
    "kite",
    "leaf",
    "moon",
    "mushroom",
    "star",
    "tree",
    "umbrella",
]
"""Singular nouns of everything that can stand in a scene, in alphabetical order."""

COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "black"]
SIZES = ["small", "medium", "large"]
"""A medium object has no size word in captions."""
TEXTURES = ["plain", "striped", "spotted"]
"""A plain object has no texture word in captions."""

TAGS = frozenset({"CC", "CD", "DT", "EX", "IN", "JJ", "JJR", "NN", "NNS", "RB", "TO", "VBP", "VBZ", "WDT", ","})
"""Every Penn Treebank tag that a caption can carry."""

_IRREGULAR_PLURALS = {"fish": "fish", "leaf": "leaves", "box": "boxes"}
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


class Token(NamedTuple):
    """One word of a caption and its Penn Treebank tag."""

    word: str
    tag: str


def plural(noun: str) -> str:
    """The plural of one of `NOUNS`: `"leaf"` gives `"leaves"`, `"fish"` stays."""
    return _IRREGULAR_PLURALS.get(noun, noun + "s")


def number(count: int) -> str:
    """A count from 0 to 8 as a word."""
    return _NUMBERS[count]


def article(word: str) -> str:
    """`"an"` before a vowel letter, else `"a"`: right for every word that a caption can begin a noun phrase with."""
    return "an" if word[0] in "aeiou" else "a"


_SINGULAR = {form: noun for noun in NOUNS for form in (noun, plural(noun))}


def object_nouns(caption: str) -> set[str]:
    """The objects that a caption names, as singular nouns.

    Meant for exact-match recall: what a captioner names, against what the caption or the picture holds. Words that
    name no object (`"background"`, `"left"`) are passed over.

    Args:
        caption: any text; upper case and punctuation do not matter.

    Returns:
        A subset of `NOUNS`.

    Example:
        >>> sorted(object_nouns("Two red leaves and a box to the left of a tree."))
        ['box', 'leaf', 'tree']
    """
    return {_SINGULAR[word] for word in re.findall(r"[a-z]+", caption.lower()) if word in _SINGULAR}
