"""A scorer inside Ray Data's `map_batches`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_curriculum.scorers.base import Scorer


class RayScorer:
    """Gives a batch of Ray Data the columns that a scorer writes.

    Given as a class, Ray builds it once per actor, so that each loads its model once; Ray assigns the GPUs. Given as
    an object it runs in tasks, which suits scorers without a model. The batches are numpy's, which is the default of
    `map_batches`. Images may be bytes, mappings of `bytes` and `path`, or the arrays that `ray.data.read_images`
    gives.

    Ray's data carry no provenance: `attach_provenance(dataset, {name: scorer.describe(name)})` records it in what
    `datasets` reads back. An image that captions share is encoded once per batch that holds them.

    Args:
        scorer: fitted, if it needs that.

    Raises:
        RuntimeError: it was not fitted.

    Example:
        >>> rows = rows.map_batches(RayScorer(CaptionLength()))                                  # doctest: +SKIP
        >>> options = {"fn_constructor_args": (CLIPSimilarity(),), "num_gpus": 1, "concurrency": 8}
        >>> rows = rows.map_batches(RayScorer, **options)                                        # doctest: +SKIP
    """

    def __init__(self, scorer: Scorer) -> None:
        scorer.validate_fitted()
        self.scorer = scorer

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Scores a batch.

        Shapes:
            column → (rows, ...), returned with float32 (rows,) per written column.

        Raises:
            TypeError: a batch of another format.
            ValueError: what the scorer raises.
        """
        if not isinstance(batch, Mapping) or not all(isinstance(values, np.ndarray) for values in batch.values()):
            raise TypeError(
                f"RayScorer was given a {type(batch).__name__}. It takes batches of numpy arrays: leave "
                '`batch_format` out, or pass `batch_format="numpy"`.'
            )
        columns = {}
        for name in {*self.scorer.columns, self.scorer.group_by} & batch.keys():
            columns[name] = list(batch[name])
            if name not in self.scorer.decode_false:  # lists and numbers of Python, as from `datasets`
                arrays = (np.ndarray, np.generic)
                columns[name] = [cell.tolist() if isinstance(cell, arrays) else cell for cell in columns[name]]
        return {**batch, **self.scorer(columns)}
