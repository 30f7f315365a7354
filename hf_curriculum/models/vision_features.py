"""A frozen vision tower's features, computed once and read in every epoch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import digest
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.data.image_files import image_digests, keep_digests
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.regions.store import id_key
from hf_curriculum.files import read_json, sole_writer, write_atomically
from hf_curriculum.models.base import evaluation_mode
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import warn_of_transform

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_FEATURES, _KEYS, _FACTS = "features.npy", "keys.npy", "facts.json"
_SAVE_EVERY = 64  # batches between two updates of `facts.json`


class VisionFeatures:
    """The folder that `cache_vision_features` wrote: features by `image_id`, read from disk as they are needed.

    It holds 16 bytes per image in memory, and worker processes share the rest through the operating system.

    Args:
        path: the folder.

    Shapes: `features[image_id]` is float16, (image tokens, vision width).

    Raises:
        FileNotFoundError: there is no such folder, or it was never finished.
        KeyError: an `image_id` that was not encoded.

    Example:
        >>> features = VisionFeatures("features")  # doctest: +SKIP
        >>> features["000000397133"].shape  # doctest: +SKIP
        (197, 768)
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self.facts: dict[str, Any] | None = _read_facts(self.path)
        if self.facts is None or self.facts["done"] < self.facts["images"]:
            state = "is no folder of vision features"
            if self.facts is not None:
                state = f"has {self.facts['done']:,} images of {self.facts['images']:,}"
            raise FileNotFoundError(
                f"{self.path} {state}. Features are read from a folder that `cache_vision_features` has finished: "
                "call it with the same arguments, and it continues."
            )
        self._keys, self._positions = np.load(self.path / _KEYS)  # (images,) each, sorted by key
        self._features = np.load(self.path / _FEATURES, mmap_mode="r")  # (images, image tokens, vision width)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, image_id: object) -> bool:
        return self._position(image_id) is not None

    def __getitem__(self, image_id: str) -> np.ndarray:
        position = self._position(image_id)
        if position is None:
            raise KeyError(
                f"{self.path} has no features of the image {image_id!r}. It was written from other data: call "
                "`cache_vision_features` with all the data that is trained and evaluated on."
            )
        return self._features[position]

    def __reduce__(self) -> tuple[type[VisionFeatures], tuple[Path]]:
        return VisionFeatures, (self.path,)  # workers open the files for themselves

    def _position(self, image_id: object) -> int | None:
        key = id_key(image_id)
        index = int(np.searchsorted(self._keys, key))
        return int(self._positions[index]) if index < len(self._keys) and self._keys[index] == key else None


@validate_arguments
def cache_vision_features(
    model: PreTrainedModel,
    dataset: Dataset | DatasetDict,
    path: str | Path,
    image_processor: Any,
    *,
    batch_size: int = 32,
    image_column: str = IMAGE,
    progress: bool = True,
    num_workers: int = 0,
) -> VisionFeatures:
    """Runs each image through the frozen vision tower once and stores the features, as float16, in a folder.

    A folder that is there already is opened, if tower, image processor and images are the same, and finished if it
    was not. An image takes 2 bytes · image tokens · vision width: 303 kB at 224 pixels with a ViT-B/16. With several
    processes let the main one come first (`accelerate.PartialState().main_process_first()`).

    Args:
        model: a captioner (Flamingo, GIT) or another model with a vision tower, or a vision model itself: any whose
            `last_hidden_state` of `pixel_values` is (images, image tokens, vision width). It is not changed, and is
            not to be trained as long as the features are used.
        dataset: images and their `image_id`, rows of the same id once; a `DatasetDict` to have all splits in one.
        path: the folder to write.
        image_processor: what would process the images in training (`make_image_processor`); no augmentation.
        batch_size: images that run through the tower at once.
        image_column: the column of images, in any form `to_rgb` reads.
        progress: show a bar when it takes more than two seconds.
        num_workers: processes that read, decode and process images, each two batches ahead, while the tower computes;
            0 does so in turns with it. The features are the same.

    Returns:
        The features, for `CaptionCollator(vision_features=...)`.

    Raises:
        ValueError: a column is missing, a row has no `image_id`, the folder was made by another tower, another
            processor, of other images or ones that have changed since, `batch_size` below 1, `num_workers` below 0,
            features beyond float16, a model without a vision tower, or whose features have another shape.
        UnreadableImageError: an image cannot be decoded (a ValueError too).
        RuntimeError: another process writes the folder.

    Example:
        >>> features = cache_vision_features(model, train, "features", processor)  # doctest: +SKIP
        >>> collator = CaptionCollator(tokenizer, None, vision_features=features, prefix="<image> ")  # doctest: +SKIP
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size={batch_size}` was given, which encodes nothing. Pass 1 or more.")
    if num_workers < 0:
        raise ValueError(f"`num_workers={num_workers}` was given. Pass the number of processes, or 0 for none.")
    tower = _vision_tower(model)
    splits = list(dataset.values()) if isinstance(dataset, Mapping) else [dataset]
    warn_of_transform(splits)
    keys, sources = _distinct(splits, image_column)
    folder = Path(path)
    wanted = {
        "images": keys.shape[1],
        "set of images": digest(keys.tobytes(), size=16),
        "tower": _digest(tower),
        "image_processor": json.loads(json.dumps(image_processor.to_dict(), default=str)),
    }
    facts = _read_facts(folder)
    if facts is not None and facts["done"] == facts["images"] and not (folder / ".lock").exists():
        _validate_made_of(facts, wanted, folder)
        keep_digests(folder, image_digests(splits, image_column, sources), facts["images"])
        return VisionFeatures(folder)
    with sole_writer(folder, folder / ".lock"):
        facts = _read_facts(folder) or {**wanted, "done": 0}
        _validate_made_of(facts, wanted, folder)
        keep_digests(folder, image_digests(splits, image_column, sources), facts["done"])
        np.save(folder / _KEYS, keys)
        data = [split.with_format(None).select_columns(image_column) for split in splits]
        pixels = _Pixels(data, sources[facts["done"] :], image_processor, image_column)
        loader = DataLoader(
            pixels,
            batch_size,
            num_workers=num_workers,
            collate_fn=pixels.collate,
            generator=torch.Generator(),  # the caller's is left as it is
        )
        with evaluation_mode(tower), torch.no_grad():
            _encode(tower, loader, sources, folder, facts, progress)
    return VisionFeatures(folder)


class _Pixels(torch.utils.data.Dataset):
    """Processed images of rows, split and row of each, in batches; of a batch with an unreadable one, the error."""

    def __init__(self, data: list[Dataset], sources: np.ndarray, image_processor: Any, image_column: str) -> None:
        self.data, self.sources, self.image_processor = data, sources, image_processor
        self.image_column = image_column

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Any:
        split, row = self.sources[index]
        try:
            return to_rgb(self.data[split][int(row)][self.image_column], name=f"The image of row {row}")
        except UnreadableImageError as error:
            return error

    def collate(self, images: list[Any]) -> Any:
        """(batch, 3, height, width), or an error, which the main process raises."""
        errors = [image for image in images if isinstance(image, UnreadableImageError)]
        return errors[0] if errors else self.image_processor(images=images, return_tensors="pt")["pixel_values"]


def _vision_tower(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that encodes images: its vision tower, or itself."""
    tower = model.get_encoder(modality="image")
    arguments = signature(tower.forward).parameters
    if "pixel_values" not in arguments or "input_ids" in arguments:
        raise ValueError(
            f"A {type(model).__name__} has no vision tower that encodes images alone. Pass a vision model, such as a "
            "ViT, or the vision part of a model, such as `clip.vision_model`."
        )
    return tower


def _encode(
    tower: PreTrainedModel,
    loader: DataLoader,
    sources: np.ndarray,
    folder: Path,
    facts: dict[str, Any],
    progress: bool,
) -> None:
    """Writes the features from image `facts["done"]` on."""
    weight = next(tower.parameters())
    stored = np.load(folder / _FEATURES, mmap_mode="r+") if facts["done"] else None
    stop = facts["done"]
    with tqdm(
        total=len(sources), initial=facts["done"], desc="features", unit="image", delay=2, disable=not progress
    ) as bar:
        for number, pixels in enumerate(loader, 1):  # (b, 3, height, width)
            if isinstance(pixels, UnreadableImageError):
                raise pixels
            start, stop = stop, stop + len(pixels)
            states = tower(pixel_values=pixels.to(weight.device, weight.dtype)).last_hidden_state
            if states.ndim != 3:
                raise ValueError(
                    f"The features of a {type(tower).__name__} have the shape {tuple(states.shape)}, but captioners "
                    "read (images, image tokens, vision width). Maps of a convolutional network are read as regions: "
                    "pack them (`extract_regions`)."
                )
            features = states.to(torch.float16).cpu().numpy()
            if not np.isfinite(features).all():
                raise ValueError(
                    f"The vision tower's features of the images of rows {sources[start:stop, 1].tolist()} are not all "
                    "within float16's ±65,504. Train on images instead, and look at the tower's weights."
                )
            if stored is None:
                shape = (len(sources), *features.shape[1:])
                stored = np.lib.format.open_memmap(folder / _FEATURES, mode="w+", dtype=np.float16, shape=shape)
            stored[start:stop] = features
            bar.update(len(pixels))
            if number % _SAVE_EVERY == 0 or stop == len(sources):
                stored.flush()
                facts["done"] = stop
                _write_facts(folder, facts)


def _distinct(splits: Iterable[Dataset], image_column: str) -> tuple[np.ndarray, np.ndarray]:
    """Keys of all images, sorted, and their positions, (2, images); split and row of each, (images, 2)."""
    keys, sources, splits = [], [], list(splits)
    for number, split in enumerate(splits):
        require_columns(
            split.column_names,
            [image_column, IMAGE_ID],
            reader="Features are computed from images and found again by their ids.",
            remedy="Pass `image_column=`, or load with `load_captioned`, which gives ids.",
        )
        ids = split.with_format(None).select_columns(IMAGE_ID)[:][IMAGE_ID]
        if None in ids:
            raise ValueError(
                f"{ids.count(None):,} of {len(ids):,} rows have no `{IMAGE_ID}`. Features are found again by it: give "
                "each image an id."
            )
        keys.append(np.fromiter((id_key(image_id) for image_id in ids), dtype=np.uint64))
        sources.append(np.stack([np.full(len(ids), number), np.arange(len(ids))], axis=1))
    validate_image_ids(*splits, column=image_column)
    distinct, first = np.unique(np.concatenate(keys), return_index=True)
    positions = np.argsort(np.argsort(first)).astype(np.uint64)
    return np.stack([distinct, positions]), np.concatenate(sources)[np.sort(first)]


def _digest(tower: PreTrainedModel) -> str:
    """A digest of the tower's weights without the unused pooler."""
    found = hashlib.blake2b(digest_size=16)
    for name, weight in sorted(tower.state_dict().items()):
        if "pooler" not in name:
            found.update(name.encode())
            found.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _read_facts(folder: Path) -> dict[str, Any] | None:
    file, needs = folder / _FACTS, ("images", "set of images", "tower", "image_processor", "done")
    return read_json(file, "Delete the folder, and write it again.", needs) if file.is_file() else None


def _validate_made_of(facts: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Refuses features of another tower, processor or set of images."""
    differing = [name for name, value in wanted.items() if facts[name] != value]
    if differing:
        raise ValueError(
            f"{folder} holds vision features of another {' and another '.join(differing)}. They would be silently "
            "wrong here. Name another folder, or delete this one."
        )


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Renames a temporary file, so that a kill leaves the old one or the new one."""
    write_atomically(folder / _FACTS, json.dumps(facts, indent=1, sort_keys=True))
