"""Filtering as a curriculum: another curriculum over the easiest share of the examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hf_curriculum.planning.buckets import keep_easiest
from hf_curriculum.planning.curriculum import Budget, Curriculum, Log, WrappingCurriculum, curriculum_from
from hf_curriculum.planning.groups import Kind
from hf_curriculum.planning.ranking import Easy, Ranking, rank_scores
from hf_curriculum.planning.stage import Stage

if TYPE_CHECKING:
    from hf_curriculum.planning.score_mixture import ScoreMixture


@dataclass(frozen=True)
class Filter(WrappingCurriculum):
    """Drops the hardest examples and runs the curriculum `then` on the rest.

    Args:
        keep: the share to keep, more than 0 and at most 1: the easiest ⌊n·keep⌋ scored examples. 0.5 if neither it nor
            `at_least` is given. `"auto"`: the easier of two humps of the scores, while it is the more probable one.
        then: the curriculum over the kept examples; `easy` and `unscored` are arguments of the filter.
        by: the column of another score to filter by; None: the score that `then` orders by.
        by_easy: which end of `by` is easy, in place of what its provenance says.
        at_least: keep the examples with this score or more, whichever end is easy, in place of a share.
        easy: see `Curriculum`.
        unscored: see `Curriculum`; the filter never keeps unscored rows: without `by` only `"error"` matters.
        partial_batches: taken from `then`.

    Raises:
        ValueError: `keep` is out of range or given with `at_least`, `by_easy` has no effect, or `then` is no
            curriculum or has `easy`, `unscored` or `batches`. In a plan: nothing is kept, the easy end of `by` is
            unknown, or `keep="auto"` finds no two humps.
        TypeError: `keep` is neither a number nor `"auto"`.

    Source: Nebbia & Kovashka 2024 (WSOD) §3.4: keep 0.5 or 0.75, alone or before four phases; by the number of
        mentions, more than one. Their best row (Table 1) keeps 0.75 by CLIP and orders by the caption's length.
        `"auto"`: ours, see `fit_score_mixture`; Li, Socher & Hoi 2020 (DivideMix) §3.1 divide losses so.

    Example:
        >>> from hf_curriculum import Phases
        >>> Filter(0.5, Phases(4, 1)).to_dict()
        {'type': 'filter', 'then': {'type': 'phases'}}
        >>> Filter(at_least=2, by="object_mentions", then="iid").to_dict()
        {'type': 'filter', 'then': {'type': 'iid'}, 'by': 'object_mentions', 'at_least': 2}
    """

    type: ClassVar[str] = "filter"

    keep: float | Literal["auto"] | None = None
    then: Curriculum = field(default_factory=lambda: curriculum_from("iid"))
    by: str | None = field(default=None, kw_only=True)
    by_easy: Easy | None = field(default=None, kw_only=True)
    at_least: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.at_least is not None and (self.keep is not None or self.by_easy is not None):
            other = "keep" if self.keep is not None else "by_easy"
            raise ValueError(
                f"Filter got at_least={self.at_least} and {other}={getattr(self, other)!r}, and one threshold says "
                "what is kept: the other would change nothing. Drop one of them."
            )
        if self.by_easy is not None and self.by is None:
            raise ValueError(
                f"Filter got by_easy={self.by_easy!r} without `by`: it keeps by the score that it orders by, whose "
                "end is `easy`. Name the other score's column in `by`, or give `easy`."
            )
        if self.keep is None and self.at_least is None:
            object.__setattr__(self, "keep", 0.5)
        if self.keep is not None and self.keep != "auto":
            if not isinstance(self.keep, Real):
                raise TypeError(f"Filter(keep={self.keep!r}) is not possible; keep is a number or 'auto'.")
            if not 0 < self.keep <= 1:
                raise ValueError(f"Filter(keep={self.keep}) is not possible; keep is more than 0 and at most 1.")
        super().__post_init__()
        self._choice("by_easy", (None, "low", "high"))

    @property
    def needs_scores(self) -> bool:
        """Whether a score is needed: to filter by it, or for `then`."""
        return self.by is None or self.then.needs_scores

    @property
    def leaves_hardest_out(self) -> bool:
        """Whether a share from the hard end of that score is left out."""
        return (self.by is None and self.at_least is None) or self.then.leaves_hardest_out

    @property
    def needs_easy(self) -> bool:
        """Whether it matters which end of that score is easy."""
        return (self.by is None and self.at_least is None) or self.then.needs_easy

    @property
    def reads(self) -> Mapping[str, Kind]:
        """Those of `then`, and `by`."""
        return self.then.reads if self.by is None else {**self.then.reads, self.by: "score"}

    def arrange(self, ranking: Ranking, losses: np.ndarray | None = None) -> Ranking:
        """What is kept, arranged by `then`."""
        return self.then.arrange(self._kept(ranking), losses)

    def arrange_round(self, ranking: Ranking, losses: np.ndarray | None, key: int) -> Ranking:
        """What is kept, arranged by `then`."""
        return self.then.arrange_round(self._kept(ranking), losses, key)

    def _kept(self, ranking: Ranking) -> Ranking:
        """The order without what is left out."""
        if self.by is None and self.keep not in (None, "auto"):
            return keep_easiest(ranking, self.keep)
        values = self._values(ranking)[ranking.order]
        if self.keep == "auto":
            chosen = self._mixture(ranking).keeps(values, self._end(ranking))
        elif self.at_least is not None:
            least = values.dtype.type(self.at_least) if values.dtype.kind == "f" else self.at_least  # 0.3 as stored
            chosen = np.isfinite(values) & (values >= least)
            if not chosen.any():
                found = f"the largest is {values.max():g}" if np.isfinite(values).all() else "some have none"
                raise ValueError(
                    f"None of the {len(ranking):,} examples has `{self.by or ranking.score_column or 'a score'}` ≥ "
                    f"{self.at_least:g} ({found}), so nothing would be left to train on. Give a smaller `at_least`."
                )
        else:
            by_row = np.argsort(ranking.order)  # equal scores keep the order of the data
            easiest = keep_easiest(rank_scores(values[by_row], self._end(ranking), score_column=self.by), self.keep)
            chosen = np.zeros(len(values), dtype=bool)
            chosen[by_row[easiest.order]] = True
        return replace(ranking, order=ranking.order[chosen], num_scored=int(chosen[: ranking.num_scored].sum()))

    def _values(self, ranking: Ranking) -> np.ndarray:
        """The score of every row that says what is kept."""
        return ranking.scores if self.by is None else ranking.columns[self.by]

    def _end(self, ranking: Ranking) -> Easy:
        """Which end of it is easy."""
        if self.by is None:
            return ranking.easy
        easy = self.by_easy or ranking.easy_ends.get(self.by)
        if easy is None:
            raise ValueError(
                f"Filter keeps the easiest by `{self.by}`, and whether a low or a high one is easy is not recorded "
                "with the data, and no scorer writes that column. Pass by_easy='low' or by_easy='high'."
            )
        return easy

    def _mixture(self, ranking: Ranking) -> ScoreMixture:
        """The two humps of all scores; they do not depend on which rows are left in the order."""
        from hf_curriculum.planning.score_mixture import fit_score_mixture

        mixture = fit_score_mixture(self._values(ranking))
        if mixture.lacks:
            name = f"`{self.by or ranking.score_column}`" if self.by or ranking.score_column else "the score"
            (low, high), (first, second), (one, other) = mixture.means, mixture.deviations, mixture.weights
            raise ValueError(
                f"Filter(keep='auto') was given, and the {mixture.num_scored:,} values of {name} form no two humps: "
                f"{'; '.join(mixture.lacks)}. The fit has means {low:.3g} and {high:.3g}, spreads {first:.3g} and "
                f"{second:.3g}, shares {100 * one:.3g} % and {100 * other:.3g} %, D {mixture.distance:.3g}. Without "
                "two of them nothing says which share is easy. Give `keep` a share or `at_least` a value; "
                "`hf-curriculum inspect` shows the scores."
            )
        return mixture

    def _share(self, ranking: Ranking) -> float:
        """The share of the scored rows on the easy side of the threshold."""
        mixture = self._mixture(ranking)
        return int(mixture.keeps(self._values(ranking), self._end(ranking)).sum()) / mixture.num_scored

    def with_share(self, ranking: Ranking) -> Filter:
        """The same rule with a number in place of `keep="auto"`, where it keeps by the score that it orders by.

        Args:
            ranking: by that score.

        Raises:
            ValueError: there are no two humps.

        Example:
            >>> hump = np.log(np.linspace(0.01, 0.99, 200) / np.linspace(0.99, 0.01, 200))
            >>> Filter("auto").with_share(rank_scores(np.concatenate([hump, hump + 12]))).keep
            0.50125
        """
        if self.keep != "auto" or self.by is not None:
            return self
        scored = int(np.isfinite(self._values(ranking)).sum())
        return replace(self, keep=min(self._share(ranking) + 0.5 / scored, 1.0))  # rounded down again

    def notes(self, ranking: Ranking, budget: Budget) -> tuple[str, ...]:
        """Those of `then`, and what `keep="auto"` found."""
        notes = self.then.notes(ranking, budget)
        if self.keep != "auto":
            return notes
        mixture = self._mixture(ranking)
        low, high = (f"{mean:.3g}" for mean in mixture.means)
        return (
            f"keep='auto': {100 * self._share(ranking):.1f} % (threshold {mixture.threshold:.3g} of "
            f"{self.by or ranking.score_column or 'the score'}; two humps at {low} and {high}, "
            f"{100 * mixture.unsure:.2g} % of the rows lie between them and may belong to either)",
            *notes,
        )

    def stages(self, ranking: Ranking, budget: Budget, log: Log = ()) -> tuple[Stage, ...]:
        """The stages of `then` over what is kept."""
        by = self.by or ranking.score_column or "score"
        if self.at_least is not None:
            kept = f" of {by} ≥ {self.at_least:g}"
        else:
            share = f"{100 * self._share(ranking):.1f}" if self.keep == "auto" else f"{100 * self.keep:.4g}"
            kept = f" of the easiest {share} %" + (f" by {by}" if self.by else "")
        stages = self.then.fitted_stages(ranking, budget, log)
        return tuple(replace(stage, rule=stage.rule + kept) for stage in stages)

    def to_dict(self) -> dict[str, Any]:
        """As `WrappingCurriculum.to_dict`, without a `keep` of 0.5."""
        return {name: value for name, value in super().to_dict().items() if name != "keep" or value != 0.5}
