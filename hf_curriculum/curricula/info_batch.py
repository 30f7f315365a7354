"""InfoBatch: a random part of what the model knows already is left out, and what stays of it weighs more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Log, SizedCurriculum, num_steps
from hf_curriculum.planning.deciding import Observed, Signal
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage
from hf_curriculum.rng import hash64


@dataclass(frozen=True)
class InfoBatch(SizedCurriculum):
    """Each pass skips a random part of the low-loss examples and gives the remaining ones more weight.

    The first pass is over everything. Every example keeps the loss of its last training step, so no scoring pass is
    needed. Before each further pass, the mean of these losses is the threshold: a random share `prune` of the examples
    below it is skipped. The loss of those that stay is multiplied by (number below) / (number that stay), which is 1 /
    (1 − prune) where the counts divide. All others weigh 1. So a pass has the expected gradient of one over
    everything, in fewer steps: each is (all examples) / (those that stay) times as long as without weights. From
    `until` of the steps on it is passes over everything again, with weight 1.

    A pass is rounded up to optimizer steps. The run is as long as its budget, in examples trained on: skipped examples
    give more passes. For a run cheaper than the control set fewer `epochs`.

    Args:
        prune: the share of the examples below the threshold that a pass skips, from 0 to less than 1. One of them
            always stays.
        until: the part of the steps after which nothing is skipped any more, more than 0 and at most 1.
        epochs: the budget in passes over all examples; without it and `examples` the training arguments say.
        examples: the budget in examples.
        easy: not used: a low loss is easy.
        unscored: not used: examples without a finite loss are never left out, and weigh 1.
        batches: not `ByNode`, which does not draw in passes. With `ByImage` the loss of an image is the mean of its
            captions', and images are left out.
        partial_batches: only `"stream"` is possible.

    Raises:
        ValueError: an argument is out of range, or the budget ends before a pass could leave anything out.

    Source: Qin et al. 2024, *InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning* (their r is
        `prune`, 0.5; their δ is `until`, 0.875). They write that each example below the mean is skipped with
        probability r; their code and ours fix the number. Here weights always add up to the number of examples.

    Example:
        >>> InfoBatch(epochs=6).to_dict()
        {'type': 'info_batch', 'epochs': 6}
    """

    type: ClassVar[str] = "info_batch"
    signal: ClassVar[Signal] = "losses"
    losses_of_training: ClassVar[bool] = True
    needs_scores: ClassVar[bool] = False
    has_passes: ClassVar[bool] = False
    pools_begin_easy: ClassVar[bool] = False

    prune: float = 0.5
    until: float = 0.875
    epochs: float | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prune < 1:
            raise ValueError(
                f"InfoBatch(prune={self.prune}) is not possible; prune is at least 0 and less than 1: what stays "
                "stands for what is left out."
            )
        if not 0 < self.until <= 1:
            raise ValueError(f"InfoBatch(until={self.until}) is not possible; until is more than 0 and at most 1.")

    def arrange_round(self, ranking: Ranking, losses: np.ndarray | None, key: int) -> Ranking:
        """The examples that the round skips, then the others below the mean loss, then the rest.

        Within each they are in the data set's order. The losses and the key alone decide which are skipped.
        """
        if losses is None:
            return ranking
        below = _below_mean(losses[ranking.order])
        candidates = np.flatnonzero(below)
        drawn = np.argsort(hash64(ranking.order[candidates], key), kind="stable")[: self._pruned(len(candidates))]
        part = np.where(below, 1, 2)
        part[candidates[drawn]] = 0
        return replace(ranking, order=ranking.order[np.argsort(part, kind="stable")])

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """One stage per pass; their positions refer to the order of the last decision."""
        size, batch, total = len(ranking), budget.global_batch_size, self.declared_steps(ranking, budget)
        step, last = num_steps(size, batch), self._last(total)
        if last <= step:
            raise ValueError(
                f"InfoBatch has a budget of {total:,} steps, of which the first {step:,} are a pass over everything "
                f"and those from {last:,} on too (until={self.until:g}): nothing would ever be left out. Give it more "
                "epochs, or a larger until."
            )
        rounds = [("first pass", "all", 0, step, True)]
        for number, entry in enumerate(log, start=1):
            end = min(step + num_steps(entry["pool"], batch), last)
            stay = f"{entry['below'] - entry['pruned']:,} of {entry['below']:,} with loss < {entry['threshold']:.4g}"
            rule = f"{stay}, all others" if entry["pruned"] else "all"
            rounds.append((f"round {number}", rule, entry["pruned"], end - step, end < last))
            step = end
        if step == last < total:
            rounds.append(("everything", "all", 0, total - last, False))
        return tuple(
            Stage(number, name, rule, ((first, size),), steps * batch, decides=decides)
            for number, (name, rule, first, steps, decides) in enumerate(rounds)
        )

    def weights(self, stage: Stage, log: Log = ()) -> tuple[tuple[int, int, float], ...]:
        """Those below the threshold that stay, in the round that the last decision began."""
        if not log or stage.number != len(log) or not log[-1]["pruned"]:
            return ()
        pruned, below = log[-1]["pruned"], log[-1]["below"]
        return ((pruned, below, below / (below - pruned)),)

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """The mean loss, how many examples are below it, and how many of them the next round skips."""
        losses = observed.losses[ranking.order]
        if not np.isfinite(losses).any():
            raise ValueError(
                f"None of the {len(losses):,} examples had a finite loss by step {observed.step}: the model has "
                "diverged, or it computes none. Without losses nothing can be left out."
            )
        below = int(_below_mean(losses).sum())
        pruned = self._pruned(below)
        return {
            "decision": "prune",
            "threshold": _mean(losses),
            "below": below,
            "pruned": pruned,
            "pool": len(losses) - pruned,
        }

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """When nothing is skipped any more."""
        last = self._last(self.declared_steps(ranking, budget))
        return (
            f"before each further pass {100 * self.prune:.4g} % of the examples below the mean loss of training are "
            f"left out, the rest of them weighs more; everything from step {last:,}",
        )

    def _pruned(self, below: int) -> int:
        """How many of so many examples below the mean are left out: not all of them."""
        return max(0, min(int(self.prune * below + 0.5), below - 1))

    def _last(self, total: int) -> int:
        """The steps after which nothing is left out any more."""
        return math.ceil(self.until * total - 1e-9)


def _mean(losses: np.ndarray) -> float:
    """The mean of the finite ones, in double precision."""
    return float(losses[np.isfinite(losses)].mean(dtype=np.float64))


def _below_mean(losses: np.ndarray) -> np.ndarray:
    """Which losses are below their mean, bool, of the same shape; those that are not finite are not."""
    return np.isfinite(losses) & (losses.astype(np.float64) < _mean(losses))
