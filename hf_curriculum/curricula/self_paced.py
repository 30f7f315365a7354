"""Self-paced learning: the model's own losses say what it is ready for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.config import at_least
from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum, num_steps
from hf_curriculum.planning.deciding import Observed, Signal
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage


@dataclass(frozen=True)
class SelfPaced(SizedCurriculum):
    """Trains on the examples whose current loss is at most a threshold, which rises round by round.

    It begins with `warmup_epochs` passes over everything. Then, before each round, one scoring pass measures the loss
    of every training example. The first threshold is the `initial` quantile of the losses; each further one is
    `growth` times the last. As the model learns, more losses fall below the threshold. A round is one pass over the
    pool, rounded up to optimizer steps. The run is as long as its budget; the last `final_epochs` passes are over
    everything.

    Args:
        initial: the share of examples in the first pool, and the least in any, more than 0 and at most 1.
        growth: what the threshold is multiplied by, more than 1.
        warmup_epochs: passes over everything before the first scoring pass; 0 scores with the model as it is given.
        final_epochs: passes over everything at the end.
        epochs: the budget in passes over all examples; without it and `examples` the training arguments say.
        examples: the budget in examples.
        easy: not used: a low loss is easy.
        unscored: not used: examples without a finite loss come last.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: an argument is out of range, or the budget is too small for the first and last passes.

    Source: Kumar, Packer & Koller 2010, *Self-Paced Learning for Latent Variable Models*, algorithm 1, where 1/K is
        the threshold and 1.3 the factor. The least pool and the last passes are ours.

    Example:
        >>> SelfPaced(initial=0.3, epochs=10).to_dict()
        {'type': 'self_paced', 'initial': 0.3, 'epochs': 10}
    """

    type: ClassVar[str] = "self_paced"
    signal: ClassVar[Signal] = "losses"
    needs_scores: ClassVar[bool] = False
    has_passes: ClassVar[bool] = False

    initial: float = 0.5
    growth: float = 1.3
    warmup_epochs: float = 1.0
    final_epochs: float = 1.0
    epochs: float | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.initial <= 1:
            raise ValueError(
                f"SelfPaced(initial={self.initial}) is not possible; initial is more than 0 and at most 1."
            )
        if not self.growth > 1:
            raise ValueError(f"SelfPaced(growth={self.growth}) is not possible: the threshold would never rise.")
        at_least("SelfPaced", warmup_epochs=(self.warmup_epochs, 0), final_epochs=(self.final_epochs, 0))

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """By the losses of the last scoring pass; before the first one, in the data set's order."""
        if losses is None:
            return ranking
        key = np.where(np.isfinite(losses), losses, np.inf)[ranking.order]
        return replace(ranking, order=ranking.order[np.argsort(key, kind="stable")])

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage per round; their positions refer to the order of the last scoring pass."""
        size, batch, total = len(ranking), budget.global_batch_size, self.declared_steps(ranking, budget)
        step = num_steps(self.warmup_epochs * size, batch) if self.warmup_epochs else 0
        last = total - self._final_steps(size, batch)
        if last <= step:
            raise ValueError(
                f"SelfPaced has a budget of {total:,} steps, of which the first {step:,} and the last "
                f"{total - last:,} are for passes over everything: no round is left for choosing. Give it more "
                "epochs, or smaller warmup_epochs or final_epochs."
            )
        rounds = [("warm-up", "all", size, step, True)] if step else []
        for number, entry in enumerate(log, start=1):
            end = min(step + num_steps(entry["pool"], batch), last)
            rule = f"loss ≤ {entry['threshold']:.4g}" if entry["pool"] < size else "all"
            rounds.append((f"round {number}", rule, entry["pool"], end - step, end < last))
            step = end
        if step == last < total:
            rounds.append(("everything", "all", size, total - last, False))
        return tuple(
            Stage(number, name, rule, ((0, pool),), steps * batch, decides=decides)
            for number, (name, rule, pool, steps, decides) in enumerate(rounds)
        )

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """The next threshold, and how many examples are below it."""
        losses = np.sort(observed.losses[ranking.order])
        losses = losses[np.isfinite(losses)]
        if not len(losses):
            raise ValueError(
                f"The scoring pass after step {observed.step} found no finite loss: the model has diverged, or it "
                "computes none. Without losses no pool can be chosen."
            )
        least = self._least(len(ranking))
        threshold = log[-1]["threshold"] * self.growth if log else float(losses[min(least, len(losses)) - 1])
        within = int(np.searchsorted(losses, np.float32(threshold), side="right"))
        return {"decision": "threshold", "threshold": threshold, "pool": max(within, least), "within": within}

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """When the last passes begin."""
        total = self.declared_steps(ranking, budget)
        last = total - self._final_steps(len(ranking), budget.global_batch_size)
        return (f"a scoring pass over all {len(ranking):,} examples before each round; everything from step {last:,}",)

    def most_decisions(self, ranking: Ranking, budget: Budget) -> int:
        """Rounds, each after a scoring pass, if no pool is larger than the smallest there can be."""
        size, batch, total = len(ranking), budget.global_batch_size, self.declared_steps(ranking, budget)
        first = num_steps(self.warmup_epochs * size, batch) if self.warmup_epochs else 0
        return -(-(total - self._final_steps(size, batch) - first) // num_steps(self._least(size), batch))

    def _least(self, size: int) -> int:
        return max(1, int(self.initial * size + 0.5))

    def _final_steps(self, size: int, batch: int) -> int:
        return num_steps(self.final_epochs * size, batch) if self.final_epochs else 0
