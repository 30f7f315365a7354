"""`add_scores`: scores as new columns, without writing or decoding what the scorers do not read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from datasets.fingerprint import Hasher

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.provenance import AnyDataset, ScoreProvenance, check_choice, read_column, score_values
from hf_curriculum.scorers.attach import attach_columns, check_columns, report_scores
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.per_image import aggregate_per_image, group_codes
from hf_curriculum.scorers.streaming import add_streaming
from hf_curriculum.scorers.view import map_scorer, score_features, scorer_view


def add_scores(
    dataset: AnyDataset,
    scorers: Scorer | Sequence[Scorer],
    *,
    per_image: Literal["max", "min", "mean"] | None = None,
    batch_size: int = 1000,
    num_proc: int | None = None,
    resume_every: int | None = None,
    cache_dir: str | Path | None = None,
    overwrite: bool = False,
) -> AnyDataset:
    """Adds a column per score, and records in it where it came from.

    Only the columns that a scorer reads are mapped over, and the new columns are laid beside the old ones: 4 bytes per
    row and score, where a plain `map` writes every picture again. That also holds for a shuffled, filtered or split
    data set, whose order is kept. Scores are cached as `map` caches: the same call on the same data does not score
    again. With `num_proc` or `resume_every`, an interrupted call goes on with the parts that were not finished.

    Args:
        dataset: one data set or several splits, map-style or iterable. An iterable one is scored while it is read.
        scorers: one or more; each is mapped and cached on its own. One that combines scores may stand behind those
            that write them.
        per_image: aggregate over the rows with equal `image_id`, and write the result to each of them. Within a split.
        batch_size: rows per call of a scorer.
        num_proc: worker processes; GPUs are dealt to them in turn.
        resume_every: write (and cache) the scores in parts of this many rows. Each part starts its own workers.
        cache_dir: where to cache. By default beside the data, and not at all for a data set in memory, as in `map`.
        overwrite: replace columns that exist, instead of refusing.

    Returns:
        The data set with the new columns last: float32, NaN where a row could not be scored.

    Raises:
        TypeError: something that is not a scorer, or not a data set.
        ValueError: a column is missing, exists already or would be written twice; an option that does not go with an
            iterable data set.
        RuntimeError: a scorer that learns from a corpus was not fitted.

    Source: Saha et al. 2024 (BabyLM), §3.3 for `per_image="max"`.

    Example:
        >>> from datasets import Dataset
        >>> from hf_curriculum.scorers import CaptionLength
        >>> data = Dataset.from_dict({"caption": ["a dog", "a dog and a cat", ""]})
        >>> add_scores(data, CaptionLength())["caption_length"][:]
        [2.0, 5.0, nan]
    """
    scorers = checked_scorers(scorers)
    for scorer in scorers:
        scorer.check_fitted()
    check_choice("per_image", per_image, (None, "max", "min", "mean"))
    if isinstance(dataset, (DatasetDict, IterableDatasetDict)):
        options = {"per_image": per_image, "batch_size": batch_size, "num_proc": num_proc, "overwrite": overwrite}
        options |= {"resume_every": resume_every, "cache_dir": cache_dir}
        return type(dataset)({name: add_scores(part, scorers, **options) for name, part in dataset.items()})
    if isinstance(dataset, IterableDataset):
        given = {"per_image": per_image, "num_proc": num_proc, "resume_every": resume_every, "cache_dir": cache_dir}
        return add_streaming(dataset, scorers, batch_size, overwrite, given)
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`add_scores` was given a {type(dataset).__name__}. It takes a `datasets.Dataset`, `DatasetDict` or "
            "`IterableDataset`: make one with `load_dataset` or `Dataset.from_dict`."
        )
    check_columns(dataset.column_names, scorers, overwrite)
    images = image_codes(dataset) if per_image else None
    values: dict[str, np.ndarray] = {}
    provenance: dict[str, ScoreProvenance] = {}
    for scorer in scorers:
        given = with_parts(dataset, scorer, values, provenance)
        scores = _score(given, scorer, batch_size, num_proc, resume_every, cache_dir)
        for column, array in scores.items():
            values[column] = aggregate_per_image(array, images, per_image) if per_image else array
            provenance[column] = replace(scorer.describe(column), per_image=per_image)
    report_scores(dataset, values, provenance)
    return attach_columns(dataset, values, provenance)


def with_parts(
    dataset: Dataset,
    scorer: Scorer,
    values: Mapping[str, np.ndarray],
    provenance: Mapping[str, ScoreProvenance],
) -> Dataset:
    """The data set with those of the scores made so far that a scorer reads, if it reads any.

    With no more than these: the cache of a scorer that reads none does not depend on which others were given.
    """
    read = {column: values[column] for column in scorer.columns if column in values}
    return attach_columns(dataset, read, provenance) if read else dataset


def image_codes(dataset: Dataset) -> np.ndarray:
    """Numbers the images of a data set. Shapes: returns int64 (rows,), equal for captions of one image.

    Raises:
        ValueError: there is no `image_id`, or a row lacks it.
    """
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="`per_image` aggregates the scores of the captions of one image, which share it.",
        remedy="Rename your column to it, or leave `per_image` out.",
    )
    if len(dataset) == 0:
        return np.zeros(0, np.int64)
    return group_codes(read_column(dataset, IMAGE_ID))


def checked_scorers(scorers: Scorer | Sequence[Scorer]) -> list[Scorer]:
    """The scorers as a list.

    Raises:
        TypeError: something that is not a scorer.
        ValueError: none was given, or two write one column.
    """
    scorers = [scorers] if isinstance(scorers, Scorer) or not isinstance(scorers, Sequence) else list(scorers)
    for scorer in scorers:
        if not isinstance(scorer, Scorer):
            given = scorer if isinstance(scorer, type) else type(scorer)
            raise TypeError(
                f"`add_scores` was given {given.__name__!r}, not a scorer. It needs to know which columns are read "
                "and written. Give an instance (`NounCount()`), subclass `Scorer`, or join finished numbers "
                "with `add_scores_from`."
            )
    written = [column for scorer in scorers for column in scorer.outputs]
    twice = sorted({column for column in written if written.count(column) > 1})
    if twice:
        raise ValueError(f"Two scorers write `{twice[0]}`. Only one of them would be kept. Give one another `name=`.")
    if not written:
        raise ValueError("No scorer was given, so there is nothing to add. Pass at least one, like `NounCount()`.")
    return scorers


def _score(
    dataset: Dataset,
    scorer: Scorer,
    batch_size: int,
    num_proc: int | None,
    resume_every: int | None,
    cache_dir: str | Path | None,
) -> dict[str, np.ndarray]:
    """Maps one scorer over what it reads. Returns float32 (rows,) per written column, in the data set's order."""
    view, place = scorer_view(dataset, scorer)
    if len(view) == 0:
        return {column: np.zeros(0, np.float32) for column in scorer.outputs}
    features = score_features(scorer)
    step = resume_every or len(view)
    starts = range(0, len(view), step)
    parts: list[Dataset] = []
    for start in starts:
        part = view if len(starts) == 1 else view.select(range(start, min(start + step, len(view))))
        which = f" (part {len(parts) + 1} of {len(starts)})" if len(starts) > 1 else ""
        file = None
        if cache_dir is not None:
            os.makedirs(cache_dir, exist_ok=True)
            key = Hasher.hash([part._fingerprint, scorer, features.to_dict(), batch_size])
            file = os.path.join(cache_dir, f"scores-{key}.arrow")
        options = {"batch_size": batch_size, "num_proc": num_proc, "cache_file_name": file}
        parts.append(map_scorer(part, scorer, features, which, **options))
    scores = {}
    for column in scorer.outputs:
        mapped = np.concatenate([score_values(part, column) for part in parts])  # (rows of the view,)
        scores[column] = mapped if place is None else mapped[place]
    return scores
