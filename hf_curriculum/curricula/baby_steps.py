"""Baby steps: the next bucket joins the pool when a validation metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hf_curriculum.config import at_least
from hf_curriculum.planning.buckets import (
    Buckets,
    Cut,
    cut_buckets,
    uneven_buckets,
    validate_rows,
    validate_thresholds,
)
from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum, num_steps
from hf_curriculum.planning.deciding import Observed, Signal, is_greater_better, metric_name, metric_value
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage


@dataclass(frozen=True)
class BabySteps(SizedCurriculum):
    """Trains on the easiest bucket until a validation metric stops improving, then adds the next bucket.

    A round is one pass over the pool, rounded up to optimizer steps, and ends with an evaluation. When the metric has
    not improved for `patience` passes the next bucket joins, and the count and the best value are reset. The run is as
    long as its budget, and its last rounds are on everything. A bucket that has waited too long is forced in. This
    happens early enough for it and every later one to have `min_epochs` passes of their pools.

    Args:
        num_buckets: buckets, easiest first.
        patience: passes over the pool without improvement before the next bucket joins.
        metric: a metric that `evaluate()` returns, such as "loss" or "cider".
        greater_is_better: whether it should rise; None: a loss should fall, anything else rise.
        min_delta: the least change that counts as an improvement, in the metric's unit.
        min_epochs: passes over its pool that the budget reserves for each bucket that has not joined yet.
        cut: buckets of equal size by `"rank"`, or by `"value"` with ties kept together.
        thresholds: the inner thresholds as scores, with `cut="value"`; see `Phases`.
        epochs: the budget in passes over all examples; without it and `examples` the training arguments say.
        examples: the budget in examples.
        stop: whether the run ends early, once everything is in the pool and `patience` has run out again.
        easy: see `Curriculum`.
        unscored: see `Curriculum`.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: an argument is out of range, or the budget is too small to show every bucket.

    Source: Zhang et al. 2022 (Simi-CL) §3.2, after Spitkovsky et al. 2010; 5 buckets for COCO, 3 for Flickr30k. The
        patience is not published; resetting the best value, and the rule that forces buckets in, are ours.

    Example:
        >>> BabySteps(num_buckets=5, patience=3, metric="cider").to_dict()
        {'type': 'baby_steps', 'num_buckets': 5, 'metric': 'cider'}
    """

    type: ClassVar[str] = "baby_steps"
    signal: ClassVar[Signal] = "metrics"
    has_passes: ClassVar[bool] = False

    num_buckets: int = 4
    patience: int = 3
    metric: str = "loss"
    greater_is_better: bool | None = None
    min_delta: float = 0.0
    min_epochs: float = 1.0
    cut: Cut = "rank"
    thresholds: tuple[float, ...] | None = None
    epochs: float | None = None
    examples: int | None = None
    stop: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice("cut", ("rank", "value"))
        validate_thresholds(self.thresholds, self.num_buckets, self.cut)
        at_least(
            "BabySteps",
            num_buckets=(self.num_buckets, 2),
            patience=(self.patience, 1),
            min_delta=(self.min_delta, 0),
            min_epochs=(self.min_epochs, 0),
        )

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage per round."""
        buckets, batch, last = self._buckets(ranking), budget.global_batch_size, self.num_buckets - 1
        # The steps at which training on each bucket's pool has to end; the last is the run's end.
        limits = [*self._deadlines(buckets, ranking, budget)[1:], self.declared_steps(ranking, budget)]
        stages, bucket, step = [], 0, 0
        for number in range(len(log) + 1):
            final = bucket == last and not self.stop
            stopped = number < len(log) and log[number]["decision"] == "stop"
            end = limits[-1] if final else min(step + num_steps(buckets.ends[bucket], batch), limits[bucket])
            decides = not final and not stopped and end < limits[-1]
            rule = "all" if bucket == last else f"buckets 1 to {bucket + 1}" if bucket else "bucket 1"
            pool, draws = ((0, buckets.ends[bucket]),), (end - step) * batch
            stages.append(Stage(number, f"round {number + 1}", rule, pool, draws, decides=decides))
            if not decides or number == len(log):
                break
            step, bucket = end, log[number]["bucket"]
        return tuple(stages)

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """Stay with the pool, merge the next bucket because the metric no longer improves, or force it in."""
        bucket = log[-1]["bucket"] if log else 0
        value = metric_value(observed.metrics, self.metric, "BabySteps")
        greater = is_greater_better(self.metric, self.greater_is_better)
        since = [entry for entry in log if entry["pool_of"] == bucket]
        best = since[-1]["best"] if since else None
        gain = math.inf if best is None else value - best if greater else best - value
        better = not math.isnan(value) and gain > self.min_delta
        waited = 0 if better else (since[-1]["without_improvement"] if since else 0) + 1
        last = self.num_buckets - 1
        decision = "stay"
        if bucket == last:
            decision = "stop" if waited >= self.patience else "stay"
        elif waited >= self.patience:
            decision = "merge"
        elif observed.step >= self._deadlines(self._buckets(ranking), ranking, budget)[bucket + 1]:
            decision = "forced"
        return {
            "decision": decision,
            "bucket": bucket + (decision in ("merge", "forced")),
            "pool_of": bucket,
            "metric": self.metric,
            "value": value,
            # The last value that was an improvement, so that small ones add up.
            "best": value if better else best,
            "without_improvement": waited,
        }

    def describe_decision(self, entry: Mapping[str, Any]) -> str:
        """As "round 7: cider 0.841 (best 0.853, 3 passes without) → bucket 2 joins"."""
        waited, best = entry["without_improvement"], entry["best"]
        since = f"best {best:.4g}, " if best is not None else ""
        course = f"{since}{waited} {'pass' if waited == 1 else 'passes'} without" if waited else "the best so far"
        joining = {"merge": "joins", "forced": "is forced in"}.get(entry["decision"])
        result = f"bucket {entry['bucket'] + 1} {joining}" if joining else entry["decision"]
        return f"round {entry['round'] + 1}: {entry['metric']} {entry['value']:.4g} ({course}) → {result}"

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """The steps by which the buckets are forced in."""
        buckets = self._buckets(ranking)
        deadlines = self._deadlines(buckets, ranking, budget)[1:]
        sizes = ", ".join(f"{size:,}" for size in buckets.sizes)
        return (
            f"a decision on {self.metric!r} after each pass over the pool; buckets of {sizes} examples",
            "forced in at the latest: "
            + ", ".join(f"bucket {number} after step {step:,}" for number, step in enumerate(deadlines, start=2)),
        )

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Whether ties make buckets empty, or divide them by the order of the file."""
        note = uneven_buckets(self._buckets(ranking), ranking)
        return (note,) if note else ()

    def scenarios(self) -> Mapping[str, Callable[[int], Mapping[str, float]]]:
        """The metric never improves, and buckets join as soon as they can; or always, and all are forced in."""
        name = metric_name(self.metric)
        sign = 1.0 if is_greater_better(self.metric, self.greater_is_better) else -1.0
        step = sign * (self.min_delta + 1.0)
        return {"soonest": lambda k: {name: 0.0}, "latest": lambda k: {name: k * step}}

    def _buckets(self, ranking: Ranking) -> Buckets:
        validate_rows(ranking, self.num_buckets, self.cut)
        return cut_buckets(ranking, self.num_buckets, self.cut, thresholds=self.thresholds)

    def _deadlines(self, buckets: Buckets, ranking: Ranking, budget: Budget) -> list[int]:
        """The last step after which each bucket can join, if it and the harder ones are to have their passes."""
        total = self.declared_steps(ranking, budget)
        needed = [num_steps(self.min_epochs * end, budget.global_batch_size) for end in buckets.ends]
        deadlines = [total - sum(needed[number:]) for number in range(self.num_buckets)]
        if deadlines[0] < 0:
            raise ValueError(
                f"BabySteps has a budget of {total:,} steps, but {self.min_epochs:g} passes over each of its "
                f"{self.num_buckets} pools take {sum(needed):,}: the hardest bucket would never be shown for long "
                "enough. Give it more epochs, or use fewer buckets or a smaller min_epochs."
            )
        return deadlines
