"""The columns of any data set under our names: `image`, `caption`, `image_id`."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Image, Json, LargeList, List, Value

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, require_columns
from hf_curriculum.data.captions import holds_text
from hf_curriculum.data.chat_forms import json_content, with_json
from hf_curriculum.data.identity import normalise_name
from hf_curriculum.data.image_files import derive_image_ids, list_lengths, with_stored
from hf_curriculum.data.readers.folder import find_image_folder, locate_images
from hf_curriculum.data.readers.tables import caption_fields, find_alias, validate_names
from hf_curriculum.data.readers.url_lists import download_images, is_address, join_downloads, without_secrets
from hf_curriculum.data.request import Request
from hf_curriculum.provenance import append_columns

logger: logging.Logger = logging.getLogger(__name__)

Columns = Mapping[str, "str | Sequence[str]"]
"""Our name -> theirs. `caption` may name several columns of one caption each."""

ALIASES: dict[str, tuple[str, ...]] = {
    IMAGE: (
        *("image", "img", "jpg", "jpeg", "png", "image_url", "img_url", "url"),
        *("file_name", "filename", "image_name", "image_path", "filepath", "images"),
    ),
    CAPTION: ("caption", "captions", "text", "sentences", "txt"),
    IMAGE_ID: ("image_id",),
}
"""Names looked for, in this order, without `columns`. Those used are logged."""


def validate_mapping(columns: Columns | None) -> None:
    """Raises unless the mapping's keys are our names and its values names; of `caption`, also several."""
    unknown = [name for name in columns or {} if name not in ALIASES]
    if unknown:
        near = (difflib.get_close_matches(unknown[0], ALIASES) or [IMAGE])[0]
        raise ValueError(
            f"`columns` has the keys {unknown}. It maps our names {list(ALIASES)} to those of the data: where a "
            f"column is called `{unknown[0]}`, write columns={{'{near}': '{unknown[0]}'}}."
        )

    several = [name for name in (IMAGE, IMAGE_ID) if not isinstance((columns or {}).get(name, name), str)]
    if several:
        raise ValueError(
            f"`columns` gives {columns[several[0]]!r} for `{several[0]}`, which is one column. Only captions may "
            "have several. Load each column of images by itself and concatenate the data sets."
        )


def adopt(dataset: Dataset, request: Request) -> Dataset:
    """The data set with columns `image` and `caption` of our types; other columns stay, formats go."""
    dataset = dataset.with_format(None)
    theirs = {name: _their_name(name, dataset.column_names, request.columns) for name in ALIASES}
    captions = [theirs[CAPTION]] if isinstance(theirs[CAPTION], str) else list(theirs[CAPTION] or [CAPTION])
    needed = list(captions)
    if theirs[IMAGE] or request.images is not False:
        needed.append(theirs[IMAGE] or IMAGE)
    if theirs[IMAGE_ID]:
        needed.append(theirs[IMAGE_ID])
    require_columns(
        dataset.column_names,
        needed,
        reader="`load_captioned` reads them.",
        remedy="Name yours: columns={'image': ..., 'caption': ..., 'image_id': ...}, or images=False for text alone "
        "(hf-curriculum score: --column caption=..., --images none).",
    )
    twice = next((name for name in needed if needed.count(name) > 1), None)
    if twice is not None and request.images is not False:
        raise ValueError(f"`{twice}` is taken for two of our columns, {theirs}. Name another, or copy it.")
    request.taken.update(
        {ours: one if isinstance(one, str) else ", ".join(one) for ours, one in theirs.items() if one}
    )
    renamed = {theirs[name]: name for name in (IMAGE, IMAGE_ID) if theirs[name]}
    if len(captions) == 1:
        renamed[captions[0]] = CAPTION
    dataset = _without_json(_rename(dataset, renamed))
    if IMAGE in dataset.column_names and isinstance(dataset.features[IMAGE], (List, LargeList)):
        dataset = _one_image_per_row(dataset, theirs[IMAGE])
    names_images = IMAGE in dataset.column_names and holds_text(dataset, IMAGE)
    if names_images and IMAGE_ID not in dataset.column_names:
        names = [name or "" for name in dataset[IMAGE][:]]
        ids = [name if is_address(name) else normalise_name(name) for name in names]
        dataset = dataset.add_column(IMAGE_ID, without_secrets(ids))
    if request.images is False:
        return dataset
    if names_images:
        validate_names(dataset[IMAGE], "The column taken for `image`")
    on_the_web = names_images and is_address(next(filter(None, dataset[IMAGE]), ""))
    if on_the_web and request.images and not request.download:
        return downloaded(dataset, "The column taken for `image`", request)
    if request.download or on_the_web:
        dataset = download_images(dataset, "The column taken for `image`", request.download)
    return as_images(dataset, request.images, next(iter(request.roots), None))


def _their_name(name: str, found: Sequence[str], columns: Columns | None) -> str | Sequence[str] | None:
    if columns and name in columns:
        return columns[name]
    taken = caption_fields(tuple(found), ALIASES[name]) if name == CAPTION else find_alias(found, ALIASES[name])
    return taken if len(taken) > 1 else next(iter(taken), None)


def caption_columns(columns: Columns | None, found: Sequence[str]) -> list[str]:
    """The columns that hold the captions of an adopted data set, of those that were `found` in it before."""
    named = _their_name(CAPTION, found, columns) or CAPTION
    return [CAPTION] if isinstance(named, str) or len(named) == 1 else list(named)


def names_captions(found: Sequence[str]) -> bool:
    """Whether one of these columns is called as captions are."""
    return bool(caption_fields(tuple(found), ALIASES[CAPTION]))


def _rename(dataset: Dataset, renamed: dict[str, str]) -> Dataset:
    renamed = {theirs: ours for theirs, ours in renamed.items() if theirs != ours}
    overwritten = [ours for ours in renamed.values() if ours in dataset.column_names and ours not in renamed]
    if overwritten:
        raise ValueError(
            f"The data has columns {overwritten} already, which {renamed} would overwrite. Remove or rename them "
            f"first: dataset.remove_columns({overwritten})."
        )
    return dataset.rename_columns(renamed) if renamed else dataset


def _without_json(dataset: Dataset) -> Dataset:
    """The data set whose names of images and ids are texts, also where `datasets` keeps mixed values as JSON."""
    for name in (IMAGE, IMAGE_ID):
        if isinstance(dataset.features.get(name), Json):
            stored = with_stored(dataset.select_columns([name]), name, json_too=True)[name]
            cells = [with_json(Json(), cell, json_content) for cell in stored]
            cells = [cell[0] if isinstance(cell, list) and len(cell) == 1 else cell for cell in cells]
            wrong = next((row for row, cell in enumerate(cells) if isinstance(cell, (list, dict))), None)
            if wrong is not None:
                raise ValueError(
                    f"Row {wrong} (counted from 0) has the `{name}` {cells[wrong]!r:.100}, and one name is needed. "
                    "Correct or filter such rows: `dataset.filter(...)`."
                )
            texts = pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
            dataset = append_columns(dataset, {name: texts}, {}, features={name: Value("string")}, overwrite=True)
    return dataset


def _one_image_per_row(dataset: Dataset, theirs: object) -> Dataset:
    """The data set with lists of one image as images; no list, or one without any, is a row without an image."""
    lengths = list_lengths(dataset, IMAGE)
    if (lengths > 1).any():
        row = int((lengths > 1).argmax())
        raise ValueError(
            f"Row {row} (counted from 0) has {lengths[row]} images in `{theirs}`, and a caption belongs to one. "
            "`load_conversations` reads rows of several images."
        )
    features = Features({**dataset.features, IMAGE: dataset.features[IMAGE].feature})
    options = {"batched": True, "batch_size": 100, "features": features, "desc": "An image per row"}
    return dataset.with_format("arrow").map(_first_images, **options).with_format(None)


def _first_images(table: pa.Table) -> pa.Table:
    lists = table.column(IMAGE)
    at = np.full(len(table), -1)
    parents = pc.list_parent_indices(lists).to_numpy()
    at[parents] = np.arange(len(parents))
    images = pc.list_flatten(lists).take(pa.array(at, mask=at < 0))
    return table.set_column(table.column_names.index(IMAGE), IMAGE, images)


def downloaded(rows: Dataset, source: str | Path, request: Request) -> Dataset:
    """The rows of a column `image` of addresses, with the images that img2dataset downloaded to `images=`."""
    table = rows.remove_columns(IMAGE).with_format("arrow")[:]
    addresses = rows.select_columns([IMAGE]).with_format("arrow")[:][IMAGE].cast(pa.string())
    return join_downloads(table, addresses, source, request.images, rows._fingerprint, **request.archive_options)


def as_images(dataset: Dataset, folder: str | Path | None, beside: Path | None) -> Dataset:
    """The data set with its column `image` decoded on access; names of files begin in `folder`, or else `beside`."""
    feature, kind = dataset.features[IMAGE], dataset.features.arrow_schema.field(IMAGE).type
    if holds_text(dataset, IMAGE):
        paths = image_paths(dataset[IMAGE][:], folder, beside)
        return dataset.remove_columns(IMAGE).add_column(IMAGE, paths).cast_column(IMAGE, Image())
    if folder is not None:
        raise ValueError(
            f"`images={str(folder)!r}` was given, but the data holds its images itself ({feature}), so the folder "
            "would not be read. Leave `images` out."
        )
    if isinstance(feature, Image):
        return dataset if feature.decode else dataset.cast_column(IMAGE, Image(mode=feature.mode))
    is_record = pa.types.is_struct(kind) and {field.name for field in kind} <= {"bytes", "path"}
    if is_record or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return dataset.cast_column(IMAGE, Image())
    raise ValueError(
        f"The column taken for `image` holds {feature}, and images are `datasets.Image`, bytes or paths. Cast it "
        "first, or name another column: columns={'image': ...}."
    )


def image_paths(names: list[str | None], folder: str | Path | None, beside: Path | None) -> list[str | None]:
    """The paths of images that are named from `folder`, or else from `beside` or its folder of images."""
    if folder is not None:
        return locate_images(Path(folder), names)
    start = os.path.abspath(beside or os.curdir)
    if beside is not None and not os.path.isabs(next(filter(None, names), "")):
        found = find_image_folder(Path(start, "_"), list(filter(None, names)))
        if found is not None:
            return locate_images(found, names)
    return [name if not name or "://" in name else os.path.join(start, name) for name in names]


def with_ids(dataset: Dataset, *, keep_images: bool = True) -> Dataset:
    """The data set with `image_id`: where it has none the path or address of the image, or a digest of it."""
    if IMAGE_ID in dataset.column_names:
        batches = dataset.select_columns([IMAGE_ID]).with_format("arrow").iter(10_000)
        missing = sum(pc.sum(pc.is_null(batch[IMAGE_ID], nan_is_null=True)).as_py() or 0 for batch in batches)
        if missing:
            raise ValueError(
                f"{missing} of {len(dataset)} rows have no `{IMAGE_ID}`, so it is not known which captions share a "
                "image. Fill the column, or remove it, and it is derived from the images."
            )
        dataset = dataset.cast_column(IMAGE_ID, Value("string"))
    elif IMAGE in dataset.column_names:
        dataset = derive_image_ids(dataset)
    else:
        logger.warning("The data has neither images nor `%s`: which captions share an image is not known.", IMAGE_ID)
    return dataset if keep_images or IMAGE not in dataset.column_names else dataset.remove_columns(IMAGE)
