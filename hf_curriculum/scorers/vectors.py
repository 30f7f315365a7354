"""One embedding per image, out of a column with one per row."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hf_curriculum.columns import IMAGE_ID, require_columns
from hf_curriculum.provenance import read_column
from hf_curriculum.scorers.per_image import group_codes

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def image_vectors(dataset: Dataset, column: str, who: str) -> tuple[np.ndarray, np.ndarray]:
    """The embeddings of the images of a data set, brought to length 1.

    An image has the embedding of its first row that has one. Images without any are left out, and counted in the log.

    Args:
        dataset: rows with `image_id` and `column`; captions of one image may repeat its embedding.
        column: a list of numbers per row.
        who: who needs them, for errors.

    Shapes:
        returns int64 (rows,), the image of each row, -1 for one without an embedding; float32 (images, d).

    Raises:
        TypeError: not a `Dataset`, or not lists of numbers.
        ValueError: a column is missing, no row has an embedding, they differ in length, or one is not finite or zero.

    Example:
        >>> from datasets import Dataset
        >>> data = Dataset.from_dict({"image_id": ["a", "b", "a"], "v": [[3.0, 4.0], None, [3.0, 4.0]]})
        >>> [part.tolist() for part in image_vectors(data, "v", "Example")]
        [[0, -1, 0], [[0.6000000238418579, 0.800000011920929]]]
    """
    from datasets import Dataset

    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"`{who}.fit` was given a {type(dataset).__name__}. It compares all images with each other, so it needs "
            "them at hand: give one `Dataset`."
        )
    require_columns(
        dataset.column_names,
        [IMAGE_ID, column],
        reader=f"`{who}.fit` compares images by their embeddings.",
        remedy="Add embeddings of any image model as a column with a list of numbers per row, or name your column.",
    )
    values, rows = dataset.data.column(column), np.arange(len(dataset))
    if dataset._indices is not None:
        rows = dataset._indices.column(0).to_numpy()
    there = values.is_valid().to_numpy()[rows]  # (rows,)
    if not there.any():
        raise ValueError(f"No row has an embedding in `{column}`, so `{who}.fit` has nothing to compare.")
    codes = group_codes(read_column(dataset, IMAGE_ID))
    named, first = np.unique(codes[there], return_index=True)
    images = np.full(codes.max() + 1, -1)
    images[named] = np.arange(len(named))
    if len(named) < len(images):
        logger.warning("%s: %d of %d images have no embedding.", who, len(images) - len(named), len(images))
    # only the rows that are needed: an image's other captions repeat its embedding
    chosen = values.take(pa.array(rows[there][first])).combine_chunks()
    return images[codes], _unit_vectors(chosen, column)


def _unit_vectors(values: pa.Array, column: str) -> np.ndarray:
    """Lists of numbers as a matrix of rows of length 1. Shapes: (n,) lists → float32 (n, d)."""
    kind = values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)) or not (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        raise TypeError(f"`{column}` holds {kind}, not one list of numbers per row. Give a flat list: `List(Value)`.")
    flat, lengths = values.flatten(), np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ValueError(
            f"The embeddings in `{column}` have {lengths[0]} to {lengths[-1]} numbers. Vectors of one space have "
            "equally many. Take all of them from one model."
        )
    vectors = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(values), -1)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        raise ValueError(
            f"{len(bad)} of {len(vectors)} embeddings in `{column}` are zero or not finite, so they have no direction "
            "to compare. Set them to None: images without an embedding are left out."
        )
    return vectors / lengths
