"""The page of the recipes' flags: every field of version 0.1 is listed, and every flag and command named exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import babylm_flamingo
import babylm_git
import pages as PAGES
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipe_flags.md").read_text(encoding="utf-8")
_, FLAGS, COMMANDS = re.split(r"^## (?:Flags|Commands) of version 0\.1$", PAGE, flags=re.MULTILINE)


def rows(section):
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    return [tuple(row) for row in cells if "`" in row[0]]


def test_every_field_of_version_0_1_has_its_flag():
    record = ROOT / "tests/fixtures/version_0_1_0/recipe_smoke/babylm_git/curriculum-seed0/result.json"
    listed = {name: now for cell, now in rows(FLAGS) for name in re.findall(r"--(\w+)", cell)}
    fields = set(json.loads(record.read_text())["settings"])
    assert len(fields) == 55
    assert fields == set(listed) - {"preset", "output_dir", "seeds", "grid", "compare", "control"}
    for parser in (babylm_git.PARSER, babylm_flamingo.PARSER):
        flags = set(parser._option_string_actions)
        for name, now in listed.items():
            for flag in re.findall(r"--\w+", now) or [f"--{name}"]:
                assert flag in flags, (name, flag)


@pytest.mark.parametrize(("before", "now"), rows(COMMANDS))
def test_every_command_has_a_successor_that_exists(before, now):
    PAGES.check_command((before if now == "the same" else now).strip("`"))


def test_commands_in_blocks_and_docstrings_exist():
    named = list(PAGES.commands(PAGE))
    assert len(named) == 4
    for recipe in (babylm_git, babylm_flamingo):
        own = [line.partition("  #")[0].strip() for line in recipe.__doc__.splitlines() if "accelerate" in line]
        assert len(own) >= 8
        named += own
    for command in named:
        PAGES.check_command(command)
