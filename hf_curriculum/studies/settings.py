"""Settings of a recipe: a dataclass, filled from a preset file and overridden from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hf_curriculum.config import read_yaml
from hf_curriculum.names import CURRICULA

Settings = TypeVar("Settings")


def read_preset(name_or_file: str, folder: Path) -> dict[str, Any]:
    """The fields of a preset.

    A preset may begin from another one, `base: paper`, by its name or a path from the preset's own folder
    (`base: ../babylm_git/paper`), or from several, `base: [embedded, ../babylm/smoke]`: where two of them have a field
    the later one's holds, and the preset's own fields hold against all of them.

    Args:
        name_or_file: the name of a file in `folder` without its ending, or else a file.
        folder: where the recipe's presets are.

    Raises:
        ValueError: there is no such preset, or it is not a mapping.
    """
    path = folder / f"{name_or_file}.yaml"
    if not path.is_file():
        path = Path(name_or_file)
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ValueError(f"The preset {name_or_file!r} is neither a file nor one of {names} in {folder}.")
    values = read_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"The preset {path} is not a mapping of fields to values.")
    bases = values.pop("base", None) or []
    whole: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else [bases]:
        whole |= read_preset(base, path.parent)
    return whole | values


def parse_settings(
    kind: type[Settings], folder: Path, *, default: str, argv: Sequence[str] | None = None, description: str = ""
) -> tuple[Settings, argparse.Namespace]:
    """A recipe's command line: `--preset NAME_OR_FILE`, and `--field value` for any field of its settings.

    Args:
        kind: the settings' dataclass; its docstring's `Args` describe the fields.
        folder: where the recipe's presets are.
        default: the preset taken when none is named.
        argv: the command line; the process's own by default.
        description: shown by `--help`.

    Returns:
        the settings, and the options every recipe has: `preset`, `output_dir`, `seeds`, `grid` (field -> values),
        `compare` or `control`.

    Raises:
        SystemExit: the command line cannot be read; argparse has said why.
        ValueError: the preset does not exist, or has a field the settings lack.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=default, help=f"a preset's name or file (default: {default})")
    parser.add_argument("--output_dir", default=None, help="where results go (default: outputs/RECIPE/PRESET)")
    parser.add_argument(
        "--seeds", type=_whole_numbers, nargs="+", default=[[0]], help="one run per seed: 0,1,2 (default: 0)"
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=A,B",
        help="one run per value of a field of the preset; may be given for several fields",
    )
    without = parser.add_mutually_exclusive_group()
    without.add_argument("--compare", action="store_true", help="also train the i.i.d. control at the same seeds")
    without.add_argument(
        "--control", action="store_true", help="train the i.i.d. control alone, in place of the curriculum"
    )
    hints = get_type_hints(kind)
    readers = {item.name: _reader(hints[item.name]) for item in dataclasses.fields(kind)}
    notes = _notes(kind)
    group = parser.add_argument_group("fields of the preset, each in place of the preset's value")
    for item in dataclasses.fields(kind):
        group.add_argument(
            f"--{item.name}", type=readers[item.name], default=argparse.SUPPRESS, help=notes.get(item.name)
        )
    options = parser.parse_args(argv)
    options.seeds = [seed for seeds in options.seeds for seed in seeds]
    try:
        options.grid = _read_grid(options.grid, readers)
    except (argparse.ArgumentTypeError, ValueError) as error:
        parser.error(f"argument --grid: {error}")
    values = read_preset(options.preset, folder)
    known = {item.name for item in dataclasses.fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"The preset {options.preset!r} has fields this recipe does not know: {unknown}.")
    given = {name: vars(options).pop(name) for name in known & set(vars(options))}
    return kind(**{**values, **given}), options


def _whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _read_grid(texts: Sequence[str], readers: dict[str, Any]) -> dict[str, list[Any]]:
    """Each `field=a,b` as the field and its values."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in readers:
            raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=A,B with one of the fields {sorted(readers)}")
        if name in grid:
            raise argparse.ArgumentTypeError(f"{name!r} is given twice; put all its values into one --grid {name}=A,B")
        grid[name] = [readers[name](part.strip()) for part in _split(values)]
    return grid


def _split(text: str) -> list[str]:
    """The parts between commas; those within braces and brackets separate nothing."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _reader(hint: Any) -> Any:
    """How a field's value is read from text: JSON or YAML for mappings (or a curriculum's name), words for truth."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    optional = type(None) in kinds
    kind = next((get_origin(kind) or kind for kind in kinds if kind is not type(None)), str)

    def read(text: str) -> Any:
        if optional and text.lower() in ("none", "null"):
            return None
        if kind is bool:
            if text.lower() not in ("true", "false"):
                raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
            return text.lower() == "true"
        if kind is dict:
            parsed = {"type": text} if text in CURRICULA else read_yaml(text)
            if not isinstance(parsed, dict):
                raise argparse.ArgumentTypeError(f"{text!r} is not a mapping, such as {json.dumps({'type': 'iid'})!r}")
            return parsed
        return kind(text)

    return read


def _notes(kind: type) -> dict[str, str]:
    """The fields' descriptions in the `Args` part of a docstring."""
    notes: dict[str, str] = {}
    name = None
    _, _, part = (kind.__doc__ or "").partition("Args:")
    for line in part.splitlines():
        if not line.strip():
            if notes:
                break
            continue
        head, colon, text = line.strip().partition(": ")
        if colon and head.isidentifier():
            name = head
            notes[name] = text.replace("%", "%%")
        elif name is not None:
            notes[name] += " " + line.strip().replace("%", "%%")
    return notes
