"""The entry point to captioned images of any format."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import datasets
from datasets import Dataset, DatasetDict
from huggingface_hub.constants import HF_HUB_CACHE

from hf_curriculum.columns import CAPTION, IMAGE
from hf_curriculum.config import kind_of, special_file
from hf_curriculum.data.captions import count_empty_captions, expand_captions, holds_text
from hf_curriculum.data.image_files import drop_unreadable_images, validate_regular_files
from hf_curriculum.data.images import MAX_PIXELS
from hf_curriculum.data.readers.coco import add_objects
from hf_curriculum.data.readers.columns import (
    Columns,
    adopt,
    caption_columns,
    check_mapping,
    with_ids,
)
from hf_curriculum.data.readers.files import UNSPLIT, choose_split, read_caption_files, validate_unused
from hf_curriculum.data.readers.folder import (
    find_caption_file,
    find_parquet_beside_images,
    find_split_folders,
)
from hf_curriculum.data.readers.img2dataset import URL, is_img2dataset, load_img2dataset
from hf_curriculum.data.readers.outside_files import named_files, validate_folder, validate_inside
from hf_curriculum.data.readers.redcaps import is_redcaps, load_redcaps, read_redcaps
from hf_curriculum.data.readers.url_lists import (
    download_folder,
    download_images,
    is_url_list,
    load_url_list,
    read_url_list,
    unasked,
)

logger: logging.Logger = logging.getLogger(__name__)


ARROW_SUFFIXES = (".parquet", ".arrow")
SAVED_FILES = ("state.json", "dataset_dict.json")
"""Files of a folder that `save_to_disk` wrote."""


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
    **load_dataset_options: Any,
) -> Dataset | DatasetDict:
    """Captioned images from any usual source, one row per image-caption pair.

    Columns: `image` (`datasets.Image`: a path or the file's bytes, decoded on access), `caption` (string), `image_id`
    (string, shared by the captions of an image) and what else the source holds. Captions are left as they are; empty
    ones are counted in a warning (`drop_empty_captions`).

    Args:
        source: a loaded data set, a name on the Hub, or a path: `hf_curriculum.data.readers.files.RULES` says what is
            recognised, as does the error when nothing is.
        images: the folder of images of a caption file. None looks for the names in the file's own folder and in
            `images/` next to it, and loads text alone, with a warning, if there is neither. False loads text alone. Of
            a list of addresses, the output folder of img2dataset.
        columns: our name -> theirs, `{"image": "img", "caption": "text", "image_id": "id"}`. Several columns of
            captions may be given as a list. Names left out are looked for under their usual aliases. Where nothing
            holds an image id, it is the file name (caption files) or a digest of the image (data sets).
        split: one split alone.
        restval: what Karpathy's split "restval" counts as: "train", a split of its own ("keep") or nothing ("drop").
        check_images: decode each image once now. Rows with unreadable ones are left out, counted in a warning and
            named in a log. Verdicts are cached.
        unreadable_log: where that log is written, rather than to the cache of `datasets`.
        num_proc: processes that check images.
        allow_outside: read images outside of the source's folder and of `images`, wherever the source's names or links
            lead: for a source that you trust. A `Dataset` that is given names what its maker chose, and is not asked.
        max_pixels: images of more pixels are not decoded, and count as unreadable (`check_images`).
        download: fetch images of which the source holds the addresses, into the cache of `datasets`; what fails is
            counted by reason, and its rows left out.
        objects: boxes of objects for the column `objects`, as `GroundTruthBoxes` reads it: COCO's instances_*.json, or
            a folder of VOC's XML files.
        load_dataset_options: further arguments of `datasets.load_dataset`, for sources that it loads.

    Returns:
        A `DatasetDict` where the source has splits and `split` names none, or else a `Dataset`.

    Raises:
        FileNotFoundError: the path, or the folder of images, does not exist, or holds none of the images.
        ValueError: nothing recognises the source, a column is missing, an argument would have no effect, the source
            names images outside of its folder, no image can be read, or one is a FIFO or a device (without
            `check_images`, which leaves such rows out).
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
    check_mapping(columns)
    path = Path(source) if isinstance(source, (str, Path)) else None
    options: dict[str, Any] = {"images": images, "columns": columns, "split": split, "restval": restval}
    options |= {"allow_outside": allow_outside, "download": download}
    if path is not None and special_file(path) not in (None, "folder"):
        raise ValueError(f"{path} is a {special_file(path)}, not a file or folder of captions. Name another.")
    if path is not None and path.is_dir() and not is_img2dataset(path) and not is_redcaps(path):
        path = find_parquet_beside_images(path) or path
        source = path
    if path is not None and (is_img2dataset(path) or is_url_list(path) or is_redcaps(path)):
        validate_unused(load_dataset_options, f"{source} is not loaded by `datasets.load_dataset`")
        splits, captions = {UNSPLIT: _load_downloads(path, num_proc, **options)}, [CAPTION]
    elif path is not None and path.exists() and not is_for_datasets(path):
        validate_unused(load_dataset_options, f"{source} is not loaded by `datasets.load_dataset`")
        splits, captions = read_caption_files(path, **options), [CAPTION]
    else:
        validate_unused({} if restval == "train" else {"restval": restval}, "only Karpathy's files have such a split")
        loaded = load_splits(source, split, load_dataset_options, allow_outside=allow_outside)
        roots = source_roots(path, images, load_dataset_options)
        beside = roots[0] if roots else None
        splits = {name: adopt(part, columns, images, beside, download) for name, part in loaded.items()}
        own = [download_folder()] if download else []
        if roots and not allow_outside:
            for part in splits.values():
                validate_inside(named_files(part), [*roots, *own], source)
        splits = {name: with_ids(part, keep_images=images is not False) for name, part in splits.items()}
        captions = caption_columns(columns, next(iter(loaded.values())).column_names)
    if objects is not None:
        splits = add_objects(splits, objects)
    with_images = {name: part for name, part in splits.items() if IMAGE in part.column_names}
    if check_images:
        checking: dict[str, Any] = {"num_proc": num_proc, "max_pixels": max_pixels}
        splits |= drop_unreadable_images(with_images, log_path=unreadable_log, **checking)
    else:
        for part in with_images.values():
            validate_regular_files(part)
    splits = {name: _one_caption_per_row(part, captions) for name, part in splits.items()}
    return splits[UNSPLIT] if list(splits) == [UNSPLIT] else DatasetDict(splits)


def source_roots(
    path: Path | None, images: str | Path | Literal[False] | None, options: Mapping[str, Any]
) -> list[Path]:
    """The folders that images of a source may be in: its own first, and that of the images; none for a `Dataset`."""
    given = [Path(images)] if images else []
    if path is None:
        return given
    if path.exists():
        return [path.parent if path.is_file() else path, *given]
    files = options.get("data_files") or []
    groups = list(files.values()) if isinstance(files, Mapping) else [files]
    named = [name for group in groups for name in ([group] if isinstance(group, (str, Path)) else group)]
    given += [Path(os.path.dirname(str(name).partition("*")[0]) or os.curdir) for name in named]
    given += [Path(options["data_dir"])] if options.get("data_dir") else []
    return [*given, Path(datasets.config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE)]


def _load_downloads(
    path: Path,
    num_proc: int | None,
    images: str | Path | Literal[False] | None,
    allow_outside: bool,
    download: bool,
    **fixed: Any,
) -> Dataset:
    """The output of `img2dataset`, or a list of addresses (RedCaps' too) with the images that were downloaded."""
    given = {name: value for name, value in fixed.items() if value and (name, value) != ("restval", "train")}
    validate_unused(given, f"{path} has one split, and its columns are fixed")
    if is_img2dataset(path):
        without = {"images": images} if images is not None else {"download": True} if download else {}
        validate_unused(without, f"{path} holds its own images")
        return load_img2dataset(path, num_proc=num_proc, allow_outside=allow_outside)
    if images is False:
        return Dataset(read_redcaps(path) if is_redcaps(path) else read_url_list(path))
    if is_redcaps(path) and not download and not (images and is_img2dataset(Path(images))):
        return load_redcaps(path, images, allow_outside=allow_outside)
    if images is None:
        if not download:
            raise unasked(path)
        listed = Dataset(read_url_list(path))
        return download_images(listed.add_column(IMAGE, listed[URL][:]), path, download)
    validate_unused({"download": True} if download else {}, f"`images={str(images)!r}` has the images")
    return load_url_list(path, images, num_proc=num_proc, allow_outside=allow_outside)


def is_for_datasets(path: Path) -> bool:
    """Whether the path is read by `datasets` itself."""
    if path.is_file():
        return path.suffix in ARROW_SUFFIXES
    if any((path / name).is_file() for name in SAVED_FILES):
        return True
    if find_caption_file(path) is not None or find_split_folders(path):  # before the walk, which images make long
        return False
    return any(file.suffix in ARROW_SUFFIXES for file in path.rglob("*"))


def load_splits(
    source: Any, split: str | None, options: dict[str, Any], *, allow_outside: bool = False
) -> dict[str, Dataset]:
    """Split -> data set, for sources that `datasets` reads; rows may still name files outside."""
    if isinstance(source, (Dataset, DatasetDict)):
        validate_unused(options, "the data set is loaded already")
        return choose_split(dict(source) if isinstance(source, DatasetDict) else {UNSPLIT: source}, split)
    if not isinstance(source, (str, Path)):
        raise TypeError(
            f"`load_captioned` was given {kind_of(source)}, and a Dataset, a DatasetDict, a name or a path is needed. "
            "A curriculum needs rows by number: load the data without `streaming=True`."
        )
    path = Path(source)
    if path.is_dir() and not allow_outside:
        validate_folder(path)
    if path.is_dir() and any((path / name).is_file() for name in SAVED_FILES):
        validate_unused(options, f"{path} was written by save_to_disk")
        return load_splits(datasets.load_from_disk(str(path)), split, {})
    if path.is_file():
        builder = path.suffix.removeprefix(".")
        return {UNSPLIT: datasets.load_dataset(builder, data_files=str(path), split=split or "train", **options)}
    if not path.exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(source)):
        raise FileNotFoundError(f"There is no file or folder {source}, and it is no name of a data set on the Hub.")
    try:
        loaded = datasets.load_dataset(str(source), split=split, **options)
    except OSError as error:
        if path.exists():
            raise
        raise FileNotFoundError(f"There is no file or folder {source} here. {error}") from error
    return {UNSPLIT: loaded} if isinstance(loaded, Dataset) else load_splits(loaded, None, {})


def _one_caption_per_row(dataset: Dataset, captions: list[str]) -> Dataset:
    if captions != [CAPTION] or not holds_text(dataset, CAPTION):
        dataset = expand_captions(dataset, captions)
    empty = count_empty_captions(dataset)
    if empty:
        logger.warning(
            "%d of %d captions are empty: drop_empty_captions(dataset) removes them, and in a shell `hf-curriculum "
            "score --drop-empty`.",
            empty,
            len(dataset),
        )
    return dataset
