"""Curricula, and the plans they make for a data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_curriculum.pacing.adaptive_guidance import AdaptiveGuidance
from hf_curriculum.pacing.baby_steps import BabySteps
from hf_curriculum.pacing.batches import BATCHES, Batches, ByImage, ByLength, ByNode
from hf_curriculum.pacing.controls import control_of
from hf_curriculum.pacing.curriculum import Budget, Curriculum, Observed
from hf_curriculum.pacing.filter import Filter
from hf_curriculum.pacing.growing import Growing
from hf_curriculum.pacing.guidance import GuidanceSchedule
from hf_curriculum.pacing.iid import IID
from hf_curriculum.pacing.node_sampling import NodeSampling
from hf_curriculum.pacing.phases import Phases
from hf_curriculum.pacing.plan import Plan, make_plan
from hf_curriculum.pacing.self_paced import SelfPaced
from hf_curriculum.pacing.staged import Staged
from hf_curriculum.pacing.stages import Stage
from hf_curriculum.pacing.weighted import Weighted
from hf_curriculum.yaml_text import read_yaml

CURRICULA: dict[str, type[Curriculum]] = {
    rule.type: rule
    for rule in (
        AdaptiveGuidance,
        BabySteps,
        Filter,
        Growing,
        GuidanceSchedule,
        IID,
        NodeSampling,
        Phases,
        SelfPaced,
        Staged,
        Weighted,
    )
}
"""Every curriculum by the name it has in JSON and YAML."""


def curriculum_from(value: Curriculum | Mapping[str, Any] | str | Path) -> Curriculum:
    """A curriculum from whatever a person may hold: the object, a mapping, a name, JSON or YAML text, or a file of it.

    Raises:
        ValueError: the text cannot be read, `type` is missing or unknown, or a field is not the curriculum's.

    Example:
        >>> curriculum_from('{"type": "phases", "num_phases": 3}')
        Phases(num_phases=3, epochs_per_phase=1, cut='rank', pools='cumulative', thresholds=None,
        steps_per_phase=None, \
easy=None, unscored='last', partial_batches='stream')
    """
    if isinstance(value, Curriculum):
        return value
    mapping = value if isinstance(value, Mapping) else _parse(value)
    name = mapping.get("type")
    if name not in CURRICULA:
        raise ValueError(f"The curriculum {dict(mapping)!r} has type {name!r}; the types are {sorted(CURRICULA)}.")
    return CURRICULA[name].from_dict(mapping)


def _parse(text: str | Path) -> Mapping[str, Any]:
    import yaml

    given = str(text).strip()
    if given in CURRICULA:
        return {"type": given}
    if given.endswith((".yaml", ".yml", ".json")):
        path = Path(given)
        if not path.is_file():
            raise ValueError(f"The curriculum file {given!r} does not exist.")
        given = path.read_text(encoding="utf-8")
    try:
        # JSON first: its tabs are no YAML.
        parsed = json.loads(given)
    except json.JSONDecodeError:
        try:
            parsed = read_yaml(given)
        except yaml.YAMLError as error:
            raise ValueError(
                f"The curriculum {given!r} is neither a name of {sorted(CURRICULA)}, nor a file, nor JSON or YAML: "
                f"{error}"
            ) from error
    if not isinstance(parsed, Mapping):
        raise ValueError(
            f"The curriculum {given!r} is neither a name of {sorted(CURRICULA)}, nor a file, nor a mapping with a "
            "`type`."
        )
    return parsed


__all__ = [
    "BATCHES",
    "CURRICULA",
    "IID",
    "AdaptiveGuidance",
    "BabySteps",
    "Batches",
    "Budget",
    "ByImage",
    "ByLength",
    "ByNode",
    "Curriculum",
    "Filter",
    "Growing",
    "GuidanceSchedule",
    "NodeSampling",
    "Observed",
    "Phases",
    "Plan",
    "SelfPaced",
    "Stage",
    "Staged",
    "Weighted",
    "control_of",
    "curriculum_from",
    "make_plan",
]
