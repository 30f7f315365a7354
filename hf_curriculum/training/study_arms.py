"""The arms of a study: named settings, spread over a grid, each with its control."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]


def grid_arms(
    settings: Settings,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    name: str = "settings",
    control: Settings | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Settings spread over a grid, and their controls.

    Args:
        settings: every setting of a run.
        grid: field -> the values it takes; all combinations are made, the last field turning fastest.
        name: of the only arm where there is no grid.
        control: fields and values that turn an arm into its control, such as `{"curriculum": {"type": "iid"}}`; they
            hold against the grid too, so a grid over curricula has one control. None makes no controls.

    Returns:
        arm -> its settings, controls last; and arm -> its control, by names.

    Raises:
        ValueError: a field of the grid has no values, is none of the settings, or two of its values look alike.

    Example:
        >>> arms, controls = grid_arms({"lr": 1, "rule": "a"}, {"lr": [1, 2]}, control={"rule": "iid"})
        >>> list(arms), controls["lr=2"]
        (['lr=1', 'lr=2', 'control, lr=1', 'control, lr=2'], 'control, lr=2')
    """
    grid = dict(grid or {})
    for field, values in grid.items():
        if field not in settings:
            raise ValueError(f"The grid names {field!r}, which is none of the settings: {sorted(settings)}.")
        if not values:
            raise ValueError(f"The grid gives {field!r} no values, so there is nothing to run. Give `{field}=a,b`.")
    arms: dict[str, dict[str, Any]] = {}
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    names = [_name(point) or name for point in points]
    for arm, point in zip(names, points, strict=True):
        if arm in arms:
            raise ValueError(f"The grid holds {arm!r} twice. Every arm is trained once: leave one of them out.")
        arms[arm] = {**settings, **point}
    controls = {}
    if control is not None:
        for arm, point in zip(names, points, strict=True):
            kept = {field: value for field, value in point.items() if field not in control}
            controls[arm] = ", ".join(filter(None, ["control", _name(kept)]))
            arms[controls[arm]] = {**settings, **kept, **control}
    return arms, controls


def _name(point: Settings) -> str:
    return ", ".join(f"{field}={short(value)}" for field, value in point.items())


def short(value: Any) -> str:
    """A setting in few characters: `phases(num_phases=4, cut=value)` for the curriculum.

    Example:
        >>> short({"type": "growing", "initial": 0.1}), short(None), short(1e-5)
        ('growing(initial=0.1)', 'none', '1e-05')
    """
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name}={short(item)}" for name, item in value.items() if name != "type")
        if "type" not in value:
            return f"{{{rest}}}"
        return f"{value['type']}({rest})" if rest else str(value["type"])
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(short, value)) + "]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def settings_key(settings: Settings, seed: int) -> str:
    """What tells one run from another: a digest of all its settings and its seed, 12 hexadecimal digits.

    Raises:
        TypeError: a setting is nothing that JSON can hold.

    Example:
        >>> settings_key({"a": 1, "b": 2}, 0) == settings_key({"b": 2, "a": 1}, 0) != settings_key({"a": 1, "b": 2}, 1)
        True
    """
    try:
        text = json.dumps({"settings": plain(settings), "seed": seed}, sort_keys=True)
    except TypeError as error:
        raise TypeError(
            f"The settings cannot be written as JSON ({error}), so nobody could tell which run had them. Give "
            "numbers, texts, lists and mappings."
        ) from error
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def plain(value: Any) -> Any:
    """A value as strict JSON has it: arrays as lists, tuples as lists, and None for what is NaN or infinite."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, scalars too
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
