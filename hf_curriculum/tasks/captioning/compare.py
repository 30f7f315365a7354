"""Which of several captioners is better, and whether that is more than chance: the paired bootstrap over images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from hf_curriculum.rng import hash64, hash_below, mix64
from hf_curriculum.tasks.captioning.metrics.metrics import (
    VALUES,
    CaptionEvaluator,
    CaptionScores,
    check_rows,
    values_of_sums,
)

SHORT = {
    "bleu_4": "B@4",
    "meteor": "M",
    "cider": "C",
    "spice": "S",
    "rouge_l": "R",
    "clip_score": "CLIP",
    "ref_clip_score": "RefCLIP",
}
"""The values of a table, and what the field's tables call them."""
_STREAM = 0x626F6F74
_NUMBERS = 1 << 21  # counts in memory at once
_PRINTED = 5e-5  # half of the last digit of a value times 100


@dataclass(frozen=True)
class Difference:
    """How much one system is better than another by one metric.

    Args:
        metric: a name of a value in `VALUES`.
        system: the one that should be better.
        baseline: the one it is compared with.
        difference: its value less the baseline's, on all images.
        lower: of the interval of the difference over resamples.
        upper: likewise.
        p: two-sided: twice (k + 1) / (resamples + 1), at most 1; k resamples have no difference of this sign.
    """

    metric: str
    system: str
    baseline: str
    difference: float
    lower: float
    upper: float
    p: float


@dataclass(frozen=True)
class CaptionComparison:
    """Values of each system and the differences of each pair; `print` shows them as a table, values times 100.

    Args:
        values: system → value's name → value on all images, in its natural unit.
        differences: for each pair of systems (a later one against an earlier one) and each value.
        images: how many.
        resamples: how many.
        seed: of the resamples.
        confidence: of the intervals.
        unavailable: metrics that could not be computed, and why.
    """

    values: dict[str, dict[str, float]]
    differences: tuple[Difference, ...]
    images: int
    resamples: int
    seed: int
    confidence: float
    unavailable: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON."""
        return {**asdict(self), "differences": [asdict(each) for each in self.differences]}

    def __str__(self) -> str:
        found = next(iter(self.values.values()))
        names = [name for name in SHORT if name in found]
        width = max(len(system) for system in self.values)
        lines = [" " * width + "".join(f"{SHORT[name]:>9}" for name in names)]
        for system, values in self.values.items():
            lines.append(f"{system:<{width}}" + "".join(f"{100 * values[name]:>9.1f}" for name in names))
        last = None
        for each in self.differences:
            if each.metric not in names:
                continue
            if (each.system, each.baseline) != last:
                last = each.system, each.baseline
                lines += ["", f"{each.system} - {each.baseline}"]
            interval = f"[{100 * each.lower:+.2f}, {100 * each.upper:+.2f}]"
            lines.append(f"  {SHORT[each.metric]:<8}{100 * each.difference:>+7.2f}  {interval:<18} p = {each.p:.3f}")
        lines += [
            "",
            f"values x 100 on {self.images:,} images; {100 * self.confidence:g} % intervals of {self.resamples:,} "
            f"paired resamples, seed {self.seed}; p is two-sided",
        ]
        lines += [f"{name} is left out: {reason}" for name, reason in self.unavailable.items()]
        return "\n".join(lines)


def compare_captions(
    systems: Mapping[str, Sequence[str] | CaptionScores],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] | str = "all",
    *,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    **options: Any,
) -> CaptionComparison:
    """Compares the captions of several systems by all metrics, with intervals and p values of their differences.

    Images are drawn with replacement, the same for all systems, and each metric's corpus value is that of the images
    drawn: BLEU and METEOR from summed counts, the others as means. CIDEr-D's document frequencies stay those of all
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
    if len(systems) < 2 or resamples < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"{len(systems)} systems, `resamples={resamples}` and `confidence={confidence}` were given. A comparison "
            "needs two or more systems, one or more resamples, and a confidence between 0 and 1, such as 0.95."
        )
    for given in systems.values():
        check_rows(range(len(given)) if isinstance(given, CaptionScores) else given, references)
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
    return CaptionComparison(
        values,
        differences(*_without_smoothing(scores, values, drawn), confidence),
        len(references),
        resamples,
        seed,
        confidence,
        evaluate.unavailable,
    )


def differences(
    values: Mapping[str, Mapping[str, float]], drawn: Mapping[str, Mapping[str, np.ndarray]], confidence: float
) -> tuple[Difference, ...]:
    """The differences of each pair of systems, a later one against an earlier one."""
    tails = [100 * (1 - confidence) / 2, 100 * (1 + confidence) / 2]
    found = []
    for baseline, system in combinations(values, 2):
        for name in values[system]:
            change = drawn[system][name] - drawn[baseline][name]  # (resamples,)
            change[np.abs(change) < _PRINTED] = 0
            lower, upper = map(float, np.nanpercentile(change, tails))
            point = values[system][name] - values[baseline][name]
            point = 0.0 if abs(point) < _PRINTED else point
            against = min(np.sum(~(change > 0)), np.sum(~(change < 0)))
            p = float(min(1, 2 * (against + 1) / (len(change) + 1))) if point else 1.0
            found.append(Difference(name, system, baseline, point, lower, upper, p))
    return tuple(found)


def _without_smoothing(scores: Mapping[str, CaptionScores], values: Any, drawn: Any) -> tuple[Any, Any]:
    """`values` and `drawn` with BLEU 0 where a system has no n-gram of that order in a reference."""
    values, drawn = ({name: dict(each) for name, each in given.items()} for given in (values, drawn))
    for system, each in scores.items():
        if "bleu" in each.statistics:
            found = each.statistics["bleu"].sum(0)[-len(VALUES["bleu"]) :]
            for name in (name for name, number in zip(VALUES["bleu"], found, strict=True) if not number):
                values[system][name], drawn[system][name] = 0.0, np.zeros_like(drawn[system][name])
    return values, drawn


def draw_images(images: int, resamples: int, seed: int = 0) -> Iterator[np.ndarray]:
    """How often each image is in each resample, a few resamples at a time."""
    together = max(1, _NUMBERS // images)
    key = mix64(seed, _STREAM)
    for start in range(0, resamples, together):
        number = min(together, resamples - start)
        places = np.arange(start * images, (start + number) * images)
        rows = hash_below(hash64(places, key), images)
        rows += np.repeat(np.arange(number) * images, images)
        yield np.bincount(rows, minlength=number * images).reshape(number, images).astype(np.float64)


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
