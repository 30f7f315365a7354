"""Which of several captioners is better, and whether that is more than chance: the paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hf_curriculum.evaluation.comparison import Comparison, differences, draw_images, validate_comparison
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.captioning.metrics.metrics import (
    VALUES,
    CaptionEvaluator,
    CaptionScores,
    validate_one_per_image,
    values_of_sums,
)

TITLES = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr-D",
    "spice": "SPICE",
    "clip_score": "CLIPScore",
    "ref_clip_score": "RefCLIPScore",
}
"""Every value as people write it, in the order of a table."""


@validate_arguments
def compare_captions(
    systems: Mapping[str, Sequence[str] | CaptionScores],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] | str = "all",
    *,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    **options: Any,
) -> Comparison:
    """Compares captions of several systems by all metrics, with intervals and p values of the differences.

    Images are drawn with replacement, the same for all systems. Each metric's corpus value is computed on the images
    drawn: BLEU and METEOR from summed counts, the others as means. CIDEr-D's document frequencies always come from all
    `references`.

    Args:
        systems: name → one caption per image, or scores that `CaptionEvaluator` gave; the baseline first.
        references: the captions of each image.
        metrics: as in `CaptionEvaluator`; by default all that can be computed here.
        resamples: how many times images are drawn.
        seed: of the draws: the same seed draws the same images, whatever is compared.
        confidence: of the intervals, between percentiles.
        options: more of `CaptionEvaluator`: `images`, `clip`.

    Raises:
        JavaError: METEOR or SPICE is asked for by name, and Java or a file it needs is missing.
        ValueError: fewer than two systems, not one caption per image, scores of other images or without a metric, an
            option out of range.

    Source: Koehn 2004, *Statistical Significance Tests for Machine Translation Evaluation*, §3; Simi-CL, App. B
        (1,000 resamples of 5,000 images).

    Example:
        >>> references = [["a dog runs"], ["a cat sits"], ["two birds fly"], ["a red bus"]]
        >>> ours = ["a dog runs", "a cat sits", "two birds", "a bus"]
        >>> found = compare_captions({"vanilla": ["a dog"] * 4, "ours": ours}, references, ["rouge"], resamples=100)
        >>> round(found.differences[0].difference, 2), round(found.differences[0].p, 4)
        (0.5, 0.0198)
    """
    validate_comparison(systems, resamples, confidence)
    for given in systems.values():
        validate_one_per_image(range(len(given)) if isinstance(given, CaptionScores) else given, references)
    evaluate = CaptionEvaluator(references, metrics, **options)
    scores = {name: given if isinstance(given, CaptionScores) else evaluate(given) for name, given in systems.items()}
    other = [name for name, each in scores.items() if not set(evaluate.metrics) <= set(each.statistics)]
    if other:
        raise ValueError(
            f"The scores of {other[0]!r} are of {sorted(scores[other[0]].statistics)}, and {sorted(evaluate.metrics)} "
            "are compared. Both sides of a comparison need the same. Pass the captions, or the same `metrics`."
        )
    scores = {
        name: replace(each, statistics={metric: each.statistics[metric] for metric in evaluate.metrics})
        for name, each in scores.items()
    }
    drawn = bootstrap(scores, resamples, seed)
    values = {name: each.corpus for name, each in scores.items()}
    found = differences(*_without_smoothing(scores, values, drawn), confidence)
    notes = tuple(f"{name} is left out: {reason}" for name, reason in evaluate.unavailable.items())
    return Comparison(values, found, len(references), resamples, seed, confidence, notes, TITLES)


def _without_smoothing(scores: Mapping[str, CaptionScores], values: Any, drawn: Any) -> tuple[Any, Any]:
    """`values` and `drawn` with BLEU 0 where a system has no n-gram of that order in a reference."""
    values, drawn = ({name: dict(each) for name, each in given.items()} for given in (values, drawn))
    for system, each in scores.items():
        if "bleu" in each.statistics:
            found = each.statistics["bleu"].sum(0)[-len(VALUES["bleu"]) :]
            for name in (name for name, number in zip(VALUES["bleu"], found, strict=True) if not number):
                values[system][name], drawn[system][name] = 0.0, np.zeros_like(drawn[system][name])
    return values, drawn


def bootstrap(scores: Mapping[str, CaptionScores], resamples: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """The corpus values of several systems on the same resamples of images.

    Args:
        scores: system → scores of the same images.
        resamples: how many times as many images are drawn with replacement.
        seed: of the draws.

    Returns:
        system → value's name → float64 (resamples,).

    Raises:
        ValueError: no system, or scores of different numbers of images.

    Source: Koehn 2004, §3.

    Example:
        >>> scores = CaptionEvaluator([["a dog"], ["a cat"]], ["rouge"])(["a dog", "a car"])
        >>> bootstrap({"ours": scores}, 3)["ours"]["rouge_l"].shape
        (3,)
    """
    sizes = {len(each) for each in scores.values()}
    if len(sizes) != 1:
        raise ValueError(
            f"Scores of {sorted(sizes)} images were given. Images are drawn for all systems alike. Pass scores of "
            "the same images, one or more systems."
        )
    blocks = [(name, metric, rows) for name, each in scores.items() for metric, rows in each.statistics.items()]
    statistics = np.concatenate([rows for _, _, rows in blocks], axis=1)  # (images, all statistics)
    sums = np.concatenate([counts @ statistics for counts in draw_images(len(statistics), resamples, seed)])
    found: dict[str, dict[str, np.ndarray]] = {name: {} for name in scores}
    start = 0
    for name, metric, rows in blocks:
        own = values_of_sums(metric, sums[:, start : start + rows.shape[1]], len(rows))  # (resamples, v)
        found[name] |= dict(zip(VALUES[metric], own.T, strict=True))
        start += rows.shape[1]
    return found
