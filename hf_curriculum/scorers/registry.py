"""A scorer from a word or a mapping, as it is written on a command line or in a preset."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_curriculum.config import read_config
from hf_curriculum.scorers.base import Scorer

_PLACE = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def import_named(given: str, table: MutableMapping[str, Any], base: type) -> None:
    """Makes `module:Class` a name of `table`, where `given` is one, or a mapping whose `type` is one."""
    name: Any = given.strip()
    if not _PLACE.fullmatch(name):
        try:
            name = read_config(given, "mapping").get("type")
        except ValueError:
            return  # what it is instead is looked up next
    if not isinstance(name, str) or not _PLACE.fullmatch(name):
        return
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever a person's own module raises
        raise ValueError(
            f"{name!r} names the module {module_name!r}, which cannot be imported from {os.getcwd()} or the installed "
            f"packages: {type(error).__name__}: {error}."
        ) from error
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        known = [
            item for item, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        ]  # fmt: skip
        where, wanted = getattr(module, "__file__", module_name), f"a subclass of `hf_curriculum.{base.__name__}`"
        if not hasattr(module, attribute):
            raise ValueError(f"{where} has no {attribute!r}. It has {known}; {wanted} is needed.")
        raise ValueError(f"{attribute!r} in {where} is {found!r}, and {wanted} is needed. It has {known}.")
    kind = getattr(found, "type", name)  # of a curriculum: what its checkpoints call it
    if table.get(kind, found) is not found:
        raise ValueError(
            f"{name} has the type {kind!r}, which is {table[kind].__name__}'s: its checkpoints would name that one. "
            f"Give {attribute} a `type` of its own."
        )
    table[name] = table[kind] = found


def scorer_from(value: str | Path | Mapping[str, Any] | Scorer) -> Scorer:
    """A scorer from its name, a mapping with its arguments, or JSON, YAML or a file that holds one.

    Args:
        value: a name of `SCORERS` ("noun_count"); a mapping of `type`, such a name, and the constructor's arguments
            (`{"type": "noun_count", "tags": ["NN", "NNP"]}`); the same as JSON or YAML; the path of a .json or .yaml
            file; or a scorer, which is returned as it is.

    Raises:
        ValueError: none of these, an unknown type or argument, or an argument that is missing.

    Example:
        >>> scorer_from('{"type": "caption_length", "easy": "high"}').easy
        'high'
        >>> scorer_from("{type: caption_length, name: words}").name
        'words'
    """
    from hf_curriculum.names import SCORERS  # it lists what is built here

    if isinstance(value, Scorer):
        return value
    mapping = read_config(value, "scorer", SCORERS)
    name = mapping.pop("type")
    cls = SCORERS[name]
    if not (isinstance(cls, type) and issubclass(cls, Scorer)):
        raise ValueError(f"The scorer {name!r} is {cls!r}, and a subclass of `hf_curriculum.Scorer` is needed.")
    known = inspect.signature(cls).parameters
    unknown = [argument for argument in mapping if argument not in known]
    if unknown:
        raise ValueError(f"`{unknown[0]}` is no argument of {cls.__name__}, which takes {', '.join(known)}.")
    needed = [argument for argument, about in known.items() if about.default is about.empty]
    missing = [argument for argument in needed if argument not in mapping]
    if missing:
        form = json.dumps({"type": name, **mapping, **dict.fromkeys(missing, "...")})
        raise ValueError(f"{cls.__name__} needs `{missing[0]}`, which says what scores the examples: {form}.")
    return cls(**mapping)
