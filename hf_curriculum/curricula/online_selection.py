"""Online batch selection: training on the best of the candidates that another curriculum draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, WrappingCurriculum, curriculum_from
from hf_curriculum.planning.deciding import Candidates
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Ranking
from hf_curriculum.planning.stage import Stage

VALUES = ("loss", "reducible_loss", "-loss", "grounding")


@dataclass(frozen=True)
class OnlineSelection(WrappingCurriculum):
    """At each step, trains on the best of several candidates by the model's current loss.

    `then` draws `candidates` examples for every place in a batch. The model gives each a value, without gradients and
    without dropout. The one with the largest value is trained on; of equal ones the first. Each place has its own
    candidates, so the choice depends on the number of processes only where values differ by rounding alone. The length
    of `then` counts candidates: an epoch of it trains on one example in `candidates`.

    `"loss"` prefers examples that the model does not know yet (on noisy captions: false ones), `"-loss"` those it
    knows. `"reducible_loss"`, loss − `reference`, prefers those that only a model trained on true captions knows.
    `"grounding"`, the loss with another candidate's image − the loss, captions that the image explains.

    Args:
        candidates: examples drawn for each that is trained on; with 1 the run is the same as `then`, bit for bit.
        value: one of these four, without a default, because none is good for all data. For another value, write a
            subclass with its own `values`.
        reference: the column with the loss of a reference model, of the same kind as the model's own: the mean over
            tokens, `ModelLoss(..., reduction="mean")`. Rows without it are chosen only if no candidate of the place
            has it.
        then: the curriculum that draws; `easy`, `unscored` and `batches` are arguments of the selection.
        temperature: None: the best; else a candidate's probability is proportional to exp(value / temperature).
        score_every: steps whose candidates are valued at once, by the model before the first of them. More than 1
            saves no forward pass, and older values choose worse.
        easy: see `Curriculum`.
        unscored: see `Curriculum`.
        partial_batches: only `"stream"` is possible.

    Shapes: a step draws `candidates` × the global batch size, and trains on the global batch size. With
        `batches=ByImage(k)` a candidate is an image with its k captions, and its value their mean.

    Raises:
        ValueError: a number is out of range, the value is unknown, `reference` and `value` do not go together, or
            `then` cannot be chosen from.

    Source: Loshchilov & Hutter 2015 (online batch selection by loss). Mindermann et al. 2022, equation 3 (reducible
        loss; their n_b / n_B is our 1 / candidates, and they take the top of the whole large batch). Evans et al. 2024
        (JEST): learnability of image–text pairs.

    Example:
        >>> from hf_curriculum import Filter
        >>> print(OnlineSelection(2, "reducible_loss", "reference_loss"))
        OnlineSelection(candidates=2, value='reducible_loss', reference='reference_loss', then=IID())
        >>> Filter(0.7, OnlineSelection(value="grounding")).selection.candidates
        4
    """

    type: ClassVar[str] = "online_selection"

    candidates: int = 4
    value: str | None = None
    reference: str | None = None
    then: Curriculum = field(default_factory=lambda: curriculum_from("iid"))
    temperature: float | None = field(default=None, kw_only=True)
    score_every: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.candidates, Curriculum):
            name = type(self.candidates).__name__
            raise TypeError(
                f"OnlineSelection({name}(...)) gives a curriculum as the number of candidates. Name it, and what "
                f"chooses: OnlineSelection(value='loss', then={name}(...))."
            )
        super().__post_init__()
        for name in ("candidates", "score_every"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"OnlineSelection({name}={getattr(self, name)}) is not possible; {name} is a whole number of at "
                    "least 1."
                )
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(
                f"OnlineSelection(temperature={self.temperature}) is not possible; a temperature is a number more "
                "than 0, in the unit of the value. Leave it out to take the best."
            )
        if self.value is not None:
            self._choice("value", VALUES)
        elif type(self).values is OnlineSelection.values:
            raise ValueError(
                "OnlineSelection(value=None) does not say which candidate is the best, and nothing is in general. "
                "Give value='reducible_loss' with reference= (what a model trained on true captions has learnt), "
                "'grounding' (what the model reads off the image), 'loss' (what it does not know yet) or '-loss' "
                "(what it knows), or subclass it with a `values` of its own."
            )
        if (self.value == "reducible_loss") != (self.reference is not None):
            missing = "needs a reference" if self.reference is None else "reads none"
            raise ValueError(
                f"OnlineSelection(value={self.value!r}, reference={self.reference!r}) is not possible: this value "
                f"{missing}. Give value='reducible_loss' and the column of a reference model's loss together."
            )
        if self.then.selection is not None:
            raise ValueError(
                "OnlineSelection(then=...) holds an OnlineSelection: what the inner one chooses would be known to the "
                "model alone, while candidates are drawn beforehand. Use one, with as many candidates."
            )
        if self.then.losses_of_training:
            raise ValueError(
                f"OnlineSelection(then=...) holds a {type(self.then).__name__}, which goes by the losses that "
                "examples had when they were trained on: most candidates never are. Use one of the two."
            )
        if self.partial_batches == "keep":
            raise ValueError(
                "OnlineSelection(then=...) holds a curriculum with partial_batches='keep': in the last batch of a "
                "pass some places would have no candidate. Use partial_batches='stream'."
            )

    @property
    def selection(self) -> OnlineSelection:
        """This rule."""
        return self

    @property
    def forwards(self) -> int:
        """Forward passes that the value of one candidate takes."""
        return 2 if self.value == "grounding" else 1

    @property
    def choice(self) -> str:
        """The rule of the choice, in words."""
        return "the best" if self.temperature is None else f"one by exp(value / {self.temperature:g})"

    def values(self, candidates: Candidates) -> np.ndarray:
        """The value of each candidate, float, shape (candidates,); NaN where it has none.

        Args:
            candidates: of one batch.
        """
        if self.value == "grounding":
            return candidates.losses_with_other_images() - candidates.losses()
        losses = candidates.losses()
        if self.value == "reducible_loss":
            return losses - candidates.column(self.reference)
        return -losses if self.value == "-loss" else losses

    @property
    def reads_in_all(self) -> Mapping[str, Kind]:
        """The columns that `then` and the batches read, and the reference."""
        own: dict[str, Kind] = {} if self.reference is None else {self.reference: "score"}
        return {**super().reads_in_all, **own}

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """Those of `then`.

        Raises:
            ValueError: there are fewer examples than a place has candidates.
        """
        if len(ranking) < self.candidates:
            raise ValueError(
                f"There are {len(ranking):,} examples, and each place has {self.candidates:,} candidates: it would "
                "choose among repeats. Use fewer candidates."
            )
        return super().stages(ranking, budget, log)

    def row_notes(self, ranking: Ranking) -> tuple[str, ...]:
        """A note on rows without a reference.

        Args:
            ranking: of the rows, where images are drawn too.

        Raises:
            ValueError: no row has one.
        """
        if self.reference is None:
            return ()
        missing = int((~np.isfinite(ranking.columns[self.reference][ranking.order])).sum())
        if missing == len(ranking):
            raise ValueError(
                f"`{self.reference}` has no number for any of the {len(ranking):,} examples: there would be "
                "nothing to choose by. Score the data with a reference model, `ModelLoss(..., reduction='mean')`."
            )
        if not missing:
            return ()
        return (
            f"`{self.reference}` has no number for {missing:,} of {len(ranking):,} examples: they are trained "
            "on only where no candidate of their place has one.",
        )
