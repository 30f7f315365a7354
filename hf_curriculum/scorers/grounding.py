"""Whether a caption belongs to its image: how much easier a captioner finds it with that image than with others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import at_least, kind_of
from hf_curriculum.data.captions import group_codes
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.regions.base import RegionSource
from hf_curriculum.provenance import read_column
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.scorers.model_loss import LoadedCaptioner, ModelLoss

if TYPE_CHECKING:
    import torch
    from datasets import Dataset


class Grounding(ModelLoss):
    """Captioner loss of a caption given other images, minus its loss given its own: whether it belongs to its image.

    (1/k) Σ_j L(caption | image_j) − L(caption | its own image). In a caption's loss its words outweigh the image: a
    caption of rare words has a greater loss with its own image than a plain one with any. The difference leaves the
    words out: it is near 0 for a caption that says nothing of any image, below 0 for one that fits others better.

    `fit` draws k + 1 images of different content, by their `image_id` and the seed, whatever their order; a row whose
    own image is one of them takes the k others, every other row the first k. So a score depends on neither batches nor
    processes. Each row takes k + 1 passes of its caption through the model; an image is encoded once in each batch.

    Args:
        model: as in `ModelLoss`; best one that was trained on other rows (`recipes/reference_model.py`).
        processor: as in `ModelLoss`.
        reduction: "mean" over the scored tokens, or "sum".
        k: how many other images; with more of them the score is less noisy, and takes longer.
        seed: of the draw.
        max_length: as in `ModelLoss`.
        batch_size: pairs that run through the model at once.
        revision: of a repository.
        image_column: where the images are.
        caption_column: where the captions are.
        regions: as in `ModelLoss`; the other images are then drawn from those that it has regions of.
        region_options: as in `ModelLoss`.
        name: the column to write.
        easy: a caption that belongs to its image is easy by default.

    Attributes:
        other_images_: the k + 1 images, each as the bytes of its file, uint8 (bytes,); for a captioner on regions
            their `image_id`.

    Shapes:
        float32 (rows,), in nats per token (in nats with "sum"); NaN where `ModelLoss` has NaN.

    Raises:
        RuntimeError: used before `fit`.
        FileNotFoundError: as `ModelLoss`.
        ValueError: as `ModelLoss`; `k` below 1.
        TypeError: a caption that is not a string.

    Source: ours. It stands for the pointwise mutual information of caption and image, log p(y | x) − log p(y), with a
    mean over images in place of log p(y).

    Example:
        >>> scorer = Grounding("output/reference/model").fit(train)      # doctest: +SKIP
        >>> add_scores(train, scorer)["grounding"][:]                    # doctest: +SKIP
    """

    fitted_attributes: tuple[str, ...] = ("other_images_",)
    easy = "high"

    def __init__(
        self,
        model: str,
        processor: str | None = None,
        reduction: Literal["sum", "mean"] = "mean",
        *,
        k: int = 4,
        seed: int = 0,
        max_length: int = 50,
        batch_size: int = 32,
        revision: str | None = None,
        image_column: str = IMAGE,
        caption_column: str = CAPTION,
        regions: str | Path | RegionSource | None = None,
        region_options: dict[str, Any] | None = None,
        name: str = "grounding",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        at_least("Grounding", k=(k, 1))
        super().__init__(
            model,
            processor,
            reduction,
            max_length=max_length,
            batch_size=batch_size,
            revision=revision,
            image_column=image_column,
            caption_column=caption_column,
            regions=regions,
            region_options=region_options,
            name=name,
            easy=easy,
        )
        self.k = k
        self.seed = seed

    def fit(self, dataset: Dataset) -> Grounding:
        """Draws the other images, k + 1 of different content that can be read.

        Args:
            dataset: with the images, or their `image_id` for a captioner on regions; best images that the model was
                not trained on. Without `image_id` rows are drawn.

        Raises:
            TypeError: not a data set in memory or on disk.
            ValueError: a column is missing, or there are not k + 1 such images.
        """
        from datasets import Dataset

        if not isinstance(dataset, Dataset):
            raise TypeError(f"`Grounding.fit` was given {kind_of(dataset)}. It draws images: give one `Dataset`.")
        column = self.columns[0]
        require_columns(
            dataset.column_names,
            [column],
            reader="`Grounding.fit` draws images from it.",
            remedy="Rename the column (`dataset.rename_column`), or tell the scorer its name.",
        )
        found: dict[Any, Any] = {}  # by content
        for image in self._images_in_random_order(dataset):
            found.setdefault(image.tobytes() if self.regions is None else image, image)
            if len(found) > self.k:
                break
        if len(found) <= self.k:
            raise ValueError(
                f"{len(found)} different images can be read in `{column}` of {len(dataset):,} rows, and `k={self.k}` "
                f"needs {self.k + 1}: {self.k} others for each image. Give more images, or a smaller `k`."
            )
        self.other_images_: list[Any] = list(found.values())
        self.__dict__.pop("_loaded", None)  # with the images of an earlier fit
        return self

    def _images_in_random_order(self, dataset: Dataset) -> Iterator[Any]:
        """Readable images as `other_images_` keeps them, in the order of keyed hashes of their ids, or of rows."""
        from datasets import Image

        if IMAGE_ID in dataset.column_names:
            ids = read_column(dataset, IMAGE_ID)
            firsts = np.unique(group_codes(ids), return_index=True)[1]
            names = [str(value) for value in ids.take(firsts).to_pylist()]
            hashes = np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)
        else:
            firsts = hashes = np.arange(len(dataset), dtype=np.uint64)
        rows = dataset.with_format(None).select_columns(self.columns[0])
        if self.regions is None and isinstance(rows.features[self.columns[0]], Image):
            rows = rows.cast_column(self.columns[0], Image(decode=False))
        for place in np.argsort(hash64(hashes, mix64(self.seed)), kind="stable").tolist():
            stored = rows[int(firsts[place])][self.columns[0]]
            image = _encoded(stored) if self.regions is None else self._with_regions(stored)
            if image is not None:
                yield image

    def _with_regions(self, image_id: Any) -> Any | None:
        """The id of an image that has regions."""
        from hf_curriculum.data.image_inputs import MissingFeaturesError, RegionInputs

        try:
            RegionInputs(self.regions).read({IMAGE_ID: image_id})
        except MissingFeaturesError:
            return None
        return image_id

    def load(self, device: torch.device) -> LoadedCaptioner:
        loaded = super().load(device)
        key = self.image_column if self.regions is None else IMAGE_ID
        stored = (
            image if self.regions is not None else {"bytes": image.tobytes(), "path": None}
            for image in self.other_images_
        )
        return loaded._replace(others=[loaded.inputs.read({key: image}) for image in stored])

    def run(
        self, loaded: LoadedCaptioner, tokens: list[list[int]], images: list[dict[str, torch.Tensor]]
    ) -> np.ndarray:
        """Differences of pairs, float64 (pairs,)."""
        allowed = _other_than_own(images, loaded.others)  # (pairs, k + 1)
        chosen = allowed & (allowed.cumsum(axis=1) <= self.k)
        total = np.zeros(len(images))
        for number, other in enumerate(loaded.others):
            pairs = np.flatnonzero(chosen[:, number]).tolist()
            if pairs:
                total[pairs] += super().run(loaded, [tokens[pair] for pair in pairs], [other] * len(pairs))
        return total / chosen.sum(axis=1) - super().run(loaded, tokens, images)


def _encoded(stored: Any) -> np.ndarray | None:
    """An image as the bytes of a file, uint8 (bytes,): its own, or PNG; None where it cannot be read."""
    try:
        image = to_rgb(stored)
    except UnreadableImageError:
        return None
    content = stored.get("bytes") if isinstance(stored, dict) else None
    if content is None:
        file = io.BytesIO()
        image.save(file, "png")
        content = file.getvalue()
    return np.frombuffer(content, np.uint8).copy()


def _other_than_own(images: list[dict[str, torch.Tensor]], others: Any) -> np.ndarray:
    """Which of the others differ from each pair's image, bool (pairs, others); the pairs share image objects."""
    import torch

    distinct = {id(image): image for image in images}
    differs = {
        key: [any(not torch.equal(part, other[name]) for name, part in image.items()) for other in others]
        for key, image in distinct.items()
    }
    return np.array([differs[id(image)] for image in images])
