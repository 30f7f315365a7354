"""Controls: scores permuted at random, and captions dealt to other images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.config import digest
from hf_curriculum.data.captions import group_codes
from hf_curriculum.names import SCORERS
from hf_curriculum.provenance import (
    ScoreProvenance,
    append_columns,
    installed_versions,
    numeric_column,
    read_column,
    read_provenance,
    score_values,
    validate_choice,
)
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.scoring.join import warn_if_merged
from hf_curriculum.shapes import validate_arguments


@validate_arguments
def shuffle_scores(
    dataset: Dataset | DatasetDict,
    column: str,
    *,
    within: str | None = None,
    seed: int = 0,
    name: str | None = None,
    group_by: str | None = "auto",
    easy: Literal["low", "high"] | None = None,
    overwrite: bool = False,
) -> Dataset | DatasetDict:
    """Adds a control for a score: the same scores, randomly permuted among the examples.

    The new column holds the same scores equally often. So buckets have exactly the sizes they have for the score,
    with `cut="rank"` and `cut="value"`, and a curriculum over it differs only in which examples count as easy.

    With `within`, scores are permuted only among rows that share a value of that column. Matched for caption length,
    for example, the control keeps the score's effect through length. Rows whose `within` is missing form a group of
    their own.

    Rows without a score (NaN) keep none. Where captions of one image share their score, they still share one: images
    are permuted among images with the same number of scored captions, which keeps the distribution. An image whose
    number of captions is unique keeps its score.

    Args:
        dataset: the scored data set, shuffled or filtered too, or splits; each split is permuted by itself.
        column: the score.
        within: a column of numbers or strings whose equal values form the groups to permute within.
        seed: of the permutation, a function of the seed, the score's name and the order of rows.
        name: the new column, by default `{column}_random`, or with `within` `{column}_matched`.
        group_by: rows with equal values of this column share one score; "auto" is `image_id` if the provenance says
            that the score was aggregated per image, else None.
        easy: the easy end of the control, by default the score's own.
        overwrite: replace a column that exists, in place of an error.

    Returns:
        The data set with the new column last, its provenance naming the score that was permuted.

    Raises:
        TypeError: not a map-style data set or splits of it.
        ValueError: a column is missing or exists already, the easy end is not known, rows of one group differ in score
            or in `within`, or no permutation would change a score.

    Example:
        >>> data = Dataset.from_dict({"noun_count": np.float32([1, 2, 3, 4, 5])})
        >>> control = shuffle_scores(data, "noun_count")["noun_count_random"][:]
        >>> sorted(control), control == [1, 2, 3, 4, 5]
        ([1.0, 2.0, 3.0, 4.0, 5.0], False)
    """
    if isinstance(dataset, DatasetDict):
        permute = partial(shuffle_scores, column=column, within=within, seed=seed, name=name, group_by=group_by)
        return DatasetDict({split: permute(part, easy=easy, overwrite=overwrite) for split, part in dataset.items()})
    name = name or f"{column}_{'random' if within is None else 'matched'}"
    scores = score_values(dataset, column)
    warn_if_merged(column, numeric_column(dataset, column), scores)
    before = read_provenance(dataset).get(column)
    if group_by == "auto":
        group_by = IMAGE_ID if before is not None and before.per_image is not None else None
    scored = np.flatnonzero(~np.isnan(scores))
    groups = _groups(dataset, group_by, scored)
    strata = _codes(dataset, within, scored)
    values = scores.copy()
    values[scored] = _permuted(scores[scored], groups, strata, mix64(seed, int(digest(column), 16)), column, within)
    made = _provenance(column, name, before, easy, {"within": within, "seed": seed, "group_by": group_by})
    return append_columns(dataset, {name: values}, {name: made}, overwrite=overwrite)


@validate_arguments
def deal_rows(dataset: Dataset, share: float, seed: int = 0) -> tuple[Dataset, np.ndarray]:
    """Deals a share of the captions to rows of other images: a control whose wrong captions are known.

    Captions are permuted among the rows that are drawn, so that each caption is there as often as before.

    Args:
        dataset: a row per caption, with `image_id`.
        share: of the rows, from 0 to 1; rounded to whole rows.
        seed: of the draws.

    Returns:
        The rows with their captions last and without recorded scores, which were of the captions before; and whether
        each row has its own caption still.

    Shapes: bool (rows,).

    Raises:
        ValueError: a column is missing, the share is not between 0 and 1, or more than half of the rows that are drawn
            are of one image, so that not all of them can get a caption of another.

    Example:
        >>> data = Dataset.from_dict({"image_id": ["a", "b", "c"], "caption": ["ash", "bay", "cut"]})
        >>> dealt, right = deal_rows(data, 1.0)
        >>> sorted(dealt["caption"]), right.tolist()
        (['ash', 'bay', 'cut'], [False, False, False])
    """
    require_columns(
        dataset.column_names,
        [IMAGE_ID, CAPTION],
        reader="Captions are moved to rows of other images.",
        remedy="Load with `load_captioned`, which gives both.",
    )
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} was given. The share of captions to deal is from 0 to 1.")
    draws = np.random.default_rng(seed)
    images, captions = np.array(dataset[IMAGE_ID]), np.array(dataset[CAPTION], dtype=object)
    chosen = draws.permutation(len(dataset))[: round(share * len(dataset))]
    most = np.unique(images[chosen], return_counts=True)[1].max(initial=0)
    if 2 * most > len(chosen):
        raise ValueError(
            f"{most:,} of the {len(chosen):,} rows whose captions should move are of one image, so not all of "
            "them can get a caption of another. Give data of more images, or move a larger share."
        )
    given = draws.permutation(chosen)
    while len(clash := np.flatnonzero(images[given] == images[chosen])):
        for place in clash:
            other = draws.integers(len(given))
            given[[place, other]] = given[[other, place]]
    captions[chosen] = captions[given]
    right = np.ones(len(dataset), dtype=bool)
    right[chosen] = False
    kept = dataset.remove_columns([CAPTION, *read_provenance(dataset)])
    return kept.add_column(CAPTION, captions.tolist()), right


def _groups(dataset: Dataset, group_by: str | None, scored: np.ndarray) -> np.ndarray:
    """The group of each scored row, numbered by first appearance: int64 (scored rows,)."""
    if group_by is None:
        return np.arange(len(scored))
    require_columns(
        dataset.column_names,
        [group_by],
        reader="Rows with equal values of it share one score, and must go on sharing one.",
        remedy="Name the column with `group_by=`, or pass `group_by=None` to permute rows.",
    )
    return np.unique(group_codes(read_column(dataset, group_by), group_by)[scored], return_inverse=True)[1]


def _codes(dataset: Dataset, within: str | None, scored: np.ndarray) -> np.ndarray:
    """Equal numbers for equal values of `within`, missing ones equal too: int64 (scored rows,)."""
    if within is None:
        return np.zeros(len(scored), np.int64)
    require_columns(
        dataset.column_names,
        [within],
        reader="Scores are permuted among rows that share its value.",
        remedy="Add it first, for example `add_scores(dataset, CaptionLength())` for `caption_length`.",
    )
    values = read_column(dataset, within).take(pa.array(scored))
    if pa.types.is_floating(values.type):  # Arrow would keep NaN and null apart
        return np.unique(values.to_numpy(zero_copy_only=False), return_inverse=True)[1]
    return values.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _permuted(
    scores: np.ndarray, groups: np.ndarray, strata: np.ndarray, key: int, column: str, within: str | None
) -> np.ndarray:
    """`scores` (rows,), permuted among `groups` (rows,) of equal size in the same of `strata` (rows,)."""
    if len(scores) == 0:
        raise ValueError(f"No row has a `{column}`, so there is nothing to permute. Score the data first.")
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    values = scores[first]  # (groups,)
    _validate_shared(scores, values[groups], column)
    _validate_shared(strata, strata[first][groups], within)
    kinds = np.unique(strata[first] * (sizes.max() + 1) + sizes, return_inverse=True)[1]  # (groups,)
    targets = np.argsort(kinds, kind="stable")
    neighbours = kinds[targets], values[targets]
    if not np.any((np.diff(neighbours[0]) == 0) & (neighbours[1][1:] != neighbours[1][:-1])):
        among = f" with the same `{within}`" if within is not None else ""
        remedy = "Match by a coarser column." if within is not None else "All examples have the same score."
        raise ValueError(
            f"No two scores{among} that could change places differ in `{column}`: {len(values)} scores fall into "
            f"{len(np.unique(kinds))} groups to permute within, so the control would equal the score. {remedy}"
        )
    sources = np.lexsort((hash64(np.arange(len(values)), key), kinds))  # the same kinds, each in a random order
    permuted = np.empty_like(values)
    permuted[targets] = values[sources]
    return permuted[groups]


def _validate_shared(found: np.ndarray, shared: np.ndarray, what: str | None) -> None:
    """Raises unless every row has the value of its group's first row; shapes (rows,) each."""
    different = int((found != shared).sum())
    if different:
        raise ValueError(
            f"Rows of one group differ in `{what}` ({different} of {len(found)} from their group's first). Make it "
            "one value per group (`add_scores(..., per_image=)`), or permute rows (`group_by=None`)."
        )


def _provenance(
    column: str, name: str, before: ScoreProvenance | None, easy: str | None, arguments: dict[str, Any]
) -> ScoreProvenance:
    validate_choice("easy", easy, ("low", "high", None))
    if easy is None and before is None and column not in SCORERS:
        raise ValueError(
            f"Which end of `{column}` is easy is not recorded with the data, and no scorer writes that column. Pass "
            '`easy="low"` or `easy="high"`.'
        )
    if before is None:
        before = ScoreProvenance(column, "unknown", easy=easy or SCORERS[column].easy)
    arguments = {"dealt_from": column, "scorer": before.scorer, "arguments": before.arguments, **arguments}
    versions = {**before.versions, **installed_versions(("hf-curriculum",))}
    return replace(
        before, column=name, scorer="shuffle_scores", arguments=arguments, versions=versions, easy=easy or before.easy
    )
