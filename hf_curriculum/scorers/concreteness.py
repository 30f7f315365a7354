"""Visual concreteness of the words of a caption: whether images with the same word look alike."""

from __future__ import annotations

import logging
import math
from array import array
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from hf_curriculum.columns import CAPTION, IMAGE_ID, require_columns
from hf_curriculum.config import at_least
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.data.grouping import image_codes
from hf_curriculum.provenance import validate_choice
from hf_curriculum.scorers.base import CaptionScorer, corpus_batches
from hf_curriculum.scorers.text.length import word_splitter
from hf_curriculum.views import table_rows

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

logger: logging.Logger = logging.getLogger(__name__)


class Concreteness(CaptionScorer):
    """Visual concreteness of a caption's words: how strongly the images with a word cluster, relative to chance.

    Of n images, V are those with the word in a caption, and NN(v) the k nearest images of v by cosine. Concreteness is
    the mean of |NN(v) ∩ V| over v in V, divided by k·|V| / n, its expectation by chance. A word of all images has 1, a
    word whose k images are each other's nearest n / k. `fit` reads captions and image embeddings of any model; a
    caption is then scored by its words, each as often as it occurs.

    Args:
        k: the number of neighbours.
        count_self: an image is the first of its k neighbours, as in the released code; otherwise k others are counted.
        min_count: score words of at least this number of images; with fewer the estimate is noisy. 200 is for hundreds
            of thousands of images: of 1,000 it leaves some 20 words. `fit` logs how many it leaves out.
        aggregate: "mean" over the scored words of a caption, "max" or "min".
        search: "exact", or "faiss", which finds most of the true neighbours (`recall_`) in less time.
        image_embedding: the column with the images' embeddings, a list of numbers per row, read by `fit` only. An
            image takes the first embedding among its rows.
        column: where the captions or conversations are.
        name: the column to write.
        easy: captions of concrete words are easy by default.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Attributes:
        word_concreteness_: word → its concreteness, in alphabetical order.
        images_: the number n of images.
        recall_: the share of the true neighbours that was found: 1 for "exact", for "faiss" over 500 images.

    Shapes:
        float32 (rows,), a ratio ≥ 0, where 1 is chance; NaN for a caption that is missing or has no scored word.

    Raises:
        RuntimeError: used before `fit`.
        ValueError: unknown `aggregate`, `search`, `easy`, `part` or `turns`; `k` or `min_count` below 1.
        TypeError: a cell that is neither a text nor a conversation.

    Source: Hessel et al. 2018, *Quantifying the visual concreteness of words and topics in multimodal datasets*, §3.
    As in its released code: k = 50, words of at least 200 images, the image itself counted. For curricula Nebbia &
    Kovashka 2024, §3, who do not say how they aggregate a caption's words.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"image_id": ["a", "b", "c", "d"],
        ...     "caption": ["red ball", "red car", "idea ball", "idea car"],
        ...     "image_embedding": [[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]]})
        >>> Concreteness(k=2, min_count=1).fit(data).word_concreteness_
        {'ball': 1.0, 'car': 1.0, 'idea': 2.0, 'red': 2.0}
    """

    fitted_attributes: tuple[str, ...] = ("word_concreteness_", "images_", "recall_")
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
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        validate_choice("aggregate", aggregate, ("mean", "max", "min"))
        validate_choice("search", search, ("exact", "faiss"))
        at_least("Concreteness", k=(k, 1), min_count=(min_count, 1))
        super().__init__(column, name, easy, part=part, turns=turns)
        self.k = k
        self.count_self = count_self
        self.min_count = min_count
        self.aggregate, self.search = aggregate, search
        self.image_embedding = image_embedding
        if search == "faiss":
            self.packages: tuple[str, ...] = ("faiss-cpu",)

    def fit(self, dataset: Dataset) -> Concreteness:
        """Computes the concreteness of words from captions and image embeddings.

        Args:
            dataset: a data set with the columns `image_id`, captions and embeddings. The words of an image are those
                of all its captions.

        Raises:
            TypeError: not a data set in memory or on disk, or embeddings that are not lists of numbers.
            ValueError: a column is missing, embeddings differ in length, there are not more than `k` images, or no
                word has `min_count` of them.
            ImportError: faiss is needed and not installed.
        """
        images, vectors = unit_embeddings(dataset, self.image_embedding, "Concreteness")
        words, codes, of_images = self._words(dataset, images)
        self.recall_ = 1.0
        if self.search == "exact":
            found = nearest_neighbours(vectors, self.k, include_self=self.count_self, device=self.device())
        else:
            found = approximate_neighbours(vectors, self.k, include_self=self.count_self)
            self.recall_: float = recall_of(found, vectors, include_self=self.count_self)
            logger.info("faiss found %.1f %% of the true neighbours.", 100 * self.recall_)
        self.images_: int = len(vectors)
        self.word_concreteness_: dict[str, float] = self._concreteness(words, codes, of_images, found)
        return self

    def _words(self, dataset: Dataset, images: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
        """The words, and the distinct pairs of a word's and an image's number, sorted, two arrays (pairs,)."""
        split, numbers = word_splitter("regex"), {}
        pairs, start, count = array("q"), 0, int(images.max()) + 1
        for batch in corpus_batches(dataset, self.columns, "Concreteness"):
            captions, mask = self.read_texts(batch[self.column], self.column)
            self.look_at_words(captions)
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
        """The definition, word by word, from pairs (pairs,) and neighbours (n, k)."""
        ends = np.searchsorted(codes, np.arange(len(words) + 1))
        sizes = np.diff(ends)
        if len(words) == 0 or sizes.max() < self.min_count:
            most = f"{words[sizes.argmax()]!r}, has {sizes.max()}" if words else "there is, has none"
            raise ValueError(
                f"No word has {self.min_count} images: the most frequent, {most}. Pass a smaller `min_count`, or fit "
                "on more images."
            )
        concreteness = {}
        member = np.zeros(self.images_ + 1, bool)  # the last for -1, where faiss found no neighbour
        for word, size, start in zip(words, sizes.tolist(), ends.tolist(), strict=False):
            if size >= self.min_count:
                images = of_images[start : start + size]
                member[images] = True
                associated = int(np.count_nonzero(member[found[images]]))  # mean over V, times |V|
                concreteness[word] = associated * self.images_ / (self.k * size * size)
                member[images] = False
        if len(concreteness) < len(words):
            counts = (len(concreteness), len(words), self.min_count, self.images_)
            logger.warning(
                "Concreteness scores %d of %d words: the others are in fewer than `min_count=%d` of the %d images, "
                "and a caption without any of these words has no score.",
                *counts,
            )
        return dict(sorted(concreteness.items()))

    def score_captions(self, captions: list[str], rank: int | None) -> list[float]:
        known, split = self.word_concreteness_, word_splitter("regex")
        aggregate = {"mean": np.mean, "max": max, "min": min}[self.aggregate]
        scored = ([known[word] for word in split(caption.lower()) if word in known] for caption in captions)
        return [aggregate(found) if found else math.nan for found in scored]


_BUFFER = 1 << 26  # similarities held at a time: 256 MB of float32
_MOST_ROWS = 512
_SHARE, _FEWEST = 32, 16  # one in 32 of faiss's cells is searched, at least 16; more are slower than an exact search
_TRAINING = 64  # vectors per cell that faiss trains its cells with


def nearest_neighbours(
    vectors: np.ndarray, count: int, *, include_self: bool = True, device: torch.device | str = "cpu"
) -> np.ndarray:
    """The nearest vectors by cosine, exactly: float32 (n, d), of length 1 → int64 (n, count), in no order."""
    import torch

    size = len(vectors)
    validate_neighbours(size, count, include_self)
    every = torch.from_numpy(np.ascontiguousarray(vectors, np.float32)).to(device)  # (n, d)
    rows = max(1, min(_MOST_ROWS, _BUFFER // size))
    buffer = torch.empty((rows, size), device=device)
    found = np.empty((size, count), np.int64)
    for start in range(0, size, rows):
        part = every[start : start + rows]  # (m, d)
        cosines = torch.mm(part, every.T, out=buffer[: len(part)])  # (m, n)
        # of two equal vectors either may be found as the nearer one
        cosines.diagonal(start).fill_(torch.inf if include_self else -torch.inf)
        found[start : start + rows] = cosines.topk(count, dim=1, sorted=False).indices.cpu().numpy()
    return found


def approximate_neighbours(vectors: np.ndarray, count: int, *, include_self: bool = True, seed: int = 0) -> np.ndarray:
    """As `nearest_neighbours`, by faiss; -1 where the searched cells held too few."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "Approximate neighbours need faiss, which is not installed. Run `pip install 'hf-curriculum[retrieval]'`, "
            'or search exactly (`search="exact"`).'
        ) from error
    size = len(vectors)
    validate_neighbours(size, count, include_self)
    vectors = np.ascontiguousarray(vectors, np.float32)
    cells = max(1, min(int(4 * size**0.5), size // _TRAINING))
    cells_of = faiss.IndexFlatIP(vectors.shape[1])
    index = faiss.IndexIVFFlat(cells_of, vectors.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.max_points_per_centroid, index.cp.min_points_per_centroid = seed, _TRAINING, 1
    index.train(vectors)
    index.add(vectors)
    index.nprobe = min(cells, max(_FEWEST, cells // _SHARE))
    found = index.search(vectors, count + 1)[1]  # (n, count + 1), nearest first
    # each row's own number first; if it was not found, the last one is dropped
    own = np.arange(size)[:, None]
    moved = np.take_along_axis(found, np.argsort(found != own, axis=1, kind="stable"), axis=1)
    found = np.where(moved[:, :1] != own, np.concatenate([own, moved[:, :-1]], axis=1), moved)
    return found[:, :count] if include_self else found[:, 1:]


def recall_of(found: np.ndarray, vectors: np.ndarray, *, include_self: bool = True, sample: int = 500) -> float:
    """The share of the true neighbours that were found, over evenly spaced vectors; a vector itself does not count."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, sample).astype(np.int64))  # (m,)
    cosines = vectors[rows] @ vectors.T  # (m, n)
    cosines[np.arange(len(rows)), rows] = -np.inf
    count = found.shape[1] - include_self
    if count == 0:
        return 1.0
    true = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    hits = sum(len(np.intersect1d(true[at], found[row])) for at, row in enumerate(rows.tolist()))
    return hits / (len(rows) * count)


def validate_neighbours(size: int, count: int, include_self: bool) -> None:
    """`size` vectors have `count` neighbours each."""
    most = size if include_self else size - 1
    if not 1 <= count <= most:
        itself = "included" if include_self else "not counted"
        raise ValueError(
            f"{count} nearest neighbours were asked for, but of {size} vectors each has from 1 to {most} (itself "
            f"{itself}). Pass a smaller `k`, or more images."
        )


def unit_embeddings(dataset: Dataset, column: str, who: str) -> tuple[np.ndarray, np.ndarray]:
    """The image of each row, int64 (rows,), -1 without an embedding, and the unit embeddings, float32 (images, d)."""

    require_columns(
        dataset.column_names,
        [IMAGE_ID, column],
        reader=f"`{who}.fit` compares images by their embeddings.",
        remedy="Add embeddings of any image model as a column with a list of numbers per row, or name your column.",
    )
    values, rows = dataset.data.column(column), table_rows(dataset)
    rows = np.arange(len(dataset)) if rows is None else rows
    valid = values.is_valid().to_numpy()[rows]  # (rows,)
    if not valid.any():
        raise ValueError(f"No row has an embedding in `{column}`, so `{who}.fit` has nothing to compare.")
    codes = image_codes(dataset)
    named, first = np.unique(codes[valid], return_index=True)
    images = np.full(codes.max() + 1, -1)
    images[named] = np.arange(len(named))
    if len(named) < len(images):
        logger.warning("%s: %d of %d images have no embedding.", who, len(images) - len(named), len(images))
    # one row per image: its other captions repeat the embedding
    chosen = values.take(pa.array(rows[valid][first])).combine_chunks()
    return images[codes], _unit_vectors(chosen, column)


def _unit_vectors(values: pa.Array, column: str) -> np.ndarray:
    """Lists of numbers (n,) → float32 (n, d), each row of length 1."""
    kind = values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)) or not (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        raise TypeError(f"`{column}` holds {kind}, not one list of numbers per row. Give a flat list: `List(Value)`.")
    flat, lengths = values.flatten(), np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ValueError(
            f"The embeddings in `{column}` have {lengths[0]} to {lengths[-1]} numbers. Take all of them from one "
            "model."
        )
    vectors = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(values), -1)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        raise ValueError(
            f"{len(bad)} of {len(vectors)} embeddings in `{column}` are zero or not finite, so they have no direction "
            "to compare. Set them to None: images without an embedding are left out."
        )
    return vectors / lengths
