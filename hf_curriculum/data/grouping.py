"""One row per image, from pairs of an image and a caption."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Image, List, Value

from hf_curriculum.columns import CAPTION, IMAGE_ID, TOKENS, require_columns
from hf_curriculum.data.captions import group_codes, holds_text
from hf_curriculum.data.identity import validate_image_ids
from hf_curriculum.provenance import append_columns, read_column, read_provenance, validate_choice
from hf_curriculum.rng import hash64
from hf_curriculum.shapes import validate_arguments

logger: logging.Logger = logging.getLogger(__name__)

Aggregate = Literal["mean", "max", "min", "first", "list"]
_AGGREGATES = ("mean", "max", "min", "first", "list")
_OF_CAPTION = ("caption_id", TOKENS)  # columns of load_captioned that belong to a caption
_BLOCK = 100_000  # images whose texts are put together at a time: one Arrow array of text holds 2 GB


@validate_arguments
def one_row_per_image(dataset: Dataset) -> Dataset:
    """The first row of each image, in their order: what captions are generated for.

    Args:
        dataset: has the column `image_id`.

    Raises:
        ValueError: there is no `image_id`, or a row's is empty.

    Example:
        >>> from datasets import Dataset
        >>> pairs = Dataset.from_dict({"image_id": ["b", "b", "a"], "caption": ["a dog", "it barks", "a cat"]})
        >>> one_row_per_image(pairs)["caption"][:]
        ['a dog', 'a cat']
    """
    return dataset.select(_first_rows(image_codes(dataset)))


def image_codes(dataset: Dataset) -> np.ndarray:
    """Numbers the images in order of first appearance: int64 (rows,); ids may not be missing, nor stand for two."""
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="It says which captions belong to the same image.",
        remedy="Add it; with one caption per image any unique string will do.",
    )
    validate_image_ids(dataset)
    return group_codes(read_column(dataset, IMAGE_ID))


def _first_rows(codes: np.ndarray) -> np.ndarray:
    """The first row of each image: (rows,) → (images,)."""
    return np.unique(codes, return_index=True)[1]


@validate_arguments
def group_captions(
    pairs: Dataset | DatasetDict, aggregate: Mapping[str, Aggregate] | None = None, *, caption: str = CAPTION
) -> Dataset | DatasetDict:
    """Makes one row per image, with a list of its captions, from one row per image-caption pair.

    The column of captions becomes a list, and with it the columns `caption_id` and `tokens` of caption files. Columns
    that are equal in all rows of an image stay; images are neither compared nor read. Columns that differ need an
    aggregate. The result is a view of the same table: the first row of each image.

    Args:
        pairs: one row per pair, with `image_id`; one split or several.
        aggregate: column → "mean", "max" or "min" of its numbers that are not NaN, as float32; "first", the value of
            the image's first row; or "list", all of them.
        caption: the column of captions.

    Returns:
        The images in order of first appearance. Scores keep their provenance, with the aggregate as `per_image`. A
        caption that is null is left out of its list.

    Raises:
        ValueError: a column is missing or not of texts, differs within an image and has no aggregate, an aggregate of
            a column that cannot have it, or a row without `image_id`.

    Example:
        >>> from datasets import Dataset
        >>> rows = {"image_id": ["b", "b", "a"], "caption": ["a dog", "it barks", "a cat"], "words": [2.0, 3.0, 2.0]}
        >>> images = group_captions(Dataset.from_dict(rows), {"words": "mean"})
        >>> images["caption"][:], images["words"][:]
        ([['a dog', 'it barks'], ['a cat']], [2.5, 2.0])
    """
    aggregate = dict(aggregate or {})
    if isinstance(pairs, DatasetDict):
        parts = {name: group_captions(part, aggregate, caption=caption) for name, part in pairs.items()}
        return DatasetDict(parts)
    codes = image_codes(pairs)
    _validate(pairs, caption, aggregate)
    first = _first_rows(codes)
    beside = {column: "list" for column in _OF_CAPTION if column in pairs.column_names}
    chosen = {**beside, **aggregate, caption: "list"}
    others = [name for name in pairs.column_names if name not in chosen and name != IMAGE_ID]
    _validate_equal(pairs, others, codes, first, aggregate)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(first))  # (images,)
    recorded = read_provenance(pairs)
    values, features, provenance = {}, {}, {}
    for column, how in chosen.items():
        if how == "list":
            values[column] = _lists(read_column(pairs, column), order, counts, drop_null=column == caption)
            features[column] = List(pairs.features[column])
        elif how != "first":
            numbers = read_column(pairs, column).cast(pa.float32()).to_numpy(zero_copy_only=False)
            values[column] = aggregate_per_image(numbers, codes, how)[first]
            if column in recorded:
                provenance[column] = replace(recorded[column], per_image=how)
            else:
                values[column], features[column] = pa.array(values[column]), Value("float32")
    images = append_columns(pairs.select(first), values, provenance, features=features, overwrite=True, log=False)
    logger.info("%s pairs became %s images with their captions.", f"{len(pairs):,}", f"{len(images):,}")
    return images.select_columns(pairs.column_names)


def _validate(pairs: Dataset, caption: str, aggregate: Mapping[str, str]) -> None:
    """Checks the columns that are named."""
    require_columns(
        pairs.column_names,
        [caption, *aggregate],
        reader="An argument of `group_captions` names it.",
        remedy="Name another: group_captions(pairs, {column: 'mean'}, caption=...).",
    )
    if not holds_text(pairs, caption):
        raise ValueError(
            f"`{caption}` holds {pairs.features[caption]}, and one text per row is needed, which become a list. Where "
            "it is a list already, the data has one row per image; `expand_captions` makes pairs of it."
        )
    for column, how in aggregate.items():
        validate_choice(f"aggregate[{column!r}]", how, _AGGREGATES)
        kind = pairs.features.arrow_schema.field(column).type
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if column in (caption, IMAGE_ID) or (how not in ("first", "list") and not numbers):
            why = "groups the rows" if column == IMAGE_ID else f"holds {pairs.features[column]}"
            raise ValueError(
                f"aggregate={{{column!r}: {how!r}}} was given, and `{column}` {why}. A mean, a maximum and a minimum "
                "are of numbers; other columns may be 'first' or 'list'; captions are a list anyway."
            )


def _validate_equal(
    pairs: Dataset, columns: list[str], codes: np.ndarray, first: np.ndarray, aggregate: Mapping[str, str]
) -> None:
    """A `ValueError` for columns that differ within an image."""
    if len(first) == len(codes):
        return
    differ, features = {}, pairs.features
    for column in columns:
        if isinstance(features[column], Image):
            continue  # rows of one `image_id` share their image
        hashes = row_hashes(read_column(pairs, column))
        rows = np.flatnonzero(hashes != hashes[first][codes])
        if len(rows):
            differ[column] = len(np.unique(codes[rows]))
    if differ:
        numeric = {name for name in differ if getattr(features[name], "dtype", "").startswith(("f", "i", "u"))}
        ready = {**aggregate, **{name: "mean" if name in numeric else "list" for name in differ}}
        shown = ", ".join(f"`{name}` (in {count:,} images)" for name, count in differ.items())
        raise ValueError(
            f"{shown} differ{'s' * (len(differ) == 1)} between the captions of an image, and one row per image holds "
            f"one value. Say what becomes of them, as in group_captions(pairs, {ready}), or remove them: "
            f"pairs.remove_columns({list(differ)}). Scores may be aggregated when they are made: "
            "add_scores(..., per_image='mean'). (hf-curriculum propose: --aggregate COLUMN=list)"
        )


def _lists(values: pa.Array, order: np.ndarray, counts: np.ndarray, drop_null: bool) -> pa.ChunkedArray:
    """The values of each image as a list: (rows,) → (images,)."""
    chunks, ends = [], np.concatenate([[0], np.cumsum(counts)])
    kind = pa.string() if pa.types.is_large_string(values.type) else values.type
    for start in range(0, len(counts), _BLOCK):
        stop = min(start + _BLOCK, len(counts))
        part = values.take(pa.array(order[ends[start] : ends[stop]]))
        offsets = ends[start : stop + 1] - ends[start]
        if drop_null and part.null_count:
            kept = np.concatenate([[0], np.cumsum(part.is_valid().to_numpy(zero_copy_only=False))])
            part, offsets = part.drop_null(), kept[offsets]
        chunks.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), part.cast(kind)))
    return pa.chunked_array(chunks, pa.list_(kind))


def row_hashes(values: pa.Array) -> np.ndarray:
    """A number per row, uint64 (rows,), equal where the rows of an Arrow array are: numbers, texts, lists, records."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return row_hashes(values.storage)
    if pa.types.is_struct(kind):
        found = np.zeros(len(values), np.uint64)
        for number, field in enumerate(kind):
            found += hash64(row_hashes(pc.struct_field(values, field.name)), number)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        flat = pa.ListArray.flatten(values) if pa.types.is_list(kind) else values.flatten()
        position = np.arange(len(flat)) - np.repeat(ends[:-1], lengths)
        sums = np.concatenate([[np.uint64(0)], np.cumsum(hash64(row_hashes(flat) ^ hash64(position, 1), 2))])
        found = sums[ends[1:]] - sums[ends[:-1]] + hash64(lengths, 3)
    else:
        found = values.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return hash64((found + 1), 4)
    found[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def aggregate_per_image(scores: np.ndarray, images: np.ndarray, how: Literal["max", "min", "mean"]) -> np.ndarray:
    """Gives every row the aggregate of its image."""
    validate_choice("per_image", how, ("max", "min", "mean"))
    scored = ~np.isnan(scores)
    count = int(images.max(initial=-1)) + 1
    per_image = np.bincount(images[scored], minlength=count)  # (images,)
    if how == "mean":
        total = np.bincount(images[scored], weights=scores[scored], minlength=count)
        aggregate = (total / np.maximum(per_image, 1)).astype(np.float32)
    else:
        extreme = np.maximum if how == "max" else np.minimum
        aggregate = np.full(count, -np.inf if how == "max" else np.inf, np.float32)
        extreme.at(aggregate, images[scored], scores[scored])
    aggregate[per_image == 0] = np.nan
    return aggregate[images]
