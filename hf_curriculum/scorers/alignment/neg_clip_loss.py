"""How much better a pair's image and caption fit each other than other pairs: CLIP's loss of one pair, negated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import at_least
from hf_curriculum.data.conversations import Part, Turns
from hf_curriculum.data.image_files import with_stored
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.scorers.alignment.clip import SCENES_CLIP, CLIPSimilarity, given_vectors
from hf_curriculum.scorers.pretrained import Precision, one_thread_in_workers

if TYPE_CHECKING:
    from datasets import Dataset

_MOST = 1 << 22  # cosines held at a time: 16 MB
_FEWEST = 256  # rows of a matrix product; fewer make it slower


class NegCLIPLoss(CLIPSimilarity):
    """Cosine of image and caption, minus how well each of them fits the other pairs of random batches.

    With v and t the unit vectors of images and texts and τ the temperature, over a batch B that has the pair i itself,

        score(i) = cos(v_i, t_i) − τ/2 · [log Σ_{j∈B} exp(cos(v_i, t_j) / τ) + log Σ_{j∈B} exp(cos(v_j, t_i) / τ)],

    which is −τ times CLIP's loss of the pair, averaged over K batches. The cosine is also high for a caption that fits
    many images; here such a caption scores lower.

    `fit` draws the batches by the content of the pairs and a seed, whatever their order. A pair that a batch does not
    have takes the place of its last one. So a score depends on neither the rows scored with it nor processes, and
    equal pairs have equal scores. The authors divide the data into batches anew in each of K rounds: equally random
    for one pair, and the same if the data is one batch. Here all batches have one size; in a round of theirs the last
    one is smaller, which raises its scores.

    A row takes 4 · K · |B| · D operations, 671 million at the paper's sizes and D = 512: a core needs hours for a
    million rows. The fitted scorer holds at most K · |B| pairs, 1.3 GB at these sizes.

    Args:
        model: as in `CLIPSimilarity`. If both embeddings are in the data, the model they came from.
        temperature: τ, the CLIP's own, 1 / exp(`logit_scale`): 0.01 for OpenAI's.
        pairs_per_batch: |B|, at least 2. Data of no more pairs is one batch.
        num_batches: K, over which the score is averaged.
        seed: of the draw.
        backend, pretrained, revision: as in `CLIPSimilarity`.
        batch_size: images, or captions, that run through a tower at once.
        dtype: as in `CLIPSimilarity`.
        image_column: where the images are, one in a row; the data then needs `image_id`, which identifies a pair.
        caption_column: where the captions or conversations are.
        image_embedding: a column with the images' embeddings (a list of numbers per row), read instead of images.
        text_embedding: a column with the captions' embeddings, read instead of captions.
        name: the column to write.
        easy: a high score is easy by default: the paper keeps the highest.
        part, turns: whose messages of a conversation are scored, and which of them: see `CaptionScorer`.

    Attributes:
        images_, texts_: the vectors of the drawn pairs, float32 (pairs, D).
        keys_: the pairs' keys, uint64 (pairs,).
        batches_: the pairs of each batch, int32 (|B|,) or fewer, as numbers of the rows above.

    Shapes:
        float32 (rows,), at most 0 but for rounding, in units of a cosine; NaN where `CLIPSimilarity` has NaN.

    Raises:
        RuntimeError: used before `fit`.
        ValueError: as `CLIPSimilarity`; a temperature that is not above 0, vectors of another length than the fitted
            ones.
        FileNotFoundError, ImportError, TypeError: as `CLIPSimilarity`.

    Source: Wang et al. 2024, *CLIPLoss and Norm-Based Data Selection Methods for Multimodal Contrastive Learning*,
        negCLIPLoss (later s-CLIPLoss), with |B| = 32,768, K = 10 and τ = 0.01. Its released code keeps the best 30 %.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"v": [[1.0, 0.0], [0.0, 1.0]], "t": [[1.0, 0.0], [1.0, 1.0]]})
        >>> scorer = NegCLIPLoss(image_embedding="v", text_embedding="t", temperature=1.0).fit(data)
        >>> scorer({"v": data["v"][:], "t": data["t"][:]})["neg_clip_loss"].round(3)
        array([-0.435, -0.547], dtype=float32)
    """

    fitted_attributes: tuple[str, ...] = ("images_", "texts_", "keys_", "batches_")

    def __init__(
        self,
        model: str = SCENES_CLIP,
        *,
        temperature: float = 0.01,
        pairs_per_batch: int = 32_768,
        num_batches: int = 10,
        seed: int = 0,
        backend: Literal["transformers", "open_clip"] | None = None,
        pretrained: str | None = None,
        revision: str | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        image_embedding: str | None = None,
        text_embedding: str | None = None,
        name: str = "neg_clip_loss",
        easy: Literal["low", "high"] = "high",
        part: Part = "assistant",
        turns: Turns = "all",
    ) -> None:
        at_least("NegCLIPLoss", pairs_per_batch=(pairs_per_batch, 2), num_batches=(num_batches, 1))
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"`temperature` is {temperature}. Cosines are divided by it, so it is above 0: the CLIP's own, "
                "1 / exp(logit_scale), which is 0.01 for OpenAI's."
            )
        super().__init__(
            model,
            backend=backend,
            pretrained=pretrained,
            revision=revision,
            batch_size=batch_size,
            dtype=dtype,
            image_column=image_column,
            caption_column=caption_column,
            image_embedding=image_embedding,
            text_embedding=text_embedding,
            name=name,
            easy=easy,
            part=part,
            turns=turns,
        )
        self.temperature = temperature
        self.pairs_per_batch, self.num_batches = pairs_per_batch, num_batches
        self.seed = seed
        if image_embedding is None:
            self.columns = (*self.columns, IMAGE_ID)

    @property
    def _known_by(self) -> tuple[str, str]:
        """The columns of the image and the text of a pair that tell it from others without a model."""
        return self.image_embedding or IMAGE_ID, self.text_embedding or self.caption_column

    def fit(self, dataset: Dataset) -> NegCLIPLoss:
        """Draws the batches and keeps the vectors of their pairs.

        Args:
            dataset: the pairs that are to be scored, or a sample of them, such as one shard of a crawl.

        Raises:
            TypeError: not a data set in memory or on disk, or lists of images.
            ValueError: a column is missing, or fewer than 2 pairs can be read.
        """
        from datasets import LargeList, List

        require_columns(
            dataset.column_names,
            self.columns,
            reader="`NegCLIPLoss.fit` draws pairs from it.",
            remedy="Rename the column (`dataset.rename_column`), or tell the scorer its name.",
        )
        if self.image_embedding is None and isinstance(dataset.features[self.image_column], (List, LargeList)):
            raise TypeError(
                f"`{self.image_column}` has lists of images, and a pair is one image and its caption. Give rows of "
                "one image each."
            )
        keys, rows = self._read_keys(dataset)
        drawn = self._draw(keys)  # (batches, pairs)
        distinct, places = np.unique(drawn, return_inverse=True)
        images, texts, seen = self._read_pairs(dataset.select(rows[distinct]))
        numbers = np.where(seen, np.cumsum(seen) - 1, -1).astype(np.int32)[places.reshape(drawn.shape)]
        batches = [batch[batch >= 0] for batch in numbers]  # without images that cannot be read
        if (fewest := min(map(len, batches), default=0)) < 2:
            raise ValueError(
                f"{fewest} pairs of {len(dataset):,} rows can be read, and a pair is compared with others. Give more "
                "rows that have both an image and a caption, or both of their vectors."
            )
        self.images_, self.texts_, self.keys_ = images, texts, keys[distinct][seen]
        self.batches_: list[np.ndarray] = batches
        self.__dict__.pop("_kept", None)  # of an earlier fit
        return self

    def _read_keys(self, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """The keys of rows that may be drawn, uint64, and their numbers, int64, (pairs,) each."""
        keys, good = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]
        for batch in self._iterate(dataset, self._known_by):
            mask = np.ones(len(batch[self._known_by[0]]), bool)
            for column in self.numpy_columns:
                mask &= given_vectors(batch[column], column).index >= 0
            if self.text_embedding is None:
                mask &= self.read_texts(batch[self.caption_column], self.caption_column)[1]
            good.append(mask)
            keys.append(self._keys(batch)[mask])
        return np.concatenate(keys), np.flatnonzero(np.concatenate(good))

    def _iterate(self, dataset: Dataset, columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        """Batches of some columns, as `add_scores` gives them."""
        dataset = dataset.with_format(None).select_columns(list(dict.fromkeys(columns)))
        for column in set(self.decode_false) & set(columns):
            dataset = with_stored(dataset, column)
        if self.numpy_columns:
            dataset = dataset.with_format("numpy", columns=list(self.numpy_columns), output_all_columns=True)
        for batch in dataset.iter(batch_size=1000):
            yield {column: list(values) for column, values in batch.items()}

    def _keys(self, batch: dict[str, list[Any]]) -> np.ndarray:
        """A hash of each pair's content, uint64 (rows,)."""
        sides = [_contents(batch[column], column in self.numpy_columns) for column in self._known_by]
        hashed = (xxh3_64_intdigest(image + b"\0" + text) for image, text in zip(*sides, strict=True))
        return np.fromiter(hashed, np.uint64, len(sides[0]))

    def _draw(self, keys: np.ndarray) -> np.ndarray:
        """Batches of rows (batches, pairs) by keyed hashes of their content; all rows where they are no more."""
        count = 1 if len(keys) <= self.pairs_per_batch else self.num_batches
        orders = (np.argsort(hash64(keys, mix64(self.seed, number)), kind="stable") for number in range(count))
        return np.stack([order[: self.pairs_per_batch] for order in orders])

    def _read_pairs(self, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `pairs` gives of all rows, together."""
        found = [self.pairs(batch, None) for batch in self._iterate(dataset, self.columns)]
        images, texts, masks = zip(*found, strict=True) if found else ([], [], [np.zeros(0, bool)])
        kept = [[side for side in each if len(side)] or [np.zeros((0, 0), np.float32)] for each in (images, texts)]
        return np.concatenate(kept[0]), np.concatenate(kept[1]), np.concatenate(masks)

    def score(self, batch: dict[str, list[Any]], rank: int | None) -> np.ndarray:
        images, texts, both = self.pairs(batch, rank)
        scores = np.full(len(both), np.nan, np.float32)
        if not both.any():
            return scores
        if images.shape[1] != self.images_.shape[1]:
            raise ValueError(
                f"The vectors of `{self.columns[0]}` have {images.shape[1]} numbers and those that the scorer was "
                f"fitted to {self.images_.shape[1]}: they are of two models. Call `fit` on this data."
            )
        scores[both] = self._negative_losses(images, texts, self._keys(batch)[both], rank)
        return scores

    @torch.inference_mode()
    def _negative_losses(
        self, images: np.ndarray, texts: np.ndarray, keys: np.ndarray, rank: int | None
    ) -> np.ndarray:
        """The definition: unit vectors (pairs, D) each and keys (pairs,) → (pairs,)."""
        device = self.device(rank)
        drawn_images, drawn_texts = self._drawn(device)
        own_images, own_texts = (torch.from_numpy(side).to(device) for side in (images, texts))
        cosines = (own_images * own_texts).sum(1)
        total = torch.zeros_like(cosines)
        for batch in self.batches_:
            absent = torch.from_numpy(~np.isin(keys, self.keys_[batch])).to(device)
            members = torch.from_numpy(batch).to(device)
            for own, others in ((own_images, drawn_texts), (own_texts, drawn_images)):
                total += _log_sums(own, others[members], cosines, absent, self.temperature)
        return (-self.temperature / 2 * total / len(self.batches_)).cpu().numpy()

    def _drawn(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors of the drawn pairs on a device, where they stay; they are not pickled a second time."""
        kept = self.__dict__.setdefault("_kept", {})
        if device not in kept:
            one_thread_in_workers()
            kept[device] = tuple(torch.from_numpy(side).to(device) for side in (self.images_, self.texts_))
        return kept[device]


def _contents(cells: Sequence[Any], are_vectors: bool) -> list[bytes]:
    """What each cell holds, as bytes that are the same however it was read."""
    if not are_vectors:
        return [str(cell).encode("utf-8", "surrogatepass") for cell in cells]
    return [b"" if cell is None else np.asarray(cell, np.float32).tobytes() for cell in cells]


def _log_sums(
    own: torch.Tensor, others: torch.Tensor, cosines: torch.Tensor, absent: torch.Tensor, temperature: float
) -> torch.Tensor:
    """log Σ_j exp((own · other_j − cosine) / τ) of rows (m, D) and their cosines (m,) over others (n, D) → (m,).

    A row that is `absent` from the others, bool (m,), takes the place of the last of them.
    """
    found = torch.empty_like(cosines)
    rows = max(_FEWEST, _MOST // len(others))
    for start in range(0, len(own), rows):
        part = slice(start, start + rows)
        logits, pairs = (own[part] / temperature) @ others.T, cosines[part] / temperature  # (rows, n), (rows,)
        logits[:, -1] = torch.where(absent[part], pairs, logits[:, -1])
        greatest = logits.amax(1, keepdim=True)
        found[part] = logits.sub_(greatest).exp_().sum(1).log_() + (greatest[:, 0] - pairs)
    return found
