"""Type checkers and editors know every public name and its signature."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import jedi
import pages as PAGES
import pytest
from transformers import Trainer

import hf_curriculum
from hf_curriculum import CurriculumTrainer

ROOT = Path(hf_curriculum.__file__).parents[1]
USE = """
from hf_curriculum import CurriculumTrainer, NoSuchThing, NounCount, Phases, Plan, add_scores
from hf_curriculum.tasks.captioning import caption_metrics
from datasets import Dataset

def scored(data: Dataset) -> Dataset:
    return add_scores(data, NounCount())

reveal_type(Phases(num_phases=3))
Phases(num_phasess=3)
CurriculumTrainer(train_datasets=None, scores="text")
caption_metrics(1)
"""


def run(*command, **options):
    """A checker's output, with this checkout found first."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "MYPYPATH": str(ROOT)}
    command = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


def test_stubs_are_those_of_the_table():
    stubs = runpy.run_path(str(ROOT / "docs" / "update_tables.py"))["stubs"]()
    assert {path.relative_to(ROOT) for path in stubs} == {path.relative_to(ROOT) for path in ROOT.rglob("*.pyi")}
    for path, content in stubs.items():
        assert path.read_text(encoding="utf-8") == content, f"{path}: run `python docs/update_tables.py`"
    offered = re.findall(r" as (\w+)$", stubs[ROOT / "hf_curriculum" / "__init__.pyi"], re.MULTILINE)
    assert offered == hf_curriculum.__all__


def test_a_stub_names_a_module_that_defines_what_it_offers():
    for path in ROOT.glob("hf_curriculum/tasks/*/__init__.pyi"):
        package = import_module(".".join(path.parent.relative_to(ROOT).parts))
        for name in re.findall(r" as (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert getattr(package, name) is not None, (path, name)


def test_the_trainer_has_the_signature_of_trainer():
    ours, stock = (inspect.signature(one).parameters for one in (CurriculumTrainer, Trainer))
    assert list(ours)[: len(stock)] == list(stock)
    assert list(ours)[len(stock) :] == ["scores", "kwargs"]
    assert ours["args"].annotation == "TrainingArguments | None"  # stock ones train without a curriculum


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("import hf_curriculum\nhf_curriculum.Curr", {"Curriculum", "CurriculumTrainer", "CurriculumSampler"}),
        ("from hf_curriculum import Curr", {"Curriculum", "CurriculumTrainer", "CurriculumTrainingArguments"}),
        ("from hf_curriculum.tasks.detection import Wsd", {"WsddnConfig", "WsddnForObjectDetection"}),
    ],
)
def test_an_editor_completes_names(typed, known):
    lines = typed.splitlines()
    found = {one.name for one in jedi.Script(typed, project=jedi.Project(ROOT)).complete(len(lines), len(lines[-1]))}
    assert known <= found


@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        ("Phases(", {"num_phases", "epochs_per_phase", "cut", "easy"}),
        ("CurriculumTrainer(", {"model", "args", "train_dataset", "callbacks", "scores"}),
        ("make_plan(", {"curriculum", "global_batch_size", "seed"}),
    ],
)
def test_an_editor_shows_signatures(call, parameters):
    text = f"from hf_curriculum import {call[:-1]}\n{call}"
    (found,) = jedi.Script(text, project=jedi.Project(ROOT)).get_signatures(2, len(call))
    assert parameters <= {one.name for one in found.params}


STRICT = ("--strict", "--allow-untyped-defs", "--allow-untyped-calls", "--allow-subclassing-any")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says of `USE` and of each page, in one run."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "use.py").write_text(USE)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = page.read_text(encoding="utf-8")
        shown = [content for language, _, content in PAGES.blocks(text) if language == "python"]
        if shown:
            hidden = re.findall(r"<!-- setup\n(.*?)-->", text, re.DOTALL)
            (folder / f"{page.stem.lower()}_page.py").write_text("\n".join([*hidden, *shown]), encoding="utf-8")
    done = run("mypy", *STRICT, "--config-file", ROOT / "pyproject.toml", *sorted(folder.glob("*.py")))
    assert "checked" in done.stdout, done.stdout + done.stderr
    ours, pages = [], []
    for line in done.stdout.splitlines():
        (ours if "use.py:" in line else pages).append(line)
    return "\n".join(ours), pages


@pytest.mark.slow
def test_a_checker_finds_wrong_names_and_arguments(checked):
    found, _ = checked
    assert 'Module "hf_curriculum" has no attribute "NoSuchThing"' in found
    assert 'Unexpected keyword argument "num_phasess" for "Phases"' in found
    assert 'Revealed type is "hf_curriculum.curricula.phases.Phases"' in found
    assert 'Argument "scores" to "CurriculumTrainer" has incompatible type' in found
    assert 'Argument 1 to "caption_metrics" has incompatible type' in found
    assert "error: Incompatible return" not in found


PAGES_OWN = re.compile(
    r"\| DatasetDict|for \"dict\[str, list\[str\]\]\"|\"\*\*dict\[str, "
    r"|Argument 1 to \"DataLoader\"|Need type annotation for|variable has type \"NodeSampling\""
    r"|Invalid self argument \"_BaseModelWithGenerate\" to attribute function \"generate\""
)
"""Not of our making: `datasets` cannot say whether a source has splits, and its `Dataset` is not one of `torch`; the
Auto classes of `transformers` promise models whose `generate` they type wrongly; pages collect options in a plain
dict, and use a name twice."""


@pytest.mark.slow
def test_what_the_pages_show_passes_a_strict_checker(checked):
    _, pages = checked
    errors = [line for line in pages if ": error: " in line and not PAGES_OWN.search(line)]
    assert errors == [], "\n".join(errors)


@pytest.mark.slow
def test_the_types_of_all_public_names_are_known():
    found = run(
        "pyright", "--pythonpath", sys.executable, "--verifytypes", "hf_curriculum", "--ignoreexternal", "--outputjson"
    )
    score = json.loads(found.stdout)["typeCompleteness"]["completenessScore"]
    assert score >= 0.95
