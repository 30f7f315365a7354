"""Images with annotated objects and no captions: COCO's instances and PASCAL VOC."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, Image

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.images import image_size
from hf_curriculum.data.readers.coco import OBJECTS, Objects, objects_array, read_instances, read_xml
from hf_curriculum.data.readers.folder import find_image_folder, locate_images, visible_files
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.tables import FILE_NAME
from hf_curriculum.data.request import UNSPLIT, Request, choose_split, one_or_all
from hf_curriculum.data.text import open_text

logger: logging.Logger = logging.getLogger(__name__)

_VOC_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_LOOKS = 100  # images whose headers are compared with the file's sizes
_FOLDERS = ("JPEGImages", "Annotations")
_FLAG = re.compile(r"\s+-?[01]$")
"""Behind a name in lists of one class: whether an image shows it."""


def load_objects(
    source: str | Path, *, images: str | Path | None = None, split: str | None = None, allow_outside: bool = False
) -> Dataset | DatasetDict:
    """Loads images with boxes of their objects, one row per image, to evaluate detectors or as labels.

    `load_captioned(captions, objects=source)` loads boxes together with captions.

    Args:
        source: COCO's instances_*.json (.gz or not), or a folder of PASCAL VOC such as VOCdevkit/VOC2007, with
            `JPEGImages`, `Annotations` and `ImageSets/Main`.
        images: the folder of images; by default next to the file, or VOC's `JPEGImages`.
        split: of VOC one list of `ImageSets/Main` alone: "trainval", say.
        allow_outside: read images outside of the source's folder and of `images`, see `load_captioned`.

    Returns:
        Columns `image`, `image_id` (COCO's id, VOC's name, as strings), `file_name`, `objects`: per row a list of
        `{"box": [left, top, right, bottom], "name": ...}` in pixels, of COCO with `area` and `iscrowd`, of VOC with
        `difficult`. For VOC, a `DatasetDict` of those of `train`, `validation` and `test` that exist. Missing images
        are left out, and counted.

    Raises:
        FileNotFoundError: there is no such file or folder, or none of its images.
        ValueError: the source is of another kind or damaged, or has no categories or two of one name. Or boxes lie
            beyond their images, images have another size than in the file, or there is no such split, or none of VOC's
            three.

    Source: Lin et al. 2014 (COCO); Everingham et al. 2010 (PASCAL VOC).

    Example:
        >>> val = load_objects("annotations/instances_val2017.json", images="val2017")  # doctest: +SKIP
        >>> test = load_objects("VOCdevkit/VOC2007", split="test")  # doctest: +SKIP
    """
    request = Request("load_objects", Path(source), images, None, split, allow_outside)
    if not request.path.exists():
        raise FileNotFoundError(f"There is no file or folder {request.path} with objects.")
    return one_or_all(_read_voc(request) if request.path.is_dir() else {UNSPLIT: _read_coco(request)})


def _read_coco(request: Request) -> Dataset:
    """The images of an instances_*.json."""
    path = request.path
    if request.split is not None:
        raise ValueError(
            f"`split={request.split!r}` was given, and COCO keeps each split in a file of its own. Leave it out."
        )
    found = [(image, objects) for image, objects in read_instances(path).values() if image]
    names = [image["file_name"] for image, _ in found]
    folder = find_image_folder(path, names) if request.images is None else Path(request.images)
    if folder is None:
        raise FileNotFoundError(
            f"No images are next to {path}, which lists {len(names):,}. Name their folder: `images=`."
        )
    paths = locate_images(folder, names)
    if not request.allow_outside:
        validate_inside(paths, [folder], path)
    rows = [(str(image["id"]), name, objects) for (image, objects), name in zip(found, names, strict=True)]
    kept = _rows(path, rows, paths)
    _validate_sizes(path, kept, {str(image["id"]): (image.get("width"), image.get("height")) for image, _ in found})
    return kept


def _read_voc(request: Request) -> dict[str, Dataset]:
    """Split → the images of a list of `ImageSets/Main`."""
    path, images = request.path, request.images
    missing = [name for name in (*_FOLDERS[images is not None :], "ImageSets/Main") if not (path / name).is_dir()]
    if missing:
        found = sorted(entry.name for entry in path.iterdir())[:10]
        raise ValueError(
            f"{path} has no {', '.join(missing)}; it holds {found}. A folder of PASCAL VOC has JPEGImages, "
            "Annotations and ImageSets/Main: name VOCdevkit/VOC2007 or its like. COCO's instances are a .json file."
        )
    folder = Path(images) if images is not None else path / _FOLDERS[0]
    splits = {}
    for name, file in _voc_lists(path / "ImageSets" / "Main", request.split).items():
        with open_text(file) as lines:
            listed = [line.strip() for line in lines if line.strip()]
        if all(map(_FLAG.search, listed)):
            listed = [_FLAG.sub("", line) for line in listed]
        stems = list(dict.fromkeys(listed))
        request.left_out.add(f"lines of {file.name} that name an image again", len(listed) - len(stems))
        paths = [str(folder.absolute() / f"{stem}.jpg") for stem in stems]
        notes = [str(path / _FOLDERS[1] / f"{stem}.xml") for stem in stems]
        if not request.allow_outside:
            validate_inside([*paths, *notes], [path, folder], file)
        rows = [(stem, f"{stem}.jpg", _voc_objects(Path(note))) for stem, note in zip(stems, notes, strict=True)]
        bare = [stem for stem, _, objects in rows if objects is None]
        if len(bare) < len(rows):  # a test set has none at all
            request.left_out.add(f"annotations of images of {file.name} (null)", len(bare), next(iter(bare), None))
        splits[name] = _rows(file, rows, paths)
    request.left_out.report(path, splits.values())
    return splits


def _voc_lists(folder: Path, split: str | None) -> dict[str, Path]:
    """Split → its list of images."""
    files = {file.stem: file for file in visible_files(folder) if file.suffix == ".txt" and "_" not in file.stem}
    if split is not None:
        theirs = {ours: name for name, ours in _VOC_SPLITS.items()}.get(split, split)
        return choose_split({split if name == theirs else name: file for name, file in files.items()}, split)
    chosen = {ours: files[theirs] for theirs, ours in _VOC_SPLITS.items() if theirs in files}
    if not chosen:
        raise ValueError(
            f"{folder} has the lists {sorted(files)}, and none of {list(_VOC_SPLITS)}, which become splits: no "
            "image would be left. Name the list to read: `split=`."
        )
    return chosen


def _voc_objects(file: Path) -> Objects | None:
    """The objects of an image, `difficult` in each; None where it is not annotated."""
    if not file.is_file():
        return None
    return [{"difficult": False, **item} for item in read_xml(file)]


def _rows(source: Path, rows: Sequence[tuple[str, str, Any]], paths: Sequence[str]) -> Dataset:
    """The data set of the images that are there; the others are counted in a warning."""
    there = [Path(file).is_file() for file in paths]
    if not any(there):
        raise FileNotFoundError(
            f"None of the {len(paths):,} images of {source} is there ({paths[0] if paths else 'it names none'}, for "
            "example). Boxes are of no use without images: name their folder, `images=`."
        )
    if not all(there):
        lost = [name for (_, name, _), here in zip(rows, there, strict=True) if not here]
        logger.warning("%d of %d images of %s are missing: %s ...", len(lost), len(rows), source, lost[:3])
    kept = [(path, *row) for path, row, here in zip(paths, rows, there, strict=True) if here]
    files, ids, names, objects = zip(*kept, strict=True)
    table = {IMAGE: pa.array(files), IMAGE_ID: pa.array(ids), FILE_NAME: pa.array(names)}
    return Dataset(pa.table({**table, OBJECTS: objects_array(objects)})).cast_column(IMAGE, Image())


def _validate_sizes(source: Path, rows: Dataset, sizes: dict[str, tuple[Any, Any]]) -> None:
    """A `ValueError` where images, of a sample, have another size than the file of their boxes says."""
    stored = rows.cast_column(IMAGE, Image(decode=False))
    for number in range(0, len(rows), max(1, len(rows) // _LOOKS)):
        row = stored[number]
        said, is_now = sizes[row[IMAGE_ID]], image_size(row[IMAGE])
        if all(said) and all(is_now) and said not in (is_now, is_now[::-1]):
            raise ValueError(
                f"{row[FILE_NAME]} has {is_now[0]} × {is_now[1]} pixels, and {source} says {said[0]} × {said[1]}: its "
                "boxes are of images of another size. Give the images that they were drawn on, or scale the boxes "
                "with the images."
            )
