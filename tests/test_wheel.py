"""What is published is whole: the wheel runs the README's commands, the source distribution holds guides and tests."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parents[1]
readme = runpy.run_path(str(ROOT / "setup.py"))["readme"]

USE = """
import contextlib, runpy, sys
import hf_curriculum
print(hf_curriculum.__file__)
sys.argv[1:] = ["--help"]
with contextlib.suppress(SystemExit):
    runpy.run_module("hf_curriculum.recipes.babylm_git", run_name="__main__", alter_sys=True)
words = "recipe babylm_git --preset smoke --num_examples 60 --output_dir out --use_cpu True"
sys.argv = ["hf-curriculum", *words.split()]
runpy.run_module("hf_curriculum.cli", run_name="__main__", alter_sys=True)
"""
"""Where the package lies, the help of a recipe in it, and its run."""


def run(*command, folder, path=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, [path])))}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and source distribution of what git tracks."""
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    run("-m", "build", "--no-isolation", "--outdir", out, source, folder=out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_runs_a_recipe_in_an_empty_folder(built, tmp_path):
    installed, folder = tmp_path / "installed", tmp_path / "empty"
    folder.mkdir()
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(installed)
        names = wheel.namelist()
    assert "hf_curriculum/py.typed" in names
    assert "hf_curriculum/__init__.pyi" in names
    assert not [name for name in names if "benchmarks/results" in name or name.startswith(("recipes", "tests"))]
    recipes = ROOT / "recipes"
    left_out = ("benchmarks", "examples", "__pycache__")  # which are of the repository
    wanted = {file for kind in ("py", "yaml") for file in recipes.rglob(f"*.{kind}")}
    wanted = {file.relative_to(recipes) for file in wanted if not set(left_out) & set(file.parts)}
    assert {f"hf_curriculum/recipes/{file.as_posix()}" for file in wanted} <= set(names)
    where, _, shown = run("-c", USE, folder=folder, path=installed).partition("\n")
    assert where.startswith(str(installed))
    assert shown.startswith("usage: hf-curriculum recipe babylm_git ")
    assert (folder / "out" / "report" / "report.html").is_file()


@pytest.mark.slow
def test_what_is_published_passes_the_checks_of_pypi(built):
    pytest.importorskip("twine")
    assert run("-m", "twine", "check", "--strict", *built, folder=built[0].parent).count("PASSED") == 2


@pytest.mark.slow
def test_the_source_distribution_is_whole(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    assert {name for name in tracked if not name.startswith(".git")} <= names


def test_links_of_the_readme_are_whole_on_pypi():
    text = "![A page](docs/a.png) [guides](docs/README.md), [paper](https://x.org/1), [tree](#the-tree)"
    kept = "[paper](https://x.org/1), [tree](#the-tree)"
    assert readme(text, None) == f" guides, {kept}"
    there = "https://host/me/repo"
    shown = readme(text, there)
    assert shown == f"![A page]({there}/raw/main/docs/a.png) [guides]({there}/blob/main/docs/README.md), {kept}"
    for repository in (None, there):
        shown = readme((ROOT / "README.md").read_text(encoding="utf-8"), repository)
        assert not re.search(r"\]\((?!https://|#)", shown)
