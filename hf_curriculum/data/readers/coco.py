"""Caption files in JSON: COCO's, with a list of `images` and one of `annotations`, and Karpathy's `dataset_*.json`."""

from __future__ import annotations

import logging
from typing import Any

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID
from hf_curriculum.data.readers.tables import FILE_NAME, shared_scalars

logger: logging.Logger = logging.getLogger(__name__)


def is_coco(content: Any) -> bool:
    """Whether parsed JSON has the two lists of COCO's files."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content


def read_coco(content: dict[str, Any]) -> dict[str, list[Any]]:
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


SPLITS = {"val": "validation"}
"""Names that `datasets` gives splits; other names stay."""


def is_karpathy(content: Any) -> bool:
    """Whether parsed JSON is a list of `images` that carry their sentences."""
    images = content.get("images") if isinstance(content, dict) else None
    return isinstance(images, list) and len(images) > 0 and "sentences" in images[0]


def read_karpathy(content: dict[str, Any], *, restval: str = "train") -> dict[str, dict[str, list[Any]]]:
    """Split (`train`, `validation`, `test`) -> columns of a Karpathy file, one row per sentence, in the file's order.

    Columns: `file_name` (with its folder, where the file names one), `caption` (`raw`, or else the tokens joined by
    spaces), `image_id` (`cocoid`, or else `imgid`, as a string), `caption_id`. COCO's split "restval" is training data
    (`restval="train"`), a split of its own (`"keep"`) or left out (`"drop"`).

    Source: Karpathy and Fei-Fei, "Deep visual-semantic alignments for generating image descriptions" (CVPR 2015).

    Example:
        >>> read_karpathy({"images": [{"filename": "a.jpg", "split": "val", "imgid": 0,
        ...                            "sentences": [{"raw": "A dog.", "sentid": 0}]}]})["validation"]["caption"]
        ['A dog.']
    """
    if restval not in ("train", "keep", "drop"):
        raise ValueError(
            f"`restval={restval!r}` was given. The images of that split are counted as 'train', kept apart ('keep') "
            "or left out ('drop')."
        )
    splits: dict[str, dict[str, list[Any]]] = {}
    for number, image in enumerate(content["images"]):
        missing = [field for field in ("filename", "split", "sentences") if field not in image]
        if missing:
            raise ValueError(
                f"Image {number} of the Karpathy file has no {missing}; it has {sorted(image)}. Every image needs a "
                "file name, a split and its sentences."
            )
        split = SPLITS.get(image["split"], image["split"])
        if split == "restval" and restval != "keep":
            if restval == "drop":
                continue
            split = "train"
        columns = splits.setdefault(split, {FILE_NAME: [], CAPTION: [], IMAGE_ID: [], "caption_id": []})
        _add(columns, image)
    order = {"train": 0, "restval": 1, "validation": 2, "test": 3}
    return {split: splits[split] for split in sorted(splits, key=lambda split: (order.get(split, 4), split))}


def _add(columns: dict[str, list[Any]], image: dict[str, Any]) -> None:
    file_name = f"{image['filepath']}/{image['filename']}" if image.get("filepath") else image["filename"]
    image_id = image.get("cocoid", image.get("imgid"))
    for sentence in image["sentences"]:
        columns[FILE_NAME].append(file_name)
        columns[CAPTION].append(sentence["raw"] if "raw" in sentence else " ".join(sentence["tokens"]))
        columns[IMAGE_ID].append(file_name if image_id is None else str(image_id))
        columns["caption_id"].append(str(sentence["sentid"]) if "sentid" in sentence else None)
