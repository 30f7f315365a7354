"""What is measured of a run of `time_to_quality.py`, and what it had cost until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

FORWARD, TRAINED = 1, 3
"""Compute of one pair, in forward passes."""
LAST = 4
"""Evaluations whose mean counts as where a run ends."""


def picture_numbers(own: torch.Tensor, other: torch.Tensor, tokens: torch.Tensor) -> dict[str, float]:
    """Loss, grounding and share of right pictures, of each caption's loss per token with either picture."""
    weights = tokens / tokens.sum()
    loss = float((own * weights).sum())
    return {
        "loss": loss,
        "grounding": float((other * weights).sum()) - loss,
        "right_pictures": float((own < other).float().mean()),
    }


def curve_of(log: Sequence[Mapping[str, Any]], every: int, before: int) -> list[dict[str, float]]:
    """What a run had reached at its evaluations, and what it had cost until then."""
    curve = {}
    for entry in log:
        if "eval_loss" in entry and entry["step"] % every == 0:
            cost = TRAINED * entry["examples"] + FORWARD * entry.get("examples_scored", 0) + before
            names = [name for name in ("loss", "grounding", "right_pictures") if f"eval_{name}" in entry]
            numbers = {name: entry[f"eval_{name}"] for name in names}
            curve[entry["step"]] = {"examples": entry["examples"], "compute": cost, **numbers}
    return [curve[step] for step in sorted(curve)]


def last_evaluations(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Those whose mean counts as where a run ends; that before the first step is none of them."""
    return [point for point in curve if point["examples"]][-LAST:]


def mismatched_chosen(draws: Mapping[int, np.ndarray], flags: np.ndarray) -> float:
    """The share of mismatched captions among what was trained on in the last quarter of a run's steps."""
    steps = list(draws.values())
    return float(np.mean(flags[np.concatenate(steps[-(-3 * len(steps) // 4) :])]))


def other_pictures(image_ids: Sequence[str]) -> list[int]:
    """For each row one of another image: the first such from half of the rows further on."""
    size = len(image_ids)
    if len(set(image_ids)) < 2:
        raise ValueError(
            f"The validation split has {size} captions of {len(set(image_ids))} picture: whether a caption fits its "
            "own better than another one cannot be measured. Give more pairs, `--num_pairs`."
        )
    return [
        next(j for k in range(size) if image_ids[j := (i + size // 2 + k) % size] != image_ids[i]) for i in range(size)
    ]
