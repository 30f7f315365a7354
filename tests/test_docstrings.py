"""The docstrings of public names: their examples print what they say, and they are in plain English."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import runpy
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
import typer

import hf_curriculum
from hf_curriculum import CurriculumTrainingArguments, names, tasks
from hf_curriculum.cli import app

ON_YOUR_OWN_DATA = {
    *("hub.data_card", "reporting.report", "scoring.sharded", "training.trainer"),
    *("streaming.dataset", "streaming.index", "streaming.plan", "streaming.save", "studies.study", "studies.tables"),
}
"""Modules whose examples show calls on files or data sets that a reader has."""

NEEDS = {
    **dict.fromkeys(("data.proposals", "scorers.visual.proposals", "tasks.detection.proposals"), "cv2"),
    "tasks.detection.model": "torchvision",
    "tasks.long_tail.generation.pixel_diffusion": "diffusers",
}
"""The packages that examples need and that are not always installed."""

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(hf_curriculum.__path__, "hf_curriculum.")
    if module.name.removeprefix("hf_curriculum.") not in {"cli.__main__", *ON_YOUR_OWN_DATA}
)


@pytest.mark.parametrize("name", MODULES)
def test_its_examples_hold(name):
    if needed := NEEDS.get(name.removeprefix("hf_curriculum.")):
        pytest.importorskip(needed)
    packages = [hf_curriculum]
    if name.startswith("hf_curriculum.tasks."):
        packages.append(importlib.import_module(".".join(name.split(".")[:3])))
    public = {name: getattr(package, name) for package in packages for name in package.__all__}
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs=public, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


ROOT = Path(hf_curriculum.__file__).parents[1]
ODD, count, sentences = map(runpy.run_path(str(ROOT / "tests" / "test_english.py")).get, ("ODD", "count", "sentences"))
_EXAMPLE = re.compile(r"^Example:\n(?:(?:    .*)?\n)*", re.MULTILINE)
_ENTRY = re.compile(r"^    [`*\w., ]+: |^[A-Z][A-Za-z ]+:$", re.MULTILINE)
"""Where an argument, an error or a section begins: each is prose of its own."""


def public_docstrings():
    """(name, docstring) of each public name, of the public methods of classes, and of the string below a constant."""
    homes = names.homes("hf_curriculum", names.PUBLIC)
    for task in pkgutil.iter_modules(tasks.__path__, "hf_curriculum.tasks."):
        homes |= names.homes(task.name, importlib.import_module(task.name).NAMES)
    for table in (names.SCORERS, names.CURRICULA, names.BATCHES, names.MODELS):
        homes |= {kind.__name__: kind.__module__ for kind in table.values()}
    for module in sorted(set(homes.values())):
        body = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")).body
        for node, below in pairwise([*body, None]):
            name = getattr(node, "name", getattr(getattr(node, "target", None), "id", None))
            if homes.get(name) != module:
                continue
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                yield name, below.value.value
                continue
            yield name, ast.get_docstring(node)
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and method.name[0] != "_" and ast.get_docstring(method):
                    yield f"{name}.{method.name}", ast.get_docstring(method)


def faults(text: str) -> list[str]:
    """Its sentences that are long or have a word that gives a translation away; examples are code."""
    prose = _ENTRY.sub("\n", _EXAMPLE.sub("", f"{inspect.cleandoc(text)}\n"))
    return [one for one in sentences(prose) if count(one) > 30 or ODD.search(one)]


def test_public_docstrings_are_short_and_plain():
    found = dict(public_docstrings())
    assert len(found) > 500
    assert {name: wrong for name, text in found.items() if (wrong := faults(text))} == {}
    assert [name for name, text in found.items() if len(text.splitlines()[0]) > 110] == []
    own = [name for name, text in found.items() if "." not in name and "Example:\n" not in text]
    assert own == ["BENCHMARKS"]  # a constant


def test_the_help_of_commands_and_arguments_is_short_and_plain():
    group = typer.main.get_command(app)
    commands = {name: group.get_command(None, name) for name in group.list_commands(None)}
    found = {name: [command.help] for name, command in commands.items()}
    for name, command in commands.items():
        found[name] += [getattr(parameter, "help", None) for parameter in command.params]
    own = inspect.get_annotations(CurriculumTrainingArguments)
    found["arguments"] = [field.metadata["help"] for field in fields(CurriculumTrainingArguments) if field.name in own]
    assert {
        (name, wrong) for name, texts in found.items() for text in texts if text for wrong in faults(text)
    } == set()


def test_a_long_sentence_of_an_argument_is_found():
    text = f"A word.\n\nArgs:\n    one: {'a ' * 20}\n    two, three: {'b ' * 31}\n\nExample:\n    >>> {'c ' * 40}\n"
    assert faults(text) == [" ".join("b" * 31)]
    assert faults("What nobody said.") == ["What nobody said."]
