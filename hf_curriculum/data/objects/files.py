"""Proposals as files that other code reads."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from datasets import Dataset, Image

from hf_curriculum.columns import IMAGE, IMAGE_ID, require_columns
from hf_curriculum.config import write_atomically
from hf_curriculum.data.images import image_size
from hf_curriculum.data.objects.add_proposals import PROPOSALS


def write_proposals(
    dataset: Dataset, folder: str | Path, *, column: str = PROPOSALS, image_column: str = IMAGE
) -> Path:
    """Writes boxes in the layout of Cap2Det: `{id % 10}/{id}.npy`, shares of the sides, top, left, bottom, right.

    `open_regions(folder)` and `add_proposals(data, folder)` read it again. Rows of one image write its file once.
    Zeros that an id begins with, as VOC's do, stay.

    Args:
        dataset: with boxes in pixels, images, and ids that are whole numbers, as COCO's.
        folder: where the files are written; those of the same images are replaced.
        column: the boxes: per row a list of [left, top, right, bottom]; rows with null are left out.
        image_column: the images, for their sizes.

    Returns:
        The folder.

    Raises:
        ValueError: a column is missing, an id is no whole number, or an image cannot be read.

    Source: Ye et al. 2019 (Cap2Det), released code.

    Example:
        >>> write_proposals(boxed, "proposals")  # doctest: +SKIP
    """
    require_columns(
        dataset.column_names,
        [IMAGE_ID, image_column, column],
        reader="Boxes are written as shares of their image's sides, in a file called by its id.",
        remedy="Run `add_proposals`, or name another column.",
    )
    rows = dataset.with_format(None).select_columns([IMAGE_ID, image_column, column])
    done = set()
    for row in rows.cast_column(image_column, Image(decode=False)):
        image_id, boxes = row[IMAGE_ID], row[column]
        if boxes is None or image_id in done:
            continue
        done.add(image_id)
        if not str(image_id).isdecimal():
            raise ValueError(
                f"The image {image_id!r} has no number, and this layout names files {{id % 10}}/{{id}}.npy. Map "
                "the ids to numbers, or keep the boxes as a column: dataset.save_to_disk(folder)."
            )
        width, height = image_size(row[image_column])
        if width is None or height is None:
            raise ValueError(
                f"The image {image_id!r} cannot be read, so its boxes cannot be written as shares of its sides. Leave "
                "its row out, or set its boxes to null."
            )
        edges = np.asarray(boxes, np.float32).reshape(-1, 4) / np.float32([width, height, width, height])
        content = BytesIO()
        np.save(content, edges[:, [1, 0, 3, 2]])
        write_atomically(Path(folder, str(int(image_id) % 10), f"{image_id}.npy"), content.getvalue())
    return Path(folder)
