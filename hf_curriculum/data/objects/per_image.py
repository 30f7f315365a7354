"""Columns that are found image by image, in parts: a run that was killed, or is shared, finds only what is missing."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, Image
from datasets.features.features import FeatureType
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.config import digest, kind_of, sole_writer
from hf_curriculum.data.images import UnreadableImageError
from hf_curriculum.data.objects.grouping import image_codes
from hf_curriculum.parts import PartFolder, data_digest, launched
from hf_curriculum.provenance import ScoreProvenance, append_columns, read_column, validate_new_columns

logger: logging.Logger = logging.getLogger(__name__)


class ImageColumns:
    """What is found in an image, and the columns that hold it.

    A subclass sets the attributes, and writes `find` and `assemble`.

    Attributes:
        features: written column → its feature.
        provenance: written column → where it comes from, the same in every process.
        column: the column of images, which `find` gets as it is stored.
        stamp: of the files that columns are read from, which makes parts of files that have changed since others;
            None where there are none but the images.
        action: what is done, for the progress bar.
        why_null: why there may be rows with null.
    """

    features: Mapping[str, FeatureType]
    provenance: Mapping[str, ScoreProvenance]
    column: str
    stamp: str | None = None
    action: str = "images"
    why_null: str = "their images cannot be read"

    def find(self, image_id: str, stored: Any) -> Any:
        """What is found in one image, by a worker process; an `UnreadableImageError` where there is no image."""
        raise NotImplementedError(f"{type(self).__name__} does not define `find`.")

    def assemble(self, found: list[Any]) -> dict[str, pa.Array]:
        """Written column → Arrow array (images,), of what `find` returned; None stands for an unreadable image."""
        raise NotImplementedError(f"{type(self).__name__} does not define `assemble`.")

    def reopen(self) -> None:
        """Opens files anew in a worker process: open ones would be read by several processes at one position."""

    def report(self, dataset: Dataset, unreadable: list[str]) -> None:
        """Warns of rows with null, with the first of the reasons that this call met."""
        column = next(iter(self.features))
        lost = read_column(dataset, column).null_count
        if lost:
            first = f" The first: {unreadable[0]}" if unreadable else ""
            logger.warning("`%s`: %d of %d rows have null: %s.%s", column, lost, len(dataset), self.why_null, first)


def add_per_image(
    dataset: Dataset | DatasetDict,
    columns: ImageColumns,
    *,
    num_proc: int | None,
    part_images: int,
    folder: str | Path | None,
    load_from_cache_file: bool,
    overwrite: bool,
    timeout: float,
    first_only: bool,
) -> Dataset | DatasetDict | None:
    """Appends the columns to one split or several: each image is looked at once for all rows with its `image_id`."""
    if part_images < 1 or (num_proc is not None and num_proc < 0):
        raise ValueError(
            f"`part_images={part_images}` and `num_proc={num_proc}` were given. A part has at least 1 image, and "
            "processes are counted from 0, which is this one alone."
        )
    if not isinstance(dataset, (Dataset, DatasetDict)):
        raise TypeError(
            f"{columns.action}: {kind_of(dataset)} was given. Images are assigned to parts by number: give a "
            "`Dataset` or a `DatasetDict`."
        )
    splits = dict(dataset) if isinstance(dataset, DatasetDict) else {"all": dataset}
    for part in splits.values():
        require_columns(
            part.column_names,
            [columns.column, IMAGE_ID],
            reader="Images are looked at, once for all rows of an id.",
            remedy="Pass `image_column=`, or load with `load_captioned`, which gives ids.",
        )
        if not isinstance(part.features[columns.column], Image):
            raise ValueError(
                f"`{columns.column}` holds {part.features[columns.column]}, and images are `datasets.Image`. Load "
                "with `load_captioned`, or cast the column: dataset.cast_column(column, datasets.Image())."
            )
        validate_new_columns(part.column_names, columns.features, overwrite)
    found, rank, added = {}, launched()[0], {}
    share = f"the share of process {rank} in {folder}"
    with nullcontext() if folder is None else sole_writer(share, Path(folder) / f".{rank}.lock"):
        for name, part in splits.items():
            place = None if folder is None else Path(folder) / name
            found[name] = _find(part, columns, num_proc or 0, part_images, place, load_from_cache_file)
        if first_only and rank:
            return None
        for name, (parts, codes, unreadable) in found.items():
            added[name] = _append(splits[name], columns, parts, codes, timeout)
            if rank == 0:
                columns.report(added[name], unreadable)
    return DatasetDict(added) if isinstance(dataset, DatasetDict) else added["all"]


def _find(
    dataset: Dataset,
    columns: ImageColumns,
    num_workers: int,
    step: int,
    folder: Path | None,
    load_from_cache_file: bool,
) -> tuple[PartFolder, np.ndarray, list[str]]:
    """Writes this process's parts; with them the image of each row, (rows,), and why images could not be read."""
    codes = image_codes(dataset)
    first = np.unique(codes, return_index=True)[1]
    inputs = dataset.with_format(None).select_columns([columns.column, IMAGE_ID]).select(first)
    inputs = inputs.cast_column(columns.column, Image(decode=False))
    made = {column: provenance.to_dict() for column, provenance in columns.provenance.items()}
    manifest = {"data": data_digest(inputs), "columns": made}
    if columns.stamp is not None:
        manifest["files"] = columns.stamp
    rank, world_size = launched()
    if folder is None:
        key = digest(json.dumps([manifest, step], sort_keys=True), size=12)
        folder = Path(datasets.config.HF_DATASETS_CACHE, "hf_curriculum", "images", key)
        if not load_from_cache_file and world_size == 1:
            shutil.rmtree(folder, ignore_errors=True)
    parts = PartFolder(folder, manifest, len(inputs), step, single_process=world_size == 1)
    own = range(parts.count * rank // world_size, parts.count * (rank + 1) // world_size)
    return parts, codes, _find_missing(parts, own, inputs, columns, num_workers)


def _append(dataset: Dataset, columns: ImageColumns, parts: PartFolder, codes: np.ndarray, timeout: float) -> Dataset:
    """The data set with what all processes found; `codes` (rows,) is the image of each row."""
    found = parts.read_all(timeout) if parts.count else pa.table(columns.assemble([]))
    if parts.rows < len(codes):
        found = found.take(pa.array(codes))
    values = {column: found[column] for column in columns.features}
    return append_columns(dataset, values, columns.provenance, features=columns.features, overwrite=True)


def _find_missing(
    parts: PartFolder, own: range, inputs: Dataset, columns: ImageColumns, num_workers: int
) -> list[str]:
    """Writes those of this process's parts that are missing; why images could not be read."""
    missing, unreadable = parts.missing(own), []
    batches = [list(parts.rows_of(part)) for part in missing]
    # workers of a DataLoader end when this process is killed; each takes a part at a time
    loader = DataLoader(
        _Found(inputs, columns),
        batch_sampler=batches,
        collate_fn=list,
        num_workers=min(num_workers, len(missing)),
        worker_init_fn=_reopen,
        generator=torch.Generator(),  # the caller's is left
    )
    images = sum(map(len, batches))
    with tqdm(total=images, desc=columns.action, unit="image", delay=2, disable=None) as bar:
        for part, found in zip(missing, loader, strict=True):
            for row, one in enumerate(found):
                if isinstance(one, UnreadableImageError):
                    unreadable.append(str(one))
                    found[row] = None
                elif isinstance(one, Exception):
                    raise one
            parts.write(part, columns.assemble(found))
            bar.update(len(found))
            logger.debug("%s: part %d of %d is written.", parts.folder, part + 1, parts.count)
    return unreadable


def _reopen(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.columns.reopen()


class _Found(torch.utils.data.Dataset):
    """What is found in each image; errors as values, since a DataLoader would wrap them."""

    def __init__(self, inputs: Dataset, columns: ImageColumns) -> None:
        self.inputs, self.columns = inputs, columns

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> Any:
        inputs = self.inputs[row]
        try:
            return self.columns.find(str(inputs[IMAGE_ID]), inputs[self.columns.column])
        except (ValueError, OSError, KeyError) as error:
            return error
