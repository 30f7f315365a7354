"""New score columns beside the old ones: laid there without a copy, checked, and reported."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets.fingerprint import Hasher
from datasets.table import InMemoryTable, concat_tables

from hf_curriculum.columns import require_columns
from hf_curriculum.provenance import ScoreProvenance, check_choice, rebuilt, score_statistics
from hf_curriculum.scorers.base import Scorer

logger = logging.getLogger(__name__)


def append_columns(
    dataset: Dataset, values: Mapping[str, np.ndarray], provenance: Mapping[str, ScoreProvenance]
) -> Dataset:
    """Lays new columns beside those of a data set; nothing is written to disk, nothing else is read.

    A shuffled or filtered data set is a table and a list of row numbers. The values are scattered to the rows of the
    table and the list is kept: rows that the list leaves out hold NaN, and nobody sees them.

    Args:
        dataset: the data set; columns of the same names are replaced.
        values: column → float32 (rows,), in the order of `dataset`.
        provenance: column → where it came from.
    """
    arrays = {}
    for column, scores in values.items():
        if dataset._indices is not None:
            base = np.full(dataset.data.num_rows, np.nan, np.float32)
            base[dataset._indices.column(0).to_numpy()] = scores
        else:
            base = np.asarray(scores, dtype=np.float32)
        arrays[column] = pa.array(base)
    key = Hasher.hash([array.to_numpy().tobytes() for array in arrays.values()])
    kept = dataset.remove_columns([column for column in dataset.column_names if column in values])
    new = Features({column: Value("float32", id=provenance[column].to_json()) for column in values})
    features = Features({**kept.features, **new})
    beside = InMemoryTable(pa.table(arrays, schema=new.arrow_schema))
    table = concat_tables([kept.data, beside], axis=1) if kept.column_names else beside
    return rebuilt(kept, table, features, key)


def check_columns(found: list[str], scorers: list[Scorer], overwrite: bool) -> None:
    """Raises a `ValueError` if a column that is read is missing, or one to be written exists and may not be.

    A scorer may read what one before it writes.
    """
    there = list(found)
    for scorer in scorers:
        require_columns(
            there,
            scorer.columns,
            reader=f"{type(scorer).__name__} reads {', '.join(f'`{column}`' for column in scorer.columns)}.",
            remedy="Rename the columns (`dataset.rename_column`), or tell the scorer their names; one that another "
            "scorer writes must be written before.",
        )
        there += [column for column in scorer.outputs if column not in there]
    check_new_columns(found, [column for scorer in scorers for column in scorer.outputs], overwrite)


def check_new_columns(found: Iterable[str], new: Iterable[str], overwrite: bool) -> None:
    """Raises a `ValueError` if a column to be written exists and may not be overwritten."""
    there = [column for column in new if column in found]
    if there and not overwrite:
        raise ValueError(
            f"The data already has {', '.join(f'`{column}`' for column in there)}. Scores made in two ways under one "
            "name cannot be told apart. Pass `overwrite=True` to replace it, or give the new column another name."
        )


def report_scores(
    dataset: Dataset, values: Mapping[str, np.ndarray], provenance: Mapping[str, ScoreProvenance]
) -> None:
    """Logs a line per new column: rows, share unscored, minimum, median, maximum, easy end. Warns if all is NaN."""
    where = f" of split {dataset.split}" if dataset.split is not None else ""
    for column, scores in values.items():
        counts = score_statistics(scores)
        if counts["rows"] and counts["unscored"] == counts["rows"]:
            logger.warning(
                "`%s`%s: none of the %d rows could be scored, the column holds only NaN.",
                column,
                where,
                counts["rows"],
            )
            continue
        marks = [f"{name} {counts[name]:.4g}" for name in ("min", "median", "max") if counts[name] is not None]
        easy = f"easy is {provenance[column].easy}"
        line = ", ".join([f"{counts['rows']} rows", f"{counts['share_unscored']:.2%} unscored", *marks, easy])
        logger.info("`%s`%s: %s", column, where, line)


def aggregate_per_image(scores: np.ndarray, images: np.ndarray, how: Literal["max", "min", "mean"]) -> np.ndarray:
    """Gives every row the aggregate of its image.

    Rows that could not be scored do not count; an image without any scored row stays NaN.

    Args:
        scores: float32 (rows,), NaN where unscored.
        images: integers (rows,) from `group_codes`, equal for rows of one image.
        how: "max" is BabyLM's.

    Shapes:
        returns float32 (rows,).

    Raises:
        ValueError: unknown `how`.

    Source: Saha et al. 2024 (BabyLM), §3.3: an image with several captions has the difficulty of the hardest.

    Example:
        >>> aggregate_per_image(np.float32([2, 3, np.nan, np.nan]), np.array([0, 0, 0, 1]), "max")
        array([ 3.,  3.,  3., nan], dtype=float32)
    """
    check_choice("per_image", how, ("max", "min", "mean"))
    scored = ~np.isnan(scores)
    count = int(images.max(initial=-1)) + 1
    per_image = np.bincount(images[scored], minlength=count)  # (images,)
    if how == "mean":
        total = np.bincount(images[scored], weights=scores[scored], minlength=count)
        aggregate = (total / np.maximum(per_image, 1)).astype(np.float32)
    else:
        extreme = np.maximum if how == "max" else np.minimum
        aggregate = np.full(count, -np.inf if how == "max" else np.inf, np.float32)
        extreme.at(aggregate, images[scored], scores[scored])
    aggregate[per_image == 0] = np.nan
    return aggregate[images]
