from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ["base", "add", "attach", "captions", "join", "keys", "nouns", "per_image", "side_file", "taggers", "text"]


@pytest.mark.parametrize("module", [f"scorers.{name}" for name in MODULES] + ["provenance"])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(f"hf_curriculum.{module}")).failed == 0
