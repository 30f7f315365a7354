"""CIDEr-D, vectorised: n-grams as integers, references prepared once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hf_curriculum.tasks.captioning.metrics.overlap import ORDERS, PreparedReferences, count_ngrams, ranges, with_end

_SIGMA = 6.0
_MANY = 1 << 19


class DocumentFrequencies:
    """In how many images' references each n-gram of one to four words is.

    Args:
        references: the captions of each image as tokens (`tokenize_all`), or prepared ones.
        end_token: a word to append to every reference.

    Raises:
        TypeError: an image's references are one string.
        ValueError: no image, an image without references, or an `end_token` other than that of prepared references.

    Source: Vedantam et al. 2015, eq. 1.

    Example:
        >>> DocumentFrequencies([["a dog", "one dog"], ["a cat"]])(["a", "dog", "bird", "a dog"]).tolist()
        [2, 1, 0, 1]
    """

    def __init__(
        self, references: Sequence[Sequence[str]] | PreparedReferences, *, end_token: str | None = None
    ) -> None:
        prepared = _prepare(references, end_token)
        self.images: int = len(prepared)
        self.end_token: str | None = prepared.end_token
        self._hashes, self._counts = np.unique(prepared.hashes[prepared.starts[:-1]], return_counts=True)

    def __call__(self, ngrams: Sequence[str]) -> np.ndarray:
        """The number of images of each n-gram, words separated by spaces, int64 (n,)."""
        found = np.zeros(len(ngrams), np.int64)
        grams = count_ngrams(ngrams)
        whole = grams.order + 1 == grams.lengths[grams.sentence]
        found[grams.sentence[whole]] = self.lookup(grams.hashes[whole])
        return found

    def lookup(self, hashes: np.ndarray) -> np.ndarray:
        """The number of images of each n-gram's hash, int64 (m,)."""
        if not len(self._hashes):
            return np.zeros(len(hashes), np.int64)
        if len(hashes) > _MANY:  # in order, a search finds what it needs in the processor's cache
            order = np.argsort(hashes)
            found = np.empty(len(hashes), np.int64)
            found[order] = self._find(hashes[order])
            return found
        return self._find(hashes)

    def _find(self, hashes: np.ndarray) -> np.ndarray:
        """`lookup`, one search after the other."""
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[at] == hashes, self._counts[at], 0)


class CiderD:
    """CIDEr-D of captions against reference captions, 0 to about 10 for each.

    References are prepared once: `scores` then costs a few microseconds per caption, as self-critical training and
    the comparison of several systems need it.

    Args:
        references: the captions of each image as tokens (`tokenize_all`, or words as training counts them), or
            prepared ones.
        document_frequencies: of another corpus, such as the training split (self-critical training); by default those
            of `references`, as in the COCO caption evaluation.
        end_token: a word to append to each reference and each caption; the usual self-critical training rewards the
            end of a caption by `"<eos>"`.

    Shapes:
        `scores` takes n captions and int64 (n,) image numbers, and gives float64 (n,).

    Raises:
        TypeError: an image's references are one string.
        ValueError: no image; an image without references; an `end_token` other than that of what was prepared; by
            `scores`, image numbers that do not fit.

    Source: Vedantam et al. 2015, eqs. 1–3 and §6 (CIDEr-D: counts clipped, Gaussian length penalty with σ = 6), as in
        the COCO caption evaluation; Rennie et al. 2017 (self-critical training).

    Example:
        >>> scorer = CiderD([["a cat on a mat", "the cat"], ["two dogs run"], ["a red bus"]])
        >>> scorer.scores(["a cat on a mat", "two cats", "a red bus"]).round(3).tolist()
        [5.414, 1.007, 7.5]
        >>> scorer.scores(["a bus", "a red bus"], rows=[2, 2]).round(3).tolist()
        [1.798, 7.5]
    """

    def __init__(
        self,
        references: Sequence[Sequence[str]] | PreparedReferences,
        document_frequencies: DocumentFrequencies | None = None,
        *,
        end_token: str | None = None,
    ) -> None:
        prepared = _prepare(references, end_token)
        self.references: PreparedReferences = prepared
        self.document_frequencies: DocumentFrequencies = document_frequencies or DocumentFrequencies(prepared)
        if self.document_frequencies.end_token != prepared.end_token:
            raise ValueError(
                f"The document frequencies were counted with `end_token={self.document_frequencies.end_token!r}` and "
                f"the references have {prepared.end_token!r}: the last word's weight would be wrong. Use one for both."
            )
        self._log_images = math.log(self.document_frequencies.images)
        weights = self._idf(prepared.hashes) * prepared.counts  # (m,)
        self._weights = weights
        self.weighs_words: bool = bool(weights.any())
        self._norms = _norms(prepared.sentence, prepared.order, weights, len(prepared.lengths))  # (references, 4)

    def _idf(self, hashes: np.ndarray) -> np.ndarray:
        """Weight of each n-gram, float64 (m,)."""
        return self._log_images - np.log(np.maximum(self.document_frequencies.lookup(hashes), 1))

    def scores(self, captions: Sequence[str], rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """CIDEr-D of each caption, float64 (n,).

        Args:
            captions: tokens.
            rows: the image of each caption, any number of captions per image; by default one for each, in order.

        Raises:
            ValueError: not one row per caption, or a row that is no image.
        """
        references = self.references
        rows = self._checked(captions, rows)
        grams = count_ngrams(with_end(captions, references.end_token))
        weights = self._idf(grams.hashes) * grams.counts
        norms = _norms(grams.sentence, grams.order, weights, len(captions))  # (n, 4)
        at, there = references.find(grams.hashes, rows[grams.sentence])
        at, chosen = at[there], np.flatnonzero(there)
        sizes = references.starts[at + 1] - references.starts[at]
        own, theirs = np.repeat(chosen, sizes), ranges(references.starts[at], sizes)  # (common,) each
        products = np.minimum(weights[own], self._weights[theirs]) * self._weights[theirs]
        caption, reference = references.pairs(rows)  # (pairs,) each
        begins = np.searchsorted(caption, np.arange(len(captions)))
        of = grams.sentence[own]
        pair = begins[of] + references.sentence[theirs] - references.first[rows[of]]
        cell = pair * ORDERS + grams.order[own]
        similarity = np.bincount(cell, products, len(caption) * ORDERS).reshape(-1, ORDERS)  # (pairs, 4)
        both = norms[caption] * self._norms[reference]
        similarity = np.divide(similarity, both, out=np.zeros(both.shape), where=both != 0)
        # pycocoevalcap's length is the number of bigrams.
        own_length = np.maximum(grams.lengths[caption] - 1, 0)
        length = np.maximum(references.lengths[reference] - 1, 0)
        penalty = np.exp(-((own_length - length) ** 2) / (2 * _SIGMA**2))
        sums = np.bincount(caption, similarity.mean(1) * penalty, len(captions))
        return 10 * sums / np.maximum(np.bincount(caption, minlength=len(captions)), 1)

    def _checked(self, captions: Sequence[str], rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        """Image numbers, int64 (n,)."""
        images = len(self.references)
        numbers = np.arange(images) if rows is None else np.asarray(rows, np.int64).reshape(-1)
        if len(numbers) != len(captions):
            raise ValueError(
                f"There are {len(captions):,} captions for {len(numbers):,} rows of references. Each caption is "
                "compared with one image's references. Pass the image number of each caption as `rows`."
            )
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= images):
            raise ValueError(
                f"`rows` reach from {numbers.min()} to {numbers.max()}, and the references are those of images 0 to "
                f"{images - 1}. A row names the image that a caption belongs to. Pass numbers of these images."
            )
        return numbers


def _prepare(references: Sequence[Sequence[str]] | PreparedReferences, end_token: str | None) -> PreparedReferences:
    """References, prepared if they are not."""
    if not isinstance(references, PreparedReferences):
        return PreparedReferences(references, end_token)
    if end_token is not None and end_token != references.end_token:
        raise ValueError(
            f"`end_token={end_token!r}` was given for references that were prepared with {references.end_token!r}. "
            "Pass it where they are prepared."
        )
    return references


def _norms(sentence: np.ndarray, order: np.ndarray, weights: np.ndarray, sentences: int) -> np.ndarray:
    """Length of each sentence's vector of n-grams of each order, float64 (sentences, 4)."""
    squares = np.bincount(sentence * ORDERS + order, weights**2, sentences * ORDERS)
    return np.sqrt(squares).reshape(-1, ORDERS)
