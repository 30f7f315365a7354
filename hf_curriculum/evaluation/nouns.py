"""Noun recall: how many of an image's objects a caption names, against shuffled captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from hf_curriculum.columns import IMAGE_ID
from hf_curriculum.data.grouping import one_row_per_image
from hf_curriculum.evaluation.generate import references
from hf_curriculum.scorers.text.nouns import NOUN_TAGS
from hf_curriculum.scorers.text.taggers import Tagger, resolve_tagger, tokenize_sentence
from hf_curriculum.words import words_of


@dataclass(frozen=True)
class RecallResult:
    """Noun recall of captions, that of the same captions on shuffled images, and their difference.

    Args:
        recall: mean share, over images, of gold nouns that the image's caption names (0 to 1).
        shuffled: what the mean would be on average if captions were dealt to other images.
        difference: `recall - shuffled`; above 0 the captions depend on their image.
        lower: lower end of the bootstrap interval of `difference`.
        upper: its upper end.
        n: images counted.
        excluded: images left out for want of a gold noun.
        confidence: share of resamples inside the interval.

    Example:
        >>> print(RecallResult(0.5, 0.25, 0.25, 0.125, 0.375, n=40, excluded=2))
        noun recall 0.500, shuffled 0.250, difference +0.250, 95 % interval [+0.125, +0.375], 40 images, 2 left out (no gold noun)
    """  # noqa: E501

    recall: float
    shuffled: float
    difference: float
    lower: float
    upper: float
    n: int
    excluded: int = 0
    confidence: float = 0.95

    def __str__(self) -> str:
        line = (
            f"noun recall {self.recall:.3f}, shuffled {self.shuffled:.3f}, difference {self.difference:+.3f}, "
            f"{100 * self.confidence:g} % interval [{self.lower:+.3f}, {self.upper:+.3f}], {self.n:,} images"
        )
        return line + (f", {self.excluded:,} left out (no gold noun)" if self.excluded else "")


def noun_recall(
    generated: Sequence[str], gold: Sequence[Set[str]], *, normalise: Callable[[str], str] | None = None
) -> np.ndarray:
    """Share of each image's gold nouns that its caption contains as whole words.

    Upper and lower case are equal, and everything but letters and digits separates words ("T-shirt" is found in
    "t - shirt"). A noun of several words is found where they follow each other.

    Args:
        generated: one caption per image.
        gold: the nouns of each image, in the same order.
        normalise: applied to every word of both sides, `singular` for instance; by default words are compared as
            they stand ("dogs" is not "dog").

    Returns:
        `[n]` float64, 0 to 1, NaN where an image has no gold noun.

    Raises:
        ValueError: not one caption per image.

    Example:
        >>> noun_recall(["a red ball and two boxes"], [{"ball", "box"}])
        array([0.5])
        >>> from hf_curriculum.scorers.text.nouns import singular
        >>> noun_recall(["a red ball and two boxes"], [{"ball", "box"}], normalise=singular)
        array([1.])
    """
    nouns, captions = _prepare(generated, gold, normalise)
    return np.array(
        [
            sum(noun in caption for noun in wanted) / len(wanted) if wanted else np.nan
            for wanted, caption in zip(nouns, captions, strict=True)
        ],
        dtype=np.float64,
    )


def recall_against_shuffled(
    generated: Sequence[str],
    gold: Sequence[Set[str]],
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
    normalise: Callable[[str], str] | None = None,
) -> RecallResult:
    """Noun recall beside its chance level, with a bootstrap interval of the difference.

    The chance level is the recall expected when each image gets the caption of another one, averaged over all
    n (n - 1) pairs: computed, not sampled. A captioner that writes the same sentence under every image has a
    difference of 0. The bootstrap draws images with replacement, each with its caption, and computes both
    numbers again; two copies of one image are never paired with each other.

    Args:
        generated: one caption per image.
        gold: the nouns of each image, in the same order; images without any are left out and counted.
        num_resamples: bootstrap resamples.
        seed: of the resampling.
        confidence: share of the resampled differences inside the interval (percentile bootstrap).
        normalise: applied to every word of both sides, see `noun_recall`.

    Raises:
        ValueError: not one caption per image; fewer than two images with gold nouns; a `confidence` or
            `num_resamples` out of range.

    Example:
        >>> gold = [{"dog"}, {"cat"}, {"dog"}, {"cat"}]
        >>> result = recall_against_shuffled(["a dog", "a cat", "a dog", "a dog"], gold)
        >>> result.recall, round(result.shuffled, 3)
        (0.75, 0.417)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` is {confidence}, which is not between 0 and 1. For 95 % pass 0.95.")
    if num_resamples < 1:
        raise ValueError(f"`num_resamples` is {num_resamples}: an interval needs at least one resample. Pass 2000.")
    nouns, captions = _prepare(generated, gold, normalise)
    kept = [row for row, wanted in enumerate(nouns) if wanted]
    if len(kept) < 2:
        raise ValueError(
            f"{len(kept)} of {len(nouns)} images has gold nouns. Shuffling captions over images needs two or more. "
            "Evaluate on more images, or look at how the gold nouns were made."
        )
    weights, found = _matrices([nouns[row] for row in kept], [captions[row] for row in kept])
    own = (weights * found).sum(1)  # [n] recall of each image by its own caption
    recall, shuffled = _recall_and_shuffled(np.ones((1, len(kept))), weights, found, own)
    differences = _bootstrap(weights, found, own, num_resamples, seed)
    tail = 50 * (1 - confidence)
    lower, upper = np.nanpercentile(differences, [tail, 100 - tail])
    return RecallResult(
        recall=float(recall[0]),
        shuffled=float(shuffled[0]),
        difference=float(recall[0] - shuffled[0]),
        lower=float(lower),
        upper=float(upper),
        n=len(kept),
        excluded=len(nouns) - len(kept),
        confidence=confidence,
    )


def _prepare(
    generated: Sequence[str], gold: Sequence[Set[str]], normalise: Callable[[str], str] | None
) -> tuple[list[list[str]], list[str]]:
    """Nouns and captions as ` word word `: one spelling, so that `in` finds whole words only."""
    if len(generated) != len(gold):
        raise ValueError(
            f"There are {len(generated):,} captions for the gold nouns of {len(gold):,} images. Recall compares the "
            "two row by row. Pass one caption per image, in the same order."
        )

    def spell(text: str) -> str:
        words = words_of(text.lower())
        return f" {' '.join(map(normalise, words) if normalise else words)} "

    # Sorted: sums of floats then come out the same in every process, whatever the hash seed.
    nouns = [sorted({spell(noun) for noun in wanted} - {"  "}) for wanted in gold]
    return nouns, [spell(caption) for caption in generated]


def _matrices(nouns: list[list[str]], captions: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """`weights` [n, v]: 1 / number of gold nouns at each of them; `found` [n, v]: whether a caption names noun v."""
    vocabulary = {noun: column for column, noun in enumerate(sorted({noun for row in nouns for noun in row}))}
    weights = np.zeros((len(nouns), len(vocabulary)))
    for row, wanted in enumerate(nouns):
        weights[row, [vocabulary[noun] for noun in wanted]] = 1 / len(wanted)
    found = np.array([[noun in caption for noun in vocabulary] for caption in captions], dtype=np.float64)
    return weights, found


def _recall_and_shuffled(
    counts: np.ndarray, weights: np.ndarray, found: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both means for each row of `counts` [r, n], which says how often each image was drawn."""
    total = counts.sum(1)  # [r]
    same = counts**2  # [r, n] pairs of an image with itself
    pairs = total**2 - same.sum(1)  # [r]
    recall = counts @ own / total
    everything = ((counts @ weights) * (counts @ found)).sum(1)  # [r]
    with np.errstate(invalid="ignore", divide="ignore"):  # one image drawn n times has no other image: NaN
        shuffled = np.where(pairs > 0, (everything - same @ own) / pairs, np.nan)
    return recall, shuffled


def _bootstrap(
    weights: np.ndarray, found: np.ndarray, own: np.ndarray, num_resamples: int, seed: int, chunk: int = 256
) -> np.ndarray:
    """Differences between recall and shuffled recall, `[num_resamples]`."""
    generator = np.random.Generator(np.random.Philox(seed))
    n = len(own)
    parts = []
    for start in range(0, num_resamples, chunk):
        draws = generator.integers(n, size=(min(chunk, num_resamples - start), n))
        counts = np.stack([np.bincount(row, minlength=n) for row in draws]).astype(np.float64)  # [chunk, n]
        recall, shuffled = _recall_and_shuffled(counts, weights, found, own)
        parts.append(recall - shuffled)
    return np.concatenate(parts)


OBJECTS = "objects"
"""A column that lists an image's objects, each with its `noun`; the embedded scenes have it."""


def gold_nouns(dataset: Dataset, tagger: str | Tagger = "pattern") -> dict[str, set[str]]:
    """Each image's nouns: those of its listed objects, or else those of all its captions."""
    if OBJECTS in dataset.column_names:
        rows = one_row_per_image(dataset.with_format(None)).select_columns([IMAGE_ID, OBJECTS])
        return {row[IMAGE_ID]: {thing["noun"] for thing in row[OBJECTS]} for row in rows}
    found = resolve_tagger(tagger)
    return {
        image: {
            word.lower()
            for caption, tags in zip(captions, found.tag(captions), strict=True)
            for word, tag in zip(tokenize_sentence(caption), tags, strict=True)
            if tag in NOUN_TAGS
        }
        for image, captions in references(dataset).items()
    }
