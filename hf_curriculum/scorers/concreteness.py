"""How concrete the words of a caption are: whether pictures with the same word look alike."""

from __future__ import annotations

import logging
import math
from array import array
from typing import TYPE_CHECKING, Literal

import numpy as np

from hf_curriculum.columns import CAPTION
from hf_curriculum.provenance import check_choice
from hf_curriculum.scorers.base import Scorer
from hf_curriculum.scorers.captions import readable_captions, spread
from hf_curriculum.scorers.corpus import corpus_batches
from hf_curriculum.scorers.neighbours import approximate_neighbours, nearest_neighbours, recall_of
from hf_curriculum.scorers.text import word_splitter
from hf_curriculum.scorers.vectors import image_vectors

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class Concreteness(Scorer):
    """The concreteness of a caption's words: how much more often than by chance pictures with a word are neighbours.

    With n images, V the images one of whose captions has the word, and NN(v) the k nearest images of v by cosine,
    concreteness = mean over v in V of |NN(v) ∩ V|, divided by k·|V| / n, which chance would give. A word of all images
    has exactly 1, a word whose k images are each other's nearest n / k. `fit` learns it from captions and the images'
    embeddings in any space; a caption is then scored by its words alone, each as often as it occurs.

    Args:
        k: the number of neighbours.
        count_self: an image is its own first neighbour, as in the released code, and k - 1 more follow. Otherwise k
            others are counted, with the same k·|V| / n for chance.
        min_count: score words of at least so many images; of fewer the figure is mostly noise.
        aggregate: "mean" over the scored words of a caption, "max" or "min".
        search: "exact", or "faiss", which finds most of the true neighbours (`recall_`) in less time.
        image_embedding: the column with the images' embeddings, a list of numbers per row; an image has that of its
            first row that has one. Only `fit` reads it.
        column: where the captions are.
        name: the column to write.
        easy: captions of concrete words are easy by default.

    Attributes:
        word_concreteness_: word → its concreteness, in alphabetical order.
        images_: the number n of images.
        recall_: the share of the true neighbours that was found: 1 for "exact", for "faiss" over 500 images.

    Shapes:
        float32 (rows,), a ratio ≥ 0, where 1 is chance; NaN for a caption that is missing or has no scored word.

    Raises:
        RuntimeError: used before `fit`.
        ValueError: unknown `aggregate`, `search` or `easy`; `k` or `min_count` below 1.
        TypeError: a caption that is not a string.

    Source: Hessel et al. 2018, *Quantifying the visual concreteness of words and topics in multimodal datasets*, §3,
    with k = 50, words of at least 200 images and the image itself counted as in its released code; for curricula
    Nebbia & Kovashka 2024, §3, who do not say how words of a caption are aggregated.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"image_id": ["a", "b", "c", "d"],
        ...     "caption": ["red ball", "red car", "idea ball", "idea car"],
        ...     "image_embedding": [[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]]})
        >>> Concreteness(k=2, min_count=1).fit(data).word_concreteness_
        {'ball': 1.0, 'car': 1.0, 'idea': 2.0, 'red': 2.0}
    """

    learnt = ("word_concreteness_", "images_", "recall_")
    easy = "high"

    def __init__(
        self,
        k: int = 50,
        *,
        count_self: bool = True,
        min_count: int = 200,
        aggregate: Literal["mean", "max", "min"] = "mean",
        search: Literal["exact", "faiss"] = "exact",
        image_embedding: str = "image_embedding",
        column: str = CAPTION,
        name: str = "concreteness",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        check_choice("aggregate", aggregate, ("mean", "max", "min"))
        check_choice("search", search, ("exact", "faiss"))
        check_choice("easy", easy, ("low", "high"))
        for option, number in (("k", k), ("min_count", min_count)):
            if number < 1:
                raise ValueError(f"`{option}` is {number}. It is a number of images, at least 1.")
        self.k, self.count_self, self.min_count, self.aggregate, self.search = (
            k,
            count_self,
            min_count,
            aggregate,
            search,
        )
        self.image_embedding, self.column, self.name, self.easy = image_embedding, column, name, easy
        self.columns = (column,)
        if search == "faiss":
            self.packages = ("faiss-cpu",)

    def fit(self, dataset: Dataset) -> Concreteness:
        """Learns the words' concreteness from captions and embeddings of images.

        Args:
            dataset: a data set with the columns `image_id`, captions and embeddings. The words of an image are those
                of all its captions.

        Raises:
            TypeError: not a data set in memory or on disk, or embeddings that are not lists of numbers.
            ValueError: a column is missing, embeddings differ in length, there are not more than `k` images, or no
                word has `min_count` of them.
            ImportError: faiss is needed and not installed.
        """
        images, vectors = image_vectors(dataset, self.image_embedding, "Concreteness")
        words, codes, of_images = self._words(dataset, images)
        if self.search == "exact":
            found = nearest_neighbours(vectors, self.k, include_self=self.count_self, device=self.device())
        else:
            found = approximate_neighbours(vectors, self.k, include_self=self.count_self)
        self.recall_ = 1.0
        if self.search == "faiss":
            self.recall_ = recall_of(found, vectors, include_self=self.count_self)
            logger.info("faiss found %.1f %% of the true neighbours.", 100 * self.recall_)
        self.images_ = len(vectors)
        self.word_concreteness_ = self._concreteness(words, codes, of_images, found)
        return self

    def _words(self, dataset: Dataset, images: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Which words which images have. Shapes: images (rows,), -1 for none; returns words, and two arrays (pairs,)
        of word and image numbers, each pair once, sorted."""
        split, numbers = word_splitter("regex"), {}
        pairs, start, count = array("q"), 0, int(images.max()) + 1
        for batch in corpus_batches(dataset, self.columns, "Concreteness"):
            captions, mask = readable_captions(batch[self.column], self.column)
            of_rows = images[start : start + len(mask)][mask].tolist()
            start += len(mask)
            for image, caption in zip(of_rows, captions, strict=True):
                if image >= 0:
                    pairs.extend(
                        numbers.setdefault(word, len(numbers)) * count + image for word in split(caption.lower())
                    )
        distinct = np.unique(np.frombuffer(pairs, np.int64)) if pairs else np.zeros(0, np.int64)
        return list(numbers), distinct // count, distinct % count

    def _concreteness(
        self, words: list[str], codes: np.ndarray, of_images: np.ndarray, found: np.ndarray
    ) -> dict[str, float]:
        """The definition, word by word. Shapes: codes and of_images (pairs,), found (n, k)."""
        ends = np.searchsorted(codes, np.arange(len(words) + 1))
        sizes = np.diff(ends)
        if len(words) == 0 or sizes.max() < self.min_count:
            most = f"{words[sizes.argmax()]!r}, has {sizes.max()}" if words else "there is, has none"
            raise ValueError(
                f"No word has {self.min_count} images: the most frequent, {most}. A word of few images has few "
                "neighbours to compare. Pass a smaller `min_count`, or fit on more images."
            )
        learnt = {}
        member = np.zeros(self.images_ + 1, bool)  # one more, never a member, where faiss found no neighbour (-1)
        for word, size, start in zip(words, sizes.tolist(), ends.tolist(), strict=False):
            if size >= self.min_count:
                images = of_images[start : start + size]
                member[images] = True
                associated = int(np.count_nonzero(member[found[images]]))  # mean over V, times |V|
                learnt[word] = associated * self.images_ / (self.k * size * size)
                member[images] = False
        return dict(sorted(learnt.items()))

    def score(self, batch: dict[str, list], rank: int | None) -> np.ndarray:
        captions, mask = readable_captions(batch[self.column], self.column)
        known, split = self.word_concreteness_, word_splitter("regex")
        aggregate = {"mean": np.mean, "max": max, "min": min}[self.aggregate]
        scores = []
        for caption in captions:
            scored = [known[word] for word in split(caption.lower()) if word in known]
            scores.append(aggregate(scored) if scored else math.nan)
        return spread(scores, mask)
