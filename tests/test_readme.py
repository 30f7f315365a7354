"""The README says what is true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import hf_curriculum
from hf_curriculum import Phases, make_plan
from hf_curriculum.ordering import rank_scores

ROOT = Path(hf_curriculum.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plan_shown_is_the_plan_made():
    pairs_by_nouns = {2: 841_907, 3: 668_536, 5: 773_423, 6: 607_164}
    scores = np.repeat(np.array(list(pairs_by_nouns), np.float32), list(pairs_by_nouns.values()))
    plan = make_plan(Phases(4, 2, "value"), rank_scores(scores, name="noun_count"), global_batch_size=32)
    assert plan.describe() in README


def test_every_file_named_is_there():
    named = re.findall(r"(?:recipes|tests)/[\w/.]+\.py|\.ci/run", README + (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 4
    for path in named:
        assert (ROOT / path).is_file(), path


def test_the_tree_names_every_part_of_the_package():
    tree = README.partition("## The tree")[2]
    parts = {path.name for path in ROOT.joinpath("hf_curriculum").iterdir() if path.is_dir() and path.name[0] != "_"}
    for part in parts:
        assert f"{part}/" in tree, part


def test_options_in_commands_are_options():
    import ast

    recipe = ast.parse((ROOT / "recipes" / "babylm_git.py").read_text())
    settings = next(node for node in recipe.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    fields = {item.target.id for item in settings.body if isinstance(item, ast.AnnAssign)}
    known = fields | {"preset", "output_dir", "seeds", "compare"}
    commands = [
        line for line in README.splitlines() if "recipes/babylm_git.py" in line and line.startswith("accelerate")
    ]
    assert len(commands) >= 4
    for command in commands:
        options = re.findall(r"--(\w+)", command.partition("babylm_git.py")[2])
        assert set(options) <= known, command
