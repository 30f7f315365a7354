"""COCO's JSON, with a list of `images` and one of `annotations`: captions, objects; Karpathy's; VOC's objects."""

from __future__ import annotations

import codecs
import logging
import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Image, concatenate_datasets

from hf_curriculum.columns import CAPTION, IMAGE, IMAGE_ID, TOKENS
from hf_curriculum.config import parse_json
from hf_curriculum.data.identity import bare_name, match_names, normalise_name
from hf_curriculum.data.image_files import stored_images
from hf_curriculum.data.left_out import LeftOut
from hf_curriculum.data.readers.boxes import Annotated, Objects, Size, fit_objects
from hf_curriculum.data.readers.folder import find_files
from hf_curriculum.data.readers.outside_files import named_files
from hf_curriculum.data.readers.tables import FILE_NAME, Reject, shared_scalars
from hf_curriculum.data.text import read_text

logger: logging.Logger = logging.getLogger(__name__)


def is_coco(content: Any) -> bool:
    """Whether parsed JSON has the two lists of COCO's files."""
    return isinstance(content, dict) and isinstance(content.get("images"), list) and "annotations" in content


def read_coco(content: dict[str, Any], reject: Reject, left_out: LeftOut) -> dict[str, Any]:
    """The columns of a COCO caption file, one row per annotation, in the file's order."""
    annotations = content["annotations"]
    if not any(isinstance(annotation, dict) and "caption" in annotation for annotation in annotations):
        found = f"annotations with the fields {sorted(annotations[0])}" if annotations else "no annotations"
        raise ValueError(
            f"The COCO file has {found}, and one `caption` per annotation is needed. COCO keeps captions in files of "
            "their own, captions_*.json; instances_*.json hold boxes, and are given with captions as `objects=`."
        )
    images = _by_id(content["images"])
    known, ids, unlisted = [], [], []
    for number, annotation in enumerate(annotations, 1):
        try:
            image_id, caption = id_text(annotation["image_id"]), annotation["caption"]
        except (KeyError, TypeError):
            reject(
                f"Annotation {number} is {annotation!r:.100}, and an object with `image_id` and `caption` is needed."
            )
        except ValueError as error:
            reject(f"Annotation {number}: {error}")
        else:
            if not isinstance(caption, (str, NoneType)):
                reject(f"Annotation {number} has the caption {caption!r:.100}, and a text is needed.")
            elif image_id in images:
                known.append(annotation)
                ids.append(image_id)
            else:
                unlisted.append(image_id)
    if not known:
        raise ValueError(
            f"None of the {len(annotations)} captions of the COCO file belongs to one of its {len(images)} images "
            f"(annotation image_id {next(iter(unlisted), None)!r}, for example). Both lists must come from one file."
        )
    left_out.add("captions of images that the file does not list", len(unlisted), next(iter(unlisted), None))
    names = {key: _file_name(image) for key, image in images.items()}
    bare = images.keys() - ids
    left_out.add("images without a caption", len(bare), names[min(bare)] if bare else None)
    ours = {
        FILE_NAME: [names[image_id] for image_id in ids],
        CAPTION: [annotation["caption"] for annotation in known],
        IMAGE_ID: ids,
        "caption_id": [str(annotation["id"]) if "id" in annotation else None for annotation in known],
    }
    places = {image_id: place for place, image_id in enumerate(dict.fromkeys(ids))}
    of_images = [images[image_id] for image_id in places]
    rows = pa.array(map(places.get, ids))
    further = {
        name: column.take(rows)
        for name, column in shared_scalars(of_images, without=("id", IMAGE, *ours), left_out=left_out).items()
    }
    taken = {"id", IMAGE, *ours, *further}
    named = set().union(*known)
    for name in sorted(named & taken - {"id", *ours}):
        left_out.add(f"field `{name}` of annotations (images have such a field)", len(known))
    if named <= taken:  # COCO's own files, and there are many rows
        return ours | further
    return ours | further | shared_scalars(known, without=taken, left_out=left_out)


def id_text(number: Any) -> str:
    """An id of COCO's as text: 9, 9.0 and "9" are one."""
    if type(number) is float and number.is_integer():
        number = int(number)
    if type(number) is int or (type(number) is str and number):
        return str(number)
    raise ValueError(f"An id is {number!r:.80}, and whole numbers or texts are needed.")


def _file_name(image: dict[str, Any]) -> str:
    """The name of an image's file; LVIS's is in its address, after the host."""
    name = image.get("file_name") or urlsplit(image.get("coco_url") or "").path.lstrip("/")
    if not name or not isinstance(name, str):
        raise ValueError(
            f"The image {image.get('id')!r} has neither a `file_name` nor a `coco_url`, so its file is not known; it "
            f"has {sorted(image)}. Write the names of files."
        )
    return name


def _by_id(images: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Id → image; a `ValueError` where two images have one id."""
    found: dict[str, dict[str, Any]] = {}
    for image in images:
        first = found.setdefault(id_text(image["id"]), image)
        if first is not image and normalise_name(_file_name(first)) != normalise_name(_file_name(image)):
            raise ValueError(
                f"Two images have the id {image['id']!r}: {_file_name(first)!r} and {_file_name(image)!r}. Which of "
                "them an annotation is of cannot be known. Files that number alike were joined: give the images of "
                "each other ids (`image['id'] = f\"coco/{image['id']}\"`, and `image_id` of its annotations), or load "
                "the files one by one."
            )
    return found


SPLITS = {"val": "validation"}
"""Names that `datasets` gives splits; other names stay."""


def is_karpathy(content: Any) -> bool:
    """Whether parsed JSON is a list of `images` that carry their sentences."""
    images = content.get("images") if isinstance(content, dict) else None
    return isinstance(images, list) and any(isinstance(image, dict) and "sentences" in image for image in images)


def read_karpathy(
    content: dict[str, Any], reject: Reject, left_out: LeftOut, *, restval: str = "train"
) -> dict[str, dict[str, list[Any]]]:
    """Split (`train`, `validation`, `test`) → columns of a Karpathy file, a row per sentence, in its order."""
    if restval not in ("train", "keep", "drop"):
        raise ValueError(
            f"`restval={restval!r}` was given. The images of that split are counted as 'train', kept apart ('keep') "
            "or left out ('drop')."
        )
    splits: dict[str, dict[str, list[Any]]] = {}
    names = [FILE_NAME, CAPTION, IMAGE_ID, "caption_id"]
    images = []
    for number, image in enumerate(content["images"]):
        if problem := _problem(number, image):
            reject(problem)
        elif image["sentences"]:
            images.append(image)
        else:
            left_out.add("images without a sentence", example=image["filename"])
    _count_fields(images, "images", _IMAGE_FIELDS, left_out)
    _count_fields(
        [sentence for image in images for sentence in image["sentences"]], "sentences", _SENTENCE_FIELDS, left_out
    )
    if any("tokens" in sentence for image in images for sentence in image["sentences"]):
        names.append(TOKENS)
    split_of: dict[str, str] = {}
    for image in images:
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
    first = [split for split in ("train", "restval", "validation", "test") if split in splits]
    return {split: splits[split] for split in (*first, *sorted(splits.keys() - {*first}))}


_IMAGE_FIELDS = ("filename", "filepath", "split", "sentences", "sentids", "cocoid", "imgid")
_SENTENCE_FIELDS = ("raw", "tokens", "sentid", "imgid")


def _count_fields(records: Iterable[Mapping[str, Any]], what: str, known: Iterable[str], left_out: LeftOut) -> None:
    """Counts fields of a Karpathy file that are not kept."""
    counts = Counter(chain.from_iterable(records))
    for name in counts.keys() - {*known}:
        left_out.add(f"field `{name}` of {what} (Karpathy's files have none)", counts[name])


def _problem(number: int, image: Any) -> str | None:
    """Why an image of a Karpathy file is no object with a name, a split and sentences; None where it is one."""
    if not isinstance(image, dict):
        return f"Image {number} of the Karpathy file is {image!r:.80}, no object."
    missing = [field for field in ("filename", "split", "sentences") if field not in image]
    if missing:
        return (
            f"Image {number} of the Karpathy file has no {missing}; it has {sorted(image)}. Every image needs a "
            "file name, a split and its sentences."
        )
    for field in ("filename", "split"):
        if not isinstance(image[field], str):
            return f"Image {number} of the Karpathy file has the `{field}` {image[field]!r:.80}. A text is needed."
    if not isinstance(image["sentences"], list):
        return (
            f"Image {number} ({image['filename']!r}) of the Karpathy file has `sentences` that are no list: "
            f"{image['sentences']!r:.80}."
        )
    for sentence in image["sentences"]:
        found = sentence if isinstance(sentence, dict) else {}
        tokens = found.get("tokens")
        words = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
        if not (words if found.get("raw") is None else isinstance(found["raw"], str) and (words or tokens is None)):
            return (
                f"Image {number} ({image['filename']!r}) of the Karpathy file has a sentence with neither `raw` nor "
                f"`tokens`, a text and a list of texts: {sentence!r:.80}."
            )
    return None


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


def objects_array(rows: Iterable[Objects | None]) -> pa.Array:
    """Objects as an Arrow array; `area`, `iscrowd` (COCO) and `difficult` (VOC) are fields where any has them."""
    rows = list(rows)
    known = {name for row in rows if row for item in row for name in item}
    return pa.array(rows, pa.list_(pa.struct(_BOX + [field for field in _FURTHER if field[0] in known])))


def add_objects(splits: Mapping[str, Dataset], path: str | Path, left_out: LeftOut) -> dict[str, Dataset]:
    """Adds the annotated objects of each row's image, as `GroundTruthBoxes` and the embedded scenes have them."""
    path = Path(path)
    annotated = _read_voc(path, left_out) if path.is_dir() else list(read_instances(path, left_out).values())
    keys = {split: _names_and_ids(rows) for split, rows in splits.items()}
    named = any(
        FILE_NAME in rows.column_names or (IMAGE in rows.column_names and any(named_files(rows, [IMAGE])))
        for rows in splits.values()
    )
    found = _join(path, annotated, {key: None for of_split in keys.values() for key in of_split}, named)
    first: dict[int, tuple[str, int]] = {}  # annotated image → split and row of its image
    for split, of_split in keys.items():
        for row, key in enumerate(of_split):
            if key in found:
                first.setdefault(found[key], (split, row))
    images: dict[int, Any] = {}
    for split, rows in splits.items():
        of_split = {number: row for number, (name, row) in first.items() if name == split}
        shown = rows.select(list(of_split.values())) if IMAGE in rows.column_names else None
        is_image = shown is not None and isinstance(shown.features[IMAGE], Image)
        images |= zip(of_split, stored_images(shown) if is_image else [None] * len(of_split), strict=True)
    fitted = fit_objects(path, [annotated[number] for number in images], list(images.values()), left_out)
    objects = dict(zip(images, fitted, strict=True))
    added, total = {}, sum(map(len, splits.values()))
    for split, rows in splits.items():
        column = [objects[found[key]] if key in found else None for key in keys[split]]
        kept = rows.remove_columns(OBJECTS) if OBJECTS in rows.column_names else rows
        added[split] = concatenate_datasets([kept, Dataset(pa.table({OBJECTS: objects_array(column)}))], axis=1)
    count = sum(key in found for of_split in keys.values() for key in of_split)
    log = logger.info if count == total else logger.warning
    log("%s: %d of %d rows are of images that it annotates; the others have None.", path, count, total)
    return added


_Key = tuple[str, str]
"""The name of a row's image, "" where there is none, and its id."""


def _names_and_ids(rows: Dataset) -> list[_Key]:
    """Name and id of each row's image; the name is its path where there is no name of a file."""
    ids = [str(i) for i in rows[IMAGE_ID][:]] if IMAGE_ID in rows.column_names else [""] * len(rows)
    if FILE_NAME in rows.column_names:
        names = rows[FILE_NAME][:]
    elif isinstance(rows.features.get(IMAGE), Image):
        batches = rows.select_columns([IMAGE]).with_format("arrow").iter(10_000)
        names = [name for batch in batches for name in pc.struct_field(batch[IMAGE], "path").to_pylist()]
    else:
        names = [""] * len(rows)
    return [(name or "", image_id) for name, image_id in zip(names, ids, strict=True)]


def _join(path: Path, annotated: Sequence[Annotated], keys: Mapping[_Key, None], named: bool) -> dict[_Key, int]:
    """Row's name and id → the number of the annotated image: by names, and by ids where these agree with names.

    Ids alone join rows that name no files (`named`), as those whose images are bytes.
    """
    by_name: dict[str, int] = {}
    for number, one in enumerate(annotated):
        if one.name and by_name.setdefault(one.name, number) != number:
            raise ValueError(
                f"{path} has the image {one.name!r} twice, as {annotated[by_name[one.name]].image_id!r} and "
                f"{one.image_id!r}. Write all its boxes under one id."
            )
    matches = match_names((name or image_id for name, image_id in keys), by_name)
    matches.validate(path)
    found = {key: by_name[matches.pairs[key[0] or key[1]]] for key in keys if (key[0] or key[1]) in matches.pairs}
    by_id = {one.image_id: number for number, one in enumerate(annotated) if one.image_id}
    agree = {annotated[number].image_id == image_id for (_, image_id), number in found.items()}
    more = {key: by_id[key[1]] for key in keys if key not in found and key[1] in by_id}
    if more and (agree == {True} or not (named or found)):
        logger.info("%s: %d images are found by their `image_id` alone, %r for example.", path, len(more), min(more))
        found |= more
    if not found:
        example = next(((name or image_id) for name, image_id in keys), None)
        ids = " Their ids are equal, which alone says nothing where names differ." if more else ""
        raise ValueError(
            f"None of the {len(keys)} images of the rows ({example!r}, for example) is one of those that {path} "
            f"annotates ({next(iter(by_name or by_id), None)!r}, for example). Both must be of the same pictures, and "
            f"call them alike, folders included.{ids}"
        )
    return found


def read_instances(path: Path, left_out: LeftOut) -> dict[str, Annotated]:
    """Image id → what COCO's instances say of it; without a name where the file does not list the image."""
    try:
        content = parse_json(read_text(path))
        categories, annotations = content.get("categories") or [], content["annotations"]
        labels = _class_names(path, categories, bool(annotations))
        images = {
            image_id: Annotated(_file_name(image), image_id, _size(image), [])
            for image_id, image in _by_id(content["images"]).items()
        }
        unlisted, unlabelled = [], []
        for number, annotation in enumerate(annotations, 1):
            image_id, label = id_text(annotation["image_id"]), annotation.get("category_id")
            left, top, width, height = _bbox(number, annotation)
            name = None if label is None else labels.get(id_text(label))
            item = {"box": [left, top, left + width, top + height], "name": name}
            item |= {"area": float(annotation["area"])} if annotation.get("area") is not None else {}
            item |= {"iscrowd": bool(annotation["iscrowd"])} if annotation.get("iscrowd") is not None else {}
            unlisted += [image_id] if image_id not in images or not images[image_id].name else []
            unlabelled += [label] if name is None else []
            images.setdefault(image_id, Annotated("", image_id, None, [])).objects.append(item)
    except NoClassesError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        plain = str(error) if type(error) is ValueError else repr(error)
        raise ValueError(
            f"{path} cannot be read as objects ({plain:.500}). COCO's instances_*.json have `images`, and "
            "`annotations` with a `bbox` each; VOC's are a folder of .xml files."
        ) from error
    for what, wrong in (("images", unlisted), ("categories", unlabelled)):
        reason = f"boxes of {what} that {path.name} does not list (without their names)"
        left_out.add(reason, len(wrong), next(iter(wrong), None))
    return images


def _bbox(number: int, annotation: Mapping[str, Any]) -> list[float]:
    """Left, top, width and height."""
    bbox = annotation.get("bbox")
    try:
        if isinstance(bbox, list) and len(bbox) == 4:
            return [_coordinate(value) for value in bbox]
    except TypeError:
        pass
    raise ValueError(
        f"annotation {number}, with the id {annotation.get('id')!r}, of image {annotation['image_id']!r}, has the "
        f"`bbox` {bbox!r:.80}, and four numbers are needed: left, top, width, height. Correct or remove it"
    )


def _coordinate(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a `bbox` has {value!r}")
    return number


def _size(image: Mapping[str, Any]) -> Size | None:
    width, height = image.get("width"), image.get("height")
    return (float(width), float(height)) if width and height else None


class NoClassesError(ValueError):
    """Boxes whose classes are not known."""


def _class_names(path: Path, categories: list[dict[str, Any]], needed: bool) -> dict[str, str]:
    """COCO's category id, from 1 with gaps, → its name, in the order of the ids."""
    names: dict[str, str] = {}
    for category in sorted(categories, key=lambda one: (len(id_text(one["id"])), id_text(one["id"]))):
        number, name = id_text(category["id"]), category.get("name")
        if not isinstance(name, str) or not name.strip():
            raise NoClassesError(
                f"{path} has the category {number} with the name {name!r}, so the class of its boxes is not known. "
                "Write its name."
            )
        if names.setdefault(number, name) != name:
            raise NoClassesError(
                f"{path} has two categories with the id {number}, {names[number]!r} and {name!r}: which of them a "
                "box is of cannot be known. Give one of them, and its annotations, another id."
            )
    if needed and not names:
        raise NoClassesError(
            f"{path} has annotations and no `categories`, so the classes of its boxes have no names: `category_id` "
            "alone says nothing. Add the list: [{'id': 1, 'name': 'person'}, ...]."
        )
    counts = Counter(names.values())
    twice = min((name for name, count in counts.items() if count > 1), default=None)
    if twice is not None:
        ids = [number for number, name in names.items() if name == twice]
        raise NoClassesError(
            f"{path} has two categories called {twice!r} (ids [{', '.join(ids)}]): as one class they would be mixed, "
            "as two they could not be told apart. Rename one of them, or give its annotations the other's id."
        )
    return names


def class_names(path: str | Path) -> list[str]:
    """The classes of COCO's instances in the order of their ids, which may have gaps: what outputs of a model are.

    Raises:
        ValueError: the file has no categories, two of one name, or two names of one id.

    Example:
        >>> class_names("instances_val2017.json")[:2]  # doctest: +SKIP
        ['person', 'bicycle']
    """
    content = parse_json(read_text(Path(path)))
    return list(_class_names(Path(path), content.get("categories") or [], needed=True).values())


def _read_voc(folder: Path, left_out: LeftOut) -> list[Annotated]:
    """What the .xml files of a folder, and of folders in it, say."""
    files = find_files(folder, (".xml",), left_out)
    if not files:
        raise ValueError(f"{folder} holds no .xml files. VOC's annotations are one for each image.")
    return read_voc(folder, {file.relative_to(folder).as_posix(): file for file in files})


def read_voc(source: Path, files: Mapping[str, Path]) -> list[Annotated]:
    """What VOC's XML files say, each under a name; their pixels begin at 1, or at 0 where any edge of theirs does."""
    read = {name: _read_xml(file) for name, file in files.items()}
    _validate_file_names(source, {name: said for name, (said, _, _) in read.items()})
    found = [Annotated(name, "", size, objects) for name, (_, size, objects) in read.items()]
    starts = [(one.name, item["box"]) for one in found for item in one.objects if min(item["box"][:2]) < 1]
    if starts:
        logger.warning(
            "%s: %d boxes begin at %g (%s, for example), and VOC's pixels at 1: all boxes are taken as counted from "
            "0, as other tools write them.",
            source,
            len(starts),
            min(starts[0][1][:2]),
            starts[0][0],
        )
    else:
        for item in (item for one in found for item in one.objects):
            item["box"][:2] = [edge - 1 for edge in item["box"][:2]]
    return found


def _validate_file_names(source: Path, said: Mapping[str, str]) -> None:
    """A warning where VOC's XML files say that they are of images called otherwise; an error where it is another's."""
    names = {_called(name): name for name in said}
    others = {
        name: image
        for name, file in said.items()
        if file
        and (image := _called(posixpath.join(posixpath.dirname(name), posixpath.basename(file)))) != _called(name)
    }
    theirs = next((name for name, image in others.items() if image in names), None)
    if theirs is not None:
        raise ValueError(
            f"{source}: {theirs!r} has the `<filename>` {said[theirs]!r}, and {names[others[theirs]]!r} is there too, "
            "so it is not known of which picture its boxes are. Correct the elements, or remove them where the names "
            "of the XML files are right."
        )
    if others:
        first = next(iter(others))
        logger.warning(
            "%s: %d of its XML files have the `<filename>` of an image that is called otherwise (%s: %s, for "
            "example). Boxes are joined by the names of the XML files.",
            *(source, len(others), first, said[first]),
        )


def _called(name: str) -> str:
    return bare_name(normalise_name(name)).casefold()


def _read_xml(file: Path) -> tuple[str, Size | None, Objects]:
    """The name of the image, the size and the objects of one of VOC's XML files, edges as they stand there."""
    content = file.read_bytes()
    declared = re.match(rb"\s*<\?xml[^>]*?encoding=[\"']([\w.-]+)", content)
    in_16_bits = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        text = content.decode("utf-16" if in_16_bits else declared[1].decode() if declared else "utf-8-sig")
        if "<!" in text.replace("<!--", ""):
            raise ValueError("it declares a document type, whose entities may grow without end")
        found, root = [], ElementTree.fromstring(text)
        for item in root.iter("object"):
            box = [_coordinate(item.findtext(f"bndbox/{edge}")) for edge in _EDGES]
            entry = {"box": box, "name": item.findtext("name")}
            flag = item.findtext("difficult")
            found.append(entry if flag is None else {**entry, "difficult": flag.strip() == "1"})
        size = _size({side: float(root.findtext(f"size/{side}") or 0) for side in ("width", "height")})
        return normalise_name((root.findtext("filename") or "").strip()), size, found
    except (ElementTree.ParseError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} cannot be read as VOC's annotation ({error}): objects with a `name` and a `bndbox` of "
            f"{list(_EDGES)}. Correct or remove it."
        ) from error


_EDGES = ("xmin", "ymin", "xmax", "ymax")
