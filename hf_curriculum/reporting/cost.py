"""What a run cost: the examples trained on, those scored beside, and the compute of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_curriculum.planning.describe import TRAINED

COSTS = ("examples", "examples_scored", "compute")
"""What a run's log and a recipe's results call them."""

COST_NOTE = f"Compute: 1 for a forward pass of an example, {TRAINED} to train on one; a reference's own once."


def cost_at(
    history: Sequence[Mapping[str, Any]],
    plan: Mapping[str, Any],
    step: int,
    *,
    decisions: Sequence[Mapping[str, Any]] = (),
    by_losses: bool = False,
) -> dict[str, int]:
    """The costs of the first `step` optimizer steps: as logged with the last of them, or else by the plan."""
    logged = next((entry for entry in reversed(history) if entry.get("step") == step and "examples" in entry), {})
    each = plan.get("candidates", 1)
    samples = step * plan["global_batch_size"] * each
    drawn = sum(min(max(samples - stage["first_sample"], 0), stage["draws"]) for stage in plan["stages"])
    examples = logged.get("examples", drawn // each)
    rounds = sum(entry["step"] < step for entry in decisions) if by_losses else 0
    scored = drawn * plan.get("forwards", 0) + rounds * plan["num_rows"]
    scored = logged.get("examples_scored", scored)
    compute = logged.get("compute", TRAINED * examples + scored)
    return {"examples": examples, "examples_scored": scored, "compute": compute}


def scores_while_training(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some run scored examples beside those that it trained on."""
    return any(run.get("examples_scored") for run in runs)
