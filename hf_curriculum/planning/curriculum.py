"""The base class of curricula: frozen rules that name pools and their lengths, written as JSON or YAML."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from hf_curriculum.config import Configured, read_config, validate_numbers
from hf_curriculum.names import CURRICULA
from hf_curriculum.planning.batches import Batches, ByNode, batches_from
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Easy, Ranking, Unscored
from hf_curriculum.planning.stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Self

PartialBatches = Literal["stream", "keep"]
Signal = Literal["metrics", "losses"]
Log = Sequence[Mapping[str, Any]]
"""The decisions taken so far, in order, each a JSON-able mapping with `round`, `step` and `decision`."""
DEFAULT_EPOCHS = 3.0
"""The default of `num_train_epochs` in `transformers.TrainingArguments`."""


@dataclass(frozen=True)
class Budget:
    """The length of a run in the training arguments: epochs of the whole data set, or optimizer steps.

    Args:
        epochs: passes over the data set (`num_train_epochs`), or None.
        steps: optimizer steps (`max_steps`), or None.
        global_batch_size: examples per optimizer step, over all processes and accumulated batches.

    Raises:
        ValueError: there would be no step, or no end.
    """

    epochs: float | None
    steps: int | None
    global_batch_size: int

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("max_steps", self.steps)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} would train on nothing, or for ever; it is a number more than 0.")


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


@dataclass(frozen=True)
class Curriculum(Configured, ABC):
    """A rule that says which pool comes when. It has no state: `plan = make_plan(curriculum, ranking, ...)` binds it.

    A planned curriculum knows all its stages beforehand. A signal-paced one knows them up to the next decision: its
    `signal` says what it decides on, `stages` reads the decisions taken so far from the log, and `declared_steps` is
    the budget that it keeps within.

    Args:
        easy: which end of the score is easy, in place of what the score's provenance says.
        unscored: what to do with rows that have no score: put them `"last"`, `"drop"` them, or raise an `"error"`.
        batches: what a batch is made of, in place of single examples: `ByImage()`, `ByLength()` or `ByNode()`.
        partial_batches: `"stream"` lets stages follow each other within a batch, so that every batch is full; `"keep"`
            ends every pass with its own, smaller batch, as a data loader made anew for each epoch does.
        fit_steps: the run's length in optimizer steps, in place of the rule's own; see `fit_to`.
        fit_epochs: the run's length in passes over all examples that it uses, likewise.
    """

    needs_scores: ClassVar[bool] = True
    signal: ClassVar[Signal | None] = None
    """What decisions are taken on: metrics of `evaluate()`, losses of the training rows, or None: there are none."""
    losses_of_training: ClassVar[bool] = False
    """Whether the losses are those that rows had when they were last trained on, and not of a scoring pass."""
    has_passes: ClassVar[bool] = True
    """Whether draws come in passes over a pool, which can end with a smaller batch."""
    pools_begin_easy: ClassVar[bool] = True
    """Whether the pools of rounds that are decided while training begin with the first example of the order."""

    easy: Easy | None = field(default=None, kw_only=True)
    unscored: Unscored = field(default="last", kw_only=True)
    batches: Batches | None = field(default=None, kw_only=True)
    partial_batches: PartialBatches = field(default="stream", kw_only=True)
    fit_steps: int | None = field(default=None, kw_only=True)
    fit_epochs: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, (list, range, np.ndarray)):
                object.__setattr__(self, item.name, tuple(value))
        validate_numbers(self)
        self._choice("easy", (None, "low", "high"))
        self._choice("unscored", ("last", "drop", "error"))
        self._choice("partial_batches", ("stream", "keep"))
        self._validate_length()
        if self.batches is not None:
            object.__setattr__(self, "batches", batches_from(self.batches))
        if isinstance(self.batches, ByNode) and not self.pools_begin_easy:
            raise ValueError(
                f"{type(self).__name__}(batches=ByNode()) is not possible: groups are drawn by chance, not in passes, "
                "and its later pools begin elsewhere than with the easiest example. Leave out batches."
            )
        for part in (self.batches, None if self.has_passes else self):
            if part is not None and self.partial_batches == "keep":
                raise ValueError(
                    f"{type(part).__name__}(partial_batches='keep') is not possible: every batch of it is full. "
                    "Leave it out."
                )

    def _choice(self, name: str, allowed: tuple[Any, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            choices = ", ".join(map(repr, allowed))
            raise ValueError(f"{type(self).__name__}({name}={value!r}) is not possible; {name} is one of {choices}.")

    def _validate_length(self) -> None:
        """Checks `fit_steps` and `fit_epochs`, which only a rule that is planned beforehand can follow."""
        self._validate_lengths("fit_steps", "fit_epochs")
        if self.signal is not None and (self.fit_steps, self.fit_epochs) != (None, None):
            raise ValueError(
                f"{type(self).__name__} decides while training, on rounds whose length is its own: stretching them is "
                "not possible. Leave out fit_steps and fit_epochs, and change its own fields, such as its epochs."
            )

    def _validate_lengths(self, *names: str) -> None:
        """Checks that no more than one of these fields is given, and that it is a length."""
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        owner = type(self).__name__
        if len(given) > 1:
            listed = " and ".join(f"{name}={value}" for name, value in given.items())
            raise ValueError(f"{owner} got {listed}; a run has one length. Drop all but one.")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise ValueError(
                    f"{owner}({name}={value}) would train on nothing, or for ever; {name} is a number more than 0."
                )

    def fit_to(self, *, steps: int | None = None, epochs: float | None = None) -> Self:
        """The same rule, as long as a budget: what it takes by itself is stretched or shortened in proportion.

        Stages keep their pools and their shares of the run, and each begins with a full batch; their passes over the
        pools may be fractions.

        Args:
            steps: optimizer steps of the run, exactly.
            epochs: passes over all examples that the rule uses, rounded up to optimizer steps.

        Raises:
            ValueError: not one of the two is given, it is not positive, or the rule's rounds are counted otherwise;
                in a plan: the steps are fewer than the rule has stages.

        Example:
            >>> from hf_curriculum import Phases, make_plan
            >>> plan = make_plan(Phases(3).fit_to(steps=12), np.arange(90), global_batch_size=10)
            >>> plan.num_steps, [stage.epochs for stage in plan.stages]
            (12, [0.6666666666666666, 0.6666666666666666, 0.6666666666666666])
        """
        if (steps is None) == (epochs is None):
            raise ValueError(f"fit_to(steps={steps}, epochs={epochs}): a run has one length. Give one of the two.")
        return self._with_length(steps, epochs)

    def _with_length(self, steps: int | None, epochs: float | None) -> Self:
        return replace(self, fit_steps=steps, fit_epochs=epochs)

    def fitted_stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """`stages`, as long as `fit_steps` or `fit_epochs` say.

        Raises:
            ValueError: there are more stages than steps.
        """
        stages, steps = self.stages(ranking, budget, log), self._steps_to_fit(ranking, budget)
        return stages if steps is None else _fit(stages, steps, budget.global_batch_size)

    def fitted_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """`nominal_epochs`, or those of a run that is as long as `fit_steps` or `fit_epochs` say."""
        steps = self._steps_to_fit(ranking, budget)
        if steps is None:
            return self.nominal_epochs(budget, ranking)
        return self.fit_epochs or steps * budget.global_batch_size / len(ranking)

    def _steps_to_fit(self, ranking: Ranking, budget: Budget) -> int | None:
        if self.fit_epochs is not None:
            return num_steps(self.fit_epochs * len(ranking), budget.global_batch_size)
        return self.fit_steps

    @property
    def needs_easy(self) -> bool:
        """Whether it matters which end of the score is easy."""
        return self.needs_scores

    @property
    def selection(self) -> Selection | None:
        """What chooses, while training, among several draws for each example; None where every draw is trained on."""
        return None

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Columns of the training data that the rule needs beside the score."""
        return {}

    @property
    def reads_in_all(self) -> Mapping[str, Kind]:
        """What the rule reads, and what its batches do; names are kept where either needs them."""
        own = dict(self.reads)
        for name, kind in (self.batches.reads if self.batches else {}).items():
            own.setdefault(name, kind)
        return own

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """The order that the stages' positions refer to: that of the scores, unless the rule has one of its own.

        It is called once, and again with every new `losses` (see `arrange_round`). Another order of the same rows
        replaces that of the scores in the plan.

        Args:
            ranking: by score.
            losses: the rows' losses at the last decision, for a rule that orders by them.
        """
        return ranking

    def arrange_round(self, ranking: Ranking, losses: np.ndarray | None, key: int) -> Ranking:
        """`arrange` for the round that the last decision began, for a rule that orders by losses and by chance.

        Args:
            ranking: by score.
            losses: the rows' losses at the last decision; None before the first one.
            key: 64 bits, of the run's seed and the round.
        """
        return self.arrange(ranking, losses)

    @abstractmethod
    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """The stages of a run over the arranged examples; of a signal-paced one, up to the next decision."""

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

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """What to know before training by this rule on these examples, for `Plan.notes`."""
        return ()

    def most_decisions(self, ranking: Ranking, budget: Budget) -> int | None:
        """The most decisions a run takes; None: not known beforehand."""
        return None

    @abstractmethod
    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The epochs that an i.i.d. control of the same name runs for."""

    def batch_multiple(self, budget: Budget) -> int | None:
        """The `batch_multiple` of this rule's stages, which follows from `partial_batches`."""
        return budget.global_batch_size if self.partial_batches == "keep" else None


class SizedCurriculum(Curriculum):
    """A curriculum whose fields `epochs` or `examples` say how long it is, or else the training arguments."""

    epochs: float | None
    examples: int | None

    def _validate_length(self) -> None:
        """Checks that it has one length at most."""
        self._validate_lengths("epochs", "examples", "fit_steps", "fit_epochs")

    def _with_length(self, steps: int | None, epochs: float | None) -> Self:
        return replace(self, epochs=epochs, examples=None, fit_steps=steps, fit_epochs=None)

    def _steps_to_fit(self, ranking: Ranking, budget: Budget) -> int | None:
        """None: `num_draws` says it."""

    def num_draws(self, budget: Budget, num_examples: int) -> int:
        """Examples to draw: the rule's own length, or `max_steps`, or `num_train_epochs`, or three epochs."""
        if self.examples is not None:
            return self.examples
        epochs = self.epochs or self.fit_epochs
        steps = self.fit_steps or (None if epochs else budget.steps)
        if steps is not None:
            return steps * budget.global_batch_size
        return max(int((epochs or budget.epochs or DEFAULT_EPOCHS) * num_examples + 0.5), 1)

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The length in passes over the data set, exactly as it was given where it was given so."""
        if self.epochs is not None:
            return self.epochs
        own = self.examples or self.fit_steps or self.fit_epochs
        if own is None and budget.steps is None and budget.epochs is not None:
            return budget.epochs
        return self.num_draws(budget, len(ranking)) / len(ranking)

    def declared_steps(self, ranking: Ranking, budget: Budget) -> int | None:
        """The length in optimizer steps, of a signal-paced curriculum."""
        if self.signal is None:
            return None
        return num_steps(self.num_draws(budget, len(ranking)), budget.global_batch_size)


def _of_then(name: str) -> Any:
    """An attribute or method that a wrapping curriculum has from `then`."""
    return property(attrgetter(f"then.{name}"))


class WrappingCurriculum(Curriculum):
    """A curriculum over another one, `then`, which says what is drawn; both follow one order and one kind of batches.

    What is not overridden is what `then` does. `fit_steps` and `fit_epochs` are handed on to it.
    """

    then: Curriculum

    def __post_init__(self) -> None:
        object.__setattr__(self, "then", curriculum_from(self.then))
        object.__setattr__(self, "partial_batches", self.then.partial_batches)
        for length in ("fit_steps", "fit_epochs"):
            if (value := getattr(self, length)) is not None:
                self._hand_on(length, value)
        super().__post_init__()
        name = type(self).__name__
        if self.then.easy is not None or self.then.unscored != "last":
            raise ValueError(
                f"{name}(then=...) holds a curriculum with `easy` or `unscored` of its own: one order serves both. "
                f"Give them to {name}."
            )
        if self.then.batches is not None:
            raise ValueError(f"{name}(then=...) holds a curriculum with `batches` of its own. Give them to {name}.")

    def _hand_on(self, length: str, value: float) -> None:
        """Gives `then` a length of this rule, in whose place it stands."""
        other = getattr(self.then, length)
        if other is not None:
            raise ValueError(
                f"{type(self).__name__} got {length}={value}, and its `then` has {length}={other}; a run has one "
                "length. Drop one."
            )
        object.__setattr__(self, "then", replace(self.then, **{length: value}).fit_to(**{length[4:]: value}))
        object.__setattr__(self, length, None)

    signal: Any = _of_then("signal")
    losses_of_training: Any = _of_then("losses_of_training")
    pools_begin_easy: Any = _of_then("pools_begin_easy")
    needs_scores: Any = _of_then("needs_scores")
    needs_easy: Any = _of_then("needs_easy")
    selection: Any = _of_then("selection")
    reads: Any = _of_then("reads")
    arrange: Any = _of_then("arrange")
    arrange_round: Any = _of_then("arrange_round")
    declared_steps: Any = _of_then("declared_steps")
    decide: Any = _of_then("decide")
    weights: Any = _of_then("weights")
    describe_decision: Any = _of_then("describe_decision")
    pending_decisions: Any = _of_then("pending_decisions")
    scenarios: Any = _of_then("scenarios")
    notes: Any = _of_then("notes")
    most_decisions: Any = _of_then("most_decisions")

    @property
    def reads_in_all(self) -> Mapping[str, Kind]:
        """What either rule reads, and what the batches do."""
        return {**self.then.reads_in_all, **super().reads_in_all}

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """Those of `then`."""
        return self.then.fitted_stages(ranking, budget, log)

    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The epochs of `then`."""
        return self.then.fitted_epochs(budget, ranking)

    def _with_length(self, steps: int | None, epochs: float | None) -> Self:
        return replace(self, then=self.then.fit_to(steps=steps, epochs=epochs))

    def to_dict(self) -> dict[str, Any]:
        """As `Curriculum.to_dict`, without what is taken from `then`."""
        return {name: value for name, value in super().to_dict().items() if name != "partial_batches"}


def _fit(stages: tuple[Stage, ...], steps: int, batch_size: int) -> tuple[Stage, ...]:
    """Stages of so many steps in all, in proportion to the steps that they have, and each with at least one."""
    if steps < len(stages):
        raise ValueError(
            f"{steps} steps cannot hold {len(stages)} stages ({', '.join(stage.name for stage in stages)}): the last "
            "ones would never come. Fit the rule to more steps, or give it fewer stages."
        )
    shares, ends = np.cumsum([stage.num_samples for stage in stages]), [0]
    for number, share in enumerate(shares.tolist(), start=1):
        end = max(round(share / shares[-1] * steps), ends[-1] + 1)
        ends.append(min(end, steps - len(stages) + number))
    return tuple(
        stage.fit((end - first) * batch_size) for stage, (first, end) in zip(stages, pairwise(ends), strict=True)
    )


def _short(value: Any) -> str:
    """A number with four digits, and a mapping as "0.1: 0.5, 0.5: 0.7"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_short(one)}" for name, one in value.items())
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def num_steps(draws: float, global_batch_size: int) -> int:
    """Optimizer steps that draw at least so many examples, and at least one."""
    return max(1, math.ceil(draws / global_batch_size - 1e-9))


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


def curriculum_from(value: Curriculum | Mapping[str, Any] | str | Path) -> Curriculum:
    """A curriculum from itself, a mapping, its name, JSON or YAML text, or the path of a file.

    Raises:
        ValueError: the value cannot be read, `type` is missing or unknown, or a field is not the curriculum's.

    Example:
        >>> curriculum_from('{"type": "phases", "num_phases": 3}').num_phases
        3
    """
    if isinstance(value, Curriculum):
        return value
    mapping = read_config(value, "curriculum", CURRICULA)
    return CURRICULA[mapping["type"]].from_dict(mapping)
