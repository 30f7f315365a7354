"""What the tests of README and guides share: code blocks that run, commands that exist; a helper, loaded by path."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import hf_curriculum

ROOT = Path(hf_curriculum.__file__).parent.parent
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SETUP = re.compile(r"<!-- setup\n(.*?)-->", re.DOTALL)
_STARTERS = ("hf-curriculum", "accelerate", "torchrun", "python", "pip", "pytest")


def blocks(text: str) -> list[tuple[str, str, str]]:
    """(language, what follows it, content) of every fenced block."""
    return [(language, rest.strip(), content) for language, rest, content in _FENCE.findall(text)]


def run_page(path: Path, slow: bool = False) -> types.ModuleType:
    """Runs a page's Python, in order and in one namespace, and compares what it prints with the text blocks after it.

    Hidden code comes first, from comments that begin with `setup`. A block marked `python slow` runs if asked for. A
    `text` block right after a Python block is what that prints: each of its lines, `…` standing for others.

    Args:
        path: of the page.
        slow: whether marked blocks run too.

    Returns:
        The namespace, as a module that stays importable, so that its classes can be pickled.
    """
    text = path.read_text(encoding="utf-8")
    module = types.ModuleType(f"guide_{path.stem}")
    sys.modules[module.__name__] = module
    for setup in _SETUP.findall(text):
        exec(compile(setup, f"{path.name} (setup)", "exec"), vars(module))
    printed = None
    for language, mark, content in blocks(text):
        if language == "python" and (slow or mark != "slow"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(content, path.name, "exec"), vars(module))
            printed = [" ".join(line.split()) for line in out.getvalue().splitlines()]
            continue
        if language == "text" and printed is not None:
            for line in content.splitlines():
                assert line.strip() in ("…", "") or " ".join(line.split()) in printed, (path.name, line, printed)
        printed = None
    return module


def commands(text: str) -> Iterator[str]:
    """The commands in a page's blocks without a language or of `sh`, comments and prompts taken off."""
    for language, _, content in blocks(text):
        if language in ("", "sh"):
            for line in content.replace("\\\n", " ").splitlines():
                words = line.removeprefix("$ ").partition("  #")[0].strip()
                if words.split(" ")[0] in _STARTERS:
                    yield from (part.strip() for part in words.split("&&"))


def check_command(command: str) -> None:
    """A command of ours, or one that launches ours, names files, sub-commands and options that exist."""
    words = shlex.split(command)
    if words[0] in ("pip", "pytest"):
        return
    if words[0] != "hf-curriculum":
        words = _launched(words)
    if words[:2] == ["hf-curriculum", "recipe"]:
        words = [f"recipes/{words[2]}.py", *words[3:]]
    if words[0] == "hf-curriculum":
        known = _cli_options(words[1])
        given = [word.partition("=")[0] for word in words[2:] if word.startswith("--")]
    else:
        assert (ROOT / words[0]).is_file(), f"{words[0]} is named, and not there"
        known = _recipe_options(words[0])
        given = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    assert set(given) <= known, f"{command}: {sorted(set(given) - known)} are no options"


def _launched(words: list[str]) -> list[str]:
    """The script (or our command) that a launcher starts, and what is given to it; the launcher's options exist."""
    known: set[str] = set()
    if words[:2] == ["accelerate", "launch"]:
        from accelerate.commands.launch import launch_command_parser

        known, words = set(launch_command_parser()._option_string_actions), words[2:]
    elif words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        known, words = set(get_args_parser()._option_string_actions), words[1:]
    else:
        words = words[1:]
    at = next(place for place, word in enumerate(words) if word == "-m" or word.endswith(".py"))
    given = {word.partition("=")[0].replace("-", "_") for word in words[:at] if word.startswith("--")}
    assert given <= {name.replace("-", "_") for name in known}, (words, given)
    if words[at] != "-m":
        return words[at:]
    assert words[at + 1] == "hf_curriculum.cli", words
    return ["hf-curriculum", *words[at + 2 :]]


@cache
def _cli_options(name: str) -> set[str]:
    import typer

    from hf_curriculum.cli import app

    group = typer.main.get_command(app)
    found = {name: group.get_command(None, name) for name in group.list_commands(None)}
    assert name in found, f"hf-curriculum has no command {name!r}"
    own = {option for given in found[name].params for option in (*given.opts, *given.secondary_opts)} | {"--help"}
    if name == "train":  # takes the flags of `TrainingArguments` too
        from hf_curriculum import CurriculumTrainingArguments
        from hf_curriculum.studies.recipe import FlagParser

        own |= set(FlagParser([CurriculumTrainingArguments])._option_string_actions)
    return own


@cache
def _recipe_options(script: str) -> set[str]:
    """The options of a recipe, from its own parser."""
    from argparse import ArgumentParser

    seen: set[str] = set()

    def stop(parser: ArgumentParser, *_: object, **__: object) -> None:
        seen.update(parser._option_string_actions)
        raise SystemExit

    recipe = str(ROOT / script)
    with patch.object(sys, "path", [str(Path(recipe).parent), *sys.path]):
        parser = runpy.run_path(recipe).get("PARSER")
    if parser is not None:
        return set(parser._option_string_actions)
    with (
        patch.object(sys, "argv", [recipe]),
        patch.object(sys, "path", [str(Path(recipe).parent), *sys.path]),
        patch.object(ArgumentParser, "parse_args", stop),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_path(recipe, run_name="__main__")
    assert seen, f"{script} has no options"
    return seen
