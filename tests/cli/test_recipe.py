"""`hf-curriculum recipe`."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from hf_curriculum.cli import app
from hf_curriculum.cli.recipe import RECIPES, recipe_folder


@pytest.fixture(autouse=True)
def same_process(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_shows_its_own_flags(name):
    found = CliRunner().invoke(app, ["recipe", name, "--help"])
    assert found.exit_code == 0
    assert found.output.startswith(f"usage: hf-curriculum recipe {name} ")
    assert "--output" in found.output
    assert (recipe_folder() / f"{name}.py").is_file()


@pytest.mark.parametrize("name", ["babylm_git", "babylm_flamingo"])
def test_a_wrong_value_is_a_usage_error(name):
    found = CliRunner().invoke(app, ["recipe", name, "--preset", "smok"])
    assert isinstance(found.exception, SystemExit)
    assert found.exit_code == 2
    assert f"hf-curriculum recipe {name}: error: The preset 'smok' is neither a file nor one of" in found.output


def test_a_wrong_flag_and_a_wrong_name_are_usage_errors():
    found = CliRunner().invoke(app, ["recipe", "babylm_git", "--learning_speed", "1"])
    assert found.exit_code == 2
    assert "hf-curriculum recipe babylm_git: error: unrecognized arguments: --learning_speed" in found.output
    assert "All flags: hf-curriculum recipe babylm_git --help" in found.output
    found = CliRunner().invoke(app, ["recipe", "babylm_gti"])
    assert found.exit_code == 2
    assert "There is no recipe 'babylm_gti'" in found.output
