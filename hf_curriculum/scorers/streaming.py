"""Scores of data sets that are read as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features, IterableDataset, Value

from hf_curriculum.scorers.attach import check_columns
from hf_curriculum.scorers.base import Scorer


def add_streaming(
    dataset: IterableDataset, scorers: list[Scorer], batch_size: int, overwrite: bool, given: Mapping[str, object]
) -> IterableDataset:
    """Scores rows while they are read. What `add_scores` does with an iterable data set.

    Args:
        dataset: the data set, lazy before and after.
        scorers: mapped one after the other.
        batch_size: rows per call of a scorer.
        overwrite: replace columns that exist, instead of refusing.
        given: options that need all rows at once, and must be None.

    Raises:
        ValueError: such an option was given, a column is missing or exists already, or the features are not known.
    """
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{option}={value!r}` does not go with an iterable data set, which is scored while it is read, never "
                "as a whole. Leave it out, or load the data as a map-style `Dataset`."
            )
    try:
        dataset = dataset._resolve_features()  # reads one batch if the features are unknown; no public way to ask
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"The features of this iterable data set are not known, and cannot be told from its first rows ({error}). "
            "A `map` without `features=` forgets them, and provenance is kept in them. Restore them with "
            "`dataset.cast(features)`, or use `dataset.map(scorer, batched=True)`, which records no provenance."
        ) from error
    for scorer in scorers:
        dataset = _score_while_read(dataset, scorer, batch_size, overwrite)
    return dataset


def _score_while_read(dataset: IterableDataset, scorer: Scorer, batch_size: int, overwrite: bool) -> IterableDataset:
    check_columns(list(dataset.features), [scorer], overwrite)
    new = {name: Value("float32", id=scorer.describe(name).to_json()) for name in scorer.outputs}
    features = Features({**{name: kept for name, kept in dataset.features.items() if name not in new}, **new})
    # pictures travel as stored: `map` would decode all of them, and `datasets` cannot close them again without a loss
    files = {name: feature for name, feature in features.items() if getattr(feature, "decode", False)}
    for name, feature in files.items():
        dataset = dataset.cast_column(name, replace(feature, decode=False))
    opened = {name: feature for name, feature in files.items() if name in scorer.columns}
    opened = {name: feature for name, feature in opened.items() if name not in scorer.undecoded}
    dataset = dataset.map(_Opening(scorer, opened) if opened else scorer, batched=True, batch_size=batch_size)
    return dataset.cast(features)  # given to `map`, they would count as applied, and nobody would decode the pictures


class _Opening:
    """A scorer over stored pictures: decodes those it reads."""

    def __init__(self, scorer: Scorer, features: dict[str, Any]) -> None:
        self.scorer, self.features = scorer, features

    def __call__(self, batch: Mapping[str, list]) -> dict[str, np.ndarray]:
        opened = {name: [_decoded(feature, value) for value in batch[name]] for name, feature in self.features.items()}
        return self.scorer({**batch, **opened})


def _decoded(feature: Any, stored: Any) -> Any:
    # what an earlier `map` of the user has decoded already is neither
    return feature.decode_example(stored) if isinstance(stored, (dict, str)) else stored
