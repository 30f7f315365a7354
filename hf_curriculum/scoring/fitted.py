"""What a scorer has fitted, shared by processes as a JSON file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_curriculum.config import parse_json, write_atomically

FITTED = "fitted.json"
"""The file with what a scorer has fitted."""


def write_fitted(folder: Path, attributes: Mapping[str, Any]) -> None:
    """Writes fitted attributes as JSON, arrays in base64: reading them runs no code, whoever wrote the file."""
    content = {name: _to_json(value, name) for name, value in attributes.items()}
    write_atomically(folder / FITTED, json.dumps({"format": 1, "attributes": content}))


def read_fitted(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The attributes that `write_fitted` wrote."""
    file = folder / FITTED
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        found = {name: _from_json(value) for name, value in content["attributes"].items()}
        format_ = content["format"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file} cannot be read ({error!r:.200}), so what the scorer has fitted is not known. Delete {folder}: "
            "the scorer is fitted again."
        ) from error
    if format_ != 1 or set(found) != set(names):
        raise ValueError(
            f"{file} has the format {format_!r} and the attributes {sorted(found)}; the scorer needs the format 1 and "
            f"{sorted(names)}. Another version wrote it. Delete {folder}: the scorer is fitted again."
        )
    return {name: found[name] for name in names}


def _to_json(value: Any, name: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_to_json(item, name) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [_to_json(item, name) for item in (value if kind is tuple else sorted(value))]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _to_json(item, name) for key, item in value.items()}}
    if kind is dict:
        return {"items": [[_to_json(key, name), _to_json(item, name)] for key, item in value.items()]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": content, "dtype": value.dtype.str, "shape": value.shape, "scalar": kind is not np.ndarray}
    raise TypeError(
        f"The fitted attribute `{name}` holds a {kind.__module__}.{kind.__qualname__}, and what processes share is "
        "kept as JSON: numbers, texts, NumPy arrays, and lists, tuples, sets and dictionaries of such. Keep one of "
        "these, or call `scorer.fit(dataset)` before, in every process: then nothing is written."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        content = np.frombuffer(bytearray(base64.b64decode(value["array"])), np.dtype(value["dtype"]))
        content = content.reshape(value["shape"])
        return content[()] if value["scalar"] else content
    ((kind, items),) = value.items()
    if kind == "dict":
        return {key: _from_json(item) for key, item in items.items()}
    if kind == "items":
        return {_from_json(key): _from_json(item) for key, item in items}
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(_from_json, items))
