"""Regions of any images, found by a model and written as a store."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from datasets import Dataset, Image
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers.utils import IMAGE_PROCESSOR_NAME

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import IMAGE_SUFFIXES, digest
from hf_curriculum.data.identity import image_content, validate_image_ids
from hf_curriculum.data.image_files import image_digests
from hf_curriculum.data.images import UnreadableImageError, to_rgb
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.folder import find_files
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.regions.pack import StoreWriter, pack_regions, standardise_fact
from hf_curriculum.data.regions.processor import RegionProcessor
from hf_curriculum.data.regions.store import DTYPES, RegionStore, read_facts, validate_same_images
from hf_curriculum.files import own_folder, resolved, write_atomically
from hf_curriculum.parts import launched
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import warn_of_transform

if TYPE_CHECKING:
    from datasets import DatasetDict

_POLL, _EMPTY = 0.5, "no-image"  # seconds between two looks at other processes' shares; the mark of an empty one


@validate_arguments
def extract_regions(
    data: Dataset | DatasetDict | Mapping[str, Any] | str | Path,
    model: Any,
    path: str | Path,
    *,
    dtype: Literal["float16", "float32"] = "float16",
    standardise: bool = False,
    image_column: str = IMAGE,
    num_workers: int = 0,
    progress: bool = True,
    **options: Any,
) -> RegionStore:
    """Finds the regions of images with a model and writes them into one folder.

    Of a detector the regions are its detections, with the states that it classified them by as features; of a vision
    tower they are the cells of a grid. A run that was killed goes on where it stopped when it is called again; a
    finished folder is opened, if the images are still the same, by what their files hold. Under `accelerate launch` or
    `torchrun` each process finds the regions of its share, and the first puts them together. The detector is kept with
    the store, for `RegionProcessor.from_store`.

    Args:
        data: images and their `image_id`, rows of the same id once; a `DatasetDict` to have all splits in one; a
            mapping of image id to image; or a folder of images, whose ids are the files' paths in it, as
            `load_captioned` has them.
        model: a name, a folder or a model, see `RegionProcessor`; or a `RegionProcessor`, such as that of a trained
            captioner, whose mean and standard deviation are then used.
        path: the folder to write.
        dtype: of features and class probabilities on disk.
        standardise: finds mean and standard deviation of each feature over these images; takes away the one and
            divides by the other when features are read. Grids of vision towers train several times faster so.
        image_column: the column of images, in any form `to_rgb` reads.
        num_workers: processes that read and decode images while the model computes.
        progress: show a bar when it takes more than two seconds.
        options: of `RegionProcessor`: `grid`, `threshold`, `min_regions`, `max_regions`, `batch_size`, ….

    Returns:
        The store.

    Raises:
        ValueError: a column is missing, a row has no `image_id`, no image; a link leads out of the folder of images;
            the store was made by another detector, from other images or ones that have changed since, or holds other
            files; options beside a `RegionProcessor`; features that are not finite.
        FileNotFoundError: there is no such model or folder.
        UnreadableImageError: an image cannot be decoded (a ValueError too).

    Source: Anderson et al. 2018 (10 to 100 regions above 0.2), with the detector of one's choice.

    Example:
        >>> from PIL import Image
        >>> import tempfile
        >>> images = {"9": Image.new("RGB", (80, 60)), "10": Image.new("RGB", (60, 80), "red")}
        >>> store = extract_regions(images, "scenes_clip", f"{tempfile.mkdtemp()}/store", grid=4)
        >>> store["9"].features.shape, store.facts["regions"]
        ((16, 128), 32)
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype={dtype!r}` was given. Features are stored as one of {', '.join(map(repr, DTYPES))}.")
    if isinstance(model, RegionProcessor) and options:
        raise ValueError(
            f"A RegionProcessor has options of its own, so {list(options)} would not count. Leave them out."
        )
    if isinstance(model, RegionProcessor) and standardise and model.mean is not None:
        raise ValueError(
            "`standardise=True` was given with a processor that has a mean and standard deviation: features would be "
            "standardised in another way than those its model was trained on. Leave it out."
        )
    processor = model if isinstance(model, RegionProcessor) else RegionProcessor(model, **options)
    images = _Images(data, image_column)
    about = processor.describe()
    rank, size = launched()
    target = resolved(path)
    folder = target
    if size > 1:
        folder = own_folder(own_folder(target.with_name(f"{target.name}.shards")) / f"{rank}-of-{size}")
    scale = standardise if processor.mean is None else np.float32([processor.mean, processor.std])
    wanted = {"dtype": dtype, "standardise": standardise_fact(scale), "made_by": about}
    if not _is_complete(target, wanted, images):
        share = range(len(images) * rank // size, len(images) * (rank + 1) // size)
        if share:
            wanted["sources"] = [images.describe(share)]
            with StoreWriter(folder, wanted, scale if processor.mean is not None else None) as writer:
                _find_all(writer, images, share, processor, num_workers, progress and rank == 0)
        else:
            write_atomically(folder / _EMPTY, "")
        if size > 1:
            _join(target, folder.parent, size, rank, {"dtype": dtype, "standardise": scale})
    return RegionStore(target)


class _Images(torch.utils.data.Dataset):
    """Distinct images with their ids, from a data set, a mapping or a folder."""

    def __init__(self, data: Any, column: str) -> None:
        self.name = type(data).__name__
        self.column = column
        self._splits: list[Any] = []
        given = data
        if isinstance(data, (str, Path)):
            data = Dataset.from_dict(dict(zip((IMAGE_ID, column), _files(Path(data)), strict=True)))
        if isinstance(data, Mapping) and not all(hasattr(part, "column_names") for part in data.values()):
            self._given, self.ids = data, [str(image_id) for image_id in data]
            self._sources = list(data)
        else:
            self._given = None
            self._splits = list(data.values()) if isinstance(data, Mapping) else [data]
            self.ids, self._sources = _distinct(self._splits, column)
            warn_of_transform(self._splits)
            plain = [split.with_format(None).select_columns(column) for split in self._splits]
            self._splits = [split.cast_column(column, Image(decode=False)) for split in plain]
        if not self.ids:
            where = f"folder {given}" if isinstance(given, (str, Path)) else f"{self.name} that was given"
            raise ValueError(
                f"There is no image in the {where}. Regions are found in images: name a folder of them "
                f"({', '.join(IMAGE_SUFFIXES)}), or a data set."
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[str, Any]:
        source = self._sources[index]
        image = self._given[source] if self._given is not None else self._splits[source[0]][source[1]][self.column]
        try:
            return self.ids[index], to_rgb(image, name=f"The image {self.ids[index]!r}")
        except UnreadableImageError as error:
            return self.ids[index], error

    def digests(self) -> np.ndarray:
        """The digests of the images' contents, uint8 (images, 16)."""
        if self._given is None:
            return image_digests(self._splits, self.column, self._sources)
        found = []
        for source in self._sources:
            _, content = image_content(self._given[source]) or ("", ())
            parts = content if isinstance(content, tuple) else (content,)
            text = digest(*(part if isinstance(part, bytes) else repr(part) for part in parts), size=16)
            found.append(bytes.fromhex(text))
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 16)

    def describe(self, share: range) -> dict[str, Any]:
        """What tells these images from others: the digest of their ids."""
        text = "\n".join(self.ids[share.start : share.stop])
        return {"prefix": "", "type": "images", "path": self.name, "images": len(share), "ids": digest(text)}


def _files(folder: Path) -> tuple[list[str], list[str]]:
    """Ids and files of the images in a folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder of images at {folder}. Give a folder, or a data set.")
    left_out = LeftOut()
    files = find_files(folder, IMAGE_SUFFIXES, left_out, "files of other endings (no images)")
    left_out.report(folder, ())
    validate_inside(map(str, files), [folder], folder)
    return [file.relative_to(folder).as_posix() for file in files], list(map(str, files))


def _distinct(splits: Sequence[Any], column: str) -> tuple[list[str], list[tuple[int, int]]]:
    """The ids of all images, and split and row of the first that has each."""
    found: dict[str, tuple[int, int]] = {}
    for number, split in enumerate(splits):
        require_columns(
            split.column_names,
            [column, IMAGE_ID],
            reader="Regions are found in images and read again by their ids.",
            remedy="Pass `image_column=`, or load with `load_captioned`, which gives ids.",
        )
        ids = split.with_format(None).select_columns(IMAGE_ID)[:][IMAGE_ID]
        if None in ids:
            raise ValueError(
                f"{ids.count(None):,} of {len(ids):,} rows have no `{IMAGE_ID}`. Regions are read again by it: give "
                "each image an id."
            )
        for row, image_id in enumerate(ids):
            found.setdefault(str(image_id), (number, row))
    validate_image_ids(*splits, column=column)
    return list(found), list(found.values())


def _is_complete(path: Path, wanted: Mapping[str, Any], images: _Images) -> bool:
    """Whether the store is finished; a `ValueError` where it is another's."""
    try:
        store = RegionStore(path)
    except FileNotFoundError:
        return False
    names = {"made_by": "detector or setting", "dtype": "type of number", "standardise": "standardisation"}
    wanted = json.loads(json.dumps(wanted))
    differing = [told for name, told in names.items() if store.facts[name] != wanted[name]]
    differing += ["set of images"] if list(store) != images.ids else []
    if differing:
        raise ValueError(
            f"{path} holds the regions of another {' and another '.join(differing)}. They would be silently wrong "
            "here. Name another folder, or delete this one."
        )
    validate_same_images(path, store.image_digests, images.digests(), images.ids)
    return True


def _find_all(
    writer: StoreWriter, images: _Images, share: range, processor: RegionProcessor, num_workers: int, progress: bool
) -> None:
    """Writes the store of a process's share of the images, from where it stopped."""
    digests = images.digests()[share.start : share.stop]
    validate_same_images(writer.folder, writer.image_digests, digests, images.ids[share.start :])
    if writer.complete:
        return
    done = writer.position[1]
    left = torch.utils.data.Subset(images, range(share.start + done, share.stop))
    options = {"num_workers": num_workers, "collate_fn": list, "generator": torch.Generator()}  # the caller's is left
    loader = DataLoader(left, processor.batch_size, **options)
    with tqdm(total=len(share), initial=done, desc="regions", unit="image", delay=2, disable=not progress) as bar:
        for batch in loader:
            for _, image in batch:
                if isinstance(image, UnreadableImageError):
                    raise image
            in_batch = processor.find([image for _, image in batch], [image_id for image_id, _ in batch])
            for regions, image_digest in zip(in_batch, digests[done : done + len(batch)], strict=True):
                writer.add(regions.image_id, regions, image_digest)
            done += len(batch)
            writer.save_sometimes((0, done))
            bar.update(len(batch))
    processor.save_detector(writer.folder)
    write_atomically(writer.folder / IMAGE_PROCESSOR_NAME, processor.to_json_string())
    writer.finish()


def _join(target: Path, shards: Path, size: int, rank: int, options: dict[str, Any]) -> None:
    """Puts the shares of all processes together, in the first; the others wait until it is done."""
    if rank > 0:
        while not _is_written(target):
            time.sleep(_POLL)
        return
    parts = [shards / f"{number}-of-{size}" for number in range(size)]
    while not all(_is_written(part) for part in parts):
        time.sleep(_POLL)
    parts = [part for part in parts if not _is_empty(part)]
    pack_regions(parts, target, **options, progress=False)
    shutil.rmtree(shards)


def _is_written(folder: Path) -> bool:
    return (read_facts(folder) or {}).get("complete", False) or _is_empty(folder)


def _is_empty(folder: Path) -> bool:
    """Whether a process had no image: there are more processes than images."""
    return (folder / _EMPTY).is_file()
