"""Whether a text belongs to its image: how much easier a model finds it with that image than with others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.config import at_least, kind_of
from hf_curriculum.data.conversations import Turns
from hf_curriculum.data.grouping import image_codes
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.regions.base import RegionSource
from hf_curriculum.provenance import read_column, validate_choice
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.scorers.chat_losses import ChatPasses, image_digest
from hf_curriculum.scorers.model_loss import LoadedCaptioner, ModelLoss
from hf_curriculum.scorers.pretrained import Precision

if TYPE_CHECKING:
    import torch
    from datasets import Dataset


class Grounding(ModelLoss):
    """A caption's loss given other images minus its loss given its own image: high if it belongs to its image.

    (1/k) Σ_j L(caption | image_j) − L(caption | its own image). In a caption's loss its words outweigh the image: rare
    words have a high loss with any image. The difference removes their effect: it is near 0 for a caption that
    describes no image, below 0 for one that fits others better. Of a chat model it is the loss of the responses (see
    `ModelLoss`), and each other image stands in for all images of the conversation.

    `fit` draws k + 1 images of different content, by their `image_id` and the seed, whatever their order. A row whose
    own image is one of them takes the k others, every other row the first k. So a score depends on neither batches nor
    processes. Each row takes k + 1 passes of its caption through the model; a captioner encodes an image once in each
    batch. `against="none"` takes 2 passes and needs no `fit`.

    Args:
        model: as in `ModelLoss`; preferably trained on other rows (`recipes/reference_model.py`).
        processor: as in `ModelLoss`.
        reduction: "mean" over the scored tokens, or "sum".
        against: "others", other images; for a chat model also "none": the conversation without images.
        k: the number of other images; more make the score less noisy, and slower.
        seed: of the draw.
        max_length: as in `ModelLoss`.
        batch_size: pairs that run through the model at once.
        dtype: as in `ModelLoss`.
        revision: of a repository.
        image_column: where the images are.
        caption_column: where the captions are.
        prompt_column: as in `ModelLoss`.
        prompt: as in `ModelLoss`.
        turns: as in `ModelLoss`.
        regions: as in `ModelLoss`; the other images are then drawn from those with regions.
        region_options: as in `ModelLoss`.
        name: the column to write.
        easy: a caption that belongs to its image is easy by default.

    Attributes:
        other_images_: the k + 1 images, each as the bytes of its file, uint8 (bytes,); for a captioner on regions
            their `image_id`.

    Shapes:
        float32 (rows,), in nats per token (in nats with "sum"); NaN where `ModelLoss` has NaN, and for a conversation
        without images.

    Raises:
        RuntimeError: used before `fit`.
        FileNotFoundError: as `ModelLoss`.
        ValueError: as `ModelLoss`; `k` below 1, an unknown `against`, "none" for a captioner, a model of words alone.
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
        against: Literal["others", "none"] = "others",
        k: int = 4,
        seed: int = 0,
        max_length: int | None = None,
        batch_size: int = 32,
        dtype: Precision = "float32",
        revision: str | None = None,
        image_column: str | None = None,
        caption_column: str | None = None,
        prompt_column: str | None = None,
        prompt: str | None = None,
        turns: Turns = "all",
        regions: str | Path | RegionSource | None = None,
        region_options: dict[str, Any] | None = None,
        name: str = "grounding",
        easy: Literal["low", "high"] = "high",
    ) -> None:
        at_least("Grounding", k=(k, 1))
        validate_choice("against", against, ("others", "none"))
        super().__init__(
            model,
            processor,
            reduction,
            max_length=max_length,
            batch_size=batch_size,
            dtype=dtype,
            revision=revision,
            image_column=image_column,
            caption_column=caption_column,
            prompt_column=prompt_column,
            prompt=prompt,
            turns=turns,
            regions=regions,
            region_options=region_options,
            name=name,
            easy=easy,
        )
        self.k = k
        self.seed = seed
        self.against = against
        if against == "none":
            self.fitted_attributes = ()

    def arguments(self) -> dict[str, Any]:
        unused = () if self.reads_chats else ("against",)
        return {name: value for name, value in super().arguments().items() if name not in unused}

    def fit(self, dataset: Dataset) -> Grounding:
        """Draws the other images, k + 1 of different content that can be read.

        Args:
            dataset: with the images, or their `image_id` for a captioner on regions; preferably images that the model
                was not trained on. Without `image_id` rows are drawn.

        Raises:
            TypeError: not a data set in memory or on disk.
            ValueError: a column is missing, or there are not k + 1 such images.
        """
        from datasets import Dataset

        if self.reads_chats and not self.sees_images:
            raise ValueError(f"{self.model!r} reads words alone, and {self.name} compares images. Name another model.")
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
        from datasets import Image, List

        if IMAGE_ID in dataset.column_names:
            ids = read_column(dataset, IMAGE_ID)
            firsts = np.unique(image_codes(dataset), return_index=True)[1]
            names = [str(value) for value in ids.take(firsts).to_pylist()]
            hashes = np.array([xxh3_64_intdigest(name.encode()) for name in names], np.uint64)
        else:
            firsts = hashes = np.arange(len(dataset), dtype=np.uint64)
        rows = dataset.with_format(None).select_columns(self.columns[0])
        kind = rows.features[self.columns[0]]
        if self.regions is None and isinstance(kind, Image):
            rows = rows.cast_column(self.columns[0], Image(decode=False))
        elif isinstance(kind, List) and isinstance(kind.feature, Image):
            rows = rows.cast_column(self.columns[0], List(Image(decode=False)))
        for place in np.argsort(hash64(hashes, mix64(self.seed)), kind="stable").tolist():
            cell = rows[int(firsts[place])][self.columns[0]]
            for stored in cell if isinstance(cell, list) else [cell]:
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

    def load(self, device: torch.device) -> Any:
        loaded = super().load(device)
        if self.reads_chats:
            return loaded
        if self.against == "none":
            raise ValueError(
                f"`against='none'` was given, but {self.model!r} is a {type(loaded.model).__name__}, which reads no "
                "caption without an image. Leave it out."
            )
        key = self.image_column if self.regions is None else IMAGE_ID
        stored = (
            image if self.regions is not None else {"bytes": image.tobytes(), "path": None}
            for image in self.other_images_
        )
        return loaded._replace(others=[loaded.inputs.read({key: image}) for image in stored])

    def chat_scores(self, passes: ChatPasses) -> np.ndarray:
        """Differences of conversations, float64 (rows,)."""
        own = passes.own().reduced(self.reduction)
        if self.against == "none":
            others = passes.without_images().reduced(self.reduction)
        else:
            others = self._with_others(passes)
        without = [row for row, chat in passes.chats.items() if not chat.images]
        others[without] = np.nan
        return others - own

    def _with_others(self, passes: ChatPasses) -> np.ndarray:
        """The mean loss given other images, float64 (rows,), of rows that have images."""
        total, left = np.zeros(passes.rows), np.full(passes.rows, self.k)
        for image in map(to_rgb, (other.tobytes() for other in self.other_images_)):
            content = image_digest(image)
            rows = [row for row, seen in passes.seen.items() if seen and content not in seen and left[row]]
            if rows:
                total[rows] += passes.with_image(image, rows).reduced(self.reduction)[rows]
                left[rows] -= 1
        count = self.k - left
        return np.divide(total, count, out=np.full(passes.rows, np.nan), where=count > 0)

    def run(
        self, loaded: LoadedCaptioner, tokens: list[list[int]], images: list[dict[str, torch.Tensor]]
    ) -> torch.Tensor:
        """Differences of pairs, float64 (pairs,)."""
        import torch

        allowed = _other_than_own(images, loaded.others)  # (pairs, k + 1)
        chosen = allowed & (allowed.cumsum(axis=1) <= self.k)
        own = super().run(loaded, tokens, images)
        total = torch.zeros_like(own)
        for number, other in enumerate(loaded.others):
            pairs = np.flatnonzero(chosen[:, number]).tolist()
            if pairs:
                lost = super().run(loaded, [tokens[pair] for pair in pairs], [other] * len(pairs))
                total.index_add_(0, torch.tensor(pairs, device=total.device), lost)
        return total / torch.tensor(chosen.sum(axis=1), device=total.device) - own


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
