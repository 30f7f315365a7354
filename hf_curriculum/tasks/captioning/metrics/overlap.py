"""Words and n-grams that captions share with their references: BLEU and ROUGE-L, and what CIDEr-D reads too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain

import numpy as np

from hf_curriculum.rng import hash64

ORDERS = 4
"""n-grams of one to four words are counted."""
_SEED = 0x43617074
_ODD = np.uint64(0x9E3779B97F4A7C15)
_TINY, _SMALL = 1e-15, 1e-9  # of pycocoevalcap's BLEU


class _WordHashes(dict[str, int]):
    """A 63-bit number for each word, the same in every process."""

    def __missing__(self, word: str) -> int:
        digest = int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        self[word] = digest >> 1
        return self[word]


_HASHES = _WordHashes()


@dataclass(frozen=True, eq=False)
class NGrams:
    """The distinct n-grams of each sentence, all arrays of shape (m,) but `lengths`.

    An n-gram is a 64-bit hash of its words: among a million different ones two coincide with a probability of 3e-8.
    """

    sentence: np.ndarray  # int64, which sentence
    hashes: np.ndarray  # uint64
    order: np.ndarray  # int64, 0 for single words … 3
    counts: np.ndarray  # int64, how often in the sentence
    lengths: np.ndarray  # int64 (sentences,), in words


def count_ngrams(sentences: Sequence[str]) -> NGrams:
    """The n-grams of sentences whose words are separated by white space."""
    words = [sentence.split() for sentence in sentences]
    lengths = np.array([len(each) for each in words], np.int64)
    hashed = np.fromiter(map(_HASHES.__getitem__, chain.from_iterable(words)), np.uint64, int(lengths.sum()))
    of = np.repeat(np.arange(len(words)), lengths)
    grams, sentence, parts = hashed, of, []
    for order in range(ORDERS):
        if order:  # one word more
            grams = hash64(grams[:-1] * _ODD + hashed[order:], _SEED + order)
            sentence = of[: len(grams)]
        inside = sentence == of[order:]
        parts.append((sentence[inside], grams[inside], np.full(int(inside.sum()), order)))
    sentence, grams, order = (np.concatenate(part) for part in zip(*parts, strict=True))
    by_key, starts = grouped(keyed(grams, sentence))
    first = by_key[starts[:-1]]
    return NGrams(sentence[first], grams[first], order[first], np.diff(starts), lengths)


def keyed(hashes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """One 64-bit number for each n-gram and row number, both (m,)."""
    return hash64(hashes + rows.astype(np.uint64) * _ODD, _SEED)


def grouped(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An order in which equal keys are neighbours, (m,), and where groups begin there, the end last, (groups + 1,)."""
    order = np.argsort(keys)
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(keys)])
    return order, np.append(begins, len(keys))


class PreparedReferences:
    """The n-grams of reference captions, counted once for any number of captions to compare with them.

    Args:
        references: the captions of each image as tokens (`tokenize_all`), one or more per image.
        end_token: a word to append to every reference, and to every caption that is compared.

    Shapes:
        `first` int64 (images + 1,): reference sentences [first[i], first[i + 1]) belong to image i. `keys` uint64
        (k,), sorted: each n-gram of each image, in the references [starts[k], starts[k + 1]) of `sentence`, `order`
        and `counts`.

    Raises:
        TypeError: an image's references are one string.
        ValueError: no image, or an image without references.

    Example:
        >>> PreparedReferences([["a dog", "one dog"], ["a cat"]]).first.tolist()
        [0, 2, 3]
    """

    def __init__(self, references: Sequence[Sequence[str]], end_token: str | None = None) -> None:
        validate_references(references)
        self.end_token: str | None = end_token
        self.first: np.ndarray = np.concatenate([[0], np.cumsum([len(given) for given in references])])
        grams = count_ngrams(with_end(list(chain.from_iterable(references)), end_token))
        image = np.repeat(np.arange(len(references)), np.diff(self.first))
        keys = keyed(grams.hashes, image[grams.sentence])
        order, starts = grouped(keys)
        self.starts: np.ndarray = starts
        self.keys: np.ndarray = keys[order[starts[:-1]]]
        self.sentence: np.ndarray = grams.sentence[order]
        self.order: np.ndarray = grams.order[order]
        self.counts: np.ndarray = grams.counts[order]
        self.hashes: np.ndarray = grams.hashes[order]
        self.lengths: np.ndarray = grams.lengths

    def __len__(self) -> int:
        return len(self.first) - 1

    @cached_property
    def most(self) -> np.ndarray:
        """How often each of `keys` is in the reference that has it most often, int64 (k,)."""
        return np.maximum.reduceat(self.counts, self.starts[:-1]) if len(self.keys) else self.counts

    def find(self, hashes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where n-grams of captions of images `rows` stand in `keys`, and which of them do, both (m,)."""
        wanted = keyed(hashes, rows)
        at = np.minimum(np.searchsorted(self.keys, wanted), max(len(self.keys) - 1, 0))
        return at, self.keys[at] == wanted if len(self.keys) else np.zeros(len(at), bool)

    def pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each caption of images `rows` with each of its references: caption and reference, int64 (pairs,) each."""
        many = self.first[rows + 1] - self.first[rows]
        return np.repeat(np.arange(len(rows)), many), ranges(self.first[rows], many)


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`start, start + 1, …` of each range, one behind the other."""
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if len(sizes) else sizes
    return np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)


def with_end(sentences: Sequence[str], end_token: str | None) -> Sequence[str]:
    """Sentences with a last word."""
    return sentences if end_token is None else [f"{sentence} {end_token}" for sentence in sentences]


def validate_references(references: Sequence[Sequence[str]]) -> None:
    """Each image has a list of references."""
    if not len(references):
        raise ValueError("There are no references: `references` is empty. Pass a list of captions for each image.")
    for row, given in enumerate(references):
        if isinstance(given, str):
            raise TypeError(
                f"The references of image {row} are the string {given[:40]!r}. An image has a list of references, and "
                "the letters of a string would be taken for it. Pass [[...], ...], a list per image."
            )
        if not len(given):
            raise ValueError(
                f"Image {row} has no references. Nothing can be compared with its caption. Leave this image out."
            )


BLEU_COLUMNS = 2 + 2 * ORDERS


def bleu_statistics(captions: Sequence[str], references: PreparedReferences) -> np.ndarray:
    """What BLEU is computed from, image by image; sums of rows give a corpus."""
    grams, rows = count_ngrams(with_end(captions, references.end_token)), np.arange(len(captions))
    found = np.zeros((len(captions), BLEU_COLUMNS))
    found[:, 0] = grams.lengths
    caption, reference = references.pairs(rows)
    length = references.lengths[reference]
    # The smaller length of two that are equally close, as one number to minimise.
    distance = (np.abs(length - grams.lengths[caption]) << 32) + length
    found[:, 1] = np.minimum.reduceat(distance, np.searchsorted(caption, rows)) & 0xFFFFFFFF
    found[:, 2 : 2 + ORDERS] = np.maximum(grams.lengths[:, None] - np.arange(ORDERS), 0)
    at, there = references.find(grams.hashes, grams.sentence)
    correct = np.minimum(grams.counts[there], references.most[at[there]])
    cell = grams.sentence[there] * ORDERS + grams.order[there]
    found[:, 2 + ORDERS :] = np.bincount(cell, correct, len(captions) * ORDERS).reshape(-1, ORDERS)
    return found


def bleu_values(statistics: np.ndarray) -> np.ndarray:
    """BLEU-1 to BLEU-4 (…, 4) of statistics (…, 10), of one image or summed over many."""
    length, reference = statistics[..., 0], statistics[..., 1]
    precisions = (statistics[..., 2 + ORDERS :] + _TINY) / (statistics[..., 2 : 2 + ORDERS] + _SMALL)
    ratio = (length + _TINY) / (reference + _SMALL)
    brevity = np.exp(np.minimum(1 - 1 / ratio, 0))
    return np.cumprod(precisions, axis=-1) ** (1 / np.arange(1, ORDERS + 1)) * brevity[..., None]


def rouge_l(captions: Sequence[str], references: Sequence[Sequence[str]], beta: float = 1.2) -> np.ndarray:
    """ROUGE-L of each image: the longest common subsequence with its references."""
    scores = np.zeros(len(captions))
    for row, (caption, given) in enumerate(zip(captions, references, strict=True)):
        words, lengths = caption.split(" "), [text.count(" ") + 1 for text in given]
        common = [_common_subsequence(words, text.split(" ")) for text in given]
        precision = max(common) / len(words)
        recall = max(number / length for number, length in zip(common, lengths, strict=True))
        if precision and recall:
            scores[row] = (1 + beta**2) * precision * recall / (recall + beta**2 * precision)
    return scores


def _common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, one bit per word of the second (Hyyrö 2004)."""
    masks: dict[str, int] = {}
    for bit, word in enumerate(second):
        masks[word] = masks.get(word, 0) | 1 << bit
    whole = (1 << len(second)) - 1
    left = whole
    for word in first:
        matched = left & masks.get(word, 0)
        left = (left + matched | left - matched) & whole
    return len(second) - left.bit_count()
