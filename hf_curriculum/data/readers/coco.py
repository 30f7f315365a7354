"""COCO's caption files: a list of `images` and a list of `annotations` with captions."""

from __future__ import annotations

import logging
from typing import Any

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.data.readers.tables import FILE_NAME, shared_scalars

logger = logging.getLogger(__name__)


def is_coco(content: Any) -> bool:
    """Whether parsed JSON has the two lists of COCO's files."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content


def read_coco(content: dict[str, Any]) -> dict[str, list]:
    """The columns of a COCO caption file, one row per annotation, in the file's order.

    `file_name`, `caption`, `image_id` (COCO's own, as a string), `caption_id`, and the further fields that all of its
    images have (width, height, licence, ...).

    Example:
        >>> read_coco({"images": [{"id": 9, "file_name": "9.jpg"}],
        ...            "annotations": [{"id": 1, "image_id": 9, "caption": "A dog."}]})["image_id"]
        ['9']
    """
    annotations = content["annotations"]
    if not annotations or "caption" not in annotations[0]:
        found = f"annotations with the fields {sorted(annotations[0])}" if annotations else "no annotations"
        raise ValueError(
            f"The COCO file has {found}, and one `caption` per annotation is needed. COCO keeps captions in files of "
            "their own, captions_*.json; instances_*.json hold boxes."
        )
    images = {image["id"]: image for image in content["images"]}
    known = [annotation for annotation in annotations if annotation["image_id"] in images]
    if not known:
        raise ValueError(
            f"None of the {len(annotations)} captions of the COCO file belongs to one of its {len(images)} images "
            f"(annotation image_id {annotations[0]['image_id']!r}, for example). Both lists must come from one file."
        )
    if len(known) < len(annotations):
        logger.warning(
            "%d of %d captions belong to images that the COCO file does not list, and are left out.",
            len(annotations) - len(known),
            len(annotations),
        )
    rows = [images[annotation["image_id"]] for annotation in known]
    return {
        FILE_NAME: [image["file_name"] for image in rows],
        CAPTION: [annotation["caption"] for annotation in known],
        IMAGE_ID: [str(annotation["image_id"]) for annotation in known],
        "caption_id": [str(annotation["id"]) if "id" in annotation else None for annotation in known],
        **shared_scalars(rows, without=("id", "file_name", IMAGE, CAPTION, IMAGE_ID)),
    }
