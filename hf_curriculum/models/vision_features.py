"""A frozen vision tower's features, computed once and read in every epoch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
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
from hf_curriculum.data.array_files import ArrayFile, ArrayWriter, other_content, row_digest
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.data.image_files import image_digests
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.regions.store import id_key, validate_same_images
from hf_curriculum.files import read_sealed, refuse_other_kind, resolved, sole_writer, write_sealed
from hf_curriculum.models.base import evaluation_mode
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import warn_of_transform

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_FEATURES, _DIGESTS, _KEYS, _FACTS = "features.npy", "digests.npy", "keys.npy", "vision_features.json"
_IMAGE_DIGESTS, _FORMAT = "image_digests.npy", 2
_REMEDY = "Delete the folder, and write it again."
_SAVE_EVERY = 64  # batches between two updates of `facts.json`


class VisionFeatures:
    """The folder that `cache_vision_features` wrote: features by `image_id`, read from disk as they are needed.

    It holds 24 bytes per image in memory. Worker processes read the rest for themselves, and an image's features are
    compared with what was written whenever they are read; `verify` compares all at once.

    Args:
        path: the folder.

    Shapes: `features[image_id]` is float16, (image tokens, vision width).

    Raises:
        FileNotFoundError: there is no such folder, or it was never finished.
        ValueError: a file is missing, or holds something else than was written.
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
        files = {name: ArrayFile(self.path / name, about, _REMEDY) for name, about in self.facts["arrays"].items()}
        self._keys, self._positions = np.array(files[_KEYS].validate())  # (images,) each, sorted by key
        self._digests: np.ndarray = np.array(files[_DIGESTS].validate())  # (images,)
        self.image_digests: np.ndarray = files[_IMAGE_DIGESTS].validate()  # (images, 16): what the features are of
        self._features: ArrayFile = files[_FEATURES]  # (images, image tokens, vision width)

    def verify(self) -> None:
        """Reads all features and compares them with what was written: for a copy that came over a network.

        Raises:
            ValueError: a file holds something else.
        """
        VisionFeatures(self.path)._features.validate()

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
        features = np.empty(self._features.array.shape[1:], np.float16)
        if self._features.read_rows(position, features[None]) != self._digests[position]:
            raise other_content(self._features.path, _REMEDY, f", of the image {image_id!r}")
        return features

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
    folder = resolved(path)
    refuse_other_kind(folder, _FACTS)  # a region store has arrays of the same names
    wanted = {
        "format": _FORMAT,
        "images": keys.shape[1],
        "set of images": digest(keys.tobytes(), size=16),
        "tower": _digest(tower),
        "image_processor": json.loads(json.dumps(image_processor.to_dict(), default=str)),
    }
    digests = image_digests(splits, image_column, sources)
    facts = _read_facts(folder)
    if facts is None or facts["done"] < facts["images"] or (folder / ".lock").exists():
        with sole_writer(folder, folder / ".lock"):
            facts = _read_facts(folder) or {**wanted, "done": 0, "arrays": {}}
            _validate_made_of(facts, wanted, folder)
            data = [split.with_format(None).select_columns(image_column) for split in splits]
            pixels = _Pixels(data, sources[facts["done"] :], image_processor, image_column)
            loader = DataLoader(
                pixels,
                batch_size,
                num_workers=num_workers,
                collate_fn=pixels.collate,
                generator=torch.Generator(),  # the caller's is left as it is
            )
            with evaluation_mode(tower), torch.no_grad(), closing(_Arrays(folder, facts, keys, digests)) as arrays:
                arrays.validate()
                _encode(tower, loader, sources, arrays, progress)
    else:
        _validate_made_of(facts, wanted, folder)
        validate_same_images(folder, VisionFeatures(folder).image_digests, digests)
    return VisionFeatures(folder)


class _Arrays:
    """The arrays of a folder while it is written, and the facts from which another run goes on."""

    def __init__(self, folder: Path, facts: dict[str, Any], keys: np.ndarray, image_digests: np.ndarray) -> None:
        self.folder, self.facts, self._keys, self._image_digests = folder, facts, keys, image_digests
        self._writers: dict[str, ArrayWriter] = {}
        for name, about in facts["arrays"].items():
            self._open(name, about["dtype"], about["shape"][1:], about)

    def _open(self, name: str, dtype: str, columns: Sequence[int] = (), about: Any = None) -> ArrayWriter:
        self._writers[name] = ArrayWriter(self.folder / name, dtype, columns, about, _REMEDY)
        return self._writers[name]

    def validate(self) -> None:
        """Raises a `ValueError` where an image whose features are there was another."""
        if self._writers:
            validate_same_images(self.folder, self._writers[_IMAGE_DIGESTS].read(), self._image_digests)

    def append(self, features: np.ndarray) -> None:
        """Adds features, (images, image tokens, vision width)."""
        if not self._writers:
            self._open(_KEYS, "<u8", self._keys.shape[1:]).append(self._keys)
            self._open(_DIGESTS, "<u8")
            self._open(_IMAGE_DIGESTS, "|u1", self._image_digests.shape[1:])
            self._open(_FEATURES, "<f2", features.shape[1:])
        done = self._writers[_FEATURES].rows
        self._writers[_IMAGE_DIGESTS].append(self._image_digests[done : done + len(features)])
        self._writers[_FEATURES].append(features)
        self._writers[_DIGESTS].append(np.array([row_digest(image) for image in features], np.uint64))

    def save(self, done: int) -> None:
        """Writes the state of so many images, all of which are then on disk."""
        for writer in self._writers.values():
            writer.flush()
        self.facts |= {"done": done, "arrays": {name: writer.facts for name, writer in self._writers.items()}}
        _write_facts(self.folder, self.facts)

    def close(self) -> None:
        """Closes the files; what was not saved is lost."""
        for writer in self._writers.values():
            with suppress(OSError):  # a full disk, which was told when it was written
                writer.close()


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
    arrays: _Arrays,
    progress: bool,
) -> None:
    """Writes the features of the images that are left."""
    weight, stop = next(tower.parameters()), arrays.facts["done"]
    with tqdm(total=len(sources), initial=stop, desc="features", unit="image", delay=2, disable=not progress) as bar:
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
            arrays.append(features)
            bar.update(len(pixels))
            if number % _SAVE_EVERY == 0 or stop == len(sources):
                arrays.save(stop)


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
    file = folder / _FACTS
    return read_sealed(file, _REMEDY, ("format",)) if file.is_file() else None


def _validate_made_of(facts: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Refuses features of another tower, processor or set of images."""
    differing = [name for name, value in wanted.items() if facts[name] != value]
    if differing:
        raise ValueError(
            f"{folder} holds vision features of another {' and another '.join(differing)}. They would be silently "
            "wrong here. Name another folder, or delete this one."
        )


def _write_facts(folder: Path, facts: dict[str, Any]) -> None:
    write_sealed(folder / _FACTS, facts)
