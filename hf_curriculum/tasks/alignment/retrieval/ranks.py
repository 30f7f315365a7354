"""The rank of what a query looks for, both ways, exactly, with a part of the scores in memory at a time.

A rank counts from 1. A tie counts against the model: the rank of what is looked for is one more than the number of
other candidates whose score is as high as its own or higher. So a model that scores all alike has a recall of 0, and
no rank depends on the order of the rows. A text looks for its image. An image looks for any of its texts: its rank is
that of the best of them, among the texts of other images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_curriculum.shapes import validate_arguments

CHUNK = 256
"""Texts whose scores are in memory at once. At most 65,535."""
_PAIRS = 2048
"""Pairs whose score is computed again in float64 at once."""
RECALLS = (1, 5, 10)
"""Ranks up to which a query counts as answered."""
METRIC_NAMES = tuple(f"{way}_{name}" for way in ("image", "text") for name in ("r1", "r5", "r10", "median_rank"))
"""What `RetrievalRanks.metrics` returns."""


@dataclass(frozen=True, eq=False)
class RetrievalRanks:
    """The rank of what each query looks for.

    Args:
        image: image retrieval: the rank of each text's image among all images.
        text: text retrieval: the rank of each image's best text among the texts of other images; 0 for an image
            without texts, which is a candidate alone.
        image_of_text: the row of each text's image.

    Shapes and units: int64 (texts,), (images,), (texts,); ranks count from 1.

    Example:
        >>> RetrievalRanks(np.array([1, 2]), np.array([1, 7]), np.array([0, 1])).metrics()["image_r1"]
        0.5
    """

    image: np.ndarray
    text: np.ndarray
    image_of_text: np.ndarray

    def metrics(self) -> dict[str, float]:
        """Recall at 1, 5 and 10 (0 to 1) and the median rank, of image retrieval and of text retrieval."""
        found = {}
        for way, ranks in (("image", self.image), ("text", self.text[self.text > 0])):
            found |= {f"{way}_r{k}": float(np.mean(ranks <= k)) for k in RECALLS}
            found[f"{way}_median_rank"] = float(np.median(ranks))
        return found

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Answered queries and queries by image, of which recalls are quotients of sums: for resamples of images.

        Returns:
            float64 (images, 6): answered of the image's texts at 1, 5 and 10, and of the image itself; float64
            (images, 6): how many there are.
        """
        images = len(self.text)
        texts = np.bincount(self.image_of_text, minlength=images)
        answered = [np.bincount(self.image_of_text, self.image <= k, images) for k in RECALLS]
        answered += [(self.text > 0) & (self.text <= k) for k in RECALLS]
        asked = [texts] * len(RECALLS) + [self.text > 0] * len(RECALLS)
        return np.stack(answered, 1).astype(np.float64), np.stack(asked, 1).astype(np.float64)


class Similarities:
    """Scores of every text with every image; a subclass has them as numbers, or as vectors they are computed from.

    Attributes:
        shape: texts and images.
    """

    shape: tuple[int, int]

    def ranks(self, image_of_text: Sequence[int] | np.ndarray | None = None) -> RetrievalRanks:
        """The rank of what each query looks for.

        Args:
            image_of_text: the row of each text's image; None where text and image have the same row.

        Raises:
            ValueError: rows that are none of the images, not one per text, or scores that are not finite.
        """
        rows = validate_image_of_text(self.shape, image_of_text)
        return self._ranks(rows)

    def select(self, texts: np.ndarray, images: np.ndarray) -> Similarities:
        """Those of some texts with some images, by rows."""
        raise NotImplementedError(f"{type(self).__name__} does not define `select`.")

    def scores_of(self, texts: np.ndarray | slice, images: np.ndarray | slice) -> np.ndarray:
        """Scores of some texts with some images: (texts, images)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `scores_of`.")

    def top_images(self, text: int, number: int = 3) -> np.ndarray:
        """The rows of the images with the highest scores for a text, highest first; of equal ones the first."""
        scores = self.scores_of(np.array([text]), slice(None))[0]
        return np.argsort(-scores, kind="stable")[:number]

    def top_texts(self, image: int, number: int = 3) -> np.ndarray:
        """The rows of the texts with the highest scores for an image, highest first; of equal ones the first."""
        scores = self.scores_of(slice(None), np.array([image]))[:, 0]
        return np.argsort(-scores, kind="stable")[:number]

    def _ranks(self, rows: np.ndarray) -> RetrievalRanks:
        raise NotImplementedError(f"{type(self).__name__} does not define `_ranks`.")


class ScoreMatrix(Similarities):
    """Scores that a model gave: compared as they are, so that equal means equal in every bit.

    Args:
        scores: of every text with every image.

    Shapes and units: (texts, images), the higher the better.

    Raises:
        ValueError: no matrix, or an empty one.

    Example:
        >>> found = ScoreMatrix([[0.9, 0.1], [0.4, 0.4], [0.1, 0.7]]).ranks([0, 0, 1])
        >>> found.image.tolist(), found.text.tolist()  # the second text's images are tied, which counts against it
        ([1, 2, 1], [1, 1])
    """

    def __init__(self, scores: np.ndarray | Sequence[Sequence[float]]) -> None:
        scores = np.asarray(scores)
        self.scores: np.ndarray = scores if scores.dtype.kind == "f" else scores.astype(np.float64)
        if self.scores.ndim != 2 or not self.scores.size:
            raise ValueError(
                f"Scores of the shape {self.scores.shape} were given. Every text is ranked against every image: pass "
                "an array (texts, images) with one or more of each."
            )
        self.shape: tuple[int, int] = self.scores.shape

    def select(self, texts: np.ndarray, images: np.ndarray) -> ScoreMatrix:
        return ScoreMatrix(self.scores_of(texts, images))

    def scores_of(self, texts: np.ndarray | slice, images: np.ndarray | slice) -> np.ndarray:
        return self.scores[texts][:, images]

    def _ranks(self, rows: np.ndarray) -> RetrievalRanks:
        texts, images = self.shape
        own = self.scores[np.arange(texts), rows]  # (T,)
        best = np.full(images, -np.inf, self.scores.dtype)
        np.maximum.at(best, rows, own)
        image, text = np.empty(texts, np.int64), np.zeros(images, np.int64)
        for start in range(0, texts, CHUNK):
            part = self.scores[start : start + CHUNK]  # (B, I)
            _validate_finite(part, start)
            image[start : start + CHUNK] = np.count_nonzero(part >= own[start : start + CHUNK, None], axis=1)
            text += _count_rows(part >= best)
        # Counted were the best text itself and texts of the same image that are as good: none of them is in the way.
        text -= np.bincount(rows, own >= best[rows], images).astype(np.int64)
        return RetrievalRanks(image, _where_asked(text + 1, rows), rows)


class VectorSimilarities(Similarities):
    """Dot products of vectors, which are cosines where the vectors have length 1.

    Products are taken in float32, a part at a time; those too close to call are taken again in float64. So the ranks
    are those of float64 products, however the texts are divided into parts.

    Args:
        texts: a vector per text.
        images: a vector per image.

    Shapes and units: (texts, D) and (images, D), read as float32.

    Raises:
        ValueError: no matrices, empty ones, or of different D; vectors that are not finite.

    Example:
        >>> texts, images = np.eye(3, 2), np.eye(2)  # the third text is as far from both images
        >>> VectorSimilarities(texts, images).ranks([0, 1, 1]).metrics()["image_median_rank"]
        1.0
    """

    def __init__(self, texts: np.ndarray, images: np.ndarray) -> None:
        self.texts: np.ndarray = np.ascontiguousarray(texts, dtype=np.float32)
        self.images: np.ndarray = np.ascontiguousarray(images, dtype=np.float32)
        shapes = self.texts.shape, self.images.shape
        if any(len(shape) != 2 or not all(shape) for shape in shapes) or shapes[0][1] != shapes[1][1]:
            raise ValueError(
                f"Vectors of the shapes {shapes[0]} and {shapes[1]} were given. Their products are the scores: pass "
                "(texts, D) and (images, D) of one model, with one or more of each."
            )
        for name, vectors in (("text", self.texts), ("image", self.images)):
            bad = np.flatnonzero(~np.isfinite(vectors.sum(1)))
            if len(bad):
                raise ValueError(
                    f"The vectors of {len(bad):,} of {len(vectors):,} {name}s are not finite, the first in row "
                    f"{bad[0]}. They have no rank. Look at the model's outputs: training may have diverged."
                )
        self.shape: tuple[int, int] = (len(self.texts), len(self.images))

    def select(self, texts: np.ndarray, images: np.ndarray) -> VectorSimilarities:
        return VectorSimilarities(self.texts[texts], self.images[images])

    def scores_of(self, texts: np.ndarray | slice, images: np.ndarray | slice) -> np.ndarray:
        return self.texts[texts] @ self.images[images].T

    def _ranks(self, rows: np.ndarray) -> RetrievalRanks:
        texts, images = self.shape
        own = self._products(np.arange(texts), rows)  # (T,)
        best = np.full(images, -np.inf)
        np.maximum.at(best, rows, own)
        lengths = [np.linalg.norm(vectors, axis=1) for vectors in (self.texts, self.images)]
        # Twice what a float32 product of D numbers can be off, however it is summed (Higham 2002, §3.1).
        off = 2 * (self.texts.shape[1] + 2) * np.finfo(np.float32).eps / 2
        near_own, near_best = off * lengths[0] * lengths[1].max(), off * lengths[1] * lengths[0].max()
        low, high = _around(own, near_own), _around(own, near_own, above=True)
        low_best, high_best = _around(best, near_best), _around(best, near_best, above=True)
        image, text = np.empty(texts, np.int64), np.zeros(images, np.int64)
        buffer = np.empty((CHUNK, images), np.float32)
        for start in range(0, texts, CHUNK):
            at = slice(start, min(start + CHUNK, texts))
            part = np.matmul(self.texts[at], self.images.T, out=buffer[: at.stop - start])  # (B, I)
            above = part > high[at, None]
            image[at] = np.count_nonzero(above, axis=1)
            i, j = self._in_doubt(part >= low[at, None], above, start)
            image[at] += np.bincount(i[self._products(i, j) >= own[i]] - start, minlength=at.stop - start)
            above = part > high_best
            text += _count_rows(above)
            i, j = self._in_doubt(part >= low_best, above, start)
            i, j = i[rows[i] != j], j[rows[i] != j]
            text += np.bincount(j[self._products(i, j) >= best[j]], minlength=images)
        return RetrievalRanks(image, _where_asked(text + 1, rows), rows)

    @staticmethod
    def _in_doubt(reached: np.ndarray, above: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the scores that float32 cannot tell from the one they are compared with."""
        cells = np.flatnonzero(reached ^ above)
        i, j = np.divmod(cells, reached.shape[1])
        return i + start, j

    def _products(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Products of pairs in float64, each summed alike: (pairs,)."""
        found = np.empty(len(i))
        for start in range(0, len(i), _PAIRS):
            at = slice(start, start + _PAIRS)
            found[at] = (self.texts[i[at]].astype(np.float64) * self.images[j[at]]).sum(1)
        return found


@validate_arguments
def retrieval_metrics(
    similarities: Similarities | np.ndarray, image_of_text: Sequence[int] | np.ndarray | None = None
) -> dict[str, float]:
    """Computes recall at 1, 5 and 10 and the median rank in both directions, for a trainer's `compute_metrics`.

    Args:
        similarities: of texts and images, or the matrix of their scores.
        image_of_text: the row of each text's image; None where text and image have the same row.

    Shapes and units: recalls from 0 to 1, ranks from 1; `METRIC_NAMES` has the names.

    Raises:
        ValueError: as `Similarities.ranks`.

    Source: Karpathy & Fei-Fei 2015, §4.2 (R@K, median rank); TOnICS, §4.3.

    Example:
        >>> retrieval_metrics(np.array([[3.0, 1.0], [2.0, 1.0]]))["image_r1"]
        0.5
    """
    found = similarities if isinstance(similarities, Similarities) else ScoreMatrix(similarities)
    return found.ranks(image_of_text).metrics()


def validate_image_of_text(shape: tuple[int, int], image_of_text: Sequence[int] | np.ndarray | None) -> np.ndarray:
    """The row of each text's image as int64 (texts,)."""
    texts, images = shape
    rows = np.arange(texts) if image_of_text is None else np.asarray(image_of_text)
    if rows.shape != (texts,) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"`image_of_text` has the shape {rows.shape} and the type {rows.dtype} for {texts:,} texts. It says which "
            "image each text belongs to: pass one row number per text."
        )
    if rows.min() < 0 or rows.max() >= images:
        wrong = int(rows.min() if rows.min() < 0 else rows.max())
        raise ValueError(
            f"There are {images:,} images, and a text belongs to the image of row {wrong}, which is none of them. "
            "Pass `image_of_text=`, one row number per text; without it text and image have the same row."
        )
    return rows.astype(np.int64)


def _around(values: np.ndarray, margin: np.ndarray, *, above: bool = False) -> np.ndarray:
    """A bound below or above values, rounded away from them: float64 (n,) → float32 (n,)."""
    far = (values + margin if above else values - margin).astype(np.float32)
    return np.nextafter(far, np.float32(np.inf if above else -np.inf))


def _count_rows(found: np.ndarray) -> np.ndarray:
    """How many rows of each column are true: bool (B, n) → (n,)."""
    return np.add.reduce(found.view(np.uint8), axis=0, dtype=np.uint16)


def _where_asked(ranks: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Ranks of the images that have a text, 0 elsewhere."""
    return np.where(np.bincount(rows, minlength=len(ranks)) > 0, ranks, 0)


def _validate_finite(scores: np.ndarray, start: int) -> None:
    bad = np.flatnonzero(~np.isfinite(scores.sum(1)))
    if len(bad) and not np.isfinite(scores[bad]).all():
        raise ValueError(
            f"Scores of {len(bad):,} texts, the first in row {start + bad[0]}, are not finite. They have no "
            "rank. Look at the model's outputs: training may have diverged."
        )
