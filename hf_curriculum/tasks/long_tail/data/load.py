"""The entry point to labelled images of any format."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Image, Value

from hf_curriculum.columns import GUIDANCE, IMAGE, IMAGE_ID, LABEL, require_columns
from hf_curriculum.data.images import MAX_PIXELS
from hf_curriculum.data.readers.columns import as_images, with_ids
from hf_curriculum.data.readers.folder import locate_images
from hf_curriculum.data.readers.outside_files import validate_inside
from hf_curriculum.data.request import Request, choose_split, is_for_datasets, keep_readable, one_or_all
from hf_curriculum.provenance import read_column
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.tasks.long_tail.data.classes import Classes, encode_labels
from hf_curriculum.tasks.long_tail.data.sources import class_folders, find_column, is_iwildcam, read_files

logger: logging.Logger = logging.getLogger(__name__)


@validate_arguments
def load_labelled(
    source: str | Path | Dataset | DatasetDict,
    *,
    images: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    classes: Classes | None = None,
    split: str | None = None,
    check_images: bool = True,
    unreadable_log: str | Path | None = None,
    num_proc: int | None = None,
    allow_outside: bool = False,
    max_pixels: int = MAX_PIXELS,
    **load_dataset_options: Any,
) -> Dataset | DatasetDict:
    """Loads images with one class each from any usual source, one row per image.

    Columns: `image` (`datasets.Image`: a path or the file's bytes, decoded on access), `label` (`ClassLabel`, the same
    classes in every split), `image_id` (string) and what else the source holds. What is left out is counted in one
    warning: hidden files, others than images, fields of several types.

    Args:
        source: a loaded data set, a name on the Hub, or a path: a folder of class folders, ImageNet-LT's lists, a
            .csv, .tsv or .jsonl, iWildCam-WILDS v2, Parquet. `RULES` of `tasks.long_tail.data.sources` lists the
            recognised forms, as does the error when none fits.
        images: the folder that names in a list or table are relative to; None: the file's own folder.
        columns: our name -> theirs, `{"image": "img", "label": "fine_label", "image_id": "id"}`. Names left out are
            looked for under their usual aliases. Without an image id, it is the file name (files) or a digest of the
            image (data sets).
        classes: the classes' names in the order of their numbers; a mapping from their numbers, or from the names in
            the data (`{"n01440764": "tench"}`); or a file of either. None: as in the data: the names of folders,
            sorted names, or the numbers from 0 to the largest. Give the training data's if you load splits one by one.
        split: one split alone.
        check_images: decode each image once now. Rows with unreadable ones are left out, counted in a warning and
            named in a log. Verdicts are cached.
        unreadable_log: where that log is written, rather than to the cache of `datasets`.
        num_proc: processes that check images.
        allow_outside: read images outside of the source's folder and of `images`, for a source that you trust.
        max_pixels: images of more pixels are not decoded, and count as unreadable.
        load_dataset_options: further arguments of `datasets.load_dataset`, for sources that it loads.

    Returns:
        A `DatasetDict` where the source has splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: the path, the folder of images or the file of classes does not exist, or holds none of the
            images.
        ValueError: no reader recognises the source, a column is missing, a class folder is empty, a label is unknown,
            an argument has no effect, or no image can be read. Or an image of files has two classes (of a data set
            that is a warning), names of classes look the same, or folders of classes are in one folder.
        TypeError: the source is no data set, or a streamed one.

    Example:
        >>> import tempfile, PIL.Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     PIL.Image.new("RGB", (8, 8)).save(folder / name / "1.png")
        >>> data = load_labelled(folder)
        >>> data.features["label"].names, data["image_id"][:]
        (['cat', 'dog'], ['cat/1.png', 'dog/1.png'])
        >>> train = load_labelled("ImageNet_LT_train.txt", images="ILSVRC2012")  # doctest: +SKIP
        >>> wild = load_labelled("iwildcam_v2.0")  # train, val, test, id_val, id_test  # doctest: +SKIP
    """
    _validate_columns(columns)
    request = Request("load_labelled", source, images, columns, split, allow_outside, load_dataset_options)
    path = request.path
    read = _read_files if path is not None and path.exists() and _is_files(path) else _read_with_datasets
    splits = read(request, classes)
    if several := _of_several_classes(splits):
        problem = f"{several} An image has one class: what a model learns of it would contradict itself."
        if read is _read_files:
            raise ValueError(f"{problem} Remove all rows of it but one from {request.source}.")
        logger.warning(problem)
    splits = keep_readable(splits, check_images, log_path=unreadable_log, num_proc=num_proc, max_pixels=max_pixels)
    request.left_out.report(request.source, splits.values())
    return one_or_all(splits)


def _of_several_classes(splits: Mapping[str, Dataset]) -> str:
    """Which image has two classes, a sentence; "" where none has."""
    columns = [{name: read_column(part, name) for name in (IMAGE_ID, LABEL)} for part in splits.values()]
    table = pa.concat_tables([pa.table(of_part) for of_part in columns], promote_options="permissive")
    least = table.group_by(IMAGE_ID).aggregate([(LABEL, "min"), (LABEL, "max")])
    several = least.filter(pc.not_equal(least[f"{LABEL}_min"], least[f"{LABEL}_max"]))
    if not several:
        return ""
    names = next(iter(splits.values())).features[LABEL].names
    first = several.slice(0, 1).to_pylist()[0]
    both = " and ".join(repr(names[first[f"{LABEL}_{end}"]]) for end in ("min", "max"))
    return f"The image {first[IMAGE_ID]!r} is of the classes {both} ({len(several):,} images are of several)."


def _is_files(path: Path) -> bool:
    """Whether a path is read here, and not by `datasets`."""
    return not is_for_datasets(path) or (path.is_dir() and (is_iwildcam(path) or bool(class_folders(path))))


def _read_with_datasets(request: Request, classes: Classes | None) -> dict[str, Dataset]:
    # All splits are loaded: together they have the classes.
    splits = {name: _adopt(part, request) for name, part in request.load(None).items()}
    splits = choose_split(_as_class_labels(splits, classes, request.source), request.split)
    request.validate_named_files(splits)
    return {name: with_ids(part) for name, part in splits.items()}


def _read_files(request: Request, classes: Classes | None) -> dict[str, Dataset]:
    """Split → data set of files, with the images as paths."""
    request.validate_options()
    path = request.path
    found = read_files(path, request.columns, request.left_out)
    folder = found.folder if request.images is None else Path(request.images)
    labels, feature = encode_labels(
        {name: table[LABEL] for name, table in found.splits.items()}, classes, found.names, path
    )
    tables = {name: {**table, LABEL: labels[name]} for name, table in found.splits.items()}
    splits = {}
    for name, table in choose_split(tables, request.split).items():
        files = [str(file) for file in table["file_name"]]
        paths = locate_images(folder, files)
        if not request.allow_outside:
            validate_inside(paths, [path if path.is_dir() else path.parent, folder], path)
        own = {key: values for key, values in table.items() if key not in ("file_name", IMAGE, IMAGE_ID)}
        rows = Dataset.from_dict({IMAGE: paths, **own, IMAGE_ID: table.get(IMAGE_ID, files)})
        rows = rows.cast_column(IMAGE, Image()).cast_column(LABEL, feature)
        splits[name] = rows.cast_column(GUIDANCE, Value("float32")) if GUIDANCE in own else rows
    return splits


def _validate_columns(columns: Mapping[str, str] | None) -> None:
    unknown = [name for name in columns or {} if name not in (IMAGE, LABEL, IMAGE_ID)]
    if unknown:
        raise ValueError(
            f"`columns` has the keys {unknown}. It maps our names {[IMAGE, LABEL, IMAGE_ID]} to those of the data: "
            f"columns={{'label': '{unknown[0]}'}} if `{unknown[0]}` holds the classes."
        )


def _adopt(dataset: Dataset, request: Request) -> Dataset:
    """A data set with its columns under our names; it may still lack `image_id`."""
    columns = request.columns
    dataset = dataset.with_format(None)
    theirs = {name: find_column(dataset.column_names, name, columns) for name in (IMAGE, LABEL, IMAGE_ID)}
    wanted = [theirs[name] or (columns or {}).get(name, name) for name in (IMAGE, LABEL)]
    require_columns(
        dataset.column_names,
        wanted,
        reader="`load_labelled` reads them.",
        remedy="Name yours: columns={'image': ..., 'label': ...}.",
    )
    renamed = {theirs[name]: name for name in (IMAGE, LABEL, IMAGE_ID) if theirs[name] not in (None, name)}
    taken = [name for name in renamed.values() if name in dataset.column_names]
    if taken:
        raise ValueError(
            f"The data has columns {taken} already, which {renamed} would overwrite. Remove or rename them first: "
            f"dataset.remove_columns({taken})."
        )
    for name, ours in renamed.items():
        logger.info("Column `%s` is taken for `%s`; name another with columns={'%s': ...}.", name, ours, ours)
    dataset = dataset.rename_columns(renamed) if renamed else dataset
    beside = request.roots[0] if request.path is not None and request.path.exists() else None
    return as_images(dataset, request.images, beside)


def _as_class_labels(splits: Mapping[str, Dataset], classes: Classes | None, source: object) -> dict[str, Dataset]:
    """The splits with one `ClassLabel` for all of them."""
    found = {name: part.features[LABEL] for name, part in splits.items()}
    first = next(iter(found.values()))
    if classes is None and isinstance(first, ClassLabel) and all(one == first for one in found.values()):
        return dict(splits)
    if any(isinstance(one, ClassLabel) for one in found.values()) and any(one != first for one in found.values()):
        raise ValueError(
            f"`{LABEL}` has other classes in some splits than in others ({found}): one number would stand for several "
            "classes. Load them one by one with the same `classes=`."
        )
    known = dict(enumerate(first.names)) if isinstance(first, ClassLabel) else {}
    name = f"`{LABEL}` of {source}" if isinstance(source, (str, Path)) else f"`{LABEL}`"
    labels, feature = encode_labels({split: part[LABEL][:] for split, part in splits.items()}, classes, known, name)
    return {
        split: part.remove_columns(LABEL).add_column(LABEL, labels[split]).cast_column(LABEL, feature)
        for split, part in splits.items()
    }
