"""Karpathy's `dataset_*.json`: Flickr8k, Flickr30k and COCO with fixed splits and tokenised captions."""

from __future__ import annotations

from typing import Any

from hf_curriculum.columns import CAPTION, IMAGE_ID
from hf_curriculum.data.readers.tables import FILE_NAME

SPLITS = {"val": "validation"}
"""Names that `datasets` gives splits; other names stay."""


def is_karpathy(content: Any) -> bool:
    """Whether parsed JSON is a list of `images` that carry their sentences."""
    images = content.get("images") if isinstance(content, dict) else None
    return isinstance(images, list) and len(images) > 0 and "sentences" in images[0]


def read_karpathy(content: dict[str, Any], *, restval: str = "train") -> dict[str, dict[str, list]]:
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
    splits: dict[str, dict[str, list]] = {}
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


def _add(columns: dict[str, list], image: dict[str, Any]) -> None:
    file_name = f"{image['filepath']}/{image['filename']}" if image.get("filepath") else image["filename"]
    image_id = image.get("cocoid", image.get("imgid"))
    for sentence in image["sentences"]:
        columns[FILE_NAME].append(file_name)
        columns[CAPTION].append(sentence["raw"] if "raw" in sentence else " ".join(sentence["tokens"]))
        columns[IMAGE_ID].append(file_name if image_id is None else str(image_id))
        columns["caption_id"].append(str(sentence["sentid"]) if "sentid" in sentence else None)
