"""Holding out a validation part, by picture or by row."""

from __future__ import annotations

import hashlib
import logging

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.keyed import hash64, mix64

logger = logging.getLogger(__name__)


def hold_out(dataset: Dataset, fraction: float, *, by: str = "image", seed: int = 0) -> DatasetDict:
    """A part of the data set set apart for validation, the same one for the same data and seed on any machine.

    Every unit (an image, or a row) gets a number from its `image_id` (or row number) and the seed, and those with the
    smallest numbers are held out: no library's random stream is involved. By image, neither the order of the rows nor
    the number of captions matters. Rows keep their order.

    Args:
        dataset: one row per image-caption pair.
        fraction: share of the images (or rows) to hold out, between 0 and 1. The number is rounded, half to even, and
            is at least 1.
        by: `"image"`: all captions of an image fall on one side. `"row"`: captions are held out one by one, as the
            BabyLM authors released it; an image may then have captions on both sides, and the validation loss is
            partly that of pictures trained on. How many images that concerns is logged.
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
    if by == "image":
        unit_of_row, ids = _images(dataset)
        numbers = np.array([_number_of_id(image_id, seed) for image_id in ids], dtype=np.uint64)
    else:
        unit_of_row, numbers = np.arange(len(dataset)), hash64(np.arange(len(dataset)), seed)
    count = max(1, round(fraction * len(numbers)))
    if count >= len(numbers):
        raise ValueError(
            f"`fraction={fraction}` holds out {count} of the {len(numbers)} {by}s there are, so nothing would be left "
            "to train on. Give more data or a smaller `fraction`."
        )
    is_held_out = np.zeros(len(numbers), dtype=bool)
    is_held_out[np.argsort(numbers, kind="stable")[:count]] = True
    in_validation = is_held_out[unit_of_row]
    if by == "row" and IMAGE_ID in dataset.column_names:
        _report_images_on_both_sides(dataset, in_validation)
    return DatasetDict(
        train=dataset.select(np.flatnonzero(~in_validation)),
        validation=dataset.select(np.flatnonzero(in_validation)),
    )


def _number_of_id(image_id: str, seed: int) -> int:
    digest = hashlib.blake2b(image_id.encode(), digest_size=8, key=mix64(seed).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def _images(dataset: Dataset) -> tuple[np.ndarray, list[str]]:
    """For each row the number of its image, (rows,) int, and the ids of the images by that number."""
    require_columns(
        dataset.column_names,
        [IMAGE_ID],
        reader="Holding out by image reads it.",
        remedy="`load_captioned` derives it from the pictures; `by='row'` does without.",
    )
    ids = dataset.select_columns([IMAGE_ID]).with_format("arrow")[:][IMAGE_ID]
    if ids.null_count:
        raise ValueError(
            f"{ids.null_count} of {len(ids)} rows have no `image_id`, so it is not known which captions share an "
            "image. Fill the column, or remove it and let `load_captioned` derive it from the pictures."
        )
    encoded = ids.cast(pa.string()).combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def _report_images_on_both_sides(dataset: Dataset, in_validation: np.ndarray) -> None:
    images, _ = _images(dataset)
    count = np.intersect1d(images[in_validation], images[~in_validation]).size
    if count:
        logger.warning(
            "Held out by row: %d images have captions in both train and validation. by='image' keeps them apart.",
            count,
        )
