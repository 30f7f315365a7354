"""What a model sees of an image: pixels, a vision tower's stored features, or stored regions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.processors import PixelTable, is_plain, process_image
from hf_curriculum.data.regions.base import Regions, RegionSource, features_of


class MissingFeaturesError(ValueError):
    """An image of which a model would see nothing: none stored, no region, or numbers that are not finite."""


_OF_IMAGES = ("pixel_values", "image_features", "region_features", "region_mask", "region_boxes")


class ImageInputs:
    """A model's image inputs, read from rows: the base of `PixelInputs`, `FeatureInputs` and `RegionInputs`.

    Attributes:
        columns: the columns of a row that are read.
        is_random: whether reading a row draws random numbers.
    """

    columns: tuple[str, ...] = (IMAGE_ID,)
    is_random: bool = False

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The inputs of one row's image, without the batch dimension."""
        raise NotImplementedError(f"{type(self).__name__} does not define `read`.")

    def draw(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with all that is random decided, to be read later by `without_augmentation()`."""
        return example

    def without_augmentation(self) -> ImageInputs:
        """The same inputs for evaluation."""
        return self

    def stack(self, images: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """A batch of what `read` returned.

        Shapes: those of `read` with the batch before them. Regions are padded with zeros to the most of an image,
            (images, regions, ...), and `region_mask`, int64 (images, regions), is 1 for a region.

        Raises:
            ValueError: images or features of different sizes, which make no batch.
        """
        batch = {}
        for name in images[0]:
            parts = [image[name] for image in images]
            ragged = name.startswith("region_")
            sizes = sorted({tuple(part.shape[ragged:]) for part in parts})
            if len(sizes) > 1:
                raise ValueError(self._sizes_differ(name, sizes))
            batch[name] = pad_sequence(parts, batch_first=True) if ragged else torch.stack(parts)
        if "region_features" in batch and "region_mask" not in batch:
            counts = torch.tensor([len(image["region_features"]) for image in images])
            batch["region_mask"] = (torch.arange(batch["region_features"].shape[1]) < counts[:, None]).long()
        return batch

    def batch(self, examples: Iterable[Mapping[str, Any]], first_row: int = 0) -> dict[str, torch.Tensor]:
        """A batch of rows; errors name the row, counted from `first_row`."""
        return self.stack(list(_by_row(self.read, examples, first_row)))

    def _sizes_differ(self, name: str, sizes: list[tuple[int, ...]]) -> str:
        return (
            f"Images of a batch have `{name}` of the sizes {sizes}, which make no batch: they come from different "
            "detectors or towers. Take all images' features from one."
        )


def size_of(image: Mapping[str, torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """What images must have in common to be stacked: all sizes but the number of regions, which are padded."""
    return tuple(tuple(part.shape[name.startswith("region_") :]) for name, part in image.items())


def images_for(batch: Mapping[str, torch.Tensor], weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The image inputs of a batch on the device of a model's weight; those that are no integers of its type, too."""
    images = {name: batch[name].to(weight.device) for name in _OF_IMAGES if name in batch}
    return {name: part.to(weight.dtype) if part.is_floating_point() else part for name, part in images.items()}


def _by_row(read: Callable[[Any], Any], examples: Iterable[Any], first_row: int) -> Iterator[Any]:
    """What `read` returns for each example; errors name the row."""
    for row, example in enumerate(examples, first_row):
        try:
            yield read(example)
        except UnreadableImageError as error:
            raise UnreadableImageError(f"Row {row}: {error}") from error
        except ValueError as error:
            raise ValueError(f"Row {row}: {error}") from error


class PixelInputs(ImageInputs):
    """Images, decoded and processed.

    Args:
        image_processor: any transformers image processor whose output has a fixed size, or one that finds regions
            (its `region_features` are padded). One that only resizes and normalises with Pillow
            (`make_image_processor`) is replaced by a table of its own numbers, which is twice as fast.
        augment: called with the RGB image before the processor; returns an image or an array (`Augment`).
        image_column: the column of images, in any form `to_rgb` reads.

    Shapes: `pixel_values` float32 (3, H, W), or what the processor returns, without the batch.

    Raises:
        UnreadableImageError: an image cannot be decoded (a ValueError too).

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
        self.columns = (image_column,)
        self._table = PixelTable(image_processor) if is_plain(image_processor) else None

    @property
    def is_random(self) -> bool:
        """Whether it has an `augment`."""
        return self.augment is not None

    def without_augmentation(self) -> PixelInputs:
        """The same inputs with images as they are."""
        plain = copy.copy(self)
        plain.augment = None
        return plain

    def draw(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with its image augmented."""
        return example if self.augment is None else {**example, self.image_column: self._open(example)}

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The row's image, processed."""
        image = self._open(example)
        return {"pixel_values": self._table(image)} if self._table else process_image(self.image_processor, image)

    def batch(self, examples: Iterable[Mapping[str, Any]], first_row: int = 0) -> dict[str, torch.Tensor]:
        """A batch of rows, in one call of a processor that is no table; errors name the row."""
        if self._table is not None:
            return super().batch(examples, first_row)
        images = list(_by_row(self._open, examples, first_row))
        return dict(self.image_processor(images=images, return_tensors="pt"))

    def _open(self, example: Mapping[str, Any]) -> Image.Image:
        name = f"The image `{example[IMAGE_ID]}`" if IMAGE_ID in example else None
        try:
            image = to_rgb(example[self.image_column])
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

    Raises:
        MissingFeaturesError: an image without features (a ValueError too).

    Example:
        >>> FeatureInputs({"9": np.zeros((5, 8))}).read({"image_id": "9"})["image_features"].shape
        torch.Size([5, 8])
    """

    def __init__(self, vision_features: Mapping[str, np.ndarray]) -> None:
        self.store = vision_features

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The features of the row's image."""
        # Copied out of the file, so that a worker reads it and not the main process.
        return {"image_features": torch.from_numpy(np.array(_stored(self.store, example[IMAGE_ID])))}

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
        box_values: appends five numbers to each region's: left and right as shares of the image's width, top and
            bottom as shares of its height (left, top, right, bottom), and the box's share of the area.
        normalise: divides each region's features by their length, before box values are appended.
        by_area: the largest region first; else as they are stored.
        boxes: also gives `region_boxes`.
        max_regions: of an image with more, those of the highest confidence, or the first where there is none.

    Shapes: `region_features` float32 (regions, dims), and with `boxes` `region_boxes` float32 (regions, 4): left, top,
        right, bottom as shares of the image's sides.

    Raises:
        ValueError: `max_regions` below 1, regions without features, or without boxes or the image's size where they
            are wanted.
        MissingFeaturesError: an image that is not in the store, or has no region, or features that are not finite (a
            ValueError too).

    Source: Anderson et al. 2018 (features of 10 to 100 boxes); box values, length and order as the reference code of
        Luo et al. 2018 has them (`use_box`, `norm_att_feat`).

    Example:
        >>> from hf_curriculum.data.regions.base import Regions
        >>> store = {"9": Regions("9", boxes=np.float32([[0, 0, 50, 20]]), width=100, height=100,
        ...                       features=np.ones((1, 3), np.float32))}
        >>> RegionInputs(store, box_values=True).read({"image_id": "9"})["region_features"]
        tensor([[1.0000, 1.0000, 1.0000, 0.0000, 0.0000, 0.5000, 0.2000, 0.1000]])
    """

    def __init__(
        self,
        store: Mapping[str, Regions],
        box_values: bool = False,
        normalise: bool = False,
        by_area: bool = False,
        boxes: bool = False,
        max_regions: int | None = None,
    ) -> None:
        if max_regions is not None and max_regions < 1:
            raise ValueError(f"`max_regions={max_regions}` was given, which leaves no region to see. Pass 1 or more.")
        self.store = store
        self.box_values = box_values
        self.normalise = normalise
        self.by_area = by_area
        self.boxes = boxes
        self.max_regions = max_regions

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name != "store")
        return f"RegionInputs({_name(self.store)}, {options})"

    def read(self, example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The regions of the row's image."""
        image_id = example[IMAGE_ID]
        where = f"of the image {image_id!r} in {_name(self.store)}"
        # Features alone need not be read with all else that a store knows of the regions.
        alone = not (self.box_values or self.by_area or self.boxes or self.max_regions)
        if alone and isinstance(self.store, RegionSource):
            regions, features = None, _stored(self.store, image_id, "features")
        else:
            regions = _stored(self.store, image_id)
            features = features_of(regions, _name(self.store))
        if not len(features):
            raise MissingFeaturesError(
                f"There is no region {where}, so a model would see nothing. Drop the image's rows (`dataset.filter`), "
                "or find regions with a lower threshold."
            )
        # A sum is quicker to look at; it may overflow where no number is infinite.
        if not math.isfinite(float(features.sum())) and not features.isfinite().all():
            raise MissingFeaturesError(
                f"The features {where} are not all finite: a model's loss would be NaN from this image on. Find its "
                "regions again, or drop its rows."
            )
        if self.normalise:
            features = torch.nn.functional.normalize(features, dim=1)
        return {"region_features": features} if alone else self._arranged(features, regions, where)

    def _arranged(self, features: torch.Tensor, regions: Regions, where: str) -> dict[str, torch.Tensor]:
        """The features (regions, dims) of the chosen regions in their order, with box values, and the boxes."""
        order = np.arange(len(features))
        if self.max_regions is not None and len(order) > self.max_regions:
            confidence = -order if regions.confidence is None else regions.confidence
            order = np.sort(np.argsort(-confidence, kind="stable")[: self.max_regions])
        if not (self.box_values or self.by_area or self.boxes):
            return {"region_features": features[order]}
        shares = _box_shares(regions, where)  # (regions, 4)
        area = (shares[:, 2] - shares[:, 0]) * (shares[:, 3] - shares[:, 1])
        if self.by_area:
            order = order[np.argsort(-area[order].numpy(), kind="stable")]
        if self.box_values:
            features = torch.cat([features, shares, area[:, None]], dim=1)
        found = {"region_features": features[order]}
        return found | {"region_boxes": shares[order]} if self.boxes else found


def _box_shares(regions: Regions, where: str) -> torch.Tensor:
    """The boxes as shares of the image's sides, float32 (regions, 4)."""
    if regions.boxes is None:
        raise ValueError(f"The regions {where} have no boxes, whose values are wanted. Take a file that holds boxes.")
    boxes = torch.from_numpy(np.array(regions.boxes, dtype=np.float32))
    if regions.normalised:
        return boxes
    if not regions.width or not regions.height:
        raise ValueError(
            f"The width and height {where} are not known, and box values are shares of them. Take a file that holds "
            "the images' sizes (for VinVL's the `*.hw.tsv` beside it), or leave box values and order by area out."
        )
    return boxes / torch.tensor([regions.width, regions.height] * 2, dtype=torch.float32)


def _stored(store: Mapping[str, Any], image_id: Any, method: str = "__getitem__") -> Any:
    """What a store has of an image."""
    try:
        return getattr(store, method)(image_id)
    except KeyError as error:
        raise MissingFeaturesError(
            f"{_name(store)} has nothing of the image {image_id!r} (`{IMAGE_ID}`). It was written from other images, "
            "or names them in another way. Write it from all the data that is trained and evaluated on, or drop such "
            f"rows: `dataset.filter(lambda row: row['{IMAGE_ID}'] in store)`."
        ) from error


def _name(store: Mapping[str, Any]) -> str:
    """A store as errors call it: its class, and its path where it has one."""
    path = getattr(store, "path", None)
    return type(store).__name__ if path is None else f"{type(store).__name__}({str(path)!r})"
