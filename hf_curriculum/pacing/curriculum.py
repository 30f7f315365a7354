"""What every curriculum is: a frozen rule that names pools and their lengths, and can be written as JSON or YAML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from hf_curriculum.ordering import Ranking
from hf_curriculum.ordering.ranking import Easy, Unscored
from hf_curriculum.pacing.stages import Stage

PartialBatches = Literal["stream", "keep"]


@dataclass(frozen=True)
class Budget:
    """What a run was told to spend by the training arguments: epochs of the whole data set, or optimizer steps.

    Args:
        epochs: passes over the data set (`num_train_epochs`), None where nobody said.
        steps: optimizer steps (`max_steps`), None where nobody said.
        global_batch_size: examples per optimizer step, over all processes and accumulated batches.
    """

    epochs: float | None
    steps: int | None
    global_batch_size: int


@dataclass(frozen=True)
class Curriculum(ABC):
    """A rule that says which pool comes when. It has no state: `plan = make_plan(curriculum, ranking, ...)` binds it.

    Args:
        easy: which end of the score is easy, in place of what the score's provenance says.
        unscored: what to do with rows that have no score: rank them `"last"`, `"drop"` them, or raise an `"error"`.
        partial_batches: `"stream"` lets stages follow each other within a batch, so that every batch is full; `"keep"`
            ends every pass with its own, smaller batch, as a data loader made anew for each epoch does.
    """

    type: ClassVar[str]
    needs_scores: ClassVar[bool] = True

    easy: Easy | None = field(default=None, kw_only=True)
    unscored: Unscored = field(default="last", kw_only=True)
    partial_batches: PartialBatches = field(default="stream", kw_only=True)

    def __post_init__(self) -> None:
        self._choice("easy", (None, "low", "high"))
        self._choice("unscored", ("last", "drop", "error"))
        self._choice("partial_batches", ("stream", "keep"))

    def _choice(self, name: str, allowed: tuple[Any, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            choices = ", ".join(map(repr, allowed))
            raise ValueError(f"{type(self).__name__}({name}={value!r}) is not possible; {name} is one of {choices}.")

    @abstractmethod
    def stages(self, ranking: Ranking, budget: Budget) -> tuple[Stage, ...]:
        """The stages of a run over the ranked examples."""

    @abstractmethod
    def nominal_epochs(self, budget: Budget, num_examples: int) -> float:
        """How many epochs a person would call this: what an i.i.d. control of the same name runs for."""

    def _multiple(self, budget: Budget) -> int | None:
        return budget.global_batch_size if self.partial_batches == "keep" else None

    def to_dict(self) -> dict[str, Any]:
        """The rule as a JSON-able mapping that `curriculum_from` reads back: `{"type": "phases", ...}`.

        Fields that hold their default are left out.
        """
        values: dict[str, Any] = {"type": self.type}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                values[item.name] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Curriculum:
        """The rule written down by `to_dict`.

        Raises:
            ValueError: a field is not one of this curriculum's.
        """
        known = [item.name for item in fields(cls)]
        given = {name: value for name, value in values.items() if name != "type"}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(
                f"The curriculum {cls.type!r} has no field {', '.join(map(repr, unknown))}; its fields are {known}. "
                "A misspelt field would train another curriculum than the one meant."
            )
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
