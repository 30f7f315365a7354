"""CIDEr-D the slow way, one caption and one n-gram at a time."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np


def ngrams(text: str) -> list[Counter]:
    words = text.split()
    return [Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1)) for n in (1, 2, 3, 4)]


class NaiveCider:
    """Rewards of captions by the references of their images, whose documents are the images themselves."""

    def __init__(self, references: list[list[str]]) -> None:
        self.references = references
        self.documents = Counter(
            gram for texts in references for gram in {g for text in texts for part in ngrams(text) for g in part}
        )

    def weights(self, text: str) -> list[dict[tuple, float]]:
        total = math.log(len(self.references))
        return [
            {gram: count * (total - math.log(max(1, self.documents[gram]))) for gram, count in part.items()}
            for part in ngrams(text)
        ]

    def score(self, caption: str, references: list[str]) -> float:
        own, found = self.weights(caption), []
        for text in references:
            other, gap = self.weights(text), len(caption.split()) - len(text.split())
            for one, two in zip(own, other, strict=True):
                norms = [math.sqrt(sum(value**2 for value in part.values())) for part in (one, two)]
                shared = sum(min(value, two[gram]) * two[gram] for gram, value in one.items() if gram in two)
                found.append(shared / (norms[0] * norms[1]) * math.exp(-(gap**2) / 72) if all(norms) else 0.0)
        return 10 * sum(found) / len(found)

    def scores(self, captions: list[str], rows: np.ndarray) -> np.ndarray:
        return np.array([self.score(text, self.references[row]) for text, row in zip(captions, rows, strict=True)])
