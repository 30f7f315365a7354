"""A sample of someone's scored data for `advise`, and the scores of captions that are dealt to other images."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from datasets import Dataset, concatenate_datasets

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.curricula.filter import Filter
from hf_curriculum.data.captions import drop_empty_captions, group_codes, hold_out
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.names import SCORERS, SMALL_MODELS
from hf_curriculum.planning.ranking import rank_scores
from hf_curriculum.provenance import ScoreProvenance, numeric_column, read_column, read_provenance
from hf_curriculum.rng import mix64
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.cross_fit import folds_of
from hf_curriculum.scorers.registry import scorer_from
from hf_curriculum.scoring.add_scores import add_scores
from hf_curriculum.scoring.per_image import add_embeddings
from hf_curriculum.studies.small_models import SCORE, SmallModel, SmallText

DEALT = 0.3
"""Share of the captions that are dealt to others. # ours"""
CROSS_FIT_STEPS = 200
"""Steps of the models by which the other half is scored. # ours"""
MIN_UNITS, MAX_UNITS, HELD_OUT = 100, 2000, 0.25
"""Images (or texts) that are needed, those that are looked at, and the share of them that is held out. # ours"""
_QUARTILE = _LEAST_KEPT = 0.25
_COMPARED = 64  # rows that a scorer that was made again must score as before


@dataclass(frozen=True)
class Share:
    """Rows at one share of wrong captions.

    Args:
        rows: `image_id`, `caption` and `SCORE`, the greater the better.
        keep: the share that a filter keeps.
    """

    rows: Dataset
    keep: float


@dataclass(frozen=True)
class Dealing:
    """What one seed deals.

    Args:
        seed: of it, and of the runs on it.
        shares: of the data as they are, and with captions dealt.
        told: scores of the data's captions and of the dealt ones by one scorer, and which are the data's own.
    """

    seed: int
    shares: tuple[Share, Share]
    told: tuple[np.ndarray, np.ndarray]


@dataclass
class Sample:
    """What is trained on, what is held out, and how dealt captions are scored.

    Args:
        train: all columns of the rows that are trained on, and `SCORE`, the greater the better.
        held: `image_id` and `caption` of other images.
        small: the models.
        column: the score that is asked about.
        made: where it comes from.
        sign: 1 where a high score is good, else -1.
        scorer: what wrote it; None: small models score crosswise.
        judged_by: which of the two, and why.
    """

    train: Dataset
    held: Dataset
    small: SmallModel
    column: str
    made: ScoreProvenance | None
    sign: int
    scorer: Scorer | None
    judged_by: str

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        column: str | None,
        features: Mapping[str, Any] | None,
        seed: int,
        easy: Literal["low", "high"] | None,
    ) -> Sample:
        """A sample of the images, split in two; an error where nothing could be told of them."""
        sees = features is not None or IMAGE in dataset.column_names
        require_columns(
            dataset.column_names,
            [CAPTION, *([IMAGE_ID] if sees else [])],
            reader="Captions are moved to other images and trained on.",
            remedy="Rename the columns (`dataset.rename_column`), or load with `load_captioned`, which gives both.",
        )
        column, made, sign = _score_of(dataset, column, easy)
        dataset = drop_empty_captions(dataset)
        if not sees and IMAGE_ID not in dataset.column_names:
            dataset = dataset.add_column(IMAGE_ID, [str(row) for row in range(len(dataset))])
        good = sign * numeric_column(dataset, column).astype(np.float64)
        scored = np.flatnonzero(np.isfinite(good))
        dataset, good = dataset.select(scored), good[scored]
        _validate_scores(good, column)
        dataset = dataset.remove_columns([SCORE] if SCORE in dataset.column_names else []).add_column(SCORE, good)
        units = len(np.unique(group_codes(read_column(dataset, IMAGE_ID))))
        if units < MIN_UNITS:
            raise ValueError(
                f"The data has {units:,} {'images' if sees else 'texts'} with a caption and a `{column}`, and "
                f"{MIN_UNITS} are the fewest that allow a result: a quarter is held out. Give more of them."
            )
        if units > MAX_UNITS:
            dataset = hold_out(dataset, MAX_UNITS / units, seed=seed)["validation"]
        vectors = image_vectors(dataset, features) if sees else {}
        parts = hold_out(dataset, HELD_OUT, seed=mix64(seed, 1))
        small = (SMALL_MODELS["images"] if sees else SmallText)(parts["train"], vectors)
        scorer, judged_by = rebuilt(made, column, sign, parts["train"])
        held = parts["validation"].select_columns([IMAGE_ID, CAPTION])
        return cls(parts["train"], held, small, column, made, sign, scorer, judged_by)

    @property
    def num_units(self) -> tuple[int, int]:
        """Images that are trained on, and held out."""
        return tuple(len(np.unique(group_codes(read_column(part, IMAGE_ID)))) for part in (self.train, self.held))

    @property
    def plain(self) -> Dataset:
        """What small models read of the rows that are trained on."""
        return _plain(self.train)

    def dealt(self, seed: int) -> Dealing:
        """A seed's captions and scores. A caption is dealt within a half, whose scores are by a model of the other."""
        folds = folds_of(read_column(self.train, IMAGE_ID).to_pylist(), 2, seed)
        halves = [self.train.select(np.flatnonzero(folds == fold)) for fold in range(2)]
        dealt, right = zip(
            *(self.small.deal(half, DEALT, mix64(seed, at)) for at, half in enumerate(halves)), strict=True
        )
        right = np.concatenate(right)
        if self.scorer is None:
            own, anew, wrong = (
                np.concatenate(part) for part in zip(*self._crosswise(halves, dealt, seed), strict=True)
            )
        else:
            own = np.concatenate([half[SCORE] for half in halves])
            anew = wrong = self.scored(concatenate_datasets(list(dealt)), own, right)
        shares = (
            share(concatenate_datasets(halves), own, anew[~right]),
            share(concatenate_datasets(list(dealt)), wrong, wrong[~right]),
        )
        values = np.concatenate([own, anew[~right]])
        known = np.isfinite(values)
        return Dealing(seed, shares, (values[known], np.arange(len(values))[known] < len(own)))

    def _crosswise(self, halves: Sequence[Dataset], dealt: Sequence[Dataset], seed: int) -> Iterator[list[np.ndarray]]:
        """Of each half scores of its captions and of dealt ones by a model of the other half; and by one of dealt."""
        for at in range(2):
            right = self.small.train(_plain(halves[1 - at]), CROSS_FIT_STEPS, seed)
            wrong = self.small.train(_plain(dealt[1 - at]), CROSS_FIT_STEPS, seed)
            rows = [(right, halves[at]), (right, dealt[at]), (wrong, dealt[at])]
            yield [self.small.score(trainer, _plain(part)) for trainer, part in rows]

    def scored(self, rows: Dataset, own: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Scores of rows by the column's scorer, (rows,): of dealt ones anew, and of their images' where it shares."""
        chosen = np.arange(len(rows)) if self.made.per_image else np.flatnonzero(~right)
        found = own.copy()
        found[chosen] = self.sign * _scores(self.scorer, self.made, rows.select(chosen))
        return found


def share(rows: Dataset, good: np.ndarray, dealt: np.ndarray) -> Share:
    """Rows with their scores, (rows,), and what to keep of them by those of the captions known to be wrong."""
    plain = rows.select_columns([IMAGE_ID, CAPTION])
    return Share(_plain(plain.add_column(SCORE, good.astype(np.float32))), share_to_keep(good, dealt))


def share_to_keep(good: np.ndarray, dealt: np.ndarray) -> float:
    """The share of `keep="auto"` where scores have two humps, else by how many are no better than dealt captions.

    Of wrong captions as many score at most t as of dealt ones, so no more than P(score ≤ t) / P(dealt ≤ t) are wrong;
    t is the quartile of the dealt ones. At least a quarter is kept.

    Args:
        good: scores of all rows, the greater the better.
        dealt: scores of captions that are known to be wrong.

    Example:
        >>> share_to_keep(np.array([0.0] * 10 + [1.0] * 30), np.array([0.0, 0.0, 1.0, 1.0]))
        0.5
    """
    try:
        return Filter("auto").with_share(rank_scores(good, "high")).keep
    except ValueError:  # no two humps
        known = dealt[np.isfinite(dealt)]
        if not len(known):
            return 1.0
        limit = np.quantile(known, _QUARTILE, method="inverted_cdf")
        wrong = float(np.mean(good <= limit) / np.mean(known <= limit))
        return float(np.clip(1 - wrong, _LEAST_KEPT, 1.0))


def rebuilt(made: ScoreProvenance | None, column: str, sign: int, rows: Dataset) -> tuple[Scorer | None, str]:
    """The scorer that wrote a column, where it scores some of the rows as the column does, and which scorer judges."""
    crosswise = f"cross-fitted small models, in place of `{column}`, which cannot be scored anew: "
    name = None if made is None or made.source != "scorer" else SCORERS.name_of(made.scorer)
    if name is None:
        return None, crosswise + "no scorer of the registry wrote it"
    first = rows.select(range(min(len(rows), _COMPARED)))
    if made.per_image:
        first = rows.select(np.flatnonzero(np.isin(rows[IMAGE_ID], first[IMAGE_ID])))
    try:
        known = inspect.signature(SCORERS[name]).parameters
        given = {key: value for key, value in made.arguments.items() if key in known}
        scorer = scorer_from({"type": name, **given})
        if scorer.needs_fit:
            scorer.fit(rows)
        found = _scores(scorer, made, first)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        return None, f"{crosswise}{made.scorer} says: {error}"
    if not np.allclose(sign * found, first[SCORE], rtol=1e-3, atol=1e-3):
        return None, f"{crosswise}{made.scorer} scores these rows otherwise"
    return scorer, f"`{column}`, scored anew by {made.scorer}"


def _scores(scorer: Scorer, made: ScoreProvenance, rows: Dataset) -> np.ndarray:
    """The column that a scorer writes, float64 (rows,); no other recorded score is there to be read."""
    bare = rows.remove_columns(list(read_provenance(rows)))
    name = made.column if made.column in scorer.outputs else scorer.name
    return numeric_column(add_scores(bare, scorer, per_image=made.per_image), name).astype(np.float64)


def image_vectors(rows: Dataset, features: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """`image_id` → the mean of the image's stored features, or what the shipped CLIP makes of it: float32 (1, width).

    Raises:
        ValueError: images without features, or that cannot be read.
    """
    ids = list(dict.fromkeys(read_column(rows, IMAGE_ID).to_pylist()))
    if features is None:
        first = add_embeddings(one_row_per_image(rows).select_columns([IMAGE_ID, IMAGE]), column="vector")
        store = dict(zip(first[IMAGE_ID], first.select_columns("vector")["vector"], strict=True))
        missing, where = [image for image in ids if store[image] is None], "images that can be read"
    else:
        store = features
        missing, where = [image for image in ids if image not in store], "features in the store"
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(ids):,} images are no {where}, the first {missing[0]!r}. A small model reads a "
            "vector of every image: drop their rows, or name a store of all images (`hf-curriculum features`)."
        )
    found = {}
    for image in ids:
        stored = store[image]
        stored = stored.features if isinstance(stored, Regions) else stored
        vector = np.atleast_2d(np.asarray(stored, dtype=np.float32)).mean(axis=0, keepdims=True)
        found[image] = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return found


def _score_of(
    dataset: Dataset, column: str | None, easy: str | None
) -> tuple[str, ScoreProvenance | None, Literal[1, -1]]:
    """The column, where it comes from, and whether a high or a low score is good."""
    recorded = read_provenance(dataset)
    if column is None and not recorded:
        raise ValueError(
            f"None of {dataset.column_names} is recorded as a score, and a filter goes by one. Score the data first "
            "(`hf-curriculum score`), or name the column of numbers."
        )
    column = next(iter(recorded)) if column is None else column
    require_columns(dataset.column_names, [column], reader="A filter goes by it.", remedy="Score the data first.")
    made = recorded.get(column)
    easy = easy or (made.easy if made is not None else None)
    if easy not in ("low", "high"):
        raise ValueError(
            f"Which end of `{column}` is good is not recorded with the data. Pass easy='low' or easy='high'."
        )
    return column, made, 1 if easy == "high" else -1


def _validate_scores(good: np.ndarray, column: str) -> None:
    if not len(good) or np.ptp(good) == 0:
        found = "is NaN in all rows" if not len(good) else f"is {abs(good[0]):g} in all {len(good):,} rows"
        raise ValueError(f"`{column}` {found}, so a filter has nothing to choose by. Score the data anew.")


def _plain(rows: Dataset) -> Dataset:
    """The columns that small models read, in memory and in order."""
    names = [name for name in (IMAGE_ID, CAPTION, SCORE) if name in rows.column_names]
    return Dataset.from_dict({name: rows[name][:] for name in names})
