"""A plan as facts that can be written down and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_curriculum.ordering import Groups
from hf_curriculum.pacing.stages import Stage

if TYPE_CHECKING:
    from hf_curriculum.pacing.plan import Plan


def fingerprint_of(plan: Plan) -> dict[str, Any]:
    """What has to be the same for a checkpoint to be resumed."""
    scores = plan.ranking.scores
    columns = dict(sorted(plan.digests.items()))
    return {
        "curriculum": plan.curriculum.to_dict(),
        "score_column": plan.ranking.name,
        "easy": plan.ranking.easy,
        "num_rows": plan.ranking.num_rows,
        "scores": None if scores is None else digest_of(scores),
        **({"columns": columns} if columns else {}),
        "global_batch_size": plan.global_batch_size,
        "seed": plan.seed,
        "num_steps": plan.max_steps,
    }


def facts_of(plan: Plan) -> dict[str, Any]:
    """The fingerprint and the table of stages; slots are counted over the run, `last_slot` and pools inclusive."""
    unit = plan.layout.unit
    rows = [
        {
            "name": stage.name,
            "rule": stage.rule,
            "pool": stage.pool_size,
            "new": new,
            "epochs": stage.epochs,
            "draws": stage.num_draws * unit,
            "first_slot": start,
            "last_slot": start + stage.num_slots * unit - 1,
            "pools": [
                (start + first * unit, start + (last + 1) * unit - 1, pool) for first, last, pool in stage.pools()
            ],
        }
        for stage, start, new in zip(plan.stages, plan.stage_starts, plan.new_examples(), strict=False)
    ]
    return {**plan.fingerprint(), "num_filled": plan.num_filled, "num_draws": plan.num_draws, "stages": rows}


def new_examples_of(stages: Sequence[Stage]) -> list[int]:
    """Examples of each stage's pool that no earlier stage could draw."""
    seen: list[tuple[int, int]] = []
    fresh = []
    for stage in stages:
        before = _covered(seen)
        seen.extend(stage.slices)
        fresh.append(_covered(seen) - before)
    return fresh


def digest_of(values: np.ndarray | Groups) -> str:
    """A short name for the content of an array or of groups."""
    arrays = (values.starts, values.members) if isinstance(values, Groups) else (values,)
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    if isinstance(values, Groups) and values.names is not None:
        digest.update("\0".join(values.names).encode())
    return digest.hexdigest()


def _covered(slices: list[tuple[int, int]]) -> int:
    """How many ranks are in at least one of the slices."""
    total, behind = 0, 0
    for start, stop in sorted(slices):
        total += max(0, stop - max(start, behind))
        behind = max(behind, stop)
    return total
