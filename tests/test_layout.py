"""The walls of the house: who imports whom, and what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parent
ORDER = [
    "data",
    "models",
    "scorers",
    "generation",
    "ordering",
    "pacing",
    "evaluation",
    "hub",
    "training",
    "commands",
    "cli",
]
"""Each imports only from those before it, and from the files beside them."""


def imported(path: Path) -> set[str]:
    """Parts of the package that a file imports, at any depth of nesting."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    parts = {name.split(".")[1] for name in names if name.startswith("hf_curriculum.")}
    return parts & set(ORDER)


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_part_imports_only_from_those_before_it(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = ORDER[: ORDER.index(part) + 1] if part in ORDER else []
    assert imported(path) <= set(allowed)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_every_public_name_exists():
    for name in hf_curriculum.__all__:
        assert getattr(hf_curriculum, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Phase'"):
        hf_curriculum.Phase  # noqa: B018
    assert set(hf_curriculum.__all__) <= set(dir(hf_curriculum))


def test_importing_the_package_loads_nothing_heavy():
    heavy = {"torch", "transformers", "datasets", "matplotlib"}
    program = f"import sys, hf_curriculum; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
