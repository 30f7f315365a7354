"""What a rule that decides while training has: its signal, its decisions, and how they are described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Budget, Stage

Signal = Literal["metrics", "losses"]
Log = Sequence[Mapping[str, Any]]
"""The decisions taken so far, in order, each a JSON-able mapping with `round`, `step` and `decision`."""


@dataclass(frozen=True)
class Observed:
    """What a decision between two rounds is taken on.

    Args:
        step: completed optimizer steps.
        metrics: what `evaluate()` returned, for a curriculum whose signal is `"metrics"`.
        losses: current loss of each row of the training data, float32, shape (num_rows,), NaN where there is none; for
            one whose signal is `"losses"`.
        arrays: what `compute_metrics` returned as arrays, by the metric's name, such as one number per image.
        before: those at the last decision.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    losses: np.ndarray | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    before: Mapping[str, np.ndarray] = field(default_factory=dict)


class Candidates(Protocol):
    """What a rule that chooses while training may look at: the candidates of one batch.

    Attributes:
        rows: their rows in the training data, int64, shape (candidates,).
        inputs: the collated batch, as the model is given it.
    """

    rows: np.ndarray
    inputs: Mapping[str, Any]

    def losses(self) -> np.ndarray:
        """The model's loss of each candidate now, float32, shape (candidates,); NaN where there is none."""

    def losses_with_other_images(self) -> np.ndarray:
        """The same with the image of another candidate of the same place."""

    def column(self, name: str) -> np.ndarray:
        """Their numbers in a column of the training data that the rule reads, float32, shape (candidates,)."""


class Selection(Protocol):
    """What the trainer asks of a rule that chooses while training."""

    candidates: int
    reference: str | None
    temperature: float | None
    score_every: int

    @property
    def forwards(self) -> int:
        """Forward passes that the value of one candidate takes."""

    @property
    def choice(self) -> str:
        """Which candidate is trained on, in a word or two."""

    def values(self, candidates: Candidates) -> np.ndarray:
        """The value of each candidate, shape (candidates,)."""

    def row_notes(self, ranking: Ranking) -> tuple[str, ...]:
        """What to know before training by this rule on these rows."""


class Deciding:
    """What `Curriculum` has for rules that decide while training; a planned rule leaves all of it as it is.

    A rule with a `signal` knows its stages up to the next decision: its `stages` reads the decisions taken so far from
    the log, `decide` takes the next one, and `declared_steps` is the budget that it keeps within.
    """

    signal: ClassVar[Signal | None] = None
    """What decisions are taken on: metrics of `evaluate()`, losses of the training rows, or None: there are none."""
    losses_of_training: ClassVar[bool] = False
    """Whether the losses are those that rows had when they were last trained on, and not of a scoring pass."""
    pools_begin_easy: ClassVar[bool] = True
    """Whether the pools of rounds that are decided while training begin with the first example of the order."""

    @property
    def selection(self) -> Selection | None:
        """What chooses, while training, among several draws for each example; None where every draw is trained on."""
        return None

    def arrange_round(self, ranking: Ranking, losses: np.ndarray | None, key: int) -> Ranking:
        """`arrange` for the round that the last decision began, for a rule that orders by losses and by chance.

        Args:
            ranking: by score.
            losses: the rows' losses at the last decision; None before the first one.
            key: 64 bits, of the run's seed and the round.
        """
        return self.arrange(ranking, losses)

    def declared_steps(self, ranking: Ranking, budget: Budget) -> int | None:
        """The most optimizer steps a signal-paced run takes; None where the stages say it exactly."""
        return None

    def decide(self, ranking: Ranking, budget: Budget, log: Log, observed: Observed) -> dict[str, Any]:
        """The log's next entry, at the end of the last known stage, as a function of the arguments alone.

        Raises:
            TypeError: the curriculum takes no decisions.
        """
        raise TypeError(f"{type(self).__name__} is planned beforehand: there is nothing to decide.")

    def weights(self, stage: Stage, log: Log = ()) -> tuple[tuple[int, int, float], ...]:
        """(start, stop, weight) of stretches of the arranged examples whose loss does not weigh 1 in a stage."""
        return ()

    def describe_decision(self, entry: Mapping[str, Any]) -> str:
        """An entry of the log of decisions as a line: "round 2: loss 0.31 (refreshes 1) → refresh"."""
        facts = {name: value for name, value in entry.items() if name not in ("round", "step", "decision")}
        seen = f" {facts.pop('metric')} {facts.pop('value'):.4g}" if {"metric", "value"} <= set(facts) else ""
        listed = ", ".join(f"{name} {_short(value)}" for name, value in facts.items())
        return f"round {entry['round'] + 1}:{seen}{f' ({listed})' if listed else ''} → {entry['decision']}"

    def pending_decisions(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """What is known beforehand of rounds that are still to be decided, in words."""
        return ()

    def scenarios(self) -> Mapping[str, Callable[[int], Mapping[str, float]]]:
        """Extreme courses of the metrics, whose plans are shown beforehand: name → metrics of decision k.

        Empty where no metric decides.
        """
        return {}

    def most_decisions(self, ranking: Ranking, budget: Budget) -> int | None:
        """The most decisions a run takes; None: not known beforehand."""
        return None


def _short(value: Any) -> str:
    """A number with four digits, and a mapping as "0.1: 0.5, 0.5: 0.7"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_short(one)}" for name, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def metric_name(name: str) -> str:
    """A metric as `evaluate()` names it: `"loss"` is `"eval_loss"`, as in `metric_for_best_model`."""
    return name if name.startswith("eval_") else f"eval_{name}"


def is_greater_better(name: str, greater_is_better: bool | None) -> bool:
    """`greater_is_better`, or else whether the metric is no loss, as `transformers` assumes too."""
    return not name.endswith("loss") if greater_is_better is None else greater_is_better


def metric_value(metrics: Mapping[str, float], name: str, rule: str) -> float:
    """One metric, named with or without `eval_`, of what `evaluate()` returned."""
    full = metric_name(name)
    if full not in metrics:
        raise ValueError(
            f"{rule} decides on {full!r}, and evaluate() returned {sorted(metrics)}: without it no decision can be "
            "taken. Return it from compute_metrics (with predict_with_generate=True if it needs generated text), or "
            "name another metric."
        )
    return float(metrics[full])


def metric_array(arrays: Mapping[str, np.ndarray], name: str, rule: str) -> np.ndarray:
    """One metric that is an array, named with or without `eval_`, float64."""
    full = metric_name(name)
    if full not in arrays:
        raise ValueError(
            f"{rule} decides on the array {full!r}, one number per image, and evaluate() returned the arrays "
            f"{sorted(arrays)}: without it no decision can be taken. Return it from compute_metrics: "
            "long_tail_metrics(counts, per_image=True)."
        )
    return np.asarray(arrays[full], dtype=np.float64)
