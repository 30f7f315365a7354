"""Scores of models that have not seen what they score: each fold of the images is scored by its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.config import at_least
from hf_curriculum.fingerprint import share_trained_on
from hf_curriculum.provenance import ScoreProvenance, read_column
from hf_curriculum.rng import hash64, hash_below, mix64
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.registry import scorer_from
from hf_curriculum.shapes import validate_arguments

if TYPE_CHECKING:
    from datasets import Dataset

_KEY = 0xF01D
"""Keys folds apart from other draws of the seed."""
_MOST_SEEN = 0.5
"""Other images' captions may read the same; more than this share of them is no accident."""


def folds_of(image_ids: Sequence[Any], folds: int = 2, seed: int = 0) -> np.ndarray:
    """The fold of each row by its image, from 0: the same in any data set, order, batch or process; int64 (rows,).

    Raises:
        ValueError: `folds` is less than 2, or a row has no `image_id`.
    """
    at_least("folds_of", folds=(folds, 2))
    names: dict[Any, int] = {}
    for image_id in image_ids:
        if image_id not in names:
            names[image_id] = xxh3_64_intdigest(str(image_id).encode())
    if None in names or "" in names:
        raise ValueError(
            f"A row of {len(image_ids):,} has no `{IMAGE_ID}`, so nothing says which fold it is of: a model could be "
            "trained on its image and score it. Give every row the id of its image."
        )
    hashes = np.array([names[image_id] for image_id in image_ids], np.uint64)
    return hash_below(hash64(hashes, mix64(seed, _KEY)), folds)


@validate_arguments
def without_fold(dataset: Dataset, fold: int, folds: int = 2, seed: int = 0) -> Dataset:
    """The rows that a model may be trained on which then scores the fold, see `CrossFit`.

    Raises:
        ValueError: as `folds_of`; there is no such fold, or no `image_id`.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"image_id": ["a", "b", "c", "d"], "caption": ["red", "blue", "tree", "car"]})
        >>> [without_fold(data, fold)["image_id"][:] for fold in range(2)]
        [['a', 'd'], ['b', 'c']]
    """
    if not 0 <= fold < folds:
        raise ValueError(f"fold={fold} was given, and folds={folds} are numbered from 0 to {folds - 1}.")
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="Rows of the same image belong to the same fold.",
        remedy="Add it, or rename the column that says which image a row is of (`dataset.rename_column`).",
    )
    return dataset.select(np.flatnonzero(folds_of(read_column(dataset, IMAGE_ID).to_pylist(), folds, seed) != fold))


class CrossFit(Scorer):
    """Scores each image's rows by the scorer of its fold, whose model was trained on the other folds alone.

    A model's loss of a row that it was trained on tells what it has memorised, wrong captions too. Train a model for
    each fold on `without_fold(train, fold)`; their scores of what they have not seen then make one column.

    Args:
        scorers: one for each fold, in order, alike but for their models: scorers, or what `scorer_from` reads.
        seed: of the folds, as of `without_fold`.

    Attributes:
        folds_: rows of each fold that `fit` saw.

    Shapes:
        as the scorers' own: float32 (rows,) for each column that they write; which column, and which end is easy, is
        theirs.

    Raises:
        ValueError: fewer than two scorers, or they differ in more than model and fitted attributes; in `fit`: a model
            was trained on the captions of the fold that it scores, as its folder says, or a fold has no rows.
        RuntimeError: used before `fit`.

    Source: Mindermann et al. 2022, *Prioritized Training on Points that are Learnable, Worth Learning, and Not Yet
        Learnt*: two models on halves, where no data is held out.

    Example:
        >>> scorers = [Grounding(f"reference-{fold}") for fold in range(2)]  # doctest: +SKIP
        >>> scored = add_scores(train, CrossFit(scorers).fit(train))         # doctest: +SKIP
    """

    fitted_attributes: tuple[str, ...] = ("folds_",)

    def __init__(self, scorers: Sequence[Scorer | Mapping[str, Any] | str], seed: int = 0) -> None:
        self.scorers: list[Scorer] = [scorer_from(scorer) for scorer in scorers]
        self.seed = seed
        if len(self.scorers) < 2:
            raise ValueError(
                f"CrossFit was given {len(self.scorers)} scorer(s). Each fold is scored by the model of the others: "
                "give one for each of two or more folds."
            )
        first, *others = self.scorers
        for number, other in enumerate(others, 1):
            if (found := _differences(first, other)) - {"model", "processor", "revision"}:
                raise ValueError(
                    f"Scorer {number} differs from scorer 0 in {sorted(found)}: their scores would not be of one kind "
                    "and could not be ranked together. Give scorers that are alike but for their models."
                )
        columns = tuple(dict.fromkeys((*first.columns, IMAGE_ID)))
        self._set_columns(columns, first.name, first.easy, first.decode_false)
        self.group_by: str | None = first.group_by
        self.numpy_columns: tuple[str, ...] = first.numpy_columns
        self.packages: tuple[str, ...] = first.packages

    @property
    def outputs(self) -> dict[str, str]:
        return self.scorers[0].outputs

    def arguments(self) -> dict[str, Any]:
        own = [{"type": type(one).__name__, "model": one.model, **one.arguments()} for one in self.scorers]
        return {"scorers": own, "seed": self.seed}

    def describe(self, column: str | None = None) -> ScoreProvenance:
        """The provenance of a column: cross-fitted, by models that were trained on so many examples together."""
        made = [scorer.describe(column) for scorer in self.scorers]
        examples = sum(one.trained_on.get("examples", 0) for one in made)
        return replace(super().describe(column), trained_on={"cross_fitted": True, "examples": examples})

    def fit(self, dataset: Dataset) -> CrossFit:
        """Fits each scorer on its own fold, of images that its model has not seen.

        Args:
            dataset: what is to be scored, with `image_id`.

        Raises:
            TypeError: not a data set in memory or on disk.
            ValueError: a fold has no rows, or its scorer's model was trained on its captions.
        """

        require_columns(
            dataset.column_names, self.columns, reader="CrossFit and its scorers read it.", remedy="Rename the column."
        )
        numbers = folds_of(read_column(dataset, IMAGE_ID).to_pylist(), len(self.scorers), self.seed)
        rows = [np.flatnonzero(numbers == fold) for fold in range(len(self.scorers))]
        for fold, (scorer, own) in enumerate(zip(self.scorers, rows, strict=True)):
            if not len(own):
                raise ValueError(
                    f"Fold {fold} of {len(rows)} has none of the {len(dataset):,} rows, which are of too few images. "
                    "Give more of them, or fewer folds."
                )
            part = dataset.select(own)
            seen = share_trained_on(scorer.describe(next(iter(scorer.outputs))), part)
            if seen is not None and seen > _MOST_SEEN:
                raise ValueError(
                    f"{scorer.model} was trained on {seen:.0%} of the captions of fold {fold}, which it would score: "
                    "its scores of them tell what it has memorised. Train it on `without_fold(train, "
                    f"{fold}, folds={len(rows)}, seed={self.seed})`, and give the scorers in the order of the folds."
                )
            scorer.fit(part)
        self.folds_: list[int] = [len(own) for own in rows]
        return self

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> dict[str, np.ndarray]:
        numbers = folds_of(batch[IMAGE_ID], len(self.scorers), self.seed)
        found = {name: np.full(len(numbers), np.nan, np.float32) for name in self.outputs}
        for fold in np.unique(numbers):
            rows = np.flatnonzero(numbers == fold)
            own = {column: [values[row] for row in rows] for column, values in batch.items()}
            for name, values in self.scorers[fold](own, rank).items():
                found[name][rows] = values
        return found


def _differences(one: Scorer, other: Scorer) -> set[str]:
    """The arguments in which two scorers differ, fitted attributes aside; their types, names and easy ends too."""
    if type(one) is not type(other):
        return {"type"}
    about = [{**each.arguments(), "name": each.name, "easy": each.easy} for each in (one, other)]
    return {key for key in about[0].keys() | about[1].keys() if about[0].get(key) != about[1].get(key)} - {"fitted"}
