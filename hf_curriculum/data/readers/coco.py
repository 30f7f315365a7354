"""COCO's JSON, with a list of `images` and one of `annotations`: captions, objects; Karpathy's; VOC's objects."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, TOKENS
from hf_curriculum.config import parse_json
from hf_curriculum.data.readers.tables import FILE_NAME, shared_scalars
from hf_curriculum.data.text import open_text

logger: logging.Logger = logging.getLogger(__name__)


def is_coco(content: Any) -> bool:
    """Whether parsed JSON has the two lists of COCO's files."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content


def read_coco(content: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns of a COCO caption file, one row per annotation, in the file's order."""
    annotations = content["annotations"]
    if not annotations or "caption" not in annotations[0]:
        found = f"annotations with the fields {sorted(annotations[0])}" if annotations else "no annotations"
        raise ValueError(
            f"The COCO file has {found}, and one `caption` per annotation is needed. COCO keeps captions in files of "
            "their own, captions_*.json; instances_*.json hold boxes, and are given with captions as `objects=`."
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
    return isinstance(images, list) and any(isinstance(image, dict) and "sentences" in image for image in images)


def read_karpathy(content: dict[str, Any], *, restval: str = "train") -> dict[str, dict[str, list[Any]]]:
    """Split (`train`, `validation`, `test`) → columns of a Karpathy file, a row per sentence, in its order."""
    if restval not in ("train", "keep", "drop"):
        raise ValueError(
            f"`restval={restval!r}` was given. The images of that split are counted as 'train', kept apart ('keep') "
            "or left out ('drop')."
        )
    splits: dict[str, dict[str, list[Any]]] = {}
    names = [FILE_NAME, CAPTION, IMAGE_ID, "caption_id"]
    for number, image in enumerate(content["images"]):
        _validate_image(number, image)
    if any("tokens" in sentence for image in content["images"] for sentence in image["sentences"]):
        names.append(TOKENS)
    split_of: dict[str, str] = {}
    for image in filter(lambda image: image["sentences"], content["images"]):
        split = SPLITS.get(image["split"], image["split"])
        if split == "restval" and restval != "keep":
            if restval == "drop":
                continue
            split = "train"
        _add(splits.setdefault(split, {name: [] for name in names}), image)
        image_id = splits[split][IMAGE_ID][-1]
        if split_of.setdefault(image_id, split) != split:
            raise ValueError(
                f"The Karpathy file has image {image_id!r} in the splits {split!r} and {split_of[image_id]!r}, so "
                "what is trained on would be evaluated too. Leave it in one of them."
            )
    if not split_of:
        raise ValueError(
            f"The Karpathy file has no captions: none of its {len(content['images'])} images has a sentence that is "
            "read. Look at `sentences` and `split`."
        )
    order = {"train": 0, "restval": 1, "validation": 2, "test": 3}
    return {split: splits[split] for split in sorted(splits, key=lambda split: (order.get(split, 4), split))}


def _validate_image(number: int, image: Any) -> None:
    """A `ValueError` where an image of a Karpathy file is no object with a name, a split and sentences."""
    if not isinstance(image, dict):
        raise ValueError(f"Image {number} of the Karpathy file is {image!r:.80}, no object. Correct or remove it.")
    missing = [field for field in ("filename", "split", "sentences") if field not in image]
    if missing:
        raise ValueError(
            f"Image {number} of the Karpathy file has no {missing}; it has {sorted(image)}. Every image needs a "
            "file name, a split and its sentences."
        )
    for field in ("filename", "split"):
        if not isinstance(image[field], str):
            raise ValueError(
                f"Image {number} of the Karpathy file has the `{field}` {image[field]!r:.80}. A text is needed."
            )
    if not isinstance(image["sentences"], list):
        raise ValueError(
            f"Image {number} ({image['filename']!r}) of the Karpathy file has `sentences` that are no list: "
            f"{image['sentences']!r:.80}."
        )
    for sentence in image["sentences"]:
        found = sentence if isinstance(sentence, dict) else {}
        tokens = found.get("tokens")
        words = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
        if not (words if found.get("raw") is None else isinstance(found["raw"], str) and (words or tokens is None)):
            raise ValueError(
                f"Image {number} ({image['filename']!r}) of the Karpathy file has a sentence with neither `raw` nor "
                f"`tokens`, a text and a list of texts: {sentence!r:.80}. Correct or remove it."
            )


def _add(columns: dict[str, list[Any]], image: dict[str, Any]) -> None:
    file_name = f"{image['filepath']}/{image['filename']}" if image.get("filepath") else image["filename"]
    image_id = image.get("cocoid", image.get("imgid"))
    for sentence in image["sentences"]:
        columns[FILE_NAME].append(file_name)
        columns[CAPTION].append(" ".join(sentence["tokens"]) if sentence.get("raw") is None else sentence["raw"])
        columns[IMAGE_ID].append(file_name if image_id is None else str(image_id))
        columns["caption_id"].append(str(sentence["sentid"]) if "sentid" in sentence else None)
        if TOKENS in columns:
            columns[TOKENS].append(" ".join(sentence["tokens"]) if sentence.get("tokens") is not None else None)


OBJECTS = "objects"
"""The column of annotated objects: per row a list of `{"box": [left, top, right, bottom], "name": ...}`."""
_BOX = [("box", pa.list_(pa.float32())), ("name", pa.string())]
_FURTHER = [("area", pa.float32()), ("iscrowd", pa.bool_()), ("difficult", pa.bool_())]
Objects = list[dict[str, Any]]
_FEW = 0.05  # share of the boxes that may lie beyond their images


def objects_array(rows: Iterable[Objects | None]) -> pa.Array:
    """Objects as an Arrow array; `area`, `iscrowd` (COCO) and `difficult` (VOC) are fields where any has them."""
    rows = list(rows)
    known = {name for row in rows if row for item in row for name in item}
    return pa.array(rows, pa.list_(pa.struct(_BOX + [field for field in _FURTHER if field[0] in known])))


def add_objects(splits: Mapping[str, Dataset], path: str | Path) -> dict[str, Dataset]:
    """Adds the annotated objects of each row's image, as `GroundTruthBoxes` and the embedded scenes have them."""
    path = Path(path)
    by_name, by_id = _read_voc(path) if path.is_dir() else _by_image(read_instances(path))
    added, annotated = {}, 0
    for split, rows in splits.items():
        ids = [str(image_id) for image_id in rows[IMAGE_ID]] if IMAGE_ID in rows.column_names else [""] * len(rows)
        names = rows[FILE_NAME][:] if FILE_NAME in rows.column_names else ids
        keys = zip((PurePath(name or "").stem for name in names), ids, strict=True)
        objects = [by_name[name] if name in by_name else by_id.get(image_id) for name, image_id in keys]
        annotated += sum(found is not None for found in objects)
        column = Dataset(pa.table({OBJECTS: objects_array(objects)}))
        kept = rows.remove_columns(OBJECTS) if OBJECTS in rows.column_names else rows
        added[split] = concatenate_datasets([kept, column], axis=1)
    total = sum(map(len, added.values()))
    if not annotated:
        example = next((name for rows in splits.values() for name in rows[IMAGE_ID][:1]), None)
        raise ValueError(
            f"None of the {total} rows (image_id {example!r}, for example) is of one of the images that {path} "
            f"annotates ({next(iter(by_name), None)!r}, for example). Both must be of the same pictures."
        )
    log = logger.info if annotated == total else logger.warning
    log("%s: %d of %d rows are of images that it annotates; the others have None.", path, annotated, total)
    return added


def read_instances(path: Path) -> dict[str, tuple[dict[str, Any], Objects]]:
    """Image id → its record in COCO's instances, empty where the file does not list it, and its objects."""
    try:
        with open_text(path) as file:
            content = parse_json(file.read())
        categories, annotations = content.get("categories") or [], content["annotations"]
        images = {str(image["id"]): (image, []) for image in content["images"]}
        labels = _class_names(path, categories, bool(annotations))
        for annotation in annotations:
            left, top, width, height = annotation["bbox"]
            item = {"box": [left, top, left + width, top + height], "name": labels.get(annotation.get("category_id"))}
            item |= {"area": float(annotation["area"])} if annotation.get("area") is not None else {}
            item |= {"iscrowd": bool(annotation["iscrowd"])} if annotation.get("iscrowd") is not None else {}
            images.setdefault(str(annotation["image_id"]), ({}, []))[1].append(item)
        [PurePath(image["file_name"]) for image, _ in images.values() if image]
    except NoClassesError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read as objects ({error!r:.200}). COCO's instances_*.json have `images`, and "
            "`annotations` with a `bbox` each; VOC's are a folder of .xml files."
        ) from error
    _validate_inside_images(path, images)
    return images


class NoClassesError(ValueError):
    """Boxes whose classes are not known."""


def _class_names(path: Path, categories: list[dict[str, Any]], needed: bool) -> dict[Any, str]:
    """COCO's category id, from 1 with gaps, → its name."""
    names = {category["id"]: category["name"] for category in categories}
    if needed and not names:
        raise NoClassesError(
            f"{path} has annotations and no `categories`, so the classes of its boxes have no names: `category_id` "
            "alone says nothing. Add the list: [{'id': 1, 'name': 'person'}, ...]."
        )
    twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if twice:
        ids = [number for number, name in names.items() if name == twice[0]]
        raise NoClassesError(
            f"{path} has two categories called {twice[0]!r} (ids {ids}): as one class they would be mixed, as two "
            "they could not be told apart. Rename one of them, or give its annotations the other's id."
        )
    return names


def class_names(path: str | Path) -> list[str]:
    """The classes of COCO's instances in the order of their ids, which may have gaps: what outputs of a model are.

    Raises:
        ValueError: the file has no categories, or two of one name.

    Example:
        >>> class_names("instances_val2017.json")[:2]  # doctest: +SKIP
        ['person', 'bicycle']
    """
    with open_text(Path(path)) as file:
        names = _class_names(Path(path), parse_json(file.read()).get("categories") or [], needed=True)
    return [names[number] for number in sorted(names)]


def _validate_inside_images(path: Path, found: dict[str, tuple[dict[str, Any], Objects]]) -> None:
    """A `ValueError` where many boxes lie beyond their images, a warning where a few do."""
    beyond, total, example = 0, 0, None
    for image, objects in found.values():
        width, height = image.get("width"), image.get("height")
        if width and height:
            outside = [item["box"] for item in objects if item["box"][2] > width + 1 or item["box"][3] > height + 1]
            beyond, total = beyond + len(outside), total + len(objects)
            if outside and example is None:
                example = f"{outside[0]} in the image {image['id']!r} of {width} × {height} pixels, for example"
    if beyond > _FEW * total:
        raise ValueError(
            f"{beyond} of {total} boxes of {path} lie beyond their images (left, top, right, bottom: {example}). "
            "COCO's `bbox` is left, top, width, height: these are left, top, right, bottom, or of images of another "
            "size. Convert them."
        )
    if beyond:
        logger.warning("%s: %d of %d boxes lie partly beyond their images (%s).", path, beyond, total, example)


def _by_image(found: dict[str, tuple[dict[str, Any], Objects]]) -> tuple[dict[str, Objects], dict[str, Objects]]:
    """File's name → objects, and image id → the same."""
    by_name = {PurePath(image["file_name"]).stem: objects for image, objects in found.values() if image}
    return by_name, {image_id: objects for image_id, (_, objects) in found.items()}


def _read_voc(folder: Path) -> tuple[dict[str, Objects], dict[str, Objects]]:
    """File's name → objects, and nothing by id, of a folder of VOC's annotations."""
    files = sorted(file for file in folder.rglob("*.xml") if file.is_file())
    if not files:
        raise ValueError(f"{folder} holds no .xml files. VOC's annotations are one for each image.")
    return {file.stem: read_xml(file) for file in files}, {}


def read_xml(file: Path) -> Objects:
    """The objects of one of VOC's XML files."""
    text = file.read_text(encoding="utf-8")
    try:
        if "<!" in text.replace("<!--", ""):
            raise ValueError("it declares a document type, whose entities may grow without end")
        found = []
        for item in ElementTree.fromstring(text).iter("object"):
            left, top, right, bottom = (float(item.findtext(f"bndbox/{edge}")) for edge in _EDGES)
            entry = {"box": [left - 1, top - 1, right, bottom], "name": item.findtext("name")}
            flag = item.findtext("difficult")
            found.append(entry if flag is None else {**entry, "difficult": flag.strip() == "1"})
    except (ElementTree.ParseError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} cannot be read as VOC's annotation ({error}): objects with a `name` and a `bndbox` of "
            f"{list(_EDGES)}. Correct or remove it."
        ) from error
    return found


_EDGES = ("xmin", "ymin", "xmax", "ymax")
