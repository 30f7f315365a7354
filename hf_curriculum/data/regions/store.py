"""Regions of many images in one folder of plain arrays, read by image id."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_curriculum.config import digest
from hf_curriculum.data.array_files import ArrayFile, other_content
from hf_curriculum.data.readers.outside_files import validate_folder
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.files import read_sealed, validate_digest

FORMAT = 2
FACTS = "region_store.json"
PER_REGION = ("boxes", "confidence", "classes", "class_scores", "features")
"""Arrays with a row per region; a bit of an image's flags says whether it has each, the next whether boxes are shares
of its sides."""
NORMALISED = 1 << len(PER_REGION)
REMEDY = "Copy or write the store again."
IMAGE_DIGESTS = "image_digests"
_INDEX = ("keys", "rows", "offsets")
"""Arrays that are held in memory: sorted keys of ids, the row of each, and where each row's regions begin."""
UNKNOWN = np.zeros(16, np.uint8)
"""The digest of an image that was not there when its regions were packed: not known."""
DTYPES = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}


class RegionStore(RegionSource):
    """The folder that `pack_regions` or `extract_regions` wrote: image id -> `Regions`, read from disk on access.

    An image takes 20 bytes of memory; all else stays on disk, and worker processes open the folder for themselves.
    The index is compared with what was written when the store is opened, and what is read of an image whenever it is
    read; `verify` compares all at once.
    Features come as float32, however they are stored. `store.facts` tells what is in it: `images`, `regions`, `dims`,
    `dtype`, `empty` (images without a region), `repeated` (lines of images it had before), `sources`, `made_by`.

    Args:
        path: the folder.
        allow_outside: let links in it lead out of it: for files that you trust.

    Shapes and units: `store[image_id].features` is float32 (regions, dims), as is `store.features(image_id)`, a
        tensor; `store.read_batch(ids)` gives float32 (images, most regions, dims) and its mask.

    Raises:
        FileNotFoundError: no such folder, or one that was never finished.
        ValueError: a file of it is missing, truncated or a link out of the folder, or another version wrote it.
        KeyError: an image that is not in it.

    Example:
        >>> import tempfile
        >>> from hf_curriculum.data.regions.pack import pack_regions
        >>> folder = tempfile.mkdtemp()
        >>> np.savez(f"{folder}/9.npz", feat=np.ones((2, 4), np.float32))
        >>> store = pack_regions(folder, f"{folder}/store", progress=False)
        >>> store.features("9").shape, store.facts["regions"]
        (torch.Size([2, 4]), 2)
    """

    def __init__(self, path: str | Path, allow_outside: bool = False) -> None:
        super().__init__(path)
        self._allow_outside = allow_outside
        if not allow_outside:
            validate_folder(path)
        facts = read_facts(path)
        if facts is None or not facts["complete"]:
            state = "is no store of regions" if facts is None else f"has {facts['images']:,} images and is unfinished"
            raise FileNotFoundError(
                f"{path} {state}. A store is written by `pack_regions` or `extract_regions`: call it with the same "
                "arguments, and it continues."
            )
        self.facts: dict[str, Any] = facts
        files = {name: ArrayFile(Path(path) / f"{name}.npy", about, REMEDY) for name, about in facts["arrays"].items()}
        self._parts: dict[str, ArrayFile] = {name: files.pop(name) for name in PER_REGION if name in files}
        self._arrays: dict[str, np.ndarray] = {name: file.validate() for name, file in files.items()}
        self._keys, self._rows, self._offsets = (np.array(self._arrays.pop(name)) for name in _INDEX)
        scale = self._arrays.pop("standardise", None)
        self._moments: torch.Tensor | None = None if scale is None else torch.from_numpy(np.array(scale))

    def verify(self) -> None:
        """Reads the whole store and compares it with what was written: for a copy that came over a network.

        Raises:
            ValueError: a file holds something else.
        """
        RegionStore(self.path, self._allow_outside)  # compares the index
        for part in self._parts.values():
            part.validate()
        self.validate_detector()

    def validate_detector(self) -> None:
        """Raises a `ValueError` where the detector that `extract_regions` kept is no longer what it was."""
        for name, digest_then in self.facts["detector"].items():
            validate_digest(Path(self.path) / name, digest_then, REMEDY)

    @property
    def fingerprint(self) -> str:
        """A digest of what made the features: equal for stores of one detector with one setting, whatever the images.

        Where that is not known (`made_by`), it is the digest of the content.
        """
        return self.facts["fingerprint"]

    @property
    def image_digests(self) -> np.ndarray:
        """Which images the regions are of, uint8 (images, 16), in the order of the store; 0 where it is not known."""
        return self._arrays[IMAGE_DIGESTS]

    @property
    def moments(self) -> torch.Tensor | None:
        """Mean and standard deviation that features are standardised by, float32 (2, dims); None if they are not."""
        return self._moments

    def features(self, image_id: str) -> torch.Tensor:
        """The features of an image's regions, float32 (regions, dims), in memory of their own."""
        features = torch.from_numpy(self.raw_features(image_id))
        return self._standardised(features.float())

    def read_batch(self, image_ids: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of several images at once: read into the batch, without a copy of each image between.

        Shapes: float32 (images, most regions, dims), 0 where padded; int64 (images, most regions), 1 for a region.
        """
        rows = [self._row(image_id) for image_id in image_ids]
        counts = [int(self._offsets[row + 1] - self._offsets[row]) for row in rows]
        most, dims = max(counts, default=0), self.facts["dims"]
        batch = np.empty((len(rows), most, dims), np.float32)  # numpy asks the system for huge pages, torch does not
        half = np.empty((most, dims), np.float16) if self.facts["dtype"] == "float16" else None
        mask = torch.zeros(len(rows), most, dtype=torch.int64)
        for image, (row, count) in enumerate(zip(rows, counts, strict=True)):
            target = batch[image, :count]
            self._read_part("features", row, target if half is None else half[:count])
            tensor = torch.from_numpy(target)
            if half is not None:
                tensor.copy_(torch.from_numpy(half[:count]))
            if self._moments is not None:
                tensor.copy_(self._standardised(tensor))
            batch[image, count:] = 0
            mask[image, :count] = 1
        return torch.from_numpy(batch), mask

    def missing(self, image_ids: Sequence[str], boxes: bool = False) -> dict[str, list[str]]:
        """Those of the images that a model cannot read: what is wrong -> their ids, without reading features.

        Args:
            image_ids: of images.
            boxes: whether boxes are read too, as shares of the image's sides.
        """
        if not len(self):
            return {f"are not in {self!r}": list(image_ids)}
        keys = np.array([id_key(image_id) for image_id in image_ids], np.uint64)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        stored, rows = self._keys[places] == keys, self._rows[places]
        filled = stored & (self._offsets[rows + 1] > self._offsets[rows])
        wrong = {f"are not in {self!r}": ~stored, f"have no region in {self!r}": stored & ~filled}
        if boxes:
            flags, sizes = self._arrays["flags"][rows], self._arrays["sizes"][rows]
            boxed = (flags >> PER_REGION.index("boxes") & 1) == 1
            sized = ((flags & NORMALISED) > 0) | (sizes > 0).all(axis=1)  # NaN where it is not known
            wrong[f"have no boxes in {self!r}"] = filled & ~boxed
            wrong[f"have no width and height in {self!r}, of which box values are shares"] = filled & boxed & ~sized
        return {what: [image_ids[place] for place in np.flatnonzero(where)] for what, where in wrong.items()}

    def class_codes(
        self, image_ids: Sequence[str], min_confidence: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The classes of many images' regions at once, reading nothing else.

        Args:
            image_ids: of images; those that are not in the store have no region.
            min_confidence: regions below are left out, where they have a confidence.

        Shapes: whether each image is in the store, bool (images,); of each region its image, a place in `image_ids`,
            and its class, a place in `facts["classes"]`: int64 and integers (regions,).

        Raises:
            ValueError: an image's regions have no classes.
        """
        keys = np.array([id_key(image_id) for image_id in image_ids], np.uint64)
        places = np.minimum(np.searchsorted(self._keys, keys), max(len(self) - 1, 0))
        stored = self._keys[places] == keys if len(self) else np.zeros(len(keys), bool)
        images = np.flatnonzero(stored)
        rows = self._rows[places[images]].astype(np.int64)
        counts = self._offsets[rows + 1] - self._offsets[rows]
        named = self._arrays["flags"][rows] >> PER_REGION.index("classes") & 1
        if (lacking := np.flatnonzero((named == 0) & (counts > 0))).size:
            raise ValueError(unclassified(image_ids[int(images[lacking[0]])]))
        codes, sure = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
        for row in rows[counts > 0].tolist():
            codes.append(self._read_part("classes", row))
            sure.append(np.ones(len(codes[-1]), bool))
            if min_confidence > 0 and self._arrays["flags"][row] >> PER_REGION.index("confidence") & 1:
                sure[-1] = self._read_part("confidence", row) >= min_confidence
        chosen = np.concatenate(sure)
        return stored, np.repeat(images, counts)[chosen], np.concatenate(codes)[chosen]

    def describe(self, image_id: str) -> Regions:
        """The regions of an image without their features: boxes, size, classes, confidence."""
        return self._regions(image_id, self._row(image_id), ("boxes", "confidence", "classes", "class_scores"))

    def __getitem__(self, image_id: str) -> Regions:
        return self._regions(image_id, self._row(image_id), PER_REGION)

    def __contains__(self, image_id: object) -> bool:
        return self._find_row(image_id) is not None

    def __len__(self) -> int:
        return self.facts["images"]

    def __iter__(self) -> Iterator[str]:
        return stored_ids(self._arrays["ids"], self._arrays["id_offsets"])

    def __reduce__(self) -> tuple[type[RegionStore], tuple[str, bool]]:
        return RegionStore, (self.path, self._allow_outside)

    def arguments(self) -> dict[str, Any]:
        """The store as the provenance of a score records it."""
        return {"type": type(self).__name__, "path": Path(self.path).name, "content": self.facts["content"]}

    def raw_features(self, image_id: str) -> np.ndarray:
        """The features as they are stored, neither standardised nor in float32, (regions, dims)."""
        return self._read_part("features", self._row(image_id))

    def _find_row(self, image_id: object) -> int | None:
        key = id_key(image_id)
        index = int(np.searchsorted(self._keys, key))
        return int(self._rows[index]) if index < len(self._keys) and self._keys[index] == key else None

    def _row(self, image_id: object) -> int:
        row = self._find_row(image_id)
        if row is None:
            raise KeyError(
                f"{self.path} has no regions of the image {image_id!r}: it was written from other images, or with a "
                f"`prefix`. It has {len(self):,}, such as {next(iter(self), None)!r}."
            )
        return row

    def _regions(self, image_id: str, row: int, parts: Sequence[str]) -> Regions:
        flags = int(self._arrays["flags"][row])
        found: dict[str, Any] = {
            name: self._read_part(name, row)
            for bit, name in enumerate(PER_REGION)
            if name in parts and flags >> bit & 1
        }
        if "features" in found:
            found["features"] = self._standardised(torch.from_numpy(found["features"]).float()).numpy()
        if "class_scores" in found:
            found["class_scores"] = torch.from_numpy(found["class_scores"]).float().numpy()
        if "classes" in found:
            found["classes"] = tuple(self.facts["classes"][index] for index in found["classes"])
        width, height = (None if np.isnan(side) else float(side) for side in self._arrays["sizes"][row])
        return Regions(str(image_id), normalised=bool(flags & NORMALISED), width=width, height=height, **found)

    def _read_part(self, name: str, row: int, target: np.ndarray | None = None) -> np.ndarray:
        """A part of an image's regions as it is stored, compared with what was written; into `target` if given."""
        start, stop = self._offsets[row : row + 2].tolist()
        if target is None:
            about = self.facts["arrays"].get(name, {"shape": [0, 4 if name == "boxes" else 0], "dtype": "<f4"})
            target = np.empty((stop - start, *about["shape"][1:]), about["dtype"])
        if stop > start:
            file, recorded = self._parts[name], self._arrays["digests"][row, PER_REGION.index(name)]
            if file.read_rows(start, target) != recorded:
                image_id = next(stored_ids(self._arrays["ids"], self._arrays["id_offsets"][row : row + 2]))
                raise other_content(file.path, REMEDY, f", of the image {image_id!r}")
        return target

    def _standardised(self, features: torch.Tensor) -> torch.Tensor:
        return features if self._moments is None else (features - self._moments[0]) / self._moments[1]


def id_key(image_id: object) -> np.uint64:
    """64 bits of an id: among three million the chance of a collision is 2e-7."""
    return np.uint64(int.from_bytes(hashlib.blake2b(str(image_id).encode(), digest_size=8).digest(), "little"))


def stored_ids(text: np.ndarray, offsets: np.ndarray) -> Iterator[str]:
    """Image ids from their UTF-8 bytes (bytes,) and where each begins (images + 1,)."""
    for start, stop in itertools.pairwise(offsets):
        yield text[int(start) : int(stop)].tobytes().decode()


def unclassified(image_id: str) -> str:
    """The message for regions whose classes are needed and not there."""
    return (
        f"The regions of image {image_id!r} have no classes: what they show is unknown. Take a file that names them "
        "(VinVL's predictions.tsv, Oscar's label.tsv), or `extract_regions` with a detector."
    )


def read_facts(folder: str | Path) -> dict[str, Any] | None:
    """What the folder of a store tells about itself; None for another folder."""
    file = Path(folder) / FACTS
    facts = read_sealed(file, REMEDY, ("format",)) if file.is_file() else None
    if facts is not None and facts["format"] != FORMAT:
        raise ValueError(
            f"{folder} is a store of format {facts['format']}, and this version of hf_curriculum reads format "
            f"{FORMAT}. Update hf_curriculum, or write the store again."
        )
    return facts


def validate_same_images(
    folder: Path, digests_then: np.ndarray, digests: np.ndarray, ids: Sequence[str] | None = None
) -> None:
    """Raises a `ValueError` where features in a folder are of other images, by digests (images, 16) then and now."""
    changed = np.flatnonzero((digests_then != digests[: len(digests_then)]).any(axis=1))
    if changed.size:
        first = f"image {changed[0]}" if ids is None else repr(ids[changed[0]])
        raise ValueError(
            f"{folder} holds features of other images: {first} has changed since they were found ({len(changed):,} of "
            f"{len(digests_then):,} have). The old image's features would be read for the new one. Name another "
            "folder, or delete this one."
        )


def fingerprint_of(made_by: Any, content: str, moments: bytes) -> str:
    """A digest of what made features: `made_by`, or where that is unknown their content; and of mean and deviation."""
    return digest(content if made_by is None else json.dumps(made_by, sort_keys=True), moments, size=16)
