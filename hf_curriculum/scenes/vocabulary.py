"""The words of the embedded scenes: nouns, colours, sizes, textures, and how they are inflected."""

from __future__ import annotations

import re
from typing import NamedTuple

NOUNS = [
    "ball",
    "boat",
    "box",
    "car",
    "cup",
    "fish",
    "flower",
    "heart",
    "house",
    "kite",
    "moon",
    "star",
    "tree",
    "umbrella",
]
"""Singular nouns of everything that can stand in a scene, in alphabetical order."""
COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "black"]
TYPICAL_COLOURS = {
    "ball": ["red", "orange"],
    "boat": ["blue", "red"],
    "box": ["orange", "green"],
    "car": ["black", "blue"],
    "cup": ["purple", "black"],
    "fish": ["orange", "blue"],
    "flower": ["pink", "purple"],
    "heart": ["red", "pink"],
    "house": ["yellow", "blue"],
    "kite": ["green", "purple"],
    "moon": ["yellow", "black"],
    "star": ["yellow", "purple"],
    "tree": ["green"],
    "umbrella": ["pink", "black"],
}
"""The colours that most things of a noun have, as in the world: with a few hundred images to learn from, a model
needs more to go by than outlines."""
SIZES = ["small", "medium", "large"]
"""A medium object has no size word in captions."""
TEXTURES = ["plain", "striped", "spotted"]
"""A plain object has no texture word in captions."""
TAGS = frozenset({"CC", "CD", "DT", "EX", "IN", "JJ", "JJR", "NN", "NNS", "RB", "TO", "VBP", "VBZ", "WDT", ","})
"""Every Penn Treebank tag that a caption can carry."""
_IRREGULAR_PLURALS = {"fish": "fish", "box": "boxes"}
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


class Token(NamedTuple):
    """One word of a caption and its Penn Treebank tag."""

    word: str
    tag: str


def plural(noun: str) -> str:
    """The plural of one of `NOUNS`: `"box"` gives `"boxes"`, `"fish"` stays."""
    return _IRREGULAR_PLURALS.get(noun, noun + "s")


def number_word(count: int) -> str:
    """A count from 0 to 8 as a word."""
    return _NUMBERS[count]


def article(word: str) -> str:
    """`"an"` before a vowel letter, else `"a"`: right for every word that a caption can begin a noun phrase with."""
    return "an" if word[0] in "aeiou" else "a"


_SINGULAR = {form: noun for noun in NOUNS for form in (noun, plural(noun))}


def object_nouns(caption: str) -> set[str]:
    """The objects that a caption names, as singular nouns.

    Meant for exact-match recall: what a captioner names, against what the caption or the image holds. Words that
    name no object (`"background"`, `"left"`) are passed over.

    Args:
        caption: any text; upper case and punctuation do not matter.

    Returns:
        A subset of `NOUNS`.

    Example:
        >>> sorted(object_nouns("Two red boxes and a kite to the left of a tree."))
        ['box', 'kite', 'tree']
    """
    return {_SINGULAR[word] for word in re.findall(r"[a-z]+", caption.lower()) if word in _SINGULAR}


RGB = tuple[int, int, int]
COLOUR_RGB: dict[str, RGB] = {
    "red": (222, 62, 66),
    "orange": (244, 142, 44),
    "yellow": (250, 208, 56),
    "green": (62, 164, 92),
    "blue": (52, 120, 214),
    "purple": (132, 82, 186),
    "pink": (246, 142, 184),
    "black": (52, 54, 66),
}
"""The main colour of every colour word."""
FIXED_RGB: dict[str, RGB] = {
    "wood": (142, 98, 70),
    "stem": (106, 168, 96),
    "glass": (206, 230, 242),
    "cream": (250, 240, 222),
    "gold": (252, 196, 72),
    "ink": (50, 50, 62),
    "white": (255, 253, 248),
}
"""Paints of small parts, independent of the object's colour."""
BACKDROPS: dict[str, tuple[RGB, RGB]] = {
    "blue": ((232, 243, 251), (196, 220, 240)),
    "green": ((236, 246, 230), (200, 226, 196)),
    "pink": ((253, 238, 238), (244, 208, 216)),
    "yellow": ((254, 248, 226), (247, 228, 178)),
    "purple": ((243, 238, 250), (214, 202, 234)),
    "grey": ((246, 246, 246), (214, 217, 223)),
}
"""Upper left and lower right end of each gradient; captions call them pale."""


def mix(one: RGB, other: RGB, share: float) -> RGB:
    """A colour between two, `share` of the way from one to the other."""
    return tuple(int(a + (b - a) * share + 0.5) for a, b in zip(one, other, strict=True))


def paint(name: str, colour: str) -> RGB:
    """The paint of a part of an object of some colour."""
    main = COLOUR_RGB[colour]
    if name == "main":
        return main
    if name == "dark":
        return mix(main, (30, 20, 60), 0.28)
    if name == "light":
        return mix(main, (255, 255, 255), 0.5)
    return FIXED_RGB[name]
