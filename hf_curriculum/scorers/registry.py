"""A scorer from a word or a mapping, as it is written on a command line or in a preset."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_curriculum.config import read_config
from hf_curriculum.scorers.base import Scorer


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
