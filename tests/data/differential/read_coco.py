"""COCO's captions and boxes, VOC's boxes: pycocotools and torchvision judge, pictures tell whose they are."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from judging import SIZE, Draw, Pictures, Reader, Reading, Row, Trial, are_odd, colour, draw_pictures, seldom, text_axes, texts
from hypothesis import strategies as st
from pycocotools.coco import COCO
from read_tables import with_pictures
from torchvision.datasets import CocoCaptions, VOCDetection

from hf_curriculum import load_captioned

IDS: list[list[Any]] = [
    *([1, 2, 3, 4], [1, 2, 3, 4], [4, 3, 2, 1], [0, 1, 2, 3], [10**10, 9, 2**53 + 1, 2**53 + 2], [-1, 1, 2, 3]),
    *(["1", "2", "3", "4"], ["a", "b", "1", "c"], [1, "1", 2, "2"], [1, 1, 2, 3], [1, 2, 2, 2], ["é", "e\u0301", "x", "y"]),
    *([1.0, 2.0, 3.0, 4.0], ["001", "1", "01", "0001"]),
]
"""Of up to four pictures."""


def _captions(draw: Draw, folder: Path) -> Trial:
    pictures = draw_pictures(draw, folder)
    ids = draw(st.sampled_from(IDS))[: len(pictures.names)]
    words = texts(empty=not seldom(draw)) if draw(st.booleans()) else st.one_of(st.just("a dog"), st.none())
    listed = [{"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1]} for number, name in zip(ids, pictures.names, strict=True)]
    if seldom(draw):
        for number, image in enumerate(listed):
            image["license"] = draw(st.sampled_from([1, None, "x"])) if number else 1
    captions = []
    targets = [*(ids if pictures.collide else ()), *(draw(st.sampled_from([*ids * 3, "none"])) for _ in range(draw(st.integers(1, 6))))]
    for number, target in enumerate(targets):
        captions.append({"id": number, "image_id": target, "caption": draw(words)})
    more = [name for name in ("score", "lang") if seldom(draw)]
    for one in captions:
        one |= {name: draw(st.sampled_from([0.5, "x", None])) for name in more}
    if seldom(draw, 8):
        captions[-1]["id"] = captions[0]["id"]
    content = {"images": listed, "annotations": captions}
    content |= {"info": {"year": 2014}, "licenses": [{"id": 1}]} if draw(st.booleans()) else {}
    path = folder / draw(st.sampled_from(["captions_val2014.json", "captions.json", "my {1} [a].json"]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    path.write_bytes(json.dumps(content, ensure_ascii=draw(st.booleans())).encode(encoding))
    meant, clash = [], False
    for one in captions:
        which = [place for place, known in enumerate(ids) if known == one["image_id"]]
        clash |= len({pictures.names[place] for place in which}) > 1
        one_picture = len({pictures.names[place] for place in which}) == 1
        meant += [(pictures.colours[which[0]] if one_picture else "?", one["caption"])] if which else []
    axes = {"pictures"} | text_axes(one["caption"] for one in captions)
    axes |= {"names"} if are_odd(pictures.names) else set()
    axes |= {"ids"} if ids not in ([1, 2, 3, 4][: len(ids)],) else set()
    axes |= {"id twice"} if clash else set()
    axes |= {"encodings"} if encoding != "utf-8" else set()
    root = Path(pictures.images) if pictures.images else folder
    judged = not clash and _coco_rows(path, root) == sorted(meant, key=repr)
    ours = lambda: with_pictures(path, pictures.images)  # noqa: E731
    fields = [*more, *(["license"] if any("license" in image for image in listed) else [])]
    return Trial(axes, ours, [meant] if meant else [], judged, fields, ordered=False)


def _coco_rows(path: Path, root: Path) -> list[Row] | None:
    """Pairs of pycocotools and of torchvision, None where one of them cannot read the file or they differ."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            coco, data = COCO(path), CocoCaptions(str(root), str(path))
            other = [(colour(image), caption) for image, captions in data for caption in captions]
        rows = [
            (colour((root / image["file_name"]).read_bytes()), one["caption"])
            for number, image in coco.imgs.items()
            for one in coco.imgToAnns.get(number, [])
        ]
    except Exception:
        return None
    return sorted(rows, key=repr) if sorted(rows, key=repr) == sorted(other, key=repr) else None


def _draw_boxes(draw: Draw, picture: int) -> list[list[int]]:
    """Boxes (left, top, width, height) in a picture; their number and place are the picture's own."""
    return [[1 + number, 1 + picture % 8, 2 + number, 3] for number in range(draw(st.integers(0, 2)))]


def _write_captions(draw: Draw, folder: Path, pictures: Pictures, ids: Sequence[Any], coco: bool) -> tuple[Path, list[int]]:
    """A caption file of pictures, and whose each of its rows is."""
    rows = draw(st.lists(st.sampled_from(range(len(pictures.names))), min_size=1, max_size=5))
    rows = [*(range(len(pictures.names)) if pictures.collide else ()), *rows]
    if coco:
        path = folder / "captions_val.json"
        images = [{"id": number, "file_name": name} for number, name in zip(ids, pictures.names, strict=True)]
        captions = [{"id": place, "image_id": ids[row], "caption": f"text {row}"} for place, row in enumerate(rows)]
        path.write_text(json.dumps({"images": images, "annotations": captions}))
        return path, rows
    path = folder / "captions.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file_name", "caption"), *((pictures.names[row], f"text {row}") for row in rows)])
    return path, rows


def _with_objects(
    draw: Draw,
    folder: Path,
    write: Callable[[Draw, Path, Pictures, Sequence[Any], bool], tuple[Path, dict[int, list], set[int], bool]],
) -> Trial:
    pictures = draw_pictures(draw, folder)
    coco = draw(st.booleans())
    ids = draw(st.sampled_from([[1, 2, 3, 4], [4, 3, 2, 1], [7, 8, 9, 10]]))[: len(pictures.names)]
    captions, rows = _write_captions(draw, folder, pictures, ids, coco)
    annotated, boxes, sure, judged = write(draw, folder, pictures, ids, coco)
    whose = [pictures.colours[row] for row in rows]

    def verdict(picture: Any, objects: list[dict] | None) -> str:
        """Whose objects stand beside a picture."""
        if objects is None:
            return "none" if picture in sure else "own or none"
        found = [([round(edge) for edge in item["box"]], item["name"]) for item in objects]
        right = [([x, y, x + w, y + h], f"c{picture}") for x, y, w, h in boxes.get(picture, [])]
        return ("own" if picture in sure else "own or none") if found == right else f"of another: {found}"

    def ours() -> Reading:
        data = load_captioned(captions, images=pictures.images, objects=annotated)
        if "image" not in data.column_names:
            return Reading([(None, "", "")] * len(data))
        seen = [colour(image) for image in data["image"]]
        found = [verdict(picture, objects) for picture, objects in zip(seen, data["objects"], strict=True)]
        return Reading(list(zip(seen, data["caption"], found, strict=True)), data.column_names, data["image_id"][:])

    meant = [(picture, f"text {row}", "own" if picture in sure else "own or none") for picture, row in zip(whose, rows, strict=True)]
    axes = {"pictures", "boxes"} | ({"names"} if are_odd(pictures.names) else set()) | ({"ids"} if coco else set())
    axes |= {"encodings"} if annotated.suffix == "" and not judged else set()
    return Trial(axes, ours, [meant], judged and pictures.is_plain and set(whose) <= sure, ordered=False)


def _instances(draw: Draw, folder: Path, pictures: Pictures, ids: Sequence[Any], coco: bool) -> tuple[Path, dict, set, bool]:
    """Boxes in COCO's form, named as in the caption file or otherwise, numbered as there or otherwise."""
    names = list(pictures.names)
    naming = draw(st.sampled_from(["same", "same", "longer", "shorter", "some"]))
    if naming == "longer":
        names = [f"val/{name}" for name in names]
    if naming == "shorter":
        names = [name.rpartition("/")[2] for name in names]
    if naming == "some":
        names = [name if draw(st.booleans()) else f"other/{name}x.png" for name in names]
    numbers = list(ids) if draw(st.booleans()) else draw(st.permutations([1, 2, 3, 4, 5]))[: len(names)]
    boxes = {place: _draw_boxes(draw, place) for place in range(len(names))}
    images = [{"id": n, "file_name": name, "width": SIZE[0], "height": SIZE[1]} for n, name in zip(numbers, names, strict=True)]
    annotations = [(n, place, box) for place, n in enumerate(numbers) for box in boxes[place]]
    if seldom(draw):  # a picture that the captions do not have, and whose name ends as one of theirs
        images.append({"id": 99, "file_name": f"zz/{pictures.names[0].rpartition('/')[2]}", "width": SIZE[0], "height": SIZE[1]})
        annotations.append((99, 11, [0, 0, 9, 9]))
    listed = [{"id": i, "image_id": n, "category_id": place + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0} for i, (n, place, box) in enumerate(annotations, 1)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": listed, "categories": [{"id": i + 1, "name": f"c{i}"} for i in range(12)]}))
    with contextlib.redirect_stdout(io.StringIO()):
        read = COCO(path)
    theirs = {image["file_name"]: [one["bbox"] for one in read.imgToAnns[number]] for number, image in read.imgs.items()}
    sure = {place for place, name in enumerate(pictures.names) if names[place] == name and pictures.colours[place] == place}
    judged = all(theirs[pictures.names[place]] == boxes[place] for place in sure)
    return path, boxes, sure, judged and len(sure) == len(names)


def _voc(draw: Draw, folder: Path, pictures: Pictures, ids: Sequence[Any], coco: bool) -> tuple[Path, dict, set, bool]:
    """Boxes in VOC's form, an XML file for each picture, in the pictures' folders or in one."""
    bases = [name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0] for name in pictures.names]
    flat = draw(st.booleans()) and len(set(bases)) == len(bases)
    root = folder / "Annotations"
    boxes = {place: _draw_boxes(draw, place) for place in range(len(pictures.names))}
    files: dict[Path, int] = {}
    for place, name in enumerate(pictures.names):
        stem = name.replace("\\", "/").removeprefix("./").rpartition(".")[0]
        files[root / f"{stem.rpartition('/')[2] if flat else stem}.xml"] = place
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    judged = len(files) == len(pictures.names)
    for file, place in files.items():
        items = "".join(
            f"<object><name>c{place}</name><pose>dé</pose><truncated>0</truncated><difficult>{place % 2}</difficult><bndbox>"
            f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
            for x, y, w, h in boxes[place]
        )
        text = f"<annotation><filename>{escape(pictures.names[place])}</filename><size><width>{SIZE[0]}</width><height>{SIZE[1]}</height></size>{items}</annotation>"
        said = encoding.removesuffix("-sig")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f'<?xml version="1.0" encoding="{said}"?>{text}'.encode(encoding, "xmlcharrefreplace"))
        parsed = VOCDetection.parse_voc_xml(ElementTree.parse(file).getroot())["annotation"]
        corners = [[int(item["bndbox"][edge]) for edge in ("xmin", "ymin", "xmax", "ymax")] for item in parsed.get("object", [])]
        judged &= corners == [[x + 1, y + 1, x + w, y + h] for x, y, w, h in boxes[place]]
    stems = [name.rpartition(".")[0] for name in pictures.names]
    alike = [stem.rpartition("/")[2] if flat else stem for stem in stems]
    sure = {place for place, stem in enumerate(alike) if alike.count(stem) == 1 and pictures.colours[place] == place}
    sure = set() if flat and any("/" in stem or "\\" in stem for stem in stems) else sure
    return root, boxes, sure, judged and len(sure) == len(stems)


READERS = [
    Reader("coco captions", "pycocotools, torchvision", 90, _captions),
    Reader("coco instances", "pycocotools", 70, lambda draw, folder: _with_objects(draw, folder, _instances)),
    Reader("voc", "torchvision", 50, lambda draw, folder: _with_objects(draw, folder, _voc)),
]
