"""What a model sees of an image: pixels, a vision tower's stored features, or stored regions."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from PIL import Image

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.config import kind_of
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.processors import PixelTable, is_plain, process_image
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.store import RegionStore
from hf_curriculum.data.regions.values import BoxValues, arrange_regions, stack_regions
from hf_curriculum.provenance import read_column
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)


class MissingFeaturesError(ValueError):
    """An image of which a model would see nothing: none stored, no region, or numbers that are not finite."""


_OF_IMAGES = ("pixel_values", "image_features", "region_features", "region_mask", "region_boxes")


class ImageInputs:
    """A model's image inputs, read from rows: the base of `PixelInputs`, `FeatureInputs` and `RegionInputs`.

    Attributes:
        columns: the columns of a row that are read.
        is_random: whether reading a row draws random numbers.
        by_batch: whether `batch` reads several rows faster than `read` does one after the other.
        image_processor: what makes the inputs of new images, to be saved with a model; None where there is none.
    """

    columns: tuple[str, ...] = (IMAGE_ID,)
    is_random: bool = False
    by_batch: bool = False
    image_processor: Any | None = None

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The inputs of one row's image, without the batch dimension."""
        raise NotImplementedError(f"{type(self).__name__} does not define `read`.")

    def draw(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with all that is random decided, to be read later by `without_augmentation()`."""
        return example

    def card_facts(self) -> dict[str, Any] | None:
        """What a model's card says of how images are read; None: nothing."""
        processor = getattr(self, "image_processor", None)
        return processor.card_facts() if hasattr(processor, "card_facts") else None

    def without_augmentation(self) -> ImageInputs:
        """The same inputs for evaluation."""
        return self

    def stack(self, images: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """A batch of what `read` returned."""
        for name in images[0]:
            sizes = sorted({_size(name, image[name]) for image in images})
            if len(sizes) > 1:
                raise ValueError(self._sizes_differ(name, sizes))
        if "region_features" in images[0]:
            return stack_regions(images)
        return {name: torch.stack([image[name] for image in images]) for name in images[0]}

    def batch(self, examples: Iterable[Mapping[str, Any]], first_row: int | None = None) -> dict[str, torch.Tensor]:
        """A batch of rows; errors name the row, counted from `first_row` where that is given."""
        return self.stack(list(_by_row(self.read, examples, first_row)))

    def validate(self, dataset: Dataset, name: str, rows: np.ndarray | None = None) -> None:
        """Looks whether everything that is read by `image_id` is stored for a data set, without reading features."""
        missing, count = self._missing(dataset, rows)
        if any(missing.values()):
            parts = [f"{len(ids):,} {reason}, such as {ids[0]!r}" for reason, ids in missing.items() if ids]
            raise MissingFeaturesError(
                f"Of the {count:,} images of {name}, {'; '.join(parts)}: reading would end at the first. "
                f"Store what is read of all of them, or leave their rows out (`dataset.filter`, by `{IMAGE_ID}`)."
            )

    def _missing(self, dataset: Dataset, rows: np.ndarray | None) -> tuple[dict[str, list[str]], int]:
        """Ids of images of which something is not stored, by what it is; and the number of images."""
        return {}, 0

    def _sizes_differ(self, name: str, sizes: list[tuple[int, ...]]) -> str:
        return (
            f"Images of a batch have `{name}` of the sizes {sizes}, which make no batch: they come from different "
            "detectors or towers. Take all images' features from one."
        )


def size_of(image: Mapping[str, torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """What images must have in common to be stacked: all sizes but the number of regions, which are padded."""
    return tuple(_size(name, part) for name, part in image.items())


def _size(name: str, part: torch.Tensor) -> tuple[int, ...]:
    return tuple(part.shape[name.startswith("region_") :])


def images_for(batch: Mapping[str, torch.Tensor], weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The image inputs of a batch on the device of a model's weight; those that are no integers of its type, too."""
    images = {name: batch[name].to(weight.device) for name in _OF_IMAGES if name in batch}
    return {name: part.to(weight.dtype) if part.is_floating_point() else part for name, part in images.items()}


def _by_row(read: Callable[[Any], Any], examples: Iterable[Any], first_row: int | None) -> Iterator[Any]:
    """What `read` returns for each example; errors name the row."""
    for row, example in enumerate(examples, first_row or 0):
        try:
            yield read(example)
        except ValueError as error:
            if first_row is None:
                raise
            cls = UnreadableImageError if isinstance(error, UnreadableImageError) else ValueError
            raise cls(f"Row {row}: {error}") from error


class PixelInputs(ImageInputs):
    """Images, decoded and processed.

    Args:
        image_processor: any transformers image processor whose output has a fixed size, or one that finds regions
            (its `region_features` are padded). One that only resizes and normalises (`make_image_processor`) is
            replaced by a table of its own numbers, which is twice as fast.
        augment: called with the RGB image before the processor; returns an image or an array (`Augment`).
        image_column: the column of images, in any form `to_rgb` reads.

    Attributes:
        table: what `look_up` makes a processor's numbers of bytes by, (3, 256) float32; None: it does more than that.

    Shapes: `pixel_values` float32 (3, H, W), or what the processor returns, without the batch; of `as_bytes()` uint8.

    Raises:
        UnreadableImageError: an image cannot be decoded (a ValueError too).
        ValueError: bytes are asked for, and the processor is no table.

    Example:
        >>> inputs = PixelInputs(make_image_processor(64))
        >>> inputs.read({"image": Image.new("L", (80, 60))})["pixel_values"].shape
        torch.Size([3, 64, 64])
    """

    def __init__(
        self, image_processor: Any, augment: Callable[[Image.Image], Any] | None = None, image_column: str = IMAGE
    ) -> None:
        self.image_processor = image_processor
        self.augment = augment
        self.image_column = image_column
        self.columns: tuple[str, ...] = (image_column,)
        self._table = PixelTable(image_processor) if is_plain(image_processor) else None
        self._bytes = False
        reduces = self._table is not None and getattr(image_processor, "draft", False)
        self._draft = max(self._table.height, self._table.width) if reduces else None

    @property
    def table(self) -> torch.Tensor | None:
        return None if self._table is None else torch.from_numpy(self._table.table)

    def as_bytes(self) -> PixelInputs:
        """The same inputs before they are normalised: a quarter of the bytes, of which `look_up` makes the numbers."""
        if self._table is None:
            raise ValueError(
                "Images cannot be sent as bytes (`uint8_images=True`): the image processor "
                f"({kind_of(self.image_processor)}) does more than resize to a fixed size and normalise, so that no "
                "table turns bytes into its numbers. Use `make_image_processor`, or leave it out."
            )
        plain = copy.copy(self)
        plain._bytes = True
        return plain

    @property
    def is_random(self) -> bool:
        """Whether it has an `augment`."""
        return self.augment is not None

    def without_augmentation(self) -> PixelInputs:
        """The same inputs with images as they are."""
        plain = copy.copy(self)
        plain.augment = None
        return plain

    def validate(self, dataset: Dataset, name: str, rows: np.ndarray | None = None) -> None:
        """Looks whether a processor with `draft=True` is given files, which can be decoded at a smaller scale."""
        if self._draft is not None and getattr(dataset.features.get(self.image_column), "decode", False):
            raise ValueError(
                f"The image processor has `draft=True`, and the column {self.image_column!r} of {name} decodes its "
                "images whole, so that nothing is saved. Let it hand out files, `dataset.cast_column("
                f"{self.image_column!r}, datasets.Image(decode=False))`, or leave `draft` out."
            )

    def draw(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with its image augmented."""
        return example if self.augment is None else {**example, self.image_column: self._open(example)}

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The row's image, processed."""
        image = self._open(example)
        if self._table is not None:
            return {"pixel_values": self._table.resize(image) if self._bytes else self._table(image)}
        found = process_image(self.image_processor, image)
        mask = found.pop("region_mask", None)
        return found if mask is None else {name: part[mask != 0] for name, part in found.items()}

    def batch(self, examples: Iterable[Mapping[str, Any]], first_row: int | None = None) -> dict[str, torch.Tensor]:
        """A batch of rows, in one call of a processor that is no table."""
        if self._table is not None:
            return super().batch(examples, first_row)
        return dict(self.image_processor(images=self.images(examples, first_row), return_tensors="pt"))

    def images(self, examples: Iterable[Mapping[str, Any]], first_row: int | None = None) -> list[Image.Image]:
        """The rows' images, upright and in RGB, not processed; errors name the row as `batch`'s do."""
        return list(_by_row(self._open, examples, first_row))

    def _open(self, example: Mapping[str, Any]) -> Image.Image:
        name = f"The image `{example[IMAGE_ID]}`" if IMAGE_ID in example else None
        # Crops are drawn in the whole image, so that they are the same with any processor.
        draft = self._draft if self.augment is None else None
        try:
            image = to_rgb(example[self.image_column], draft=draft)
        except UnreadableImageError as error:
            if name is None:
                raise
            raise UnreadableImageError(f"{name}: {error}") from error
        return image if self.augment is None else to_rgb(self.augment(image), name="What `augment` returned")

    def _sizes_differ(self, name: str, sizes: list[tuple[int, ...]]) -> str:
        return (
            f"The image processor ({type(self.image_processor).__name__}) returned images of the sizes {sizes}, "
            "which make no batch. Give it a fixed height and width, as `make_image_processor(224)` does."
        )


class FeatureInputs(ImageInputs):
    """What a frozen vision tower makes of images, read by `image_id`.

    Args:
        vision_features: image id -> features (`cache_vision_features`).

    Shapes: `image_features` (image tokens, vision width), as they are stored.
    """

    def __init__(self, vision_features: Mapping[str, np.ndarray]) -> None:
        self.store = vision_features

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The features of the row's image."""
        # Copied out of the file, so that a worker reads it and not the main process.
        return {"image_features": torch.from_numpy(np.array(_stored(self.store, example[IMAGE_ID])))}

    def _missing(self, dataset: Dataset, rows: np.ndarray | None) -> tuple[dict[str, list[str]], int]:
        ids = _distinct_ids(dataset, rows)
        return _not_in(self.store, ids), len(ids)

    def _sizes_differ(self, name: str, sizes: list[tuple[int, ...]]) -> str:
        return (
            f"Images of a batch have stored features of the sizes {sizes}, which make no batch: models that read "
            "`image_features` have no mask for them. Store them at one image size, or pack them as regions "
            "(`regions=`), which are padded."
        )


class RegionInputs(ImageInputs):
    """Features of regions that were found beforehand, read by `image_id`.

    Args:
        store: image id -> `Regions` (`open_regions`).
        box_values, normalise, by_area, boxes, max_regions: see `arrange_regions`.

    Shapes: `region_features` float32 (regions, dims), and with `boxes` `region_boxes` float32 (regions, 4): left, top,
        right, bottom as shares of the image's sides.

    Raises:
        ValueError: an option out of range, regions without features, or without boxes or the image's size where they
            are wanted.
        MissingFeaturesError: an image that is not in the store, or has no region, or features that are not finite (a
            ValueError too).

    Source: Anderson et al. 2018: features of 10 to 100 regions of an image.

    Example:
        >>> from hf_curriculum.data.regions.base import Regions
        >>> store = {"9": Regions("9", boxes=np.float32([[0, 0, 50, 20]]), width=100, height=100,
        ...                       features=np.ones((1, 3), np.float32))}
        >>> RegionInputs(store, box_values=True).read({"image_id": "9"})["region_features"]
        tensor([[1.0000, 1.0000, 1.0000, 0.0000, 0.0000, 0.5000, 0.2000, 0.1000]])
    """

    @validate_arguments
    def __init__(
        self,
        store: Mapping[str, Regions],
        box_values: BoxValues = False,
        normalise: bool = False,
        by_area: bool = False,
        boxes: bool = False,
        max_regions: int | None = None,
    ) -> None:
        self.store = store
        self.options: dict[str, Any] = {
            "box_values": box_values,
            "normalise": normalise,
            "by_area": by_area,
            "boxes": boxes,
            "max_regions": max_regions,
        }
        # Before a run: options out of range.
        arrange_regions(_BLANK, torch.zeros(1, 1), **self.options)
        # Nothing but features is then read of a store.
        wanted = box_values or by_area or boxes or max_regions
        self._features_alone: bool = isinstance(store, RegionStore) and not wanted

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"RegionInputs({_name(self.store)}, {options})"

    @classmethod
    def for_model(cls, store: Mapping[str, Regions], image_processor: Any | None, **options: Any) -> RegionInputs:
        """The inputs of a trained model, with the options that the `RegionProcessor` saved with it keeps.

        Raises:
            ValueError: the store was made by another detector than the features that the model was trained on.
        """
        from hf_curriculum.data.regions.processor import RegionProcessor

        if isinstance(image_processor, RegionProcessor):
            _validate_detector(store, image_processor)
            options = {name: getattr(image_processor, name) for name in _KEPT} | options
        return cls(store, **options)

    @property
    def image_processor(self) -> Any:
        """A `RegionProcessor` with these options and, where it is known, the detector that made the features."""
        from hf_curriculum.data.regions.processor import RegionProcessor

        if not isinstance(self.store, RegionStore):
            return RegionProcessor(made_by=_name(self.store), **{name: self.options[name] for name in _KEPT})
        made = RegionProcessor.from_store(self.store, **self.options)
        made.made_by = self.store.facts["made_by"] or made.made_by
        return made

    def card_facts(self) -> dict[str, Any] | None:
        """The view of the regions, and of a store how many there are and what made them."""
        facts = super().card_facts()
        if facts is not None and isinstance(self.store, RegionStore):
            about = self.store.facts
            made = {"made_by": about["made_by"], "standardised": self.store.moments is not None}
            made = {name: value for name, value in made.items() if value not in (None, False)}
            facts |= {"regions_per_image": round(about["regions"] / about["images"], 1), **made}
        return facts

    @property
    def dims(self) -> int:
        """The width of `region_features`, box values included: a model's `region_feature_size`.

        Raises:
            ValueError: the store holds no region, or regions without features.
        """
        if isinstance(self.store, RegionStore):
            stored = self.store.facts["dims"]
        else:
            found = next((regions for regions in self.store.values() if len(regions)), None)
            stored = None if found is None else self._features_of(found).shape[-1]
        if not stored:
            raise ValueError(
                f"{_name(self.store)} holds no region of any of its {len(self.store):,} images, so the width of their "
                "features is not known. Find regions with a lower threshold, or name another store."
            )
        return arrange_regions(_BLANK, torch.zeros(1, stored), **self.options)["region_features"].shape[-1]

    @property
    def by_batch(self) -> bool:
        """Whether the features of a batch are read into one array."""
        return self._features_alone

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The regions of the row's image."""
        image_id = example[IMAGE_ID]
        if isinstance(self.store, RegionStore):
            features = _stored(self.store, image_id, "features")
            regions = _BLANK if self._features_alone else self.store.describe(image_id)
        else:
            regions = _stored(self.store, image_id)
            features = self._features_of(regions)
        self._validate_features(features, image_id)
        return arrange_regions(regions, features, **self.options)

    def batch(self, examples: Iterable[Mapping[str, Any]], first_row: int | None = None) -> dict[str, torch.Tensor]:
        """A batch of rows; of a store that is read for features alone, without a copy of each image between."""
        if not self.by_batch:
            return super().batch(examples, first_row)
        ids = [example[IMAGE_ID] for example in examples]
        features, mask = _stored(self.store, ids, "read_batch")
        if not (mask.any(1).all() and _all_finite(features)):
            for image_id, part, own in zip(ids, features, mask, strict=True):
                self._validate_features(part[own != 0], image_id)
        if self.options["normalise"]:
            features = torch.nn.functional.normalize(features, dim=2)
        return {"region_features": features, "region_mask": mask}

    def _missing(self, dataset: Dataset, rows: np.ndarray | None) -> tuple[dict[str, list[str]], int]:
        ids = _distinct_ids(dataset, rows)
        if not isinstance(self.store, RegionStore):
            return _not_in(self.store, ids), len(ids)
        boxes = any(self.options[name] for name in ("box_values", "by_area", "boxes"))
        return self.store.missing(ids, boxes=boxes), len(ids)

    def _features_of(self, regions: Regions) -> torch.Tensor:
        """The features of an image's regions, float32 (regions, dims)."""
        if regions.features is None and len(regions):
            raise ValueError(
                f"The regions of the image {regions.image_id!r} in {_name(self.store)} have no features, which a "
                "model reads. Take a file that holds features."
            )
        return torch.from_numpy(np.array([] if regions.features is None else regions.features, dtype=np.float32))

    def _validate_features(self, features: torch.Tensor, image_id: Any) -> None:
        """Raises where a model would see nothing of an image, or numbers that are none."""
        where = f"of the image {image_id!r} in {_name(self.store)}"
        if not len(features):
            raise MissingFeaturesError(
                f"There is no region {where}, so a model would see nothing. Drop the image's rows (`dataset.filter`), "
                "or find regions with a lower threshold."
            )
        if not _all_finite(features):
            raise MissingFeaturesError(
                f"The features {where} are not all finite: a model's loss would be NaN from this image on. Find its "
                "regions again, or drop its rows."
            )


_KEPT = ("box_values", "normalise", "by_area", "boxes")
"""Options that a `RegionProcessor` keeps as they are."""
_BLANK = Regions("", boxes=np.zeros((1, 4), np.float32), normalised=True)
"""Stands for what is not looked at."""


def _validate_detector(store: Mapping[str, Regions], processor: Any) -> None:
    """Raises where a store's features are known to be others than a model was trained on; warns if it is not known."""
    if not isinstance(store, RegionStore):
        return
    made_by, trained_on = store.facts["made_by"], processor.made_by
    moments, own = store.moments, None if processor.mean is None else torch.tensor([processor.mean, processor.std])
    if made_by is None and not isinstance(trained_on, str):
        logger.warning("It is not known what made the features in %s; the model has its own detector.", _name(store))
    is_other = None not in (made_by, trained_on) and made_by != trained_on
    is_scaled = (moments is None) != (own is None) or (own is not None and not torch.allclose(moments, own))
    if is_other or is_scaled:
        found, wanted = ("" if scale is not None else "not " for scale in (moments, own))
        numbers = "" if None in (moments, own) else " by other numbers"
        remedy = (
            "Name the store that it was trained on, or another of that detector."
            if processor.detector is None
            else "Find the regions with the model's own detector: "
            "`hf-curriculum features IMAGES STORE --model MODEL`, or "
            "`extract_regions(images, processor.image_processor, store)`."
        )
        raise ValueError(
            f"The features in {_name(store)} were made by {made_by or 'an unknown detector'}, {found}standardised, "
            f"and the model was trained on those of {trained_on or 'its own'}, {wanted}standardised{numbers}: others "
            f"mean nothing to it. {remedy}"
        )


def _all_finite(features: torch.Tensor) -> bool:
    # A sum is quicker to look at; it may overflow where no number is infinite.
    return math.isfinite(float(features.sum())) or bool(features.isfinite().all())


def _distinct_ids(dataset: Dataset, rows: np.ndarray | None) -> list[str]:
    """The `image_id` of a data set's images, or of those of some rows."""
    column = read_column(dataset, IMAGE_ID)
    return (column if rows is None else column.take(pa.array(np.asarray(rows)))).unique().to_pylist()


def _not_in(store: Mapping[str, Any], ids: list[str]) -> dict[str, list[str]]:
    return {f"are not in {_name(store)}": [image_id for image_id in ids if image_id not in store]}


def _stored(store: Mapping[str, Any], wanted: Any, method: str = "__getitem__") -> Any:
    """What a store has of an image, or of several."""
    try:
        return getattr(store, method)(wanted)
    except KeyError as error:
        ids = wanted if isinstance(wanted, list) else [wanted]
        image_id = next((image_id for image_id in ids if image_id not in store), ids[0])
        raise MissingFeaturesError(
            f"{_name(store)} has nothing of the image {image_id!r} (`{IMAGE_ID}`). It was written from other images, "
            "or with a prefix before their ids. Write it from all the data that is trained and evaluated on, or drop "
            f"such rows: `dataset.filter(lambda row: row['{IMAGE_ID}'] in store)`."
        ) from error


def _name(store: Mapping[str, Any]) -> str:
    """A store as errors call it: its class, and its path where it has one."""
    path = getattr(store, "path", None)
    return type(store).__name__ if path is None else f"{type(store).__name__}({str(path)!r})"
