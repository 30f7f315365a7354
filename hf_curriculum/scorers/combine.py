"""Weighted sums of normalised scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from hf_curriculum.provenance import read_provenance, score_values, validate_choice
from hf_curriculum.scorers.base import Scorer

Easy = Literal["low", "high"]
Normalise = Literal["none", "zscore", "minmax", "rank"]


class Combine(Scorer):
    """Weighted sum of score columns, each normalised over the data set of `fit`.

    A column whose easy end is not the sum's is negated (z becomes −z, m in 0…1 becomes 1 − m). The easy end of a
    column is taken from `easy_of`, else from the provenance in the data, else from the scorer that writes the column.

    An ensemble over seeds or models is the same sum with equal weights, `Combine.mean_of`.

    Args:
        weights: column → positive weight. They are not scaled to 1.
        normalise: "none" adds in natural units. "zscore" subtracts the mean and divides by the standard deviation.
            "minmax" maps the smallest fitted score to 0 and the largest to 1. "rank" is the share of the fitted scores
            below plus half the equal ones, from 0 to 1.
        name: the column to write.
        easy: which end of the sum is easy.
        easy_of: column → its easy end, overriding the provenance.
        missing: a row without one part gets "nan", no score; or "skip", the sum of the other parts, scaled to the sum
            of all weights (not with `normalise="none"`).

    Shapes:
        float32 (rows,); NaN where parts are missing. Infinite scores count as missing.

    Raises:
        ValueError: no weights, a weight that is not a positive number, unknown `normalise`, `missing` or easy end,
            `missing="skip"` without normalisation. In `fit`: a column that is missing, constant, or all NaN, or whose
            easy end is unknown.
        TypeError: `fit` was not given one map-style data set.
        RuntimeError: used before `fit`.

    Source: Zhang et al. 2022 (Simi-CL), §3.3, equation 4, for two parts; ensembles and normalisations are ours.

    Example:
        >>> data = Dataset.from_dict({"a": [0.0, 1.0, 2.0], "b": [30.0, 10.0, 20.0]})
        >>> scorer = Combine({"a": 0.5, "b": 0.5}, "minmax", easy_of={"a": "low", "b": "high"}).fit(data)
        >>> scorer(data[:])
        {'combined': array([0.  , 0.75, 0.75], dtype=float32)}
    """

    name = "combined"
    fitted_attributes: tuple[str, ...] = ("low_is_easy_", "fitted_")

    def __init__(
        self,
        weights: Mapping[str, float],
        normalise: Normalise = "zscore",
        name: str = "combined",
        *,
        easy: Easy = "low",
        easy_of: Mapping[str, Easy] | None = None,
        missing: Literal["nan", "skip"] = "nan",
    ) -> None:
        validate_choice("normalise", normalise, ("none", "zscore", "minmax", "rank"))
        validate_choice("missing", missing, ("nan", "skip"))
        if not weights:
            raise ValueError(
                f"`weights={weights!r}` was given. It is a mapping from score columns to their weights; for equal "
                "ones use `Combine.mean_of([...])`."
            )
        for column, weight in weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(
                    f"The weight of `{column}` is {weight}, not a positive number. A column is negated by its easy "
                    f"end, `easy_of={{{column!r}: ...}}`."
                )
        for column, end in (easy_of or {}).items():
            validate_choice(f"easy_of[{column!r}]", end, ("low", "high"))
        if missing == "skip" and normalise == "none":
            raise ValueError('`missing="skip"` does not go with `normalise="none"`: a missing part shifts the sum.')
        self.weights: Any = {column: float(weight) for column, weight in weights.items()}
        self.parts: dict[str, float] = self.weights
        self.normalise = normalise
        self.missing = missing
        self.easy_of: dict[str, str] = dict(easy_of or {})
        self._set_columns(tuple(self.parts), name, easy)

    @classmethod
    def mean_of(cls, columns: Sequence[str], normalise: Normalise = "zscore", **options: Any) -> Combine:
        """The mean of several columns: an ensemble over seeds, models or scores.

        Args:
            columns: the score columns, each with the weight 1 / their number.
            normalise: as in `Combine`.
            options: the other arguments of `Combine`.

        Raises:
            ValueError: a column is named twice, or none is.
        """
        columns = [columns] if isinstance(columns, str) else list(columns)
        if len(set(columns)) < len(columns):
            raise ValueError(f"A column is named twice in {columns}. Weigh it by `Combine({{...}})` instead.")
        return cls({column: 1 / len(columns) for column in columns}, normalise, **options)

    def fit(self, dataset: Dataset) -> Combine:
        """Sets the statistics of the normalisation, and which end of each column is easy.

        Args:
            dataset: has the columns, scored; NaN and infinite scores do not count.
        """
        recorded = {column: made.easy for column, made in read_provenance(dataset).items()}
        low_is_easy, fitted = {}, {}
        for column in self.columns:
            scores = score_values(dataset, column)
            low_is_easy[column] = self._easy_end(column, recorded) == "low"
            fitted[column] = self._statistics(column, scores[np.isfinite(scores)])
        self.low_is_easy_: dict[str, bool] = low_is_easy
        self.fitted_: dict[str, Any] = fitted
        return self

    def _easy_end(self, column: str, recorded: Mapping[str, Easy]) -> Easy:
        from hf_curriculum.names import SCORERS  # it lists this class

        if column in self.easy_of:
            return self.easy_of[column]
        if column in recorded:
            return recorded[column]
        if column in SCORERS:
            return SCORERS[column].easy
        raise ValueError(
            f"Whether a low or a high `{column}` is easy is not recorded with the data, and no scorer writes that "
            f'column. Pass `easy_of={{{column!r}: "low"}}` or "high".'
        )

    def _statistics(self, column: str, scores: np.ndarray) -> Any:
        """Of one column's finite scores: location and scale, or the distinct values and the shares below them."""
        if len(scores) == 0:
            raise ValueError(f"No row has a finite `{column}`, so every sum would be NaN. Score the data first.")
        if self.normalise == "none":
            return None
        if self.normalise == "rank":
            values, counts = np.unique(scores, return_counts=True)
            below = np.concatenate([[0], np.cumsum(counts)])  # (values + 1,)
            return values, below / len(scores)
        low, high = float(scores.min()), float(scores.max())
        if low == high:
            raise ValueError(
                f"`{column}` is {low:g} in all {len(scores)} scored rows: there is no spread for "
                f'"{self.normalise}" to divide by. Leave it out, or use `normalise="rank"`.'
            )
        if self.normalise == "minmax":
            return low, high - low
        wide = scores.astype(np.float64)
        return float(wide.mean()), float(wide.std())

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        total = weight_there = 0.0
        for column, weight in self.parts.items():
            part = self._normalised(column, np.array(batch[column], dtype=np.float64))  # None becomes NaN
            there = ~np.isnan(part)
            total = total + weight * (part if self.missing == "nan" else np.where(there, part, 0))
            weight_there = weight_there + weight * there
        if self.missing == "nan":
            return total
        weight_there = np.where(weight_there > 0, weight_there, np.nan)
        return total * (sum(self.parts.values()) / weight_there)

    def _normalised(self, column: str, scores: np.ndarray) -> np.ndarray:
        """One part, normalised, and negated if its easy end is not the sum's: float64 (rows,) → float64 (rows,)."""
        scores = np.where(np.isfinite(scores), scores, np.nan)
        negated = self.low_is_easy_[column] != (self.easy == "low")
        if self.normalise == "rank":
            values, below = self.fitted_[column]
            wanted = scores.astype(values.dtype)  # as fitted, or a score read as a double would miss its own value
            first, stop = np.searchsorted(values, wanted, "left"), np.searchsorted(values, wanted, "right")
            shares = np.where(np.isnan(scores), np.nan, (below[first] + below[stop]) / 2)
            return 1 - shares if negated else shares
        if self.normalise == "none":
            return -scores if negated else scores
        location, scale = self.fitted_[column]
        scores = (scores - location) / scale
        if not negated:
            return scores
        return 1 - scores if self.normalise == "minmax" else -scores


class Addup(Combine):
    """Simi-CL's D_addup: 0.6 · visual entropy + 0.4 · language-model loss.

    The paper's formula names no normalisation (its Figure 4 shows distributions of normalised scores). In natural
    units (`normalise="none"`) both parts are in nats: the visual one from 0 to 73.8 = 10 · ln 1600, the textual one
    unbounded. Their spreads would then decide the weights. By default each part is scaled to 0…1 first.

    Args:
        visual: the column of visual difficulty.
        textual: the column of textual difficulty.
        weights: of the visual and the textual part.
        normalise: as in `Combine`.
        name: the column to write.
        easy: a low sum is easy by default.
        easy_of: as in `Combine`.
        missing: as in `Combine`.

    Shapes:
        float32 (rows,); NaN where a part is missing.

    Raises:
        ValueError: not two weights, one column for both parts, and what `Combine` raises.

    Source: Zhang et al. 2022 (Simi-CL), §3.3, equation 4, and §4.1 (λ = 0.6); the normalisation is ours.

    Example:
        >>> scorer = Addup().fit(data)                     # doctest: +SKIP
        >>> add_scores(data, scorer)["addup"][:]           # doctest: +SKIP
    """

    name = "addup"

    def __init__(
        self,
        visual: str = "visual_entropy",
        textual: str = "language_model_loss",
        weights: tuple[float, float] = (0.6, 0.4),
        normalise: Normalise = "minmax",
        name: str = "addup",
        *,
        easy: Easy = "low",
        easy_of: Mapping[str, Easy] | None = None,
        missing: Literal["nan", "skip"] = "nan",
    ) -> None:
        if len(weights) != 2 or visual == textual:
            found = f"`weights={weights}` were given for `{visual}` and `{textual}`"
            raise ValueError(f"{found}. D_addup has two parts and a weight for each; for more use `Combine`.")
        parts = dict(zip((visual, textual), weights, strict=True))
        super().__init__(parts, normalise, name, easy=easy, easy_of=easy_of, missing=missing)
        self.visual = visual
        self.textual = textual
        self.weights: tuple[float, ...] = tuple(weights)
