"""What signal-paced rules share: metrics by name, improvement, and rounds that stay within a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping

_PREFIX = "eval_"


def metric_name(name: str) -> str:
    """A metric as `evaluate()` names it: `"loss"` is `"eval_loss"`, as in `metric_for_best_model`."""
    return name if name.startswith(_PREFIX) else _PREFIX + name


def is_greater_better(name: str, greater_is_better: bool | None) -> bool:
    """What was said, else that a loss should fall and anything else rise, as `transformers` assumes too."""
    return not name.endswith("loss") if greater_is_better is None else greater_is_better


def metric_value(metrics: Mapping[str, float], name: str, rule: str) -> float:
    """One metric of an evaluation.

    Args:
        metrics: what `evaluate()` returned.
        name: the metric, with or without `eval_`.
        rule: the curriculum that asks, for the message.

    Raises:
        ValueError: the metric is not there.
    """
    full = metric_name(name)
    if full not in metrics:
        raise ValueError(
            f"{rule} decides on {full!r}, and evaluate() returned {sorted(metrics)}: without it no decision can be "
            "taken. Return it from compute_metrics (with predict_with_generate=True if it needs generated text), or "
            "name another metric."
        )
    return float(metrics[full])


def improves(value: float, best: float | None, greater: bool, min_delta: float) -> bool:
    """Whether a metric value is better than the best so far by more than `min_delta`; NaN never is."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value - best > min_delta if greater else best - value > min_delta


def whole_steps(draws: float, global_batch_size: int) -> int:
    """Optimizer steps that draw at least so many examples."""
    return max(1, math.ceil(draws / global_batch_size - 1e-9))


def validate_partial_batches(rule: str, partial_batches: str) -> None:
    """Where every batch is full, a pass has no smaller batch of its own to end with.

    Raises:
        ValueError: `partial_batches="keep"` was asked for.
    """
    if partial_batches == "keep":
        raise ValueError(f"{rule}(partial_batches='keep') is not possible: every batch of it is full. Leave it out.")


def at_least(rule: str, **limits: tuple[float, float]) -> None:
    """Checks that each value is a finite number and at least its limit.

    Args:
        rule: the curriculum, for the message.
        limits: field → (value, smallest possible value).

    Raises:
        ValueError: one is not.
    """
    for name, (value, limit) in limits.items():
        if not limit <= value < math.inf:
            raise ValueError(f"{rule}({name}={value}) is not possible; {name} is at least {limit:g}.")
