"""Any files of regions, written as one store."""

from __future__ import annotations

import glob
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_curriculum.config import digest
from hf_curriculum.data.array_files import ArrayWriter, row_digest
from hf_curriculum.data.regions.base import Regions, RegionSource
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.store import (
    DTYPES,
    FACTS,
    FORMAT,
    IMAGE_DIGESTS,
    NORMALISED,
    PER_REGION,
    UNKNOWN,
    RegionStore,
    fingerprint_of,
    id_key,
    read_facts,
    stored_ids,
)
from hf_curriculum.files import (
    complete_folder,
    file_digest,
    refuse_file,
    refuse_link,
    resolved,
    sole_writer,
    write_atomically,
    write_sealed,
)
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

_SAVE_BYTES, _SAVE_SECONDS = 1 << 28, 30.0  # of features, of time, between two states that a killed run goes on from
_ENDS = 1 << 16  # bytes at either end of a file that tell it from another
_LOCK = ".lock"
_REMEDY = "Delete the folder, and the same call writes it again."
_DETECTOR = ("preprocessor_config.json", "detector")  # a saved `RegionProcessor`
_BESIDE = ("label.tsv", ".hw.tsv")  # read with the table they belong to
Source = RegionSource | str | Path


@validate_arguments
def pack_regions(
    source: Source | Sequence[Source] | Mapping[str, Any],
    path: str | Path,
    *,
    dtype: Literal["float16", "float32"] = "float16",
    prefix: str | None = None,
    standardise: bool | np.ndarray = False,
    made_by: str | None = None,
    progress: bool = True,
) -> RegionStore:
    """Writes regions of any known kind into one folder, from which training reads them many times faster.

    Every source is read once, from its beginning to its end, an image at a time, without an index. A run that was
    killed goes on where it stopped when it is called again, and writes the same bytes; a finished folder is opened. Of
    an image that has several lines in one table the first counts. With several processes let the main one come first
    (`accelerate.PartialState().main_process_first()`).

    Args:
        source: what `open_regions` opens or has opened; a pattern ("karpathy_*.tsv"); a list of these; or a mapping of
            prefix to these, so that image 9 of `{"coco": ..., "cc": ...}` is "coco/9" and "cc/9".
        path: the folder to write.
        dtype: of features and class probabilities on disk; float16 halves it (COCO's 10 to 100 boxes an image: 27 GB).
        prefix: for the ids of a single source, as in the mapping.
        standardise: takes the mean of all regions from each feature and divides by their standard deviation, when
            features are read; both are kept with the store. An array (2, dims) is used for the two.
        made_by: the detector and its setting in any words, if it is known. Stores of one `made_by` count as made in
            one way (`RegionStore.fingerprint`): a model trained on one can be used with another.
        progress: show a bar when it takes more than two seconds.

    Returns:
        The store.

    Raises:
        FileNotFoundError: a source is not there, or a pattern matches nothing.
        FileExistsError: the folder is a file.
        ValueError: an image has no features, or some that are not finite, beyond float16 or of another length; an id
            is in two sources; stores of different detectors; the folder holds another store or other files; no image.
        TypeError: a source of another type.
        RuntimeError: another process writes the folder.

    Example:
        >>> store = pack_regions("karpathy_*.tsv", "store")  # doctest: +SKIP
        >>> store = pack_regions({"coco": "coco_*.tsv", "cc": "cc/predictions.tsv"}, "both")  # doctest: +SKIP
        >>> store["coco/9"].features.shape  # doctest: +SKIP
        (37, 2048)
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype={dtype!r}` was given. Features are stored as one of {', '.join(map(repr, DTYPES))}.")
    sources = _resolve(source, prefix)
    from_stores = _one_detector(sources, standardise) if made_by is None else None
    if from_stores is not None and standardise is False and from_stores.moments is not None:
        standardise = from_stores.moments.numpy()
    wanted = {
        "dtype": dtype,
        "standardise": standardise_fact(standardise),
        "made_by": made_by if from_stores is None else from_stores.facts["made_by"],
        "sources": [{"prefix": label, **_identity(opened)} for label, opened in sources],
    }
    scale = None if isinstance(standardise, bool) else standardise
    with StoreWriter(path, wanted, scale) as writer:
        if not writer.complete:
            _add_all(writer, sources, progress)
            if from_stores is not None:
                from_stores.validate_detector()
                copy_detector(from_stores.path, writer.folder)
            writer.finish()
    return RegionStore(path)


def _add_all(writer: StoreWriter, sources: Sequence[tuple[str, RegionSource]], progress: bool) -> None:
    """Adds the images of all sources, from where the writer stopped."""
    with tqdm(desc="regions", unit="image", initial=writer.images, delay=2, disable=not progress) as bar:
        first, position = writer.position
        for index, (label, opened) in enumerate(sources[first:], first):
            scan = opened.scan(position if index == first else 0)
            for position, regions in _raw(opened, scan) if writer.wanted["standardise"] else scan:
                known = opened.image_digests[position - 1] if isinstance(opened, RegionStore) else UNKNOWN
                writer.add(f"{label}/{regions.image_id}" if label else regions.image_id, regions, known)
                writer.save_sometimes((index, position))
                bar.update()
            writer.next_source()


class StoreWriter:
    """The folder of a store while it is written, an image at a time; a context, at whose end its files are closed.

    Args:
        path: the folder.
        wanted: `dtype`, `standardise`, `made_by` and `sources`, which must be equal for a run to go on.
        scale: mean and standard deviation to standardise by, float32 (2, dims), in the place of these images' own.

    Attributes:
        complete: whether the folder was finished before.
        images: how many are in it.
        position: the source, and the position in it, to go on from.
    """

    def __init__(self, path: str | Path, wanted: Mapping[str, Any], scale: np.ndarray | None = None) -> None:
        self.folder, self._scale = resolved(path), scale
        self.wanted: dict[str, Any] = json.loads(json.dumps(wanted))
        self._arrays: dict[str, ArrayWriter] = {}
        self._open = ExitStack()  # the lock and the arrays
        facts = self._found()
        self.complete: bool = facts is not None and facts["complete"] and not (self.folder / _LOCK).exists()
        if self.complete:
            return
        fresh = {"images": 0, "regions": 0, "empty": 0, "repeated": 0, "dims": None, "position": (0, 0), "arrays": {}}
        fresh |= {"classes": [], "counts": [0] * len(wanted["sources"]), "moments": None, "complete": False}
        with ExitStack() as stack:
            stack.enter_context(sole_writer(path, self.folder / _LOCK))
            facts = self._found() or fresh
            self.complete = facts["complete"]
            if not self.complete:
                stack.callback(self._close_arrays)
                self._go_on(facts)
                self._open = stack.pop_all()

    def _go_on(self, facts: Mapping[str, Any]) -> None:
        """Opens the arrays as they were when their facts were saved."""
        self.images, self.regions, self.empty = facts["images"], facts["regions"], facts["empty"]
        self.repeated, self.dims, self.counts = facts["repeated"], facts["dims"], facts["counts"]
        self.position: tuple[int, int] = tuple(facts["position"])
        self._source: int = self.position[0]
        self._classes = {name: row for row, name in enumerate(facts["classes"])}
        self._moments = None if facts["moments"] is None else np.array(facts["moments"])  # (2, dims): sums, squares
        for name, about in facts["arrays"].items():
            self._grow(name, about["dtype"], about["shape"][1:], about)
        for name, kind, columns in (
            ("flags", "|u1", ()), ("sizes", "<f4", (2,)), ("ids", "|u1", ()), ("id_offsets", "<i8", ()),
            ("offsets", "<i8", ()), ("digests", "<u8", (len(PER_REGION),)), (IMAGE_DIGESTS, "|u1", UNKNOWN.shape),
        ):  # fmt: skip
            if name not in self._arrays:
                self._grow(name, kind, columns)
        if not self._arrays["offsets"].rows:
            for name in ("offsets", "id_offsets"):
                self._arrays[name].append(np.zeros(1, np.int64))
        self._seen = {int(id_key(image_id)): source for image_id, source in self._stored()}
        self._saved_regions, self._saved_at = self.regions, time.monotonic()
        if self.images == 0:
            self.save(self.position)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the arrays and gives up the lock; what was not saved is lost."""
        self._open.close()

    def _close_arrays(self) -> None:
        for array in self._arrays.values():
            with suppress(OSError):  # a full disk, which was told when an array was written
                array.close()

    def _found(self) -> dict[str, Any] | None:
        """The facts of the folder, which has to be of this store; None where nothing in it would be lost."""
        facts = read_facts(self.folder)
        if facts is not None and not facts["complete"] and facts["images"] == 0:
            return None
        _validate_folder(self.folder, facts, self.wanted)
        return facts

    @property
    def image_digests(self) -> np.ndarray:
        """Those of the images that are in it, uint8 (images, 16)."""
        return RegionStore(self.folder).image_digests if self.complete else self._arrays[IMAGE_DIGESTS].read()

    def add(self, image_id: str, regions: Regions, image_digest: np.ndarray = UNKNOWN) -> None:
        """Writes an image; one that this source had before is counted and left out."""
        before = self._seen.setdefault(int(id_key(image_id)), self._source)
        if before != self._source:
            raise ValueError(
                f"The image {image_id!r} is in {self._named(before)} and in {self._named(self._source)}: which of "
                "both counts cannot be known. Pack one of them, or give each a prefix: "
                "`pack_regions({'first': ..., 'second': ...}, path)`."
            )
        if len(self._seen) == self.images:
            self.repeated += 1
            return
        features = self._features(image_id, regions)
        parts = self._parts(regions, features)
        name = image_id.encode()
        sides = [math.nan if side is None else side for side in (regions.width, regions.height)]
        flags = sum(1 << bit for bit, part in enumerate(PER_REGION) if part in parts) + NORMALISED * regions.normalised
        for part in PER_REGION:
            self._append(part, parts.get(part), len(regions))
        self.images, self.regions = self.images + 1, self.regions + len(regions)
        self.empty += len(regions) == 0
        self.counts[self._source] += 1
        digests = [row_digest(parts[part]) if part in parts and len(regions) else 0 for part in PER_REGION]
        self._arrays["digests"].append(np.uint64([digests]))
        self._arrays[IMAGE_DIGESTS].append(image_digest[None])
        self._arrays["flags"].append(np.uint8([flags]))
        self._arrays["sizes"].append(np.float32([sides]))
        self._arrays["ids"].append(np.frombuffer(name, np.uint8))
        self._arrays["id_offsets"].append(np.int64([self._arrays["ids"].rows]))
        self._arrays["offsets"].append(np.int64([self.regions]))

    def _features(self, image_id: str, regions: Regions) -> torch.Tensor:
        """The features of an image as they are stored, (regions, dims)."""
        dtype = getattr(torch, self.wanted["dtype"])
        if regions.features is None and len(regions):
            raise ValueError(
                f"The {len(regions)} regions of image {image_id!r} in {self._named(self._source)} have no features, "
                "so there is nothing a model could read. Boxes alone are read by `open_regions`; pack a source with "
                "features."
            )
        if regions.features is None or not len(regions):
            return torch.zeros(0, self.dims or 0, dtype=dtype)
        features = torch.from_numpy(np.array(regions.features, dtype=np.float32))
        if self.dims is not None and features.shape[1] != self.dims:
            raise ValueError(
                f"The features of image {image_id!r} in {self._named(self._source)} have {features.shape[1]} numbers, "
                f"and those of the images before {self.dims}. They come from different detectors, which no model "
                "reads together: pack each into a store of its own."
            )
        stored = features.to(dtype)
        if not stored.isfinite().all():
            why = "are not all finite: a model's loss would be NaN from this image on. Find its regions again"
            if features.isfinite().all():
                why = "go beyond float16's ±65,504. Pass `dtype='float32'`"
            raise ValueError(f"The features of image {image_id!r} in {self._named(self._source)} {why}.")
        if self.dims is None:
            self.dims = features.shape[1]
        if self.wanted["standardise"] and self._scale is None:
            values = stored.double().numpy()
            sums = np.stack([values.sum(axis=0), np.square(values).sum(axis=0)])  # (2, dims)
            self._moments = sums if self._moments is None else self._moments + sums
        return stored

    def _parts(self, regions: Regions, features: torch.Tensor) -> dict[str, np.ndarray]:
        """The arrays of an image as they are stored, those that it has."""
        parts = {"features": features.numpy()} if regions.features is not None else {}
        if regions.boxes is not None:
            parts["boxes"] = np.asarray(regions.boxes, np.float32)
        if regions.confidence is not None:
            parts["confidence"] = np.asarray(regions.confidence, np.float32)
        if regions.class_scores is not None:
            scores = torch.from_numpy(np.array(regions.class_scores, np.float32))
            parts["class_scores"] = scores.to(getattr(torch, self.wanted["dtype"])).numpy()
        if regions.classes is not None:
            rows = [self._classes.setdefault(name, len(self._classes)) for name in regions.classes]
            parts["classes"] = np.array(rows, np.int32)
        return parts

    def _append(self, name: str, values: np.ndarray | None, count: int) -> None:
        """Rows of a part, or as many of zeros, which take no room on disk, where an image does not have it."""
        array = self._arrays.get(name)
        if array is None and values is not None and count:
            array = self._grow(name, values.dtype.str, values.shape[1:])
            array.skip(self.regions)
        if array is None or not count:
            return
        if values is None:
            array.skip(count)
        elif tuple(values.shape[1:]) != array.columns:
            raise ValueError(
                f"An image of {self._named(self._source)} has `{name}` with {values.shape[1:]} columns, and images "
                f"before {array.columns}. They come from different detectors: pack each into a store of its own."
            )
        else:
            array.append(values)

    def _grow(
        self, name: str, dtype: str, columns: Sequence[int] = (), facts: Mapping[str, Any] | None = None
    ) -> ArrayWriter:
        self._arrays[name] = ArrayWriter(self.folder / f"{name}.npy", dtype, columns, facts, _REMEDY)
        return self._arrays[name]

    def _stored(self) -> Iterator[tuple[str, int]]:
        """The ids that are in it, each with its source."""
        text, offsets = self._arrays["ids"].read(), self._arrays["id_offsets"].read()
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        return zip(stored_ids(text, offsets), owners.tolist(), strict=True)

    def _named(self, source: int) -> str:
        return self.wanted["sources"][source]["path"]

    def next_source(self) -> None:
        """What is added from now on comes from the next source."""
        self._source += 1

    def save_sometimes(self, position: tuple[int, int]) -> None:
        """Saves the state to go on from, of a source and a position in it, if enough was written since the last."""
        unsaved = self.regions - self._saved_regions
        much = unsaved * (self.dims or 0) * DTYPES[self.wanted["dtype"]].itemsize >= _SAVE_BYTES
        if much or time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self.save(position)

    def save(self, position: tuple[int, int]) -> None:
        """Saves the state: all that was added is then on disk."""
        moments = None if self._moments is None else self._moments.tolist()
        self._write_facts({"complete": False, "position": position, "moments": moments})
        self._saved_regions, self._saved_at = self.regions, time.monotonic()

    def finish(self) -> None:
        """Writes the index, the header of each array, and the facts."""
        if self.regions == 0:
            held = f"{self.images:,} images and no region" if self.images else "no image"
            raise ValueError(
                f"The sources of {self.folder} hold {held}: {[about['path'] for about in self.wanted['sources']]}. "
                "A model would see nothing. Name others."
            )
        if self.repeated:
            logger.warning(
                "%d lines were for images that their table had before; the first line of each is used.", self.repeated
            )
        content = digest(json.dumps([self._array_facts(), list(self._classes)]), size=16)
        keys = np.fromiter((id_key(image_id) for image_id, _ in self._stored()), np.uint64, self.images)
        order = np.argsort(keys, kind="stable")
        self._grow("keys", "<u8").append(keys[order])
        self._grow("rows", "<u4").append(order.astype(np.uint32))
        moments = b""
        if self.wanted["standardise"]:
            scale = self._standard() if self._scale is None else np.asarray(self._scale, np.float32)
            if scale.shape != (2, self.dims):
                raise ValueError(
                    f"Mean and standard deviation of the shape {scale.shape} were given for features of {self.dims} "
                    f"numbers: (2, {self.dims}) is needed. They belong to another detector."
                )
            self._grow("standardise", "<f4", (self.dims,)).append(scale)
            moments = scale.tobytes()
        fingerprint = fingerprint_of(self.wanted["made_by"], content, moments)
        files = [file for name in _DETECTOR for file in (self.folder / name, *(self.folder / name).rglob("*"))]
        detector = {str(file.relative_to(self.folder)): file_digest(file) for file in sorted(files) if file.is_file()}
        self._write_facts({"content": content, "fingerprint": fingerprint, "detector": detector, "complete": True})
        self.close()

    def _standard(self) -> np.ndarray:
        """Mean and standard deviation of each feature over all regions, float32 (2, dims); 1 where nothing varies."""
        mean, square = self._moments / self.regions  # (dims,) each
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        return np.float32([mean, np.where(deviation > 1e-6 * np.sqrt(square), deviation, 1)])

    def _write_facts(self, more: Mapping[str, Any]) -> None:
        for array in self._arrays.values():
            array.flush()
        facts = {"format": FORMAT, **self.wanted, "images": self.images, "regions": self.regions, "dims": self.dims}
        facts |= {"empty": self.empty, "repeated": self.repeated, "counts": self.counts}
        facts |= {"classes": list(self._classes), "arrays": self._array_facts(), **more}
        write_sealed(self.folder / FACTS, facts)

    def _array_facts(self) -> dict[str, Any]:
        return {name: array.facts for name, array in sorted(self._arrays.items())}


def _raw(source: RegionSource, scan: Iterator[tuple[int, Regions]]) -> Iterator[tuple[int, Regions]]:
    """What a source holds; a store's features as they are stored, not standardised."""
    for position, regions in scan:
        if isinstance(source, RegionStore) and source.facts["standardise"]:
            regions = replace(regions, features=np.asarray(source.raw_features(regions.image_id), np.float32))
        yield position, regions


def _one_detector(sources: Sequence[tuple[str, RegionSource]], standardise: bool | np.ndarray) -> RegionStore | None:
    """The first source, where all are stores whose features one known detector made in one way."""
    stores = [opened for _, opened in sources if isinstance(opened, RegionStore)]
    known = {json.dumps(opened.facts["made_by"], sort_keys=True): opened for opened in stores}
    unknown = known.pop("null", None)
    of_known = [opened for opened in stores if opened.facts["made_by"] is not None]
    ways = {opened.fingerprint: opened for opened in of_known} if standardise is False else known
    if len(known) > 1 or (len(known) == 1 and len(ways) > 1):
        first, second, *_ = (known if len(known) > 1 else ways).values()
        what = "other detectors or settings" if len(known) > 1 else "one detector, but standardised in other ways"
        raise ValueError(
            f"The features of {first.path} and of {second.path} come from {what}: together no model could read them. "
            "Find the regions of all images with one setting"
            f"{'' if len(known) > 1 else ', or pass `standardise=True` to standardise them together'}."
        )
    return next(iter(known.values())) if known and unknown is None and len(stores) == len(sources) else None


def standardise_fact(standardise: bool | np.ndarray) -> bool | str:
    """How features are standardised, as the facts of a store have it: the digest of what was given."""
    return standardise if isinstance(standardise, bool) else digest(np.asarray(standardise, np.float32))


def copy_detector(store: str | Path, target: str | Path) -> None:
    """Copies what `RegionProcessor.save_pretrained` wrote into a store, if it did."""
    for name in _DETECTOR:
        entry, copy = Path(store) / name, Path(target) / name
        if entry.is_dir():
            refuse_link(copy)
            with complete_folder(copy) as folder:
                shutil.copytree(entry, folder, dirs_exist_ok=True)
        elif entry.is_file():
            write_atomically(copy, entry.read_bytes())


def _resolve(source: Any, prefix: str | None) -> list[tuple[str, RegionSource]]:
    """All sources, each with the prefix of its ids."""
    label = (prefix or "").rstrip("/")
    if isinstance(source, RegionSource):
        return [(label, source)]
    if isinstance(source, Mapping):
        inner = [(f"{label}/{name}" if label else str(name), value) for name, value in source.items()]
        return [found for name, value in inner for found in _resolve(value, name)]
    if isinstance(source, (str, Path)):
        if os.path.exists(source) or not glob.has_magic(str(source)):
            return [(label, open_regions(source))]
        folder, name = os.path.split(source)
        folder = glob.escape(folder) if os.path.isdir(folder) else folder  # its brackets are its name's
        files = sorted(glob.glob(os.path.join(folder, name)))
        files = [file for file in files if not file.endswith((*_BESIDE, ".lineidx"))]
        if not files:
            raise FileNotFoundError(
                f"No file matches {str(source)!r}. Give a pattern of tables, as in 'karpathy_*.tsv'."
            )
        return [(label, open_regions(file)) for file in files]
    return [found for value in source for found in _resolve(value, prefix)]


def _identity(source: RegionSource) -> dict[str, Any]:
    """What tells a source from another without reading it whole: its name, reader, size, and a digest of both ends."""
    about = source.arguments()
    path = Path(source.path)
    if isinstance(source, RegionStore):
        return about
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        listing = "".join(f"{file.relative_to(path)} {file.stat().st_size}\n" for file in files)
        return {**about, "files": len(files), "ends": digest(listing)}
    with open(path, "rb") as file:
        first = file.read(_ENDS)
        file.seek(max(0, path.stat().st_size - _ENDS))
        return {**about, "ends": digest(first, file.read(_ENDS))}


def _validate_folder(folder: Path, facts: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> None:
    """Raises where a folder holds something else than what is wanted, or its beginning."""
    if facts is None:
        refuse_file(folder)
        others = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        arrays = (*PER_REGION, "flags", "sizes", "ids", "id_offsets", "offsets", "digests", IMAGE_DIGESTS)
        known = {f"{name}.npy" for name in arrays}
        others = [name for name in others if name not in known and not name.startswith(".")]
        if others:
            raise ValueError(
                f"{folder} holds other files ({', '.join(others[:3])}{', …' * (len(others) > 3)}), and a store of "
                "regions is a folder of its own. Name another."
            )
        return
    differing = [name for name, value in wanted.items() if facts[name] != value]
    if differing:
        told = "; ".join(_difference(name, facts[name], wanted[name]) for name in differing)
        raise ValueError(
            f"{folder} holds another store: {told}. What is in it would be silently wrong here. Name another folder, "
            "or delete this one."
        )


def _difference(name: str, found: Any, wanted: Any) -> str:
    if name != "sources":
        return f"`{name}` is {found!s:.120}, not {wanted!s:.120}"
    paths = [[f"{about['prefix']}:{about['path']}".lstrip(":") for about in sources] for sources in (found, wanted)]
    if paths[0] != paths[1]:
        return f"its sources are {paths[0]!s:.120}, not {paths[1]!s:.120}"
    changed = [path for path, one, other in zip(paths[0], found, wanted, strict=True) if one != other]
    return f"{', '.join(changed)} changed since then, or is read with other options"
