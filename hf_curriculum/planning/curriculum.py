"""The base class of curricula: frozen rules that name pools and their lengths, written as JSON or YAML."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from hf_curriculum.config import Configured, read_config
from hf_curriculum.names import CURRICULA
from hf_curriculum.planning.batches import Batches, ByNode, batches_from
from hf_curriculum.planning.deciding import Deciding, Log
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Easy, Ranking, Unscored
from hf_curriculum.planning.stage import Budget, Stage
from hf_curriculum.shapes import validate_arguments, validate_fields

PartialBatches = Literal["stream", "keep"]
DEFAULT_EPOCHS = 3.0
"""The default of `num_train_epochs` in `transformers.TrainingArguments`."""


@dataclass(frozen=True)
class Curriculum(Configured, Deciding, ABC):
    """The base class of curricula: a stateless rule for the pool of each stage. `make_plan` binds it to data.

    A planned curriculum knows all its stages beforehand, and needs `stages` and `nominal_epochs` alone. One that
    decides while training has a `signal`, and more of what is in `Deciding`.

    Args:
        easy: which end of the score is easy, in place of what the score's provenance says.
        unscored: what to do with rows that have no score: put them `"last"`, `"drop"` them, or raise an `"error"`.
        batches: what a batch is made of, in place of single examples: `ByImage()`, `ByLength()` or `ByNode()`.
        partial_batches: `"stream"` lets stages follow each other within a batch, so every batch is full. `"keep"` ends
            every pass with its own, smaller batch, as a new data loader for each epoch does.
        fit_steps: the run's length in optimizer steps, in place of the rule's own; see `fit_to`.
        fit_epochs: the run's length in passes over all examples that it uses, in place of the rule's own.

    Example:
        >>> from hf_curriculum import Phases, make_plan
        >>> plan = make_plan(Phases(2, easy="high", unscored="drop"), np.array([1.0, np.nan, 3]), global_batch_size=1)
        >>> plan.rows(0, 3).tolist()
        [2, 0, 2]
    """

    needs_scores: ClassVar[bool] = True
    leaves_hardest_out: ClassVar[bool] = False
    """Whether some of the hardest examples are never drawn."""
    has_passes: ClassVar[bool] = True
    """Whether draws come in passes over a pool, which can end with a smaller batch."""
    easy: Easy | None = field(default=None, kw_only=True)
    unscored: Unscored = field(default="last", kw_only=True)
    batches: Batches | None = field(default=None, kw_only=True)
    partial_batches: PartialBatches = field(default="stream", kw_only=True)
    fit_steps: int | None = field(default=None, kw_only=True)
    fit_epochs: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not hasattr(self, "type"):
            raise TypeError(
                f"{type(self).__name__} has no `type`, the name by which a plan and a checkpoint know it. Give it "
                'one: type: ClassVar[str] = "my_rule".'
            )
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, (list, range, np.ndarray)):
                object.__setattr__(self, item.name, tuple(value))
        validate_fields(self)
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
        """The same rule, stretched or shortened in proportion to fit a budget.

        Stages keep their pools and their shares of the run, in fractions of passes, and begin with a full batch.

        Args:
            steps: optimizer steps of the run, exactly.
            epochs: passes over all examples that the rule uses, rounded up to optimizer steps.

        Raises:
            ValueError: not exactly one of the two is given, it is not positive, or the rule's rounds are counted
                otherwise. In a plan: there are fewer steps than stages.

        Example:
            >>> from hf_curriculum import Phases, make_plan
            >>> plan = make_plan(Phases(3, easy="low").fit_to(steps=12), np.arange(90), global_batch_size=10)
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
            TypeError: `stages` returned something else than stages.
            ValueError: there are more stages than steps.
        """
        stages, steps = self.stages(ranking, budget, log), self._steps_to_fit(ranking, budget)
        known = isinstance(stages, (tuple, list)) and all(isinstance(stage, Stage) for stage in stages)
        if not known or (not stages and self.signal is None):  # the first decision may come before the first stage
            raise TypeError(
                f"{type(self).__name__}.stages returned {stages!r:.100}. It returns a tuple of one or more `Stage`s, "
                "in the order in which they are trained on."
            )
        return tuple(stages) if steps is None else _fit(stages, steps, budget.global_batch_size)

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
    def reads(self) -> Mapping[str, Kind]:
        """Columns of the training data that the rule needs in addition to the score."""
        return {}

    @property
    def reads_in_all(self) -> Mapping[str, Kind]:
        """The columns that the rule and its batches read; names are kept where either needs them."""
        own = dict(self.reads)
        for name, kind in (self.batches.reads if self.batches else {}).items():
            own.setdefault(name, kind)
        return own

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """The order that the stages' positions refer to: by score, unless the rule has its own.

        It is called once, and again with every new `losses` (see `arrange_round`). Another order of the same rows
        replaces the order by score in the plan.

        Args:
            ranking: by score.
            losses: the rows' losses at the last decision, for a rule that orders by them.
        """
        return ranking

    @abstractmethod
    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """The stages of a run over the arranged examples; of a signal-paced one, up to the next decision."""

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """What to know before training by this rule on these examples, for `Plan.notes`."""
        return ()

    def details(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Details of the draws beyond the stages' own, for `Plan.describe`."""
        return ()

    @abstractmethod
    def nominal_epochs(self, budget: Budget, ranking: Ranking) -> float:
        """The i.i.d. epochs with which the plan compares its cost; the stages' draws give the steps."""

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
    leaves_hardest_out: Any = _of_then("leaves_hardest_out")
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
    details: Any = _of_then("details")
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


def num_steps(draws: float, global_batch_size: int) -> int:
    """Optimizer steps that draw at least so many examples, and at least one."""
    return max(1, math.ceil(draws / global_batch_size - 1e-9))


@validate_arguments
def curriculum_from(value: Curriculum | Mapping[str, Any] | str | Path) -> Curriculum:
    """Makes a curriculum from its name, a mapping, JSON or YAML text, or a file; returns a curriculum unchanged.

    Raises:
        TypeError: a class in place of a curriculum.
        ValueError: the value cannot be read, `type` is missing or unknown, or a field is not the curriculum's.

    Example:
        >>> curriculum_from('{"type": "phases", "num_phases": 3}').num_phases
        3
    """
    if isinstance(value, Curriculum):
        return value
    mapping = read_config(value, "curriculum", CURRICULA)
    return CURRICULA[mapping["type"]].from_dict(mapping)
