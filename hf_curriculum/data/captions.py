"""One row per caption, and no row without one."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, Value
from xxhash import xxh3_64_intdigest

from hf_curriculum.columns import CAPTION, IMAGE_ID, IMAGES, MESSAGES, require_columns
from hf_curriculum.data.chat_forms import json_content, with_json
from hf_curriculum.data.conversations import ConversationError, read_messages, text_of
from hf_curriculum.data.image_files import content_ids
from hf_curriculum.rng import hash64, mix64
from hf_curriculum.shapes import validate_arguments
from hf_curriculum.views import warn_of_transform

logger: logging.Logger = logging.getLogger(__name__)


TEXT_FIELDS = ("raw", "caption", "text")
"""Where the text is in captions that are records ({"raw": ..., "tokens": ...})."""


def holds_text(dataset: Dataset, column: str) -> bool:
    """Whether a column holds one text per row."""
    kind = dataset.features.arrow_schema.field(column).type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


@validate_arguments
def expand_captions(dataset: Dataset, columns: str | Sequence[str] = CAPTION) -> Dataset:
    """One row per image-caption pair, from rows that hold several captions.

    All other columns are repeated, images with `decode=False`. An image kept as a path costs nothing that way; bytes
    of an image are written once per caption, to the cache of `datasets`. A row with an empty list stays, with null.

    Args:
        dataset: rows with a list of captions, or with one caption in each of several columns.
        columns: the column of lists, or the columns of captions. The result's captions are in the column `caption`.

    Raises:
        ValueError: the column is missing, or holds neither texts nor lists of texts or of records with one, or
            there is another column `caption`.

    Example:
        >>> expand_captions(Dataset.from_dict({"image_id": ["a"], "caption": [["A dog.", "A puppy."]]}))["caption"][:]
        ['A dog.', 'A puppy.']
    """
    columns = [columns] if isinstance(columns, str) else list(columns)
    require_columns(
        dataset.column_names,
        columns,
        reader="Expanding captions reads them.",
        remedy="Name the column of captions: expand_captions(dataset, 'captions').",
    )
    if CAPTION in dataset.column_names and CAPTION not in columns:
        raise ValueError(
            f"The data has a column `{CAPTION}` already, which the captions of {columns} would overwrite. Remove or "
            f"rename it first: dataset.remove_columns('{CAPTION}')."
        )
    warn_of_transform([dataset])
    features = dataset.features  # a copy
    kinds = Features({column: features.pop(column) for column in columns})
    features[CAPTION] = Value("string")
    expanded = dataset.with_format("arrow").map(
        partial(_expand, columns=columns, kinds=kinds),
        batched=True,
        batch_size=100,  # rows of images, so a few megabytes at a time
        features=features,
        desc="One row per caption",
    )
    logger.info("%d rows with several captions became %d rows with one.", len(dataset), len(expanded))
    return expanded.with_format(None)


def _expand(table: pa.Table, columns: list[str], kinds: Features) -> pa.Table:
    rows = (with_json(kinds, row, json_content) for row in table.select(columns).to_pylist())
    captions = [_captions_of_row([row[column] for column in columns], columns) for row in rows]
    repeated = np.repeat(np.arange(len(captions)), [len(row) for row in captions])
    others = {name: table[name].take(pa.array(repeated)) for name in table.column_names if name not in columns}
    return pa.table({**others, CAPTION: pa.array([caption for row in captions for caption in row], type=pa.string())})


def _captions_of_row(cells: list[Any], columns: list[str]) -> list[str | None]:
    """The captions of one row: of one cell with a list, or of several with a text each; without any, null."""
    if len(cells) > 1:
        return [_text(cell, columns) for cell in cells if cell is not None] or [None]
    captions = cells[0]
    if isinstance(captions, Mapping):  # a record of lists, as older `datasets` keep a list of records
        captions = next((captions[field] for field in TEXT_FIELDS if field in captions), captions)
    return [_text(caption, columns) for caption in (captions if isinstance(captions, list) else [captions])] or [None]


def _text(caption: Any, columns: list[str]) -> str | None:
    if isinstance(caption, Mapping):
        caption = next((caption[field] for field in TEXT_FIELDS if field in caption), caption)
    if caption is None or isinstance(caption, str):
        return caption
    raise ValueError(
        f"The caption column {columns} holds {caption!r:.100}, and texts, lists of texts, or lists of records with "
        f"one of the fields {list(TEXT_FIELDS)} are needed. Map the captions to such a form, or name another column: "
        "columns={'caption': 'text'}."
    )


def count_empty_captions(dataset: Dataset, column: str = CAPTION) -> int:
    """The number of rows whose caption is missing or blank."""
    return int((~_has_caption(dataset, column)).sum())


@validate_arguments
def drop_empty_captions(dataset: Dataset | DatasetDict, column: str = CAPTION) -> Dataset | DatasetDict:
    """The data without rows whose caption is missing or blank. Their number is logged, with a few of them.

    Of conversations (`column="messages"`) those rows go in which nobody says anything.

    Raises:
        ValueError: there is no such column, it does not hold texts, or no row has a caption.

    Example:
        >>> drop_empty_captions(Dataset.from_dict({"caption": ["A dog.", " ", None]})).num_rows
        1
    """
    if isinstance(dataset, DatasetDict):
        return DatasetDict({split: drop_empty_captions(part, column) for split, part in dataset.items()})
    kept = _has_caption(dataset, column)
    if kept.all():
        return dataset
    if not kept.any():
        raise ValueError(
            f"All {len(dataset)} captions in `{column}` are empty, so nothing would be left. Look at the source, or "
            "name another column."
        )
    dropped = np.flatnonzero(~kept)
    named = dataset.select(dropped[:5])[IMAGE_ID][:] if IMAGE_ID in dataset.column_names else dropped[:5].tolist()
    logger.warning("%d of %d rows have an empty caption and are dropped: %s ...", len(dropped), len(dataset), named)
    return dataset.select(np.flatnonzero(kept))


def _has_caption(dataset: Dataset, column: str) -> np.ndarray:
    require_columns(
        dataset.column_names,
        [column],
        reader="It is looked through for empty captions.",
        remedy="Name another column.",
    )
    texts = dataset.select_columns([column])
    if column == MESSAGES:
        cells = (_said(cell) for batch in texts.with_format(None).iter(10_000) for cell in batch[column])
        return np.fromiter((bool(cell and cell.strip()) for cell in cells), bool, len(dataset))
    if not holds_text(dataset, column):
        raise ValueError(
            f"`{column}` holds {dataset.features[column]}, and one text per row is needed. `expand_captions(dataset)` "
            "makes one row of each caption."
        )
    masks = (pc.match_substring_regex(batch[column], _PRINTED) for batch in texts.with_format("arrow").iter(10_000))
    return np.concatenate([np.zeros(0, bool), *(mask.fill_null(False).to_numpy() for mask in masks)])


_PRINTED = r"[^\p{Z}\t-\r\x1c-\x1f\x85]"
"""A character that is no space, as `str.isspace` has it."""


def _said(cell: Any) -> str | None:
    """All that is said in a conversation; None where it cannot be read."""
    if cell is None or isinstance(cell, str):
        return cell
    try:
        return text_of(read_messages(cell), "all")
    except ConversationError:
        return None


@validate_arguments
def hold_out(dataset: Dataset, fraction: float, *, by: str = "image", seed: int = 0) -> DatasetDict:
    """Splits off a validation part: the same one for the same data and seed on any machine.

    Every unit (an image, or a row) gets a number from its `image_id` (or row number) and the seed. The smallest
    numbers are held out, without any library's random stream. By image, neither the order of the rows nor the number
    of captions matters. Rows keep their order.

    Args:
        dataset: one row per image-caption pair, or per conversation. Conversations without `image_id` that share one
            of their `images`, or are joined by others that do, count as one image; one without is a unit by itself.
        fraction: share of the images (or rows) to hold out, between 0 and 1. The number is rounded, half to even, and
            is at least 1.
        by: `"image"`: all captions of an image fall on one side. `"row"`: captions are held out one by one, as the
            BabyLM authors released it. An image may then have captions on both sides, and part of the validation loss
            is on images trained on. The log counts these images.
        seed: another seed, another part.

    Returns:
        A `DatasetDict` of `train` and `validation`.

    Raises:
        ValueError: `fraction` or `by` is none of the above, an image has no id, or nothing would be left to train on.

    Example:
        >>> hold_out(Dataset.from_dict({"image_id": ["a", "a", "b"], "caption": ["x", "y", "z"]}), 0.5).num_rows
        {'train': 1, 'validation': 2}
    """
    if by not in ("image", "row"):
        raise ValueError(f"`by={by!r}` was given. The validation part is held out by 'image' or by 'row'.")
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction={fraction!r}` was given. It is the share of {by}s to hold out: 0.05 for 5 %.")
    numbers = _image_numbers(dataset, seed) if by == "image" else hash64(np.arange(len(dataset)), seed)  # (rows,)
    units = np.unique(numbers)
    count = max(1, round(fraction * len(units)))
    if count >= len(units):
        raise ValueError(
            f"`fraction={fraction}` holds out {count} of the {len(units)} {by}s there are, so nothing would be left "
            "to train on. Give more data or a smaller `fraction`."
        )
    in_validation = numbers <= units[count - 1]
    if by == "row" and {IMAGE_ID, IMAGES} & set(dataset.column_names):
        _report_images_on_both_sides(dataset, in_validation)
    return DatasetDict(
        train=dataset.select(np.flatnonzero(~in_validation)), validation=dataset.select(np.flatnonzero(in_validation))
    )


def _number_of_id(image_id: str, seed: int) -> int:
    digest = hashlib.blake2b(image_id.encode(), digest_size=8, key=mix64(seed).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def _image_numbers(dataset: Dataset, seed: int) -> np.ndarray:
    """A number per row that follows from its image's id and the seed: uint64 (rows,), few ids in memory at a time."""
    if IMAGE_ID not in dataset.column_names and IMAGES in dataset.column_names:
        keys = (json.dumps([key]) for key in _joined(content_ids(dataset, IMAGES)))
        return np.array([_number_of_id(key, seed) for key in keys], np.uint64)
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="Holding out by image reads it.",
        remedy="`load_captioned` derives it from the images; `by='row'` does without.",
    )
    numbers, missing, start = np.zeros(len(dataset), np.uint64), 0, 0
    for batch in dataset.select_columns([IMAGE_ID]).with_format("arrow").iter(10_000):
        ids = batch[IMAGE_ID].cast(pa.string())
        blank = pc.equal(pc.utf8_trim_whitespace(ids), "")
        ids = ids.filter(pc.invert(pc.or_kleene(pc.is_null(batch[IMAGE_ID], nan_is_null=True), blank)))
        missing += len(batch) - len(ids)
        ids = ids.combine_chunks().dictionary_encode()
        of_id = np.array([_number_of_id(image_id, seed) for image_id in ids.dictionary.to_pylist()], np.uint64)
        numbers[start : start + len(ids)] = of_id[ids.indices.to_numpy()]
        start += len(batch)
    if missing:
        raise ValueError(
            f"{missing} of {len(dataset)} rows have no `image_id`, so it is not known which captions share an "
            "image. Fill the column, or remove it and let `load_captioned` derive it from the images."
        )
    return numbers


def _joined(images: Iterable[Sequence[str]]) -> list[str | int]:
    """For each row the first id of all images that are joined to its own by rows with several; its number without."""
    rows = [list(row) or [number] for number, row in enumerate(images)]
    joined = {image: image for row in rows for image in row}  # union-find: each image leads to a smaller one

    def first_of(image: str | int) -> str | int:
        while joined[image] != image:
            joined[image] = image = joined[joined[image]]
        return image

    for row in rows:
        firsts = [first_of(image) for image in row]
        joined.update(dict.fromkeys(firsts, min(firsts)))
    return [first_of(row[0]) for row in rows]


def _report_images_on_both_sides(dataset: Dataset, in_validation: np.ndarray) -> None:
    images = _image_numbers(dataset, 0)
    count = np.intersect1d(images[in_validation], images[~in_validation]).size
    if count:
        logger.warning(
            "Held out by row: %d images have captions in both train and validation; with by='image' none has.", count
        )


def group_codes(values: pa.Array | pa.ChunkedArray, column: str = IMAGE_ID) -> np.ndarray:
    """Numbers the distinct values of a column in order of first appearance: int64 (rows,)."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        numbers, missing = _text_hashes(values)
    else:
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        numbers = values.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise ValueError(
            f"`{column}` is missing in {missing.sum()} of {len(values)} rows, first in row {first}. Rows are "
            "grouped by it, and rows without one would all count as the same image. Fill or filter them first."
        )
    return pd.factorize(numbers)[0].astype(np.int64, copy=False)


def _text_hashes(values: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """A hash of each text, uint64 (rows,), and whether it is null or blank, bool (rows,)."""
    hashes, missing = np.zeros(len(values), np.uint64), np.zeros(len(values), bool)
    for start in range(0, len(values), 10_000):
        texts = [text or "" for text in values.slice(start, 10_000).to_pylist()]
        hashes[start : start + len(texts)] = [xxh3_64_intdigest(text.encode()) for text in texts]
        missing[start : start + len(texts)] = [not text.strip() for text in texts]
    return hashes, missing
