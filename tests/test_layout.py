"""The walls of the house: who imports whom, how large its rooms are, and what importing costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import TrainingArguments

import hf_curriculum
from hf_curriculum import CurriculumTrainer, CurriculumTrainingArguments

ROOT = Path(hf_curriculum.__file__).parent
ORDER = [
    *(
        "names",
        "auto_classes",
        "words",
        "columns",
        "rng",
        "config",
        "files",
        "sealed_parquet",
        "shapes",
        "markdown",
        "html_table",
        "views",
    ),
    "provenance",
    *(
        "fingerprint",
        "parts",
        "claims",
        "remote",
        "data",
        "scored_shards",
        "scored_data",
        "scenes",
        "models",
        "scorers",
        "scoring",
    ),
    *("planning", "curricula", "streaming"),
    *("evaluation", "reporting", "hub", "training", "studies", "verify", "cli"),
]
"""The spine: each imports only from those before it, and from the files beside them."""

FILES = {
    ".".join(("hf_curriculum", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in FILES.items()}


def imported(module):
    """Modules of the package that one imports, at any depth of nesting, for type checkers alone too."""
    found = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & set(FILES) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(FILES) - {module}


def part(module):
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", [module for module in FILES if part(module)])
def test_a_part_imports_only_from_those_before_it(module):
    others = imported(module)
    if part(module) == "tasks":
        task = ".".join(module.split(".")[:3])
        assert not [other for other in others if part(other) == "tasks" and not f"{other}.".startswith(f"{task}.")]
        return
    allowed = {*ORDER[: ORDER.index(part(module)) + 1], *([""] if part(module) == "cli" else [])}
    assert {part(other) for other in others} <= allowed


def test_no_import_leads_back_to_where_it_began():
    edges = {module: imported(module) for module in FILES}
    while leaves := {module for module, others in edges.items() if not others & set(edges)}:
        edges = {module: others for module, others in edges.items() if module not in leaves}
    assert not edges, sorted(edges)


def loaded_by(module):
    """What importing a module imports of the package: late imports and those for type checkers left out."""
    found, left = {module}, [module]
    while left:
        trees = [TREES[left.pop()]]
        while trees:
            for node in ast.iter_child_nodes(trees.pop()):
                if isinstance(node, (ast.If, ast.Try, ast.With)) and "TYPE_CHECKING" not in ast.unparse(node):
                    trees.append(node)
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = {f"{node.module}.{alias.name}" for alias in node.names} & set(FILES) or {node.module}
                    new = (names & set(FILES)) - found
                    found |= new
                    left += new
    return found


def test_a_curriculum_is_trained_by_a_core_that_can_be_read():
    lines = [
        FILES[module].read_text(encoding="utf-8").count("\n") for module in loaded_by("hf_curriculum.training.trainer")
    ]
    assert sum(lines) <= 19_300
    ours = [base.__name__ for base in CurriculumTrainer.__mro__ if base.__module__.startswith("hf_curriculum.")]
    assert ours == ["CurriculumTrainer", "HubMixin"]
    own = {field.name for field in fields(CurriculumTrainingArguments)} - {f.name for f in fields(TrainingArguments)}
    declared = set(inspect.get_annotations(CurriculumTrainingArguments)) & own
    assert len(declared) <= 12
    assert len(hf_curriculum.__all__) <= 80


@pytest.mark.parametrize("module", FILES)
def test_files_and_functions_are_short(module):
    assert len(FILES[module].read_text(encoding="utf-8").splitlines()) <= 800
    for node in ast.walk(TREES[module]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            about = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
            assert node.end_lineno - node.lineno + 1 - about <= 60, node.name


def test_every_public_name_exists():
    for name in hf_curriculum.__all__:
        assert getattr(hf_curriculum, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Phase'"):
        hf_curriculum.Phase  # noqa: B018
    assert set(hf_curriculum.__all__) <= set(dir(hf_curriculum))


def test_what_makes_no_model_loads_no_framework_in_the_shell(tmp_path):
    data = Dataset.from_dict(
        {
            "caption": [f"a dog{' and a cat' * (row % 5)}" for row in range(40)],
            "image_id": [f"{n // 2}" for n in range(40)],
        }
    )
    scored = hf_curriculum.add_scores(data, hf_curriculum.CaptionLength(), per_image="max")
    hf_curriculum.save_scored(scored, tmp_path / "scored")
    program = (
        "import sys; sys.argv[0] = 'hf-curriculum'; from hf_curriculum.cli import app\n"
        "for words in (['plan'], ['inspect'], ['push', 'me/name', '--dry-run'], ['space', sys.argv[2]]):\n"
        "    app([words[0], sys.argv[1], *words[1:]], standalone_mode=False)\n"
        "    heavy = ['torch', 'transformers', 'scipy.stats'] + ['matplotlib'] * (words[0] == 'plan')\n"
        "    print('loaded', sorted(set(heavy) & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, *map(str, (tmp_path / "scored", tmp_path / "out"))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line for line in found.stdout.splitlines() if line.startswith("loaded")] == ["loaded []"] * 4
