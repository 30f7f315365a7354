"""The entry point to captioned images of any format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.config import redacted
from hf_curriculum.data.captions import TEXT_FIELDS, count_empty_captions, expand_captions, holds_text
from hf_curriculum.data.images import MAX_PIXELS
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.load_conversations import json_fields
from hf_curriculum.data.readers.coco import add_objects
from hf_curriculum.data.readers.columns import Columns, adopt, caption_columns, validate_mapping, with_ids
from hf_curriculum.data.readers.files import read_caption_files
from hf_curriculum.data.readers.folder import count_passed_over, find_caption_file, find_parquet_beside_images
from hf_curriculum.data.readers.img2dataset import is_img2dataset, load_img2dataset
from hf_curriculum.data.readers.redcaps import count_unkept, is_redcaps, load_redcaps, read_redcaps
from hf_curriculum.data.readers.url_lists import (
    download_folder,
    download_images,
    is_url_list,
    list_without_secrets,
    load_url_list,
    read_url_list,
    unasked,
)
from hf_curriculum.data.readers.webdataset import URL, is_webdataset, load_webdataset
from hf_curriculum.data.request import (
    UNSPLIT,
    Request,
    choose_split,
    is_for_datasets,
    keep_readable,
    one_or_all,
    validate_unused,
)
from hf_curriculum.data.text import ending
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)


@redacted()
@validate_arguments
def load_captioned(
    source: str | Path | Dataset | DatasetDict,
    *,
    images: str | Path | Literal[False] | None = None,
    columns: Columns | None = None,
    split: str | None = None,
    restval: str = "train",
    check_images: bool = True,
    unreadable_log: str | Path | None = None,
    num_proc: int | None = None,
    allow_outside: bool = False,
    max_pixels: int = MAX_PIXELS,
    download: bool = False,
    objects: str | Path | None = None,
    bad_rows: Literal["error", "drop"] = "error",
    **load_dataset_options: Any,
) -> Dataset | DatasetDict:
    """Loads captioned images from any usual source, one row per image-caption pair.

    Columns: `image` (`datasets.Image`: a path or the file's bytes, decoded on access), `caption` (string), `image_id`
    (string, shared by the captions of an image) and what else the source holds. Captions are left as they are; empty
    ones are counted in a warning (`drop_empty_captions`), and an image with an empty list of captions has one.

    Args:
        source: a loaded data set, a name on the Hub, or a path: `hf_curriculum.data.readers.files.RULES` lists the
            recognised forms, as does the error when none fits.
        images: the folder of images of a caption file. None looks for the names in the file's own folder and in
            `images/` next to it, and loads text alone, with a warning, if there is neither. False loads text alone. Of
            a list of addresses, the output folder of img2dataset.
        columns: our name -> theirs, `{"image": "img", "caption": "text", "image_id": "id"}`. A list names several
            columns of captions. Names left out are looked for under their usual aliases. Without an image id, it is
            the file name (caption files) or a digest of the image (data sets, archives). Of WebDataset archives, they
            are fields of the JSON files or endings of files, `{"image": "left.jpg", "caption": "title"}`.
        split: one split alone.
        restval: how Karpathy's split "restval" counts: as "train", as its own split ("keep") or not at all ("drop").
        check_images: decode each image once now. Rows with unreadable ones are left out, counted in a warning and
            named in a log. Verdicts are cached.
        unreadable_log: where that log is written, rather than to the cache of `datasets`.
        num_proc: processes that check images.
        allow_outside: read images outside of the source's folder and of `images`, wherever the source's names or links
            lead: for a source that you trust. A given `Dataset` is not checked.
        max_pixels: images of more pixels are not decoded, and count as unreadable (`check_images`).
        download: fetch images from the addresses that the source holds, into the cache of `datasets`. Failures are
            counted by reason, and their rows left out.
        objects: boxes of objects for the column `objects`, as `GroundTruthBoxes` reads it: COCO's or LVIS's JSON, or a
            folder of VOC's XML files. They join by names of files, one to one, and are turned as EXIF turns the image.
        bad_rows: a row that cannot be read is an error that names it. "drop" leaves such rows out and counts them.
        load_dataset_options: further arguments of `datasets.load_dataset`, for sources that it loads.

    Returns:
        A `DatasetDict` where the source has splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: the path, or the folder of images, does not exist, or holds none of the images.
        ValueError: no reader recognises the source, a column is missing, an argument would have no effect, or the
            source names images outside of its folder. Or no image can be read, or one is a FIFO or a device
            (`check_images` leaves such rows out). Or a name or an `image_id` stands for two images, or boxes are not
            of the images.
        TypeError: the source is no data set, or a streamed one.

    Example:
        >>> import tempfile, PIL.Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> PIL.Image.new("RGB", (8, 8)).save(folder / "a.png")
        >>> _ = (folder / "captions.jsonl").write_text('{"file_name": "a.png", "caption": "A dog."}')
        >>> load_captioned(folder)[0]["caption"]
        'A dog.'
        >>> data = load_captioned("captions_val2017.json", images="val2017")  # doctest: +SKIP
        >>> data = load_captioned("dataset_coco.json", images="coco", split="test")  # doctest: +SKIP
        >>> data = load_captioned("user/name", columns={"image": "img", "caption": "text"})  # doctest: +SKIP
    """
    validate_mapping(columns)
    request = Request(
        "load_captioned",
        source,
        images,
        columns,
        split,
        allow_outside,
        load_dataset_options,
        num_proc,
        restval,
        download,
        bad_rows,
    )
    splits, captions = _reader_of(request)(request)
    if objects is not None:
        splits = add_objects(splits, objects, request.left_out)
    splits = keep_readable(splits, check_images, log_path=unreadable_log, num_proc=num_proc, max_pixels=max_pixels)
    splits = {name: _one_caption_per_row(part, captions, request.left_out) for name, part in splits.items()}
    name = source if request.path else "The data set"
    if request.taken:
        taken = ", ".join(f"{ours} ← {theirs}" for ours, theirs in request.taken.items())
        logger.info("%s: read %s; `columns` names others (hf-curriculum score: --column).", name, taken)
    request.left_out.report(name, splits.values())
    return one_or_all(splits)


Read = tuple[dict[str, Dataset], list[str]]
"""Split → data set, and the columns of captions."""


def _reader_of(request: Request) -> Callable[[Request], Read]:
    """What reads a source."""
    path = request.path
    if path is None or not path.exists():
        return _read_with_datasets
    return next(read for is_theirs, read in _READERS if is_theirs(path))


def fields_of(source: str | Path) -> list[str] | None:
    """The columns of a source that `datasets` reads, or the fields in a file of JSON; None for other sources."""
    request = Request("load_captioned", source)
    reader = _reader_of(request)
    if reader is _read_with_datasets:
        return next(iter(request.load(None).values())).column_names
    if reader is not _read_files:
        return None
    file = find_caption_file(request.path) if request.path.is_dir() else None
    if file is not None and not file.resolve().is_relative_to(request.path.resolve()):
        return None  # a link that leads elsewhere is not opened: reading the source refuses it
    return json_fields(file or request.path)


def _read_img2dataset(request: Request) -> Read:
    _validate_list(replace(request, columns=None))
    _validate_one_text(request)
    unused = {"images": request.images} if request.images is not None else {}
    unused |= {"download": True} if request.download else {}
    validate_unused(unused, f"{request.path} holds its own images")
    rows = load_img2dataset(request.path, request.columns, **request.archive_options)
    return {UNSPLIT: rows}, [CAPTION]


def _read_webdataset(request: Request) -> Read:
    request.validate_options()
    unused = {"images": request.images} if request.images else {}
    unused |= {"download": True} if request.download else {}
    unused |= {} if request.restval == "train" else {"restval": request.restval}
    validate_unused(unused, f"{request.path} holds its own images")
    _validate_one_text(request)
    splits = load_webdataset(
        request.path,
        request.columns,
        images=request.images is not False,
        **request.archive_options,
        taken=request.taken,
    )
    return choose_split(splits, request.split), [CAPTION]


def _validate_one_text(request: Request) -> None:
    several = [name for name, theirs in (request.columns or {}).items() if not isinstance(theirs, str)]
    validate_unused(dict.fromkeys(several, "several columns"), "archives have one text for each sample")


def _read_redcaps(request: Request) -> Read:
    _validate_list(request)
    images = request.images
    if images is False:
        rows = Dataset(read_redcaps(request.path, request.reject))
    elif request.download or (images and is_img2dataset(Path(images))):
        return _read_url_list(request)
    else:
        rows = load_redcaps(request.path, images, allow_outside=request.allow_outside, reject=request.reject)
    count_unkept(request.path, rows, request.left_out)
    return {UNSPLIT: rows}, [CAPTION]


def _read_url_list(request: Request) -> Read:
    """A list of addresses, with the images that were downloaded."""
    _validate_list(request)
    path, images, download = request.path, request.images, request.download
    if images:
        validate_unused({"download": True} if download else {}, f"`images={str(images)!r}` has the images")
        rows = load_url_list(path, images, **request.archive_options)
    elif images is None and not download:
        raise unasked(path)
    else:
        rows = Dataset(read_url_list(path, request.reject))
        if images is None:
            rows = download_images(rows.add_column(IMAGE, rows[URL][:]), path)
    if ending(path).lower() == ".tsv":  # no header calls one of its columns `url`
        rows = list_without_secrets(rows)
    else:
        count_unkept(path, rows, request.left_out)
    return {UNSPLIT: rows}, [CAPTION]


def _validate_list(request: Request) -> None:
    """Raises if there are options that neither an output of `img2dataset` nor a list of addresses has."""
    request.validate_options()
    given = {"columns": request.columns, "split": request.split}
    given |= {} if request.restval == "train" else {"restval": request.restval}
    unused = {name: value for name, value in given.items() if value}
    validate_unused(unused, f"{request.path} has one split, and its columns are fixed")


def _read_files(request: Request) -> Read:
    return read_caption_files(request), [CAPTION]


def _read_parquet_beside_images(request: Request) -> Read:
    file = find_parquet_beside_images(request.path)
    count_passed_over(request.path, [file], request.left_out)
    return _read_with_datasets(replace(request, source=file))


def _read_with_datasets(request: Request) -> Read:
    """A data set, its columns under our names, with ids of images."""
    if request.restval != "train":
        validate_unused({"restval": request.restval}, "only Karpathy's files have such a split")
    loaded = request.load(request.split)
    found = next(iter(loaded.values())).column_names
    splits = {name: adopt(part, request) for name, part in loaded.items()}
    request.validate_named_files(splits, *([download_folder()] if request.download else []))
    splits = {name: with_ids(part, keep_images=request.images is not False) for name, part in splits.items()}
    return splits, caption_columns(request.columns, found)


_READERS: list[tuple[Callable[[Path], object], Callable[[Request], Read]]] = [
    (is_img2dataset, _read_img2dataset),
    (is_redcaps, _read_redcaps),
    (is_url_list, _read_url_list),
    (is_webdataset, _read_webdataset),
    (find_parquet_beside_images, _read_parquet_beside_images),
    (is_for_datasets, _read_with_datasets),
    (Path.exists, _read_files),
]
"""Whether a path is of a kind, and what reads it; asked in this order."""


_LIST = r"(?s)^\s*(\[\s*['\"{].*['\"}]\s*\]|\(\s*['\"].*['\"]\s*,.*\))\s*$"
"""What a list, or a tuple, of texts in Python or JSON looks like."""


def _one_caption_per_row(dataset: Dataset, captions: list[str], left_out: LeftOut) -> Dataset:
    for column in captions:
        record = getattr(dataset.features[column], "feature", dataset.features[column])
        names = list(record) if isinstance(record, Mapping) else []
        text = next((name for name in TEXT_FIELDS if name in names), None)
        for name in names:
            left_out.add(f"field `{name}` of captions (not kept)", len(dataset) * (name != text))
    if captions != [CAPTION] or not holds_text(dataset, CAPTION):
        dataset = expand_captions(dataset, captions)
    empty = count_empty_captions(dataset)
    if empty:
        logger.warning(
            "%d of %d captions are empty: hf_curriculum.data.captions.drop_empty_captions(dataset) removes them, and "
            "in a shell `hf-curriculum score --drop-empty`.",
            empty,
            len(dataset),
        )
    batches = dataset.select_columns([CAPTION]).with_format("arrow").iter(10_000)
    texts = (batch[CAPTION] for batch in batches)
    lists = [text for part in texts for text in part.filter(pc.match_substring_regex(part, _LIST)).to_pylist()]
    if lists:
        logger.warning(
            "Captions that look like lists of texts, and are read as one caption each: %d (%.80s, for example). Store "
            "several captions as columns, columns={'caption': ['first', 'second']}, or as lists in JSON Lines.",
            len(lists),
            lists[0],
        )
    return dataset
