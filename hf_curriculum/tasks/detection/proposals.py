"""Proposals of object boxes: found, read, written, added as a column."""

from __future__ import annotations

import logging
from copy import copy
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Image, List, Value

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.data.images import UnreadableImageError, image_size
from hf_curriculum.data.proposals import SelectiveSearch, StoredProposals, import_opencv
from hf_curriculum.data.regions.base import RegionSource
from hf_curriculum.files import own_folder, resolved, write_atomically
from hf_curriculum.provenance import ScoreProvenance, installed_versions, read_column
from hf_curriculum.scoring.per_image import ImageColumns, add_per_image
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

PROPOSALS = "proposals"
"""The column of boxes: [left, top, right, bottom] in pixels of the stored image."""
OBJECTNESS = "objectness"
"""The column of a number per box, larger where an object is more likely."""
_BOXES = List(List(Value("float32"), length=4))
_SCORES = List(Value("float32"))


@validate_arguments
def add_proposals(
    dataset: Dataset | DatasetDict,
    source: SelectiveSearch | StoredProposals | RegionSource | str | Path,
    *,
    num_proc: int | None = None,
    image_column: str = IMAGE,
    part_images: int = 100,
    folder: str | Path | None = None,
    drop_empty: bool = False,
    load_from_cache_file: bool = True,
    overwrite: bool = False,
    timeout: float = 6 * 3600,
    first_only: bool = False,
) -> Dataset | DatasetDict | None:
    """Adds a column of region proposals, boxes that may hold an object, and their objectness if known.

    Each image is searched once for all rows with its `image_id`. No image is written again: the columns are appended,
    16 bytes a box, also to a shuffled or filtered data set, whose order is kept. Results are kept in parts: a killed
    call continues with the missing ones, and the same call again searches nothing. A file of proposals that has
    changed since, by size or time, is read anew. Under `accelerate launch` or `torchrun` each process searches its
    part, and all get the result. The boxes do not depend on the number of processes.

    Args:
        dataset: images with `image_id`, one row per image or per caption; one split or several.
        source: `SelectiveSearch(...)`, a file of proposals or one opened (see `open_regions`), or
            `StoredProposals(file, max_proposals)`.
        num_proc: processes that search; by default this one does.
        image_column: where the images are.
        part_images: images of a part, which is what a killed call loses.
        folder: where the parts are kept, on a disk that every launched process sees; by default in the cache of
            `datasets`.
        drop_empty: drop rows without any proposal, and those whose image cannot be read, because a detector cannot
            learn from them. Otherwise they have an empty list, or null. Both are counted in a warning.
        load_from_cache_file: False searches again, whatever is cached; parts in a named `folder`, and of other
            launched processes, are still read.
        overwrite: replace columns that exist, in place of an error.
        timeout: seconds to wait for other launched processes without a new part.
        first_only: only the first launched process waits for the others and returns the data set.

    Returns:
        The data set with the new columns last; with `first_only` None in launched processes other than the first.

    Shapes:
        `proposals`: per row a list of boxes, float32 [left, top, right, bottom] in pixels of the stored image, sorted,
            or in the order of their file;
        `objectness`: per row a list of float32, one per box.

    Raises:
        TypeError: not a data set, or a source of another kind.
        ValueError: a column is missing or exists already, or a file has none of these images. Or boxes of a file end
            before they begin or lie beyond their image; with `drop_empty`, no image has a proposal.
        ImportError: OpenCV with its contributed modules is missing.
        FileNotFoundError: there is no such file.
        TimeoutError: another process has stopped.

    Source: Nebbia & Kovashka 2024 (WSOD), §4: selective search for CC and RedCaps, MCG's files for COCO; 500 of an
    image as in Ye et al. 2019 (Cap2Det).

    Example:
        >>> from hf_curriculum.scenes.make import make_scenes
        >>> scenes = make_scenes(4, captions_per_image=1, validation=0, test=0)["train"]
        >>> boxed = add_proposals(scenes, SelectiveSearch(min_size=12))
        >>> len(boxed[0]["proposals"]) > 5, boxed.features["proposals"]
        (True, List(List(Value('float32'), length=4)))
    """
    if isinstance(source, (RegionSource, str, Path)):
        source = StoredProposals(source)
    columns = _Searched(source, image_column) if isinstance(source, SelectiveSearch) else _Read(source, image_column)
    if isinstance(columns, _Read):
        columns.look(dataset)
    found = add_per_image(
        dataset,
        columns,
        num_proc=num_proc,
        part_images=part_images,
        folder=folder,
        load_from_cache_file=load_from_cache_file,
        overwrite=overwrite,
        timeout=timeout,
        first_only=first_only,
    )
    return _without_empty(found) if drop_empty and found is not None else found


class _Searched(ImageColumns):
    """Proposals by selective search."""

    action = "Searching images"

    def __init__(self, source: Any, column: str) -> None:
        if isinstance(source, SelectiveSearch):
            import_opencv()
        self.source, self.column = source, column
        self.features = {PROPOSALS: _BOXES}

    @property
    def provenance(self) -> dict[str, ScoreProvenance]:
        search = isinstance(self.source, SelectiveSearch)
        made = {
            "scorer": type(self.source).__name__,
            "arguments": self.source.arguments(),
            "versions": installed_versions(("hf-curriculum", *self.source.packages)),
            "backend": "opencv" if search else None,
        }
        return {column: ScoreProvenance(column, **made) for column in self.features}

    def find(self, image_id: str, stored: Any) -> Any:
        return self.source(stored, image_id), None

    def assemble(self, found: list[Any]) -> dict[str, pa.Array]:
        boxes = [None if one is None else one[0] for one in found]
        kind = pa.list_(pa.float32(), 4)
        arrays = {PROPOSALS: _lists(boxes, lambda flat: pa.FixedSizeListArray.from_arrays(flat.ravel(), type=kind), 4)}
        if OBJECTNESS in self.features:
            scores = [None if one is None else one[1] for one in found]
            arrays[OBJECTNESS] = _lists(scores, pa.array)
        return arrays

    def report(self, dataset: Dataset, unreadable: list[str]) -> None:
        super().report(dataset, unreadable)
        counts = proposal_counts(dataset)
        known, empty = counts[counts >= 0], int((counts == 0).sum())
        if len(known):
            boxes = f"{int(known.sum()):,}"
            logger.info("%s: %s boxes in %s rows, median %g.", PROPOSALS, boxes, f"{len(known):,}", np.median(known))
        if empty:
            logger.warning(
                "%d of %d rows have images without any proposal, of which a detector learns nothing: pass "
                "`drop_empty=True`, or a smaller `min_size`.",
                empty,
                len(dataset),
            )


class _Read(_Searched):
    """Proposals from a file."""

    action = "Reading proposals"
    why_null = "their images cannot be read, or the file does not have them"

    def __init__(self, source: Any, column: str) -> None:
        super().__init__(source, column)
        self.stamp = source.source.stamp[1]

    def reopen(self) -> None:
        self.source = copy(self.source)
        self.source.source = copy(self.source.source)  # without its open files

    def look(self, dataset: Any) -> None:
        """Whether the file has objectness, by the first of the images that it knows."""
        parts = list(dataset.values()) if isinstance(dataset, DatasetDict) else [dataset]
        ids = (
            str(i) for part in parts if IMAGE_ID in part.column_names for i in read_column(part, IMAGE_ID).to_pylist()
        )
        first = None
        for first in ids:
            if first in self.source.source:
                if self.source.source[first].confidence is not None:
                    self.features = {PROPOSALS: _BOXES, OBJECTNESS: _SCORES}
                return
        if first is not None:
            raise ValueError(
                f"None of the images ({first!r}, for example) is in {self.source.source!r}, which has "
                f"{next(iter(self.source.source), None)!r}, for example. Proposals are found by `image_id`: give the "
                "file of these images, or rename the ids."
            )

    def find(self, image_id: str, stored: Any) -> Any:
        if image_id not in self.source.source:
            raise UnreadableImageError(f"{image_id!r} is not in {self.source.source!r}.")
        width, height = image_size(stored)
        if width is None or height is None:
            raise UnreadableImageError(f"The image {image_id!r} cannot be read, so its size is not known.")
        boxes, scores = self.source.boxes_of(image_id, width, height)
        return boxes, np.full(len(boxes), np.nan, np.float32) if scores is None else scores


def _lists(values: list[np.ndarray | None], inner: Any, width: int | None = None) -> pa.ListArray:
    """Arrays of each image, or None, as an Arrow list array."""
    shape = (0,) if width is None else (0, width)
    known = [np.zeros(shape, np.float32) if value is None else np.asarray(value, np.float32) for value in values]
    offsets = np.concatenate([[0], np.cumsum([len(value) for value in known])])
    flat = np.concatenate([np.zeros(shape, np.float32), *known])
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner(flat), mask=mask)


def proposal_counts(dataset: Dataset, column: str = PROPOSALS) -> np.ndarray:
    """The number of proposals of each row: int64 (rows,), -1 where there is null."""
    return pc.list_value_length(read_column(dataset, column)).fill_null(-1).to_numpy().astype(np.int64)


def _without_empty(dataset: Dataset | DatasetDict) -> Dataset | DatasetDict:
    """The rows with proposals; the others are counted in a warning."""
    if isinstance(dataset, DatasetDict):
        return DatasetDict({name: _without_empty(part) for name, part in dataset.items()})
    kept = np.flatnonzero(proposal_counts(dataset) > 0)
    if len(kept) == len(dataset):
        return dataset
    if not len(kept):
        raise ValueError(
            f"None of the {len(dataset)} images has a proposal, so nothing would be left. The images are smaller than "
            "`min_size` or cannot be read: look at some, or pass a smaller `min_size`."
        )
    logger.warning("%d of %d rows without proposals are left out.", len(dataset) - len(kept), len(dataset))
    return dataset.select(kept)


@validate_arguments
def write_proposals(
    dataset: Dataset, folder: str | Path, *, column: str = PROPOSALS, image_column: str = IMAGE
) -> Path:
    """Writes proposals to files in the layout of Cap2Det.

    An image's boxes go to `{id % 10}/{id}.npy`, as shares of the sides: top, left, bottom, right.
    `open_regions(folder)` and `add_proposals(data, folder)` read them again. Rows of one image write its file once.
    Zeros that an id begins with, as VOC's do, stay.

    Args:
        dataset: with boxes in pixels, images, and ids that are whole numbers, as COCO's.
        folder: where the files are written; those of the same images are replaced.
        column: the boxes: per row a list of [left, top, right, bottom]; rows with null are left out.
        image_column: the images, for their sizes.

    Returns:
        The folder.

    Raises:
        ValueError: a column is missing, an id is no whole number, or an image cannot be read.

    Source: Ye et al. 2019 (Cap2Det), released code.

    Example:
        >>> write_proposals(boxed, "proposals")  # doctest: +SKIP
    """
    require_columns(
        dataset.column_names,
        [IMAGE_ID, image_column, column],
        reader="Boxes are written as shares of their image's sides, in a file called by its id.",
        remedy="Run `add_proposals`, or name another column.",
    )
    rows = dataset.with_format(None).select_columns([IMAGE_ID, image_column, column])
    done = set()
    for row in rows.cast_column(image_column, Image(decode=False)):
        image_id, boxes = row[IMAGE_ID], row[column]
        if boxes is None or image_id in done:
            continue
        done.add(image_id)
        if not str(image_id).isdecimal():
            raise ValueError(
                f"The image {image_id!r} has no number, and this layout names files {{id % 10}}/{{id}}.npy. Map "
                "the ids to numbers, or keep the boxes as a column: dataset.save_to_disk(folder)."
            )
        width, height = image_size(row[image_column])
        if width is None or height is None:
            raise ValueError(
                f"The image {image_id!r} cannot be read, so its boxes cannot be written as shares of its sides. Leave "
                "its row out, or set its boxes to null."
            )
        edges = np.asarray(boxes, np.float32).reshape(-1, 4) / np.float32([width, height, width, height])
        content = BytesIO()
        np.save(content, edges[:, [1, 0, 3, 2]])
        inside = own_folder(resolved(folder) / str(int(image_id) % 10))
        write_atomically(inside / f"{image_id}.npy", content.getvalue())
    return Path(folder)
