"""A test set divided by how hard its images are, and the metrics of each part (Simi-CL, Table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hf_curriculum.evaluation.captions.cider import CiderD
from hf_curriculum.evaluation.captions.metrics import METRICS, CaptionEvaluator, CaptionScores, check_rows
from hf_curriculum.evaluation.captions.tokens import tokenize_all


def difficulty_sets(scores: Sequence[float] | np.ndarray, num_sets: int = 4) -> list[np.ndarray]:
    """Rows of equally large sets of images, the easiest set first: the highest scores.

    Args:
        scores: one per image, the better the higher, such as `per_image["bleu_4"]` of a model trained without a
            curriculum.
        num_sets: L; set k ends at ⌊n·k/L⌋ of the order. Equal scores keep the order of the images.

    Returns:
        int64 arrays of row numbers, the easiest first within each.

    Raises:
        ValueError: no scores in one dimension, one is not finite, or fewer images than sets.

    Source: Simi-CL, §4.3 and Table 2: 5,000 test images by the vanilla model's BLEU, 4 × 1,250.

    Example:
        >>> [rows.tolist() for rows in difficulty_sets([0.1, 0.9, 0.5, 0.5, 0.2], num_sets=2)]
        [[1, 2], [3, 4, 0]]
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"The scores have shape {values.shape}, {int((~np.isfinite(values)).sum())} of them NaN or infinite. "
            "Images are ranked by one finite number each. Pass one score per image."
        )
    if not 1 <= num_sets <= len(values):
        raise ValueError(
            f"{len(values)} images cannot be divided into {num_sets} sets: each needs one or more. Pass `num_sets` "
            f"from 1 to {len(values)}."
        )
    order = np.argsort(-values, kind="stable")
    ends = [len(order) * number // num_sets for number in range(num_sets + 1)]
    return [order[start:end] for start, end in pairwise(ends)]


def metrics_by_set(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    sets: Sequence[np.ndarray],
    metrics: Sequence[str] | str = METRICS,
    *,
    document_frequencies: Literal["set", "all"] = "set",
    images: Sequence[Any] | None = None,
    **options: Any,
) -> dict[str, list[CaptionScores]]:
    """The metrics of several systems on each set of images.

    Args:
        systems: name → one caption per image.
        references: the captions of each image.
        sets: rows of each set, see `difficulty_sets`.
        metrics: as in `CaptionEvaluator`.
        document_frequencies: those of CIDEr-D, which the paper does not name: of the `"set"`, as the COCO evaluation
            of a file with these images counts them, or of `"all"` images, which compares sets on one scale.
        images: of CLIPScore.
        options: more of `CaptionEvaluator`.

    Returns:
        name → scores of each set, in their order.

    Raises:
        ValueError: an option is unknown, no system, not one caption per image, or an empty set.

    Source: Simi-CL, §4.3 and Table 2.

    Example:
        >>> references = [["a dog"], ["a cat"], ["two birds"], ["a bus"]]
        >>> vanilla = ["a dog", "a cat", "a bird", "a car"]
        >>> sets = difficulty_sets(CaptionEvaluator(references)(vanilla).per_image["rouge_l"], 2)
        >>> found = metrics_by_set({"vanilla": vanilla}, references, sets, ["rouge"])
        >>> [scores.corpus for scores in found["vanilla"]]
        [{'rouge_l': 1.0}, {'rouge_l': 0.25}]
    """
    if document_frequencies not in ("set", "all"):
        raise ValueError(
            f"`document_frequencies` is {document_frequencies!r}. CIDEr-D's words are weighed by the references of "
            "each 'set' or of 'all' images. Pass one of the two."
        )
    if not systems or any(not len(rows) for rows in sets):
        raise ValueError(
            f"There are {len(systems)} systems and sets of {[len(rows) for rows in sets]} images. Each set needs an "
            "image, and there must be a system to score. Pass both."
        )
    for captions in systems.values():
        check_rows(captions, references)
    evaluate = CaptionEvaluator(references, metrics, images=images, **options)
    whole = {name: evaluate(captions) for name, captions in systems.items()}
    found = {name: [scores.select(rows) for rows in sets] for name, scores in whole.items()}
    if document_frequencies == "all" or "cider" not in evaluate.metrics:
        return found
    tokens = {name: tokenize_all(captions) for name, captions in systems.items()}
    for number, rows in enumerate(sets):
        own = CiderD([evaluate.tokens[row] for row in rows])
        for name in systems:
            found[name][number].statistics["cider"] = own.scores([tokens[name][row] for row in rows])[:, None]
    return found
