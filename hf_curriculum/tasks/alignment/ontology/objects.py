"""Which classes of objects images show, by any detector's regions, annotations or names."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.config import kind_of
from hf_curriculum.data.grouping import image_codes
from hf_curriculum.data.regions.base import Regions
from hf_curriculum.data.regions.open import open_regions
from hf_curriculum.data.regions.store import RegionStore, unclassified
from hf_curriculum.provenance import read_column

CLASS = ("noun", "name")
"""Entries of an object that may be its class: the first that is there; `name` is a phrase in the embedded scenes."""
CONFIDENCE = "confidence"
"""The entry of an object that says how sure a detector is of it."""


class ImageObjects(NamedTuple):
    """The classes that each image shows, each class of an image once.

    Args:
        names: of the classes, sorted.
        images: the image of each row of the pairs, a number from 0 on, int64 (rows,).
        offsets: where the classes of each image begin in `classes`, int64 (images + 1,).
        classes: ascending within an image, int32.
    """

    names: tuple[str, ...]
    images: np.ndarray
    offsets: np.ndarray
    classes: np.ndarray

    @property
    def has_any(self) -> np.ndarray:
        """Whether each image shows an object, bool (images,)."""
        return np.diff(self.offsets) > 0

    def shows(self, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Whether each of these images shows the class beside it; no class (−1) is in no image. bool (n,)."""
        width = len(self.names) + 1
        keys = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets)) * width + self.classes
        asked = images.astype(np.int64) * width + classes
        at = np.minimum(np.searchsorted(keys, asked), max(len(keys) - 1, 0))
        return (keys[at] == asked) & (classes >= 0) if len(keys) else np.zeros(len(asked), bool)


def read_objects(pairs: Dataset, objects: Any, *, min_confidence: float = 0.0) -> ImageObjects:
    """The classes of each image of pairs.

    Args:
        pairs: with `image_id`.
        objects: where the classes are: the name of a column of the pairs (lists of objects, each with `name`, or with
            `noun` as in the embedded scenes); a `RegionStore`, a file that `open_regions` reads or a mapping of image
            id → `Regions` or names; or a list of these, of which the first that has an image counts.
        min_confidence: regions, and objects of a column, below do not count, where they have a `confidence`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no image of the pairs has an object, the column is missing or stands in a list, or regions have no
            classes.
        TypeError: `objects` is something else, or an image's entry is one name in place of several.
    """
    require_columns(
        pairs.column_names, [IMAGE_ID], reader="Objects belong to images.", remedy="`load_captioned` derives it."
    )
    ids = read_column(pairs, IMAGE_ID)
    images = image_codes(pairs)
    if isinstance(objects, str) and objects in pairs.column_names:
        shown, classes, names = _of_column(pairs, objects, images, min_confidence)
    else:
        firsts = np.unique(images, return_index=True)[1]
        wanted = ids.take(pa.array(firsts)).to_pylist()
        shown, classes, names = _of_sources(wanted, _sources(pairs, objects), min_confidence)
    count = int(images.max(initial=-1)) + 1
    if not len(shown):
        raise ValueError(
            f"None of the {count:,} images of the pairs ({ids[0].as_py() if len(ids) else None!r}, for example) has "
            f"an object in {objects!r:.80}: no noun could be given a class. Both must be of the same images, under "
            "the same ids."
        )
    used = np.bincount(classes, minlength=len(names)) > 0  # a store knows classes that none of these images shows
    names, classes = [name for name, one in zip(names, used, strict=True) if one], (np.cumsum(used) - 1)[classes]
    order = np.argsort(names, kind="stable")
    rank = np.argsort(order)
    keys = np.unique(shown.astype(np.int64) * len(names) + rank[classes])
    offsets = np.searchsorted(keys, np.arange(count + 1) * len(names))
    return ImageObjects(tuple(names[place] for place in order), images, offsets, (keys % len(names)).astype(np.int32))


Found = tuple[np.ndarray, np.ndarray, list[str]]
"""(image, class) of each object, and the names of the classes."""


def _of_column(pairs: Dataset, column: str, images: np.ndarray, min_confidence: float) -> Found:
    """Of a column of lists of objects, with one row for each caption: those of all rows of an image."""
    values = read_column(pairs, column)
    kind = values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ValueError(
            f"`{column}` is {pairs.features[column]}, and a list of objects a row is needed, each with `name`."
        )
    rows, entries = pc.list_parent_indices(values).to_numpy(), values.flatten()
    if pa.types.is_struct(entries.type):
        fields = [entries.type.field(at).name for at in range(entries.type.num_fields)]
        name = next((one for one in CLASS if one in fields), None)
        if name is None:
            raise ValueError(
                f"The objects of `{column}` have {fields}, and no `name`: their classes are unknown. Rename the entry "
                "that says what an object is."
            )
        if CONFIDENCE in fields and min_confidence > 0:
            sure = pc.fill_null(pc.greater_equal(pc.struct_field(entries, CONFIDENCE), min_confidence), True)
            rows, entries = rows[sure.to_numpy(zero_copy_only=False)], entries.filter(sure)
        entries = pc.struct_field(entries, name)
    if not (pa.types.is_string(entries.type) or pa.types.is_large_string(entries.type)):
        raise ValueError(f"The classes of `{column}` are {entries.type}, not names. Give each object its `name`.")
    coded = entries.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy()
    return images[rows[codes >= 0]], codes[codes >= 0], coded.dictionary.to_pylist()


def _sources(pairs: Dataset, objects: Any) -> list[Mapping[str, Any]]:
    """What has the regions of images: files opened, several as one."""
    several = isinstance(objects, Sequence) and not isinstance(objects, str)
    opened: list[Mapping[str, Any]] = []
    for one in objects if several else [objects]:
        if isinstance(one, (str, Path)):
            if several and one in pairs.column_names:
                raise ValueError(
                    f"`objects` names the column `{one}` in a list of sources. A column says what every image shows, "
                    "so nothing would be left to the others. Name it alone, or files and stores."
                )
            if not Path(one).exists():
                raise FileNotFoundError(
                    f"There are no objects in {str(one)!r}: the pairs have no such column (they have "
                    f"{pairs.column_names}), and there is no such file or folder. Name one of them."
                )
            one = open_regions(one)
        if not isinstance(one, Mapping):
            raise TypeError(
                f"`objects` is {kind_of(one)}. It is a column of the pairs, a store or file of regions, a mapping of "
                "image id to `Regions` or to names of classes, or a list of these."
            )
        opened.append(one)
    return opened


def _of_sources(ids: list[str], sources: Sequence[Mapping[str, Any]], min_confidence: float) -> Found:
    """Of the first source that has an image; images without a region are in none."""
    numbers: dict[str, int] = {}
    images, classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    left = np.arange(len(ids))
    for source in sources:
        read = _of_store if isinstance(source, RegionStore) else _of_mapping
        stored, places, codes = read(source, [ids[place] for place in left], min_confidence, numbers)
        images.append(left[places])
        classes.append(codes)
        left = left[~stored]
    return np.concatenate(images), np.concatenate(classes), list(numbers)


Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Whether each image is in a source, the image of each object there, and its class."""


def _of_store(store: RegionStore, ids: Sequence[str], min_confidence: float, numbers: dict[str, int]) -> Part:
    """All images of a store at once."""
    stored, images, codes = store.class_codes(ids, min_confidence)
    names = store.facts.get("classes") or []
    number = np.array([numbers.setdefault(str(name), len(numbers)) for name in names], np.int64)
    return stored, images, number[codes] if len(codes) else np.zeros(0, np.int64)


def _of_mapping(source: Mapping[str, Any], ids: Sequence[str], min_confidence: float, numbers: dict[str, int]) -> Part:
    stored = np.array([image in source for image in ids], bool)
    images, classes = array("q"), array("q")
    for place in np.flatnonzero(stored).tolist():
        found = source[ids[place]]
        names = _named(found, min_confidence) if isinstance(found, Regions) else found
        if isinstance(names, str):
            raise TypeError(
                f"`objects` gives the image {ids[place]!r} the text {names!r}, each letter of which would be a class. "
                "Give it a list of names, of one too."
            )
        codes = [numbers.setdefault(str(name), len(numbers)) for name in dict.fromkeys(names) if name is not None]
        images.extend([place] * len(codes))
        classes.extend(codes)
    return stored, np.array(images, np.int64), np.array(classes, np.int64)


def _named(regions: Regions, min_confidence: float) -> Sequence[str]:
    """The classes of regions that a detector is sure of."""
    if not len(regions):
        return ()
    if regions.classes is None:
        raise ValueError(unclassified(regions.image_id))
    if regions.confidence is None or min_confidence <= 0:
        return regions.classes
    return [name for name, sure in zip(regions.classes, regions.confidence, strict=True) if sure >= min_confidence]
