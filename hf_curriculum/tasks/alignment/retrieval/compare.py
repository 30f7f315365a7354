"""Which of several models retrieves better, and whether that is more than chance: the paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_curriculum.evaluation.comparison import Comparison, differences, draw_images, validate_comparison
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.alignment.retrieval.ranks import RECALLS, RetrievalRanks

TITLES = {
    "image_r1": "image R@1",
    "image_r5": "image R@5",
    "image_r10": "image R@10",
    "image_median_rank": "image median rank",
    "text_r1": "text R@1",
    "text_r5": "text R@5",
    "text_r10": "text R@10",
    "text_median_rank": "text median rank",
}
"""Every metric as people write it, in the order of a table."""
RECALL_NAMES = tuple(f"{way}_r{k}" for way in ("image", "text") for k in RECALLS)
"""The metrics that are quotients of sums over images, in the order of `RetrievalRanks.statistics`."""


@validate_arguments
def compare_retrieval(
    models: Mapping[str, RetrievalRanks], *, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Comparison:
    """Compares the retrieval recalls of several models, with intervals and p values of the differences.

    Images are drawn with replacement, each with its texts, the same for all models. Only the queries are resampled:
    candidates are always all images.

    Args:
        models: name → ranks of the same queries; the baseline first.
        resamples: how many times images are drawn.
        seed: of the draws: the same seed draws the same images, whatever is compared.
        confidence: of the intervals, between percentiles.

    Raises:
        ValueError: fewer than two models, ranks of different queries, an option out of range.

    Source: Koehn 2004, *Statistical Significance Tests for Machine Translation Evaluation*, §3.

    Example:
        >>> rows = np.arange(8)
        >>> random, tonics = (RetrievalRanks(image, rows + 1, rows) for image in (rows + 2, rows // 4 + 1))
        >>> found = compare_retrieval({"random": random, "TOnICS": tonics}, resamples=100)
        >>> found.differences[0].metric, found.differences[0].difference, round(found.differences[0].p, 4)
        ('image_r1', 0.5, 0.0198)
    """
    validate_comparison(models, resamples, confidence)
    first = next(iter(models.values()))
    for name, ranks in models.items():
        if not np.array_equal(ranks.image_of_text, first.image_of_text) or len(ranks.text) != len(first.text):
            raise ValueError(
                f"The ranks of {name!r} are of other texts or images than the first model's. Models are compared "
                "query by query. Evaluate all of them on the same captions and images, in the same order."
            )
    drawn = {name: _resampled(ranks, resamples, seed) for name, ranks in models.items()}
    values = {name: {metric: ranks.metrics()[metric] for metric in RECALL_NAMES} for name, ranks in models.items()}
    found = differences(values, drawn, confidence)
    return Comparison(values, found, len(first.text), resamples, seed, confidence, titles=TITLES)


def _resampled(ranks: RetrievalRanks, resamples: int, seed: int) -> dict[str, np.ndarray]:
    """Recalls of resamples of images: metric → float64 (resamples,)."""
    answered, asked = ranks.statistics()  # (images, 6) each
    counts = draw_images(len(answered), resamples, seed)
    found = np.concatenate([(drawn @ answered) / (drawn @ asked) for drawn in counts])  # (resamples, 6)
    return dict(zip(RECALL_NAMES, found.T, strict=True))
