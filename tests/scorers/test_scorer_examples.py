from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "add",
    "attach",
    "base",
    "captions",
    "concreteness",
    "join",
    "keys",
    "mentions",
    "neighbours",
    "nltk_words",
    "nouns",
    "per_image",
    "pos_tagger",
    "rarity",
    "side_file",
    "taggers",
    "text",
    "vectors",
]


@pytest.mark.parametrize("module", [f"scorers.{name}" for name in MODULES] + ["provenance"])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(f"hf_curriculum.{module}")).failed == 0
