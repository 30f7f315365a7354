"""The study as it was written down."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

CONTROL = "control"


@dataclass(frozen=True)
class Plan:
    """What is run and how it is decided; each field is explained in the file."""

    photographs: dict[str, int]
    wrong: list[float]
    seeds: list[int]
    tuning_seeds: list[int]
    lengths: list[int]
    more_lengths: list[int]
    learning_rates: list[float]
    text: dict[str, int]
    training: dict[str, Any]
    cross_fit_steps: int
    arms: dict[str, dict[str, Any]]
    decision: dict[str, Any]
    resamples: int
    small: dict[str, Any]
    tower: dict[str, Any] | None = None
    captioner: dict[str, Any] | None = None
    reading: dict[str, Any] | None = None

    def shortened(self) -> Plan:
        """The small share: other values of some fields, and some of the arms."""
        changed = {**self.small, "arms": {name: self.arms[name] for name in self.small["arms"]}}
        return replace(self, **changed)

    def arms_at(self, wrong: float) -> dict[str, dict[str, Any]]:
        """The arms at that share of wrong captions, with the shares that they keep as numbers."""
        found = {}
        for name, arm in self.arms.items():
            own = copy.deepcopy(arm)
            if wrong not in own.pop("wrong", self.wrong):
                continue
            rule = own.get("curriculum", {})
            if "keep" in rule:
                rule["keep"] = _share(rule["keep"], 1 - wrong)
            if wrong == 0 and own.get("score", "").startswith("oracle"):
                continue  # nothing is wrong, so nothing tells what is
            if rule.get("keep") != "auto" and rule.get("keep", 0) >= 1:
                continue
            found[name] = own
        return found

    def lengths_of(self, arm: str) -> list[int]:
        """The lengths that it is trained for."""
        return [*self.lengths, *(self.more_lengths if arm == CONTROL else [])]


def read_plan(file: Path) -> Plan:
    """The plan in a file.

    Raises:
        ValueError: the file has other fields than a plan has.
    """
    given = yaml.safe_load(file.read_text(encoding="utf-8"))
    needed = {one.name for one in fields(Plan) if one.default is MISSING}
    if not isinstance(given, Mapping) or not needed <= set(given) <= {one.name for one in fields(Plan)}:
        found = sorted(given) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(
            f"{file} has {found}. A plan has the fields {sorted(needed)}: write all of them, and no other."
        )
    plan = Plan(**given)
    if CONTROL not in plan.arms or plan.arms[CONTROL]:
        raise ValueError(f"The arms of {file} need one named {CONTROL!r} without a score or a curriculum.")
    return plan


def _share(given: Any, right: float) -> float | str:
    """`keep` as a number, or "auto"."""
    if given == "auto" or isinstance(given, float):
        return given
    found = re.fullmatch(r"right(?: ([+-]) ([\d.]+))?", str(given))
    if found is None:
        raise ValueError(f"keep={given!r} is neither a share, 'auto', 'right', 'right + S' nor 'right - S'.")
    off = float(f"{found[1]}{found[2]}") if found[1] else 0.0
    return round(right + off, 6)
