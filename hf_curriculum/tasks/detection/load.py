"""Images with annotated objects and no captions: COCO's instances and PASCAL VOC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, DatasetDict, Image

from hf_curriculum.columns import IMAGE, IMAGE_ID
from hf_curriculum.data.identity import warn_of_several_ids
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.boxes import Annotated, fit_objects
from hf_curriculum.data.readers.coco import OBJECTS, objects_array, read_instances, read_voc
from hf_curriculum.data.readers.folder import find_image_folder, locate_images, visible_files
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.readers.tables import FILE_NAME
from hf_curriculum.data.request import UNSPLIT, Request, choose_split, one_or_all
from hf_curriculum.data.text import open_text
from hf_curriculum.shapes import validate_arguments

_VOC_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_FOLDERS = ("JPEGImages", "Annotations")
_FLAG = re.compile(r"(?<!\s)\s+-?[01]$")
"""Behind a name in lists of one class: whether an image shows it."""


@validate_arguments
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
        are left out, and counted, as are lines that repeat an image. Boxes are of the image as it is read: where EXIF
        turns it and the file gives it the stored size, they are turned too.

    Raises:
        FileNotFoundError: there is no such file or folder, or none of its images.
        ValueError: the source is of another kind or damaged, has no categories or two of one name or id, or two images
            of one id. Or boxes lie beyond their images, or are shares of the sides, or images have another size than
            in the file. Or there is no such split, or none of VOC's three.

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
    found = [one for one in read_instances(path, request.left_out).values() if one.name]
    names = [one.name for one in found]
    folder = find_image_folder(path, names) if request.images is None else Path(request.images)
    if folder is None:
        raise FileNotFoundError(
            f"No images are next to {path}, which lists {len(names):,}. Name their folder: `images=`."
        )
    paths = locate_images(folder, names)
    if not request.allow_outside:
        validate_inside(paths, [folder], path)
    rows = _rows(path, found, [one.image_id for one in found], paths, request.left_out)
    request.left_out.report(path, [rows])
    warn_of_several_ids(rows)
    return rows


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
    lists = _voc_lists(path / "ImageSets" / "Main", request.split)
    stems = {name: _stems(file, request.left_out) for name, file in lists.items()}
    notes = {stem: path / _FOLDERS[1] / f"{stem}.xml" for of_split in stems.values() for stem in of_split}
    if not request.allow_outside:
        named = [*map(str, notes.values()), *(str(folder.absolute() / f"{stem}.jpg") for stem in notes)]
        validate_inside(named, [path, folder], path)
    there = {f"{stem}.jpg": note for stem, note in notes.items() if note.is_file()}
    objects = {one.name: one for one in read_voc(path, there)}
    for item in (item for one in objects.values() for item in one.objects):
        item.setdefault("difficult", False)
    splits = {}
    for name, of_split in stems.items():
        paths = [str(folder.absolute() / f"{stem}.jpg") for stem in of_split]
        found = [objects.get(f"{stem}.jpg", Annotated(f"{stem}.jpg", "", None, None)) for stem in of_split]
        bare = [one.name for one in found if one.objects is None]
        if len(bare) < len(found):  # a test set has none at all
            request.left_out.add(
                f"annotations of images of {lists[name].name} (null)", len(bare), next(iter(bare), None)
            )
        splits[name] = _rows(lists[name], found, of_split, paths, request.left_out)
    request.left_out.report(path, splits.values())
    return splits


def _stems(file: Path, left_out: LeftOut) -> list[str]:
    """The images that a list names."""
    with open_text(file) as lines:
        listed = [line.strip() for line in lines if line.strip()]
    if all(map(_FLAG.search, listed)):
        listed = [_FLAG.sub("", line) for line in listed]
    left_out.add(f"lines of {file.name} that name an image again", len(listed) - len(set(listed)))
    return list(dict.fromkeys(listed))


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


def _rows(
    source: Path, found: Sequence[Annotated], ids: Sequence[str], paths: Sequence[str], left_out: LeftOut
) -> Dataset:
    """The data set of the images that are there; the others are counted."""
    there = [row for row, file in enumerate(paths) if Path(file).is_file()]
    if not there:
        raise FileNotFoundError(
            f"None of the {len(paths):,} images of {source} is there ({paths[0] if paths else 'it names none'}, for "
            "example). Boxes are of no use without images: name their folder, `images=`."
        )
    lost = [found[row].name for row in sorted({*range(len(paths))}.difference(there))]
    left_out.add(f"images of {source.name} that are missing", len(lost), ", ".join(lost[:3]))
    known = [row for row in there if found[row].objects is not None]
    stored = [{"bytes": None, "path": paths[row]} for row in known]
    fitted = fit_objects(source, [found[row] for row in known], stored, left_out)
    objects = dict(zip(known, fitted, strict=True))
    table = {IMAGE: [paths[row] for row in there], IMAGE_ID: [ids[row] for row in there]}
    table |= {FILE_NAME: [found[row].name for row in there]}
    arrays = {name: pa.array(values) for name, values in table.items()}
    boxes = objects_array(objects.get(row) for row in there)
    return Dataset(pa.table({**arrays, OBJECTS: boxes})).cast_column(IMAGE, Image())
